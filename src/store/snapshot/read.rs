//! Reads a snapshot file: its rows, each byte checked on the way; or its bytes in pieces, to be sent to a peer.

use std::{path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    SnapshotError, SnapshotMeta,
    format::{self, Damage, FRAME_HEAD_BYTES, FrameHead, FrameKind, PREAMBLE_BYTES, Totals, VERSION},
};
use crate::{
    disk::{Disk, File, Mode},
    limits::SNAPSHOT_PIECE_BYTES,
    store::engine::Row,
};

/// The rows of a file in key order. The end of this iterator without an error is the proof that the file is whole: the
/// footer was there, fitted, and was the last thing in the file.
pub struct SnapshotRows {
    file: Arc<dyn File>,
    bytes: u64,
    offset: u64,
    meta: SnapshotMeta,
    /// What is left of the chunk being read, and where that chunk begins.
    chunk: Bytes,
    chunk_offset: u64,
    counted: Totals,
    crc: crc32fast::Hasher,
    last_key: Option<Bytes>,
    ended: bool,
}

impl SnapshotRows {
    /// Opens the file at `path` and reads its header.
    ///
    /// # Errors
    /// The disk's; [`SnapshotError::Damaged`]; [`SnapshotError::UnknownVersion`].
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, SnapshotError> {
        Self::of(disk.open(path, Mode::Read)?)
    }

    /// Reads the header of a file that is open.
    ///
    /// # Errors
    /// Those of [`SnapshotRows::open`].
    pub fn of(file: Arc<dyn File>) -> Result<Self, SnapshotError> {
        let path = file.path().to_owned();
        let bytes = file.len()?;
        if bytes < PREAMBLE_BYTES as u64 {
            return Err(SnapshotError::damaged(&path, 0, Damage::Short));
        }
        let mut preamble = [0; PREAMBLE_BYTES];
        file.read_exact_at(&mut preamble, 0)?;
        let version = format::parse_preamble(&preamble).map_err(|damage| SnapshotError::damaged(&path, 0, damage))?;
        if version != VERSION {
            return Err(SnapshotError::UnknownVersion { path, version });
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&preamble);
        let placeholder = SnapshotMeta {
            lineage: [0; 16],
            cluster: [0; 16],
            index: 0,
            term: 0,
            position: 0,
            cluster_time_ms: 0,
            log_id: Bytes::new(),
            membership: Bytes::new(),
        };
        let mut rows = Self {
            file,
            bytes,
            offset: PREAMBLE_BYTES as u64,
            meta: placeholder,
            chunk: Bytes::new(),
            chunk_offset: 0,
            counted: Totals::default(),
            crc,
            last_key: None,
            ended: false,
        };
        let (head, kind, body) = rows.frame()?;
        if kind != FrameKind::Header {
            return Err(rows.damaged(Damage::Kind(kind as u8)));
        }
        rows.meta = format::parse_meta(body.slice(1..)).map_err(|damage| rows.damaged(damage))?;
        rows.add(head, &body);
        Ok(rows)
    }

    /// What the file is a snapshot of.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the frame begins that was read last.
    pub fn chunk_offset(&self) -> u64 {
        self.chunk_offset
    }

    /// How far the file is read, bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What was read so far; after the last row, what the footer says too.
    pub fn totals(&self) -> Totals {
        self.counted
    }

    fn damaged(&self, damage: Damage) -> SnapshotError {
        SnapshotError::damaged(self.file.path(), self.chunk_offset, damage)
    }

    /// Reads the frame at the present offset: its head, its kind, and its content, the byte of the kind included.
    fn frame(&mut self) -> Result<([u8; FRAME_HEAD_BYTES], FrameKind, Bytes), SnapshotError> {
        self.chunk_offset = self.offset;
        let rest = self.bytes - self.offset;
        if rest < FRAME_HEAD_BYTES as u64 {
            return Err(self.damaged(Damage::Short));
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_exact_at(&mut head, self.offset)?;
        let parsed = FrameHead::parse(head).map_err(|damage| self.damaged(damage))?;
        if rest - (FRAME_HEAD_BYTES as u64) < parsed.content_bytes() as u64 {
            return Err(self.damaged(Damage::Short));
        }
        let mut content = vec![0; parsed.content_bytes()];
        self.file.read_exact_at(&mut content, self.offset + FRAME_HEAD_BYTES as u64)?;
        let content = Bytes::from(content);
        let (kind, _) = parsed.open(content.clone()).map_err(|damage| self.damaged(damage))?;
        self.offset += (FRAME_HEAD_BYTES + content.len()) as u64;
        Ok((head, kind, content))
    }

    /// Takes a frame into the checksum of the whole.
    fn add(&mut self, head: [u8; FRAME_HEAD_BYTES], content: &[u8]) {
        self.crc.update(&head);
        self.crc.update(content);
    }

    fn step(&mut self) -> Result<Option<Row>, SnapshotError> {
        while self.chunk.is_empty() {
            let (head, kind, content) = self.frame()?;
            match kind {
                FrameKind::Header => return Err(self.damaged(Damage::Kind(kind as u8))),
                FrameKind::Rows => {
                    self.add(head, &content);
                    self.chunk = content.slice(1..);
                    self.counted.chunks += 1;
                    // A frame of no rows is never written, and would let a file be padded without end.
                    if self.chunk.is_empty() {
                        return Err(self.damaged(Damage::Fields));
                    }
                }
                FrameKind::Footer => return self.end(content.slice(1..)).map(|()| None),
            }
        }
        let (key, value) = format::take_row(&mut self.chunk).map_err(|damage| self.damaged(damage))?;
        if self.last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(self.damaged(Damage::Order));
        }
        self.last_key = Some(key.clone());
        self.counted.rows += 1;
        self.counted.row_bytes += (key.len() + value.len()) as u64;
        Ok(Some((key, value)))
    }

    fn end(&mut self, footer: Bytes) -> Result<(), SnapshotError> {
        let totals = format::parse_totals(footer).map_err(|damage| self.damaged(damage))?;
        if totals.crc != self.crc.clone().finalize() {
            return Err(self.damaged(Damage::Total));
        }
        self.counted.crc = totals.crc;
        if totals != self.counted {
            return Err(self.damaged(Damage::Count));
        }
        if self.offset != self.bytes {
            return Err(SnapshotError::damaged(self.file.path(), self.offset, Damage::Trailing));
        }
        Ok(())
    }
}

impl Iterator for SnapshotRows {
    type Item = Result<Row, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.step();
        self.ended = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

/// Reads a file to its end, for the proof alone. Returns its meta and its length.
///
/// # Errors
/// As [`SnapshotRows::open`], for any byte of the file.
pub fn verify(disk: &dyn Disk, path: &Path) -> Result<(SnapshotMeta, u64), SnapshotError> {
    let mut rows = SnapshotRows::open(disk, path)?;
    for row in &mut rows {
        row?;
    }
    Ok((rows.meta, rows.bytes))
}

/// The bytes of a file from its beginning, in pieces of a size fit for a message. Not checked here: the receiver does.
pub struct SnapshotPieces {
    file: Arc<dyn File>,
    offset: u64,
    bytes: u64,
}

impl SnapshotPieces {
    /// Opens the file at `path`. It may be deleted while it is read: its bytes stay.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, SnapshotError> {
        let file = disk.open(path, Mode::Read)?;
        let bytes = file.len()?;
        Ok(Self { file, offset: 0, bytes })
    }

    /// The length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the next piece begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The disk's.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let len = (self.bytes - self.offset).min(SNAPSHOT_PIECE_BYTES as u64) as usize;
        if len == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; len];
        self.file.read_exact_at(&mut piece, self.offset)?;
        self.offset += len as u64;
        Ok(Some(Bytes::from(piece)))
    }
}
