//! From the schema's messages to JSON. Every field of a shape is there, null where there is none.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_types::Timestamp;
use std::collections::BTreeMap;

use super::{moment, words};
use crate::{
    id::{Time, hex},
    json::{Json, Number},
    proto::v1,
    records::command::Wrapped,
    service::answer::{AuditAnswer, AuditEvent, AuditHead},
};

/// A message as JSON.
pub(super) trait ToJson {
    /// The JSON of it.
    fn to_json(&self) -> Json;
}

fn number(value: u64) -> Json {
    Json::u64_text(value)
}

fn opt_number(value: Option<u64>) -> Json {
    value.map(Json::u64_text).into()
}

fn time(value: Option<&Timestamp>) -> Json {
    value.map(moment::write).into()
}

fn text(value: Option<&String>) -> Json {
    value.map(String::as_str).into()
}

fn word<W: words::Words + TryFrom<i32>>(value: Option<i32>) -> Json {
    value.and_then(words::word::<W>).into()
}

fn bytes(value: &[u8]) -> Json {
    STANDARD.encode(value).into()
}

fn strings(map: &BTreeMap<String, String>) -> Json {
    Json::object(map.iter().map(|(name, value)| (name.as_str(), Json::from(value.as_str()))))
}

fn opt<M: ToJson>(message: Option<&M>) -> Json {
    message.map_or(Json::Null, M::to_json)
}

fn list<M: ToJson>(messages: &[M]) -> Json {
    Json::Array(messages.iter().map(M::to_json).collect())
}

impl ToJson for v1::RecordId {
    fn to_json(&self) -> Json {
        Json::object([
            ("tenant", text(self.tenant.as_ref())),
            ("principal", text(self.principal.as_ref())),
            ("operation", self.operation.as_str().into()),
            ("key", self.key.as_str().into()),
        ])
    }
}

impl ToJson for v1::Fingerprint {
    fn to_json(&self) -> Json {
        Json::object([("scheme", self.scheme.into()), ("digest", hex(&self.digest).into())])
    }
}

impl ToJson for v1::CheckpointData {
    fn to_json(&self) -> Json {
        Json::object([("name", self.name.as_str().into()), ("data", bytes(&self.data))])
    }
}

impl ToJson for v1::Outcome {
    fn to_json(&self) -> Json {
        Json::object([
            ("status", self.status.into()),
            ("headers", strings(&self.headers)),
            ("content_type", text(self.content_type.as_ref())),
            ("body", self.body.as_ref().map_or(Json::Null, |body| bytes(body))),
            ("valid_until", time(self.valid_until.as_ref())),
            ("not_stored", self.not_stored.into()),
        ])
    }
}

impl ToJson for v1::ClaimAnswer {
    /// The fields of what was answered, and those alone.
    fn to_json(&self) -> Json {
        let mut members = vec![("answer", word::<v1::Answer>(Some(self.answer)))];
        match self.answer() {
            v1::Answer::New => members.extend(self.grant()),
            v1::Answer::InProgress => {
                members.extend([("retry_after_ms", self.retry_after_ms.into()), ("since", time(self.since.as_ref()))])
            }
            v1::Answer::Completed => members.extend([
                ("replayed", self.replayed.into()),
                ("stale", self.stale.into()),
                ("not_stored", self.not_stored.into()),
                ("outcome", opt(self.outcome.as_ref())),
                ("completed_at", time(self.completed_at.as_ref())),
            ]),
            v1::Answer::Conflict => {
                members.extend([("state", word::<v1::State>(self.state)), ("since", time(self.since.as_ref()))]);
            }
            v1::Answer::Indeterminate => members.extend([
                ("since", time(self.since.as_ref())),
                ("reason", text(self.reason.as_ref())),
                ("retry_after_ms", self.retry_after_ms.into()),
            ]),
            v1::Answer::Expired => members.extend([
                ("reason", text(self.reason.as_ref())),
                ("completed_at", time(self.completed_at.as_ref())),
                ("evidence_until", time(self.evidence_until.as_ref())),
            ]),
            v1::Answer::Unspecified => {}
        }
        members.extend([("attempt_id", self.attempt_id.as_str().into()), ("index", number(self.index))]);
        Json::object(members)
    }
}

impl v1::ClaimAnswer {
    fn grant(&self) -> [(&'static str, Json); 9] {
        [
            ("fence", opt_number(self.fence)),
            ("attempt", self.attempt.into()),
            ("phase", word::<v1::Phase>(self.phase)),
            ("version", opt_number(self.version)),
            ("repeated", self.repeated.into()),
            ("lease_ms", self.lease_ms.into()),
            ("lease_deadline", time(self.lease_deadline.as_ref())),
            ("downstream_key", text(self.downstream_key.as_ref())),
            ("checkpoint", opt(self.checkpoint.as_ref())),
        ]
    }
}

impl ToJson for v1::OwnerAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("state", word::<v1::State>(Some(self.state))),
            ("phase", word::<v1::Phase>(self.phase)),
            ("lease_ms", self.lease_ms.into()),
            ("lease_deadline", time(self.lease_deadline.as_ref())),
            ("version", opt_number(self.version)),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::Investigation {
    fn to_json(&self) -> Json {
        Json::object([("actor", self.actor.as_str().into()), ("deadline", time(self.deadline.as_ref()))])
    }
}

impl ToJson for v1::Record {
    fn to_json(&self) -> Json {
        Json::object([
            ("record", opt(self.record.as_ref())),
            ("state", word::<v1::State>(Some(self.state))),
            ("version", number(self.version)),
            ("fence", number(self.fence)),
            ("attempt", self.attempt.into()),
            ("phase", word::<v1::Phase>(self.phase)),
            ("attempt_id", text(self.attempt_id.as_ref())),
            ("fingerprints", list(&self.fingerprints)),
            ("lease_deadline", time(self.lease_deadline.as_ref())),
            ("since", time(self.since.as_ref())),
            ("reason", text(self.reason.as_ref())),
            ("checkpoint", opt(self.checkpoint.as_ref())),
            ("labels", strings(&self.labels)),
            ("outcome", opt(self.outcome.as_ref())),
            ("completed_at", time(self.completed_at.as_ref())),
            ("replay_until", time(self.replay_until.as_ref())),
            ("evidence_until", time(self.evidence_until.as_ref())),
            ("downstream_key", self.downstream_key.as_str().into()),
            ("investigation", opt(self.investigation.as_ref())),
            ("check_again_at", time(self.check_again_at.as_ref())),
            ("on_lapse", word::<v1::OnLapse>(self.on_lapse)),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::ListAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("records", list(&self.records)),
            ("cursor", text(self.cursor.as_ref())),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::HistoryEvent {
    fn to_json(&self) -> Json {
        Json::object([
            ("at", time(self.at.as_ref())),
            ("index", number(self.index)),
            ("kind", word::<v1::HistoryKind>(Some(self.kind))),
            ("actor", text(self.actor.as_ref())),
            ("fence", opt_number(self.fence)),
            ("detail", text(self.detail.as_ref())),
        ])
    }
}

impl ToJson for v1::HistoryAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("events", list(&self.events)),
            ("cursor", text(self.cursor.as_ref())),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::WatchGone {
    fn to_json(&self) -> Json {
        Json::object([
            ("record", opt(self.record.as_ref())),
            ("state", word::<v1::State>(Some(self.state))),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::Refused {
    fn to_json(&self) -> Json {
        Json::object([
            ("code", self.code.as_str().into()),
            ("detail", self.detail.as_str().into()),
            ("retryable", self.retryable.into()),
            ("effect", word::<v1::Effect>(Some(self.effect))),
            ("retry_after_ms", self.retry_after_ms.into()),
            ("attempt_id", text(self.attempt_id.as_ref())),
            ("index", opt_number(self.index)),
            ("leader", self.leader.as_ref().map_or(Json::Null, ToJson::to_json)),
        ])
    }
}

impl ToJson for v1::Leader {
    fn to_json(&self) -> Json {
        let id = crate::json::Number::parse(&self.id.to_string()).expect("an integer is a JSON number");
        Json::object([("id", Json::Number(id)), ("endpoint", self.endpoint.as_str().into())])
    }
}

impl ToJson for v1::ItemAnswer {
    fn to_json(&self) -> Json {
        use v1::item_answer::Answer as Wire;
        let member = match &self.answer {
            Some(Wire::Claim(own)) => ("claim", own.to_json()),
            Some(Wire::Begin(own)) => ("begin", own.to_json()),
            Some(Wire::Renew(own)) => ("renew", own.to_json()),
            Some(Wire::Checkpoint(own)) => ("checkpoint", own.to_json()),
            Some(Wire::Complete(own)) => ("complete", own.to_json()),
            Some(Wire::Release(own)) => ("release", own.to_json()),
            Some(Wire::Suspend(own)) => ("suspend", own.to_json()),
            Some(Wire::Get(own)) => ("get", own.to_json()),
            Some(Wire::Refused(own)) => ("refused", own.to_json()),
            None => return Json::Null,
        };
        Json::object([member])
    }
}

impl ToJson for v1::BatchAnswer {
    fn to_json(&self) -> Json {
        Json::object([("items", list(&self.items)), ("index", number(self.index))])
    }
}

impl ToJson for v1::Policy {
    fn to_json(&self) -> Json {
        Json::object([
            ("lease_ms_default", self.lease_ms_default.into()),
            ("lease_ms_max", self.lease_ms_max.into()),
            ("wait_ms_max", self.wait_ms_max.into()),
            ("on_lapse", word::<v1::OnLapse>(self.on_lapse)),
            ("replay_s", self.replay_s.into()),
            ("evidence_s", self.evidence_s.into()),
            ("outcome_bytes_max", self.outcome_bytes_max.into()),
            ("oversize", word::<v1::Oversize>(self.oversize)),
            ("expired_claims", word::<v1::ExpiredClaims>(self.expired_claims)),
            ("records_max", opt_number(self.records_max)),
            ("bytes_max", opt_number(self.bytes_max)),
            ("indeterminate_max", opt_number(self.indeterminate_max)),
            ("claims_per_s", self.claims_per_s.into()),
            ("key_bytes_min", self.key_bytes_min.into()),
            ("replay_s_max", self.replay_s_max.into()),
            ("evidence_s_max", self.evidence_s_max.into()),
            ("checkpoint_bytes_max", self.checkpoint_bytes_max.into()),
            ("effect_ms_max", self.effect_ms_max.into()),
            ("low_entropy_keys", word::<v1::LowEntropyKeys>(self.low_entropy_keys)),
        ])
    }
}

impl ToJson for v1::PolicyAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("policy", opt(self.policy.as_ref())),
            ("overrides", opt(self.overrides.as_ref())),
            ("index", number(self.index)),
        ])
    }
}

fn texts(items: &[String]) -> Json {
    Json::Array(items.iter().map(|item| Json::from(item.as_str())).collect())
}

impl ToJson for v1::TokenAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("token_id", self.token_id.as_str().into()),
            ("token", text(self.token.as_ref())),
            ("tenant", text(self.tenant.as_ref())),
            ("permissions", texts(&self.permissions)),
            ("operations", texts(&self.operations)),
            ("expires_at", time(self.expires_at.as_ref())),
            ("revoked_at", time(self.revoked_at.as_ref())),
            ("index", number(self.index)),
        ])
    }
}

impl ToJson for v1::TokenInfo {
    fn to_json(&self) -> Json {
        Json::object([
            ("token_id", self.token_id.as_str().into()),
            ("tenant", text(self.tenant.as_ref())),
            ("permissions", texts(&self.permissions)),
            ("operations", texts(&self.operations)),
            ("note", text(self.note.as_ref())),
            ("created_by", self.created_by.as_str().into()),
            ("created_at", time(self.created_at.as_ref())),
            ("expires_at", time(self.expires_at.as_ref())),
            ("revoked_at", time(self.revoked_at.as_ref())),
            ("state", self.state.as_str().into()),
        ])
    }
}

fn moment_of(time: Time) -> Json {
    super::moment_text(time).into()
}

impl ToJson for AuditEvent {
    fn to_json(&self) -> Json {
        Json::object([
            ("seq", number(self.seq)),
            ("position", number(self.position.0)),
            ("at", moment_of(self.at)),
            ("kind", self.kind.as_str().into()),
            ("tenant", self.tenant.as_ref().map(|tenant| tenant.as_str()).into()),
            ("record_hash", self.record.map(|record| record.to_string()).into()),
            ("actor", text(self.actor.as_ref())),
            ("detail", self.detail.as_deref().map_or(Json::Null, |text| Json::object([("text", text.into())]))),
            ("previous", hex(&self.previous).into()),
            ("hash", hex(&self.hash).into()),
            ("row", bytes(&self.row)),
        ])
    }
}

impl ToJson for AuditHead {
    fn to_json(&self) -> Json {
        Json::object([
            ("tenant", self.tenant.as_ref().map(|tenant| tenant.as_str()).into()),
            ("seq", number(self.seq)),
            ("hash", hex(&self.hash).into()),
            ("at", self.at.map_or(Json::Null, moment_of)),
            ("data_keys", Json::Array(self.data_keys.iter().map(data_key).collect())),
        ])
    }
}

/// A data key with what wraps it, as it is: u32 id of the wrapping key, big-endian, and the bytes.
fn data_key((id, key): &(u32, Wrapped)) -> Json {
    let wrapped = [&key.wrapping_id.to_be_bytes()[..], &key.bytes.0].concat();
    let id = Number::parse(&id.to_string()).expect("an integer is a JSON number");
    Json::object([("id", Json::Number(id)), ("key", bytes(&wrapped))])
}

impl ToJson for AuditAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("events", list(&self.events)),
            ("head", opt(self.head.as_ref())),
            ("next_seq", opt_number(self.next_seq)),
            ("index", number(self.index.0)),
        ])
    }
}

impl ToJson for v1::ListTokensAnswer {
    fn to_json(&self) -> Json {
        Json::object([
            ("tokens", list(&self.tokens)),
            ("cursor", text(self.cursor.as_ref())),
            ("index", number(self.index)),
        ])
    }
}
