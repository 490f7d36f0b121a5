//! What the model makes of owners and of reconcilers.

use super::{
    line::Line,
    model::{Id, Model, NEVER_GRANTED, Record, State, Word, body_of, id},
    model_history::Event,
};

impl Model {
    pub(super) fn owner(&mut self, line: &Line) -> String {
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

    pub(super) fn run_on(&mut self, line: &Line, record: &mut Record) -> String {
        let of = id(line);
        let mut changed = false;
        let extends = line.verb == "renew" || line.verb == "begin" && line.ms("lease").is_some_and(|ms| ms > 0);
        if line.verb == "checkpoint" {
            let point = line.value("point").unwrap_or("step").to_owned();
            if record.owner.checkpoint.as_ref().is_none_or(|(kept, _)| *kept != point) || !record.owner.begun {
                record.owner.checkpoint = Some((point, record.owner.fence));
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

    pub(super) fn suspend(&mut self, line: &Line, of: &Id, mut record: Record) -> String {
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
    pub(super) fn done(&self, line: &Line, record: &mut Record) -> Result<(), String> {
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

    pub(super) fn gone(&mut self, of: &Id, mut record: Record, event: &str, released: Option<u64>) -> String {
        record.note_lapse(self.now);
        record.events.push(Event::new(self.now, self.count, event.into()));
        record.state = State::Gone { until: self.now + record.owner.evidence, released };
        self.put(of, record)
    }

    pub(super) fn stale(&mut self, of: &Id, fence: u64) -> String {
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

    pub(super) fn doubtful(&self, line: &Line) -> Result<Record, String> {
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

    pub(super) fn investigate(&mut self, line: &Line) -> String {
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

    pub(super) fn resolve(&mut self, line: &Line) -> String {
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

    pub(super) fn forget(&mut self, line: &Line) -> String {
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
}
