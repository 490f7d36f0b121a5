//! The composition root: what a node consists of, in which order it starts, and in which it stops.
//!
//! Start: the directory's lock → the addresses → the log, the store and consensus → (`dev`) the cluster → the doors.
//! Stop: not ready → another node leads → no new connections → what is in flight is answered → consensus stops, the store
//! is flushed, the log closed → the lock is given back.

mod backups;
mod calls;
mod keeper;
mod keys;
mod observed;
mod operating;
mod operations;
mod refusals;
mod restores;
mod sealing;
mod secure;
mod standing;
mod tokens;
mod touch;

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle};

use crate::{
    auth::{
        Authenticator, KeySetError, LogTokens, Permission, Permissions, TokenFileError, TokenText, scope::TokenScope,
        token::TokenKey,
    },
    clock::{Clock, SystemClock},
    config::{Access, Config, Forming, StoreKind},
    console::Console,
    disk::{Disk, DiskError, Lock, OsDisk},
    entropy,
    http::{self, admin, client::Clients, serve},
    id::{ClusterId, LineageId, NodeId, Position, Time},
    limits,
    metrics::Metrics,
    net::{Listener, Net, TcpNet},
    raft::{Addresses, Consensus, FormError, Options, StartError, Status},
    records::{
        codec::Blob,
        command::{FEATURE_LEVEL, Init, Token, Wrapped},
        policy::{Limits, Policy},
    },
    rpc::Door,
    seal::{Cipher, Keychain, key::Key, keychain::KeychainError},
    service::Calls,
    store::{
        directory::{EngineDirectory, EngineKind},
        records::{Observer, OpenEngine, Records},
    },
    tls::TlsError,
    work,
};
use backups::Backups;
pub use calls::NodeCalls;
use keeper::Keeper;
use observed::Observing;
use operating::Operating;
use operations::Operations;
use refusals::RefusalsTold;
use restores::Restores;
use secure::Secure;
use tokens::StateTokens;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Another process has the directory.
    #[error("the data directory {dir} is in use by another process; stop it, or give this one another directory")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// The directory can't be used.
    #[error("the data directory {dir} can't be used")]
    Directory {
        /// The directory.
        dir: String,
        /// Why.
        #[source]
        source: DiskError,
    },
    /// A listener can't be opened.
    #[error("can't listen on {address} (`{key}`)")]
    Listen {
        /// The key of the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The token file can't be used.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The keys of JSON Web Tokens can't be used.
    #[error("`auth.jwt.jwks_file`: {0}")]
    KeySet(#[from] KeySetError),
    /// Certificates can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The sealing keys are not those that the node's cluster wants.
    #[error(transparent)]
    Keys(#[from] KeychainError),
    /// Consensus can't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The cluster of one node can't be formed.
    #[error("the cluster can't be formed")]
    Form(#[from] FormError),
}

/// What a node runs on: the machine's own by default, or what a simulation puts in its place.
#[derive(Clone)]
pub struct World {
    /// Log, snapshots and backups lie on it.
    pub disk: Arc<dyn Disk>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The way to other nodes, and from clients.
    pub net: Arc<dyn Net>,
    /// Where engines come from, where it is not from the data directory.
    pub engines: Option<Arc<dyn OpenEngine>>,
    /// Who is shown every entry that is applied, where somebody wants to see.
    pub observer: Option<Arc<dyn Observer>>,
}

impl World {
    /// The machine that this process runs on.
    pub fn real(config: &Config) -> Self {
        Self {
            disk: Arc::new(OsDisk),
            clock: Arc::new(SystemClock::default()),
            net: Arc::new(TcpNet::beside(config.peer_listen.ip())),
            engines: None,
            observer: None,
        }
    }
}

/// A running node.
pub struct Node {
    consensus: Consensus,
    stopping: watch::Sender<bool>,
    /// Ends what other nodes are answered with.
    ended: watch::Sender<bool>,
    doors: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
    listen: SocketAddr,
    admin_listen: SocketAddr,
    calls: Arc<NodeCalls>,
    auth: Arc<Authenticator>,
    refusals: RefusalsTold,
    secure: Arc<Secure>,
    // Given back last.
    _lock: Box<dyn Lock>,
}

impl Node {
    /// Starts a node. Returns once it answers; whether it takes claims, `/readyz` tells.
    ///
    /// # Errors
    /// What kept it from starting; nothing listens then.
    pub async fn start(config: Config) -> Result<Self, NodeError> {
        let world = World::real(&config);
        Self::start_in(config, world).await
    }

    /// Starts a node in this world, as [`Node::start`] does on this machine.
    ///
    /// # Errors
    /// Those of [`Node::start`].
    pub async fn start_in(config: Config, world: World) -> Result<Self, NodeError> {
        let World { disk, clock, net, engines, observer } = world;
        // Before anything is created, opened or changed.
        let keys = keys(&config, &disk).await?;
        let lock = lock(&*disk, &config).await?;
        let auth = match &config.access {
            Access::Open => Authenticator::open(),
            Access::TokenFile(path) => Authenticator::token_file(path)?,
            Access::Closed => Authenticator::closed(),
        };
        let auth = Arc::new(
            auth.with_certified(config.certified.clone())
                .with_jwt(config.jwt.clone())?
                .with_failures(config.limits.authentication_failures_per_s),
        );
        let secure = Arc::new(Secure::read(&config, &clock)?);
        let clients = bind(&*net, "listen", config.listen).await?;
        let peers = bind(&*net, "peer_listen", config.peer_listen).await?;
        let admins = bind(&*net, "admin_listen", config.admin_listen).await?;
        let bound = |listener: &dyn Listener, asked| listener.local_addr().unwrap_or(asked);
        let (listen, peer_listen) = (bound(&*clients, config.listen), bound(&*peers, config.peer_listen));
        let admin_listen = bound(&*admins, config.admin_listen);
        let kind = engine(config.store);
        let peer = config.peer_advertise.clone().unwrap_or_else(|| peer_listen.to_string());
        let client = config.advertise.clone().unwrap_or_else(|| listen.to_string());
        let addresses = Addresses { peer, client };
        let metrics = Arc::new(Metrics::new(kind.name()));
        let consensus = Consensus::start(Options {
            node_id: config.node_id,
            dir: config.data_dir.clone(),
            disk: Arc::clone(&disk),
            engines: engines.unwrap_or_else(|| Arc::new(EngineDirectory::new(config.data_dir.join("store"), kind))),
            clock: Arc::clone(&clock),
            times: config.raft,
            limits: config.limits,
            net: secure.net(net),
            addresses: addresses.clone(),
            admin: admin_listen.to_string(),
            metrics: Arc::clone(&metrics),
            keys,
            observer,
            known: config.members.iter().map(|(node, at)| (*node, at.clone().into())).collect(),
        })
        .await?;
        let calls = Arc::new(NodeCalls::new(
            consensus.clone(),
            metrics,
            config.tls.client.is_some(),
            config.limits.requests.rates,
        ));
        let tokens = Arc::new(StateTokens::new(consensus.clone(), Arc::clone(&calls.touch)));
        auth.heed(Arc::clone(&tokens) as Arc<dyn LogTokens>);
        let mut forming = None;
        if config.forming == Forming::ByItself {
            let founding =
                Founding { cluster_name: config.cluster_name.clone(), first_token: config.first_token.clone() };
            if consensus.has_log() {
                // Nearly always formed already; how long the log takes to be applied must not keep the doors closed.
                forming = Some(tokio::spawn(finish_forming(
                    consensus.clone(),
                    BTreeMap::from([(config.node_id, addresses)]),
                    founding,
                )));
            } else {
                form(&consensus, BTreeMap::from([(config.node_id, addresses)]), &founding).await?;
            }
        }
        let (stopping, _) = watch::channel(false);
        // Other nodes are answered until the very end: while this one stops, it hands over.
        let (ended, _) = watch::channel(false);
        let door = Door { calls: Arc::clone(&calls), auth: Arc::clone(&auth), stopping: stopping.subscribe() };
        let requests = config.limits.requests;
        let served = Clients::new(door, listen.ip().is_loopback()).with_body_idle(requests.body_idle);
        let answer = move |mut request: ::http::Request<_>, peer| {
            request.extensions_mut().insert(peer);
            served.clone().answer(request)
        };
        let files = (Arc::clone(&auth), Arc::clone(&secure));
        let observing =
            Arc::new(Observing::new(Arc::clone(&calls), consensus.clone(), files, kind, config.tenant_labels));
        let operations = Arc::new(Operations {
            auth: Arc::clone(&auth),
            backups: Backups::new(consensus.clone(), Arc::clone(&disk), config.data_dir.join("backup")),
            restores: Restores::new(consensus.clone(), disk, config.data_dir.clone(), clock, config.node_id),
        });
        let guard = (Arc::clone(&auth), admin_listen.ip().is_loopback());
        let keeper = Keeper::new(consensus.clone(), config.node_id);
        let held = keys::Keys::new(consensus.clone(), Arc::clone(&keeper));
        let operating = Arc::new(Operating::new(consensus.clone(), config.node_id, config.cluster_name, held));
        let own = config.advertise.iter().cloned().chain([admin_listen.to_string()]).collect();
        let console = Console::new(
            Arc::clone(&calls),
            Arc::clone(&observing),
            Arc::clone(&auth),
            Arc::clone(&calls.service.seen),
            own,
            config.tls.admin.is_some(),
            config.console.clone(),
        );
        let operators = admin::routes(Arc::clone(&observing))
            .merge(operations::routes(operations))
            .merge(http::operations::routes(operating, Arc::clone(&auth)))
            .layer(axum::middleware::from_fn_with_state(guard, admin::guard))
            // It guards itself: its forms come without a referrer, and so without the origin that is looked for there.
            .merge(console.routes());
        let bounds = serve::Bounds {
            connections_max: config.limits.connections_max,
            per_address_max: config.limits.connections_per_address_max,
            heads: requests.heads,
            idle: config.limits.idle,
            unauthenticated: Some(config.limits.unauthenticated).filter(|_| !auth.is_open()),
            answers_half_closed: false,
            drain: Duration::from_millis(limits::DRAIN_MS),
        };
        // Probes and monitoring show no credential, and browsers one of their own kind.
        let operators_bounds = serve::Bounds { unauthenticated: None, ..bounds };
        let metrics = Some(Arc::clone(&calls.metrics));
        // Whoever calls before the log is read is refused by the system, and goes to another node instead of waiting.
        for (key, listener, address) in [
            ("listen", &clients, listen),
            ("peer_listen", &peers, peer_listen),
            ("admin_listen", &admins, admin_listen),
        ] {
            listener.open().map_err(|source| NodeError::Listen { key, address, source })?;
        }
        let clients = secure.clients(clients, &calls.metrics);
        let admins = secure.admins(admins, &calls.metrics);
        let peers = secure.peers(peers, &calls.metrics);
        let operated = observed::answer(operators, Arc::clone(&calls), requests.body_idle);
        let doors = vec![
            tokio::spawn(serve::serve(clients, bounds, metrics, answer, stopping.subscribe())),
            tokio::spawn(serve::serve(admins, operators_bounds, None, operated, stopping.subscribe())),
        ];
        let refusals = RefusalsTold { auth: Arc::clone(&auth), consensus: consensus.clone(), node_id: config.node_id };
        let mut others = vec![
            tokio::spawn(Arc::clone(&auth).keep_fresh()),
            tokio::spawn(Arc::clone(&secure).keep_fresh(config.tls.reload)),
            tokio::spawn(tokens.keep_tidy()),
            tokio::spawn(Arc::clone(&calls.touch).keep()),
            tokio::spawn(refusals.clone().run()),
            tokio::spawn(sealing::give_way_while_locked(consensus.clone())),
            tokio::spawn(keeper.keep()),
            tokio::spawn(consensus.serve_peers(peers, ended.subscribe())),
        ];
        others.extend(forming);
        Ok(Self {
            consensus,
            stopping,
            ended,
            doors,
            others,
            listen,
            admin_listen,
            calls,
            auth,
            refusals,
            secure,
            _lock: lock,
        })
    }

    /// Where clients connect.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns once the cluster has removed this node: there is nothing left for it to do.
    pub async fn removed(&self) {
        self.consensus.removed().await;
    }

    /// Where operators connect.
    pub fn admin_listen(&self) -> SocketAddr {
        self.admin_listen
    }

    /// What it has applied, for whoever shares the process.
    pub fn records(&self) -> Arc<Records> {
        self.consensus.records()
    }

    /// How it stands in its cluster, for whoever shares the process.
    pub fn status(&self) -> Status {
        self.consensus.status()
    }

    /// The calls, for whoever shares the process.
    pub fn calls(&self) -> &Arc<NodeCalls> {
        &self.calls
    }

    /// Reads anew what is read from files while the node runs: tokens and certificates. What can't be used leaves what was
    /// before in force. Says in the log what came of it.
    pub async fn reload(&self) {
        self.auth.read_again().await;
        self.secure.reload().await;
        let keys = Arc::clone(self.consensus.keys());
        // Where it doesn't end, the runtime does.
        let _ = work::run(move || keys.read_again()).await;
    }

    /// Has the audit tell now who was turned away since the last minute.
    pub async fn tell_refusals(&self) {
        self.refusals.tell().await;
    }

    /// Stops in order: no new connections, what is in flight is answered, then the log and the store are closed.
    pub async fn stop(self) {
        // Nobody new should come, and what still does goes to the next leader.
        self.calls.leave();
        let last = Duration::from_millis(limits::REFUSED_LAST_MS);
        // Not in time: the log of this node says so, and nothing waits for it.
        if tokio::time::timeout(last, self.refusals.tell()).await.is_err() {
            tracing::warn!("who was refused lately could not be audited in time");
        }
        self.consensus.resign().await;
        self.stopping.send_replace(true);
        self.calls.end_waits();
        for door in self.doors {
            // A door that failed has nothing left to answer.
            let _ = door.await;
        }
        let closed =
            tokio::time::timeout(Duration::from_millis(limits::NODE_CLOSE_MS), self.consensus.shutdown()).await;
        self.ended.send_replace(true);
        for other in &self.others {
            other.abort();
        }
        if closed.is_err() {
            tracing::warn!("the log did not close in time; what was acknowledged is durable all the same");
        }
    }
}

/// The sealing keys, judged. A command that prints them may take its time.
async fn keys(config: &Config, disk: &Arc<dyn Disk>) -> Result<Arc<Keychain>, NodeError> {
    let (source, disk, dir) = (config.seal.clone(), Arc::clone(disk), config.data_dir.clone());
    let read = move || Keychain::read(source, disk, dir);
    Ok(Arc::new(work::run(read).await.expect("reading keys doesn't panic")?))
}

/// Takes the data directory. A process that was killed has it until its last call to the disk is over, which may be after
/// it is seen to be gone: so it is waited for a while.
async fn lock(disk: &dyn Disk, config: &Config) -> Result<Box<dyn Lock>, NodeError> {
    let dir = config.data_dir.display().to_string();
    let unusable = |source| NodeError::Directory { dir: dir.clone(), source };
    disk.create_dir_all(&config.data_dir).map_err(unusable)?;
    let mut tries = limits::DIRECTORY_LOCK_TRIES;
    loop {
        tries -= 1;
        match disk.try_lock(&config.data_dir.join("lock")) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(unusable(error)),
            Err(_) if tries == 0 => return Err(NodeError::InUse { dir }),
            Err(_) => {
                if tries + 1 == limits::DIRECTORY_LOCK_TRIES {
                    tracing::info!(dir, "the data directory is in use by another process: it is waited for");
                }
                tokio::time::sleep(Duration::from_millis(limits::DIRECTORY_LOCK_PAUSE_MS)).await;
            }
            Ok(lock) => return Ok(lock),
        }
    }
}

async fn bind(net: &dyn Net, key: &'static str, address: SocketAddr) -> Result<Box<dyn Listener>, NodeError> {
    net.listen(address).await.map_err(|source| NodeError::Listen { key, address, source })
}

fn engine(kind: StoreKind) -> EngineKind {
    match kind {
        StoreKind::Fjall => EngineKind::Fjall,
        StoreKind::Sled => EngineKind::Sled,
        StoreKind::Memory => EngineKind::Memory,
    }
}

/// What a cluster is founded with, beside what is drawn.
#[derive(Clone)]
pub(crate) struct Founding {
    /// Its name.
    pub cluster_name: String,
    /// The token of whoever founds it, if one is made.
    pub first_token: Option<TokenText>,
}

/// A token with `cluster`, which never ends by itself, in a cluster with this secret. Its scope is not sealed yet.
fn cluster_token(text: &TokenText, secret: &[u8]) -> Token {
    let operations = vec!["*".to_owned()];
    Token {
        id: text.id,
        hash: text.hash(&TokenKey::of(secret)),
        tenant: None,
        permissions: Permissions::of(&[Permission::Cluster]).bits(),
        created_at: Time::default(),
        expires_at: None,
        revoked_at: None,
        created: Position::default(),
        scope: TokenScope { operations, note: None, created_by: "init".to_owned() }.seal(text.id, &Cipher::null()),
    }
}

/// A cluster of these nodes, unless it is formed already.
pub(crate) async fn form(
    consensus: &Consensus,
    members: BTreeMap<NodeId, Addresses>,
    founding: &Founding,
) -> Result<crate::raft::Forming, FormError> {
    let secret = Key::draw();
    let ids = (LineageId(entropy::bytes()), ClusterId(entropy::bytes()));
    let init = Init {
        lineage_id: ids.0,
        cluster_id: ids.1,
        cluster_name: founding.cluster_name.clone(),
        downstream_secret: Wrapped { wrapping_id: 0, bytes: Blob(secret.reveal().to_vec().into()) },
        // All voters of a cluster of one; of several each has to tell what it understands.
        feature_level: if members.len() == 1 { FEATURE_LEVEL } else { 1 },
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: founding.first_token.as_ref().map(|token| cluster_token(token, secret.reveal())),
    };
    consensus.init_by(members, ids, |ids| Ok(consensus.keys().founding(ids, init, &secret)?)).await
}

/// Finishes what an earlier start may have broken off between creating the log and the cluster's first command.
async fn finish_forming(consensus: Consensus, members: BTreeMap<NodeId, Addresses>, founding: Founding) {
    loop {
        match form(&consensus, members.clone(), &founding).await {
            // Its ports are those of the command line: other ones than before are no other cluster.
            Ok(_) | Err(FormError::OtherMembers) => return,
            Err(error) => tracing::info!(%error, "the cluster is not ready yet"),
        }
        tokio::time::sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await;
    }
}
