//! Claims: decided from the state where they change nothing, in the log where they might; with waiting in between.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Log,
    answer::{ClaimAnswer, Found, New, Reason, Replay},
    node::{Service, Target, at, fresh_uuid, mismatch},
    request::{Checkpoint, ClaimRequest},
    view,
    waiters::Waiter,
};
use crate::{
    auth::{Caller, Method},
    id::{Position, Time},
    limits,
    records::{
        Decision,
        answer::{self, Answer},
        command::{Claim, Command},
        decide,
        policy::{Effective, LowEntropyKeys},
        record::Standing,
        state::State,
    },
    refusal::{Code, Refusal},
    seal::Field,
};

/// What became of a claim: at which position, and when.
pub(super) struct Decided {
    pub index: Position,
    pub now: Time,
    pub answer: answer::ClaimAnswer,
}

/// What a look at the state tells of a claim.
enum Look {
    Answer(Decided),
    Propose,
}

/// Whether nothing was decided because nobody leads at the moment, or this node can't reach who does.
fn is_leaderless(refusal: &Refusal) -> bool {
    refusal.code == Code::Unavailable && refusal.index.is_none()
}

fn cut_off() -> Refusal {
    Refusal::new(Code::Unavailable, "the node is cut off from its cluster; claim at another one")
}

impl<L: Log> Service<L> {
    pub(super) async fn do_claim(&self, caller: &Caller, request: ClaimRequest) -> Result<ClaimAnswer, Refusal> {
        let received = Instant::now();
        let asked = Duration::from_millis(u64::from(request.wait_ms.min(limits::WAIT_MS_LIMIT)));
        let (target, claim, policy) = loop {
            match self.prepare_claim(caller, &request).await {
                // Whoever waits, waits for a leader too.
                Err(refusal) if is_leaderless(&refusal) && self.may_be_led(caller, received + asked) => {
                    Box::pin(self.pause(received + asked)).await;
                }
                prepared => break prepared?,
            }
        };
        let named = |refusal: Refusal| Refusal { attempt_id: Some(claim.attempt_id), ..refusal };
        let wait_ms = request.wait_ms.min(policy.policy.wait_ms_max);
        // Boxed, here and below: what happens seldom must not make the future of every claim large.
        let decided = if wait_ms == 0 {
            self.claim_at_once(caller, &claim).await
        } else {
            Box::pin(self.claim_waiting(caller, &claim, received + Duration::from_millis(u64::from(wait_ms)))).await
        };
        self.claim_answer(&target, &claim, decided.map_err(named)?).map_err(named)
    }

    /// Judges a claim and makes the command of it.
    pub(super) async fn prepare_claim(
        &self,
        caller: &Caller,
        request: &ClaimRequest,
    ) -> Result<(Target, Arc<Claim>, Effective), Refusal> {
        let received = if request.ttl_ms.is_some() { Box::pin(self.log.time()).await? } else { self.log.now() };
        let id = self.authorize(caller, Method::Claim, request.record.clone())?;
        let target = self.target_or_open(id).await?;
        let policy = self.policy(&target.record.tenant, Some(target.record.operation));
        admit_key(target.id.key.as_str(), &policy)?;
        self.admit_rate(&target.record, &policy)?;
        let claim = Claim {
            record: target.record.clone(),
            id: target.names.seal(Field::Id, &target.record, target.joined.clone()),
            fingerprints: target.names.fingerprints(&target.record, &request.fingerprints),
            attempt_id: request.attempt_id.unwrap_or_else(fresh_uuid),
            lease_ms: request.lease_ms,
            staged: request.staged,
            on_lapse: request.on_lapse,
            first_sent_at: request.first_sent_at,
            labels: target.names.labels(&target.record, &request.labels),
            replay_s: request.replay_s,
            evidence_s: request.evidence_s,
            not_after: request.ttl_ms.map(|ttl_ms| received.plus_ms(u64::from(ttl_ms))),
            actor: target.names.text(Field::Actor, &target.record, caller.actor(None)),
        };
        Ok((target, Arc::new(claim), policy))
    }

    async fn claim_at_once(&self, caller: &Caller, claim: &Arc<Claim>) -> Result<Decided, Refusal> {
        // A look at the state as it is here spares new claims the barrier: they are decided in the log anyway.
        let is_new = {
            let state = self.records.read();
            let now = state.globals().time;
            let decision = decide(&*state, claim, now);
            if let Ok(Decision::Answer(answer @ answer::ClaimAnswer::Completed(_))) = decision
                && planted!(ReplayFromStaleFollower)
            {
                return Ok(Decided { index: state.globals().position, now, answer });
            }
            matches!(decide(&*state, claim, now), Ok(Decision::Propose))
        };
        if !is_new && let Look::Answer(decided) = Box::pin(self.look(caller, claim)).await? {
            return Ok(decided);
        }
        self.claim_in_log(caller, claim).await
    }

    async fn claim_in_log(&self, caller: &Caller, claim: &Arc<Claim>) -> Result<Decided, Refusal> {
        let applied = self.propose_by(caller, Command::Claim(Box::new((**claim).clone()))).await?;
        match applied.answer? {
            Answer::Claim(answer) => Ok(Decided { index: applied.index, now: applied.now, answer }),
            other => Err(mismatch(&other)),
        }
    }

    /// Decides a claim from the linearizable state, at applied time.
    async fn look(&self, caller: &Caller, claim: &Claim) -> Result<Look, Refusal> {
        let now = self.settle(&claim.record).await?;
        self.judge(caller, Some(&claim.record.tenant))?;
        let state = self.records.read();
        let globals = state.globals();
        match decide(&*state, claim, globals.time) {
            Ok(Decision::Answer(answer)) => {
                Ok(Look::Answer(Decided { index: globals.position, now: now.max(globals.time), answer }))
            }
            Ok(Decision::Propose) => Ok(Look::Propose),
            Err(refusal) => Err(at(globals.position, refusal)),
        }
    }

    /// Waits for another owner, until then at most. The waiter lives on this node, whoever leads: a change of leader ends
    /// a try, never the waiting. Only a claim whose own proposal was broken off is told that its result is not known.
    async fn claim_waiting(&self, caller: &Caller, claim: &Arc<Claim>, until: Instant) -> Result<Decided, Refusal> {
        let mut waiter = None;
        loop {
            if let Some(waiter) = &mut waiter {
                Waiter::look(waiter);
            }
            match self.try_in_turn(caller, claim, waiter.as_ref()).await {
                Ok(Some(decided)) => {
                    let goes_on = matches!(decided.answer, answer::ClaimAnswer::InProgress { .. });
                    if !goes_on || !self.may_wait(until) {
                        return Ok(decided);
                    }
                }
                Ok(None) => {}
                // Not by the table of waiters: handing on the turn to propose counts as a change there.
                Err(refusal) if is_leaderless(&refusal) && self.may_be_led(caller, until) => {
                    self.pause(until).await;
                    continue;
                }
                Err(refusal) => return Err(refusal),
            }
            match &mut waiter {
                // Entered first, then looked again: what changes in between is not missed.
                None => waiter = Some(self.waiters.enter(&claim.record)?),
                Some(waiter) => {
                    let wake_at = self.lapse_of(claim).map_or(until, |lapse| lapse.min(until));
                    self.changed(caller, waiter, wake_at).await?;
                }
            }
        }
    }

    /// One try of a claim that waits; none where another waiter of this record is proposing.
    async fn try_in_turn(
        &self,
        caller: &Caller,
        claim: &Arc<Claim>,
        waiter: Option<&Waiter>,
    ) -> Result<Option<Decided>, Refusal> {
        if let Look::Answer(decided) = self.look_in_touch(caller, claim).await? {
            return Ok(Some(decided));
        }
        // The first look of a claim that need not wait costs no place in the table.
        let turn = match waiter.map(Waiter::turn) {
            None => None,
            Some(Some(turn)) => Some(turn),
            Some(None) => return Ok(None),
        };
        let decided = self.claim_in_log(caller, claim).await;
        drop(turn);
        decided.map(Some)
    }

    /// A look that ends where this node turns out to be cut off: what it waits for may take longer.
    async fn look_in_touch(&self, caller: &Caller, claim: &Claim) -> Result<Look, Refusal> {
        let mut look = pin!(self.look(caller, claim));
        loop {
            match tokio::time::timeout(Duration::from_millis(limits::STREAM_JUDGED_MS), look.as_mut()).await {
                Ok(looked) => return looked,
                Err(_) if self.is_cut_off_for(caller) => return Err(cut_off()),
                Err(_) => {}
            }
        }
    }

    /// Waits for the record to change, until then at most. Whoever's token ends waits no more, and nobody does where this
    /// node is cut off: no change would be heard of.
    async fn changed(&self, caller: &Caller, waiter: &mut Waiter, until: Instant) -> Result<(), Refusal> {
        loop {
            let look_at = until.min(Instant::now() + Duration::from_millis(limits::STREAM_JUDGED_MS));
            let has_changed = tokio::time::timeout_at(look_at, waiter.changed()).await.is_ok();
            if has_changed || look_at >= until {
                return Ok(());
            }
            self.judge(caller, None)?;
            if self.is_cut_off_for(caller) {
                return Err(cut_off());
            }
        }
    }

    /// Whether waiting here leads to nothing: nobody can be heard to lead, or that the caller's token was revoked.
    fn is_cut_off_for(&self, caller: &Caller) -> bool {
        self.log.is_cut_off() || (caller.token_id().is_some() && self.log.is_out_of_touch())
    }

    /// Whether it is worth waiting for a leader.
    fn may_be_led(&self, caller: &Caller, until: Instant) -> bool {
        self.may_wait(until) && !self.is_cut_off_for(caller)
    }

    fn may_wait(&self, until: Instant) -> bool {
        Instant::now() < until && !self.waiters.has_ended()
    }

    /// Lets a moment pass in which a leader may be found.
    async fn pause(&self, until: Instant) {
        let moment = Instant::now() + Duration::from_millis(limits::LEADERLESS_PAUSE_MS);
        tokio::time::sleep_until(moment.min(until)).await;
    }

    /// When the record changes by itself next, on this node's clock.
    fn lapse_of(&self, claim: &Claim) -> Option<Instant> {
        let state = self.records.read();
        let now = state.globals().time;
        let head = state.head(&claim.record);
        let due = Standing::of(head.as_deref(), now, state.globals()).next_change(now)?;
        drop(state);
        let left_ms = due.since_ms(self.log.now()).clamp(limits::LAPSE_POLL_MS_MIN, limits::LAPSE_POLL_MS_MAX);
        Some(Instant::now() + Duration::from_millis(left_ms))
    }

    /// Opens an answer of the log for the caller.
    pub(super) fn claim_answer(
        &self,
        target: &Target,
        claim: &Claim,
        decided: Decided,
    ) -> Result<ClaimAnswer, Refusal> {
        let Decided { index, now, answer } = decided;
        let Target { names, record, .. } = target;
        let retry_after_ms = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
        let found = match answer {
            answer::ClaimAnswer::New(new) => Found::New(Box::new(granted(target, *new)?)),
            answer::ClaimAnswer::InProgress { retry_after_ms: ms, since } => {
                Found::InProgress { retry_after_ms: retry_after_ms(ms), since }
            }
            answer::ClaimAnswer::Conflict { state, since } => {
                let actor = names.opened_text(Field::Actor, record, &claim.actor).unwrap_or_default();
                self.seen.conflict(target.id.clone(), now, &actor);
                Found::Conflict { state, since }
            }
            answer::ClaimAnswer::Indeterminate { since, reason, retry_after_ms: ms } => {
                self.seen.blocked(&target.id);
                let reason = view::reason(names, record, reason.tag, reason.text.as_ref())?;
                Found::Indeterminate { since, reason: Reason(reason), retry_after_ms: retry_after_ms(ms) }
            }
            answer::ClaimAnswer::Completed(replay) => Found::Completed(Box::new(replayed(target, &replay, now)?)),
            answer::ClaimAnswer::Expired { reason, completed_at, evidence_until } => {
                Found::Expired { reason, completed_at, evidence_until }
            }
        };
        Ok(ClaimAnswer { attempt_id: claim.attempt_id, index, found })
    }
}

fn granted(target: &Target, new: answer::New) -> Result<New, Refusal> {
    let Target { names, record, id, .. } = target;
    let checkpoint: Option<Checkpoint> =
        new.checkpoint.as_ref().map(|point| view::checkpoint(names, record, point)).transpose()?;
    Ok(New {
        fence: new.fence,
        attempt: new.attempt,
        phase: new.phase,
        version: new.version,
        repeated: new.repeated,
        lease_ms: new.lease_ms,
        lease_deadline: new.lease_deadline,
        downstream_key: names.downstream_key(id),
        checkpoint,
    })
}

fn replayed(target: &Target, replay: &answer::Replay, now: Time) -> Result<Replay, Refusal> {
    let outcome = view::outcome(&target.names, &target.record, &replay.outcome, replay.sealed_body())?;
    let stale = outcome.valid_until.is_some_and(|until| now >= until);
    Ok(Replay { stale, outcome, completed_at: replay.completed_at })
}

/// Refuses a key that the policy finds too short or too easily guessed.
fn admit_key(key: &str, policy: &Effective) -> Result<(), Refusal> {
    let policy = &policy.policy;
    if key.len() < policy.key_bytes_min as usize {
        let least = policy.key_bytes_min;
        let detail =
            format!("record.key is {} bytes long; the policy wants at least {least} (key_bytes_min)", key.len());
        return Err(Refusal::invalid(detail));
    }
    match policy.low_entropy_keys {
        LowEntropyKeys::Allow => Ok(()),
        LowEntropyKeys::Warn | LowEntropyKeys::Refuse if !is_low_entropy(key) => Ok(()),
        LowEntropyKeys::Warn => {
            tracing::warn!(bytes = key.len(), "a key is easily guessed (low_entropy_keys)");
            Ok(())
        }
        LowEntropyKeys::Refuse => {
            let detail = "record.key is too easily guessed; use a random one, such as a UUID (low_entropy_keys)";
            Err(Refusal::invalid(detail))
        }
    }
}

/// Fewer than 8 distinct characters, or digits alone under 16.
fn is_low_entropy(key: &str) -> bool {
    let mut seen = [false; 128];
    key.bytes().for_each(|b| seen[usize::from(b & 127)] = true);
    let distinct = seen.iter().filter(|is_seen| **is_seen).count();
    distinct < 8 || (key.len() < 16 && key.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::is_low_entropy;

    #[test]
    fn low_entropy_is_few_characters_or_few_digits() {
        assert!(is_low_entropy("aaaaaaaaaaaaaaaaaaaa") && is_low_entropy("123456789012345") && is_low_entropy("k-1"));
        assert!(!is_low_entropy("1234567890123456") && !is_low_entropy("abcdefgh"));
    }
}
