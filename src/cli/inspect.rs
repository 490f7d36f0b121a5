//! What lies on a stopped node's disk, a line a thing. Contents are told by their length alone.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};

use crate::{
    disk::OsDisk,
    id::Position,
    records::{
        codec::{self, CodecError},
        command::{Sealed, Token},
        keys::{META_GLOBALS, StoreKey},
        policy::PolicyLevel,
        record::{Head, Row},
        state::{AuditRow, Counters, Deadline, Globals, TenantState},
    },
    store::{
        directory::{self, EngineKind},
        engine::KeyRange,
        snapshot,
    },
    wal,
};

use super::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel inspect wal ./semel-dev
  semel inspect store ./semel-dev
  semel inspect snapshot ./semel-dev/snapshots/FILE

Changes nothing. The node must be stopped for `store`.")]
pub(super) struct Inspect {
    /// What.
    what: What,
    /// A data directory, or the file or directory itself.
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The log: segments, frames, footers.
    Wal,
    /// The index that is rebuilt from the log: keys and values.
    Store,
    /// Snapshot files: header, rows, totals.
    Snapshot,
}

impl Inspect {
    pub(super) fn run(self) -> Result<(), Failure> {
        // Told apart from a fault of the file: whoever reads the first lines of a long dump closes the pipe.
        let mut out = io::BufWriter::new(io::stdout().lock());
        let done = match self.what {
            What::Wal => inspect_wal(&self.path, &mut out),
            What::Store => inspect_store(&self.path, &mut out),
            What::Snapshot => inspect_snapshots(&self.path, &mut out),
        };
        out.flush().context("standard output")?;
        Ok(done?)
    }
}

/// `path/name` where `path` is a data directory, else `path` itself.
fn inside(path: &Path, name: &str) -> PathBuf {
    let inner = path.join(name);
    if inner.is_dir() { inner } else { path.to_owned() }
}

fn inspect_wal(path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut told = Ok(());
    let payload = |_: wal::Kind, bytes: &[u8]| format!("{} bytes", bytes.len());
    let mut line = |text: String| {
        if told.is_ok() {
            told = writeln!(out, "{text}");
        }
    };
    wal::inspect(&OsDisk, &inside(path, "wal"), &payload, &mut line)?;
    told.context("standard output")
}

fn inspect_snapshots(path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = inside(path, "snapshots");
    let files = if path.is_dir() { files_of(&path)? } else { vec![path.clone()] };
    if files.is_empty() {
        return Err(anyhow!("{} has no snapshot", path.display()));
    }
    for file in files {
        writeln!(out, "snapshot {}", file.display())?;
        snapshot::inspect::inspect(&OsDisk, &file, out, &mut |key, value| Some(describe(key, value)))?;
    }
    Ok(())
}

fn inspect_store(path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let lock = path.join("lock");
    // An engine that opens also tidies up: never beside a running node.
    let _held = if lock.is_file() {
        use crate::disk::Disk;
        let in_use = || format!("{} is in use by another process; stop it first", path.display());
        Some(OsDisk.try_lock(&lock).with_context(in_use)?)
    } else {
        None
    };
    let root = inside(path, "store");
    let (kind, newest) = newest_engine(&root)?;
    writeln!(out, "store {}", newest.display())?;
    let engine = directory::open(kind, &newest)?;
    for row in engine.scan(&KeyRange::all())? {
        let (key, value) = row?;
        writeln!(out, "{}", describe(&key, &value))?;
    }
    Ok(())
}

/// The directory `KIND-GENERATION` of the highest generation, in `root` or being `root` itself.
fn newest_engine(root: &Path) -> anyhow::Result<(EngineKind, PathBuf)> {
    let named = |path: PathBuf| {
        let (kind, generation) = path.file_name()?.to_str()?.split_once('-')?;
        Some((generation.parse::<u64>().ok()?, kind.parse::<EngineKind>().ok()?, path))
    };
    let found = std::iter::once(root.to_owned()).chain(files_of(root)?).filter_map(named);
    let newest = found.max_by_key(|(generation, _, _)| *generation);
    let (_, kind, path) = newest.ok_or_else(|| anyhow!("{} has no store", root.display()))?;
    Ok((kind, path))
}

fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// A row of the store on one line: its key, and its value without contents.
pub(super) fn describe(key: &[u8], value: &[u8]) -> String {
    let hex = || key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match StoreKey::decode(key) {
        Err(_) => format!("unknown key {}: {} bytes", hex(), value.len()),
        Ok(key) => match describe_value(&key, value) {
            Ok(shown) => format!("{key:?}: {shown}"),
            Err(error) => format!("{key:?}: {} bytes that can't be read: {error}", value.len()),
        },
    }
}

fn describe_value(key: &StoreKey, value: &[u8]) -> Result<String, CodecError> {
    fn shown<T: bincode::Decode<()> + std::fmt::Debug>(value: &[u8]) -> Result<String, CodecError> {
        Ok(format!("{:?}", codec::decode::<T>(value)?))
    }
    match key {
        StoreKey::Head(_) => shown::<Head>(value),
        StoreKey::Body(_) => shown::<Sealed>(value),
        StoreKey::Deadline(..) => shown::<Deadline>(value),
        StoreKey::Since(..) => shown::<Position>(value),
        StoreKey::Counters(..) => shown::<Counters>(value),
        StoreKey::Row(..) => shown::<Row>(value),
        StoreKey::Audit(..) => shown::<AuditRow>(value),
        StoreKey::Policy(..) => shown::<PolicyLevel>(value),
        StoreKey::Tenant(_) => shown::<TenantState>(value),
        StoreKey::Meta(name) if name == META_GLOBALS => shown::<Globals>(value),
        StoreKey::Meta(_) => Ok(format!("{} bytes", value.len())),
        StoreKey::Token(_) => shown::<Token>(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Tenant, records::policy::PolicyLevel};

    #[test]
    fn rows_are_told_without_what_they_hold() {
        let key = StoreKey::Policy(Tenant::parse("acme").unwrap(), None).encode();
        let told = describe(&key, &codec::encode(&PolicyLevel::default()));
        assert!(told.starts_with("Policy(Tenant(acme), None): PolicyLevel"), "{told}");
        assert_eq!(describe(&key, b"\xff\xff")[..28], *"Policy(Tenant(acme), None): ");
        assert_eq!(describe(&[250, 1], b"xyz"), "unknown key fa01: 3 bytes");
    }

    #[test]
    fn the_newest_generation_of_a_store_is_found() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["fjall-00000001", "fjall-00000003", "fjall-00000002", "notes"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let (kind, path) = newest_engine(directory.path()).unwrap();
        assert_eq!((kind, path.clone()), (EngineKind::Fjall, directory.path().join("fjall-00000003")));
        assert!(newest_engine(&directory.path().join("notes")).is_err());
        assert_eq!(newest_engine(&path).unwrap().1, path);
    }
}
