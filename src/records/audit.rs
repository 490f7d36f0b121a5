//! The audit chains: one a tenant, one of the cluster. Each row holds the hash of the stored bytes of the row before
//! it, so a row can't be changed or dropped unseen.

use sha2::{Digest, Sha256};

use super::{
    codec,
    command::Sealed,
    state::{AuditKind, AuditRow, ChainHead, State},
};
use crate::id::{self, KeyedHash, LineageId, Position, Tenant, Time};

/// Rows past their time that one append removes at most: more than one, so that a backlog shrinks.
const REMOVED_PER_APPEND: usize = 2;

/// The head of a chain without rows: SHA-256 of `semel-audit-v1`, the lineage id and the tenant behind its length.
pub fn first(lineage_id: LineageId, tenant: Option<&Tenant>) -> ChainHead {
    let mut name = b"semel-audit-v1".to_vec();
    name.extend_from_slice(&lineage_id.0);
    match tenant {
        Some(tenant) => id::join(&mut name, tenant.as_str().as_bytes()),
        None => id::join_absent(&mut name),
    }
    ChainHead { sequence: 0, hash: Sha256::digest(&name).into(), first_kept: 1 }
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
    for _ in 0..REMOVED_PER_APPEND {
        let old = state.audit_row(tenant, chain.first_kept).filter(|row| now >= row.at.plus_s(formed.limits.audit_s));
        if old.is_none() || chain.first_kept >= chain.sequence {
            break;
        }
        state.put_audit_row(tenant, chain.first_kept, None);
        chain.first_kept += 1;
    }
    match tenant {
        Some(tenant) => {
            if let Some(opened) = state.tenant(tenant) {
                state.put_tenant(tenant, super::state::TenantState { audit: chain, ..(*opened).clone() });
            }
        }
        None => {
            state.globals_mut().audit = Some(chain);
        }
    }
}
