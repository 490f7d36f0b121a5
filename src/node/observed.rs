//! What operators see of a node: readiness, status, metrics.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use http::Response;
use hyper::body::Incoming;
use tower::ServiceExt;

use super::{calls::NodeCalls, secure::Secure, standing};
use crate::{
    auth::{Authenticator, Caller, Method, Scope},
    http::{admin::Observed, client},
    id::Time,
    json::Json,
    limits,
    metrics::{OfMember, OfTenant, gauge_value},
    raft::{Consensus, Status},
    records::{
        command::Deed,
        state::{SinceList, State},
    },
    refusal::Refusal,
    service::Calls,
    store::directory::EngineKind,
    unidle::Unidle,
};

/// A node, observed.
pub(super) struct Observing {
    calls: Arc<NodeCalls>,
    consensus: Consensus,
    auth: Arc<Authenticator>,
    secure: Arc<Secure>,
    kind: EngineKind,
    /// Whether metrics tell tenants by name.
    tenant_labels: bool,
}

impl Observing {
    /// `files`: what is read again while the node runs.
    pub fn new(
        calls: Arc<NodeCalls>,
        consensus: Consensus,
        (auth, secure): (Arc<Authenticator>, Arc<Secure>),
        kind: EngineKind,
        tenant_labels: bool,
    ) -> Self {
        Self { calls, consensus, auth, secure, kind, tenant_labels }
    }

    fn refresh(&self) {
        let metrics = &self.calls.metrics;
        let status = self.consensus.status();
        let shown = |value: Option<u64>| gauge_value(value.unwrap_or(0));
        metrics.term.set(gauge_value(status.term));
        metrics.is_leader.set(i64::from(status.leader_id == Some(status.node_id)));
        metrics.last_log.set(shown(status.last_log));
        metrics.committed.set(shown(status.committed));
        metrics.applied.set(shown(status.applied));
        metrics.purged.set(shown(status.purged));
        metrics.clock_offset_seconds.set(status.clock_offset_ms as f64 / 1000.0);
        metrics.time_rate.set(self.consensus.time_rate().unwrap_or(0) as f64 / 1000.0);
        self.refresh_members(&status);
        metrics.waiters.set(gauge_value(self.calls.service.waiting() as u64));
        metrics.watchers.set(gauge_value(self.calls.service.watching() as u64));
        let (commands, bytes) = self.consensus.queued();
        metrics.queued_commands.set(gauge_value(commands as u64));
        metrics.queued_bytes.set(gauge_value(bytes as u64));
        metrics.wal_segments.set(gauge_value(self.consensus.log_segments() as u64));
        metrics.authentication_failures.inc_by(self.auth.take_count_of_refused());
        metrics.token_file_failures.inner().store(self.auth.reload_failures(), Ordering::Relaxed);
        metrics.tls_reload_failures.inner().store(self.secure.reload_failures(), Ordering::Relaxed);
        metrics.unreadable_fields.inner().store(self.consensus.keys().unreadable(), Ordering::Relaxed);
        let scrubbed = self.consensus.scrubbed();
        metrics.scrubbed_bytes.inner().store(scrubbed.bytes, Ordering::Relaxed);
        metrics.scrub_passes.inner().store(scrubbed.passes, Ordering::Relaxed);
        let records = self.consensus.records();
        metrics.overlay_bytes.set(gauge_value(records.figures().bytes as u64));
        metrics.store_bytes.set(gauge_value(records.disk_bytes().unwrap_or(0)));
        let room = self.consensus.disk_room().unwrap_or_default();
        metrics.disk_free_bytes.set(gauge_value(room.free_bytes));
        metrics.disk_reserve_bytes.set(gauge_value(room.reserve_bytes));
        metrics.disk_is_full.set(i64::from(room.is_full));
        let state = records.read();
        let globals = state.globals();
        metrics.position.set(gauge_value(globals.position.0));
        metrics.records.set(gauge_value(globals.total.records));
        metrics.record_bytes.set(gauge_value(globals.total.bytes));
        metrics.in_progress.set(gauge_value(globals.total.in_progress));
        metrics.indeterminate.set(gauge_value(globals.total.indeterminate));
        let oldest = state.tenants().take(limits::OLDEST_TENANTS_EXAMINED).filter_map(|(tenant, _)| {
            state.since(tenant, SinceList::Indeterminate, None, 1).first().map(|(since, ..)| *since)
        });
        let age_ms = oldest.min().map_or(0, |since| globals.time.since_ms(since));
        metrics.oldest_indeterminate_seconds.set(gauge_value(age_ms / 1000));
        drop(state);
        if self.tenant_labels {
            self.refresh_tenants();
        }
    }

    fn refresh_tenants(&self) {
        let metrics = &self.calls.metrics;
        let families = [
            &metrics.tenant_records,
            &metrics.tenant_record_bytes,
            &metrics.tenant_in_progress,
            &metrics.tenant_indeterminate,
        ];
        // A tenant that has gone is told no more.
        families.iter().for_each(|family| {
            family.clear();
        });
        let records = self.consensus.records();
        let state = records.read();
        let open = state.tenants().filter(|(_, tenant)| !tenant.closed).take(limits::OLDEST_TENANTS_EXAMINED);
        for (tenant, _) in open {
            let counted = state.counters(tenant, None);
            let values = [counted.records, counted.bytes, counted.in_progress, counted.indeterminate];
            for (family, value) in families.iter().zip(values) {
                family.get_or_create(&OfTenant::new(tenant.as_str())).set(gauge_value(value));
            }
        }
    }
}

impl Observing {
    fn refresh_members(&self, status: &Status) {
        let metrics = &self.calls.metrics;
        let changes = self.consensus.leader_changes();
        metrics.leader_changes.inc_by(changes.saturating_sub(metrics.leader_changes.get()));
        metrics.member_reachable.clear();
        metrics.member_lag.clear();
        metrics.member_clock_offset_seconds.clear();
        for member in status.members.iter().filter(|member| member.node_id != status.node_id) {
            let of = OfMember::new(member.node_id);
            let is_reachable = member.told.as_ref().is_some_and(|told| told.is_reachable);
            metrics.member_reachable.get_or_create(&of).set(i64::from(is_reachable));
            if let Some(lag) = standing::lag(status, member) {
                metrics.member_lag.get_or_create(&of).set(gauge_value(lag));
            }
            if let Some(told) = &member.told {
                let offset = told.clock_offset_ms as f64 / 1000.0;
                metrics.member_clock_offset_seconds.get_or_create(&of).set(offset);
            }
        }
    }
}

impl Observed for Observing {
    async fn ready(&self) -> Result<(), String> {
        self.calls.ready().await.map_err(|refusal| refusal.detail.into_owned())
    }

    async fn status(&self) -> Json {
        let status = self.consensus.status();
        let records = self.consensus.records();
        let disk_bytes = records.disk_bytes().unwrap_or(0);
        let (position, total) = {
            let state = records.read();
            (state.globals().position.0, state.globals().total.records)
        };
        let whole = standing::Whole {
            kind: self.kind,
            disk_bytes,
            room: self.consensus.disk_room(),
            position,
            records: total,
            time_rate: self.consensus.time_rate(),
        };
        standing::shown(&status, &whole)
    }

    fn admit_to_metrics(&self, request: &Request) -> Result<(), Refusal> {
        if !self.tenant_labels {
            return Ok(());
        }
        self.auth.admit(request.headers(), request.extensions())?.permit(Method::TenantMetrics)
    }

    fn metrics(&self) -> String {
        self.refresh();
        self.calls.metrics.encode()
    }

    fn time(&self) -> Time {
        self.consensus.now()
    }

    fn signed_in(&self, caller: &Caller) {
        let tenant = match caller.scope() {
            Scope::Tenant(tenant) => Json::String(tenant.as_str().to_owned()),
            Scope::Open | Scope::Cluster => Json::Null,
        };
        let detail = Json::object([("node_id", Json::u64_text(self.consensus.status().node_id)), ("tenant", tenant)]);
        let (consensus, actor) = (self.consensus.clone(), caller.actor(None).to_owned());
        // Nobody is kept from looking into a cluster that takes nothing on. It ends when the row stands or its time is over.
        tokio::spawn(async move {
            if let Err(refusal) = consensus.note(Deed::ConsoleSignedIn, &actor, &detail).await {
                tracing::warn!(%actor, %refusal, "that somebody signed in to the console could not be audited");
            }
        });
    }

    fn tenants(&self) -> Vec<String> {
        let records = self.consensus.records();
        let state = records.read();
        state.tenants().take(limits::OLDEST_TENANTS_EXAMINED).map(|(tenant, _)| tenant.as_str().to_owned()).collect()
    }
}

/// A router as a door serves it, with bodies that may pause for so long.
pub(super) fn answer(
    router: Router,
    calls: Arc<NodeCalls>,
    body_idle: Duration,
) -> impl Fn(http::Request<Incoming>, SocketAddr) -> AnswerFuture + Clone + Send + Sync + 'static {
    move |request, peer| {
        let (router, calls) = (router.clone(), Arc::clone(&calls));
        Box::pin(async move {
            let mut request = request.map(|body| Body::new(Unidle::new(body, body_idle)));
            request.extensions_mut().insert(peer);
            let mut response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            client::name_cluster(&mut response, calls.cluster_id());
            response
        })
    }
}

type AnswerFuture = std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
