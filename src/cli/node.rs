//! `semel serve`, and running one node in this process until a signal ends it.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::{
    config::{Config, ConfigError, Exposure, Overrides, Purpose, Source},
    limits,
    node::{Node, NodeError},
};

use super::failure::Failure;

/// What `serve` says by default.
const SERVE_LOG: &str = "warn,semel=info,openraft=error";
/// Says which logs there are, before anything else does.
const LOG_VARIABLE: &str = "SEMEL_LOG";
/// What `dev` says by default.
pub(super) const DEV_LOG: &str = "warn,openraft=error";

/// What both commands can be told.
#[derive(Debug, Args)]
pub(super) struct NodeFlags {
    /// The directory that holds everything.
    #[arg(long, env = "SEMEL_DATA_DIR", value_name = "DIR")]
    pub(super) data_dir: Option<String>,
    /// Where clients connect: gRPC and HTTP/JSON.
    #[arg(long, env = "SEMEL_LISTEN", value_name = "HOST:PORT")]
    pub(super) listen: Option<String>,
    /// Where the other nodes connect.
    #[arg(long, env = "SEMEL_PEER_LISTEN", value_name = "HOST:PORT")]
    pub(super) peer_listen: Option<String>,
    /// Metrics, health, the cluster's own calls.
    #[arg(long, env = "SEMEL_ADMIN_LISTEN", value_name = "HOST:PORT")]
    pub(super) admin_listen: Option<String>,
    /// The address that clients are told.
    #[arg(long, env = "SEMEL_ADVERTISE", value_name = "HOST:PORT")]
    pub(super) advertise: Option<String>,
    /// The address that the other nodes are told.
    #[arg(long, env = "SEMEL_PEER_ADVERTISE", value_name = "HOST:PORT")]
    pub(super) peer_advertise: Option<String>,
    /// The engine: fjall or sled.
    #[arg(long, env = "SEMEL_STORE", value_name = "ENGINE")]
    pub(super) store: Option<String>,
    /// Who may call, a TOML file of tokens.
    #[arg(long, env = "SEMEL_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<String>,
    /// Let clients connect from other machines, unencrypted.
    #[arg(long)]
    pub(super) insecure_plaintext_clients: bool,
    /// Let the other nodes connect from other machines, unencrypted.
    #[arg(long)]
    pub(super) insecure_plaintext_peers: bool,
    /// Let operators connect from other machines, unencrypted.
    #[arg(long)]
    pub(super) insecure_plaintext_admin: bool,
}

impl NodeFlags {
    pub(super) fn overrides(&self, node_id: Option<u64>) -> Overrides {
        Overrides {
            node_id,
            data_dir: self.data_dir.clone(),
            listen: self.listen.clone(),
            peer_listen: self.peer_listen.clone(),
            admin_listen: self.admin_listen.clone(),
            advertise: self.advertise.clone(),
            peer_advertise: self.peer_advertise.clone(),
            store: self.store.clone(),
            token_file: self.token_file.clone(),
        }
    }

    pub(super) fn exposure(&self, no_authentication: bool) -> Exposure {
        Exposure {
            plaintext_clients: self.insecure_plaintext_clients,
            plaintext_peers: self.insecure_plaintext_peers,
            plaintext_admin: self.insecure_plaintext_admin,
            no_authentication,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel serve --print-config > semel.toml
  semel serve --config semel.toml
  semel cluster init --node 1=127.0.0.1:7172,127.0.0.1:7171     (once, in another terminal)

Flags and SEMEL_… variables go before the file. SEMEL_LOG=debug says more. SIGHUP has the token file, certificates and the
configuration's `log` read again; SIGTERM ends the node once what is in flight is answered. Whoever calls shows a token:
`semel cluster init --admin-token-file` makes the first, `semel token create` all others.")]
pub(super) struct Serve {
    /// The configuration.
    #[arg(long, env = "SEMEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration as it would be used, every key explained, and end.
    #[arg(long)]
    print_config: bool,
    /// The number of this node.
    #[arg(long, env = "SEMEL_NODE_ID", value_name = "N")]
    node_id: Option<u64>,
    #[command(flatten)]
    flags: NodeFlags,
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        match error {
            // As a wrong configuration: nothing was opened or changed.
            NodeError::Keys(error) => Failure::Usage(error.to_string()),
            error => Failure::Failed(error.into()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        let source = self.config.as_deref().map_or_else(|| Ok(Source::default()), Source::read)?;
        let exposure = self.flags.exposure(false);
        let source = source.with(self.flags.overrides(self.node_id));
        if self.print_config {
            print!("{}", source.settings().print());
            return Ok(());
        }
        if self.config.is_none() {
            let text = "serve wants --config FILE; `semel serve --print-config > semel.toml` makes one to start from";
            return Err(Failure::Usage(text.to_owned()));
        }
        let config = source.check(Purpose::Serve, exposure)?;
        let filter = log(source.settings().log.as_deref().unwrap_or(SERVE_LOG));
        keep_memory_off_the_disk();
        open_many_files();
        let file = self.config;
        run(config, AtHangup::Reload(Box::new(move || filter.read_again(file.as_deref()))), |config, node| {
            let (listen, admin) = (node.listen(), node.admin_listen());
            tracing::info!(node_id = config.node_id, %listen, %admin, "serving");
        })
    }
}

/// What SIGHUP means: to a service, that its files have changed; to a command in a terminal, that the terminal is gone.
pub(super) enum AtHangup {
    /// The node reads its files again; and whoever runs it, this.
    Reload(Box<dyn Fn()>),
    Stop,
}

/// Runs a node until SIGTERM or Ctrl-C: then it takes no more, answers what is in flight, and closes its files.
pub(super) fn run(config: Config, at_hangup: AtHangup, started: impl FnOnce(&Config, &Node)) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
    let ended = runtime.block_on(async {
        // Listened to before the start: a signal during it ends the node too.
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let mut hangup = signal(SignalKind::hangup()).context("SIGHUP")?;
        let signalled = async {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "Ctrl-C",
            }
        };
        tokio::pin!(signalled);
        let node = tokio::select! {
            node = Node::start(config.clone()) => node?,
            _ = &mut signalled => return Ok(()),
        };
        started(&config, &node);
        let reason = loop {
            tokio::select! {
                signal = &mut signalled => break signal,
                () = node.removed() => break "this node was removed from its cluster",
                _ = hangup.recv() => match &at_hangup {
                    AtHangup::Reload(read_again) => {
                        tracing::info!("SIGHUP: files are read again");
                        read_again();
                        node.reload().await;
                    }
                    AtHangup::Stop => break "SIGHUP",
                },
            }
        };
        tracing::info!(reason, "stopping");
        if tokio::time::timeout(Duration::from_millis(limits::NODE_STOP_MS), node.stop()).await.is_err() {
            tracing::warn!("not everything ended in time; what was acknowledged is durable all the same");
        }
        Ok(())
    });
    #[cfg(feature = "otel")]
    super::traces::end();
    // A thread that hangs in the file system must not keep the process.
    runtime.shutdown_background();
    ended
}

/// A core dump would hold callers' outcomes and credentials.
fn keep_memory_off_the_disk() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        tracing::warn!(%error, "core dumps can't be turned off");
    }
}

/// Each connection is an open file, and shells allow few at first: what they allow at most is taken.
pub(super) fn open_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, ?current, ?maximum, "the limit of open files can't be raised");
    }
}

/// The filter that is in force, where this process decides on it.
pub(super) struct Filter {
    handle: Option<reload::Handle<EnvFilter, Registry>>,
}

impl Filter {
    /// Takes the filter of this file from now on, where the environment names none. What is none leaves the one before.
    fn read_again(&self, file: Option<&Path>) {
        let (Some(handle), Some(file), Err(_)) = (&self.handle, file, EnvFilter::try_from_env(LOG_VARIABLE)) else {
            return;
        };
        let named = match Source::read(file) {
            Ok(source) => source.settings().log.clone().unwrap_or_else(|| SERVE_LOG.to_owned()),
            Err(error) => return tracing::error!(%error, "the log filter stays as it was"),
        };
        let in_force = handle.with_current(ToString::to_string).unwrap_or_default();
        match EnvFilter::try_new(&named) {
            Ok(filter) if filter.to_string() == in_force => {}
            // Where it can't be put in force, the subscriber is gone: the process ends.
            Ok(filter) => {
                if handle.reload(filter).is_ok() {
                    tracing::info!("the log filter is now {named}");
                }
            }
            Err(error) => tracing::error!(%error, named, "the log filter stays as it was"),
        }
    }
}

/// Logs go to stderr; SEMEL_LOG says which.
pub(super) fn log(default: &str) -> Filter {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).or_else(|_| EnvFilter::try_new(default));
    let (filter, handle) = reload::Layer::new(filter.unwrap_or_else(|_| EnvFilter::new(SERVE_LOG)));
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // Somebody who embeds this may have a subscriber; theirs stays.
    let registry = tracing_subscriber::registry();
    // What is written doesn't say what is traced.
    #[cfg(feature = "otel")]
    let is_ours = {
        use tracing_subscriber::Layer;
        registry.with(lines.with_filter(filter)).with(super::traces::layer()).try_init().is_ok()
    };
    #[cfg(not(feature = "otel"))]
    let is_ours = registry.with(filter).with(lines).try_init().is_ok();
    Filter { handle: is_ours.then_some(handle) }
}
