//! Writes rows into a snapshot file, a chunk at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    SnapshotError, SnapshotMeta,
    format::{self, FrameKind, ROW_HEAD_BYTES, Totals},
};
use crate::{
    disk::File,
    limits::{
        SNAPSHOT_CHUNK_BYTES, SNAPSHOT_KEY_BYTES_MAX, SNAPSHOT_LOG_ID_BYTES_MAX, SNAPSHOT_MEMBERSHIP_BYTES_MAX,
        SNAPSHOT_ROW_BYTES_MAX,
    },
    store::engine::{EngineError, Row},
};

/// Writes rows, which come in key order, as a whole file, and syncs it. Whoever keeps it reads it back.
///
/// # Errors
/// Of the rows, of the disk (final), or [`SnapshotError::TooLarge`].
pub fn write_rows(
    file: Arc<dyn File>,
    meta: &SnapshotMeta,
    rows: &mut dyn Iterator<Item = Result<Row, EngineError>>,
) -> Result<(), SnapshotError> {
    let mut writer = RowsWriter::begin(file, meta)?;
    for row in rows {
        let (key, value) = row?;
        writer.row(&key, &value)?;
    }
    writer.end()
}

/// Writes rows that come in key order, and between [`RowsWriter::begin`] and [`RowsWriter::end`] holds one chunk of them.
pub(super) struct RowsWriter {
    file: Arc<dyn File>,
    offset: u64,
    chunk_bytes: usize,
    chunk: Vec<u8>,
    totals: Totals,
    crc: crc32fast::Hasher,
    last_key: Option<Bytes>,
}

impl RowsWriter {
    pub(super) fn begin(file: Arc<dyn File>, meta: &SnapshotMeta) -> Result<Self, SnapshotError> {
        Self::begin_with_chunks(file, meta, SNAPSHOT_CHUNK_BYTES)
    }

    /// With chunks of another size: small files of many chunks are what tests cut and flip.
    pub(super) fn begin_with_chunks(
        file: Arc<dyn File>,
        meta: &SnapshotMeta,
        chunk_bytes: usize,
    ) -> Result<Self, SnapshotError> {
        bounded("log id", meta.log_id.len(), SNAPSHOT_LOG_ID_BYTES_MAX)?;
        bounded("membership", meta.membership.len(), SNAPSHOT_MEMBERSHIP_BYTES_MAX)?;
        let mut writer = Self {
            file,
            offset: 0,
            chunk_bytes,
            chunk: Vec::new(),
            totals: Totals::default(),
            crc: crc32fast::Hasher::new(),
            last_key: None,
        };
        writer.append(&format::preamble())?;
        let mut header = Vec::new();
        format::begin_frame(&mut header, FrameKind::Header);
        format::put_meta(&mut header, meta);
        format::end_frame(&mut header);
        writer.append(&header)?;
        Ok(writer)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.file.write_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        self.crc.update(bytes);
        Ok(())
    }

    pub(super) fn row(&mut self, key: &Bytes, value: &Bytes) -> Result<(), SnapshotError> {
        bounded("key", key.len(), SNAPSHOT_KEY_BYTES_MAX)?;
        bounded("row", ROW_HEAD_BYTES + key.len() + value.len(), SNAPSHOT_ROW_BYTES_MAX)?;
        if self.last_key.as_ref().is_some_and(|last| last >= key) {
            return Err(SnapshotError::OutOfOrder);
        }
        self.last_key = Some(key.clone());
        if self.chunk.is_empty() {
            format::begin_frame(&mut self.chunk, FrameKind::Rows);
        }
        format::put_row(&mut self.chunk, key, value);
        self.totals.rows += 1;
        self.totals.row_bytes += (key.len() + value.len()) as u64;
        if self.chunk.len() >= self.chunk_bytes {
            self.end_chunk()?;
        }
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<(), SnapshotError> {
        let mut chunk = std::mem::take(&mut self.chunk);
        format::end_frame(&mut chunk);
        self.append(&chunk)?;
        self.totals.chunks += 1;
        chunk.clear();
        self.chunk = chunk;
        Ok(())
    }

    /// Writes the footer and syncs the file.
    pub(super) fn end(mut self) -> Result<(), SnapshotError> {
        if !self.chunk.is_empty() {
            self.end_chunk()?;
        }
        self.totals.crc = self.crc.clone().finalize();
        let mut footer = Vec::new();
        format::begin_frame(&mut footer, FrameKind::Footer);
        format::put_totals(&mut footer, &self.totals);
        format::end_frame(&mut footer);
        self.append(&footer)?;
        if !planted!(SnapshotNotSynced) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}

fn bounded(what: &'static str, bytes: usize, bytes_max: usize) -> Result<(), SnapshotError> {
    if bytes > bytes_max {
        return Err(SnapshotError::TooLarge { what, bytes: bytes as u64, bytes_max: bytes_max as u64 });
    }
    Ok(())
}
