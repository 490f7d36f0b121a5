//! What a seed draws: sizes, latencies, and a subset of the faults, each at a rate of its own (swarm testing: what is
//! always on hides what only happens while it is off). One line of text, so that a run can be repeated with less.

use std::{collections::BTreeMap, fmt, str::FromStr};

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use crate::fault::FaultKind;

/// Simulated time of the phase with faults, ms.
const DURATION_MS: (u64, u64) = (20_000, 60_000);
/// How many operations the clients do in all.
const OPERATIONS: (u32, u32) = (300, 1_200);

/// All that a run depends on: the same options are the same run, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where all randomness comes from.
    pub seed: u64,
    /// Members of the cluster, 3 or 5.
    pub nodes: u8,
    /// Clients at once.
    pub clients: u16,
    /// Keys that all clients fight for.
    pub hot_keys: u16,
    /// Keys that are rarely met.
    pub cold_keys: u16,
    /// Tenants.
    pub tenants: u8,
    /// Reconcilers at once.
    pub reconcilers: u8,
    /// The phase with faults, simulated ms.
    pub duration_ms: u64,
    /// How many operations the clients do in all, at most.
    pub operations: u32,
    /// Least time that a message takes, ms.
    pub latency_min_ms: u64,
    /// Longest time that a message takes, delay spikes apart, ms.
    pub latency_max_ms: u64,
    /// The faults, with their rates.
    pub faults: BTreeMap<FaultKind, u32>,
}

/// A text that is no options.
#[derive(Debug, thiserror::Error)]
#[error("no options: {part:?} {problem}")]
pub struct NoOptions {
    part: String,
    problem: &'static str,
}

/// The randomness of one purpose of one seed. Purposes do not disturb each other: without one fault, the others stay as
/// they were, which is what makes shrinking work.
pub fn rng(seed: u64, purpose: &str) -> SmallRng {
    // FNV-1a, which is the same in every version of the compiler.
    let name = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    SmallRng::seed_from_u64(seed.rotate_left(32) ^ name)
}

impl Options {
    /// What this seed draws.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut rng(seed, "options");
        let latency_min_ms = *[0, 1, 1, 2, 10].choose(rng).expect("not empty");
        let mut options = Self {
            seed,
            nodes: if rng.random_ratio(1, 4) { 5 } else { 3 },
            clients: rng.random_range(2..=12),
            hot_keys: rng.random_range(1..=4),
            cold_keys: rng.random_range(10..=200),
            tenants: rng.random_range(1..=3),
            reconcilers: rng.random_range(1..=3),
            duration_ms: rng.random_range(DURATION_MS.0..=DURATION_MS.1),
            operations: rng.random_range(OPERATIONS.0..=OPERATIONS.1),
            latency_min_ms,
            latency_max_ms: latency_min_ms + rng.random_range(1..=30),
            faults: BTreeMap::new(),
        };
        // One run in sixteen is calm: what fails there fails without any fault.
        if rng.random_ratio(1, 16) {
            return options;
        }
        let percent = *[5, 10, 20, 35, 50].choose(rng).expect("not empty");
        for kind in FaultKind::ALL {
            let (from, to) = kind.rates();
            let rate = rng.random_range(from..=to);
            if rng.random_ratio(percent, 100) {
                options.faults.insert(*kind, rate);
            }
        }
        options
    }

    /// The rate of a kind, 0 where it is not enabled.
    pub fn rate(&self, kind: FaultKind) -> u32 {
        self.faults.get(&kind).copied().unwrap_or(0)
    }

    /// Whether a kind is enabled.
    #[cfg(test)]
    pub fn has(&self, kind: FaultKind) -> bool {
        self.rate(kind) > 0
    }

    /// The randomness of one purpose of this run.
    pub fn rng(&self, purpose: &str) -> SmallRng {
        rng(self.seed, purpose)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(|(kind, rate)| format!("{kind}:{rate}")).collect();
        write!(
            f,
            "seed={} nodes={} clients={} hot_keys={} cold_keys={} tenants={} reconcilers={} duration_ms={} \
             operations={} latency_ms={}-{} faults={}",
            self.seed,
            self.nodes,
            self.clients,
            self.hot_keys,
            self.cold_keys,
            self.tenants,
            self.reconcilers,
            self.duration_ms,
            self.operations,
            self.latency_min_ms,
            self.latency_max_ms,
            if faults.is_empty() { "none".to_owned() } else { faults.join(",") },
        )
    }
}

/// Words in any order; what is not named is as the seed draws it.
impl FromStr for Options {
    type Err = NoOptions;

    fn from_str(text: &str) -> Result<Self, NoOptions> {
        let wrong = |part: &str, problem| NoOptions { part: part.to_owned(), problem };
        let pairs: Vec<(&str, &str)> = text
            .split_whitespace()
            .map(|part| part.split_once('=').ok_or_else(|| wrong(part, "is not NAME=VALUE")))
            .collect::<Result<_, _>>()?;
        let seed = pairs.iter().find(|(name, _)| *name == "seed").ok_or_else(|| wrong(text, "names no seed"))?.1;
        let mut options = Options::draw(number(seed)?);
        for (name, value) in pairs {
            match name {
                "seed" => {}
                "nodes" => options.nodes = number(value)?,
                "clients" => options.clients = number(value)?,
                "hot_keys" => options.hot_keys = number(value)?,
                "cold_keys" => options.cold_keys = number(value)?,
                "tenants" => options.tenants = number(value)?,
                "reconcilers" => options.reconcilers = number(value)?,
                "duration_ms" => options.duration_ms = number(value)?,
                "operations" => options.operations = number(value)?,
                "latency_ms" => {
                    let (min, max) = value.split_once('-').ok_or_else(|| wrong(value, "is not MIN-MAX"))?;
                    (options.latency_min_ms, options.latency_max_ms) = (number(min)?, number(max)?);
                }
                "faults" => options.faults = faults(value)?,
                _ => return Err(wrong(name, "is no option")),
            }
        }
        Ok(options)
    }
}

fn number<N: FromStr>(text: &str) -> Result<N, NoOptions> {
    text.parse().map_err(|_| NoOptions { part: text.to_owned(), problem: "is no number of this size" })
}

fn faults(text: &str) -> Result<BTreeMap<FaultKind, u32>, NoOptions> {
    if text == "none" {
        return Ok(BTreeMap::new());
    }
    text.split(',')
        .map(|part| {
            let wrong = |problem| NoOptions { part: part.to_owned(), problem };
            let (word, rate) = part.split_once(':').ok_or_else(|| wrong("is not KIND:RATE"))?;
            Ok((FaultKind::parse(word).ok_or_else(|| wrong("is no kind of fault"))?, number(rate)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_draws_the_same_each_time_and_its_line_is_read_back() {
        for seed in 0..200 {
            let options = Options::draw(seed);
            assert_eq!(options, Options::draw(seed));
            assert_eq!(options.to_string().parse::<Options>().unwrap(), options);
        }
    }

    #[test]
    fn a_few_seeds_enable_every_kind_and_leave_out_every_kind() {
        let drawn: Vec<Options> = (0..100).map(Options::draw).collect();
        for kind in FaultKind::ALL {
            assert!(drawn.iter().any(|options| options.has(*kind)), "{kind}");
            assert!(drawn.iter().any(|options| !options.has(*kind)), "{kind}");
        }
        let sizes: BTreeSet<u8> = drawn.iter().map(|options| options.nodes).collect();
        assert_eq!(sizes, BTreeSet::from([3, 5]));
        assert!(drawn.iter().any(|options| options.faults.is_empty()));
    }

    #[test]
    fn what_a_line_does_not_name_is_as_the_seed_draws_it() {
        let options: Options = "seed=7 faults=crash:3".parse().unwrap();
        let drawn = Options::draw(7);
        assert_eq!((options.clients, options.rate(FaultKind::Crash)), (drawn.clients, 3));
        assert_eq!(options.faults.len(), 1);
        for wrong in ["nodes=3", "seed=x", "seed=1 nodes", "seed=1 faults=x:1", "seed=1 more=1"] {
            assert!(wrong.parse::<Options>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn purposes_have_randomness_of_their_own() {
        let draw = |purpose| rng(1, purpose).random::<u64>();
        assert_eq!(draw("crash"), draw("crash"));
        assert_ne!(draw("crash"), draw("loss"));
    }
}
