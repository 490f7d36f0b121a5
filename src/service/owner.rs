//! The commands of an owner.

use super::{
    Log,
    answer::OwnerAnswer,
    node::{Service, Target, at, mismatch},
    request::{OwnerAction, OwnerKind, OwnerRequest},
};
use crate::{
    auth::{Caller, Method},
    id::Position,
    records::{
        answer::{Answer, Applied, Changed},
        command::{self, Command, OwnerCommand},
    },
    refusal::{Code, Refusal},
    seal::Field,
};

/// The row of the permission table for an owner's command.
pub(super) fn method(kind: OwnerKind) -> Method {
    match kind {
        OwnerKind::Begin => Method::Begin,
        OwnerKind::Renew => Method::Renew,
        OwnerKind::Checkpoint => Method::Checkpoint,
        OwnerKind::Complete => Method::Complete,
        OwnerKind::Release => Method::Release,
        OwnerKind::Suspend => Method::Suspend,
    }
}

/// What a changed record answers.
pub(super) fn owner_answer(index: Position, changed: Changed) -> OwnerAnswer {
    let Changed { state, phase, lease_ms, lease_deadline, version } = changed;
    OwnerAnswer { state, phase, lease_ms, lease_deadline, version, index }
}

/// The answer of a command that changes a record.
pub(super) fn changed(applied: Applied) -> Result<OwnerAnswer, Refusal> {
    match applied.answer? {
        Answer::Changed(changed) => Ok(owner_answer(applied.index, changed)),
        other => Err(mismatch(&other)),
    }
}

/// The refusal of a fence where nothing is recorded at all.
pub(super) fn no_record() -> Refusal {
    let detail = "nothing is recorded under this identity, so no fence of it is current";
    Refusal::new(Code::StaleFence, detail)
}

impl<L: Log> Service<L> {
    pub(super) async fn do_owner(&self, caller: &Caller, request: OwnerRequest) -> Result<OwnerAnswer, Refusal> {
        match self.prepare_owner(caller, request).await? {
            Some(command) => changed(self.propose_by(caller, command).await?),
            None => Err(at(self.position(), no_record())),
        }
    }

    /// Judges an owner's command; none where it can only meet an absent record: a stranger's fence costs no log entry.
    pub(super) async fn prepare_owner(
        &self,
        caller: &Caller,
        request: OwnerRequest,
    ) -> Result<Option<Command>, Refusal> {
        let id = self.authorize(caller, method(request.action.kind()), request.record)?;
        let Some(target) = self.known_target(id).await? else { return Ok(None) };
        if !self.is_known(&target) {
            Box::pin(self.log.barrier()).await?;
            self.judge(caller, Some(&target.record.tenant))?;
            if !self.is_known(&target) {
                return Ok(None);
            }
        }
        Ok(Some(owner_command(caller, &target, request.fence, request.action)))
    }
}

/// The command of an owner as it is proposed.
pub(super) fn owner_command(caller: &Caller, target: &Target, fence: crate::id::Fence, action: OwnerAction) -> Command {
    let Target { names, record, .. } = target;
    let action = match action {
        OwnerAction::Begin { lease_ms } => command::OwnerAction::Begin(lease_ms),
        OwnerAction::Renew { lease_ms } => command::OwnerAction::Renew(lease_ms),
        OwnerAction::Checkpoint(point) => command::OwnerAction::Checkpoint(names.point(record, fence, &point)),
        OwnerAction::Complete(outcome) => command::OwnerAction::Complete(names.outcome(record, fence, &outcome)),
        OwnerAction::Release { evidence } => {
            command::OwnerAction::Release(evidence.map(|text| names.text(Field::Evidence, record, text.as_str())))
        }
        OwnerAction::Suspend { reason } => {
            command::OwnerAction::Suspend(reason.map(|text| names.text(Field::Reason, record, text.as_str())))
        }
    };
    let actor = names.text(Field::Actor, record, caller.actor(None));
    Command::Owner(Box::new(OwnerCommand { record: record.clone(), fence, action, actor }))
}
