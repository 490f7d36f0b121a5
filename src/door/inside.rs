//! A network inside this process: the door's own node listens on it, and nobody else can reach it.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{io::duplex, sync::mpsc};

use crate::{
    limits,
    net::{Listener, Net, Stream, TcpNet},
};

/// A network inside this process, but for what is to be reached from outside too.
#[derive(Clone, Default)]
pub struct Inside {
    outside: Vec<SocketAddr>,
    listening: Arc<Mutex<HashMap<SocketAddr, mpsc::Sender<Stream>>>>,
}

impl Inside {
    /// A network on which these addresses are real ones.
    pub fn but_for(outside: Vec<SocketAddr>) -> Self {
        Self { outside, listening: Arc::default() }
    }
}

impl Net for Inside {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            let inside = address.parse().ok().and_then(|address| self.listening.lock().get(&address).cloned());
            let Some(accepts) = inside else { return TcpNet::default().connect(address).await };
            let (near, far) = duplex(limits::INSIDE_PIPE_BYTES);
            let gone = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
            accepts.send(Box::new(far)).await.map_err(gone)?;
            Ok(Box::new(near) as Stream)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        if self.outside.contains(&address) {
            return Box::pin(async move { TcpNet::default().listen(address).await });
        }
        Box::pin(async move {
            let (accepts, accepted) = mpsc::channel(limits::INSIDE_BACKLOG);
            self.listening.lock().insert(address, accepts);
            Ok(Box::new(Listening { address, accepted: tokio::sync::Mutex::new(accepted) }) as Box<dyn Listener>)
        })
    }
}

struct Listening {
    address: SocketAddr,
    accepted: tokio::sync::Mutex<mpsc::Receiver<Stream>>,
}

impl Listener for Listening {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            match self.accepted.lock().await.recv().await {
                Some(stream) => Ok((stream, self.address)),
                None => std::future::pending().await,
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
