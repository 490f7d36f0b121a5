//! The contract once more, as a wall of ifs over a plain map: written from the contract's tables and rulings, with none of
//! the core's ideas. Nothing is indexed, derived lazily or swept; what time has done to a record is looked at anew each
//! time. It speaks the language of scenarios on both ends.

use std::collections::BTreeMap;

use super::{line::Line, model_history::Event};

const NEVER_GRANTED: &str = "18446744073709551614";

type Id = (String, String, String);

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
    pub checkpoint: Option<String>,
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
    cleared: u64,
    pub owner: Owner,
    pub state: State,
    pub events: Vec<Event>,
    verdicts: Vec<(String, String)>,
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
struct Doubt {
    first: u64,
    since: i64,
    gap_end: Option<i64>,
}

#[derive(Default)]
pub struct Model {
    pub now: i64,
    /// Record commands so far: the number of the present one.
    count: u64,
    records: BTreeMap<Id, Record>,
    grants: BTreeMap<Id, u64>,
    overrides: BTreeMap<(String, Option<String>), BTreeMap<String, String>>,
    raises: BTreeMap<(String, Option<String>), Vec<(i64, i64)>>,
    doubt: Option<Doubt>,
    floor: u64,
}

fn id(line: &Line) -> Id {
    (line.tenant().to_owned(), line.operation().to_owned(), line.key().to_owned())
}

fn schemes(text: &str) -> Vec<(&str, &str)> {
    text.split(',').map(|pair| pair.split_once(':').unwrap_or(("1", pair))).collect()
}

fn matches(one: &str, other: &str) -> bool {
    schemes(one).iter().any(|pair| schemes(other).contains(pair))
}

fn body_of(line: &Line) -> String {
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
    fn read(&self, of: &Id) -> Option<(Word, Record)> {
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

    fn number(&self, line: &Line, name: &str) -> u64 {
        match line.value(name).expect("a fence or version") {
            "own" => self.grants.get(&id(line)).copied().unwrap_or(0),
            "now" => self.records.get(&id(line)).map_or(0, |record| record.version),
            "other" => 0,
            number => number.parse().expect("a number"),
        }
    }

    // Policies.

    fn field(&self, line: &Line, name: &str) -> Option<String> {
        let level = |operation: Option<&str>| {
            let key = (line.tenant().to_owned(), operation.map(str::to_owned));
            self.overrides.get(&key).and_then(|fields| fields.get(name)).cloned()
        };
        level(Some(line.operation())).or_else(|| level(None))
    }

    fn length(&self, line: &Line, name: &str, default: i64) -> i64 {
        self.field(line, name).map_or(default, |text| super::line::parse_ms(&text).expect("a length"))
    }

    fn policy(&mut self, line: &Line) -> String {
        let before = self.evidence_now(line);
        let level = (line.tenant().to_owned(), line.value("op").map(str::to_owned));
        let mut fields = self.overrides.get(&level).cloned().unwrap_or_default();
        for (name, value) in
            line.values.iter().filter(|(name, _)| !["tenant", "op", "at", "by"].contains(&name.as_str()))
        {
            match value.as_str() {
                "none" => drop(fields.remove(name)),
                value => drop(fields.insert(name.clone(), value.to_owned())),
            }
        }
        let old = self.overrides.insert(level.clone(), fields);
        let (replay, evidence) =
            (self.length(line, "replay_s", 86_400_000), self.length(line, "evidence_s", 2_592_000_000));
        if evidence < replay {
            self.overrides.insert(level, old.unwrap_or_default());
            return "invalid_argument".into();
        }
        if self.evidence_now(line) > before {
            self.raises.entry(level).or_default().push((self.now, before));
        }
        "ok".into()
    }

    fn evidence_now(&self, line: &Line) -> i64 {
        self.length(line, "evidence_s", 2_592_000_000)
    }

    fn lease(&self, line: &Line, wanted: Option<i64>) -> i64 {
        let (default, max) =
            (self.length(line, "lease_ms_default", 30_000), self.length(line, "lease_ms_max", 86_400_000));
        wanted.filter(|ms| *ms > 0).unwrap_or(default).min(max).max(100)
    }

    fn windows(&self, line: &Line, replay: Option<i64>, evidence: Option<i64>) -> (i64, i64) {
        let replay = replay.unwrap_or_else(|| self.length(line, "replay_s", 86_400_000));
        let evidence = evidence.unwrap_or_else(|| self.length(line, "evidence_s", 2_592_000_000));
        (replay, evidence.max(replay))
    }

    fn is_too_old(&self, line: &Line) -> bool {
        let Some(first_sent) = line.ms("first_sent") else { return false };
        let mut evidence = self.evidence_now(line);
        let raises = self.raises.get(&(line.tenant().to_owned(), None)).into_iter().flatten();
        for (at, before) in raises {
            if first_sent < *at {
                evidence = evidence.min(*before);
            }
        }
        if line.value("evidence").is_some() {
            evidence = evidence.min(self.windows(line, line.ms("replay"), line.ms("evidence")).1);
        }
        first_sent < self.now - evidence
    }

    fn tally(&self, tenant: &str, operation: Option<&str>) -> (u64, u64, u64) {
        let (mut all, mut owned, mut doubtful) = (0, 0, 0);
        for ((of, operation_of, _), record) in &self.records {
            if of != tenant || operation.is_some_and(|operation| operation != operation_of) {
                continue;
            }
            let held = record.owner.begun && record.owner.hold && self.now >= record.owner.deadline;
            match &record.state {
                State::Gone { .. } => continue,
                State::Owned if !held => owned += 1,
                State::Owned | State::Doubtful { .. } => doubtful += 1,
                State::Done { .. } => {}
            }
            all += 1;
        }
        (all, owned, doubtful)
    }

    fn counters(&self, line: &Line) -> String {
        let (all, owned, doubtful) = self.tally(line.tenant(), line.value("op"));
        format!("counters records={all} in_progress={owned} indeterminate={doubtful}")
    }

    fn over_quota(&self, line: &Line) -> Option<String> {
        let levels = [None, Some(line.operation().to_owned())];
        let quota = |level: &Option<String>, name: &str| -> Option<u64> {
            let fields = self.overrides.get(&(line.tenant().to_owned(), level.clone()))?;
            Some(fields.get(name)?.parse().expect("a number"))
        };
        for name in ["records_max", "indeterminate_max"] {
            for level in &levels {
                let (all, _, doubtful) = self.tally(line.tenant(), level.as_deref());
                let used = if name == "records_max" { all } else { doubtful };
                if quota(level, name).is_some_and(|max| used >= max) {
                    return Some(format!("quota_exceeded quota={name}"));
                }
            }
        }
        None
    }

    // Claim.

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

    fn grant(&mut self, line: &Line, of: &Id, id: String, attempt: u32, point: Option<String>, begun: bool) -> String {
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

    // Owners.

    fn owner(&mut self, line: &Line) -> String {
        let of = id(line);
        let fence = self.number(line, "fence");
        let Some(stored) = self.records.get(&of).cloned() else { return "stale_fence".into() };
        let below = fence < self.floor;
        if let State::Gone { released, .. } = &stored.state {
            if line.verb == "release" && *released == Some(fence) && !below {
                return "absent".into();
            }
            return self.stale(&of, fence);
        }
        if stored.owner.fence != fence || stored.owner.attempt == 0 || below {
            return self.stale(&of, fence);
        }
        let (word, mut record) = self.read(&of).expect("neither absent nor gone");
        let lapsed = match &record.state {
            State::Owned => self.now >= record.owner.deadline,
            State::Doubtful { tag, .. } => *tag == "lease_lapsed",
            _ => false,
        };
        if word == Word::Completed || word == Word::Expired {
            let State::Done { body, .. } = &record.state else { unreachable!() };
            return match line.verb.as_str() {
                "complete" if *body == body_of(line) => self.words(&record),
                "complete" => "outcome_immutable".into(),
                _ => "wrong_state".into(),
            };
        }
        match line.verb.as_str() {
            "begin" | "renew" | "checkpoint" => {
                if lapsed {
                    return "lease_lapsed".into();
                }
                if word == Word::Indeterminate {
                    return "wrong_state".into();
                }
                self.run_on(line, &mut record)
            }
            "complete" => match self.done(line, &mut record) {
                Ok(()) => self.put(&of, record),
                Err(refused) => refused,
            },
            "release" => {
                if record.owner.ever_begun && line.value("evidence").is_none() {
                    return "invalid_argument".into();
                }
                record.cleared = self.count;
                self.gone(&of, record, "released", Some(fence))
            }
            _ => self.suspend(line, &of, record),
        }
    }

    fn run_on(&mut self, line: &Line, record: &mut Record) -> String {
        let of = id(line);
        let mut changed = false;
        let extends = line.verb == "renew" || line.verb == "begin" && line.ms("lease").is_some_and(|ms| ms > 0);
        if line.verb == "checkpoint" {
            let point = line.value("point").unwrap_or("step").to_owned();
            if record.owner.checkpoint.as_deref() != Some(point.as_str()) || !record.owner.begun {
                record.owner.checkpoint = Some(point);
                record.events.push(Event::new(self.now, self.count, "checkpointed".into()));
                changed = true;
            }
        }
        if extends {
            let wanted = line.ms("lease").filter(|ms| *ms > 0).unwrap_or(record.owner.lease);
            let lease = self.lease(line, Some(wanted));
            let deadline = record.owner.deadline.max(self.now + lease);
            changed |= (lease, deadline) != (record.owner.lease, record.owner.deadline);
            (record.owner.lease, record.owner.deadline) = (lease, deadline);
        }
        if line.verb != "renew" && !record.owner.begun {
            (record.owner.begun, record.owner.ever_begun) = (true, true);
            record.events.push(Event::new(self.now, self.count, "begun".into()));
            changed = true;
        }
        if changed {
            return self.put(&of, record.clone());
        }
        self.words(record)
    }

    fn suspend(&mut self, line: &Line, of: &Id, mut record: Record) -> String {
        let (check, look) = match &record.state {
            State::Doubtful { tag: "owner", .. } => return self.words(&record),
            State::Doubtful { check_at, looking, .. } => (*check_at, looking.clone()),
            _ => (None, None),
        };
        record.note_lapse(self.now);
        let said = line.value("reason").map(str::to_owned);
        record.state = State::Doubtful { since: self.now, tag: "owner", said, check_at: check, looking: look };
        record.events.push(Event::new(self.now, self.count, "suspended".into()));
        self.put(of, record)
    }

    /// Completed by its owner or by a verdict, or why not.
    fn done(&self, line: &Line, record: &mut Record) -> Result<(), String> {
        let body = body_of(line);
        let max = self.field(line, "outcome_bytes_max").map_or(1 << 20, |text| text.parse().expect("a number"));
        let stored = body.len() <= max;
        if !stored && self.field(line, "oversize").as_deref() != Some("digest_only") {
            return Err("outcome_too_large".into());
        }
        let (replay, evidence) = self.windows(line, record.owner.replay_asked, record.owner.evidence_asked);
        let replay_until = self.now + replay.max(record.owner.replay);
        let evidence_until = self.now + evidence.max(record.owner.evidence);
        record.note_lapse(self.now);
        record.state = State::Done { at: self.now, body, stored, replay_until, evidence_until, forgotten: None };
        record.events.push(Event::new(self.now, self.count, "completed".into()));
        Ok(())
    }

    fn gone(&mut self, of: &Id, mut record: Record, event: &str, released: Option<u64>) -> String {
        record.note_lapse(self.now);
        record.events.push(Event::new(self.now, self.count, event.into()));
        record.state = State::Gone { until: self.now + record.owner.evidence, released };
        self.put(of, record)
    }

    fn stale(&mut self, of: &Id, fence: u64) -> String {
        let fence = if fence == 0 { NEVER_GRANTED.to_owned() } else { fence.to_string() };
        let (now, count) = (self.now, self.count);
        let record = self.records.get_mut(of).expect("there is history");
        let kind = format!("stale_fence/{fence}");
        match record.events.iter_mut().find(|event| event.kind == kind) {
            Some(event) => (event.at, event.number, event.times) = (now, count, event.times + 1),
            None => record.events.push(Event::new(now, count, kind)),
        }
        "stale_fence".into()
    }

    // Reconcilers.

    fn doubtful(&self, line: &Line) -> Result<Record, String> {
        let Some((word, record)) = self.read(&id(line)) else { return Err("not_found".into()) };
        let State::Doubtful { looking, .. } = &record.state else {
            assert_ne!(word, Word::Indeterminate);
            return Err("wrong_state".into());
        };
        let by = line.value("by").unwrap_or("ops");
        if looking.as_ref().is_some_and(|(other, until)| other != by && self.now < *until) {
            return Err("wrong_state".into());
        }
        Ok(record)
    }

    fn investigate(&mut self, line: &Line) -> String {
        let mut record = match self.doubtful(line) {
            Ok(record) => record,
            Err(refused) => return refused,
        };
        if line.value("version").is_some() && self.number(line, "version") != record.version {
            return "version_changed".into();
        }
        let until = self.now + self.lease(line, line.ms("lease"));
        record.note_lapse_if_held(self.now);
        let State::Doubtful { looking, .. } = &mut record.state else { unreachable!() };
        let running = looking.as_ref().map_or(until, |(_, until)| *until);
        *looking = Some((line.value("by").unwrap_or("ops").to_owned(), running.max(until)));
        record.events.push(Event::new(self.now, self.count, "investigated".into()));
        self.put(&id(line), record);
        self.get(line)
    }

    fn resolve(&mut self, line: &Line) -> String {
        let request = line.value("request").map_or_else(|| format!("request-{}", self.count), str::to_owned);
        if let Some(record) = self.records.get(&id(line))
            && let Some((_, first)) = record.verdicts.iter().find(|(known, _)| *known == request)
        {
            return first.clone();
        }
        let mut record = match self.doubtful(line) {
            Ok(record) => record,
            Err(refused) => return refused,
        };
        if self.number(line, "version") != record.version {
            return "version_changed".into();
        }
        let State::Doubtful { since, tag, .. } = record.state.clone() else { unreachable!() };
        let verdict = line.value("verdict").expect("a verdict").to_owned();
        if verdict == "no_effect" && tag != "owner" {
            let restored = self.doubt.map_or(since, |doubt| doubt.since);
            let out = match tag {
                "lease_lapsed" => record.owner.deadline,
                _ if record.owner.attempt == 0 => since,
                _ => record.owner.deadline.max(restored),
            } + self.length(line, "effect_ms_max", 60_000);
            if self.now < out {
                return format!("owner_may_act retry_after={}ms", out - self.now);
            }
        }
        let event = Event::new(self.now, self.count, format!("resolved:{verdict}"));
        let words = match verdict.as_str() {
            "completed" => {
                if let Err(refused) = self.done(line, &mut record) {
                    return refused;
                }
                record.events.push(event);
                record.cleared = self.count;
                self.put(&id(line), record)
            }
            "no_effect" => {
                record.cleared = self.count;
                self.gone(&id(line), record, &event.kind, None)
            }
            _ => {
                record.note_lapse_if_held(self.now);
                record.events.push(event);
                let State::Doubtful { check_at, looking, .. } = &mut record.state else { unreachable!() };
                (*check_at, *looking) = (line.ms("check_at"), None);
                self.put(&id(line), record)
            }
        };
        let kept = self.records.get_mut(&id(line)).expect("put just now");
        kept.verdicts.push((request, words.clone()));
        let surplus = kept.verdicts.len().saturating_sub(8);
        kept.verdicts.drain(..surplus);
        words
    }

    fn forget(&mut self, line: &Line) -> String {
        let Some((word, mut record)) = self.read(&id(line)) else { return "not_found".into() };
        match word {
            Word::Expired => self.words(&record),
            Word::Completed => {
                let now = self.now;
                if let State::Done { forgotten, .. } = &mut record.state {
                    *forgotten = Some(now);
                }
                record.events.push(Event::new(now, self.count, "forgotten".into()));
                self.put(&id(line), record)
            }
            Word::InProgress | Word::Indeterminate => "wrong_state".into(),
        }
    }

    // Answers.

    /// Keeps a record that was visibly changed, and says what it is now.
    fn put(&mut self, of: &Id, mut record: Record) -> String {
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

    fn words(&self, record: &Record) -> String {
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

    fn get(&self, line: &Line) -> String {
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
            owner.checkpoint.as_deref().unwrap_or("none")
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
        owner.checkpoint.as_deref().unwrap_or("none"),
        owner.id
    )
}

fn shown(body: &str, stored: bool) -> String {
    match stored {
        false => "not_stored".into(),
        true if body.len() > 40 => format!("*{}", body.len()),
        true => body.to_owned(),
    }
}
