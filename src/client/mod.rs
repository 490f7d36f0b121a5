//! The client library: one caller intent, one durable outcome, from Rust.
//!
//! ```no_run
//! # async fn charge_at_provider(_: &str) -> Result<String, std::io::Error> { Ok(String::new()) }
//! # async fn example(key: &str, request: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use semel::{client::{Done, Verdict}, fingerprint::Fingerprint};
//!
//! let semel = semel::Client::connect("http://127.0.0.1:7171").await?;
//! let done = semel
//!     .operation("charge.create")
//!     .key(key)
//!     .fingerprint(Fingerprint::json_text(request)?)
//!     .run(async |claim| match charge_at_provider(claim.downstream_key()).await {
//!         Ok(charge) => Verdict::completed(201, charge),
//!         Err(error) => Verdict::unknown(error), // kept, never repeated
//!     })
//!     .await?;
//! if let Done::Ran(outcome) | Done::Replayed(outcome) = done {
//!     println!("{} with {:?}", outcome.status, outcome.body);
//! }
//! semel.close().await;
//! # Ok(()) }
//! ```
//!
//! # What it does by itself
//!
//! - **Repeats, where that is safe.** A command whose result is not known is repeated in the form that makes it the
//!   same command: with its attempt id, its fence or its request id. Never more than a budget for the whole client, a
//!   deadline for each call, and a pause with jitter allow.
//! - **Starts nothing in doubt.** A handler runs only once `begin` was answered and less than 95 % of the lease have
//!   passed by the process's own clock, counted from before the claim was sent.
//! - **Renews** the lease for as long as a [`Claim`] lives.
//! - **Forgets nothing.** A claim that is dropped, by an early return, a panic or a cancelled task, is released when
//!   nothing was started and suspended otherwise. [`Client::close`] waits for these reports.
//! - **Finds the leader.** Any node takes every call; where one names the leader, the client goes there.
//! - **Notices a restore.** Answers of another cluster than before are refused until [`Client::trust_cluster`].
//!
//! It caches nothing: every claim asks the cluster. What remains indeterminate is for a [`Reconciler`], which asks the
//! provider before anything is tried again.
//!
//! # Reading order
//!
//! [`error`](Error), `outcome`, `done` (what callers see) · `operation`, `claim`, `lease`, `abandoned` (owning a
//! record) · `calls`, `reading`, `reconciler` (everything else) · `link`, `session`, `retry`, `leader`, `connector`,
//! `cluster` (how a command gets there and back).

mod abandoned;
mod batch;
mod builder;
mod calls;
mod claim;
mod cluster;
mod connector;
mod done;
mod draw;
mod error;
mod leader;
mod lease;
mod link;
mod operation;
mod outcome;
mod reading;
mod reconciler;
mod retry;
mod session;

#[cfg(all(test, feature = "server"))]
mod tests;

use std::{fmt, sync::Arc};

use self::{abandoned::Drops, builder::Options, cluster::Cluster, connector::Connector, leader::Nodes, link::Link};
pub use self::{
    builder::Builder,
    claim::{Checkpoint, Claim},
    done::{Conflict, Done, Expired, Found, InProgress, Indeterminate},
    error::Error,
    operation::Operation,
    outcome::{Body, Outcome, Verdict},
    reading::{Listing, Watch},
    reconciler::{Finding, Pass, Reconciler, Unresolved},
};
use crate::id::ClusterId;

/// A client of a cluster. Cloning it is cheap; all clones share one connection, one budget and one background task.
#[derive(Clone)]
pub struct Client {
    link: Arc<Link>,
    drops: Drops,
}

impl Client {
    /// Connects to a cluster by one or several (comma-separated) endpoints, like `http://127.0.0.1:7171`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if none can be reached, [`Error::Configuration`] if one is no address.
    pub async fn connect(endpoints: impl Into<String>) -> Result<Self, Error> {
        Self::builder().endpoint(endpoints).connect().await
    }

    /// Everything that can be set.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn start(
        endpoints: &[String],
        plaintext_anywhere: bool,
        connector: Connector,
        cluster_id: Option<ClusterId>,
        options: Options,
    ) -> Result<Self, Error> {
        let nodes = Nodes::new(endpoints, plaintext_anywhere, connector)?;
        let link = Arc::new(Link::start(nodes, Cluster::new(cluster_id), options));
        let drops = Drops::start(link.clone());
        Ok(Self { link, drops })
    }

    async fn reach(&self) -> Result<(), Error> {
        self.link.nodes.reach().await
    }

    /// An operation that is to happen once.
    pub fn operation(&self, operation: impl Into<String>) -> Operation {
        Operation::new(self.link.clone(), self.drops.clone(), operation.into())
    }

    /// The cluster whose answers are taken, once one has answered.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.link.cluster.known()
    }

    /// Takes answers from this cluster from now on. To be called after [`Error::ClusterChanged`], once somebody has
    /// made sure that the new cluster is the restore that it claims to be: everything after its backup is in doubt.
    pub fn trust_cluster(&self, id: ClusterId) {
        self.link.cluster.trust(id);
    }

    /// Claims nothing more, and waits until every claim that was dropped so far is reported. Claims that are still
    /// owned can be reported afterwards.
    pub async fn close(&self) {
        self.link.close();
        self.drops.drain().await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.link.nodes.current();
        f.debug_struct("Client")
            .field("endpoint", &node.endpoint())
            .field("cluster_id", &self.cluster_id())
            .finish_non_exhaustive()
    }
}
