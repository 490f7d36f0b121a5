//! `GET /v1/watch`: the indeterminate records as server-sent events.
//!
//! `reset` begins a whole set, `indeterminate` is a record, `gone` one that left. The `id` of an event is the position
//! to go on from, so only the last event of a position carries one: a connection that breaks between two events of one
//! position must not skip the second.

use std::{fmt::Write, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{Response, header, request::Parts};
use tokio_stream::wrappers::IntervalStream;

use super::write::ToJson;
use crate::{
    auth::Caller,
    id::parse_decimal,
    json::Json,
    limits,
    proto::v1,
    refusal::Refusal,
    rpc::Door,
    service::{Calls, request::WatchRequest},
};

/// Opens the stream.
pub(super) async fn open<C: Calls>(
    door: &Door<C>,
    caller: Arc<Caller>,
    head: &Parts,
) -> Result<Response<Body>, Refusal> {
    let request = WatchRequest::try_from(query(head)?)?;
    let changes = door.watch(caller, request).await?;
    let events =
        changes.map(|change| Some(change.map_or_else(|refusal| refused(&refusal), |change| text(&change.into()))));
    // A line that says nothing, so that a connection that is gone is noticed at both ends. The stream's own end ends it.
    let period = Duration::from_secs(limits::WATCH_KEEP_ALIVE_S);
    let alive = IntervalStream::new(tokio::time::interval(period)).map(|_| Some(": \n\n".to_owned()));
    let events = events.chain(stream::iter([None]));
    let both = stream::select(events, alive);
    let lines = until_none(both).map(|text| Ok::<_, std::convert::Infallible>(Bytes::from(text)));
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store")
        .body(Body::from_stream(lines));
    Ok(response.expect("constant fields are valid"))
}

fn until_none<T>(items: impl Stream<Item = Option<T>>) -> impl Stream<Item = T> {
    items.take_while(|item| std::future::ready(item.is_some())).filter_map(std::future::ready)
}

/// The query, or the position that a browser that reconnects names. Names the stream doesn't know are refused.
fn query(head: &Parts) -> Result<v1::WatchRequest, Refusal> {
    let mut request = v1::WatchRequest::default();
    let mut from_index = None;
    for pair in head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = match name {
            "tenant" => &mut request.tenant,
            "operation" => &mut request.operation,
            "from_index" => &mut from_index,
            _ => return Err(Refusal::invalid("the query may hold tenant, operation and from_index")),
        };
        if field.is_some() {
            return Err(Refusal::invalid(format!("{name} stands in the query twice")));
        }
        *field = Some(unescaped(value).ok_or_else(|| Refusal::invalid(format!("{name}: the escapes are no UTF-8")))?);
    }
    let last_seen = head.headers.get("last-event-id").and_then(|id| id.to_str().ok());
    if let Some(text) = from_index.as_deref().or(last_seen) {
        let index = parse_decimal(text).ok_or_else(|| Refusal::invalid("from_index must be a decimal number"))?;
        request.from_index = Some(index);
    }
    Ok(request)
}

/// A value of a query without its escapes; none where they are broken.
fn unescaped(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit(rest.next()?)? << 4 | digit(rest.next()?)?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The events of one position.
fn text(change: &v1::WatchAnswer) -> String {
    let mut events = Vec::new();
    if change.reset {
        events.push(("reset", Json::object([("index", Json::u64_text(change.index))])));
    }
    events.extend(change.indeterminate.iter().map(|record| ("indeterminate", record.to_json())));
    events.extend(change.gone.iter().map(|gone| ("gone", gone.to_json())));
    let mut text = String::new();
    let last = events.len().checked_sub(1).filter(|_| !change.more);
    for (at, (event, data)) in events.into_iter().enumerate() {
        if Some(at) == last {
            writeln!(text, "id: {}", change.index).expect("a string takes what is written");
        }
        write!(text, "event: {event}\ndata: {data}\n\n").expect("a string takes what is written");
    }
    text
}

/// The event with which a stream ends that can't go on.
fn refused(refusal: &Refusal) -> String {
    format!("event: refused\ndata: {}\n\n", v1::Refused::from(refusal.clone()).to_json())
}
