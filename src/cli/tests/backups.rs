//! Backups of real nodes in this process, over their real ports, and what becomes of them.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{super::call::Node as Door, *};
use crate::{
    config::{Config, Exposure, Forming, Overrides, Purpose, Source},
    node::Node,
};

struct Running {
    node: Node,
    runtime: tokio::runtime::Runtime,
}

impl Running {
    fn start(dir: &Path, forming: Forming) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let source =
            Source::default().with(Overrides { data_dir: Some(dir.display().to_string()), ..Overrides::default() });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = source.check(Purpose::Dev, Exposure::default()).unwrap();
        let config = Config { listen: any, peer_listen: any, admin_listen: any, forming, ..config };
        let node = runtime.block_on(Node::start(config)).unwrap();
        let running = Self { node, runtime };
        if forming == Forming::ByItself {
            until(|| running.is_ready());
        }
        running
    }

    fn is_ready(&self) -> bool {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(self.node.admin_listen()).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.starts_with("HTTP/1.1 200")
    }

    fn admin(&self) -> String {
        format!("http://{}", self.node.admin_listen())
    }

    fn stop(self) {
        self.runtime.block_on(self.node.stop());
    }

    fn claim(&self, key: &str, fingerprint: u8) -> Json {
        let digest = format!("{fingerprint:064x}");
        let body = format!(
            r#"{{"record":{{"operation":"pay","key":"{key}"}},"lease_ms":3600000,"fingerprints":[{{"scheme":1,"digest":"{digest}"}}]}}"#
        );
        self.post("/v1/claim", &body).unwrap()
    }

    fn complete(&self, key: &str, fence: &str) -> Result<Json, u8> {
        let record = format!(r#""record":{{"operation":"pay","key":"{key}"}},"fence":"{fence}""#);
        self.post("/v1/complete", &format!(r#"{{{record},"outcome":{{"status":201,"body":"cmVjZWlwdA=="}}}}"#))
    }

    fn post(&self, path: &str, body: &str) -> Result<Json, u8> {
        let node = door(&format!("http://{}", self.node.listen()));
        node.post(path, &Json::parse(body.as_bytes()).unwrap(), 0).map(|answer| answer.json).map_err(|f| f.status())
    }

    /// Finished operations 0..count, and one whose owner is at work; its fence.
    fn work(&self, count: usize) -> String {
        for key in 0..count {
            let new = self.claim(&format!("done-{key}"), 1);
            self.complete(&format!("done-{key}"), text(&new, "fence")).unwrap();
        }
        text(&self.claim("busy", 1), "fence").to_owned()
    }
}

fn door(endpoint: &str) -> Door {
    let connection = Connection {
        endpoint: endpoint.to_owned(),
        token: None,
        ca: None,
        cert: None,
        cert_key: None,
        insecure_plaintext_clients: false,
        timeout: 2000,
        json: true,
    };
    Door::of(&connection).unwrap()
}

fn text<'a>(json: &'a Json, name: &str) -> &'a str {
    json.member(name).and_then(Json::as_str).unwrap_or_default()
}

fn run(line: &str) -> u8 {
    status(&line.split(' ').collect::<Vec<_>>())
}

/// Directories of one test, and a backup of a cluster that has worked and is gone; with the fence of its busy record.
fn backed_up(count: usize, flags: &str) -> (tempfile::TempDir, PathBuf, String) {
    let temporary = tempfile::tempdir().unwrap();
    let old = Running::start(&temporary.path().join("old"), Forming::ByItself);
    let fence = old.work(count);
    let backup = temporary.path().join("backup");
    assert_eq!(run(&format!("backup --out {} --admin-endpoint {}{flags}", backup.display(), old.admin())), 0);
    assert!(!temporary.path().join("old/backup").read_dir().unwrap().any(|_| true), "the node's copy is gone");
    if !flags.is_empty() {
        let body = r#"{"record":{"operation":"pay","key":"late"},"request":1}"#;
        assert_eq!(old.post("/v1/claim", body), Err(3), "unavailable, until the command gives up");
    }
    old.stop();
    (temporary, backup, fence)
}

#[test]
fn a_cluster_comes_back_from_its_backup_in_doubt_of_what_it_can_not_know() {
    let (temporary, backup, fence) = backed_up(40, "");
    assert_eq!(run(&format!("verify {}", backup.display())), 0);
    let (again, new) = (format!("backup --out {}", backup.display()), temporary.path().join("new"));
    assert_eq!(run(&again), 1, "what is there is not overwritten");
    let restore = format!("restore {} --data-dir {}", backup.display(), new.display());
    assert_eq!(run(&format!("{restore} --no-gap")), 1, "the backup is not a final one");
    assert_eq!(run(&format!("{restore} --gap-end 2020-01-01T00:00:00Z")), 2, "before the backup was made");
    assert_eq!(run(&restore), 0);
    assert_eq!(run(&restore), 1, "it holds a node now");

    for _ in 0..2 {
        let restored = Running::start(&new, Forming::ByItself);
        for key in 0..40 {
            let replay = restored.claim(&format!("done-{key}"), 1);
            assert_eq!((text(&replay, "answer"), replay.member("replayed")), ("completed", Some(&Json::Bool(true))));
            assert_eq!(text(replay.member("outcome").unwrap(), "body"), "cmVjZWlwdA==");
            assert_eq!(text(&restored.claim(&format!("done-{key}"), 2), "answer"), "conflict");
        }
        assert_eq!(restored.complete("busy", &fence), Err(1), "stale_fence");
        for key in ["busy", "never-seen"] {
            let doubted = restored.claim(key, 1);
            assert_eq!((text(&doubted, "answer"), text(&doubted, "reason")), ("indeterminate", "restored"));
        }
        restored.stop();
    }
    let restored = Running::start(&new, Forming::ByItself);
    assert_eq!(run(&format!("cluster end-doubt --admin-endpoint {}", restored.admin())), 0);
    let new = restored.claim("newer", 1);
    assert_eq!(text(&new, "answer"), "new");
    assert!(text(&new, "fence").parse::<u64>().unwrap() > 1 << 60);
    assert_eq!(text(&restored.claim("never-seen", 1), "answer"), "indeterminate", "what was recorded stays");
    assert_eq!(text(&restored.claim("busy", 1), "answer"), "in_progress", "until its lease ends");
    restored.stop();
}

#[test]
fn a_final_backup_moves_a_cluster_without_a_gap() {
    let (temporary, backup, fence) = backed_up(3, " --final --timeout 1s");
    let new = temporary.path().join("new");
    let ring = temporary.path().join("ring");
    assert_eq!(
        run(&format!(
            "restore {} --data-dir {} --no-gap --keyring {}",
            backup.display(),
            new.display(),
            ring.display()
        )),
        1
    );
    assert_eq!(run(&format!("restore {} --data-dir {} --no-gap", backup.display(), new.display())), 0);
    let restored = Running::start(&new, Forming::ByItself);
    assert_eq!(text(&restored.claim("done-1", 1), "answer"), "completed");
    assert_eq!(text(&restored.claim("fresh", 1), "answer"), "new");
    assert_eq!(text(&restored.claim("busy", 1), "answer"), "in_progress");
    assert_eq!(restored.complete("busy", &fence), Err(1), "stale_fence");
    restored.stop();
}

#[test]
fn a_backup_is_streamed_into_a_node_that_is_in_no_cluster_and_into_no_other() {
    let (temporary, backup, _) = backed_up(3, "");
    let ours = Running::start(&temporary.path().join("new"), Forming::OnInit);
    let (peer, client) = ("127.0.0.1:1", ours.node.listen());
    let into = |running: &Running, client: SocketAddr| {
        format!("restore {} --admin-endpoint {} --node 1={peer},{client}", backup.display(), running.admin())
    };
    // Broken off on the way: the node is in no cluster, and nothing is left.
    {
        use std::io::Write;
        let mut stream = TcpStream::connect(ours.node.admin_listen()).unwrap();
        let line = format!(
            r#"{{"nodes":{{"1":{{"peer":"{peer}","client":"{client}"}}}},"bytes":"100000","sha256":"{}"}}"#,
            "0".repeat(64)
        );
        let head = "POST /v1/admin/restore HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100200\r\n\r\n";
        stream.write_all(format!("{head}{line}\nhalf of it").as_bytes()).unwrap();
        let incoming = temporary.path().join("new/restoring/incoming");
        until(|| incoming.exists());
        drop(stream);
        until(|| !incoming.exists());
    }
    // Somebody else's cluster answers where clients of the new one would connect.
    let theirs = Running::start(&temporary.path().join("theirs"), Forming::ByItself);
    assert_eq!(run(&into(&ours, theirs.node.listen())), 1);
    assert_eq!(run(&into(&theirs, client)), 1, "it is in a cluster");
    theirs.stop();
    assert_eq!(run(&into(&ours, client).replace("--node 1=", "--node 2=")), 1, "this is node 1");
    assert_eq!(run(&into(&ours, client)), 0);
    assert_eq!(run(&into(&ours, client)), 1, "it is in a cluster now");
    assert_eq!(text(&ours.claim("done-1", 1), "answer"), "completed");
    assert_eq!(text(&ours.claim("other", 1), "answer"), "indeterminate");
    ours.stop();
    let ours = Running::start(&temporary.path().join("new"), Forming::OnInit);
    until(|| ours.is_ready());
    assert_eq!(text(&ours.claim("other", 1), "answer"), "indeterminate");
    ours.stop();
}

fn until(condition: impl Fn() -> bool) {
    let last = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < last, "it never came to be");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_backup_that_broke_off_goes_on_or_begins_anew() {
    let temporary = tempfile::tempdir().unwrap();
    let node = Running::start(&temporary.path().join("old"), Forming::ByItself);
    node.work(20);
    let out = temporary.path().join("b");
    let partial = temporary.path().join("b.partial");
    let line = format!("backup --out {} --admin-endpoint {}", out.display(), node.admin());
    // As a command that was killed has left it: the node holds a backup, and the first 1,000 bytes of it are here.
    let admin = door(&node.admin());
    let held = admin.post("/v1/admin/backup", &Json::parse(b"{}").unwrap(), 0).unwrap().json;
    assert_eq!(text(&held, "state"), "ready");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("resume.json"), held.to_text()).unwrap();
    let request = Json::object([("id", Json::from(text(&held, "id"))), ("offset", "0".into())]);
    let mut bytes = Vec::new();
    let taken = &mut |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    admin.download("/v1/admin/backup", &request, taken).unwrap();
    assert_eq!(bytes.len().to_string(), text(&held, "bytes"));
    fs::write(partial.join("part-000000"), &bytes[..1000]).unwrap();
    assert_eq!(run(&line), 1, "what an earlier attempt has left is not touched unless told so");
    let ring = temporary.path().join("ring");
    assert_eq!(run(&format!("{line} --resume --keyring {}", out.join("ring").display())), 2, "inside the backup");
    assert_eq!(run(&format!("{line} --resume --keyring {}", ring.display())), 0);
    assert_eq!(fs::read(out.join("part-000000")).unwrap(), bytes, "it is the same backup");
    let ring = crate::backup::ring::Ring::decode(&fs::read(ring).unwrap()).unwrap();
    assert_eq!((ring.lineage_id.to_string().as_str(), ring.entries.len()), (text(&held, "lineage_id"), 0));
    // One whose node has forgotten it, and one whose bytes were torn, begin anew.
    for (name, torn) in [("forgotten", false), ("torn", true)] {
        let partial = temporary.path().join(format!("{name}.partial"));
        fs::create_dir(&partial).unwrap();
        let begun = |_| admin.post("/v1/admin/backup", &Json::parse(b"{}").unwrap(), 0).unwrap().json;
        let held = torn.then_some(()).map_or_else(|| held.clone(), begun);
        fs::write(partial.join("resume.json"), held.to_text()).unwrap();
        fs::write(partial.join("part-000000"), [&b"torn"[..], &bytes[4..700]].concat()).unwrap();
        let out = temporary.path().join(name);
        assert_eq!(run(&format!("backup --out {} --resume --admin-endpoint {}", out.display(), node.admin())), 0);
        assert_eq!(run(&format!("verify {}", out.display())), 0);
    }
    node.stop();
}
