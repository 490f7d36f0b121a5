//! What a row of the store says, as text for people and for comparing releases: see FORMAT.md, The dump.
//!
//! The words are written down here, one by one, and not derived from how the code names things: a dump that one release has
//! written can be compared with that of another. What changes a line changes [`TEXT_VERSION`].

use std::fmt::{Display, Write};

use crate::{
    id::{KeyedHash, Position, Time, hex},
    records::{
        closing::Closing,
        codec::{self, CodecError},
        command::{RecordRef, Sealed, Token},
        keys::{META_ENABLED, META_ENDED, META_GLOBALS, META_SEALING, StoreKey},
        policy::{Overrides, PolicyLevel, Raised},
        record::{BodyPlace, Completed, Grant, Head, Indeterminate, Moment, Row, Stored},
        sealing::{DataKeys, Enabled, RingEntry, Sealing},
        state::{AuditRow, ChainHead, Counters, Deadline, Ended, Globals, TenantState},
    },
};

/// The version of the text.
pub const TEXT_VERSION: u32 = 1;

/// Words `name=value` behind one another. What is absent is left out.
struct Words(String);

impl Words {
    fn word(mut self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.0, " {name}={value}");
        self
    }

    fn opt<T: Display>(self, name: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.word(name, value),
            None => self,
        }
    }

    fn ms(self, name: &str, time: Time) -> Self {
        self.word(name, time.0)
    }

    fn opt_ms(self, name: &str, time: Option<Time>) -> Self {
        self.opt(name, time.map(|time| time.0))
    }

    /// `POSITION@MS`.
    fn moment(self, name: &str, moment: Option<Moment>) -> Self {
        self.opt(name, moment.map(|Moment { position, at }| format!("{position}@{}", at.0)))
    }

    /// `KEY:BYTES`.
    fn sealed(self, name: &str, sealed: Option<&Sealed>) -> Self {
        self.opt(name, sealed.map(|sealed| format!("{}:{}", sealed.key_id, sealed.len())))
    }

    fn chain(self, name: &str, chain: Option<&ChainHead>) -> Self {
        let text = |chain: &ChainHead| {
            let kept = format!("{}..{}", chain.first_kept, chain.sequence);
            format!("{kept}@{}:{}", chain.oldest.0, hex(&chain.hash))
        };
        self.opt(name, chain.map(text))
    }

    fn counters(self, counters: Counters) -> Self {
        let Counters { records, bytes, in_progress, indeterminate } = counters;
        self.word("records", records)
            .word("bytes", bytes)
            .word("in_progress", in_progress)
            .word("indeterminate", indeterminate)
    }

    fn raised(self, name: &str, raised: Option<Raised>) -> Self {
        self.opt(name, raised.map(|raised| format!("{}@{}", raised.previous_s, raised.at.0)))
    }
}

/// A row of the store on one line: its key, and its value without contents.
pub fn describe(key: &[u8], value: &[u8]) -> String {
    let Ok(key) = StoreKey::decode(key) else {
        return format!("unknown key={} bytes={}", hex(key), value.len());
    };
    let words = Words(name(&key));
    match value_words(&key, value, words) {
        Ok(words) => words.0,
        Err(_) => format!("{} unreadable={}", name(&key), value.len()),
    }
}

fn place(RecordRef { tenant, operation, record }: &RecordRef) -> String {
    format!("{tenant}/{}/{}", hex(&operation.0), hex(&record.0))
}

fn level(operation: Option<&KeyedHash>) -> String {
    operation.map_or_else(String::new, |operation| format!("/{}", hex(&operation.0)))
}

fn name(key: &StoreKey) -> String {
    match key {
        StoreKey::Head(record) => format!("head {}", place(record)),
        StoreKey::Body(record) => format!("body {}", place(record)),
        StoreKey::Deadline(at, record) => format!("deadline {} {}", at.0, place(record)),
        StoreKey::Since(list, at, record) => format!("since {} {} {}", list.tag(), at.0, place(record)),
        StoreKey::Counters(tenant, operation) => format!("counters {tenant}{}", level(operation.as_ref())),
        StoreKey::Row(record, slot) => format!("row {} {slot}", place(record)),
        StoreKey::Audit(chain, sequence) => {
            format!("audit {} {sequence}", chain.as_ref().map_or("-", |tenant| tenant.as_str()))
        }
        StoreKey::Policy(tenant, operation) => format!("policy {tenant}{}", level(operation.as_ref())),
        StoreKey::Tenant(tenant) => format!("tenant {tenant}"),
        StoreKey::Meta(meta) => format!("meta {}", meta.escape_default()),
        StoreKey::Token(id) => format!("token {}", hex(id)),
        StoreKey::Ring(of) => format!("ring {}", of.as_ref().map_or("-", |tenant| tenant.as_str())),
        StoreKey::DataKeys(of) => format!("data_keys {}", of.as_ref().map_or("-", |tenant| tenant.as_str())),
        StoreKey::Closing(tenant) => format!("closing {tenant}"),
    }
}

fn value_words(key: &StoreKey, value: &[u8], words: Words) -> Result<Words, CodecError> {
    Ok(match key {
        StoreKey::Head(_) => head(words, &codec::decode(value)?),
        StoreKey::Body(_) => words.sealed("body", Some(&codec::decode(value)?)),
        StoreKey::Deadline(..) => {
            let Deadline { kind, then, since, bytes, has_body, rows } = codec::decode(value)?;
            let words = words.word("kind", kind.as_str()).ms("then", then).ms("since", since);
            words.word("bytes", bytes).word("has_body", has_body).word("rows", rows)
        }
        StoreKey::Since(..) => words.word("swept", codec::decode::<Position>(value)?),
        StoreKey::Counters(..) => words.counters(codec::decode(value)?),
        StoreKey::Row(..) => row(words, &codec::decode(value)?),
        StoreKey::Audit(..) => {
            let row: AuditRow = codec::decode(value)?;
            let words = words.word("kind", row.kind.as_str()).word("position", row.position).ms("at", row.at);
            let words = words.opt("record", row.record.map(|record| hex(&record.0)));
            let words = words.sealed("actor", row.actor.as_ref()).sealed("detail", row.detail.as_ref());
            words.word("previous", hex(&row.previous))
        }
        StoreKey::Policy(..) => policy(words, &codec::decode(value)?),
        StoreKey::Tenant(_) => {
            let tenant: TenantState = codec::decode(value)?;
            let words = words.word("opened", tenant.opened).word("closed", tenant.closed);
            let words = words.word("policies", tenant.policies).chain("audit", Some(&tenant.audit));
            words.word("index_key", tenant.index_key.wrapping_id)
        }
        StoreKey::Meta(name) if name == META_GLOBALS => globals(words, &codec::decode(value)?),
        StoreKey::Meta(name) if name == META_ENDED => {
            let Ended { position, at } = codec::decode(value)?;
            words.word("position", position).ms("at", at)
        }
        StoreKey::Meta(name) if name == META_SEALING => {
            let Sealing { current, keys } = codec::decode(value)?;
            let keys: Vec<String> = keys.iter().map(|key| format!("{}:{}", key.id, hex(&key.check))).collect();
            words.word("current", current).word("keys", keys.join(","))
        }
        StoreKey::Meta(name) if name == META_ENABLED => {
            let Enabled { position, at } = codec::decode(value)?;
            words.word("position", position).ms("at", at)
        }
        StoreKey::Meta(_) => words.word("bytes", value.len()),
        StoreKey::Ring(_) => {
            let RingEntry { state, at, root } = codec::decode(value)?;
            words.word("state", state.as_str()).ms("at", at).opt("root", root.map(|root| root.wrapping_id))
        }
        StoreKey::DataKeys(_) => {
            let DataKeys { current, keys } = codec::decode(value)?;
            let ids: Vec<String> = keys.iter().map(|key| key.id.to_string()).collect();
            words.word("current", current).word("ids", ids.join(","))
        }
        StoreKey::Closing(_) => {
            let Closing { closed, older_copies_stay, destroyed, emptied, .. } = codec::decode(value)?;
            let words = words.word("position", closed.position).ms("at", closed.at);
            let words = words.word("older_copies_stay", older_copies_stay);
            words.opt("destroyed", destroyed).opt("emptied", emptied)
        }
        StoreKey::Token(_) => {
            let token: Token = codec::decode(value)?;
            let words = words.opt("tenant", token.tenant.as_ref()).word("permissions", token.permissions);
            let words = words.ms("created_at", token.created_at).word("created", token.created);
            let words = words.opt_ms("expires_at", token.expires_at).opt_ms("revoked_at", token.revoked_at);
            words.sealed("scope", Some(&token.scope))
        }
    })
}

fn globals(words: Words, globals: &Globals) -> Words {
    let words = words.word("position", globals.position).ms("time", globals.time);
    let words = words.word("fence_floor", globals.fence_floor).counters(globals.total);
    let words = words.word("tenants", globals.tenants).chain("audit", globals.audit.as_ref());
    let retired: Vec<String> = globals.retired.iter().map(ToString::to_string).collect();
    let words = words.opt("retired", (!retired.is_empty()).then(|| retired.join(",")));
    let words = match &globals.doubt {
        Some(doubt) => words
            .word("doubt", doubt.first_position)
            .ms("doubt_since", doubt.since)
            .opt_ms("doubt_gap_end", doubt.gap_end),
        None => words,
    };
    match &globals.formed {
        Some(formed) => words
            .word("lineage", formed.lineage_id)
            .word("cluster", formed.cluster_id)
            .word("cluster_name", formed.cluster_name.escape_default())
            .word("feature_level", formed.feature_level),
        None => words,
    }
}

fn head(words: Words, head: &Head) -> Words {
    let words = words.word("version", head.version).word("cleared", head.cleared);
    let words = words.word("rows", head.rows).word("row_bytes", head.row_bytes).word("resolves", head.resolves.len());
    let words = words.sealed("id", Some(&head.id));
    match &head.stored {
        Stored::InProgress(owned) => grant(words.word("state", "in_progress"), owned),
        Stored::Indeterminate((owned, doubt)) => {
            indeterminate(grant(words.word("state", "indeterminate"), owned), doubt)
        }
        Stored::Completed((owned, done)) => completed(grant(words.word("state", "completed"), owned), done),
        Stored::Trace((until, fence)) => words.word("state", "trace").ms("until", *until).opt("fence", *fence),
    }
}

fn grant(words: Words, grant: &Grant) -> Words {
    let words = words.word("fence", grant.fence()).ms("granted_at", grant.granted.at);
    let words = words.word("attempt", grant.attempt).word("attempt_id", hex(&grant.attempt_id.0));
    let schemes = grant.fingerprints.keyed.iter().map(|(scheme, digest)| format!("{scheme}:{}", hex(digest)));
    let words = words.word("fingerprints", schemes.collect::<Vec<_>>().join(","));
    let words = words.word("lease_ms", grant.lease_ms).ms("deadline", grant.deadline);
    let words = words.word("on_lapse", grant.on_lapse.as_str());
    let words = words.word("replay_s", grant.replay_s).word("evidence_s", grant.evidence_s);
    let words = words.opt("replay_s_wanted", grant.replay_s_wanted).opt("evidence_s_wanted", grant.evidence_s_wanted);
    let words = words.moment("begun", grant.begun).word("begun_before", grant.begun_before);
    let words = words.sealed("checkpoint", grant.checkpoint.as_ref().map(|point| &point.sealed));
    let words = words.opt("checkpoint_fence", grant.checkpoint.as_ref().map(|point| point.fence));
    words.sealed("labels", grant.labels.as_ref()).sealed("actor", Some(&grant.actor))
}

fn indeterminate(words: Words, doubt: &Indeterminate) -> Words {
    let words = words.ms("since", doubt.since).word("reason", doubt.tag.as_str());
    let words = words.sealed("reason_text", doubt.reason.as_ref()).opt_ms("check_again_at", doubt.check_again_at);
    let held = doubt.investigation.as_ref();
    let words = words.opt("investigator", held.map(|held| hex(&held.by.digest)));
    words.opt_ms("investigated_until", held.map(|held| held.deadline))
}

fn completed(words: Words, done: &Completed) -> Words {
    let words = words.moment("completed", Some(done.completed)).opt_ms("lapsed_at", done.lapsed_at);
    let words = words.word("by_verdict", done.by_verdict).word("outcome", hex(&done.digest));
    let words = words.word("body_bytes", done.body_bytes).ms("replay_until", done.replay_until);
    let words = words.ms("evidence_until", done.evidence_until).opt_ms("forgotten", done.forgotten);
    let Some(outcome) = &done.outcome else { return words };
    let words = words.word("outcome_fence", outcome.fence).sealed("outcome_meta", Some(&outcome.meta));
    match &outcome.body {
        BodyPlace::Inline(body) => words.word("body_place", "inline").sealed("body", Some(body)),
        BodyPlace::Separate(bytes) => words.word("body_place", "separate").word("body_stored_bytes", bytes),
        BodyPlace::NotStored(()) => words.word("body_place", "not_stored"),
    }
}

fn row(words: Words, row: &Row) -> Words {
    let words = words.word("kind", row.kind.as_str()).moment("moment", Some(row.moment)).opt("fence", row.fence);
    let words = words.sealed("actor", row.actor.as_ref()).sealed("detail", row.detail.as_ref());
    let words = words.word("count", row.count).opt("verdict", row.verdict.map(|verdict| verdict.as_str()));
    let Some(past) = &row.attempt else { return words };
    let words = words.moment("begun", past.begun).opt_ms("lapsed_at", past.lapsed_at);
    words.moment("completed", past.completed).opt_ms("expired_at", past.expired_at)
}

fn policy(words: Words, level: &PolicyLevel) -> Words {
    let Overrides {
        lease_ms_default,
        lease_ms_max,
        wait_ms_max,
        on_lapse,
        replay_s,
        evidence_s,
        replay_s_max,
        evidence_s_max,
        outcome_bytes_max,
        oversize,
        checkpoint_bytes_max,
        expired_claims,
        effect_ms_max,
        key_bytes_min,
        low_entropy_keys,
        records_max,
        bytes_max,
        indeterminate_max,
        claims_per_s,
    } = &level.overrides;
    words
        .opt("lease_ms_default", *lease_ms_default)
        .opt("lease_ms_max", *lease_ms_max)
        .opt("wait_ms_max", *wait_ms_max)
        .opt("on_lapse", on_lapse.map(|rule| rule.as_str()))
        .opt("replay_s", *replay_s)
        .opt("evidence_s", *evidence_s)
        .opt("replay_s_max", *replay_s_max)
        .opt("evidence_s_max", *evidence_s_max)
        .opt("outcome_bytes_max", *outcome_bytes_max)
        .opt("oversize", oversize.map(|rule| rule.as_str()))
        .opt("checkpoint_bytes_max", *checkpoint_bytes_max)
        .opt("expired_claims", expired_claims.map(|rule| rule.as_str()))
        .opt("effect_ms_max", *effect_ms_max)
        .opt("key_bytes_min", *key_bytes_min)
        .opt("low_entropy_keys", low_entropy_keys.map(|rule| rule.as_str()))
        .opt("records_max", *records_max)
        .opt("bytes_max", *bytes_max)
        .opt("indeterminate_max", *indeterminate_max)
        .opt("claims_per_s", *claims_per_s)
        .raised("raised", level.raised)
        .raised("max_raised", level.max_raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the golden state: what the text says of them is fixed, as their bytes are.
    #[test]
    fn the_text_of_every_kind_of_row_stays_as_it_is() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let read = |name: &str| std::fs::read_to_string(root.join("records-v1").join(name)).unwrap();
        let unhex = |text: &str| -> Vec<u8> {
            let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
            (0..text.len()).step_by(2).map(byte).collect()
        };
        let mut written = String::new();
        for file in ["state.hex", "writes-ended.hex", "noted.hex"] {
            let text = read(file);
            let rows = text.lines().filter(|line| !line.starts_with("entry ")).filter_map(|line| line.split_once(' '));
            rows.for_each(|(key, value)| written += &format!("{}\n", describe(&unhex(key), &unhex(value))));
        }
        let path = root.join("dump-v1.txt");
        if std::env::var_os("SEMEL_GOLDEN").is_some_and(|write| write == "write") {
            std::fs::write(&path, &written).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
        for kind in
            ["head", "body", "deadline", "since", "counters", "row", "audit", "policy", "tenant", "meta", "token"]
        {
            assert!(written.lines().any(|line| line.split(' ').next() == Some(kind)), "no {kind}");
        }
        assert!(!written.contains(" unreadable=") && !written.lines().any(|line| line.starts_with("unknown ")));
    }

    #[test]
    fn what_is_not_known_is_told_by_its_length() {
        assert_eq!(describe(&[250, 1], b"xyz"), "unknown key=fa01 bytes=3");
        let key = StoreKey::Policy(crate::id::Tenant::parse("acme").unwrap(), None).encode();
        assert_eq!(describe(&key, b"\xff\xff"), "policy acme unreadable=2");
        assert_eq!(describe(&key, &codec::encode(&PolicyLevel::default())), "policy acme");
    }

    /// The worked example of FORMAT.md.
    #[test]
    fn the_example_in_the_document_is_a_line_of_it() {
        let format = include_str!("FORMAT.md");
        let example = format.split("```dump\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
        let text = include_str!("../../tests/golden/dump-v1.txt");
        let line = example.lines().collect::<Vec<_>>().join(" ");
        assert!(text.lines().any(|known| known == line), "{line}");
    }
}
