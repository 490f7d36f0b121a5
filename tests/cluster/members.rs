//! Members that come, go and are replaced while the cluster serves.

use std::{fs, process::Output};

use crate::{
    cluster::{Cluster, PATIENCE},
    ledger::{Load, verify},
};

fn said(output: &Output) -> String {
    format!(
        "{:?}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_added_promoted_and_another_removed_under_load() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 6);
    load.wait_for_answers(100).await;
    let fourth = cluster.prepare(4).await;
    cluster.nodes[fourth].start();
    let named = cluster.nodes[fourth].named();
    for arguments in [vec!["add", named.as_str()], vec!["promote", "4"], vec!["transfer", "4"], vec!["remove", "1"]] {
        // What is so already is done, so each may be asked for again.
        for _ in 0..2 {
            let done = cluster.operate(1, &arguments).await;
            assert!(done.status.success(), "{arguments:?}: {}", said(&done));
        }
        load.wait_for_answers(50).await;
    }
    assert_eq!(cluster.nodes[0].ended(PATIENCE).await, Some(0), "{}", cluster.nodes[0].log_tail());
    let again = cluster.nodes[0].named();
    let refused = cluster.operate(1, &["add", &again]).await;
    assert_eq!(refused.status.code(), Some(1), "the id of a removed member: {}", said(&refused));
    let ledger = load.end().await;
    cluster.nodes.remove(0);
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_is_gone_votes_again_only_when_it_is_replaced() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 6);
    load.wait_for_answers(100).await;
    let victim = (cluster.leader().await + 1) % 3;
    let id = cluster.nodes[victim].id.to_string();
    cluster.nodes[victim].kill();
    fs::remove_dir_all(cluster.nodes[victim].data_dir()).unwrap();
    cluster.nodes[victim].start();
    // It says what it waits for, and does not serve.
    let since = tokio::time::Instant::now();
    loop {
        let status = cluster.nodes[victim].status(&cluster.caller).await;
        if status.as_ref().is_some_and(|status| status["role"] == "waiting_for_replace") {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{status:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // The leader says so too, of what answers at the member's address instead of its disk.
    loop {
        let leader = cluster.leader().await;
        let status = cluster.nodes[leader].status(&cluster.caller).await.unwrap_or_default();
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let told = members.iter().find(|member| member["id"] == cluster.nodes[victim].id).cloned().unwrap_or_default();
        if told["state"] == "waiting_for_replace" && told["reachable"] == false {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{told}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    load.wait_for_answers(50).await;
    let done = cluster.operate((victim + 1) % 3, &["replace", &id, "--force"]).await;
    assert!(done.status.success(), "{}", said(&done));
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    load.wait_for_answers(50).await;
    let ledger = load.end().await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_yesterdays_disk_heals_before_it_votes() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 6);
    load.wait_for_answers(100).await;
    let victim = (cluster.leader().await + 1) % 3;
    let disk = async |cluster: &Cluster| {
        let status = cluster.nodes[victim].status(&cluster.caller).await;
        status.map(|status| status["disk_id"].as_str().unwrap_or_default().to_owned())
    };
    let before = disk(&cluster).await.unwrap();
    assert_eq!(cluster.nodes[victim].stop(PATIENCE).await, Some(0));
    let (now, yesterday) =
        (cluster.nodes[victim].data_dir(), cluster.nodes[victim].data_dir().with_extension("yesterday"));
    copy(&now, &yesterday);
    cluster.nodes[victim].start();
    cluster.wait_until_ready(&[cluster.nodes[victim].listen]).await;
    load.wait_for_answers(300).await;
    // What it acknowledged is noted by the others within a second.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    cluster.nodes[victim].kill();
    fs::remove_dir_all(&now).unwrap();
    fs::rename(&yesterday, &now).unwrap();
    cluster.nodes[victim].start();
    cluster.wait_until_ready(&[cluster.nodes[victim].listen]).await;
    let after = disk(&cluster).await.unwrap();
    assert_ne!(before, after, "the rolled back disk still votes");
    let kept = fs::read_dir(&now).unwrap().filter_map(Result::ok);
    assert!(kept.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("quarantine-")));
    let ledger = load.end().await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
