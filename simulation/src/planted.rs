//! The table of seeds-to-catch: each planted bug is run from seed to seed until a check fails.

use crate::{
    bug::Bug,
    options::Options,
    parent::{self, Children},
};

/// Within this many seeds each planted bug is to be caught.
pub const SEEDS_MAX: u64 = 2_000;

/// Runs each bug, or the one that is named, until it is caught, and prints the table. True if all were.
pub fn run(children: &Children, from: u64, seeds_max: u64, only: Option<Bug>) -> bool {
    println!("{:<28} {:>6}  {:<14} what is wrong", "planted bug", "seeds", "caught as");
    let mut missed = Vec::new();
    for bug in Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let mut tried = 0;
        let drawn = (from..from.saturating_add(seeds_max)).map(|seed| {
            let mut options = Options::draw(seed);
            options.bug = Some(bug);
            options
        });
        let mut caught = None;
        parent::each(children, drawn, |options, report| {
            tried += 1;
            caught = report.failure.map(|failure| (options.seed, failure.what));
            caught.is_none()
        });
        match caught {
            Some((seed, what)) => println!("{bug:<28} {tried:>6}  {what:<14} {} (seed {seed})", bug.doc()),
            None => {
                println!("{bug:<28} {tried:>6}  {:<14} {}", "NOT CAUGHT", bug.doc());
                missed.push(bug);
            }
        }
    }
    println!("\n{} of them not caught within {seeds_max} seeds", missed.len());
    missed.is_empty()
}
