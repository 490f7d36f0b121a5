//! The command line.

use std::{process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

#[cfg(feature = "planted")]
use semel::planted::Bug;

#[cfg(feature = "planted")]
use crate::planted;
use crate::{
    options::{NoOptions, Options},
    parent::{self, Children, Plan},
    shrink::{TRIES_MAX, shrink},
    world,
};

/// What was found before, each with its story: run again before anything new.
const KNOWN: &str = include_str!("../seeds.txt");
/// After this many failures there is enough to look at.
const FAILURES_MAX: usize = 5;

/// Runs Semel's own nodes and clients in one process from one seed, under every fault of the model.
#[derive(Debug, Parser)]
#[command(name = "semel-simulation")]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    from: u64,
    /// How long to run, minutes of real time: for nights.
    #[arg(long, value_name = "M")]
    minutes: Option<u64>,
    /// How many processes at once.
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Runs this seed alone.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "minutes", "options"])]
    seed: Option<u64>,
    /// Runs these options alone, as a failure printed them.
    #[arg(long, value_name = "LINE", conflicts_with_all = ["seeds", "minutes"])]
    options: Option<String>,
    /// Tells every message, disk operation and state change, on standard error.
    #[arg(long)]
    trace: bool,
    /// Looks for a smaller run that fails too.
    #[arg(long)]
    shrink: bool,
    #[command(subcommand)]
    command: Option<Child>,
}

#[derive(Debug, Subcommand)]
enum Child {
    /// The process of one run.
    #[command(hide = true)]
    One {
        #[arg(long)]
        options: String,
        #[arg(long)]
        trace: bool,
        /// The bug that is planted in this process.
        #[cfg(feature = "planted")]
        #[arg(long, value_parser = planted::named)]
        bug: Option<Bug>,
    },
    /// Plants bugs in the product, one after the other, and runs seeds until a check catches each: prints the table.
    #[cfg(feature = "planted")]
    Planted {
        /// This bug alone.
        #[arg(long, value_name = "NAME", value_parser = planted::named)]
        bug: Option<Bug>,
        /// How many seeds at most for each.
        #[arg(long, value_name = "N", default_value_t = planted::SEEDS_MAX)]
        seeds: u64,
        /// The first of them.
        #[arg(long, value_name = "N", default_value_t = 1)]
        from: u64,
        /// How many processes at once.
        #[arg(long, value_name = "J")]
        jobs: Option<usize>,
        /// Tells the story of each failure.
        #[arg(long)]
        story: bool,
        /// Looks for a smaller run in which the same check catches the bug, and tells its story.
        #[arg(long)]
        shrink: bool,
    },
}

/// Runs the command line.
pub fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<bool, NoOptions> {
    match arguments.command {
        #[cfg(not(feature = "planted"))]
        Some(Child::One { options, trace }) => return child(&options, trace),
        #[cfg(feature = "planted")]
        Some(Child::One { options, trace, bug }) => {
            bug.into_iter().for_each(semel::planted::choose);
            return child(&options, trace);
        }
        #[cfg(feature = "planted")]
        Some(Child::Planted { bug, seeds, from, jobs, story, shrink }) => {
            let plan = planted::Plan { from, seeds_max: seeds, only: bug, story, shrinks: shrink };
            return Ok(planted::run(&children(jobs.or(arguments.jobs)), plan));
        }
        None => {}
    }
    let children = children(arguments.jobs);
    let single = match (arguments.seed, &arguments.options) {
        (Some(seed), _) => Some(Options::draw(seed)),
        (None, Some(line)) => Some(line.parse::<Options>()?),
        (None, None) => None,
    };
    if let Some(options) = single {
        return Ok(one(&children, &options, arguments.trace, arguments.shrink));
    }
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let seeds = arguments.seeds.or(limit.is_none().then_some(500));
    let plan = Plan { from: arguments.from, seeds, limit, failures_max: FAILURES_MAX };
    Ok(parent::run(&children, plan, &known(KNOWN)?))
}

/// One run, in this process.
fn child(options: &str, trace: bool) -> Result<bool, NoOptions> {
    let report = world::run(&options.parse()?, trace);
    println!("{}", report.to_line());
    Ok(true)
}

fn children(jobs: Option<usize>) -> Children {
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let program = std::env::current_exe().expect("a program that runs has a file");
    Children { program, jobs, bug: None }
}

/// One run, told in full; or the smallest one that fails too.
fn one(children: &Children, options: &Options, trace: bool, shrinks: bool) -> bool {
    let report = children.run(options, trace && !shrinks);
    let Some(failure) = &report.failure else {
        println!("seed {}: all of it holds\n  {options}\n  {}", options.seed, report.to_line());
        return true;
    };
    if !shrinks {
        parent::show_failure(options, &report);
        return false;
    }
    println!("fails as {}; looking for a smaller run", failure.what);
    // The same failure, not just any: a smaller run may fail for another reason.
    let fails = |smaller: &Options| {
        let report = children.run(smaller, false);
        let same = report.failure.is_some_and(|found| found.what == failure.what);
        println!("  {} {smaller}", if same { "fails" } else { "holds" });
        same
    };
    let (smallest, tries) = shrink(options, TRIES_MAX, fails);
    println!("\nthe smallest of {tries} runs:");
    parent::show_failure(&smallest, &children.run(&smallest, false));
    false
}

/// The runs of a file of known seeds: options, then `#` and their story.
fn known(text: &str) -> Result<Vec<Options>, NoOptions> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["s", "--seed", "1", "--seeds", "2"]).is_err());
    }

    #[test]
    fn known_seeds_are_read_with_their_stories() {
        let known_runs = known("# all of these once failed\n\nseed=7 nodes=5 # a story\n seed=8\n").unwrap();
        assert_eq!(known_runs.len(), 2);
        assert_eq!((known_runs[0].seed, known_runs[0].nodes), (7, 5));
        assert!(known(KNOWN).is_ok());
        assert!(known("nodes=5").is_err());
    }
}
