//! How a cluster comes to be: every named node promises itself to it, this node begins the log, and the first command is
//! applied.
//!
//! # Invariants
//!
//! - I1. Nothing is written anywhere before every named node has answered and is free, or has promised itself to this very
//!   cluster.
//! - I2. Promises are collected in the order of the node ids, so that of two inits at once the second finds the first
//!   node taken, and has written nothing.
//! - I3. A node is bound by its promise until whoever collected it takes it back; that happens only before the log is begun.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::Status;

use super::{
    Addresses, Consensus, FormError, Forming, Shared,
    codec::message::{AskPromise, End, Founder, Hello, NodeState, Promise, PromiseAnswer},
    peer::member::MemberClient,
    propose::unavailable,
    running::{Running, blocking},
    start::StartError,
    types::{Member, StoredMembership},
    vouch::Unvouched,
};
use crate::{
    id::{ClusterId, DiskId, LineageId, NodeId},
    limits,
    records::command::{Command, Init},
    refusal::{Code, Refusal},
    wal::{Identity, Wal},
};

/// What a cluster is called, and what it is formed of.
pub(super) struct Plan {
    pub lineage_id: LineageId,
    pub cluster_id: ClusterId,
    pub founders: Vec<Founder>,
}

impl Plan {
    fn asks(&self) -> AskPromise {
        AskPromise::Grant {
            lineage_id: self.lineage_id,
            cluster_id: self.cluster_id,
            founders: self.founders.clone(),
            replaces: false,
        }
    }
}

impl Consensus {
    /// Forms a cluster of these members, of which this node is one, and has `init` applied as its first command. Where the
    /// same set was named before, what broke off is finished under the ids that were drawn then, and what is formed stays
    /// as it is.
    ///
    /// # Errors
    /// Nothing is written anywhere where this node is not among the members, or one of them can't be reached, is another
    /// node, is in another cluster or promised to one; what kept the node from starting.
    pub async fn init(&self, members: BTreeMap<NodeId, Addresses>, init: Init) -> Result<Forming, FormError> {
        let ids = (init.lineage_id, init.cluster_id);
        let first = |(lineage_id, cluster_id)| Ok(Command::Init(Box::new(Init { lineage_id, cluster_id, ..init })));
        self.init_by(members, ids, first).await
    }

    /// As [`Consensus::init`], with a first command that is made once it is known under which ids the cluster is formed.
    /// `ids` are those of a new one.
    ///
    /// # Errors
    /// As [`Consensus::init`], and those of `first`.
    pub async fn init_by(
        &self,
        members: BTreeMap<NodeId, Addresses>,
        ids: (LineageId, ClusterId),
        first: impl FnOnce((LineageId, ClusterId)) -> Result<Command, Refusal>,
    ) -> Result<Forming, FormError> {
        let shared = &self.shared;
        let _alone = shared.forming.lock().await;
        let founders = founders(&members);
        if !members.contains_key(&shared.options.node_id) {
            return Err(FormError::NotNamed { node_id: shared.options.node_id });
        }
        if members.len() > limits::MEMBERS_MAX {
            return Err(FormError::TooMany { members: members.len() });
        }
        if let Some(running) = shared.running.load_full() {
            return self.finish(&running, founders, first).await;
        }
        if shared.state() == NodeState::WaitingForReplace {
            return Err(FormError::WaitingForReplace);
        }
        let is_begun = |unvouched: &Unvouched| unvouched.has_no_membership();
        if shared.standing.lock().unvouched.as_ref().is_some_and(is_begun) {
            // Once the others have vouched for it, the same call goes on where the earlier one broke off.
            let refusal = unavailable("this node has started again, and no quorum has vouched for it yet");
            return Err(FormError::Refused(refusal));
        }
        let hellos = shared.ask_founders(&founders).await?;
        let plan = match shared.adopted(&founders, &hellos)? {
            Adopted::Formed(cluster_id) => return Ok(Forming { cluster_id, created: false }),
            Adopted::Promised(lineage_id, cluster_id) => Plan { lineage_id, cluster_id, founders },
            Adopted::Free => Plan { lineage_id: ids.0, cluster_id: ids.1, founders },
        };
        let disks = shared.collect_promises(&plan).await?;
        let running = shared.take_part().await?;
        let identity = running.identity;
        debug_assert_eq!(disks.get(&identity.node_id), Some(&identity.disk_id));
        if !running.is_initialized().await? {
            running.initialize(joined(&plan.founders, &disks)).await?;
        }
        self.have_first_command(&running, first).await
    }

    /// Forms a cluster whose only member is this node.
    ///
    /// # Errors
    /// As [`Consensus::init`].
    pub async fn init_single(&self, addresses: Addresses, init: Init) -> Result<Forming, FormError> {
        self.init(BTreeMap::from([(self.shared.options.node_id, addresses)]), init).await
    }

    /// Goes on with a cluster whose log this node has begun, or is in.
    async fn finish(
        &self,
        running: &Arc<Running>,
        founders: Vec<Founder>,
        first: impl FnOnce((LineageId, ClusterId)) -> Result<Command, Refusal>,
    ) -> Result<Forming, FormError> {
        let promise = self.shared.standing.lock().promise.clone();
        let named = promise.filter(|promise| promise.cluster_id == running.identity.cluster_id);
        let named = named.map(|promise| promise.founders).filter(|named| !named.is_empty());
        if running.is_initialized().await? {
            let named = match named {
                Some(named) => named,
                None => {
                    // What the log holds is known once it is applied, which takes a while after a start.
                    self.read_barrier().await.map_err(FormError::Refused)?;
                    let member = |(node_id, member): (NodeId, Member)| Founder {
                        node_id,
                        peer_addr: member.peer_addr,
                        client_addr: member.client_addr,
                    };
                    running.members().into_iter().map(member).collect()
                }
            };
            if named != founders {
                return Err(FormError::OtherMembers);
            }
        } else {
            // The process ended between the log's beginning and its first entry.
            if named.is_some_and(|named| named != founders) {
                return Err(FormError::OtherMembers);
            }
            let Identity { lineage_id, cluster_id, .. } = running.identity;
            let plan = Plan { lineage_id, cluster_id, founders };
            let disks = self.shared.collect_promises(&plan).await?;
            running.initialize(joined(&plan.founders, &disks)).await?;
        }
        self.have_first_command(running, first).await
    }

    /// Has the first command applied, unless it is. Whoever leads meanwhile: it is the same command.
    async fn have_first_command(
        &self,
        running: &Running,
        first: impl FnOnce((LineageId, ClusterId)) -> Result<Command, Refusal>,
    ) -> Result<Forming, FormError> {
        let Identity { lineage_id, cluster_id, .. } = running.identity;
        let until = Instant::now() + Duration::from_millis(limits::FORM_MS);
        let formed = |created| Ok(Forming { cluster_id, created });
        if running.is_formed() {
            return formed(false);
        }
        let first = Arc::new(first((lineage_id, cluster_id)).map_err(FormError::Refused)?);
        loop {
            let refusal = match self.propose(Arc::clone(&first)).await.and_then(|applied| applied.answer) {
                Ok(_) => return formed(true),
                Err(refusal) if refusal.code == Code::WrongState => return formed(false),
                Err(refusal) => refusal,
            };
            if !refusal.code.retryable() || Instant::now() > until {
                return Err(FormError::Refused(refusal));
            }
            tokio::time::sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await;
        }
    }
}

pub(super) fn founders(members: &BTreeMap<NodeId, Addresses>) -> Vec<Founder> {
    let founder = |(node_id, addresses): (&NodeId, &Addresses)| Founder {
        node_id: *node_id,
        peer_addr: addresses.peer.clone(),
        client_addr: addresses.client.clone(),
    };
    members.iter().map(founder).collect()
}

pub(super) fn joined(founders: &[Founder], disks: &BTreeMap<NodeId, DiskId>) -> BTreeMap<NodeId, Member> {
    let member = |founder: &Founder| {
        let (peer_addr, client_addr) = (founder.peer_addr.clone(), founder.client_addr.clone());
        let disk_id = *disks.get(&founder.node_id).expect("every founder has promised");
        (founder.node_id, Member { peer_addr, client_addr, disk_id })
    };
    founders.iter().map(member).collect()
}

/// What is known of a cluster of these members.
pub(super) enum Adopted {
    /// It is formed.
    Formed(ClusterId),
    /// Some of them have promised themselves to one, and nothing says that they must not all.
    Promised(LineageId, ClusterId),
    /// All are free.
    Free,
}

impl Shared {
    fn to_founder(&self, founder: &Founder) -> MemberClient {
        let (cluster_id, from) = self.ends();
        let to = End { node_id: founder.node_id, disk_id: DiskId::default() };
        self.peers.book.member(cluster_id, from, to, &founder.peer_addr)
    }

    /// Asks every named node who it is (I1).
    pub(super) async fn ask_founders(
        &self,
        founders: &[Founder],
    ) -> Result<Vec<(NodeId, ClusterId, Hello)>, FormError> {
        let ask = async |founder: &Founder| {
            let node_id = founder.node_id;
            let unreachable = |reason: String| FormError::Unreachable { node_id, reason };
            if node_id == self.options.node_id {
                let (cluster_id, _, hello) = self.hello(node_id);
                return Ok((node_id, cluster_id, hello));
            }
            let (_, _, hello) = self.hello(node_id);
            let client = self.to_founder(founder);
            let (envelope, body) =
                client.hello(hello.encode()).await.map_err(|error| unreachable(error.to_string()))?;
            if envelope.from.node_id != node_id {
                return Err(unreachable(format!("node {} answers there", envelope.from.node_id)));
            }
            let hello = Hello::decode(&body).map_err(|error| unreachable(error.to_string()))?;
            Ok((node_id, envelope.cluster_id, hello))
        };
        join_all(founders.iter().map(ask)).await.into_iter().collect()
    }

    pub(super) fn adopted(
        &self,
        founders: &[Founder],
        hellos: &[(NodeId, ClusterId, Hello)],
    ) -> Result<Adopted, FormError> {
        let mut adopted = Adopted::Free;
        for (node_id, cluster_id, hello) in hellos {
            let elsewhere = || FormError::Elsewhere { node_id: *node_id };
            match hello.state {
                NodeState::Unformed => {}
                NodeState::Promised | NodeState::Taking | NodeState::Unvouched if hello.founders != founders => {
                    return Err(elsewhere());
                }
                NodeState::Promised => match adopted {
                    Adopted::Free => adopted = Adopted::Promised(hello.lineage_id, *cluster_id),
                    Adopted::Promised(_, other) | Adopted::Formed(other) if other != *cluster_id => {
                        return Err(elsewhere());
                    }
                    Adopted::Promised(..) | Adopted::Formed(_) => {}
                },
                // It has been contacted: whoever began the log goes on. This node has promised itself, or is not in it.
                NodeState::Taking | NodeState::Unvouched if self.ends().0 == *cluster_id => {
                    adopted = Adopted::Formed(*cluster_id);
                }
                _ => return Err(elsewhere()),
            }
        }
        Ok(adopted)
    }

    /// Has every named node promise itself (I2). Where one does not, those that did are given back (I3).
    pub(super) async fn collect_promises(self: &Arc<Self>, plan: &Plan) -> Result<BTreeMap<NodeId, DiskId>, FormError> {
        let at_most = Duration::from_millis(limits::PEER_PROMISE_MS);
        let mut disks = BTreeMap::new();
        let mut new = Vec::new();
        for founder in &plan.founders {
            let node_id = founder.node_id;
            let answered = if node_id == self.options.node_id {
                Ok(self.promise(plan.asks()).await)
            } else {
                let asked = self.to_founder(founder).promise(plan.asks().encode(), at_most).await;
                let answered = asked.map_err(|error| FormError::Unreachable { node_id, reason: error.to_string() });
                answered.and_then(|body| {
                    let unreadable = |error: super::LogCodecError| error.to_string();
                    let answered = PromiseAnswer::decode(&body).map_err(unreadable);
                    answered.map_err(|reason| FormError::Unreachable { node_id, reason })
                })
            };
            let error = match answered {
                Ok(PromiseAnswer::Granted { disk_id, is_new }) => {
                    disks.insert(node_id, disk_id);
                    if is_new {
                        new.push((founder, disk_id));
                    }
                    continue;
                }
                Ok(PromiseAnswer::Refused { reason }) => FormError::Unwilling { reason },
                Err(error) => error,
            };
            for (founder, disk_id) in new {
                let withdraw = AskPromise::Withdraw { cluster_id: plan.cluster_id, disk_id };
                if founder.node_id == self.options.node_id {
                    self.promise(withdraw).await;
                } else if let Err(error) = self.to_founder(founder).promise(withdraw.encode(), at_most).await {
                    tracing::warn!(node = founder.node_id, %error, "a promise could not be given back");
                }
            }
            return Err(error);
        }
        Ok(disks)
    }

    /// Begins the log of the cluster that this node has promised itself to, and starts. The caller holds `forming`.
    async fn take_part(&self) -> Result<Arc<Running>, StartError> {
        if let Some(running) = self.running.load_full() {
            return Ok(running);
        }
        let promise = self.standing.lock().promise.clone();
        let Promise { lineage_id, cluster_id, node_id, disk_id, .. } = promise.expect("a promise comes first");
        let identity = Identity { lineage_id, cluster_id, node_id, disk_id };
        let (disk, dir) = (Arc::clone(&self.options.disk), self.options.wal_dir());
        let layout = self.options.wal_options()?;
        blocking(move || Wal::create_parts(disk, &dir, identity, &layout).map(drop)).await?;
        let empty = Some(Arc::clone(&self.records));
        let running = Arc::new(Running::start(&self.options, identity, empty, &self.peers).await?);
        self.running.store(Some(Arc::clone(&running)));
        Ok(running)
    }

    /// Takes part in the cluster that this node has promised itself to under this disk, because a member has spoken to it. In
    /// a task of its own: it is not broken off when that member stops waiting.
    pub(super) async fn join(self: &Arc<Self>, disk_id: DiskId) -> Result<Arc<Running>, Status> {
        let this = Arc::clone(self);
        let joining = tokio::spawn(async move {
            let _alone = this.forming.lock().await;
            let promise = this.standing.lock().promise.clone();
            if let Some(promise) = promise.filter(|_| this.running.load().is_none()) {
                if promise.disk_id != disk_id {
                    return Ok(None);
                }
                match this.may_begin(&promise).await {
                    Ok(()) => {}
                    Err(Some(by)) => {
                        tracing::error!(by, "a member remembers what this node has acknowledged in a log that is lost");
                        this.quarantine(promise.identity(), &StoredMembership::default()).await;
                        return Ok(None);
                    }
                    Err(None) => return Ok(None),
                }
            }
            this.take_part().await.map(Some)
        });
        let joined = joining.await.map_err(|_| Status::internal("joining broke down"))?;
        let joined = joined.map_err(|error| {
            tracing::error!(%error, "this node can't take part in the cluster that it has promised itself to");
            Status::unavailable("this node can't take part")
        })?;
        joined.ok_or_else(|| {
            Status::unavailable("this node goes on with another disk, or no quorum has vouched for it yet")
        })
    }
}
