//! One node as a process of its own: its configuration, its signals, its files.

use std::{
    fs::{self, File},
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{caller::Caller, cluster::PATIENCE, ports::Port};

/// The product.
pub fn semel() -> Command {
    Command::new(env!("CARGO_BIN_EXE_semel"))
}

/// A node that can be killed, paused and started again.
pub struct Node {
    pub id: u64,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// Where other members are told to reach it.
    pub peer: SocketAddr,
    dir: PathBuf,
    child: Option<Child>,
    _ports: [Port; 3],
}

impl Node {
    /// Writes its configuration below `dir`; `peer_port` is where it listens, `peer` what others are told.
    pub fn new(dir: &Path, id: u64, peer_port: Port, peer: SocketAddr, store: &str) -> Self {
        let (client_port, admin_port) = (Port::local(), Port::local());
        let (listen, admin, peer_listen) = (client_port.address(), admin_port.address(), peer_port.address());
        let dir = dir.join(format!("node-{id}"));
        fs::create_dir_all(&dir).unwrap();
        let data = dir.join("data");
        let config = format!(
            "node_id = {id}\ndata_dir = \"{}\"\nlisten = \"{listen}\"\npeer_listen = \"{peer_listen}\"\n\
             admin_listen = \"{admin}\"\npeer_advertise = \"{peer}\"\nstore = \"{store}\"\n\n\
             [auth]\ntoken_file = \"{}\"\n\n[limits]\nwal_segment_bytes = 1048576\nsnapshot_log_bytes = 4194304\n",
            data.display(),
            dir.join("tokens.toml").display(),
        );
        fs::write(dir.join("semel.toml"), config).unwrap();
        let tokens = format!(
            "[[token]]\ntoken = \"{CALLER_TOKEN}\"\ntenant = \"{TENANT}\"\noperations = [\"*\"]\n\
             permissions = [\"claim\", \"reconcile\", \"read_outcomes\", \"administer\"]\n\n\
             [[token]]\ntoken = \"{CLUSTER_TOKEN}\"\npermissions = [\"cluster\"]\n",
        );
        let mut file = File::create(dir.join("tokens.toml")).unwrap();
        file.write_all(tokens.as_bytes()).unwrap();
        Self { id, listen, admin, peer, dir, child: None, _ports: [client_port, peer_port, admin_port] }
    }

    /// A file beside its data directory: its configuration, its tokens, its log.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Its data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// `ID=PEER,CLIENT`, as the command line takes it.
    pub fn named(&self) -> String {
        format!("{}={},{}", self.id, self.peer, self.listen)
    }

    /// Starts the process. Its log goes on in one file.
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Starts the process in an environment with these variables besides.
    pub fn start_with(&mut self, variables: &[(&str, &str)]) {
        self.start_as(semel(), variables);
    }

    /// Starts the process where so many files may be open, as long as it doesn't ask for more.
    pub fn start_below(&mut self, files: u64) {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -S -n \"$1\" && shift && exec \"$@\"", "sh", &files.to_string()]);
        shell.arg(env!("CARGO_BIN_EXE_semel"));
        self.start_as(shell, &[]);
    }

    fn start_as(&mut self, mut command: Command, variables: &[(&str, &str)]) {
        assert!(self.child.is_none(), "node {} runs already", self.id);
        let log = File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        command.arg("serve").arg("--config").arg(self.dir.join("semel.toml"));
        command.envs(variables.iter().copied()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Adds these lines to its configuration.
    pub fn configure(&self, lines: &str) {
        let config = fs::read_to_string(self.file("semel.toml")).unwrap();
        fs::write(self.file("semel.toml"), config + lines).unwrap();
    }

    /// Starts a process that is to end at once: its exit status, and the last line it said.
    pub fn fails_to_start(&self) -> (Option<i32>, String) {
        let output = semel().arg("serve").arg("--config").arg(self.file("semel.toml")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said.lines().last().unwrap_or_default().to_owned())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Has it stand still, and waits until all of its threads do: one that has not got the signal yet goes on answering.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let id = self.child.as_ref().expect("it runs").id();
        let stands = |thread: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, state)| state.trim_start().starts_with('T'))
        };
        let since = Instant::now();
        while !fs::read_dir(format!("/proc/{id}/task")).unwrap().all(stands) {
            assert!(since.elapsed() < PATIENCE, "node {} goes on", self.id);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Asks it to stop, and answers its exit status; it has `within` to do so.
    pub async fn stop(&mut self, within: Duration) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended(within).await
    }

    /// Waits until it ends by itself, and answers its exit status.
    pub async fn ended(&mut self, within: Duration) -> Option<i32> {
        let until = tokio::time::Instant::now() + within;
        loop {
            let child = self.child.as_mut().expect("it runs");
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return status.code();
            }
            assert!(tokio::time::Instant::now() < until, "node {} still runs after {within:?}", self.id);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// GET /v1/status, if it answers.
    pub async fn status(&self, caller: &Caller) -> Option<Value> {
        let operator = caller.with_token(CLUSTER_TOKEN);
        let reply = operator.get(self.admin, "/v1/status", Duration::from_secs(2)).await.ok()?;
        (reply.status == 200).then_some(reply.json)
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.dir.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the last lines of node {}\n{}", self.id, self.log_tail());
        }
    }
}

/// The tenant of every caller here.
pub const TENANT: &str = "acme";
/// What callers show.
pub const CALLER_TOKEN: &str = "the-caller-of-these-tests";
/// What operators show.
pub const CLUSTER_TOKEN: &str = "the-operator-of-these-tests";
