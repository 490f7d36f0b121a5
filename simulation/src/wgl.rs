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
    /// The last grant; none: nobody was told of it, or there is none.
    fence: Option<u64>,
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
        (Call::History(_) | Call::SetPolicy(_) | Call::Run | Call::Nonsense(_), _) => false,
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

impl Model {
    /// What the record may be after this call, given its answer, or whatever it was. None: the answer can't be.
    fn after(&self, call: &Call, answered: Option<&Answered>) -> Vec<Model> {
        match (call, answered) {
            (Call::Claim(request), Some(Answered::Claim(answer))) => self.claimed(request, answer),
            // With a fence that nobody knows.
            (Call::Claim(request), None) if self.may_grant(request) => vec![self.granted(request, None)],
            (Call::Claim(_), None) => Vec::new(),
            (Call::Get(_), Some(Answered::Record(record))) => {
                self.read().into_iter().filter(|one| one.is_shown_as(record)).map(|_| self.clone()).collect()
            }
            (Call::Get(_), Some(Answered::Refused { .. })) if self.state != State::Absent => Vec::new(),
            (_, None) => self.done(call).into_iter().collect(),
            (_, Some(answered)) => self.commanded(call, answered),
        }
    }

    fn print(request: &v1::ClaimRequest) -> Bytes {
        request.fingerprints.first().map(|one| one.digest.clone()).unwrap_or_default()
    }

    /// The record with this fence for its last grant: as it is, or learnt just now.
    fn with_fence(&self, fence: u64) -> Option<Model> {
        match self.fence {
            Some(known) => (known == fence).then(|| self.clone()),
            None => (fence > self.highest).then(|| Model { fence: Some(fence), highest: fence, ..self.clone() }),
        }
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

    fn granted(&self, request: &v1::ClaimRequest, fence: Option<u64>) -> Model {
        Model {
            fence,
            attempt_id: request.attempt_id.clone().unwrap_or_default(),
            print: Self::print(request),
            state: State::Owned,
            highest: fence.unwrap_or_default().max(self.highest),
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
                if let Some(known) = self.with_fence(answer.fence.unwrap_or_default()).filter(|_| own) {
                    next.push(known);
                }
            }
            v1::Answer::New => {
                let fence = answer.fence.unwrap_or_default();
                if self.may_grant(request) && fence > self.highest {
                    next.push(self.granted(request, Some(fence)));
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
            && self.with_fence(record.fence).is_some()
            && outcome.is_none_or(|outcome| outcome.body == self.body)
    }

    /// An owner's, a reconciler's or a forgetter's command.
    fn commanded(&self, call: &Call, answered: &Answered) -> Vec<Model> {
        let taken = |next: Option<Model>| next.into_iter().collect::<Vec<_>>();
        match answered {
            Answered::Refused { code, .. } => {
                // What was refused changed nothing; that it had to be is clear for another's fence alone.
                let current = call.fence().is_some() && call.fence() == self.fence;
                let wrong = match code.as_str() {
                    "stale_fence" => current && self.state != State::Absent,
                    "outcome_immutable" => self.state != State::Completed && self.state != State::Expired,
                    "not_found" => self.state != State::Absent,
                    _ => false,
                };
                if wrong { Vec::new() } else { vec![self.clone()] }
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
        let learnt = match call.fence() {
            Some(fence) => self.with_fence(fence),
            None => Some(self.clone()),
        };
        let current = learnt.is_some();
        let known = learnt.unwrap_or_default();
        let owned = self.state == State::Owned && current;
        let open = current && matches!(self.state, State::Owned | State::Doubtful);
        let to = |state| Some(Model { state, ..known.clone() });
        match call {
            Call::Begin(_) | Call::Checkpoint(_) => owned.then(|| Model { begun: true, ..known.clone() }),
            Call::Renew(_) => owned.then(|| known.clone()),
            Call::Suspend(_) if open => to(State::Doubtful),
            Call::Release(_) if open => to(State::Absent),
            // The same statement again.
            Call::Release(_) if current && self.state == State::Absent && self.fence.is_some() => to(State::Absent),
            Call::Complete(request) if open => {
                let body = request.outcome.as_ref().map(|outcome| outcome.body.clone().unwrap_or_default());
                Some(Model { state: State::Completed, body, ..known.clone() })
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
            v1::Verdict::NoEffect => Model { state: State::Absent, ..doubtful },
            _ => doubtful,
        })
    }
}

#[cfg(test)]
mod tests;
