//! The invariants of the contract, a file for each, over what a run left behind: the clients' history, the provider's
//! ledger, the committed log, and the whole states of all replicas at the end. Each file cites its number and its source.
//!
//! None of them asks the product's core what is right: what they need of the contract they say themselves.

mod r01_one_effect;
mod r02_nothing_lost;
mod r02_refused_is_not_done;
mod r03_fences_guard;
mod r04_outcomes_immutable;
mod r05_evidence_kept;
mod r06_no_silent_rerun;
mod r07_conflicts;
mod r08_r12_recount;
mod r09_tenants_apart;
mod r10_replicas_equal;
mod r11_monotonic;
mod r13_windows_kept;

pub use self::r02_nothing_lost::is_same;

use std::collections::BTreeMap;

use bytes::Bytes;
use semel::{
    id::Uuid,
    records::{
        answer::{Answer, Applied, Changed, ClaimAnswer, New},
        command::{Command, RecordRef, Sealed},
    },
};

use crate::{
    history::{Answered, Call, Name, Operation},
    ledger::Effect,
    log::Step,
};

/// What a run left behind.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// What the clients recorded.
    pub operations: Vec<Operation>,
    /// What happened outside.
    pub effects: Vec<Effect>,
    /// The log, in order.
    pub steps: Vec<Step>,
    /// First positions of restores, with the positions of their backups.
    pub restores: BTreeMap<u64, u64>,
    /// Where nodes were seen to apply something else.
    pub diverged: Option<String>,
    /// Node, position and whole state of each replica at the end.
    pub dumps: Vec<(u64, u64, BTreeMap<Vec<u8>, Bytes>)>,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number, or the name of the check.
    pub what: &'static str,
    /// How it shows.
    pub detail: String,
    /// The record that shows it.
    pub about: Option<Box<Name>>,
}

impl Broken {
    /// Of a record.
    pub fn of(what: &'static str, about: Option<&Name>, detail: impl Into<String>) -> Self {
        Self { what, detail: detail.into(), about: about.cloned().map(Box::new) }
    }
}

/// What a check says.
pub type Checked = Result<(), Broken>;

/// A check of one.
type Invariant = fn(&Evidence, &Names) -> Checked;

/// Every invariant, with its number.
pub const ALL: &[(&str, Invariant)] = &[
    ("R10", r10_replicas_equal::check),
    ("R11", r11_monotonic::check),
    ("R8, R12", r08_r12_recount::check),
    ("R9", r09_tenants_apart::check),
    ("R2", r02_nothing_lost::check),
    ("R2", r02_refused_is_not_done::check),
    ("R3", r03_fences_guard::check),
    ("R4", r04_outcomes_immutable::check),
    ("R7", r07_conflicts::check),
    ("R6", r06_no_silent_rerun::check),
    ("R5", r05_evidence_kept::check),
    ("R13", r13_windows_kept::check),
    ("R1", r01_one_effect::check),
];

/// Checks all of them; the first that is broken.
///
/// # Errors
/// What does not hold.
pub fn check(evidence: &Evidence) -> Checked {
    let names = Names::of(evidence)?;
    ALL.iter().try_for_each(|(_, check)| check(evidence, &names))
}

/// Which record in the log is which in the history.
#[derive(Clone, Debug, Default)]
pub struct Names {
    of: BTreeMap<RecordRef, Name>,
    to: BTreeMap<Name, RecordRef>,
}

impl Names {
    /// Found by the attempt ids of claims, or by what the log says of an identity.
    ///
    /// # Errors
    /// R9, where one is taken for another.
    pub fn of(evidence: &Evidence) -> Result<Self, Broken> {
        let mut attempts: BTreeMap<Uuid, &Name> = BTreeMap::new();
        for operation in &evidence.operations {
            if let Call::Claim(request) = &operation.call
                && let Some(id) = request.attempt_id.as_deref().and_then(Uuid::parse_hyphenated)
            {
                attempts.insert(id, &operation.name);
            }
        }
        let mut names = Self::default();
        for (command, _, _) in evidence.commands() {
            let Command::Claim(claim) = command else { continue };
            let name = attempts.get(&claim.attempt_id).copied().cloned().or_else(|| parsed(&claim.id));
            let Some(name) = name else { continue };
            let other_name = names.of.insert(claim.record.clone(), name.clone()).filter(|other| *other != name);
            let other_record =
                names.to.insert(name.clone(), claim.record.clone()).filter(|other| *other != claim.record);
            if other_name.is_some() || other_record.is_some() {
                let detail = format!("{name} and {other_name:?} are taken for one another in the log");
                return Err(Broken::of("R9", Some(&name), detail));
            }
        }
        Ok(names)
    }

    /// The name of a record in the log.
    pub fn name(&self, of: &RecordRef) -> Option<&Name> {
        self.of.get(of)
    }

    /// The record in the log of a name.
    pub fn record(&self, of: &Name) -> Option<&RecordRef> {
        self.to.get(of)
    }
}

/// An identity that stands in the log in clear: tenant, principal, operation and key, each after its length.
fn parsed(id: &Sealed) -> Option<Name> {
    let mut rest: &[u8] = &id.bytes.0;
    let mut part = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length);
        // All ones: absent.
        let length = if length == u32::MAX { 0 } else { length as usize };
        let (text, after) = after.split_at_checked(length)?;
        rest = after;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (tenant, principal, operation, key) = (part()?, part()?, part()?, part()?);
    (id.key_id == 0 && rest.is_empty()).then_some(Name { tenant, principal, operation, key })
}

impl Evidence {
    /// Every command of the log with its answer, in order.
    pub fn commands(&self) -> impl Iterator<Item = (&Command, &Applied, &Step)> {
        self.steps
            .iter()
            .flat_map(|step| step.commands.iter().map(move |(command, applied)| (&**command, applied, step)))
    }

    /// Whether the log goes on after a restore somewhere: what the backup did not hold is lost on purpose.
    pub fn was_restored(&self) -> bool {
        !self.restores.is_empty() || self.commands().any(|(command, ..)| matches!(command, Command::Restored(_)))
    }

    /// Whether what stands at this position was undone by a restore.
    pub fn is_lost(&self, position: u64) -> bool {
        self.restores.iter().any(|(first, backup)| (backup + 1..*first).contains(&position))
    }

    /// Whether somebody has said of a restored cluster that it need not doubt: then a lost effect is on him.
    pub fn doubt_was_ended(&self) -> bool {
        self.commands().any(|(command, ..)| match command {
            Command::DoubtEnded(_) => true,
            Command::Restored(restored) => restored.gap_end.is_some(),
            _ => false,
        })
    }

    /// Answers that the clients know, with the operation they are to.
    pub fn answered(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|operation| operation.answered.is_known())
    }
}

/// The grant of a command, where it is a new one.
pub fn granted(applied: &Applied) -> Option<&New> {
    match &applied.answer {
        Ok(Answer::Claim(ClaimAnswer::New(new))) if !new.repeated => Some(new),
        _ => None,
    }
}

/// The state that a command left, where it changed the record.
pub fn changed(applied: &Applied) -> Option<&Changed> {
    match &applied.answer {
        Ok(Answer::Changed(changed)) => Some(changed),
        _ => None,
    }
}

/// The outcome that somebody was shown, with the position that it reflects.
pub fn shown_outcome(operation: &Operation) -> Option<(u64, &semel::proto::v1::Outcome)> {
    match &operation.answered {
        Answered::Claim(_) | Answered::Record(_) => Some((operation.answered.index()?, operation.answered.outcome()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn a_run_in_which_all_went_well_passes_every_check() {
        let mut made = Made::new();
        let (a, b) = (made::name("a"), made::name("b"));
        let fence = made.claim(made::claim(&a, 1, 1), &a).expect("it is new");
        made.effect(&a, fence);
        made.complete(&a, fence, "done");
        made.claim(made::claim(&a, 2, 1), &a);
        made.claim(made::claim(&a, 3, 2), &a);
        let fence = made.claim(made::claim(&b, 4, 1), &b).expect("it is new");
        made.suspend(&b, fence);
        made.resolve(&b, semel::records::command::Verdict::NoEffect(()), 1);
        let fence = made.claim(made::claim(&b, 5, 1), &b).expect("it is new again");
        made.effect(&b, fence);
        made.complete(&b, fence, "done too");
        assert_eq!(check(&made.evidence()), Ok(()));
    }

    #[test]
    fn an_identity_in_clear_is_read() {
        let mut bytes = Vec::new();
        for part in ["acme", "", "charge", "k"] {
            bytes.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        assert_eq!(parsed(&Sealed::plain(bytes.clone())), Some(made::name("k")));
        bytes.push(0);
        assert_eq!(parsed(&Sealed::plain(bytes)), None);
    }
}
