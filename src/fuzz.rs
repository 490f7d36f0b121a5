//! Mutated inputs for whatever decodes bytes that others wrote. No engine and no nightly compiler: an ordinary test runs so
//! many inputs, the same for the same seed, and one command runs them for hours.
//!
//! A target begins with good inputs, and with what is kept in `tests/fuzz/NAME.hex`: a line of digits for each input that
//! once broke something. What it takes as good joins the pool that the next inputs are made from.
//!
//! `SEMEL_FUZZ_SEED` chooses other inputs; `SEMEL_FUZZ_S` runs each target for so many seconds.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    time::{Duration, Instant},
};

use crate::id::hex;

/// Inputs of a pool.
const POOL_MAX: usize = 512;
/// Longest input that is made, bytes.
const INPUT_BYTES_MAX: usize = 1 << 20;
/// No input may take longer, however slow the machine.
const INPUT_SECONDS_MAX: u64 = 20;
/// Numbers at which lengths and counts change what they mean.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0xffff,
    0x10000,
    0x0100_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX / 2,
    u64::MAX,
];

/// Numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, sides: usize) -> usize {
        (self.next() % sides.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A part of so many bytes, most of the time a short one.
    fn part(&mut self, whole: usize) -> std::ops::Range<usize> {
        let from = self.below(whole + 1);
        let most = if self.below(4) == 0 { whole - from } else { (whole - from).min(16) };
        from..from + self.below(most + 1)
    }
}

/// Changes an input in one place.
fn mutate(input: &mut Vec<u8>, other: &[u8], words: &[&str], draw: &mut Draw) {
    let at = draw.below(input.len());
    match draw.below(12) {
        0 if !input.is_empty() => input[at] ^= 1 << draw.below(8),
        1 if !input.is_empty() => input[at] = draw.byte(),
        2 => {
            let more: Vec<u8> = (0..=draw.below(8)).map(|_| draw.byte()).collect();
            input.splice(at..at, more);
        }
        3 => drop(input.drain(draw.part(input.len()))),
        4 => {
            let part = input[draw.part(input.len())].to_vec();
            input.splice(at..at, part);
        }
        5 => {
            let part = &other[draw.part(other.len())];
            input.splice(at..at, part.iter().copied());
        }
        6 => input.truncate(at),
        // A number at an edge, in every width and order.
        7 | 8 => {
            let edge = if draw.below(3) == 0 { input.len() as u64 } else { EDGES[draw.below(EDGES.len())] };
            let edge = edge.wrapping_add(draw.next() % 3).wrapping_sub(1);
            let width = [1, 2, 4, 8][draw.below(4)];
            let bytes = if draw.below(2) == 0 { edge.to_le_bytes() } else { edge.to_be_bytes() };
            let bytes = if draw.below(2) == 0 { &bytes[..width] } else { &bytes[8 - width..] };
            let end = input.len().min(at + width);
            input[at..end].copy_from_slice(&bytes[..end - at]);
        }
        // The longest varint, and one that never ends.
        9 => {
            let last = [0x01, 0xff][draw.below(2)];
            input.splice(at..at, [[0xff; 9].as_slice(), &[last]].concat());
        }
        _ if !words.is_empty() => {
            let word = words[draw.below(words.len())];
            input.splice(at..at, word.bytes());
        }
        _ => input.reverse(),
    }
    input.truncate(INPUT_BYTES_MAX);
}

/// What is kept of a target: inputs that once broke something.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(format!("{name}.hex"));
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex digits");
    lines.filter(|line| !line.is_empty()).map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A decoder, and what it is fed.
pub(crate) struct Target {
    /// Its name, which is that of its file of kept inputs.
    pub name: &'static str,
    /// Inputs that it takes.
    pub good: Vec<Vec<u8>>,
    /// Words that mean something to it.
    pub words: &'static [&'static str],
    /// How many inputs an ordinary test makes.
    pub cases: u64,
}

impl Target {
    /// Feeds it. `takes` panics where something is wrong, and says whether the input was good; `mend` may repair a checksum,
    /// so that what stands behind it is reached.
    pub fn run(self, mend: impl Fn(&mut Vec<u8>), mut takes: impl FnMut(&[u8]) -> bool) {
        let mut pool = self.good;
        assert!(!pool.is_empty(), "{}: it has to begin with something", self.name);
        pool.iter()
            .for_each(|good| assert!(feed(self.name, good, &mut takes), "{}: a good input: {}", self.name, hex(good)));
        for input in kept(self.name) {
            feed(self.name, &input, &mut takes);
            pool.push(input);
        }
        let seed = variable("SEMEL_FUZZ_SEED").unwrap_or(1);
        let until = variable("SEMEL_FUZZ_S").map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let named = self.name.bytes().fold(seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let (mut draw, mut made) = (Draw(named), 0);
        while until.map_or(made < self.cases, |until| Instant::now() < until) {
            made += 1;
            let mut input = pool[draw.below(pool.len())].clone();
            let other = pool[draw.below(pool.len())].clone();
            (0..=draw.below(5)).for_each(|_| mutate(&mut input, &other, self.words, &mut draw));
            if draw.below(8) != 0 {
                mend(&mut input);
            }
            if feed(self.name, &input, &mut takes) {
                match pool.len() < POOL_MAX {
                    true => pool.push(input),
                    false => pool[draw.below(POOL_MAX)] = input,
                }
            }
        }
        println!("{}: {made} inputs, {} in the pool", self.name, pool.len());
    }
}

/// Feeds one input. Where that panics the input is shown, to be kept.
fn feed(name: &str, input: &[u8], takes: &mut impl FnMut(&[u8]) -> bool) -> bool {
    let began = Instant::now();
    let taken = catch_unwind(AssertUnwindSafe(|| takes(input))).unwrap_or_else(|panic| {
        eprintln!("tests/fuzz/{name}.hex should keep this input:\n{}", hex(input));
        resume_unwind(panic);
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(INPUT_SECONDS_MAX), "{name}: {took:?} for {}", hex(input));
    taken
}

#[test]
fn the_same_seed_makes_the_same_inputs_and_what_breaks_is_found() {
    let run = || {
        let mut seen = Vec::new();
        let target = Target { name: "fuzz-itself", good: vec![b"abcdef".to_vec()], words: &["key"], cases: 200 };
        target.run(
            |_| {},
            |input| {
                seen.push(input.to_vec());
                input.len() < 100
            },
        );
        seen
    };
    let seen = run();
    assert!(seen == run() && seen.len() == 201);
    assert!(seen.iter().any(|input| input.windows(3).any(|word| word == b"key")));
    let broken = catch_unwind(|| {
        let target = Target { name: "fuzz-itself", good: vec![vec![0, 0, 0, 1, 7]], words: &[], cases: 20_000 };
        target.run(
            |_| {},
            |input| {
                let Some((length, rest)) = input.split_first_chunk::<4>() else { return false };
                // As a decoder that believes a length.
                let length = u32::from_be_bytes(*length) as usize;
                length < 1000 && rest[..length].len() == length
            },
        );
    });
    assert!(broken.is_err(), "a length that is believed is found");
}
