//! The operating system's file system.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Call, Disk, DiskError, File, Lock, Mode};
use crate::limits::DISK_ZERO_CHUNK_BYTES;

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

struct OsFile {
    path: PathBuf,
    file: fs::File,
}

/// The lock goes with the open file, so with the process, however it ends.
struct OsLock {
    _file: fs::File,
}

impl Lock for OsLock {}

/// A bare file name lies in the working directory.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn names(dir: &Path, is_wanted: fn(&fs::FileType) -> bool) -> Result<Vec<String>, DiskError> {
    let fail = |e| DiskError::new(Call::List, dir, e);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if is_wanted(&entry.file_type().map_err(fail)?)
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

impl Disk for OsDisk {
    fn open(&self, path: &Path, mode: Mode) -> Result<Arc<dyn File>, DiskError> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(mode != Mode::Read).create_new(mode == Mode::CreateNew).mode(0o600);
        let call = if mode == Mode::CreateNew { Call::Create } else { Call::Open };
        let file = options.open(path).map_err(|e| DiskError::new(call, path, e))?;
        Ok(Arc::new(OsFile { path: path.to_owned(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        fs::rename(from, to).map_err(|e| DiskError::new(Call::Rename, from, e))
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        fs::remove_file(path).map_err(|e| DiskError::new(Call::Remove, path, e))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        names(dir, fs::FileType::is_file)
    }

    fn dirs(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        names(dir, fs::FileType::is_dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        fs::remove_dir_all(dir).map_err(|e| DiskError::new(Call::RemoveDir, dir, e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| DiskError::new(Call::SyncDir, dir, e))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|at| !at.as_os_str().is_empty() && !at.exists()).collect();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|e| DiskError::new(Call::CreateDir, dir, e))?;
        missing.into_iter().try_for_each(|at| self.sync_dir(parent(at)))
    }

    fn try_lock(&self, path: &Path) -> Result<Box<dyn Lock>, DiskError> {
        let fail = |e| DiskError::new(Call::Lock, path, e);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(fail)?;
        file.try_lock().map_err(|e| fail(io::Error::from(e)))?;
        Ok(Box::new(OsLock { _file: file }))
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64, DiskError> {
        let found = rustix::fs::statvfs(dir).map_err(|e| DiskError::new(Call::Free, dir, e.into()))?;
        // What only the superuser may still take isn't free.
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// What an entry of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A directory, a link, a device: anything else.
    Other,
}

impl OsDisk {
    /// Opens a plain file for reading: neither the file itself nor what it stands for may be a link, a directory, a pipe or
    /// a device. For directories that somebody else has filled.
    ///
    /// # Errors
    /// `InvalidInput` for anything but a plain file; whatever the disk says.
    pub fn open_plain(&self, path: &Path) -> Result<Arc<dyn File>, DiskError> {
        use rustix::fs::OFlags;
        let fail = |e| DiskError::new(Call::Open, path, e);
        // NONBLOCK: opening a pipe would wait for its writer.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| {
            let is_link = e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            fail(if is_link { io::ErrorKind::InvalidInput.into() } else { e })
        })?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(fail(io::ErrorKind::InvalidInput.into()));
        }
        Ok(Arc::new(OsFile { path: path.to_owned(), file }))
    }

    /// Everything directly in `dir`, by name, links not followed. Names that aren't UTF-8 are shown with what can't be
    /// read replaced: none of ours is like that.
    ///
    /// # Errors
    /// Whatever the disk says.
    pub fn entries(&self, dir: &Path) -> Result<Vec<(String, EntryKind)>, DiskError> {
        let fail = |e| DiskError::new(Call::List, dir, e);
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let kind = if entry.file_type().map_err(fail)?.is_file() { EntryKind::File } else { EntryKind::Other };
            entries.push((entry.file_name().to_string_lossy().into_owned(), kind));
        }
        entries.sort_unstable();
        Ok(entries)
    }
}

impl OsFile {
    fn fail(&self, call: Call) -> impl FnOnce(io::Error) -> DiskError + '_ {
        move |e| DiskError::new(call, &self.path, e)
    }
}

impl File for OsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        loop {
            match self.file.read_at(buf, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(self.fail(Call::Read)),
            }
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.file.write_all_at(buf, offset).map_err(self.fail(Call::Write))
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.file.sync_data().map_err(self.fail(Call::Sync))
    }

    fn set_len(&self, bytes: u64) -> Result<(), DiskError> {
        self.file.set_len(bytes).map_err(self.fail(Call::SetLen))
    }

    fn zero_fill(&self, from: u64, to: u64) -> Result<(), DiskError> {
        if to <= from {
            return Ok(());
        }
        // Asks for the space in one piece, so that it lies together and a full disk shows before the first zero. On a
        // file system that can't (tmpfs on old kernels, some network ones) the zeros alone do.
        #[cfg(target_os = "linux")]
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), from, to - from) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(DiskError::new(Call::ZeroFill, &self.path, e.into())),
        }
        // fallocate leaves extents marked unwritten, and the first write into each would be a metadata change that
        // fdatasync waits for: so the zeros are written out.
        let zeros = vec![0_u8; DISK_ZERO_CHUNK_BYTES];
        let mut at = from;
        while at < to {
            let bytes = (to - at).min(DISK_ZERO_CHUNK_BYTES as u64) as usize;
            self.file.write_all_at(&zeros[..bytes], at).map_err(self.fail(Call::ZeroFill))?;
            at += bytes as u64;
        }
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(self.fail(Call::Len))
    }
}
