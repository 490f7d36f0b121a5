//! The certificates of a node's three ports: read at the start and again while it runs.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    clock::Clock,
    config::Config,
    limits,
    metrics::Metrics,
    net::{Listener, Net},
    tls::{Bounds, Certificates, Role, TlsError, TlsFiles, TlsListener, TlsNet},
};

/// What protects the ports; none where one is not encrypted.
pub(super) struct Secure {
    client: Option<Arc<Certificates>>,
    peer: Option<Arc<Certificates>>,
    admin: Option<Arc<Certificates>>,
    bounds: Bounds,
}

impl Secure {
    pub fn read(config: &Config, clock: &Arc<dyn Clock>) -> Result<Self, TlsError> {
        let tls = &config.tls;
        for door in [&tls.client, &tls.admin].into_iter().flatten() {
            if let Some(peer) = &tls.peer {
                TlsFiles::check_apart(door, peer)?;
            }
        }
        let read = |files: &Option<TlsFiles>, role: Role| {
            files.clone().map(|files| Certificates::read(files, role, Arc::clone(clock))).transpose()
        };
        let node = Role::Peer { cluster_name: config.cluster_name.clone(), node: config.node_id };
        Ok(Self {
            client: read(&tls.client, Role::Door)?,
            peer: read(&tls.peer, node)?,
            admin: read(&tls.admin, Role::Door)?,
            bounds: Bounds {
                handshake: tls.handshake,
                handshakes_max: tls.handshakes_max,
                age_max: tls.age_max,
                grace: Duration::from_secs(limits::CONNECTION_AGE_GRACE_S),
            },
        })
    }

    /// The way to other nodes, over this network.
    pub fn net(&self, inner: Arc<dyn Net>) -> Arc<dyn Net> {
        match &self.peer {
            Some(certificates) => Arc::new(TlsNet::new(inner, Arc::clone(certificates))),
            None => inner,
        }
    }

    pub fn clients(&self, inner: Box<dyn Listener>, metrics: &Arc<Metrics>) -> Box<dyn Listener> {
        self.over(inner, self.client.as_ref(), metrics)
    }

    pub fn peers(&self, inner: Box<dyn Listener>, metrics: &Arc<Metrics>) -> Box<dyn Listener> {
        self.over(inner, self.peer.as_ref(), metrics)
    }

    pub fn admins(&self, inner: Box<dyn Listener>, metrics: &Arc<Metrics>) -> Box<dyn Listener> {
        self.over(inner, self.admin.as_ref(), metrics)
    }

    fn over(
        &self,
        inner: Box<dyn Listener>,
        certificates: Option<&Arc<Certificates>>,
        metrics: &Arc<Metrics>,
    ) -> Box<dyn Listener> {
        let Some(certificates) = certificates else { return inner };
        Box::new(TlsListener::new(inner, Arc::clone(certificates), self.bounds, Some(Arc::clone(metrics))))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Certificates>> {
        [&self.client, &self.peer, &self.admin].into_iter().flatten()
    }

    /// How often certificates could not be used when they were read again.
    pub fn reload_failures(&self) -> u64 {
        self.all().map(|certificates| certificates.reload_failures()).sum()
    }

    /// Reads all of them again. What can't be used is told in the log, and leaves what was before in force.
    pub async fn reload(&self) {
        for certificates in self.all() {
            let _ = certificates.reload().await;
        }
    }

    /// The same, again and again, for as long as it is polled.
    pub async fn keep_fresh(self: Arc<Self>, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once, and the files were just read.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.reload().await;
        }
    }
}
