//! What the benchmarks share: what a cycle carries, and what Linux tells of a process.

use std::fs;

use bytes::Bytes;

/// Ticks of processor time in a second, as Linux tells them.
const TICKS_PER_S: f64 = 100.0;
/// Bytes of an outcome.
pub const BODY_BYTES: usize = 300;

/// 300 bytes that hardly compress, different for every key.
pub fn body(key: &str) -> Bytes {
    let mut body = Vec::with_capacity(BODY_BYTES + 8);
    let mut state = key
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    while body.len() < BODY_BYTES {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        body.extend_from_slice(&(state ^ (state >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_le_bytes());
    }
    body.truncate(BODY_BYTES);
    body.into()
}

/// Random keys of one caller, at less cost to it than UUIDs.
pub struct Keys {
    base: u128,
    given: u64,
}

impl Keys {
    pub fn random() -> Self {
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).expect("the system has randomness");
        Self { base: u128::from_le_bytes(seed), given: 0 }
    }

    pub fn next(&mut self) -> String {
        let key = self.base.wrapping_add(u128::from(self.given));
        self.given += 1;
        format!("{:032x}", key.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645))
    }
}

/// The value at this share of sorted latencies, µs to ms.
pub fn percentile_ms(sorted: &[u32], share: f64) -> f64 {
    let place = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    f64::from(sorted.get(place).copied().unwrap_or(0)) / 1000.0
}

/// Processor time that a process has taken, s: (in itself, in the kernel).
pub fn processor_s(pid: &str) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the command's name, which may hold anything, stand the fields from the third on.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (field(14) / TICKS_PER_S, field(15) / TICKS_PER_S)
}
