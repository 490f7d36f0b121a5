//! Reading an audit chain: a tenant's, or the cluster's own.

use sha2::{Digest, Sha256};

use super::{
    Log,
    answer::{AuditAnswer, AuditEvent, AuditHead},
    names,
    node::Service,
    request::AuditRequest,
};
use crate::{
    auth::{Caller, Method, Scope, caller::forbidden},
    id::Tenant,
    records::{
        audit, codec,
        command::Sealed,
        state::{AuditRow, ChainHead, State},
    },
    refusal::Refusal,
    seal::Field,
};

impl<L: Log> Service<L> {
    pub(super) async fn do_audit(&self, caller: &Caller, request: AuditRequest) -> Result<AuditAnswer, Refusal> {
        let tenant = caller.authorize_tokens(Method::Audit, request.tenant.as_ref())?;
        // A chain tells of a tenant's every operation.
        if matches!(caller.scope(), Scope::Tenant(_)) && !caller.allows_every_operation() {
            return Err(forbidden());
        }
        self.log.barrier().await?;
        self.judge(caller)?;
        let state = self.records.read();
        let globals = state.globals();
        let index = globals.position;
        let Some(chain) = chain_of(&*state, tenant.as_ref()) else {
            return Ok(AuditAnswer { events: Vec::new(), head: None, next_seq: None, index });
        };
        let audit_s = globals.formed.as_ref().map_or(u32::MAX, |formed| formed.limits.audit_s);
        let first = request.from_seq.max(chain.first_kept);
        let end = first.saturating_add(u64::from(request.page_size)).min(chain.sequence + 1);
        let mut events = Vec::new();
        for seq in first..end {
            let Some(row) = state.audit_row(tenant.as_ref(), seq) else { continue };
            // Past their time, swept or not.
            if globals.time < row.at.plus_s(audit_s) {
                events.push(event(seq, &row));
            }
        }
        let newest = state.audit_row(tenant.as_ref(), chain.sequence).map(|row| row.at);
        let head = AuditHead { tenant, seq: chain.sequence, hash: chain.hash, at: newest };
        Ok(AuditAnswer { events, head: Some(head), next_seq: (end <= chain.sequence).then_some(end), index })
    }
}

fn chain_of(state: &impl State, tenant: Option<&Tenant>) -> Option<ChainHead> {
    match tenant {
        Some(tenant) => state.tenant(tenant).map(|opened| opened.audit),
        None => {
            let globals = state.globals();
            let formed = globals.formed.as_ref()?;
            Some(globals.audit.unwrap_or_else(|| audit::first(formed.lineage_id, None)))
        }
    }
}

/// A row as it is told.
pub(crate) fn event(seq: u64, row: &AuditRow) -> AuditEvent {
    // The format is one: what was read encodes to the bytes that are stored, which are what is chained.
    let bytes = codec::encode(row);
    AuditEvent {
        seq,
        position: row.position,
        at: row.at,
        kind: row.kind,
        tenant: row.tenant.clone(),
        record: row.record,
        actor: shown(Field::Actor, row.actor.as_ref()),
        detail: shown(Field::AuditDetail, row.detail.as_ref()),
        previous: row.previous,
        hash: Sha256::digest(&bytes).into(),
        row: bytes,
    }
}

/// A field in clear; none where its key is gone: the row itself still proves the chain.
fn shown(field: Field, sealed: Option<&Sealed>) -> Option<String> {
    names::opened_text(field, sealed?).ok()
}
