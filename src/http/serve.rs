//! Accepting connections: bounded in number, also from one address, in head size and time; ended in order.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{self, Instant},
};

use super::connection::{Answer, Doing, Watched};
use crate::{
    auth::network,
    limits,
    metrics::Metrics,
    net::{Accepted, Listener, Retires},
};

/// How many connections a door has, and how long they may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once.
    pub connections_max: usize,
    /// Connections at once from one address; of IPv6, from one network of 64 bits.
    pub per_address_max: usize,
    /// How long a connection may be open without a request.
    pub idle: Duration,
    /// How long what runs may go on once the door is to stop.
    pub drain: Duration,
}

/// Answers requests on this listener, within these bounds, until `stopping` is true; then lets what runs finish, for
/// `drain` at most. Where there are metrics, its connections are counted in them. What is known of a connection stands
/// among the extensions of its requests: [`Shown`](crate::net::Shown) and [`Retires`].
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
    let gate = Gate::new(bounds, metrics);
    // Owns every connection: whatever is left when this function returns ends with it.
    let mut connections = JoinSet::new();
    let ends = stopping.clone();
    let mut stopped = pin!(stopped(&mut stopping));
    let server = server();
    loop {
        let (accepted, place) = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = gate.accept(&*listener) => match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err(error) => {
                    // Out of descriptors, most likely: pass by the moment instead of ending the listener.
                    tracing::warn!(%error, "a connection was not accepted");
                    time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
                    continue;
                }
            },
        };
        connections.spawn(connection(server.clone(), accepted, place, bounds, answer.clone(), ends.clone()));
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
    place: Place,
    bounds: Bounds,
    answer: A,
    mut ends: watch::Receiver<bool>,
) where
    A: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let Accepted { stream, from, shown, node: _, retires } = accepted;
    let (doing, head) = (Doing::new(), Duration::from_millis(limits::HEAD_TIMEOUT_MS));
    let socket = Watched { socket: stream, doing: Arc::clone(&doing) };
    let requests = Arc::clone(&doing);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let answering = requests.answering();
        if let Some(shown) = &shown {
            request.extensions_mut().insert(Arc::clone(shown));
        }
        if let Some(retires) = retires {
            request.extensions_mut().insert(retires);
        }
        let answered = answer(request, from);
        async move {
            let response = answered.await;
            Ok::<_, Infallible>(response.map(|body| Answer { body, _answering: answering }))
        }
    });
    let mut served = pin!(server.serve_connection_with_upgrades(TokioIo::new(socket), service));
    let mut overstays = pin!(doing.overstays(head, bounds.idle));
    let mut ending = pin!(async {
        tokio::select! {
            () = stopped(&mut ends) => {}
            () = retirement(retires) => {}
        }
    });
    let mut is_ending = false;
    loop {
        tokio::select! {
            // How a connection ends is its client's affair: nothing to be done about it here.
            _ = served.as_mut() => return,
            why = overstays.as_mut() => return place.cut(why),
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

/// Who gets in.
struct Gate {
    bounds: Bounds,
    slots: Arc<Semaphore>,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    metrics: Option<Arc<Metrics>>,
}

/// A connection's place, until it is dropped.
struct Place {
    address: IpAddr,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    metrics: Option<Arc<Metrics>>,
    _slot: OwnedSemaphorePermit,
}

impl Gate {
    fn new(bounds: Bounds, metrics: Option<Arc<Metrics>>) -> Self {
        Self { bounds, slots: Arc::new(Semaphore::new(bounds.connections_max)), by_address: Arc::default(), metrics }
    }

    /// The next connection; none where there are too many, and it was closed at once.
    async fn accept(&self, listener: &dyn Listener) -> io::Result<Option<(Accepted, Place)>> {
        let accepted = listener.accepted().await?;
        let place = match self.admit(accepted.from.ip()) {
            Ok(place) => place,
            Err(why) => {
                if let Some(metrics) = &self.metrics {
                    metrics.refused_connection(why);
                }
                return Ok(None);
            }
        };
        Ok(Some((accepted, place)))
    }

    fn admit(&self, address: IpAddr) -> Result<Place, &'static str> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| "connections_max")?;
        let address = network(address);
        let mut by_address = self.by_address.lock();
        let count = by_address.entry(address).or_default();
        if *count >= self.bounds.per_address_max {
            return Err("connections_per_address_max");
        }
        *count += 1;
        drop(by_address);
        if let Some(metrics) = &self.metrics {
            metrics.connections.inc();
        }
        let (by_address, metrics) = (Arc::clone(&self.by_address), self.metrics.clone());
        Ok(Place { address, by_address, metrics, _slot: slot })
    }
}

impl Place {
    /// Counts that the connection is cut by this node.
    fn cut(&self, why: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.refused_connection(why);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_address = self.by_address.lock();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
        if let Some(metrics) = &self.metrics {
            metrics.connections.dec();
        }
    }
}

fn server() -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        // Watched by `connection`, which knows a head that is slow from a connection that is idle.
        .header_read_timeout(None)
        .max_headers(limits::HEAD_FIELDS_MAX)
        .max_buf_size(limits::HEAD_BYTES_MAX)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits::HEAD_BYTES_MAX as u32)
        .max_concurrent_streams(limits::STREAMS_PER_CONNECTION_MAX)
        .keep_alive_interval(Duration::from_secs(limits::HTTP2_PING_S))
        .keep_alive_timeout(Duration::from_secs(limits::HTTP2_PING_TIMEOUT_S))
        .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::HTTP2_CONNECTION_WINDOW_BYTES);
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_by_address_and_given_back() {
        let bounds =
            Bounds { connections_max: 5, per_address_max: 2, idle: Duration::from_secs(1), drain: Duration::ZERO };
        let metrics = Arc::new(Metrics::default());
        let gate = Gate::new(bounds, Some(Arc::clone(&metrics)));
        let admit = |address: &str| gate.admit(address.parse().expect("an address"));
        let one = [admit("10.0.0.1"), admit("::ffff:10.0.0.1")];
        assert!(one.iter().all(Result::is_ok));
        assert_eq!(admit("10.0.0.1").err(), Some("connections_per_address_max"));
        // Of IPv6 a network of 64 bits is one address.
        let other = [admit("2001:db8:1:2::1"), admit("2001:db8:1:2:ffff::2")];
        assert_eq!(admit("2001:db8:1:2::3").err(), Some("connections_per_address_max"));
        let third = admit("2001:db8:1:3::1");
        assert_eq!(admit("10.0.0.2").err(), Some("connections_max"));
        assert_eq!(metrics.connections.get(), 5);
        drop((one, other, third));
        assert_eq!((metrics.connections.get(), gate.by_address.lock().len()), (0, 0));
        assert!(admit("10.0.0.1").is_ok());
    }
}
