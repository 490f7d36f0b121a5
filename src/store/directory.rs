//! Where engines live on the disk, and how one takes the place of another.
//!
//! Each engine has a directory of its own, `KIND-GENERATION`. A state that comes from a snapshot file is loaded into the
//! next generation while readers go on with the present one; when it is whole, the older one is retired, and its files go
//! with the last reader. A crash at any point leaves at most a generation too many, which the next start deletes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    engine::{Engine, EngineCause, EngineError},
    fjall::{self, FjallEngine},
    memory::MemoryEngine,
    records::{META_MARK, OpenEngine},
    sled::{self, SledEngine},
    watched::{Watched, caught, is_condemned},
};
use crate::records::keys::StoreKey;

/// Which engine holds the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// fjall, the default.
    Fjall,
    /// sled 0.34.
    Sled,
    /// Nothing on the disk: for the simulation and for tests.
    Memory,
}

impl EngineKind {
    /// Every kind, for options and for tests that run on all of them.
    pub const ALL: [Self; 3] = [Self::Fjall, Self::Sled, Self::Memory];

    /// The word for it in options and in directory names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fjall => fjall::NAME,
            Self::Sled => sled::NAME,
            Self::Memory => "memory",
        }
    }
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No engine has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no store is called {0:?}: fjall, sled or memory")]
pub struct UnknownEngine(pub String);

impl std::str::FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownEngine(name.to_owned()))
    }
}

/// Opens the engine at `path`, which is created where it is missing. A panic in the engine is damage like any other, and so
/// is the mark that an error or a panic of an earlier day has left.
///
/// # Errors
/// [`EngineError::Locked`] when another process has it; [`EngineError::Damaged`] when it is to be deleted and rebuilt.
pub fn open(kind: EngineKind, path: &Path) -> Result<Arc<dyn Engine>, EngineError> {
    let open = || -> Result<Arc<dyn Engine>, EngineError> {
        if kind != EngineKind::Memory && is_condemned(path) {
            let reason = "it failed while it was in use".to_owned();
            return Err(EngineError::Damaged { engine: kind.name(), reason });
        }
        Ok(match kind {
            EngineKind::Fjall => Arc::new(Watched::new(kind.name(), path, FjallEngine::open(path)?)),
            EngineKind::Sled => Arc::new(Watched::new(kind.name(), path, SledEngine::open(path)?)),
            EngineKind::Memory => Arc::new(MemoryEngine::new()),
        })
    };
    caught(kind.name(), open)
}

/// The directory that holds a node's engine, present and past.
#[derive(Clone, Debug)]
pub struct EngineDirectory {
    root: PathBuf,
    kind: EngineKind,
}

impl OpenEngine for EngineDirectory {
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError> {
        let opened = self.open(&StoreKey::Meta(META_MARK.into()).encode())?;
        for Discarded { path, damage } in &opened.discarded {
            let damage = damage.as_ref().map(ToString::to_string);
            tracing::warn!(path = %path.display(), damage, "a store was deleted: it was damaged or loaded half");
        }
        Ok(opened.engine)
    }

    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError> {
        self.open_next()
    }

    /// The newest whole generation is the one that the next start opens: nothing has to be written down.
    fn adopt(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// What [`EngineDirectory::open`] found.
pub struct Opened {
    /// The newest whole engine, or an empty one.
    pub engine: Arc<dyn Engine>,
    /// Why generations were deleted that looked better than the one opened: damage, or a load that was cut short.
    pub discarded: Vec<Discarded>,
}

/// A generation that was deleted at start.
#[derive(Debug)]
pub struct Discarded {
    /// Its directory.
    pub path: PathBuf,
    /// The damage; `None` for a load that was cut short.
    pub damage: Option<EngineError>,
}

impl EngineDirectory {
    /// The engines below `root`, of which `kind` is the one wanted.
    pub fn new(root: impl Into<PathBuf>, kind: EngineKind) -> Self {
        Self { root: root.into(), kind }
    }

    /// Opens the newest engine that holds `whole_key`, the key that a load writes last. Whatever else lies in this
    /// directory, other kinds of engine too, is deleted: all of it can be rebuilt. Without such an engine an empty one is
    /// opened, and the caller loads it.
    ///
    /// # Errors
    /// [`EngineError::Locked`], or the directory cannot be used.
    pub fn open(&self, whole_key: &[u8]) -> Result<Opened, EngineError> {
        let mut discarded = Vec::new();
        let mut found: Option<Arc<dyn Engine>> = None;
        for (path, kind, _) in self.generations()? {
            if kind == self.kind && found.is_none() {
                match open(kind, &path).and_then(|engine| Ok((engine.get(whole_key)?.is_some(), engine))) {
                    Ok((true, engine)) => {
                        found = Some(engine);
                        continue;
                    }
                    Ok((false, _)) => discarded.push(Discarded { path: path.clone(), damage: None }),
                    Err(error @ EngineError::Locked { .. }) => return Err(error),
                    Err(error) => discarded.push(Discarded { path: path.clone(), damage: Some(error) }),
                }
            }
            fs::remove_dir_all(&path).map_err(unusable)?;
        }
        let engine = match found {
            Some(engine) => engine,
            None => self.open_next()?,
        };
        Ok(Opened { engine, discarded })
    }

    /// Opens an empty engine beside the present one, to be loaded. When it is whole, switch to it and
    /// [retire](Engine::retire) the one before.
    ///
    /// # Errors
    /// The directory cannot be used, or the engine does not open.
    pub fn open_next(&self) -> Result<Arc<dyn Engine>, EngineError> {
        if self.kind == EngineKind::Memory {
            return open(self.kind, &self.root);
        }
        fs::create_dir_all(&self.root).map_err(unusable)?;
        let generation = self.generations()?.iter().map(|(_, _, generation)| generation + 1).max().unwrap_or(1);
        let path = self.root.join(format!("{}-{generation:08}", self.kind));
        open(self.kind, &path).inspect_err(|_| {
            // On a full disk it is tried again and again: what each try leaves must not add up.
            let _ = fs::remove_dir_all(&path);
        })
    }

    /// The generations on the disk, the newest first.
    fn generations(&self) -> Result<Vec<(PathBuf, EngineKind, u64)>, EngineError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unusable)?,
        };
        let mut generations = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unusable)?;
            let name = entry.file_name();
            let parsed = name.to_str().and_then(|name| name.split_once('-')).and_then(|(kind, generation)| {
                Some((kind.parse::<EngineKind>().ok()?, generation.parse::<u64>().ok()?))
            });
            if let Some((kind, generation)) = parsed {
                generations.push((entry.path(), kind, generation));
            }
        }
        generations.sort_by_key(|(_, _, generation)| std::cmp::Reverse(*generation));
        Ok(generations)
    }
}

fn unusable(error: io::Error) -> EngineError {
    EngineError::Directory(EngineCause::new(error))
}

/// The directory of one engine, deleted with the last user of its files once it is retired.
pub(super) struct Place {
    path: PathBuf,
    fate: Mutex<Fate>,
}

/// What becomes of a directory with its last user.
enum Fate {
    Stays,
    IsDeleted,
    IsMoved(PathBuf),
}

impl Place {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), fate: Mutex::new(Fate::Stays) }
    }

    /// Bytes of the files in it. One that goes while it is looked at takes nothing: engines delete files as they please.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        bytes_below(&self.path)
    }

    pub(super) fn retire(&self) {
        let mut fate = self.fate.lock();
        if matches!(*fate, Fate::Stays) {
            *fate = Fate::IsDeleted;
        }
    }

    pub(super) fn put_aside(&self, to: &Path) {
        *self.fate.lock() = Fate::IsMoved(to.to_owned());
    }
}

fn bytes_below(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata().and_then(|metadata| match metadata.is_dir() {
            true => bytes_below(&entry.path()),
            false => Ok(metadata.len()),
        });
        bytes += match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            found => found?,
        };
    }
    Ok(bytes)
}

impl Drop for Place {
    fn drop(&mut self) {
        let done = match &*self.fate.lock() {
            Fate::Stays => Ok(()),
            Fate::IsDeleted => fs::remove_dir_all(&self.path),
            Fate::IsMoved(to) => fs::create_dir_all(to).and_then(|()| {
                let name = self.path.file_name().expect("an engine's directory has a name");
                fs::rename(&self.path, to.join(name))
            }),
        };
        if let Err(error) = done {
            // The next start deletes it.
            tracing::warn!(path = %self.path.display(), %error, "a retired store could not be cleared away");
        }
    }
}
