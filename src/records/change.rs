//! The one way to change a record: its head, and with it the deadline index, the since index, the counters and the
//! events, so that R8 and R12 hold by construction.

use std::sync::Arc;

use super::{
    command::{LapseRule, RecordRef},
    record::{Head, Row, Standing, StateWord, Stored},
    state::{Counters, Deadline, DeadlineKind, Event, SinceList, State},
};
use crate::id::{Position, Time};

/// What the indexes and counters hold for a head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Indexed {
    pub deadline: Option<(Time, Deadline)>,
    pub since: Option<(SinceList, Time)>,
    pub counts: Counters,
}

/// The index entries of a head. `swept`: whether a sweep has written down the lapse of its lease.
pub(super) fn indexed(head: &Head, swept: bool) -> Indexed {
    let bytes = head.bytes();
    let deadline = |at: Time, kind, then, since| {
        Some((at, Deadline { kind, then, since, bytes, has_body: head.has_body(), rows: head.rows }))
    };
    let counts = Counters { records: 1, bytes, ..Counters::default() };
    match &head.stored {
        Stored::InProgress(grant) => {
            let (at, granted) = (grant.deadline, grant.granted.at);
            let owned = Indexed {
                deadline: None,
                since: Some((SinceList::InProgress, granted)),
                counts: Counters { in_progress: 1, ..counts },
            };
            let evidence_end = grant.staged_evidence_end();
            // Without a window the lapse and the end of the evidence are one, and so is their entry.
            let swept = swept || (grant.begun.is_none() && evidence_end == at);
            match (grant.begun.is_some(), grant.on_lapse, swept) {
                (false, _, false) => {
                    Indexed { deadline: deadline(at, DeadlineKind::LeaseStaged, evidence_end, granted), ..owned }
                }
                (false, _, true) => Indexed {
                    deadline: deadline(evidence_end, DeadlineKind::StagedEvidence, evidence_end, granted),
                    ..owned
                },
                (true, LapseRule::Hold, false) => {
                    Indexed { deadline: deadline(at, DeadlineKind::LeaseHold, at, granted), ..owned }
                }
                (true, LapseRule::Hold, true) => Indexed {
                    deadline: None,
                    since: Some((SinceList::Indeterminate, at)),
                    counts: Counters { indeterminate: 1, ..counts },
                },
                (true, LapseRule::Retake, false) => {
                    Indexed { deadline: deadline(at, DeadlineKind::LeaseRetake, at, granted), ..owned }
                }
                (true, LapseRule::Retake, true) => owned,
            }
        }
        Stored::Indeterminate(both) => Indexed {
            deadline: None,
            since: Some((SinceList::Indeterminate, both.1.since)),
            counts: Counters { indeterminate: 1, ..counts },
        },
        Stored::Completed(both) => {
            let until = both.1.evidence_until;
            Indexed {
                deadline: deadline(until, DeadlineKind::Evidence, until, both.1.completed.at),
                since: None,
                counts,
            }
        }
        Stored::Trace((until, _)) => Indexed {
            deadline: deadline(*until, DeadlineKind::Trace, *until, *until),
            since: None,
            counts: Counters { bytes, ..Counters::default() },
        },
    }
}

/// Whether a sweep has written down the lapse of this head's lease.
pub(super) fn is_swept(state: &impl State, record: &RecordRef, head: &Head, now: Time) -> bool {
    match &head.stored {
        Stored::InProgress(grant) => now >= grant.deadline && !state.has_deadline(grant.deadline, record),
        _ => false,
    }
}

/// Writes a head (or removes it) and everything that follows from it.
pub(super) fn change(
    state: &mut impl State,
    record: &RecordRef,
    old: Option<&Arc<Head>>,
    new: Option<Head>,
    now: Time,
) -> Option<Arc<Head>> {
    let swept = old.is_some_and(|head| is_swept(state, record, head, now));
    let before = old.map_or(Indexed::default(), |head| indexed(head, swept));
    let same_lease = match (old.map(|head| &head.stored), new.as_ref().map(|head| &head.stored)) {
        (Some(Stored::InProgress(old)), Some(Stored::InProgress(new))) => {
            old.granted == new.granted && old.deadline == new.deadline && old.begun.is_some() == new.begun.is_some()
        }
        _ => false,
    };
    let after = new.as_ref().map_or(Indexed::default(), |head| indexed(head, swept && same_lease));
    reindex(state, record, before, after, None);
    if old.is_some_and(|head| head.has_body()) && !new.as_ref().is_some_and(Head::has_body) {
        state.put_body(record, None);
    }
    let word = |head: Option<&Head>| Standing::of(head, now, state.globals()).word();
    let (was, is) = (word(old.map(|head| &**head)), word(new.as_ref()));
    if is == StateWord::Indeterminate {
        state.note(Event::Indeterminate(record.clone()));
    } else if let Some(old) = old.filter(|_| was == StateWord::Indeterminate) {
        state.note(Event::Gone(record.clone(), old.id.clone(), is));
    }
    let new = new.map(Arc::new);
    state.put_head(record, new.clone());
    new
}

/// Writes a head that differs from the one before in nothing that can be seen: only in what its fields are sealed by, and in
/// the bytes that they take.
pub(super) fn rewrite(state: &mut impl State, record: &RecordRef, old: &Arc<Head>, new: Head, now: Time) {
    let swept = is_swept(state, record, old, now);
    reindex(state, record, indexed(old, swept), indexed(&new, swept), None);
    state.put_head(record, Some(Arc::new(new)));
}

/// Moves the index entries and the counters from `before` to `after`; `swept` where a sweep writes down a lapse.
pub(super) fn reindex(
    state: &mut impl State,
    record: &RecordRef,
    before: Indexed,
    after: Indexed,
    swept: Option<Position>,
) {
    if before.deadline != after.deadline {
        let place = |index: &Indexed| index.deadline.map(|(at, _)| at);
        if let Some(at) = place(&before).filter(|_| place(&before) != place(&after) && !planted!(OldDeadlineLeft)) {
            state.put_deadline(at, record, None, false);
        }
        if let Some((at, deadline)) = after.deadline {
            state.put_deadline(at, record, Some(deadline), place(&before) != Some(at));
        }
    }
    if before.since != after.since {
        if let Some((list, at)) = before.since {
            state.put_since(list, at, record, None);
        }
        if let Some((list, at)) = after.since {
            state.put_since(list, at, record, Some(swept.unwrap_or_default()));
        }
    }
    count(state, record, after.counts, before.counts);
}

/// Changes the counters of the tenant, of the operation and of all.
pub(super) fn count(state: &mut impl State, record: &RecordRef, more: Counters, less: Counters) {
    if more == less || planted!(QuotaNotReturned) && more.records < less.records {
        return;
    }
    for level in [None, Some(record.operation)] {
        state.count(&record.tenant, level, more, less);
    }
    let total = &mut state.globals_mut().total;
    *total = total.changed(more, less);
}

/// Adds a row to a record's history: into a free slot, or into that of the oldest that may go, or, where none may, into
/// the one that the oldest two of a kind leave when they are folded into one. The head gets the new count of slots and
/// bytes.
pub(super) fn add_row(state: &mut impl State, record: &RecordRef, head: &mut Head, row: Row) {
    let rows_max = state.globals().formed.as_ref().map_or(1, |formed| formed.limits.history_rows_max.max(1));
    if head.rows < rows_max {
        head.row_bytes += row.bytes();
        state.put_row(record, head.rows, Some(row));
        head.rows += 1;
        return;
    }
    let mut rows: Vec<(u8, Arc<Row>)> =
        (0..head.rows).filter_map(|slot| Some((slot, state.row(record, slot)?))).collect();
    rows.sort_by_key(|(_, row)| row.moment.position);
    let evicted = rows.iter().find(|(_, old)| !old.kind.is_kept()).map(|(slot, old)| (*slot, old.bytes()));
    let Some((slot, freed)) = evicted.or_else(|| fold(state, record, &rows)) else {
        // So few slots that every one holds a kept row of a kind of its own: what may go is what came last.
        return;
    };
    head.row_bytes = head.row_bytes - freed + row.bytes();
    state.put_row(record, slot, Some(row));
}

/// Folds the oldest two rows of one kind into the later one, which counts both. Returns the slot and the bytes freed.
fn fold(state: &mut impl State, record: &RecordRef, rows: &[(u8, Arc<Row>)]) -> Option<(u8, u32)> {
    rows.iter().enumerate().find_map(|(index, (slot, older))| {
        let (into, later) = rows[index + 1..].iter().find(|(_, later)| later.kind == older.kind)?;
        let count = older.count.saturating_add(later.count);
        state.put_row(record, *into, Some(Row { count, ..(**later).clone() }));
        Some((*slot, older.bytes()))
    })
}
