//! The whole product from outside: `semel dev` as a process of its own, driven over one session of the client library.
//!
//! `cargo bench --bench dev -- [SECONDS] [at=1,16,64,256,1024] [records=N] [due=N]
//! [endpoints=URL,...] [store=fjall|sled] [dir=DIR] [sessions=N] [bin=SEMEL]`
//!
//! Each of so many concurrent callers claims a random key (begun) and completes it with an outcome of 300 B, again and
//! again. Every answer is checked: each grant is new, no fence comes twice, and of a sample of the keys the outcome is
//! read back byte by byte, both by reading and by claiming again. Both processes share the machine, so that the seconds
//! of processor time which the node takes for 1,000 cycles say more than the rate does on a machine with other work.
//!
//! `records=N` completes so many records instead, and then tells the node's resident memory: at once, after a rest, and
//! after a restart; with `endpoints` in a service that runs already, and no more. `due=N` completes so many whose windows end
//! within one minute, and tells what callers notice of it. The directory must not be in memory. Without `--bench` (as a test
//! runner calls it) it is short.

mod callers;
mod due;
mod fill;
#[path = "../peers/measure.rs"]
mod measure;
mod node;

use std::{
    env,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use callers::{Run, drive, heading, print, read_back, unique};
use node::Dev;

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SECONDS: f64 = 10.0;
const SECONDS_IN_A_TEST: f64 = 0.3;
const CONCURRENT: [usize; 5] = [1, 16, 64, 256, 1024];

struct Asked {
    seconds: f64,
    concurrent: Vec<usize>,
    records: Option<u64>,
    due: Option<u64>,
    /// Where a service runs already.
    endpoints: Option<String>,
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
            due: named("due=").map(number),
            endpoints: named("endpoints=").map(str::to_owned),
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
    match (asked.records, asked.due) {
        (Some(records), _) if asked.endpoints.is_some() => {
            runtime.block_on(fill::elsewhere(asked.endpoints.as_deref().unwrap_or_default(), records));
        }
        (Some(records), _) => runtime.block_on(fill::fill(&asked, dir.path(), records)),
        (None, Some(records)) => runtime.block_on(due::due(&asked, dir.path(), records)),
        (None, None) => runtime.block_on(levels(&asked, dir.path())),
    }
}

async fn levels(asked: &Asked, dir: &Path) {
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(asked.sessions).await;
    heading();
    for concurrent in &asked.concurrent {
        let run = Run { counts: AtomicBool::new(false), ..Run::of(u64::MAX) };
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
