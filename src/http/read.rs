//! From JSON to the schema's messages: types, names and spellings alone. Everything else is judged where both doors
//! meet, in [`rpc::request`](crate::rpc::request).

use bytes::Bytes;

use super::{moment, words::Words};
use crate::{
    fingerprint::Fingerprint,
    json::{FieldError, Fields, Json},
    proto::v1,
    refusal::Refusal,
    rpc::request::{POLICY_FIELDS, no_command, page_size, tenant},
    service::request::AuditRequest,
};

type Read<T> = Result<T, FieldError>;

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Refusal::invalid(error.to_string())
    }
}

/// A message that a JSON object carries.
pub(super) trait Message: Sized {
    /// Reads all fields, and refuses what is left over.
    fn read(fields: Fields) -> Read<Self>;
}

/// The message that this body carries.
///
/// # Errors
/// `invalid_argument`: what is wrong, and where.
pub(super) fn message<M: Message>(body: &[u8]) -> Result<M, Refusal> {
    Ok(M::read(fields(body)?)?)
}

fn fields(body: &[u8]) -> Result<Fields, Refusal> {
    let json = Json::parse_envelope(body).map_err(|e| Refusal::invalid(format!("the body is no JSON: {e}")))?;
    Ok(Fields::new(json)?)
}

fn record(fields: &mut Fields) -> Read<Option<v1::RecordId>> {
    let Some(mut own) = fields.opt_object("record")? else { return Ok(None) };
    let id = v1::RecordId {
        tenant: own.opt_string_or_empty("tenant")?,
        principal: own.opt_string_or_empty("principal")?,
        operation: own.opt_string_or_empty("operation")?.unwrap_or_default(),
        key: own.opt_string_or_empty("key")?.unwrap_or_default(),
    };
    own.finish()?;
    Ok(Some(id))
}

fn time(fields: &mut Fields, name: &'static str) -> Read<Option<prost_types::Timestamp>> {
    match fields.opt_string_or_empty(name)? {
        None => Ok(None),
        Some(text) => match moment::parse(&text) {
            Some(time) => Ok(Some(time)),
            None => Err(fields.unfit(name, moment::EXPECTED, "that string")),
        },
    }
}

fn word<W: Words + Into<i32>>(fields: &mut Fields, name: &'static str) -> Read<Option<i32>> {
    Ok(fields.opt_word(name, W::WORDS)?.map(Into::into))
}

fn bytes(fields: &mut Fields, name: &'static str) -> Read<Option<Bytes>> {
    Ok(fields.opt_bytes(name)?.map(Bytes::from))
}

fn strings(fields: &mut Fields, name: &'static str) -> Read<Vec<String>> {
    let items = fields.opt_array(name)?.unwrap_or_default();
    let string = |item: Json| match item {
        Json::String(text) => Ok(text),
        other => Err(fields.unfit(name, "an array of strings", other.kind_name())),
    };
    items.into_iter().map(string).collect()
}

fn fingerprints(fields: &mut Fields) -> Read<Vec<v1::Fingerprint>> {
    let mut read = Vec::new();
    for mut own in fields.opt_objects("fingerprints")?.unwrap_or_default() {
        let scheme = own.u32("scheme")?;
        let hex = own.string("digest")?;
        let digest = match Fingerprint::from_hex(scheme, &hex) {
            Ok(fingerprint) => fingerprint.digest().to_vec().into(),
            Err(_) => return Err(own.unfit("digest", "a string of 64 lower-case hexadecimal digits", "that string")),
        };
        own.finish()?;
        read.push(v1::Fingerprint { scheme, digest });
    }
    Ok(read)
}

fn outcome(fields: &mut Fields) -> Read<Option<v1::Outcome>> {
    let Some(mut own) = fields.opt_object("outcome")? else { return Ok(None) };
    let outcome = v1::Outcome {
        status: own.opt_i32("status")?,
        headers: own.opt_strings("headers")?.unwrap_or_default().into_iter().collect(),
        content_type: own.opt_string_or_empty("content_type")?,
        body: bytes(&mut own, "body")?,
        valid_until: time(&mut own, "valid_until")?,
        not_stored: own.opt_bool("not_stored")?.unwrap_or(false),
    };
    own.finish()?;
    Ok(Some(outcome))
}

impl Message for v1::ClaimRequest {
    fn read(mut fields: Fields) -> Read<Self> {
        let message = v1::ClaimRequest {
            record: record(&mut fields)?,
            fingerprints: fingerprints(&mut fields)?,
            // Null too is a request. It goes on as text, so that both doors hash it by one path.
            request: fields.opt_value("request").map(|request| Bytes::from(request.to_text())),
            ignore: strings(&mut fields, "ignore")?,
            attempt_id: fields.opt_string_or_empty("attempt_id")?,
            lease_ms: fields.opt_u32("lease_ms")?,
            wait_ms: fields.opt_u32("wait_ms")?,
            staged: fields.opt_bool("staged")?,
            on_lapse: word::<v1::OnLapse>(&mut fields, "on_lapse")?,
            labels: fields.opt_strings("labels")?.unwrap_or_default().into_iter().collect(),
            first_sent_at: time(&mut fields, "first_sent_at")?,
            replay_s: fields.opt_u32("replay_s")?,
            evidence_s: fields.opt_u32("evidence_s")?,
            ttl_ms: fields.opt_u32("ttl_ms")?,
        };
        fields.finish()?;
        Ok(message)
    }
}

/// Declares how a message is read: its fields in order, each by what reads it.
macro_rules! messages {
    ($($Message:ident { $($field:ident: $read:expr),* $(,)? })*) => {$(
        impl Message for v1::$Message {
            fn read(mut fields: Fields) -> Read<Self> {
                let f = &mut fields;
                let message = v1::$Message { $($field: { let read: fn(&mut Fields) -> Read<_> = $read; read(f)? }),* };
                fields.finish()?;
                Ok(message)
            }
        }
    )*};
}

messages! {
    BeginRequest { record: record, fence: |f| f.opt_u64_text("fence"), lease_ms: |f| f.opt_u32("lease_ms") }
    RenewRequest { record: record, fence: |f| f.opt_u64_text("fence"), lease_ms: |f| f.opt_u32("lease_ms") }
    CheckpointRequest {
        record: record,
        fence: |f| f.opt_u64_text("fence"),
        name: |f| text(f, "name"),
        data: |f| bytes(f, "data"),
    }
    CompleteRequest { record: record, fence: |f| f.opt_u64_text("fence"), outcome: outcome }
    ReleaseRequest {
        record: record,
        fence: |f| f.opt_u64_text("fence"),
        evidence: |f| f.opt_string_or_empty("evidence"),
    }
    SuspendRequest {
        record: record,
        fence: |f| f.opt_u64_text("fence"),
        reason: |f| f.opt_string_or_empty("reason"),
    }
    GetRequest { record: record, with_outcome: |f| f.opt_bool("with_outcome") }
    ListRequest {
        tenant: |f| f.opt_string_or_empty("tenant"),
        principal: |f| f.opt_string_or_empty("principal"),
        state: |f| word::<v1::State>(f, "state"),
        operation: |f| f.opt_string_or_empty("operation"),
        older_than_ms: |f| f.opt_u32("older_than_ms"),
        page_size: |f| f.opt_u32("page_size"),
        cursor: |f| f.opt_string_or_empty("cursor"),
    }
    InvestigateRequest {
        record: record,
        lease_ms: |f| f.opt_u32("lease_ms"),
        actor: |f| f.opt_string_or_empty("actor"),
        version: |f| f.opt_u64_text("version"),
    }
    ResolveRequest {
        record: record,
        version: |f| f.opt_u64_text("version"),
        verdict: |f| Ok(word::<v1::Verdict>(f, "verdict")?.unwrap_or_default()),
        outcome: outcome,
        check_again_at: |f| time(f, "check_again_at"),
        actor: |f| f.opt_string_or_empty("actor"),
        evidence: |f| text(f, "evidence"),
        request_id: |f| f.opt_string_or_empty("request_id"),
    }
    ForgetRequest { record: record, reason: |f| f.opt_string_or_empty("reason") }
    HistoryRequest {
        record: record,
        page_size: |f| f.opt_u32("page_size"),
        cursor: |f| f.opt_string_or_empty("cursor"),
    }
    GetPolicyRequest {
        tenant: |f| f.opt_string_or_empty("tenant"),
        operation: |f| f.opt_string_or_empty("operation"),
    }
    Policy {
        lease_ms_default: |f| f.opt_u32("lease_ms_default"),
        lease_ms_max: |f| f.opt_u32("lease_ms_max"),
        wait_ms_max: |f| f.opt_u32("wait_ms_max"),
        on_lapse: |f| word::<v1::OnLapse>(f, "on_lapse"),
        replay_s: |f| f.opt_u32("replay_s"),
        evidence_s: |f| f.opt_u32("evidence_s"),
        outcome_bytes_max: |f| f.opt_u32("outcome_bytes_max"),
        oversize: |f| word::<v1::Oversize>(f, "oversize"),
        expired_claims: |f| word::<v1::ExpiredClaims>(f, "expired_claims"),
        records_max: |f| f.opt_u64_text("records_max"),
        bytes_max: |f| f.opt_u64_text("bytes_max"),
        indeterminate_max: |f| f.opt_u64_text("indeterminate_max"),
        claims_per_s: |f| f.opt_u32("claims_per_s"),
        key_bytes_min: |f| f.opt_u32("key_bytes_min"),
        replay_s_max: |f| f.opt_u32("replay_s_max"),
        evidence_s_max: |f| f.opt_u32("evidence_s_max"),
        checkpoint_bytes_max: |f| f.opt_u32("checkpoint_bytes_max"),
        effect_ms_max: |f| f.opt_u32("effect_ms_max"),
        low_entropy_keys: |f| word::<v1::LowEntropyKeys>(f, "low_entropy_keys"),
    }
}

fn text(fields: &mut Fields, name: &'static str) -> Read<String> {
    Ok(fields.opt_string_or_empty(name)?.unwrap_or_default())
}

impl Message for v1::CreateTokenRequest {
    fn read(mut fields: Fields) -> Read<Self> {
        let message = v1::CreateTokenRequest {
            tenant: fields.opt_string_or_empty("tenant")?,
            operations: strings(&mut fields, "operations")?,
            permissions: strings(&mut fields, "permissions")?,
            ttl_s: fields.opt_u32("ttl_s")?,
            expires_at: time(&mut fields, "expires_at")?,
            note: fields.opt_string_or_empty("note")?,
            token: fields.opt_string_or_empty("token")?,
        };
        fields.finish()?;
        Ok(message)
    }
}

impl Message for v1::ListTokensRequest {
    fn read(mut fields: Fields) -> Read<Self> {
        let message = v1::ListTokensRequest {
            tenant: fields.opt_string_or_empty("tenant")?,
            page_size: fields.opt_u32("page_size")?,
            cursor: fields.opt_string_or_empty("cursor")?,
        };
        fields.finish()?;
        Ok(message)
    }
}

impl Message for v1::RevokeTokenRequest {
    fn read(mut fields: Fields) -> Read<Self> {
        let message = v1::RevokeTokenRequest {
            token_id: fields.opt_string_or_empty("token_id")?.unwrap_or_default(),
            reason: fields.opt_string_or_empty("reason")?.unwrap_or_default(),
        };
        fields.finish()?;
        Ok(message)
    }
}

impl Message for v1::SetPolicyRequest {
    fn read(mut fields: Fields) -> Read<Self> {
        let mut message = v1::SetPolicyRequest {
            tenant: fields.opt_string_or_empty("tenant")?,
            operation: fields.opt_string_or_empty("operation")?,
            remove: strings(&mut fields, "remove")?,
            policy: None,
        };
        // Here alone null isn't the same as absent: it removes the override.
        match fields.opt_value("policy") {
            None | Some(Json::Null) => {}
            Some(Json::Object(mut members)) => {
                members.retain(|(name, value)| {
                    let known = POLICY_FIELDS.iter().find(|own| *own == name).filter(|_| *value == Json::Null);
                    message.remove.extend(known.map(|name| (*name).to_owned()));
                    known.is_none()
                });
                let own = Fields::at(fields.path_of("policy"), Json::Object(members))?;
                message.policy = Some(v1::Policy::read(own)?);
            }
            Some(other) => return Err(fields.unfit("policy", "an object", other.kind_name())),
        }
        fields.finish()?;
        Ok(message)
    }
}

/// What is asked of an audit chain: a call that has no message.
///
/// # Errors
/// `invalid_argument`: what is wrong, and where.
pub(super) fn audit(body: &[u8]) -> Result<AuditRequest, Refusal> {
    let mut fields = fields(body)?;
    let tenant = tenant(fields.opt_string_or_empty("tenant")?)?;
    let from_seq = fields.opt_u64_text("from_seq")?.unwrap_or(1);
    let page_size = page_size(fields.opt_u32("page_size")?);
    fields.finish()?;
    Ok(AuditRequest { tenant, from_seq, page_size })
}

type Command = v1::item::Command;
type ReadCommand = fn(Fields) -> Read<Command>;

/// How the body of each kind of item is read.
const KINDS: &[(&str, ReadCommand)] = &[
    ("claim", |f| Message::read(f).map(Command::Claim)),
    ("begin", |f| Message::read(f).map(Command::Begin)),
    ("renew", |f| Message::read(f).map(Command::Renew)),
    ("checkpoint", |f| Message::read(f).map(Command::Checkpoint)),
    ("complete", |f| Message::read(f).map(Command::Complete)),
    ("release", |f| Message::read(f).map(Command::Release)),
    ("suspend", |f| Message::read(f).map(Command::Suspend)),
    ("get", |f| Message::read(f).map(Command::Get)),
];

/// The items of a batch, each with a known kind: one whose body doesn't fit its kind is refused alone.
///
/// # Errors
/// `invalid_argument` for the whole batch, where an item isn't exactly one known kind.
pub(super) fn batch(body: &[u8]) -> Result<Vec<Result<v1::Item, Refusal>>, Refusal> {
    let mut fields = fields(body)?;
    let items = fields.opt_objects("items")?.unwrap_or_default();
    fields.finish()?;
    items.into_iter().enumerate().map(|(index, fields)| item(index, fields)).collect()
}

fn item(index: usize, mut fields: Fields) -> Result<Result<v1::Item, Refusal>, Refusal> {
    let mut found = None;
    for (name, read) in KINDS {
        match fields.opt_value(name) {
            None | Some(Json::Null) => {}
            Some(_) if found.is_some() => return Err(no_command()),
            Some(body) => found = Some((*name, *read, body)),
        }
    }
    fields.finish()?;
    let (name, read, body) = found.ok_or_else(no_command)?;
    let command = Fields::at(format!("items[{index}].{name}"), body).and_then(read);
    Ok(command.map(|command| v1::Item { command: Some(command) }).map_err(Into::into))
}

#[cfg(test)]
mod tests;
