//! A record as a caller may think of it, and what each call makes of it. The lapse of a lease may come at any time.

use bytes::Bytes;
use semel::proto::v1;

use crate::history::{Answered, Call};

/// A record, as a caller may think of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
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

impl Model {
    /// What the record may be after this call, given its answer, or whatever it was. None: the answer can't be.
    pub fn after(&self, call: &Call, answered: Option<&Answered>) -> Vec<Model> {
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
