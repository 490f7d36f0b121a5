//! One segment file: its header, its footer and their bytes. Pure but for [`Segment`], which holds the open file.
//! Drawn in FORMAT.md.

use std::sync::Arc;

use super::frame::{u32_at, u64_at};
use crate::disk::File;
use crate::id::{ClusterId, DiskId, LineageId, NodeId};

/// Bytes of the header; the first frame begins behind it.
pub(super) const HEADER_BYTES: usize = 4096;
const HEADER_MAGIC: [u8; 8] = *b"SEMELWAL";
const VERSION: u32 = 1;
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;

const FOOTER_MAGIC: [u8; 8] = *b"SEMELEND";
/// Bytes of a footer before its lists.
const FOOTER_HEAD_BYTES: usize = 64;
/// The last bytes of the file: length, salt, magic, crc.
pub(super) const FOOTER_TAIL_BYTES: usize = 16;
const FOOTER_TAIL_MAGIC: [u8; 4] = *b"DONE";
const PAIR_BYTES: usize = 16;

/// Whose log it is. Every segment says so, and a log of another is never opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Made at the cluster's birth, kept by every restore.
    pub lineage_id: LineageId,
    /// This incarnation of the cluster.
    pub cluster_id: ClusterId,
    /// The node.
    pub node_id: NodeId,
    /// The node's data directory.
    pub disk_id: DiskId,
}

impl Identity {
    /// Salt of a segment: a frame of another life of the same file never passes for one of this life. Successive lives
    /// differ for sure, and the disk's part keeps clients from guessing what a frame inside a payload would need.
    pub(super) fn salt(&self, sequence: u64) -> u32 {
        crc32fast::hash(&self.disk_id.0).wrapping_add(sequence as u32)
    }
}

/// The first 4 KiB of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: Identity,
    pub(super) sequence: u64,
    /// The index that the next entry had when the segment was begun.
    pub(super) first_index: u64,
    /// The term of the entry before, 0 where there was none.
    pub(super) previous_term: u64,
    pub(super) salt: u32,
    /// The sequence in the file's previous life, 0 where it was zero-filled.
    pub(super) recycled_from: u64,
    /// The file's length: one that is shorter now has lost something.
    pub(super) bytes: u64,
}

/// What the first 4 KiB of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderRead {
    Sound(Header),
    /// All zeros: never written.
    Blank,
    /// Sound, of a version this one doesn't know.
    Version(u32),
    Damaged,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0_u8; HEADER_BYTES];
        out[0..8].copy_from_slice(&HEADER_MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.identity.lineage_id.0);
        out[32..48].copy_from_slice(&self.identity.cluster_id.0);
        out[48..56].copy_from_slice(&self.identity.node_id.to_le_bytes());
        out[56..72].copy_from_slice(&self.identity.disk_id.0);
        out[72..80].copy_from_slice(&self.sequence.to_le_bytes());
        out[80..88].copy_from_slice(&self.first_index.to_le_bytes());
        out[88..96].copy_from_slice(&self.previous_term.to_le_bytes());
        out[96..100].copy_from_slice(&self.salt.to_le_bytes());
        out[104..112].copy_from_slice(&self.recycled_from.to_le_bytes());
        out[112..120].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32fast::hash(&out[..HEADER_CRC_AT]);
        out[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> HeaderRead {
        if bytes.iter().all(|byte| *byte == 0) {
            return HeaderRead::Blank;
        }
        if bytes[0..8] != HEADER_MAGIC || crc32fast::hash(&bytes[..HEADER_CRC_AT]) != u32_at(bytes, HEADER_CRC_AT) {
            return HeaderRead::Damaged;
        }
        if u32_at(bytes, 8) != VERSION {
            return HeaderRead::Version(u32_at(bytes, 8));
        }
        let id = |at: usize| -> [u8; 16] { bytes[at..at + 16].try_into().expect("sixteen bytes") };
        HeaderRead::Sound(Self {
            identity: Identity {
                lineage_id: LineageId(id(16)),
                cluster_id: ClusterId(id(32)),
                node_id: u64_at(bytes, 48),
                disk_id: DiskId(id(56)),
            },
            sequence: u64_at(bytes, 72),
            first_index: u64_at(bytes, 80),
            previous_term: u64_at(bytes, 88),
            salt: u32_at(bytes, 96),
            recycled_from: u64_at(bytes, 104),
            bytes: u64_at(bytes, 112),
        })
    }
}

/// Where entries from `index` on begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) index: u64,
    pub(super) offset: u64,
}

/// The last bytes of a sealed segment: what start-up needs to know of it without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) sequence: u64,
    pub(super) salt: u32,
    /// The lowest index the segment decides about; earlier segments hold nothing at or above it.
    pub(super) first: u64,
    /// One above the last entry when the segment was sealed.
    pub(super) next: u64,
    /// Term of the last entry, wherever it lies; 0 where there is none.
    pub(super) last_term: u64,
    /// Offset where the frames end.
    pub(super) end: u64,
    /// First index and term of each run of entries of one term.
    pub(super) terms: Vec<(u64, u64)>,
    pub(super) points: Vec<Point>,
}

/// Bytes of a footer with so many terms and points.
pub(super) fn footer_bytes(terms: usize, points: usize) -> u64 {
    (FOOTER_HEAD_BYTES + (terms + points) * PAIR_BYTES + FOOTER_TAIL_BYTES) as u64
}

impl Footer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(footer_bytes(self.terms.len(), self.points.len()) as usize);
        out.extend_from_slice(&FOOTER_MAGIC);
        for word in [self.sequence, self.first, self.next, self.last_term, self.end] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(self.terms.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.points.len() as u64).to_le_bytes());
        let points = self.points.iter().map(|point| (point.index, point.offset));
        for (index, other) in self.terms.iter().copied().chain(points) {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&other.to_le_bytes());
        }
        let bytes = (out.len() + FOOTER_TAIL_BYTES) as u32;
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&FOOTER_TAIL_MAGIC);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// The footer's whole length by the file's last bytes, `None` where they end no footer of this life.
    pub(super) fn announced_bytes(tail: &[u8], salt: u32, file_bytes: u64) -> Option<u64> {
        let bytes = u64::from(u32_at(tail, 0));
        let fits = bytes >= footer_bytes(0, 0) && bytes + HEADER_BYTES as u64 <= file_bytes;
        (fits && u32_at(tail, 4) == salt && tail[8..12] == FOOTER_TAIL_MAGIC).then_some(bytes)
    }

    /// Reads a whole footer.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let crc_at = bytes.len().checked_sub(4)?;
        if bytes.len() < FOOTER_HEAD_BYTES + FOOTER_TAIL_BYTES
            || bytes[0..8] != FOOTER_MAGIC
            || crc32fast::hash(&bytes[..crc_at]) != u32_at(bytes, crc_at)
        {
            return None;
        }
        let (terms, points) = (u64_at(bytes, 48) as usize, u64_at(bytes, 56) as usize);
        let pairs = &bytes[FOOTER_HEAD_BYTES..bytes.len() - FOOTER_TAIL_BYTES];
        if terms.checked_add(points)?.checked_mul(PAIR_BYTES)? != pairs.len() {
            return None;
        }
        let mut pairs = pairs.chunks_exact(PAIR_BYTES).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)));
        Some(Self {
            sequence: u64_at(bytes, 8),
            salt: u32_at(bytes, bytes.len() - 12),
            first: u64_at(bytes, 16),
            next: u64_at(bytes, 24),
            last_term: u64_at(bytes, 32),
            end: u64_at(bytes, 40),
            terms: pairs.by_ref().take(terms).collect(),
            points: pairs.map(|(index, offset)| Point { index, offset }).collect(),
        })
    }
}

/// An open segment. Readers and the writer share the handle.
pub(super) struct Segment {
    pub(super) file: Arc<dyn File>,
    pub(super) header: Header,
}

impl Segment {
    /// The file's length: frames and footer stay within.
    pub(super) fn bytes(&self) -> u64 {
        self.header.bytes
    }
}

/// The name of the segment with this sequence. Names sort as sequences do.
pub(super) fn file_name(sequence: u64) -> String {
    format!("{sequence:020}.wal")
}

/// The sequence that a file's name tells, `None` for other files.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}
