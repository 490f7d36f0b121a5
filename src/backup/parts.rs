//! The parts of a backup: written as bytes arrive, and read as the one file that they are, joined.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{
    BackupError, Flaw,
    manifest::{Part, part_name, part_number},
};
use crate::{
    disk::{Call, Disk, DiskError, File, Mode, OsDisk},
    limits,
};

/// Puts bytes into parts. Holds none of them.
pub struct PartsWriter {
    dir: PathBuf,
    part_bytes: u64,
    done: Vec<Part>,
    current: Option<Current>,
    bytes: u64,
    whole: Sha256,
}

struct Current {
    file: Arc<dyn File>,
    bytes: u64,
    hash: Sha256,
}

impl PartsWriter {
    /// Begins in `dir`, or goes on behind what an earlier attempt has left there, which is read again for its hashes. What
    /// a crash has torn shows when all of it is verified.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(dir: &Path) -> Result<Self, BackupError> {
        Self::with_parts_of(dir, limits::BACKUP_PART_BYTES)
    }

    /// With parts of another size: small backups of many parts are what tests cut and flip.
    pub(super) fn with_parts_of(dir: &Path, part_bytes: u64) -> Result<Self, BackupError> {
        let (dir, whole) = (dir.to_owned(), Sha256::new());
        let mut writer = Self { dir, part_bytes, done: Vec::new(), current: None, bytes: 0, whole };
        while writer.found_part()? {}
        Ok(writer)
    }

    /// Takes in the next part that is there, if there is one and it is not the last.
    fn found_part(&mut self) -> Result<bool, BackupError> {
        let path = self.dir.join(part_name(self.done.len()));
        let file = match OsDisk.open(&path, Mode::ReadWrite) {
            Err(error) if error.is_not_found() => return Ok(false),
            file => file?,
        };
        let mut current = Current { bytes: 0, hash: Sha256::new(), file };
        let mut piece = vec![0; limits::SNAPSHOT_PIECE_BYTES];
        while current.bytes < self.part_bytes {
            let most = (self.part_bytes - current.bytes).min(piece.len() as u64) as usize;
            let read = current.file.read_at(&mut piece[..most], current.bytes)?;
            if read == 0 {
                break;
            }
            current.hash.update(&piece[..read]);
            self.whole.update(&piece[..read]);
            current.bytes += read as u64;
        }
        self.bytes += current.bytes;
        if current.bytes < self.part_bytes {
            self.current = Some(current);
            return Ok(false);
        }
        self.finish(current)?;
        Ok(true)
    }

    /// Bytes so far: where what comes next begins.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The disk's; [`Flaw::Size`] beyond what a backup holds.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), BackupError> {
        while !bytes.is_empty() {
            let mut current = match self.current.take() {
                Some(current) => current,
                None => self.begin()?,
            };
            let most = (self.part_bytes - current.bytes).min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(most);
            current.file.write_at(now, current.bytes)?;
            current.hash.update(now);
            self.whole.update(now);
            current.bytes += most as u64;
            self.bytes += most as u64;
            bytes = later;
            if current.bytes == self.part_bytes {
                self.finish(current)?;
            } else {
                self.current = Some(current);
            }
        }
        Ok(())
    }

    fn begin(&self) -> Result<Current, BackupError> {
        if self.done.len() >= limits::BACKUP_PARTS_MAX {
            let most = limits::BACKUP_PARTS_MAX as u64 * self.part_bytes;
            return Err(BackupError::damaged(&self.dir, most, Flaw::Size { found: most + 1, expected: most }));
        }
        let file = OsDisk.open(&self.dir.join(part_name(self.done.len())), Mode::CreateNew)?;
        Ok(Current { file, bytes: 0, hash: Sha256::new() })
    }

    fn finish(&mut self, current: Current) -> Result<(), BackupError> {
        current.file.sync_data()?;
        self.done.push(Part { bytes: current.bytes, sha256: current.hash.finalize().into() });
        Ok(())
    }

    /// Syncs what is there. Answers the parts, and the SHA-256 of them joined.
    ///
    /// # Errors
    /// The disk's.
    pub fn end(mut self) -> Result<(Vec<Part>, [u8; 32]), BackupError> {
        if let Some(current) = self.current.take() {
            self.finish(current)?;
        }
        OsDisk.sync_dir(&self.dir)?;
        Ok((self.done, self.whole.finalize().into()))
    }

    /// Removes the parts in `dir`: what is fetched anew begins with none.
    ///
    /// # Errors
    /// The disk's.
    pub fn clear(dir: &Path) -> Result<(), BackupError> {
        for name in OsDisk.list(dir)?.iter().filter(|name| part_number(name).is_some()) {
            OsDisk.remove(&dir.join(name))?;
        }
        Ok(())
    }
}

/// The parts in a directory as one file that can be read. One part is open at a time.
pub struct JoinedParts {
    dir: PathBuf,
    /// Where each part begins.
    begins: Vec<u64>,
    bytes: u64,
    open: Mutex<Option<(usize, Arc<dyn File>)>>,
}

impl JoinedParts {
    /// The parts of these lengths in `dir`.
    pub fn new(dir: &Path, lengths: impl IntoIterator<Item = u64>) -> Self {
        let (mut begins, mut bytes) = (Vec::new(), 0);
        for length in lengths {
            begins.push(bytes);
            bytes += length;
        }
        Self { dir: dir.to_owned(), begins, bytes, open: Mutex::new(None) }
    }

    /// The part that holds this byte, and the byte's place in it.
    pub fn place(&self, offset: u64) -> (PathBuf, u64) {
        let number = self.number(offset);
        (self.dir.join(part_name(number)), offset - self.begins.get(number).copied().unwrap_or(0))
    }

    fn number(&self, offset: u64) -> usize {
        self.begins.partition_point(|begin| *begin <= offset).saturating_sub(1)
    }

    fn part(&self, number: usize) -> Result<Arc<dyn File>, DiskError> {
        let mut open = self.open.lock();
        match &*open {
            Some((found, file)) if *found == number => Ok(Arc::clone(file)),
            _ => {
                let file = OsDisk.open_plain(&self.dir.join(part_name(number)))?;
                *open = Some((number, Arc::clone(&file)));
                Ok(file)
            }
        }
    }

    fn read_only<T>(&self, call: Call) -> Result<T, DiskError> {
        Err(DiskError::new(call, &self.dir, io::ErrorKind::PermissionDenied.into()))
    }
}

impl File for JoinedParts {
    fn path(&self) -> &Path {
        &self.dir
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        if offset >= self.bytes {
            return Ok(0);
        }
        let number = self.number(offset);
        let end = self.begins.get(number + 1).copied().unwrap_or(self.bytes);
        let most = (end - offset).min(buf.len() as u64) as usize;
        self.part(number)?.read_at(&mut buf[..most], offset - self.begins[number])
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<(), DiskError> {
        self.read_only(Call::Write)
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.read_only(Call::Sync)
    }

    fn set_len(&self, _: u64) -> Result<(), DiskError> {
        self.read_only(Call::SetLen)
    }

    fn zero_fill(&self, _: u64, _: u64) -> Result<(), DiskError> {
        self.read_only(Call::ZeroFill)
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(self.bytes)
    }
}
