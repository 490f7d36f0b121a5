//! Tenants that propose beside each other. Judged by positions and counts: how fast this machine is tells nothing.

use super::*;

/// Commands of the flood in one call.
const AT_ONCE: u64 = 256;
/// Calls of the flood at once: more than a line may hold and what is in flight.
const CALLS: usize = 256;
const IN_FLIGHT: u64 = (limits::PROPOSALS_IN_FLIGHT_MAX * limits::ENTRY_COMMANDS_MAX) as u64;

const _: () = assert!(CALLS * AT_ONCE as usize > limits::PROPOSE_QUEUE_MAX / 2 + IN_FLIGHT as usize);

/// A claim of another tenant.
fn elsewhere(name: &str, key: u64) -> Arc<Command> {
    let Command::Claim(claim) = &*claim(key) else { panic!("a claim") };
    let record = RecordRef { tenant: Tenant::parse(name).unwrap(), ..claim.record.clone() };
    Arc::new(Command::Claim(Box::new(Claim { record, ..(**claim).clone() })))
}

/// A node that waits for long: how long anything takes is not what is judged.
async fn patient() -> Consensus {
    let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new());
    let engines = Arc::new(MemoryEngines::default());
    let mut options = options(disk, Path::new(DIR), engines);
    options.limits.propose_timeout = Duration::from_secs(300);
    let consensus = Consensus::start(options).await.unwrap();
    assert!(consensus.init_single(addresses(), init()).await.unwrap().created);
    consensus
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenants_flood_leaves_the_others_calls_served_in_their_turn() {
    let consensus = patient().await;
    consensus.propose(open_tenant()).await.unwrap();
    let index_key = Wrapped { wrapping_id: 0, bytes: Blob(vec![8; 32].into()) };
    let quiet = TenantOpened { tenant: Tenant::parse("quiet").unwrap(), index_key };
    consensus.propose(Arc::new(Command::TenantOpened(quiet))).await.unwrap().answer.unwrap();

    let refused = Arc::new(AtomicU64::new(0));
    let commands: Vec<_> = (0..AT_ONCE).map(claim).collect();
    let flood: Vec<_> = (0..CALLS)
        .map(|_| {
            let (consensus, commands, refused) = (consensus.clone(), commands.clone(), Arc::clone(&refused));
            tokio::spawn(async move {
                loop {
                    for answer in consensus.propose_many(commands.clone()).await {
                        if let Err(refusal) = answer {
                            assert_eq!(refusal.code, Code::RateLimited, "{refusal:?}");
                            refused.fetch_add(1, Ordering::Relaxed);
                            // A call that is refused at once waits for nothing: it must let others run.
                            tokio::task::yield_now().await;
                        }
                    }
                }
            })
        })
        .collect();
    wait_for(|| (refused.load(Ordering::Relaxed) > 0).then_some(())).await;

    let mut overtaken_by = Vec::new();
    for key in 0..5 {
        let before = consensus.records().read().globals().position;
        let applied = consensus.propose(elsewhere("quiet", key)).await.expect("it is never refused");
        overtaken_by.push(applied.index.0 - before.0);
    }
    // What was in flight, its own entry, and a few that were on their way between the two looks. A plain queue has the whole
    // line of the flood besides.
    overtaken_by.sort_unstable();
    let most = IN_FLIGHT + 3 * limits::ENTRY_COMMANDS_MAX as u64;
    assert!(overtaken_by[2] <= most, "so many commands came before: {overtaken_by:?}");
    let (queued, _) = consensus.queued();
    let most = limits::PROPOSE_QUEUE_MAX / 2 + limits::PROPOSE_INTAKE_MAX + 1;
    assert!(queued <= most, "{queued} commands wait");
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}
