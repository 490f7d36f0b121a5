//! What the proxy shows of itself at `--metrics-listen`. Labels are words of closed sets, as a node's are.

use std::{sync::atomic::Ordering, time::Duration};

use http::{Response, StatusCode};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

use super::{body::Body, counts::Doings, problem::Problem, replay::IDEMPOTENT_REPLAYED};
use crate::{
    metrics::{gauge_value, metrics},
    traces,
};

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Answered {
    answer: &'static str,
}

/// What became of a request with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Became {
    record: &'static str,
}

type Seconds = Family<Answered, Histogram>;

/// 0.5 ms to 131 s: from a replay to the longest that services take.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(500e-6, 2.0, 19))
}

metrics! {
    "All metrics of a proxy" DoorMetrics;

    requests: Family<Answered, Counter> = Family::default(),
        "semel_door_requests_total", "Requests by how they were answered: first, replayed, passed, upgraded, unauthorized, or the code of a problem";
    request_seconds: Seconds = Family::new_with_constructor(seconds),
        "semel_door_request_seconds", "Time from a request's head to the head of its answer, by how it was answered";
    records: Family<Became, Counter> = Family::default(),
        "semel_door_records_total", "Requests with a key that were worked at, by what became of their record: completed, released or indeterminate";
    unkept: Counter = Counter::default(),
        "semel_door_answers_not_stored_total", "Answers that were too large to be recorded with their body";
    late: Gauge = Gauge::default(),
        "semel_door_answers_late", "Answers that could not be recorded within their lease, and are still tried";
    at_work: Gauge = Gauge::default(),
        "semel_door_requests_at_work", "Requests with a key that are being answered or worked at";
    held_bytes: Gauge = Gauge::default(),
        "semel_door_held_bytes", "Bytes of requests with a key that are held, in whole KiB";
    tunnels: Gauge = Gauge::default(),
        "semel_door_tunnels", "Connections that were upgraded to another protocol";
}

/// Says of an answer that whoever authorizes gave it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unauthorized;

impl DoorMetrics {
    /// Counts an answer, to a request with a key or without.
    pub(super) fn answered(&self, response: &Response<Body>, has_key: bool, after: Duration) {
        let extensions = response.extensions();
        let answer = match extensions.get::<Problem>() {
            Some(problem) => problem.code().as_str(),
            None if extensions.get::<Unauthorized>().is_some() => "unauthorized",
            None if response.headers().contains_key(IDEMPOTENT_REPLAYED) => "replayed",
            None if response.status() == StatusCode::SWITCHING_PROTOCOLS => "upgraded",
            None if has_key => "first",
            None => "passed",
        };
        traces::answered(answer);
        self.requests.get_or_create(&Answered { answer }).inc();
        self.request_seconds.get_or_create(&Answered { answer }).observe(after.as_secs_f64());
    }

    /// Takes over what the engine has counted, and how many tunnels are open.
    pub(super) fn take(&self, doings: &Doings, tunnels: usize) {
        let records =
            [("completed", doings.completed), ("released", doings.released), ("indeterminate", doings.indeterminate)];
        for (record, count) in records {
            self.records.get_or_create(&Became { record }).inner().store(count, Ordering::Relaxed);
        }
        self.unkept.inner().store(doings.unkept, Ordering::Relaxed);
        self.late.set(gauge_value(doings.late));
        self.at_work.set(gauge_value(doings.at_work));
        self.held_bytes.set(gauge_value(doings.held_bytes));
        self.tunnels.set(gauge_value(tunnels as u64));
    }
}
