//! Names, policies and requests, drawn from the seed. A request says in its ids what it is: the attempt id tells client,
//! number and intent, and a key tells which request it belongs to.

use bytes::Bytes;
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};
use semel::{
    id::Uuid,
    proto::v1::{self, OnLapse},
};

use super::EFFECT_MS_MAX;
use crate::{history::Name, options::Options};

/// The operation whose records the library alone drives.
pub const GUARDED: &str = "guarded";
/// The operation whose deadlines fall due together.
pub const BURST: &str = "burst";

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
/// The operations that clients drive by hand, the usual one more often.
const OPERATIONS: [&str; 8] = ["charge", "charge", "charge", "transfer", "brief", "again", "few", "small"];

/// The tenants of a run.
pub fn tenants(options: &Options) -> &'static [&'static str] {
    &TENANTS[..usize::from(options.tenants).clamp(1, TENANTS.len())]
}

/// Whether a lapsed begun record of this operation may be taken over: its effects are safe to repeat.
pub fn is_retake(operation: &str) -> bool {
    operation == "transfer"
}

/// What each operation is like: (none: all of the tenant's).
pub fn policies() -> Vec<(Option<&'static str>, v1::Policy)> {
    let windows = |replay_s, evidence_s| v1::Policy {
        replay_s: Some(replay_s),
        evidence_s: Some(evidence_s),
        ..v1::Policy::default()
    };
    vec![
        (None, v1::Policy { effect_ms_max: Some(EFFECT_MS_MAX), ..v1::Policy::default() }),
        (Some("transfer"), v1::Policy { on_lapse: Some(OnLapse::Retake.into()), ..v1::Policy::default() }),
        (Some("brief"), windows(2, 4)),
        (Some("again"), v1::Policy { expired_claims: Some(v1::ExpiredClaims::RunAsNew.into()), ..windows(2, 8) }),
        (Some("few"), v1::Policy { records_max: Some(5), indeterminate_max: Some(2), ..windows(2, 4) }),
        (
            Some("small"),
            v1::Policy {
                outcome_bytes_max: Some(64),
                oversize: Some(v1::Oversize::DigestOnly.into()),
                ..v1::Policy::default()
            },
        ),
        (Some(BURST), windows(1, 2)),
    ]
}

/// A record: one of the few that all fight for, or one of the many.
pub fn name(options: &Options, hot: bool, rng: &mut SmallRng) -> Name {
    let tenant = *tenants(options).choose(rng).expect("there is one at least");
    let operation = *OPERATIONS.choose(rng).expect("not empty");
    let cold = options.cold_keys.max(1);
    let key = if hot || options.cold_keys == 0 {
        format!("hot-{:02}", rng.random_range(0..options.hot_keys.max(1)))
    } else {
        format!("cold-{:04}", rng.random_range(0..cold))
    };
    Name { tenant: tenant.to_owned(), principal: String::new(), operation: operation.to_owned(), key }
}

/// The fingerprint of a key's own request; a variant other than 0 is another request's.
pub fn fingerprint(name: &Name, variant: u8) -> v1::Fingerprint {
    let mut digest = [variant; 32];
    for (at, byte) in name.key.bytes().chain(name.operation.bytes()).enumerate() {
        digest[1 + at % 31] ^= byte.rotate_left(u32::try_from(at % 8).expect("below 8"));
    }
    v1::Fingerprint { scheme: 1, digest: Bytes::copy_from_slice(&digest) }
}

/// An attempt id that says who made it, the how manieth of his it is, and which request it carries.
pub fn attempt_id(client: u16, number: u32, variant: u8) -> String {
    let mut bytes = [0; 16];
    bytes[0] = 0xa7;
    bytes[1] = variant;
    bytes[2..4].copy_from_slice(&client.to_be_bytes());
    bytes[6] = 0x40;
    bytes[8] = 0x80;
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    Uuid(bytes).hyphenated()
}

/// A claim of a record's own request, with whatever else a claim can name.
pub fn claim(name: &Name, attempt_id: String, rng: &mut SmallRng) -> v1::ClaimRequest {
    let seldom = rng.random_ratio(1, 8);
    let retake = is_retake(&name.operation);
    v1::ClaimRequest {
        record: Some(name.to_id()),
        fingerprints: vec![fingerprint(name, 0)],
        attempt_id: Some(attempt_id),
        lease_ms: Some(*[300, 500, 1_000, 2_000, 5_000].choose(rng).expect("not empty")),
        staged: Some(rng.random_ratio(2, 3)),
        // What the operation's policy says, said by the claim.
        on_lapse: seldom.then(|| if retake { OnLapse::Retake } else { OnLapse::Hold }.into()),
        labels: if rng.random_ratio(1, 4) {
            [("amount".to_owned(), "100 EUR".to_owned())].into()
        } else {
            Default::default()
        },
        ..v1::ClaimRequest::default()
    }
}

/// An outcome that tells which attempt it is of.
pub fn outcome(name: &Name, text: &str, rng: &mut SmallRng) -> v1::Outcome {
    // Of `small`, some are too large to be kept; of the others some need a place of their own.
    let padding = match (name.operation.as_str(), rng.random_range(0..10)) {
        ("small", 0..3) => 80,
        (_, 0) => 5_000,
        _ => 0,
    };
    let body = format!("{text}{}", ".".repeat(padding));
    v1::Outcome {
        status: Some(201),
        headers: [("location".to_owned(), format!("/{}", name.key))].into(),
        content_type: Some("text/plain".to_owned()),
        body: Some(body.into()),
        ..v1::Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::rng;

    #[test]
    fn fingerprints_tell_requests_apart_and_ids_tell_who_made_them() {
        let rng = &mut rng(1, "names");
        let options = Options::draw(1);
        let names: Vec<Name> = (0..100).map(|_| name(&options, false, rng)).collect();
        assert!(names.iter().all(|one| fingerprint(one, 0) != fingerprint(one, 1)));
        assert_ne!(attempt_id(1, 2, 0), attempt_id(2, 1, 0));
        let parsed = Uuid::parse_hyphenated(&attempt_id(3, 9, 1)).expect("it is a UUID");
        assert_eq!((parsed.0[1], parsed.0[3], parsed.0[15]), (1, 3, 9));
    }

    #[test]
    fn hot_keys_are_few_and_cold_ones_many() {
        let (rng, mut options) = (&mut rng(1, "names"), Options::draw(1));
        (options.hot_keys, options.cold_keys, options.tenants) = (2, 100, 1);
        let count = |hot, rng: &mut SmallRng| {
            let keys: std::collections::BTreeSet<_> = (0..300).map(|_| name(&options, hot, rng).key).collect();
            keys.len()
        };
        assert_eq!(count(true, rng), 2);
        assert!(count(false, rng) > 50);
    }
}
