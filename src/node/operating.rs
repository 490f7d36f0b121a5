//! What operators ask of a node, as it does it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Founding, form, keys::Keys};
use crate::{
    auth::{Caller, TokenText},
    config::MemberAt,
    http::operations::{MemberAddresses, Operated, Operation, founders},
    id::NodeId,
    json::{Fields, Json, Number},
    limits,
    raft::{Addresses, Consensus, FormError, MemberStanding},
    records::command::{Command, DoubtEnded},
    refusal::{Code, Refusal},
    seal::{Field, Subject},
};

/// A node, operated.
#[derive(Clone)]
pub(super) struct Operating {
    consensus: Consensus,
    node_id: NodeId,
    cluster_name: String,
    keys: Keys,
}

impl From<MemberAt> for Addresses {
    fn from(MemberAt { peer, client }: MemberAt) -> Self {
        Self { peer, client }
    }
}

impl From<MemberAddresses> for Addresses {
    fn from(MemberAddresses { peer, client }: MemberAddresses) -> Self {
        Self { peer, client }
    }
}

impl Operated for Operating {
    async fn operate(&self, caller: Caller, operation: Operation) -> Result<Json, Refusal> {
        // In a task of its own: a change goes through its steps, whether or not somebody still waits for it.
        let this = self.clone();
        let done = tokio::spawn(async move { this.done(&caller, operation).await }).await;
        done.unwrap_or_else(|_| Err(Refusal::new(Code::Internal, "the change broke down; the node's log says why")))
    }
}

impl Operating {
    pub fn new(consensus: Consensus, node_id: NodeId, cluster_name: String, keys: Keys) -> Self {
        Self { consensus, node_id, cluster_name, keys }
    }

    async fn done(&self, caller: &Caller, operation: Operation) -> Result<Json, Refusal> {
        let (consensus, at_most) = (&self.consensus, Duration::from_millis(limits::MEMBER_CHANGE_MS));
        let by = caller.actor(None);
        match operation {
            Operation::Init { nodes, first_token } => self.init(nodes, first_token).await,
            Operation::Add(node, at) => {
                consensus.add(node, at.into(), by, at_most).await?;
                // Of one that was added and promoted before, this is a repeat.
                let members = consensus.status().members;
                let votes = members.iter().any(|own| own.node_id == node && own.standing == MemberStanding::Voter);
                Ok(is_now(node, if votes { "voter" } else { "learner" }))
            }
            Operation::Promote(node) => consensus.promote(node, by, at_most).await.map(|()| is_now(node, "voter")),
            Operation::Remove { node, force } => {
                consensus.remove(node, force, by, at_most).await.map(|()| is_now(node, "removed"))
            }
            Operation::Replace { node, at, force } => {
                let replaced = consensus.replace(node, at.map(Addresses::from), force, by, at_most).await;
                replaced.map(|()| is_now(node, "voter"))
            }
            Operation::Transfer(node) => consensus.transfer(node, by, at_most).await.map(|()| is_now(node, "leader")),
            Operation::EndDoubt => self.end_doubt(caller).await,
            Operation::Snapshot(node) => self.snapshot(node).await,
            Operation::KeysStatus => self.keys.status().await,
            Operation::RotateKeys(to) => self.keys.rotate(caller, to).await,
            Operation::RotateDataKeys(tenant) => self.keys.rotate_data(caller, tenant).await,
            Operation::EnableKeys => self.keys.enable(caller).await,
            Operation::Shred(asked) => self.keys.shred(caller, asked).await,
            Operation::TenantStatus(tenant) => self.keys.tenant_status(tenant).await,
        }
    }

    async fn init(
        &self,
        nodes: BTreeMap<NodeId, MemberAddresses>,
        first_token: Option<TokenText>,
    ) -> Result<Json, Refusal> {
        if !nodes.contains_key(&self.node_id) {
            return Err(Refusal::invalid(format!("nodes must name this node, which is node {}", self.node_id)));
        }
        let members = nodes.into_iter().map(|(node, at)| (node, at.into())).collect();
        let founding = Founding { cluster_name: self.cluster_name.clone(), first_token };
        match form(&self.consensus, members, &founding).await {
            Ok(formed) => Ok(Json::object([
                ("cluster_id", formed.cluster_id.to_string().as_str().into()),
                ("created", Json::Bool(formed.created)),
            ])),
            Err(FormError::Refused(refusal)) => Err(refusal),
            Err(error @ (FormError::Start(_) | FormError::Membership { .. })) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the cluster can't be formed");
                Err(Refusal::new(Code::Internal, "the cluster can't be formed; the node's log says why"))
            }
            // Also where a named node can't be reached: nothing was written, and asking again by oneself helps nobody.
            Err(error) => Err(Refusal::new(Code::WrongState, error.to_string())),
        }
    }

    async fn end_doubt(&self, caller: &Caller) -> Result<Json, Refusal> {
        let cipher = self.consensus.keys().cipher(&*self.consensus.records().read(), None)?;
        let actor = cipher.seal(Field::AuditActor, Subject::Audit, caller.actor(None).as_bytes().to_vec());
        let applied = self.consensus.propose(Arc::new(Command::DoubtEnded(DoubtEnded { actor }))).await?;
        applied.answer?;
        Ok(Json::object([("index", applied.index.to_string().as_str().into())]))
    }

    async fn snapshot(&self, node: Option<NodeId>) -> Result<Json, Refusal> {
        if let Some(node) = node.filter(|node| *node != self.node_id) {
            let detail = format!("this is node {}: ask node {node} at its own operators' port", self.node_id);
            return Err(Refusal::new(Code::WrongState, detail));
        }
        let index = self.consensus.snapshot_now().await?;
        Ok(Json::object([("id", number(self.node_id)), ("snapshot", index.to_string().as_str().into())]))
    }
}

/// The nodes that a request names, as consensus takes them.
pub(super) fn nodes_of(fields: &mut Fields) -> Result<BTreeMap<NodeId, Addresses>, Refusal> {
    Ok(founders(fields)?.into_iter().map(|(node, at)| (node, at.into())).collect())
}

fn number(value: u64) -> Json {
    Json::Number(Number::parse(&value.to_string()).expect("an integer is a JSON number"))
}

/// What a member is now.
fn is_now(node: NodeId, role: &'static str) -> Json {
    Json::object([("id", number(node)), ("role", role.into())])
}
