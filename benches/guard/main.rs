//! Instructions that the paths of every request take, against the limits that `limits.txt` holds. Instructions are counted
//! by valgrind, and are the same on a machine that is busy: unlike times, they can be held to a few per cent.
//!
//! `cargo bench --bench guard` counts each path and fails where one takes more than its limit. `-- only=NAME` counts one,
//! and `-- run=NAME COUNT` runs it alone, to be looked at with callgrind.

#[path = "../apply/cycle.rs"]
mod cycle;
mod paths;

use std::{
    process::{Command, ExitCode},
    str::FromStr,
};

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMITS: &str = include_str!("limits.txt");
/// Libraries and processors differ a little in what they execute for the same bytes.
const TOLERANCE: f64 = 1.03;

fn limits() -> Vec<(&'static str, u64)> {
    let lines = LIMITS.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let limit = |line: &'static str| {
        let (name, limit) = line.split_once(' ').expect("a name and its limit");
        (name, limit.trim().replace(',', "").parse().expect("a limit is a number"))
    };
    lines.map(limit).collect()
}

/// What valgrind counts while this program runs a path so many times, or why it can't.
fn counted(name: &str, times: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    let done = command.arg(program).args([format!("run={name}"), times.to_string()]).output();
    let done = done.map_err(|error| {
        format!("valgrind can't be run ({error}): install it, in Debian `apt-get install valgrind`")
    })?;
    let said = String::from_utf8_lossy(&done.stderr);
    let refs = said.lines().find_map(|line| line.split_once("refs:")).map(|(_, count)| count.trim().replace(',', ""));
    match refs.and_then(|refs| u64::from_str(&refs).ok()) {
        Some(refs) if done.status.success() => Ok(refs),
        _ => Err(format!("valgrind counted nothing for {name}: {said}")),
    }
}

/// Instructions of one more run of a path: what starting takes is in both counts.
fn each(name: &str) -> Result<u64, String> {
    let (few, many) = (paths::TIMES, 3 * paths::TIMES);
    Ok(counted(name, many)?.saturating_sub(counted(name, few)?) / (many - few))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let Some(name) = arguments.iter().find_map(|argument| argument.strip_prefix("run=")) {
        let times = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(paths::TIMES);
        paths::run(name, times);
        return ExitCode::SUCCESS;
    }
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("only="));
    println!("{:<12}{:>14}{:>14}", "", "instructions", "limit");
    let mut is_within = true;
    for (name, limit) in limits().into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        match each(name) {
            Ok(taken) => {
                let is_over = taken as f64 > limit as f64 * TOLERANCE;
                is_within &= !is_over;
                println!("{name:<12}{taken:>14}{limit:>14}{}", if is_over { "  over its limit" } else { "" });
            }
            Err(reason) => {
                eprintln!("{reason}");
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::from(u8::from(!is_within))
}
