//! The network between nodes: a proxy in front of every node's peer port. Who dials is told by the address that the
//! connection comes from, so that each direction between two nodes can be cut, delayed or left half open by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// Bytes that one direction of a connection holds at most while it is cut: what is beyond waits at the sender.
const CHUNK_BYTES: usize = 64 * 1024;

/// The address that node `id` listens on for its peers, and dials them from.
pub fn own_address(id: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 1, u8::try_from(id).unwrap()))
}

fn node_of(address: IpAddr) -> Option<u64> {
    match address {
        IpAddr::V4(address) if address.octets()[..3] == [127, 0, 1] => Some(u64::from(address.octets()[3])),
        _ => None,
    }
}

/// What is wrong with the network.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// From → to: nothing arrives. What was sent is held, as a network's retransmission would.
    cut: BTreeSet<(u64, u64)>,
    /// From → to: each chunk arrives this much later.
    delay: BTreeMap<(u64, u64), Duration>,
    /// Connections made before this count are dead without either end being told.
    stale: u64,
}

/// The network between nodes.
pub struct Links {
    faults: watch::Sender<Faults>,
    made: Arc<Mutex<u64>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Links {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            faults: watch::Sender::new(Faults::default()),
            made: Arc::default(),
            tasks: Mutex::new(JoinSet::new()),
        })
    }

    /// A proxy in front of `target`, where node `to` listens. Answers the address to be told to others.
    pub async fn in_front_of(&self, to: u64, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (faults, made) = (self.faults.clone(), Arc::clone(&self.made));
        self.tasks.lock().unwrap().spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, from)) = listener.accept().await else { continue };
                let number = {
                    let mut made = made.lock().unwrap();
                    *made += 1;
                    *made
                };
                // Somebody from outside is let through: a restore asks who is there.
                let from = node_of(from.ip()).unwrap_or(0);
                connections.spawn(carry(stream, from, to, target, faults.subscribe(), number));
                while connections.try_join_next().is_some() {}
            }
        });
        address
    }

    /// Nothing of what `from` sends reaches `to`.
    pub fn cut_one_way(&self, from: u64, to: u64) {
        self.faults.send_modify(|faults| {
            faults.cut.insert((from, to));
        });
    }

    /// Neither reaches the other.
    pub fn cut(&self, a: u64, b: u64) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// The node reaches nobody and nobody reaches it.
    pub fn isolate(&self, node: u64, others: impl IntoIterator<Item = u64>) {
        others.into_iter().filter(|other| *other != node).for_each(|other| self.cut(node, other));
    }

    /// What `from` sends reaches `to` later.
    pub fn delay(&self, from: u64, to: u64, by: Duration) {
        self.faults.send_modify(|faults| {
            faults.delay.insert((from, to), by);
        });
    }

    /// Every connection there is now stays open, and nothing passes through it any more.
    pub fn leave_half_open(&self) {
        let made = *self.made.lock().unwrap();
        self.faults.send_modify(|faults| faults.stale = made);
    }

    /// Nothing is wrong any more; what was held arrives.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| {
            faults.cut.clear();
            faults.delay.clear();
        });
    }
}

async fn carry(
    stream: TcpStream,
    from: u64,
    to: u64,
    target: SocketAddr,
    faults: watch::Receiver<Faults>,
    number: u64,
) {
    let mut seen = faults.clone();
    // A connection needs both directions to come about.
    let open = |faults: &Faults| !faults.cut.contains(&(from, to)) && !faults.cut.contains(&(to, from));
    if seen.wait_for(open).await.is_err() {
        return;
    }
    let Ok(onward) = TcpStream::connect(target).await else { return };
    let _ = (stream.set_nodelay(true), onward.set_nodelay(true));
    let ((from_read, from_write), (to_read, to_write)) = (stream.into_split(), onward.into_split());
    let there = copy(from_read, to_write, (from, to), faults.clone(), number);
    let back = copy(to_read, from_write, (to, from), faults, number);
    // One end gone: the other is told, as a node's kernel would.
    tokio::select! { _ = there => {} _ = back => {} }
}

async fn copy(
    mut read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
    way: (u64, u64),
    mut faults: watch::Receiver<Faults>,
    number: u64,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let len = read.read(&mut chunk).await?;
        let passes = |faults: &Faults| !faults.cut.contains(&way) && number > faults.stale;
        if faults.wait_for(passes).await.is_err() || len == 0 {
            return Ok(());
        }
        let delay = faults.borrow().delay.get(&way).copied();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        write.write_all(&chunk[..len]).await?;
    }
}
