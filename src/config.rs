//! What a node is told: a file, the environment and flags become one checked [`Config`].
//!
//! Keys, defaults and their documentation stand in [`settings`]; here they are read, laid over each other and judged.
//! Whatever is wrong ends the start with status 2 and one line that names the file, the line and the key.

mod certified;
mod console;
mod exposure;
mod jwt;
mod keys;
mod protection;
mod requests;
pub mod settings;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs, io,
    net::{SocketAddr, ToSocketAddrs},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use exposure::check_exposure;
use keys::{check_keys, offset_of, place};
pub use protection::Tls;
pub use requests::Requests;
use settings::{AuthSettings, LimitSettings, RaftSettings, Settings};

use crate::{
    auth::{TokenText, certificate::CertifiedCaller, jwt::Rules},
    id::NodeId,
    limits,
    seal::key_file::KeySource,
};

/// Everything that a node needs to know before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its number.
    pub node_id: NodeId,
    /// Its directory.
    pub data_dir: PathBuf,
    /// The name of its cluster.
    pub cluster_name: String,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where other nodes connect.
    pub peer_listen: SocketAddr,
    /// Where operators and monitoring connect.
    pub admin_listen: SocketAddr,
    /// What clients are told. None: the address that `listen` was bound to.
    pub advertise: Option<String>,
    /// What the other nodes are told. None: the address that `peer_listen` was bound to.
    pub peer_advertise: Option<String>,
    /// The engine of the store.
    pub store: StoreKind,
    /// Timing of consensus.
    pub raft: RaftTimes,
    /// What the node does at most.
    pub limits: NodeLimits,
    /// Encryption.
    pub tls: Tls,
    /// The console.
    pub console: crate::console::Options,
    /// Whether metrics tell tenants by name.
    pub tenant_labels: bool,
    /// Where the keys are under which everything is sealed; none: nothing is.
    pub seal: Option<KeySource>,
    /// Who may call.
    pub access: Access,
    /// Who may show a certificate instead of a token.
    pub certified: Vec<CertifiedCaller>,
    /// Whose JSON Web Tokens count too; none: nobody's.
    pub jwt: Option<Rules>,
    /// The token with which its cluster is formed, where it forms it by itself.
    pub first_token: Option<TokenText>,
    /// How its cluster comes to be.
    pub forming: Forming,
    /// Where members are, whatever the membership says: of a cluster on one machine, whose ports are the command line's.
    pub members: BTreeMap<NodeId, MemberAt>,
}

/// Where a member is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAt {
    /// By other members.
    pub peer: String,
    /// By clients.
    pub client: String,
}

/// An engine of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The default.
    Fjall,
    /// The other one.
    Sled,
    /// Nothing on the disk but the log and the snapshots: for development.
    Memory,
}

impl StoreKind {
    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Fjall => "fjall",
            StoreKind::Sled => "sled",
            StoreKind::Memory => "memory",
        }
    }
}

/// Timing of consensus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTimes {
    /// Between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// Shortest time without a leader before an election.
    pub election_min: Duration,
    /// Longest time without a leader before an election.
    pub election_max: Duration,
}

/// What a node does at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Size of a segment of the log.
    pub wal_segment_bytes: u64,
    /// Size of the log at which a snapshot is taken, unless the last one is larger.
    pub snapshot_log_bytes: u64,
    /// Bytes of the disk that are held back, where they are named.
    pub disk_reserve: Option<u64>,
    /// How long a proposed command is waited for.
    pub propose_timeout: Duration,
    /// From the beginning of one round of checking the disk to the next one's.
    pub scrub: Duration,
    /// Connections of clients.
    pub connections_max: usize,
    /// Connections from one address.
    pub connections_per_address_max: usize,
    /// How long a connection may be open without a request.
    pub idle: Duration,
    /// How long a connection may be open without a good credential.
    pub unauthenticated: Duration,
    /// Calls without a good credential from one address, a second.
    pub authentication_failures_per_s: u32,
    /// Requests as they arrive.
    pub requests: Requests,
}

impl NodeLimits {
    /// Bytes of the disk that are held back.
    pub fn disk_reserve_bytes(&self) -> u64 {
        self.disk_reserve.unwrap_or(limits::DISK_RESERVE_SEGMENTS * self.wal_segment_bytes)
    }
}

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, everything.
    Open,
    /// Whoever has a token of this file.
    TokenFile(PathBuf),
    /// Whoever has a token of the log.
    Closed,
}

/// How a node's cluster comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forming {
    /// By itself, with this one node, when the directory is new.
    ByItself,
    /// On `semel cluster init`.
    OnInit,
}

/// What the node is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `semel dev`: one open node that forms its own cluster.
    Dev,
    /// `semel serve`.
    Serve,
}

/// What flags and the environment say; goes before the file.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each is the key of the same name in `settings`")]
pub struct Overrides {
    pub node_id: Option<u64>,
    pub data_dir: Option<String>,
    pub listen: Option<String>,
    pub peer_listen: Option<String>,
    pub admin_listen: Option<String>,
    pub advertise: Option<String>,
    pub peer_advertise: Option<String>,
    pub store: Option<String>,
    pub token_file: Option<String>,
}

/// What the command line allows a node to do unprotected. Never in the file: a copied file must not carry it along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// `--insecure-plaintext-clients`.
    pub plaintext_clients: bool,
    /// `--insecure-plaintext-peers`.
    pub plaintext_peers: bool,
    /// `--insecure-plaintext-admin`.
    pub plaintext_admin: bool,
    /// `--insecure-no-authentication`.
    pub no_authentication: bool,
}

/// Why there is no configuration. Ends the start with status 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Not TOML, or a value of the wrong type.
    #[error("{place}: {reason}")]
    Shape {
        /// File and line.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A key that there is not.
    #[error("{place}: unknown key `{key}`{hint}; `semel serve --print-config` shows all keys")]
    UnknownKey {
        /// File and line.
        place: String,
        /// The key with its table.
        key: String,
        /// `; did you mean …?`, or nothing.
        hint: String,
    },
    /// A value outside its bounds.
    #[error("{place}`{key}` {reason}")]
    Value {
        /// File and line with a colon, or nothing where it came from a flag.
        place: String,
        /// The key with its table.
        key: &'static str,
        /// What it must be.
        reason: String,
    },
    /// A listener that others can reach, unprotected.
    #[error(
        "`{key}` = {address} can be reached from other machines: listen on loopback (127.0.0.1), {instead}or say {flag} if {consequence}"
    )]
    Exposed {
        /// The key.
        key: &'static str,
        /// Its address.
        address: SocketAddr,
        /// What else would protect it, with a comma; or nothing.
        instead: &'static str,
        /// The flag that allows it.
        flag: &'static str,
        /// What that means.
        consequence: &'static str,
    },
}

/// Settings, and where they came from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    settings: Settings,
    file: Option<(PathBuf, String)>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, text)
    }

    /// Reads this text of a file of that name.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line and key.
    pub fn parse(path: &Path, text: String) -> Result<Self, ConfigError> {
        let shape = |error: toml::de::Error| ConfigError::Shape {
            place: place(path, &text, error.span().map_or(0, |span| span.start)),
            reason: error.message().replace('\n', " "),
        };
        let tables = toml::de::DeTable::parse(&text).map_err(shape)?;
        check_keys(path, &text, tables.get_ref())?;
        let settings = toml::from_str(&text).map_err(shape)?;
        Ok(Self { settings, file: Some((path.to_owned(), text)) })
    }

    /// Lays flags and the environment over it.
    pub fn with(mut self, overrides: Overrides) -> Self {
        let settings = &mut self.settings;
        let replace = |key: &mut String, value: Option<String>| *key = value.unwrap_or_else(|| std::mem::take(key));
        settings.node_id = overrides.node_id.unwrap_or(settings.node_id);
        replace(&mut settings.data_dir, overrides.data_dir);
        replace(&mut settings.listen, overrides.listen);
        replace(&mut settings.peer_listen, overrides.peer_listen);
        replace(&mut settings.admin_listen, overrides.admin_listen);
        replace(&mut settings.store, overrides.store);
        settings.advertise = overrides.advertise.or(settings.advertise.take());
        settings.peer_advertise = overrides.peer_advertise.or(settings.peer_advertise.take());
        settings.auth.token_file = overrides.token_file.or(settings.auth.token_file.take());
        self
    }

    /// The settings as they stand.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`ConfigError`] for the first key that breaks its rule.
    pub fn check(&self, purpose: Purpose, exposure: Exposure) -> Result<Config, ConfigError> {
        let settings = &self.settings;
        let node_id = self.within("node_id", settings.node_id, 1..=u64::MAX)?;
        if settings.data_dir.is_empty() {
            return Err(self.value("data_dir", "must name a directory"));
        }
        let listen = self.address("listen", &settings.listen)?;
        let peer_listen = self.address("peer_listen", &settings.peer_listen)?;
        let admin_listen = self.address("admin_listen", &settings.admin_listen)?;
        self.check_apart([("listen", listen), ("peer_listen", peer_listen), ("admin_listen", admin_listen)])?;
        let tls = self.tls(&settings.tls, &settings.limits)?;
        check_exposure(purpose, self.allowed(exposure), [listen, peer_listen, admin_listen], &tls)?;
        Ok(Config {
            node_id,
            data_dir: PathBuf::from(&settings.data_dir),
            cluster_name: self.cluster_name()?,
            listen,
            peer_listen,
            admin_listen,
            advertise: self.told("advertise", settings.advertise.as_deref())?,
            peer_advertise: self.told("peer_advertise", settings.peer_advertise.as_deref())?,
            store: self.store(purpose)?,
            raft: self.raft(&settings.raft)?,
            limits: self.limits(&settings.limits)?,
            console: self.console(&settings.console)?,
            tenant_labels: settings.metrics.tenant_labels,
            tls,
            seal: self.seal(&settings.seal)?,
            access: self.access(purpose, &settings.auth)?,
            certified: self.certified(&settings.auth)?,
            jwt: self.jwt(&settings.auth.jwt)?,
            forming: match purpose {
                Purpose::Dev => Forming::ByItself,
                Purpose::Serve => Forming::OnInit,
            },
            first_token: None,
            members: BTreeMap::new(),
        })
    }

    fn raft(&self, raft: &RaftSettings) -> Result<RaftTimes, ConfigError> {
        let heartbeat = self.within("raft.heartbeat_ms", raft.heartbeat_ms, limits::HEARTBEAT_MS)?;
        // Two lost heartbeats must not call an election.
        let min =
            self.within("raft.election_ms_min", raft.election_ms_min, heartbeat * 3..=limits::ELECTION_MS_LIMIT)?;
        let max =
            self.within("raft.election_ms_max", raft.election_ms_max, min + heartbeat..=limits::ELECTION_MS_LIMIT * 2)?;
        let [heartbeat, election_min, election_max] = [heartbeat, min, max].map(Duration::from_millis);
        Ok(RaftTimes { heartbeat, election_min, election_max })
    }

    fn limits(&self, limits: &LimitSettings) -> Result<NodeLimits, ConfigError> {
        let count = |key, value| {
            let value = self.within(key, value, 1..=limits::COUNT_LIMIT)?;
            Ok(usize::try_from(value).expect("the limit fits every machine's usize"))
        };
        let hours = self.within("limits.scrub_hours", limits.scrub_hours, 1..=limits::SCRUB_HOURS_LIMIT)?;
        let timeout_ms =
            self.within("limits.propose_timeout_ms", limits.propose_timeout_ms, limits::PROPOSE_TIMEOUT_MS)?;
        Ok(NodeLimits {
            wal_segment_bytes: self.within(
                "limits.wal_segment_bytes",
                limits.wal_segment_bytes,
                limits::WAL_SEGMENT_BYTES,
            )?,
            snapshot_log_bytes: self.within(
                "limits.snapshot_log_bytes",
                limits.snapshot_log_bytes,
                limits::SNAPSHOT_LOG_BYTES_MIN..=u64::MAX,
            )?,
            disk_reserve: Some(limits.disk_reserve_bytes).filter(|bytes| *bytes > 0),
            propose_timeout: Duration::from_millis(timeout_ms),
            scrub: Duration::from_secs(hours * 3600),
            connections_max: count("limits.connections_max", limits.connections_max)?,
            connections_per_address_max: count(
                "limits.connections_per_address_max",
                limits.connections_per_address_max,
            )?,
            authentication_failures_per_s: self.failures(limits)?,
            requests: self.requests(limits)?,
            unauthenticated: Duration::from_millis(self.within(
                "limits.unauthenticated_timeout_ms",
                limits.unauthenticated_timeout_ms,
                limits::UNAUTHENTICATED_TIMEOUT_MS,
            )?),
            idle: Duration::from_secs(self.within(
                "limits.idle_timeout_s",
                limits.idle_timeout_s,
                limits::IDLE_TIMEOUT_S,
            )?),
        })
    }

    fn cluster_name(&self) -> Result<String, ConfigError> {
        let name = &self.settings.cluster_name;
        let is_good = (1..=limits::CLUSTER_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if is_good { Ok(name.clone()) } else { Err(self.value("cluster_name", "must be 1 to 63 of a-z, 0-9 and -")) }
    }

    /// What the command line allows, and what the file does.
    fn allowed(&self, exposure: Exposure) -> Exposure {
        let tls = &self.settings.tls;
        Exposure {
            plaintext_clients: exposure.plaintext_clients || tls.client.insecure_plaintext,
            plaintext_peers: exposure.plaintext_peers || tls.peer.insecure_plaintext,
            plaintext_admin: exposure.plaintext_admin || tls.admin.insecure_plaintext,
            ..exposure
        }
    }

    fn access(&self, purpose: Purpose, auth: &AuthSettings) -> Result<Access, ConfigError> {
        match (purpose, auth.token_file.as_deref()) {
            (_, Some("")) => Err(self.value("auth.token_file", "must name a file")),
            (_, Some(path)) => Ok(Access::TokenFile(PathBuf::from(path))),
            (Purpose::Dev, None) => Ok(Access::Open),
            (Purpose::Serve, None) => Ok(Access::Closed),
        }
    }

    fn store(&self, purpose: Purpose) -> Result<StoreKind, ConfigError> {
        match (self.settings.store.as_str(), purpose) {
            ("fjall", _) => Ok(StoreKind::Fjall),
            ("sled", _) => Ok(StoreKind::Sled),
            ("memory", Purpose::Dev) => Ok(StoreKind::Memory),
            ("memory", Purpose::Serve) => Err(self.value("store", "is \"memory\", which is for `semel dev` alone")),
            _ => Err(self.value("store", "must be \"fjall\" or \"sled\"")),
        }
    }

    fn address(&self, key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
        let rule = "must be HOST:PORT, such as 127.0.0.1:7171";
        let mut found = text.to_socket_addrs().map_err(|error| self.value(key, &format!("{rule} ({error})")))?;
        found.next().ok_or_else(|| self.value(key, &format!("{rule} (the name has no address)")))
    }

    /// An address for others: it need not resolve here.
    fn told(&self, key: &'static str, text: Option<&str>) -> Result<Option<String>, ConfigError> {
        let Some(text) = text else { return Ok(None) };
        let good = text.rsplit_once(':').is_some_and(|(host, port)| {
            let host_is_name = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/');
            host_is_name && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if good { Ok(Some(text.to_owned())) } else { Err(self.value(key, "must be HOST:PORT, such as node-1:7171")) }
    }

    fn check_apart(&self, addresses: [(&'static str, SocketAddr); 3]) -> Result<(), ConfigError> {
        for (at, (_, one)) in addresses.iter().enumerate() {
            for (key, other) in &addresses[at + 1..] {
                if one == other && one.port() != 0 {
                    return Err(self.value(key, &format!("is {other}, where another listener is; give each its own")));
                }
            }
        }
        Ok(())
    }

    fn within(&self, key: &'static str, value: u64, bounds: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        if bounds.contains(&value) {
            return Ok(value);
        }
        let reason = match (bounds.start(), bounds.end()) {
            (min, &u64::MAX) => format!("is {value}; it must be at least {min}"),
            (min, max) => format!("is {value}; it must be from {min} to {max}"),
        };
        Err(self.value(key, &reason))
    }

    fn value(&self, key: &'static str, reason: &str) -> ConfigError {
        let place = self.file.as_ref().and_then(|(path, text)| {
            let offset = offset_of(text, key)?;
            Some(format!("{}: ", place(path, text, offset)))
        });
        ConfigError::Value { place: place.unwrap_or_default(), key, reason: reason.to_owned() }
    }
}
