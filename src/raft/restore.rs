//! How a cluster comes to be from a backup: a snapshot file and a log that goes on from it, laid out as a node that has run
//! for long would hold them. The first entry behind the snapshot is the restore's first command: nothing that anybody asks
//! for can be applied before it.
//!
//! # Invariants
//!
//! - T1. The directory becomes a node's with one rename, that of its log, and everything else was durable before it. Broken
//!   off earlier, it is a node's that is in no cluster, and the next attempt or start clears away what is left.
//! - T2. Only what the marker `restoring/begun` says is of such an attempt is ever cleared away.
//! - T3. No node leads that holds the restored state and not the first command: a member to which the snapshot was sent, and
//!   the log behind it not yet, asks nobody for a vote. Were two of them to elect one, the command would be undone before it
//!   was decided, and the cluster would go on as if nothing had been lost.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Addresses, Consensus, FormError, Forming,
    codec::{self, message::NodeState},
    forming::{Adopted, Plan, founders, joined},
    log_store::LogStore,
    running::{Running, blocking},
    start::StartError,
    types::{LeaderId, LogEntry, LogId, Member, Membership, Payload, Proposal, StoredMembership, Vote, log_id},
};
use crate::{
    disk::{Disk, DiskError, Mode},
    id::{ClusterId, LineageId, NodeId, Position, Time},
    limits,
    records::{
        command::{Command, DoubtEnded, Entry, Restored, Sealed},
        keys::StoreKey,
        state::{Globals, State},
    },
    refusal::{Code, Refusal},
    store::{
        engine::{EngineError, Row},
        records::{META_MARK, Mark},
        snapshot::{SnapshotError, SnapshotMeta, SnapshotOwner, store::SnapshotStore},
    },
    wal::{self, Identity, Parts, Purged, Step, Wal, WalError},
};

/// The log entry that the restored state stands for: everything in the state came before it.
const BASE_INDEX: u64 = 1;
/// Its term, in which the restoring node leads.
const BASE_TERM: u64 = 1;
/// Bits of a position below the milliseconds of a restore.
const POSITION_BITS: u32 = 20;

/// Why a backup can't become a node's state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The directory is a node's already.
    #[error("the data directory holds a node already; a backup is restored into an empty one")]
    Occupied,
    /// The state was never formed.
    #[error("the backup holds no cluster")]
    Unformed,
    /// The clock is behind.
    #[error(
        "this machine's clock is behind: a restore at {} would go on from position {first_position}, and the backup needs {least} at least",
        at.text()
    )]
    ClockBehind {
        /// The time it shows.
        at: Time,
        /// The position that it makes.
        first_position: Position,
        /// The lowest position there may be.
        least: Position,
    },
    /// Nothing is missing only where nothing could be written any more.
    #[error("the backup was not made with --final: operations may be missing in it, so the gap can't be ruled out")]
    NotFinal,
    /// The gap ends before the backup.
    #[error("the gap ends before the backup was made, at {}", cluster_time.text())]
    GapEndsEarly {
        /// The backup's cluster time.
        cluster_time: Time,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The log can't be made.
    #[error("the log can't be made")]
    Wal(#[from] WalError),
    /// The snapshot can't be made.
    #[error("the snapshot can't be made")]
    Snapshot(#[from] SnapshotError),
}

/// What is known of the time between the backup and the old cluster's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Nothing: the doubt lasts until somebody ends it.
    Unknown,
    /// The old cluster was surely dead then.
    EndedBy(Time),
    /// There is none: its writes had ended when the backup was made.
    None,
}

/// The first command of a restored cluster, made for one backup.
#[derive(Clone, Debug)]
pub struct FirstCommand {
    time: Time,
    first_position: Position,
    gap: Gap,
    actor: Sealed,
}

impl FirstCommand {
    /// The first command of what is restored now, at `wall`.
    ///
    /// # Errors
    /// Where `gap` or the clock doesn't fit the backup, whose small state is `globals`.
    pub fn new(globals: &Globals, is_final: bool, wall: Time, gap: Gap, actor: Sealed) -> Result<Self, RestoreError> {
        let formed = globals.formed.as_ref().ok_or(RestoreError::Unformed)?;
        match gap {
            Gap::None if !is_final => return Err(RestoreError::NotFinal),
            Gap::EndedBy(end) if end < globals.time => {
                return Err(RestoreError::GapEndsEarly { cluster_time: globals.time });
            }
            _ => {}
        }
        // Far beyond what a clock can show: the end of positions.
        let first_position = Position(wall.0.checked_shl(POSITION_BITS).filter(|_| wall.0 >> 44 == 0).unwrap_or(0));
        // The entry's sweep and the command itself come first.
        let least = globals.position.0.saturating_add(2).saturating_add(formed.limits.restore_position_gap);
        if first_position.0 < least {
            return Err(RestoreError::ClockBehind { at: wall, first_position, least: Position(least) });
        }
        Ok(Self { time: wall, first_position, gap, actor })
    }

    /// Every fence below it is stale in the restored cluster.
    pub fn first_position(&self) -> Position {
        self.first_position
    }

    fn entry(self, identity: &Identity) -> Entry {
        let restored = Restored {
            cluster_id: identity.cluster_id,
            first_position: self.first_position,
            gap_end: match self.gap {
                Gap::EndedBy(end) => Some(end),
                Gap::Unknown | Gap::None => None,
            },
            actor: self.actor.clone(),
        };
        let mut commands = vec![Arc::new(Command::Restored(Box::new(restored)))];
        if self.gap == Gap::None {
            commands.push(Arc::new(Command::DoubtEnded(DoubtEnded { actor: self.actor })));
        }
        Entry { time: self.time, commands }
    }
}

/// The places of a restore in a data directory.
struct Places {
    dir: PathBuf,
}

impl Places {
    fn staging(&self) -> PathBuf {
        self.dir.join("restoring")
    }

    fn marker(&self) -> PathBuf {
        self.staging().join("begun")
    }

    fn staged_wal(&self) -> PathBuf {
        self.staging().join("wal")
    }

    fn staged_snapshots(&self) -> PathBuf {
        self.staging().join("snapshots")
    }

    fn wal(&self) -> PathBuf {
        self.dir.join("wal")
    }

    fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }
}

fn listed(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, DiskError> {
    match disk.list(dir) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        names => names,
    }
}

fn has_log(disk: &dyn Disk, dir: &Path) -> Result<bool, RestoreError> {
    match Wal::identity(disk, dir) {
        Err(WalError::Disk(error)) if error.is_not_found() => Ok(false),
        identity => Ok(identity?.is_some()),
    }
}

/// Where a backup that is on its way into this data directory is put. Cleared away with everything else of its attempt.
pub fn incoming(dir: &Path) -> PathBuf {
    Places { dir: dir.to_owned() }.staging().join("incoming")
}

/// Marks the directory as one in which a restore is under way, after clearing away what an earlier one has left.
///
/// # Errors
/// [`RestoreError::Occupied`]; the disk's.
pub fn begin(disk: &dyn Disk, dir: &Path) -> Result<(), RestoreError> {
    let places = Places { dir: dir.to_owned() };
    clear(disk, dir)?;
    if !listed(disk, &places.wal())?.is_empty() || !listed(disk, &places.snapshots())?.is_empty() {
        return Err(RestoreError::Occupied);
    }
    disk.create_dir_all(&places.staging())?;
    disk.open(&places.marker(), Mode::CreateNew)?.sync_data()?;
    Ok(disk.sync_dir(&places.staging())?)
}

/// Clears away what a restore that was broken off has left (T2); of one that was finished, its marker alone.
///
/// # Errors
/// The disk's.
pub fn clear(disk: &dyn Disk, dir: &Path) -> Result<(), RestoreError> {
    let places = Places { dir: dir.to_owned() };
    let marker = places.marker();
    if !listed(disk, &places.staging())?.iter().any(|name| marker.ends_with(name)) {
        return Ok(());
    }
    let mut doomed = vec![places.staged_wal(), places.staged_snapshots()];
    if !has_log(disk, &places.wal())? {
        doomed.push(places.snapshots());
    }
    for dir in doomed {
        for name in listed(disk, &dir)? {
            disk.remove(&dir.join(name))?;
        }
    }
    // The marker last: until then all of it is known to be left over.
    for name in listed(disk, &places.staging())?.iter().filter(|name| !marker.ends_with(name)) {
        disk.remove(&places.staging().join(name))?;
    }
    disk.remove(&marker)?;
    Ok(disk.sync_dir(&places.staging())?)
}

/// Whether a log that ends here holds nothing but what a restore has laid out.
pub(super) fn is_laid_out(last: &LogId) -> bool {
    last.leader_id.term == BASE_TERM && last.index == BASE_INDEX + 1
}

/// Whether a node whose last entry is this one, by its log or by a snapshot, has a restored state without its first command
/// (T3): then it has no entry of that index, which one of a cluster that is just forming has.
pub(super) fn is_without_first_command(last: Option<LogId>, log: &LogStore) -> bool {
    let is_base = |id: LogId| id.leader_id.term == BASE_TERM && id.index == BASE_INDEX;
    last.is_some_and(is_base) && (log.last() < last || log.purged() == last)
}

/// What a restored node is.
pub struct Restoring {
    /// Whose log it will be.
    pub identity: Identity,
    /// The members of the new cluster, this node among them.
    pub members: BTreeMap<NodeId, Member>,
    /// The backup's small state.
    pub globals: Globals,
    /// The first command.
    pub first: FirstCommand,
}

/// Lays out the data directory `dir`, in which [`begin`] was called, with the rows of a backup. Afterwards it is that of a
/// node which has been in the new cluster from its beginning, and starts as any other (T1).
///
/// # Errors
/// The rows', the disk's. The directory is then still one of a node in no cluster.
pub fn lay_out(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    layout: &wal::Options,
    restoring: Restoring,
    rows: &mut dyn Iterator<Item = Result<Row, EngineError>>,
) -> Result<(), RestoreError> {
    let places = Places { dir: dir.to_owned() };
    let Restoring { identity, members, globals, first } = restoring;
    let base = log_id(BASE_TERM, identity.node_id, BASE_INDEX);
    let voters = members.keys().copied().collect();
    let membership = Membership::new(vec![voters], members).map_err(|_| RestoreError::Unformed)?;
    let membership = codec::encode_stored_membership(&StoredMembership::new(Some(base), membership));
    let mark = Mark { index: BASE_INDEX, term: BASE_TERM, node: identity.node_id, membership: membership.clone() };
    let meta = SnapshotMeta {
        lineage: identity.lineage_id.0,
        cluster: identity.cluster_id.0,
        index: BASE_INDEX,
        term: BASE_TERM,
        position: globals.position.0,
        cluster_time_ms: globals.time.0,
        log_id: codec::encode_log_id(&base),
        membership,
    };
    let owner = SnapshotOwner { lineage: meta.lineage, cluster: meta.cluster };
    let snapshots = SnapshotStore::open(Arc::clone(disk), places.staged_snapshots(), owner, [])?;
    snapshots.build_of(&meta, &mut with_mark(mark.encode(), rows))?;
    write_log(disk, &places.staged_wal(), layout, identity, base, first.entry(&identity))?;
    disk.rename(&places.staged_snapshots(), &places.snapshots())?;
    disk.sync_dir(&places.dir)?;
    disk.rename(&places.staged_wal(), &places.wal())?;
    disk.sync_dir(&places.dir)?;
    // What is left is a marker that the next start would remove.
    clear(&**disk, dir)
}

/// The rows with the mark in its place among them.
fn with_mark(
    mark: Bytes,
    rows: &mut dyn Iterator<Item = Result<Row, EngineError>>,
) -> impl Iterator<Item = Result<Row, EngineError>> {
    let key = Bytes::from(StoreKey::Meta(META_MARK.into()).encode());
    let mut mark = Some((key, mark));
    let mut waiting = None;
    std::iter::from_fn(move || {
        if let Some(row) = waiting.take() {
            return Some(row);
        }
        let next = rows.next();
        let is_behind = match &next {
            Some(Ok((key, _))) => mark.as_ref().is_some_and(|(own, _)| key > own),
            Some(Err(_)) => false,
            None => true,
        };
        match is_behind.then(|| mark.take()).flatten() {
            Some(mark) => {
                waiting = next;
                Some(Ok(mark))
            }
            None => next,
        }
    })
}

/// A log that was purged up to `base`, voted for its own node in that term, and holds one entry.
fn write_log(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    layout: &wal::Options,
    identity: Identity,
    base: LogId,
    entry: Entry,
) -> Result<(), RestoreError> {
    let Parts { wal, mut writer, .. } = Wal::create_parts(Arc::clone(disk), dir, identity, layout)?;
    let (sender, written) = mpsc::channel();
    let told = || {
        let sender = sender.clone();
        move |result| {
            // Whoever waits for it is below.
            let _ = sender.send(result);
        }
    };
    let leader_id = LeaderId { term: BASE_TERM, node_id: identity.node_id };
    wal.save_vote_then(codec::encode_vote(&Vote { leader_id, committed: true }), told());
    let purged = Purged { index: base.index, term: BASE_TERM, payload: codec::encode_log_id(&base) };
    wal.purge(purged, told());
    let log_id = log_id(BASE_TERM, identity.node_id, base.index + 1);
    let entry = LogEntry { log_id, payload: Payload::Normal(Proposal::new(entry)) };
    wal.append(vec![super::log_store::frame(&entry)], told());
    while writer.step() == Step::Again {}
    // The writer's last act is to write down that all of it was acknowledged.
    writer.seal();
    drop((writer, sender));
    let mut durable = 0;
    for result in written {
        result?;
        durable += 1;
    }
    if durable < 3 { Err(WalError::Closed.into()) } else { Ok(()) }
}

/// A backup that was read to its end, on its way into a node.
pub struct Incoming<R> {
    /// The id of the new cluster.
    pub cluster_id: ClusterId,
    /// The backup's small state.
    pub globals: Globals,
    /// The first command.
    pub first: FirstCommand,
    /// The backup's rows, in key order.
    pub rows: R,
}

impl Consensus {
    /// The cluster that an earlier restore into this node has formed, if it was to be of exactly these members: its id, its
    /// lineage, and the first position. Returns once its first command is applied here.
    ///
    /// # Errors
    /// `wrong_state` where what this node is in came to be otherwise; `unavailable` where that can't be told yet.
    pub async fn restored(
        &self,
        members: &BTreeMap<NodeId, Addresses>,
    ) -> Result<(ClusterId, LineageId, Position), Refusal> {
        let other = || Refusal::new(Code::WrongState, "this node is in a cluster; a backup is restored into a new one");
        let promise = self.shared.standing.lock().promise.clone();
        let is_it = promise.is_some_and(|promise| promise.founders == founders(members));
        if !is_it {
            return Err(other());
        }
        self.read_barrier().await?;
        let records = self.records();
        let globals = records.read().globals().clone();
        let formed = globals.formed.ok_or_else(other)?;
        match globals.fence_floor {
            Position(0) => Err(other()),
            first_position => Ok((formed.cluster_id, formed.lineage_id, first_position)),
        }
    }

    /// Forms a cluster of these members, of which this node is one, from a backup, and returns once its first command is
    /// applied here. [`begin`] was called in this node's directory. Where it breaks off before the log is begun, every node is
    /// in no cluster, as before, or promised to this one: then the same call goes on.
    ///
    /// # Errors
    /// Those of [`Consensus::init`], and [`FormError::OtherMembers`] where this node is in a cluster; the rows'.
    pub async fn init_restored<R>(
        &self,
        members: BTreeMap<NodeId, Addresses>,
        incoming: Incoming<R>,
    ) -> Result<Forming, FormError>
    where
        R: Iterator<Item = Result<Row, EngineError>> + Send + 'static,
    {
        let shared = &self.shared;
        let _alone = shared.forming.lock().await;
        let options = &shared.options;
        let Incoming { cluster_id, globals, first, mut rows } = incoming;
        let lineage_id = globals.formed.as_ref().ok_or(RestoreError::Unformed)?.lineage_id;
        let founders = founders(&members);
        if !members.contains_key(&options.node_id) {
            return Err(FormError::NotNamed { node_id: options.node_id });
        }
        if members.len() > limits::MEMBERS_MAX {
            return Err(FormError::TooMany { members: members.len() });
        }
        if shared.running.load().is_some() {
            return Err(FormError::OtherMembers);
        }
        if shared.state() == NodeState::WaitingForReplace {
            return Err(FormError::WaitingForReplace);
        }
        let hellos = shared.ask_founders(&founders).await?;
        let plan = match shared.adopted(&founders, &hellos)? {
            Adopted::Free => Plan { lineage_id, cluster_id, founders },
            // An earlier attempt broke off behind its promises.
            Adopted::Promised(lineage, cluster_id) if lineage == lineage_id => {
                Plan { lineage_id, cluster_id, founders }
            }
            Adopted::Promised(..) | Adopted::Formed(_) => return Err(FormError::OtherMembers),
        };
        let disks = shared.collect_promises(&plan).await?;
        let disk_id = *disks.get(&options.node_id).expect("every founder has promised");
        let cluster_id = plan.cluster_id;
        let identity = Identity { lineage_id, cluster_id, node_id: options.node_id, disk_id };
        let restoring = Restoring { identity, members: joined(&plan.founders, &disks), globals, first };
        let (disk, dir) = (Arc::clone(&options.disk), options.dir.clone());
        let layout = options.wal_options().map_err(StartError::from)?;
        blocking(move || lay_out(&disk, &dir, &layout, restoring, &mut rows)).await?;
        let running = Running::start(options, identity, Some(Arc::clone(&shared.records)), &shared.peers).await?;
        shared.running.store(Some(Arc::new(running)));
        // The restore's first command stands in the log in front of everything that anybody can lead. A quorum needs the
        // whole state first, however large it is.
        let until = Instant::now() + Duration::from_millis(limits::RESTORE_SETTLED_MS);
        while let Err(refusal) = self.read_barrier().await {
            if Instant::now() > until {
                return Err(FormError::Refused(refusal));
            }
            tokio::time::sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await;
        }
        Ok(Forming { cluster_id, created: true })
    }
}
