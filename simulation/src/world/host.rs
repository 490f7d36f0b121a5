//! A node on a host of the simulated network: its disk through all lives, its clocks, and how it ended last.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use semel::{
    config::{Access, Config, Forming, NodeLimits, RaftTimes, StoreKind, Tls},
    disk::fault::FaultDisk,
    fatal,
    node::{Node, World},
    raft::Status,
    store::{
        engine::{Engine, EngineError},
        memory::MemoryEngine,
        records::{OpenEngine, Records},
    },
    work,
};
use tokio::runtime;

use super::{
    clock::SimClock,
    disk::{SimDisk, Trap},
    net::{Links, SimNet},
    trace,
};
use crate::log::Log;

/// Where clients connect.
pub const CLIENT_PORT: u16 = 7171;
/// Where nodes connect.
pub const PEER_PORT: u16 = 7172;
/// Where operators connect.
pub const ADMIN_PORT: u16 = 7173;

/// Why a node ends that its cluster has removed.
pub const REMOVED: &str = "the cluster has removed it";

/// A host's name.
pub fn name(node: u64) -> String {
    format!("n{node}")
}

/// Engines in memory, which outlive the node's process as files do.
#[derive(Default)]
pub struct Engines {
    present: Mutex<Option<Arc<dyn Engine>>>,
    next: Mutex<Option<Arc<dyn Engine>>>,
    /// After how many calls to its disk the node is to die, once it takes over a state.
    dies: Mutex<Option<u32>>,
    /// The disk as the node's present life has it.
    disk: Mutex<Option<SimDisk>>,
}

impl Engines {
    /// The store is gone: it is rebuilt from snapshot and log.
    pub fn delete(&self) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The node dies the next time that it takes over a whole state, after so many calls to its disk; or does not.
    pub fn set_dying(&self, after: Option<u32>) {
        *self.dies.lock().unwrap_or_else(PoisonError::into_inner) = after;
    }

    fn begin_life(&self, disk: SimDisk) {
        *self.disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(disk);
    }
}

impl OpenEngine for Engines {
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(present.get_or_insert_with(|| Arc::new(MemoryEngine::new()))))
    }

    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError> {
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(disk) = disk
            && let Some(after) = self.dies.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            disk.arm(Trap::Install, after);
        }
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&engine));
        Ok(engine)
    }

    fn adopt(&self) -> Result<(), EngineError> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// A node, through all its lives.
pub struct Slot {
    /// The node's id.
    pub id: u64,
    /// Its disk.
    pub disk: RefCell<SimDisk>,
    /// Its store.
    pub engines: Arc<Engines>,
    /// Its clocks.
    pub clock: Arc<SimClock>,
    /// Its log waits so long before each write.
    pub log_delay: Cell<Duration>,
    /// Why the process ended itself, and has to be taken away.
    pub ended: RefCell<Option<String>>,
    /// The node, while it runs.
    pub node: RefCell<Option<Rc<Node>>>,
    /// Its disk has lost or changed what was synced, or has failed.
    pub is_wounded: Cell<bool>,
    /// It has the disk of a time before, and may have lost what it acknowledged since.
    pub is_old: Cell<bool>,
    /// It belongs to the cluster, or is about to: what clients know of it.
    pub is_member: Cell<bool>,
    /// How often it has started.
    pub lives: Cell<u64>,
    /// What kind of process it is.
    pub shape: Shape,
    links: Arc<Links>,
    log: Log,
}

/// Sizes and times of a node.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Size of a segment of the log.
    pub segment_bytes: u64,
    /// Size of the log at which a snapshot is taken.
    pub snapshot_log_bytes: u64,
    /// From one round of checking the disk to the next.
    pub scrub: Duration,
    /// How long the log takes for a write on a good day: what happens meanwhile happens before it.
    pub write: Duration,
}

thread_local! {
    static SLOTS: RefCell<Vec<Rc<Slot>>> = const { RefCell::new(Vec::new()) };
    static RUNTIMES: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on these are the nodes of this process: what one of them ends with, or waits for, is told apart by its
/// runtime and its directory.
pub fn register(slots: &[Rc<Slot>]) {
    SLOTS.set(slots.to_vec());
    work::simulate(Box::new(|dir| {
        let id = dir.iter().nth(1).and_then(|part| part.to_str()?.strip_prefix('n')?.parse().ok());
        let delay = |slot: &Slot| slot.log_delay.get() + slot.shape.write;
        id.and_then(|id: u64| with_slot(id, delay)).unwrap_or_default()
    }));
    fatal::set_hook(Arc::new(|reason| {
        let runtime = runtime::Handle::try_current().map(|handle| handle.id().to_string()).unwrap_or_default();
        let node = RUNTIMES.with_borrow(|runtimes| runtimes.get(&runtime).copied());
        trace::tell(|| format!("n{} ends itself: {reason}", node.unwrap_or_default()));
        let noted = node.and_then(|node| with_slot(node, |slot| slot.end(reason)));
        assert!(noted.is_some(), "a node that is none ends itself: {reason}");
    }));
}

fn with_slot<T>(id: u64, then: impl FnOnce(&Slot) -> T) -> Option<T> {
    SLOTS.with_borrow(|slots| slots.iter().find(|slot| slot.id == id).map(|slot| then(slot)))
}

impl Slot {
    /// A node with an empty disk.
    pub fn new(id: u64, shape: Shape, links: Arc<Links>, log: Log) -> Rc<Self> {
        Rc::new(Self {
            id,
            disk: RefCell::new(SimDisk::new(id, FaultDisk::new())),
            engines: Arc::default(),
            clock: Arc::default(),
            log_delay: Cell::default(),
            ended: RefCell::default(),
            node: RefCell::default(),
            is_wounded: Cell::default(),
            is_old: Cell::default(),
            is_member: Cell::default(),
            lives: Cell::default(),
            shape,
            links,
            log,
        })
    }

    /// The process is over: it only has to be taken away.
    fn end(&self, reason: &str) {
        self.ended.borrow_mut().get_or_insert_with(|| reason.to_owned());
    }

    /// Whether it has put its directory aside, although its disk has kept whatever was synced: then it has lost what it had
    /// acknowledged, or takes a good log for a bad one.
    pub fn is_aside_for_nothing(&self) -> bool {
        let is_aside = |path: &PathBuf| {
            path.iter().nth(2).and_then(|part| part.to_str()).is_some_and(|part| part.starts_with("quarantine-"))
        };
        !self.is_wounded.get() && self.disk.borrow().inner().paths().iter().any(is_aside)
    }

    /// What it has applied, while it runs.
    pub fn records(&self) -> Option<Arc<Records>> {
        self.node.borrow().as_ref().map(|node| node.records())
    }

    /// How it stands in its cluster, while it runs.
    pub fn status(&self) -> Option<Status> {
        self.node.borrow().as_ref().map(|node| node.status())
    }

    /// Where it is reached by clients.
    pub fn client_address(&self) -> String {
        format!("{}:{CLIENT_PORT}", name(self.id))
    }

    /// Where it is reached by nodes.
    pub fn peer_address(&self) -> String {
        format!("{}:{PEER_PORT}", name(self.id))
    }

    fn config(&self) -> Config {
        let at = |port| ([0, 0, 0, 0], port).into();
        Config {
            node_id: self.id,
            data_dir: PathBuf::from(format!("/n{}", self.id)),
            cluster_name: "semel".to_owned(),
            listen: at(CLIENT_PORT),
            peer_listen: at(PEER_PORT),
            admin_listen: at(ADMIN_PORT),
            advertise: Some(self.client_address()),
            peer_advertise: Some(self.peer_address()),
            store: StoreKind::Memory,
            raft: RaftTimes {
                heartbeat: Duration::from_millis(100),
                election_min: Duration::from_millis(500),
                election_max: Duration::from_millis(1000),
            },
            limits: NodeLimits {
                wal_segment_bytes: self.shape.segment_bytes,
                snapshot_log_bytes: self.shape.snapshot_log_bytes,
                disk_reserve: None,
                propose_timeout: Duration::from_secs(3),
                scrub: self.shape.scrub,
                connections_max: 256,
                connections_per_address_max: 256,
                idle: Duration::from_secs(300),
                authentication_failures_per_s: 10,
                requests: Default::default(),
                unauthenticated: Duration::from_secs(10),
            },
            tls: Tls::default(),
            console: Default::default(),
            tenant_labels: false,
            seal: None,
            access: Access::Open,
            certified: Vec::new(),
            jwt: None,
            first_token: None,
            forming: Forming::OnInit,
            members: BTreeMap::new(),
        }
    }

    /// One life of the node: the body of its host.
    pub async fn live(self: Rc<Self>) -> turmoil::Result {
        RUNTIMES.with_borrow_mut(|runtimes| runtimes.insert(runtime::Handle::current().id().to_string(), self.id));
        let world = World {
            disk: Arc::new(self.disk.borrow().clone()),
            clock: self.clock.clone(),
            net: Arc::new(SimNet { host: self.id, links: Arc::clone(&self.links) }),
            engines: Some(self.engines.clone()),
            observer: Some(self.log.of_node(self.id)),
        };
        self.lives.set(self.lives.get() + 1);
        self.engines.begin_life(self.disk.borrow().clone());
        trace::tell(|| format!("n{} starts", self.id));
        match Node::start_in(self.config(), world).await {
            Ok(node) => {
                let node = Rc::new(node);
                *self.node.borrow_mut() = Some(Rc::clone(&node));
                node.removed().await;
                trace::tell(|| format!("n{} was removed", self.id));
                // As the process does: it serves nobody, and ends.
                self.end(REMOVED);
            }
            Err(error) => self.end(&format!("it does not start: {}", causes(&error))),
        }
        std::future::pending().await
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        text = format!("{text}: {cause}");
        inner = cause.source();
    }
    text
}
