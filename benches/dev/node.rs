//! `semel dev` as a process, and the memory it takes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use semel::Client;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Asked;

/// `semel dev` as a process.
pub struct Dev {
    child: Child,
    endpoint: String,
    operators: String,
}

impl Dev {
    pub fn start(dir: &Path, asked: &Asked) -> Self {
        let mut child = Command::new(&asked.bin)
            .args(["dev", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["--store", &asked.store])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut address = || {
            let address =
                |line: String| line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned);
            said.by_ref().map_while(Result::ok).find_map(address).expect("the node says where it listens")
        };
        let (endpoint, operators) = (address(), address());
        // What else it says is read, so that it never waits for a reader.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        Self { child, endpoint, operators }
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub async fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(self.endpoint.clone()).await.expect("the node takes calls"));
        }
        clients
    }

    /// What `/metrics` tells.
    pub async fn metrics(&self) -> String {
        let at = self.operators.trim_start_matches("http://");
        let mut stream = TcpStream::connect(at).await.expect("the operators' port takes connections");
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers with text");
        answer
    }

    pub fn stop(mut self) {
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
pub fn resident_mib(pid: &str) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    (of("VmRSS"), of("VmHWM"))
}

pub fn tell(dev: &Dev, when: &str) {
    let (now, highest) = resident_mib(&dev.pid());
    println!("resident {when}: {now} MiB, highest {highest} MiB");
}
