//! Fields under another data key: what they say stays, and so does everything that can be seen of a record. Each replacement
//! says what it replaces, so that what changed meanwhile is left alone.

use std::sync::Arc;

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};

use super::{
    answer::Answer,
    change::rewrite,
    codec::{Blob, tagged_values},
    command::{RecordRef, Sealed, Token},
    record::{BodyPlace, Grant, Head, Row, Stored},
    rekey,
    state::State,
};
use crate::{
    id::{Position, Tenant, Time},
    refusal::{Code, Refusal},
};

/// Bytes of a field that tell it from others: its nonce.
const TOLD_BYTES: usize = 24;

tagged_values! {
    /// Where a sealed field of a record stands.
    Place {
        /// The identity.
        Id(()) = 1,
        /// The plain fingerprint digests.
        Fingerprints(()) = 2,
        /// The labels.
        Labels(()) = 3,
        /// Who claimed.
        Claimer(()) = 4,
        /// The recovery point.
        Checkpoint(()) = 5,
        /// Why it is indeterminate.
        Reason(()) = 6,
        /// Who looks at it.
        Investigator(()) = 7,
        /// Status, headers, content type and valid-until.
        OutcomeMeta(()) = 8,
        /// The body, wherever it stands.
        OutcomeBody(()) = 9,
        /// Who, in the history row of this slot.
        RowActor(u8) = 10,
        /// The reason or evidence, in the history row of this slot.
        RowDetail(u8) = 11,
    }
}

/// A field under another key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Replacement {
    /// Where it stands.
    pub place: Place,
    /// The data key that it was sealed by, 0 for none.
    pub was: u32,
    /// The first bytes of what stood there, 24 at most: its nonce.
    pub told: Blob,
    /// The same text, sealed by the data key of now.
    pub field: Sealed,
}

impl Replacement {
    /// A field in the place of another.
    pub fn of(place: Place, old: &Sealed, field: Sealed) -> Self {
        let told = old.bytes.0.slice(..old.len().min(TOLD_BYTES));
        Self { place, was: old.key_id, told: Blob(told), field }
    }

    fn replaces(&self, old: &Sealed) -> bool {
        old.key_id == self.was && old.bytes.0[..old.len().min(TOLD_BYTES)] == self.told.0[..]
    }
}

/// Fields of a record under another data key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ResealedRecord {
    /// The record.
    pub record: RecordRef,
    /// Its version, which stays.
    pub version: Position,
    /// All of its fields that were sealed by another key.
    pub fields: Vec<Replacement>,
}

/// A token's scope under another data key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ResealedToken {
    /// The token.
    pub id: [u8; 10],
    /// Its tenant; none for a cluster token.
    pub of: Option<Tenant>,
    /// Its scope.
    pub scope: Replacement,
}

tagged_values! {
    /// What has fields under another data key.
    Resealed {
        /// A record.
        Record(ResealedRecord) = 1,
        /// A token.
        Token(ResealedToken) = 2,
    }
}

fn changed() -> Refusal {
    Refusal::new(Code::VersionChanged, "it was changed meanwhile")
}

pub(super) fn reseal(state: &mut impl State, resealed: &Resealed, now: Time) -> Result<Answer, Refusal> {
    match resealed {
        Resealed::Record(resealed) => reseal_record(state, resealed, now)?,
        Resealed::Token(resealed) => {
            rekey::admit(state, resealed.of.as_ref(), [&resealed.scope.field])?;
            let known = state.token(&resealed.id).filter(|token| token.tenant == resealed.of);
            let known = known.filter(|token| resealed.scope.replaces(&token.scope)).ok_or_else(changed)?;
            state.put_token(Token { scope: resealed.scope.field.clone(), ..(*known).clone() });
        }
    }
    Ok(Answer::Done)
}

fn reseal_record(state: &mut impl State, resealed: &ResealedRecord, now: Time) -> Result<(), Refusal> {
    let record = &resealed.record;
    rekey::admit(state, Some(&record.tenant), resealed.fields.iter().map(|one| &one.field))?;
    let old = state.head(record).filter(|head| head.version == resealed.version).ok_or_else(changed)?;
    let mut new = Parts { head: (*old).clone(), body: None, rows: Vec::new() };
    for one in &resealed.fields {
        new.replace(&*state, record, one)?;
    }
    let Parts { head, body, rows } = new;
    if let Some(body) = body {
        state.put_body(record, Some(body));
    }
    for (slot, row) in rows {
        state.put_row(record, slot, Some(row));
    }
    rewrite(state, record, &old, head, now);
    Ok(())
}

/// A record on its way to other keys.
struct Parts {
    head: Head,
    body: Option<Sealed>,
    rows: Vec<(u8, Row)>,
}

impl Parts {
    fn replace(&mut self, state: &impl State, record: &RecordRef, one: &Replacement) -> Result<(), Refusal> {
        match one.place {
            Place::RowActor(slot) | Place::RowDetail(slot) => return self.replace_in_row(state, record, slot, one),
            Place::OutcomeBody(()) if self.head.has_body() => return self.replace_body(state, record, one),
            _ => {}
        }
        let place = field_of(&mut self.head, &one.place).filter(|field| one.replaces(field)).ok_or_else(changed)?;
        *place = one.field.clone();
        Ok(())
    }

    fn replace_body(&mut self, state: &impl State, record: &RecordRef, one: &Replacement) -> Result<(), Refusal> {
        state.body(record).filter(|body| one.replaces(body)).ok_or_else(changed)?;
        if let Stored::Completed(both) = &mut self.head.stored
            && let Some(outcome) = &mut both.1.outcome
        {
            outcome.body = BodyPlace::Separate(u32::try_from(one.field.len()).unwrap_or(u32::MAX));
        }
        self.body = Some(one.field.clone());
        Ok(())
    }

    fn replace_in_row(
        &mut self,
        state: &impl State,
        record: &RecordRef,
        slot: u8,
        one: &Replacement,
    ) -> Result<(), Refusal> {
        let at = match self.rows.iter().position(|(known, _)| *known == slot) {
            Some(at) => at,
            None => {
                let row = (slot < self.head.rows).then(|| state.row(record, slot)).flatten().ok_or_else(changed)?;
                self.rows.push((slot, (*row).clone()));
                self.rows.len() - 1
            }
        };
        let row = &mut self.rows[at].1;
        let before = row.bytes();
        let field = if matches!(one.place, Place::RowActor(_)) { &mut row.actor } else { &mut row.detail };
        let field = field.as_mut().filter(|field| one.replaces(field)).ok_or_else(changed)?;
        *field = one.field.clone();
        self.head.row_bytes = self.head.row_bytes - before + row.bytes();
        Ok(())
    }
}

fn grant_of(stored: &mut Stored) -> Option<&mut Grant> {
    match stored {
        Stored::InProgress(grant) => Some(Arc::make_mut(grant)),
        Stored::Indeterminate(both) => Some(Arc::make_mut(&mut both.0)),
        Stored::Completed(both) => Some(Arc::make_mut(&mut both.0)),
        Stored::Trace(_) => None,
    }
}

/// A field in the head itself.
fn field_of<'a>(head: &'a mut Head, place: &Place) -> Option<&'a mut Sealed> {
    match place {
        Place::Id(()) => Some(&mut head.id),
        Place::Fingerprints(()) => Some(&mut grant_of(&mut head.stored)?.fingerprints.sealed),
        Place::Labels(()) => grant_of(&mut head.stored)?.labels.as_mut(),
        Place::Claimer(()) => Some(&mut grant_of(&mut head.stored)?.actor),
        Place::Checkpoint(()) => Some(&mut grant_of(&mut head.stored)?.checkpoint.as_mut()?.sealed),
        Place::Reason(()) => match &mut head.stored {
            Stored::Indeterminate(both) => both.1.reason.as_mut(),
            _ => None,
        },
        Place::Investigator(()) => match &mut head.stored {
            Stored::Indeterminate(both) => Some(&mut both.1.investigation.as_mut()?.by.actor),
            _ => None,
        },
        Place::OutcomeMeta(()) => match &mut head.stored {
            Stored::Completed(both) => Some(&mut both.1.outcome.as_mut()?.meta),
            _ => None,
        },
        Place::OutcomeBody(()) => match &mut head.stored {
            Stored::Completed(both) => match &mut both.1.outcome.as_mut()?.body {
                BodyPlace::Inline(body) => Some(body),
                BodyPlace::Separate(_) | BodyPlace::NotStored(()) => None,
            },
            _ => None,
        },
        Place::RowActor(_) | Place::RowDetail(_) => None,
    }
}

/// Every sealed field of a record with its place, as they stand now.
pub fn fields(state: &impl State, record: &RecordRef, head: &Head) -> Vec<(Place, Sealed)> {
    let mut found = vec![(Place::Id(()), head.id.clone())];
    if let Some(grant) = head.grant() {
        found.push((Place::Fingerprints(()), grant.fingerprints.sealed.clone()));
        found.extend(grant.labels.clone().map(|labels| (Place::Labels(()), labels)));
        found.push((Place::Claimer(()), grant.actor.clone()));
        found.extend(grant.checkpoint.as_ref().map(|point| (Place::Checkpoint(()), point.sealed.clone())));
    }
    match &head.stored {
        Stored::Indeterminate(both) => {
            found.extend(both.1.reason.clone().map(|reason| (Place::Reason(()), reason)));
            let by = both.1.investigation.as_ref().map(|running| running.by.actor.clone());
            found.extend(by.map(|actor| (Place::Investigator(()), actor)));
        }
        Stored::Completed(both) => {
            if let Some(outcome) = &both.1.outcome {
                found.push((Place::OutcomeMeta(()), outcome.meta.clone()));
                let body = match &outcome.body {
                    BodyPlace::Inline(body) => Some(body.clone()),
                    BodyPlace::Separate(_) => state.body(record),
                    BodyPlace::NotStored(()) => None,
                };
                found.extend(body.map(|body| (Place::OutcomeBody(()), body)));
            }
        }
        Stored::InProgress(_) | Stored::Trace(_) => {}
    }
    for slot in 0..head.rows {
        if let Some(row) = state.row(record, slot) {
            found.extend(row.actor.clone().map(|actor| (Place::RowActor(slot), actor)));
            found.extend(row.detail.clone().map(|detail| (Place::RowDetail(slot), detail)));
        }
    }
    found
}

#[cfg(test)]
mod tests;
