//! The bytes of a snapshot file, and nothing else: no file is touched here. `FORMAT.md` beside the store draws them.

use bytes::{Buf, BufMut, Bytes};

use super::SnapshotMeta;
use crate::limits::{SNAPSHOT_FRAME_BYTES_MAX, SNAPSHOT_LOG_ID_BYTES_MAX, SNAPSHOT_MEMBERSHIP_BYTES_MAX};

/// The first bytes of every snapshot file.
pub const MAGIC: [u8; 8] = *b"semelsnp";
/// The format this release writes, and the only one so far.
pub const VERSION: u16 = 1;
/// Bytes of the preamble: magic, version, zeros, CRC.
pub const PREAMBLE_BYTES: usize = 16;
/// Bytes in front of a frame's kind: length and CRC.
pub const FRAME_HEAD_BYTES: usize = 8;
/// Bytes in front of a row's key: the lengths of key and value.
pub const ROW_HEAD_BYTES: usize = 6;

/// What is wrong with a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file ends within it.
    #[error("the file ends too early")]
    Short,
    /// These are not the first bytes of a snapshot file.
    #[error("not a snapshot file")]
    Magic,
    /// Bytes that must be zero are not.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A length is beyond what a snapshot holds.
    #[error("a length of {0} bytes is out of bounds")]
    Length(u64),
    /// A checksum does not fit its bytes.
    #[error("the checksum does not fit")]
    Checksum,
    /// A frame of another kind was to come here.
    #[error("a frame of kind {0} has no place here")]
    Kind(u8),
    /// The body of a frame does not divide into its fields.
    #[error("the fields do not fit the frame")]
    Fields,
    /// Keys do not ascend.
    #[error("the keys do not ascend")]
    Order,
    /// The footer counts other rows, chunks or bytes than there are.
    #[error("the footer counts something else")]
    Count,
    /// The checksum over the whole file does not fit.
    #[error("the checksum of the whole file does not fit")]
    Total,
    /// Bytes follow the footer.
    #[error("bytes follow the footer")]
    Trailing,
}

/// What a frame holds. The numbers are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The meta: once, first.
    Header = 1,
    /// A run of rows.
    Rows = 2,
    /// Counts and the total checksum: once, last.
    Footer = 3,
}

impl FrameKind {
    fn from_tag(tag: u8) -> Result<Self, Damage> {
        match tag {
            1 => Ok(Self::Header),
            2 => Ok(Self::Rows),
            3 => Ok(Self::Footer),
            other => Err(Damage::Kind(other)),
        }
    }
}

/// What the footer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows in the file.
    pub rows: u64,
    /// Frames that hold them.
    pub chunks: u64,
    /// Bytes of all keys and values.
    pub row_bytes: u64,
    /// CRC-32 of every byte in front of the footer's frame.
    pub crc: u32,
}

/// The first bytes of a file.
pub fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The version in a preamble. Only a preamble that checks has one: a flipped bit is damage and not another version.
///
/// # Errors
/// [`Damage`], when these are not the first bytes of a snapshot file.
pub fn parse_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Result<u16, Damage> {
    if bytes[..8] != MAGIC {
        return Err(Damage::Magic);
    }
    let mut fields = &bytes[8..];
    let (version, reserved, crc) = (fields.get_u16_le(), fields.get_u16_le(), fields.get_u32_le());
    if crc32fast::hash(&bytes[..12]) != crc {
        return Err(Damage::Checksum);
    }
    // A newer version may give the reserved bytes a meaning.
    if version == VERSION && reserved != 0 {
        return Err(Damage::Reserved);
    }
    Ok(version)
}

/// Begins a frame in `out`, which is empty: its head, to be filled in by [`end_frame`], and its kind.
pub fn begin_frame(out: &mut Vec<u8>, kind: FrameKind) {
    debug_assert!(out.is_empty(), "a frame is alone in its buffer");
    out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    out.push(kind as u8);
}

/// Fills in length and CRC of the frame in `out`.
pub fn end_frame(out: &mut [u8]) {
    let len = u32::try_from(out.len() - FRAME_HEAD_BYTES).expect("a frame is bounded far below 4 GiB");
    out[..4].copy_from_slice(&len.to_le_bytes());
    let crc = frame_crc(&len.to_le_bytes(), &out[FRAME_HEAD_BYTES..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The CRC covers the length: otherwise a flip there could only be told by where the next frame is not.
fn frame_crc(len: &[u8; 4], content: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(len);
    crc.update(content);
    crc.finalize()
}

/// A frame's head: the length of its content, checked against the bound before anything is allocated for it, and its CRC.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    len: [u8; 4],
    crc: u32,
}

impl FrameHead {
    /// Reads a head.
    ///
    /// # Errors
    /// [`Damage::Length`].
    pub fn parse(bytes: [u8; FRAME_HEAD_BYTES]) -> Result<Self, Damage> {
        let [a, b, c, d, crc @ ..] = bytes;
        let head = Self { len: [a, b, c, d], crc: u32::from_le_bytes(crc) };
        if head.content_bytes() == 0 || head.content_bytes() > SNAPSHOT_FRAME_BYTES_MAX {
            return Err(Damage::Length(head.content_bytes() as u64));
        }
        Ok(head)
    }

    /// Bytes that follow the head: kind and body.
    pub fn content_bytes(self) -> usize {
        u32::from_le_bytes(self.len) as usize
    }

    /// Checks the content that follows the head, and divides it into kind and body.
    ///
    /// # Errors
    /// [`Damage::Checksum`] or [`Damage::Kind`].
    pub fn open(self, mut content: Bytes) -> Result<(FrameKind, Bytes), Damage> {
        if frame_crc(&self.len, &content) != self.crc {
            return Err(Damage::Checksum);
        }
        let kind = FrameKind::from_tag(content.get_u8())?;
        Ok((kind, content))
    }
}

/// Appends the body of the header.
pub fn put_meta(out: &mut Vec<u8>, meta: &SnapshotMeta) {
    out.extend_from_slice(&meta.lineage);
    out.extend_from_slice(&meta.cluster);
    for number in [meta.index, meta.term, meta.position, meta.cluster_time_ms] {
        out.put_u64_le(number);
    }
    for opaque in [&meta.log_id, &meta.membership] {
        out.put_u32_le(u32::try_from(opaque.len()).expect("checked against its limit by the writer"));
        out.extend_from_slice(opaque);
    }
}

/// Reads the body of the header.
///
/// # Errors
/// [`Damage::Fields`] or [`Damage::Length`].
pub fn parse_meta(mut body: Bytes) -> Result<SnapshotMeta, Damage> {
    if body.len() < 2 * 16 + 4 * 8 {
        return Err(Damage::Fields);
    }
    let (mut lineage, mut cluster) = ([0; 16], [0; 16]);
    body.copy_to_slice(&mut lineage);
    body.copy_to_slice(&mut cluster);
    let (index, term, position, cluster_time_ms) =
        (body.get_u64_le(), body.get_u64_le(), body.get_u64_le(), body.get_u64_le());
    let log_id = take_opaque(&mut body, SNAPSHOT_LOG_ID_BYTES_MAX)?;
    let membership = take_opaque(&mut body, SNAPSHOT_MEMBERSHIP_BYTES_MAX)?;
    if !body.is_empty() {
        return Err(Damage::Fields);
    }
    Ok(SnapshotMeta { lineage, cluster, index, term, position, cluster_time_ms, log_id, membership })
}

fn take_opaque(body: &mut Bytes, bytes_max: usize) -> Result<Bytes, Damage> {
    let len = body.try_get_u32_le().map_err(|_| Damage::Fields)? as usize;
    if len > bytes_max {
        return Err(Damage::Length(len as u64));
    }
    if len > body.len() {
        return Err(Damage::Fields);
    }
    Ok(body.split_to(len))
}

/// Appends one row.
pub fn put_row(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.put_u16_le(u16::try_from(key.len()).expect("checked against its limit by the writer"));
    out.put_u32_le(u32::try_from(value.len()).expect("checked against its limit by the writer"));
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Takes the next row off the body of a frame of rows, which is not empty.
///
/// # Errors
/// [`Damage::Fields`].
pub fn take_row(body: &mut Bytes) -> Result<(Bytes, Bytes), Damage> {
    if body.len() < ROW_HEAD_BYTES {
        return Err(Damage::Fields);
    }
    let (key_len, value_len) = (body.get_u16_le() as usize, body.get_u32_le() as usize);
    // Both are far below half of what a usize holds.
    if key_len + value_len > body.len() {
        return Err(Damage::Fields);
    }
    Ok((body.split_to(key_len), body.split_to(value_len)))
}

/// Appends the body of the footer.
pub fn put_totals(out: &mut Vec<u8>, totals: &Totals) {
    for number in [totals.rows, totals.chunks, totals.row_bytes] {
        out.put_u64_le(number);
    }
    out.put_u32_le(totals.crc);
}

/// Reads the body of the footer.
///
/// # Errors
/// [`Damage::Fields`].
pub fn parse_totals(mut body: Bytes) -> Result<Totals, Damage> {
    if body.len() != 3 * 8 + 4 {
        return Err(Damage::Fields);
    }
    let (rows, chunks, row_bytes) = (body.get_u64_le(), body.get_u64_le(), body.get_u64_le());
    Ok(Totals { rows, chunks, row_bytes, crc: body.get_u32_le() })
}
