//! PostgreSQL: a claim inserts a row, a completion updates it where the fence, drawn from a sequence, is the claim's. One
//! node, or a primary with a standby that has to have synced a commit before it is answered.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Mutex;

use super::{
    drive::Caller,
    processes::{Process, free_port, listening},
    wire::Wire,
};

/// More connections make it slower: beyond them callers take turns, as behind a pool.
const CONNECTIONS_MAX: usize = 128;
const CLAIM: &str =
    "INSERT INTO records (key, fence) VALUES ($1, nextval('fences')) ON CONFLICT DO NOTHING RETURNING fence";
const COMPLETE: &str =
    "UPDATE records SET outcome = $3 WHERE key = $1 AND fence = $2 AND outcome IS NULL RETURNING fence";
const OUTCOME: &str = "SELECT outcome FROM records WHERE key = $1";
const SETTINGS: &str = "listen_addresses = '127.0.0.1'\nfsync = on\nsynchronous_commit = on\nmax_connections = 200\n\
    shared_buffers = '256MB'\nmax_wal_size = '4GB'\nunix_socket_directories = ''\n";

/// Where Debian has a release's programs.
fn program(name: &str) -> PathBuf {
    let releases = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = releases.map(|release| release.path().join("bin").join(name)).collect();
    found.sort();
    found.pop().expect("PostgreSQL is installed: benches/peers/run does")
}

/// It doesn't run as root.
fn command(name: &str) -> Command {
    let program = program(name);
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

pub struct Postgres {
    nodes: Vec<Process>,
    port: u16,
}

impl Postgres {
    pub async fn start(dir: &Path, with_standby: bool) -> Self {
        let dir = dir.join(if with_standby { "postgres-2" } else { "postgres-1" });
        std::fs::create_dir_all(&dir).expect("the directory can be written");
        if rustix::process::geteuid().is_root() {
            run(Command::new("chown").arg("postgres").arg(&dir));
        }
        let (primary, port) = (dir.join("primary"), free_port());
        run(command("initdb").args(["--auth=trust", "--username=bench", "-D"]).arg(&primary));
        let start = |data: &Path, port: u16| {
            let log = data.with_extension("log");
            Process::start(command("postgres").arg("-D").arg(data).args(["-p", &port.to_string()]), &log, "-QUIT")
        };
        let write = |file: &Path, text: &str| {
            let before = std::fs::read_to_string(file).unwrap_or_default();
            std::fs::write(file, before + text).expect("the directory can be written");
        };
        write(&primary.join("postgresql.conf"), SETTINGS);
        let mut nodes = vec![start(&primary, port)];
        answering(port).await;
        let mut connection = Connection::open(port).await;
        connection.simple("CREATE SEQUENCE fences CACHE 32").await;
        connection.simple("CREATE TABLE records (key text PRIMARY KEY, fence bigint NOT NULL, outcome bytea)").await;
        if with_standby {
            let standby = dir.join("standby");
            let from = format!("host=127.0.0.1 port={port} user=bench application_name=standby");
            run(command("pg_basebackup").args(["-R", "-X", "stream", "-c", "fast", "-d", &from, "-D"]).arg(&standby));
            let standby_port = free_port();
            nodes.push(start(&standby, standby_port));
            answering(standby_port).await;
            connection.simple("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
            connection.simple("SELECT pg_reload_conf()").await;
            connection.synchronous().await;
        }
        Self { nodes, port }
    }

    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Process::pid).collect()
    }

    pub async fn callers(&self, count: usize) -> Vec<PostgresCaller> {
        let mut connections = Vec::new();
        for _ in 0..count.min(CONNECTIONS_MAX) {
            let mut connection = Connection::open(self.port).await;
            connection.prepare().await;
            connections.push(Arc::new(Mutex::new(connection)));
        }
        (0..count).map(|n| PostgresCaller(connections[n % connections.len()].clone())).collect()
    }
}

/// Waits until it takes statements: it listens before it does.
async fn answering(port: u16) {
    listening(port).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
}

struct Connection(Wire);

/// A message of this kind.
fn message(out: &mut BytesMut, kind: u8, body: &[&[u8]]) {
    let bytes: usize = body.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&[kind]);
    out.extend_from_slice(&(bytes as u32 + 4).to_be_bytes());
    body.iter().for_each(|part| out.extend_from_slice(part));
}

impl Connection {
    async fn open(port: u16) -> Self {
        let mut own = Self(Wire::connect(port).await);
        let words = b"user\0bench\0database\0postgres\0\0";
        let head = [(words.len() as u32 + 8).to_be_bytes(), 196_608_u32.to_be_bytes()].concat();
        own.0.write(&[&head, &words[..]].concat()).await;
        own.answers().await;
        own
    }

    /// All messages up to the one that it is ready; the first column of the last row.
    async fn answers(&mut self) -> Option<Bytes> {
        let mut first = None;
        loop {
            let mut head = self.0.exactly(5).await;
            let kind = head.get_u8();
            let mut body = self.0.exactly(head.get_u32() as usize - 4).await;
            match kind {
                b'Z' => return first,
                b'E' => panic!("PostgreSQL answered {}", String::from_utf8_lossy(&body)),
                b'D' if body.get_u16() > 0 => {
                    let bytes = body.get_i32();
                    first = usize::try_from(bytes).ok().map(|bytes| body.split_to(bytes).freeze());
                }
                _ => {}
            }
        }
    }

    async fn simple(&mut self, statement: &str) -> Option<Bytes> {
        let mut out = BytesMut::new();
        message(&mut out, b'Q', &[statement.as_bytes(), b"\0"]);
        self.0.write(&out).await;
        self.answers().await
    }

    /// Waits until the standby has to have synced.
    async fn synchronous(&mut self) {
        for _ in 0..100 {
            let state = self.simple("SELECT sync_state FROM pg_stat_replication").await;
            if state.is_some_and(|state| *state == *b"sync" || *state == *b"quorum") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the standby is not synchronous");
    }

    async fn prepare(&mut self) {
        let mut out = BytesMut::new();
        for (name, statement) in [("c", CLAIM), ("d", COMPLETE), ("o", OUTCOME)] {
            message(&mut out, b'P', &[name.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0"]);
        }
        message(&mut out, b'S', &[]);
        self.0.write(&out).await;
        self.answers().await;
    }

    /// Executes a prepared statement. Parameters are text but for the third; a result is as `binary` says.
    async fn execute(&mut self, name: &str, parameters: &[&[u8]], binary: bool) -> Option<Bytes> {
        let mut bind = BytesMut::with_capacity(512);
        bind.extend_from_slice(b"\0");
        bind.extend_from_slice(name.as_bytes());
        bind.extend_from_slice(b"\0");
        bind.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
        (0..parameters.len()).for_each(|n| bind.extend_from_slice(&u16::from(n == 2).to_be_bytes()));
        bind.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
        for parameter in parameters {
            bind.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
            bind.extend_from_slice(parameter);
        }
        bind.extend_from_slice(&[0, 1, 0, u8::from(binary)]);
        let mut out = BytesMut::with_capacity(bind.len() + 32);
        message(&mut out, b'B', &[&bind]);
        message(&mut out, b'E', &[b"\0\0\0\0\0"]);
        message(&mut out, b'S', &[]);
        self.0.write(&out).await;
        self.answers().await
    }
}

#[derive(Clone)]
pub struct PostgresCaller(Arc<Mutex<Connection>>);

impl Caller for PostgresCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        let fence = self.0.lock().await.execute("c", &[key.as_bytes()], false).await.expect("nobody has this key");
        std::str::from_utf8(&fence).ok().and_then(|text| text.parse().ok()).expect("a number")
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let fence = fence.to_string();
        let parameters: [&[u8]; 3] = [key.as_bytes(), fence.as_bytes(), &outcome];
        let done = self.0.lock().await.execute("d", &parameters, false).await;
        assert_eq!(done.as_deref(), Some(fence.as_bytes()), "the claim stands");
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        self.0.lock().await.execute("o", &[key.as_bytes()], true).await.expect("the row is there")
    }
}
