//! Rates and latencies of this node, from its metrics, while somebody looks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Console, html::Html, page::Page};
use crate::{http::admin::Observed, limits, refusal::Refusal, service::Calls};

/// What the metrics said at a moment.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Calls of each answer, since the node's start.
    answers: BTreeMap<String, f64>,
    /// Calls of at most so many seconds: bound and count, all methods together.
    buckets: BTreeMap<u64, (f64, f64)>,
    waiters: f64,
    indeterminate: f64,
    in_progress: f64,
}

#[derive(Default)]
struct Kept {
    samples: VecDeque<(Instant, Sample)>,
    looked: Option<Instant>,
    is_sampling: bool,
}

/// The last minutes of samples.
#[derive(Default)]
pub(super) struct Samples(Mutex<Kept>);

impl Sample {
    fn read(text: &str) -> Self {
        let mut sample = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let label = |wanted: &str| {
                let rest = name.split_once(&format!("{wanted}=\""))?.1;
                Some(rest.split_once('"')?.0)
            };
            match name.split_once('{').map_or(name, |(name, _)| name) {
                "semel_requests_total" => {
                    *sample.answers.entry(label("answer").unwrap_or_default().to_owned()).or_default() += value;
                }
                "semel_request_seconds_bucket" => {
                    let bound = label("le").and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
                    sample.buckets.entry(bound.to_bits()).or_insert((bound, 0.0)).1 += value;
                }
                "semel_waiters" => sample.waiters = value,
                "semel_indeterminate_records" | "semel_indeterminate" => sample.indeterminate = value,
                "semel_in_progress_records" | "semel_in_progress" => sample.in_progress = value,
                _ => {}
            }
        }
        sample
    }

    fn calls(&self) -> f64 {
        self.answers.values().sum()
    }

    /// The time that so much of the calls since `before` took at most, s.
    fn quantile(&self, before: &Self, of: f64) -> f64 {
        let counts: Vec<(f64, f64)> = self
            .buckets
            .iter()
            .map(|(place, (bound, count))| (*bound, count - before.buckets.get(place).map_or(0.0, |known| known.1)))
            .collect();
        let all = counts.last().map_or(0.0, |last| last.1);
        let reached = counts.iter().find(|(_, count)| all > 0.0 && *count >= of * all);
        reached.map_or(0.0, |(bound, _)| if bound.is_finite() { *bound } else { 0.0 })
    }
}

impl<C: Calls, O: Observed> Console<C, O> {
    /// Samples while somebody looks, and some minutes longer.
    fn sample(self: &Arc<Self>) {
        let mut kept = self.samples.0.lock();
        kept.looked = Some(Instant::now());
        if std::mem::replace(&mut kept.is_sampling, true) {
            return;
        }
        drop(kept);
        self.take();
        tokio::spawn(sampling(Arc::downgrade(self)));
    }

    fn take(&self) {
        let sample = Sample::read(&self.node.metrics());
        let mut kept = self.samples.0.lock();
        if kept.samples.len() >= limits::CONSOLE_SAMPLES_MAX {
            kept.samples.pop_front();
        }
        kept.samples.push_back((Instant::now(), sample));
    }

    pub(super) fn live(self: &Arc<Self>, page: &mut Page) -> Result<(), Refusal> {
        self.sample();
        page.heading("Live");
        page.refresh(5);
        let samples: Vec<_> = self.samples.0.lock().samples.iter().cloned().collect();
        let html = page.html();
        let mut rates = Vec::new();
        let (mut p50, mut p99) = (Vec::new(), Vec::new());
        for pair in samples.windows(2) {
            let seconds = (pair[1].0 - pair[0].0).as_secs_f64().max(0.001);
            rates.push((pair[1].1.calls() - pair[0].1.calls()).max(0.0) / seconds);
            p50.push(pair[1].1.quantile(&pair[0].1, 0.5) * 1000.0);
            p99.push(pair[1].1.quantile(&pair[0].1, 0.99) * 1000.0);
        }
        let of = |value: fn(&Sample) -> f64| samples.iter().map(|(_, sample)| value(sample)).collect::<Vec<_>>();
        html.raw("<div class=plots>");
        plot(html, "Calls a second", &rates);
        plot(html, "Half of all calls within, ms", &p50);
        plot(html, "99 of 100 calls within, ms", &p99);
        plot(html, "Claims that wait", &of(|sample| sample.waiters));
        plot(html, "In progress", &of(|sample| sample.in_progress));
        plot(html, "Indeterminate", &of(|sample| sample.indeterminate));
        html.raw("</div>");
        if let [.., (before, earlier), (at, last)] = &samples[..] {
            let seconds = (*at - *before).as_secs_f64().max(0.001);
            html.raw("<h2>Answers a second</h2><table class=rows><thead><tr><th>Answer<th>A second<th>Since the start</thead><tbody>");
            for (answer, count) in &last.answers {
                let rate = (count - earlier.answers.get(answer).unwrap_or(&0.0)).max(0.0) / seconds;
                html.element("<tr><td data-name=Answer>", answer, "").element(
                    "<td data-name=\"A second\">",
                    format!("{rate:.1}"),
                    "",
                );
                html.element("<td data-name=\"Since the start\">", count, "");
            }
            html.raw("</tbody></table>");
        } else {
            html.raw("<p class=hint>The first figures come in a few seconds.</p>");
        }
        Ok(())
    }
}

async fn sampling<C: Calls, O: Observed>(console: Weak<Console<C, O>>) {
    loop {
        tokio::time::sleep(Duration::from_secs(limits::CONSOLE_SAMPLE_S)).await;
        // It ends with the console, and some time after the last look.
        let Some(console) = console.upgrade() else { return };
        let mut kept = console.samples.0.lock();
        let idle = Duration::from_secs(limits::CONSOLE_IDLE_S);
        if kept.looked.is_none_or(|looked| looked.elapsed() > idle) {
            *kept = Kept::default();
            return;
        }
        drop(kept);
        console.take();
    }
}

/// A line of figures, small, with its last value.
fn plot(html: &mut Html, title: &'static str, values: &[f64]) {
    let last = values.last().copied().unwrap_or_default();
    let most = values.iter().copied().fold(0.0_f64, f64::max);
    html.element("<figure><figcaption>", title, " <strong>").text(short(last)).raw("</strong></figcaption>");
    html.raw("<svg viewBox=\"0 0 120 32\" role=img aria-label=\"").text(title).text(": ").text(short(last));
    html.text(", at most ").text(short(most)).raw("\"><polyline points=\"");
    let step = 120.0 / (limits::CONSOLE_SAMPLES_MAX as f64 - 1.0);
    let first = 120.0 - step * (values.len().saturating_sub(1)) as f64;
    for (at, value) in values.iter().enumerate() {
        let height = if most > 0.0 { 30.0 * value / most } else { 0.0 };
        html.text(format!("{:.1},{:.1} ", first + step * at as f64, 31.0 - height));
    }
    html.raw("\"/></svg></figure>");
}

fn short(value: f64) -> String {
    if value >= 100.0 || value == value.trunc() { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_quantiles_come_from_the_difference_of_two_samples() {
        let text = |calls: u32, fast: u32| {
            format!(
                "# HELP x y\nsemel_requests_total{{method=\"Claim\",answer=\"new\"}} {calls}\n\
                 semel_request_seconds_bucket{{le=\"0.001\",method=\"Claim\"}} {fast}\n\
                 semel_request_seconds_bucket{{le=\"0.1\",method=\"Claim\"}} {calls}\n\
                 semel_request_seconds_bucket{{le=\"+Inf\",method=\"Claim\"}} {calls}\nsemel_waiters 3\n"
            )
        };
        let (before, after) = (Sample::read(&text(100, 100)), Sample::read(&text(200, 150)));
        assert_eq!(after.calls() - before.calls(), 100.0);
        assert_eq!((after.quantile(&before, 0.5), after.quantile(&before, 0.99)), (0.001, 0.1));
        assert_eq!((after.waiters, after.quantile(&after, 0.5)), (3.0, 0.0));
    }
}
