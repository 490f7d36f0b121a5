//! The configuration file: every key once, with its type, its default and its documentation.

use serde::Deserialize;

use crate::limits;

/// A key as it is documented.
#[derive(Clone, Debug)]
pub struct KeyText {
    /// Its name.
    pub name: &'static str,
    /// Its documentation, a line each.
    pub doc: &'static [&'static str],
    /// Its value as TOML; none where there is none by default.
    pub value: Option<String>,
    /// What stands in for a value in the printed file where there is none.
    pub example: &'static str,
}

/// A value as TOML.
trait Toml {
    fn toml(&self) -> Option<String>;
}

impl Toml for String {
    fn toml(&self) -> Option<String> {
        Some(toml::Value::String(self.clone()).to_string())
    }
}

impl Toml for Option<String> {
    fn toml(&self) -> Option<String> {
        self.as_ref().and_then(Toml::toml)
    }
}

impl Toml for Option<Vec<String>> {
    fn toml(&self) -> Option<String> {
        let words = self.as_ref()?.iter().cloned().map(toml::Value::String);
        Some(toml::Value::Array(words.collect()).to_string())
    }
}

impl Toml for bool {
    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Toml for Vec<String> {
    fn toml(&self) -> Option<String> {
        Some(toml::Value::from(self.clone()).to_string())
    }
}

impl Toml for Option<u64> {
    fn toml(&self) -> Option<String> {
        self.map(|number| number.to_string())
    }
}

impl Toml for u64 {
    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Declares a table of the file: the struct that it is read into, its defaults and its documentation.
macro_rules! table {
    ($(#[doc = $about:literal])* $Name:ident {
        $($(#[doc = $doc:literal])* $key:ident: $Type:ty = $default:expr, $example:literal;)*
    } $($(#[doc = $sub_doc:literal])* [$sub:ident]: $Sub:ty;)*) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Name {
            $($(#[doc = $doc])* pub $key: $Type,)*
            $($(#[doc = $sub_doc])* pub $sub: $Sub,)*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($key: $default,)* $($sub: <$Sub>::default(),)* }
            }
        }

        impl $Name {
            /// The names of its keys.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key),)*];

            /// Its keys as documented, with these values.
            pub fn keys(&self) -> Vec<KeyText> {
                vec![$(KeyText {
                    name: stringify!($key),
                    doc: &[$($doc,)*],
                    value: self.$key.toml(),
                    example: $example,
                },)*]
            }
        }
    };
}

table! {
    /// The file as a whole.
    Settings {
        /// The number of this node: 1 or more, unique in the cluster, never used again after the node was removed.
        node_id: u64 = 1, "1";
        /// The directory that holds everything this node must not lose. One process at a time.
        data_dir: String = "./semel-data".to_owned(), "";
        /// The name of the cluster, for certificates: of all nodes alike, fixed when the cluster is formed.
        cluster_name: String = "semel".to_owned(), "";
        /// Where clients connect: gRPC and HTTP/JSON on one port. Outside loopback it wants [tls.client], or
        /// --insecure-plaintext-clients on the command line.
        listen: String = "127.0.0.1:7171".to_owned(), "";
        /// Where the other nodes connect, and nobody else. Outside loopback: [tls.peer], or --insecure-plaintext-peers.
        peer_listen: String = "127.0.0.1:7172".to_owned(), "";
        /// Metrics, health and the cluster's own calls. Outside loopback: [tls.admin], or --insecure-plaintext-admin.
        admin_listen: String = "127.0.0.1:7173".to_owned(), "";
        /// The address that clients are told. Default: `listen`.
        advertise: Option<String> = None, "\"127.0.0.1:7171\"";
        /// The address that the other nodes are told. Default: `peer_listen`.
        peer_advertise: Option<String> = None, "\"127.0.0.1:7172\"";
        /// The engine of the index that can be rebuilt from the log: "fjall" or "sled".
        store: String = "fjall".to_owned(), "";
        /// Which logs are written, as tracing's directives; SEMEL_LOG goes before it. Read again on SIGHUP.
        log: Option<String> = None, "\"warn,semel=info,openraft=error\"";
    }
    /// Timing of consensus.
    [raft]: RaftSettings;
    /// What this node does at most.
    [limits]: LimitSettings;
    /// Who may call.
    [auth]: AuthSettings;
    /// The console on the operators' port.
    [console]: ConsoleSettings;
    /// What is measured.
    [metrics]: MetricsSettings;
    /// Encryption.
    [tls]: TlsSettings;
    /// Sealing of what is stored.
    [seal]: SealSettings;
}

table! {
    /// Timing of consensus. The defaults fit three nodes on a LAN.
    RaftSettings {
        /// How often a leader shows that it is there, ms. Well above the time of a slow fsync.
        heartbeat_ms: u64 = limits::HEARTBEAT_MS_DEFAULT, "";
        /// A node that heard no leader for a time between these two, drawn anew each time, asks for an election, ms.
        election_ms_min: u64 = limits::ELECTION_MS_MIN_DEFAULT, "";
        /// The longer one, ms.
        election_ms_max: u64 = limits::ELECTION_MS_MAX_DEFAULT, "";
    }
}

table! {
    /// What this node does at most. None of these is part of the replicated state; nodes may differ.
    LimitSettings {
        /// Size of a segment of the log, bytes, at least 1 MiB. Segments are filled with zeros ahead of use.
        wal_segment_bytes: u64 = limits::WAL_SEGMENT_BYTES_DEFAULT, "";
        /// A snapshot is taken when the log has outgrown the larger of this, bytes, and the last snapshot. At least 4 MiB.
        snapshot_log_bytes: u64 = limits::SNAPSHOT_LOG_BYTES_DEFAULT, "";
        /// Bytes of the disk that are held back: while less is free, claims are refused as `unavailable`, and what keeps the
        /// cluster going has room. 0: as much as four segments of the log.
        disk_reserve_bytes: u64 = 0, "";
        /// A command that was proposed and not applied within this time, ms, is answered `result_unknown`.
        propose_timeout_ms: u64 = limits::PROPOSE_TIMEOUT_MS_DEFAULT, "";
        /// Hours from the beginning of one reading of every byte of the log and the snapshots to the next one's; the first
        /// begins at the start of the node. One that takes longer is followed at once. Damage to the log ends the node, with
        /// a line that says where; a bad snapshot is replaced. The store is not read: it is rebuilt from these.
        scrub_hours: u64 = limits::SCRUB_HOURS_DEFAULT, "";
        /// Connections at once, of clients and of operators each; further ones are closed.
        connections_max: u64 = limits::CONNECTIONS_DEFAULT, "";
        /// Of these, connections at once from one address; of IPv6, from one network of 64 bits.
        connections_per_address_max: u64 = limits::CONNECTIONS_PER_ADDRESS_DEFAULT, "";
        /// How long a connection may be open without a request, s.
        idle_timeout_s: u64 = limits::IDLE_TIMEOUT_S_DEFAULT, "";
        /// Calls without a good credential from one address, a second, and ten times as many at once; beyond it they are refused as
        /// `rate_limited`. A good credential always passes.
        authentication_failures_per_s: u64 = limits::AUTHENTICATION_FAILURES_DEFAULT as u64, "";
        /// How long a connection of a client may be open without a good credential, ms. At a bound of connections the oldest one
        /// of these makes room.
        unauthenticated_timeout_ms: u64 = limits::UNAUTHENTICATED_TIMEOUT_MS_DEFAULT, "";
        /// How long a TLS handshake may take, ms.
        handshake_timeout_ms: u64 = limits::HANDSHAKE_TIMEOUT_MS_DEFAULT, "";
        /// TLS handshakes at once on each port; beyond it the oldest is cut.
        handshakes_max: u64 = limits::HANDSHAKES_DEFAULT, "";
        /// Time from the first byte of a request's head to its last, ms.
        head_timeout_ms: u64 = limits::HEAD_TIMEOUT_MS, "";
        /// Largest head of a request, bytes; a larger one is answered 431.
        head_bytes_max: u64 = limits::HEAD_BYTES_MAX as u64, "";
        /// Fields of a head; more are answered 431.
        head_fields_max: u64 = limits::HEAD_FIELDS_MAX as u64, "";
        /// Pause within a request's body after which it is refused, ms. Sessions may pause for longer.
        body_idle_timeout_ms: u64 = limits::BODY_IDLE_MS, "";
        /// Requests at once on one connection of HTTP/2; further ones wait at the client.
        streams_per_connection_max: u64 = limits::STREAMS_PER_CONNECTION_MAX as u64, "";
        /// Calls with one token, certificate or subject of JSON Web Tokens, a second and node, items of batches and sessions each by
        /// itself; beyond it they are refused as `rate_limited`. Default: none.
        token_requests_per_s: Option<u64> = None, "1000";
        /// The same of all callers of a tenant. Default: none.
        tenant_requests_per_s: Option<u64> = None, "10000";
    }
}

table! {
    /// Who may call. Tokens of the log (`semel token`) need nothing here.
    AuthSettings {
        /// TOML, one `[[token]]` each: token, tenant, operations = ["*"], permissions = ["claim", "reconcile",
        /// "read_outcomes", "administer"], or permissions = ["cluster"] without tenant. Read again when it changes.
        token_file: Option<String> = None, "\"/etc/semel/tokens.toml\"";
    }
    /// Callers that show a JSON Web Token.
    [jwt]: JwtSettings;
    /// Callers that show a certificate.
    [certificate]: Vec<CertificateSettings>;
}

table! {
    /// Callers that show a JSON Web Token of somebody else's: signed by one of these keys, with `exp`, `iat` and `sub`.
    JwtSettings {
        /// The public keys, a JSON Web Key Set: of Ed25519 (EdDSA), P-256 (ES256) and RSA (RS256), each with its `kid`. Read
        /// again when it changes: tokens of a key that has left are no longer good.
        jwks_file: Option<String> = None, "\"/etc/semel/jwks.json\"";
        /// What `iss` must be.
        issuer: Option<String> = None, "\"https://issuer.example\"";
        /// What `aud` must be, or hold.
        audience: Option<String> = None, "\"semel\"";
        /// The claim that names the tenant.
        tenant_claim: String = "semel_tenant".to_owned(), "";
        /// The claim with the list of permissions: claim, reconcile, read_outcomes, administer.
        permissions_claim: String = "semel_permissions".to_owned(), "";
        /// The claim with the list of patterns of operations.
        operations_claim: String = "semel_operations".to_owned(), "";
        /// How long after `iat` a token is taken at most, s, whatever its `exp` says.
        age_max_s: u64 = limits::JWT_AGE_S_DEFAULT, "";
    }
}

/// A caller that shows a certificate instead of a token: by its URI or by its DNS name, whole and exact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CertificateSettings {
    /// A URI among its subject alternative names.
    pub uri: Option<String>,
    /// Or a DNS name among them.
    pub dns: Option<String>,
    /// Whose records. None: the cluster's, with the permission `cluster`.
    pub tenant: Option<String>,
    /// Patterns of operations.
    #[serde(default = "every_operation")]
    pub operations: Vec<String>,
    /// What it may.
    pub permissions: Vec<String>,
}

fn every_operation() -> Vec<String> {
    vec!["*".to_owned()]
}

impl CertificateSettings {
    fn print(&self) -> String {
        let mut text = "\n[[auth.certificate]]\n".to_owned();
        for (name, value) in [("uri", &self.uri), ("dns", &self.dns), ("tenant", &self.tenant)] {
            text += &value.toml().map_or_else(String::new, |value| format!("{name} = {value}\n"));
        }
        for (name, value) in [("operations", &self.operations), ("permissions", &self.permissions)] {
            text += &value.toml().map_or_else(String::new, |value| format!("{name} = {value}\n"));
        }
        text
    }
}

/// How a caller with a certificate is described, in the printed file.
const CERTIFICATE_EXAMPLE: &str = "
# A caller that shows a certificate of `ca` of the port instead of a token: one name of it, whole and exact.
# [[auth.certificate]]
# uri = \"semel://semel/client/billing\"    # or dns = \"billing.example\"
# tenant = \"acme\"
# operations = [\"*\"]
# permissions = [\"claim\"]
";

table! {
    /// The console on the operators' port: http://ADMIN_LISTEN/console.
    ConsoleSettings {
        /// Names under which browsers reach it, beside loopback and `admin_listen`.
        hosts: Vec<String> = Vec::new(), "";
        /// Whether a verdict counts only once a second person has confirmed it.
        two_person: bool = false, "";
    }
}

table! {
    /// What is measured: http://ADMIN_LISTEN/metrics.
    MetricsSettings {
        /// Whether some metrics are told for each tenant, by name. Whoever reads the metrics then needs a credential with `cluster`.
        tenant_labels: bool = false, "";
    }
}

table! {
    /// Encryption: TLS 1.3, on each port that has a certificate. `semel certs` makes a set of one's own.
    TlsSettings {
        /// How often the files are looked at, s. SIGHUP has them read at once.
        reload_s: u64 = limits::RELOAD_S_DEFAULT, "";
        /// How old a connection gets, s, 10 % more or less by chance; 30 s later it is cut.
        connection_age_max_s: u64 = limits::CONNECTION_AGE_S_DEFAULT, "";
    }
    /// The clients' port.
    [client]: ListenerTlsSettings;
    /// The other nodes' port. Both ends show a certificate that names a node: semel://CLUSTER_NAME/node/NODE_ID.
    [peer]: ListenerTlsSettings;
    /// The operators' port.
    [admin]: ListenerTlsSettings;
}

table! {
    /// The certificates of one port, PEM.
    ListenerTlsSettings {
        /// The certificate, and those that certify it up to an authority. Without one the port is not encrypted.
        cert: Option<String> = None, "\"/etc/semel/certs/node-1-client.pem\"";
        /// Its key. Refused when group or others can read it.
        key: Option<String> = None, "\"/etc/semel/certs/node-1-client-key.pem\"";
        /// The authorities of whoever may present a certificate; on the nodes' port required, and never those of clients.
        ca: Option<String> = None, "\"/etc/semel/certs/clients-ca.pem\"";
        /// Certificates that are taken back.
        crl: Option<String> = None, "\"/etc/semel/certs/clients.crl\"";
        /// Where `ca` is given: whether a certificate must be presented, "optional" or "required".
        client_certificate: String = "optional".to_owned(), "";
        /// Lets the port be reached from other machines unencrypted.
        insecure_plaintext: bool = false, "";
    }
}

table! {
    /// Sealing: keys, outcomes and all that callers say are encrypted before they reach the log, the store, snapshots and
    /// backups. All nodes alike, one of the two. `semel keys generate` writes a key file.
    SealSettings {
        /// TOML, one `[[key]]` each: id = 1, key = "BASE64 of 32 bytes". Refused when group or others can read it. Read again on
        /// SIGHUP. Whoever loses it has lost all that was sealed.
        key_file: Option<String> = None, "\"/etc/semel/seal.keys\"";
        /// A program and its arguments that prints a key file, at the start and on SIGHUP: for a KMS. No shell, no environment
        /// but PATH, within 30 s.
        key_command: Option<Vec<String>> = None, "[\"/usr/bin/unwrap\", \"semel\"]";
    }
}

impl Settings {
    /// The tables with their keys and documentation, in the order of the file. The first has no name.
    pub fn tables(&self) -> [(&'static str, &'static str, Vec<KeyText>); 12] {
        [
            ("", "", self.keys()),
            ("raft", "Timing of consensus. The defaults fit three nodes on a LAN.", self.raft.keys()),
            (
                "limits",
                "What this node does at most. Not part of the replicated state; nodes may differ.",
                self.limits.keys(),
            ),
            ("auth", "Who may call. Tokens of the log (`semel token`) need nothing here.", self.auth.keys()),
            (
                "auth.jwt",
                "Callers that show a JSON Web Token of somebody else's: all three of the first, or none.",
                self.auth.jwt.keys(),
            ),
            ("console", "The console on the operators' port: http://ADMIN_LISTEN/console.", self.console.keys()),
            ("metrics", "What is measured: http://ADMIN_LISTEN/metrics.", self.metrics.keys()),
            (
                "tls",
                "Encryption: TLS 1.3, on each port that has a certificate. `semel certs` makes a set of one's own.",
                self.tls.keys(),
            ),
            ("tls.client", "The clients' port.", self.tls.client.keys()),
            (
                "tls.peer",
                "The other nodes' port. Both ends show a certificate that names semel://CLUSTER_NAME/node/NODE_ID.",
                self.tls.peer.keys(),
            ),
            ("tls.admin", "The operators' port.", self.tls.admin.keys()),
            (
                "seal",
                "Sealing: all that callers say is encrypted before it is stored. All nodes alike; one of the two.",
                self.seal.keys(),
            ),
        ]
    }

    /// The file that says exactly this, with every key explained.
    pub fn print(&self) -> String {
        let mut text = String::from(
            "# The configuration of a Semel node: semel serve --config FILE\n\
             # Every key, with what it is when it is left out. Flags and SEMEL_… variables go before the file.\n",
        );
        for (name, about, keys) in self.tables() {
            if !name.is_empty() {
                text += &format!("\n# {about}\n[{name}]\n");
            }
            for key in keys {
                text.push('\n');
                key.doc.iter().for_each(|line| text += &format!("#{line}\n"));
                text += &match &key.value {
                    Some(value) => format!("{} = {value}\n", key.name),
                    None => format!("# {} = {}\n", key.name, key.example),
                };
            }
            if name == "auth" {
                text += CERTIFICATE_EXAMPLE;
                self.auth.certificate.iter().for_each(|certificate| text += &certificate.print());
            }
        }
        text
    }
}
