//! Clocks that are wrong, releases that differ, and nodes that leave.

use std::sync::atomic::AtomicI64;

use super::*;
use crate::{clock::Monotonic, records::command::FEATURE_LEVEL};

/// The machine's clock, with a date that is off.
#[derive(Default)]
pub(super) struct Skewed {
    inner: SystemClock,
    ahead_ms: AtomicI64,
}

impl Skewed {
    fn set(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::SeqCst);
    }
}

impl Clock for Skewed {
    fn monotonic(&self) -> Monotonic {
        self.inner.monotonic()
    }

    fn wall(&self) -> Time {
        Time(self.inner.wall().0.saturating_add_signed(self.ahead_ms.load(Ordering::SeqCst)))
    }
}

const HOUR_MS: i64 = 3_600_000;

/// How far cluster time is from the true one, by a claim that is decided now, ms.
async fn off_ms(cluster: &Cluster, key: u64) -> i64 {
    let now = cluster.claim(key).await.now;
    let ms = |time: Time| i64::try_from(time.0).unwrap();
    ms(now) - ms(SystemClock::default().wall())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_clock_of_three_neither_rushes_nor_stops_nor_turns_time_back() {
    let mut cluster = Cluster::new(3).await;
    let leader = cluster.leader().await.status().node_id;
    assert!(off_ms(&cluster, 1).await.abs() < 2000);
    let mut last = cluster.claim(2).await.now;
    let mut key = 10;
    // The leader's own clock is an hour ahead, then an hour behind, then both in turns.
    for ahead_ms in [HOUR_MS, -HOUR_MS, HOUR_MS, -HOUR_MS, 0] {
        cluster.member(leader).clock.set(ahead_ms);
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            key += 1;
            let off = off_ms(&cluster, key).await;
            assert!(off.abs() < 5000, "{ahead_ms} ms ahead, and time is off by {off} ms");
            let now = cluster.claim(key + 10_000).await.now;
            assert!(now >= last, "time never turns back");
            last = now;
        }
    }
    // A new leader whose clock is wrong compares before its first grant.
    let next = cluster.follower().await.status().node_id;
    cluster.member(next).clock.set(HOUR_MS);
    cluster.leader().await.transfer(next, BY, AT_MOST).await.unwrap();
    wait_long(|| (cluster.node(next).status().role == RoleWord::Leader).then_some(())).await;
    let off = off_ms(&cluster, 99).await;
    assert!(off.abs() < 5000, "the new leader's clock is an hour ahead, and time is off by {off} ms");
    let shown = wait_long(|| {
        let status = cluster.members.iter().find(|m| m.id == leader)?.consensus().status();
        let told = status.members.iter().find(|member| member.node_id == next)?.told.clone()?;
        (told.clock_offset_ms > HOUR_MS / 2).then_some(told)
    });
    assert!(shown.await.clock_offset_ms < 2 * HOUR_MS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_level_is_reached_only_when_all_voters_understand_it() {
    let cluster = Cluster::new(3).await;
    let level = |id| cluster.node(id).shared.running.load_full().map(|running| running.feature_level());
    let understand = |id, level| cluster.node(id).shared.peers.understands.store(level, Ordering::SeqCst);
    let newer = FEATURE_LEVEL + 1;
    understand(1, newer);
    understand(2, newer);
    tokio::time::sleep(Duration::from_millis(3 * limits::HELLO_MS)).await;
    for id in 1..=3 {
        assert_eq!(level(id), Some(FEATURE_LEVEL), "node 3 does not understand more yet");
    }
    understand(3, newer);
    wait_long(|| (1..=3).all(|id| level(id) == Some(newer)).then_some(())).await;
    cluster.claim(1).await;
    cluster.agree().await;
    // A node of the older release can learn, and not vote.
    let mut cluster = cluster;
    cluster.members.push(Member::new(4).await);
    let address = cluster.member(4).addresses.clone();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    cluster.node(1).add(4, address, BY, AT_MOST).await.unwrap();
    // What it can't understand ends it.
    wait_long(|| said.lock().iter().find(|line| line.contains("feature level")).cloned()).await;
    let refused = wait_long_async(|| async {
        let refused = cluster.node(1).promote(4, BY, Duration::from_millis(500)).await.err()?;
        (refused.code == Code::WrongState).then_some(refused)
    });
    assert!(refused.await.detail.contains("upgrade"));
}

/// What a member said a moment before it died doesn't make it a live one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_is_removed_beside_one_that_has_just_died() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let leader = cluster.leader().await.clone();
    let mut others = (1..=3).filter(|id| *id != leader.status().node_id);
    let (dead, removed) = (others.next().unwrap(), others.next().unwrap());
    // The leader has just heard it.
    wait_long(|| leader.shared.peers.roster.is_reachable(dead, Duration::from_millis(500)).then_some(())).await;
    cluster.member(dead).kill(true).await;
    let refused = leader.remove(removed, false, BY, AT_MOST).await.unwrap_err();
    assert!(refused.code == Code::WrongState && refused.detail.contains("no live majority"), "{refused}");
    cluster.member(dead).start().await;
    cluster.agree().await;
    done(|| leader.remove(removed, false, BY, AT_MOST)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_knows_whether_it_is_cut_off() {
    let cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let follower = cluster.follower().await.clone();
    // Whoever has passed a barrier is in touch, also where it has not been told anything by itself yet.
    follower.read_barrier().await.unwrap();
    follower.shared.peers.roster.forget_all();
    assert!(follower.is_in_touch());
    wait_long(|| cluster.live().all(|member| member.consensus().hears_quorum()).then_some(())).await;
    let cut = follower.status().node_id;
    cluster.members.iter().find(|member| member.id == cut).unwrap().cut.cut();
    let began = tokio::time::Instant::now();
    wait_long(|| (!follower.hears_quorum() && !follower.is_in_touch()).then_some(())).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(cluster.live().filter(|member| member.id != cut).all(|member| member.consensus().hears_quorum()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_learns_that_it_was() {
    let cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let removed = cluster.follower().await.status().node_id;
    let node = cluster.node(removed).clone();
    cluster.leader().await.remove(removed, false, BY, AT_MOST).await.unwrap();
    tokio::time::timeout(AT_MOST, node.removed()).await.expect("it learns of it");
    let others: Vec<_> = (1..=3).filter(|id| *id != removed).collect();
    for id in others {
        let mut removed = cluster.node(id).shared.removed.subscribe();
        assert!(!*removed.borrow_and_update(), "node {id} stays");
    }
}
