//! One frame: what it is in memory, and its bytes. Pure. Drawn in FORMAT.md.

use bytes::Bytes;

use crate::id::{DiskId, NodeId};
use crate::limits::WAL_PAYLOAD_BYTES_MAX;

/// Bytes of a frame before its payload.
pub(super) const HEAD_BYTES: usize = 40;
/// Frames begin at multiples of it.
pub(super) const ALIGN: u64 = 8;
/// Where the salt lies in a frame: what the search behind a hole looks for first.
pub(super) const SALT_AT: usize = 36;
/// Bytes of a peer mark's payload before its vote.
const MARK_HEAD_BYTES: usize = 32;
const MARK_HAS_LOG: u8 = 1;
const MARK_FORGOTTEN: u8 = 2;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One log entry: index, term, payload.
    Entry = 1,
    /// The newest vote: payload.
    Vote = 2,
    /// Entries up to `index` are no longer needed: index, term, payload.
    Purge = 3,
    /// Entries from `index` on are void.
    Truncate = 4,
    /// Nothing but its `durable_upto`.
    Seal = 5,
    /// What a peer has acknowledged: index and term of its log, and a [`PeerMark`]'s rest as payload.
    PeerMark = 6,
}

impl Kind {
    fn of(tag: u8) -> Option<Self> {
        [Self::Entry, Self::Vote, Self::Purge, Self::Truncate, Self::Seal, Self::PeerMark]
            .into_iter()
            .find(|kind| *kind as u8 == tag)
    }
}

/// One frame. The payload is borrowed: encoding copies it once, decoding not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    pub(super) index: u64,
    pub(super) term: u64,
    /// Every byte of the segment before this offset was synced before this frame was written.
    pub(super) durable_upto: u64,
    pub(super) payload: &'a [u8],
}

/// Why bytes are no frame of this life of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFrame {
    /// Fewer bytes than a frame needs.
    Short,
    /// The salt is of another life of the file, or nothing was written.
    Salt,
    /// Longer than any payload.
    Length,
    /// The checksum differs.
    Crc,
    /// A sound frame of a kind this version doesn't know. Never skipped: a newer version wrote it.
    Kind(u8),
}

/// The bytes a frame of so large a payload takes.
pub(super) fn frame_bytes(payload: usize) -> u64 {
    ((HEAD_BYTES + payload) as u64).next_multiple_of(ALIGN)
}

impl Frame<'_> {
    /// Appends the frame's bytes.
    pub(super) fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        debug_assert!(self.payload.len() <= WAL_PAYLOAD_BYTES_MAX);
        let start = out.len();
        let mut head = [0_u8; HEAD_BYTES];
        head[4..8].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[8..16].copy_from_slice(&self.index.to_le_bytes());
        head[16..24].copy_from_slice(&self.term.to_le_bytes());
        head[24..32].copy_from_slice(&self.durable_upto.to_le_bytes());
        head[32] = self.kind as u8;
        head[SALT_AT..40].copy_from_slice(&salt.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.payload);
        out.resize(start + frame_bytes(self.payload.len()) as usize, 0);
        let crc = crc32fast::hash(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The whole length of the frame that begins here, judged by its head alone: nothing is read or allocated by a length
/// that no frame can have.
pub(super) fn announced_bytes(head: &[u8], salt: u32) -> Result<u64, NoFrame> {
    if head.len() < HEAD_BYTES {
        return Err(NoFrame::Short);
    }
    if u32_at(head, SALT_AT) != salt {
        return Err(NoFrame::Salt);
    }
    let payload = u32_at(head, 4) as usize;
    if payload > WAL_PAYLOAD_BYTES_MAX {
        return Err(NoFrame::Length);
    }
    Ok(frame_bytes(payload))
}

/// Reads the frame at the start of `bytes`, which may go on behind it.
pub(super) fn decode(bytes: &[u8], salt: u32) -> Result<Frame<'_>, NoFrame> {
    let whole = announced_bytes(bytes, salt)?;
    let bytes = bytes.get(..whole as usize).ok_or(NoFrame::Short)?;
    if crc32fast::hash(&bytes[4..]) != u32_at(bytes, 0) && !planted!(TornTailAccepted) {
        return Err(NoFrame::Crc);
    }
    Ok(Frame {
        kind: Kind::of(bytes[32]).ok_or(NoFrame::Kind(bytes[32]))?,
        index: u64_at(bytes, 8),
        term: u64_at(bytes, 16),
        durable_upto: u64_at(bytes, 24),
        payload: &bytes[HEAD_BYTES..HEAD_BYTES + u32_at(bytes, 4) as usize],
    })
}

/// The highest vote and log position that a peer is known to have acknowledged: what a node that comes back with an
/// older disk is told by those who remember more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerMark {
    /// The peer.
    pub node_id: NodeId,
    /// The disk it acknowledged with.
    pub disk_id: DiskId,
    /// The vote, opaque.
    pub vote: Bytes,
    /// Index and term of the last log entry it acknowledged, `None` where it has acknowledged none.
    pub log: Option<(u64, u64)>,
}

impl PeerMark {
    /// The payload of the mark's frame; `forgotten` marks that the peer is gone.
    pub(super) fn payload(&self, forgotten: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(MARK_HEAD_BYTES + self.vote.len());
        out.extend_from_slice(&self.node_id.to_le_bytes());
        out.extend_from_slice(&self.disk_id.0);
        let has_log = if self.log.is_some() { MARK_HAS_LOG } else { 0 };
        out.extend_from_slice(&[has_log | if forgotten { MARK_FORGOTTEN } else { 0 }, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.vote);
        out
    }

    /// Index and term as the frame carries them.
    pub(super) fn position(&self) -> (u64, u64) {
        self.log.unwrap_or_default()
    }

    /// Reads a mark from its frame; the flag says that the peer is forgotten. `None` where the payload is too short or
    /// has flags of a newer version.
    pub(super) fn read(frame: &Frame<'_>) -> Option<(Self, bool)> {
        let (head, vote) = frame.payload.split_at_checked(MARK_HEAD_BYTES)?;
        let flags = head[24];
        if flags & !(MARK_HAS_LOG | MARK_FORGOTTEN) != 0 {
            return None;
        }
        let mark = Self {
            node_id: u64_at(head, 0),
            disk_id: DiskId(head[8..24].try_into().expect("sixteen bytes")),
            vote: Bytes::copy_from_slice(vote),
            log: (flags & MARK_HAS_LOG != 0).then_some((frame.index, frame.term)),
        };
        Some((mark, flags & MARK_FORGOTTEN != 0))
    }
}
