//! How a server reads requests off the wire.

use std::marker::PhantomData;

use bytes::Buf;
use prost::{Message, encoding::decode_varint};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::status::status;
use crate::{limits, refusal::Refusal};

/// Protobuf, with a request that doesn't parse refused as the caller's mistake.
///
/// Tonic's own codec answers `INTERNAL` there, which would say that the effect is unknown: but nothing was done.
#[derive(Debug, Clone)]
pub struct RequestCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for RequestCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for RequestCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = RequestDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        RequestDecoder(PhantomData)
    }
}

/// Reads one message.
#[derive(Debug, Clone)]
pub struct RequestDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for RequestDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(buf).map(Some).map_err(status)
    }
}

/// Reads a message. Two bytes are enough for an item of a list that takes hundreds in memory: how many there are is looked at
/// before any is read.
pub(super) fn decode<U: Message + Default>(buf: &mut impl Buf) -> Result<U, Refusal> {
    let none = |_| Refusal::invalid("not a message of this method");
    // Shorter ones can't have as many.
    if buf.remaining() <= 2 * limits::MESSAGE_FIELDS_MAX {
        return U::decode(buf).map_err(none);
    }
    let whole = buf.copy_to_bytes(buf.remaining());
    if has_too_many_fields(&whole) {
        let max = limits::MESSAGE_FIELDS_MAX;
        return Err(Refusal::invalid(format!("the message has more than {max} fields and items; send fewer at once")));
    }
    U::decode(whole).map_err(none)
}

/// Whether a message has more fields than one may, each item of a list counted. What is no message is left to whoever
/// decodes it.
fn has_too_many_fields(mut rest: &[u8]) -> bool {
    for _ in 0..=limits::MESSAGE_FIELDS_MAX {
        if rest.is_empty() {
            return false;
        }
        let Ok(tag) = decode_varint(&mut rest) else { return false };
        let skipped = match tag & 7 {
            0 => decode_varint(&mut rest).map_or(usize::MAX, |_| 0),
            1 => 8,
            2 => decode_varint(&mut rest).map_or(usize::MAX, |length| usize::try_from(length).unwrap_or(usize::MAX)),
            5 => 4,
            _ => usize::MAX,
        };
        let Some(left) = rest.get(skipped..) else { return false };
        rest = left;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1;

    fn of_items(count: usize) -> Vec<u8> {
        v1::BatchRequest { items: vec![v1::Item::default(); count] }.encode_to_vec()
    }

    #[test]
    fn a_message_of_very_many_items_is_refused_before_they_are_made() {
        let most = limits::MESSAGE_FIELDS_MAX;
        for count in [0, 1, most / 2, most] {
            let read: v1::BatchRequest = decode(&mut of_items(count).as_slice()).expect("not too many");
            assert_eq!(read.items.len(), count);
        }
        let refused = decode::<v1::BatchRequest>(&mut of_items(most + 1).as_slice()).expect_err("one too many");
        assert!(refused.detail.contains("more than 8192"), "{refused:?}");
        // As large as a message can be: it is found out without being read.
        let huge = [0x0a, 0].repeat(limits::REQUEST_BYTES_MAX / 2);
        assert!(decode::<v1::BatchRequest>(&mut huge.as_slice()).is_err());
        // Large values are no many fields, and what is no message is none.
        let large = v1::ClaimRequest { request: Some(vec![b' '; 100_000].into()), ..Default::default() };
        assert_eq!(decode::<v1::ClaimRequest>(&mut large.encode_to_vec().as_slice()), Ok(large));
        for none in [&[0xff; 50_000][..], &[0x0a; 50_001], &[0x0b; 50_000], &[8; 50_001]] {
            assert!(decode::<v1::ClaimRequest>(&mut &none[..]).is_err());
        }
    }
}
