//! The state machine as the consensus core sees it: the records, and the snapshot files.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Instant, SystemTime},
};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use parking_lot::Mutex;

use super::{
    codec,
    log_store::Progress,
    types::{Answers, LogEntry, LogId, SnapshotMeta, StoredMembership, Types, log_id},
};
use crate::{
    disk::{Disk, Space},
    fatal,
    id::Time,
    metrics::{Metrics, gauge_value},
    records::command::Entry,
    store::{
        engine::{EngineCause, EngineError},
        records::{Mark, OpenEngine, Records},
        snapshot::{
            self, SnapshotError, SnapshotOwner,
            read::{SnapshotPieces, SnapshotRows},
            store::SnapshotStore,
        },
    },
    work,
};

/// A snapshot file that was verified, and the directory in which it lies.
#[derive(Clone)]
pub(super) struct SnapshotFile {
    file: snapshot::store::Snapshot,
    store: Arc<SnapshotStore>,
}

impl SnapshotFile {
    /// A file of this directory.
    pub fn new(file: snapshot::store::Snapshot, store: Arc<SnapshotStore>) -> Self {
        Self { file, store }
    }

    /// The index of the last entry in it.
    pub fn index(&self) -> u64 {
        self.file.meta.index
    }

    /// Its bytes, to be sent.
    pub fn pieces(&self) -> Result<SnapshotPieces, SnapshotError> {
        self.store.pieces(&self.file)
    }

    /// A member could make nothing of what it was sent: the file is read again, and is sent no more where it is bad.
    pub fn doubt(&self) -> Result<(), SnapshotError> {
        self.store.doubt(&self.file)
    }
}

/// What the state machine and its snapshots are made of. Clones share it.
#[derive(Clone)]
pub(super) struct StateMachine {
    pub records: Arc<Records>,
    pub engines: Arc<dyn OpenEngine>,
    pub snapshots: Arc<SnapshotStore>,
    pub owner: SnapshotOwner,
    pub disk: Arc<dyn Disk>,
    pub progress: Arc<Progress>,
    pub metrics: Arc<Metrics>,
    pub space: Arc<Space>,
    /// A snapshot that was written before the core was asked for one.
    pub prepared: Arc<Mutex<Option<CoreSnapshot>>>,
}

/// How far a mark says the log is applied; `None` for nothing. Every mark that consensus makes holds a membership, an empty
/// one at least.
pub(super) fn applied(mark: &Mark) -> Option<LogId> {
    (!mark.membership.is_empty()).then(|| log_id(mark.term, mark.node, mark.index))
}

/// The membership of a mark or of a snapshot; none before the first entry.
pub(super) fn stored_membership(bytes: &[u8]) -> io::Result<StoredMembership> {
    match bytes.is_empty() {
        true => Ok(StoredMembership::default()),
        false => codec::decode_stored_membership(bytes).map_err(io::Error::other),
    }
}

/// What the consensus core knows of a snapshot file. One of the state before the first entry has no log id.
pub(super) fn core_meta(meta: &snapshot::SnapshotMeta) -> io::Result<SnapshotMeta> {
    let decode = |bytes: &Bytes| codec::decode_log_id(bytes).map_err(io::Error::other);
    let last_log_id = (!meta.log_id.is_empty()).then(|| decode(&meta.log_id)).transpose()?;
    Ok(SnapshotMeta { last_log_id, last_membership: stored_membership(&meta.membership)? })
}

impl StateMachine {
    fn apply_entry(&self, entry: &LogEntry, membership: &mut Bytes) -> Answers {
        let id = entry.log_id;
        if let EntryPayload::Membership(members) = &entry.payload {
            *membership = codec::encode_stored_membership(&StoredMembership::new(Some(id), members.clone()));
        }
        let mark = Mark {
            index: id.index,
            term: id.leader_id.term,
            node: id.leader_id.node_id,
            membership: membership.clone(),
        };
        let commands = match &entry.payload {
            EntryPayload::Normal(proposal) => Some(&*proposal.entry),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let read;
        let commands = match commands {
            Some(entry) if planted!(ApplyReadsClock) => {
                let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let time = entry.time.plus_ms(u64::from(wall.subsec_millis() / 100));
                read = Entry { time, commands: entry.commands.clone() };
                Some(&read)
            }
            commands => commands,
        };
        // A broken invariant must not stay hidden in a task: whoever waits would wait for good.
        match catch_unwind(AssertUnwindSafe(|| self.records.apply(mark, commands))) {
            Ok(answers) => {
                if let Some(entry) = commands {
                    self.progress.set_applied_time(entry.time);
                }
                Answers(answers)
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                fatal::end(format!("applying an entry broke an invariant: {}", text.unwrap_or_default()));
                Answers::default()
            }
        }
    }

    /// The newest verified snapshot.
    pub fn newest_snapshot(&self) -> io::Result<Option<CoreSnapshot>> {
        let newest = self.snapshots.newest_verified().map_err(io::Error::other)?;
        newest.map(|file| self.core_snapshot(file)).transpose()
    }

    /// The snapshot that the core knows of. It takes one for granted whose log was purged: where all were found bad, one is
    /// written anew.
    fn current_snapshot(&self) -> io::Result<Option<CoreSnapshot>> {
        let newest = self.newest_snapshot()?;
        if newest.is_some() || !self.snapshots.is_one_lost() || applied(&self.records.mark()).is_none() {
            return Ok(newest);
        }
        match self.write_snapshot() {
            Err(error) if self.records.is_for_room(&error) => Ok(None),
            written => written.map(Some),
        }
    }

    fn core_snapshot(&self, file: snapshot::store::Snapshot) -> io::Result<CoreSnapshot> {
        let meta = core_meta(&file.meta)?;
        Ok(Snapshot { meta, snapshot: SnapshotFile { file, store: Arc::clone(&self.snapshots) } })
    }

    /// Writes a snapshot of the state as of a flush boundary, while applying goes on. Where nothing was applied since the
    /// newest one, that one is it.
    pub fn write_snapshot(&self) -> io::Result<CoreSnapshot> {
        let view = self.records.snapshot().map_err(io::Error::other)?;
        let id = applied(&view.mark);
        if let Some(newest) = self.newest_snapshot()?
            && newest.meta.last_log_id >= id
        {
            return Ok(newest);
        }
        let meta = snapshot::SnapshotMeta {
            lineage: self.owner.lineage,
            cluster: self.owner.cluster,
            index: view.mark.index,
            term: view.mark.term,
            position: view.globals.position.0,
            cluster_time_ms: view.globals.time.0,
            log_id: id.map_or_else(Bytes::new, |id| codec::encode_log_id(&id)),
            membership: view.mark.membership,
        };
        let began = Instant::now();
        let built = self.snapshots.build(&meta, view.rows);
        let metrics = &self.metrics;
        let file = built.map_err(|error| {
            metrics.snapshot_failures.inc();
            io::Error::other(error)
        })?;
        metrics.snapshots.inc();
        metrics.snapshot_seconds.set(began.elapsed().as_secs_f64());
        metrics.snapshot_bytes.set(gauge_value(file.bytes));
        metrics.snapshot_position.set(gauge_value(file.meta.position));
        self.core_snapshot(file)
    }

    /// The file as one of this node's own: one that lies elsewhere is copied, and verified here.
    fn own(&self, SnapshotFile { file, store }: SnapshotFile) -> Result<snapshot::store::Snapshot, SnapshotError> {
        if Arc::ptr_eq(&store, &self.snapshots) {
            return Ok(file);
        }
        let mut pieces = store.pieces(&file)?;
        let mut receiver = self.snapshots.receive(file.bytes)?;
        while let Some(piece) = pieces.next_piece()? {
            receiver.piece(receiver.received(), &piece)?;
        }
        receiver.finish()
    }

    fn install(&self, file: SnapshotFile) -> io::Result<()> {
        let file = self.own(file).map_err(io::Error::other)?;
        let engine = self.engines.fresh().map_err(io::Error::other)?;
        let rows = SnapshotRows::open(&*self.disk, &file.path).map_err(io::Error::other)?;
        let source = |error: SnapshotError| EngineError::Source(EngineCause::new(error));
        let mut rows = rows.map(|row| row.map_err(source));
        self.records.install(engine, &mut rows).map_err(io::Error::other)?;
        self.engines.adopt().map_err(io::Error::other)?;
        self.progress.set_applied(file.meta.index);
        self.progress.set_applied_time(Time(file.meta.cluster_time_ms));
        Ok(())
    }
}

/// A snapshot as the consensus core hands it around.
pub(super) type CoreSnapshot = openraft::type_config::alias::SnapshotOf<Types, SnapshotFile>;

/// Runs what blocks on the disk where that is allowed.
async fn blocking<T: Send + 'static>(job: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    work::run(job).await.map_err(io::Error::other)?
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let mut mark = self.records.mark();
        if planted!(AppliedTwice) {
            mark.index = mark.index.saturating_sub(1);
        }
        Ok((applied(&mark), stored_membership(&mark.membership)?))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        let mut membership = self.records.mark().membership;
        if membership.is_empty() {
            membership = codec::encode_stored_membership(&StoredMembership::default());
        }
        while let Some((entry, responder)) = entries.try_next().await? {
            let answers = self.apply_entry(&entry, &mut membership);
            self.progress.set_applied(entry.log_id.index);
            if let Some(responder) = responder {
                responder.send(answers);
            }
            // A long replay leaves the thread to others now and then.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, file: SnapshotFile) -> io::Result<()> {
        let this = self.clone();
        blocking(move || this.install(file)).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<CoreSnapshot>> {
        let this = self.clone();
        blocking(move || this.current_snapshot()).await
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = SnapshotFile;

    /// An error here is the end of the core: so what may fail for want of room was tried before, where it can be tried again.
    async fn build_snapshot(&mut self) -> io::Result<CoreSnapshot> {
        if let Some(prepared) = self.prepared.lock().take() {
            return Ok(prepared);
        }
        let this = self.clone();
        blocking(move || this.write_snapshot()).await
    }
}
