//! The invariants, a file for each, over what a run left behind.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{history::Operation, ledger::Effect, log::Step};

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
