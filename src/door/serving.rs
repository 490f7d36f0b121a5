//! A proxy that runs: its port, and its end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    authorize::Authorizer,
    config::Config,
    connect::{Server, UrlError},
    engine::{Door, Settings},
    problem::Naming,
    proxy::Proxy,
};
use crate::{
    Client,
    clock::SystemClock,
    http::serve::{self, Bounds},
    limits, metrics,
    net::{Listener, Net},
    problems,
    tls::{self, Certificates, Role, TlsError, TlsListener, Trust},
};

/// What a proxy is started with.
pub struct Options {
    /// What it listens on.
    pub listener: Box<dyn Listener>,
    /// Where keys are remembered; see [`patience`](super::engine::patience).
    pub store: Client,
    /// What its file says.
    pub config: Config,
    /// Where requests go.
    pub upstream: String,
    /// Whose certificates are taken from an `https://` upstream.
    pub trust: Option<Trust>,
    /// The way to the upstream.
    pub net: Arc<dyn Net>,
    /// Where metrics are shown, if anywhere.
    pub metrics: Option<Box<dyn Listener>>,
    /// Where problems are explained, if callers can reach it; their names are put behind it.
    pub help: Option<String>,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The upstream's URL.
    #[error("the upstream's URL: {0}")]
    Upstream(#[source] UrlError),
    /// That of whoever authorizes.
    #[error("`auth_url`: {0}")]
    AuthUrl(#[source] UrlError),
    /// The certificates of the port.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A port is somebody else's by now.
    #[error("a port can't be opened: {0}")]
    Listen(#[from] io::Error),
}

/// What a port with certificates bears: as a node's does by default.
fn handshakes() -> tls::Bounds {
    tls::Bounds {
        handshake: Duration::from_millis(limits::HANDSHAKE_TIMEOUT_MS_DEFAULT),
        handshakes_max: usize::try_from(limits::HANDSHAKES_DEFAULT).unwrap_or(usize::MAX),
        age_max: Duration::from_secs(limits::CONNECTION_AGE_S_DEFAULT),
        grace: Duration::from_secs(limits::CONNECTION_AGE_GRACE_S),
    }
}

/// What the port of metrics answers.
fn shown(proxy: &Proxy, request: &Request<Incoming>) -> Response<Body> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, metrics::CONTENT_TYPE, proxy.measured()),
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "/metrics and /healthz are here\n".to_owned()),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

async fn keep_fresh(certificates: Arc<Certificates>) {
    loop {
        sleep(Duration::from_secs(limits::RELOAD_S_DEFAULT)).await;
        // What can't be used is told in the log, and leaves what was before in force.
        let _ = certificates.reload().await;
    }
}

/// A proxy that runs.
pub struct Serving {
    listen: SocketAddr,
    door: Door,
    stopping: watch::Sender<bool>,
    ending: watch::Sender<bool>,
    port: JoinHandle<()>,
    /// Where metrics are shown.
    metrics: Option<(SocketAddr, JoinHandle<()>)>,
    /// Reads certificates again.
    fresh: Option<JoinHandle<()>>,
    drain: Duration,
}

impl Serving {
    /// Starts it.
    ///
    /// # Errors
    /// What kept it from starting.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let Options { listener, store, config, upstream, trust, net, metrics, help } = options;
        let listen = listener.local_addr()?;
        // Whoever is told that it runs can connect.
        listener.open()?;
        let base = config.problem_base.unwrap_or_else(|| problems::BASE.to_owned());
        let settings = Settings { naming: Naming { base, help }, outcome_bytes_max: config.outcome_bytes_max };
        let door = Door::new(store, settings);
        let server = Server::new(&upstream, trust.clone(), Arc::clone(&net)).map_err(StartError::Upstream)?;
        let server = server.speaking(config.upstream);
        if server.path() != "/" {
            return Err(StartError::Upstream(UrlError::HAS_PATH));
        }
        let certificates = config.tls.map(|files| Certificates::read(files, Role::Door, Arc::<SystemClock>::default()));
        let certificates = certificates.transpose()?;
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let listener = match &certificates {
            None => listener,
            Some(certificates) => Box::new(TlsListener::new(listener, Arc::clone(certificates), handshakes(), None)),
        };
        let authorizer = config.auth_url.map(|url| Server::new(&url, trust, net).map(Authorizer::new));
        let (stopping, stopped) = watch::channel(false);
        let (ending, ends) = watch::channel(false);
        let proxy = Arc::new(Proxy {
            door: door.clone(),
            routes: config.routes,
            server: Arc::new(server),
            who: config.who,
            authorizer: authorizer.transpose().map_err(StartError::AuthUrl)?,
            scheme,
            metrics: Arc::default(),
            tunnels: Arc::new(Semaphore::new(limits::DOOR_TUNNELS_MAX)),
            ending: ends,
        });
        let measured = Arc::clone(&proxy);
        let answer = move |request, from| Arc::clone(&proxy).answer(request, from);
        let count = |most: u64| usize::try_from(most).unwrap_or(usize::MAX);
        let bounds = Bounds {
            connections_max: count(limits::CONNECTIONS_DEFAULT),
            per_address_max: count(limits::CONNECTIONS_PER_ADDRESS_DEFAULT),
            heads: Default::default(),
            idle: Duration::from_secs(limits::IDLE_TIMEOUT_S_DEFAULT),
            // Callers of the service behind it: what they show is that service's affair.
            unauthenticated: None,
            // No end of a client's, however it comes, ends what it has asked for.
            answers_half_closed: true,
            drain: config.drain_timeout,
        };
        let metrics = metrics.map(|listener| -> Result<_, StartError> {
            let address = listener.local_addr()?;
            listener.open()?;
            let show = move |request: Request<Incoming>, _| {
                let proxy = Arc::clone(&measured);
                async move { shown(&proxy, &request) }
            };
            let bounds = Bounds { connections_max: limits::DOOR_METRICS_CONNECTIONS_MAX, ..bounds };
            Ok((address, tokio::spawn(serve::serve(listener, bounds, None, show, stopped.clone()))))
        });
        let metrics = metrics.transpose()?;
        let port = tokio::spawn(serve::serve(listener, bounds, None, answer, stopped));
        let fresh = certificates.map(|certificates| tokio::spawn(keep_fresh(certificates)));
        Ok(Self { listen, door, stopping, ending, port, metrics, fresh, drain: config.drain_timeout })
    }

    /// Where it listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Where it shows metrics, if it does.
    pub fn metrics_listen(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(address, _)| *address)
    }

    /// `https` where its port has certificates.
    pub fn scheme(&self) -> &'static str {
        if self.fresh.is_some() { "https" } else { "http" }
    }

    /// Stops in order: no new connections, what is in flight is answered, and what nobody waits for any more is finished, for
    /// as long as the configuration says. Says whether everything was.
    pub async fn stop(mut self) -> bool {
        let began = Instant::now();
        self.stopping.send_replace(true);
        // A port that failed has nothing left to answer.
        let _ = (&mut self.port).await;
        self.ending.send_replace(true);
        if let Some(fresh) = &self.fresh {
            fresh.abort();
        }
        self.door
            .drain(self.drain.saturating_sub(began.elapsed()).max(Duration::from_millis(limits::DOOR_SETTLE_MS)))
            .await
    }
}
