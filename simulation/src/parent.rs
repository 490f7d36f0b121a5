//! A process for each seed: the standard library's hash keys persist in a thread, so that a second run in one process is
//! not the first. The parent starts children, reads one line of each, and adds up.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::{
    fault::FaultKind,
    options::Options,
    report::{MARK, Report},
};

/// A child that says nothing for this long of real time hangs.
const CHILD_REAL_TIME_MAX: Duration = Duration::from_secs(120);
/// How much of a child's standard error is shown when it dies without a report, bytes.
const LAST_WORDS_BYTES_MAX: usize = 4_096;
/// A kind of fault is judged by whether it fired once it was enabled in so many runs: in fewer, chance may leave it out.
const COVERED_RUNS_MIN: u64 = 10;
/// One in this many seeds runs twice, in two processes, to see that it is the same run.
const TWICE_ONE_IN: u64 = 25;

/// How children are started.
#[derive(Clone, Debug)]
pub struct Children {
    /// The program: this one.
    pub program: PathBuf,
    /// How many at once.
    pub jobs: usize,
    /// The name of the bug that is planted in them, if any.
    pub bug: Option<&'static str>,
}

impl Children {
    /// Runs these options in a process of their own.
    pub fn run(&self, options: &Options, trace: bool) -> Report {
        let mut command = Command::new(&self.program);
        command.arg("one").arg("--options").arg(options.to_string());
        if trace {
            command.arg("--trace");
        }
        if let Some(bug) = self.bug {
            command.arg("--bug").arg(bug);
        }
        let stderr = if trace { Stdio::inherit() } else { Stdio::piped() };
        match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn() {
            Ok(child) => self.wait(child),
            Err(error) => Report::failed("process", format!("the process of a seed did not start: {error}")),
        }
    }

    fn wait(&self, mut child: Child) -> Report {
        let (done, line) = mpsc::channel();
        let stdout = child.stdout.take().expect("it is piped");
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            let _ = done.send(lines.filter(|line| line.starts_with(MARK)).last());
        });
        let words = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = stderr.read_to_end(&mut bytes);
                let from = bytes.len().saturating_sub(LAST_WORDS_BYTES_MAX);
                String::from_utf8_lossy(&bytes[from..]).into_owned()
            })
        });
        let Ok(line) = line.recv_timeout(CHILD_REAL_TIME_MAX) else {
            let _ = child.kill();
            let _ = child.wait();
            return Report::failed("hang", format!("no report within {CHILD_REAL_TIME_MAX:?} of real time"));
        };
        let status = child.wait();
        if let Some(report) = line.and_then(|line| line.parse::<Report>().ok()) {
            return report;
        }
        let words = words.and_then(|words| words.join().ok()).unwrap_or_default();
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut report = Report::failed("panic", format!("the process ended without a report ({status})"));
        if let Some(failure) = &mut report.failure {
            failure.story = words.lines().map(str::to_owned).collect();
        }
        report
    }
}

/// Runs options after options, several at once, and hands over each result, until `each` says that it is enough.
pub fn each(
    children: &Children,
    mut drawn: impl Iterator<Item = Options>,
    mut each: impl FnMut(&Options, Report) -> bool,
) {
    let (done, results) = mpsc::channel();
    let (mut running, mut goes_on) = (0, true);
    loop {
        while goes_on && running < children.jobs.max(1) {
            let Some(options) = drawn.next() else { break };
            let (done, children) = (done.clone(), children.clone());
            std::thread::spawn(move || {
                let report = children.run(&options, false);
                let _ = done.send((options, report));
            });
            running += 1;
        }
        if running == 0 {
            return;
        }
        let (options, report) = results.recv().expect("a sender is kept here");
        running -= 1;
        goes_on = goes_on && each(&options, report);
    }
}

/// What many runs came to.
#[derive(Debug, Default)]
pub struct Total {
    /// Runs.
    pub seeds: u64,
    /// Simulated time, ms.
    pub simulated_ms: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Operations proved to be linearizable.
    pub certified: u64,
    /// In how many runs each kind was enabled, and how often it fired in all of them.
    pub faults: BTreeMap<FaultKind, (u64, u64)>,
    /// What failed.
    pub failed: Vec<(Options, Report)>,
}

impl Total {
    fn add(&mut self, options: &Options, report: &Report) {
        self.seeds += 1;
        self.simulated_ms += report.simulated_ms;
        self.operations += report.operations;
        self.certified += report.certified;
        for kind in options.faults.keys() {
            let (enabled, fired) = self.faults.entry(*kind).or_default();
            *enabled += 1;
            *fired += report.fired.get(kind).copied().unwrap_or(0);
        }
        if report.failure.is_some() {
            self.failed.push((options.clone(), report.clone()));
        }
    }

    /// Kinds that were enabled and never fired: what they would have shown was not looked at.
    pub fn never_fired(&self) -> Vec<FaultKind> {
        let is_judged = |enabled: u64| enabled >= COVERED_RUNS_MIN;
        self.faults.iter().filter(|(_, (runs, fired))| is_judged(*runs) && *fired == 0).map(|(kind, _)| *kind).collect()
    }
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed.
    pub from: u64,
    /// How many; none: until the time is over.
    pub seeds: Option<u64>,
    /// How long, real time.
    pub limit: Option<Duration>,
    /// After how many failures to stop.
    pub failures_max: usize,
}

/// Runs what was found before, a sample of the seeds twice, then all of them. True if all held.
pub fn run(children: &Children, plan: Plan, known: &[Options]) -> bool {
    let started = Instant::now();
    let mut total = Total::default();
    let seeds = plan.seeds.unwrap_or(u64::MAX);
    if !same_twice(children, plan.from, seeds.min(TWICE_ONE_IN * 20).div_ceil(TWICE_ONE_IN)) {
        return false;
    }
    let last = plan.from.saturating_add(seeds);
    let drawn = known.iter().cloned().chain((plan.from..last).map(Options::draw));
    let mut shown = Instant::now();
    each(children, drawn, |options, report| {
        total.add(options, &report);
        if report.failure.is_some() {
            show_failure(options, &report);
        }
        if shown.elapsed() > Duration::from_secs(2) {
            shown = Instant::now();
            progress(&total, started.elapsed());
        }
        total.failed.len() < plan.failures_max && plan.limit.is_none_or(|limit| started.elapsed() < limit)
    });
    progress(&total, started.elapsed());
    show_faults(&total);
    let never = total.never_fired();
    for kind in &never {
        println!("COVERAGE: {kind} was enabled in {} runs and never fired", total.faults[kind].0);
    }
    println!("{}", if total.failed.is_empty() && never.is_empty() { "\nAll of it holds." } else { "\nFAILED." });
    total.failed.is_empty() && never.is_empty()
}

/// The check that comes before all others: the same seed, twice, in two processes, is the same run.
fn same_twice(children: &Children, from: u64, sample: u64) -> bool {
    let drawn = || (0..sample).map(|at| Options::draw(from.saturating_add(at * TWICE_ONE_IN)));
    let mut first: BTreeMap<u64, Report> = BTreeMap::new();
    let mut same = true;
    each(children, drawn().chain(drawn()), |options, report| {
        if let Some(before) = first.get(&options.seed) {
            let is_same = (before.hash, before.steps) == (report.hash, report.steps);
            if !is_same {
                println!(
                    "NOT DETERMINISTIC: seed {} was {:016x} after {} steps, then {:016x} after {}\n  {options}",
                    options.seed, before.hash, before.steps, report.hash, report.steps
                );
            }
            same &= is_same;
        } else {
            first.insert(options.seed, report);
        }
        true
    });
    if same {
        println!("same seed, same bytes: {sample} seeds ran twice, each in two processes");
    }
    same
}

fn progress(total: &Total, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let hours = total.simulated_ms as f64 / 3_600_000.0;
    let ratio = total.simulated_ms as f64 / 1_000.0 / seconds;
    println!(
        "{:>7} seeds  {:>6.2} seeds/s  {hours:>8.2} simulated hours ({ratio:.0} : 1)  {:>9} operations  \
         {:>9} certified  {} failed",
        total.seeds,
        total.seeds as f64 / seconds,
        total.operations,
        total.certified,
        total.failed.len()
    );
}

fn show_faults(total: &Total) {
    println!("\n{:<26} {:>8} {:>10}  what happens", "fault", "enabled", "fired");
    for (kind, (enabled, fired)) in &total.faults {
        println!("{:<26} {enabled:>8} {fired:>10}  {}", kind.word(), kind.doc());
    }
    println!("{} of {} kinds fired", total.faults.len() - total.never_fired().len(), FaultKind::ALL.len());
}

/// A failure as a person reads it: what, with what, the story, and how to see it again.
pub fn show_failure(options: &Options, report: &Report) {
    let Some(failure) = &report.failure else { return };
    println!("\nFAILED: seed {}: {}: {}", options.seed, failure.what, failure.detail);
    println!("  {options}");
    for line in &failure.story {
        println!("    {line}");
    }
    let drawn = *options == Options::draw(options.seed);
    let again = if drawn { format!("--seed {}", options.seed) } else { format!("--options '{options}'") };
    println!("  again:    cargo run --release --manifest-path simulation/Cargo.toml -- {again} --trace");
    println!("  smaller:  cargo run --release --manifest-path simulation/Cargo.toml -- {again} --shrink\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that stands in for the child.
    fn children(script: &str) -> (tempdir::Dir, Children) {
        let dir = tempdir::Dir::new();
        let program = dir.path.join("child");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::os::unix::fs::PermissionsExt::set_mode(&mut std::fs::metadata(&program).unwrap().permissions(), 0o755);
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        (dir, Children { program, jobs: 2, bug: None })
    }

    mod tempdir {
        pub struct Dir {
            pub path: std::path::PathBuf,
        }

        impl Dir {
            pub fn new() -> Self {
                use std::sync::atomic::{AtomicU32, Ordering};
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let name = format!("semel-simulation-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
                let path = std::env::temp_dir().join(name);
                std::fs::create_dir_all(&path).unwrap();
                Self { path }
            }
        }

        impl Drop for Dir {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.path);
            }
        }
    }

    #[test]
    fn a_child_is_believed_its_report_alone() {
        let (_dir, good) = children("echo hello; echo 'report hash=0f steps=3 simulated_ms=9 fired='");
        let report = good.run(&Options::draw(1), false);
        assert_eq!((report.hash, report.steps, report.failure), (15, 3, None));
        let (_dir, dead) = children("echo the last words >&2; exit 3");
        let failure = dead.run(&Options::draw(1), false).failure.unwrap();
        assert_eq!((failure.what.as_str(), failure.story), ("panic", vec!["the last words".to_owned()]));
    }

    #[test]
    fn runs_that_differ_are_found_before_anything_else() {
        let (_dir, same) = children("echo 'report hash=0f steps=3 simulated_ms=9 fired='");
        assert!(same_twice(&same, 1, 3));
        let (_dir, differ) = children("echo \"report hash=$$ steps=3 simulated_ms=9 fired=\"");
        assert!(!same_twice(&differ, 1, 1));
    }

    #[test]
    fn a_kind_that_never_fired_fails_the_run() {
        let mut total = Total::default();
        let mut options = Options::draw(1);
        options.faults = BTreeMap::from([(FaultKind::Crash, 1), (FaultKind::Loss, 1)]);
        let report = Report { fired: BTreeMap::from([(FaultKind::Crash, 2)]), ..Report::default() };
        for _ in 1..COVERED_RUNS_MIN {
            total.add(&options, &report);
        }
        assert_eq!(total.never_fired(), []);
        total.add(&options, &report);
        assert_eq!(total.never_fired(), [FaultKind::Loss]);
    }

    #[test]
    fn it_ends_at_the_first_failures() {
        let (_dir, bad) = children("echo 'report hash=0f steps=3 simulated_ms=9 fired=\tR1\ttwo effects\t'");
        let mut seen = 0;
        each(&bad, (1..).map(Options::draw), |_, report| {
            seen += usize::from(report.failure.is_some());
            seen < 3
        });
        assert!((3..=5).contains(&seen));
        let plan = Plan { from: 1, seeds: Some(50), limit: None, failures_max: 1 };
        assert!(!run(&bad, plan, &[]));
    }
}
