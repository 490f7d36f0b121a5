//! A proxy, its node and an upstream in this process.

use std::{path::Path, sync::Arc, time::Duration};

use semel::{
    Client,
    config::{Exposure, Overrides, Purpose, Source},
    door::{
        config::Config,
        engine,
        serving::{Options, Serving},
    },
    net::{Net, TcpNet},
    node::Node,
    proto::v1,
    tls::Trust,
};

use super::{Asked, Reply, Upstream};

/// All three, and a client of the node.
pub struct Setting {
    pub upstream: Upstream,
    pub serving: Serving,
    pub client: Client,
    node: Option<Node>,
    // Removed last.
    _dir: tempfile::TempDir,
}

impl Setting {
    /// A proxy with the defaults before this upstream.
    pub async fn before(upstream: Upstream) -> Self {
        Self::with("", upstream).await
    }

    /// A proxy with this configuration before this upstream.
    pub async fn with(config: &str, upstream: Upstream) -> Self {
        let url = format!("http://{}", upstream.address());
        Self::at(config, upstream, &url).await
    }

    /// The same, but requests go to this URL.
    pub async fn at(config: &str, upstream: Upstream, url: &str) -> Self {
        Self::trusting(config, upstream, url, None).await
    }

    /// The same, which takes these certificates from the upstream.
    pub async fn trusting(config: &str, upstream: Upstream, url: &str, trust: Option<Trust>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path()).await;
        let endpoint = format!("http://{}", node.listen());
        let client = Client::builder().endpoint(&endpoint).tenant("default").connect().await.unwrap();
        let store = engine::patience(Client::builder().endpoint(&endpoint)).connect_lazy().unwrap();
        let net = TcpNet::default();
        let metrics = net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let options = Options {
            listener: net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap(),
            store,
            config: Config::parse(Path::new("door.toml"), config).unwrap(),
            upstream: url.to_owned(),
            trust,
            net: Arc::new(net),
            metrics: Some(metrics),
            help: None,
        };
        Self { upstream, serving: Serving::start(options).unwrap(), client, node: Some(node), _dir: dir }
    }

    /// Where the node is.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.node.as_ref().unwrap().listen())
    }

    /// Sends a request over a connection of its own, and reads the answer.
    pub async fn ask(&self, asked: Asked) -> Reply {
        asked.send(self.serving.listen()).await
    }

    /// `POST /orders` with this key and a small JSON body.
    pub async fn order(&self, key: &str) -> Reply {
        self.ask(Asked::order(key)).await
    }

    /// The record of this key under `POST /orders`.
    pub async fn record(&self, key: &str) -> Option<v1::Record> {
        self.record_of("POST /orders", key).await
    }

    /// The record of this key under this operation.
    pub async fn record_of(&self, operation: &str, key: &str) -> Option<v1::Record> {
        let record = v1::RecordId { operation: operation.to_owned(), key: key.to_owned(), ..v1::RecordId::default() };
        self.client.get(v1::GetRequest { record: Some(record), with_outcome: Some(true) }).await.ok()
    }

    /// The record of this key under `POST /orders`, of another tenant and principal.
    pub async fn record_as(&self, tenant: &str, principal: &str, key: &str) -> Option<v1::Record> {
        let record = v1::RecordId {
            tenant: Some(tenant.to_owned()),
            principal: Some(principal.to_owned()),
            operation: "POST /orders".to_owned(),
            key: key.to_owned(),
        };
        self.client.get(v1::GetRequest { record: Some(record), with_outcome: None }).await.ok()
    }

    /// The state of that record.
    pub async fn state(&self, key: &str) -> Option<v1::State> {
        self.record(key).await.map(|record| record.state())
    }

    /// Waits until that record is in this state.
    pub async fn becomes(&self, key: &str, state: v1::State) {
        until(&format!("{key} is {state:?}"), async || self.state(key).await == Some(state)).await;
    }

    /// Waits until there is no such record.
    pub async fn is_free(&self, key: &str) {
        until(&format!("{key} is free"), async || self.state(key).await.is_none()).await;
    }

    /// Stops the node, and leaves the proxy without a store.
    pub async fn lose_store(&mut self) {
        self.node.take().unwrap().stop().await;
    }
}

async fn node(dir: &Path) -> Node {
    let port = || Some("127.0.0.1:0".to_owned());
    let source = Source::default().with(Overrides {
        data_dir: Some(dir.display().to_string()),
        listen: port(),
        peer_listen: port(),
        admin_listen: port(),
        ..Overrides::default()
    });
    Node::start(source.check(Purpose::Dev, Exposure::default()).unwrap()).await.unwrap()
}

/// Waits until it holds, for half a minute at most.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}
