//! Who may speak to the consensus core of this node: judged by the envelope alone, before anything else of a message is
//! read.

use std::sync::Arc;

use tonic::Status;

use crate::{
    id::{ClusterId, DiskId},
    net::CertifiedNode,
    raft::{
        Shared,
        codec::message::{Envelope, PEER_VERSION, PEER_VERSION_MIN},
        running::Running,
    },
    records::state::State,
};

impl Shared {
    /// Whether a message is for this node at all, and in a version that it reads.
    pub(in crate::raft) fn judge_receiver(&self, envelope: &Envelope) -> Result<(), Status> {
        if envelope.version < PEER_VERSION_MIN {
            return Err(Status::failed_precondition(format!(
                "messages of version {} are no longer understood: upgrade node {}",
                envelope.version, envelope.from.node_id
            )));
        }
        if envelope.to.node_id != self.options.node_id {
            return Err(Status::failed_precondition(format!("this is node {}", self.options.node_id)));
        }
        Ok(())
    }

    /// The running core, for a node that asks to be healed: all of its envelope fits but its own disk.
    pub(in crate::raft) fn admit_healing(&self, envelope: &Envelope) -> Result<Arc<Running>, Status> {
        self.judge_receiver(envelope)?;
        let running = self.running.load_full().ok_or_else(|| Status::unavailable("this node takes no part"))?;
        let identity = &running.identity;
        if (envelope.cluster_id, envelope.to.disk_id) != (identity.cluster_id, identity.disk_id) {
            return Err(Status::failed_precondition("this node has another disk, or is in another cluster"));
        }
        Ok(running)
    }

    /// The same, of a sender that has shown a certificate: a node that this one knows to be no member is not heard. One that
    /// it doesn't know may have become a member while this node was away, and lead by now: it is heard only while no member
    /// leads that this node knows.
    pub(in crate::raft) async fn admit_from(
        self: &Arc<Self>,
        certified: Option<CertifiedNode>,
        envelope: &Envelope,
    ) -> Result<Arc<Running>, Status> {
        let running = self.admit(envelope).await?;
        if let Some(CertifiedNode(node)) = certified
            && running.member(node).is_none()
        {
            let is_retired = self.records.read().globals().retired.contains(&node);
            let leader = running.leadership.role().leader.filter(|leader| *leader != node);
            if is_retired || leader.is_some_and(|leader| running.member(leader).is_some()) {
                return Err(Status::permission_denied(format!("node {node} is no member of this cluster")));
            }
        }
        Ok(running)
    }

    /// The running core that a message is for. A node that has promised itself to the sender's cluster takes part from its
    /// first message on; a node that is known by another disk, or belongs elsewhere, hears nothing of it.
    pub(in crate::raft) async fn admit(self: &Arc<Self>, envelope: &Envelope) -> Result<Arc<Running>, Status> {
        self.judge_receiver(envelope)?;
        // Who this node is, is told in any version; everything else in one that both know.
        if envelope.version > PEER_VERSION {
            return Err(Status::failed_precondition(format!("this node reads messages up to version {PEER_VERSION}")));
        }
        if let Some(running) = self.running.load_full() {
            if running.is_of_another_cluster_alone(envelope) {
                self.wait_for_replace(envelope);
            }
            running.judge(envelope)?;
            return Ok(running);
        }
        {
            let mut standing = self.standing.lock();
            if standing.unvouched.is_some() {
                return Err(Status::unavailable("this node has started again, and no quorum has vouched for it yet"));
            }
            let promised = standing.promise.as_ref();
            let is_it = promised.is_some_and(|promise| {
                !standing.is_waiting
                    && promise.cluster_id == envelope.cluster_id
                    && promise.disk_id == envelope.to.disk_id
            });
            if !is_it {
                if promised.is_none() && envelope.to.disk_id != DiskId::default() && !standing.is_waiting {
                    standing.is_waiting = true;
                    tracing::error!(
                        from = envelope.from.node_id,
                        "a cluster knows this node by a disk that is not here: `semel cluster replace` says what becomes of it"
                    );
                }
                return Err(Status::failed_precondition("this node has another disk, or belongs to another cluster"));
            }
        }
        // What a node goes on with may have changed by the time that its core runs.
        let running = self.join(envelope.to.disk_id).await?;
        running.judge(envelope)?;
        Ok(running)
    }
}

impl Shared {
    /// A cluster has this node as a member, and what lies here is a cluster of its own: it is stopped, and waits for an
    /// operator. In a task of its own: who has called is answered meanwhile.
    fn wait_for_replace(self: &Arc<Self>, envelope: &Envelope) {
        let (this, from, cluster_id) = (Arc::clone(self), envelope.from.node_id, envelope.cluster_id);
        tokio::spawn(async move {
            let _alone = this.forming.lock().await;
            let Some(running) = this.running.load_full() else { return };
            if running.identity.cluster_id == cluster_id {
                return;
            }
            tracing::error!(
                from,
                %cluster_id,
                "another cluster has this node as a member, and the data directory is of a cluster of its own: \
                 it serves no more until `semel cluster replace` or another configuration says what becomes of it"
            );
            this.running.store(None);
            this.standing.lock().is_waiting = true;
            running.shutdown().await;
        });
    }
}

impl Running {
    /// Whether a member of another cluster speaks to this node as to one of its members, while this node is a cluster of its
    /// own alone. A cluster of several goes on: only one of the two can be right, and it has others who say so.
    fn is_of_another_cluster_alone(&self, envelope: &Envelope) -> bool {
        envelope.cluster_id != self.identity.cluster_id
            && envelope.cluster_id != ClusterId::default()
            && envelope.to.disk_id != DiskId::default()
            && self.members().len() < 2
    }

    /// Whether a message is from a member to this member.
    fn judge(&self, envelope: &Envelope) -> Result<(), Status> {
        let identity = &self.identity;
        if envelope.cluster_id != identity.cluster_id {
            return Err(Status::failed_precondition(format!("this node is in cluster {}", identity.cluster_id)));
        }
        if envelope.to.disk_id != identity.disk_id {
            return Err(Status::failed_precondition(format!("this node has disk {}", identity.disk_id)));
        }
        // A node that came back with a new disk learns the log from its beginning: where the membership knows it by the disk
        // before, what it says of the others' disks is as old, and they may have been replaced since.
        let is_older = self.member(identity.node_id).is_some_and(|own| own.disk_id != identity.disk_id);
        // A sender that isn't in the membership may be in one that this node has not learnt of yet.
        match self.member(envelope.from.node_id) {
            Some(member) if member.disk_id != envelope.from.disk_id && !is_older => {
                Err(Status::failed_precondition(format!(
                    "node {} is a member with disk {}, not {}",
                    envelope.from.node_id, member.disk_id, envelope.from.disk_id
                )))
            }
            _ => Ok(()),
        }
    }
}
