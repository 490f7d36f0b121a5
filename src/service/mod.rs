//! The calls behind every door: what is asked ([`request`]), what is answered ([`answer`]), and the calls themselves
//! ([`Calls`]).

use std::pin::Pin;

use futures_util::Stream;

pub mod answer;
mod audit;
mod batch;
mod calls;
mod claim;
mod cursor;
mod events;
mod list;
mod log;
mod names;
mod node;
mod owner;
mod policy;
mod read;
mod reconcile;
pub mod request;
mod seen;
mod streams;
mod tenants;
#[cfg(test)]
mod tests;
pub(crate) mod token;
mod view;
mod waiters;
mod watch;

#[cfg(test)]
pub(crate) use audit::plain_event as audit_event;
pub(crate) use audit::sealed_as;
pub use log::Log;
pub use node::Service;
pub use seen::{Conflict, Seen};
pub use streams::{StreamPlace, Streams};

use crate::{
    auth::Caller,
    id::ClusterId,
    refusal::{Code, Refusal},
};
use answer::*;
use request::*;

/// Changes of the indeterminate records, until the caller stops listening. A refusal is the last item.
pub type Changes = Pin<Box<dyn Stream<Item = Result<WatchAnswer, Refusal>> + Send>>;

/// Everything that a client can ask for. Both doors are written against this, so that they can't differ in what they
/// call.
///
/// What is proposed outlives its caller: a future that is dropped stops waiting for the answer and nothing else. Only a
/// claim that still waits proposes nothing once it is dropped.
pub trait Calls: Send + Sync + 'static {
    /// Asks to own a record.
    fn claim(
        &self,
        caller: &Caller,
        request: ClaimRequest,
    ) -> impl Future<Output = Result<ClaimAnswer, Refusal>> + Send;
    /// A command of an owner.
    fn owner(
        &self,
        caller: &Caller,
        request: OwnerRequest,
    ) -> impl Future<Output = Result<OwnerAnswer, Refusal>> + Send;
    /// Reads a record.
    fn get(&self, caller: &Caller, request: GetRequest) -> impl Future<Output = Result<Record, Refusal>> + Send;
    /// Several commands, in order, each as it would be alone.
    fn batch(
        &self,
        caller: &Caller,
        request: BatchRequest,
    ) -> impl Future<Output = Result<BatchAnswer, Refusal>> + Send;
    /// A page of a listing.
    fn list(&self, caller: &Caller, request: ListRequest) -> impl Future<Output = Result<ListAnswer, Refusal>> + Send;
    /// Takes up an indeterminate record.
    fn investigate(
        &self,
        caller: &Caller,
        request: InvestigateRequest,
    ) -> impl Future<Output = Result<Record, Refusal>> + Send;
    /// Settles an indeterminate record.
    fn resolve(
        &self,
        caller: &Caller,
        request: ResolveRequest,
    ) -> impl Future<Output = Result<OwnerAnswer, Refusal>> + Send;
    /// Erases an outcome early.
    fn forget(
        &self,
        caller: &Caller,
        request: ForgetRequest,
    ) -> impl Future<Output = Result<OwnerAnswer, Refusal>> + Send;
    /// A page of a record's history.
    fn history(
        &self,
        caller: &Caller,
        request: HistoryRequest,
    ) -> impl Future<Output = Result<HistoryAnswer, Refusal>> + Send;
    /// The indeterminate records and every change of that set.
    fn watch(&self, caller: &Caller, request: WatchRequest) -> impl Future<Output = Result<Changes, Refusal>> + Send;
    /// Reads a policy.
    fn get_policy(
        &self,
        caller: &Caller,
        request: GetPolicyRequest,
    ) -> impl Future<Output = Result<PolicyAnswer, Refusal>> + Send;
    /// Changes a policy.
    fn set_policy(
        &self,
        caller: &Caller,
        request: SetPolicyRequest,
    ) -> impl Future<Output = Result<PolicyAnswer, Refusal>> + Send;
    /// Makes a token.
    fn create_token(
        &self,
        _caller: &Caller,
        _request: CreateTokenRequest,
    ) -> impl Future<Output = Result<TokenAnswer, Refusal>> + Send {
        std::future::ready(Err(no_tokens()))
    }
    /// A page of tokens.
    fn list_tokens(
        &self,
        _caller: &Caller,
        _request: ListTokensRequest,
    ) -> impl Future<Output = Result<ListTokensAnswer, Refusal>> + Send {
        std::future::ready(Err(no_tokens()))
    }
    /// Ends a token.
    fn revoke_token(
        &self,
        _caller: &Caller,
        _request: RevokeTokenRequest,
    ) -> impl Future<Output = Result<TokenAnswer, Refusal>> + Send {
        std::future::ready(Err(no_tokens()))
    }
    /// A page of an audit chain.
    fn audit(
        &self,
        _caller: &Caller,
        _request: AuditRequest,
    ) -> impl Future<Output = Result<AuditAnswer, Refusal>> + Send {
        std::future::ready(Err(Refusal::new(Code::Unavailable, "no audit is kept here")))
    }
    /// Ends all waiting, now and later: waiting claims are answered as things stand. For a node that stops.
    fn end_waits(&self) {}
    /// A place for a stream of this caller, held while it is open; none where it needs none.
    ///
    /// # Errors
    /// `rate_limited`.
    fn stream(&self, _caller: &Caller) -> Result<Option<StreamPlace>, Refusal> {
        Ok(None)
    }
    /// So many sessions were opened; fewer than none were closed.
    fn sessions(&self, _opened: i64) {}
    /// Refuses, naming who leads where that is known, unless this node does: for callers that want no forwarding.
    ///
    /// # Errors
    /// `unavailable`.
    fn leading(&self) -> Result<(), Refusal> {
        Ok(())
    }
    /// The cluster that answers; none while it isn't formed.
    fn cluster_id(&self) -> Option<ClusterId>;
}

/// What keeps no tokens answers so.
fn no_tokens() -> Refusal {
    Refusal::new(Code::Unavailable, "no tokens are kept here")
}
