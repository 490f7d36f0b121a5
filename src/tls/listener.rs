//! A listener whose connections are encrypted. Handshakes go on beside each other, bounded in number and time; a door gets
//! to see a connection only when its handshake is done.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Mutex, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    files::{Certificates, Reading, Role},
    identity,
};
use crate::{
    entropy,
    metrics::Metrics,
    net::{Accepted, CertifiedNode, Listener, Retires, Shown, Stream},
};

/// What a listener bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Handshakes at once. At the bound the oldest is cut: honest ones take a moment.
    pub handshakes_max: usize,
    /// How old a connection may get, about: from then on it takes nothing new.
    pub age_max: Duration,
    /// How long after that it is cut.
    pub grace: Duration,
}

/// Listens for encrypted connections.
pub struct TlsListener {
    inner: Box<dyn Listener>,
    certificates: Arc<Certificates>,
    bounds: Bounds,
    metrics: Option<Arc<Metrics>>,
    handshakes: Mutex<Handshakes>,
}

#[derive(Default)]
struct Handshakes {
    running: JoinSet<Result<Accepted, &'static str>>,
    /// The oldest first; ended ones leave when they come to the front.
    oldest: VecDeque<AbortHandle>,
}

impl TlsListener {
    /// Over this listener, with these certificates. Where there are metrics, what comes to nothing is counted in them.
    pub fn new(
        inner: Box<dyn Listener>,
        certificates: Arc<Certificates>,
        bounds: Bounds,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        Self { inner, certificates, bounds, metrics, handshakes: Mutex::default() }
    }

    fn refused(&self, why: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.refused_connection(why);
        }
    }

    async fn next(&self) -> io::Result<Accepted> {
        // Held over the whole wait: there is one who accepts. What has begun goes on when its wait is broken off.
        let mut handshakes = self.handshakes.lock().await;
        loop {
            tokio::select! {
                biased;
                Some(done) = handshakes.running.join_next(), if !handshakes.running.is_empty() => match done {
                    Ok(Ok(accepted)) => return Ok(accepted),
                    Ok(Err(why)) => self.refused(why),
                    // It was cut, and is counted already.
                    Err(_) => {}
                },
                accepted = self.inner.accept() => {
                    let (stream, from) = accepted?;
                    while handshakes.running.len() >= self.bounds.handshakes_max {
                        match handshakes.oldest.pop_front() {
                            Some(oldest) if !oldest.is_finished() => {
                                oldest.abort();
                                self.refused("handshakes_max");
                                break;
                            }
                            Some(_) => {}
                            None => break,
                        }
                    }
                    while handshakes.oldest.front().is_some_and(AbortHandle::is_finished) {
                        handshakes.oldest.pop_front();
                    }
                    let shaken = handshake(Arc::clone(&self.certificates), self.bounds, stream, from);
                    let begun = handshakes.running.spawn(shaken);
                    handshakes.oldest.push_back(begun);
                }
            }
        }
    }
}

impl Listener for TlsListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move { self.next().await.map(|accepted| (accepted.stream, accepted.from)) })
    }

    fn accepted(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(self.next())
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// One handshake, and what is known after it; else why it came to nothing, in a word of the metrics.
async fn handshake(
    certificates: Arc<Certificates>,
    bounds: Bounds,
    stream: Stream,
    from: SocketAddr,
) -> Result<Accepted, &'static str> {
    // Read before: a reading that comes while the handshake goes on is then seen as one.
    let readings = certificates.readings();
    let accepting = TlsAcceptor::from(certificates.server()).accept(stream);
    let stream = timeout(bounds.handshake, accepting).await.map_err(|_| "handshake_timeout")?;
    let stream = stream.map_err(|error| {
        tracing::debug!(%from, %error, "a handshake came to nothing");
        "handshake_failed"
    })?;
    let chain: Vec<CertificateDer<'static>> = {
        let (_, session) = stream.get_ref();
        session.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
    };
    let shown = if chain.is_empty() {
        None
    } else {
        Some(Arc::new(identity::shown(&chain).map_err(|_| "certificate_unreadable")?))
    };
    let node = match certificates.role() {
        Role::Door => None,
        Role::Peer { cluster_name, .. } => {
            let node = shown.as_deref().and_then(|shown| identity::node_of(shown, cluster_name));
            if node.is_none() {
                tracing::warn!(%from, "a certificate that names no node of this cluster was shown on the peers' port");
            }
            Some(CertifiedNode(node.ok_or("not_a_node")?))
        }
    };
    let retires = Instant::now() + about(bounds.age_max);
    let until = retires + bounds.grace;
    let cut = Cut::new(Arc::clone(&certificates), readings, shown.clone().map(|shown| (chain, shown)), Some(until));
    let stream: Stream = Box::new(Guarded::new(stream, cut));
    Ok(Accepted { stream, from, shown, node, retires: Some(Retires(retires)) })
}

/// This long, 10 % more or less: what was connected at once does not come back at once.
fn about(long: Duration) -> Duration {
    let share = f64::from(u16::from_le_bytes(entropy::bytes())) / f64::from(u16::MAX);
    long.mul_f64(0.9 + 0.2 * share)
}

/// Resolves when a connection must end.
pub(super) struct Cut(BoxFuture<'static, ()>);

impl Cut {
    /// At this moment, if one is named, and when the certificate that was shown is good no more.
    pub fn new(
        certificates: Arc<Certificates>,
        mut readings: watch::Receiver<Reading>,
        shown: Option<(Vec<CertificateDer<'static>>, Arc<Shown>)>,
        until: Option<Instant>,
    ) -> Self {
        let mut judged = *readings.borrow_and_update();
        let holds = async move {
            let Some((chain, shown)) = shown else { return std::future::pending().await };
            loop {
                if readings.changed().await.is_err() {
                    return std::future::pending().await;
                }
                let now = *readings.borrow_and_update();
                if !certificates.holds(&chain, &shown, now.changes != judged.changes) {
                    return;
                }
                judged = now;
            }
        };
        let ends = async move {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        Self(Box::pin(async move {
            tokio::select! {
                () = holds => {}
                () = ends => {}
            }
        }))
    }
}

/// A connection that fails once it must end.
pub(super) struct Guarded<S> {
    stream: S,
    cut: Cut,
    is_cut: bool,
}

impl<S> Guarded<S> {
    pub fn new(stream: S, cut: Cut) -> Self {
        Self { stream, cut, is_cut: false }
    }

    fn judge(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.is_cut && self.cut.0.as_mut().poll(context).is_ready() {
            self.is_cut = true;
        }
        if self.is_cut { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn is_open(&self) -> io::Result<()> {
        if self.is_cut { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Whoever serves a connection reads from it all the time: here it learns of its end.
        self.judge(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_open()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_open()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_open()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
