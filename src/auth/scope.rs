//! What a token of the log may do, as it is kept: sealed, because operations may tell of a tenant's business.

use bincode::{Decode, Encode};

use super::{
    caller::{Caller, Credential, Operations, Scope},
    permission::{Permission, Permissions},
    token::id_text,
};
use crate::{
    records::{
        codec,
        command::{Sealed, Token},
    },
    seal::{Cipher, Field, Subject},
};

/// The sealed part of a token.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TokenScope {
    /// Patterns of operations.
    pub operations: Vec<String>,
    /// A note of whoever made it.
    pub note: Option<String>,
    /// Who made it.
    pub created_by: String,
}

impl TokenScope {
    /// As it is kept, of this token.
    pub fn seal(&self, token: [u8; 10], cipher: &Cipher) -> Sealed {
        cipher.seal(Field::TokenScope, Subject::Token(token), codec::encode(self))
    }

    /// What is kept of this token; none where it can't be read.
    pub fn open(sealed: &Sealed, token: [u8; 10], cipher: &Cipher) -> Option<Self> {
        codec::decode(&cipher.open(Field::TokenScope, Subject::Token(token), sealed).ok()?).ok()
    }
}

impl Caller {
    /// Whoever has shown this token.
    pub(super) fn of_token(token: &Token, cipher: &Cipher) -> Option<Self> {
        let operations =
            Operations::parse(TokenScope::open(&token.scope, token.id, cipher)?.operations.iter().map(String::as_str))
                .ok()?;
        let permissions = Permissions::of_bits(token.permissions);
        let scope = match &token.tenant {
            Some(tenant) => Scope::Tenant(tenant.clone()),
            // It stands alone, and claims and reads no record.
            None if permissions == Permissions::of(&[Permission::Cluster]) => Scope::Cluster,
            None => return None,
        };
        let actor = actor_of(token);
        Some(Self { scope, actor, operations, permissions, credential: Some(Credential::Log(token.id)) })
    }
    /// The caller of a token whose tenant is closed: it may nothing, and what it might have can't be read any more.
    pub(super) fn of_closed(token: &Token) -> Self {
        let scope = token.tenant.clone().map_or(Scope::Cluster, Scope::Tenant);
        let (permissions, credential) = (Permissions::NONE, Some(Credential::Log(token.id)));
        Self { scope, actor: actor_of(token), operations: Operations::any(), permissions, credential }
    }
}

fn actor_of(token: &Token) -> std::sync::Arc<str> {
    format!("token:{}", id_text(&token.id)).into()
}
