//! What the model makes of policies: windows, leases, what is too old, and quotas as if everything due were swept.

use super::{
    line::{Line, parse_ms},
    model::{Model, State},
};

impl Model {
    pub(super) fn field(&self, line: &Line, name: &str) -> Option<String> {
        let level = |operation: Option<&str>| {
            let key = (line.tenant().to_owned(), operation.map(str::to_owned));
            self.overrides.get(&key).and_then(|fields| fields.get(name)).cloned()
        };
        level(Some(line.operation())).or_else(|| level(None))
    }

    pub(super) fn length(&self, line: &Line, name: &str, default: i64) -> i64 {
        self.field(line, name).map_or(default, |text| parse_ms(&text).expect("a length"))
    }

    pub(super) fn policy(&mut self, line: &Line) -> String {
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

    pub(super) fn evidence_now(&self, line: &Line) -> i64 {
        self.length(line, "evidence_s", 2_592_000_000)
    }

    pub(super) fn lease(&self, line: &Line, wanted: Option<i64>) -> i64 {
        let (default, max) =
            (self.length(line, "lease_ms_default", 30_000), self.length(line, "lease_ms_max", 86_400_000));
        wanted.filter(|ms| *ms > 0).unwrap_or(default).min(max).max(100)
    }

    pub(super) fn windows(&self, line: &Line, replay: Option<i64>, evidence: Option<i64>) -> (i64, i64) {
        let replay = replay.unwrap_or_else(|| self.length(line, "replay_s", 86_400_000));
        let evidence = evidence.unwrap_or_else(|| self.length(line, "evidence_s", 2_592_000_000));
        (replay, evidence.max(replay))
    }

    pub(super) fn is_too_old(&self, line: &Line) -> bool {
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

    pub(super) fn tally(&self, tenant: &str, operation: Option<&str>) -> (u64, u64, u64) {
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

    pub(super) fn counters(&self, line: &Line) -> String {
        let (all, owned, doubtful) = self.tally(line.tenant(), line.value("op"));
        format!("counters records={all} in_progress={owned} indeterminate={doubtful}")
    }

    pub(super) fn over_quota(&self, line: &Line) -> Option<String> {
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
}
