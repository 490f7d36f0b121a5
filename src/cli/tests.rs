mod backups;

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use super::{args::*, *};
use crate::{id::Uuid, json::Json};

fn parse(line: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_parse_from([&["semel"], line].concat()).map(|cli| cli.command)
}

/// A node that answers each connection with the next of these, and gives back the requests that it got.
fn node(answers: &'static [(u16, &'static str)]) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let served = thread::spawn(move || {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            while !complete(&request) {
                let read = stream.read(&mut chunk).unwrap();
                request.extend_from_slice(&chunk[..read]);
            }
            let retry = if *status == 503 { "retry-after: 1\r\n" } else { "" };
            let head = format!("HTTP/1.1 {status} X\r\n{retry}content-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(head.as_bytes()).unwrap();
            requests.push(String::from_utf8(request).unwrap());
        }
        requests
    });
    (endpoint, served)
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn status(line: &[&str]) -> u8 {
    parse(line).unwrap().run().map_or_else(|failure| failure.status(), |()| 0)
}

#[test]
fn the_command_line_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_an_example() {
    fn walk(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        if command.has_subcommands() {
            command.get_subcommands().filter(|c| c.get_name() != "help").for_each(|c| walk(c, &path));
        } else {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains(&path[1..]), "{path}: {help}");
            assert!(command.get_about().is_some(), "{path} says nothing about itself");
        }
    }
    walk(&Cli::command(), "");
}

#[test]
fn durations_have_a_unit() {
    for (text, ms) in [("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("24h", 86_400_000), ("30d", 2_592_000_000)] {
        assert_eq!(duration_ms(text), Ok(ms), "{text}");
    }
    for bad in ["", "30", "s", "1.5s", "-1s", "50d", "99999999999999999999s", "1 s", "1S"] {
        assert!(duration_ms(bad).is_err(), "{bad}");
    }
    assert_eq!((duration_s("30d"), duration_s("366d"), duration_s("90s")), (Ok(2_592_000), Ok(31_622_400), Ok(90)));
    assert!(duration_s("1500ms").is_err());
}

#[test]
fn a_fresh_attempt_is_a_uuid_of_version_4() {
    let (one, other) = (fresh_uuid(), fresh_uuid());
    assert_ne!(one, other);
    let text = one.hyphenated();
    assert_eq!(&text[14..15], "4");
    assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "{text}");
}

#[test]
fn a_claim_sends_exactly_what_it_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.json");
    // A number that no double holds must arrive as it was written.
    std::fs::write(&path, r#"{ "amount": 9007199254740993, "x": 1.50 }"#).unwrap();
    let line = [
        "claim",
        "POST /v1/charges",
        "k-1",
        "--request",
        path.to_str().unwrap(),
        "--lease",
        "30s",
        "--wait",
        "10s",
        "--staged",
        "--on-lapse",
        "retake",
        "--label",
        "amount=100 EUR",
        "--tenant",
        "acme",
        "--replay",
        "24h",
        "--ignore",
        "/ts",
    ];
    let Command::Claim(claim) = parse(&line).unwrap() else { panic!("not a claim") };
    let body = claim.body(Uuid([0xab; 16])).unwrap().to_text();
    let expected = r#"{"record":{"tenant":"acme","operation":"POST /v1/charges","key":"k-1"},"request":{"amount":9007199254740993,"x":1.50},"ignore":["/ts"],"attempt_id":"abababab-abab-abab-abab-abababababab","lease_ms":30000,"wait_ms":10000,"staged":true,"on_lapse":"retake","labels":{"amount":"100 EUR"},"replay_s":86400}"#;
    assert_eq!(body, expected);
}

#[test]
fn a_completion_sends_its_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("body");
    std::fs::write(&path, b"\x00\xff").unwrap();
    let line = [
        "complete",
        "charge",
        "k",
        "--fence",
        "42",
        "--status",
        "201",
        "--body",
        path.to_str().unwrap(),
        "--content-type",
        "a/b",
        "--header",
        "location=/x=y",
    ];
    let Command::Complete(complete) = parse(&line).unwrap() else { panic!("not a completion") };
    let expected = r#"{"record":{"operation":"charge","key":"k"},"fence":"42","outcome":{"status":201,"content_type":"a/b","headers":{"location":"/x=y"},"body":"AP8="}}"#;
    assert_eq!(complete.body().unwrap().to_text(), expected);
}

#[test]
fn wrong_usage_is_told_before_anything_is_sent() {
    for line in [
        &["claim", "charge"][..],
        &["complete", "charge", "k"],
        &["complete", "charge", "k", "--fence", "042"],
        &["complete", "charge", "k", "--fence", "-1"],
        &["claim", "charge", "k", "--lease", "30"],
        &["claim", "charge", "k", "--request", "a", "--fingerprint", "b"],
        &["claim", "charge", "k", "--attempt", "1"],
        &["list", "--state", "lost"],
        &["resolve", "charge", "k", "--evidence", "e"],
        &["resolve", "charge", "k", "--unknown"],
        &["resolve", "charge", "k", "--no-effect", "--completed", "f", "--evidence", "e"],
        &["policy", "set"],
        &["cluster", "init", "--node", "0=a:1,b:2"],
        &["cluster", "init", "--node", "1=a:1"],
        &["nonsense"],
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line:?}");
    }
    for endpoint in ["https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1/path", "ftp://x"] {
        assert_eq!(status(&["get", "charge", "k", "--endpoint", endpoint]), 2, "{endpoint}");
    }
}

#[test]
fn a_token_travels_unencrypted_only_when_told_so() {
    let line = ["get", "charge", "k", "--endpoint", "http://192.0.2.1:1", "--token", "0123456789abcdef"];
    assert_eq!(status(&line), 2);
    let Command::Get(_) = parse(&line).unwrap() else { panic!("not a get") };
}

#[test]
fn an_answer_is_exit_status_0() {
    let (endpoint, served) = node(&[(200, r#"{"answer":"conflict","state":"completed","since":"x","index":"9"}"#)]);
    assert_eq!(status(&["claim", "charge", "k", "--endpoint", &endpoint, "--token", "0123456789abcdef"]), 0);
    let requests = served.join().unwrap();
    assert!(requests[0].starts_with("POST /v1/claim HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("authorization: Bearer 0123456789abcdef\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("\"request\":null"), "{}", requests[0]);
}

#[test]
fn a_refusal_is_exit_status_1() {
    let (endpoint, served) = node(&[(409, r#"{"code":"stale_fence","detail":"d","effect":"none"}"#)]);
    assert_eq!(status(&["begin", "charge", "k", "--fence", "1", "--endpoint", &endpoint]), 1);
    served.join().unwrap();
}

#[test]
fn an_unavailable_service_is_asked_again_and_then_given_up() {
    const UNAVAILABLE: (u16, &str) = (503, r#"{"code":"unavailable","detail":"no leader","effect":"none"}"#);
    let (endpoint, served) = node(&[UNAVAILABLE, (200, r#"{"state":"completed","index":"3"}"#)]);
    let began = Instant::now();
    assert_eq!(status(&["begin", "charge", "k", "--fence", "1", "--endpoint", &endpoint]), 0);
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After is kept to");
    served.join().unwrap();
    // However long it would like to be left alone, it is asked once more when the time is over.
    let (endpoint, served) = node(&[UNAVAILABLE, UNAVAILABLE]);
    let began = Instant::now();
    let line = ["begin", "charge", "k", "--fence", "1", "--endpoint", &endpoint, "--timeout", "300ms"];
    assert_eq!(status(&line), 3);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(served.join().unwrap().len(), 2);
    let (endpoint, served) = node(&[UNAVAILABLE]);
    let line = ["begin", "charge", "k", "--fence", "1", "--endpoint", &endpoint, "--timeout", "0s"];
    assert_eq!(status(&line), 3);
    served.join().unwrap();
}

#[test]
fn nobody_there_is_exit_status_3() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(status(&["get", "charge", "k", "--endpoint", &format!("http://{free}")]), 3);
    let (endpoint, served) = node(&[(200, "<html>")]);
    assert_eq!(status(&["get", "charge", "k", "--endpoint", &endpoint]), 3);
    served.join().unwrap();
}

#[test]
fn a_list_follows_empty_pages_to_the_first_records() {
    let (endpoint, served) = node(&[
        (200, r#"{"records":[],"cursor":"c1","index":"1"}"#),
        (
            200,
            r#"{"records":[{"state":"indeterminate","record":{"operation":"o","key":"k"}}],"cursor":"c2","index":"1"}"#,
        ),
    ]);
    assert_eq!(status(&["list", "--endpoint", &endpoint]), 0);
    let requests = served.join().unwrap();
    assert!(requests[1].contains("\"cursor\":\"c1\""), "{}", requests[1]);
}

#[test]
fn a_verdict_is_given_on_the_version_as_read() {
    let (endpoint, served) =
        node(&[(200, r#"{"version":"8","index":"9"}"#), (200, r#"{"state":"absent","index":"10"}"#)]);
    assert_eq!(status(&["resolve", "charge", "k", "--no-effect", "--evidence", "e", "--endpoint", &endpoint]), 0);
    let requests = served.join().unwrap();
    assert!(requests[1].contains("\"version\":\"8\",\"verdict\":\"no_effect\""), "{}", requests[1]);
    assert!(requests[1].contains("\"request_id\":\""), "{}", requests[1]);
}

#[test]
fn values_of_a_policy_have_their_types() {
    assert_eq!(policy::typed("replay_s", "5").to_text(), "5");
    assert_eq!(policy::typed("records_max", "5").to_text(), "\"5\"");
    assert_eq!(policy::typed("on_lapse", "hold").to_text(), "\"hold\"");
    assert_eq!(policy::typed("records_max", "null"), Json::Null);
}

#[test]
fn two_requests_differ_with_exit_status_1() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, same) = (file("a", r#"{"x":1,"y":[2]}"#), file("b", r#"{ "y":[2.0], "x":1e0 }"#));
    let (other, broken) = (file("c", r#"{"x":2,"y":[2]}"#), file("d", r#"{"x":1,"x":1}"#));
    assert_eq!(status(&["fingerprint", &a, &same]), 0);
    assert_eq!(status(&["fingerprint", &a, &other]), 1);
    assert_eq!(status(&["fingerprint", &a, &other, "--ignore", "/x"]), 0);
    assert_eq!(status(&["fingerprint", &a, &broken]), 2);
    assert_eq!(status(&["fingerprint", "/no/such/file"]), 2, "1 would say that they differ");
}

#[test]
fn init_names_the_nodes_by_their_ids() {
    let (endpoint, served) = node(&[(200, r#"{"cluster_id":"00","created":true}"#)]);
    let line = ["cluster", "init", "--admin-endpoint", &endpoint, "--node", "1=127.0.0.1:7172,127.0.0.1:7171"];
    assert_eq!(status(&line), 0);
    let requests = served.join().unwrap();
    let expected = r#"{"nodes":{"1":{"peer":"127.0.0.1:7172","client":"127.0.0.1:7171"}}}"#;
    assert!(requests[0].starts_with("POST /v1/admin/init ") && requests[0].ends_with(expected), "{}", requests[0]);
    assert_eq!(status(&["cluster", "init", "--node", "1=a:1,b:2", "--node", "1=c:1,d:2"]), 2);
}

#[test]
fn every_change_of_a_cluster_says_what_it_wants() {
    const DONE: (u16, &str) = (200, r#"{"id":4,"role":"learner"}"#);
    for (line, path, body) in [
        (&["add", "4=d:2,d:1"][..], "add", r#"{"id":4,"peer":"d:2","client":"d:1"}"#),
        (&["promote", "4"], "promote", r#"{"id":4}"#),
        (&["remove", "4"], "remove", r#"{"id":4}"#),
        (&["remove", "4", "--force"], "remove", r#"{"id":4,"force":true}"#),
        (&["replace", "4"], "replace", r#"{"id":4}"#),
        (
            &["replace", "4", "--node", "4=e:2,e:1", "--force"],
            "replace",
            r#"{"id":4,"force":true,"node":{"id":4,"peer":"e:2","client":"e:1"}}"#,
        ),
        (&["transfer", "4"], "transfer", r#"{"id":4}"#),
        (&["end-doubt"], "end_doubt", "{}"),
        (&["snapshot"], "snapshot", "{}"),
    ] {
        let (endpoint, served) = node(&[DONE]);
        assert_eq!(status(&[&["cluster"], line, &["--admin-endpoint", &endpoint]].concat()), 0, "{line:?}");
        let requests = served.join().unwrap();
        let is_this = requests[0].starts_with(&format!("POST /v1/admin/{path} ")) && requests[0].ends_with(body);
        assert!(is_this, "{line:?}: {}", requests[0]);
    }
    for line in [&["replace", "4", "--node", "5=e:2,e:1"][..], &["add", "4"], &["promote"], &["transfer", "x"]] {
        let refused = parse(&[&["cluster"], line].concat())
            .map_or(2, |command| command.run().map_or_else(|failure| i32::from(failure.status()), |()| 0));
        assert_eq!(refused, 2, "{line:?}");
    }
}

#[test]
fn a_change_waits_for_a_leader_and_a_refusal_ends_it() {
    const NO_LEADER: (u16, &str) = (503, r#"{"code":"unavailable","detail":"no leader","effect":"none"}"#);
    const USED: (u16, &str) = (409, r#"{"code":"wrong_state","detail":"the id was used","effect":"none"}"#);
    const LOST: (u16, &str) = (504, r#"{"code":"result_unknown","detail":"not learnt","effect":"unknown"}"#);
    let change = |endpoint: &str, more: &[&str]| {
        status(&[&["cluster", "transfer", "2", "--admin-endpoint", endpoint], more].concat())
    };
    let (endpoint, served) = node(&[NO_LEADER, (200, r#"{"id":2,"role":"leader"}"#)]);
    assert_eq!(change(&endpoint, &[]), 0);
    served.join().unwrap();
    for (answer, expected) in [(NO_LEADER, 3), (USED, 1), (LOST, 1)] {
        let answers: &'static [(u16, &'static str)] = Box::leak(Box::new([answer]));
        let (endpoint, served) = node(answers);
        assert_eq!(change(&endpoint, &["--timeout", "0s"]), expected, "{answer:?}");
        served.join().unwrap();
    }
}

#[test]
fn the_first_endpoint_that_answers_says_how_the_cluster_stands() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (endpoint, served) = node(&[(200, r#"{"node_id":1,"cluster_id":null,"role":"unformed","members":[]}"#)]);
    let both = format!("http://{free},{endpoint}");
    assert_eq!(status(&["cluster", "status", "--admin-endpoint", &both]), 0);
    served.join().unwrap();
    assert_eq!(status(&["cluster", "status", "--admin-endpoint", &format!("http://{free}"), "--timeout", "0s"]), 3);
}

/// Whoever formed the cluster has the first token: one that was drawn for a cluster that was there before opens nothing.
#[test]
fn init_of_a_formed_cluster_leaves_no_token_behind() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(name).display().to_string();
    for (name, answer, kept) in [
        ("formed", r#"{"cluster_id":"00","created":false}"#, false),
        ("new", r#"{"cluster_id":"00","created":true}"#, true),
        // One that was there before may be that of the cluster.
        ("new", r#"{"cluster_id":"00","created":false}"#, true),
    ] {
        let answers: &'static [(u16, &'static str)] = Box::leak(Box::new([(200, answer)]));
        let (endpoint, served) = node(answers);
        let file = of(name);
        let line = ["cluster", "init", "--admin-endpoint", &endpoint, "--admin-token-file", &file];
        let code = status(&[&line[..], &["--node", "1=127.0.0.1:7172,127.0.0.1:7171"]].concat());
        served.join().unwrap();
        assert_eq!((code == 0, std::path::Path::new(&file).exists()), (kept, kept), "{name} {answer}");
    }
}
