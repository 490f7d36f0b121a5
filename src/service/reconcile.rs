//! Investigate, resolve, forget.

use super::{
    Log,
    answer::{OwnerAnswer, Record},
    node::{Service, Target, at, fresh_uuid, mismatch},
    owner::changed,
    request::{ForgetRequest, InvestigateRequest, ResolveRequest, Verdict},
    view,
};
use crate::{
    auth::{Caller, Method, Scope},
    id::{Fence, Position},
    records::{
        answer::Answer,
        command::{self, Command, Forget, Investigate, Resolve},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::Field,
};

fn not_found() -> Refusal {
    Refusal::new(Code::NotFound, "nothing is recorded under this identity")
}

fn reconciler(target: &Target, actor: &str) -> command::Reconciler {
    command::Reconciler {
        actor: target.names.text(Field::Actor, &target.record, actor),
        digest: target.names.actor(actor),
    }
}

impl<L: Log> Service<L> {
    /// The record of a call that finds nothing where a tenant was never opened.
    async fn known(&self, id: crate::id::RecordId) -> Result<Target, Refusal> {
        self.known_target(id).await?.ok_or_else(|| at(self.position(), not_found()))
    }

    pub(super) async fn do_investigate(&self, caller: &Caller, request: InvestigateRequest) -> Result<Record, Refusal> {
        let id = self.authorize(caller, Method::Investigate, request.record)?;
        let target = self.known(id).await?;
        let actor = caller.actor(request.actor.as_ref().map(|actor| actor.as_str()));
        let investigate = Investigate {
            record: target.record.clone(),
            lease_ms: request.lease_ms,
            version: request.version,
            by: reconciler(&target, actor),
        };
        let applied = self.propose_by(caller, Command::Investigate(Box::new(investigate))).await?;
        let (index, now) = (applied.index, applied.now);
        let head = match applied.answer? {
            Answer::Investigated(head) => head,
            other => return Err(mismatch(&other)),
        };
        let state = self.records.read();
        let record = view::record(&*state, (&target.names, &target.record), &head, now, index, false)?;
        record.ok_or_else(|| at(index, not_found()))
    }

    pub(super) async fn do_resolve(&self, caller: &Caller, request: ResolveRequest) -> Result<OwnerAnswer, Refusal> {
        let id = self.authorize(caller, Method::Resolve, request.record)?;
        let target = self.known(id).await?;
        let named = request.actor.as_ref().map(|actor| actor.as_str());
        // With a credential the actor is the caller, and what it calls itself is a note beside the evidence.
        let evidence = match (caller.scope(), named) {
            (Scope::Open, _) | (_, None) => request.evidence.as_str().to_owned(),
            (_, Some(note)) => format!("{} ({note})", request.evidence.as_str()),
        };
        let verdict = match &request.verdict {
            Verdict::Completed(outcome) => {
                let fence = self.fence_at(&target, request.version).await?;
                command::Verdict::Completed(target.names.outcome(&target.record, fence, outcome))
            }
            Verdict::NoEffect => command::Verdict::NoEffect(()),
            Verdict::Unknown { check_again_at } => command::Verdict::Unknown(*check_again_at),
        };
        let resolve = Resolve {
            record: target.record.clone(),
            version: request.version,
            verdict,
            by: reconciler(&target, caller.actor(named)),
            evidence: target.names.text(Field::Evidence, &target.record, &evidence),
            request_id: request.request_id.unwrap_or_else(fresh_uuid),
        };
        changed(self.propose_by(caller, Command::Resolve(Box::new(resolve))).await?)
    }

    pub(super) async fn do_forget(&self, caller: &Caller, request: ForgetRequest) -> Result<OwnerAnswer, Refusal> {
        let id = self.authorize(caller, Method::Forget, request.record)?;
        let target = self.known(id).await?;
        let forget = Forget {
            record: target.record.clone(),
            actor: target.names.text(Field::Actor, &target.record, caller.actor(None)),
            reason: request.reason.map(|reason| target.names.text(Field::Reason, &target.record, reason.as_str())),
        };
        changed(self.propose_by(caller, Command::Forget(Box::new(forget))).await?)
    }

    /// The record's fence as it is at a version: a verdict's outcome is sealed with it. At another version the verdict is
    /// refused where it is applied, whatever it is sealed with.
    async fn fence_at(&self, target: &Target, version: Position) -> Result<Fence, Refusal> {
        let at_version = || {
            let head = self.records.read().head(&target.record);
            head.filter(|head| head.version == version).map(|head| head.grant().map_or(Fence(0), |grant| grant.fence()))
        };
        if let Some(fence) = at_version() {
            return Ok(fence);
        }
        self.log.barrier().await?;
        Ok(at_version().unwrap_or(Fence(0)))
    }

    /// Whether anything stands under this record's hash, as far as this node knows.
    pub(super) fn is_known(&self, target: &Target) -> bool {
        self.records.read().head(&target.record).is_some()
    }
}
