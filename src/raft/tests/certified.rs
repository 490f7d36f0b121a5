//! Whoever has shown a certificate speaks for the node that it names, and only if that is a member.

use bytes::Bytes;
use tonic::{Code, Request};

use super::*;
use crate::{
    id::{DiskId, NodeId},
    net::CertifiedNode,
    raft::{
        codec::message::{End, PEER_VERSION},
        peer::{door::Door, frame, generated::peer_server::Peer},
    },
};

/// What becomes of a message without content that says that it is from this node, over a connection of that one.
async fn said(node: &Node, from: NodeId, certified: Option<NodeId>) -> Code {
    let running = node.consensus.shared.running.load_full().expect("it takes part");
    let identity = &running.identity;
    let own = End { node_id: identity.node_id, disk_id: identity.disk_id };
    let disk_id = if from == identity.node_id { identity.disk_id } else { DiskId([7; 16]) };
    let frame = frame(PEER_VERSION, identity.cluster_id, End { node_id: from, disk_id }, own, Bytes::new());
    let mut request = Request::new(frame);
    if let Some(certified) = certified {
        request.extensions_mut().insert(CertifiedNode(certified));
    }
    Door(Arc::clone(&node.consensus.shared)).barrier(request).await.expect_err("there is nothing in it").code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_speaks_for_its_node_alone() {
    let node = Node::new().await;
    node.consensus.read_barrier().await.unwrap();
    // A message that is let in is looked at, and found empty.
    let let_in = Code::InvalidArgument;
    assert_eq!(said(&node, 1, Some(1)).await, let_in);
    assert_eq!(said(&node, 1, None).await, let_in, "nothing is shown where nothing is encrypted");
    assert_eq!(said(&node, 1, Some(2)).await, Code::PermissionDenied, "the certificate of another node");
    assert_eq!(said(&node, 2, Some(1)).await, Code::PermissionDenied);
    // A good certificate of a node that is no member, while a member leads.
    assert_eq!(said(&node, 9, Some(9)).await, Code::PermissionDenied);
    // Who leads is not asked of a stranger where nothing is encrypted: it could not be known by anything.
    assert_eq!(said(&node, 9, None).await, let_in);
    node.consensus.shutdown().await;
}
