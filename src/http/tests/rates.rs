//! Rates of requests at the doors of a real node: who is refused for one, and what never is.

use std::time::Duration;

use tokio::time::sleep;

use super::tokens::{Guarded, text};
use crate::{auth::RequestRates, json::Json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_a_rate_are_refused_alike_at_every_door() {
    let rates = RequestRates { token_per_s: Some(1), tenant_per_s: Some(100) };
    let guarded = Guarded::with(|config| config.limits.requests.rates = rates).await;
    let claim = r#""record":{"operation":"op","key":"k"},"request":1"#;
    // It holds for whoever makes tokens, too.
    let token = async |tenant: &str| {
        let body = format!(r#"{{"tenant":"{tenant}","operations":["*"],"permissions":["claim"]}}"#);
        loop {
            let (status, answer) = guarded.create(&guarded.first, &body).await;
            if status == 200 {
                return text(&answer, "token").to_owned();
            }
            assert_eq!(text(&answer, "code"), "rate_limited");
            sleep(Duration::from_millis(50)).await;
        }
    };
    let (one, two, other) = (token("acme").await, token("acme").await, token("globex").await);
    // Of thirty calls two come within a second.
    let mut refused = None;
    for _ in 0..30 {
        let (status, answer) = guarded.post("/v1/claim", &one, &format!("{{{claim}}}")).await;
        if status != 200 {
            refused = Some((status, answer));
            break;
        }
    }
    let (status, answer) = refused.expect("too many");
    assert_eq!((status, text(&answer, "code")), (429, "rate_limited"), "{answer}");
    assert!(text(&answer, "detail").contains("token_requests_per_s"), "{answer}");
    assert_eq!(guarded.post("/v1/claim", &two, &format!("{{{claim}}}")).await.0, 200, "another one's are its own");
    // Items of a batch are counted each by itself.
    let items: Vec<String> = (0..20).map(|_| format!("{{\"claim\":{{{claim}}}}}")).collect();
    let (status, batch) = guarded.post("/v1/batch", &other, &format!(r#"{{"items":[{}]}}"#, items.join(","))).await;
    let Some(Json::Array(items)) = batch.member("items") else { panic!("{status} {batch}") };
    let is_refused = |item: &&Json| item.to_text().contains("rate_limited");
    assert!((10..20).contains(&items.iter().filter(is_refused).count()), "{batch}");
    guarded.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_beyond_its_rate_keeps_and_ends_what_it_owns() {
    let rates = RequestRates { token_per_s: Some(1), tenant_per_s: Some(1) };
    let guarded = Guarded::with(|config| config.limits.requests.rates = rates).await;
    let body = r#"{"tenant":"acme","operations":["*"],"permissions":["claim"]}"#;
    let (status, made) = guarded.create(&guarded.first, body).await;
    assert_eq!(status, 200, "{made}");
    let token = text(&made, "token").to_owned();
    let claim = |key: &str| format!(r#"{{"record":{{"operation":"op","key":"{key}"}},"request":1}}"#);
    // Until it is: as soon as a second is full there is one call more.
    let exhaust = async || {
        while guarded.post("/v1/claim", &token, &claim("other")).await.0 == 200 {}
    };
    for how in ["by itself", "in a batch"] {
        let granted = loop {
            let (status, answer) = guarded.post("/v1/claim", &token, &claim(how)).await;
            if status == 200 {
                break answer;
            }
            assert_eq!(text(&answer, "code"), "rate_limited", "{answer}");
            sleep(Duration::from_millis(50)).await;
        };
        let fence = text(&granted, "fence");
        let own = format!(r#""record":{{"operation":"op","key":"{how}"}},"fence":"{fence}""#);
        let calls = [
            ("renew", String::new()),
            ("checkpoint", r#","name":"half""#.to_owned()),
            ("complete", r#","outcome":{"status":201}"#.to_owned()),
        ];
        for (call, more) in calls {
            // Many: of a few, one could be what the rate has room for again.
            for _ in 0..5 {
                exhaust().await;
                let request = format!("{{{own}{more}}}");
                let (status, answer) = if how == "in a batch" {
                    let batch = format!(r#"{{"items":[{{"{call}":{request}}}]}}"#);
                    guarded.post("/v1/batch", &token, &batch).await
                } else {
                    guarded.post(&format!("/v1/{call}"), &token, &request).await
                };
                assert!(status == 200 && !answer.to_text().contains("rate_limited"), "{how}, {call}: {answer}");
                if call == "complete" {
                    assert!(answer.to_text().contains("completed"), "{answer}");
                }
            }
        }
    }
    guarded.node.stop().await;
}
