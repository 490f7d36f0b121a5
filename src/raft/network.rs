//! The way to other members as the consensus core uses it: over [`peer::member`](super::peer::member), one client for each
//! member and purpose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use openraft::{
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderResponse},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    codec::message::{
        Append, AppendAnswer, AskVote, End, SnapshotPart, Transfer, VoteAnswer, decode_append_answer, decode_bare_vote,
        decode_vote_answer, encode_append, encode_ask_vote, encode_transfer,
    },
    log_store::LogStore,
    peer::{
        Frame,
        link::LinkError,
        member::{MemberClient, Traffic},
    },
    restore,
    roster::Peers,
    running::blocking,
    state_machine::{CoreSnapshot, SnapshotFile},
    types::{LogId, Member, Types, Vote},
};
use crate::{id::NodeId, limits, wal::Identity};

/// Makes a client for each member.
pub(super) struct Network {
    pub peers: Arc<Peers>,
    pub identity: Identity,
    pub election_max: Duration,
    pub log: LogStore,
}

impl Network {
    fn client(&self, node: NodeId, member: &Member, traffic: Traffic) -> NetworkClient {
        let from = End { node_id: self.identity.node_id, disk_id: self.identity.disk_id };
        let to = End { node_id: node, disk_id: member.disk_id };
        let client = self.peers.book.member(self.identity.cluster_id, from, to, &member.peer_addr);
        let (peers, election_max) = (Arc::clone(&self.peers), self.election_max);
        NetworkClient { client, peers, traffic, election_max, log: self.log.clone() }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = NetworkClient;

    async fn new_client(&mut self, node: NodeId, member: &Member) -> NetworkClient {
        self.client(node, member, Traffic::Append)
    }

    async fn new_heartbeat_client(&mut self, node: NodeId, member: &Member) -> NetworkClient {
        self.client(node, member, Traffic::Control)
    }

    async fn new_snapshot_client(&mut self, node: NodeId, member: &Member) -> NetworkClient {
        self.client(node, member, Traffic::Snapshot)
    }
}

/// A member, for one purpose of the core's.
pub(super) struct NetworkClient {
    client: MemberClient,
    peers: Arc<Peers>,
    traffic: Traffic,
    election_max: Duration,
    log: LogStore,
}

fn unreachable(error: &LinkError) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::from_string(error))
}

/// Reads a snapshot again that could not be sent, or was refused once all of it had come: its file may have rotted since it
/// was read last, and would be sent without end until the next scrub finds that out.
async fn doubt(file: SnapshotFile) {
    let index = file.index();
    if let Err(error) = blocking(move || file.doubt()).await {
        tracing::error!(%error, index, "a snapshot file can't be judged");
    }
}

impl NetworkClient {
    /// The member has said that it keeps this: it is held against it should it come back with less.
    fn acknowledged(&self, vote: Option<Vote>, log: Option<LogId>) {
        self.peers.roster.acknowledged(self.client.to, vote, log);
    }

    async fn asked_for_vote(
        &self,
        ask: &AskVote,
        at_most: Duration,
        is_real: bool,
    ) -> Result<VoteAnswer, RPCError<Types>> {
        if restore::is_without_first_command(ask.last_log_id, &self.log) {
            let why =
                NetworkError::from_string("what this node was restored from is not complete here yet: it can't lead");
            return Err(RPCError::Network(why));
        }
        let body = encode_ask_vote(ask);
        let answer =
            if is_real { self.client.vote(body, at_most).await } else { self.client.pre_vote(body, at_most).await };
        let answer = answer.map_err(|error| unreachable(&error))?;
        let answer = decode_vote_answer(&answer).map_err(|error| unreachable(&self.client.unreadable(&error)))?;
        if is_real && answer.vote_granted {
            self.acknowledged(Some(answer.vote), None);
        }
        Ok(answer)
    }

    async fn appended(
        &self,
        input: impl Stream<Item = Append> + Send + Unpin + 'static,
        option: RPCOption,
    ) -> Result<BoxStream<'_, Result<AppendAnswer, RPCError<Types>>>, RPCError<Types>> {
        let mut input = input;
        // The core's pause after a failure lies in its stream: whoever fails to connect without having asked for an item
        // is called again at once, without end.
        let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
        // A heartbeat has to be answered within its interval; entries wait for a disk.
        let at_most = match self.traffic {
            Traffic::Control => option.hard_ttl(),
            _ => self.election_max,
        };
        let vote = first.vote;
        let last = first.entries.last().map(|entry| entry.log_id).or(first.prev_log_id);
        let bodies = stream::once(std::future::ready(first)).chain(input).map(|append| encode_append(&append));
        let answers = self.client.append(self.traffic, bodies, at_most).await;
        if planted!(AnswerBeforeQuorum) && answers.is_err() {
            return Ok(stream::once(std::future::ready(Ok(Ok(last)))).boxed());
        }
        let answers = answers.map_err(|error| unreachable(&error))?;
        let unfolded = stream::unfold(Some(answers), move |answers| self.next_answer(answers, vote));
        Ok(unfolded.boxed())
    }

    /// The next answer of a stream. It may be long in coming: an idle stream has nothing to say, and a dead connection is
    /// noticed by its signs of life.
    async fn next_answer(
        &self,
        answers: Option<Streaming<Frame>>,
        vote: Vote,
    ) -> Option<(Result<AppendAnswer, RPCError<Types>>, Option<Streaming<Frame>>)> {
        let mut answers = answers?;
        let answer = match answers.next().await? {
            Ok(frame) => self
                .client
                .body(&frame)
                .and_then(|body| decode_append_answer(&body).map_err(|error| self.client.unreadable(&error))),
            Err(status) => Err(self.client.failed(&status)),
        };
        match answer {
            Ok(answer) => {
                if let Ok(matched) = &answer {
                    self.acknowledged(Some(vote), *matched);
                }
                Some((Ok(answer), Some(answers)))
            }
            Err(error) => Some((Err(unreachable(&error)), None)),
        }
    }

    async fn sent_snapshot(&self, vote: Vote, file: SnapshotFile) -> Result<SnapshotResponse<Types>, LinkError> {
        let broken = |reason: String| LinkError::Broken { address: "the snapshot's file".to_owned(), reason };
        let index = file.index();
        let _held = self.peers.holds.hold(index);
        let opener = file.clone();
        let mut pieces = match blocking(move || opener.pieces()).await {
            Ok(pieces) => pieces,
            Err(error) => {
                doubt(file).await;
                return Err(broken(error.to_string()));
            }
        };
        let bytes = pieces.bytes();
        tracing::info!(to = self.client.to.node_id, index, bytes, "a snapshot is sent");
        // A piece is read while the one before is on its way, and no more than that.
        let (parts, queued) = mpsc::channel::<Bytes>(1);
        let failed = Arc::new(Mutex::new(None));
        let (told, is_read) = (Arc::clone(&failed), Arc::new(AtomicBool::new(false)));
        let all_is_read = Arc::clone(&is_read);
        let reading = tokio::spawn(async move {
            let mut next = SnapshotPart::Head { vote, bytes };
            while parts.send(next.encode()).await.is_ok() {
                let offset = pieces.offset();
                let (piece, left) = blocking(move || (pieces.next_piece(), pieces)).await;
                pieces = left;
                match piece {
                    Ok(Some(piece)) => next = SnapshotPart::Piece { offset, piece },
                    Ok(None) => return all_is_read.store(true, Ordering::Release),
                    // The receiver misses what was announced, and keeps nothing.
                    Err(error) => return *told.lock() = Some(error.to_string()),
                }
            }
        });
        let sent = self.client.snapshot(tokio_stream::wrappers::ReceiverStream::new(queued)).await;
        // Its queue is gone: it ends by itself.
        drop(reading);
        let failed = failed.lock().take();
        if failed.is_some() || is_read.load(Ordering::Acquire) && matches!(sent, Err(LinkError::Refused { .. })) {
            doubt(file).await;
        }
        if let Some(reason) = failed {
            return Err(broken(reason));
        }
        let vote = decode_bare_vote(&sent?).map_err(|error| self.client.unreadable(&error))?;
        tracing::info!(to = self.client.to.node_id, index, "the snapshot is installed there");
        Ok(SnapshotResponse::new(vote))
    }
}

impl RaftNetworkV2<Types> for NetworkClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        append: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let mut answers = self.appended(stream::iter([append]), option).await?;
        let answer = answers.next().await.unwrap_or_else(|| Err(unreachable(&self.client.silent())))?;
        Ok(match answer {
            Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
            Err(error) => Err(error).into(),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<AppendAnswer, RPCError<Types>>>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
    {
        self.appended(input, option).boxed()
    }

    async fn vote(&mut self, ask: AskVote, option: RPCOption) -> Result<VoteAnswer, RPCError<Types>> {
        self.asked_for_vote(&ask, option.hard_ttl(), true).await
    }

    async fn pre_vote(&mut self, ask: AskVote, option: RPCOption) -> Result<VoteAnswer, RPCError<Types>> {
        self.asked_for_vote(&ask, option.hard_ttl(), false).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: CoreSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.sent_snapshot(vote, snapshot.snapshot) => sent.map_err(|error| match &error {
                LinkError::Broken { .. } => StreamingError::Network(NetworkError::from_string(&error)),
                _ => StreamingError::Unreachable(Unreachable::from_string(&error)),
            }),
        }
    }

    async fn transfer_leader(
        &mut self,
        transfer: Transfer,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let at_most = Duration::from_millis(limits::PEER_ANSWER_MS);
        let answer = self.client.transfer_leader(encode_transfer(&transfer), at_most).await;
        // What it makes of it shows by who leads; nothing hangs on why it would not.
        answer.map(|_| Ok(())).map_err(|error| unreachable(&error))
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(limits::PEER_PAUSE_MS_MAX / 2))))
    }
}
