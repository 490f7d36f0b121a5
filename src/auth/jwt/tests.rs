//! Tokens that are good, and everything that makes one none.

use std::fs;

use super::{issuer::Issuer, *};
use crate::{
    auth::{Method, Scope},
    id::Tenant,
};

/// Made by another implementation of all three algorithms: keys, and a token of each.
const GOLDEN: &str = include_str!("../../../tests/golden/jwt-v1.json");
const NOW_S: u64 = 1_800_000_000;
const NOW: Time = Time(NOW_S * 1000);

struct Set {
    dir: tempfile::TempDir,
    callers: JwtCallers,
}

impl Set {
    fn new(keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = Rules {
            jwks_file: dir.path().join("jwks.json"),
            issuer: "https://issuer.example".to_owned(),
            audience: "semel".to_owned(),
            tenant_claim: "semel_tenant".to_owned(),
            permissions_claim: "semel_permissions".to_owned(),
            operations_claim: "semel_operations".to_owned(),
            age_max: Duration::from_secs(3600),
        };
        fs::write(&rules.jwks_file, keys).unwrap();
        Self { callers: JwtCallers::new(rules).unwrap(), dir }
    }

    fn caller(&self, token: &str) -> Result<Caller, String> {
        self.callers.caller(token.as_bytes(), NOW).map_err(|error| error.to_string())
    }
}

fn issuer() -> Issuer {
    Issuer::new("one", 1)
}

/// Good claims, with these changed; `null` takes one away.
fn claims(changed: &[(&str, &str)]) -> String {
    let mut all = vec![
        ("iss", r#""https://issuer.example""#),
        ("aud", r#""semel""#),
        ("sub", r#""billing""#),
        ("iat", "1800000000"),
        ("exp", "1800000600"),
        ("semel_tenant", r#""acme""#),
        ("semel_operations", r#"["POST *"]"#),
        ("semel_permissions", r#"["claim"]"#),
    ];
    for (name, value) in changed {
        all.retain(|(own, _)| own != name);
        if *value != "null" {
            all.push((name, value));
        }
    }
    let members: Vec<String> = all.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
    format!("{{{}}}", members.join(","))
}

#[test]
fn tokens_of_another_implementation_are_read() {
    let golden = Json::parse(GOLDEN.as_bytes()).unwrap();
    let set = Set::new(&golden.member("jwks").unwrap().to_text());
    let Some(Json::Array(tokens)) = golden.member("tokens") else { panic!("no tokens") };
    assert_eq!(tokens.len(), 3);
    for one in tokens {
        let (alg, token) = (one.member("alg").unwrap(), one.member("token").and_then(Json::as_str).unwrap());
        let caller = set.caller(token).unwrap_or_else(|error| panic!("{alg}: {error}"));
        assert_eq!(caller.scope(), &Scope::Tenant(Tenant::parse("acme").unwrap()));
        assert_eq!(caller.actor(Some("somebody else")), "jwt:billing@example");
        assert!(caller.permit(Method::Claim).is_ok() && caller.permit(Method::Resolve).is_ok());
        assert!(caller.permit(Method::Forget).is_err() && caller.permit(Method::GetOutcome).is_err());
        assert_eq!(caller.operations.texts().collect::<Vec<_>>(), ["POST *"]);
        // Any bit of it that is another one.
        for at in (0..token.len()).step_by(37).chain([token.len() - 2]) {
            let mut other = token.as_bytes().to_vec();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert!(set.callers.caller(&other, NOW).is_err(), "{alg}, byte {at}");
        }
    }
}

#[test]
fn the_algorithm_is_the_keys() {
    let golden = Json::parse(GOLDEN.as_bytes()).unwrap();
    let set = Set::new(&golden.member("jwks").unwrap().to_text());
    for (alg, kid) in
        [("none", "rsa"), ("HS256", "rsa"), ("RS256", "ed"), ("EdDSA", "rsa"), ("RS512", "rsa"), ("es256", "ec")]
    {
        let token = issuer().signed(&format!(r#"{{"alg":"{alg}","kid":"{kid}"}}"#), &claims(&[]));
        assert_eq!(set.caller(&token).unwrap_err(), JwtError::Algorithm.to_string(), "{alg}");
        let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
        assert!(set.caller(&unsigned).is_err(), "{alg}");
    }
}

#[test]
fn a_header_that_wants_more_is_refused() {
    let set = Set::new(&Issuer::set(&[&issuer()]));
    let header = |more: &str| issuer().signed(&format!(r#"{{"alg":"EdDSA","kid":"one"{more}}}"#), &claims(&[]));
    for good in
        ["", r#","typ":"JWT""#, r#","typ":"at+jwt""#, r#","typ":"application/AT+JWT""#, r#","jku":"https://evil""#]
    {
        assert!(set.caller(&header(good)).is_ok(), "{good}");
    }
    for bad in [
        r#","crit":["exp"]"#,
        r#","crit":[]"#,
        r#","b64":false"#,
        r#","typ":"dpop+jwt""#,
        r#","typ":1"#,
        r#","alg":"EdDSA""#,
    ] {
        assert!(set.caller(&header(bad)).is_err(), "{bad}");
    }
    let signed = |header: &str| set.caller(&issuer().signed(header, &claims(&[])));
    for header in [
        r#"{"alg":"EdDSA"}"#,
        r#"{"alg":"EdDSA","kid":"two"}"#,
        r#"{"alg":"EdDSA","kid":1}"#,
        r#"{"kid":"one"}"#,
        "[]",
        "1",
        "",
    ] {
        assert!(signed(header).is_err(), "{header}");
    }
    // Its own key, which says that it is the one that is meant.
    assert_eq!(set.caller(&Issuer::new("one", 2).token(&claims(&[]))).unwrap_err(), JwtError::Signature.to_string());
}

#[test]
fn every_claim_must_be_as_it_must() {
    let set = Set::new(&Issuer::set(&[&issuer()]));
    let of = |name: &str, value: &str| set.caller(&issuer().token(&claims(&[(name, value)])));
    let good = [
        ("aud", r#"["a","semel"]"#),
        ("iat", "1800000000.25"),
        ("exp", "1.8000006e9"),
        ("nbf", "1799999999"),
        ("semel_operations", r#"["*"]"#),
        ("semel_permissions", r#"["administer","read_outcomes"]"#),
        ("scope", r#""anything""#),
    ];
    for (name, value) in good {
        assert!(of(name, value).is_ok(), "{name} {value}: {:?}", of(name, value).err());
    }
    let bad = [
        ("iss", r#""https://issuer.example/""#),
        ("iss", "null"),
        ("aud", r#""Semel""#),
        ("aud", "[]"),
        ("aud", "null"),
        ("sub", r#""""#),
        ("sub", r#""a\u000ab""#),
        ("sub", "null"),
        ("iat", "null"),
        ("iat", r#""1800000000""#),
        ("iat", "-1"),
        ("exp", "null"),
        ("exp", "1e400"),
        ("exp", "99999999999999999999"),
        ("nbf", r#""soon""#),
        ("semel_tenant", r#""ACME""#),
        ("semel_tenant", "null"),
        ("semel_operations", "[]"),
        ("semel_operations", r#""*""#),
        ("semel_operations", "null"),
        ("semel_permissions", "[]"),
        ("semel_permissions", r#"["rule"]"#),
        ("semel_permissions", r#"["claim",1]"#),
        ("semel_permissions", "null"),
        // It stands alone, and no token of somebody else's has it.
        ("semel_permissions", r#"["cluster"]"#),
        ("semel_permissions", r#"["claim","cluster"]"#),
    ];
    for (name, value) in bad {
        assert!(of(name, value).is_err(), "{name} {value}");
    }
    let alone = claims(&[("semel_tenant", "null"), ("semel_permissions", r#"["cluster"]"#)]);
    assert!(set.caller(&issuer().token(&alone)).is_err());
    let twice = claims(&[]).replacen('{', r#"{"semel_tenant":"other","#, 1);
    assert!(set.caller(&issuer().token(&twice)).is_err(), "a claim with two values");
    let long = format!("{:?}", "ä".repeat(200));
    let actor = of("sub", &long).unwrap().actor(None).to_owned();
    assert!(actor.starts_with("jwt:ä") && actor.len() <= limits::ACTOR_BYTES_MAX, "{actor}");
}

#[test]
fn a_token_is_good_from_its_issue_to_its_end_and_not_for_longer_than_the_rules_say() {
    let set = Set::new(&Issuer::set(&[&issuer()]));
    let is_good = |changed: &[(&str, &str)], at_s: u64| {
        set.callers.caller(issuer().token(&claims(changed)).as_bytes(), Time(at_s * 1000)).is_ok()
    };
    assert!(!is_good(&[], NOW_S - 31) && is_good(&[], NOW_S - 30), "clocks differ");
    assert!(is_good(&[], NOW_S + 629) && !is_good(&[], NOW_S + 630));
    let later = [("nbf", "1800000100")];
    assert!(!is_good(&later, NOW_S + 69) && is_good(&later, NOW_S + 70));
    // For ever, its issuer says.
    let for_ever = [("exp", "9000000000")];
    assert!(is_good(&for_ever, NOW_S + 3629) && !is_good(&for_ever, NOW_S + 3630));
    assert!(!is_good(&[("iat", "1799990000")], NOW_S));
}

#[test]
fn what_was_good_ends_with_its_time_and_with_its_key() {
    let (one, two) = (issuer(), Issuer::new("two", 2));
    let set = Set::new(&Issuer::set(&[&one, &two]));
    let caller = set.caller(&one.token(&claims(&[]))).unwrap();
    let Some(Credential::Jwt(proof)) = caller.credential else { panic!("no token") };
    assert!(set.callers.holds(&proof, Time(NOW.0 + 629_999)) && !set.callers.holds(&proof, Time(NOW.0 + 630_000)));
    let file = set.dir.path().join("jwks.json");
    let reload = || set.callers.reload_if(|seen, found| seen != found);
    assert!(!reload().unwrap());
    fs::write(&file, "{").unwrap();
    assert!(reload().is_err() && set.callers.holds(&proof, NOW), "what can't be used changes nothing");
    fs::write(&file, Issuer::set(&[&two])).unwrap();
    assert!(reload().unwrap() && !set.callers.holds(&proof, NOW));
    assert!(set.caller(&one.token(&claims(&[]))).is_err() && set.caller(&two.token(&claims(&[]))).is_ok());
    // Another key under the name of the first.
    fs::write(&file, Issuer::set(&[&Issuer::new("one", 3), &two])).unwrap();
    assert!(reload().unwrap() && !set.callers.holds(&proof, NOW));
}

#[test]
fn a_set_of_keys_is_read_with_what_is_not_for_us_left_out() {
    let one = issuer().jwk().to_text();
    let keys = |all: &str| KeySet::parse(format!("{{\"keys\":[{all}]}}").as_bytes()).map_err(|error| error.to_string());
    let finds = |all: &str| keys(all).unwrap().find("one").is_some();
    assert!(finds(&one) && finds(&one.replacen('{', r#"{"use":"sig","alg":"EdDSA","x5t":"x","#, 1)));
    for other in [
        one.replace("Ed25519", "X25519"),
        one.replace(r#""kid":"one","#, ""),
        one.replacen('{', r#"{"use":"enc","#, 1),
        one.replacen('{', r#"{"key_ops":["sign"],"#, 1),
        one.replacen('{', r#"{"alg":"ES256","#, 1),
        r#"{"kty":"EC","crv":"P-384","kid":"one","x":"AA","y":"AA"}"#.to_owned(),
        r#"{"kid":"one"}"#.to_owned(),
        "1".to_owned(),
    ] {
        assert!(!finds(&other), "{other}");
    }
    let refused = [
        (one.replacen('{', r#"{"d":"AA","#, 1), "key 1"),
        (r#"{"kty":"oct","kid":"one","k":"AA"}"#.to_owned(), "no public key"),
        (format!("{one},{one}"), "key 2"),
        (r#"{"kty":"OKP","crv":"Ed25519","kid":"one","x":"AA"}"#.to_owned(), "another length"),
        (r#"{"kty":"EC","crv":"P-256","kid":"one","x":"AA"}"#.to_owned(), "another length"),
        (r#"{"kty":"RSA","kid":"one","n":"AQAB","e":"AQAB"}"#.to_owned(), "2048"),
        (vec![one.as_str(); limits::JWKS_KEYS_MAX + 1].join(","), "more than"),
    ];
    for (all, expected) in refused {
        let why = keys(&all).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
    assert!(KeySet::parse(b"{}").is_err() && KeySet::parse(b"[]").is_err() && KeySet::parse(b"x").is_err());
    assert!(KeySet::parse(br#"{"keys":[]}"#).unwrap().is_empty());
}

#[test]
fn why_a_token_is_none_is_told_in_words_of_its_own() {
    let issuer = issuer();
    let set = Set::new(&Issuer::set(&[&issuer]));
    let why = |token: &str| set.callers.caller(token.as_bytes(), NOW).unwrap_err().reason();
    let good = issuer.token(&claims(&[]));
    assert!(set.caller(&good).is_ok());
    let (signed, _) = good.rsplit_once('.').unwrap();
    assert_eq!(why("a.b.c"), Reason::Malformed);
    assert_eq!(why(&format!("{signed}.{}", "A".repeat(86))), Reason::JwtSignature);
    assert_eq!(why(&Issuer::new("two", 2).token(&claims(&[]))), Reason::JwtSignature);
    assert_eq!(why(&issuer.token(&claims(&[("exp", "1800000000"), ("iat", "1799990000")]))), Reason::JwtTime);
    for wrong in [("aud", "null"), ("semel_tenant", "null"), ("semel_permissions", r#"["cluster"]"#)] {
        assert_eq!(why(&issuer.token(&claims(&[wrong]))), Reason::JwtClaims, "{wrong:?}");
    }
}
