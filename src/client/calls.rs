//! Every call of the schema by itself, in the schema's own messages.
//!
//! Deadline, retries, leader and cluster id are taken care of; claims, leases and guards are not. Where a command
//! lacks the id that makes it safe to repeat (a claim's `attempt_id`, a verdict's `request_id`), one is filled in.

use std::sync::Arc;

use super::{
    Client, draw,
    error::Error,
    leader::Node,
    reading::{Listing, Watch},
    retry::Kind,
};
use crate::proto::v1::{self, item::Command, item_answer::Answer};

macro_rules! owner_calls {
    ($($(#[$doc:meta])* $name:ident $Command:ident $Request:ident;)*) => {
        /// An owner's commands. Each carries the fence. Of commands that are sent at once for one record, a retry can
        /// overtake a later one: where order matters, await one before the next.
        impl Client {
            $($(#[$doc])*
            ///
            /// # Errors
            /// The refusals of the contract; else the result is not known.
            pub async fn $name(&self, request: v1::$Request) -> Result<v1::OwnerAnswer, Error> {
                self.link.owner(Command::$Command(request), self.link.deadline()).await
            })*
        }
    };
}

owner_calls! {
    /// Says that the effect is about to start.
    begin Begin BeginRequest;
    /// Extends the lease.
    renew Renew RenewRequest;
    /// Keeps a recovery point.
    checkpoint Checkpoint CheckpointRequest;
    /// Reports the outcome.
    complete Complete CompleteRequest;
    /// Says that no effect happened.
    release Release ReleaseRequest;
    /// Says that the owner doesn't know what happened.
    suspend Suspend SuspendRequest;
}

impl Client {
    /// Asks to own a record. Nothing gives it back: see [`Operation::claim`](super::Operation::claim) for a guard.
    ///
    /// # Errors
    /// The refusals of the contract; else the claim may have been granted.
    pub async fn claim(&self, mut request: v1::ClaimRequest) -> Result<v1::ClaimAnswer, Error> {
        request.attempt_id.get_or_insert_with(|| draw::uuid().hyphenated());
        self.link.claim(request).await
    }

    /// Reads a record without claiming it. Linearizable.
    ///
    /// # Errors
    /// `not_found` if there is none.
    pub async fn get(&self, mut request: v1::GetRequest) -> Result<v1::Record, Error> {
        self.link.options.name(&mut request.record);
        match self.link.item(Kind::Ordinary, Command::Get(request), self.link.deadline()).await? {
            Answer::Get(record) => Ok(record),
            _ => Err(Error::Protocol { missing: "a record" }),
        }
    }

    /// Gives one reconciler at a time an indeterminate record.
    ///
    /// # Errors
    /// `not_found`, `version_changed`; `wrong_state` while another one looks into it.
    pub async fn investigate(&self, mut request: v1::InvestigateRequest) -> Result<v1::Record, Error> {
        self.link.options.name(&mut request.record);
        let investigate = |node: Arc<Node>, request| async move { node.calls().investigate(request).await };
        self.link.call(Kind::Owner, request, investigate).await
    }

    /// Settles an indeterminate record. `owner_may_act` is not repeated by itself: once it may be, the evidence that
    /// the request carries is old.
    ///
    /// # Errors
    /// `not_found`, `wrong_state`, `version_changed`, `owner_may_act`.
    pub async fn resolve(&self, mut request: v1::ResolveRequest) -> Result<v1::OwnerAnswer, Error> {
        self.link.options.name(&mut request.record);
        request.request_id.get_or_insert_with(|| draw::uuid().hyphenated());
        let resolve = |node: Arc<Node>, request| async move { node.calls().resolve(request).await };
        self.link.call(Kind::Owner, request, resolve).await
    }

    /// Erases a completed outcome's body early. The evidence stays.
    ///
    /// # Errors
    /// `not_found`, `wrong_state`.
    pub async fn forget(&self, mut request: v1::ForgetRequest) -> Result<v1::OwnerAnswer, Error> {
        self.link.options.name(&mut request.record);
        let forget = |node: Arc<Node>, request| async move { node.calls().forget(request).await };
        self.link.call(Kind::Ordinary, request, forget).await
    }

    /// A page of what happened to a record, oldest first.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn history(&self, mut request: v1::HistoryRequest) -> Result<v1::HistoryAnswer, Error> {
        self.link.options.name(&mut request.record);
        let history = |node: Arc<Node>, request| async move { node.calls().history(request).await };
        self.link.call(Kind::Ordinary, request, history).await
    }

    /// Lists records, a page at a time.
    pub fn list(&self, mut request: v1::ListRequest) -> Listing {
        if request.tenant.is_none() {
            request.tenant.clone_from(&self.link.options.tenant);
        }
        Listing::new(self.link.clone(), request)
    }

    /// The indeterminate records, and every change of that set.
    pub fn watch(&self, mut request: v1::WatchRequest) -> Watch {
        if request.tenant.is_none() {
            request.tenant.clone_from(&self.link.options.tenant);
        }
        Watch::new(self.link.clone(), request)
    }

    /// The policy in force for a tenant or operation, and what was set for exactly it.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn policy(&self, mut request: v1::GetPolicyRequest) -> Result<v1::PolicyAnswer, Error> {
        if request.tenant.is_none() {
            request.tenant.clone_from(&self.link.options.tenant);
        }
        let get = |node: Arc<Node>, request| async move { node.policies().get(request).await };
        self.link.call(Kind::Ordinary, request, get).await
    }

    /// Changes a policy: given fields change, fields named in `remove` fall back to what stands above. What was
    /// promised under the policy before is kept.
    ///
    /// # Errors
    /// `invalid_argument` where fields don't fit each other.
    pub async fn set_policy(&self, mut request: v1::SetPolicyRequest) -> Result<v1::PolicyAnswer, Error> {
        if request.tenant.is_none() {
            request.tenant.clone_from(&self.link.options.tenant);
        }
        let set = |node: Arc<Node>, request| async move { node.policies().set(request).await };
        self.link.call(Kind::Ordinary, request, set).await
    }
}
