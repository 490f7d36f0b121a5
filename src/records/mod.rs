//! The contract: what Semel promises of a record, as a pure core.
//!
//! A **record** binds one caller intent to one durable outcome. It is absent, in progress (owned, with a lease and a
//! fence), indeterminate (nobody knows whether the effect happened), completed (its outcome is replayed), or expired
//! (the outcome is gone, the evidence is not). [`apply`] takes the [`command`]s of a committed entry and moves records
//! between these states; [`record::Standing`] says how a stored head reads at a moment. Nothing in this folder does
//! I/O, reads a clock, draws randomness, or can fail: `clippy.toml` denies it what it would need.
//!
//! In reading order: [`command`] what is proposed · [`record`] what is stored, and how it reads · [`answer`] what is
//! answered · `apply` the driver · `claim`, `owner`, `reconcile` the transitions · `change` heads with their indexes
//! and counters · `sweep` what is due · [`token`] credentials · [`sealing`], [`rekey`], [`reseal`], [`closing`] the keys of a sealed
//! cluster from their first day to their last · [`policy`] windows, limits, quotas · `audit` the chains · [`history`] the
//! timeline · [`check`] whole-state validation · [`codec`], [`keys`] bytes (FORMAT.md) · [`state`] the trait beneath,
//! [`memory`] its plainest form.
//!
//! # Invariants
//!
//! Assertions, tests and the simulation cite these numbers.
//!
//! - R1 at most one owner (one live fence) per record; under `hold` at most one effect is permitted between two
//!   statements that none happened (`no_effect`, release)
//! - R2 an acknowledged command is never lost
//! - R3 a fence other than the current one changes nothing
//! - R4 a completed outcome never changes
//! - R5 within the evidence window, expired never becomes new, unless the policy in force at the claim says `run_as_new`
//! - R6 an indeterminate record becomes claimable only by a `no_effect` verdict (or the owner's own release)
//! - R7 another fingerprint is a conflict in every state of a record that exists
//! - R8 counters equal a recount; admission holds at every position
//! - R9 nothing of one tenant can be seen, probed, changed or counted by another
//! - R10 replicas at the same position have byte-equal logical dumps
//! - R11 fences strictly increase; cluster time never decreases
//! - R12 every head with a next deadline has exactly one deadline entry, at it: in progress the lease; staged and
//!   lapsed its evidence end; completed its evidence end; trace its end. Indeterminate and lapsed `retake` heads have none
//! - R13 a window promised is never shortened

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod answer;
mod apply;
/// The audit chains.
pub mod audit;
mod change;
pub mod check;
mod claim;
pub mod closing;
pub mod codec;
pub mod command;
pub mod history;
pub mod keys;
pub mod memory;
mod owner;
pub mod policy;
mod reconcile;
pub mod record;
pub mod rekey;
pub mod reseal;
pub mod sealing;
#[cfg(test)]
mod spec;
pub mod state;
mod sweep;
pub mod token;

pub use apply::{apply, effective, effective_of};
pub use claim::{Decision, decide};
