//! The operators' port: whether the node is alive and ready, what it is, and its metrics.

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    routing::{MethodRouter, get},
};
use http::{HeaderValue, Response, header};
use std::sync::Arc;

use super::problem;
use crate::{
    auth::{Authenticator, Caller, origin},
    id::Time,
    json::Json,
    refusal::{Code, Refusal},
};

/// What the operators' port shows of a node.
pub trait Observed: Send + Sync + 'static {
    /// Whether a claim would be proposed; else why not, in a few words.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// What the node is, as `GET /v1/status` tells it.
    fn status(&self) -> impl Future<Output = Json> + Send;
    /// Refuses whoever may not read the metrics: they tell tenants by name to some alone.
    fn admit_to_metrics(&self, request: &Request) -> Result<(), Refusal>;
    /// Every metric, in the text format of Prometheus.
    fn metrics(&self) -> String;
    /// The records' time, as well as this node knows it.
    fn time(&self) -> Time;
    /// The tenants there are, in order.
    fn tenants(&self) -> Vec<String>;
    /// Somebody has signed in to the console: to be audited, without being waited for.
    fn signed_in(&self, caller: &Caller);
}

/// The routes that need no credential: `/healthz`, `/readyz`, `/v1/status`, `/problems/NAME`, and `/metrics` but where it
/// tells tenants by name.
pub fn routes<O: Observed>(node: Arc<O>) -> Router {
    let only_get = |route: MethodRouter<Arc<O>>| route.fallback(|| async { problem::method_not_allowed("GET") });
    Router::new()
        .route("/healthz", only_get(get(|| async { text("ok\n") })))
        .route("/readyz", only_get(get(ready::<O>)))
        .route("/v1/status", only_get(get(status::<O>)))
        .route("/metrics", only_get(get(metrics::<O>)))
        .route("/problems/{name}", only_get(get(page)))
        .fallback(|| async { problem::problem(&Refusal::new(Code::NotFound, "there is no such path on this port")) })
        .with_state(node)
}

/// Keeps web pages away from these routes on an open node that listens on loopback.
pub async fn guard(
    State((auth, listens_on_loopback)): State<(Arc<Authenticator>, bool)>,
    request: Request,
    next: axum::middleware::Next,
) -> Response<Body> {
    if auth.is_open()
        && listens_on_loopback
        && let Err(refusal) = origin::check_open(request.uri(), request.headers())
    {
        return problem::problem(&refusal);
    }
    next.run(request).await
}

async fn ready<O: Observed>(State(node): State<Arc<O>>) -> Response<Body> {
    match node.ready().await {
        Ok(()) => text("ready\n"),
        Err(why) => problem::problem(&Refusal::new(Code::Unavailable, why)),
    }
}

async fn status<O: Observed>(State(node): State<Arc<O>>) -> Response<Body> {
    let mut response = Response::new(Body::from(node.status().await.to_text()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn metrics<O: Observed>(State(node): State<Arc<O>>, request: Request) -> Response<Body> {
    if let Err(refusal) = node.admit_to_metrics(&request) {
        return problem::problem(&refusal);
    }
    let mut response = Response::new(Body::from(node.metrics()));
    let kind = HeaderValue::from_static(crate::metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn page(axum::extract::Path(name): axum::extract::Path<String>) -> Response<Body> {
    match crate::problems::page(&name) {
        Some(page) => text(page),
        None => problem::problem(&Refusal::new(Code::NotFound, "there is no such problem")),
    }
}

fn text(text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
