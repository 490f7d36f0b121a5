//! A network that can be cut off from one node, both ways.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
};

use crate::net::{Listener, Net, Stream, TcpNet};

/// Whether a node can be heard.
#[derive(Default)]
pub(super) struct Cuttable(AtomicBool);

impl Cuttable {
    pub fn cut(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn heal(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub fn is_cut(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn judge(&self) -> io::Result<()> {
        if self.is_cut() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

pub(super) struct CutNet(pub Arc<Cuttable>);

impl Net for CutNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            self.0.judge()?;
            let inner = TcpNet::default().connect(address).await?;
            Ok(Box::new(CutStream { inner, cut: Arc::clone(&self.0) }) as Stream)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(CutListener { listener, cut: Arc::clone(&self.0) }) as Box<dyn Listener>)
        })
    }
}

pub(super) struct CutListener {
    pub listener: TcpListener,
    pub cut: Arc<Cuttable>,
}

impl Listener for CutListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let (inner, from) = Listener::accept(&self.listener).await?;
            self.cut.judge()?;
            Ok((Box::new(CutStream { inner, cut: Arc::clone(&self.cut) }) as Stream, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Breaks at the first use after the cut.
struct CutStream {
    inner: Stream,
    cut: Arc<Cuttable>,
}

impl AsyncRead for CutStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.cut.judge()?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.cut.judge()?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
