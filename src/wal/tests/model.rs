//! Random lives with crashes against a plain model: what was acknowledged is there, what was not may be, in order, and
//! nothing else ever is.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::disk::Call;
use crate::disk::fault::{Crash, Failure};

#[derive(Debug, Clone)]
enum Op {
    Append {
        count: u64,
        bytes: usize,
    },
    Vote,
    /// Share of the log that is kept, in percent.
    Truncate(u64),
    /// Share of the log that is purged; beyond 100 past its end.
    Purge(u64),
    Mark(u64),
    Forget(u64),
    /// Let the writer do what waits.
    Step,
    Seal,
    Prepare,
    Restart,
    Crash(Crash),
    /// A call of this kind fails soon; the process ends of it, and the machine crashes or only the process restarts.
    Fail {
        call: Call,
        nth: u64,
        crash: Option<Crash>,
    },
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![
        Just(Crash::LoseUnsynced),
        Just(Crash::KeepUnsynced),
        (0..4000_u64).prop_map(Crash::KeepBytes),
        any::<u64>().prop_map(Crash::Tear),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let call = prop_oneof![
        Just(Call::Write),
        Just(Call::Sync),
        Just(Call::ZeroFill),
        Just(Call::SyncDir),
        Just(Call::Rename),
        Just(Call::Create)
    ];
    prop_oneof![
        8 => (1..6_u64, 0..700_usize).prop_map(|(count, bytes)| Op::Append { count, bytes }),
        2 => Just(Op::Vote),
        1 => (0..=100_u64).prop_map(Op::Truncate),
        2 => (0..=103_u64).prop_map(Op::Purge),
        1 => (1..4_u64).prop_map(Op::Mark),
        1 => (1..4_u64).prop_map(Op::Forget),
        6 => Just(Op::Step),
        1 => Just(Op::Seal),
        2 => Just(Op::Prepare),
        1 => Just(Op::Restart),
        1 => crash().prop_map(Op::Crash),
        1 => (call, 0..4_u64, proptest::option::of(crash())).prop_map(|(call, nth, crash)| Op::Fail { call, nth, crash }),
    ]
}

/// What a log holds, in plain.
#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    entries: BTreeMap<u64, WalEntry>,
    first: u64,
    next: u64,
    vote: Option<u64>,
    purged: Option<u64>,
    marks: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone)]
enum Change {
    Entry(WalEntry),
    Vote(u64),
    Truncate(u64),
    Purge(u64),
    Mark(u64, u64),
    Forget(u64),
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Entry(entry) => {
                self.entries.insert(entry.index, entry.clone());
                self.next = entry.index + 1;
            }
            Change::Vote(vote) => self.vote = Some(*vote),
            Change::Truncate(from) => {
                self.next = self.next.min((*from).max(self.first));
                self.entries.retain(|index, _| index < from);
            }
            Change::Purge(upto) => {
                self.purged = self.purged.max(Some(*upto));
                self.first = self.first.max(upto + 1);
                self.next = self.next.max(self.first);
                self.entries.retain(|index, _| index > upto);
            }
            Change::Mark(node, draw) => {
                self.marks.insert(*node, *draw);
            }
            Change::Forget(node) => {
                self.marks.remove(node);
            }
        }
    }

    fn of(rig: &Rig) -> Self {
        let found = rig.recovered();
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse().unwrap();
        Self {
            entries: rig.all().into_iter().map(|entry| (entry.index, entry)).collect(),
            first: found.first,
            next: found.next,
            vote: found.vote.as_deref().map(number),
            purged: found.purged.as_ref().map(|purged| purged.index),
            marks: found.peer_marks.iter().map(|mark| (mark.node_id, number(&mark.vote))).collect(),
        }
    }
}

struct Run {
    rig: Rig,
    /// The state before the first of `issued`.
    base: State,
    /// The state behind the last of `issued`.
    state: State,
    /// What was asked since the last start, in order.
    issued: Vec<Change>,
    /// How many of them were acknowledged; those are the first.
    acknowledged: Arc<Mutex<usize>>,
    draws: u64,
}

impl Run {
    fn issue(&mut self, changes: Vec<Change>) -> impl FnOnce(Result<(), WalError>) + Send + 'static {
        for change in changes {
            self.state.apply(&change);
            self.issued.push(change);
        }
        let (upto, acknowledged) = (self.issued.len(), self.acknowledged.clone());
        move |done| {
            if done.is_ok() {
                let mut acknowledged = acknowledged.lock();
                assert!(*acknowledged <= upto, "acknowledged out of order");
                *acknowledged = upto;
            }
        }
    }

    fn step(&mut self, op: &Op) {
        self.draws += 1;
        let draws = self.draws;
        match op {
            Op::Append { count, bytes } => {
                let next = self.state.next;
                let new: Vec<_> = (next..next + count).map(|index| entry(index, draws, *bytes)).collect();
                let done = self.issue(new.iter().cloned().map(Change::Entry).collect());
                self.rig.wal().append(new, done);
            }
            Op::Vote => {
                let done = self.issue(vec![Change::Vote(draws)]);
                self.rig.wal().save_vote_then(Bytes::from(draws.to_string()), done);
            }
            Op::Truncate(percent) => {
                let kept = self.state.first + (self.state.next - self.state.first) * percent / 100;
                let done = self.issue(vec![Change::Truncate(kept)]);
                self.rig.wal().truncate_after(kept.checked_sub(1), done);
            }
            Op::Purge(percent) => {
                let index = self.state.first + (self.state.next - self.state.first) * percent / 100;
                let done = self.issue(vec![Change::Purge(index)]);
                self.rig.wal().purge(Purged { index, term: draws, payload: Bytes::new() }, done);
            }
            Op::Mark(node_id) => {
                let vote = Bytes::from(draws.to_string());
                let done = self.issue(vec![Change::Mark(*node_id, draws)]);
                let mark = crate::wal::PeerMark { node_id: *node_id, disk_id: DiskId([1; 16]), vote, log: None };
                self.rig.wal().note_peer(mark, done);
            }
            Op::Forget(node_id) => {
                let done = self.issue(vec![Change::Forget(*node_id)]);
                self.rig.wal().forget_peer(*node_id, done);
            }
            Op::Step => {
                self.rig.settle();
            }
            Op::Seal => {
                self.rig.parts.writer.seal();
            }
            Op::Prepare => self.rig.parts.preparer.step(),
            Op::Restart => {
                self.rig.rest();
                self.restart(None);
            }
            Op::Crash(crash) => self.crash_in_the_middle(*crash),
            Op::Fail { call, nth, crash } => self.fail(*call, *nth, *crash),
        }
    }

    /// The machine ends between the write and the sync.
    fn crash_in_the_middle(&mut self, crash: Crash) {
        self.rig.disk.fail(Call::Sync, 0, Failure::Eio);
        self.rig.settle();
        self.restart(Some(crash));
    }

    fn fail(&mut self, call: Call, nth: u64, crash: Option<Crash>) {
        self.rig.disk.fail(call, nth, Failure::Enospc);
        self.rig.settle();
        self.rig.parts.preparer.step();
        self.rig.rest();
        self.rig.disk.heal();
        self.restart(crash);
    }

    fn restart(&mut self, crash: Option<Crash>) {
        let disk = self.rig.disk.clone();
        disk.heal();
        match crash {
            Some(crash) => disk.crash(crash),
            None => {
                // The process alone ends: its writer is gone.
                disk.crash_process();
            }
        }
        self.rig = Rig::open(&disk, SMALL).unwrap_or_else(|error| {
            dump(&disk);
            panic!("{crash:?}: {error}")
        });
        let found = State::of(&self.rig);
        let acknowledged = *self.acknowledged.lock();
        let mut state = self.base.clone();
        let mut possible = acknowledged == 0 && state == found;
        for (at, change) in self.issued.iter().enumerate() {
            state.apply(change);
            possible |= at + 1 >= acknowledged && state == found;
        }
        assert!(
            possible,
            "after {crash:?}, {acknowledged} of {} acknowledged\nfound {found:?}\nfrom {:?}\nissued {:?}",
            self.issued.len(),
            self.base,
            self.issued
        );
        assert_eq!(self.rig.damage(), []);
        (self.base, self.state) = (found.clone(), found);
        self.issued.clear();
        self.acknowledged = Arc::default();
    }
}

fn dump(disk: &FaultDisk) {
    let _ = crate::wal::inspect(disk, Path::new(DIR), &|_, _| String::new(), &mut |line| println!("{line}"));
}

fn live(ops: &[Op]) {
    let mut run = Run {
        rig: Rig::new(),
        base: State::default(),
        state: State::default(),
        issued: Vec::new(),
        acknowledged: Arc::default(),
        draws: 0,
    };
    for op in ops {
        run.step(op);
    }
    run.rig.rest();
    assert_eq!(*run.acknowledged.lock(), run.issued.len(), "a healthy log acknowledges everything");
    run.restart(Some(Crash::LoseUnsynced));
}

proptest! {
    #[test]
    fn no_crash_loses_what_was_acknowledged_or_mixes_what_was_not(ops in proptest::collection::vec(op(), 1..120)) {
        live(&ops);
    }
}
