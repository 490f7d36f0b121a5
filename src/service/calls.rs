//! The service as the doors call it.

use super::{Calls, Changes, Log, Service, StreamPlace, answer::*, request::*};
use crate::{auth::Caller, id::ClusterId, refusal::Refusal};

impl<L: Log> Calls for Service<L> {
    async fn claim(&self, caller: &Caller, request: ClaimRequest) -> Result<ClaimAnswer, Refusal> {
        self.do_claim(caller, request).await
    }

    async fn owner(&self, caller: &Caller, request: OwnerRequest) -> Result<OwnerAnswer, Refusal> {
        self.do_owner(caller, request).await
    }

    async fn get(&self, caller: &Caller, request: GetRequest) -> Result<Record, Refusal> {
        self.do_get(caller, request).await
    }

    async fn batch(&self, caller: &Caller, request: BatchRequest) -> Result<BatchAnswer, Refusal> {
        self.do_batch(caller, request).await
    }

    async fn list(&self, caller: &Caller, request: ListRequest) -> Result<ListAnswer, Refusal> {
        self.do_list(caller, request).await
    }

    async fn investigate(&self, caller: &Caller, request: InvestigateRequest) -> Result<Record, Refusal> {
        self.do_investigate(caller, request).await
    }

    async fn resolve(&self, caller: &Caller, request: ResolveRequest) -> Result<OwnerAnswer, Refusal> {
        self.do_resolve(caller, request).await
    }

    async fn forget(&self, caller: &Caller, request: ForgetRequest) -> Result<OwnerAnswer, Refusal> {
        self.do_forget(caller, request).await
    }

    async fn history(&self, caller: &Caller, request: HistoryRequest) -> Result<HistoryAnswer, Refusal> {
        self.do_history(caller, request).await
    }

    async fn watch(&self, caller: &Caller, request: WatchRequest) -> Result<Changes, Refusal> {
        self.do_watch(caller, request).await
    }

    async fn create_token(&self, caller: &Caller, request: CreateTokenRequest) -> Result<TokenAnswer, Refusal> {
        self.do_create_token(caller, request).await
    }

    async fn list_tokens(&self, caller: &Caller, request: ListTokensRequest) -> Result<ListTokensAnswer, Refusal> {
        self.do_list_tokens(caller, request).await
    }

    async fn revoke_token(&self, caller: &Caller, request: RevokeTokenRequest) -> Result<TokenAnswer, Refusal> {
        self.do_revoke_token(caller, request).await
    }

    async fn get_policy(&self, caller: &Caller, request: GetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        self.do_get_policy(caller, request).await
    }

    async fn set_policy(&self, caller: &Caller, request: SetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        self.do_set_policy(caller, request).await
    }

    async fn audit(&self, caller: &Caller, request: AuditRequest) -> Result<AuditAnswer, Refusal> {
        self.do_audit(caller, request).await
    }

    fn end_waits(&self) {
        self.waiters.end();
    }

    fn stream(&self, caller: &Caller) -> Result<Option<StreamPlace>, Refusal> {
        self.streams.enter(caller)
    }

    fn leading(&self) -> Result<(), Refusal> {
        self.log.leading()
    }

    fn cluster_id(&self) -> Option<ClusterId> {
        self.formed_as()
    }
}
