//! The way to other members. A node that votes alone has none: every member but itself is unreachable.

use std::io;

use openraft::{
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
};

use super::{
    state_machine::{CoreSnapshot, SnapshotFile},
    types::{Member, Types, Vote},
};
use crate::id::NodeId;

/// Makes a client for each member.
pub(super) struct NoPeers;

/// A member that can't be reached.
pub(super) struct NoPeer {
    node: NodeId,
}

impl NoPeer {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::new(&io::Error::new(io::ErrorKind::NotConnected, format!("node {} is not reachable", self.node)))
    }
}

impl RaftNetworkFactory<Types> for NoPeers {
    type Network = NoPeer;

    async fn new_client(&mut self, node: NodeId, _: &Member) -> NoPeer {
        NoPeer { node }
    }
}

impl RaftNetworkV2<Types> for NoPeer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(&mut self, _: VoteRequest<Types>, _: RPCOption) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn pre_vote(&mut self, _: VoteRequest<Types>, _: RPCOption) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: CoreSnapshot,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.unreachable().into())
    }
}
