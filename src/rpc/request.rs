//! From messages to what the service is asked: the one place where a request's shape is judged, for both doors.
//!
//! The HTTP door turns its JSON into the same messages first, and judges nothing itself but types.

use bytes::Bytes;
use prost_types::Timestamp;

use crate::{
    fingerprint::{Fingerprint, Ignore, SCHEME},
    id::{Fence, IdError, Key, Operation, Position, Principal, Tenant, Time, Uuid},
    json::Json,
    limits,
    proto::v1,
    records::{command::LapseRule, record::StateWord},
    refusal::Refusal,
    service::request::*,
};

mod policy;
mod token;
pub(crate) use policy::FIELDS as POLICY_FIELDS;

type Checked<T> = Result<T, Refusal>;

fn missing(field: &str) -> Refusal {
    Refusal::invalid(format!("{field} is required"))
}

fn bad_id(error: IdError) -> Refusal {
    Refusal::invalid(error.to_string())
}

/// An empty text where an empty one means absent.
fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn record(name: Option<v1::RecordId>) -> Checked<RecordName> {
    let name = name.ok_or_else(|| missing("record"))?;
    Ok(RecordName {
        tenant: tenant(name.tenant)?,
        principal: Principal::parse(&name.principal.unwrap_or_default()).map_err(bad_id)?,
        operation: Operation::parse(&name.operation).map_err(bad_id)?,
        key: Key::parse(&name.key).map_err(bad_id)?,
    })
}

/// A tenant that may be left out.
pub(crate) fn tenant(text: Option<String>) -> Checked<Option<Tenant>> {
    filled(text).map(|text| Tenant::parse(&text).map_err(bad_id)).transpose()
}

fn operation(text: Option<String>) -> Checked<Option<Operation>> {
    text.map(|text| Operation::parse(&text).map_err(bad_id)).transpose()
}

fn uuid(field: &str, text: Option<String>) -> Checked<Option<Uuid>> {
    let parse = |text: String| {
        let expected = || Refusal::invalid(format!("{field} must be a UUID of 36 characters, with hyphens"));
        Uuid::parse_hyphenated(&text).ok_or_else(expected)
    };
    text.map(parse).transpose()
}

fn fence(fence: Option<u64>) -> Checked<Fence> {
    fence.map(Fence).ok_or_else(|| missing("fence"))
}

/// A time of the wire, truncated to milliseconds. Times before 1970 are refused: nothing here can be that old.
pub(crate) fn time(field: &str, time: Option<Timestamp>) -> Checked<Option<Time>> {
    let Some(Timestamp { seconds, nanos }) = time else { return Ok(None) };
    let whole = u64::try_from(seconds).ok().filter(|s| *s <= limits::TIME_S_MAX);
    let part = u64::try_from(nanos).ok().filter(|n| *n < 1_000_000_000);
    match (whole, part) {
        (Some(s), Some(ns)) => Ok(Some(Time(s * 1000 + ns / 1_000_000))),
        _ => Err(Refusal::invalid(format!("{field} must lie from 1970-01-01T00:00:00Z to the year 9999"))),
    }
}

/// A duration where 0 means the same as none.
fn positive(ms: Option<u32>) -> Option<u32> {
    ms.filter(|ms| *ms > 0)
}

fn lapse_rule(rule: Option<i32>) -> Checked<Option<LapseRule>> {
    match rule.map(v1::OnLapse::try_from) {
        None | Some(Ok(v1::OnLapse::Unspecified)) => Ok(None),
        Some(Ok(v1::OnLapse::Hold)) => Ok(Some(LapseRule::Hold)),
        Some(Ok(v1::OnLapse::Retake)) => Ok(Some(LapseRule::Retake)),
        Some(Err(_)) => Err(Refusal::invalid("on_lapse must be hold or retake")),
    }
}

fn outcome(outcome: v1::Outcome) -> Checked<Outcome> {
    let content_type = outcome.content_type.map(content_type).transpose()?;
    Ok(Outcome {
        status: outcome.status.ok_or_else(|| missing("outcome.status"))?,
        headers: Headers::parse(outcome.headers)?,
        content_type,
        body: Payload(outcome.body.unwrap_or_default()),
        valid_until: time("outcome.valid_until", outcome.valid_until)?,
    })
}

fn content_type(text: String) -> Checked<String> {
    let max = limits::CONTENT_TYPE_BYTES_MAX;
    let printable = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    if text.is_empty() || text.len() > max || !printable {
        let detail = format!("outcome.content_type must be 1 to {max} bytes of printable ASCII; leave it out for none");
        return Err(Refusal::invalid(detail));
    }
    Ok(text)
}

/// Exactly one of `request` and `fingerprints` says what the request is.
fn fingerprints(given: Vec<v1::Fingerprint>, text: Option<Bytes>, ignore: &[String]) -> Checked<Vec<Fingerprint>> {
    match (given.is_empty(), text) {
        (true, Some(text)) => computed(&text, ignore).map(|own| vec![own]),
        (false, None) if !ignore.is_empty() => {
            Err(Refusal::invalid("ignore goes with request: fingerprints were computed already"))
        }
        (false, None) => checked(given),
        _ => Err(Refusal::invalid("exactly one of request and fingerprints is required")),
    }
}

fn computed(text: &[u8], ignore: &[String]) -> Checked<Fingerprint> {
    let ignore = Ignore::new(ignore).map_err(|e| Refusal::invalid(format!("ignore: {e}")))?;
    let request = Json::parse(text).map_err(|e| Refusal::invalid(format!("request: {e}")))?;
    Fingerprint::json_without(&request, &ignore).map_err(|e| Refusal::invalid(format!("request: {e}")))
}

fn checked(given: Vec<v1::Fingerprint>) -> Checked<Vec<Fingerprint>> {
    if given.len() > limits::FINGERPRINTS_MAX {
        let max = limits::FINGERPRINTS_MAX;
        return Err(Refusal::invalid(format!("fingerprints: {} are given; at most {max} are allowed", given.len())));
    }
    let mut own = Vec::with_capacity(given.len());
    for fingerprint in given {
        let digest: [u8; 32] = fingerprint.digest[..]
            .try_into()
            .map_err(|_| Refusal::invalid("fingerprints: a digest must be 32 bytes"))?;
        if fingerprint.scheme < SCHEME {
            return Err(Refusal::invalid("fingerprints: a scheme must be 1 or more"));
        }
        own.push(Fingerprint::new(fingerprint.scheme, digest));
    }
    own.sort_unstable();
    if own.windows(2).any(|pair| pair[0].scheme() == pair[1].scheme()) {
        return Err(Refusal::invalid("fingerprints: each scheme may be given once"));
    }
    Ok(own)
}

impl TryFrom<v1::ClaimRequest> for ClaimRequest {
    type Error = Refusal;

    fn try_from(m: v1::ClaimRequest) -> Checked<Self> {
        let record = record(m.record)?;
        if let (Some(replay_s), Some(evidence_s)) = (m.replay_s, m.evidence_s)
            && evidence_s < replay_s
        {
            return Err(Refusal::invalid("evidence_s must not be below replay_s"));
        }
        Ok(ClaimRequest {
            attempt_id: uuid("attempt_id", m.attempt_id)?,
            lease_ms: positive(m.lease_ms),
            wait_ms: m.wait_ms.unwrap_or(0),
            staged: m.staged.unwrap_or(false),
            on_lapse: lapse_rule(m.on_lapse)?,
            labels: Labels::parse(m.labels)?,
            first_sent_at: time("first_sent_at", m.first_sent_at)?,
            replay_s: m.replay_s,
            evidence_s: m.evidence_s,
            ttl_ms: positive(m.ttl_ms),
            // Last, because it is the dear one.
            fingerprints: fingerprints(m.fingerprints, m.request, &m.ignore)?,
            record,
        })
    }
}

impl TryFrom<v1::BeginRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::BeginRequest) -> Checked<Self> {
        let action = OwnerAction::Begin { lease_ms: positive(m.lease_ms) };
        Ok(OwnerRequest { record: record(m.record)?, fence: fence(m.fence)?, action })
    }
}

impl TryFrom<v1::RenewRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::RenewRequest) -> Checked<Self> {
        let action = OwnerAction::Renew { lease_ms: positive(m.lease_ms) };
        Ok(OwnerRequest { record: record(m.record)?, fence: fence(m.fence)?, action })
    }
}

impl TryFrom<v1::CheckpointRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::CheckpointRequest) -> Checked<Self> {
        let (record, fence) = (record(m.record)?, fence(m.fence)?);
        let name = CheckpointName::parse("name", m.name)?;
        let action = OwnerAction::Checkpoint(Checkpoint { name, data: Payload(m.data.unwrap_or_default()) });
        Ok(OwnerRequest { record, fence, action })
    }
}

impl TryFrom<v1::CompleteRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::CompleteRequest) -> Checked<Self> {
        let (record, fence) = (record(m.record)?, fence(m.fence)?);
        let action = OwnerAction::Complete(outcome(m.outcome.ok_or_else(|| missing("outcome"))?)?);
        Ok(OwnerRequest { record, fence, action })
    }
}

impl TryFrom<v1::ReleaseRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::ReleaseRequest) -> Checked<Self> {
        let (record, fence) = (record(m.record)?, fence(m.fence)?);
        let evidence = m.evidence.map(|text| Statement::parse("evidence", text)).transpose()?;
        Ok(OwnerRequest { record, fence, action: OwnerAction::Release { evidence } })
    }
}

impl TryFrom<v1::SuspendRequest> for OwnerRequest {
    type Error = Refusal;

    fn try_from(m: v1::SuspendRequest) -> Checked<Self> {
        let (record, fence) = (record(m.record)?, fence(m.fence)?);
        Ok(OwnerRequest { record, fence, action: OwnerAction::Suspend { reason: reason(m.reason)? } })
    }
}

fn reason(text: Option<String>) -> Checked<Option<Statement>> {
    filled(text).map(|text| Statement::parse("reason", text)).transpose()
}

fn actor(text: Option<String>) -> Checked<Option<Actor>> {
    text.map(|text| Actor::parse("actor", text)).transpose()
}

impl TryFrom<v1::GetRequest> for GetRequest {
    type Error = Refusal;

    fn try_from(m: v1::GetRequest) -> Checked<Self> {
        Ok(GetRequest { record: record(m.record)?, with_outcome: m.with_outcome.unwrap_or(false) })
    }
}

impl TryFrom<v1::Item> for Command {
    type Error = Refusal;

    fn try_from(m: v1::Item) -> Checked<Self> {
        use v1::item::Command as Wire;
        let owner = |request: Checked<OwnerRequest>| request.map(Box::new).map(Command::Owner);
        match m.command {
            Some(Wire::Claim(m)) => ClaimRequest::try_from(m).map(Box::new).map(Command::Claim),
            Some(Wire::Begin(m)) => owner(m.try_into()),
            Some(Wire::Renew(m)) => owner(m.try_into()),
            Some(Wire::Checkpoint(m)) => owner(m.try_into()),
            Some(Wire::Complete(m)) => owner(m.try_into()),
            Some(Wire::Release(m)) => owner(m.try_into()),
            Some(Wire::Suspend(m)) => owner(m.try_into()),
            Some(Wire::Get(m)) => GetRequest::try_from(m).map(Command::Get),
            None => Err(no_command()),
        }
    }
}

/// What an item without exactly one known command is refused with.
pub(crate) fn no_command() -> Refusal {
    let known = "claim, begin, renew, checkpoint, complete, release, suspend, get";
    Refusal::invalid(format!("an item must hold exactly one of {known}"))
}

/// The batch of these items, each with a known command or refused for its shape.
///
/// # Errors
/// `invalid_argument` where there are too many.
pub(crate) fn batch(items: Vec<Checked<v1::Item>>) -> Checked<BatchRequest> {
    if items.len() > limits::BATCH_ITEMS_MAX {
        let max = limits::BATCH_ITEMS_MAX;
        return Err(Refusal::invalid(format!("items: {} are given; at most {max} are allowed", items.len())));
    }
    Ok(BatchRequest { items: items.into_iter().map(|item| item.and_then(Command::try_from)).collect() })
}

impl TryFrom<v1::BatchRequest> for BatchRequest {
    type Error = Refusal;

    fn try_from(m: v1::BatchRequest) -> Checked<Self> {
        if m.items.iter().any(|item| item.command.is_none()) {
            return Err(no_command());
        }
        batch(m.items.into_iter().map(Ok).collect())
    }
}

/// Rows a page: as many as are asked for, within bounds.
pub(crate) fn page_size(size: Option<u32>) -> u32 {
    positive(size).unwrap_or(limits::PAGE_SIZE_DEFAULT).min(limits::PAGE_SIZE_MAX)
}

fn cursor(text: Option<String>) -> Checked<Option<String>> {
    match text {
        Some(empty) if empty.is_empty() => Err(Refusal::invalid("cursor must not be empty; leave it out to start")),
        text => Ok(text),
    }
}

fn state(state: Option<i32>) -> Checked<Option<StateWord>> {
    match state.map(v1::State::try_from) {
        None | Some(Ok(v1::State::Unspecified)) => Ok(None),
        Some(Ok(v1::State::InProgress)) => Ok(Some(StateWord::InProgress)),
        Some(Ok(v1::State::Indeterminate)) => Ok(Some(StateWord::Indeterminate)),
        Some(Ok(v1::State::Completed)) => Ok(Some(StateWord::Completed)),
        Some(Ok(v1::State::Expired)) => Ok(Some(StateWord::Expired)),
        Some(Ok(v1::State::Absent) | Err(_)) => {
            Err(Refusal::invalid("state must be in_progress, indeterminate, completed or expired"))
        }
    }
}

impl TryFrom<v1::ListRequest> for ListRequest {
    type Error = Refusal;

    fn try_from(m: v1::ListRequest) -> Checked<Self> {
        Ok(ListRequest {
            tenant: tenant(m.tenant)?,
            principal: filled(m.principal).map(|text| Principal::parse(&text).map_err(bad_id)).transpose()?,
            state: state(m.state)?,
            operation: operation(m.operation)?,
            older_than_ms: m.older_than_ms,
            page_size: page_size(m.page_size),
            cursor: cursor(m.cursor)?,
        })
    }
}

impl TryFrom<v1::InvestigateRequest> for InvestigateRequest {
    type Error = Refusal;

    fn try_from(m: v1::InvestigateRequest) -> Checked<Self> {
        Ok(InvestigateRequest {
            record: record(m.record)?,
            lease_ms: positive(m.lease_ms),
            actor: actor(m.actor)?,
            version: m.version.map(Position),
        })
    }
}

fn verdict(word: i32, outcome_given: Option<v1::Outcome>, check_again_at: Option<Timestamp>) -> Checked<Verdict> {
    let word = v1::Verdict::try_from(word).unwrap_or(v1::Verdict::Unspecified);
    if outcome_given.is_some() != (word == v1::Verdict::Completed) && word != v1::Verdict::Unspecified {
        return Err(Refusal::invalid("outcome goes with the verdict completed, and with no other"));
    }
    let check_again_at = time("check_again_at", check_again_at)?;
    if check_again_at.is_some() != (word == v1::Verdict::Unknown) && word != v1::Verdict::Unspecified {
        return Err(Refusal::invalid("check_again_at goes with the verdict unknown, and with no other"));
    }
    match (word, outcome_given, check_again_at) {
        (v1::Verdict::Completed, Some(given), None) => outcome(given).map(Verdict::Completed),
        (v1::Verdict::NoEffect, None, None) => Ok(Verdict::NoEffect),
        (v1::Verdict::Unknown, None, Some(check_again_at)) => Ok(Verdict::Unknown { check_again_at }),
        _ => Err(Refusal::invalid("verdict must be completed, no_effect or unknown")),
    }
}

impl TryFrom<v1::ResolveRequest> for ResolveRequest {
    type Error = Refusal;

    fn try_from(m: v1::ResolveRequest) -> Checked<Self> {
        Ok(ResolveRequest {
            record: record(m.record)?,
            version: m.version.map(Position).ok_or_else(|| missing("version"))?,
            verdict: verdict(m.verdict, m.outcome, m.check_again_at)?,
            actor: actor(m.actor)?,
            evidence: Statement::parse("evidence", m.evidence)?,
            request_id: uuid("request_id", m.request_id)?,
        })
    }
}

impl TryFrom<v1::ForgetRequest> for ForgetRequest {
    type Error = Refusal;

    fn try_from(m: v1::ForgetRequest) -> Checked<Self> {
        Ok(ForgetRequest { record: record(m.record)?, reason: reason(m.reason)? })
    }
}

impl TryFrom<v1::HistoryRequest> for HistoryRequest {
    type Error = Refusal;

    fn try_from(m: v1::HistoryRequest) -> Checked<Self> {
        Ok(HistoryRequest { record: record(m.record)?, page_size: page_size(m.page_size), cursor: cursor(m.cursor)? })
    }
}

impl TryFrom<v1::WatchRequest> for WatchRequest {
    type Error = Refusal;

    fn try_from(m: v1::WatchRequest) -> Checked<Self> {
        Ok(WatchRequest {
            tenant: tenant(m.tenant)?,
            operation: operation(m.operation)?,
            from_index: m.from_index.map(Position),
        })
    }
}

impl TryFrom<v1::GetPolicyRequest> for GetPolicyRequest {
    type Error = Refusal;

    fn try_from(m: v1::GetPolicyRequest) -> Checked<Self> {
        Ok(GetPolicyRequest { tenant: tenant(m.tenant)?, operation: operation(m.operation)? })
    }
}

impl TryFrom<v1::SetPolicyRequest> for SetPolicyRequest {
    type Error = Refusal;

    fn try_from(m: v1::SetPolicyRequest) -> Checked<Self> {
        Ok(SetPolicyRequest {
            tenant: tenant(m.tenant)?,
            operation: operation(m.operation)?,
            patch: policy::patch(m.policy.unwrap_or_default(), &m.remove)?,
        })
    }
}

#[cfg(test)]
mod tests;
