//! What this node knows of the others: how each stands, what its clock shows, and what it has acknowledged.
//!
//! Once a second every node asks every member ([`Hello`]). What a member has acknowledged, by its votes, by its answers to
//! appends, and by what it tells of its own log, is noted in this node's log at most a second late: should the member come
//! back with an older disk, it is told so and does not vote. Of a leader's log only what it tells is known: it
//! acknowledges nothing to anybody, and the one member that may vouch for it later need not be the one that it decided with.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    codec::message::{Acknowledged, End, Envelope, Hello, NodeState},
    peer::member::Book,
    types::{LogId, Vote},
};
use crate::{
    clock::{Clock, Monotonic},
    id::{DiskId, NodeId, Position, Time},
    limits,
    records::command::FEATURE_LEVEL,
    wal::{PeerMark, Wal},
};

/// The others: the way to them, and what is known of them.
pub(super) struct Peers {
    pub book: Book,
    pub roster: Roster,
    pub holds: Arc<Holds>,
    /// The highest feature level that this node understands.
    pub understands: AtomicU32,
    /// What was found to be damaged, and not dealt with yet.
    damage: Mutex<Option<String>>,
    found: Notify,
}

impl Peers {
    pub fn new(book: Book, roster: Roster) -> Self {
        let understands = AtomicU32::new(FEATURE_LEVEL);
        Self { book, roster, holds: Arc::default(), understands, damage: Mutex::default(), found: Notify::new() }
    }

    /// What this node keeps is damaged: it must not go on with it.
    pub fn report(&self, damage: String) {
        tracing::error!(%damage, "what this node keeps is damaged");
        *self.damage.lock() = Some(damage);
        self.found.notify_one();
    }

    /// Waits for a report.
    pub async fn reported(&self) -> String {
        loop {
            if let Some(damage) = self.damage.lock().take() {
                return damage;
            }
            self.found.notified().await;
        }
    }
}

/// What a member has told last.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// When, on this node's clock.
    pub at: Monotonic,
    pub disk_id: DiskId,
    pub hello: Hello,
}

#[derive(Default)]
struct Known {
    heard: BTreeMap<NodeId, Heard>,
    /// Nodes that answer for members and are not their disks: what they say they are, and when.
    strangers: BTreeMap<NodeId, (Monotonic, NodeState)>,
    /// What each has acknowledged, with which disk, and whether that is in the log.
    marks: BTreeMap<NodeId, (DiskId, Acknowledged, bool)>,
}

/// What is known of the others.
pub(super) struct Roster {
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
    /// Asks the round to begin at once.
    pub wanted: Notify,
    /// Bytes on this node's own disk, as of the last round.
    pub disk_bytes: AtomicU64,
    /// Up to which position nothing is left on this node's own disk of keys that were destroyed.
    erased: AtomicU64,
}

impl Roster {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            known: Mutex::default(),
            wanted: Notify::new(),
            disk_bytes: AtomicU64::new(0),
            erased: AtomicU64::new(0),
        }
    }

    /// Up to which position nothing is left on this node's own disk of keys that were destroyed.
    pub fn erased(&self) -> Position {
        Position(self.erased.load(Ordering::Acquire))
    }

    /// Nothing is left up to there.
    pub fn is_erased_to(&self, position: Position) {
        self.erased.store(position.0, Ordering::Release);
    }

    /// Notes what a member has told, and when.
    pub fn note(&self, at: Monotonic, envelope: &Envelope, hello: Hello) {
        let heard = Heard { at, disk_id: envelope.from.disk_id, hello };
        self.known.lock().heard.insert(envelope.from.node_id, heard);
    }

    /// A node that answers for a member, with another disk, or none, has told what it is.
    pub fn note_stranger(&self, node: NodeId, state: NodeState) {
        self.known.lock().strangers.insert(node, (self.clock.monotonic(), state));
    }

    /// What answers for a member at its address instead of its disk, if something did lately.
    pub fn stranger(&self, node: NodeId) -> Option<NodeState> {
        let known = self.known.lock();
        let (at, state) = *known.strangers.get(&node)?;
        let age = self.clock.monotonic().saturating_sub(at);
        (age <= Duration::from_millis(limits::HELLO_FRESH_MS)).then_some(state)
    }

    /// What it told last.
    pub fn heard(&self, node: NodeId) -> Option<Heard> {
        self.known.lock().heard.get(&node).cloned()
    }

    /// Whether it has told anything within this time.
    pub fn is_reachable(&self, node: NodeId, within: Duration) -> bool {
        self.age(node).is_some_and(|age| age <= within)
    }

    /// How long ago it told anything.
    pub fn age(&self, node: NodeId) -> Option<Duration> {
        let at = self.known.lock().heard.get(&node)?.at;
        Some(self.clock.monotonic().saturating_sub(at))
    }

    /// What its wall clock shows now, if it was heard of lately.
    pub fn wall(&self, node: NodeId) -> Option<Time> {
        let now = self.clock.monotonic();
        let known = self.known.lock();
        let heard = known.heard.get(&node)?;
        let age = now.saturating_sub(heard.at);
        let is_fresh = age <= Duration::from_millis(limits::HELLO_FRESH_MS);
        is_fresh.then(|| heard.hello.wall.plus_ms(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Forgets what was heard of nodes that are no members.
    pub fn keep(&self, is_member: impl Fn(NodeId) -> bool) {
        let mut known = self.known.lock();
        known.heard.retain(|node, _| is_member(*node));
        known.strangers.retain(|node, _| is_member(*node));
    }

    /// A member has acknowledged this. With another disk than before, what that one acknowledged is of no account.
    pub fn acknowledged(&self, member: End, vote: Option<Vote>, log: Option<LogId>) {
        let mut known = self.known.lock();
        let mark = known.marks.entry(member.node_id).or_insert((member.disk_id, Acknowledged::default(), true));
        if mark.0 != member.disk_id {
            *mark = (member.disk_id, Acknowledged::default(), true);
        }
        if mark.1.raise(vote, log) {
            mark.2 = false;
        }
    }

    /// A member has told what its log holds durably.
    pub fn told(&self, member: End, hello: &Hello) {
        self.acknowledged(member, None, hello.last_log);
    }

    /// What a member is remembered to have acknowledged.
    pub fn remembered(&self, node: NodeId) -> Option<(DiskId, Acknowledged)> {
        self.known.lock().marks.get(&node).map(|(disk_id, acknowledged, _)| (*disk_id, *acknowledged))
    }

    /// Takes over what the log remembers. A mark that can't be read is of a newer release, and is left alone.
    pub fn recovered(&self, marks: &[PeerMark]) {
        let mut known = self.known.lock();
        for mark in marks {
            if let Ok(acknowledged) = Acknowledged::decode(&mark.vote) {
                known.marks.insert(mark.node_id, (mark.disk_id, acknowledged, true));
            }
        }
    }

    /// What every member is remembered for is forgotten: it stood in a log that is gone.
    pub fn forget_all(&self) {
        *self.known.lock() = Known::default();
    }

    /// Has the log note what is new since the last time; forgets who is no member.
    pub fn write_marks(&self, wal: &Wal, is_member: impl Fn(NodeId) -> bool) {
        let mut known = self.known.lock();
        let failed = |written: Result<(), crate::wal::WalError>| {
            if let Err(error) = written {
                tracing::warn!(%error, "what a member has acknowledged could not be noted");
            }
        };
        known.marks.retain(|node, _| {
            let keep = is_member(*node);
            if !keep {
                wal.forget_peer(*node, failed);
            }
            keep
        });
        for (node_id, (disk_id, acknowledged, is_written)) in &mut known.marks {
            if !std::mem::replace(is_written, true) {
                let log = acknowledged.log.map(|id| (id.index, id.leader_id.term));
                let mark = PeerMark { node_id: *node_id, disk_id: *disk_id, vote: acknowledged.encode(), log };
                wal.note_peer(mark, failed);
            }
        }
    }
}

/// Snapshots on their way to members: the log behind them is held back, so that a member that has installed one finds what
/// follows it.
#[derive(Default)]
pub(super) struct Holds {
    /// How often each index is held, by entries of this count.
    held: Mutex<BTreeMap<u64, usize>>,
}

/// As long as it lives, the log above the snapshot is held back.
pub(super) struct Hold {
    holds: Arc<Holds>,
    index: u64,
}

impl Holds {
    /// Holds back the log above `index`.
    pub fn hold(self: &Arc<Self>, index: u64) -> Hold {
        *self.held.lock().entry(index).or_insert(0) += 1;
        Hold { holds: Arc::clone(self), index }
    }

    /// The lowest index above which the log is held back.
    pub fn lowest(&self) -> Option<u64> {
        self.held.lock().keys().next().copied()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.holds.held.lock();
        if let Some(count) = held.get_mut(&self.index) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.index);
            }
        }
    }
}
