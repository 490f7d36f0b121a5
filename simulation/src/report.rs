//! What the process of one seed says: one line, which the parent reads.

use std::{collections::BTreeMap, str::FromStr};

use crate::fault::FaultKind;

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of every message, disk operation and state change, in order.
    pub hash: u64,
    /// How many of these there were.
    pub steps: u64,
    /// Simulated time, ms.
    pub simulated_ms: u64,
    /// How often each kind of fault fired.
    pub fired: BTreeMap<FaultKind, u64>,
    /// Operations of clients that were answered or given up.
    pub operations: u64,
    /// Operations that a check proved to be linearizable.
    pub certified: u64,
    /// What failed; none: all held.
    pub failure: Option<Failure>,
}

/// What failed in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// What does not hold: `R1` … `R13`, `linearizable`, `liveness`, `panic`, …
    pub what: String,
    /// How it shows.
    pub detail: String,
    /// The shortest timeline that shows it.
    pub story: Vec<String>,
}

/// A text that is no line of a report.
#[derive(Debug, thiserror::Error)]
#[error("no line of a report: {0:?}")]
pub struct NoReport(String);

/// How the line begins, to be found among whatever else is printed.
pub const MARK: &str = "report ";

impl Report {
    /// A run that failed, with nothing else known.
    pub fn failed(what: &str, detail: impl Into<String>) -> Self {
        let failure = Failure { what: what.to_owned(), detail: detail.into(), story: Vec::new() };
        Self { failure: Some(failure), ..Self::default() }
    }

    /// The line.
    pub fn to_line(&self) -> String {
        let fired: Vec<String> = self.fired.iter().map(|(kind, times)| format!("{kind}:{times}")).collect();
        let mut line = format!(
            "{MARK}hash={:016x} steps={} simulated_ms={} operations={} certified={} fired={}",
            self.hash,
            self.steps,
            self.simulated_ms,
            self.operations,
            self.certified,
            fired.join(",")
        );
        if let Some(failure) = &self.failure {
            let story: Vec<String> = failure.story.iter().map(|line| escaped(line)).collect();
            line += &format!("\t{}\t{}\t{}", escaped(&failure.what), escaped(&failure.detail), story.join("\t"));
        }
        line
    }
}

impl FromStr for Report {
    type Err = NoReport;

    fn from_str(line: &str) -> Result<Self, NoReport> {
        let wrong = || NoReport(line.to_owned());
        let mut parts = line.strip_prefix(MARK).ok_or_else(wrong)?.split('\t');
        let mut report = Report::default();
        for pair in parts.next().ok_or_else(wrong)?.split(' ') {
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<u64>().map_err(|_| wrong());
            match name {
                "hash" => report.hash = u64::from_str_radix(value, 16).map_err(|_| wrong())?,
                "steps" => report.steps = number()?,
                "simulated_ms" => report.simulated_ms = number()?,
                "operations" => report.operations = number()?,
                "certified" => report.certified = number()?,
                "fired" => {
                    for one in value.split(',').filter(|one| !one.is_empty()) {
                        let (kind, times) = one.split_once(':').ok_or_else(wrong)?;
                        let kind = FaultKind::parse(kind).ok_or_else(wrong)?;
                        report.fired.insert(kind, times.parse().map_err(|_| wrong())?);
                    }
                }
                _ => return Err(wrong()),
            }
        }
        if let Some(what) = parts.next() {
            let detail = parts.next().ok_or_else(wrong)?;
            let story = parts.filter(|part| !part.is_empty()).map(unescaped).collect();
            report.failure = Some(Failure { what: unescaped(what), detail: unescaped(detail), story });
        }
        Ok(report)
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

fn unescaped(text: &str) -> String {
    let (mut plain, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some('r') => plain.push('\r'),
                Some(other) => plain.push(other),
                None => {}
            },
            (other, false) => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back_from_its_line() {
        let mut report = Report {
            hash: 0xfeed,
            steps: 9,
            simulated_ms: 60_000,
            fired: BTreeMap::from([(FaultKind::Crash, 2), (FaultKind::Loss, 700)]),
            operations: 500,
            certified: 498,
            failure: None,
        };
        assert_eq!(report.to_line().parse::<Report>().unwrap(), report);
        report.failure = Some(Failure {
            what: "R1".into(),
            detail: "two effects\tof a\\key\n".into(),
            story: vec!["0.1 s claim → new".into(), "0.2 s effect".into()],
        });
        let line = report.to_line();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(line.parse::<Report>().unwrap(), report);
        assert_eq!(Report::default().to_line().parse::<Report>().unwrap(), Report::default());
        assert!("hello".parse::<Report>().is_err());
    }
}
