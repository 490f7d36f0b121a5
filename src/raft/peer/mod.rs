//! The way between the nodes of a cluster: a service of its own on a port of its own.
//!
//! [`link`] one connection to a member, kept and renewed · [`member`] a member as this node calls it, over a connection for
//! each kind of traffic · [`door`] what this node answers · [`serve`] its listener.
//!
//! Every message says in an envelope which cluster, nodes and disks it is between. What doesn't fit is refused before the
//! consensus core sees any of it: a node that was given another's address, came back with another disk, or belongs to an
//! earlier life of the cluster is a stranger.

pub(super) mod door;
pub(super) mod judge;
pub(super) mod link;
pub(super) mod member;
pub(super) mod serve;

use bytes::Bytes;
use tonic::Status;

use super::codec::{
    LogCodecError,
    message::{End, Envelope},
};
use crate::id::ClusterId;

/// The generated code of the service.
#[allow(missing_docs, dead_code, unreachable_pub, clippy::all, clippy::unwrap_used, rustdoc::all)]
pub(super) mod generated {
    include!(concat!(env!("OUT_DIR"), "/peer/semel.v1.rs"));
}

pub(super) use generated::Frame;

/// A message on its way, in a version that both ends understand.
pub(super) fn frame(version: u8, cluster_id: ClusterId, from: End, to: End, body: Bytes) -> Frame {
    let envelope = Envelope { version, cluster_id, from, to };
    Frame { envelope: envelope.encode(), body }
}

/// Why a message can't be read.
pub(super) fn unreadable(error: &LogCodecError) -> Status {
    Status::invalid_argument(error.to_string())
}
