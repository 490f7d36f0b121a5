//! The black-box check: a search, for each key, for an order of its calls that the contract allows and real time does not
//! forbid. It looks at no position and at no log: a server that lies about them can't fool it. After Wing and Gong, with
//! Lowe's memory of states seen.
//!
//! Time is not known to it: a lease may lapse as soon as it may by the caller's own account, and stays owned for as long.
//! Only records whose windows outlast the run are judged, so that nothing expires.

mod model;

use std::collections::{BTreeMap, HashSet};

use self::model::Model;
use crate::{
    history::{Answered, Call, Micros, Name, Operation},
    invariants::Broken,
};

/// Calls of a key that are judged, at most: the first ones.
pub const OPERATIONS_MAX: usize = 200;
/// Calls of a key at once, at most.
pub const IN_FLIGHT_MAX: usize = 8;
/// Calls whose result nobody knows, at most, percent.
pub const UNKNOWN_PERCENT_MAX: usize = 5;
/// Steps of the search, at most. Running out is a failure: a check that gives up proves nothing.
pub const STEPS_MAX: usize = 2_000_000;

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// So many calls are in order.
    Linearizable(u64),
    /// The key is none for this check: too many at once, or too many unknown.
    NotJudged(&'static str),
}

/// Judges a key by its calls, in the order in which they were sent.
///
/// # Errors
/// Where no order explains them, or the search ran out.
pub fn check(name: &Name, operations: &[&Operation]) -> Result<Verdict, Broken> {
    let items = items(operations);
    let must = items.iter().filter(|item| item.must).count();
    let unknown = items.iter().filter(|item| !item.must && item.ends == Micros::MAX).count();
    if unknown * 100 > (must + unknown) * UNKNOWN_PERCENT_MAX {
        return Ok(Verdict::NotJudged("too many calls whose result nobody knows"));
    }
    if in_flight(&items) > IN_FLIGHT_MAX {
        return Ok(Verdict::NotJudged("too many calls at once"));
    }
    let mut search = Search { items: &items, seen: HashSet::new(), steps: 0, deepest: 0 };
    match search.run() {
        Some(true) => Ok(Verdict::Linearizable(must as u64)),
        Some(false) => {
            let detail = format!(
                "no order explains its {must} calls; at most {} of them fit, without any look at positions",
                search.deepest
            );
            Err(Broken::of("linearizable (black box)", Some(name), detail))
        }
        None => {
            let detail = format!("the search ran out after {STEPS_MAX} steps");
            Err(Broken::of("linearizable (black box)", Some(name), detail))
        }
    }
}

/// Something that took place, or may have.
struct Item<'a> {
    call: &'a Call,
    /// None: whatever would have been answered.
    answered: Option<&'a Answered>,
    begins: Micros,
    ends: Micros,
    /// Whether it took place for certain.
    must: bool,
    /// Only before that item: the try before the one that was answered.
    before: Option<usize>,
}

/// What the calls of a key come to. The library repeats what was lost: what it was answered at last is of its last try,
/// and one before may have been taken too. A refusal after such a try says nothing of it.
fn items<'a>(operations: &[&'a Operation]) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    let judged: Vec<&'a Operation> = operations.iter().copied().filter(|one| is_about_a_record(one)).collect();
    // What was answered only after the first call that is left out may reflect that.
    let cut = judged.get(OPERATIONS_MAX).map_or(Micros::MAX, |first_left_out| first_left_out.invoked);
    for operation in judged.into_iter().take(OPERATIONS_MAX) {
        let (call, begins) = (&operation.call, operation.invoked);
        let known = operation.answered.is_known() && operation.ends() < cut;
        let ends = if known { operation.ends() } else { Micros::MAX };
        let must = known && tells(operation);
        let main = items.len();
        if must {
            let answered = Some(&operation.answered);
            items.push(Item { call, answered, begins, ends, must, before: None });
        }
        let is_refused = matches!(operation.answered, Answered::Refused { .. });
        let tried_before = matches!(call, Call::Claim(_)) || is_refused || !known;
        if tried_before && !call.only_reads() {
            let before = must.then_some(main);
            items.push(Item { call, answered: None, begins, ends, must: false, before });
        }
    }
    items
}

/// Judges every key of operations whose windows outlast the run; tells how many calls are in order.
///
/// # Errors
/// The first key that isn't.
pub fn check_all(operations: &[Operation], is_long: impl Fn(&Name) -> bool) -> Result<u64, Broken> {
    let mut keys: BTreeMap<&Name, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| is_long(&operation.name)) {
        keys.entry(&operation.name).or_default().push(operation);
    }
    let mut certified = 0;
    for (name, mut of) in keys {
        of.sort_by_key(|operation| (operation.invoked, operation.id));
        if let Verdict::Linearizable(calls) = check(name, &of)? {
            certified += calls;
        }
    }
    Ok(certified)
}

/// Calls that may say or do something to the record.
fn is_about_a_record(operation: &Operation) -> bool {
    match (&operation.call, &operation.answered) {
        (Call::History(_) | Call::SetPolicy(_) | Call::Run, _) => false,
        (_, Answered::Refused { code, .. }) => !matches!(code.as_str(), "invalid_argument" | "request_too_large"),
        _ => true,
    }
}

/// Whether its answer tells of the record. A refusal for something else (a quota, no leader) does not.
fn tells(operation: &Operation) -> bool {
    match &operation.answered {
        Answered::Refused { code, .. } => {
            matches!(code.as_str(), "stale_fence" | "not_found" | "outcome_immutable")
        }
        _ => true,
    }
}

fn in_flight(items: &[Item<'_>]) -> usize {
    let mut ends: Vec<Micros> = Vec::new();
    let mut most = 0;
    for item in items.iter().filter(|item| item.before.is_none()) {
        ends.retain(|end| *end >= item.begins);
        ends.push(item.ends);
        most = most.max(ends.len());
    }
    most
}

struct Search<'a> {
    items: &'a [Item<'a>],
    seen: HashSet<(Vec<u64>, Model)>,
    steps: usize,
    deepest: usize,
}

impl Search<'_> {
    /// Whether there is an order; none: out of steps.
    fn run(&mut self) -> Option<bool> {
        let items = self.items;
        let is_done = |done: &[u64], at: usize| done[at / 64] & (1 << (at % 64)) != 0;
        // A stack of its own: a recursion of two hundred calls is no way to run a check.
        let mut stack = vec![(vec![0_u64; items.len().div_ceil(64)], 0, Model::default())];
        while let Some((done, count, model)) = stack.pop() {
            self.deepest = self.deepest.max(count);
            let left = || (0..items.len()).filter(|at| !is_done(&done, *at));
            let Some(first_end) = left().filter(|at| items[*at].must).map(|at| items[at].ends).min() else {
                return Some(true);
            };
            for at in left().collect::<Vec<_>>().into_iter().rev() {
                let item = &items[at];
                // Something that ended before this began must come before it.
                let comes_later = item.begins > first_end;
                if comes_later || item.before.is_some_and(|main| is_done(&done, main)) {
                    continue;
                }
                self.steps += 1;
                if self.steps > STEPS_MAX {
                    return None;
                }
                for next in model.after(item.call, item.answered) {
                    let mut done = done.clone();
                    done[at / 64] |= 1 << (at % 64);
                    // What changes nothing need not have taken place.
                    let is_idle = !item.must && next == model;
                    if !is_idle && self.seen.insert((done.clone(), next.clone())) {
                        stack.push((done, count + usize::from(item.must), next));
                    }
                }
            }
        }
        Some(false)
    }
}

#[cfg(test)]
mod tests;
