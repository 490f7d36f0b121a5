//! The table of seeds-to-catch: with one bug after the other planted in the product, seed after seed until a check fails.
//!
//! A catch is what a check found, or an assertion of the product that names its invariant: a run that only panicked, hung or
//! died caught nothing. And it is the bug's: the same seed holds without it. That says nothing of a cluster that comes back
//! late, which some seeds do without any bug, and other seeds as soon as anything in them is different: no catch either.

use std::collections::BTreeMap;

use semel::planted::Bug;

use crate::{
    options::Options,
    parent::{self, Children},
    report::Report,
    shrink::{TRIES_MAX, shrink},
};

/// Within this many seeds each bug is to be caught.
pub const SEEDS_MAX: u64 = 2_000;

/// What proves nothing: the run itself came to an end, or came back late.
const NO_PROOF: &[&str] = &["panic", "hang", "process", "host", "liveness"];

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

/// What is to be hunted.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed.
    pub from: u64,
    /// How many seeds at most for each bug.
    pub seeds_max: u64,
    /// This bug alone.
    pub only: Option<Bug>,
    /// Whether the story of each catch is told.
    pub story: bool,
    /// Whether it is told of a smaller run in which the same check catches the bug.
    pub shrinks: bool,
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
    /// Runs that failed, and proved nothing.
    unproven: u64,
    /// Simulated time up to the catch, ms.
    simulated_ms: u64,
}

/// Runs each bug, or the one that is named, until it is caught, and prints the table. True if all were.
pub fn run(children: &Children, plan: Plan) -> bool {
    let Plan { from, seeds_max, only, story, shrinks } = plan;
    println!("{:<28} {:>6} {:>11}  {:<14} what is wrong", "planted bug", "seeds", "simulated", "caught by");
    let mut missed = Vec::new();
    let mut holds = BTreeMap::new();
    for bug in Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let hunt = hunt(children, from, seeds_max, bug, &mut holds);
        let simulated = format!("{:.1} min", hunt.simulated_ms as f64 / 60_000.0);
        let (seeds, by) = match &hunt.caught {
            Some(Catch { options, report }) => (options.seed - from + 1, proof(report).unwrap_or_default()),
            None => (hunt.tried, "NOT CAUGHT".to_owned()),
        };
        println!("{:<28} {seeds:>6} {simulated:>11}  {by:<14} {}", bug.word(), bug.doc());
        if hunt.unproven > 0 {
            println!("{:<28} {} runs ended themselves or came back late", "", hunt.unproven);
        }
        match hunt.caught {
            Some(catch) if shrinks => shrunk(children, bug, &catch),
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

/// Looks for a smaller run in which the same check catches the bug, and tells its story.
fn shrunk(children: &Children, bug: Bug, catch: &Catch) {
    let planted = Children { bug: Some(bug.word()), ..children.clone() };
    let by = proof(&catch.report);
    let (smallest, tries) = shrink(&catch.options, TRIES_MAX, |smaller| {
        let catches = proof(&planted.run(smaller, false)) == by;
        println!("  {} {smaller}", if catches { "fails" } else { "holds" });
        catches
    });
    println!("\nthe smallest of {tries} runs:");
    parent::show_failure(&smallest, &planted.run(&smallest, false));
}

/// Which check, or which assertion of the product by the name of its invariant, has found something.
fn proof(report: &Report) -> Option<String> {
    let failure = report.failure.as_ref()?;
    if !NO_PROOF.contains(&&*failure.what) {
        return Some(failure.what.clone());
    }
    // The place of the panic, then what was asserted.
    let asserted = failure.detail.lines().nth(1).filter(|_| failure.what == "panic")?;
    let name = asserted.split_once(": ")?.0;
    let is_invariant = |name: &str| {
        let mut letters = name.chars();
        letters.next().is_some_and(|first| first.is_ascii_uppercase())
            && !letters.as_str().is_empty()
            && letters.all(|digit| digit.is_ascii_digit())
    };
    is_invariant(name).then(|| format!("{name} (asserted)"))
}

fn hunt(children: &Children, from: u64, seeds_max: u64, bug: Bug, holds: &mut BTreeMap<u64, bool>) -> Hunt {
    let planted = Children { bug: Some(bug.word()), ..children.clone() };
    let mut hunt = Hunt::default();
    parent::each(&planted, (from..from.saturating_add(seeds_max)).map(Options::draw), |options, report| {
        hunt.tried += 1;
        hunt.simulated_ms += report.simulated_ms;
        if proof(&report).is_none() {
            hunt.unproven += u64::from(report.failure.is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_and_an_assertion_of_an_invariant_are_proof_and_a_mere_panic_is_none() {
        let proven = |what, detail: &str| proof(&Report::failed(what, detail));
        assert_eq!(proven("R1", "two effects").as_deref(), Some("R1"));
        let recount = "panicked at src/records/state.rs:1:2:\nR8: counters equal a recount";
        assert_eq!(proven("panic", recount).as_deref(), Some("R8 (asserted)"));
        assert_eq!(proven("panic", "panicked at src/x.rs:1:2:\nindex out of bounds: the len is 0"), None);
        assert_eq!(proven("liveness", "n2 is a learner"), None);
        assert_eq!(proof(&Report::default()), None);
    }
}
