//! What this node answers to others. The core's own calls pass the judge first; each works in a task of its own where its
//! caller's going away must not break it off.

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream, stream::BoxStream};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use super::{Frame, frame, generated::peer_server::Peer, unreadable};
use crate::{
    limits,
    net::CertifiedNode,
    raft::{
        LogCodecError, Shared,
        codec::message::{
            Append, AskPromise, Asked, Change, End, Envelope, Hello, PEER_VERSION, Reached, SnapshotPart, Told,
            decode_append, decode_ask_vote, decode_propose, decode_transfer, encode_append_answer, encode_bare_vote,
            encode_vote_answer,
        },
        running::{Running, blocking},
        state_machine::{CoreSnapshot, SnapshotFile, core_meta},
        types::Payload,
    },
};

/// This node, as others call it.
#[derive(Clone)]
pub(in crate::raft) struct Door(pub(in crate::raft) Arc<Shared>);

/// The envelope of a message. Where its sender has shown a certificate, it speaks for the node that is named there alone.
fn envelope(certified: Option<CertifiedNode>, frame: &Frame) -> Result<Envelope, Status> {
    let envelope = Envelope::decode(&frame.envelope).map_err(|error| unreadable(&error))?;
    match certified {
        Some(CertifiedNode(node)) if node != envelope.from.node_id => Err(Status::permission_denied(format!(
            "the certificate is that of node {node}, and the message says that it is from node {}",
            envelope.from.node_id
        ))),
        _ => Ok(envelope),
    }
}

/// The node that the connection's certificate names, where one was shown.
fn certified<M>(request: &Request<M>) -> Option<CertifiedNode> {
    request.extensions().get::<CertifiedNode>().copied()
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

/// The version in which whoever asked is answered.
fn spoken(asked: &Envelope) -> u8 {
    asked.version.min(PEER_VERSION)
}

/// An answer to whoever asked.
fn answer(running: &Running, asked: &Envelope, body: bytes::Bytes) -> Frame {
    let from = End { node_id: running.identity.node_id, disk_id: running.identity.disk_id };
    frame(spoken(asked), running.identity.cluster_id, from, asked.from, body)
}

/// Runs what must not be broken off by a caller who goes away.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Status> {
    tokio::spawn(work).await.map_err(|_| Status::internal("the call broke down"))
}

impl Door {
    async fn admit(&self, request: Request<Frame>) -> Result<(Arc<Running>, Envelope, bytes::Bytes), Status> {
        let certified = certified(&request);
        let frame = request.into_inner();
        let envelope = envelope(certified, &frame)?;
        Ok((self.0.admit_from(certified, &envelope).await?, envelope, frame.body))
    }
}

/// An entry that a newer release wrote is never skipped: a node that can't read it ends, before it has acknowledged it.
fn unappendable(error: &LogCodecError) -> Status {
    if error.is_of_newer_release() {
        crate::fatal::end(format!(
            "the leader sends an entry that this release does not know; upgrade this node: {error}"
        ));
    }
    unreadable(error)
}

/// What the log has no room for is turned away before it is in it: the leader tries again, and this node goes on to vote.
fn admitted(running: &Running, body: &bytes::Bytes) -> Result<Append, Status> {
    let append = decode_append(body).map_err(|error| unappendable(&error))?;
    if append.entries.is_empty() || running.room.takes(body.len()) {
        return Ok(append);
    }
    Err(Status::resource_exhausted(format!("the disk of node {} is full", running.identity.node_id)))
}

/// The appends of a stream, all of one sender to one receiver. What ends it early is left in `ended`.
fn appends(
    running: Arc<Running>,
    envelope: bytes::Bytes,
    frames: Streaming<Frame>,
    ended: Arc<Mutex<Option<Status>>>,
) -> impl Stream<Item = Append> + Send {
    stream::unfold((frames, envelope, ended, running), |(mut frames, envelope, ended, running)| async move {
        let read = match frames.next().await? {
            Ok(frame) if frame.envelope != envelope => Err(Status::invalid_argument("a stream has one envelope")),
            Ok(frame) => admitted(&running, &frame.body),
            Err(status) => Err(status),
        };
        match read {
            Ok(mut append) => {
                if planted!(AppendSkipsEntry) && append.entries.len() > 1 {
                    append.entries[0].payload = Payload::Blank;
                }
                Some((append, (frames, envelope, ended, running)))
            }
            Err(status) => {
                *ended.lock() = Some(status);
                None
            }
        }
    })
}

#[tonic::async_trait]
impl Peer for Door {
    type AppendStream = BoxStream<'static, Result<Frame, Status>>;

    async fn append(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::AppendStream>, Status> {
        let certified = certified(&request);
        let mut frames = request.into_inner();
        let first = frames.message().await?.ok_or_else(|| Status::invalid_argument("nothing to append"))?;
        let asked = envelope(certified, &first)?;
        let running = self.0.admit_from(certified, &asked).await?;
        let append = admitted(&running, &first.body)?;
        let ended = Arc::new(Mutex::new(None));
        let rest = appends(Arc::clone(&running), first.envelope, frames, Arc::clone(&ended));
        let answers = running.raft.stream_append(stream::once(std::future::ready(append)).chain(rest));
        let answers = answers.map(move |answered| {
            let body = encode_append_answer(&answered.map_err(stopped)?);
            Ok(answer(&running, &asked, body))
        });
        let broken = stream::once(async move { ended.lock().take() }).filter_map(async |ended| ended.map(Err));
        Ok(Response::new(answers.chain(broken).boxed()))
    }

    async fn vote(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let (running, asked, body) = self.admit(request).await?;
        let ask = decode_ask_vote(&body).map_err(|error| unreadable(&error))?;
        let voted = running.raft.vote(ask).await.map_err(stopped)?;
        Ok(Response::new(answer(&running, &asked, encode_vote_answer(&voted))))
    }

    async fn pre_vote(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let (running, asked, body) = self.admit(request).await?;
        let ask = decode_ask_vote(&body).map_err(|error| unreadable(&error))?;
        let voted = running.raft.pre_vote(ask).await.map_err(stopped)?;
        Ok(Response::new(answer(&running, &asked, encode_vote_answer(&voted))))
    }

    async fn transfer_leader(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let (running, asked, body) = self.admit(request).await?;
        let transfer = decode_transfer(&body).map_err(|error| unreadable(&error))?;
        let handled = running.raft.handle_transfer_leader(transfer).await.map_err(stopped)?;
        if let Err(error) = handled {
            tracing::info!(%error, "leadership is not taken over");
        }
        Ok(Response::new(answer(&running, &asked, bytes::Bytes::new())))
    }

    async fn snapshot(&self, request: Request<Streaming<Frame>>) -> Result<Response<Frame>, Status> {
        let certified = certified(&request);
        let mut frames = request.into_inner();
        let first = frames.message().await?.ok_or_else(|| Status::invalid_argument("no snapshot"))?;
        let asked = envelope(certified, &first)?;
        let running = self.0.admit_from(certified, &asked).await?;
        let Ok(SnapshotPart::Head { vote, bytes }) = SnapshotPart::decode(&first.body) else {
            return Err(Status::invalid_argument("a snapshot begins with its head"));
        };
        let Ok(alone) = Arc::clone(&running.receiving).try_lock_owned() else {
            return Err(Status::unavailable("another snapshot is being received"));
        };
        let file = receive(&running, bytes, &first.envelope, &mut frames).await?;
        let meta = core_meta(&file.meta).map_err(stopped)?;
        if meta.last_log_id.is_some_and(|last| last.leader_id > vote.leader_id) {
            return Err(Status::invalid_argument("a snapshot of a later leader than its sender"));
        }
        let snapshot = SnapshotFile::new(file, Arc::clone(&running.state.snapshots));
        let (raft, log) = (running.raft.clone(), running.log.clone());
        let install = async move {
            let _alone = alone;
            let installed = raft.install_full_snapshot(vote, CoreSnapshot { meta, snapshot }).await.map_err(stopped)?;
            // A log that does not say what it goes on from would be none at all, should the snapshot's file rot: a node that
            // starts on it must see that it has lost something.
            log.keep_purged().await.map_err(stopped)?;
            Ok::<_, Status>(installed)
        };
        let installed = apart(install).await??;
        Ok(Response::new(answer(&running, &asked, encode_bare_vote(&installed.vote))))
    }

    async fn hello(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let certified = certified(&request);
        let asking = request.into_inner();
        let asked = envelope(certified, &asking)?;
        self.0.judge_receiver(&asked)?;
        let theirs = Hello::decode(&asking.body).map_err(|error| unreadable(&error))?;
        let (cluster_id, from, ours) = self.0.hello(asked.from.node_id);
        self.0.heard(&asked, theirs);
        Ok(Response::new(frame(spoken(&asked), cluster_id, from, asked.from, ours.encode())))
    }

    async fn promise(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let certified = certified(&request);
        let asking = request.into_inner();
        let asked = envelope(certified, &asking)?;
        self.0.judge_receiver(&asked)?;
        let ask = AskPromise::decode(&asking.body).map_err(|error| unreadable(&error))?;
        let shared = Arc::clone(&self.0);
        let answered = apart(async move { shared.promise(ask).await }).await?;
        let (cluster_id, from) = self.0.ends();
        Ok(Response::new(frame(spoken(&asked), cluster_id, from, asked.from, answered.encode())))
    }

    async fn propose(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let (running, asked, body) = self.admit(request).await?;
        let (left, commands) = decode_propose(&body).map_err(|error| unreadable(&error))?;
        let proposing = Arc::clone(&running);
        let told = apart(async move { proposing.propose_for(left, commands).await }).await?;
        Ok(Response::new(answer(&running, &asked, told)))
    }

    async fn barrier(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        self.asked(request).await
    }

    async fn tick(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        self.asked(request).await
    }

    async fn change(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let certified = certified(&request);
        let frame = request.into_inner();
        let envelope = envelope(certified, &frame)?;
        let (left, asked) = Asked::decode(&frame.body).map_err(|error| unreadable(&error))?;
        // A node that asks to be healed comes with a disk that the membership does not name yet.
        let running = match &asked {
            Asked::Change { change: Change::Heal { .. }, .. } => self.0.admit_healing(&envelope)?,
            _ => self.0.admit_from(certified, &envelope).await?,
        };
        self.told(running, envelope, left, asked).await
    }
}

impl Door {
    /// Everything that is asked of a leader and answered with how far it reaches.
    async fn asked(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let (running, envelope, body) = self.admit(request).await?;
        let (left, asked) = Asked::decode(&body).map_err(|error| unreadable(&error))?;
        self.told(running, envelope, left, asked).await
    }

    async fn told(
        &self,
        running: Arc<Running>,
        envelope: Envelope,
        left: Duration,
        asked: Asked,
    ) -> Result<Response<Frame>, Status> {
        let (shared, answering) = (Arc::clone(&self.0), Arc::clone(&running));
        let told = apart(async move { shared.answer(&answering, left, asked).await }).await?;
        Ok(Response::new(answer(&running, &envelope, Told::<Reached>::encode(&told))))
    }
}

/// Writes the pieces of a snapshot into a file, and reads it back. Nothing is left of one that breaks off.
async fn receive(
    running: &Arc<Running>,
    bytes: u64,
    envelope: &bytes::Bytes,
    frames: &mut Streaming<Frame>,
) -> Result<crate::store::snapshot::store::Snapshot, Status> {
    let (store, space) = (Arc::clone(&running.state.snapshots), Arc::clone(&running.state.space));
    // The file, and the store that is made of it.
    if !blocking(move || space.fits(bytes.saturating_mul(2))).await {
        let node = running.identity.node_id;
        return Err(Status::resource_exhausted(format!("the disk of node {node} has no room for the snapshot")));
    }
    let mut receiver = blocking(move || store.receive(bytes)).await.map_err(stopped)?;
    let idle = Duration::from_millis(limits::PEER_SNAPSHOT_IDLE_MS);
    loop {
        let next = tokio::time::timeout(idle, frames.message()).await;
        let Some(frame) = next.map_err(|_| Status::deadline_exceeded("the snapshot has stopped coming"))?? else {
            break;
        };
        if frame.envelope != *envelope {
            return Err(Status::invalid_argument("a stream has one envelope"));
        }
        let Ok(SnapshotPart::Piece { offset, piece }) = SnapshotPart::decode(&frame.body) else {
            return Err(Status::invalid_argument("pieces follow the head of a snapshot"));
        };
        let written = blocking(move || receiver.piece(offset, &piece).map(|()| receiver)).await;
        receiver = written.map_err(|error| Status::invalid_argument(error.to_string()))?;
    }
    let file = blocking(move || receiver.finish()).await;
    file.map_err(|error| Status::invalid_argument(error.to_string()))
}
