//! Making, listing and ending tokens.

use std::sync::Arc;

use super::{
    Log,
    answer::{ListTokensAnswer, TokenAnswer, TokenInfo},
    cursor,
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
        closing::is_closed,
        command::{Command, Token, TokenCreated, TokenRevoked},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::{Cipher, Field, Keychain, Subject},
};

/// The key of tokens of a cluster with this secret.
pub(crate) fn token_key(keys: &Keychain, state: &impl State) -> Option<TokenKey> {
    let wrapped = &state.globals().formed.as_ref()?.downstream_secret;
    let secret = keys.downstream(state, wrapped).ok()?;
    Some(TokenKey::of(secret.as_ref().map_or(&wrapped.bytes.0[..], |key| &key.reveal()[..])))
}

fn info(cipher: &Cipher, token: &Token, now: Time) -> Result<TokenInfo, Refusal> {
    let unreadable = || Refusal::new(Code::Internal, "the scope of a token does not open on this node");
    let TokenScope { operations, note, created_by } =
        TokenScope::open(&token.scope, token.id, cipher).ok_or_else(unreadable)?;
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
    /// Refuses whoever has shown a token that is none any more, and whatever concerns a tenant that is closed, as far as this
    /// node knows.
    pub(super) fn judge(&self, caller: &Caller, tenant: Option<&Tenant>) -> Result<(), Refusal> {
        let state = self.records.read();
        if tenant.is_some_and(|tenant| is_closed(&*state, tenant)) {
            return Err(forbidden());
        }
        let Some(id) = caller.token_id() else { return Ok(()) };
        // Where nothing is applied, time goes on all the same.
        let now = self.log.now().max(state.globals().time);
        let is_good = state.token(&id).is_some_and(|token| token.is_good(now));
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
        let key = token_key(self.tenants.keys(), &*self.records.read());
        let key = key.ok_or_else(|| Refusal::new(Code::Unavailable, "the cluster is not formed yet"))?;
        let actor = caller.actor(None);
        let scope = TokenScope {
            operations: operations.texts().map(|text| text.into_owned()).collect(),
            note: note.map(|note| note.as_str().to_owned()),
            created_by: actor.to_owned(),
        };
        let cipher = self.tenants.cipher(tenant.as_ref())?;
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
                scope: scope.seal(token.id, &cipher),
            },
            tenant_max: limits::TOKENS_PER_TENANT_MAX,
            total_max: limits::TOKENS_MAX,
            actor: cipher.seal(Field::AuditActor, Subject::Audit, actor.as_bytes().to_vec()),
            detail: cipher.seal(Field::AuditDetail, Subject::Audit, detail.into_bytes()),
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
        // In the chain of whoever may revoke it; which one that is, is decided by the token where it is applied.
        let known = self.known_token(&request.token_id).await?;
        let of = known.as_ref().and_then(|token| token.tenant.as_ref());
        self.judge(caller, of)?;
        let cipher = self.tenants.cipher(of)?;
        let revoked = TokenRevoked {
            id: request.token_id,
            tenant,
            actor: cipher.seal(Field::AuditActor, Subject::Audit, caller.actor(None).as_bytes().to_vec()),
            reason: cipher.seal(Field::AuditDetail, Subject::Audit, request.reason.as_str().as_bytes().to_vec()),
        };
        let (info, index) = self.token_answer(caller, Command::TokenRevoked(Box::new(revoked))).await?;
        Ok(TokenAnswer { info, token: None, index })
    }

    /// A token, also where this node has not heard of it yet.
    async fn known_token(&self, id: &[u8; 10]) -> Result<Option<Arc<Token>>, Refusal> {
        if let Some(token) = self.records.read().token(id) {
            return Ok(Some(token));
        }
        self.log.barrier().await?;
        Ok(self.records.read().token(id))
    }

    async fn token_answer(&self, caller: &Caller, command: Command) -> Result<(TokenInfo, Position), Refusal> {
        let applied = self.propose_by(caller, command).await?;
        match applied.answer? {
            Answer::Token(token) => {
                let cipher = self.tenants.cipher(token.tenant.as_ref())?;
                Ok((info(&cipher, &token, applied.now)?, applied.index))
            }
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
        let asked = self.log.barrier().await?;
        self.judge(caller, tenant.as_ref())?;
        let state = self.records.read();
        let keys = self.tenants.keys();
        // Expired is what is refused by now, also where nothing was applied since.
        let (index, now) = (state.globals().position, asked.max(state.globals().time));
        let page = request.page_size as usize;
        let mut listed = state
            .tokens()
            .filter(|token| tenant.is_none() || token.tenant == tenant)
            // Nobody has keys to their scopes any more.
            .filter(|token| token.tenant.as_ref().is_none_or(|tenant| !is_closed(&*state, tenant)))
            .filter(|token| after.is_none_or(|after| token.id > after));
        let tokens = listed
            .by_ref()
            .take(page)
            .map(|token| {
                let cipher = keys.cipher(&*state, token.tenant.as_ref())?;
                info(&cipher, token, now)
            })
            .collect::<Result<Vec<_>, _>>()?;
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
