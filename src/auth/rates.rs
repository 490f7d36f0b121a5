//! How many calls a caller may make a second, on this node: of one credential, and of all of a tenant.

use std::{hash::Hash, num::NonZeroU32, sync::Arc};

use governor::Quota;

use super::{
    caller::{Caller, Scope},
    generations::Rates,
};
use crate::{
    id::Tenant,
    limits,
    refusal::{Code, Refusal},
};

/// How many calls; none where there is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestRates {
    /// Of one credential, a second.
    pub token_per_s: Option<u32>,
    /// Of all credentials of a tenant, a second.
    pub tenant_per_s: Option<u32>,
}

/// Counts calls.
pub struct Rated {
    credentials: Option<Limiter<(Option<Tenant>, Arc<str>)>>,
    tenants: Option<Limiter<Tenant>>,
}

struct Limiter<K: Hash + Eq + Clone> {
    rates: Rates<K>,
    told: &'static str,
}

impl Rated {
    /// With these bounds.
    pub fn new(rates: RequestRates) -> Self {
        let (token, tenant) = (
            "too many calls a second with this credential (limits.token_requests_per_s of the node); send them later",
            "too many calls a second of this tenant (limits.tenant_requests_per_s of the node); send them later",
        );
        Self {
            credentials: rates.token_per_s.and_then(|per_s| Limiter::new(per_s, token)),
            tenants: rates.tenant_per_s.and_then(|per_s| Limiter::new(per_s, tenant)),
        }
    }

    /// Counts a call of this caller's. Nobody is counted on an open node, where callers have no names of their own.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    pub fn admit(&self, caller: &Caller) -> Result<(), Refusal> {
        let tenant = match &caller.scope {
            Scope::Open => return Ok(()),
            Scope::Tenant(tenant) => Some(tenant),
            Scope::Cluster => None,
        };
        if let Some(credentials) = &self.credentials {
            credentials.admit(&(tenant.cloned(), Arc::clone(&caller.actor)))?;
        }
        // What one credential has too much costs its tenant nothing.
        match (&self.tenants, tenant) {
            (Some(tenants), Some(tenant)) => tenants.admit(tenant),
            _ => Ok(()),
        }
    }

    /// Counts a call about what this caller owns, which no rate refuses: whoever may not report, renew or end what it was
    /// granted loses it by the lapse of its lease, and what came of it with it. It takes from what is left for other calls.
    pub fn note(&self, caller: &Caller) {
        // Refused or not: it is counted as far as there is something to count it against.
        let _ = self.admit(caller);
    }
}

impl<K: Hash + Eq + Clone> Limiter<K> {
    fn new(per_s: u32, told: &'static str) -> Option<Self> {
        let quota = Quota::per_second(NonZeroU32::new(per_s)?);
        Some(Self { rates: Rates::new(quota, limits::RATED_CALLERS_KEPT_MAX), told })
    }

    fn admit(&self, key: &K) -> Result<(), Refusal> {
        self.rates.count(key).map_err(|ms| Refusal::new(Code::RateLimited, self.told).retry_after_ms(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three of one tenant's, one of another's.
    fn callers() -> [Caller; 4] {
        let entry = |token: usize, tenant: &str| {
            format!("[[token]]\ntoken = \"{token:016}\"\ntenant = \"{tenant}\"\npermissions = [\"claim\"]\n")
        };
        let tenants = ["acme", "acme", "acme", "other"];
        let text: String = tenants.iter().enumerate().map(|(token, tenant)| entry(token, tenant)).collect();
        let file = crate::auth::TokenFile::parse(&text, 1).expect("a file");
        std::array::from_fn(|token| file.find(format!("{token:016}").as_bytes()).expect("its token").clone())
    }

    fn code(admitted: Result<(), Refusal>) -> Option<Code> {
        admitted.err().map(|refusal| {
            assert!(refusal.retry_after_ms.is_some_and(|ms| ms <= 1000), "{refusal:?}");
            refusal.code
        })
    }

    #[test]
    fn a_credential_beyond_its_rate_costs_no_other_one_anything() {
        let [one, two, three, other] = callers();
        let rated = Rated::new(RequestRates { token_per_s: Some(2), tenant_per_s: Some(5) });
        // Two at once, then none for half a second: far longer than this takes.
        for caller in [&one, &two] {
            let codes: Vec<_> = (0..20).map(|_| code(rated.admit(caller))).collect();
            assert_eq!(codes[..2], [None, None]);
            assert!(codes[2..].iter().filter(|code| **code == Some(Code::RateLimited)).count() > 15, "{codes:?}");
        }
        // Of their tenant's five, one is left.
        assert_eq!(code(rated.admit(&three)), None);
        assert_eq!(code(rated.admit(&three)), Some(Code::RateLimited));
        assert_eq!(code(rated.admit(&other)), None, "another tenant has its own");
        assert!((0..20).all(|_| rated.admit(&Caller::open()).is_ok()));
    }

    #[test]
    fn what_is_noted_takes_from_what_is_left() {
        let [one, two, ..] = callers();
        let rated = Rated::new(RequestRates { token_per_s: Some(2), tenant_per_s: Some(3) });
        (0..100).for_each(|_| rated.note(&one));
        assert_eq!(code(rated.admit(&one)), Some(Code::RateLimited));
        // What was beyond the credential's rate has cost its tenant nothing.
        assert_eq!(code(rated.admit(&two)), None);
    }

    #[test]
    fn without_a_bound_nothing_is_counted() {
        let [one, ..] = callers();
        let rated = Rated::new(RequestRates::default());
        assert!((0..1000).all(|_| rated.admit(&one).is_ok()));
    }
}
