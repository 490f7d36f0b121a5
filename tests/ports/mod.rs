//! Ports that stay a test's own for as long as it runs, also while no node listens on them.
//!
//! An address that was only found free is anybody's again: a node that is started again may find the local end of
//! somebody's connection on it, for as long as that lasts. A socket that is bound and doesn't listen keeps the system
//! from giving the port away, and lets a listener in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port of this machine's loopback that is kept until this is dropped.
pub struct Port {
    address: SocketAddr,
    _keeper: TcpSocket,
}

impl Port {
    /// Keeps this one, if nobody has it.
    pub fn keep(address: SocketAddr) -> Option<Self> {
        let keeper = TcpSocket::new_v4().expect("there are sockets");
        keeper.set_reuseaddr(true).expect("a socket takes its options");
        keeper.bind(address).ok()?;
        Some(Self { address: keeper.local_addr().expect("it is bound"), _keeper: keeper })
    }

    /// Keeps any one of this address.
    pub fn any(ip: IpAddr) -> Self {
        Self::keep(SocketAddr::new(ip, 0)).expect("a port is free")
    }

    /// Keeps any one of 127.0.0.1.
    #[allow(dead_code, reason = "not every test wants it")]
    pub fn local() -> Self {
        Self::any(Ipv4Addr::LOCALHOST.into())
    }

    /// Where to listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
