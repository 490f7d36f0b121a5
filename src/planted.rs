//! Bugs that are planted on purpose, so that the simulation can be seen to catch them: a harness that can't fail proves
//! nothing. Code asks `planted!(TheBug)` in the one place where the bug would stand. That is `false` wherever the feature
//! `planted` is off, which is in every build but the simulation's own of this name: nothing of a bug is compiled then.
//!
//! A process has one bug at most, chosen before anything runs.

/// Whether this bug is the one that this process has.
#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

/// Whether this bug is the one that this process has.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Bug::$bug)
    };
}

#[cfg(any(test, feature = "planted"))]
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

            /// Its name in tables and on the command line.
            pub fn word(self) -> &'static str {
                match self { $(Bug::$Name => $word,)* }
            }

            /// What is wrong, in a sentence.
            pub fn doc(self) -> &'static str {
                match self { $(Bug::$Name => $doc,)* }
            }
        }

        /// The names as the places in the sources spell them.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($Name),)*];
    };
}

#[cfg(any(test, feature = "planted"))]
bugs! {
    AckBeforeFsync = "ack_before_fsync": "An append is acknowledged while it waits for the log's writer.";
    SyncLeftToSeal = "sync_left_to_seal": "The log acknowledges what it has written, and syncs it with the next seal.";
    VoteNotSynced = "vote_not_synced": "A vote is given before it is synced.";
    TornTailAccepted = "torn_tail_accepted": "A frame of the log is taken although its checksum is wrong.";
    DamageCut = "damage_cut": "Recovery cuts the log at damage although acknowledged entries follow.";
    TailCrossed = "tail_crossed": "A read of the log goes on from the disk into what the tail in memory has replaced.";
    AppendSkipsEntry = "append_skips_entry": "A follower that gets several entries at once leaves the first one empty.";
    AnswerBeforeQuorum = "answer_before_quorum": "A member that can not be reached counts as one that has the entry.";
    PurgePastSnapshot = "purge_past_snapshot": "The log is purged past what the snapshots hold.";
    SnapshotNotSynced = "snapshot_not_synced": "A snapshot counts before it is synced.";
    SnapshotWithoutRecount = "snapshot_without_recount": "An installed snapshot leaves out the counters.";
    SnapshotWithoutDeadlines = "snapshot_without_deadlines": "An installed snapshot leaves out the deadline index.";
    OldDiskVotes = "old_disk_votes": "A node that starts again votes at once, whatever others remember of it.";
    ApplyReadsClock = "apply_reads_clock": "What is applied depends on the clock of the node that applies it.";
    AppliedTwice = "applied_twice": "After a restart the last applied entry is applied again.";
    QuotaCountedTwice = "quota_counted_twice": "A state that is opened after a restart counts its records again.";
    QuotaNotReturned = "quota_not_returned": "A record that goes stays counted.";
    OldDeadlineLeft = "old_deadline_left": "A changed deadline leaves its old entry behind.";
    LeaderStampsWallClock = "leader_stamps_wall_clock": "A leader stamps entries with its own wall clock.";
    FollowerJudgesLease = "follower_judges_lease": "A follower judges leases by its own wall clock.";
    StaleRead = "stale_read": "A read is answered without a read barrier.";
    ReplayFromStaleFollower = "replay_from_stale_follower": "A completed record is replayed from a follower's state.";
    StaleFenceAccepted = "stale_fence_accepted": "An owner's command does not compare the fence.";
    FenceReused = "fence_reused": "A takeover keeps the fence of the owner before.";
    RenewShortens = "renew_shortens": "A renewal may bring the deadline nearer.";
    BegunForgotten = "begun_forgotten": "Begin is answered and not recorded.";
    HoldRetaken = "hold_retaken": "A lapsed begun record is handed to the next claim under `hold` too.";
    AttemptIdIgnored = "attempt_id_ignored": "A repeated claim of the running attempt is granted anew.";
    FingerprintIgnored = "fingerprint_ignored": "A claim with another fingerprint is no conflict.";
    ReleaseOfCompleted = "release_of_completed": "An owner may release a record that is completed.";
    LateReportRefused = "late_report_refused": "The outcome of an owner whose lease lapsed is refused.";
    OutcomeOverwritten = "outcome_overwritten": "A second outcome of the same owner replaces the first.";
    EvidenceDroppedEarly = "evidence_dropped_early": "A completed record is swept at the end of its replay window.";
    WindowShortened = "window_shortened": "A changed policy shortens the windows that a claim was promised.";
    CheckpointLost = "checkpoint_lost": "A takeover does not get the recovery point of the owner before.";
    ResolveWithoutVersion = "resolve_without_version": "A verdict does not compare the version that it is about.";
    NoEffectTooEarly = "no_effect_too_early": "A `no_effect` verdict is taken while the lapsed owner may still act.";
    RequestIdIgnored = "request_id_ignored": "A verdict that is sent again is judged again.";
    InvestigationIgnored = "investigation_ignored": "Reconcilers do not see that another one investigates.";
    UnknownSaidNotDone = "unknown_said_not_done": "A command whose result is not known is answered as not done.";
    AnswersMixedUp = "answers_mixed_up": "Two answers of a session are taken for each other.";
    TenantLeftOut = "tenant_left_out": "The place of a record does not depend on its tenant.";
    TimeoutIsNotDone = "timeout_is_not_done": "The client reports an effect that timed out as one that did not happen.";
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::OnceLock;

    use super::Bug;

    static CHOSEN: OnceLock<Bug> = OnceLock::new();

    /// From now on, and in all of this process, this bug is there. The first choice stands.
    pub fn choose(bug: Bug) {
        let _ = CHOSEN.set(bug);
    }

    /// Whether this bug was chosen.
    pub fn is(bug: Bug) -> bool {
        CHOSEN.get() == Some(&bug)
    }

    impl Bug {
        /// The bug of this name.
        pub fn parse(word: &str) -> Option<Self> {
            Self::ALL.iter().copied().find(|bug| bug.word() == word)
        }
    }
}

#[cfg(feature = "planted")]
pub use chosen::{choose, is};

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn texts(folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder of the project can be read") {
            let path = entry.expect("a folder of the project can be read").path();
            if path.is_dir() {
                texts(&path, into);
            } else if path.extension().is_some_and(|found| found == "rs") && !path.ends_with("planted.rs") {
                into.push(fs::read_to_string(&path).expect("sources are text"));
            }
        }
    }

    #[test]
    fn every_bug_has_its_place_in_the_sources_and_every_place_its_bug() {
        let mut sources = Vec::new();
        texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
        let mut placed = BTreeSet::new();
        for text in &sources {
            for (at, mark) in text.match_indices(concat!("planted", "!(")) {
                let rest = &text[at + mark.len()..];
                placed.insert(&rest[..rest.find(')').expect("a call has its end")]);
            }
        }
        assert_eq!(placed, NAMES.iter().copied().collect());
    }

    #[test]
    fn at_least_25_bugs_each_with_a_name_of_its_own_and_a_sentence() {
        assert!(Bug::ALL.len() >= 25);
        let words: BTreeSet<&str> = Bug::ALL.iter().map(|bug| bug.word()).collect();
        assert_eq!(words.len(), Bug::ALL.len());
        assert!(Bug::ALL.iter().all(|bug| bug.doc().ends_with('.')));
    }

    #[cfg(not(feature = "planted"))]
    #[test]
    fn an_ordinary_build_has_none() {
        const NONE: bool = planted!(AckBeforeFsync);
        const { assert!(!NONE) };
    }
}
