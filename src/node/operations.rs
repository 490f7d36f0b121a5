//! The operators' calls that a cluster is backed up and restored with: streams of bytes.

use std::sync::Arc;

use axum::{Router, body::Body, extract::Request, routing::post};
use http::{Response, header};

use super::{
    backups::{Asked, Backups},
    restores::Restores,
};
use crate::{
    auth::{Authenticator, Caller, Method},
    http::{operations::first_contact, problem},
    json::Json,
    limits,
    refusal::{Code, Refusal},
};

/// What the calls work on.
pub(super) struct Operations {
    pub auth: Arc<Authenticator>,
    pub backups: Arc<Backups>,
    pub restores: Arc<Restores>,
}

/// The routes of these calls.
pub(super) fn routes(operations: Arc<Operations>) -> Router {
    let only_post = async || problem::method_not_allowed("POST");
    let (backing_up, restoring) = (Arc::clone(&operations), operations);
    let back_up = move |request: Request| {
        let operations = Arc::clone(&backing_up);
        async move { answered(operations.back_up(request).await) }
    };
    let restore = move |request: Request| {
        let operations = Arc::clone(&restoring);
        async move { answered(operations.restore(request).await.map(response)) }
    };
    Router::new()
        .route("/v1/admin/backup", post(back_up).fallback(only_post))
        .route("/v1/admin/restore", post(restore).fallback(only_post))
}

fn answered(answer: Result<Response<Body>, Refusal>) -> Response<Body> {
    answer.unwrap_or_else(|refusal| problem::problem(&refusal))
}

fn response(json: Json) -> Response<Body> {
    let mut response = Response::new(Body::from(json.to_text()));
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

impl Operations {
    fn permitted(&self, request: &Request, method: Method) -> Result<Caller, Refusal> {
        let caller = self.auth.admit(request.headers(), request.extensions())?;
        caller.permit(method)?;
        Ok(caller)
    }

    async fn back_up(&self, request: Request) -> Result<Response<Body>, Refusal> {
        let caller = self.permitted(&request, Method::Backup)?;
        let asked = Asked::parse(&body(request).await?)?;
        self.backups.answer(asked, caller.actor(None)).await
    }

    async fn restore(&self, request: Request) -> Result<Json, Refusal> {
        // As the forming of a cluster.
        let actor = match first_contact(&request) {
            Some(actor) => actor,
            None => self.permitted(&request, Method::Restore)?.actor(None).to_owned(),
        };
        self.restores.restore(request.into_body(), &actor).await
    }
}

async fn body(request: Request) -> Result<bytes::Bytes, Refusal> {
    let too_large = |_| Refusal::new(Code::RequestTooLarge, "the body is too large or broke off");
    axum::body::to_bytes(request.into_body(), limits::REQUEST_BYTES_MAX).await.map_err(too_large)
}
