//! A stopped node's data directory, read to its last byte: the log and the snapshots.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{
    disk::{Disk, DiskError, OsDisk},
    json::Json,
    store::snapshot::{
        SnapshotError, SnapshotOwner,
        scrub::{VerifiedFile, in_full, verify_files},
    },
    wal::{self, Damage, Verified, WalError},
};

use crate::cli::failure::Failure;

/// Reads the directory of a stopped node, prints what is there, and fails with everything that is not as it was written.
pub(super) fn verify(path: &Path, as_json: bool) -> Result<(), Failure> {
    let in_use = || format!("{} is in use by a running node, or can't be used; stop the node", path.display());
    // A directory that was copied elsewhere may have none.
    let lock = path.join("lock");
    let _held = lock.is_file().then(|| OsDisk.try_lock(&lock)).transpose().with_context(in_use)?;
    let found = Found::read(&OsDisk, path)?;
    if as_json {
        println!("{}", found.json().to_text());
    } else {
        print!("{}", found.text());
    }
    if found.problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = found.problems.iter().map(Problem::line).collect();
    Err(Failure::Failed(anyhow::anyhow!("{}", lines.join("\nsemel: "))))
}

/// Something that isn't as it was written.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    file: PathBuf,
    offset: u64,
    what: String,
    advice: &'static str,
}

const LOOK_AFTER_THE_DISK: &str = "look after the disk; what can't be read any more is damage";
const NEEDS_A_BACKUP: &str =
    "keep a copy of the directory; in a cluster the node heals from its peers, alone it needs a backup";
const IS_REPLACED: &str = "start the node: it deletes the file and takes another, and nothing is lost";

impl Problem {
    fn line(&self) -> String {
        format!("{} at byte {}: {}; {}", self.file.display(), self.offset, self.what, self.advice)
    }

    fn damage(damage: &Damage) -> Self {
        let Damage { file, offset, what } = damage;
        Self { file: file.clone(), offset: *offset, what: what.text(), advice: what.advice() }
    }

    fn disk(error: &DiskError) -> Self {
        Self { file: error.path.clone(), offset: 0, what: error.to_string(), advice: LOOK_AFTER_THE_DISK }
    }

    fn snapshot(path: &Path, error: &SnapshotError, is_replaced: bool) -> Self {
        let damage_advice = if is_replaced { IS_REPLACED } else { NEEDS_A_BACKUP };
        let (offset, what, advice) = match error {
            SnapshotError::Damaged { offset, damage, .. } => (*offset, damage.to_string(), damage_advice),
            SnapshotError::Disk(error) => return Self::disk(error),
            SnapshotError::UnknownVersion { .. } => {
                (0, in_full(error), "start the version that wrote it, or a newer one")
            }
            SnapshotError::Foreign { .. } => (0, in_full(error), "move it away: it is not this node's"),
            other => (0, in_full(other), damage_advice),
        };
        Self { file: path.to_owned(), offset, what, advice }
    }
}

/// What a data directory holds.
struct Found {
    log: Option<Verified>,
    snapshots: Vec<VerifiedFile>,
    problems: Vec<Problem>,
}

impl Found {
    fn read(disk: &dyn Disk, dir: &Path) -> anyhow::Result<Self> {
        let mut problems = Vec::new();
        let wal_dir = dir.join("wal");
        let log = match wal::verify(disk, &wal_dir) {
            Ok(log) => Some(log),
            Err(WalError::Damaged(damages)) => {
                problems.extend(damages.iter().map(Problem::damage));
                None
            }
            Err(WalError::Disk(error)) => {
                problems.push(Problem::disk(&error));
                None
            }
            Err(error) => return Err(error.into()),
        };
        // Of a damaged log, its newest header still tells whose snapshots these should be.
        let identity = match &log {
            Some(log) => Some(log.identity),
            None => wal::Wal::identity(disk, &wal_dir).ok().flatten(),
        };
        let snapshots = match identity {
            Some(identity) => {
                let owner = SnapshotOwner { lineage: identity.lineage_id.0, cluster: identity.cluster_id.0 };
                verify_files(disk, &dir.join("snapshots"), owner)?
            }
            None => Vec::new(),
        };
        let mut found = Self { log, snapshots, problems };
        found.judge_snapshots(dir);
        Ok(found)
    }

    /// The log begins where a good snapshot ends, or at the beginning.
    fn judge_snapshots(&mut self, dir: &Path) {
        let first = self.log.as_ref().map_or(0, |log| log.first);
        let reaches = |file: &VerifiedFile| file.found.as_ref().is_ok_and(|good| good.meta.index + 1 >= first);
        let is_reached = first == 0 || self.snapshots.iter().any(reaches);
        let is_replaced = is_reached && self.log.is_some();
        for VerifiedFile { path, found } in &self.snapshots {
            if let Err(error) = found {
                self.problems.push(Problem::snapshot(path, error, is_replaced));
            }
        }
        if !is_reached {
            let what = format!("no good snapshot reaches entry {first}, where the log begins");
            let file = dir.join("snapshots");
            self.problems.push(Problem { file, offset: 0, what, advice: NEEDS_A_BACKUP });
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(log) = &self.log {
            let Verified { segments, bytes, first, next, torn_at, .. } = log;
            let _ = writeln!(text, "log: {segments} segments, {bytes} bytes, entries {first}..{next}: whole");
            if let Some(at) = torn_at {
                let _ = writeln!(
                    text,
                    "log: behind byte {at} of the newest segment lies a torn tail, as a crash leaves it; nothing of it is \
                     known to be acknowledged, and the next start copies it aside and cuts it"
                );
            }
        }
        for file in &self.snapshots {
            let path = file.path.display();
            let _ = match &file.found {
                Ok(good) => writeln!(
                    text,
                    "snapshot {path}: entry {}, position {}, {} bytes: whole",
                    good.meta.index, good.meta.position, good.bytes
                ),
                Err(_) => writeln!(text, "snapshot {path}: bad"),
            };
        }
        text
    }

    fn json(&self) -> Json {
        let text = |value: &dyn ToString| Json::String(value.to_string());
        let log = self.log.as_ref().map_or(Json::Null, |log| {
            Json::object(vec![
                ("segments", text(&log.segments)),
                ("bytes", text(&log.bytes)),
                ("first", text(&log.first)),
                ("next", text(&log.next)),
                ("torn_at", log.torn_at.map_or(Json::Null, |at| text(&at))),
            ])
        });
        let good = self.snapshots.iter().filter_map(|file| Some((&file.path, file.found.as_ref().ok()?)));
        let snapshots = good.map(|(path, good)| {
            Json::object(vec![
                ("file", text(&path.display())),
                ("index", text(&good.meta.index)),
                ("position", text(&good.meta.position)),
                ("bytes", text(&good.bytes)),
            ])
        });
        let damage = self.problems.iter().map(|problem| {
            Json::object(vec![
                ("file", text(&problem.file.display())),
                ("offset", text(&problem.offset)),
                ("what", text(&problem.what)),
                ("advice", text(&problem.advice)),
            ])
        });
        Json::object(vec![
            ("log", log),
            ("snapshots", Json::Array(snapshots.collect())),
            ("damage", Json::Array(damage.collect())),
        ])
    }
}

#[cfg(test)]
mod tests;
