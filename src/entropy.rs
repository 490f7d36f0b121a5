//! The only randomness: ids, keys and secrets are drawn here, from the operating system.

/// `N` random bytes.
///
/// # Panics
/// When the operating system has no randomness to give: an id or a key that is not random is worse than none.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut drawn = [0; N];
    fill(&mut drawn);
    drawn
}

/// Fills `target` with random bytes.
///
/// # Panics
/// As [`bytes()`] does.
pub fn fill(target: &mut [u8]) {
    getrandom::fill(target).expect("the operating system gives randomness");
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_draws_differ() {
        assert_ne!(super::bytes::<16>(), super::bytes::<16>());
    }
}
