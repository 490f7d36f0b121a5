//! What a node does before it takes part: opens the log, makes the store agree with it, and starts the consensus core.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use openraft::Config;

use super::{
    Addresses,
    codec::message::Promise,
    log_store::{LogStore, Progress},
    network::Network,
    roster::Peers,
    running::Running,
    state_machine::{self, StateMachine},
    types::Raft,
    vouch::Unvouched,
};
use crate::{
    clock::Clock,
    config::{NodeLimits, RaftTimes},
    disk::{Disk, DiskError, Space},
    id::NodeId,
    metrics::Metrics,
    net::Net,
    records::{keys::StoreKey, state::State},
    seal::Keychain,
    store::{
        StoreError,
        engine::{EngineCause, EngineError},
        records::{META_MARK, Observer, OpenEngine, Records},
        snapshot::{
            SnapshotError, SnapshotOwner,
            read::SnapshotRows,
            store::{Snapshot, SnapshotStore},
        },
    },
    wal::{self, Identity, Wal, WalError},
};

/// What a node needs to take part in consensus.
#[derive(Clone)]
pub struct Options {
    /// The node's id.
    pub node_id: NodeId,
    /// The data directory: `wal/` and `snapshots/` lie in it.
    pub dir: PathBuf,
    /// The way to log and snapshot files.
    pub disk: Arc<dyn Disk>,
    /// Where engines come from.
    pub engines: Arc<dyn OpenEngine>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Heartbeats and elections.
    pub times: RaftTimes,
    /// Sizes and time-outs.
    pub limits: NodeLimits,
    /// The way to other nodes.
    pub net: Arc<dyn Net>,
    /// Where this node is reached, as it tells others.
    pub addresses: Addresses,
    /// Where its operators' port is, as it tells others.
    pub admin: String,
    /// Where members are reached, whatever the membership says: their ports came from a command line. Whoever leads has the
    /// membership say so too. Empty elsewhere.
    pub known: BTreeMap<NodeId, Addresses>,
    /// Where proposals, the log, flushes and snapshots are counted.
    pub metrics: Arc<Metrics>,
    /// The keys that sealed fields are opened with.
    pub keys: Arc<Keychain>,
    /// Who is shown every entry that is applied, where somebody wants to see.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Why a node can't take part.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log can't be opened.
    #[error("the log can't be opened")]
    Wal(#[from] WalError),
    /// A snapshot can't be used.
    #[error("the snapshots can't be used")]
    Snapshot(#[from] SnapshotError),
    /// The store can't be opened or rebuilt.
    #[error("the store can't be used")]
    Store(#[from] StoreError),
    /// The data directory is another node's.
    #[error(
        "the data directory is that of node {found}, and this is node {expected}: give node {found}'s configuration, or another directory"
    )]
    Node {
        /// The node whose it is.
        found: NodeId,
        /// This node.
        expected: NodeId,
    },
    /// The store holds the records of another cluster.
    #[error("the store in the data directory is of another cluster than its log; remove `store/` to have it rebuilt")]
    ForeignStore,
    /// The store remembers what the log does not.
    #[error(
        "the log has lost acknowledged entries: the store holds entry {applied}, the log ends at {last} and no good snapshot reaches as far; this node must not serve. Restore a backup, or the log's directory"
    )]
    LogLost {
        /// The last entry that the store holds.
        applied: u64,
        /// The last entry of the log, 0 for none.
        last: u64,
    },
    /// Neither the store nor a snapshot reaches the log's first entry.
    #[error(
        "the store is gone or damaged and can't be rebuilt: the log begins at entry {first}, and no good snapshot reaches that far. Restore a backup, or the snapshots' directory"
    )]
    NoSnapshot {
        /// The first entry of the log.
        first: u64,
    },
    /// The disk failed.
    #[error("the data directory can't be used")]
    Disk(#[from] DiskError),
    /// What a broken-off restore has left can't be cleared away.
    #[error("what a broken-off restore has left in the data directory can't be cleared away")]
    Restore(#[from] super::restore::RestoreError),
    /// Something kept by consensus can't be read.
    #[error("what consensus has kept can't be read")]
    Kept(#[source] io::Error),
    /// The consensus core refuses to start.
    #[error("consensus can't start: {reason}")]
    Core {
        /// What it said.
        reason: String,
    },
}

impl StartError {
    /// Whether the disk has lost or changed what was written: what members can heal.
    fn is_damage(&self) -> bool {
        match self {
            StartError::Wal(error) => matches!(error, WalError::Damaged(_)) && !error.is_of_newer_version(),
            StartError::LogLost { .. } | StartError::NoSnapshot { .. } => true,
            _ => false,
        }
    }
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> Self {
        Self::Store(error.into())
    }
}

/// What was found in the data directory.
pub(super) struct Found {
    pub records: Arc<Records>,
    pub promise: Option<Promise>,
    /// A node alone takes part at once.
    pub running: Option<Arc<Running>>,
    /// One of several waits until it is vouched for.
    pub unvouched: Option<(Opened, Unvouched)>,
}

/// Everything below the consensus core, opened and in agreement.
pub(super) struct Opened {
    pub wal: Wal,
    pub log: LogStore,
    pub state: StateMachine,
}

impl Options {
    /// Where the log lies.
    pub(super) fn wal_dir(&self) -> PathBuf {
        self.dir.join("wal")
    }

    /// How the log is laid out.
    pub(super) fn wal_options(&self) -> Result<wal::Options, WalError> {
        let metrics = &self.metrics;
        let measured = wal::Measured {
            syncs: metrics.wal_fsyncs.clone(),
            seconds: metrics.wal_fsync_seconds.clone(),
            bytes: metrics.wal_bytes.clone(),
        };
        Ok(wal::Options::new(self.limits.wal_segment_bytes)?.measured(measured))
    }

    /// Looks at the data directory, and starts what can be started. What a node of a cluster can't go on with is put aside.
    ///
    /// # Errors
    /// What keeps the node from taking part.
    pub(super) async fn found(&self, peers: &Arc<Peers>) -> Result<Found, StartError> {
        let promise = self.read_promise()?;
        let Some(identity) = self.identity()? else {
            return self.found_without_log(promise);
        };
        let (opener, of) = (self.clone(), Arc::clone(peers));
        let opened = super::running::blocking(move || opener.open(identity, None, &of)).await;
        let promised = promise.clone().filter(|promise| promise.cluster_id == identity.cluster_id);
        let opened = match (opened, promised) {
            (Ok(opened), _) => opened,
            (Err(error), Some(promised)) if promised.known.len() > 1 && error.is_damage() => {
                tracing::error!(%error, "this node can't go on with what it keeps");
                let new = self.put_aside_at_start(identity, &promised)?;
                let records = self.shown(Arc::new(Records::open(self.engines.fresh()?)?));
                return Ok(Found { records, promise: Some(new), running: None, unvouched: None });
            }
            (Err(error), _) => return Err(error),
        };
        let records = self.shown(Arc::clone(&opened.state.records));
        let unvouched = opened.unvouched(identity, promise.as_ref()).await?;
        if unvouched.has_others() {
            return Ok(Found { records, promise, running: None, unvouched: Some((opened, unvouched)) });
        }
        let running = Arc::new(Running::begin(self, identity, opened, peers).await?);
        Ok(Found { records, promise, running: Some(running), unvouched: None })
    }

    /// Records whose every entry is shown to whoever wants to see.
    fn shown(&self, records: Arc<Records>) -> Arc<Records> {
        if let Some(observer) = &self.observer {
            records.observe(Arc::clone(observer));
        }
        records
    }

    /// What is found where no log lies. A store that remembers what no log does is a member's that has lost it: it heals.
    fn found_without_log(&self, promise: Option<Promise>) -> Result<Found, StartError> {
        let found = |records, promise| Found { records: self.shown(records), promise, running: None, unvouched: None };
        match &promise {
            // What the store holds is of the disk that was put aside.
            Some(promise) if promise.healing.is_some() => {}
            Some(promised) if promised.known.len() > 1 => match self.unformed_records() {
                Ok(records) => return Ok(found(records, promise)),
                Err(error) if error.is_damage() => {
                    tracing::error!(%error, "this node can't go on with what it keeps");
                    let new = self.put_aside_at_start(promised.identity(), promised)?;
                    return Ok(found(Arc::new(Records::open(self.engines.fresh()?)?), Some(new)));
                }
                Err(error) => return Err(error),
            },
            _ => return Ok(found(self.unformed_records()?, promise)),
        }
        Ok(found(Arc::new(Records::open(self.engines.fresh()?)?), promise))
    }

    /// Whose log lies here, if there is one. A log of another node is refused.
    ///
    /// # Errors
    /// [`StartError::Node`]; the disk's.
    pub(super) fn identity(&self) -> Result<Option<Identity>, StartError> {
        let identity = match Wal::identity(&*self.disk, &self.wal_dir()) {
            // No directory is no log.
            Err(WalError::Disk(error)) if error.is_not_found() => None,
            identity => identity?,
        };
        match identity {
            Some(Identity { node_id: found, .. }) if found != self.node_id => {
                Err(StartError::Node { found, expected: self.node_id })
            }
            identity => Ok(identity),
        }
    }

    /// The empty records of a node that is in no cluster yet. Where the store holds some, the log is missing.
    ///
    /// # Errors
    /// [`StartError::LogLost`]; the store's.
    pub(super) fn unformed_records(&self) -> Result<Arc<Records>, StartError> {
        let records = Records::open(self.engines.open()?)?;
        match state_machine::applied(&records.mark()) {
            Some(applied) => Err(StartError::LogLost { applied: applied.index, last: 0 }),
            None => Ok(Arc::new(records)),
        }
    }

    /// Opens log, snapshots and store, and makes the store agree with the log. Where the log was just created, `empty` is
    /// what the node has held so far. Blocks on the disk.
    ///
    /// # Errors
    /// What keeps this node from taking part.
    pub(super) fn open(
        &self,
        identity: Identity,
        empty: Option<Arc<Records>>,
        peers: &Peers,
    ) -> Result<Opened, StartError> {
        let (wal, recovered) = Wal::open(Arc::clone(&self.disk), &self.wal_dir(), identity, &self.wal_options()?)?;
        if let Some(torn) = &recovered.torn {
            tracing::warn!(?torn, "the end of the log was torn and has been cut");
        }
        let owner = SnapshotOwner { lineage: identity.lineage_id.0, cluster: identity.cluster_id.0 };
        let snapshots = SnapshotStore::open(Arc::clone(&self.disk), self.dir.join("snapshots"), owner, [])?;
        let progress = Arc::new(Progress::default());
        peers.roster.recovered(&recovered.peer_marks);
        let log = LogStore::open(wal.clone(), &recovered, Arc::clone(&progress)).map_err(StartError::Kept)?;
        let records = match empty {
            Some(records) => {
                self.fill(&records, &log, &snapshots)?;
                records
            }
            None => Arc::new(self.agreeing_records(&log, &snapshots, identity)?),
        };
        if let Some(applied) = state_machine::applied(&records.mark()) {
            progress.set_applied(applied.index);
        }
        progress.set_applied_time(records.read().globals().time);
        records.follow(log.durable());
        progress.found(self.log_bytes_above(&snapshots, &log)?);
        let space = Space::new(Arc::clone(&self.disk), &self.dir, self.limits.disk_reserve_bytes());
        space.look();
        let state = StateMachine {
            records,
            engines: Arc::clone(&self.engines),
            snapshots: Arc::new(snapshots),
            owner,
            disk: Arc::clone(&self.disk),
            progress,
            metrics: Arc::clone(&self.metrics),
            space: Arc::new(space),
            prepared: Arc::default(),
        };
        state.records.mind_room(Arc::clone(&state.space), Arc::clone(&self.engines));
        Ok(Opened { wal, log, state })
    }

    /// A log that was just created and begins behind a snapshot is that of a restore: its state is what the snapshot holds.
    fn fill(&self, records: &Records, log: &LogStore, snapshots: &SnapshotStore) -> Result<(), StartError> {
        let Some(first) = log.purged().map(|purged| purged.index + 1) else { return Ok(()) };
        let snapshot = snapshots.newest_verified()?.ok_or(StartError::NoSnapshot { first })?;
        let engine = self.engines.fresh()?;
        let rows = SnapshotRows::open(&*self.disk, &snapshot.path)?;
        let mut rows = rows.map(|row| row.map_err(|error| EngineError::Source(EngineCause::new(error))));
        records.install(engine, &mut rows)?;
        Ok(self.engines.adopt()?)
    }

    /// The store as found, where the log goes on from it; else one rebuilt from the newest good snapshot, or empty where
    /// the log goes back to the beginning.
    fn agreeing_records(
        &self,
        log: &LogStore,
        snapshots: &SnapshotStore,
        identity: Identity,
    ) -> Result<Records, StartError> {
        let first = log.purged().map_or(0, |purged| purged.index + 1);
        let (engine, found) = match self.engines.open() {
            Ok(engine) => (Some(Arc::clone(&engine)), Records::open(engine)),
            Err(error @ (EngineError::Locked { .. } | EngineError::Directory(_))) => return Err(error.into()),
            Err(error) => (None, Err(error.into())),
        };
        match found {
            Ok(records) => {
                let applied = state_machine::applied(&records.mark());
                let formed = records.read().globals().formed.clone();
                if formed.is_some_and(|formed| formed.lineage_id != identity.lineage_id) {
                    return Err(StartError::ForeignStore);
                }
                let saved = snapshots.newest_verified()?.map(|snapshot| snapshot.meta.index);
                if applied > log.last() && applied.map(|id| id.index) > saved {
                    let (applied, last) = (applied.map_or(0, |id| id.index), log.last().map_or(0, |id| id.index));
                    return Err(StartError::LogLost { applied, last });
                }
                if applied.map_or(0, |id| id.index + 1) >= first {
                    return Ok(records);
                }
                tracing::warn!(first, "the store is older than the log's first entry and is rebuilt");
            }
            Err(error) => tracing::warn!(%error, "the store is damaged and is rebuilt"),
        }
        let rebuilt = self.rebuilt(first, snapshots)?;
        if let Some(engine) = engine {
            engine.retire();
        }
        Ok(rebuilt)
    }

    fn rebuilt(&self, first: u64, snapshots: &SnapshotStore) -> Result<Records, StartError> {
        let whole_key = StoreKey::Meta(META_MARK.into()).encode();
        loop {
            let engine = self.engines.fresh()?;
            let Some(snapshot) = snapshots.newest_verified()? else {
                if first > 0 {
                    return Err(StartError::NoSnapshot { first });
                }
                self.engines.adopt()?;
                return Ok(Records::open(engine)?);
            };
            if snapshot.meta.index + 1 < first {
                return Err(StartError::NoSnapshot { first });
            }
            match snapshots.load(&snapshot, &*engine, &whole_key, []) {
                Ok(rows) => {
                    tracing::info!(rows, index = snapshot.meta.index, "the store was rebuilt from a snapshot");
                    self.engines.adopt()?;
                    return Ok(Records::open(engine)?);
                }
                // It was good when it was read a moment ago. The next newest is tried.
                Err(SnapshotError::Damaged { .. }) => engine.retire(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes of the log above the newest snapshot, about: its files' bytes, by the share of its entries.
    fn log_bytes_above(&self, snapshots: &SnapshotStore, log: &LogStore) -> Result<u64, StartError> {
        let (dir, first) = (self.wal_dir(), log.purged().map_or(0, |id| id.index + 1));
        let entries = log.last().map_or(0, |id| id.index + 1).saturating_sub(first);
        let snapshot = snapshots.newest_verified()?.map_or(0, |Snapshot { meta, .. }| meta.index + 1);
        let above = entries.saturating_sub(snapshot.saturating_sub(first));
        let files = self.disk.list(&dir).map_err(WalError::from)?.len() as u64;
        // Of the files, one at least is ahead of use and one is being filled.
        let bytes = u128::from(files.saturating_sub(2) * self.limits.wal_segment_bytes);
        Ok(u64::try_from(bytes * u128::from(above) / u128::from(entries.max(1))).unwrap_or(u64::MAX))
    }

    /// Starts the consensus core.
    ///
    /// # Errors
    /// [`StartError::Core`].
    pub(super) async fn core(
        &self,
        opened: &Opened,
        identity: Identity,
        peers: &Arc<Peers>,
    ) -> Result<Raft, StartError> {
        let ms = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let heartbeat = ms(self.times.heartbeat);
        // The core waits for the leader's lease, which is as long as its longest time-out, and then for a time-out: both
        // together are what is configured.
        let longest = (ms(self.times.election_max) / 2).max(heartbeat + 2);
        let shortest = ms(self.times.election_min).saturating_sub(longest).max(longest / 4).max(heartbeat + 1);
        let config = Config {
            cluster_name: "semel".to_owned(),
            heartbeat_interval: heartbeat,
            election_timeout_min: shortest.min(longest - 1),
            election_timeout_max: longest,
            // Both are ours: see `compaction`.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            heartbeat_min_interval: Some(0),
            enable_pre_vote: Some(true),
            // An old leader that reaches nobody falls silent now and then, so that the others can elect.
            quorum_loss_probe_interval: Some(2 * ms(self.times.election_max)),
            allow_log_reversion: Some(false),
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        let core = |error: &dyn std::fmt::Display| StartError::Core { reason: error.to_string() };
        let config = Arc::new(config.validate().map_err(|error| core(&error))?);
        let (peers, log, election_max) = (Arc::clone(peers), opened.log.clone(), self.times.election_max);
        let network = Network { peers, identity, election_max, log };
        Raft::new(self.node_id, config, network, opened.log.clone(), opened.state.clone())
            .await
            .map_err(|error| core(&error))
    }
}
