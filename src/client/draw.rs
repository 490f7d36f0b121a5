//! Attempt ids and jitter.

use crate::{entropy, id::Uuid};

/// A fresh UUID (version 4).
pub(super) fn uuid() -> Uuid {
    let mut bytes: [u8; 16] = entropy::bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

/// A number from 0 to `most`, as good as even for the lengths of pauses.
pub(super) fn up_to(most: u64) -> u64 {
    let drawn = u64::from_le_bytes(entropy::bytes());
    if most == u64::MAX { drawn } else { drawn % (most + 1) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn attempt_ids_differ_and_are_of_version_4() {
        let (one, two) = (super::uuid().hyphenated(), super::uuid().hyphenated());
        assert_ne!(one, two);
        assert_eq!(one.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&one.as_bytes()[19]));
    }
}
