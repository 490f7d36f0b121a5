//! The end of a tenant: closed for good, its keys destroyed, its rows deleted step by step. Its audit chain stays, unread,
//! until its rows are past their time: what it proves hangs on stored bytes alone.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{
    answer::Answer,
    audit,
    change::change,
    codec::Blob,
    command::{Sealed, Wrapped},
    record::Moment,
    sealing::{KeyRow, RingEntry, RingState},
    state::{AuditKind, Event, State, TenantState},
};
use crate::{
    id::{Position, Tenant, Time, Uuid},
    refusal::{Code, Refusal},
};

/// A tenant on its way out: there from its closing on, for good.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Closing {
    /// When it was closed.
    pub closed: Moment,
    /// The request that closed it; none where a restore did.
    pub request_id: Option<Uuid>,
    /// Whether it was opened before anything was sealed, so that older logs and backups can still be read.
    pub older_copies_stay: bool,
    /// Where its keys were destroyed.
    pub destroyed: Option<Position>,
    /// Where the last of its rows went, its keys before: what a node keeps from before then must go too.
    pub emptied: Option<Position>,
}

/// Closes a tenant: nothing is taken for it any more, and its name is never used again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantClosed {
    /// The tenant.
    pub tenant: Tenant,
    /// The request, for repeats.
    pub request_id: Uuid,
    /// Whoever asks knows that older copies of what was never sealed stay readable.
    pub older_copies_stay: bool,
    /// Who, sealed by the cluster's key.
    pub actor: Sealed,
    /// Which and why, as JSON text, sealed by the cluster's key.
    pub detail: Sealed,
}

/// Destroys the keys of a tenant that is closed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantKeysDestroyed {
    /// The tenant.
    pub tenant: Tenant,
    /// Who, sealed by the cluster's key.
    pub actor: Sealed,
    /// Which, as JSON text, sealed by the cluster's key.
    pub detail: Sealed,
}

/// What stands in the place of an index key that was destroyed: it opens under no key.
pub fn no_key() -> Wrapped {
    Wrapped { wrapping_id: 1, bytes: Blob::default() }
}

/// Whether a tenant is closed: by its own state, or, where a restore has brought nothing else of it, by the key ring.
pub fn is_closed(state: &impl State, tenant: &Tenant) -> bool {
    match state.tenant(tenant) {
        Some(opened) => opened.closed,
        None => {
            let ring = &state.key_table().ring;
            // Most clusters seal nothing: asked before a key is made.
            !ring.is_empty() && ring.get(&Some(tenant.clone())).is_some_and(|entry| entry.state == RingState::Shredded)
        }
    }
}

pub(super) fn close(
    state: &mut impl State,
    command: &TenantClosed,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let wrong_state = |detail| Err(Refusal::new(Code::WrongState, detail));
    if state.key_table().sealing.is_none() {
        return wrong_state("the cluster is not sealed: there are no keys to destroy");
    }
    if is_closed(state, &command.tenant) {
        return Ok(Answer::Done);
    }
    let Some(opened) = state.tenant(&command.tenant) else {
        return Err(Refusal::new(Code::NotFound, "no tenant of this name was ever opened"));
    };
    let is_older = state.key_table().enabled.is_some_and(|enabled| opened.opened < enabled.position);
    if is_older && !command.older_copies_stay {
        return wrong_state(
            "the tenant was opened before the cluster was sealed: logs and backups from then can still be read; \
             older_copies_stay says that this is known",
        );
    }
    state.put_tenant(&command.tenant, TenantState { closed: true, ..(*opened).clone() });
    let closing = Closing {
        closed: Moment { position: at, at: now },
        request_id: Some(command.request_id),
        older_copies_stay: is_older,
        destroyed: None,
        emptied: None,
    };
    state.put_key(KeyRow::Closing(command.tenant.clone(), closing));
    state.note(Event::Closed(command.tenant.clone()));
    audited(state, AuditKind::TenantClosed, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

pub(super) fn destroy(
    state: &mut impl State,
    command: &TenantKeysDestroyed,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let Some(closing) = state.key_table().closings.get(&command.tenant).cloned() else {
        return Err(Refusal::new(Code::WrongState, "the tenant is not closed"));
    };
    if closing.destroyed.is_some() {
        return Ok(Answer::Done);
    }
    let of = Some(command.tenant.clone());
    state.put_key(KeyRow::Ring(of.clone(), RingEntry { state: RingState::Shredded, at: now, root: None }));
    state.put_key(KeyRow::Data(of, None));
    state.put_key(KeyRow::Closing(command.tenant.clone(), Closing { destroyed: Some(at), ..(*closing).clone() }));
    if let Some(opened) = state.tenant(&command.tenant) {
        state.put_tenant(&command.tenant, TenantState { index_key: no_key(), ..(*opened).clone() });
    }
    // Heard again: whoever has opened the keys meanwhile forgets them.
    state.note(Event::Closed(command.tenant.clone()));
    audited(state, AuditKind::TenantKeysDestroyed, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

/// In the cluster's chain, under the cluster's keys: those of the tenant go.
fn audited(state: &mut impl State, kind: AuditKind, at: Position, now: Time, (actor, detail): (&Sealed, &Sealed)) {
    let note = audit::Note { kind, record: None, actor: Some(actor), detail: Some(detail) };
    audit::append(state, None, at, now, note);
}

/// Rows that a record may have for each that a sweep deletes: what one sweep writes stays in proportion to its bound.
const RECORD_WEIGHT: usize = 8;

/// Deletes rows of tenants that are closed, at most as many as `max` stands for, in the order of their keys.
pub(super) fn empty(state: &mut impl State, at: Position, now: Time, max: usize) {
    if state.key_table().closings.is_empty() {
        return;
    }
    let unfinished = state.key_table().closings.iter().filter(|(_, closing)| closing.emptied.is_none());
    let unfinished: Vec<(Tenant, Arc<Closing>)> =
        unfinished.map(|(of, closing)| (of.clone(), Arc::clone(closing))).collect();
    let mut left = max.div_ceil(RECORD_WEIGHT);
    for (tenant, closing) in unfinished {
        if left == 0 {
            return;
        }
        left -= delete_records(state, &tenant, now, left);
        left -= delete_policies(state, &tenant, left);
        // What is still to be deleted may be there only where there was no room for more.
        if left > 0 && closing.destroyed.is_some() {
            state.put_key(KeyRow::Closing(tenant, Closing { emptied: Some(at), ..(*closing).clone() }));
        }
    }
}

fn delete_records(state: &mut impl State, tenant: &Tenant, now: Time, max: usize) -> usize {
    let found = state.records_of(tenant, max);
    for (record, head) in &found {
        change(state, record, Some(head), None, now);
        for slot in 0..head.rows {
            state.put_row(record, slot, None);
        }
    }
    found.len()
}

fn delete_policies(state: &mut impl State, tenant: &Tenant, max: usize) -> usize {
    let found = state.policies_of(tenant, max);
    for operation in &found {
        state.put_policy(tenant, *operation, None);
    }
    let operations = u32::try_from(found.iter().flatten().count()).unwrap_or(u32::MAX);
    if operations > 0
        && let Some(opened) = state.tenant(tenant)
    {
        let policies = opened.policies.saturating_sub(operations);
        state.put_tenant(tenant, TenantState { policies, ..(*opened).clone() });
    }
    found.len()
}

#[cfg(test)]
mod tests;
