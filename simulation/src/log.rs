//! The committed log as the nodes applied it: every entry once, with its answers, and compared wherever it is applied
//! again. What a client did not learn is looked up here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use semel::{
    id::Position,
    records::{
        answer::Applied,
        command::{Command, Entry},
    },
    store::records::Observer,
};

use crate::history::{Micros, Watch};

/// An entry, as it was applied first.
#[derive(Clone, Debug)]
pub struct Step {
    /// The position that it led to.
    pub position: u64,
    /// Cluster time as stamped.
    pub time: u64,
    /// Its commands with their answers.
    pub commands: Vec<(Arc<Command>, Applied)>,
    /// When some node applied it first, in simulated time.
    pub seen: Micros,
    /// Which node that was.
    pub by: u64,
}

#[derive(Debug, Default)]
struct Inner {
    steps: BTreeMap<u64, Step>,
    /// First positions of restores, with the positions of the backups that they began with.
    restores: BTreeMap<u64, u64>,
    /// Where the backup stands that is restored next, or was last.
    backup: u64,
    /// The feature level that was reached.
    level: u32,
    broken: Option<String>,
    /// The highest time of all.
    time: u64,
}

/// The log of all nodes. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    inner: Arc<Mutex<Inner>>,
    watch: Watch,
}

/// What one node shows.
#[derive(Debug)]
struct OfNode {
    node: u64,
    log: Log,
}

impl Observer for OfNode {
    fn applied(&self, entry: &Entry, answers: &[Applied], position: Position) {
        self.log.applied(self.node, entry, answers, position.0);
    }
}

impl Log {
    /// An empty log.
    pub fn new(watch: Watch) -> Self {
        Self { inner: Arc::default(), watch }
    }

    /// What takes note of what this node applies: for `Records::observe`.
    pub fn of_node(&self, node: u64) -> Arc<dyn Observer> {
        Arc::new(OfNode { node, log: self.clone() })
    }

    /// All is lost, and what is restored stands at `backup`.
    pub fn restoring(&self, backup: u64) {
        self.lock().backup = backup;
    }

    /// A node applied an entry.
    pub fn applied(&self, node: u64, entry: &Entry, answers: &[Applied], position: u64) {
        let seen = self.watch.now();
        let mut inner = self.lock();
        inner.time = inner.time.max(entry.time.0);
        let commands: Vec<_> = entry.commands.iter().cloned().zip(answers.iter().cloned()).collect();
        let step = Step { position, time: entry.time.0, commands, seen, by: node };
        let problem = match inner.steps.get(&position) {
            Some(known) if known.time != step.time || known.commands != step.commands => {
                Some(format!("n{} and n{node} applied different entries up to position {position}", known.by))
            }
            Some(_) => None,
            None => {
                let positions = step.commands.len() as u64;
                let is_restore = step.commands.iter().any(|(command, _)| matches!(**command, Command::Restored(_)));
                if is_restore {
                    let backup = inner.backup;
                    inner.restores.insert(position, backup);
                }
                let early = step.commands.iter().find_map(|(command, _)| too_early(&mut inner.level, command));
                let overlaps = inner
                    .steps
                    .range(..position)
                    .next_back()
                    .is_some_and(|(before, _)| !is_restore && before + positions + 1 > position);
                let problem = overlaps.then(|| {
                    format!("n{node} applied an entry up to position {position} across one that others applied")
                });
                inner.steps.insert(position, step);
                problem.or(early)
            }
        };
        if let Some(problem) = problem {
            inner.broken.get_or_insert(problem);
        }
    }

    /// Every entry, in order.
    pub fn steps(&self) -> Vec<Step> {
        self.lock().steps.values().cloned().collect()
    }

    /// Cluster time, as far as any node has applied it.
    pub fn time(&self) -> u64 {
        self.lock().time
    }

    /// First positions of restores, with the positions of the backups that they began with.
    pub fn restores(&self) -> BTreeMap<u64, u64> {
        self.lock().restores.clone()
    }

    /// Where two nodes did not apply the same.
    pub fn broken(&self) -> Option<String> {
        self.lock().broken.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with a command that stands in the log before all voters were found to understand it.
fn too_early(level: &mut u32, command: &Command) -> Option<String> {
    match command {
        Command::Init(init) => *level = init.feature_level.max(*level),
        Command::FeatureRaised(raised) => *level = raised.level.max(*level),
        _ => {}
    }
    let of = command.feature_level();
    (of > *level)
        .then(|| format!("a command of feature level {of} stands in the log while {level} was reached: {command:?}"))
}

#[cfg(test)]
mod tests {
    use semel::{
        id::{Tenant, Time},
        records::{
            closing::TenantKeysDestroyed,
            command::{FeatureRaised, Sealed},
        },
    };

    use super::*;

    fn log() -> Log {
        Log::new(Watch(Arc::new(|| 7)))
    }

    fn tick(time: u64) -> Entry {
        Entry { time: Time(time), commands: Vec::new() }
    }

    #[test]
    fn the_same_entry_on_all_nodes_is_one_step() {
        let log = log();
        log.applied(1, &tick(5), &[], 1);
        log.applied(2, &tick(5), &[], 1);
        log.applied(2, &tick(6), &[], 2);
        assert_eq!(log.steps().iter().map(|step| (step.position, step.by)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
        assert_eq!(log.broken(), None);
    }

    #[test]
    fn a_command_that_an_older_release_can_not_read_is_found_before_the_level_is_raised() {
        let raised = |level| Command::FeatureRaised(FeatureRaised { level });
        let actor = Sealed::plain(b"ops".to_vec());
        let removed = Command::TenantKeysDestroyed(Box::new(TenantKeysDestroyed {
            tenant: Tenant::parse("spent").expect("a good tenant"),
            actor: actor.clone(),
            detail: actor,
        }));
        let mut level = 1;
        assert_eq!(too_early(&mut level, &raised(1)), None);
        assert!(too_early(&mut level, &removed).is_some());
        assert_eq!(too_early(&mut level, &raised(2)), None);
        assert_eq!(too_early(&mut level, &removed), None);
    }

    #[test]
    fn nodes_that_applied_something_else_are_found() {
        let log = log();
        log.applied(1, &tick(5), &[], 1);
        log.applied(2, &tick(6), &[], 1);
        assert!(log.broken().is_some_and(|broken| broken.contains("n1 and n2")));
    }
}
