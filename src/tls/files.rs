//! The certificates of a listener: read at the start, and again while it runs. What can't be used leaves what was before in
//! force.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    time_provider::TimeProvider,
};
use tokio::sync::watch;

use super::{TlsError, certificates, identity, peers::AnyName, private_key, provider, unfit};
use crate::{clock::Clock, id::NodeId, net::Shown};

/// Where the certificates of a listener are. PEM, the own certificate first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate and those up to an authority.
    pub cert: PathBuf,
    /// The key of it.
    pub key: PathBuf,
    /// Who may present certificates; none: nobody is asked for one.
    pub ca: Option<PathBuf>,
    /// Certificates that are taken back.
    pub crl: Option<PathBuf>,
    /// Whether a certificate must be presented.
    pub asked: Asked,
}

/// Whether a client is asked for a certificate, where there is an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It may present one.
    Optional,
    /// It must.
    Required,
}

/// What the files say, ready to use.
struct Loaded {
    texts: Vec<Vec<u8>>,
    server: Arc<ServerConfig>,
    /// For whoever also connects with this certificate.
    client: Option<Arc<ClientConfig>>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// For which port certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clients and operators: HTTP/1.1 or HTTP/2, a certificate only where it is asked for.
    Door,
    /// Other nodes: HTTP/2, certificates of both ends.
    Peer {
        /// The cluster's name.
        cluster_name: String,
        /// This node.
        node: NodeId,
    },
}

/// The certificates of a listener, as they are now.
pub struct Certificates {
    files: TlsFiles,
    role: Role,
    clock: Arc<dyn Clock>,
    current: ArcSwap<Loaded>,
    /// Changes with every reading: connections that are open are judged again then.
    readings: watch::Sender<Reading>,
    failures: AtomicU64,
}

/// How often the files were read, and how often that brought something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub times: u64,
    pub changes: u64,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.files.cert.display())
    }
}

/// The date as the node believes it.
struct Wall(Arc<dyn Clock>);

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(&*self.0))
    }
}

fn unix(clock: &dyn Clock) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_millis(clock.wall().0))
}

impl TlsFiles {
    /// All of them, as they are now.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.ca.as_ref(), self.crl.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let of = |path: &Path| {
            let failed = |source| TlsError::Read { path: path.to_owned(), source };
            self.judge(path, &fs::metadata(path).map_err(failed)?)?;
            fs::read(path).map_err(failed)
        };
        self.paths().map(of).collect()
    }

    /// The same, without a thread that waits for the file system.
    async fn read_again(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let mut texts = Vec::new();
        for path in self.paths() {
            let failed = |source| TlsError::Read { path: path.to_owned(), source };
            self.judge(path, &tokio::fs::metadata(path).await.map_err(failed)?)?;
            texts.push(tokio::fs::read(path).await.map_err(failed)?);
        }
        Ok(texts)
    }

    fn judge(&self, path: &Path, found: &fs::Metadata) -> Result<(), TlsError> {
        use std::os::unix::fs::PermissionsExt;
        let is_exposed = path == self.key && found.permissions().mode() & 0o077 != 0;
        if is_exposed { Err(TlsError::Exposed { path: path.to_owned() }) } else { Ok(()) }
    }

    /// Refuses an authority that certifies both clients and nodes.
    ///
    /// # Errors
    /// [`TlsError::SharedAuthority`], or what keeps the files from being read.
    pub fn check_apart(client: &TlsFiles, peer: &TlsFiles) -> Result<(), TlsError> {
        let (Some(of_clients), Some(of_peers)) = (&client.ca, &peer.ca) else { return Ok(()) };
        let read = |path: &PathBuf| {
            let text = fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source })?;
            certificates(&path.display().to_string(), &text)
        };
        let (one, other) = (read(of_clients)?, read(of_peers)?);
        if one.iter().any(|certificate| other.contains(certificate)) {
            return Err(TlsError::SharedAuthority { client: of_clients.clone(), peer: of_peers.clone() });
        }
        Ok(())
    }
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`]: whoever starts a node must know at once.
    pub fn read(files: TlsFiles, role: Role, clock: Arc<dyn Clock>) -> Result<Arc<Self>, TlsError> {
        let loaded = load(&files, &role, &clock, files.read()?)?;
        let current = ArcSwap::from_pointee(loaded);
        let (readings, _) = watch::channel(Reading::default());
        Ok(Arc::new(Self { files, role, clock, current, readings, failures: AtomicU64::new(0) }))
    }

    /// Reads the files again. True where something new is in force.
    ///
    /// # Errors
    /// [`TlsError`]; what was before stays in force.
    pub async fn reload(&self) -> Result<bool, TlsError> {
        let changed = self.files.read_again().await.and_then(|texts| self.replace(texts));
        match &changed {
            Ok(true) => tracing::info!(cert = %self.files.cert.display(), "certificates were read again"),
            Ok(false) => {}
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "certificates can't be used; those read before stay in force");
            }
        }
        let has_changed = matches!(changed, Ok(true));
        self.readings.send_modify(|reading| {
            reading.times += 1;
            reading.changes += u64::from(has_changed);
        });
        changed
    }

    fn replace(&self, texts: Vec<Vec<u8>>) -> Result<bool, TlsError> {
        if self.current.load().texts == texts {
            return Ok(false);
        }
        self.current.store(Arc::new(load(&self.files, &self.role, &self.clock, texts)?));
        Ok(true)
    }

    /// How often the files could not be used.
    pub fn reload_failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn role(&self) -> &Role {
        &self.role
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().server)
    }

    pub(super) fn client(&self) -> Option<Arc<ClientConfig>> {
        self.current.load().client.clone()
    }

    pub(super) fn readings(&self) -> watch::Receiver<Reading> {
        self.readings.subscribe()
    }

    /// Whether a certificate that was good when it was shown still is. What has not changed since then needs no look at its
    /// signatures.
    pub(super) fn holds(&self, chain: &[CertificateDer<'_>], shown: &Shown, files_changed: bool) -> bool {
        if shown.not_after < self.clock.wall() {
            return false;
        }
        if !files_changed {
            return true;
        }
        let Some((leaf, rest)) = chain.split_first() else { return false };
        let current = self.current.load();
        current
            .verifier
            .as_ref()
            .is_some_and(|verifier| verifier.verify_client_cert(leaf, rest, unix(&*self.clock)).is_ok())
    }
}

fn load(files: &TlsFiles, role: &Role, clock: &Arc<dyn Clock>, texts: Vec<Vec<u8>>) -> Result<Loaded, TlsError> {
    let text = |path: &Path| {
        let at = files.paths().position(|known| known == path).expect("it is one of the files");
        (path.display().to_string(), texts[at].as_slice())
    };
    let (cert_name, cert_text) = text(&files.cert);
    let (key_name, key_text) = text(&files.key);
    let chain = certificates(&cert_name, cert_text)?;
    let key = || private_key(&key_name, key_text);
    if let Role::Peer { cluster_name, node } = role {
        let named = identity::shown(&chain).map_err(|error| unfit(&cert_name, error))?;
        if identity::node_of(&named, cluster_name) != Some(*node) {
            let wanted = identity::node_uri(cluster_name, *node);
            return Err(unfit(&cert_name, format!("the certificate must name exactly one URI, {wanted}")));
        }
    }
    let verifier = match &files.ca {
        Some(ca) => Some(verifier(files, text(ca), files.crl.as_ref().map(|crl| text(crl)))?),
        None => None,
    };
    let server = ServerConfig::builder_with_details(provider(), Arc::new(Wall(Arc::clone(clock))))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unfit("TLS", error))?;
    let server = match &verifier {
        Some(verifier) => server.with_client_cert_verifier(Arc::clone(verifier)),
        None => server.with_no_client_auth(),
    };
    let mut server = server.with_single_cert(chain.clone(), key()?).map_err(|error| unfit(&cert_name, error))?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    server.alpn_protocols = match role {
        Role::Door => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Role::Peer { .. } => vec![b"h2".to_vec()],
    };
    let client = match (role, &verifier) {
        (Role::Peer { .. }, Some(verifier)) => {
            let config = ClientConfig::builder_with_details(provider(), Arc::new(Wall(Arc::clone(clock))))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| unfit("TLS", error))?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName::new(Arc::clone(verifier))));
            let mut config = config.with_client_auth_cert(chain, key()?).map_err(|error| unfit(&cert_name, error))?;
            config.resumption = Resumption::disabled();
            config.alpn_protocols = vec![b"h2".to_vec()];
            config.enable_sni = false;
            Some(Arc::new(config))
        }
        _ => None,
    };
    Ok(Loaded { texts: texts.clone(), server: Arc::new(server), client, verifier })
}

fn verifier(
    files: &TlsFiles,
    (ca_name, ca): (String, &[u8]),
    crl: Option<(String, &[u8])>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&ca_name, ca)? {
        roots.add(certificate).map_err(|error| unfit(&ca_name, error))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if let Some((name, text)) = crl {
        let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(text).collect();
        let lists = lists.ok().filter(|lists| !lists.is_empty());
        let lists = lists.ok_or(TlsError::Pem { what: name, wanted: "list of revoked certificates" })?;
        // What a list names is refused; an authority without a list has taken nothing back.
        builder = builder.with_crls(lists).only_check_end_entity_revocation().allow_unknown_revocation_status();
    }
    if files.asked == Asked::Optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| unfit(&ca_name, error))
}
