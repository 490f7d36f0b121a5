//! Secrets that are planted in everything a caller can say, and searched for in everything a sealed node writes and says
//! while it is misused, at the most talkative level of its log.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    node::CLUSTER_TOKEN,
    sealing::{PLANTED, encoded, live, outcome, record, seal, searched_for},
};

const WITHIN: Duration = Duration::from_secs(20);

/// The bytes that these letters are (RFC 4648, lower case).
fn letters(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes() {
        let value = if letter.is_ascii_lowercase() { letter - b'a' } else { letter - b'2' + 26 };
        (bits, held) = ((bits << 5 | u32::from(value)) & 0xffff, held + 5);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

/// Calls that come to nothing, each with a secret where it goes wrong; the fence is of nobody.
fn misuses() -> Vec<(&'static str, Value)> {
    let of = record("planted-key-one");
    let bad = |name: &str, value: Value| {
        let mut claim = json!({"record": of.clone(), "request": {"amount": "planted-evidence"}});
        claim[name] = value;
        ("/v1/claim", claim)
    };
    let owner = |path: &'static str, more: Value| {
        let mut body = json!({"record": of.clone(), "fence": "1"});
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        (path, body)
    };
    vec![
        // Another request under a known key, and everything that is malformed in a claim.
        ("/v1/claim", json!({"record": of.clone(), "request": "planted-outcome-body"})),
        bad("attempt_id", json!("planted-actor")),
        bad("lease_ms", json!("planted-actor")),
        bad("labels", json!({"planted-label": ["planted-label"]})),
        bad("labels", json!({"planted-label": "planted-label".repeat(40)})),
        bad("on_lapse", json!("planted-reason")),
        bad("first_sent_at", json!("planted-reason")),
        bad("ignore", json!(["planted-reason"])),
        bad("fingerprints", json!([{"scheme": 1, "digest": "planted-evidence"}])),
        ("/v1/claim", json!({"record": {"operation": "planted-operation", "key": "planted-key-one\0"}, "request": 1})),
        ("/v1/claim", json!({"record": {"operation": "planted-operationé", "key": "k"}, "request": 1})),
        ("/v1/claim", json!({"record": "planted-key-one", "request": 1})),
        ("/v1/claim", json!("planted-key-one")),
        // Owners that are none.
        owner("/v1/begin", json!({})),
        owner("/v1/renew", json!({"lease_ms": "planted-actor"})),
        owner("/v1/complete", json!({"outcome": outcome()})),
        owner("/v1/complete", json!({"outcome": {"status": "planted-outcome-body"}})),
        owner("/v1/complete", json!({"outcome": {"status": 1, "body": "planted-outcome-body!"}})),
        owner(
            "/v1/complete",
            json!({"outcome": {"status": 1, "headers": {"planted-outcome-header\n": "planted-outcome-header"}}}),
        ),
        owner("/v1/checkpoint", json!({"name": "planted-checkpoint-name", "data": encoded("planted-checkpoint-data")})),
        owner(
            "/v1/checkpoint",
            json!({"name": "planted-checkpoint-name".repeat(9), "data": "planted-checkpoint-data"}),
        ),
        owner("/v1/release", json!({"evidence": "planted-evidence"})),
        owner("/v1/suspend", json!({"reason": "planted-reason".repeat(100)})),
        owner("/v1/begin", json!({"fence": "planted-actor"})),
        // Reconcilers, readers, administrators.
        (
            "/v1/resolve",
            json!({"record": of.clone(), "version": "1", "verdict": "completed", "outcome": outcome(),
                               "evidence": "planted-evidence", "actor": "planted-actor"}),
        ),
        (
            "/v1/resolve",
            json!({"record": of.clone(), "version": "1", "verdict": "planted-reason", "evidence": "planted-evidence"}),
        ),
        ("/v1/investigate", json!({"record": record("planted-key-never"), "actor": "planted-actor"})),
        ("/v1/forget", json!({"record": record("planted-key-three"), "reason": "planted-reason"})),
        ("/v1/get", json!({"record": record("planted-key-never"), "with_outcome": "planted-actor"})),
        ("/v1/list", json!({"cursor": "planted-key-one", "operation": "planted-operation"})),
        ("/v1/history", json!({"record": of, "cursor": "planted-key-one"})),
        ("/v1/policy/set", json!({"operation": "planted-operation", "policy": {"on_lapse": "planted-reason"}})),
        (
            "/v1/token/create",
            json!({"operations": ["planted-operation"], "permissions": ["planted-actor"], "note": "planted-note"}),
        ),
        (
            "/v1/token/create",
            json!({"operations": ["x"], "permissions": ["claim"], "token": "semel_planted-note", "note": "planted-note"}),
        ),
        ("/v1/token/revoke", json!({"token_id": "planted-actor", "reason": "planted-reason"})),
        ("/v1/audit", json!({"from_seq": "planted-actor"})),
        (
            "/v1/batch",
            json!({"items": [{"claim": {"record": record("planted-key-one"), "request": {"a": 1, "b": "planted-evidence"}, "lease_ms": "planted-actor"}}]}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_planted_is_found_nowhere() {
    let mut cluster = Cluster::unformed(1).await;
    let keys = seal(&cluster);
    cluster.nodes[0].start_with(&[("SEMEL_LOG", "trace")]);
    cluster.init().await;
    live(&cluster, 0).await;
    let (node, caller) = (&cluster.nodes[0], &cluster.caller);
    let made = json!({"operations": ["planted-operation*"], "permissions": ["claim"], "note": "planted-note"});
    let made = caller.post(node.listen, "/v1/token/create", &made, WITHIN).await.unwrap();
    // Kept for as long as the test runs: callers name their tokens by reference.
    let token: &'static str = made.json["token"].as_str().unwrap().to_owned().leak();
    let (_, secret) = token.split_once('.').expect("a token has two parts");

    let mut said = String::new();
    let holder = caller.with_token(token);
    let claim = json!({"record": record("planted-key-two"), "request": {"amount": 1}});
    let reply = holder.post(node.listen, "/v1/claim", &claim, WITHIN).await.unwrap();
    assert_eq!(reply.word(), "completed", "the token is good");
    let wrong: &'static str = format!("{}planted-token-of-nobody", &token[..40]).leak();
    for (path, body) in misuses() {
        let refused = caller.post(node.listen, path, &body, WITHIN).await.unwrap();
        let is_item = refused.json.get("items").is_some();
        assert!(refused.status >= 400 || is_item || refused.word() == "conflict", "{path} {body}: {refused:?}");
        // What a record is called stands in answers about it, and in no refusal.
        if refused.status >= 400 {
            said += &format!("{path} {}\n", refused.json);
        }
        for other in [holder.clone(), caller.with_token(wrong)] {
            let refused = other.post(node.listen, path, &body, WITHIN).await.unwrap();
            if refused.status >= 400 {
                said += &format!("{path} {}\n", refused.json);
            }
        }
    }
    assert!(said.lines().count() > 60, "{said}");
    let operator = caller.with_token(CLUSTER_TOKEN);
    for path in ["/metrics", "/v1/status", "/readyz"] {
        let text = operator.text(node.admin, path, WITHIN).await;
        assert!(!text.is_empty());
        said += &text;
    }
    for _ in 0..2 {
        assert!(cluster.operate(0, &["snapshot", "1"]).await.status.success());
    }
    let dir = tempfile::tempdir().unwrap();
    let (backup, ring) = (dir.path().join("backup"), dir.path().join("semel.ring"));
    let made =
        cluster.run(&["backup", "--out", backup.to_str().unwrap(), "--keyring", ring.to_str().unwrap()], 0).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Nobody has the key: it fails to start, and says so.
    cluster.nodes[0].kill();
    let right = fs::read(&keys).unwrap();
    fs::remove_file(&keys).unwrap();
    said += &cluster.nodes[0].fails_to_start().1;
    fs::write(&keys, right).unwrap();

    let raw = String::from_utf8_lossy(&letters(secret)).into_owned();
    let mut texts: Vec<String> = PLANTED.iter().flat_map(|text| [(*text).to_owned(), encoded(text)]).collect();
    texts.extend(["planted-key-never", "planted-token-of-nobody", secret, &raw].map(str::to_owned));
    let hits: Vec<&String> = texts.iter().filter(|text| said.contains(text.as_str())).collect();
    assert!(hits.is_empty(), "{hits:?} in {said}");
    let home = cluster.nodes[0].file("log");
    // What the tests' own callers show stands in the file of tokens, by design.
    let (count, hits) = searched_for(home.parent().unwrap(), &texts, &["tokens.toml"]);
    assert!(count > 5 && hits.is_empty(), "{hits:?}");
    let (count, hits) = searched_for(dir.path(), &texts, &[]);
    assert!(count >= 3 && hits.is_empty(), "{hits:?}");
    let log = fs::read_to_string(home).unwrap();
    assert!(log.contains("TRACE") && log.lines().count() > 1000, "it was to be talkative");
}

#[test]
fn letters_are_the_bytes_that_they_spell() {
    assert_eq!(letters("gaytemzugu3doobz"), b"0123456789");
}
