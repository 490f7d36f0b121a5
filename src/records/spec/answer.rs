//! Puts answers, readings and timelines into words: the state or answer first, then everything that a caller can see.

use std::fmt::Write as _;

use super::world::{START_MS, World};
use crate::{
    id::{Position, Tenant, Time},
    records::{
        answer::{Answer, Applied, Changed, ClaimAnswer, New, Reason},
        command::{RecordRef, Sealed},
        history,
        policy::Effective,
        record::{BodyPlace, Completed, Head, Indeterminate, Point, Standing, StateWord},
        state::{Event, SinceList, State},
    },
    refusal::{Code, Refusal},
};

/// A time as scenarios count.
pub fn ms(time: Time) -> String {
    format!("{}ms", i128::from(time.0) - i128::from(START_MS))
}

fn text(sealed: &Sealed) -> String {
    String::from_utf8(sealed.bytes.0.to_vec()).expect("scenarios hold texts")
}

/// Long texts by their length.
fn short(text: String) -> String {
    if text.len() > 40 { format!("*{}", text.len()) } else { text }
}

pub fn of(world: &World, applied: &Applied) -> String {
    match &applied.answer {
        Err(refusal) => {
            assert_eq!(refusal.index, Some(applied.index), "a refusal from the log names its position");
            refused(refusal)
        }
        Ok(Answer::Claim(answer)) => claim(world, answer, applied),
        Ok(Answer::Changed(changed)) => self::changed(world, changed),
        Ok(Answer::Investigated(head)) => {
            let id = head.id.clone();
            let whole = text(&id);
            let mut parts = whole.split(' ');
            let line = super::line::Line::parse(&format!(
                "get {2} tenant={0} op={1}",
                parts.next().expect("tenant"),
                parts.next().expect("operation"),
                parts.next().expect("key")
            ));
            view(world, Some(head), &super::world::reference(&line, line.key()), applied.now)
        }
        Ok(Answer::Policy(effective)) => policy(effective),
        Ok(Answer::Token(token)) => format!("token {}", token.permissions),
        Ok(Answer::Done) => "ok".to_owned(),
    }
}

fn refused(refusal: &Refusal) -> String {
    let mut words = refusal.code.as_str().to_owned();
    if refusal.code == Code::QuotaExceeded {
        let quota = refusal.detail.split([' ', '(', ')']).find(|word| word.ends_with("_max"));
        let _ = write!(words, " quota={}", quota.expect("the detail names the quota"));
    } else if let Some(after) = refusal.retry_after_ms {
        let _ = write!(words, " retry_after={after}ms");
    }
    words
}

fn claim(world: &World, answer: &ClaimAnswer, applied: &Applied) -> String {
    match answer {
        ClaimAnswer::New(new) => {
            let New { fence, attempt, phase, version, lease_ms, lease_deadline, .. } = &**new;
            let mut words = format!(
                "new fence={} attempt={attempt} phase={} version={} lease={lease_ms}ms deadline={} checkpoint={} id={}",
                world.label(Position(fence.0)),
                phase.as_str(),
                world.label(*version),
                ms(*lease_deadline),
                point(world, new.checkpoint.as_ref()),
                world.names.attempts[&new.attempt_id],
            );
            if new.repeated {
                words.push_str(" repeated");
            } else {
                assert_eq!(fence.0, applied.index.0, "a fence is the position of its grant");
            }
            words
        }
        ClaimAnswer::InProgress { retry_after_ms, since } => {
            format!("in_progress retry_after={retry_after_ms}ms since={}", ms(*since))
        }
        ClaimAnswer::Conflict { state, since } => format!("conflict state={} since={}", state.as_str(), ms(*since)),
        ClaimAnswer::Indeterminate { since, reason, retry_after_ms } => {
            format!("indeterminate since={} reason={} retry_after={retry_after_ms}ms", ms(*since), self::reason(reason))
        }
        ClaimAnswer::Completed(replay) => {
            let body = replay.sealed_body().map_or("not_stored".to_owned(), |body| short(text(body)));
            format!("completed body={body} completed_at={}", ms(replay.completed_at))
        }
        ClaimAnswer::Expired { reason, completed_at, evidence_until } => {
            let mut words = format!("expired reason={}", reason.as_str());
            if let (Some(completed_at), Some(until)) = (completed_at, evidence_until) {
                let _ = write!(words, " completed_at={} evidence_until={}", ms(*completed_at), ms(*until));
            }
            words
        }
    }
}

fn reason(reason: &Reason) -> String {
    reason.text.as_ref().map_or(reason.tag.as_str().to_owned(), text)
}

/// The point, and behind it the fence that it was written with.
fn point(world: &World, point: Option<&Point>) -> String {
    let shown = |point: &Point| format!("{}@{}", short(text(&point.sealed)), world.label(Position(point.fence.0)));
    point.map_or("none".to_owned(), shown)
}

fn changed(world: &World, changed: &Changed) -> String {
    let mut words = changed.state.as_str().to_owned();
    if let Some(phase) = changed.phase {
        let _ = write!(words, " phase={}", phase.as_str());
    }
    if let (Some(lease_ms), Some(deadline)) = (changed.lease_ms, changed.lease_deadline) {
        let _ = write!(words, " lease={lease_ms}ms deadline={}", ms(deadline));
    }
    if let Some(version) = changed.version {
        let _ = write!(words, " version={}", world.label(version));
    }
    words
}

fn policy(effective: &Effective) -> String {
    let policy = &effective.policy;
    format!(
        "ok lease_ms_default={}ms lease_ms_max={}ms replay_s={}s evidence_s={}s on_lapse={}",
        policy.lease_ms_default,
        policy.lease_ms_max,
        policy.replay_s,
        policy.evidence_s,
        policy.on_lapse.as_str()
    )
}

/// A record as read.
pub fn view(world: &World, head: Option<&Head>, record: &RecordRef, now: Time) -> String {
    let standing = Standing::of(head, now, world.state.globals());
    let Some((head, grant)) = standing.present() else { return "absent".to_owned() };
    let mut words = format!(
        "{} fence={} attempt={} version={} since={} fp={} checkpoint={}",
        standing.word().as_str(),
        world.label(Position(grant.fence().0)),
        grant.attempt,
        world.label(head.version),
        ms(standing.since().expect("a record that is there is so since a time")),
        text(&grant.fingerprints.sealed),
        point(world, grant.checkpoint.as_ref()),
    );
    if let Some(labels) = &grant.labels {
        let _ = write!(words, " labels={}", text(labels));
    }
    match standing {
        Standing::InProgress { lapsed, .. } => {
            let phase = if grant.begun.is_some() { "begun" } else { "staged" };
            let _ = write!(words, " phase={phase} lease={}ms deadline={}", grant.lease_ms, ms(grant.deadline));
            assert_eq!(lapsed, now >= grant.deadline);
        }
        Standing::Indeterminate { tag, stored, .. } => {
            let owner = stored.and_then(|stored| stored.reason.as_ref());
            let _ = write!(words, " reason={}", owner.map_or(tag.as_str().to_owned(), text));
            stored.into_iter().for_each(|stored| doubt(&mut words, stored, now));
        }
        Standing::Completed { done, expired_since, .. } => self::done(world, &mut words, done, expired_since, record),
        Standing::Absent { .. } => {}
    }
    words
}

fn doubt(words: &mut String, stored: &Indeterminate, now: Time) {
    if let Some(at) = stored.check_again_at {
        let _ = write!(words, " check_at={}", ms(at));
    }
    if let Some(own) = stored.investigation.as_ref().filter(|own| now < own.deadline) {
        let _ = write!(words, " by={} until={}", text(&own.by.actor), ms(own.deadline));
    }
}

fn done(world: &World, words: &mut String, done: &Completed, expired_since: Option<Time>, record: &RecordRef) {
    let (completed_at, replay, evidence) = (done.completed.at, done.replay_until, done.evidence_until);
    let _ =
        write!(words, " completed_at={} replay_until={} evidence_until={}", ms(completed_at), ms(replay), ms(evidence));
    if expired_since.is_some() {
        return;
    }
    let outcome = done.outcome.as_ref().expect("a completed record has its outcome");
    let body = match &outcome.body {
        BodyPlace::Inline(body) => short(text(body)),
        BodyPlace::Separate(_) => short(text(&world.state.body(record).expect("a body under its own key"))),
        BodyPlace::NotStored(()) => "not_stored".to_owned(),
    };
    let _ = write!(words, " body={body}");
}

/// A record's timeline: `kind/fence:verdict@time`, and how often where it is more than once.
pub fn history(world: &World, record: &RecordRef, now: Time) -> String {
    let head = world.state.head(record);
    let rows: Vec<_> =
        head.iter().flat_map(|head| (0..head.rows).filter_map(|slot| world.state.row(record, slot))).collect();
    let events = history::history(head.as_deref(), &rows, now, world.state.globals());
    assert!(events.is_sorted_by_key(|event| (event.at, event.index)), "oldest first");
    let mut words = Vec::new();
    for event in events {
        let mut word = event.kind.to_owned();
        if let Some(fence) = event.fence.filter(|_| ["claimed", "stale_fence"].contains(&event.kind)) {
            let _ = write!(word, "/{}", world.label(Position(fence.0)));
        }
        if let Some(verdict) = event.verdict {
            let _ = write!(word, ":{}", verdict.as_str());
        }
        let _ = write!(word, "@{}", ms(event.at));
        if event.count > 1 {
            let _ = write!(word, "x{}", event.count);
        }
        words.push(word);
    }
    words.join(" ")
}

/// Kinds of the rows of an audit chain that are not past their time.
pub fn audit(world: &World, chain: Option<&Tenant>) -> String {
    let mut kinds = Vec::new();
    let head = match chain {
        Some(tenant) => world.state.tenant(tenant).map(|tenant| tenant.audit),
        None => world.state.globals().audit,
    };
    let Some(head) = head else { return String::new() };
    let globals = world.state.globals();
    let audit_s = globals.formed.as_ref().map_or(0, |formed| formed.limits.audit_s);
    for sequence in head.first_kept..=head.sequence {
        let row = world.state.audit_row(chain, sequence).expect("a kept row");
        if globals.time < row.at.plus_s(audit_s) {
            kinds.push(row.kind.as_str());
        }
    }
    kinds.join(" ")
}

/// Keys of a list of the since index, oldest first.
pub fn list(world: &World, list: &str) -> String {
    let list = if list == "in_progress" { SinceList::InProgress } else { SinceList::Indeterminate };
    let keys = world.state.since_list(list);
    keys.iter().map(|record| world.names.keys[&record.record].clone()).collect::<Vec<_>>().join(" ")
}

/// Events from the n-th on.
pub fn events(world: &World, from: usize) -> String {
    let words = world.state.events[from..].iter().map(|(_, event)| match event {
        Event::Indeterminate(record) => format!("indeterminate:{}", world.names.keys[&record.record]),
        Event::Gone(record, _, word) => {
            format!("gone:{}:{}", world.names.keys[&record.record], StateWord::as_str(*word))
        }
        Event::DoubtEnded => "doubt-ended".to_owned(),
        Event::Closed(tenant) => format!("closed:{}", tenant.as_str()),
        Event::Rekeyed(of) => format!("rekeyed:{}", of.as_ref().map_or("", |tenant| tenant.as_str())),
    });
    words.collect::<Vec<_>>().join(" ")
}
