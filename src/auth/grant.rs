//! What a credential that a file describes may do: its tenant, operations and permissions, checked together.

use super::{
    caller::{Operations, PatternError, Scope},
    permission::{Permission, Permissions},
};
use crate::id::{IdError, Tenant};

/// Why a description is none.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// A tenant outside the rule.
    #[error("{0}")]
    Tenant(#[from] IdError),
    /// Operations outside the rule.
    #[error("operations: {0}")]
    Operations(#[from] PatternError),
    /// A word that is no permission, or none at all.
    #[error("permissions are one or more of claim, reconcile, read_outcomes, administer; or cluster")]
    Permissions,
    /// `cluster` stands alone, without tenant; everything else has a tenant.
    #[error("`cluster` stands alone and without tenant; the other permissions need a tenant")]
    Scope,
}

/// What may be done, and in whose name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub scope: Scope,
    pub operations: Operations,
    pub permissions: Permissions,
}

impl Grant {
    /// The grant of these words.
    pub fn parse(tenant: Option<&str>, operations: &[String], permissions: &[String]) -> Result<Self, GrantError> {
        let words = permissions.iter().map(|word| Permission::parse(word)).collect::<Option<Vec<_>>>();
        let words = words.filter(|words| !words.is_empty()).ok_or(GrantError::Permissions)?;
        let permissions = Permissions::of(&words);
        let scope = match tenant {
            Some(_) if permissions.has(Permission::Cluster) => return Err(GrantError::Scope),
            Some(tenant) => Scope::Tenant(Tenant::parse(tenant)?),
            None if permissions == Permissions::of(&[Permission::Cluster]) => Scope::Cluster,
            None => return Err(GrantError::Scope),
        };
        Ok(Self { scope, operations: Operations::parse(operations.iter().map(String::as_str))?, permissions })
    }
}
