//! Accepting connections: bounded in number, head size and time, ended in order.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time,
};

use crate::limits;

/// Answers requests on this listener, on `connections_max` connections at once, until `stopping` is true; then lets what runs finish, for `DRAIN_MS` at most.
pub async fn serve<A, F>(listener: TcpListener, connections_max: usize, answer: A, mut stopping: watch::Receiver<bool>)
where
    A: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(connections_max));
    let graceful = GracefulShutdown::new();
    // Owns every connection: whatever is left when this function returns ends with it.
    let mut connections = JoinSet::new();
    let mut stopped = pin!(async move {
        // An error says that whoever could stop us is gone: that is a stop too.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    });
    let server = server();
    loop {
        let (stream, peer, slot) = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &slots) => match accepted {
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
        let answer = answer.clone();
        let service = service_fn(move |request| {
            let answered = answer(request, peer);
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let connection = graceful.watch(server.serve_connection(TokioIo::new(stream), service).into_owned());
        connections.spawn(async move {
            // How a connection ends is its client's affair: nothing to be done about it here.
            let _ = connection.await;
            drop(slot);
        });
    }
    drop(listener);
    if time::timeout(Duration::from_millis(limits::DRAIN_MS), graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were still open when the time to stop was over; they are cut");
    }
}

type Accepted = (TcpStream, SocketAddr, OwnedSemaphorePermit);

/// The next connection; none where there are too many, and it was closed at once.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<Option<Accepted>> {
    let (stream, peer) = listener.accept().await?;
    let Ok(slot) = slots.clone().try_acquire_owned() else { return Ok(None) };
    // Answers are small and waited for. A socket where this fails is broken, which its first read will tell.
    let _ = stream.set_nodelay(true);
    Ok(Some((stream, peer, slot)))
}

fn server() -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits::HEAD_TIMEOUT_MS))
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
