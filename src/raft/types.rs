//! The types that the consensus core is built over. None of them leaves this folder.
//!
//! openraft 0.10 is still an alpha where the registry ends. When it moves, what changes is in this file, in `log_store`, in
//! `state_machine` and in `propose`: nothing else names openraft.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use openraft::{RaftTypeConfig, impls, vote::RaftLeaderId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use super::codec;
use crate::{
    id::{DiskId, NodeId},
    records::{self, answer::Applied, command},
};

/// The types of the consensus core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Types;

impl RaftTypeConfig for Types {
    type D = Proposal;
    type R = Answers;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = impls::leader_id_adv::LeaderId<u64, NodeId>;
    type Vote = impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Proposal, NodeId, Member>;
    type Entry = openraft::Entry<<Self::LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    #[allow(deprecated, reason = "the crate that it is re-exported from is not a dependency of its own")]
    type AsyncRuntime = impls::TokioRuntime;
    type Responder<T>
        = OnDone<T>
    where
        T: Send + 'static;
    type Batch<T>
        = impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = impls::BoxedErrorSource;
}

pub(super) type Raft = openraft::Raft<Types, super::state_machine::StateMachine>;
pub(super) type Vote = openraft::type_config::alias::VoteOf<Types>;
pub(super) type LeaderId = openraft::type_config::alias::LeaderIdOf<Types>;
pub(super) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(super) type LogEntry = openraft::type_config::alias::EntryOf<Types>;
pub(super) type Payload = openraft::type_config::alias::PayloadOf<Types>;
pub(super) type Membership = openraft::Membership<NodeId, Member>;
pub(super) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub(super) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;

/// A log id from its parts.
pub(super) fn log_id(term: u64, node: NodeId, index: u64) -> LogId {
    LogId::new(LeaderId { term, node_id: node }, index)
}

/// What stands in the log: the commands of many callers as one entry, and its encoding, which is made once.
#[derive(Clone)]
pub(super) struct Proposal {
    /// The entry.
    pub entry: Arc<command::Entry>,
    /// The same in bytes.
    pub bytes: Bytes,
}

impl Proposal {
    /// A proposal of this entry.
    pub fn new(entry: command::Entry) -> Self {
        let bytes = records::codec::encode(&entry);
        Self { entry: Arc::new(entry), bytes }
    }

    /// The proposal that these bytes are.
    pub fn decode(bytes: Bytes) -> Result<Self, records::codec::CodecError> {
        let entry = Arc::new(records::codec::decode(&bytes)?);
        Ok(Self { entry, bytes })
    }
}

impl PartialEq for Proposal {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposal({self})")
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands, {} bytes, time {}", self.entry.commands.len(), self.bytes.len(), self.entry.time.0)
    }
}

/// The answers of one entry, a command's each. Empty for entries without commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answers(pub Vec<Applied>);

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answers", self.0.len())
    }
}

/// A member of the cluster, as every member knows it: where it is reached, and which disk votes for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Where other members reach it.
    pub peer_addr: String,
    /// Where clients reach it.
    pub client_addr: String,
    /// Its disk: another disk under the same node id is not this member.
    pub disk_id: DiskId,
}

/// Sends the outcome of a proposal to whoever waits for it, in the thread that applied it.
pub(super) struct OnDone<T>(pub Box<dyn FnOnce(T) + Send>);

impl<T: Send + 'static> openraft::raft::responder::Responder<Types, T> for OnDone<T> {
    fn on_complete(self, outcome: T) {
        (self.0)(outcome);
    }
}

// The consensus core demands these of its types; the encodings are those of the codec, so that there is only one.

impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Self::decode(bytes.into()).map_err(D::Error::custom)
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&codec::encode_member(self))
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        codec::decode_member(&bytes).map_err(D::Error::custom)
    }
}

impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("answers do not leave the node that applied the entry"))
    }
}

impl<'de> Deserialize<'de> for Answers {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("answers do not leave the node that applied the entry"))
    }
}
