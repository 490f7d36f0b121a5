//! The state of a stopped node at a position: the newest good snapshot below it, and the committed log on top, applied as
//! the node itself would. Nothing in the data directory is changed.

use std::{io, path::Path, sync::Arc};

use super::{
    codec,
    state_machine::stored_membership,
    types::{LogEntry, Membership, Payload, StoredMembership},
};
use crate::{
    disk::Disk,
    id::{NodeId, Position},
    limits,
    records::{
        command::{Command, Entry},
        state::State,
    },
    store::{
        StoreError,
        engine::{Engine, EngineCause, EngineError},
        records::{self, Mark, Records},
        snapshot::{SnapshotError, read::SnapshotRows, store::found},
    },
    wal::{Wal, WalError, WalView},
};

/// Why there is no such state.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The directory holds no log.
    #[error("there is no log: this is not the data directory of a node that was in a cluster")]
    NoLog,
    /// The log can't be read.
    #[error("the log can't be read")]
    Wal(#[from] WalError),
    /// The snapshots can't be read.
    #[error("the snapshots can't be read")]
    Snapshot(#[from] SnapshotError),
    /// The state can't be built.
    #[error("the state can't be built")]
    Store(#[from] StoreError),
    /// An entry can't be read.
    #[error("the log holds what can't be read")]
    Entry(#[source] io::Error),
    /// What led to the position is gone.
    #[error("position {position} was purged: the log begins at entry {first}, and no good snapshot is as old")]
    Purged {
        /// The position.
        position: Position,
        /// The first entry of the log.
        first: u64,
    },
    /// The log goes on behind the newest good snapshot, with a gap.
    #[error("the log begins at entry {first}, and no good snapshot reaches that far")]
    NoSnapshot {
        /// The first entry of the log.
        first: u64,
    },
    /// Nobody can say yet what stands at the position.
    #[error("position {position} is not known to be committed here: the highest that is known is {highest}")]
    NotCommitted {
        /// The position.
        position: Position,
        /// The highest known one.
        highest: Position,
    },
    /// A restore went on far above the position.
    #[error("no state has position {position}: a restore went on above it")]
    Skipped {
        /// The position.
        position: Position,
    },
}

impl From<EngineError> for ReplayError {
    fn from(error: EngineError) -> Self {
        Self::Store(error.into())
    }
}

/// Makes an empty engine for a state of about so many bytes.
pub type MakeEngine<'a> = &'a dyn Fn(u64) -> Result<Arc<dyn Engine>, EngineError>;

/// The state of the stopped node whose data directory is `dir`: at `position`, or at the highest one that is known to be
/// committed. What is known: the entries up to `applied` (what the node's store holds), those in a snapshot, and all durable
/// ones where the node is the only voter.
///
/// # Errors
/// [`ReplayError`], also where the position was purged.
pub fn state_at(
    disk: &dyn Disk,
    dir: &Path,
    position: Option<Position>,
    applied: Option<u64>,
    engine: MakeEngine<'_>,
) -> Result<Records, ReplayError> {
    let (wal, snapshots) = (dir.join("wal"), dir.join("snapshots"));
    let identity = match Wal::identity(disk, &wal) {
        Err(WalError::Disk(error)) if error.is_not_found() => None,
        identity => identity?,
    };
    let identity = identity.ok_or(ReplayError::NoLog)?;
    let log = WalView::open(disk, &wal, identity)?;
    let first = log.recovered().purged.as_ref().map_or(0, |purged| purged.index + 1);
    let files = found(disk, &snapshots)?;
    let known = files.iter().map(|(index, _)| *index).chain(applied).max();
    let base = base(disk, &files, position, log.recovered().next.saturating_sub(first), engine)?;
    let next = state_next(&base);
    if next < first {
        return Err(match position {
            Some(position) => ReplayError::Purged { position, first },
            None => ReplayError::NoSnapshot { first },
        });
    }
    Replay { log, node_id: identity.node_id, known, wanted: position, records: base }.run(next)
}

fn state_next(records: &Records) -> u64 {
    super::state_machine::applied(&records.mark()).map_or(0, |id| id.index + 1)
}

/// The newest good snapshot that is not above the position; else the empty state.
fn base(
    disk: &dyn Disk,
    files: &[(u64, std::path::PathBuf)],
    position: Option<Position>,
    entries: u64,
    engine: MakeEngine<'_>,
) -> Result<Records, ReplayError> {
    let log_bytes = entries.saturating_mul(limits::REPLAYED_ENTRY_BYTES);
    for (_, path) in files {
        let mut rows = match SnapshotRows::open(disk, path) {
            Err(SnapshotError::Damaged { .. }) => continue,
            rows => rows?,
        };
        if position.is_some_and(|position| rows.meta().position > position.0) {
            continue;
        }
        let engine = engine(log_bytes.saturating_add(rows.bytes()))?;
        let mut damaged = false;
        let mut rows = std::iter::from_fn(|| {
            rows.next().map(|row| {
                row.map_err(|error| {
                    damaged |= matches!(error, SnapshotError::Damaged { .. });
                    EngineError::Source(EngineCause::new(error))
                })
            })
        });
        // Rows come before the proof that the file is whole: the state counts only with the last of them.
        match records::loaded(Arc::clone(&engine), &mut rows) {
            Ok(records) => return Ok(records),
            Err(error) if damaged => {
                tracing::warn!(path = %path.display(), %error, "a damaged snapshot is passed over");
                engine.retire();
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Records::open(engine(log_bytes)?)?)
}

struct Replay {
    log: WalView,
    node_id: NodeId,
    /// The last entry that is known to be committed whoever votes.
    known: Option<u64>,
    wanted: Option<Position>,
    records: Records,
}

impl Replay {
    fn run(self, mut next: u64) -> Result<Records, ReplayError> {
        let end = self.log.recovered().next;
        let mark = stored_membership(&self.records.mark().membership).map_err(ReplayError::Entry)?;
        let mut members = mark.membership().clone();
        while next < end && !self.is_there() {
            let entries = self.log.read(next..end, limits::LOG_READ_BYTES_MAX)?;
            for entry in entries {
                let entry = codec::decode_entry(entry.index, entry.term, &entry.payload);
                let entry = entry.map_err(|error| ReplayError::Entry(io::Error::other(error)))?;
                if self.is_there() || !self.is_committed(&entry, &members) {
                    return self.ended();
                }
                self.apply(&entry, &mut members)?;
                next = entry.log_id.index + 1;
            }
        }
        self.ended()
    }

    fn position(&self) -> Position {
        self.records.read().globals().position
    }

    fn is_there(&self) -> bool {
        self.wanted.is_some_and(|wanted| self.position() >= wanted)
    }

    /// Of one voter alone, what is durable is committed. The first membership is so by itself.
    fn is_committed(&self, entry: &LogEntry, members: &Membership) -> bool {
        let alone = |members: &Membership| members.voter_ids().all(|node| node == self.node_id);
        let is_known = self.known.is_some_and(|known| entry.log_id.index <= known);
        is_known
            || match &entry.payload {
                Payload::Membership(next) => alone(members) && alone(next),
                Payload::Blank | Payload::Normal(_) => members.voter_ids().next().is_some() && alone(members),
            }
    }

    fn ended(self) -> Result<Records, ReplayError> {
        let highest = self.position();
        match self.wanted {
            Some(position) if highest < position => Err(ReplayError::NotCommitted { position, highest }),
            Some(position) if highest > position => Err(ReplayError::Skipped { position }),
            _ => Ok(self.records),
        }
    }

    fn apply(&self, entry: &LogEntry, members: &mut Membership) -> Result<(), ReplayError> {
        let id = entry.log_id;
        let mut membership = self.records.mark().membership;
        if let Payload::Membership(next) = &entry.payload {
            *members = next.clone();
            membership = codec::encode_stored_membership(&StoredMembership::new(Some(id), next.clone()));
        }
        if membership.is_empty() {
            membership = codec::encode_stored_membership(&StoredMembership::default());
        }
        let mark = Mark { index: id.index, term: id.leader_id.term, node: id.leader_id.node_id, membership };
        match &entry.payload {
            Payload::Blank | Payload::Membership(_) => self.records.apply(mark, None),
            Payload::Normal(proposal) => {
                let taken = self.taken(&proposal.entry)?;
                match taken < proposal.entry.commands.len() {
                    true => self.records.apply(mark, Some(&first_commands(&proposal.entry, taken))),
                    false => self.records.apply(mark, Some(&proposal.entry)),
                }
            }
        };
        if !self.records.has_room() {
            self.records.flush()?;
        }
        Ok(())
    }

    /// How many of the entry's commands are to be applied: all, or those up to the wanted position. The first position of
    /// an entry is its sweep's, each command has one after it, and a restore goes on at its own.
    fn taken(&self, entry: &Entry) -> Result<usize, ReplayError> {
        let all = entry.commands.len();
        let Some(wanted) = self.wanted else { return Ok(all) };
        let sweep = self.position().0 + 1;
        let within = usize::try_from(wanted.0.saturating_sub(sweep)).unwrap_or(usize::MAX);
        let restored = entry.commands.iter().enumerate().find_map(|(at, command)| match &**command {
            Command::Restored(restored) => Some((at, restored.first_position)),
            _ => None,
        });
        match restored {
            Some((at, first_position)) if within > at && wanted < first_position => {
                Err(ReplayError::Skipped { position: wanted })
            }
            // Behind the restore, commands are counted from its position on.
            Some((at, first_position)) if within > at => {
                let behind = usize::try_from(wanted.0 - first_position.0).unwrap_or(usize::MAX);
                Ok(all.min(behind.saturating_add(at + 1)))
            }
            _ => Ok(all.min(within)),
        }
    }
}

fn first_commands(entry: &Entry, count: usize) -> Entry {
    Entry { time: entry.time, commands: entry.commands[..count].to_vec() }
}
