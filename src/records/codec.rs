//! The one place that turns replicated values into bytes and back: bincode 2 (variable-length integers, little-endian),
//! explicit tags for every enum, a format version in front of every stored value. See FORMAT.md.

use bincode::{
    config,
    de::{BorrowDecode, BorrowDecoder, Decode, Decoder, read::Reader},
    enc::{Encode, Encoder, write::Writer},
    error::{DecodeError, EncodeError},
};
use bytes::Bytes;

use crate::id::{ClusterId, DiskId, Fence, KeyedHash, LineageId, Operation, Position, Tenant, Time, Uuid};

/// The version of every format that this module writes.
pub const FORMAT_VERSION: u8 = 1;

/// Room that is made for an encoding whose length nobody guesses, bytes.
const ENCODED_BYTES_USUAL: usize = 256;
/// Largest value that is decoded, bytes: above the largest proposal.
const DECODED_BYTES_MAX: usize = 64 << 20;
/// Encoded values up to this length are small, bytes.
const SMALL_BYTES: usize = 64 << 10;
/// What a small value takes decoded at most, bytes: no field takes 16 times its encoding.
const SMALL_DECODED_BYTES_MAX: usize = 16 * SMALL_BYTES;

type Config<const MAX: usize> = config::Configuration<config::LittleEndian, config::Varint, config::Limit<MAX>>;
const CONFIG: Config<DECODED_BYTES_MAX> = config::standard().with_limit();
const SMALL_CONFIG: Config<SMALL_DECODED_BYTES_MAX> = config::standard().with_limit();

/// Why bytes are not a value of this format.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Another format version: written by a newer release, or damaged.
    #[error("format version {found} where {FORMAT_VERSION} is the newest known")]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// Nothing there.
    #[error("empty where a versioned value should be")]
    Empty,
    /// The bytes are not what the version promises.
    #[error("malformed value")]
    Malformed(#[from] DecodeError),
    /// Bytes are left over.
    #[error("{bytes} bytes are left over behind the value")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A key of the store has no known shape.
    #[error("malformed key of the store")]
    Key,
}

impl CodecError {
    /// Whether a newer release wrote it, as far as can be told: another version, or a tag that is not known.
    pub fn is_of_newer_release(&self) -> bool {
        let is_tag = |error: &DecodeError| matches!(error, DecodeError::Other(text) if text.starts_with("unknown tag"));
        match self {
            CodecError::Version { .. } => true,
            CodecError::Malformed(error) => is_tag(error),
            CodecError::Empty | CodecError::Trailing { .. } | CodecError::Key => false,
        }
    }
}

/// A version byte and the value.
pub fn encode<T: Encode>(value: &T) -> Bytes {
    encode_in(value, ENCODED_BYTES_USUAL)
}

/// The same, in room for so many bytes to begin with.
pub fn encode_in<T: Encode>(value: &T, room: usize) -> Bytes {
    let mut bytes = Growing(Vec::with_capacity(room));
    bytes.0.push(FORMAT_VERSION);
    bincode::encode_into_writer(value, &mut bytes, CONFIG).expect("replicated values encode into memory");
    bytes.0.into()
}

/// Bytes that an encoding is written to.
struct Growing(Vec<u8>);

impl Writer for Growing {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// The value behind its version byte.
///
/// # Errors
/// [`CodecError`] for another version, malformed or left-over bytes.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, CodecError> {
    let (&version, rest) = bytes.split_first().ok_or(CodecError::Empty)?;
    if version != FORMAT_VERSION {
        return Err(CodecError::Version { found: version });
    }
    // Room for a list is made at the length that it claims: of a few bytes that lie, little is believed.
    let (value, used) = if rest.len() <= SMALL_BYTES {
        bincode::decode_from_slice(rest, SMALL_CONFIG)?
    } else {
        bincode::decode_from_slice(rest, CONFIG)?
    };
    if used != rest.len() {
        return Err(CodecError::Trailing { bytes: rest.len() - used });
    }
    Ok(value)
}

/// Implements both decoders and the encoder of a type by way of a simpler one.
macro_rules! encoded_as {
    ($Type:ty, $As:ty, $to:expr, $from:expr) => {
        impl Encode for $Type {
            fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                let to: fn(&$Type) -> $As = $to;
                to(self).encode(encoder)
            }
        }
        impl<C> Decode<C> for $Type {
            fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
                let from: fn($As) -> Result<$Type, DecodeError> = $from;
                from(<$As as Decode<C>>::decode(decoder)?)
            }
        }
        impl<'de, C> BorrowDecode<'de, C> for $Type {
            fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
                <Self as Decode<C>>::decode(decoder)
            }
        }
    };
}
pub(super) use encoded_as;

encoded_as!(Position, u64, |p| p.0, |v| Ok(Position(v)));
encoded_as!(Fence, u64, |f| f.0, |v| Ok(Fence(v)));
encoded_as!(Time, u64, |t| t.0, |v| Ok(Time(v)));
encoded_as!(LineageId, [u8; 16], |i| i.0, |v| Ok(LineageId(v)));
encoded_as!(ClusterId, [u8; 16], |i| i.0, |v| Ok(ClusterId(v)));
encoded_as!(DiskId, [u8; 16], |i| i.0, |v| Ok(DiskId(v)));
encoded_as!(KeyedHash, [u8; 16], |i| i.0, |v| Ok(KeyedHash(v)));
encoded_as!(Uuid, [u8; 16], |i| i.0, |v| Ok(Uuid(v)));
encoded_as!(Tenant, String, |t| t.as_str().to_owned(), |v| {
    Tenant::parse(&v).map_err(|_| DecodeError::Other("not a tenant"))
});
encoded_as!(Operation, String, |o| o.as_str().to_owned(), |v| {
    Operation::parse(&v).map_err(|_| DecodeError::Other("not an operation"))
});

/// Bytes that are shared, not copied, between states: length and content.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Bytes);

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Encode for Blob {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.0.len() as u64).encode(encoder)?;
        encoder.writer().write(&self.0)
    }
}

impl<C> Decode<C> for Blob {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let length = usize::try_from(u64::decode(decoder)?).map_err(|_| DecodeError::LimitExceeded)?;
        decoder.claim_bytes_read(length)?;
        let mut bytes = Vec::new();
        // Grown as bytes arrive: a lying length allocates nothing.
        while bytes.len() < length {
            let step = (length - bytes.len()).min(64 << 10);
            let start = bytes.len();
            bytes.resize(start + step, 0);
            decoder.reader().read(&mut bytes[start..])?;
        }
        Ok(Self(bytes.into()))
    }
}

impl<'de, C> BorrowDecode<'de, C> for Blob {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Self::decode(decoder)
    }
}

/// A closed enum with explicit one-byte tags and a wire word per variant.
macro_rules! tagged_words {
    ($(#[$doc:meta])* $Name:ident { $($(#[$vdoc:meta])* $Variant:ident = $tag:literal $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Name { $($(#[$vdoc])* $Variant,)* }

        impl $Name {
            /// Every variant, in the order of the tags.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)*];

            /// The word on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Variant => $word,)* }
            }

            /// The variant of this word.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$Variant),)* _ => None }
            }

            /// The tag on disk.
            pub fn tag(self) -> u8 {
                match self { $(Self::$Variant => $tag,)* }
            }

            /// The variant of this tag.
            pub fn from_tag(tag: u8) -> Option<Self> {
                match tag { $($tag => Some(Self::$Variant),)* _ => None }
            }
        }

        $crate::records::codec::encoded_as!($Name, u8, |v| v.tag(), |tag| {
            $Name::from_tag(tag).ok_or(DecodeError::Other(concat!("unknown tag of ", stringify!($Name))))
        });
    };
}
pub(super) use tagged_words;

/// An enum whose variants each hold one value, with explicit one-byte tags.
macro_rules! tagged_values {
    ($(#[$doc:meta])* $Name:ident { $($(#[$vdoc:meta])* $Variant:ident($Value:ty) = $tag:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $Name { $($(#[$vdoc])* $Variant($Value),)* }

        impl Encode for $Name {
            fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                match self { $(Self::$Variant(value) => { ($tag as u8).encode(encoder)?; value.encode(encoder) })* }
            }
        }
        impl<C> Decode<C> for $Name {
            fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
                match u8::decode(decoder)? {
                    $($tag => Ok(Self::$Variant(<$Value as Decode<C>>::decode(decoder)?)),)*
                    _ => Err(DecodeError::Other(concat!("unknown tag of ", stringify!($Name)))),
                }
            }
        }
        impl<'de, C> BorrowDecode<'de, C> for $Name {
            fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
                <Self as Decode<C>>::decode(decoder)
            }
        }
    };
}
pub(super) use tagged_values;
