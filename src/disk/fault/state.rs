//! What the fault disk remembers: bytes and names, durable and not.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Crash, Failure};
use crate::disk::{Call, DiskError};

/// Disks promise at most that a sector is written whole or not; this one doesn't always promise even that.
const SECTOR_BYTES: u64 = 512;

/// The error that a planned failure answers.
pub(super) fn broken(call: Call, path: &Path, failure: Failure) -> DiskError {
    let errno = match failure {
        Failure::Enospc => rustix::io::Errno::NOSPC,
        Failure::Eio | Failure::Hang => rustix::io::Errno::IO,
    };
    DiskError::new(call, path, io::Error::from(errno))
}

#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
}

#[derive(Debug, Clone)]
struct Pending {
    /// Orders the changes of all files.
    at: u64,
    change: Change,
    /// A sync that should have covered it failed; no later sync will.
    doomed: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    durable: Vec<u8>,
    pub(super) live: Vec<u8>,
    pending: Vec<Pending>,
}

/// A change of a name that no sync of its directory has covered.
#[derive(Debug, Clone)]
enum NameChange {
    Create { path: PathBuf, inode: u64 },
    Rename { from: PathBuf, to: PathBuf, inode: u64 },
    Remove { path: PathBuf },
}

impl NameChange {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Create { path, .. } | Self::Remove { path } | Self::Rename { to: path, .. } => path.parent(),
        }
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Create { path, inode } => {
                names.insert(path, inode);
            }
            Self::Rename { from, to, inode } => {
                // Only where `from` still is this file: its name may be another file's by now.
                if names.get(&from) == Some(&inode) {
                    names.remove(&from);
                }
                names.insert(to, inode);
            }
            Self::Remove { path } => {
                names.remove(&path);
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    call: Option<Call>,
    part: Option<String>,
    left: u64,
    failure: Failure,
}

pub(super) enum Admission {
    Pass,
    Fail(Failure),
    /// Until so many releases have been.
    Hang {
        until: u64,
    },
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Raised by each crash; handles of an earlier life are dead.
    pub(super) life: u64,
    inodes: BTreeMap<u64, Inode>,
    live: BTreeMap<PathBuf, u64>,
    durable: BTreeMap<PathBuf, u64>,
    dirs: BTreeSet<PathBuf>,
    names_pending: Vec<NameChange>,
    changes: u64,
    inodes_made: u64,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) plans: Vec<Plan>,
    pub(super) fired: u64,
    pub(super) counts: BTreeMap<Call, u64>,
    pub(super) capacity: Option<u64>,
    pub(super) hanging: usize,
    pub(super) releases: u64,
}

impl State {
    pub(super) fn plan(&mut self, call: Option<Call>, part: Option<String>, left: u64, failure: Failure) {
        self.plans.push(Plan { call, part, left, failure });
    }

    pub(super) fn admit(&mut self, call: Call, path: &Path) -> Admission {
        *self.counts.entry(call).or_default() += 1;
        let mut chosen = None;
        self.plans.retain_mut(|plan| {
            let meant = plan.call.is_none_or(|of| of == call)
                && plan.part.as_ref().is_none_or(|part| path.to_string_lossy().contains(part.as_str()));
            match (meant, plan.left) {
                (false, _) => true,
                (true, 0) if chosen.is_none() => {
                    chosen = Some(plan.failure);
                    false
                }
                (true, 0) => true,
                (true, _) => {
                    plan.left -= 1;
                    true
                }
            }
        });
        self.fired += u64::from(chosen.is_some());
        match chosen {
            None => Admission::Pass,
            Some(Failure::Hang) => Admission::Hang { until: self.releases + 1 },
            Some(failure) => Admission::Fail(failure),
        }
    }

    pub(super) fn release(&mut self) {
        self.releases += 1;
    }

    pub(super) fn inode(&self, inode: u64) -> &Inode {
        self.inodes.get(&inode).expect("a handle of this life has an inode: they are dropped only by a crash")
    }

    fn inode_mut(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("a handle of this life has an inode: they are dropped only by a crash")
    }

    pub(super) fn find(&self, path: &Path) -> Result<u64, ErrorKind> {
        self.live.get(path).copied().ok_or(ErrorKind::NotFound)
    }

    pub(super) fn create(&mut self, path: &Path) -> Result<u64, ErrorKind> {
        if self.live.contains_key(path) || self.dirs.contains(path) {
            return Err(ErrorKind::AlreadyExists);
        }
        if !path.parent().is_some_and(|dir| self.dirs.contains(dir)) {
            return Err(ErrorKind::NotFound);
        }
        self.inodes_made += 1;
        let inode = self.inodes_made;
        self.inodes.insert(inode, Inode::default());
        self.change_name(NameChange::Create { path: path.to_owned(), inode });
        Ok(inode)
    }

    fn change_name(&mut self, change: NameChange) {
        change.clone().apply(&mut self.live);
        self.names_pending.push(change);
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), ErrorKind> {
        if self.dirs.contains(from) {
            self.rename_dir(from, to);
            return Ok(());
        }
        let inode = self.find(from)?;
        if !to.parent().is_some_and(|dir| self.dirs.contains(dir)) {
            return Err(ErrorKind::NotFound);
        }
        self.change_name(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    fn rename_dir(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
            Ok(rest) => to.join(rest),
            Err(_) => path.to_owned(),
        };
        self.dirs = self.dirs.iter().map(|dir| moved(dir)).collect();
        self.live = self.live.iter().map(|(path, inode)| (moved(path), *inode)).collect();
        self.durable = self.durable.iter().map(|(path, inode)| (moved(path), *inode)).collect();
        for change in &mut self.names_pending {
            match change {
                NameChange::Create { path, .. } | NameChange::Remove { path } => *path = moved(path),
                NameChange::Rename { from, to, .. } => (*from, *to) = (moved(from), moved(to)),
            }
        }
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<(), ErrorKind> {
        self.find(path)?;
        self.change_name(NameChange::Remove { path: path.to_owned() });
        Ok(())
    }

    pub(super) fn list(&self, dir: &Path) -> Result<Vec<String>, ErrorKind> {
        if !self.dirs.contains(dir) {
            return Err(ErrorKind::NotFound);
        }
        let inside = self.live.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    pub(super) fn dirs_in(&self, dir: &Path) -> Result<Vec<String>, ErrorKind> {
        if !self.dirs.contains(dir) {
            return Err(ErrorKind::NotFound);
        }
        let inside = self.dirs.iter().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    /// Durable at once, as all that is done to directories.
    pub(super) fn remove_dir_all(&mut self, dir: &Path) -> Result<(), ErrorKind> {
        if !self.dirs.contains(dir) {
            return Err(ErrorKind::NotFound);
        }
        self.dirs.retain(|path| !path.starts_with(dir));
        self.live.retain(|path, _| !path.starts_with(dir));
        self.durable.retain(|path, _| !path.starts_with(dir));
        self.names_pending.retain(|change| !change.dir().is_some_and(|of| of.starts_with(dir)));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let (covered, rest) = std::mem::take(&mut self.names_pending)
            .into_iter()
            .partition(|change: &NameChange| change.dir() == Some(dir));
        self.names_pending = rest;
        for change in covered {
            change.apply(&mut self.durable);
        }
    }

    pub(super) fn create_dir_all(&mut self, dir: &Path) {
        self.dirs.extend(dir.ancestors().map(Path::to_owned));
    }

    /// Bytes that all files together may still grow by.
    pub(super) fn free(&self) -> u64 {
        let used: u64 = self.live.values().map(|inode| self.inode(*inode).live.len() as u64).sum();
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used))
    }

    pub(super) fn is_full(&self, inode: u64, end: u64) -> bool {
        let growth = end.saturating_sub(self.inode(inode).live.len() as u64);
        growth > self.free()
    }

    pub(super) fn full(&self, inode: u64, end: u64) -> Option<Failure> {
        self.is_full(inode, end).then_some(Failure::Enospc)
    }

    pub(super) fn write(&mut self, inode: u64, offset: u64, data: &[u8]) {
        self.change(inode, Change::Write { offset, data: data.to_vec() });
    }

    pub(super) fn set_len(&mut self, inode: u64, bytes: u64) {
        self.change(inode, Change::SetLen(bytes));
    }

    fn change(&mut self, inode: u64, change: Change) {
        self.changes += 1;
        let at = self.changes;
        let inode = self.inode_mut(inode);
        change.apply(&mut inode.live);
        inode.pending.push(Pending { at, change, doomed: false });
    }

    pub(super) fn sync(&mut self, inode: u64) {
        let inode = self.inode_mut(inode);
        let (doomed, covered) = std::mem::take(&mut inode.pending).into_iter().partition(|p: &Pending| p.doomed);
        inode.pending = doomed;
        for pending in covered {
            pending.change.apply(&mut inode.durable);
            // What was doomed below it is overwritten for good: no crash brings it back.
            let doomed = std::mem::take(&mut inode.pending);
            inode.pending = doomed.into_iter().flat_map(|older| older.without(&pending)).collect();
        }
    }

    pub(super) fn doom(&mut self, inode: u64) {
        for pending in &mut self.inode_mut(inode).pending {
            pending.doomed = true;
        }
    }

    pub(super) fn unsynced_bytes(&self) -> u64 {
        self.inodes.values().flat_map(|inode| &inode.pending).map(|pending| pending.change.bytes()).sum()
    }

    pub(super) fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.live.get(path).map(|inode| self.inode(*inode).live.clone())
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.live.keys().cloned().collect()
    }

    pub(super) fn damage(&mut self, path: &Path, damage: impl Fn(&mut Vec<u8>) -> bool) -> bool {
        let Some(inode) = self.live.get(path).copied() else { return false };
        let inode = self.inode_mut(inode);
        damage(&mut inode.durable);
        damage(&mut inode.live)
    }

    pub(super) fn copy(&self) -> Self {
        Self {
            life: self.life,
            inodes: self.inodes.clone(),
            live: self.live.clone(),
            durable: self.durable.clone(),
            dirs: self.dirs.clone(),
            names_pending: self.names_pending.clone(),
            changes: self.changes,
            inodes_made: self.inodes_made,
            capacity: self.capacity,
            ..Self::default()
        }
    }

    pub(super) fn become_like(&mut self, other: Self) {
        let (life, counts, fired, capacity) =
            (self.life + 1, std::mem::take(&mut self.counts), self.fired, self.capacity);
        // Those that hang now go on counting themselves down.
        let (hanging, releases) = (self.hanging, self.releases);
        *self = Self { life, counts, fired, capacity, hanging, releases, ..other };
    }

    pub(super) fn crash(&mut self, how: Crash) {
        self.life += 1;
        self.locks.clear();
        self.plans.clear();
        let mut draw = Draw(match how {
            Crash::Tear(seed) => seed,
            _ => 0,
        });
        self.crash_bytes(how, &mut draw);
        for change in std::mem::take(&mut self.names_pending) {
            let kept = match how {
                Crash::LoseUnsynced => false,
                Crash::KeepUnsynced | Crash::KeepBytes(_) => true,
                Crash::Tear(_) => draw.one_in(2),
            };
            if kept {
                change.apply(&mut self.durable);
            }
        }
        self.live = self.durable.clone();
        let named: BTreeSet<u64> = self.live.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    pub(super) fn crash_process(&mut self) {
        self.life += 1;
        self.locks.clear();
        self.plans.clear();
    }

    fn crash_bytes(&mut self, how: Crash, draw: &mut Draw) {
        let mut pending: Vec<(u64, Pending)> = Vec::new();
        for (number, inode) in &mut self.inodes {
            pending.extend(std::mem::take(&mut inode.pending).into_iter().map(|change| (*number, change)));
        }
        pending.sort_by_key(|(_, pending)| pending.at);
        let mut budget = match how {
            Crash::KeepBytes(bytes) => bytes,
            Crash::KeepUnsynced => u64::MAX,
            Crash::LoseUnsynced | Crash::Tear(_) => 0,
        };
        for (number, Pending { change, .. }) in pending {
            let durable = &mut self.inode_mut(number).durable;
            match how {
                Crash::Tear(_) => change.tear(draw, durable),
                _ => change.apply_first(&mut budget, durable),
            }
        }
        for inode in self.inodes.values_mut() {
            inode.live = inode.durable.clone();
        }
    }
}

impl Pending {
    /// What's left of this write where a later one is durable.
    fn without(self, later: &Self) -> Vec<Self> {
        let (Change::Write { offset, data }, Change::Write { offset: from, data: over }) =
            (&self.change, &later.change)
        else {
            return vec![self];
        };
        let (end, to) = (offset + data.len() as u64, from + over.len() as u64);
        if later.at < self.at || *from >= end || to <= *offset {
            return vec![self];
        }
        let part = |from: u64, to: u64| {
            let data = data[(from - offset) as usize..(to - offset) as usize].to_vec();
            Self { change: Change::Write { offset: from, data }, ..self }
        };
        let mut left = Vec::new();
        if *offset < *from {
            left.push(part(*offset, *from));
        }
        if to < end {
            left.push(part(to, end));
        }
        left
    }
}

impl Change {
    fn bytes(&self) -> u64 {
        match self {
            Self::Write { data, .. } => data.len() as u64,
            Self::SetLen(_) => 0,
        }
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => put(bytes, *offset, data),
            Self::SetLen(len) => bytes.resize(*len as usize, 0),
        }
    }

    fn apply_first(&self, budget: &mut u64, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let kept = (data.len() as u64).min(*budget);
                put(bytes, *offset, &data[..kept as usize]);
                *budget -= kept;
            }
            Self::SetLen(_) if *budget == 0 => {}
            Self::SetLen(_) => self.apply(bytes),
        }
    }

    /// Cuts the write where sectors meet and keeps each piece or not; one piece in eight is itself cut at some byte.
    fn tear(&self, draw: &mut Draw, bytes: &mut Vec<u8>) {
        let Self::Write { offset, data } = self else {
            if draw.one_in(2) {
                self.apply(bytes);
            }
            return;
        };
        // Whole writes survive or vanish more often than chance would have it with many pieces.
        let lean = draw.below(4);
        let mut at = 0;
        while at < data.len() {
            let start = offset + at as u64;
            let end = data.len().min(at + (SECTOR_BYTES - start % SECTOR_BYTES) as usize);
            let mut piece = &data[at..end];
            if draw.one_in(8) {
                piece = &piece[..draw.below(piece.len() as u64 + 1) as usize];
            }
            let kept = match lean {
                0 => true,
                1 => draw.one_in(8),
                _ => draw.one_in(2),
            };
            if kept {
                put(bytes, start, piece);
            }
            at = end;
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let (from, to) = (offset as usize, offset as usize + data.len());
    if bytes.len() < to {
        bytes.resize(to, 0);
    }
    bytes[from..to].copy_from_slice(data);
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough to choose what a crash keeps.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
