//! The spans themselves.

use http::HeaderMap;
use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use tracing::{Instrument, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of all spans.
pub const TARGET: &str = "semel::traces";
/// Where a caller says which trace its request belongs to (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// The trace that a request belongs to, if it says so.
#[derive(Clone, Debug)]
pub struct Parent(Option<Context>);

/// The trace that the request with these fields belongs to: one field of the version 00, or none.
pub fn parent(fields: &HeaderMap) -> Parent {
    let mut lines = fields.get_all(TRACEPARENT).iter();
    let line = lines.next().filter(|_| lines.next().is_none()).and_then(|line| line.to_str().ok());
    Parent(line.and_then(context))
}

fn context(line: &str) -> Option<Context> {
    let mut parts = line.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_whole = version == "00" && (trace.len(), span.len(), flags.len()) == (32, 16, 2) && parts.next().is_none();
    if !is_whole {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then(|| Context::new().with_remote_span_context(context))
}

/// This future inside of a span of this name.
pub fn within<F: Future>(name: &'static str, parent: Parent, future: F) -> impl Future<Output = F::Output> {
    let span = tracing::info_span!(
        target: TARGET,
        "call",
        otel.name = name,
        otel.kind = "server",
        record = Empty,
        answer = Empty
    );
    if let Parent(Some(parent)) = parent {
        // A span that nobody collects has no parent either.
        let _ = span.set_parent(parent);
    }
    future.instrument(span)
}

/// Says which record the present call is about, by its keyed hash.
pub fn record(hash: &[u8]) {
    let text = crate::id::hex(hash);
    Span::current().record("record", text.as_str());
}

/// Says how the present call was answered, in a word of the metrics.
pub fn answered(word: &'static str) {
    Span::current().record("answer", word);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_trace_is_read_in_its_one_form() {
        let of = |lines: &[&str]| {
            let fields = lines.iter().map(|line| (TRACEPARENT.parse().unwrap(), line.parse().unwrap())).collect();
            parent(&fields).0.map(|context| context.span().span_context().trace_id().to_string())
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(of(&[good]).as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        let zeros = good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        for bad in ["", "00", &good[..54], &zeros, &good.replacen("00", "ff", 1), &format!("{good}-00")] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
        assert_eq!(of(&[good, good]), None);
        assert_eq!(of(&[]), None);
    }
}
