//! Reads a backup to its last byte and believes nothing else: names, sizes, checksums, rows, and what the manifest says of
//! them.

use std::{path::Path, sync::Arc};

use sha2::{Digest, Sha256};

use super::{
    BackupError, Flaw, Origin,
    keyed::Keys,
    manifest::{MANIFEST, Manifest, ManifestError, part_name, part_number},
    parts::JoinedParts,
    source::belongs,
};
use crate::{
    disk::{DiskError, EntryKind, File, OsDisk},
    id::{ClusterId, LineageId, Position, Time},
    limits,
    records::{
        check::readable,
        codec,
        keys::{META_ENDED, META_GLOBALS, StoreKey},
        state::Globals,
    },
    store::snapshot::{SnapshotError, SnapshotMeta, read::SnapshotRows},
};

/// A backup that was read to its end and found whole.
#[derive(Debug)]
pub struct Verified {
    /// What it holds.
    pub manifest: Manifest,
    /// Its small state.
    pub globals: Globals,
    /// What it holds of keys.
    pub keys: Keys,
}

/// What the rows of a backup say of the whole.
#[derive(Clone, Debug)]
pub struct Content {
    /// What it is a backup of.
    pub origin: Origin,
    /// Its small state.
    pub globals: Globals,
    /// What it holds of keys.
    pub keys: Keys,
}

/// Reads the backup in `dir` to its end. `told` hears the bytes read so far, each of which is read twice.
///
/// # Errors
/// [`BackupError::Damaged`] with the first thing that is not as it was written; the disk's.
pub fn verify(dir: &Path, told: &mut dyn FnMut(u64)) -> Result<Verified, BackupError> {
    let manifest = read_manifest(dir)?;
    check_names(dir, &manifest)?;
    let mut whole = Sha256::new();
    let mut done = 0;
    for (number, part) in manifest.parts.iter().enumerate() {
        let path = dir.join(part_name(number));
        let file = open(&path)?;
        let (mut hash, mut offset) = (Sha256::new(), 0);
        let mut piece = vec![0; limits::SNAPSHOT_PIECE_BYTES];
        while offset < part.bytes {
            let most = (part.bytes - offset).min(piece.len() as u64) as usize;
            file.read_exact_at(&mut piece[..most], offset)?;
            hash.update(&piece[..most]);
            whole.update(&piece[..most]);
            offset += most as u64;
            told(done + offset);
        }
        done += part.bytes;
        if hash.finalize()[..] != part.sha256[..] {
            return Err(BackupError::damaged(&path, 0, Flaw::Checksum));
        }
    }
    let manifest_path = dir.join(MANIFEST);
    if whole.finalize()[..] != manifest.sha256[..] {
        return Err(BackupError::damaged(&manifest_path, 0, Flaw::Checksum));
    }
    let joined = Arc::new(joined(dir, &manifest));
    let Content { origin, globals, keys } =
        check_rows(Arc::<JoinedParts>::clone(&joined), &mut |bytes| told(done + bytes))
            .map_err(|error| placed(error, &joined))?;
    match differing(&manifest.origin, &origin) {
        Some(what) => Err(BackupError::damaged(&manifest_path, 0, Flaw::Differs(what))),
        None => Ok(Verified { manifest, globals, keys }),
    }
}

/// The parts of a backup as the one file that they are.
pub fn joined(dir: &Path, manifest: &Manifest) -> JoinedParts {
    JoinedParts::new(dir, manifest.parts.iter().map(|part| part.bytes))
}

fn open(path: &Path) -> Result<Arc<dyn File>, BackupError> {
    OsDisk.open_plain(path).map_err(|error| opened(error, path))
}

fn opened(error: DiskError, path: &Path) -> BackupError {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => BackupError::damaged(path, 0, Flaw::NotPlain),
        std::io::ErrorKind::NotFound => BackupError::damaged(path, 0, Flaw::Missing),
        _ => error.into(),
    }
}

fn read_manifest(dir: &Path) -> Result<Manifest, BackupError> {
    let path = dir.join(MANIFEST);
    let file = open(&path)?;
    let bytes = file.len()?;
    let most = limits::BACKUP_MANIFEST_BYTES_MAX;
    if bytes > most {
        return Err(BackupError::damaged(&path, most, Flaw::Size { found: bytes, expected: most }));
    }
    let mut text = vec![0; bytes as usize];
    file.read_exact_at(&mut text, 0)?;
    Manifest::decode(&text).map_err(|error| {
        let offset = match &error {
            ManifestError::Json(error) => error.offset() as u64,
            _ => 0,
        };
        let flaw = match error {
            ManifestError::Version(version) => Flaw::Version(version),
            error => Flaw::Manifest(error.to_string()),
        };
        BackupError::damaged(&path, offset, flaw)
    })
}

/// Every name is one that a backup holds, and every part has the size that the manifest says.
fn check_names(dir: &Path, manifest: &Manifest) -> Result<(), BackupError> {
    for (name, kind) in OsDisk.entries(dir)? {
        let path = dir.join(&name);
        let is_part = part_number(&name).is_some_and(|number| number < manifest.parts.len());
        if name != MANIFEST && !is_part {
            return Err(BackupError::damaged(&path, 0, Flaw::Name));
        }
        if kind != EntryKind::File {
            return Err(BackupError::damaged(&path, 0, Flaw::NotPlain));
        }
    }
    for (number, part) in manifest.parts.iter().enumerate() {
        let path = dir.join(part_name(number));
        let found = open(&path)?.len()?;
        if found != part.bytes {
            let offset = found.min(part.bytes);
            return Err(BackupError::damaged(&path, offset, Flaw::Size { found, expected: part.bytes }));
        }
    }
    Ok(())
}

/// Reads the rows of a backup's one file to their end.
///
/// # Errors
/// [`BackupError::Damaged`], with the place in that file.
pub fn check_rows(file: Arc<dyn File>, told: &mut dyn FnMut(u64)) -> Result<Content, BackupError> {
    let path = file.path().to_owned();
    let mut rows = SnapshotRows::of(file).map_err(in_snapshot)?;
    let (mut globals, mut is_final, mut bytes) = (None, false, 0);
    let mut keys = Keys::default();
    loop {
        let offset = rows.chunk_offset();
        let Some(row) = rows.next() else { break };
        let (key, value) = row.map_err(in_snapshot)?;
        let damaged = |flaw| BackupError::damaged(&path, offset, flaw);
        if !belongs(&key) {
            return Err(damaged(Flaw::Row));
        }
        readable(&key, &value).map_err(|error| damaged(Flaw::Unreadable(error)))?;
        let decoded = StoreKey::decode(&key);
        if let Ok(decoded) = &decoded {
            keys.see(decoded, &value).map_err(|error| damaged(Flaw::Unreadable(error)))?;
        }
        match decoded {
            Ok(StoreKey::Meta(name)) if name == META_GLOBALS => {
                globals = Some(codec::decode::<Globals>(&value).map_err(|error| damaged(Flaw::Unreadable(error)))?);
            }
            Ok(StoreKey::Meta(name)) => is_final |= name == META_ENDED,
            _ => {}
        }
        bytes += (key.len() + value.len()) as u64;
        told(bytes);
    }
    let unformed = || BackupError::damaged(&path, 0, Flaw::Unformed);
    let globals: Globals = globals.ok_or_else(unformed)?;
    let formed = globals.formed.clone().ok_or_else(unformed)?;
    let origin = Origin {
        lineage_id: formed.lineage_id,
        cluster_id: formed.cluster_id,
        position: globals.position,
        cluster_time: globals.time,
        is_final,
    };
    match differing(&header_origin(rows.meta(), is_final), &origin) {
        Some(what) => Err(BackupError::damaged(&path, 0, Flaw::Differs(what))),
        None => Ok(Content { origin, globals, keys }),
    }
}

fn header_origin(meta: &SnapshotMeta, is_final: bool) -> Origin {
    Origin {
        lineage_id: LineageId(meta.lineage),
        cluster_id: ClusterId(meta.cluster),
        position: Position(meta.position),
        cluster_time: Time(meta.cluster_time_ms),
        is_final,
    }
}

/// The first member in which the two differ.
fn differing(said: &Origin, found: &Origin) -> Option<&'static str> {
    let members = [
        ("position", said.position == found.position),
        ("cluster_time", said.cluster_time == found.cluster_time),
        ("lineage_id", said.lineage_id == found.lineage_id),
        ("cluster_id", said.cluster_id == found.cluster_id),
        ("final", said.is_final == found.is_final),
    ];
    members.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
}

fn in_snapshot(error: SnapshotError) -> BackupError {
    match error {
        SnapshotError::Damaged { path, offset, damage } => {
            BackupError::Damaged { path, offset, flaw: Flaw::Snapshot(damage) }
        }
        SnapshotError::UnknownVersion { path, version } => {
            BackupError::Damaged { path, offset: 0, flaw: Flaw::Version(version.into()) }
        }
        SnapshotError::Disk(error) => match error.kind() {
            std::io::ErrorKind::InvalidInput | std::io::ErrorKind::NotFound => opened(error.clone(), &error.path),
            _ => error.into(),
        },
        error => error.into(),
    }
}

/// Of a place in the joined file, the part and the place in it.
fn placed(error: BackupError, joined: &JoinedParts) -> BackupError {
    match error {
        BackupError::Damaged { path, offset, flaw } if path == joined.path() => {
            let (path, offset) = joined.place(offset);
            BackupError::Damaged { path, offset, flaw }
        }
        error => error,
    }
}
