//! `semel dev --nodes 3` with real processes: how they start, die, come back and end.
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use semel::json::Json;

#[path = "../ports/mod.rs"]
mod ports;

use ports::Port;

/// The ports that three nodes need, and the lowest of them. Drawn anew where something sits among them.
fn nine_ports() -> (u16, Vec<Port>) {
    for _ in 0..100 {
        let first = Port::local();
        let base = first.address().port();
        let others = (0..3).flat_map(|node| (0..3).map(move |role| 10 * node + role)).skip(1);
        let kept = others.map_while(|beyond| Port::keep((Ipv4Addr::LOCALHOST, base.checked_add(beyond)?).into()));
        let kept: Vec<Port> = std::iter::once(first).chain(kept).collect();
        if kept.len() == 9 {
            return (base, kept);
        }
    }
    panic!("no nine free ports were found");
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

fn is_alive(number: u32) -> bool {
    // One that has ended and isn't reaped yet (its parent is gone, and init is slow) is none.
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    test_kill_process(pid(number)).is_ok() && !state.starts_with('Z')
}

fn until(what: &str, at_most: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < at_most, "not within {at_most:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

const LONG: Duration = Duration::from_secs(60);

/// One answer of a node, over a connection of its own.
fn ask(port: u16, verb: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let length = body.len();
    let head = format!(
        "{verb} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

fn is_ready(port: u16) -> bool {
    ask(port + 2, "GET", "/readyz", "").is_some_and(|(status, _)| status == 200)
}

fn cluster_id(port: u16) -> Option<String> {
    let (_, status) = ask(port + 2, "GET", "/v1/status", "")?;
    Json::parse(status.as_bytes()).ok()?.member("cluster_id")?.as_str().map(str::to_owned)
}

/// A parent and what it says.
struct Dev {
    parent: Child,
    base: u16,
    lines: Arc<Mutex<Vec<String>>>,
    _ports: Vec<Port>,
}

fn semel(arguments: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).arg("--data-dir").arg(dir).stdin(Stdio::null()).stderr(Stdio::inherit());
    command
}

impl Dev {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let (base, ports) = nine_ports();
        let listen = format!("127.0.0.1:{base}");
        let arguments = [&["dev", "--nodes", "3", "--listen", &listen], more].concat();
        let mut parent = semel(&arguments, dir).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (said, heard) = (parent.stdout.take().unwrap(), lines.clone());
        thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { parent, base, lines, _ports: ports }
    }

    fn all_ready(&self) {
        for at in 0..3 {
            until("a node is ready", LONG, || is_ready(self.base + 10 * at));
        }
    }

    fn says(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(text))
    }

    /// Ends it as Ctrl-C does, and checks that it takes its children along.
    fn end(mut self, dir: &Path, with: Signal) {
        let children: Vec<u32> = pids(dir).into_iter().flatten().collect();
        let began = Instant::now();
        kill_process(pid(self.parent.id()), with).unwrap();
        let status = self.parent.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(children.iter().all(|child| !is_alive(*child)), "a child is left");
        assert_eq!(pids(dir), [None, None, None]);
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Only where a test has failed before its end.
        if thread::panicking() {
            let statuses = (0..3).map(|at| ask(self.base + 10 * at + 2, "GET", "/v1/status", ""));
            eprintln!("the parent said: {:#?}\nthe nodes stand: {:#?}", self.lines, statuses.collect::<Vec<_>>());
        }
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

fn nodes(dir: &Path) -> Vec<Json> {
    match Json::parse(&fs::read(dir.join("nodes.json")).unwrap_or_default()) {
        Ok(Json::Array(nodes)) => nodes,
        _ => Vec::new(),
    }
}

fn pids(dir: &Path) -> Vec<Option<u32>> {
    nodes(dir).iter().map(|node| node.member("pid").unwrap().to_text().parse().ok()).collect()
}

#[test]
fn three_nodes_form_one_cluster_die_alone_and_end_together() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &[]);
    dev.all_ready();
    let base = dev.base;
    let formed = cluster_id(base).unwrap();
    assert!((0..3).all(|at| cluster_id(base + 10 * at).as_ref() == Some(&formed)));
    let listed = nodes(dir.path());
    for (at, node) in listed.iter().enumerate() {
        let text = |name: &str| node.member(name).and_then(Json::as_str).unwrap().to_owned();
        let port = base + 10 * at as u16;
        assert_eq!(node.member("id").unwrap().to_text(), (at + 1).to_string());
        assert_eq!(text("listen"), format!("127.0.0.1:{port}"));
        assert_eq!(text("peer_listen"), format!("127.0.0.1:{}", port + 1));
        assert_eq!(text("admin_listen"), format!("127.0.0.1:{}", port + 2));
        assert!(Path::new(&text("data_dir")).join("wal").is_dir());
    }
    // A claim through one node is seen through another.
    let claim = r#"{"record":{"operation":"o","key":"k"},"request":1}"#;
    assert!(ask(base + 10, "POST", "/v1/claim", claim).unwrap().1.contains(r#""answer":"new""#));
    assert!(ask(base + 20, "POST", "/v1/claim", claim).unwrap().1.contains(r#""answer":"in_progress""#));

    let second = pids(dir.path())[1].unwrap();
    kill_process(pid(second), Signal::KILL).unwrap();
    until("its death is noted", LONG, || pids(dir.path())[1].is_none());
    until("its death is told", LONG, || dev.says("node 2 ended: signal 9"));
    until("the others answer", LONG, || {
        let other = r#"{"record":{"operation":"o","key":"k2"},"request":1}"#;
        ask(base, "POST", "/v1/claim", other).is_some_and(|(status, _)| status == 200)
    });
    // It stays dead until somebody starts it again.
    let mut alone = semel(&["dev", "--node", "2"], dir.path()).stdout(Stdio::null()).spawn().unwrap();
    until("it is back", LONG, || is_ready(base + 10) && pids(dir.path())[1] == Some(alone.id()));
    assert_eq!(cluster_id(base + 10), Some(formed));
    kill_process(pid(alone.id()), Signal::TERM).unwrap();
    assert!(alone.wait().unwrap().success());
    until("its end is noted", LONG, || pids(dir.path())[1].is_none());
    dev.end(dir.path(), Signal::TERM);
}

#[test]
fn children_end_with_a_parent_that_is_killed_and_come_back_elsewhere_as_the_same_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(dir.path(), &[]);
    dev.all_ready();
    let formed = cluster_id(dev.base).unwrap();
    let claim = r#"{"record":{"operation":"o","key":"k"},"request":1}"#;
    assert_eq!(ask(dev.base, "POST", "/v1/claim", claim).unwrap().0, 200);
    let children: Vec<u32> = pids(dir.path()).into_iter().flatten().collect();
    // One that is stopped hears nothing, and ends all the same.
    kill_process(pid(children[2]), Signal::STOP).unwrap();
    dev.parent.kill().unwrap();
    dev.parent.wait().unwrap();
    until("the children are gone", Duration::from_secs(2), || children.iter().all(|child| !is_alive(*child)));
    drop(dev);

    let dev = Dev::start(dir.path(), &[]);
    dev.all_ready();
    assert_eq!(cluster_id(dev.base), Some(formed.clone()));
    until("it is told", LONG, || dev.says(&format!("cluster {formed} is back")));
    let answer = ask(dev.base + 20, "POST", "/v1/claim", claim).unwrap().1;
    assert!(answer.contains(r#""answer":"in_progress""#), "{answer}");
    // The membership's addresses follow: whoever asks is sent to where the leader is now.
    until("the leader is named at its new address", LONG, || {
        (0..3).all(|at| {
            let port = dev.base + 10 * at;
            let (_, status) = ask(port + 2, "GET", "/v1/status", "").unwrap_or_default();
            (0..3).all(|other| status.contains(&format!(r#""client":"127.0.0.1:{}""#, dev.base + 10 * other)))
        })
    });
    dev.end(dir.path(), Signal::INT);
}

/// Whoever was killed has its directory until its last call to the disk is over.
#[test]
fn a_directory_that_is_in_use_is_waited_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let held = fs::File::create(dir.path().join("lock")).unwrap();
    held.lock().unwrap();
    let started = || {
        let base = Port::local();
        let listen = base.address().to_string();
        let ports = ["--listen", &listen, "--peer-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let mut node = semel(&[&["dev"], &ports[..]].concat(), dir.path())
            .env("SEMEL_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(node.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line.contains("is in use by another process: it is waited for")));
        (node, said, base)
    };
    let (mut refused, mut said, _port) = started();
    assert_eq!(refused.wait().unwrap().code(), Some(1));
    assert!(said.any(|line| line.contains("stop it, or give this one another directory")));
    let (mut node, said, _port) = started();
    held.unlock().unwrap();
    let mut heard = BufReader::new(node.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(heard.any(|line| line.starts_with("Ctrl-C ends it")));
    kill_process(pid(node.id()), Signal::TERM).unwrap();
    assert!(node.wait().unwrap().success());
    drop((said, heard));
}

#[test]
fn the_dead_are_started_again_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &["--respawn"]);
    dev.all_ready();
    let first = pids(dir.path())[0].unwrap();
    kill_process(pid(first), Signal::KILL).unwrap();
    until("it is started again", LONG, || pids(dir.path())[0].is_some_and(|now| now != first));
    until("it is ready again", LONG, || is_ready(dev.base));
    dev.end(dir.path(), Signal::TERM);
}

#[test]
fn what_can_not_be_is_said_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let status = |arguments: &[&str]| semel(arguments, dir.path()).stdout(Stdio::null()).status().unwrap().code();
    assert_eq!(status(&["dev", "--nodes", "3", "--listen", "127.0.0.1:0"]), Some(2));
    assert_eq!(status(&["dev", "--nodes", "0"]), Some(2));
    assert_eq!(status(&["dev", "--nodes", "3", "--peer-listen", "127.0.0.1:1"]), Some(2));
    assert_eq!(status(&["dev", "--nodes", "3", "--listen", "0.0.0.0:7171"]), Some(2));
    assert_eq!(status(&["dev", "--node", "2"]), Some(2));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
}
