//! What was sealed by a data key that another has taken the place of, sealed anew: the same text at the same place.

use super::{Cipher, Field, SealError, Subject};
use crate::{
    id::{Fence, Tenant},
    records::{
        command::{RecordRef, Sealed, Token},
        record::{Head, Row, RowKind, Stored},
        reseal::{self, Place, Replacement, ResealedRecord, ResealedToken},
        state::State,
    },
};

/// Opens a field and seals it by the key of now.
fn renewed(
    cipher: &Cipher,
    (field, subject, fence): (Field, Subject, Option<Fence>),
    old: &Sealed,
) -> Result<Sealed, SealError> {
    match fence {
        Some(fence) => Ok(cipher.seal_fenced(field, subject, fence, cipher.open_fenced(field, subject, fence, old)?)),
        None => Ok(cipher.seal(field, subject, cipher.open(field, subject, old)?)),
    }
}

/// As what the field at this place is sealed, and under which fence.
fn sealed_as(place: &Place, head: &Head, row: impl Fn(u8) -> Option<std::sync::Arc<Row>>) -> (Field, Option<Fence>) {
    let outcome = || match &head.stored {
        Stored::Completed(both) => both.1.outcome.as_ref().map(|outcome| outcome.fence),
        _ => None,
    };
    let point = || head.grant().and_then(|grant| grant.checkpoint.as_ref()).map(|point| point.fence);
    match place {
        Place::Id(()) => (Field::Id, None),
        Place::Fingerprints(()) => (Field::Fingerprints, None),
        Place::Labels(()) => (Field::Labels, None),
        Place::Claimer(()) | Place::Investigator(()) | Place::RowActor(_) => (Field::Actor, None),
        Place::Checkpoint(()) => (Field::Checkpoint, point()),
        Place::Reason(()) => (Field::Reason, None),
        Place::OutcomeMeta(()) => (Field::OutcomeMeta, outcome()),
        Place::OutcomeBody(()) => (Field::OutcomeBody, outcome()),
        Place::RowDetail(slot) => match row(*slot).map(|row| row.kind) {
            Some(RowKind::Suspended | RowKind::Forgotten) => (Field::Reason, None),
            _ => (Field::Evidence, None),
        },
    }
}

/// The fields of a record that were not sealed by the key of now, sealed by it; none where there are none.
///
/// # Errors
/// [`SealError`]: one doesn't open.
pub fn record(
    state: &impl State,
    cipher: &Cipher,
    record: &RecordRef,
    head: &Head,
) -> Result<Option<ResealedRecord>, SealError> {
    let current = cipher.current();
    let mut fields = Vec::new();
    for (place, old) in reseal::fields(state, record, head) {
        if old.key_id != current {
            let (field, fence) = sealed_as(&place, head, |slot| state.row(record, slot));
            let new = renewed(cipher, (field, Subject::Record(record.record), fence), &old)?;
            fields.push(Replacement::of(place, &old, new));
        }
    }
    let resealed = ResealedRecord { record: record.clone(), version: head.version, fields };
    Ok((!resealed.fields.is_empty()).then_some(resealed))
}

/// The scope of a token, where it was not sealed by the key of now.
///
/// # Errors
/// [`SealError`]: it doesn't open.
pub fn token(cipher: &Cipher, token: &Token) -> Result<Option<ResealedToken>, SealError> {
    if token.scope.key_id == cipher.current() {
        return Ok(None);
    }
    let new = renewed(cipher, (Field::TokenScope, Subject::Token(token.id), None), &token.scope)?;
    let scope = Replacement::of(Place::Id(()), &token.scope, new);
    let of: Option<Tenant> = token.tenant.clone();
    Ok(Some(ResealedToken { id: token.id, of, scope }))
}
