//! The store under the state machine: a rebuildable index of the records, and the snapshot files that are, with the log,
//! the durable truth it is rebuilt from.
//!
//! Read in this order: [`engine`] says what an ordered key space of bytes must promise; [`memory`] is the plainest engine
//! that keeps those promises, [`fjall`] the default one, [`sled`] the other; [`directory`] opens them and lets
//! one take the place of another.

pub mod engine;

pub mod memory;

pub mod fjall;

pub mod sled;

pub mod directory;

#[cfg(test)]
mod tests;
