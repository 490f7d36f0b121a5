//! A member as this node calls it: a connection for each kind of traffic, so that no bulk delays a heartbeat.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use tonic::{Response, Status, Streaming};

use super::{
    Frame, frame,
    generated::peer_client::PeerClient,
    link::{Connection, Link, LinkError},
};
use crate::{
    id::{ClusterId, DiskId, NodeId},
    limits,
    net::Net,
    raft::{
        Addresses,
        codec::{
            LogCodecError,
            message::{End, Envelope, PEER_VERSION, PEER_VERSION_MIN},
        },
    },
};

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::raft) enum Traffic {
    /// Heartbeats, votes and hellos: small, and never late.
    Control,
    /// Log entries.
    Append,
    /// Snapshots.
    Snapshot,
    /// What is asked of the leader.
    Forward,
}

struct Links {
    address: String,
    /// The version in which the node is spoken to: until it has told what it understands, the oldest.
    spoken: AtomicU8,
    control: Link,
    append: Link,
    snapshot: Link,
    forward: Link,
}

impl Links {
    fn link(&self, traffic: Traffic) -> &Link {
        match traffic {
            Traffic::Control => &self.control,
            Traffic::Append => &self.append,
            Traffic::Snapshot => &self.snapshot,
            Traffic::Forward => &self.forward,
        }
    }
}

/// The connections to all nodes that this one has to do with.
pub(in crate::raft) struct Book {
    net: Arc<dyn Net>,
    /// Where members are, whatever is said elsewhere.
    known: BTreeMap<NodeId, Addresses>,
    links: Mutex<BTreeMap<NodeId, Arc<Links>>>,
}

impl Book {
    pub fn new(net: Arc<dyn Net>, known: BTreeMap<NodeId, Addresses>) -> Self {
        Self { net, known, links: Mutex::default() }
    }

    /// The node at this address; a member, whose disk is known, where it is known to be. At another address than before, it is connected to anew.
    pub fn member(&self, cluster_id: ClusterId, from: End, to: End, address: &str) -> MemberClient {
        let elsewhere = self.known.get(&to.node_id).filter(|_| to.disk_id != DiskId::default());
        let address = elsewhere.map_or(address, |known| known.peer.as_str());
        let mut links = self.links.lock();
        let known = links.get(&to.node_id).filter(|links| links.address == address).cloned();
        let links = known.unwrap_or_else(|| {
            let link = || Link::new(Arc::clone(&self.net), to.node_id, address);
            let spoken = AtomicU8::new(PEER_VERSION_MIN);
            let (control, append, snapshot, forward) = (link(), link(), link(), link());
            let new = Arc::new(Links { address: address.to_owned(), spoken, control, append, snapshot, forward });
            links.insert(to.node_id, Arc::clone(&new));
            new
        });
        MemberClient { links, cluster_id, from, to }
    }

    /// A node has told the newest version that it understands.
    pub fn understands(&self, node: NodeId, version: u8) {
        if let Some(links) = self.links.lock().get(&node) {
            links.spoken.store(version.clamp(PEER_VERSION_MIN, PEER_VERSION), Ordering::Relaxed);
        }
    }
}

/// A node as this one calls it.
#[derive(Clone)]
pub(in crate::raft) struct MemberClient {
    links: Arc<Links>,
    cluster_id: ClusterId,
    pub from: End,
    pub to: End,
}

/// Calls of one question and one answer.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $traffic:ident;)*) => {
        $($(#[$doc])*
        pub async fn $name(&self, body: Bytes, at_most: Duration) -> Result<Bytes, LinkError> {
            self.ask(Traffic::$traffic, body, at_most, async |mut client, frame| client.$name(frame).await).await
        })*
    };
}

impl MemberClient {
    unary! {
        /// Asks for a vote.
        vote Control;
        /// Asks whether a vote would be granted.
        pre_vote Control;
        /// Asks it to take over.
        transfer_leader Control;
        /// Asks for a promise.
        promise Control;
        /// Forwards commands.
        propose Forward;
        /// Asks what a read must wait for.
        barrier Forward;
        /// Asks for an entry.
        tick Forward;
        /// Asks for a change of the membership.
        change Forward;
    }

    /// Asks how it stands. Its answer comes with the ends that it gave itself.
    pub async fn hello(&self, body: Bytes) -> Result<(Envelope, Bytes), LinkError> {
        let at_most = Duration::from_millis(limits::PEER_ANSWER_MS);
        let answer = tokio::time::timeout(at_most, async {
            let mut client = self.client(Traffic::Control).await?;
            client.hello(self.frame(body)).await.map_err(|status| self.failed(&status))
        });
        let frame = answer.await.map_err(|_| self.silent())??.into_inner();
        let envelope = Envelope::decode(&frame.envelope).map_err(|error| self.unreadable(&error))?;
        Ok((envelope, frame.body))
    }

    /// Opens a stream of appends.
    pub async fn append(
        &self,
        traffic: Traffic,
        bodies: impl Stream<Item = Bytes> + Send + 'static,
        at_most: Duration,
    ) -> Result<Streaming<Frame>, LinkError> {
        let this = self.clone();
        let frames = bodies.map(move |body| this.frame(body));
        let opened = tokio::time::timeout(at_most, async {
            let mut client = self.client(traffic).await?;
            client.append(frames).await.map_err(|status| self.failed(&status))
        });
        Ok(opened.await.map_err(|_| self.silent())??.into_inner())
    }

    /// Sends the parts of a snapshot. Returns once it is installed there, however long that takes; a connection that dies
    /// meanwhile is noticed by its signs of life.
    pub async fn snapshot(&self, parts: impl Stream<Item = Bytes> + Send + 'static) -> Result<Bytes, LinkError> {
        let this = self.clone();
        let frames = parts.map(move |body| this.frame(body));
        let mut client = self.client(Traffic::Snapshot).await?;
        let answer = client.snapshot(frames).await.map_err(|status| self.failed(&status))?;
        self.body(&answer.into_inner())
    }

    async fn ask(
        &self,
        traffic: Traffic,
        body: Bytes,
        at_most: Duration,
        call: impl AsyncFnOnce(PeerClient<Connection>, Frame) -> Result<Response<Frame>, Status>,
    ) -> Result<Bytes, LinkError> {
        let until = tokio::time::Instant::now() + at_most;
        let client = tokio::time::timeout_at(until, self.client(traffic)).await;
        let client = client.map_err(|_| LinkError::Unsent { address: self.links.address.clone() })??;
        let answer = tokio::time::timeout_at(until, call(client, self.frame(body))).await;
        let answer = answer.map_err(|_| self.silent())?.map_err(|status| self.failed(&status))?;
        self.body(&answer.into_inner())
    }

    async fn client(&self, traffic: Traffic) -> Result<PeerClient<Connection>, LinkError> {
        self.links.link(traffic).client().await
    }

    fn frame(&self, body: Bytes) -> Frame {
        frame(self.links.spoken.load(Ordering::Relaxed), self.cluster_id, self.from, self.to, body)
    }

    /// The body of an answer, which must come from whom it was asked of.
    pub fn body(&self, answer: &Frame) -> Result<Bytes, LinkError> {
        let envelope = Envelope::decode(&answer.envelope).map_err(|error| self.unreadable(&error))?;
        if envelope.from.node_id != self.to.node_id {
            let reason = format!("node {} answers there", envelope.from.node_id);
            return Err(LinkError::Refused { address: self.links.address.clone(), reason });
        }
        Ok(answer.body.clone())
    }

    /// What a status tells about the call.
    pub fn failed(&self, status: &Status) -> LinkError {
        LinkError::of(&self.links.address, status)
    }

    /// It has not answered in time.
    pub fn silent(&self) -> LinkError {
        LinkError::Broken { address: self.links.address.clone(), reason: "no answer in time".to_owned() }
    }

    /// Its answer can't be read.
    pub fn unreadable(&self, error: &LogCodecError) -> LinkError {
        LinkError::Broken { address: self.links.address.clone(), reason: error.to_string() }
    }
}
