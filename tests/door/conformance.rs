//! The published cases, tried on the door; and on a service without one, which must not pass.

use std::process::{Command, Output};

use super::{Setting, Upstream};

async fn tried(target: String, more: &'static [&'static str]) -> Output {
    let tried = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["conformance", "--target", &target]).args(more).output()
    };
    tokio::task::spawn_blocking(tried).await.unwrap().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_door_holds_all_that_is_asked() {
    let config = "[[proxy.route]]\nmatch = \"POST /wanting\"\nkey = \"required\"\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    let target = format!("http://{}/orders", setting.serving.listen());
    let output = tried(target, &["--strict", "--slow-path", "/slow", "--required-path", "/wanting"]).await;
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("FAILS") && !text.contains("skipped") && text.contains("0 that count do not"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_without_a_door_does_not() {
    let upstream = Upstream::counting().await;
    let output = tried(format!("http://{}/orders", upstream.address()), &["--json"]).await;
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for failed in ["retry-is-replayed", "other-request-is-refused", "name-has-no-case"] {
        assert!(text.contains(&format!(r#"{{"id":"{failed}","from":"draft","result":"fails""#)), "{text}");
    }
    assert!(text.contains(r#"{"id":"other-key-runs","from":"draft","result":"holds""#), "{text}");
    let alike = Upstream::always(super::Answer::of(200, "", "same")).await;
    let output = tried(format!("http://{}/orders", alike.address()), &[]).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
