//! Bugs that are planted on purpose, behind a switch of the simulation alone: a harness that can't fail proves nothing.

use std::fmt;

macro_rules! bugs {
    ($($Name:ident = $word:literal: $doc:literal;)*) => {
        /// A bug of the kind that systems like this one have had.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $(#[doc = $doc] $Name,)*
        }

        impl Bug {
            /// Every one.
            pub const ALL: &[Bug] = &[$(Bug::$Name,)*];

            /// Its name: that of the switch.
            pub fn word(self) -> &'static str {
                match self { $(Bug::$Name => $word,)* }
            }

            /// What is wrong, in a sentence.
            pub fn doc(self) -> &'static str {
                match self { $(Bug::$Name => $doc,)* }
            }
        }
    };
}

bugs! {
    AckBeforeSync = "ack_before_sync": "The log acknowledges an entry before it is synced.";
    VoteNotSynced = "vote_not_synced": "A vote is given before it is synced.";
    TornTailAccepted = "torn_tail_accepted": "Recovery takes the last frame of the log although its checksum is wrong.";
    DamageCut = "damage_cut": "Recovery cuts the log at damage although acknowledged entries follow.";
    PurgePastSnapshot = "purge_past_snapshot": "The log is purged past what the snapshots hold.";
    SnapshotNotSynced = "snapshot_not_synced": "A snapshot counts before it is synced.";
    SnapshotWithoutCounters = "snapshot_without_counters": "An installed snapshot leaves the counters as they were.";
    SnapshotWithoutDeadlines = "snapshot_without_deadlines": "An installed snapshot leaves out the deadline index.";
    ApplyReadsClock = "apply_reads_clock": "Apply judges leases by the node's own clock.";
    ApplyTwice = "apply_twice": "After a restart the last applied entry is applied again.";
    StaleFenceAccepted = "stale_fence_accepted": "Complete does not compare the fence.";
    LateReportRefused = "late_report_refused": "The outcome of a lapsed owner is dropped, although nobody else owns the record.";
    OldDeadlineLeft = "old_deadline_left": "A changed deadline leaves its old entry behind.";
    FollowerJudgesLease = "follower_judges_lease": "A claim is answered from a follower's state without asking the leader.";
    StaleRead = "stale_read": "A read is answered without a read barrier.";
    EvidenceDroppedEarly = "evidence_dropped_early": "The evidence of an outcome is swept at the end of its replay window.";
    TimeoutIsNotDone = "timeout_is_not_done": "The client takes a time-out of a claim for a refusal and claims as a new attempt.";
    HoldRetaken = "hold_retaken": "A lapsed begun claim is handed to the next claim under `hold` too.";
    BegunForgotten = "begun_forgotten": "Begin is answered before it is in the log.";
    RepeatGrantsAgain = "repeat_grants_again": "A repeated claim of the running attempt gets a new fence.";
    QuotaCountedTwice = "quota_counted_twice": "A replayed entry counts its records again.";
    QuotaNotReturned = "quota_not_returned": "A released record stays counted.";
    FingerprintIgnored = "fingerprint_ignored": "A completed record is replayed to a request with another fingerprint.";
    ResolveWithoutVersion = "resolve_without_version": "A verdict does not compare the version that it is about.";
    NoEffectTooEarly = "no_effect_too_early": "A `no_effect` verdict is taken while the lapsed owner may still act.";
    OutcomeOverwritten = "outcome_overwritten": "A second outcome of the same owner replaces the first.";
    TimeGoesBack = "time_goes_back": "A new leader stamps entries with its own wall clock, also below applied time.";
    WindowShortened = "window_shortened": "A changed policy shortens the windows of completed records.";
    DoubtForgotten = "doubt_forgotten": "A restore does not turn the doubt on.";
    OldDiskVotes = "old_disk_votes": "A node with a day-old disk votes.";
}

impl Bug {
    /// The bug of this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.word() == word)
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_25_bugs_are_planted_each_under_a_name_of_its_own() {
        assert!(Bug::ALL.len() >= 25);
        for bug in Bug::ALL {
            assert_eq!(Bug::parse(bug.word()), Some(*bug));
            assert!(bug.doc().ends_with('.'));
        }
    }
}
