//! Reading and changing policies.

use super::{
    Log,
    answer::PolicyAnswer,
    node::{Service, mismatch},
    request::{GetPolicyRequest, SetPolicyRequest},
};
use crate::{
    auth::{Caller, Method},
    id::{KeyedHash, Position, Tenant},
    records::{
        answer::Answer,
        command::{Command, PolicySet},
        policy::{Effective, Overrides},
        state::State,
    },
    refusal::Refusal,
    seal::{Field, Subject},
};

impl<L: Log> Service<L> {
    pub(super) async fn do_get_policy(
        &self,
        caller: &Caller,
        request: GetPolicyRequest,
    ) -> Result<PolicyAnswer, Refusal> {
        let tenant = caller.authorize_policy(Method::GetPolicy, request.tenant.as_ref(), request.operation.as_ref())?;
        self.log.barrier().await?;
        self.judge(caller, Some(&tenant))?;
        let operation = match (&request.operation, self.names_of(&tenant)?) {
            (Some(operation), Some(names)) => Some(names.operation(operation)),
            _ => None,
        };
        let effective = self.policy(&tenant, operation);
        Ok(self.policy_answer(&tenant, operation, effective, self.position()))
    }

    pub(super) async fn do_set_policy(
        &self,
        caller: &Caller,
        request: SetPolicyRequest,
    ) -> Result<PolicyAnswer, Refusal> {
        let tenant = caller.authorize_policy(Method::SetPolicy, request.tenant.as_ref(), request.operation.as_ref())?;
        let names = self.names_or_open(&tenant).await?;
        let operation = request.operation.as_ref().map(|operation| names.operation(operation));
        let detail = format!("{:?}", request.patch);
        let set = PolicySet {
            tenant: tenant.clone(),
            operation,
            patch: request.patch,
            actor: names.cipher().seal(Field::AuditActor, Subject::Audit, caller.actor(None).as_bytes().to_vec()),
            detail: names.cipher().seal(Field::AuditDetail, Subject::Audit, detail.into_bytes()),
        };
        let applied = self.propose_by(caller, Command::PolicySet(Box::new(set))).await?;
        match applied.answer? {
            Answer::Policy(effective) => Ok(self.policy_answer(&tenant, operation, *effective, applied.index)),
            other => Err(mismatch(&other)),
        }
    }

    fn policy_answer(
        &self,
        tenant: &Tenant,
        operation: Option<KeyedHash>,
        effective: Effective,
        index: Position,
    ) -> PolicyAnswer {
        let level = self.records.read().policy(tenant, operation);
        let overrides = level.map_or_else(Overrides::default, |level| level.overrides.clone());
        PolicyAnswer { policy: effective.policy, overrides, index }
    }
}
