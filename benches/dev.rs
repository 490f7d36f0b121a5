//! The whole product from outside: `semel dev` as a process of its own, driven over one session of the client library.
//!
//! `cargo bench --bench dev -- [SECONDS] [at=1,16,64,256,1024] [records=N] [store=fjall|sled] [dir=DIR] [sessions=N] [bin=SEMEL]`
//!
//! Each of so many concurrent callers claims a random key (begun) and completes it with an outcome of 300 B, again and
//! again. Every answer is checked: each grant is new, no fence comes twice, and of a sample of the keys the outcome is
//! read back byte by byte, both by reading and by claiming again. Both processes share the machine, so that the seconds
//! of processor time which the node takes for 1,000 cycles say more than the rate does on a machine with other work.
//!
//! `records=N` completes so many records instead, and then tells the node's resident memory: at once, after a rest, and
//! after a restart. The directory must not be in memory. Without `--bench` (as a test runner calls it) it is short.

#[path = "peers/measure.rs"]
mod measure;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use measure::{Keys, body, percentile_ms, processor_s};
use semel::{
    Client,
    fingerprint::Fingerprint,
    proto::v1::{self, Answer},
};

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SECONDS: f64 = 10.0;
const SECONDS_IN_A_TEST: f64 = 0.3;
const WARM_UP: Duration = Duration::from_secs(1);
const CONCURRENT: [usize; 5] = [1, 16, 64, 256, 1024];
const CONCURRENT_IN_A_FILL: usize = 256;
/// Of so many keys one is read back.
const SAMPLED: u64 = 500;
const OPERATION: &str = "charge.create";

struct Asked {
    seconds: f64,
    concurrent: Vec<usize>,
    records: Option<u64>,
    store: String,
    dir: Option<PathBuf>,
    sessions: usize,
    /// Another build, to compare with.
    bin: PathBuf,
}

impl Asked {
    fn read() -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let measured = arguments.iter().any(|argument| argument == "--bench");
        let named = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let at_once = |text: &str| text.split(',').map(|one| one.parse().expect("numbers behind at=")).collect();
        Self {
            seconds: arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(match measured {
                true => SECONDS,
                false => SECONDS_IN_A_TEST,
            }),
            concurrent: named("at=").map_or_else(|| CONCURRENT.to_vec(), at_once),
            records: named("records=").map(number),
            store: named("store=").unwrap_or("fjall").to_owned(),
            dir: named("dir=").map(PathBuf::from),
            sessions: named("sessions=").map_or(1, |text| number(text) as usize),
            bin: named("bin=").unwrap_or(env!("CARGO_BIN_EXE_semel")).into(),
        }
    }
}

fn main() {
    if env::args().any(|argument| argument == "--list") {
        return;
    }
    let asked = Asked::read();
    let dir = match &asked.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let dir = dir.expect("a temporary directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, {} store in {}, {} session(s)", asked.store, dir.path().display(), asked.sessions);
    match asked.records {
        Some(records) => runtime.block_on(fill(&asked, dir.path(), records)),
        None => runtime.block_on(levels(&asked, dir.path())),
    }
}

/// `semel dev` as a process.
struct Dev {
    child: Child,
    endpoint: String,
}

impl Dev {
    fn start(dir: &Path, asked: &Asked) -> Self {
        let mut child = Command::new(&asked.bin)
            .args(["dev", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--store", &asked.store])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let endpoint = said
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned))
            .expect("the node says where it listens");
        // What else it says is read, so that it never waits for a reader.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        Self { child, endpoint }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(self.endpoint.clone()).await.expect("the node takes calls"));
        }
        clients
    }

    fn stop(mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.pid()]).status().expect("there is a kill");
        assert!(asked.success());
        assert!(self.child.wait().expect("it ends").success(), "the node ends well");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // After `stop` there is nothing left to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process now and at its highest, MiB.
fn resident_mib(pid: &str) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    (of("VmRSS"), of("VmHWM"))
}

/// What the callers share.
struct Run {
    /// From now on cycles count.
    counts: AtomicBool,
    ends: AtomicBool,
    /// Cycles that may still begin.
    left: AtomicU64,
}

/// What one caller saw.
#[derive(Default)]
struct Seen {
    cycles: u64,
    fences: Vec<u64>,
    /// Of each write, µs.
    latencies: Vec<u32>,
    sampled: Vec<(String, Bytes)>,
}

fn record(key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId { operation: OPERATION.into(), key: key.to_owned(), ..v1::RecordId::default() })
}

fn claim_of(key: &str) -> v1::ClaimRequest {
    let fingerprint = Fingerprint::new(1, [7; 32]);
    v1::ClaimRequest {
        record: record(key),
        fingerprints: vec![v1::Fingerprint { scheme: 1, digest: Bytes::copy_from_slice(fingerprint.digest()) }],
        staged: Some(false),
        ..v1::ClaimRequest::default()
    }
}

/// Claims and completes until the run ends.
async fn call(client: Client, run: Arc<Run>) -> Seen {
    let mut seen = Seen::default();
    let mut keys = Keys::random();
    let taken = |left: u64| left.checked_sub(1);
    while !run.ends.load(Ordering::Relaxed)
        && run.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    {
        let key = keys.next();
        let counts = run.counts.load(Ordering::Relaxed);
        let began = Instant::now();
        let granted = client.claim(claim_of(&key)).await.expect("the claim is answered");
        let claimed = began.elapsed();
        assert_eq!(granted.answer(), Answer::New, "a fresh key is new");
        assert!(granted.attempt == Some(1) && granted.repeated != Some(true), "it is granted once: {granted:?}");
        let fence = granted.fence.expect("a grant has a fence");
        let outcome = v1::Outcome { status: Some(201), body: Some(body(&key)), ..v1::Outcome::default() };
        let complete = v1::CompleteRequest { record: record(&key), fence: Some(fence), outcome: Some(outcome) };
        let began = Instant::now();
        let changed = client.complete(complete).await.expect("the completion is answered");
        let completed = began.elapsed();
        assert_eq!(changed.state(), v1::State::Completed);
        seen.fences.push(fence);
        if counts {
            seen.cycles += 1;
            seen.latencies.extend([claimed, completed].map(|time| time.as_micros() as u32));
        }
        if fence % SAMPLED == 0 {
            let body = body(&key);
            seen.sampled.push((key, body));
        }
    }
    seen
}

/// The same outcome to whoever reads and to whoever claims again.
async fn read_back(client: &Client, sampled: &[(String, Bytes)]) {
    for (key, body) in sampled {
        let get = v1::GetRequest { record: record(key), with_outcome: Some(true) };
        let read = client.get(get).await.expect("a completed record can be read");
        assert_eq!(read.outcome.and_then(|outcome| outcome.body).as_ref(), Some(body), "read byte by byte");
        let again = client.claim(claim_of(key)).await.expect("the claim is answered");
        assert_eq!(again.answer(), Answer::Completed);
        assert_eq!(again.outcome.and_then(|outcome| outcome.body).as_ref(), Some(body), "replayed byte by byte");
    }
}

fn unique(seen: &[Seen]) {
    let mut fences: Vec<u64> = seen.iter().flat_map(|one| one.fences.iter().copied()).collect();
    let granted = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), granted, "no fence is given twice");
}

struct Figures {
    time: Duration,
    node: (f64, f64),
    callers_s: f64,
}

/// So many callers at once, until the time is over or no cycle is left.
async fn drive(
    dev: &Dev,
    clients: &[Client],
    concurrent: usize,
    run: Arc<Run>,
    time: Option<Duration>,
) -> (Vec<Seen>, Figures) {
    let callers: Vec<_> =
        (0..concurrent).map(|n| tokio::spawn(call(clients[n % clients.len()].clone(), run.clone()))).collect();
    if time.is_some() {
        tokio::time::sleep(WARM_UP.min(time.unwrap_or_default())).await;
    }
    let before = (processor_s(&dev.pid()), processor_s("self"));
    let began = Instant::now();
    run.counts.store(true, Ordering::Relaxed);
    if let Some(time) = time {
        tokio::time::sleep(time).await;
        run.ends.store(true, Ordering::Relaxed);
    }
    let took = began.elapsed();
    let after = (processor_s(&dev.pid()), processor_s("self"));
    let mut seen = Vec::new();
    for caller in callers {
        seen.push(caller.await.expect("a caller that found what it expected"));
    }
    let time = if time.is_some() { took } else { began.elapsed() };
    let after = if run.ends.load(Ordering::Relaxed) { after } else { (processor_s(&dev.pid()), processor_s("self")) };
    let node = (after.0.0 - before.0.0, after.0.1 - before.0.1);
    let callers_s = after.1.0 + after.1.1 - before.1.0 - before.1.1;
    (seen, Figures { time, node, callers_s })
}

fn print(concurrent: usize, seen: &[Seen], figures: &Figures, pid: &str) {
    let cycles: u64 = seen.iter().map(|one| one.cycles).sum();
    let mut latencies: Vec<u32> = seen.iter().flat_map(|one| one.latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let at = |share: f64| percentile_ms(&latencies, share);
    let per_1000 = |seconds: f64| seconds / (cycles as f64 / 1000.0);
    let (now, highest) = resident_mib(pid);
    println!(
        "{concurrent:>10} {:>11.0} {:>8.2} {:>8.2} {:>8.2} {:>12.4} {:>8.4} {:>9.4} {now:>10} {highest:>7}",
        cycles as f64 / figures.time.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        per_1000(figures.node.0 + figures.node.1),
        per_1000(figures.node.1),
        per_1000(figures.callers_s),
    );
}

fn heading() {
    println!("           ----------- each write, ms ----------- processor s per 1,000 cycles ----- resident MiB ---");
    println!("concurrent    cycles/s      p50      p99    p99.9         node of which  callers       node highest");
    println!("                                                                 system");
}

async fn levels(asked: &Asked, dir: &Path) {
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(asked.sessions).await;
    heading();
    for concurrent in &asked.concurrent {
        let run = Run { counts: AtomicBool::new(false), ends: AtomicBool::new(false), left: AtomicU64::new(u64::MAX) };
        let time = Duration::from_secs_f64(asked.seconds);
        let (seen, figures) = drive(&dev, &clients, *concurrent, Arc::new(run), Some(time)).await;
        print(*concurrent, &seen, &figures, &dev.pid());
        unique(&seen);
        for one in &seen {
            read_back(&clients[0], &one.sampled).await;
        }
    }
    dev.stop();
}

/// Completes so many records, and tells the memory that they leave the node with.
async fn fill(asked: &Asked, dir: &Path, records: u64) {
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(asked.sessions).await;
    println!("resident with no record: {} MiB", resident_mib(&dev.pid()).0);
    heading();
    let run = Run { counts: AtomicBool::new(true), ends: AtomicBool::new(false), left: AtomicU64::new(records) };
    let (seen, figures) = drive(&dev, &clients, CONCURRENT_IN_A_FILL, Arc::new(run), None).await;
    print(CONCURRENT_IN_A_FILL, &seen, &figures, &dev.pid());
    unique(&seen);
    let sampled: Vec<(String, Bytes)> = seen.into_iter().flat_map(|one| one.sampled).collect();
    tell(&dev, "after the last completion");
    tokio::time::sleep(Duration::from_secs(10)).await;
    tell(&dev, "10 s later");
    read_back(&clients[0], &sampled).await;
    tell(&dev, "after reading a sample back");
    dev.stop();
    let began = Instant::now();
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(1).await;
    read_back(&clients[0], &sampled[..sampled.len().min(1)]).await;
    println!("a restart took {:.1?} to its first answer", began.elapsed());
    read_back(&clients[0], &sampled).await;
    tell(&dev, "after the restart and the sample");
    dev.stop();
}

fn tell(dev: &Dev, when: &str) {
    let (now, highest) = resident_mib(&dev.pid());
    println!("resident {when}: {now} MiB, highest {highest} MiB");
}
