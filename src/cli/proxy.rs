//! `semel proxy`: the Idempotency-Key door before a service, with a node of its own or before a cluster.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{call::secret, failure::Failure, node};
use crate::{
    Client,
    client::Builder,
    config::{Config as NodeConfig, Exposure, Overrides, Purpose, Source},
    door::{
        config::{Config, ConfigError},
        engine,
        inside::Inside,
        serving::{Options, Serving},
    },
    net::{Net, TcpNet},
    node::{Node, World},
    tls::Trust,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel proxy --dev --upstream http://127.0.0.1:3000
  semel proxy --dev --upstream http://127.0.0.1:3000 --config door.toml --admin-listen 127.0.0.1:7173
  semel proxy --endpoint http://127.0.0.1:7171 --token @door.token --upstream http://127.0.0.1:3000

Then: curl -i -X POST -H 'Idempotency-Key: order-7' -d '{}' http://127.0.0.1:8080/orders, twice.

With --dev the proxy has a node of its own in ./semel-dev and opens no other port, unless --api-listen or --admin-listen
says so. SIGTERM and Ctrl-C let what runs come to its end. SEMEL_LOG=debug says more.")]
pub(super) struct Proxy {
    /// The service: http://HOST:PORT, or https://HOST:PORT with --upstream-ca.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Whose certificates are taken from an https:// service, PEM.
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// Where callers connect.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Routes and what holds for all of them.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Remember keys in a node of the proxy's own.
    #[arg(long)]
    dev: bool,
    /// The directory of that node.
    #[arg(long, requires = "dev", default_value = "./semel-dev", value_name = "DIR")]
    data_dir: String,
    /// Let clients of that node connect here: gRPC and HTTP/JSON.
    #[arg(long, requires = "dev", value_name = "HOST:PORT")]
    api_listen: Option<SocketAddr>,
    /// Let operators of that node connect here: metrics, health, the pages of problems.
    #[arg(long, requires = "dev", value_name = "HOST:PORT")]
    admin_listen: Option<SocketAddr>,
    /// Show metrics here: http://HOST:PORT/metrics.
    #[arg(long, value_name = "HOST:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Remember keys in this cluster: http://HOST:PORT, or https://HOST:PORT with --ca. Several with commas.
    #[arg(long, env = "SEMEL_ENDPOINT", value_name = "URL")]
    endpoint: Option<String>,
    /// The token to show there, or @FILE that holds one.
    #[arg(long, env = "SEMEL_TOKEN", value_name = "TOKEN|@FILE", hide_env_values = true)]
    token: Option<String>,
    /// Whose certificates are taken from https:// nodes, PEM.
    #[arg(long, env = "SEMEL_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate to present to them, PEM.
    #[arg(long, env = "SEMEL_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Its key.
    #[arg(long = "key", env = "SEMEL_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Send the token unencrypted to a node that isn't on this machine.
    #[arg(long)]
    insecure_plaintext_clients: bool,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}

/// Where the node inside this process listens, where nobody outside can connect.
const INSIDE: [SocketAddr; 3] = [inside(1), inside(2), inside(3)];

const fn inside(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The bytes of a file that was named.
pub(super) fn file(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(fs::read(path).with_context(|| path.display().to_string())?)
}

impl Proxy {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        if !self.dev && self.endpoint.is_none() {
            let text = "proxy wants a place to remember keys: --endpoint URL, or --dev for a node of its own";
            return Err(Failure::Usage(text.to_owned()));
        }
        let node = self.dev.then(|| self.node()).transpose()?;
        let trust = match &self.upstream_ca {
            None => None,
            Some(path) => Some(Trust::new(&file(path)?, None).map_err(|error| Failure::Usage(error.to_string()))?),
        };
        node::log("warn,openraft=error");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
        let ended = runtime.block_on(self.serve(config, node, trust));
        #[cfg(feature = "otel")]
        super::traces::end();
        // A thread that hangs in the file system must not keep the process.
        runtime.shutdown_background();
        ended
    }

    /// The settings of the node inside, and the network that it is on.
    fn node(&self) -> Result<(NodeConfig, Inside), Failure> {
        let [api, peers, admin] = INSIDE;
        let (api, admin) = (self.api_listen.unwrap_or(api), self.admin_listen.unwrap_or(admin));
        let source = Source::default().with(Overrides {
            data_dir: Some(self.data_dir.clone()),
            listen: Some(api.to_string()),
            peer_listen: Some(peers.to_string()),
            admin_listen: Some(admin.to_string()),
            ..Overrides::default()
        });
        let config = source.check(Purpose::Dev, Exposure::default())?;
        let outside = [self.api_listen, self.admin_listen].into_iter().flatten().collect();
        Ok((config, Inside::but_for(outside)))
    }

    fn store(&self, node: Option<(&Node, &Inside)>) -> Result<Client, Failure> {
        let mut store: Builder = engine::patience(Client::builder());
        match (node, &self.endpoint) {
            (Some((node, net)), _) => {
                store = store.endpoint(format!("http://{}", node.listen())).net(Arc::new(net.clone()));
            }
            (None, Some(endpoint)) => {
                store = store.endpoint(endpoint.as_str());
                if let Some(token) = &self.token {
                    store = store.token(secret(token)?);
                }
                if let Some(ca) = &self.ca {
                    store = store.ca(file(ca)?);
                }
                if let (Some(cert), Some(key)) = (&self.cert, &self.cert_key) {
                    store = store.certificate(file(cert)?, file(key)?);
                }
                if self.insecure_plaintext_clients {
                    store = store.insecure_plaintext();
                }
            }
            (None, None) => {}
        }
        store.connect_lazy().map_err(|error| Failure::Usage(error.to_string()))
    }

    async fn serve(
        &self,
        config: Config,
        node: Option<(NodeConfig, Inside)>,
        trust: Option<Trust>,
    ) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let net = TcpNet::default();
        let listener = net.listen(self.listen).await.with_context(|| format!("can't listen on {}", self.listen))?;
        let metrics = match self.metrics_listen {
            None => None,
            Some(at) => Some(net.listen(at).await.with_context(|| format!("can't listen on {at}"))?),
        };
        let node = match node {
            None => None,
            Some((config, inside)) => {
                let world = World { net: Arc::new(inside.clone()), ..World::real(&config) };
                Some((Node::start_in(config, world).await.map_err(anyhow::Error::new)?, inside))
            }
        };
        let store = self.store(node.as_ref().map(|(node, inside)| (node, inside)))?;
        let help = node.as_ref().filter(|_| self.admin_listen.is_some());
        let help = help.map(|(node, _)| format!("http://{}/problems/", node.admin_listen()));
        let options = Options {
            listener,
            store,
            config,
            upstream: self.upstream.clone(),
            trust,
            net: Arc::new(net),
            metrics,
            help,
        };
        let serving = Serving::start(options).map_err(|error| Failure::Usage(error.to_string()))?;
        self.welcome(&serving, node.as_ref().map(|(node, _)| node));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if !serving.stop().await {
            tracing::warn!("not everything ended in time; what was sent and not reported becomes indeterminate");
        }
        if let Some((node, _)) = node {
            node.stop().await;
        }
        Ok(())
    }

    fn welcome(&self, serving: &Serving, node: Option<&Node>) {
        let scheme = serving.scheme();
        let keys = match (node, &self.endpoint) {
            (Some(_), _) => format!("in {}", self.data_dir),
            (None, Some(endpoint)) => format!("at {endpoint}"),
            (None, None) => String::new(),
        };
        println!("semel proxy: {scheme}://{} before {}, keys remembered {keys}", serving.listen(), self.upstream);
        if let Some(metrics) = serving.metrics_listen() {
            println!("  metrics    http://{metrics}/metrics");
        }
        if let Some(node) = node {
            if self.api_listen.is_some() {
                println!("  clients    http://{}", node.listen());
            }
            if self.admin_listen.is_some() {
                println!("  operators  http://{}", node.admin_listen());
            }
        }
        println!("Ctrl-C ends it, once what runs has ended.");
    }
}
