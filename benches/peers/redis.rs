//! Redis: a claim is `SET NX`, a completion a script that sets the outcome where the claim stands. One node, which syncs
//! its log before it answers.

use std::{path::Path, process::Command};

use bytes::Bytes;

use super::{
    drive::Caller,
    processes::{Process, free_port, listening},
    wire::Wire,
};

const COMPLETE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('SET',KEYS[1],ARGV[2]) end";

pub struct Redis {
    node: Process,
    port: u16,
    /// The digest of the script.
    script: String,
}

impl Redis {
    pub async fn start(dir: &Path) -> Self {
        let (port, data) = (free_port(), dir.join("redis"));
        std::fs::create_dir_all(&data).expect("the directory can be written");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--maxclients", "4096"]);
        command.arg("--dir").arg(&data);
        let node = Process::start(&mut command, &dir.join("redis.log"), "-TERM");
        listening(port).await;
        let mut caller = RedisCaller { wire: Wire::connect(port).await, script: String::new() };
        let script = caller.ask(&[b"SCRIPT", b"LOAD", COMPLETE.as_bytes()]).await;
        Self { node, port, script: String::from_utf8(script.into()).expect("a digest is text") }
    }

    pub fn pids(&self) -> Vec<u32> {
        vec![self.node.pid()]
    }

    pub async fn callers(&self, count: usize) -> Vec<RedisCaller> {
        let mut callers = Vec::new();
        for _ in 0..count {
            callers.push(RedisCaller { wire: Wire::connect(self.port).await, script: self.script.clone() });
        }
        callers
    }
}

pub struct RedisCaller {
    wire: Wire,
    script: String,
}

impl RedisCaller {
    /// A simple or a bulk answer; anything else is none that a cycle gets.
    async fn ask(&mut self, words: &[&[u8]]) -> Bytes {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.wire.write(&request).await;
        let head = self.wire.until(b"\r\n").await.freeze();
        match head[0] {
            b'+' => head.slice(1..),
            b'$' if head[1] != b'-' => {
                let bytes = std::str::from_utf8(&head[1..]).ok().and_then(|text| text.parse().ok());
                let bulk = self.wire.exactly(bytes.expect("a length")).await;
                self.wire.exactly(2).await;
                bulk.freeze()
            }
            _ => panic!("Redis answered {head:?}"),
        }
    }
}

impl Caller for RedisCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        let mut fence = [0; 8];
        getrandom::fill(&mut fence).expect("the system has randomness");
        let fence = u64::from_le_bytes(fence);
        let set = self.ask(&[b"SET", key.as_bytes(), fence.to_string().as_bytes(), b"NX"]).await;
        assert_eq!(&*set, b"OK", "nobody else has this key");
        fence
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let (script, fence) = (self.script.clone(), fence.to_string());
        let set = self.ask(&[b"EVALSHA", script.as_bytes(), b"1", key.as_bytes(), fence.as_bytes(), &outcome]).await;
        assert_eq!(&*set, b"OK", "the claim stands");
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        self.ask(&[b"GET", key.as_bytes()]).await
    }
}
