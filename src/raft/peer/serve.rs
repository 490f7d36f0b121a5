//! The listener for other nodes: connections bounded in number, each asked for signs of life.

use std::{convert::Infallible, future::poll_fn, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tower::Service;

use super::{door::Door, generated::peer_server::PeerServer};
use crate::{
    limits,
    net::{Accepted, Listener},
};

/// Answers other nodes on this listener until `stopping` is true. Connections are cut then: whoever waits on one learns of it
/// at once.
pub(in crate::raft) async fn serve(listener: Box<dyn Listener>, door: Door, mut stopping: watch::Receiver<bool>) {
    let service = PeerServer::new(door)
        .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX);
    let slots = Arc::new(Semaphore::new(limits::PEER_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            // Whoever could stop it is gone: that is a stop too.
            _ = stopping.wait_for(|stopping| *stopping) => return,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accepted() => accepted,
        };
        let Accepted { stream, node, retires, .. } = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection of another node was not accepted");
                tokio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { continue };
        let service = service.clone();
        let answering = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let mut service = service.clone();
            if let Some(node) = node {
                request.extensions_mut().insert(node);
            }
            async move {
                poll_fn(|cx| Service::<http::Request<hyper::body::Incoming>>::poll_ready(&mut service, cx)).await?;
                service.call(request).await as Result<_, Infallible>
            }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_millis(limits::PEER_PING_MS))
            .keep_alive_timeout(Duration::from_millis(limits::PEER_PING_TIMEOUT_MS))
            .max_concurrent_streams(limits::PEER_STREAMS_MAX)
            .initial_stream_window_size(limits::PEER_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::PEER_CONNECTION_WINDOW_BYTES)
            .serve_connection(TokioIo::new(stream), answering);
        connections.spawn(async move {
            let mut connection = pin!(connection);
            if let Some(retires) = retires {
                let served = tokio::time::timeout_at(retires.0, connection.as_mut()).await;
                if served.is_ok() {
                    return drop(slot);
                }
                connection.as_mut().graceful_shutdown();
            }
            // How it ends is the other node's affair, and the next call's.
            let _ = connection.await;
            drop(slot);
        });
    }
}
