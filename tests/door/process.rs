//! `semel proxy` as a process: encrypted on both sides, until it is told to end.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Asked, Reply, Upstream,
    certified::{Set, connect},
    until,
};

/// The process, killed where a test fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts it with these arguments, and reads until a line with this word: what follows it.
    fn start(dir: &tempfile::TempDir, arguments: &[&str], word: &str) -> (Self, String) {
        let child = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["proxy", "--dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Self(child);
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let rest = lines.find_map(|line| line.split_once(word).map(|(_, rest)| rest.to_owned()));
        // What else it says is read, so that it never writes into a closed pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (process, rest.expect("it says so"))
    }

    /// Tells it to end. Whether it ended well.
    async fn end(mut self) -> bool {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        for _ in 0..600 {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_of_a_process_is_encrypted_on_both_sides() {
    let set = Set::new();
    set.certify("door", &["127.0.0.1"], None);
    set.certify("acme", &[], Some("semel://semel/client/acme"));
    let upstream = Upstream::new(|call| match call {
        1 => super::Answer::of(201, "", "order 1"),
        _ => super::Answer::bare(101, "Upgrade: echo\r\nConnection: Upgrade\r\n"),
    })
    .await;
    let service = set.before(upstream.address()).await;
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("door.toml");
    let text = "[proxy]\ntenant = { client_certificate = true }\n".to_owned() + &set.table();
    std::fs::write(&config, text).unwrap();
    let (url, ca) = (format!("https://localhost:{}", service.port()), set.path("ca.pem"));
    let arguments = ["--upstream", &url, "--upstream-ca", &ca, "--config", config.to_str().unwrap()];
    let (process, rest) = tokio::task::block_in_place(|| Process::start(&dir, &arguments, "semel proxy: https://"));
    let door = rest.split(' ').next().unwrap().parse().unwrap();
    let trust = set.trust(Some("acme"));
    for is_replay in [false, true] {
        let mut stream = connect(&trust, door, b"http/1.1").await.unwrap();
        let asked = Asked::order("k").line("Expect", "100-continue");
        let reply = asked.over(&mut stream).await;
        assert_eq!((reply.status, reply.body.as_slice(), reply.is_replay()), (201, &b"order 1"[..], is_replay));
    }
    // Another protocol passes.
    let mut stream = connect(&trust, door, b"http/1.1").await.unwrap();
    let asked = b"GET /chat HTTP/1.1\r\nHost: shop\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    let reply = Reply::read_switched(&mut stream).await;
    assert_eq!((reply.status, reply.field("upgrade")), (101, Some("echo")));
    stream.write_all(b"PING / HTTP/1.1\r\n\r\n").await.unwrap();
    until("the service hears it", async || upstream.calls() == 3).await;
    let mut said = [0; 12];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"HTTP/1.1 101");
    assert!(process.end().await, "it ends in order");
    assert_eq!(upstream.calls(), 3);
}
