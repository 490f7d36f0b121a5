//! The entropy and the time of the process. The symbols of the C library that give them are defined here, in the
//! simulation's binary alone: from [`begin`] on they draw from the seed and show simulated time, so that whatever links
//! here (maps' hash keys, random generators, ids, `date:` headers) does the same in two runs of one seed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The date at which every simulation begins: 2026-01-01, in seconds.
const EPOCH_S: u64 = 1_767_225_600;

static IS_ON: AtomicBool = AtomicBool::new(false);
static DRAWN: AtomicU64 = AtomicU64::new(0);
/// Simulated time since the beginning, ns.
static NOW: AtomicU64 = AtomicU64::new(0);

/// From now on entropy comes from this seed, and time from [`set_now`].
pub fn begin(seed: u64) {
    DRAWN.store(seed, Ordering::SeqCst);
    IS_ON.store(true, Ordering::SeqCst);
}

/// It is so long after the beginning, ns.
pub fn set_now(ns: u64) {
    NOW.store(ns, Ordering::SeqCst);
}

/// Simulated time since the beginning, ns.
pub fn now() -> u64 {
    NOW.load(Ordering::SeqCst)
}

/// The date of a time since the beginning, ms.
pub fn date_ms(ms: u64) -> u64 {
    EPOCH_S * 1000 + ms
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn draw() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = DRAWN.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// getrandom(2).
///
/// # Safety
/// As the C library's: `buf` is writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buf: *mut u8, len: usize, flags: u32) -> isize {
    if !IS_ON.load(Ordering::SeqCst) {
        // SAFETY: the caller's promise is the kernel's condition.
        return unsafe { libc::syscall(libc::SYS_getrandom, buf, len, flags) as isize };
    }
    // SAFETY: the caller promises that so many bytes are writable.
    let target = unsafe { std::slice::from_raw_parts_mut(buf, len) };
    for piece in target.chunks_mut(8) {
        piece.copy_from_slice(&draw().to_le_bytes()[..piece.len()]);
    }
    len as isize
}

/// getentropy(3).
///
/// # Safety
/// As the C library's: `buf` is writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getentropy(buf: *mut u8, len: usize) -> i32 {
    // SAFETY: the caller's promise is that of getrandom.
    if len > 256 || unsafe { getrandom(buf, len, 0) } < 0 { -1 } else { 0 }
}

/// clock_gettime(2).
///
/// # Safety
/// As the C library's: `tp` leads to a writable timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(id: libc::clockid_t, tp: *mut libc::timespec) -> libc::c_int {
    if !IS_ON.load(Ordering::SeqCst) {
        // SAFETY: the caller's promise is the kernel's condition.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, id, tp) as libc::c_int };
    }
    let now = now();
    let since = if matches!(id, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) { EPOCH_S } else { EPOCH_S / 1000 };
    let shown = libc::timespec {
        tv_sec: (since + now / 1_000_000_000) as libc::time_t,
        tv_nsec: (now % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the caller promises that `tp` is writable.
    unsafe { tp.write(shown) };
    0
}
