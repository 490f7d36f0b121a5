//! The contract once more, for what stands in the log: a record is a plain value in a map, nothing is indexed or swept,
//! and what time has done to it is looked at anew each time. Written from the contract's tables and rulings, so that a bug
//! of the core is not repeated here.
//!
//! `record` what a record is and how it reads · `claim`, `owner`, `reconcile` the commands · `said` answers that can be
//! compared.

mod claim;
mod owner;
mod reconcile;
pub mod record;
pub mod said;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use semel::{
    id::{KeyedHash, Tenant},
    records::{
        command::{Command, PolicySet, RecordRef},
        policy::{Limits, Overrides, Policy},
    },
    refusal::Code,
};

pub use self::record::{Record, Word};
use self::said::Said;

/// A restore's doubt.
#[derive(Clone, Copy, Debug)]
pub struct Doubt {
    /// Grants below it are in doubt.
    pub first: u64,
    /// Since when.
    pub since: u64,
    /// When the old cluster was surely dead.
    pub gap_end: Option<u64>,
}

/// All records, by the contract.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Cluster time as applied.
    pub now: u64,
    /// The position of the command that is being judged.
    pub position: u64,
    pub(crate) records: BTreeMap<RecordRef, Record>,
    tenants: BTreeSet<Tenant>,
    overrides: BTreeMap<(Tenant, Option<KeyedHash>), Overrides>,
    default_policy: Policy,
    limits: Limits,
    is_formed: bool,
    has_ended: bool,
    doubt: Option<Doubt>,
    /// Fences below it are nobody's.
    floor: u64,
}

impl Spec {
    /// Applies a command at its position and says what the answer must be. None: the contract leaves it open here, or
    /// what decides it isn't looked at (bytes of quotas, tokens, audit).
    pub fn apply(&mut self, command: &Command, position: u64, time: u64) -> Option<Said> {
        self.now = self.now.max(time);
        self.position = position;
        if !self.is_formed && !matches!(command, Command::Init(_)) {
            return Some(Said::Refused(Code::Unavailable));
        }
        if self.has_ended
            && matches!(
                command,
                Command::Claim(_)
                    | Command::Owner(_)
                    | Command::Investigate(_)
                    | Command::Resolve(_)
                    | Command::Forget(_)
                    | Command::PolicySet(_)
                    | Command::TenantOpened(_)
                    | Command::DoubtEnded(_)
            )
        {
            return Some(Said::Refused(Code::Unavailable));
        }
        if let Some(record) = record_of(command) {
            if !self.tenants.contains(&record.tenant) {
                return Some(Said::Refused(Code::Forbidden));
            }
            self.forget_what_is_over(record);
        }
        match command {
            Command::Init(init) => {
                if self.is_formed {
                    return Some(Said::Refused(Code::WrongState));
                }
                (self.is_formed, self.default_policy, self.limits) = (true, init.policy.clone(), init.limits.clone());
                Some(Said::Done)
            }
            Command::TenantOpened(opened) => {
                self.tenants.insert(opened.tenant.clone());
                Some(Said::Done)
            }
            Command::PolicySet(set) => self.set_policy(set),
            Command::Claim(claim) => self.claim(claim),
            Command::Owner(owner) => self.owner(owner),
            Command::Investigate(investigate) => Some(self.investigate(investigate)),
            Command::Resolve(resolve) => Some(self.resolve(resolve)),
            Command::Forget(forget) => Some(self.forget(forget)),
            Command::Restored(restored) => {
                self.position = restored.first_position.0;
                self.floor = restored.first_position.0;
                let gap_end = restored.gap_end.map(|end| end.0);
                self.doubt = Some(Doubt { first: self.floor, since: self.now, gap_end });
                self.has_ended = false;
                Some(Said::Done)
            }
            Command::DoubtEnded(_) => {
                self.doubt = None;
                Some(Said::Done)
            }
            Command::WritesEnded(_) => {
                self.has_ended = true;
                Some(Said::Done)
            }
            Command::NodeRetired(_) | Command::FeatureRaised(_) | Command::Noted(_) => Some(Said::Done),
            // Nothing is sealed, and nobody shows a token here.
            Command::SealedInit(_)
            | Command::SealedTenantOpened(_)
            | Command::TenantClosed(_)
            | Command::TenantKeysDestroyed(_)
            | Command::KeyRotated(_)
            | Command::RootsRewrapped(_)
            | Command::DataKeyAdded(_)
            | Command::Resealed(_)
            | Command::DataKeyRemoved(_)
            | Command::SealingEnabled(_) => None,
            Command::TokenCreated(_) | Command::TokenRevoked(_) | Command::TokensDropped(_) | Command::ByToken(_) => {
                None
            }
        }
    }

    /// Takes over what the core decided where the contract leaves it open.
    pub fn follow(&mut self, command: &Command, said: &Said) {
        if let (Command::Claim(claim), Said::New { .. } | Said::Indeterminate { .. }) = (command, said) {
            self.grant(claim, 1, None, false);
        }
    }

    /// Time goes on, and nothing else.
    pub fn pass(&mut self, position: u64, time: u64) {
        self.now = self.now.max(time);
        self.position = position;
    }

    /// Past its evidence a record counts as absent for everything.
    fn forget_what_is_over(&mut self, of: &RecordRef) {
        if self.records.get(of).is_some_and(|record| record.is_over(self.now)) {
            self.records.remove(of);
        }
    }

    fn set_policy(&mut self, set: &PolicySet) -> Option<Said> {
        let level = (set.tenant.clone(), set.operation);
        let before = self.overrides.get(&level).cloned();
        let after = set.patch.on(&before.clone().unwrap_or_default());
        self.overrides.insert(level.clone(), after);
        let policy = self.policy_of(&set.tenant, set.operation);
        if policy.evidence_s < policy.replay_s || policy.lease_ms_max < policy.lease_ms_default {
            match before {
                Some(before) => self.overrides.insert(level, before),
                None => self.overrides.remove(&level),
            };
            return Some(Said::Refused(Code::InvalidArgument));
        }
        None
    }

    fn policy_of(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Policy {
        let mut policy = self.default_policy.clone();
        for level in [None, operation].iter().take(1 + usize::from(operation.is_some())) {
            if let Some(overrides) = self.overrides.get(&(tenant.clone(), *level)) {
                policy = policy.under(overrides);
            }
        }
        policy
    }

    fn policy(&self, of: &RecordRef) -> Policy {
        self.policy_of(&of.tenant, Some(of.operation))
    }

    /// A lease as granted, ms.
    fn lease_ms(&self, of: &RecordRef, wanted: Option<u32>) -> u32 {
        let policy = self.policy(of);
        let wanted = wanted.filter(|ms| *ms > 0).unwrap_or(policy.lease_ms_default);
        wanted.min(policy.lease_ms_max).max(self.limits.lease_ms_min)
    }

    /// Both windows as fixed now, ms.
    fn windows_ms(&self, of: &RecordRef, replay_s: Option<u32>, evidence_s: Option<u32>) -> (u64, u64) {
        let policy = self.policy(of);
        let replay_s = replay_s.unwrap_or(policy.replay_s).min(policy.replay_s_max);
        let evidence_s = evidence_s.unwrap_or(policy.evidence_s).min(policy.evidence_s_max).max(replay_s);
        (u64::from(replay_s) * 1_000, u64::from(evidence_s) * 1_000)
    }

    /// How a record reads now; none where it is absent.
    pub fn read(&self, of: &RecordRef) -> Option<(Word, &Record)> {
        let record = self.records.get(of).filter(|record| !record.is_over(self.now))?;
        Some((record.word(self.now, self.doubt)?, record))
    }
}

/// The record that a command is about.
pub fn record_of(command: &Command) -> Option<&RecordRef> {
    match command {
        Command::Claim(claim) => Some(&claim.record),
        Command::Owner(owner) => Some(&owner.record),
        Command::Investigate(investigate) => Some(&investigate.record),
        Command::Resolve(resolve) => Some(&resolve.record),
        Command::Forget(forget) => Some(&forget.record),
        _ => None,
    }
}
