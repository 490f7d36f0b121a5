//! Keys that take the place of others: key-encryption keys, by wrapping root keys anew; data keys, by sealing fields anew
//! ([`reseal`](super::reseal)). Whatever comes after the entry that names a new data key is sealed under it, or refused: so an
//! old one that nothing is sealed with stays so.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{
    answer::Answer,
    audit,
    command::{
        CallerCommand, Claim, Command, Forget, Investigate, OwnerAction, OwnerCommand, PolicySet, ProposedOutcome,
        Resolve, Sealed, Verdict, Wrapped,
    },
    sealing::{DataKey, DataKeys, Enabled, KeyRow, OuterKey, RingEntry, RingState, Sealing},
    state::{AuditKind, Event, Formed, State},
    token::{TokenCreated, TokenRevoked},
};
use crate::{
    id::{Position, Tenant, Time},
    refusal::{Code, Refusal},
};

/// Another key-encryption key wraps root keys from now on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KeyRotated {
    /// The key.
    pub outer: OuterKey,
    /// Who, sealed by the cluster's key.
    pub actor: Sealed,
    /// Which, as JSON text, sealed by the cluster's key.
    pub detail: Sealed,
}

/// A root key under another key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Rewrapped {
    /// Whose; none for the cluster's own.
    pub of: Option<Tenant>,
    /// The same root key, wrapped by the current key.
    pub root: Wrapped,
}

/// Root keys under the key that wraps them now.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RootsRewrapped {
    /// So many at once as the proposer's limit says.
    pub roots: Vec<Rewrapped>,
}

/// Another data key seals a tenant's fields (the cluster's own: none) from now on. Its bound comes along, so that every
/// replica judges by the same.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataKeyAdded {
    /// Whose.
    pub of: Option<Tenant>,
    /// The key: its id is one above the last.
    pub key: DataKey,
    /// Data keys that there may be at once.
    pub keys_max: u32,
    /// Who, sealed by the cluster's key.
    pub actor: Sealed,
    /// Which, as JSON text, sealed by the cluster's key.
    pub detail: Sealed,
}

/// A data key that nothing is sealed with any more.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataKeyRemoved {
    /// Whose.
    pub of: Option<Tenant>,
    /// Its id.
    pub id: u32,
    /// Who, sealed by the cluster's key.
    pub actor: Sealed,
    /// Which, as JSON text, sealed by the cluster's key.
    pub detail: Sealed,
}

/// Seals a cluster that was formed without keys: what comes after it is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SealingEnabled {
    /// The key that wraps root keys.
    pub outer: OuterKey,
    /// The cluster's own root key.
    pub root: Wrapped,
    /// The cluster's own data key 1.
    pub data_key: Wrapped,
    /// The secret behind downstream keys, the same as before, under the cluster's root key.
    pub downstream_secret: Wrapped,
    /// Who, sealed by that data key.
    pub actor: Sealed,
    /// Which key, as JSON text, sealed by that data key.
    pub detail: Sealed,
}

fn wrong_state(detail: &'static str) -> Refusal {
    Refusal::new(Code::WrongState, detail)
}

/// Nothing was done, and asked again with the keys of now it may be.
fn replaced() -> Refusal {
    Refusal::new(Code::Unavailable, "the keys were replaced meanwhile; ask again")
}

/// In the cluster's chain, under the cluster's keys.
fn audited(state: &mut impl State, kind: AuditKind, at: Position, now: Time, (actor, detail): (&Sealed, &Sealed)) {
    let note = audit::Note { kind, record: None, actor: Some(actor), detail: Some(detail) };
    audit::append(state, None, at, now, note);
}

pub(super) fn rotate(state: &mut impl State, command: &KeyRotated, at: Position, now: Time) -> Result<Answer, Refusal> {
    let Some(sealing) = state.key_table().sealing.clone() else { return Err(wrong_state("the cluster is not sealed")) };
    let outer = command.outer;
    if sealing.keys.iter().any(|known| known.id == outer.id && known.check != outer.check) {
        return Err(wrong_state("another key of this id is in use"));
    }
    if sealing.current == outer.id {
        return Ok(Answer::Done);
    }
    let mut keys: Vec<OuterKey> = sealing.keys.iter().copied().filter(|known| known.id != outer.id).collect();
    keys.push(outer);
    keys.sort_by_key(|key| key.id);
    state.put_key(KeyRow::Sealing(Sealing { current: outer.id, keys }));
    audited(state, AuditKind::KeyRotated, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

pub(super) fn rewrap(state: &mut impl State, command: &RootsRewrapped) -> Result<Answer, Refusal> {
    let Some(sealing) = state.key_table().sealing.clone() else { return Err(wrong_state("the cluster is not sealed")) };
    for Rewrapped { of, root } in &command.roots {
        if root.wrapping_id != sealing.current {
            return Err(replaced());
        }
        let Some(entry) = state.key_table().ring.get(of).cloned() else { continue };
        let is_older = entry.root.as_ref().is_some_and(|known| known.wrapping_id != sealing.current);
        if entry.state == RingState::Open && is_older {
            state.put_key(KeyRow::Ring(of.clone(), RingEntry { root: Some(root.clone()), ..(*entry).clone() }));
        }
    }
    // A key that wraps nothing any more is wanted by nobody.
    let ring = &state.key_table().ring;
    let wraps = |id: u32| ring.values().filter_map(|entry| entry.root.as_ref()).any(|root| root.wrapping_id == id);
    let used: Vec<OuterKey> =
        sealing.keys.iter().copied().filter(|key| key.id == sealing.current || wraps(key.id)).collect();
    if used.len() < sealing.keys.len() {
        state.put_key(KeyRow::Sealing(Sealing { current: sealing.current, keys: used }));
    }
    Ok(Answer::Done)
}

pub(super) fn add(state: &mut impl State, command: &DataKeyAdded, at: Position, now: Time) -> Result<Answer, Refusal> {
    if command.of.as_ref().is_some_and(|tenant| super::closing::is_closed(state, tenant)) {
        return Err(super::apply::forbidden());
    }
    let Some(known) = state.key_table().data.get(&command.of).cloned() else {
        return Err(wrong_state("it has no data key: it was never opened, or the cluster is not sealed"));
    };
    let last = known.keys.iter().map(|key| key.id).max().unwrap_or(0);
    if command.key.id != last.saturating_add(1) {
        return Err(replaced());
    }
    if known.keys.len() >= command.keys_max as usize {
        return Err(wrong_state("too many data keys are still in use: wait until older ones are removed"));
    }
    let keys = known.keys.iter().cloned().chain([command.key.clone()]).collect();
    state.put_key(KeyRow::Data(command.of.clone(), Some(DataKeys { current: command.key.id, keys })));
    state.note(Event::Rekeyed(command.of.clone()));
    audited(state, AuditKind::KeyRotated, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

pub(super) fn remove(
    state: &mut impl State,
    command: &DataKeyRemoved,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let Some(known) = state.key_table().data.get(&command.of).cloned() else { return Ok(Answer::Done) };
    if known.current == command.id {
        return Err(wrong_state("it is the data key that seals now"));
    }
    if known.keys.iter().all(|key| key.id != command.id) {
        return Ok(Answer::Done);
    }
    let keys = known.keys.iter().filter(|key| key.id != command.id).cloned().collect();
    state.put_key(KeyRow::Data(command.of.clone(), Some(DataKeys { current: known.current, keys })));
    state.note(Event::Rekeyed(command.of.clone()));
    audited(state, AuditKind::DataKeyRemoved, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

pub(super) fn enable(
    state: &mut impl State,
    command: &SealingEnabled,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let Some(formed) = state.globals().formed.clone() else { return Err(super::apply::forbidden()) };
    match &state.key_table().sealing {
        Some(sealing) if sealing.current == command.outer.id => return Ok(Answer::Done),
        Some(_) => return Err(wrong_state("the cluster is sealed already")),
        None => {}
    }
    let sealing = Sealing { current: command.outer.id, keys: vec![command.outer] };
    state.put_key(KeyRow::Sealing(sealing));
    state.put_key(KeyRow::Enabled(Enabled { position: at, at: now }));
    super::sealing::adopt(state, None, &command.root, &command.data_key, now);
    let formed = Formed { downstream_secret: command.downstream_secret.clone(), ..(*formed).clone() };
    state.globals_mut().formed = Some(Arc::new(formed));
    state.note(Event::Rekeyed(None));
    audited(state, AuditKind::SealingEnabled, at, now, (&command.actor, &command.detail));
    Ok(Answer::Done)
}

/// Whether these fields are sealed under the key of now. What was sealed before the key was replaced is refused: nothing new
/// is ever sealed under an older one. Of a tenant that is closed, or was never opened, the command itself tells.
///
/// At feature level 1 there is one data key and nobody seals by another: older releases, which don't look, judge alike.
pub(super) fn admit<'a>(
    state: &impl State,
    of: Option<&Tenant>,
    fields: impl IntoIterator<Item = &'a Sealed>,
) -> Result<(), Refusal> {
    if state.key_table().sealing.is_none() {
        return Ok(());
    }
    let is_open = || of.is_none_or(|tenant| state.tenant(tenant).is_some_and(|opened| !opened.closed));
    match state.key_table().data.get(&of.cloned()) {
        Some(keys) if fields.into_iter().all(|field| field.key_id == keys.current) => Ok(()),
        _ if !is_open() => Ok(()),
        // Also where it was opened before the cluster was sealed, and has no keys yet.
        _ => Err(replaced()),
    }
}

fn of_outcome(outcome: &ProposedOutcome) -> [Option<&Sealed>; 2] {
    [Some(&outcome.meta), Some(&outcome.body)]
}

/// What a caller asks for, whether in the name of a token or not.
enum Brought<'a> {
    PolicySet(&'a PolicySet),
    Claim(&'a Claim),
    Owner(&'a OwnerCommand),
    Investigate(&'a Investigate),
    Resolve(&'a Resolve),
    Forget(&'a Forget),
    TokenCreated(&'a TokenCreated),
    TokenRevoked(&'a TokenRevoked),
}

/// Both enums have these variants alike.
macro_rules! brought {
    ($Enum:ident, $command:expr, $($Kind:ident)*) => {
        match $command {
            $($Enum::$Kind(inner) => Some(Brought::$Kind(inner)),)*
            #[allow(unreachable_patterns)]
            _ => None,
        }
    };
}

impl<'a> Brought<'a> {
    fn of(command: &'a Command) -> Option<Self> {
        match command {
            Command::ByToken(by) => brought!(
                CallerCommand,
                &by.command,
                PolicySet Claim Owner Investigate Resolve Forget TokenCreated TokenRevoked
            ),
            command => brought!(
                Command,
                command,
                PolicySet Claim Owner Investigate Resolve Forget TokenCreated TokenRevoked
            ),
        }
    }
}

/// Judges the fields that a caller's command brings.
pub(super) fn admit_command(state: &impl State, command: &Command) -> Result<(), Refusal> {
    // Nearly always: asked before anything is looked at.
    if state.key_table().sealing.is_none() {
        return Ok(());
    }
    match Brought::of(command) {
        None => Ok(()),
        Some(Brought::PolicySet(set)) => admit(state, Some(&set.tenant), [&set.actor, &set.detail]),
        Some(Brought::Claim(claim)) => {
            let own = [&claim.id, &claim.fingerprints.sealed, &claim.actor];
            admit(state, Some(&claim.record.tenant), own.into_iter().chain(&claim.labels))
        }
        Some(Brought::Owner(owner)) => {
            let [one, two] = match &owner.action {
                OwnerAction::Begin(_) | OwnerAction::Renew(_) => [None, None],
                OwnerAction::Checkpoint(point) => [Some(&point.sealed), None],
                OwnerAction::Complete(outcome) => of_outcome(outcome),
                OwnerAction::Release(text) | OwnerAction::Suspend(text) => [text.as_ref(), None],
            };
            admit(state, Some(&owner.record.tenant), [Some(&owner.actor), one, two].into_iter().flatten())
        }
        Some(Brought::Investigate(asked)) => admit(state, Some(&asked.record.tenant), [&asked.by.actor]),
        Some(Brought::Resolve(resolve)) => {
            let [one, two] = match &resolve.verdict {
                Verdict::Completed(outcome) => of_outcome(outcome),
                Verdict::NoEffect(()) | Verdict::Unknown(_) => [None, None],
            };
            let own = [Some(&resolve.by.actor), Some(&resolve.evidence), one, two];
            admit(state, Some(&resolve.record.tenant), own.into_iter().flatten())
        }
        Some(Brought::Forget(forget)) => {
            admit(state, Some(&forget.record.tenant), [&forget.actor].into_iter().chain(&forget.reason))
        }
        Some(Brought::TokenCreated(created)) => {
            let own = [&created.token.scope, &created.actor, &created.detail];
            admit(state, created.token.tenant.as_ref(), own)
        }
        Some(Brought::TokenRevoked(revoked)) => match state.token(&revoked.id) {
            Some(token) => admit(state, token.tenant.as_ref(), [&revoked.actor, &revoked.reason]),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests;
