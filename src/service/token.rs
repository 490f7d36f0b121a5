//! Making, listing and ending tokens.

use super::{
    Log,
    answer::{ListTokensAnswer, TokenAnswer, TokenInfo},
    cursor, names,
    node::{Service, mismatch},
    request::{CreateTokenRequest, Lasts, ListTokensRequest, RevokeTokenRequest},
};
use crate::{
    auth::{
        Caller, Method, Permission, Permissions, Scope, TokenText,
        caller::{OPEN_TENANT, forbidden, unauthenticated},
        scope::TokenScope,
        token::{TokenKey, id_text, parse_id},
    },
    id::{Position, Tenant, Time},
    limits,
    records::{
        answer::Answer,
        command::{Command, Token, TokenCreated, TokenRevoked},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::Field,
};

/// The key of tokens of a cluster with this secret.
pub(crate) fn token_key(state: &impl State) -> Option<TokenKey> {
    let formed = state.globals().formed.as_ref()?;
    names::unwrapped(&formed.downstream_secret).ok().map(TokenKey::of)
}

fn info(token: &Token, now: Time) -> Result<TokenInfo, Refusal> {
    let unreadable = || Refusal::new(Code::Internal, "the scope of a token does not open on this node");
    let TokenScope { operations, note, created_by } = TokenScope::open(&token.scope).ok_or_else(unreadable)?;
    let state = match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_good(now) => "active",
        None => "expired",
    };
    Ok(TokenInfo {
        token_id: id_text(&token.id),
        tenant: token.tenant.clone(),
        permissions: Permissions::of_bits(token.permissions),
        operations,
        note,
        created_by,
        created_at: token.created_at,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
        state,
    })
}

impl<L: Log> Service<L> {
    /// Refuses whoever has shown a token that is none any more, as far as this node knows.
    pub(super) fn judge(&self, caller: &Caller) -> Result<(), Refusal> {
        let Some(id) = caller.token_id() else { return Ok(()) };
        let state = self.records.read();
        let is_good = state.token(&id).is_some_and(|token| token.is_good(state.globals().time));
        if is_good { Ok(()) } else { Err(unauthenticated()) }
    }

    pub(super) async fn do_create_token(
        &self,
        caller: &Caller,
        request: CreateTokenRequest,
    ) -> Result<TokenAnswer, Refusal> {
        let CreateTokenRequest { tenant, operations, permissions, lasts, note, token } = request;
        let mut tenant = caller.authorize_tokens(Method::CreateToken, tenant.as_ref())?;
        let is_cluster = permissions == Permissions::of(&[Permission::Cluster]);
        if tenant.is_none() && !is_cluster && *caller.scope() == Scope::Open {
            tenant = Some(Tenant::parse(OPEN_TENANT).expect("a valid tenant"));
        }
        if is_cluster != tenant.is_none() || (permissions.has(Permission::Cluster) && !is_cluster) {
            let detail = "permissions: `cluster` stands alone and without tenant; the other permissions need a tenant";
            return Err(Refusal::invalid(detail));
        }
        if !caller.may_give(&operations, permissions) {
            return Err(forbidden());
        }
        let now = self.log.time().await?;
        let expires_at = expiry(lasts, now)?;
        if let Some(tenant) = &tenant {
            self.names_or_open(tenant).await?;
        }
        let token = token.unwrap_or_else(TokenText::draw);
        let key = token_key(&*self.records.read());
        let key = key.ok_or_else(|| Refusal::new(Code::Unavailable, "the cluster is not formed yet"))?;
        let actor = caller.actor(None);
        let scope = TokenScope {
            operations: operations.texts().map(|text| text.into_owned()).collect(),
            note: note.map(|note| note.as_str().to_owned()),
            created_by: actor.to_owned(),
        };
        let words: Vec<&str> = permissions.each().map(Permission::as_str).collect();
        let detail = format!("token {}: {} for {}", id_text(&token.id), words.join(", "), scope.operations.join(", "));
        let created = TokenCreated {
            token: Token {
                id: token.id,
                hash: token.hash(&key),
                tenant,
                permissions: permissions.bits(),
                created_at: now,
                expires_at: Some(expires_at),
                revoked_at: None,
                created: Position::default(),
                scope: scope.seal(),
            },
            tenant_max: limits::TOKENS_PER_TENANT_MAX,
            total_max: limits::TOKENS_MAX,
            actor: names::text(Field::Actor, actor),
            detail: names::text(Field::AuditDetail, &detail),
        };
        let (answer, index) = self.token_answer(caller, Command::TokenCreated(Box::new(created))).await?;
        Ok(TokenAnswer { info: answer, token: Some(token), index })
    }

    pub(super) async fn do_revoke_token(
        &self,
        caller: &Caller,
        request: RevokeTokenRequest,
    ) -> Result<TokenAnswer, Refusal> {
        let tenant = caller.authorize_tokens(Method::RevokeToken, None)?;
        let revoked = TokenRevoked {
            id: request.token_id,
            tenant,
            actor: names::text(Field::Actor, caller.actor(None)),
            reason: names::text(Field::Reason, request.reason.as_str()),
        };
        let (info, index) = self.token_answer(caller, Command::TokenRevoked(Box::new(revoked))).await?;
        Ok(TokenAnswer { info, token: None, index })
    }

    async fn token_answer(&self, caller: &Caller, command: Command) -> Result<(TokenInfo, Position), Refusal> {
        let applied = self.propose_by(caller, command).await?;
        match applied.answer? {
            Answer::Token(token) => Ok((info(&token, applied.now)?, applied.index)),
            other => Err(mismatch(&other)),
        }
    }

    pub(super) async fn do_list_tokens(
        &self,
        caller: &Caller,
        request: ListTokensRequest,
    ) -> Result<ListTokensAnswer, Refusal> {
        let tenant = caller.authorize_tokens(Method::ListTokens, request.tenant.as_ref())?;
        let after = request.cursor.as_deref().map(|text| parse_id(text).ok_or_else(cursor::invalid)).transpose()?;
        self.log.barrier().await?;
        self.judge(caller)?;
        let state = self.records.read();
        let (index, now) = (state.globals().position, state.globals().time);
        let page = request.page_size as usize;
        let mut listed = state
            .tokens()
            .filter(|token| tenant.is_none() || token.tenant == tenant)
            .filter(|token| after.is_none_or(|after| token.id > after));
        let tokens = listed.by_ref().take(page).map(|token| info(token, now)).collect::<Result<Vec<_>, _>>()?;
        let cursor = listed.next().and_then(|_| tokens.last().map(|last| last.token_id.clone()));
        Ok(ListTokensAnswer { tokens, cursor, index })
    }
}

fn expiry(lasts: Lasts, now: Time) -> Result<Time, Refusal> {
    let latest = now.plus_s(limits::TOKEN_TTL_S_MAX);
    let at = match lasts {
        Lasts::For(seconds) => now.plus_s(seconds),
        Lasts::Until(at) => at,
    };
    if at <= now || at > latest {
        return Err(Refusal::invalid("a token is good for 1 s to 366 days from now (ttl_s, expires_at)"));
    }
    Ok(at)
}
