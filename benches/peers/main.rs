//! Semel beside etcd, PostgreSQL and Redis: the same cycle, from the same generator, in turns.
//!
//! `benches/peers/run [SECONDS] [rounds=N] [at=1,16,64,256,1024] [of=NAME,...] [sessions=N] [dir=DIR] [bin=SEMEL] [against=SEMEL]`
//!
//! A cycle is two durable writes: a claim of a random key and its completion with an outcome of 300 B. All servers run all
//! the while; at each number of callers each is driven in turn, round by round, so that the machine's moods hit all of them.
//! Every answer is checked: each grant is new, no fence comes twice, and of a sample of the keys the outcome is read back
//! byte by byte. `of` names what is measured, by the beginning of its name. `against` is another build of Semel, which is
//! measured beside this one as `before-...`. The directory must not be in memory. Without `--bench` (as a test runner calls
//! it) Semel alone is driven, and shortly.

mod drive;
mod etcd;
mod measure;
mod postgres;
mod processes;
mod redis;
mod semel;
mod table;
mod wire;

use std::{env, path::Path, path::PathBuf, time::Duration};

use drive::{Seen, drive};
use etcd::Etcd;
use postgres::Postgres;
use redis::Redis;
use semel::Semel;
use table::Table;
use tokio::signal::unix::{SignalKind, signal};

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SECONDS: f64 = 5.0;
const SECONDS_IN_A_TEST: f64 = 0.3;
const WARM_UP: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
const CONCURRENT: [usize; 5] = [1, 16, 64, 256, 1024];
const ALL: [&str; 11] = [
    "semel-3 session",
    "semel-3 grpc",
    "semel-3 http",
    "semel-1 session",
    "semel-1 grpc",
    "semel-1 http",
    "etcd-3",
    "etcd-1",
    "postgres-2",
    "postgres-1",
    "redis-1",
];

struct Asked {
    time: Duration,
    rounds: usize,
    concurrent: Vec<usize>,
    /// What is measured, by name.
    names: Vec<String>,
    sessions: usize,
    dir: Option<PathBuf>,
    bin: PathBuf,
    against: Option<PathBuf>,
}

impl Asked {
    fn read() -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let measured = arguments.iter().any(|argument| argument == "--bench");
        let named = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let seconds = if measured { SECONDS } else { SECONDS_IN_A_TEST };
        let against = named("against=").map(PathBuf::from);
        let mut all: Vec<String> = ALL.iter().map(|&name| name.to_owned()).collect();
        if against.is_some() {
            all.extend(ALL.iter().filter(|name| name.starts_with("semel")).map(|name| format!("before-{name}")));
        }
        let wanted = named("of=").unwrap_or(if measured { "" } else { "semel-3" });
        let wanted: Vec<&str> = wanted.split(',').collect();
        all.retain(|name| wanted.iter().any(|wanted| name.starts_with(wanted)));
        Self {
            time: Duration::from_secs_f64(
                arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(seconds),
            ),
            rounds: named("rounds=").map_or(if measured { ROUNDS } else { 1 }, number),
            concurrent: named("at=").map_or_else(
                || if measured { CONCURRENT.to_vec() } else { vec![16] },
                |text| text.split(',').map(number).collect(),
            ),
            names: all,
            sessions: named("sessions=").map_or(1, number),
            dir: named("dir=").map(PathBuf::from),
            bin: semel::build(named("bin=")),
            against,
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted.starts_with(name))
    }
}

/// A server that runs.
enum Server {
    Semel(Semel),
    Etcd(Etcd),
    Postgres(Postgres),
    Redis(Redis),
}

impl Server {
    async fn start(name: &str, asked: &Asked, dir: &Path) -> Self {
        let (kind, nodes) = name.rsplit_once('-').expect("a name tells how many nodes");
        let nodes = nodes.parse().expect("a number");
        match kind {
            "semel" => Self::Semel(Semel::start(&asked.bin, &dir.join(name), nodes).await),
            "before-semel" => {
                let bin = asked.against.as_deref().expect("it is named");
                Self::Semel(Semel::start(bin, &dir.join(name), nodes).await)
            }
            "etcd" => Self::Etcd(Etcd::start(&dir.join(name), nodes).await),
            "postgres" => Self::Postgres(Postgres::start(dir, nodes == 2).await),
            _ => Self::Redis(Redis::start(dir).await),
        }
    }

    fn pids(&self) -> Vec<u32> {
        match self {
            Self::Semel(semel) => semel.pids(),
            Self::Etcd(etcd) => etcd.pids(),
            Self::Postgres(postgres) => postgres.pids(),
            Self::Redis(redis) => redis.pids(),
        }
    }

    async fn drive(&self, door: &str, callers: usize, asked: &Asked) -> Seen {
        let pids = self.pids();
        let warm_up = WARM_UP.min(asked.time);
        match (self, door) {
            (Self::Semel(semel), "grpc") => drive(semel.plain(callers).await, &pids, warm_up, asked.time).await,
            (Self::Semel(semel), "http") => drive(semel.http(callers).await, &pids, warm_up, asked.time).await,
            (Self::Semel(semel), _) => {
                let callers = semel.sessions(callers, asked.sessions.min(callers)).await;
                drive(callers, &pids, warm_up, asked.time).await
            }
            (Self::Etcd(etcd), _) => drive(etcd.callers(callers).await, &pids, warm_up, asked.time).await,
            (Self::Postgres(postgres), _) => drive(postgres.callers(callers).await, &pids, warm_up, asked.time).await,
            (Self::Redis(redis), _) => drive(redis.callers(callers).await, &pids, warm_up, asked.time).await,
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
    // PostgreSQL runs as another user.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("the directory is ours");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, {} rounds of {:?}, in {}", asked.rounds, asked.time, dir.path().display());
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let mut terminate = signal(SignalKind::terminate()).expect("signals can be heard");
        // Whoever breaks it off leaves no server behind: they end with what is dropped here.
        tokio::select! {
            () = measure(&asked, dir.path()) => {}
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    });
}

async fn measure(asked: &Asked, dir: &Path) {
    let mut servers = Vec::new();
    for name in [
        "semel-3",
        "semel-1",
        "before-semel-3",
        "before-semel-1",
        "etcd-3",
        "etcd-1",
        "postgres-2",
        "postgres-1",
        "redis-1",
    ] {
        if asked.wants(name) {
            servers.push((name, Server::start(name, asked, dir).await));
            eprintln!("{name} runs");
        }
    }
    let mut table = Table::default();
    for concurrent in &asked.concurrent {
        for round in 0..asked.rounds {
            for name in &asked.names {
                let (server, door) = name.split_once(' ').unwrap_or((name, ""));
                let (_, server) = servers.iter().find(|(name, _)| *name == server).expect("it was started");
                let seen = server.drive(door, *concurrent, asked).await;
                let rate = seen.cycles as f64 / seen.seconds;
                eprintln!("round {round}, {concurrent:>4} callers, {name:<22} {rate:>9.0} cycles/s");
                table.add(*concurrent, name, seen, processes::resident_mib(&server.pids()));
            }
        }
        // At each level, so that a benchmark that is broken off has told what it saw.
        table.print(*concurrent);
    }
}
