//! Guessing is slow: how many bad credentials an address may show.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    num::NonZeroU32,
};

use governor::Quota;

use super::generations::Rates;
use crate::{
    limits,
    refusal::{Code, Refusal},
};

/// Failures by address.
pub(super) struct Failures(Rates<IpAddr>);

impl Failures {
    /// At most so many a second and address, with room for ten seconds' worth at once.
    pub fn new(per_s: u32) -> Self {
        let per_s = NonZeroU32::new(per_s).unwrap_or(NonZeroU32::MIN);
        let burst = per_s.saturating_mul(limits::AUTHENTICATION_FAILURES_BURST_S);
        let quota = Quota::per_second(per_s).allow_burst(burst);
        Self(Rates::new(quota, limits::ADDRESSES_KEPT_MAX))
    }

    /// What whoever has shown no good credential is told: as ever, or to wait.
    pub fn told(&self, from: Option<&SocketAddr>, refusal: Refusal) -> Refusal {
        let Some(from) = from.filter(|_| refusal.code == Code::Unauthenticated) else { return refusal };
        let Err(ms) = self.0.count(&network(from.ip())) else { return refusal };
        let detail = "too many calls without a valid credential from this address; a valid one passes at any time";
        Refusal::new(Code::RateLimited, detail).retry_after_ms(ms)
    }
}

/// What counts as one address: IPv4 as it is, of IPv6 the first 64 bits, which one client has to itself.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::caller::{forbidden, unauthenticated};

    #[test]
    fn who_guesses_has_to_wait_and_nobody_else() {
        let failures = Failures::new(10);
        let told = |address: &str, refusal: Refusal| {
            failures.told(Some(&SocketAddr::new(address.parse().unwrap(), 1)), refusal).code
        };
        for _ in 0..100 {
            assert_eq!(told("10.0.0.1", unauthenticated()), Code::Unauthenticated);
        }
        // Of some hundred more a few pass while time goes on.
        let more = (0..300).filter(|_| told("10.0.0.1", unauthenticated()) == Code::RateLimited).count();
        assert!(more > 200, "{more}");
        assert_eq!(told("::ffff:10.0.0.1", unauthenticated()), Code::RateLimited, "the same address");
        assert_eq!(told("10.0.0.1", forbidden()), Code::Forbidden, "it has shown a good one");
        assert_eq!(told("10.0.0.2", unauthenticated()), Code::Unauthenticated);
        assert_eq!(failures.told(None, unauthenticated()).code, Code::Unauthenticated);
    }
}
