//! Spans of calls, for whoever collects traces (OpenTelemetry, feature `otel`). Without the feature there are none, and
//! nothing of this costs anything.
//!
//! What a span tells is words of closed sets and keyed hashes of records: never a key, an operation, a tenant.

#[cfg(feature = "otel")]
mod on;

#[cfg(feature = "otel")]
pub use on::{Parent, TARGET, answered, parent, record, within};

/// The trace that a request belongs to: nobody asks.
#[cfg(not(feature = "otel"))]
#[derive(Clone, Copy, Debug)]
pub struct Parent;

/// The trace that the request with these fields belongs to.
#[cfg(not(feature = "otel"))]
pub fn parent(_: &http::HeaderMap) -> Parent {
    Parent
}

/// This future.
#[cfg(not(feature = "otel"))]
pub fn within<F: Future>(_: &'static str, _: Parent, future: F) -> impl Future<Output = F::Output> {
    future
}

/// Says which record the present call is about.
#[cfg(not(feature = "otel"))]
pub fn record(_: &[u8]) {}

/// Says how the present call was answered.
#[cfg(not(feature = "otel"))]
pub fn answered(_: &'static str) {}
