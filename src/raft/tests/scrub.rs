//! Damage that shows while a node runs.

use super::*;

/// A node that scrubs all the time.
async fn scrubbing(disk: &FaultDisk, engines: &Arc<MemoryEngines>) -> Consensus {
    let mut options = options(Arc::new(disk.clone()), Path::new(DIR), Arc::<MemoryEngines>::clone(engines));
    options.limits.scrub = Duration::from_millis(20);
    Consensus::start(options).await.unwrap()
}

/// A claim of so many bytes.
fn large(key: u64, bytes: usize) -> Arc<Command> {
    let command = claim(key);
    let Command::Claim(claim) = &*command else { panic!("a claim") };
    Arc::new(Command::Claim(Box::new(Claim { labels: Some(Sealed::plain(vec![9; bytes])), ..(**claim).clone() })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_a_sealed_segment_ends_the_node_with_a_line_that_says_where() {
    let (disk, engines) = (FaultDisk::new(), Arc::new(MemoryEngines::default()));
    let consensus = scrubbing(&disk, &engines).await;
    consensus.init_single(addresses(), init()).await.unwrap();
    consensus.propose(open_tenant()).await.unwrap();
    for key in 0..6 {
        consensus.propose(large(key, 300 << 10)).await.unwrap();
    }
    let passes = consensus.scrubbed().passes;
    wait_for(|| (consensus.scrubbed().passes > passes + 1).then_some(())).await;
    assert!(consensus.scrubbed().bytes > 6 * (300 << 10));
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    let first = disk.paths().into_iter().find(|path| path.extension().is_some_and(|kind| kind == "wal")).unwrap();
    assert!(disk.flip_bit(&first, 600 << 10, 2));
    let line = wait_for(|| said.lock().first().cloned()).await;
    assert!(line.contains(&format!("{} at byte ", first.display())), "{line}");
    assert!(line.contains("keep a copy of the directory"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_rots_is_replaced() {
    let (disk, engines) = (FaultDisk::new(), Arc::new(MemoryEngines::default()));
    let consensus = scrubbing(&disk, &engines).await;
    consensus.init_single(addresses(), init()).await.unwrap();
    consensus.propose(open_tenant()).await.unwrap();
    for key in [1, 2] {
        consensus.propose(claim(key)).await.unwrap();
        consensus.snapshot_now().await.unwrap();
    }
    // Of one that reaches as far as the state no second is written: it waits for something to be new in it.
    consensus.propose(claim(3)).await.unwrap();
    let files = || {
        let paths = disk.paths().into_iter();
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "semel")).collect::<Vec<_>>()
    };
    let (before, newest) = (files(), files().pop().unwrap());
    assert_eq!(before.len(), 2);
    assert!(disk.flip_bit(&newest, 200, 3));
    let after = wait_for(|| Some(files()).filter(|files| !files.contains(&newest) && files.len() == 2)).await;
    assert_eq!(after[0], before[0], "the good one stays");
    let node = Node { disk: disk.clone(), engines, consensus };
    let node = node.crash(false).await.unwrap();
    for key in 1..=3 {
        assert!(is_in_progress(&node.claim(key).await), "{key}");
    }
}
