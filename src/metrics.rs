//! Every metric, its name and what it means, in one place. What `/metrics` shows is exactly this table.
//!
//! Labels are words of closed sets: methods, answers, codes. Never an operation or a key: those are the callers' own, and
//! there is no bound on them. Tenants are told by name where the configuration wants it, and only so many.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

use crate::{auth::Method, refusal::Code};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// A call and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Ended {
    method: &'static str,
    /// An answer (`new`, `completed`, …), `ok`, or the code of a refusal.
    answer: &'static str,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Called {
    method: &'static str,
}

/// Why a connection or a piece of work was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Why {
    reason: &'static str,
}

/// What this process is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Build {
    version: &'static str,
    store: &'static str,
}

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfMember {
    node: u64,
}

impl OfMember {
    /// The member of this number.
    pub fn new(node: u64) -> Self {
        Self { node }
    }
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfTenant {
    tenant: String,
}

impl OfTenant {
    /// The tenant of this name.
    pub fn new(tenant: &str) -> Self {
        Self { tenant: tenant.to_owned() }
    }
}

type Decimal = Gauge<f64, std::sync::atomic::AtomicU64>;
type Seconds = Family<Called, Histogram>;

/// 50 µs to 13 s, each bound twice the one before: from a fast fsync to the longest call that isn't waiting.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(50e-6, 2.0, 19))
}

/// Declares the fields, their names and their meaning once.
macro_rules! metrics {
    ($about:literal $Name:ident; $($field:ident: $Type:ty = $new:expr, $name:literal, $help:literal;)*) => {
        #[doc = concat!($about, ". Shared; every field can be changed from anywhere.")]
        pub struct $Name {
            registry: prometheus_client::registry::Registry,
            $(#[doc = concat!("`", $name, "`: ", $help, ".")] pub $field: $Type,)*
        }

        impl Default for $Name {
            fn default() -> Self {
                let mut registry = prometheus_client::registry::Registry::default();
                $(
                    let $field: $Type = $new;
                    // The encoder puts `_total` behind the names of counters.
                    registry.register($name.trim_end_matches("_total"), $help, $field.clone());
                )*
                Self { registry, $($field,)* }
            }
        }

        impl $Name {
            /// All of it in the text format of Prometheus.
            pub fn encode(&self) -> String {
                let mut text = String::new();
                prometheus_client::encoding::prometheus_text::encode(&mut text, &self.registry)
                    .expect("writing to a string does not fail");
                text
            }
        }

        /// Every name with its meaning, in the table's order.
        pub const NAMES: &[(&str, &str)] = &[$(($name, $help),)*];
    };
}
pub(crate) use metrics;

metrics! {
    "All metrics of a node" Metrics;

    build: Family<Build, Gauge> = Family::default(),
        "semel_build_info", "Version and engine of this process; the value is always 1";

    // Calls.
    requests: Family<Ended, Counter> = Family::default(),
        "semel_requests_total", "Calls by method and by answer or refusal code, items of batches and sessions each by itself";
    request_seconds: Seconds = Family::new_with_constructor(seconds),
        "semel_request_seconds", "Time from a call's receipt to its answer, waiting included, by method";
    connections: Gauge = Gauge::default(),
        "semel_connections", "Open connections of clients";
    refused_connections: Family<Why, Counter> = Family::default(),
        "semel_refused_connections_total", "Connections closed at a limit before a request existed";
    sessions: Gauge = Gauge::default(),
        "semel_sessions", "Open sessions";
    watchers: Gauge = Gauge::default(),
        "semel_watchers", "Open watches of indeterminate records";
    waiters: Gauge = Gauge::default(),
        "semel_waiters", "Claims that wait for a record to change; back to 0 when nobody waits";
    authentication_failures: Counter = Counter::default(),
        "semel_authentication_failures_total", "Calls without a good credential";
    token_file_failures: Counter = Counter::default(),
        "semel_token_file_reload_failures_total", "Changes of the token file, or of the keys of JSON Web Tokens, that could not be used; those before stay in force";
    tls_reload_failures: Counter = Counter::default(),
        "semel_tls_reload_failures_total", "Times that certificates were read again and could not be used; those before stay in force";
    unreadable_fields: Counter = Counter::default(),
        "semel_unreadable_fields_total", "Stored fields that did not open: damaged, or sealed under a key that is not at hand";

    // Proposals.
    queued_commands: Gauge = Gauge::default(),
        "semel_queued_commands", "Commands that wait to be proposed";
    queued_bytes: Gauge = Gauge::default(),
        "semel_queued_bytes", "Bytes of those commands";
    proposals: Counter = Counter::default(),
        "semel_proposals_total", "Entries proposed to the log";
    proposed_commands: Counter = Counter::default(),
        "semel_proposed_commands_total", "Commands inside those entries";
    proposal_seconds: Histogram = seconds(),
        "semel_proposal_seconds", "Time from the proposal of an entry to its application";

    // Consensus.
    term: Gauge = Gauge::default(),
        "semel_term", "Term of the consensus";
    is_leader: Gauge = Gauge::default(),
        "semel_is_leader", "1 while this node leads, else 0";
    last_log: Gauge = Gauge::default(),
        "semel_last_log_index", "Index of the last entry in the log";
    committed: Gauge = Gauge::default(),
        "semel_committed_index", "Index of the last committed entry that this node knows of";
    applied: Gauge = Gauge::default(),
        "semel_applied_index", "Index of the last applied entry";
    purged: Gauge = Gauge::default(),
        "semel_purged_index", "Index of the last entry that was purged from the log";
    position: Gauge = Gauge::default(),
        "semel_position", "Position of the replicated state";
    clock_offset_seconds: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default(),
        "semel_clock_offset_seconds", "This node's wall clock minus cluster time";

    time_rate: Decimal = Gauge::default(),
        "semel_cluster_time_rate", "How fast cluster time runs against the leader's clock: 1, or 0.5 beside a quorum whose clocks are behind; 0 on other nodes";

    // The other members.
    leader_changes: Counter = Counter::default(),
        "semel_leader_changes_total", "Times that another node than before was seen to lead";
    forwarded_commands: Counter = Counter::default(),
        "semel_forwarded_commands_total", "Commands that were sent on to the leader";
    member_reachable: Family<OfMember, Gauge> = Family::default(),
        "semel_member_reachable", "1 for a member that has told how it is within the longest time without a leader, else 0; of other members";
    member_lag: Family<OfMember, Gauge> = Family::default(),
        "semel_member_lag_entries", "Entries that a member lacks of the leader's log; on the leader alone";
    member_clock_offset_seconds: Family<OfMember, Decimal> = Family::default(),
        "semel_member_clock_offset_seconds", "A member's wall clock minus cluster time";

    // Records, over all tenants.
    records: Gauge = Gauge::default(),
        "semel_records", "Records in every state, traces not counted";
    record_bytes: Gauge = Gauge::default(),
        "semel_record_bytes", "Bytes of records and their history as quotas count them";
    in_progress: Gauge = Gauge::default(),
        "semel_in_progress", "Records in progress";
    indeterminate: Gauge = Gauge::default(),
        "semel_indeterminate", "Records of which nobody knows whether the effect happened";
    oldest_indeterminate_seconds: Gauge = Gauge::default(),
        "semel_oldest_indeterminate_age_seconds", "Age of the oldest indeterminate record, 0 where there is none";

    // Records, by tenant: where the configuration wants it.
    tenant_records: Family<OfTenant, Gauge> = Family::default(),
        "semel_tenant_records", "Records of a tenant in every state, traces not counted; with metrics.tenant_labels";
    tenant_record_bytes: Family<OfTenant, Gauge> = Family::default(),
        "semel_tenant_record_bytes", "Bytes of a tenant's records and their history as quotas count them; with metrics.tenant_labels";
    tenant_in_progress: Family<OfTenant, Gauge> = Family::default(),
        "semel_tenant_in_progress", "Records of a tenant in progress; with metrics.tenant_labels";
    tenant_indeterminate: Family<OfTenant, Gauge> = Family::default(),
        "semel_tenant_indeterminate", "Indeterminate records of a tenant; with metrics.tenant_labels";

    // The disk.
    disk_free_bytes: Gauge = Gauge::default(),
        "semel_disk_free_bytes", "Bytes that are free on the disk of the data directory";
    disk_reserve_bytes: Gauge = Gauge::default(),
        "semel_disk_reserve_bytes", "Bytes of the disk that are held back: while less is free nothing is taken on";
    disk_is_full: Gauge = Gauge::default(),
        "semel_disk_is_full", "1 while nothing is taken on because the disk has no room, else 0";
    wal_fsyncs: Counter = Counter::default(),
        "semel_wal_fsyncs_total", "Times that the log was made durable";
    wal_fsync_seconds: Histogram = seconds(),
        "semel_wal_fsync_seconds", "Time that making the log durable took";
    wal_bytes: Counter = Counter::default(),
        "semel_wal_written_bytes_total", "Bytes written to the log";
    wal_segments: Gauge = Gauge::default(),
        "semel_wal_segments", "Segments of the log";
    scrubbed_bytes: Counter = Counter::default(),
        "semel_scrubbed_bytes_total", "Bytes of the log and of snapshots that were read again to find damage";
    scrub_passes: Counter = Counter::default(),
        "semel_scrub_passes_total", "Times that every byte of the log and of the snapshots was read since the start";
    overlay_bytes: Gauge = Gauge::default(),
        "semel_overlay_bytes", "Bytes of applied changes that the store has not got yet";
    store_flushes: Counter = Counter::default(),
        "semel_store_flushes_total", "Batches given to the store";
    store_flush_seconds: Histogram = seconds(),
        "semel_store_flush_seconds", "Time that giving a batch to the store took";
    store_flush_rows: Counter = Counter::default(),
        "semel_store_flushed_rows_total", "Rows in those batches";
    store_bytes: Gauge = Gauge::default(),
        "semel_store_bytes", "Bytes of the store on the disk";
    snapshots: Counter = Counter::default(),
        "semel_snapshots_total", "Snapshots that were written, read back and verified";
    snapshot_failures: Counter = Counter::default(),
        "semel_snapshot_failures_total", "Snapshots that were begun and came to nothing";
    snapshot_seconds: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default(),
        "semel_snapshot_seconds", "Time that the last snapshot took";
    snapshot_bytes: Gauge = Gauge::default(),
        "semel_snapshot_bytes", "Bytes of the last snapshot";
    snapshot_position: Gauge = Gauge::default(),
        "semel_snapshot_position", "Position of the last snapshot";
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metrics({} names)", NAMES.len())
    }
}

impl Metrics {
    /// Metrics of a node with this engine.
    pub fn new(store: &'static str) -> Self {
        let metrics = Self::default();
        metrics.build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION"), store }).set(1);
        metrics
    }

    /// Counts a call that was answered: with this answer (`new`, …; `ok` where there is but one kind).
    pub fn answered(&self, method: Method, answer: &'static str, took: Duration) {
        self.ended(method, answer, took);
    }

    /// Counts a call that was refused.
    pub fn refused(&self, method: Method, code: Code, took: Duration) {
        if code == Code::Unauthenticated {
            self.authentication_failures.inc();
        }
        self.ended(method, code.as_str(), took);
    }

    fn ended(&self, method: Method, answer: &'static str, took: Duration) {
        let method = method.as_str();
        self.requests.get_or_create(&Ended { method, answer }).inc();
        self.request_seconds.get_or_create(&Called { method }).observe(took.as_secs_f64());
    }

    /// Counts a connection that was closed at a limit.
    pub fn refused_connection(&self, reason: &'static str) {
        self.refused_connections.get_or_create(&Why { reason }).inc();
    }
}

/// Shows a position, an index, a count as a gauge, which counts in i64.
pub fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_shown_with_its_meaning() {
        let metrics = Metrics::new("fjall");
        metrics.answered(Method::Claim, "new", Duration::from_millis(3));
        metrics.refused_connection("connections_max");
        let other = OfMember::new(2);
        metrics.member_reachable.get_or_create(&other).set(1);
        metrics.member_lag.get_or_create(&other).set(0);
        metrics.member_clock_offset_seconds.get_or_create(&other).set(0.0);
        let acme = OfTenant::new("acme");
        for family in [
            &metrics.tenant_records,
            &metrics.tenant_record_bytes,
            &metrics.tenant_in_progress,
            &metrics.tenant_indeterminate,
        ] {
            family.get_or_create(&acme).set(0);
        }
        let text = metrics.encode();
        for (name, help) in NAMES {
            assert!(text.contains(&format!("# HELP {name} {help}")), "{name}\n{text}");
            assert!(text.lines().any(|line| line.starts_with(name) && !line.contains('#')), "{name}\n{text}");
        }
        assert!(text.contains("semel_requests_total{method=\"Claim\",answer=\"new\"} 1"), "{text}");
        assert!(text.contains("semel_request_seconds_count{method=\"Claim\"} 1"), "{text}");
    }

    #[test]
    fn names_follow_one_rule() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, help) in NAMES {
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("semel_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert!(!name.ends_with("_ms"), "{name}: times are in seconds");
            assert!(!help.ends_with('.') && help.starts_with(|c: char| c.is_uppercase() || c.is_numeric()), "{name}");
        }
    }

    #[test]
    fn refusals_are_counted_by_their_code() {
        let metrics = Metrics::default();
        metrics.refused(Method::Claim, Code::Unauthenticated, Duration::ZERO);
        metrics.refused(Method::Complete, Code::StaleFence, Duration::ZERO);
        assert_eq!(metrics.authentication_failures.get(), 1);
        assert!(metrics.encode().contains("semel_requests_total{method=\"Complete\",answer=\"stale_fence\"} 1"));
    }
}
