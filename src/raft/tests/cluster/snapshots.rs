//! Snapshots that are sent to members.

use std::path::PathBuf;

use super::*;

impl Member {
    /// Its snapshot files, the oldest first.
    fn snapshots(&self) -> Vec<PathBuf> {
        let dir = Path::new(DIR).join("snapshots");
        let mut names = self.disk.list(&dir).unwrap();
        names.sort_unstable();
        names.into_iter().filter(|name| name.ends_with(".semel")).map(|name| dir.join(name)).collect()
    }
}

/// Nobody scrubs in here: that the leader's files have rotted shows by the member to which one is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_has_rotted_is_not_sent_for_ever() {
    let fatal = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&fatal);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    let mut cluster = Cluster::new(3).await;
    // First the newest of its two, then every one that it has.
    for round in 0..2 {
        let behind = cluster.follower().await.status().node_id;
        let reached = cluster.node(behind).status().last_log;
        cluster.member(behind).kill(true).await;
        for part in 0..3 {
            for key in 0..150 {
                cluster.claim(round * 10_000 + part * 1_000 + key).await;
            }
            for member in cluster.live() {
                member.consensus().snapshot_now().await.unwrap();
            }
        }
        let has_purged = |member: &Member| member.consensus().status().purged > reached;
        wait_long(|| cluster.live().all(has_purged).then_some(())).await;
        for member in cluster.live() {
            let files = member.snapshots();
            assert_eq!(files.len(), 2);
            for file in files.iter().skip(1 - round as usize) {
                assert!(member.disk.flip_bit(file, 200, 3));
            }
        }
        cluster.member(behind).start().await;
        cluster.agree().await;
        assert!(fatal.lock().is_empty(), "{:?}", fatal.lock());
    }
}
