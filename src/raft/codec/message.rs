//! What nodes say to each other, as bytes. Every message travels behind an [`Envelope`], which is judged first; its own
//! bytes need no version, because the envelope's names the version of both.

use bytes::{BufMut, Bytes};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::{
    LogCodecError, Reader, decode_entry, encode_entry, put_log_id, put_membership, put_text, put_u16, put_u64,
};
use crate::{
    id::{ClusterId, DiskId, LineageId, NodeId, Position, Time},
    raft::types::{LogId, Membership, StoredMembership, Types, Vote, log_id},
    records::sealing::OuterKey,
};

/// The version of the messages that this release sends.
pub(in crate::raft) const PEER_VERSION: u8 = 1;
/// The oldest version that it understands.
pub(in crate::raft) const PEER_VERSION_MIN: u8 = 1;

/// Appends to this node from the leader, votes, and transfers: the core's own.
pub(in crate::raft) type Append = AppendEntriesRequest<Types>;
pub(in crate::raft) type AppendAnswer = StreamAppendResult<Types>;
pub(in crate::raft) type AskVote = VoteRequest<Types>;
pub(in crate::raft) type VoteAnswer = VoteResponse<Types>;
pub(in crate::raft) type Transfer = TransferLeaderRequest<Types>;

/// One end of a message: a node and its disk. All zeros where it isn't known, or there is none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::raft) struct End {
    pub node_id: NodeId,
    pub disk_id: DiskId,
}

/// Who speaks to whom, and in which cluster. A cluster id of zeros: the sender is in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::raft) struct Envelope {
    pub version: u8,
    pub cluster_id: ClusterId,
    pub from: End,
    pub to: End,
}

impl Envelope {
    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![self.version];
        bytes.extend_from_slice(&self.cluster_id.0);
        for end in [&self.from, &self.to] {
            put_u64(&mut bytes, end.node_id);
            bytes.extend_from_slice(&end.disk_id.0);
        }
        bytes.into()
    }

    /// The envelope of these bytes. What a newer version appends is not read.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("an envelope", bytes);
        let version = reader.u8()?;
        let cluster_id = ClusterId(reader.array()?);
        let mut end = || Ok::<_, LogCodecError>(End { node_id: reader.u64()?, disk_id: DiskId(reader.array()?) });
        Ok(Self { version, cluster_id, from: end()?, to: end()? })
    }
}

fn put_vote(bytes: &mut Vec<u8>, vote: &Vote) {
    put_u64(bytes, vote.leader_id.term);
    put_u64(bytes, vote.leader_id.node_id);
    bytes.push(u8::from(vote.committed));
}

fn put_opt_log_id(bytes: &mut Vec<u8>, id: Option<&LogId>) {
    bytes.push(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(bytes, id);
    }
}

pub(in crate::raft) fn encode_append(append: &Append) -> Bytes {
    let entries: Vec<Bytes> = append.entries.iter().map(encode_entry).collect();
    let mut bytes = Vec::with_capacity(128 + entries.iter().map(|entry| entry.len() + 20).sum::<usize>());
    put_vote(&mut bytes, &append.vote);
    put_opt_log_id(&mut bytes, append.prev_log_id.as_ref());
    put_opt_log_id(&mut bytes, append.leader_commit.as_ref());
    bytes.put_u32_le(u32::try_from(entries.len()).expect("a batch is bounded far below 4 G"));
    for (entry, encoded) in append.entries.iter().zip(entries) {
        put_u64(&mut bytes, entry.log_id.index);
        put_u64(&mut bytes, entry.log_id.leader_id.term);
        bytes.put_u32_le(u32::try_from(encoded.len()).expect("an entry is bounded far below 4 GiB"));
        bytes.extend_from_slice(&encoded);
    }
    bytes.into()
}

pub(in crate::raft) fn decode_append(bytes: &Bytes) -> Result<Append, LogCodecError> {
    let mut reader = Reader::bare("an append", bytes);
    let (vote, prev_log_id, leader_commit) = (reader.vote()?, reader.opt_log_id()?, reader.opt_log_id()?);
    let count = reader.u32()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let (index, term, length) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let encoded = bytes.slice_ref(reader.take(length as usize)?);
        entries.push(decode_entry(index, term, &encoded)?);
    }
    reader.end()?;
    Ok(Append { vote, prev_log_id, entries, leader_commit })
}

pub(in crate::raft) fn encode_append_answer(answer: &AppendAnswer) -> Bytes {
    let mut bytes = Vec::with_capacity(32);
    match answer {
        Ok(matched) => {
            bytes.push(1);
            put_opt_log_id(&mut bytes, matched.as_ref());
        }
        Err(StreamAppendError::Conflict(at)) => {
            bytes.push(2);
            put_log_id(&mut bytes, at);
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            bytes.push(3);
            put_vote(&mut bytes, vote);
        }
    }
    bytes.into()
}

pub(in crate::raft) fn decode_append_answer(bytes: &[u8]) -> Result<AppendAnswer, LogCodecError> {
    let mut reader = Reader::bare("an answer to an append", bytes);
    let answer = match reader.u8()? {
        1 => Ok(reader.opt_log_id()?),
        2 => Err(StreamAppendError::Conflict(reader.log_id()?)),
        3 => Err(StreamAppendError::HigherVote(reader.vote()?)),
        _ => return Err(reader.wrong()),
    };
    reader.end()?;
    Ok(answer)
}

pub(in crate::raft) fn encode_ask_vote(ask: &AskVote) -> Bytes {
    let mut bytes = Vec::with_capacity(64);
    put_vote(&mut bytes, &ask.vote);
    put_opt_log_id(&mut bytes, ask.last_log_id.as_ref());
    bytes.push(u8::from(ask.leadership_transfer));
    bytes.into()
}

pub(in crate::raft) fn decode_ask_vote(bytes: &[u8]) -> Result<AskVote, LogCodecError> {
    let mut reader = Reader::bare("a vote asked for", bytes);
    let mut ask = AskVote::new(reader.vote()?, reader.opt_log_id()?);
    ask.leadership_transfer = reader.flag()?;
    reader.end()?;
    Ok(ask)
}

pub(in crate::raft) fn encode_vote_answer(answer: &VoteAnswer) -> Bytes {
    let mut bytes = Vec::with_capacity(64);
    put_vote(&mut bytes, &answer.vote);
    bytes.push(u8::from(answer.vote_granted));
    put_opt_log_id(&mut bytes, answer.last_log_id.as_ref());
    bytes.into()
}

pub(in crate::raft) fn decode_vote_answer(bytes: &[u8]) -> Result<VoteAnswer, LogCodecError> {
    let mut reader = Reader::bare("an answered vote", bytes);
    let (vote, granted) = (reader.vote()?, reader.flag()?);
    let answer = VoteAnswer::new(vote, reader.opt_log_id()?, granted);
    reader.end()?;
    Ok(answer)
}

pub(in crate::raft) fn encode_transfer(transfer: &Transfer) -> Bytes {
    let mut bytes = Vec::with_capacity(64);
    put_vote(&mut bytes, transfer.from_leader());
    put_u64(&mut bytes, *transfer.to_node_id());
    put_opt_log_id(&mut bytes, transfer.last_log_id());
    bytes.into()
}

pub(in crate::raft) fn decode_transfer(bytes: &[u8]) -> Result<Transfer, LogCodecError> {
    let mut reader = Reader::bare("a transfer", bytes);
    let transfer = Transfer::new(reader.vote()?, reader.u64()?, reader.opt_log_id()?);
    reader.end()?;
    Ok(transfer)
}

/// What a stream of a snapshot consists of: a head, then pieces in order.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::raft) enum SnapshotPart {
    /// Whose vote it is sent under, and how long the file is. What it is a snapshot of stands in the file.
    Head { vote: Vote, bytes: u64 },
    /// The bytes from `offset` on.
    Piece { offset: u64, piece: Bytes },
}

impl SnapshotPart {
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(64);
        match self {
            SnapshotPart::Head { vote, bytes: length } => {
                bytes.push(1);
                put_vote(&mut bytes, vote);
                put_u64(&mut bytes, *length);
            }
            SnapshotPart::Piece { offset, piece } => {
                bytes.reserve(piece.len());
                bytes.push(2);
                put_u64(&mut bytes, *offset);
                bytes.extend_from_slice(piece);
            }
        }
        bytes.into()
    }

    pub fn decode(bytes: &Bytes) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("a part of a snapshot", bytes);
        let part = match reader.u8()? {
            1 => SnapshotPart::Head { vote: reader.vote()?, bytes: reader.u64()? },
            2 => SnapshotPart::Piece { offset: reader.u64()?, piece: bytes.slice_ref(reader.rest()) },
            _ => return Err(reader.wrong()),
        };
        reader.end()?;
        Ok(part)
    }
}

/// A vote alone: the answer to a snapshot.
pub(in crate::raft) fn encode_bare_vote(vote: &Vote) -> Bytes {
    let mut bytes = Vec::with_capacity(17);
    put_vote(&mut bytes, vote);
    bytes.into()
}

pub(in crate::raft) fn decode_bare_vote(bytes: &[u8]) -> Result<Vote, LogCodecError> {
    let mut reader = Reader::bare("a vote", bytes);
    let vote = reader.vote()?;
    reader.end()?;
    Ok(vote)
}

/// In what state a node is for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::raft) enum NodeState {
    /// In no cluster, and free to promise itself to one.
    #[default]
    Unformed,
    /// In no cluster, and promised to one.
    Promised,
    /// It has a log, and waits until a quorum has vouched for it.
    Unvouched,
    /// It takes part.
    Taking,
    /// Its directory isn't the one that the others know: an operator has to say what becomes of it.
    WaitingForReplace,
    /// Its directory was put aside, and it waits to be healed.
    Quarantined,
}

impl NodeState {
    const ALL: [(Self, u8); 6] = [
        (Self::Unformed, 1),
        (Self::Promised, 2),
        (Self::Unvouched, 3),
        (Self::Taking, 4),
        (Self::WaitingForReplace, 5),
        (Self::Quarantined, 6),
    ];

    fn tag(self) -> u8 {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or(0, |(_, tag)| *tag)
    }

    fn of(tag: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == tag).map(|(state, _)| *state)
    }
}

/// What a node remembers that another has acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::raft) struct Acknowledged {
    pub vote: Option<Vote>,
    pub log: Option<LogId>,
}

impl Acknowledged {
    /// Takes over what is more of the two, each for itself. Answers whether anything was.
    pub fn raise(&mut self, vote: Option<Vote>, log: Option<LogId>) -> bool {
        let more = vote > self.vote || log > self.log;
        if vote > self.vote {
            self.vote = vote;
        }
        if log > self.log {
            self.log = log;
        }
        more
    }

    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![super::FORMAT_VERSION];
        self.put(&mut bytes);
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let mut reader = Reader::new("what a peer has acknowledged", bytes)?;
        let acknowledged = reader.acknowledged()?;
        reader.end()?;
        Ok(acknowledged)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.vote.is_some()));
        if let Some(vote) = &self.vote {
            put_vote(bytes, vote);
        }
        put_opt_log_id(bytes, self.log.as_ref());
    }
}

/// How a node stands, as it tells every other once a second. Question and answer have the same shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::raft) struct Hello {
    pub state: NodeState,
    pub lineage_id: LineageId,
    /// What its wall clock shows.
    pub wall: Time,
    pub vote: Option<Vote>,
    /// The last entry that its log holds durably.
    pub last_log: Option<LogId>,
    pub applied: Option<LogId>,
    pub disk_bytes: u64,
    pub records: u64,
    /// The newest versions it understands: of log entries and of these messages.
    pub entry_version: u8,
    pub peer_version: u8,
    /// The highest feature level that it understands.
    pub feature_level: u32,
    /// Its own addresses.
    pub peer_addr: String,
    pub client_addr: String,
    /// Its operators' port.
    pub admin_addr: String,
    /// The cluster's time, of a node that leads; 0 of others.
    pub cluster_time: Time,
    /// Bytes that its disk has free, 0 where it doesn't tell; and whether that is too little to take anything on.
    pub disk_free_bytes: u64,
    pub disk_is_full: bool,
    /// The key-encryption keys that it has, how far it has applied, and up to where nothing is left on its disk of keys that
    /// were destroyed.
    pub keys: Vec<OuterKey>,
    pub position: Position,
    pub erased: Position,
    /// The disk that it had before its directory was put aside.
    pub healing: Option<DiskId>,
    /// Who leads, as it knows.
    pub leader: Option<NodeId>,
    /// What it remembers of the node that it speaks to, and with which disk.
    pub remembered: Option<(DiskId, Acknowledged)>,
    /// The membership as it knows it, to a node that may know none.
    pub membership: StoredMembership,
    /// The members that the cluster to which it is promised is to be formed of.
    pub founders: Vec<Founder>,
}

/// A node of those that a cluster is formed of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) struct Founder {
    pub node_id: NodeId,
    pub peer_addr: String,
    pub client_addr: String,
}

impl Hello {
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(512);
        bytes.push(self.state.tag());
        bytes.extend_from_slice(&self.lineage_id.0);
        put_u64(&mut bytes, self.wall.0);
        Acknowledged { vote: self.vote, log: self.last_log }.put(&mut bytes);
        put_opt_log_id(&mut bytes, self.applied.as_ref());
        put_u64(&mut bytes, self.disk_bytes);
        put_u64(&mut bytes, self.records);
        bytes.extend_from_slice(&[self.entry_version, self.peer_version]);
        bytes.put_u32_le(self.feature_level);
        put_text(&mut bytes, &self.peer_addr);
        put_text(&mut bytes, &self.client_addr);
        bytes.push(u8::from(self.healing.is_some()));
        bytes.extend_from_slice(&self.healing.unwrap_or_default().0);
        put_u64(&mut bytes, self.leader.unwrap_or(0));
        bytes.push(u8::from(self.remembered.is_some()));
        if let Some((disk_id, acknowledged)) = &self.remembered {
            bytes.extend_from_slice(&disk_id.0);
            acknowledged.put(&mut bytes);
        }
        put_opt_log_id(&mut bytes, self.membership.log_id().as_ref());
        put_membership(&mut bytes, self.membership.membership());
        put_founders(&mut bytes, &self.founders);
        // Left out by nodes that tell none.
        let tells_keys = !self.keys.is_empty() || self.position != Position::default();
        let tells_room = tells_keys || self.disk_is_full || self.disk_free_bytes != 0;
        if tells_room || !self.admin_addr.is_empty() || self.cluster_time != Time::default() {
            put_text(&mut bytes, &self.admin_addr);
            put_u64(&mut bytes, self.cluster_time.0);
        }
        if tells_room {
            put_u64(&mut bytes, self.disk_free_bytes);
            bytes.push(u8::from(self.disk_is_full));
        }
        if tells_keys {
            put_u16(&mut bytes, self.keys.len());
            for key in &self.keys {
                bytes.put_u32_le(key.id);
                bytes.extend_from_slice(&key.check);
            }
            put_u64(&mut bytes, self.position.0);
            put_u64(&mut bytes, self.erased.0);
        }
        bytes.into()
    }

    /// The message of these bytes. What a newer version appends is not read.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("a hello", bytes);
        let tag = reader.u8()?;
        let state = NodeState::of(tag).ok_or_else(|| reader.wrong())?;
        let lineage_id = LineageId(reader.array()?);
        let wall = Time(reader.u64()?);
        let Acknowledged { vote, log: last_log } = reader.acknowledged()?;
        let applied = reader.opt_log_id()?;
        let (disk_bytes, records) = (reader.u64()?, reader.u64()?);
        let (entry_version, peer_version, feature_level) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let (peer_addr, client_addr) = (reader.text()?, reader.text()?);
        let (is_healing, old) = (reader.flag()?, DiskId(reader.array()?));
        let leader = Some(reader.u64()?).filter(|leader| *leader != 0);
        let remembered = match reader.flag()? {
            true => Some((DiskId(reader.array()?), reader.acknowledged()?)),
            false => None,
        };
        let id = reader.opt_log_id()?;
        let membership: Membership = reader.membership()?;
        Ok(Self {
            state,
            lineage_id,
            wall,
            vote,
            last_log,
            applied,
            disk_bytes,
            records,
            entry_version,
            peer_version,
            feature_level,
            peer_addr,
            client_addr,
            healing: is_healing.then_some(old),
            leader,
            remembered,
            membership: StoredMembership::new(id, membership),
            founders: reader.founders()?,
            admin_addr: reader.text().unwrap_or_default(),
            cluster_time: Time(reader.u64().unwrap_or_default()),
            disk_free_bytes: reader.u64().unwrap_or_default(),
            disk_is_full: reader.flag().unwrap_or_default(),
            keys: reader.outer_keys().unwrap_or_default(),
            position: Position(reader.u64().unwrap_or_default()),
            erased: Position(reader.u64().unwrap_or_default()),
        })
    }
}

fn put_founders(bytes: &mut Vec<u8>, founders: &[Founder]) {
    put_u16(bytes, founders.len());
    for founder in founders {
        put_u64(bytes, founder.node_id);
        put_text(bytes, &founder.peer_addr);
        put_text(bytes, &founder.client_addr);
    }
}

impl Reader<'_> {
    fn vote(&mut self) -> Result<Vote, LogCodecError> {
        let leader_id = crate::raft::types::LeaderId { term: self.u64()?, node_id: self.u64()? };
        Ok(Vote { leader_id, committed: self.flag()? })
    }

    fn opt_log_id(&mut self) -> Result<Option<LogId>, LogCodecError> {
        Ok(if self.flag()? { Some(log_id(self.u64()?, self.u64()?, self.u64()?)) } else { None })
    }

    fn acknowledged(&mut self) -> Result<Acknowledged, LogCodecError> {
        let vote = if self.flag()? { Some(self.vote()?) } else { None };
        Ok(Acknowledged { vote, log: self.opt_log_id()? })
    }

    fn outer_keys(&mut self) -> Result<Vec<OuterKey>, LogCodecError> {
        (0..self.u16()?).map(|_| Ok(OuterKey { id: self.u32()?, check: self.array()? })).collect()
    }

    fn founders(&mut self) -> Result<Vec<Founder>, LogCodecError> {
        let mut founders = Vec::new();
        for _ in 0..self.u16()? {
            founders.push(Founder { node_id: self.u64()?, peer_addr: self.text()?, client_addr: self.text()? });
        }
        Ok(founders)
    }
}

#[path = "forwarded.rs"]
mod forwarded;
pub(in crate::raft) use forwarded::*;

#[cfg(test)]
#[path = "message/tests.rs"]
mod tests;
