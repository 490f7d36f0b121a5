//! `semel dev` and `semel serve`: a node in this process, until it is told to stop.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;
use crate::{
    config::{Exposure, Overrides, Purpose, Source},
    limits,
    node::{Node, NodeError},
};

/// Where a node listens, and where it keeps what it is told: goes before the configuration file.
#[derive(Debug, Args)]
struct Places {
    /// Where clients connect.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where other nodes connect.
    #[arg(long, value_name = "HOST:PORT")]
    peer_listen: Option<String>,
    /// Where operators and monitoring connect: /healthz, /readyz, /metrics, /v1/status.
    #[arg(long, value_name = "HOST:PORT")]
    admin_listen: Option<String>,
    /// The directory of the node.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// The engine of the store.
    #[arg(long, value_name = "fjall|sled")]
    store: Option<String>,
    /// Take calls by the tokens of this file alone.
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// Let clients connect unencrypted from other machines.
    #[arg(long)]
    insecure_plaintext_clients: bool,
    /// Let peers connect unencrypted from other machines.
    #[arg(long)]
    insecure_plaintext_peers: bool,
    /// Let operators connect unencrypted from other machines.
    #[arg(long)]
    insecure_plaintext_admin: bool,
    /// Take calls from other machines without any credential.
    #[arg(long)]
    insecure_no_authentication: bool,
}

impl Places {
    fn overrides(&self) -> Overrides {
        Overrides {
            node_id: None,
            data_dir: self.data_dir.clone(),
            listen: self.listen.clone(),
            peer_listen: self.peer_listen.clone(),
            admin_listen: self.admin_listen.clone(),
            advertise: None,
            peer_advertise: None,
            store: self.store.clone(),
            token_file: self.token_file.clone(),
        }
    }

    fn exposure(&self) -> Exposure {
        Exposure {
            plaintext_clients: self.insecure_plaintext_clients,
            plaintext_peers: self.insecure_plaintext_peers,
            plaintext_admin: self.insecure_plaintext_admin,
            no_authentication: self.insecure_no_authentication,
        }
    }
}

/// One node, ready to take claims, open on loopback.
#[derive(Debug, Args)]
#[command(after_help = "Example: semel dev --data-dir /tmp/semel")]
pub(super) struct Dev {
    #[command(flatten)]
    places: Places,
}

/// A node by its configuration file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  semel serve --print-config > semel.toml\n  semel serve --config semel.toml")]
pub(super) struct Serve {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print every key with its documentation and the value it would have, and exit.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    places: Places,
}

/// The directory of `semel dev` where none is named.
const DEV_DIR: &str = "semel-dev";

impl Dev {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let dir = self.places.data_dir.get_or_insert_with(|| DEV_DIR.into()).clone();
        let source = Source::default().with(self.places.overrides());
        let config = source.check(Purpose::Dev, self.places.exposure()).map_err(usage)?;
        run(async move {
            let node = Node::start(config).await.map_err(failed)?;
            let (listen, admin) = (node.listen(), node.admin_listen());
            println!("semel {} is ready on http://{listen}, its data in {dir}", env!("CARGO_PKG_VERSION"));
            println!("Try, in another terminal (the second time it is answered by what stands, not run again):");
            println!(
                "  curl -s http://{listen}/v1/claim -d '{{\"record\":{{\"operation\":\"POST /v1/charges\",\"key\":\"k-1\"}},\"request\":{{\"amount\":100}}}}'"
            );
            println!("  semel list --endpoint http://{listen}        curl -s http://{admin}/v1/status");
            println!("Ctrl-C ends it.");
            Ok(node)
        })
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        let source = match &self.config {
            Some(path) => Source::read(path).map_err(usage)?,
            None => Source::default(),
        };
        let source = source.with(self.places.overrides());
        if self.print_config {
            print!("{}", source.settings().print());
            return Ok(());
        }
        if self.config.is_none() {
            let text = "serve wants --config FILE; `semel serve --print-config > semel.toml` makes one to start from";
            return Err(Failure::Usage(text.into()));
        }
        let config = source.check(Purpose::Serve, self.places.exposure()).map_err(usage)?;
        run(async move {
            let node = Node::start(config).await.map_err(failed)?;
            println!(
                "semel {} answers on {}, operators on {}",
                env!("CARGO_PKG_VERSION"),
                node.listen(),
                node.admin_listen()
            );
            Ok(node)
        })
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}

fn failed(error: NodeError) -> Failure {
    Failure::Failed(anyhow::Error::new(error))
}

/// Starts a node and runs it until SIGTERM or Ctrl-C; then stops it in order, within a bound.
fn run(start: impl Future<Output = Result<Node, Failure>>) -> Result<(), Failure> {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,semel=info,openraft=error"));
    // A second subscriber is another's, in a test: then that one is told.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start the runtime")?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("can't wait for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("can't wait for Ctrl-C")?;
        let node = start.await?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let stopped = tokio::time::timeout(Duration::from_millis(limits::NODE_STOP_MS), node.stop()).await;
        if stopped.is_err() {
            tracing::warn!("the node did not stop in time; what was acknowledged is durable all the same");
        }
        Ok(())
    });
    runtime.shutdown_background();
    ended
}
