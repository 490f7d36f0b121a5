//! What happened, in order, as one hash: every delivered message, every disk operation, every fault. Two runs of one seed
//! must agree in it.

use std::cell::RefCell;

use super::interpose;

#[derive(Default)]
struct Trace {
    hash: u64,
    steps: u64,
    is_shown: bool,
}

thread_local! {
    static TRACE: RefCell<Trace> = RefCell::default();
}

/// Begins anew; what is noted also goes to standard error where it `is_shown`.
pub fn begin(is_shown: bool) {
    TRACE.with_borrow_mut(|trace| *trace = Trace { hash: 0xcbf2_9ce4_8422_2325, steps: 0, is_shown });
}

/// Something happened to `who`, and moved these bytes.
pub fn note(who: u64, what: &'static str, detail: u64, bytes: &[u8]) {
    TRACE.with_borrow_mut(|trace| {
        let now = interpose::now();
        let mut hash = trace.hash;
        for part in [&now.to_le_bytes(), &who.to_le_bytes(), &detail.to_le_bytes(), what.as_bytes()] {
            hash = fold(hash, part);
        }
        trace.hash = fold(hash, bytes);
        trace.steps += 1;
        if trace.is_shown {
            let (hash, length) = (trace.hash, bytes.len());
            eprintln!("{:>10.3} {who:>3} {what} {detail} {length} B {hash:016x}", now as f64 / 1e6);
        }
    });
}

/// Something for the reader alone.
pub fn tell(text: impl FnOnce() -> String) {
    if TRACE.with_borrow(|trace| trace.is_shown) {
        eprintln!("{:>10.3}     {}", interpose::now() as f64 / 1e6, text());
    }
}

/// The hash of all that was noted, and how much that was.
pub fn end() -> (u64, u64) {
    TRACE.with_borrow(|trace| (trace.hash, trace.steps))
}

/// FNV-1a, eight bytes at a time: nobody is to be withstood here, only compared.
fn fold(mut hash: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = (hash ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(PRIME).rotate_left(29);
    }
    for byte in words.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    hash ^ bytes.len() as u64
}
