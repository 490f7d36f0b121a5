//! The kinds of fault, and the count of those that fired.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// What a rate of a kind means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// How often it happens in a simulated minute.
    PerMinute,
    /// Of how many in a thousand (messages, operations, reads of a clock).
    PerMille,
}

macro_rules! faults {
    ($($Name:ident = $word:literal, $unit:ident, $from:literal..=$to:literal: $doc:literal;)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultKind {
            $(#[doc = $doc] $Name,)*
        }

        impl FaultKind {
            /// Every kind.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$Name,)*];

            /// Its name, in options and tables.
            pub fn word(self) -> &'static str {
                match self { $(FaultKind::$Name => $word,)* }
            }

            /// What happens, in a sentence.
            pub fn doc(self) -> &'static str {
                match self { $(FaultKind::$Name => $doc,)* }
            }

            /// What its rate means.
            pub fn unit(self) -> Unit {
                match self { $(FaultKind::$Name => Unit::$unit,)* }
            }

            /// The lowest and the highest rate that a seed draws.
            pub fn rates(self) -> (u32, u32) {
                match self { $(FaultKind::$Name => ($from, $to),)* }
            }
        }
    };
}

faults! {
    Partition = "partition", PerMinute, 2..=8: "Two groups of nodes hear nothing of each other, either way.";
    OneWay = "one_way", PerMinute, 2..=8: "A node is heard and hears nothing, or hears and is not heard.";
    Bridge = "bridge", PerMinute, 2..=6: "Two groups hear each other only through one node that both reach.";
    Flapping = "flapping", PerMinute, 2..=6: "A link goes and comes every few hundred milliseconds for a while.";
    Loss = "loss", PerMille, 2..=50: "Messages are lost, and with them the connection that carried them.";
    DelaySpike = "delay_spike", PerMinute, 2..=12: "All messages of a link take hundreds of milliseconds for a while.";
    Reordering = "reordering", PerMille, 5..=100: "A connection is overtaken by a later one.";
    Duplication = "duplication", PerMille, 2..=50: "A message arrives twice: the same call of a peer is made again.";
    HalfOpen = "half_open", PerMinute, 2..=8: "A connection is gone at one end; the other end learns of it only when it speaks.";
    Crash = "crash", PerMinute, 2..=8: "A node dies, and what was not synced is lost.";
    TornCrash = "torn_crash", PerMinute, 2..=8: "A node dies, and of what was not synced some sectors are written and some not.";
    CrashInRecovery = "crash_in_recovery", PerMinute, 2..=6: "A node dies again while it recovers.";
    CrashInSnapshotBuild = "crash_in_snapshot_build", PerMinute, 2..=6: "A node dies while it writes a snapshot.";
    CrashInPurge = "crash_in_purge", PerMinute, 2..=6: "A node dies while it purges its log.";
    LostDisk = "lost_disk", PerMinute, 2..=3: "A node comes back with an empty disk.";
    OldDisk = "old_disk", PerMinute, 2..=6: "A node comes back with the disk of a time before.";
    BitFlipLog = "bit_flip_log", PerMinute, 2..=4: "A bit of a log segment is another one.";
    BitFlipSnapshot = "bit_flip_snapshot", PerMinute, 2..=4: "A bit of a snapshot file is another one.";
    BitFlipNote = "bit_flip_note", PerMinute, 2..=4: "A bit of one of the small files beside log and snapshots is another one.";
    ReadError = "read_error", PerMinute, 2..=4: "A read, write or sync returns EIO.";
    DiskFull = "disk_full", PerMinute, 2..=4: "A write returns ENOSPC.";
    SlowDisk = "slow_disk", PerMinute, 2..=8: "Syncs take hundreds of milliseconds for a while.";
    HungDisk = "hung_disk", PerMinute, 2..=4: "A sync does not return for seconds.";
    PowerLoss = "power_loss", PerMinute, 2..=4: "All nodes die at once, and what was not synced is lost.";
    ClockJump = "clock_jump", PerMinute, 2..=8: "A node's wall clock jumps, by milliseconds or by years, either way.";
    ClockDrift = "clock_drift", PerMinute, 2..=6: "A node's clocks run up to a few percent fast or slow.";
    ClockStrobe = "clock_strobe", PerMinute, 2..=4: "A node's wall clock goes to and fro between two times.";
    NodePause = "node_pause", PerMinute, 2..=8: "A node stands still for up to seconds and then goes on.";
    ClientPause = "client_pause", PerMinute, 2..=12: "A client stands still, longer than its lease, and then goes on.";
    ClientDeath = "client_death", PerMille, 20..=150: "A client is gone at one of its awaits: its future is dropped.";
    DuplicateRequest = "duplicate_request", PerMille, 20..=150: "The same request is sent twice, at once or after its answer.";
    LateRequest = "late_request", PerMille, 20..=150: "A request of an attempt that is over arrives long after it.";
    MembershipChange = "membership_change", PerMinute, 2..=3: "A node is added, promoted or removed.";
    LeaderTransfer = "leader_transfer", PerMinute, 2..=6: "Leadership is handed to another member.";
    ExpiryBurst = "expiry_burst", PerMinute, 2..=6: "Hundreds of deadlines fall due at one moment.";
    HotKey = "hot_key", PerMille, 100..=600: "Most operations of a while go to one key.";
    Oversized = "oversized", PerMille, 10..=80: "An input is as large as allowed, or a byte larger.";
    Hostile = "hostile", PerMille, 10..=80: "An input is malformed, lies about its length, or names what is another's.";
    StarvedScheduler = "starved_scheduler", PerMinute, 2..=8: "A node's tasks get little time to run for a while.";
    CrashInSync = "crash_in_sync", PerMinute, 2..=12: "A node dies as it writes or syncs its log: what it said meanwhile has been said.";
    CrashInInstall = "crash_in_install", PerMinute, 2..=8: "A node dies while it takes over the state of a snapshot.";
    DeposedLeader = "deposed_leader", PerMinute, 2..=8: "A leader hears nothing of the others, while clients still reach it; then it dies, and comes back.";
    Restore = "restore", PerMinute, 2..=4: "All nodes and disks are lost, and the cluster is restored from a backup.";
}

impl FaultKind {
    /// The kind of this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.word() == word)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How often each kind fired in a run. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Fired(Arc<Mutex<BTreeMap<FaultKind, u64>>>);

impl Fired {
    /// Once more.
    pub fn hit(&self, kind: FaultKind) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
    }

    /// What fired, and how often.
    pub fn counts(&self) -> BTreeMap<FaultKind, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_a_rate_and_a_sentence() {
        assert!(FaultKind::ALL.len() >= 30, "the model promises at least 30");
        for (at, kind) in FaultKind::ALL.iter().enumerate() {
            assert_eq!(FaultKind::parse(kind.word()), Some(*kind), "{kind} is the name of one kind");
            assert!(FaultKind::ALL[..at].iter().all(|other| other.word() != kind.word()));
            let (from, to) = kind.rates();
            assert!(0 < from && from <= to, "{kind}");
            assert!(kind.doc().ends_with('.'), "{kind}");
        }
    }
}
