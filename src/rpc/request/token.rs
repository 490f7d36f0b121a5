//! What is asked about tokens.

use super::{Checked, cursor, filled, missing, page_size, tenant, time};
use crate::{
    auth::{Permission, Permissions, TokenText, caller::Operations, token::parse_id},
    limits,
    proto::v1,
    refusal::Refusal,
    service::request::{CreateTokenRequest, Lasts, ListTokensRequest, RevokeTokenRequest, Statement},
};

fn permissions(words: &[String]) -> Checked<Permissions> {
    let rule = || {
        Refusal::invalid("permissions are one or more of claim, reconcile, read_outcomes, administer; or cluster alone")
    };
    let parsed = words.iter().map(|word| Permission::parse(word)).collect::<Option<Vec<_>>>();
    let parsed = parsed.filter(|parsed| !parsed.is_empty()).ok_or_else(rule)?;
    Ok(Permissions::of(&parsed))
}

impl TryFrom<v1::CreateTokenRequest> for CreateTokenRequest {
    type Error = Refusal;

    fn try_from(message: v1::CreateTokenRequest) -> Checked<Self> {
        let permissions = permissions(&message.permissions)?;
        let operations = match &message.operations[..] {
            // The cluster's own has no records, and so no operations either.
            [] if permissions == Permissions::of(&[Permission::Cluster]) => Operations::any(),
            // Nobody is given everything for having named nothing.
            [] => return Err(Refusal::invalid("operations: name 1 to 32 patterns; [\"*\"] stands for all")),
            patterns => Operations::parse(patterns.iter().map(String::as_str))
                .map_err(|error| Refusal::invalid(format!("operations: {error}")))?,
        };
        let lasts = match (message.ttl_s, time("expires_at", message.expires_at)?) {
            (Some(_), Some(_)) => return Err(Refusal::invalid("ttl_s and expires_at: give one of them")),
            (None, Some(at)) => Lasts::Until(at),
            (Some(seconds), None) => Lasts::For(seconds),
            (None, None) => Lasts::For(limits::TOKEN_TTL_S_DEFAULT),
        };
        // What it is not is told without quoting it.
        let bad =
            || Refusal::invalid("token must be `semel_`, 16 letters, `.` and 52 letters, as a new one is written");
        let token = filled(message.token).map(|text| TokenText::parse(text.as_bytes()).ok_or_else(bad)).transpose()?;
        Ok(Self {
            tenant: tenant(message.tenant)?,
            operations,
            permissions,
            lasts,
            note: filled(message.note).map(|note| Statement::parse("note", note)).transpose()?,
            token,
        })
    }
}

impl TryFrom<v1::ListTokensRequest> for ListTokensRequest {
    type Error = Refusal;

    fn try_from(message: v1::ListTokensRequest) -> Checked<Self> {
        let (page_size, cursor) = (page_size(message.page_size), cursor(message.cursor)?);
        Ok(Self { tenant: tenant(message.tenant)?, page_size, cursor })
    }
}

impl TryFrom<v1::RevokeTokenRequest> for RevokeTokenRequest {
    type Error = Refusal;

    fn try_from(message: v1::RevokeTokenRequest) -> Checked<Self> {
        if message.token_id.is_empty() {
            return Err(missing("token_id"));
        }
        let bad = || Refusal::invalid("token_id must be 16 letters: what stands between `semel_` and the dot");
        let token_id = parse_id(&message.token_id).ok_or_else(bad)?;
        Ok(Self { token_id, reason: Statement::parse("reason", message.reason)? })
    }
}
