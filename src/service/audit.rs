//! Reading an audit chain: a tenant's, or the cluster's own.

use sha2::{Digest, Sha256};

use super::{
    Log,
    answer::{AuditAnswer, AuditEvent, AuditHead},
    node::Service,
    request::AuditRequest,
};
use crate::{
    auth::{Caller, Method, Scope, caller::forbidden},
    id::Tenant,
    records::{
        audit, codec,
        command::Sealed,
        state::{AuditKind, AuditRow, ChainHead, State},
    },
    refusal::Refusal,
    seal::{Cipher, Field, Subject},
};

impl<L: Log> Service<L> {
    pub(super) async fn do_audit(&self, caller: &Caller, request: AuditRequest) -> Result<AuditAnswer, Refusal> {
        let tenant = caller.authorize_tokens(Method::Audit, request.tenant.as_ref())?;
        // A chain tells of a tenant's every operation.
        if matches!(caller.scope(), Scope::Tenant(_)) && !caller.allows_every_operation() {
            return Err(forbidden());
        }
        self.log.barrier().await?;
        self.judge(caller, tenant.as_ref())?;
        let state = self.records.read();
        let globals = state.globals();
        let index = globals.position;
        let Some(chain) = chain_of(&*state, tenant.as_ref()) else {
            return Ok(AuditAnswer { events: Vec::new(), head: None, next_seq: None, index });
        };
        let cipher = self.tenants.keys().cipher(&*state, tenant.as_ref())?;
        let audit_s = globals.formed.as_ref().map_or(u32::MAX, |formed| formed.limits.audit_s);
        let first = request.from_seq.max(chain.first_kept);
        let end = first.saturating_add(u64::from(request.page_size)).min(chain.sequence + 1);
        let mut events = Vec::new();
        for seq in first..end {
            let Some(row) = state.audit_row(tenant.as_ref(), seq) else { continue };
            // Past their time, swept or not.
            if globals.time < row.at.plus_s(audit_s) {
                events.push(event(seq, &row, &cipher));
            }
        }
        let newest = state.audit_row(tenant.as_ref(), chain.sequence).map(|row| row.at);
        let keys = state.key_table().data.get(&tenant);
        let data_keys =
            keys.map_or_else(Vec::new, |keys| keys.keys.iter().map(|key| (key.id, key.key.clone())).collect());
        let head = AuditHead { tenant, seq: chain.sequence, hash: chain.hash, at: newest, data_keys };
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

/// As what the fields of a row are sealed: those of a record's row are the record's own.
pub(crate) fn sealed_as(row: &AuditRow) -> (Subject, Field, Field) {
    match (row.kind, row.record) {
        (AuditKind::Forgotten, Some(record)) => (Subject::Record(record), Field::Actor, Field::Reason),
        (
            AuditKind::Resolved | AuditKind::Released | AuditKind::StaleFence | AuditKind::OutcomeImmutable,
            Some(record),
        ) => (Subject::Record(record), Field::Actor, Field::Evidence),
        _ => (Subject::Audit, Field::AuditActor, Field::AuditDetail),
    }
}

/// A row as it is told.
fn event(seq: u64, row: &AuditRow, cipher: &Cipher) -> AuditEvent {
    let (subject, actor, detail) = sealed_as(row);
    // A restore into a stopped node has no keys: it names nobody, in clear.
    let keyless = row.kind == AuditKind::Restored;
    let shown = |field, sealed: &Option<Sealed>| shown(cipher, field, subject, sealed.as_ref()?, keyless);
    // The format is one: what was read encodes to the bytes that are stored, which are what is chained.
    let bytes = codec::encode(row);
    AuditEvent {
        seq,
        position: row.position,
        at: row.at,
        kind: row.kind,
        tenant: row.tenant.clone(),
        record: row.record,
        actor: shown(actor, &row.actor),
        detail: shown(detail, &row.detail),
        previous: row.previous,
        hash: Sha256::digest(&bytes).into(),
        row: bytes,
    }
}

/// A field in clear; none where its key is gone: the row itself still proves the chain.
fn shown(cipher: &Cipher, field: Field, subject: Subject, sealed: &Sealed, keyless: bool) -> Option<String> {
    let opened = match sealed.key_id {
        0 if keyless => sealed.bytes.0.clone(),
        _ => cipher.open(field, subject, sealed).ok()?,
    };
    Some(String::from_utf8_lossy(&opened).into_owned())
}

/// A row that is not sealed, as it is told.
#[cfg(test)]
pub(crate) fn plain_event(seq: u64, row: &AuditRow) -> AuditEvent {
    event(seq, row, &Cipher::null())
}
