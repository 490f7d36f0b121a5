//! Configurations that are taken, and what is said of those that aren't.

use http::Method;
use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("door.toml"), text)
}

const WHOLE: &str = r#"
[proxy]
tenant = { header = "X-Tenant" }
principal = { jwt_claim = "sub" }
auth_url = "http://127.0.0.1:9000/auth"
outcome_bytes_max = 1048576
body_bytes_max = 16777216
wait_ms_max = 30000
problem_base = "https://example.org/problems/"
drain_timeout_s = 10

[[proxy.route]]
match = "POST /orders/{id}"
operation = "order.update"
key = "required"
key_headers = ["Idempotency-Key", "X-Idempotency-Key", "idempotency-key"]
fingerprint_headers = ["X-Session-Id"]
fingerprint_without = ["/client_ts"]
release = [503]
lease_s = 30
replay_s = 86400
evidence_s = 2592000
upstream_timeout_s = 60
record_headers = ["X-Request-Id"]
body_bytes_max = 1000
wait_ms_max = 10
expired_status = 422
"#;

#[test]
fn every_key_is_read() {
    let config = parse(WHOLE).unwrap();
    let route = config.routes.find(&Method::POST, "/orders/7");
    assert_eq!(route.operation.as_deref(), Some("order.update"));
    assert_eq!((route.key, route.key_headers.len()), (KeyRule::Required, 2));
    assert_eq!((route.release.as_slice(), route.body_bytes_max, route.expired_status), (&[503][..], 1000, 422));
    assert_eq!(config.routes.find(&Method::POST, "/other").expired_status, 410);
    assert_eq!(config.drain_timeout, Duration::from_secs(10));
    assert_eq!(config.who.principal, Some(Source::JwtClaim("sub".to_owned())));
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.who, Sources::default());
    assert_eq!(config.outcome_bytes_max, 1 << 20);
    let route = config.routes.find(&Method::POST, "/");
    assert_eq!(
        (route.key, route.wait_max, route.body_bytes_max),
        (KeyRule::Optional, Duration::from_secs(30), 16 << 20)
    );
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_key() {
    let route = |line: &str| format!("[[proxy.route]]\nmatch = \"POST /a\"\n{line}\n");
    for (text, wanted) in [
        ("[proxy]\nlisten = 1".to_owned(), "door.toml, line 2: unknown field `listen`"),
        ("[proxi]".to_owned(), "door.toml, line 1: unknown field"),
        ("[[proxy.route]]\nkey = \"required\"".to_owned(), "missing field `match`"),
        (route("key = \"always\""), "line 3: `key` is \"required\""),
        (route("release = [200]"), "line 3: `release` has a status"),
        (route("record_headers = [\"Set-Cookie\"]"), "line 3: `record_headers` has set-cookie"),
        (route("key_headers = []"), "line 3: `key_headers` names no field"),
        (route("key_headers = [\"a b\"]"), "line 3: `key_headers` has \"a b\""),
        (route("replay_s = 10\nevidence_s = 5"), "line 4: `evidence_s`"),
        (route("upstream_timeout_s = 0"), "line 3: `upstream_timeout_s` must be from 1"),
        (route("fingerprint_without = [\"x\"]"), "line 3: `fingerprint_without`"),
        (route("expired_status = 200"), "line 3: `expired_status`"),
        (route("operation = \"\""), "line 3: `operation`"),
        (route("") + &route(""), "`match` is that of a route before"),
        ("[proxy]\noutcome_bytes_max = 99999999".to_owned(), "line 2: `outcome_bytes_max` must be from 1 to"),
        ("[proxy]\ntenant = { jwt_claim = \"org\" }".to_owned(), "whose signature nobody checks"),
        ("[proxy]\ntenant = { client_certificate = true }".to_owned(), "nobody is asked for one"),
        (
            "[proxy.tls]\ncert = \"c\"\nkey = \"k\"\nclient_certificate = \"required\"".to_owned(),
            "line 4: `client_certificate`",
        ),
        ("[proxy]\ntenant = {}".to_owned(), "names one of"),
        ("[proxy]\ntenant = { fixed = \"A B\" }".to_owned(), "line 2: `tenant`"),
    ] {
        let said = parse(&text).unwrap_err().to_string();
        assert!(said.contains(wanted), "{text}\n{said}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_configuration_or_refused(text in "[ -~\n]{0,80}", cut in 0..WHOLE.len(), with in "[ -~\n]{0,3}") {
        let _ = parse(&text);
        let _ = parse(&format!("{}{with}{}", &WHOLE[..cut], &WHOLE[cut..]));
    }
}
