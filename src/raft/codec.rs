//! The bytes of everything that consensus keeps: entries and votes in the log, the membership in the store and in snapshots.
//! See FORMAT.md. An unknown version or kind is an error that stops the node: what is not understood is never skipped.

pub(super) mod message;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::types::{LeaderId, LogEntry, LogId, Member, Membership, Payload, Proposal, StoredMembership, Vote, log_id};
use crate::{
    id::{DiskId, NodeId},
    records,
};

/// The version of every format that this module writes.
pub(super) const FORMAT_VERSION: u8 = 1;

const KIND_BLANK: u8 = 1;
const KIND_NORMAL: u8 = 2;
const KIND_MEMBERSHIP: u8 = 3;

/// Why bytes are not what consensus wrote.
#[derive(Debug, thiserror::Error)]
pub enum LogCodecError {
    /// Written by a newer release, or damaged.
    #[error(
        "format version {found} where {FORMAT_VERSION} is the newest known: a newer release wrote this, or it is damaged"
    )]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// Written by a newer release, or damaged.
    #[error("unknown kind of log entry {found}: a newer release wrote this, or it is damaged")]
    Kind {
        /// The kind byte found.
        found: u8,
    },
    /// It ends too early.
    #[error("{what} ends {missing} bytes too early")]
    Short {
        /// What was read.
        what: &'static str,
        /// How much is missing.
        missing: usize,
    },
    /// Bytes are left over.
    #[error("{bytes} bytes are left over behind {what}")]
    Trailing {
        /// What was read.
        what: &'static str,
        /// How many.
        bytes: usize,
    },
    /// A value that is never written.
    #[error("{what} holds a value that is never written")]
    Value {
        /// What was read.
        what: &'static str,
    },
    /// The commands of an entry.
    #[error("the commands of an entry cannot be read")]
    Commands(#[from] records::codec::CodecError),
}

impl LogCodecError {
    /// Whether a newer release wrote it, as far as can be told.
    pub(super) fn is_of_newer_release(&self) -> bool {
        match self {
            LogCodecError::Version { .. } | LogCodecError::Kind { .. } => true,
            LogCodecError::Commands(error) => error.is_of_newer_release(),
            LogCodecError::Short { .. } | LogCodecError::Trailing { .. } | LogCodecError::Value { .. } => false,
        }
    }
}

/// An entry as it stands in the log beside its index and term.
pub(super) fn encode_entry(entry: &LogEntry) -> Bytes {
    let (kind, room) = match &entry.payload {
        Payload::Blank => (KIND_BLANK, 0),
        Payload::Normal(proposal) => (KIND_NORMAL, proposal.bytes.len()),
        Payload::Membership(_) => (KIND_MEMBERSHIP, 256),
    };
    let mut bytes = Vec::with_capacity(10 + room);
    bytes.extend_from_slice(&[FORMAT_VERSION, kind]);
    put_u64(&mut bytes, entry.log_id.leader_id.node_id);
    match &entry.payload {
        Payload::Blank => {}
        Payload::Normal(proposal) => bytes.extend_from_slice(&proposal.bytes),
        Payload::Membership(membership) => put_membership(&mut bytes, membership),
    }
    bytes.into()
}

/// The entry that stands in the log at `index`, written in `term`.
pub(super) fn decode_entry(index: u64, term: u64, bytes: &Bytes) -> Result<LogEntry, LogCodecError> {
    let mut reader = Reader::new("a log entry", bytes)?;
    let kind = reader.u8()?;
    let log_id = log_id(term, reader.u64()?, index);
    let payload = match kind {
        KIND_BLANK => Payload::Blank,
        KIND_NORMAL => Payload::Normal(Proposal::decode(bytes.slice_ref(reader.rest()))?),
        KIND_MEMBERSHIP => Payload::Membership(reader.membership()?),
        found => return Err(LogCodecError::Kind { found }),
    };
    reader.end()?;
    Ok(LogEntry { log_id, payload })
}

/// A vote.
pub(super) fn encode_vote(vote: &Vote) -> Bytes {
    let mut bytes = vec![FORMAT_VERSION];
    put_u64(&mut bytes, vote.leader_id.term);
    put_u64(&mut bytes, vote.leader_id.node_id);
    bytes.push(u8::from(vote.committed));
    bytes.into()
}

/// The vote of these bytes.
pub(super) fn decode_vote(bytes: &[u8]) -> Result<Vote, LogCodecError> {
    let mut reader = Reader::new("a vote", bytes)?;
    let leader_id = LeaderId { term: reader.u64()?, node_id: reader.u64()? };
    let committed = reader.flag()?;
    reader.end()?;
    Ok(Vote { leader_id, committed })
}

/// A log id.
pub(super) fn encode_log_id(id: &LogId) -> Bytes {
    let mut bytes = vec![FORMAT_VERSION];
    put_log_id(&mut bytes, id);
    bytes.into()
}

/// The log id of these bytes.
pub(super) fn decode_log_id(bytes: &[u8]) -> Result<LogId, LogCodecError> {
    let mut reader = Reader::new("a log id", bytes)?;
    let id = reader.log_id()?;
    reader.end()?;
    Ok(id)
}

/// The last membership, with the log id of the entry that it came in.
pub(super) fn encode_stored_membership(stored: &StoredMembership) -> Bytes {
    let mut bytes = vec![FORMAT_VERSION, u8::from(stored.log_id().is_some())];
    if let Some(id) = stored.log_id() {
        put_log_id(&mut bytes, id);
    }
    put_membership(&mut bytes, stored.membership());
    bytes.into()
}

/// The membership of these bytes.
pub(super) fn decode_stored_membership(bytes: &[u8]) -> Result<StoredMembership, LogCodecError> {
    let mut reader = Reader::new("a membership", bytes)?;
    let id = if reader.flag()? { Some(reader.log_id()?) } else { None };
    let membership = reader.membership()?;
    reader.end()?;
    Ok(StoredMembership::new(id, membership))
}

/// A member.
pub(super) fn encode_member(member: &Member) -> Bytes {
    let mut bytes = vec![FORMAT_VERSION];
    put_member(&mut bytes, member);
    bytes.into()
}

/// The member of these bytes.
pub(super) fn decode_member(bytes: &[u8]) -> Result<Member, LogCodecError> {
    let mut reader = Reader::new("a member", bytes)?;
    let member = reader.member()?;
    reader.end()?;
    Ok(member)
}

fn put_u16(bytes: &mut Vec<u8>, value: usize) {
    let value = u16::try_from(value).expect("members, voters and addresses are bounded far below 65,536");
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put_log_id(bytes: &mut Vec<u8>, id: &LogId) {
    put_u64(bytes, id.leader_id.term);
    put_u64(bytes, id.leader_id.node_id);
    put_u64(bytes, id.index);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_u16(bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
}

fn put_member(bytes: &mut Vec<u8>, member: &Member) {
    put_text(bytes, &member.peer_addr);
    put_text(bytes, &member.client_addr);
    bytes.extend_from_slice(&member.disk_id.0);
}

fn put_membership(bytes: &mut Vec<u8>, membership: &Membership) {
    let sets = membership.get_joint_config();
    put_u16(bytes, sets.len());
    for voters in sets {
        put_u16(bytes, voters.len());
        voters.iter().for_each(|node| put_u64(bytes, *node));
    }
    put_u16(bytes, membership.nodes().count());
    for (node, member) in membership.nodes() {
        put_u64(bytes, *node);
        put_member(bytes, member);
    }
}

/// Reads what was written above, in order, behind its version.
struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(what: &'static str, bytes: &'a [u8]) -> Result<Self, LogCodecError> {
        let mut reader = Self { what, bytes };
        match reader.u8()? {
            FORMAT_VERSION => Ok(reader),
            found => Err(LogCodecError::Version { found }),
        }
    }

    /// Of what has no version of its own.
    fn bare(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes }
    }

    /// What is wrong with a value that is never written.
    fn wrong(&self) -> LogCodecError {
        LogCodecError::Value { what: self.what }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], LogCodecError> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => Err(LogCodecError::Short { what: self.what, missing: count - self.bytes.len() }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LogCodecError> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    fn u8(&mut self) -> Result<u8, LogCodecError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<usize, LogCodecError> {
        Ok(u16::from_le_bytes(self.array()?).into())
    }

    fn u32(&mut self) -> Result<u32, LogCodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, LogCodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, LogCodecError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(LogCodecError::Value { what: self.what }),
        }
    }

    fn log_id(&mut self) -> Result<LogId, LogCodecError> {
        Ok(log_id(self.u64()?, self.u64()?, self.u64()?))
    }

    fn text(&mut self) -> Result<String, LogCodecError> {
        let length = self.u16()?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| LogCodecError::Value { what: self.what })?;
        Ok(text.to_owned())
    }

    fn member(&mut self) -> Result<Member, LogCodecError> {
        Ok(Member { peer_addr: self.text()?, client_addr: self.text()?, disk_id: DiskId(self.array()?) })
    }

    fn membership(&mut self) -> Result<Membership, LogCodecError> {
        let mut sets = Vec::new();
        for _ in 0..self.u16()? {
            let mut voters = BTreeSet::<NodeId>::new();
            for _ in 0..self.u16()? {
                voters.insert(self.u64()?);
            }
            sets.push(voters);
        }
        let mut members = BTreeMap::<NodeId, Member>::new();
        for _ in 0..self.u16()? {
            members.insert(self.u64()?, self.member()?);
        }
        if sets.is_empty() && members.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(sets, members).map_err(|_| LogCodecError::Value { what: self.what })
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    fn end(self) -> Result<(), LogCodecError> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(LogCodecError::Trailing { what: self.what, bytes }),
        }
    }
}

#[cfg(test)]
mod tests;
