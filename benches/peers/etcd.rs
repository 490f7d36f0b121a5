//! etcd: a claim is a transaction that puts a key which was never created, a completion one that puts the outcome where
//! nothing has changed the claim. The fence is the claim's revision.

use std::{path::Path, process::Command, time::Duration};

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    drive::Caller,
    processes::{Process, free_port},
};

/// Callers that share a connection.
const CALLERS_A_CONNECTION: usize = 16;

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Ranged {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Act {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

/// Equal is 0, the default.
#[derive(Clone, PartialEq, Message)]
struct Compare {
    /// 1: the revision of its creation, 2: of its last change.
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    key: Bytes,
    #[prost(int64, optional, tag = "5")]
    created: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    changed: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Act>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnDone {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Ask {}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

async fn ask<Q, A>(channel: &Channel, path: &'static str, message: Q) -> Result<A, tonic::Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(Request::new(message), PathAndQuery::from_static(path), codec).await?;
    Ok(answer.into_inner())
}

/// One node or several.
pub struct Etcd {
    nodes: Vec<Process>,
    ports: Vec<u16>,
}

impl Etcd {
    pub async fn start(dir: &Path, count: usize) -> Self {
        std::fs::create_dir_all(dir).expect("the directory can be written");
        let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
        let all: Vec<String> =
            ports.iter().enumerate().map(|(n, (_, peer))| format!("n{n}=http://127.0.0.1:{peer}")).collect();
        let start = |(n, (client, peer)): (usize, &(u16, u16))| {
            let client = format!("http://127.0.0.1:{client}");
            let peer = format!("http://127.0.0.1:{peer}");
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("n{n}"), "--log-level", "error", "--logger", "zap"]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"]);
            // Its default ends every write at 2 GiB.
            command.args(["--quota-backend-bytes", "8589934592"]);
            command.arg("--data-dir").arg(dir.join(format!("etcd-{n}")));
            Process::start(&mut command, &dir.join(format!("etcd-{n}.log")), "-TERM")
        };
        let nodes = ports.iter().enumerate().map(start).collect();
        let etcd = Self { nodes, ports: ports.iter().map(|(client, _)| *client).collect() };
        etcd.leader().await;
        etcd
    }

    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Process::pid).collect()
    }

    /// The port of the node that leads, once there is one.
    async fn leader(&self) -> u16 {
        for _ in 0..300 {
            for port in &self.ports {
                let channel = channel(*port);
                let status = ask::<_, Status>(&channel, "/etcdserverpb.Maintenance/Status", Ask {}).await;
                if status.is_ok_and(|status| status.header.is_some_and(|own| own.member_id == status.leader)) {
                    return *port;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("no node of etcd leads");
    }

    /// Callers of the leader, which need not be asked by way of another node.
    pub async fn callers(&self, count: usize) -> Vec<EtcdCaller> {
        let port = self.leader().await;
        let channels: Vec<Channel> = (0..count.div_ceil(CALLERS_A_CONNECTION)).map(|_| channel(port)).collect();
        (0..count).map(|n| EtcdCaller(channels[n % channels.len()].clone())).collect()
    }
}

fn channel(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("it is an address");
    endpoint.tcp_nodelay(true).connect_lazy()
}

pub struct EtcdCaller(Channel);

impl EtcdCaller {
    async fn put_if(&self, compare: Compare, value: Bytes) -> u64 {
        let put = Put { key: compare.key.clone(), value };
        let txn = Txn { compare: vec![compare], success: vec![Act { put: Some(put) }] };
        let done: TxnDone = ask(&self.0, "/etcdserverpb.KV/Txn", txn).await.expect("etcd answers");
        assert!(done.succeeded, "nobody else has this key");
        done.header.expect("every answer has one").revision as u64
    }
}

impl Caller for EtcdCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.put_if(Compare { target: 1, key, created: Some(0), changed: None }, Bytes::from_static(&[7; 32])).await
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.put_if(Compare { target: 2, key, created: None, changed: Some(fence as i64) }, outcome).await;
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        let range = Range { key: Bytes::copy_from_slice(key.as_bytes()) };
        let ranged: Ranged = ask(&self.0, "/etcdserverpb.KV/Range", range).await.expect("etcd answers");
        ranged.kvs.into_iter().next().expect("the key is there").value
    }
}
