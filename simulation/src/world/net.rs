//! The network between the hosts: turmoil's, with every delivered byte noted, and connections that break, lag and go dark.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::BoxFuture;
use rand::{Rng, rngs::SmallRng};
use semel::net::{Listener, Net, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use turmoil::net::{TcpListener, TcpStream};

use super::trace;
use crate::{
    fault::{FaultKind, Fired},
    options::Options,
};

/// How long a connection may lag behind a later one, ms.
const LAG_MS: (u64, u64) = (20, 400);
/// How long the tasks of a starved host wait for what arrives, ms.
const STARVED_MS: (u64, u64) = (50, 300);

/// What all connections share.
pub struct Links {
    fired: Fired,
    loss: u32,
    reordering: u32,
    duplication: u32,
    state: Mutex<State>,
}

struct State {
    rng: SmallRng,
    /// Faults happen.
    is_bad: bool,
    /// So many of the next connections used at these hosts go dark.
    dark: Vec<u64>,
    /// Hosts whose tasks get little time.
    starved: Vec<u64>,
}

impl Links {
    /// The links of a run.
    pub fn new(options: &Options, fired: Fired) -> Arc<Self> {
        let state = State { rng: options.rng("links"), is_bad: false, dark: Vec::new(), starved: Vec::new() };
        Arc::new(Self {
            fired,
            loss: options.rate(FaultKind::Loss),
            reordering: options.rate(FaultKind::Reordering),
            duplication: options.rate(FaultKind::Duplication),
            state: Mutex::new(state),
        })
    }

    /// Connections are good, or as bad as the options say.
    pub fn set_bad(&self, is_bad: bool) {
        let mut state = self.lock();
        state.is_bad = is_bad;
        if !is_bad {
            state.dark.clear();
            state.starved.clear();
        }
    }

    /// The next connection that this host uses is gone, and nobody is told.
    pub fn darken(&self, host: u64) {
        self.lock().dark.push(host);
    }

    /// This host's tasks get little time, or enough again.
    pub fn starve(&self, host: u64, is_starved: bool) {
        let mut state = self.lock();
        state.starved.retain(|starved| *starved != host);
        if is_starved {
            state.starved.push(host);
        }
    }

    /// Whether it happens this time, of so many in a thousand.
    fn hits(&self, kind: FaultKind, per_mille: u32) -> bool {
        let mut state = self.lock();
        let hits = state.is_bad && per_mille > 0 && state.rng.random_ratio(per_mille.min(1000), 1000);
        drop(state);
        if hits {
            self.fired.hit(kind);
        }
        hits
    }

    fn between(&self, (from, to): (u64, u64)) -> Duration {
        Duration::from_millis(self.lock().rng.random_range(from..=to))
    }

    fn goes_dark(&self, host: u64) -> bool {
        let mut state = self.lock();
        match state.dark.iter().position(|dark| *dark == host) {
            Some(at) => {
                state.dark.remove(at);
                drop(state);
                self.fired.hit(FaultKind::HalfOpen);
                true
            }
            None => false,
        }
    }

    /// Connections that lag do so for as long as faults happen: a lag bounds what gets through, and what has piled up by the
    /// heal would come for minutes.
    fn lag(&self, lag: Duration) -> Duration {
        if self.lock().is_bad { lag } else { Duration::ZERO }
    }

    fn is_starved(&self, host: u64) -> bool {
        self.lock().starved.contains(&host)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network as one host has it.
#[derive(Clone)]
pub struct SimNet {
    /// The host: a node's id, or a number above all of them.
    pub host: u64,
    /// What all share.
    pub links: Arc<Links>,
}

impl SimNet {
    fn wire(&self, inner: TcpStream, is_answering: bool) -> Stream {
        let lags = self.links.hits(FaultKind::Reordering, self.links.reordering);
        let lag = if lags { self.links.between(LAG_MS) } else { Duration::ZERO };
        let (host, links) = (self.host, Arc::clone(&self.links));
        Box::new(Wire { inner, host, links, is_answering, lag, pause: None, is_dark: false, is_broken: false })
    }
}

impl Net for SimNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move { Ok(self.wire(TcpStream::connect(address).await?, false)) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(SimListener { net: self.clone(), listener }) as Box<dyn Listener>)
        })
    }
}

struct SimListener {
    net: SimNet,
    listener: TcpListener,
}

impl Listener for SimListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let (stream, from) = self.listener.accept().await?;
            Ok((self.net.wire(stream, true), from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One end of a connection.
struct Wire {
    inner: TcpStream,
    host: u64,
    links: Arc<Links>,
    /// It was accepted: what is written here are answers.
    is_answering: bool,
    /// How long after one read the next one comes.
    lag: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    /// Nothing goes either way, and nobody here knows.
    is_dark: bool,
    is_broken: bool,
}

impl Wire {
    fn judge(&mut self) -> io::Result<()> {
        self.is_dark = self.is_dark || self.links.goes_dark(self.host);
        if self.is_broken { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.judge()?;
        if self.is_dark {
            return Poll::Pending;
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        trace::note(self.host, "read", 0, &buf.filled()[before..]);
        let starved = if self.links.is_starved(self.host) { self.links.between(STARVED_MS) } else { Duration::ZERO };
        let pause = self.links.lag(self.lag) + starved;
        if !pause.is_zero() {
            self.pause = Some(Box::pin(tokio::time::sleep(pause)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.judge()?;
        if self.is_dark {
            return Poll::Ready(Ok(buf.len()));
        }
        // An answer that is lost has its caller ask again what was done already.
        let is_repeated = self.is_answering && self.links.hits(FaultKind::Duplication, self.links.duplication);
        if is_repeated || self.links.hits(FaultKind::Loss, self.links.loss) {
            self.is_broken = true;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.judge()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
