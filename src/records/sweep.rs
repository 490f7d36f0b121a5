//! The sweep: writes down what is due, oldest first, from the deadline index alone. It changes nothing that can be seen.
//! Of audit chains it removes rows past their time, and reads the row behind the last one that goes.

use super::{
    audit,
    change::{Indexed, reindex},
    closing,
    command::RecordRef,
    record::StateWord,
    state::{Counters, Deadline, DeadlineKind, Event, SinceList, State},
};
use crate::id::{Position, Time};

/// Writes down what is due at `now`, at most the limit of one sweep.
pub(super) fn sweep(state: &mut impl State, at: Position, now: Time) {
    let Some(max) = state.globals().formed.as_ref().map(|formed| formed.limits.swept_per_entry_max) else { return };
    let found = state.due(now, max as usize);
    // What may go beyond one for each entry that is due: rows of audit chains.
    let mut left = max as usize - found.len();
    for (due, record, deadline) in found {
        if deadline.kind == DeadlineKind::Audit {
            left -= audit::trim(state, &record.tenant, due, now, 1 + left).saturating_sub(1);
        } else {
            write_down(state, &record, due, deadline, at);
        }
    }
    audit::trim_cluster(state, now, left);
    closing::empty(state, at, now, left);
}

fn write_down(state: &mut impl State, record: &RecordRef, due: Time, deadline: Deadline, at: Position) {
    let counts = Counters { records: 1, bytes: deadline.bytes, ..Counters::default() };
    let owned = Indexed {
        deadline: Some((due, deadline)),
        since: Some((SinceList::InProgress, deadline.since)),
        counts: Counters { in_progress: 1, ..counts },
    };
    match deadline.kind {
        DeadlineKind::LeaseHold => {
            let since = Some((SinceList::Indeterminate, due));
            let held = Indexed { deadline: None, since, counts: Counters { indeterminate: 1, ..counts } };
            reindex(state, record, owned, held, Some(at));
            state.note(Event::Indeterminate(record.clone()));
        }
        DeadlineKind::LeaseRetake => reindex(state, record, owned, Indexed { deadline: None, ..owned }, None),
        DeadlineKind::LeaseStaged => {
            let then = Deadline { kind: DeadlineKind::StagedEvidence, ..deadline };
            reindex(state, record, owned, Indexed { deadline: Some((deadline.then, then)), ..owned }, None);
        }
        DeadlineKind::StagedEvidence => {
            // Read as indeterminate until now, where a restore left it in doubt.
            if state.globals().doubt.is_some()
                && let Some(head) = state.head(record)
            {
                state.note(Event::Gone(record.clone(), head.id.clone(), StateWord::Absent));
            }
            remove(state, record, owned);
        }
        DeadlineKind::Evidence => remove(state, record, Indexed { since: None, counts, ..owned }),
        DeadlineKind::Audit => {}
        DeadlineKind::Trace => {
            let counts = Counters { records: 0, ..counts };
            remove(state, record, Indexed { since: None, counts, ..owned });
        }
    }
}

fn remove(state: &mut impl State, record: &RecordRef, before: Indexed) {
    let (has_body, rows) = before.deadline.map_or((false, 0), |(_, deadline)| (deadline.has_body, deadline.rows));
    reindex(state, record, before, Indexed::default(), None);
    state.put_head(record, None);
    if has_body {
        state.put_body(record, None);
    }
    for slot in 0..rows {
        state.put_row(record, slot, None);
    }
}
