//! The table of seeds-to-catch: with one bug after the other planted in the product, seed after seed until a check fails.
//!
//! A catch is what a check found: a run that only panicked, hung or died caught nothing. And it is the bug's: the same seed
//! holds without it.

use std::collections::BTreeMap;

use semel::planted::Bug;

use crate::{
    options::Options,
    parent::{self, Children},
    report::Report,
};

/// Within this many seeds each bug is to be caught.
pub const SEEDS_MAX: u64 = 2_000;

/// What no check says: the run itself came to an end.
const NO_CHECK: &[&str] = &["panic", "hang", "process", "host"];

/// The bug of this name.
///
/// # Errors
/// Where there is none, with the names that there are.
pub fn named(word: &str) -> Result<Bug, String> {
    Bug::parse(word).ok_or_else(|| {
        let words: Vec<&str> = Bug::ALL.iter().map(|bug| bug.word()).collect();
        format!("no such bug; there are: {}", words.join(", "))
    })
}

/// How a bug was caught.
struct Catch {
    options: Options,
    report: Report,
}

/// What became of a bug in all seeds that were run.
#[derive(Default)]
struct Hunt {
    caught: Option<Catch>,
    /// Seeds that were run.
    tried: u64,
    /// Runs that ended without a check's word.
    broken: u64,
    /// Simulated time up to the catch, ms.
    simulated_ms: u64,
}

/// Runs each bug, or the one that is named, until it is caught, and prints the table. True if all were.
pub fn run(children: &Children, from: u64, seeds_max: u64, only: Option<Bug>, story: bool) -> bool {
    println!("{:<28} {:>6} {:>11}  {:<14} what is wrong", "planted bug", "seeds", "simulated", "caught by");
    let mut missed = Vec::new();
    let mut holds = BTreeMap::new();
    for bug in Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let hunt = hunt(children, from, seeds_max, bug, &mut holds);
        let simulated = format!("{:.1} min", hunt.simulated_ms as f64 / 60_000.0);
        let (seeds, by) = match &hunt.caught {
            Some(Catch { options, report }) => (options.seed - from + 1, what(report).to_owned()),
            None => (hunt.tried, "NOT CAUGHT".to_owned()),
        };
        println!("{:<28} {seeds:>6} {simulated:>11}  {by:<14} {}", bug.word(), bug.doc());
        if hunt.broken > 0 {
            println!("{:<28} {} runs ended before any check could speak", "", hunt.broken);
        }
        match hunt.caught {
            Some(Catch { options, report }) if story => parent::show_failure(&options, &report),
            Some(_) => {}
            None => missed.push(bug.word()),
        }
    }
    match missed.is_empty() {
        true => println!("\nEach of them was caught."),
        false => println!("\nNOT CAUGHT within {seeds_max} seeds: {}", missed.join(", ")),
    }
    missed.is_empty()
}

fn what(report: &Report) -> &str {
    report.failure.as_ref().map_or("", |failure| &failure.what)
}

fn hunt(children: &Children, from: u64, seeds_max: u64, bug: Bug, holds: &mut BTreeMap<u64, bool>) -> Hunt {
    let planted = Children { bug: Some(bug.word()), ..children.clone() };
    let mut hunt = Hunt::default();
    parent::each(&planted, (from..from.saturating_add(seeds_max)).map(Options::draw), |options, report| {
        hunt.tried += 1;
        hunt.simulated_ms += report.simulated_ms;
        if report.failure.is_none() {
            return hunt.caught.is_none();
        }
        if NO_CHECK.contains(&what(&report)) {
            hunt.broken += 1;
            return hunt.caught.is_none();
        }
        // Of several at once, the first seed counts.
        let is_first = hunt.caught.as_ref().is_none_or(|catch| options.seed < catch.options.seed);
        if is_first && *holds.entry(options.seed).or_insert_with(|| children.run(options, false).failure.is_none()) {
            hunt.caught = Some(Catch { options: options.clone(), report });
        }
        hunt.caught.is_none()
    });
    hunt
}
