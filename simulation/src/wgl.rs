//! The black-box check: a search, for each key, for an order of its calls that the contract allows and real time does not
//! forbid. It looks at no position and at no log: a server that lies about them can't fool it. After Wing and Gong, with
//! Lowe's memory of states seen.
//!
//! Time is not known to it: a lease may lapse as soon as it may by the caller's own account, and stays owned for as long.
//! Only records whose windows outlast the run are judged, so that nothing expires.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use semel::proto::v1;

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

/// A record, as a caller may think of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    /// The last grant: 0 for none yet.
    fence: u64,
    /// Who got it.
    attempt_id: String,
    print: Bytes,
    state: State,
    /// The highest fence so far: none comes again.
    highest: u64,
    retake: bool,
    begun: bool,
    /// An outcome that stands.
    body: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Absent,
    Owned,
    Doubtful,
    Completed,
    Expired,
}

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
    let judged: Vec<&Operation> = operations.iter().copied().filter(|one| is_judged(one)).collect();
    let judged = window(&judged);
    let unknown = judged.iter().filter(|one| !one.answered.is_known()).count();
    if unknown * 100 > judged.len() * UNKNOWN_PERCENT_MAX {
        return Ok(Verdict::NotJudged("too many calls whose result nobody knows"));
    }
    if in_flight(judged) > IN_FLIGHT_MAX {
        return Ok(Verdict::NotJudged("too many calls at once"));
    }
    let mut search = Search { operations: judged, seen: HashSet::new(), steps: 0, deepest: 0 };
    let done = vec![0_u64; judged.len().div_ceil(64)];
    match search.run(done, 0, Model::default()) {
        Some(true) => Ok(Verdict::Linearizable(judged.len() as u64)),
        Some(false) => {
            let detail = format!(
                "no order explains its {} calls; at most {} of them fit, without any look at positions",
                judged.len(),
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

/// Calls that say something of the record. A refusal that is none of the record's (a quota, no leader) says nothing.
fn is_judged(operation: &Operation) -> bool {
    match (&operation.call, &operation.answered) {
        (Call::History(_) | Call::SetPolicy(_) | Call::Run | Call::Nonsense(_), _) => false,
        // A read that nobody learnt the answer of changes nothing.
        (Call::Get(_), Answered::Not | Answered::Unknown(_)) => false,
        (_, Answered::Refused { code, .. }) => {
            matches!(code.as_str(), "stale_fence" | "not_found" | "outcome_immutable")
        }
        _ => true,
    }
}

/// The first calls, up to the bound. What was in flight at the cut is left out with all that came later.
fn window<'a, 'b>(operations: &'b [&'a Operation]) -> &'b [&'a Operation] {
    if operations.len() <= OPERATIONS_MAX {
        return operations;
    }
    // A cut where nothing is in flight: what comes after it can't matter for what was before.
    let mut latest = 0;
    let mut cut = 0;
    for (at, operation) in operations.iter().enumerate().take(OPERATIONS_MAX) {
        if operation.invoked > latest {
            cut = at;
        }
        latest = latest.max(operation.ends());
    }
    &operations[..cut]
}

fn in_flight(operations: &[&Operation]) -> usize {
    let mut ends: Vec<Micros> = Vec::new();
    let mut most = 0;
    for operation in operations {
        ends.retain(|end| *end >= operation.invoked);
        ends.push(operation.ends());
        most = most.max(ends.len());
    }
    most
}

struct Search<'a> {
    operations: &'a [&'a Operation],
    seen: HashSet<(Vec<u64>, Model)>,
    steps: usize,
    deepest: usize,
}

impl Search<'_> {
    /// Whether the rest fits; none: out of steps.
    fn run(&mut self, done: Vec<u64>, count: usize, model: Model) -> Option<bool> {
        // A stack of its own: two hundred calls deep is no depth for it, but a deep recursion is no way to run a check.
        let mut stack = vec![(done, count, model)];
        while let Some((done, count, model)) = stack.pop() {
            self.deepest = self.deepest.max(count);
            let open = |at: usize| done[at / 64] & (1 << (at % 64)) == 0;
            let left = (0..self.operations.len()).filter(|at| open(*at));
            // What must take place is all that was answered.
            if left.clone().all(|at| !self.operations[at].answered.is_known()) {
                return Some(true);
            }
            let first_end = left.clone().map(|at| self.operations[at].ends()).min().unwrap_or(Micros::MAX);
            for at in left.collect::<Vec<_>>().into_iter().rev() {
                let operation = self.operations[at];
                // Something that ended before this began must come before it.
                if operation.invoked > first_end {
                    continue;
                }
                self.steps += 1;
                if self.steps > STEPS_MAX {
                    return None;
                }
                for next in model.after(operation) {
                    let mut done = done.clone();
                    done[at / 64] |= 1 << (at % 64);
                    if self.seen.insert((done.clone(), next.clone())) {
                        stack.push((done, count + 1, next));
                    }
                }
            }
        }
        Some(false)
    }
}

impl Model {
    /// What the record may be after this call, given its answer. None: the answer can't be.
    fn after(&self, operation: &Operation) -> Vec<Model> {
        match (&operation.call, &operation.answered) {
            (Call::Claim(request), Answered::Claim(answer)) => self.claimed(request, answer),
            (Call::Claim(request), Answered::Unknown(_) | Answered::Not) => {
                // It may have been granted, with a fence that nobody knows, or not.
                let mut may = vec![self.clone()];
                if self.may_grant(request) {
                    may.push(self.granted(request, self.highest));
                }
                may
            }
            (Call::Get(_), Answered::Record(record)) => {
                self.read().into_iter().filter(|one| one.is_shown_as(record)).map(|_| self.clone()).collect()
            }
            (Call::Get(_), Answered::Refused { .. }) => {
                if self.state == State::Absent {
                    vec![self.clone()]
                } else {
                    Vec::new()
                }
            }
            (call, answered) => self.commanded(call, answered),
        }
    }

    fn print(request: &v1::ClaimRequest) -> Bytes {
        request.fingerprints.first().map(|one| one.digest.clone()).unwrap_or_default()
    }

    /// As it is, or as the lapse of its lease makes it.
    fn read(&self) -> Vec<Model> {
        let mut ways = vec![self.clone()];
        if self.state == State::Owned && self.begun && !self.retake {
            ways.push(Model { state: State::Doubtful, ..self.clone() });
        }
        ways
    }

    fn may_grant(&self, request: &v1::ClaimRequest) -> bool {
        match self.state {
            State::Absent => true,
            State::Owned => (!self.begun || self.retake) && self.print == Self::print(request),
            _ => false,
        }
    }

    fn granted(&self, request: &v1::ClaimRequest, fence: u64) -> Model {
        Model {
            fence,
            attempt_id: request.attempt_id.clone().unwrap_or_default(),
            print: Self::print(request),
            state: State::Owned,
            highest: fence.max(self.highest),
            retake: request.on_lapse() == v1::OnLapse::Retake,
            begun: request.staged != Some(true),
            body: None,
        }
    }

    fn claimed(&self, request: &v1::ClaimRequest, answer: &v1::ClaimAnswer) -> Vec<Model> {
        let same = self.print == Self::print(request);
        let mut next = Vec::new();
        match answer.answer() {
            v1::Answer::New if answer.repeated() => {
                let own = self.state == State::Owned && self.attempt_id == answer.attempt_id;
                // A grant that nobody was told of before now has its fence.
                let fence = answer.fence.unwrap_or_default();
                if own && (self.fence == fence || fence > self.highest || self.fence == self.highest) {
                    next.push(Model { fence, highest: self.highest.max(fence), ..self.clone() });
                }
            }
            v1::Answer::New => {
                let fence = answer.fence.unwrap_or_default();
                if self.may_grant(request) && fence > self.highest {
                    next.push(self.granted(request, fence));
                }
            }
            v1::Answer::InProgress if self.state == State::Owned && same => next.push(self.clone()),
            v1::Answer::Conflict if self.state != State::Absent && !same => next.push(self.clone()),
            v1::Answer::Indeterminate if same => {
                next.extend(self.read().into_iter().filter(|one| one.state == State::Doubtful));
            }
            v1::Answer::Completed if self.state == State::Completed && same => {
                let body = answer.outcome.as_ref().and_then(|outcome| outcome.body.clone());
                if body == self.body {
                    next.push(self.clone());
                }
            }
            v1::Answer::Expired if answer.reason() == "too_old" => next.push(self.clone()),
            v1::Answer::Expired if self.state == State::Expired && same => next.push(self.clone()),
            _ => {}
        }
        next
    }

    fn is_shown_as(&self, record: &v1::Record) -> bool {
        let state = match record.state() {
            v1::State::InProgress => State::Owned,
            v1::State::Indeterminate => State::Doubtful,
            v1::State::Completed => State::Completed,
            v1::State::Expired => State::Expired,
            _ => return false,
        };
        let outcome = record.outcome.as_ref();
        self.state == state
            && (self.fence == record.fence || self.attempt_id == record.attempt_id())
            && outcome.is_none_or(|outcome| outcome.body == self.body)
    }

    /// An owner's, a reconciler's or a forgetter's command.
    fn commanded(&self, call: &Call, answered: &Answered) -> Vec<Model> {
        let taken = |next: Option<Model>| next.into_iter().collect::<Vec<_>>();
        match answered {
            Answered::Refused { code, .. } => {
                // What was refused changed nothing; that it had to be is clear for another's fence alone.
                let current = call.fence().is_some_and(|fence| fence == self.fence);
                let wrong = match code.as_str() {
                    "stale_fence" => current && self.state != State::Absent,
                    "outcome_immutable" => self.state != State::Completed && self.state != State::Expired,
                    "not_found" => self.state != State::Absent,
                    _ => false,
                };
                if wrong { Vec::new() } else { vec![self.clone()] }
            }
            Answered::Unknown(_) | Answered::Not => {
                let mut may = vec![self.clone()];
                may.extend(self.done(call));
                may
            }
            Answered::Owner(answer) => {
                let next = self.done(call).filter(|next| match answer.state() {
                    v1::State::Absent => next.state == State::Absent,
                    v1::State::InProgress => next.state == State::Owned,
                    v1::State::Indeterminate => next.state == State::Doubtful,
                    v1::State::Completed => next.state == State::Completed,
                    v1::State::Expired => next.state == State::Expired,
                    v1::State::Unspecified => false,
                });
                // A verdict or a statement that is repeated gets its first answer, whatever came since.
                let repeats = matches!(call, Call::Resolve(_));
                let mut all = taken(next);
                if repeats && !all.contains(self) {
                    all.push(self.clone());
                }
                all
            }
            Answered::Record(record) => {
                let doubtful = self.read().into_iter().filter(|one| one.state == State::Doubtful);
                doubtful.filter(|one| one.is_shown_as(record)).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// The record after a command that was taken; none where it can't have been.
    fn done(&self, call: &Call) -> Option<Model> {
        let current = call.fence().is_none_or(|fence| fence == self.fence || self.fence == self.highest && fence == 0);
        let owned = self.state == State::Owned && current;
        let open = current && matches!(self.state, State::Owned | State::Doubtful);
        let to = |state| Some(Model { state, ..self.clone() });
        match call {
            Call::Begin(_) | Call::Checkpoint(_) => owned.then(|| Model { begun: true, ..self.clone() }),
            Call::Renew(_) => owned.then(|| self.clone()),
            Call::Suspend(_) if open => to(State::Doubtful),
            Call::Release(_) if open => to(State::Absent),
            // The same statement again.
            Call::Release(_) if current && self.state == State::Absent && self.fence > 0 => to(State::Absent),
            Call::Complete(request) if open => {
                let body = request.outcome.as_ref().map(|outcome| outcome.body.clone().unwrap_or_default());
                Some(Model { state: State::Completed, body, ..self.clone() })
            }
            Call::Complete(request) if current && matches!(self.state, State::Completed | State::Expired) => {
                let body = request.outcome.as_ref().map(|outcome| outcome.body.clone().unwrap_or_default());
                (self.state == State::Expired || body == self.body).then(|| self.clone())
            }
            Call::Resolve(request) => self.resolved(request),
            Call::Forget(_) if matches!(self.state, State::Completed | State::Expired) => to(State::Expired),
            Call::Investigate(_) => self.read().into_iter().find(|one| one.state == State::Doubtful),
            _ => None,
        }
    }

    fn resolved(&self, request: &v1::ResolveRequest) -> Option<Model> {
        let doubtful = self.read().into_iter().find(|one| one.state == State::Doubtful)?;
        Some(match request.verdict() {
            v1::Verdict::Completed => {
                let body = request.outcome.as_ref().map(|outcome| outcome.body.clone().unwrap_or_default());
                Model { state: State::Completed, body, ..doubtful }
            }
            v1::Verdict::NoEffect => Model { state: State::Absent, fence: 0, ..doubtful },
            _ => doubtful,
        })
    }
}

#[cfg(test)]
mod tests;
