//! The audit chains: one a tenant, one of the cluster. Each row holds the hash of the stored bytes of the row before
//! it, so a row can't be changed or dropped unseen.
//!
//! Rows past their time go with the sweep, whether the chain grows or not; the last one's sequence and hash stay in the
//! chain's head. When a tenant's oldest row goes stands in the deadline index, one entry a chain; when the cluster's does,
//! in the small state. Whoever reads rows leaves out those past their time, swept or not.

use sha2::{Digest, Sha256};

use super::{
    codec,
    command::{RecordRef, Sealed},
    state::{AuditKind, AuditRow, ChainHead, Deadline, DeadlineKind, Globals, State, TenantState},
};
use crate::id::{self, KeyedHash, LineageId, Position, Tenant, Time};

/// The head of a chain without rows: SHA-256 of `semel-audit-v1`, the lineage id and the tenant behind its length.
pub fn first(lineage_id: LineageId, tenant: Option<&Tenant>) -> ChainHead {
    let mut name = b"semel-audit-v1".to_vec();
    name.extend_from_slice(&lineage_id.0);
    match tenant {
        Some(tenant) => id::join(&mut name, tenant.as_str().as_bytes()),
        None => id::join_absent(&mut name),
    }
    ChainHead { sequence: 0, hash: Sha256::digest(&name).into(), first_kept: 1, oldest: Time::default() }
}

/// What an audit row says beside its place in the chain.
pub(super) struct Note<'a> {
    pub kind: AuditKind,
    pub record: Option<KeyedHash>,
    pub actor: Option<&'a Sealed>,
    pub detail: Option<&'a Sealed>,
}

/// Appends a row to a tenant's chain, or to the cluster's.
pub(super) fn append(state: &mut impl State, tenant: Option<&Tenant>, at: Position, now: Time, note: Note<'_>) {
    let Some(formed) = state.globals().formed.clone() else { return };
    let mut chain = match tenant {
        Some(tenant) => match state.tenant(tenant) {
            Some(opened) => opened.audit,
            None => return,
        },
        None => state.globals().audit.unwrap_or_else(|| first(formed.lineage_id, None)),
    };
    let row = AuditRow {
        position: at,
        at: now,
        kind: note.kind,
        tenant: tenant.cloned(),
        record: note.record,
        actor: note.actor.cloned(),
        detail: note.detail.cloned(),
        previous: chain.hash,
    };
    let bytes = codec::encode(&row);
    chain.sequence += 1;
    chain.hash = Sha256::digest(&bytes).into();
    state.put_audit_row(tenant, chain.sequence, Some(bytes));
    if chain.first_kept == chain.sequence {
        chain.oldest = now;
        if let Some(tenant) = tenant {
            await_end(state, tenant, now.plus_s(formed.limits.audit_s));
        }
    }
    put(state, tenant, chain);
}

fn put(state: &mut impl State, tenant: Option<&Tenant>, chain: ChainHead) {
    match tenant {
        Some(tenant) => {
            if let Some(opened) = state.tenant(tenant) {
                state.put_tenant(tenant, TenantState { audit: chain, ..(*opened).clone() });
            }
        }
        None => {
            state.globals_mut().audit = Some(chain);
        }
    }
}

/// Where a tenant's chain stands in the deadline index.
fn place(tenant: &Tenant) -> RecordRef {
    RecordRef { tenant: tenant.clone(), operation: KeyedHash([0; 16]), record: KeyedHash([0; 16]) }
}

/// The entry of the deadline index for a tenant's chain whose oldest row was written at `oldest`.
pub(super) fn demanded(tenant: &Tenant, oldest: Time, audit_s: u32) -> ((Time, RecordRef), Deadline) {
    let at = oldest.plus_s(audit_s);
    let entry = Deadline { kind: DeadlineKind::Audit, then: at, since: at, bytes: 0, has_body: false, rows: 0 };
    ((at, place(tenant)), entry)
}

fn await_end(state: &mut impl State, tenant: &Tenant, at: Time) {
    let ((at, place), entry) = demanded(tenant, at, 0);
    state.put_deadline(at, &place, Some(entry), false);
}

/// When the oldest row of the cluster's chain goes, if it has any.
pub fn cluster_due(globals: &Globals) -> Option<Time> {
    let chain = globals.audit.filter(ChainHead::has_rows)?;
    Some(chain.oldest.plus_s(globals.formed.as_ref()?.limits.audit_s))
}

/// Removes rows that are past their time from a tenant's chain, at most `max`: its entry of the deadline index was due at
/// `due`, and moves to the oldest row that is left. Returns how many.
pub(super) fn trim(state: &mut impl State, tenant: &Tenant, due: Time, now: Time, max: usize) -> usize {
    let (Some(opened), Some(formed)) = (state.tenant(tenant), state.globals().formed.clone()) else { return 0 };
    let audit_s = formed.limits.audit_s;
    state.put_deadline(due, &place(tenant), None, false);
    let (chain, removed) = trimmed(state, Some(tenant), opened.audit, audit_s, now, max);
    if chain.has_rows() {
        await_end(state, tenant, chain.oldest.plus_s(audit_s));
    }
    put(state, Some(tenant), chain);
    removed
}

/// The same of the cluster's chain.
pub(super) fn trim_cluster(state: &mut impl State, now: Time, max: usize) {
    let (Some(chain), Some(formed)) = (state.globals().audit, state.globals().formed.clone()) else { return };
    let (chain, removed) = trimmed(state, None, chain, formed.limits.audit_s, now, max);
    if removed > 0 {
        put(state, None, chain);
    }
}

fn trimmed(
    state: &mut impl State,
    of: Option<&Tenant>,
    mut chain: ChainHead,
    audit_s: u32,
    now: Time,
    max: usize,
) -> (ChainHead, usize) {
    let mut removed = 0;
    while removed < max && chain.has_rows() && now >= chain.oldest.plus_s(audit_s) {
        state.put_audit_row(of, chain.first_kept, None);
        chain.first_kept += 1;
        removed += 1;
        if chain.has_rows() {
            let next = state.audit_row(of, chain.first_kept);
            chain.oldest = next.expect("a chain is whole from its oldest kept row to its head").at;
        }
    }
    (chain, removed)
}
