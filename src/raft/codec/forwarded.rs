//! Promises, and what a node asks of the leader: commands, barriers, ticks, changes of the membership.

use std::time::Duration;

use bytes::{BufMut, Bytes};

use super::super::{LogCodecError, Reader, put_text, put_u64};
use super::{Founder, put_founders};
use crate::{
    id::{ClusterId, DiskId, LineageId, NodeId, Time},
    raft::Addresses,
    records::answer::wire,
    refusal::Refusal,
    wal::Identity,
};

/// What a node has promised: which cluster it belongs to, durably, before it has a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) struct Promise {
    pub lineage_id: LineageId,
    pub cluster_id: ClusterId,
    pub node_id: NodeId,
    /// Drawn for this promise: the cluster knows the node by it.
    pub disk_id: DiskId,
    /// The disk that was put aside, where this promise is to heal it.
    pub healing: Option<DiskId>,
    /// The members that the cluster is formed of, as named at init. Empty for a node that is added later.
    pub founders: Vec<Founder>,
    /// The members as last known: whom to ask when the log can't tell.
    pub known: Vec<Founder>,
}

impl Promise {
    /// Whose log is begun under it.
    pub fn identity(&self) -> Identity {
        let Promise { lineage_id, cluster_id, node_id, disk_id, .. } = *self;
        Identity { lineage_id, cluster_id, node_id, disk_id }
    }

    /// The members as this promise last knew them; before any was known, those that the cluster is formed of.
    pub fn named(&self) -> Vec<Founder> {
        if self.known.is_empty() { self.founders.clone() } else { self.known.clone() }
    }

    /// As it lies in the file, behind a version.
    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![super::super::FORMAT_VERSION];
        bytes.extend_from_slice(&self.lineage_id.0);
        bytes.extend_from_slice(&self.cluster_id.0);
        put_u64(&mut bytes, self.node_id);
        bytes.extend_from_slice(&self.disk_id.0);
        bytes.push(u8::from(self.healing.is_some()));
        bytes.extend_from_slice(&self.healing.unwrap_or_default().0);
        put_founders(&mut bytes, &self.founders);
        put_founders(&mut bytes, &self.known);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32_le(crc);
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let what = "a promise";
        let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(LogCodecError::Short { what, missing: 4 - bytes.len() });
        };
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(LogCodecError::Value { what });
        }
        let mut reader = Reader::new(what, body)?;
        let (lineage_id, cluster_id) = (LineageId(reader.array()?), ClusterId(reader.array()?));
        let (node_id, disk_id) = (reader.u64()?, DiskId(reader.array()?));
        let (is_healing, old) = (reader.flag()?, DiskId(reader.array()?));
        let promise = Self {
            lineage_id,
            cluster_id,
            node_id,
            disk_id,
            healing: is_healing.then_some(old),
            founders: reader.founders()?,
            known: reader.founders()?,
        };
        reader.end()?;
        Ok(promise)
    }
}

/// Asks a node to promise itself, or gives it back what it promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) enum AskPromise {
    Grant {
        lineage_id: LineageId,
        cluster_id: ClusterId,
        founders: Vec<Founder>,
        /// An operator has decided that whatever this node holds is put aside for it.
        replaces: bool,
    },
    Withdraw {
        cluster_id: ClusterId,
        disk_id: DiskId,
    },
}

impl AskPromise {
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(256);
        match self {
            AskPromise::Grant { lineage_id, cluster_id, founders, replaces } => {
                bytes.push(1);
                bytes.extend_from_slice(&lineage_id.0);
                bytes.extend_from_slice(&cluster_id.0);
                bytes.push(u8::from(*replaces));
                put_founders(&mut bytes, founders);
            }
            AskPromise::Withdraw { cluster_id, disk_id } => {
                bytes.push(2);
                bytes.extend_from_slice(&cluster_id.0);
                bytes.extend_from_slice(&disk_id.0);
            }
        }
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("a promise asked for", bytes);
        let asked = match reader.u8()? {
            1 => {
                let (lineage_id, cluster_id) = (LineageId(reader.array()?), ClusterId(reader.array()?));
                let replaces = reader.flag()?;
                AskPromise::Grant { lineage_id, cluster_id, founders: reader.founders()?, replaces }
            }
            2 => AskPromise::Withdraw { cluster_id: ClusterId(reader.array()?), disk_id: DiskId(reader.array()?) },
            _ => return Err(reader.wrong()),
        };
        reader.end()?;
        Ok(asked)
    }
}

/// The answer to [`AskPromise`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) enum PromiseAnswer {
    /// Promised, now or before, under this disk id.
    Granted { disk_id: DiskId, is_new: bool },
    /// Not promised, and why.
    Refused { reason: String },
}

impl PromiseAnswer {
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(64);
        match self {
            PromiseAnswer::Granted { disk_id, is_new } => {
                bytes.extend_from_slice(&[1, u8::from(*is_new)]);
                bytes.extend_from_slice(&disk_id.0);
            }
            PromiseAnswer::Refused { reason } => {
                bytes.push(2);
                put_text(&mut bytes, reason);
            }
        }
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("an answer to a promise", bytes);
        let answer = match reader.u8()? {
            1 => {
                let is_new = reader.flag()?;
                PromiseAnswer::Granted { disk_id: DiskId(reader.array()?), is_new }
            }
            2 => PromiseAnswer::Refused { reason: reader.text()? },
            _ => return Err(reader.wrong()),
        };
        reader.end()?;
        Ok(answer)
    }
}

fn put_span(bytes: &mut Vec<u8>, span: Duration) {
    bytes.put_u32_le(u32::try_from(span.as_millis()).unwrap_or(u32::MAX));
}

/// Commands to propose, each in its own encoding without a version byte, and how long their caller still waits.
pub(in crate::raft) fn encode_propose(left: Duration, commands: &[Bytes]) -> Bytes {
    let mut bytes = Vec::with_capacity(16 + commands.iter().map(|command| command.len() + 4).sum::<usize>());
    put_span(&mut bytes, left);
    bytes.put_u32_le(u32::try_from(commands.len()).expect("commands that are forwarded at once are counted"));
    for command in commands {
        bytes.put_u32_le(u32::try_from(command.len()).expect("a command is bounded far below 4 GiB"));
        bytes.extend_from_slice(command);
    }
    bytes.into()
}

pub(in crate::raft) fn decode_propose(bytes: &Bytes) -> Result<(Duration, Vec<Bytes>), LogCodecError> {
    let mut reader = Reader::bare("forwarded commands", bytes);
    let left = reader.span()?;
    let mut commands = Vec::new();
    for _ in 0..reader.u32()? {
        let length = reader.u32()?;
        commands.push(bytes.slice_ref(reader.take(length as usize)?));
    }
    reader.end()?;
    Ok((left, commands))
}

/// What is asked of the leader besides commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) enum Asked {
    /// What a read elsewhere must wait for.
    Barrier,
    /// An entry that brings applied time to this.
    Tick { to: Time },
    /// A change of the membership, and who wants it.
    Change { change: Change, actor: String },
}

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::raft) enum Change {
    /// A new node, as learner.
    Add { node_id: NodeId, addresses: Addresses },
    /// A learner votes from now on.
    Promote { node_id: NodeId },
    /// A node leaves for good.
    Remove { node_id: NodeId, force: bool },
    /// A node goes on with another disk, perhaps elsewhere.
    Replace { node_id: NodeId, addresses: Option<Addresses>, force: bool },
    /// Another node leads.
    Transfer { node_id: NodeId },
    /// A node whose directory was put aside goes on with a new disk.
    Heal { node_id: NodeId, old: DiskId, new: DiskId, addresses: Addresses },
}

impl Asked {
    pub fn encode(&self, left: Duration) -> Bytes {
        let mut bytes = Vec::with_capacity(128);
        put_span(&mut bytes, left);
        match self {
            Asked::Barrier => bytes.push(1),
            Asked::Tick { to } => {
                bytes.push(2);
                put_u64(&mut bytes, to.0);
            }
            Asked::Change { change, actor } => {
                bytes.push(3);
                change.put(&mut bytes);
                put_text(&mut bytes, actor);
            }
        }
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<(Duration, Self), LogCodecError> {
        let mut reader = Reader::bare("what the leader is asked for", bytes);
        let left = reader.span()?;
        let asked = match reader.u8()? {
            1 => Asked::Barrier,
            2 => Asked::Tick { to: Time(reader.u64()?) },
            3 => Asked::Change { change: Change::read(&mut reader)?, actor: reader.text()? },
            _ => return Err(reader.wrong()),
        };
        reader.end()?;
        Ok((left, asked))
    }
}

impl Change {
    fn put(&self, bytes: &mut Vec<u8>) {
        let addressed = |bytes: &mut Vec<u8>, Addresses { peer, client }: &Addresses| {
            put_text(bytes, peer);
            put_text(bytes, client);
        };
        match self {
            Change::Add { node_id, addresses } => {
                bytes.push(1);
                put_u64(bytes, *node_id);
                addressed(bytes, addresses);
            }
            Change::Promote { node_id } => {
                bytes.push(2);
                put_u64(bytes, *node_id);
            }
            Change::Remove { node_id, force } => {
                bytes.push(3);
                put_u64(bytes, *node_id);
                bytes.push(u8::from(*force));
            }
            Change::Replace { node_id, addresses, force } => {
                bytes.push(4);
                put_u64(bytes, *node_id);
                bytes.extend_from_slice(&[u8::from(*force), u8::from(addresses.is_some())]);
                if let Some(addresses) = addresses {
                    addressed(bytes, addresses);
                }
            }
            Change::Transfer { node_id } => {
                bytes.push(5);
                put_u64(bytes, *node_id);
            }
            Change::Heal { node_id, old, new, addresses } => {
                bytes.push(6);
                put_u64(bytes, *node_id);
                bytes.extend_from_slice(&old.0);
                bytes.extend_from_slice(&new.0);
                addressed(bytes, addresses);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, LogCodecError> {
        Ok(match reader.u8()? {
            1 => Change::Add { node_id: reader.u64()?, addresses: reader.addresses()? },
            2 => Change::Promote { node_id: reader.u64()? },
            3 => Change::Remove { node_id: reader.u64()?, force: reader.flag()? },
            4 => {
                let (node_id, force) = (reader.u64()?, reader.flag()?);
                let addresses = if reader.flag()? { Some(reader.addresses()?) } else { None };
                Change::Replace { node_id, addresses, force }
            }
            5 => Change::Transfer { node_id: reader.u64()? },
            6 => Change::Heal {
                node_id: reader.u64()?,
                old: DiskId(reader.array()?),
                new: DiskId(reader.array()?),
                addresses: reader.addresses()?,
            },
            _ => return Err(reader.wrong()),
        })
    }
}

/// What came of something that was asked of the leader.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::raft) enum Told<T> {
    /// This.
    Done(T),
    /// The leader refuses.
    Refused(Refusal),
    /// The node does not lead, and has done nothing. Who does, if it knows.
    NotLeader(Option<NodeId>),
}

/// Two numbers: how far the asking node must have applied, and what it asked for (the leader's now, the applied time).
pub(in crate::raft) type Reached = (u64, Time);

impl Told<Reached> {
    pub fn encode(&self) -> Bytes {
        self.encode_with(|bytes, (index, time)| {
            put_u64(bytes, *index);
            put_u64(bytes, time.0);
        })
    }

    pub fn decode(bytes: &Bytes) -> Result<Self, LogCodecError> {
        Self::decode_with(bytes, |reader, _| {
            let reached = (reader.u64()?, Time(reader.u64()?));
            Ok(reached)
        })
    }
}

impl Told<(u64, wire::Answers)> {
    /// How far the leader has applied, and the commands' answers.
    pub fn encode(&self) -> Bytes {
        self.encode_with(|bytes, (index, answers)| {
            put_u64(bytes, *index);
            bytes.extend_from_slice(&wire::encode_answers(answers));
        })
    }

    pub fn decode(bytes: &Bytes) -> Result<Self, LogCodecError> {
        Self::decode_with(bytes, |reader, _| {
            let index = reader.u64()?;
            Ok((index, wire::decode_answers(reader.rest())?))
        })
    }
}

impl<T> Told<T> {
    fn encode_with(&self, put: impl FnOnce(&mut Vec<u8>, &T)) -> Bytes {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Told::Done(done) => {
                bytes.push(1);
                put(&mut bytes, done);
            }
            Told::Refused(refusal) => {
                bytes.push(2);
                bytes.extend_from_slice(&wire::encode_refusal(refusal));
            }
            Told::NotLeader(leader) => {
                bytes.push(3);
                put_u64(&mut bytes, leader.unwrap_or(0));
            }
        }
        bytes.into()
    }

    fn decode_with(
        bytes: &Bytes,
        read: impl FnOnce(&mut Reader<'_>, &Bytes) -> Result<T, LogCodecError>,
    ) -> Result<Self, LogCodecError> {
        let mut reader = Reader::bare("what the leader has told", bytes);
        let told = match reader.u8()? {
            1 => Told::Done(read(&mut reader, bytes)?),
            2 => Told::Refused(wire::decode_refusal(reader.rest())?),
            3 => Told::NotLeader(Some(reader.u64()?).filter(|leader| *leader != 0)),
            _ => return Err(reader.wrong()),
        };
        reader.end()?;
        Ok(told)
    }
}

impl Reader<'_> {
    fn span(&mut self) -> Result<Duration, LogCodecError> {
        Ok(Duration::from_millis(self.u32()?.into()))
    }

    fn addresses(&mut self) -> Result<Addresses, LogCodecError> {
        Ok(Addresses { peer: self.text()?, client: self.text()? })
    }
}
