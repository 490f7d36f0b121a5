//! Accepting connections: bounded in number, also from one address, in head size and time; ended in order.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, Instant},
};

use super::{
    connection::{Answer, Doing, Spans, Watched},
    gate::{Gate, Place},
};
use crate::{
    limits,
    metrics::Metrics,
    net::{Accepted, Listener, Retires},
};

/// How large and how slow requests may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// From the first byte of a head to its last.
    pub timeout: Duration,
    /// Bytes of a head.
    pub bytes_max: u32,
    /// Fields of a head.
    pub fields_max: usize,
    /// Streams of one connection of HTTP/2.
    pub streams_max: u32,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(limits::HEAD_TIMEOUT_MS),
            bytes_max: limits::HEAD_BYTES_MAX as u32,
            fields_max: limits::HEAD_FIELDS_MAX,
            streams_max: limits::STREAMS_PER_CONNECTION_MAX,
        }
    }
}

/// How many connections a door has, and how long they may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once.
    pub connections_max: usize,
    /// Connections at once from one address; of IPv6, from one network of 64 bits.
    pub per_address_max: usize,
    /// Heads of requests, and how many there may be on one connection at once.
    pub heads: Heads,
    /// How long a connection may be open without a request.
    pub idle: Duration,
    /// How long one may be open without a good credential; none where calls need none.
    pub unauthenticated: Option<Duration>,
    /// Whether a client that has ended its side is answered all the same. Otherwise that is how it is known to be gone.
    pub answers_half_closed: bool,
    /// How long what runs may go on once the door is to stop.
    pub drain: Duration,
}

/// Answers requests on this listener, within these bounds, until `stopping` is true; then lets what runs finish, for
/// `drain` at most. Where there are metrics, its connections are counted in them. What is known of a connection stands
/// among the extensions of its requests: [`Shown`](crate::net::Shown), [`Proven`](crate::net::Proven) and [`Retires`].
pub async fn serve<A, F>(
    listener: Box<dyn Listener>,
    bounds: Bounds,
    metrics: Option<Arc<Metrics>>,
    answer: A,
    mut stopping: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let gate = Gate::new(bounds.connections_max, bounds.per_address_max, metrics);
    // Owns every connection: whatever is left when this function returns ends with it.
    let mut connections = JoinSet::new();
    let ends = stopping.clone();
    let mut stopped = pin!(stopped(&mut stopping));
    let server = server(bounds.heads, bounds.answers_half_closed);
    loop {
        let accepted = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accepted() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: pass by the moment instead of ending the listener.
                    tracing::warn!(%error, "a connection was not accepted");
                    time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
                    continue;
                }
            },
        };
        let doing = Doing::new(bounds.unauthenticated.is_some());
        // Where credentials are not asked for, nobody is without a good one.
        let unproven = bounds.unauthenticated.map(|_| Arc::clone(&doing.proven));
        let Some(place) = gate.admit(accepted.from.ip(), unproven) else { continue };
        connections.spawn(connection(server.clone(), accepted, (doing, place), bounds, answer.clone(), ends.clone()));
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if time::timeout(bounds.drain, drained).await.is_err() {
        tracing::warn!("connections were still open when the time to stop was over; they are cut");
    }
}

/// An error says that whoever could stop us is gone: that is a stop too.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Serves one connection until its client, its age, its idleness or the end of the door ends it.
async fn connection<A, F>(
    server: auto::Builder<TokioExecutor>,
    accepted: Accepted,
    (doing, place): (Arc<Doing>, Place),
    bounds: Bounds,
    answer: A,
    mut ends: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let Accepted { stream, from, shown, node: _, retires } = accepted;
    let Heads { timeout: head, fields_max, .. } = bounds.heads;
    let spans = Spans { head, idle: bounds.idle, unproven: bounds.unauthenticated };
    let socket = Watched::new(stream, &doing);
    let requests = Arc::clone(&doing);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let answering = requests.answering();
        request.extensions_mut().insert(Arc::clone(&requests.proven));
        if let Some(shown) = &shown {
            request.extensions_mut().insert(Arc::clone(shown));
        }
        if let Some(retires) = retires {
            request.extensions_mut().insert(retires);
        }
        // HTTP/1 counts them itself.
        let is_too_long = request.headers().len() > fields_max;
        let answered = (!is_too_long).then(|| answer(request, from));
        async move {
            let response = match answered {
                Some(answered) => answered.await,
                None => too_many_fields(),
            };
            Ok::<_, Infallible>(response.map(|body| Answer { body, _answering: answering }))
        }
    });
    let mut served = pin!(server.serve_connection_with_upgrades(TokioIo::new(socket), service));
    let mut overstays = pin!(doing.overstays(spans));
    let mut ending = pin!(async {
        tokio::select! {
            () = stopped(&mut ends) => {}
            () = retirement(retires) => {}
        }
    });
    let mut is_ending = false;
    loop {
        tokio::select! {
            // How a connection ends is its client's affair, but for what came too often on it.
            _ = served.as_mut() => return doing.too_much().into_iter().for_each(|why| place.refused(why)),
            why = overstays.as_mut() => return place.refused(why),
            // Counted already, by whoever took its place.
            () = place.is_taken() => return,
            () = ending.as_mut(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn retirement(retires: Option<Retires>) {
    match retires {
        Some(Retires(at)) => time::sleep_until(at.max(Instant::now())).await,
        None => std::future::pending().await,
    }
}

fn too_many_fields() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

fn server(heads: Heads, answers_half_closed: bool) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .half_close(answers_half_closed)
        .timer(TokioTimer::new())
        // Watched by `connection`, which knows a head that is slow from a connection that is idle.
        .header_read_timeout(None)
        .max_headers(heads.fields_max)
        .max_buf_size(heads.bytes_max as usize)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(heads.bytes_max)
        .max_concurrent_streams(heads.streams_max)
        .keep_alive_interval(Duration::from_secs(limits::HTTP2_PING_S))
        .keep_alive_timeout(Duration::from_secs(limits::HTTP2_PING_TIMEOUT_S))
        .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::HTTP2_CONNECTION_WINDOW_BYTES);
    server
}
