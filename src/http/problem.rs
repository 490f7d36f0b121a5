//! A refusal as HTTP tells it: problem+json (RFC 9457) with the status of the table.

use axum::body::Body;
use http::{HeaderValue, Response, header};

use super::write::ToJson;
use crate::{
    json::Json,
    problems,
    proto::v1,
    refusal::{Code, Leader, Refusal},
    rpc::status::retry_after_ms,
};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The response that tells this refusal.
pub(crate) fn problem(refusal: &Refusal) -> Response<Body> {
    let code = refusal.code;
    let retry_after_ms = retry_after_ms(refusal);
    let body = Json::object([
        ("type", problems::url(code).into()),
        ("title", code.title().into()),
        ("status", u32::from(code.http()).into()),
        ("detail", refusal.detail.as_ref().into()),
        ("code", code.as_str().into()),
        ("retryable", code.retryable().into()),
        ("effect", code.effect().as_str().into()),
        ("retry_after_ms", retry_after_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)).into()),
        ("attempt_id", refusal.attempt_id.map(|id| id.hyphenated()).into()),
        ("index", refusal.index.map(|index| index.to_string()).into()),
        ("leader", refusal.leader.as_deref().map_or(Json::Null, leader)),
    ]);
    let mut response = Response::builder()
        .status(code.http())
        .header(header::CONTENT_TYPE, PROBLEM_JSON)
        .header(header::CACHE_CONTROL, "no-store");
    if let Some(ms) = retry_after_ms {
        response = response.header(header::RETRY_AFTER, ms.div_ceil(1000).max(1));
    }
    if code == Code::Unauthenticated {
        response = response.header(header::WWW_AUTHENTICATE, "Bearer");
    }
    response.body(Body::from(body.to_text())).expect("the table's statuses and these fields are valid")
}

fn leader(leader: &Leader) -> Json {
    v1::Leader { id: leader.id, endpoint: leader.endpoint.clone() }.to_json()
}

/// The response to a method that the path doesn't have.
pub(crate) fn method_not_allowed(allowed: &str) -> Response<Body> {
    let mut response = problem(&Refusal::new(Code::MethodNotAllowed, format!("use {allowed}")));
    let allowed = HeaderValue::from_str(allowed).expect("names of methods are valid in a field");
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}
