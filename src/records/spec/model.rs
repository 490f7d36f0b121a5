//! The contract once more, as a wall of ifs over a plain map: written from the contract's tables and rulings, with none of
//! the core's ideas. Nothing is indexed, derived lazily or swept; what time has done to a record is looked at anew each
//! time. It speaks the language of scenarios on both ends.

use std::collections::BTreeMap;

use super::{line::Line, model_history::Event};

pub const NEVER_GRANTED: &str = "18446744073709551614";

pub type Id = (String, String, String);

/// A tenant, or one of its operations.
pub type Level = (String, Option<String>);

#[derive(Clone, Debug)]
pub struct Owner {
    pub fence: u64,
    pub since: i64,
    pub attempt: u32,
    pub id: String,
    pub fp: String,
    pub labels: Option<String>,
    pub lease: i64,
    pub deadline: i64,
    pub hold: bool,
    pub begun: bool,
    pub ever_begun: bool,
    pub replay_asked: Option<i64>,
    pub evidence_asked: Option<i64>,
    pub replay: i64,
    pub evidence: i64,
    /// The point, and the fence that it was written with.
    pub checkpoint: Option<(String, u64)>,
}

#[derive(Clone, Debug)]
pub enum State {
    Owned,
    Doubtful {
        since: i64,
        tag: &'static str,
        said: Option<String>,
        check_at: Option<i64>,
        looking: Option<(String, i64)>,
    },
    Done {
        at: i64,
        body: String,
        stored: bool,
        replay_until: i64,
        evidence_until: i64,
        forgotten: Option<i64>,
    },
    Gone {
        until: i64,
        released: Option<u64>,
    },
}

#[derive(Clone, Debug)]
pub struct Record {
    pub version: u64,
    /// The last grant, verdict or release.
    pub cleared: u64,
    pub owner: Owner,
    pub state: State,
    pub events: Vec<Event>,
    pub verdicts: Vec<(String, String)>,
}

/// How a record reads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    InProgress,
    Indeterminate,
    Completed,
    Expired,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Word::InProgress => "in_progress",
            Word::Indeterminate => "indeterminate",
            Word::Completed => "completed",
            Word::Expired => "expired",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Doubt {
    pub first: u64,
    pub since: i64,
    pub gap_end: Option<i64>,
}

#[derive(Default)]
pub struct Model {
    pub now: i64,
    /// Record commands so far: the number of the present one.
    pub count: u64,
    pub records: BTreeMap<Id, Record>,
    pub grants: BTreeMap<Id, u64>,
    pub overrides: BTreeMap<Level, BTreeMap<String, String>>,
    pub raises: BTreeMap<Level, Vec<(i64, i64)>>,
    pub doubt: Option<Doubt>,
    pub floor: u64,
}

pub fn id(line: &Line) -> Id {
    (line.tenant().to_owned(), line.operation().to_owned(), line.key().to_owned())
}

fn schemes(text: &str) -> Vec<(&str, &str)> {
    text.split(',').map(|pair| pair.split_once(':').unwrap_or(("1", pair))).collect()
}

fn matches(one: &str, other: &str) -> bool {
    schemes(one).iter().any(|pair| schemes(other).contains(pair))
}

pub fn body_of(line: &Line) -> String {
    match line.value("body").unwrap_or("done") {
        text if text.starts_with('*') => "x".repeat(text[1..].parse().expect("a length")),
        text => text.to_owned(),
    }
}

impl Model {
    /// Runs a line and answers it in full.
    pub fn run(&mut self, line: &Line) -> String {
        self.now = self.now.max(line.ms("at").unwrap_or(self.now));
        if line.is_record_command() {
            self.count += 1;
        }
        self.forget_what_is_over();
        match line.verb.as_str() {
            "tick" => "ok".into(),
            "policy" => self.policy(line),
            "restored" => {
                let gap_end = line.ms("gap_end");
                self.doubt = Some(Doubt { first: self.count + 1, since: self.now, gap_end });
                self.floor = self.count + 1;
                "ok".into()
            }
            "end-doubt" => {
                self.doubt = None;
                "ok".into()
            }
            "get" => self.get(line),
            "history" => self.records.get(&id(line)).map_or(String::new(), |record| record.history(self.now)),
            "counters" => self.counters(line),
            "claim" => self.claim(line),
            "investigate" => self.investigate(line),
            "resolve" => self.resolve(line),
            "forget" => self.forget(line),
            _ => self.owner(line),
        }
    }

    /// Past its evidence a record counts as absent for everything.
    fn forget_what_is_over(&mut self) {
        let now = self.now;
        self.records.retain(|_, record| match &record.state {
            State::Owned => record.owner.begun || now < record.owner.deadline + record.owner.evidence,
            State::Doubtful { .. } => true,
            State::Done { evidence_until, .. } => now < *evidence_until,
            State::Gone { until, .. } => now < *until,
        });
    }

    /// A record as it reads now; none where it is absent. A doubt that is not written down is made up here.
    pub(super) fn read(&self, of: &Id) -> Option<(Word, Record)> {
        let mut record = self.records.get(of)?.clone();
        let word = match &record.state {
            State::Gone { .. } => return None,
            State::Doubtful { .. } => Word::Indeterminate,
            State::Done { replay_until, forgotten, .. } => {
                if self.now >= *replay_until || forgotten.is_some() {
                    Word::Expired
                } else {
                    Word::Completed
                }
            }
            State::Owned => {
                let held = record.owner.begun && record.owner.hold && self.now >= record.owner.deadline;
                let restored = self.doubt.filter(|doubt| record.owner.fence < doubt.first);
                let made_up = match restored {
                    Some(doubt) if !(held && record.owner.deadline <= doubt.since) => Some((doubt.since, "restored")),
                    _ if held => Some((record.owner.deadline, "lease_lapsed")),
                    _ => None,
                };
                match made_up {
                    Some((since, tag)) => {
                        record.state = State::Doubtful { since, tag, said: None, check_at: None, looking: None };
                        Word::Indeterminate
                    }
                    None => Word::InProgress,
                }
            }
        };
        Some((word, record))
    }

    pub(super) fn number(&self, line: &Line, name: &str) -> u64 {
        match line.value(name).expect("a fence or version") {
            "own" => self.grants.get(&id(line)).copied().unwrap_or(0),
            "now" => self.records.get(&id(line)).map_or(0, |record| record.version),
            "other" => 0,
            number => number.parse().expect("a number"),
        }
    }

    fn claim(&mut self, line: &Line) -> String {
        let of = id(line);
        let fp = line.value("fp").unwrap_or("a");
        let attempt_id = line.value("id").map_or_else(|| format!("drawn-{}", self.count), str::to_owned);
        if line.ms("not_after").is_some_and(|not_after| self.now > not_after) {
            return "unavailable".into();
        }
        let Some((word, record)) = self.read(&of) else {
            if self.is_too_old(line) {
                return "expired reason=too_old".into();
            }
            if let Some(refused) = self.over_quota(line) {
                return refused;
            }
            return self.grant(line, &of, attempt_id, 1, None, false);
        };
        let owner = record.owner.clone();
        let since = since(word, &record);
        if !matches(&owner.fp, fp) {
            return format!("conflict state={} since={since}ms", word.text());
        }
        match word {
            Word::InProgress if self.now < owner.deadline => {
                if owner.id == attempt_id && owner.fence >= self.floor {
                    return granted_words(&record) + " repeated";
                }
                let retry_after = (owner.deadline - self.now).min(owner.lease).max(1000);
                format!("in_progress retry_after={retry_after}ms since={since}ms")
            }
            Word::InProgress => {
                let begun = owner.ever_begun;
                self.grant(line, &of, attempt_id, owner.attempt + 1, owner.checkpoint, begun)
            }
            Word::Indeterminate => {
                let State::Doubtful { tag, said, check_at, .. } = &record.state else { unreachable!() };
                let retry_after = check_at.map_or(60_000, |at| (at - self.now).clamp(1000, 3_600_000));
                let reason = said.as_deref().unwrap_or(tag);
                format!("indeterminate since={since}ms reason={reason} retry_after={retry_after}ms")
            }
            Word::Completed | Word::Expired => {
                let State::Done { at, body, stored, replay_until, evidence_until, forgotten } = &record.state else {
                    unreachable!()
                };
                if word == Word::Completed {
                    return format!("completed body={} completed_at={at}ms", shown(body, *stored));
                }
                let run_as_new = self.field(line, "expired_claims").as_deref() == Some("run_as_new");
                if !run_as_new || self.now < *replay_until {
                    let reason = if forgotten.is_some() { "forgotten" } else { "replay_over" };
                    return format!("expired reason={reason} completed_at={at}ms evidence_until={evidence_until}ms");
                }
                if self.is_too_old(line) {
                    return "expired reason=too_old".into();
                }
                self.grant(line, &of, attempt_id, 1, None, false)
            }
        }
    }

    fn grant(
        &mut self,
        line: &Line,
        of: &Id,
        id: String,
        attempt: u32,
        point: Option<(String, u64)>,
        begun: bool,
    ) -> String {
        let old = self.records.remove(of);
        let now = self.now;
        let cleared = old.as_ref().map_or(0, |old| old.cleared);
        let sent_late = |doubt: Doubt| match (doubt.gap_end, line.ms("first_sent")) {
            (Some(gap_end), Some(first_sent)) => first_sent > gap_end + 60_000 && first_sent <= now,
            _ => false,
        };
        let doubted = self.doubt.is_some_and(|doubt| cleared < doubt.first && !sent_late(doubt));
        let lease = self.lease(line, line.ms("lease"));
        let (replay, evidence) = self.windows(line, line.ms("replay"), line.ms("evidence"));
        let hold = match line.value("on_lapse") {
            Some(word) => word == "hold",
            None => self.field(line, "on_lapse").as_deref() != Some("retake"),
        };
        let is_begun = !line.flag("staged");
        let owner = Owner {
            fence: self.count,
            since: now,
            attempt: if doubted { 0 } else { attempt },
            id,
            fp: line.value("fp").unwrap_or("a").to_owned(),
            labels: line.value("labels").map(str::to_owned),
            lease,
            deadline: now + lease,
            hold,
            begun: is_begun,
            ever_begun: begun || is_begun,
            replay_asked: line.ms("replay"),
            evidence_asked: line.ms("evidence"),
            replay,
            evidence,
            checkpoint: point,
        };
        let (mut events, verdicts) = match old {
            Some(old) => (old.ended(now), old.verdicts),
            None => (Vec::new(), Vec::new()),
        };
        events.push(Event::new(now, self.count, format!("claimed/{}", self.count)));
        if is_begun {
            events.push(Event::new(now, self.count, "begun".into()));
        }
        let state = if doubted {
            State::Doubtful { since: now, tag: "restored", said: None, check_at: None, looking: None }
        } else {
            State::Owned
        };
        let cleared = if doubted { cleared } else { self.count };
        let record = Record { version: self.count, cleared, owner, state, events, verdicts };
        let words = granted_words(&record);
        self.records.insert(of.clone(), record);
        if doubted {
            return format!("indeterminate since={now}ms reason=restored retry_after=60000ms");
        }
        self.grants.insert(of.clone(), self.count);
        words
    }

    /// Keeps a record that was visibly changed, and says what it is now.
    pub(super) fn put(&mut self, of: &Id, mut record: Record) -> String {
        record.version = self.count;
        self.records.insert(of.clone(), record.clone());
        let (now, over) = (self.now, |end: i64| self.now >= end);
        match &record.state {
            State::Gone { .. } => "absent".into(),
            State::Done { evidence_until, .. } if over(*evidence_until) => "absent".into(),
            _ => {
                debug_assert_eq!(now, self.now);
                self.words(&record)
            }
        }
    }

    pub(super) fn words(&self, record: &Record) -> String {
        let owner = &record.owner;
        let version = record.version;
        match &record.state {
            State::Owned => {
                let phase = if owner.begun { "begun" } else { "staged" };
                format!(
                    "in_progress phase={phase} lease={}ms deadline={}ms version={version}",
                    owner.lease, owner.deadline
                )
            }
            State::Doubtful { .. } => format!("indeterminate version={version}"),
            State::Done { replay_until, forgotten, .. } => {
                let expired = self.now >= *replay_until || forgotten.is_some();
                format!("{} version={version}", if expired { "expired" } else { "completed" })
            }
            State::Gone { .. } => "absent".into(),
        }
    }

    pub(super) fn get(&self, line: &Line) -> String {
        let Some((word, record)) = self.read(&id(line)) else { return "absent".into() };
        let owner = &record.owner;
        let mut words = format!(
            "{} fence={} attempt={} version={} since={}ms fp={} checkpoint={}",
            word.text(),
            owner.fence,
            owner.attempt,
            record.version,
            since(word, &record),
            owner.fp,
            kept(owner)
        );
        let mut add = |more: String| words.push_str(&more);
        if let Some(labels) = &owner.labels {
            add(format!(" labels={labels}"));
        }
        match &record.state {
            State::Owned => {
                let phase = if owner.begun { "begun" } else { "staged" };
                add(format!(" phase={phase} lease={}ms deadline={}ms", owner.lease, owner.deadline));
            }
            State::Doubtful { tag, said, check_at, looking, .. } => {
                add(format!(" reason={}", said.as_deref().unwrap_or(tag)));
                check_at.iter().for_each(|at| add(format!(" check_at={at}ms")));
                let looking = looking.iter().filter(|(_, until)| self.now < *until);
                looking.for_each(|(by, until)| add(format!(" by={by} until={until}ms")));
            }
            State::Done { at, body, stored, replay_until, evidence_until, .. } => {
                add(format!(" completed_at={at}ms replay_until={replay_until}ms evidence_until={evidence_until}ms"));
                if word == Word::Completed {
                    add(format!(" body={}", shown(body, *stored)));
                }
            }
            State::Gone { .. } => {}
        }
        words
    }
}

fn since(word: Word, record: &Record) -> i64 {
    match &record.state {
        State::Owned | State::Gone { .. } => record.owner.since,
        State::Doubtful { since, .. } => *since,
        State::Done { at, .. } if word == Word::Completed => *at,
        State::Done { replay_until, forgotten, .. } => forgotten.unwrap_or(*replay_until),
    }
}

fn granted_words(record: &Record) -> String {
    let owner = &record.owner;
    format!(
        "new fence={} attempt={} phase={} version={} lease={}ms deadline={}ms checkpoint={} id={}",
        owner.fence,
        owner.attempt,
        if owner.begun { "begun" } else { "staged" },
        record.version,
        owner.lease,
        owner.deadline,
        kept(owner),
        owner.id
    )
}

fn kept(owner: &Owner) -> String {
    owner.checkpoint.as_ref().map_or("none".into(), |(point, fence)| format!("{point}@{fence}"))
}

fn shown(body: &str, stored: bool) -> String {
    match stored {
        false => "not_stored".into(),
        true if body.len() > 40 => format!("*{}", body.len()),
        true => body.to_owned(),
    }
}
