//! The store under the state machine: a rebuildable index of the records, and the snapshot files that are, with the log,
//! the durable truth it is rebuilt from.
//!
//! Read in this order: [`engine`] says what an ordered key space of bytes must promise; [`memory`] is the plainest engine
//! that keeps those promises.

pub mod engine;
pub mod memory;
