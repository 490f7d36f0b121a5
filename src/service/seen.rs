//! What this node has turned away lately: claims of records that nobody knows the fate of, and claims that conflict. Such
//! answers change nothing, so no log tells of them: this is the node's own memory, and bounded.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::{
    id::{RecordId, Time},
    limits,
};

/// A claim with another request under a key that is taken.
#[derive(Clone)]
pub struct Conflict {
    /// Whose.
    pub record: RecordId,
    /// When.
    pub at: Time,
    /// By whom.
    pub actor: String,
}

/// What was turned away.
#[derive(Default)]
pub struct Seen {
    blocked: Mutex<HashMap<RecordId, u64>>,
    conflicts: Mutex<VecDeque<Conflict>>,
}

impl Seen {
    /// A claim was told that the record is indeterminate.
    pub fn blocked(&self, record: &RecordId) {
        let mut blocked = self.blocked.lock();
        if blocked.len() >= limits::CONSOLE_BLOCKED_MAX && !blocked.contains_key(record) {
            // Which ones are forgotten doesn't matter: it is a hint for people.
            blocked.clear();
        }
        *blocked.entry(record.clone()).or_default() += 1;
    }

    /// A tenant is closed: nothing of it is remembered.
    pub fn forget(&self, tenant: &crate::id::Tenant) {
        self.blocked.lock().retain(|record, _| record.tenant != *tenant);
        self.conflicts.lock().retain(|conflict| conflict.record.tenant != *tenant);
    }

    /// How many claims of a record were.
    pub fn blocked_of(&self, record: &RecordId) -> u64 {
        self.blocked.lock().get(record).copied().unwrap_or_default()
    }

    /// A claim conflicted.
    pub fn conflict(&self, record: RecordId, at: Time, actor: &str) {
        let mut conflicts = self.conflicts.lock();
        if conflicts.len() >= limits::CONSOLE_CONFLICTS_MAX {
            conflicts.pop_front();
        }
        conflicts.push_back(Conflict { record, at, actor: actor.to_owned() });
    }

    /// The conflicts of a tenant, newest first.
    pub fn conflicts(&self, tenant: &crate::id::Tenant) -> Vec<Conflict> {
        self.conflicts.lock().iter().rev().filter(|conflict| conflict.record.tenant == *tenant).cloned().collect()
    }
}
