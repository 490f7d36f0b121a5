//! What lies on a stopped node's disk, a line a thing. Contents are told by their length alone.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};

use crate::{
    disk::{Disk, Lock, OsDisk},
    entropy,
    id::{Position, hex},
    limits,
    raft::replay::state_at,
    store::{
        describe::describe,
        directory::{self, EngineDirectory, EngineKind},
        engine::{Engine, EngineError, KeyRange},
        memory::MemoryEngine,
        records::{OpenEngine, Records},
        snapshot,
    },
    wal,
};

use super::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel inspect wal ./semel-dev
  semel inspect store ./semel-dev
  semel inspect store ./semel-dev --dump > dump.txt
  semel inspect store ./semel-dev --dump --index > index.txt
  semel inspect snapshot ./semel-dev/snapshots/FILE

Shows what is there and doesn't judge it: `semel verify` does. `wal` and `snapshot` change nothing, and a node may run
beside them. For `store` the node must be stopped: without --dump the engine is opened as a node opens it, and may put its
own files in order. A dump is the same text on every node of a cluster at one position: the newest good snapshot and the
committed log on top of it. It is built in memory, a large one in the directory for temporary files (TMPDIR).")]
pub(super) struct Inspect {
    /// What.
    what: What,
    /// A data directory, or the file or directory itself.
    path: PathBuf,
    /// `store`: print the logical dump, a line a key, instead of what the index holds.
    #[arg(long)]
    dump: bool,
    /// The position to dump. Default: the highest one that is known to be committed.
    #[arg(long, requires = "dump", value_name = "P", value_parser = super::args::decimal)]
    position: Option<u64>,
    /// Dump what the index holds, at its own position. It must be what the log says at that position.
    #[arg(long, requires = "dump", conflicts_with = "position")]
    index: bool,
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
        if self.dump && !matches!(self.what, What::Store) {
            return Err(Failure::Usage("--dump is for `semel inspect store`".to_owned()));
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        let done = match self.what {
            What::Wal => inspect_wal(&self.path, &mut out),
            What::Store if self.index => dump_index(&self.path, &mut out),
            What::Store if self.dump => dump(&self.path, self.position.map(Position), &mut out),
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

/// Keeps a node from starting in its data directory meanwhile.
fn held(path: &Path) -> anyhow::Result<Option<Box<dyn Lock>>> {
    let lock = path.join("lock");
    if !lock.is_file() {
        return Ok(None);
    }
    let in_use = || format!("{} is in use by another process; stop it first", path.display());
    Ok(Some(OsDisk.try_lock(&lock).with_context(in_use)?))
}

fn inspect_store(path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    // An engine that opens also tidies up: never beside a running node.
    let _held = held(path)?;
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

fn dump(path: &Path, position: Option<Position>, out: &mut dyn Write) -> anyhow::Result<()> {
    let _held = held(path)?;
    let scratch = Scratch::default();
    let records = state_at(&OsDisk, path, position, applied(path), &|bytes| scratch.engine(bytes))?;
    records.dump(out)?;
    Ok(())
}

fn dump_index(path: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let _held = held(path)?;
    let (kind, newest) = newest_engine(&inside(path, "store"))?;
    Records::open(directory::open(kind, &newest)?)?.dump(out)?;
    Ok(())
}

/// The last entry that the node's store holds: what is in there was committed. A store that is gone or damaged says nothing.
fn applied(path: &Path) -> Option<u64> {
    let (kind, newest) = newest_engine(&path.join("store")).ok()?;
    let mark = directory::open(kind, &newest).map_err(anyhow::Error::new).and_then(|engine| Ok(Records::open(engine)?));
    match mark.map(|records| records.mark()) {
        Ok(mark) => (!mark.membership.is_empty()).then_some(mark.index),
        Err(error) => {
            eprintln!("semel: {} is not asked how far it is: {error:#}", newest.display());
            None
        }
    }
}

/// A place for a state that is built to be dumped. Gone with it.
#[derive(Default)]
struct Scratch {
    made: std::cell::RefCell<Vec<(Arc<dyn Engine>, PathBuf)>>,
}

impl Scratch {
    fn engine(&self, bytes: u64) -> Result<Arc<dyn Engine>, EngineError> {
        if bytes <= limits::DUMP_MEMORY_BYTES {
            return Ok(Arc::new(MemoryEngine::new()));
        }
        let root = std::env::temp_dir().join(format!("semel-dump-{}", hex(&entropy::bytes::<8>())));
        // For the owner alone, before anything is in it.
        OsDisk
            .create_dir_all(&root)
            .map_err(|error| EngineError::Directory(crate::store::engine::EngineCause::new(error)))?;
        let engine = EngineDirectory::new(&root, EngineKind::Fjall).fresh()?;
        self.made.borrow_mut().push((Arc::clone(&engine), root));
        Ok(engine)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (engine, root) in self.made.borrow_mut().drain(..) {
            engine.retire();
            drop(engine);
            if let Err(error) = std::fs::remove_dir_all(&root) {
                eprintln!("semel: {} was not deleted: {error}", root.display());
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
