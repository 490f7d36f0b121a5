//! Where traces go: to a collector of OpenTelemetry, over OTLP, where `OTEL_EXPORTER_OTLP_ENDPOINT` names one. The other
//! variables of OpenTelemetry hold as well.

use std::{env, sync::OnceLock, time::Duration};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::runtime::Runtime;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::traces::TARGET;

/// Names the collector.
const ENDPOINT: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// How long the end of a process waits for the collector.
const END: Duration = Duration::from_secs(5);

/// What exports, and what it runs on: neither may end before the other.
static EXPORT: OnceLock<(SdkTracerProvider, Runtime)> = OnceLock::new();

/// Takes spans, and nothing else; none where no collector is named.
pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>() -> Option<Box<dyn Layer<S> + Send + Sync>> {
    if ENDPOINT.iter().all(|name| env::var_os(name).is_none()) {
        return None;
    }
    let (provider, _) = match EXPORT.get() {
        Some(export) => export,
        None => {
            let export = export().map_err(|error| eprintln!("semel: no traces are exported: {error}")).ok()?;
            EXPORT.get_or_init(|| export)
        }
    };
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("semel"));
    Some(layer.with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO)).boxed())
}

fn export() -> Result<(SdkTracerProvider, Runtime), Box<dyn std::error::Error>> {
    // Of its own: it outlives the node's, and is there before it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let exporter = {
        let _inside = runtime.enter();
        SpanExporter::builder().with_tonic().build()?
    };
    let resource = Resource::builder().with_service_name(env::var("OTEL_SERVICE_NAME").unwrap_or("semel".to_owned()));
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
    Ok((provider, runtime))
}

/// Sends what is left.
pub(super) fn end() {
    if let Some((provider, _)) = EXPORT.get()
        && let Err(error) = provider.shutdown_with_timeout(END)
    {
        tracing::warn!(%error, "not all traces were exported");
    }
}
