//! Callers that show a JSON Web Token.

use std::{path::PathBuf, time::Duration};

use super::{ConfigError, Source, settings::JwtSettings};
use crate::{auth::jwt::Rules, limits};

impl Source {
    /// The rules of JSON Web Tokens, where any are taken.
    pub(super) fn jwt(&self, jwt: &JwtSettings) -> Result<Option<Rules>, ConfigError> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (jwks_file, issuer, audience) = match (&jwt.jwks_file, &jwt.issuer, &jwt.audience) {
            (None, None, None) => return Ok(None),
            (file, issuer, audience) => match (given(file), given(issuer), given(audience)) {
                (Some(file), Some(issuer), Some(audience)) => (PathBuf::from(file), issuer, audience),
                _ => return Err(self.value("auth.jwt", "needs `jwks_file`, `issuer` and `audience`")),
            },
        };
        for name in [&jwt.tenant_claim, &jwt.permissions_claim, &jwt.operations_claim] {
            if name.is_empty() {
                return Err(self.value("auth.jwt", "has a claim without a name"));
            }
        }
        let age_max = self.within("auth.jwt.age_max_s", jwt.age_max_s, limits::JWT_AGE_S)?;
        Ok(Some(Rules {
            jwks_file,
            issuer,
            audience,
            tenant_claim: jwt.tenant_claim.clone(),
            permissions_claim: jwt.permissions_claim.clone(),
            operations_claim: jwt.operations_claim.clone(),
            age_max: Duration::from_secs(age_max),
        }))
    }
}
