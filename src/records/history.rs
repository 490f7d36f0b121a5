//! A record's history: what its head tells of itself, and the rows of what it can't.

use std::sync::Arc;

use super::{
    command::Sealed,
    record::{Grant, Head, PastAttempt, Row, RowKind, Standing, Stored, VerdictWord},
    state::Globals,
};
use crate::id::{Fence, Position, Time};

/// An event of a record's history.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEvent {
    /// When.
    pub at: Time,
    /// The position; of what is derived from a deadline, that of the event before it.
    pub index: Position,
    /// The kind's word.
    pub kind: &'static str,
    /// Who, sealed.
    pub actor: Option<Sealed>,
    /// With which fence.
    pub fence: Option<Fence>,
    /// The reason or evidence, sealed.
    pub detail: Option<Sealed>,
    /// How often.
    pub count: u32,
    /// Of a resolved event.
    pub verdict: Option<VerdictWord>,
}

/// The history of a record at `now`, oldest first.
pub fn history(head: Option<&Head>, rows: &[Arc<Row>], now: Time, globals: &Globals) -> Vec<HistoryEvent> {
    let standing = Standing::of(head, now, globals);
    let Some(head) = head.filter(|_| !matches!(standing, Standing::Absent { trace: None })) else { return Vec::new() };
    let mut events = Vec::new();
    for row in rows {
        match &row.attempt {
            Some(past) => attempt(&mut events, row, past),
            None => events.push(HistoryEvent {
                at: row.moment.at,
                index: row.moment.position,
                kind: row.kind.as_str(),
                actor: row.actor.clone(),
                fence: row.fence,
                detail: row.detail.clone(),
                count: row.count,
                verdict: row.verdict,
            }),
        }
    }
    if let Some(grant) = head.grant() {
        current(&mut events, head, grant, &standing, now);
    }
    // Of one command the cause comes first: a checkpoint implies begin, a verdict completes.
    let rank = |event: &HistoryEvent| match event.kind {
        "claimed" => 0,
        "begun" => 1,
        "completed" => 3,
        _ => 2,
    };
    events.sort_by_key(|event| (event.at, event.index, rank(event)));
    let mut newest = Position(0);
    for event in &mut events {
        // What is derived from a deadline has no position of its own: it takes that of what came before it.
        newest = newest.max(event.index);
        event.index = newest;
    }
    events
}

fn event(
    kind: &'static str,
    at: Time,
    index: Position,
    grant_fence: Option<Fence>,
    actor: Option<&Sealed>,
) -> HistoryEvent {
    HistoryEvent { at, index, kind, actor: actor.cloned(), fence: grant_fence, detail: None, count: 1, verdict: None }
}

fn attempt(events: &mut Vec<HistoryEvent>, row: &Row, past: &PastAttempt) {
    debug_assert_eq!(row.kind, RowKind::Attempt);
    let (actor, fence, granted) = (row.actor.as_ref(), row.fence, row.moment);
    events.push(event("claimed", granted.at, granted.position, fence, actor));
    if let Some(begun) = past.begun {
        events.push(event("begun", begun.at, begun.position, fence, actor));
    }
    if let Some(at) = past.lapsed_at {
        events.push(event("lapsed", at, granted.position, fence, None));
    }
    if let Some(done) = past.completed {
        events.push(event("completed", done.at, done.position, fence, actor));
    }
    if let Some(at) = past.expired_at {
        events.push(event("expired", at, granted.position, fence, None));
    }
}

fn current(events: &mut Vec<HistoryEvent>, head: &Head, grant: &Grant, standing: &Standing<'_>, now: Time) {
    let (fence, actor) = (Some(grant.fence()), Some(&grant.actor));
    events.push(event("claimed", grant.granted.at, grant.granted.position, fence, actor));
    if let Some(begun) = grant.begun {
        events.push(event("begun", begun.at, begun.position, fence, actor));
    }
    if let Some(at) = head.lapsed_at(now) {
        events.push(event("lapsed", at, grant.granted.position, fence, None));
    }
    if let Stored::Completed(both) = &head.stored {
        let done = &both.1;
        let by = actor.filter(|_| !done.by_verdict);
        events.push(event("completed", done.completed.at, done.completed.position, fence, by));
        if matches!(standing, Standing::Completed { expired_since: Some(_), .. }) && done.forgotten.is_none() {
            events.push(event("expired", done.replay_until, done.completed.position, fence, None));
        }
    }
}
