//! The log against a disk that fails on demand. `Rig` drives it without threads: what is told, and when, is exact.

mod basics;
mod faults;
mod flips;
mod format;
mod full;
mod model;
mod scrub;
mod tears;
mod threads;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Identity, Options, Parts, Purged, Recovered, Step, Wal, WalEntry, WalError};
use crate::disk::fault::FaultDisk;
use crate::id::{ClusterId, DiskId, LineageId};

const DIR: &str = "/data/wal";
const SMALL: u64 = 6144;

fn identity() -> Identity {
    Identity { lineage_id: LineageId([1; 16]), cluster_id: ClusterId([2; 16]), node_id: 3, disk_id: DiskId([4; 16]) }
}

fn entry(index: u64, term: u64, bytes: usize) -> WalEntry {
    let mut payload = format!("{index}@{term}/").into_bytes();
    payload.resize(bytes.max(payload.len()), index as u8 | 1);
    WalEntry { index, term, payload: payload.into() }
}

fn entries(range: std::ops::Range<u64>, term: u64) -> Vec<WalEntry> {
    range.map(|index| entry(index, term, 40)).collect()
}

/// What a `done` was told, `None` until it was.
type Told = Arc<Mutex<Option<Result<(), WalError>>>>;

fn told() -> (Told, impl FnOnce(Result<(), WalError>) + Send) {
    let told = Told::default();
    let done = told.clone();
    (told, move |result| assert!(done.lock().replace(result).is_none(), "told twice"))
}

/// A log without threads.
struct Rig {
    disk: FaultDisk,
    parts: Parts,
    recovered: Option<Recovered>,
}

impl Rig {
    fn create(disk: &FaultDisk, segment_bytes: u64) -> Result<Self, WalError> {
        let options = Options::small(segment_bytes);
        let parts = Wal::create_parts(Arc::new(disk.clone()), Path::new(DIR), identity(), &options)?;
        Ok(Self { disk: disk.clone(), parts, recovered: None })
    }

    fn open(disk: &FaultDisk, segment_bytes: u64) -> Result<Self, WalError> {
        let options = Options::small(segment_bytes);
        let (parts, recovered) = Wal::open_parts(Arc::new(disk.clone()), Path::new(DIR), identity(), &options)?;
        Ok(Self { disk: disk.clone(), parts, recovered: Some(recovered) })
    }

    fn new() -> Self {
        Self::create(&FaultDisk::new(), SMALL).expect("a fresh disk takes a log")
    }

    /// The same disk opened again, without a crash.
    fn reopen(self) -> Self {
        let disk = self.disk.clone();
        drop(self);
        Self::open(&disk, SMALL).expect("a sound log opens")
    }

    fn wal(&self) -> &Wal {
        &self.parts.wal
    }

    fn recovered(&self) -> &Recovered {
        self.recovered.as_ref().expect("the rig was opened")
    }

    /// Steps until nothing is left to do but seal; says whether it still can. A disk that stays full is not waited for.
    fn settle(&mut self) -> Step {
        let mut waited = 0;
        loop {
            match self.parts.writer.step() {
                Step::Again => {}
                Step::NoRoom if waited < 2 => {
                    waited += 1;
                    self.parts.preparer.step();
                }
                step => return step,
            }
        }
    }

    /// Settles and seals, as the writer's thread does when nothing comes.
    fn rest(&mut self) {
        self.settle();
        self.parts.writer.seal();
    }

    fn append(&mut self, entries: Vec<WalEntry>) -> Result<(), WalError> {
        let (told, done) = told();
        self.wal().append(entries, done);
        self.settle();
        told.lock().take().expect("a settled writer has told everyone")
    }

    fn vote(&mut self, vote: &str) -> Result<(), WalError> {
        let (told, done) = told();
        self.wal().save_vote_then(Bytes::copy_from_slice(vote.as_bytes()), done);
        self.settle();
        told.lock().take().expect("a settled writer has told everyone")
    }

    fn truncate_after(&mut self, last_kept: Option<u64>) -> Result<(), WalError> {
        let (told, done) = told();
        self.wal().truncate_after(last_kept, done);
        self.settle();
        told.lock().take().expect("a settled writer has told everyone")
    }

    fn purge(&mut self, index: u64, term: u64) -> Result<(), WalError> {
        let (told, done) = told();
        let payload = Bytes::from(format!("purged {index}"));
        self.wal().purge(Purged { index, term, payload }, done);
        self.settle();
        told.lock().take().expect("a settled writer has told everyone")
    }

    fn all(&self) -> Vec<WalEntry> {
        self.wal().read(self.wal().bounds(), usize::MAX).expect("a sound log reads")
    }

    /// Names of the segments, sorted.
    fn segments(&self) -> Vec<String> {
        segments(&self.disk)
    }

    fn damage(&self) -> Vec<super::Damage> {
        self.wal().scrub().filter_map(|step| step.expect("the disk reads").damage).collect()
    }
}

fn segments(disk: &FaultDisk) -> Vec<String> {
    let paths = disk.paths();
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    names.filter(|name| name.ends_with(".wal")).map(str::to_owned).collect()
}

fn path_of(sequence: u64) -> String {
    format!("{DIR}/{sequence:020}.wal")
}
