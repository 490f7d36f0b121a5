//! The words by which JSON carries the schema's enums, each with its value: one table for both directions.

use crate::proto::v1;

/// An enum of the schema as JSON carries it.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// Every value but the unspecified one, with its word.
    const WORDS: &'static [(&'static str, Self)];
}

/// The word of a value; none for the unspecified one and for values of a newer schema.
pub(super) fn word<W: Words + TryFrom<i32>>(value: i32) -> Option<&'static str> {
    let value = W::try_from(value).ok()?;
    W::WORDS.iter().find(|(_, own)| *own == value).map(|(word, _)| *word)
}

macro_rules! words {
    ($($Enum:ident { $($word:literal $Value:ident),* })*) => {$(
        impl Words for v1::$Enum {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, v1::$Enum::$Value)),*];
        }
    )*};
}

words! {
    Answer {
        "new" New, "in_progress" InProgress, "completed" Completed, "conflict" Conflict,
        "indeterminate" Indeterminate, "expired" Expired
    }
    State {
        "absent" Absent, "in_progress" InProgress, "indeterminate" Indeterminate, "completed" Completed, "expired" Expired
    }
    Phase { "staged" Staged, "begun" Begun }
    OnLapse { "hold" Hold, "retake" Retake }
    Verdict { "completed" Completed, "no_effect" NoEffect, "unknown" Unknown }
    Effect { "none" None, "unknown" Unknown }
    Oversize { "reject" Reject, "digest_only" DigestOnly }
    ExpiredClaims { "reject" Reject, "run_as_new" RunAsNew }
    LowEntropyKeys { "allow" Allow, "warn" Warn, "refuse" Refuse }
    HistoryKind {
        "claimed" Claimed, "begun" Begun, "renewed" Renewed, "checkpointed" Checkpointed, "completed" Completed,
        "released" Released, "suspended" Suspended, "lapsed" Lapsed, "stale_fence" StaleFence,
        "investigated" Investigated, "resolved" Resolved, "forgotten" Forgotten, "expired" Expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every number the schema knows for this enum, but 0, has a word, and that it is the rest of its name.
    fn whole<W: Words + TryFrom<i32>>(prefix: &str, name: fn(&W) -> &'static str) {
        let mut numbers = 1..;
        let known = numbers.by_ref().map_while(|number| W::try_from(number).ok()).count();
        assert_eq!(W::WORDS.len(), known, "{prefix}");
        for (word, value) in W::WORDS {
            assert_eq!(format!("{prefix}_{}", word.to_ascii_uppercase()), name(value));
        }
    }

    #[test]
    fn every_value_of_the_schema_has_the_rest_of_its_name_as_its_word() {
        whole("ANSWER", v1::Answer::as_str_name);
        whole("STATE", v1::State::as_str_name);
        whole("PHASE", v1::Phase::as_str_name);
        whole("ON_LAPSE", v1::OnLapse::as_str_name);
        whole("VERDICT", v1::Verdict::as_str_name);
        whole("EFFECT", v1::Effect::as_str_name);
        whole("OVERSIZE", v1::Oversize::as_str_name);
        whole("EXPIRED_CLAIMS", v1::ExpiredClaims::as_str_name);
        whole("LOW_ENTROPY_KEYS", v1::LowEntropyKeys::as_str_name);
        whole("HISTORY_KIND", v1::HistoryKind::as_str_name);
    }

    #[test]
    fn the_unspecified_value_and_unknown_ones_have_no_word() {
        assert_eq!(word::<v1::State>(0), None);
        assert_eq!(word::<v1::State>(99), None);
        assert_eq!(word::<v1::State>(2), Some("in_progress"));
    }
}
