//! A backup as a node writes it down: one file, from a read view of its store, while the cluster goes on.

use std::path::Path;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{BackupError, Origin};
use crate::{
    disk::{Disk, Mode},
    limits,
    records::keys::{KEY_RING, META_ENDED, StoreKey},
    store::{
        dump,
        engine::{EngineError, Row},
        records::View,
        snapshot::{SnapshotMeta, read, write::write_rows},
    },
};

/// A backup that lies on a node, whole, to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// What it is a backup of.
    pub origin: Origin,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

/// Whether a row belongs into a backup: all but what is a node's own and the key ring (B2).
pub(super) fn belongs(key: &[u8]) -> bool {
    !dump::is_local(key) && key.first() != Some(&KEY_RING)
}

/// Writes `view` to the new file `path`, syncs it, and reads all of it back. `told` hears the bytes of rows so far.
///
/// # Errors
/// Of the view or the disk; what was written is left for the caller to remove.
pub fn write(disk: &dyn Disk, path: &Path, view: View, told: &mut dyn FnMut(u64)) -> Result<Written, BackupError> {
    let formed = view.globals.formed.clone().ok_or(BackupError::Unformed)?;
    let meta = SnapshotMeta {
        lineage: formed.lineage_id.0,
        cluster: formed.cluster_id.0,
        index: 0,
        term: 0,
        position: view.globals.position.0,
        cluster_time_ms: view.globals.time.0,
        log_id: Bytes::new(),
        membership: Bytes::new(),
    };
    let ended = StoreKey::Meta(META_ENDED.into()).encode();
    let (mut is_final, mut row_bytes) = (false, 0);
    let belonging = |row: &Result<Row, EngineError>| row.as_ref().map_or(true, |(key, _)| belongs(key));
    let mut rows = view.rows.into_scan()?.filter(belonging).inspect(|row| {
        if let Ok((key, value)) = row {
            is_final |= key[..] == ended[..];
            row_bytes += (key.len() + value.len()) as u64;
            told(row_bytes);
        }
    });
    write_rows(disk.open(path, Mode::CreateNew)?, &meta, &mut rows)?;
    drop(rows);
    let (_, bytes) = read::verify(disk, path)?;
    let origin = Origin {
        lineage_id: formed.lineage_id,
        cluster_id: formed.cluster_id,
        position: view.globals.position,
        cluster_time: view.globals.time,
        is_final,
    };
    Ok(Written { origin, bytes, sha256: digest(disk, path)? })
}

/// The SHA-256 of a file.
///
/// # Errors
/// The disk's.
pub fn digest(disk: &dyn Disk, path: &Path) -> Result<[u8; 32], BackupError> {
    let file = disk.open(path, Mode::Read)?;
    let (mut hash, mut offset) = (Sha256::new(), 0);
    let mut piece = vec![0; limits::SNAPSHOT_PIECE_BYTES];
    loop {
        let read = file.read_at(&mut piece, offset)?;
        if read == 0 {
            return Ok(hash.finalize().into());
        }
        hash.update(&piece[..read]);
        offset += read as u64;
    }
}
