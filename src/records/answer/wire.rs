//! Answers as bytes: what a leader sends back to the node that forwarded commands to it. Explicit tags, a version byte in
//! front (`records::codec`); `FORMAT.md` says which.

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};
use bytes::Bytes;

use super::{Answer, Applied, ClaimAnswer};
use crate::{
    records::codec::{self, CodecError},
    refusal::{Code, Refusal},
};

/// What became of each command, in the order in which they were sent.
pub type Answers = Vec<Result<Applied, Refusal>>;

/// The answers behind a version byte.
pub fn encode_answers(answers: &Answers) -> Bytes {
    let items: Vec<Item> = answers.iter().cloned().map(Item).collect();
    codec::encode(&items)
}

/// The answers of these bytes.
///
/// # Errors
/// [`CodecError`]: a newer release wrote them, or they are damaged.
pub fn decode_answers(bytes: &[u8]) -> Result<Answers, CodecError> {
    let items: Vec<Item> = codec::decode(bytes)?;
    Ok(items.into_iter().map(|Item(item)| item).collect())
}

/// A refusal behind a version byte.
pub fn encode_refusal(refusal: &Refusal) -> Bytes {
    codec::encode(&WireRefusal(refusal.clone()))
}

/// The refusal of these bytes.
///
/// # Errors
/// As [`decode_answers`].
pub fn decode_refusal(bytes: &[u8]) -> Result<Refusal, CodecError> {
    codec::decode::<WireRefusal>(bytes).map(|WireRefusal(refusal)| refusal)
}

/// A command's answer, or why it has none.
struct Item(Result<Applied, Refusal>);

const TAG_APPLIED: u8 = 1;
const TAG_REFUSED: u8 = 2;

impl Encode for Item {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        match &self.0 {
            Ok(Applied { index, now, answer }) => {
                (TAG_APPLIED, *index, *now).encode(encoder)?;
                match answer {
                    Ok(answer) => {
                        TAG_APPLIED.encode(encoder)?;
                        answer.encode(encoder)
                    }
                    Err(refusal) => (TAG_REFUSED, WireRefusal(refusal.clone())).encode(encoder),
                }
            }
            Err(refusal) => (TAG_REFUSED, WireRefusal(refusal.clone())).encode(encoder),
        }
    }
}

impl<C> Decode<C> for Item {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let unknown = DecodeError::Other("unknown tag of an answered command");
        match u8::decode(decoder)? {
            TAG_APPLIED => {
                let (index, now) = Decode::decode(decoder)?;
                let answer = match u8::decode(decoder)? {
                    TAG_APPLIED => Ok(Answer::decode(decoder)?),
                    TAG_REFUSED => Err(WireRefusal::decode(decoder)?.0),
                    _ => return Err(unknown),
                };
                Ok(Self(Ok(Applied { index, now, answer })))
            }
            TAG_REFUSED => Ok(Self(Err(WireRefusal::decode(decoder)?.0))),
            _ => Err(unknown),
        }
    }
}

/// A refusal: its code by name, so that the table may be put in another order. Who leads is left out: the node that
/// forwards knows, and adds it where it is asked to.
struct WireRefusal(Refusal);

impl Encode for WireRefusal {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let Refusal { code, detail, retry_after_ms, index, attempt_id, leader: _ } = &self.0;
        (code.as_str(), &**detail).encode(encoder)?;
        (*retry_after_ms, *index, *attempt_id).encode(encoder)
    }
}

impl<C> Decode<C> for WireRefusal {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let (code, detail): (String, String) = Decode::decode(decoder)?;
        let code = Code::parse(&code).ok_or(DecodeError::Other("unknown code of a refusal"))?;
        let (retry_after_ms, index, attempt_id) = Decode::decode(decoder)?;
        Ok(Self(Refusal { code, detail: detail.into(), retry_after_ms, index, attempt_id, leader: None }))
    }
}

impl Encode for Answer {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        match self {
            Answer::Claim(claim) => {
                1_u8.encode(encoder)?;
                claim.encode(encoder)
            }
            Answer::Changed(changed) => {
                2_u8.encode(encoder)?;
                changed.encode(encoder)
            }
            Answer::Investigated(head) => {
                3_u8.encode(encoder)?;
                head.encode(encoder)
            }
            Answer::Policy(policy) => {
                4_u8.encode(encoder)?;
                policy.encode(encoder)
            }
            Answer::Done => 5_u8.encode(encoder),
            Answer::Token(token) => {
                6_u8.encode(encoder)?;
                token.encode(encoder)
            }
        }
    }
}

impl<C> Decode<C> for Answer {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Ok(match u8::decode(decoder)? {
            1 => Answer::Claim(Decode::decode(decoder)?),
            2 => Answer::Changed(Decode::decode(decoder)?),
            3 => Answer::Investigated(Decode::decode(decoder)?),
            4 => Answer::Policy(Decode::decode(decoder)?),
            5 => Answer::Done,
            6 => Answer::Token(Decode::decode(decoder)?),
            _ => return Err(DecodeError::Other("unknown tag of Answer")),
        })
    }
}

impl Encode for ClaimAnswer {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        match self {
            ClaimAnswer::New(new) => {
                1_u8.encode(encoder)?;
                new.encode(encoder)
            }
            ClaimAnswer::InProgress { retry_after_ms, since } => (2_u8, *retry_after_ms, *since).encode(encoder),
            ClaimAnswer::Conflict { state, since } => (3_u8, *state, *since).encode(encoder),
            ClaimAnswer::Indeterminate { since, reason, retry_after_ms } => {
                (4_u8, *since, *retry_after_ms).encode(encoder)?;
                reason.encode(encoder)
            }
            ClaimAnswer::Completed(replay) => {
                5_u8.encode(encoder)?;
                replay.encode(encoder)
            }
            ClaimAnswer::Expired { reason, completed_at, evidence_until } => {
                (6_u8, *reason, *completed_at, *evidence_until).encode(encoder)
            }
        }
    }
}

impl<C> Decode<C> for ClaimAnswer {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Ok(match u8::decode(decoder)? {
            1 => ClaimAnswer::New(Decode::decode(decoder)?),
            2 => {
                let (retry_after_ms, since) = Decode::decode(decoder)?;
                ClaimAnswer::InProgress { retry_after_ms, since }
            }
            3 => {
                let (state, since) = Decode::decode(decoder)?;
                ClaimAnswer::Conflict { state, since }
            }
            4 => {
                let (since, retry_after_ms) = Decode::decode(decoder)?;
                ClaimAnswer::Indeterminate { since, reason: Decode::decode(decoder)?, retry_after_ms }
            }
            5 => ClaimAnswer::Completed(Decode::decode(decoder)?),
            6 => {
                let (reason, completed_at, evidence_until) = Decode::decode(decoder)?;
                ClaimAnswer::Expired { reason, completed_at, evidence_until }
            }
            _ => return Err(DecodeError::Other("unknown tag of ClaimAnswer")),
        })
    }
}

macro_rules! borrowed {
    ($($Type:ty),*) => {
        $(impl<'de, C> BorrowDecode<'de, C> for $Type {
            fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
                <Self as Decode<C>>::decode(decoder)
            }
        })*
    };
}
borrowed!(Item, WireRefusal, Answer, ClaimAnswer);

#[cfg(test)]
mod tests;
