//! The overlay and the plain maps must hold the same state, whenever flushes, reopenings and installs happen.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::{
    disk::{Space, fault::FaultDisk, is_full},
    id::{ClusterId, Fence, KeyedHash, LineageId, Tenant, Uuid},
    records::{
        audit,
        check::check,
        closing::{TenantClosed, TenantKeysDestroyed},
        command::{
            Claim, Command, Fingerprints, Init, OwnerAction, OwnerCommand, ProposedOutcome, ProposedPoint, Reconciler,
            Resolve, Sealed, TenantOpened, Verdict, Wrapped,
        },
        memory::MemoryState,
        policy::{Limits, Policy},
        sealing::{OuterKey, SealedInit, SealedTenantOpened},
    },
    store::{
        engine::{KeyRange, LoadRows, Scan},
        memory::MemoryEngine,
    },
};

fn record(n: u8) -> RecordRef {
    // Of different lengths: their order is that of the keys in the engine, where the length stands first.
    let tenant = Tenant::parse(if n.is_multiple_of(3) { "aa" } else { "b" }).unwrap();
    RecordRef { tenant, operation: KeyedHash([n % 2; 16]), record: KeyedHash([n; 16]) }
}

fn sealed(text: &str) -> Sealed {
    Sealed { key_id: 1, bytes: Blob(text.as_bytes().to_vec().into()) }
}

fn outcome(n: u8) -> ProposedOutcome {
    let body = vec![n; usize::from(n) * 20];
    let body_bytes = u32::try_from(body.len()).unwrap();
    let body = Sealed { key_id: 1, bytes: Blob(body.into()) };
    ProposedOutcome { meta: sealed("meta"), body, digest: [n; 32], body_bytes }
}

fn owner(n: u8, fence: u64, action: OwnerAction) -> Command {
    Command::Owner(Box::new(OwnerCommand { record: record(n), fence: Fence(fence), action, actor: sealed("owner") }))
}

/// A step of the end of a record's tenant.
fn closing(n: u8, is_last: bool) -> Command {
    let (tenant, actor, detail) = (record(n).tenant, sealed("operator"), sealed("why"));
    match is_last {
        false => Command::TenantClosed(Box::new(TenantClosed {
            tenant,
            request_id: Uuid([n; 16]),
            older_copies_stay: false,
            actor,
            detail,
        })),
        true => Command::TenantKeysDestroyed(Box::new(TenantKeysDestroyed { tenant, actor, detail })),
    }
}

fn command() -> impl Strategy<Value = Command> {
    let key = 0u8..6;
    let fence = 0u64..60;
    prop_oneof![
        4 => (key.clone(), any::<bool>(), 0u32..3000, 0u32..3, 0u32..4).prop_map(|(n, staged, lease, replay, evidence)| {
            Command::Claim(Box::new(Claim {
                record: record(n),
                id: sealed("id"),
                fingerprints: Fingerprints { keyed: vec![(1, [n; 32])], sealed: sealed("fp") },
                attempt_id: Uuid([n; 16]),
                lease_ms: Some(lease),
                staged,
                on_lapse: None,
                first_sent_at: None,
                labels: None,
                replay_s: Some(replay),
                evidence_s: Some(evidence),
                not_after: None,
                actor: sealed("me"),
            }))
        }),
        1 => (key.clone(), fence.clone()).prop_map(|(n, f)| owner(n, f, OwnerAction::Begin(None))),
        1 => (key.clone(), fence.clone()).prop_map(|(n, f)| owner(n, f, OwnerAction::Renew(Some(2000)))),
        1 => (key.clone(), fence.clone()).prop_map(|(n, f)| {
            let point = ProposedPoint { sealed: sealed("point"), digest: [1; 32], data_bytes: 5 };
            owner(n, f, OwnerAction::Checkpoint(point))
        }),
        3 => (key.clone(), fence.clone(), any::<u8>())
            .prop_map(|(n, f, body)| owner(n, f, OwnerAction::Complete(outcome(body)))),
        1 => (key.clone(), fence.clone())
            .prop_map(|(n, f)| owner(n, f, OwnerAction::Release(Some(sealed("evidence"))))),
        1 => (key.clone(), fence.clone()).prop_map(|(n, f)| owner(n, f, OwnerAction::Suspend(None))),
        1 => (key.clone(), any::<bool>()).prop_map(|(n, is_last)| closing(n, is_last)),
        1 => (key, 0u64..60).prop_map(|(n, version)| Command::Resolve(Box::new(Resolve {
            record: record(n),
            version: Position(version),
            verdict: Verdict::Completed(outcome(n)),
            by: Reconciler { actor: sealed("ops"), digest: [0; 32] },
            evidence: sealed("ledger"),
            request_id: Uuid([n; 16]),
        }))),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Apply(u64, Vec<Command>),
    Flush,
    Reopen,
    Install,
    /// The disk has no room: engines fail, and write nothing any more.
    Full,
    Room,
}

/// An engine on a disk that may be full. One that has met that is spent.
struct OnDisk {
    engine: MemoryEngine,
    is_full: Arc<AtomicBool>,
    is_spent: AtomicBool,
    is_unreadable: AtomicBool,
    /// The free bytes that it asks for.
    room: u64,
}

impl OnDisk {
    fn new(is_full: &Arc<AtomicBool>, room: u64) -> Self {
        let (is_spent, is_unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { engine: MemoryEngine::new(), is_full: Arc::clone(is_full), is_spent, is_unreadable, room }
    }
}

impl Engine for OnDisk {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.engine.get(key)
    }

    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError> {
        self.engine.scan(range)
    }

    fn write(&self, batch: Batch) -> Result<(), EngineError> {
        if self.is_full.load(Ordering::Relaxed) || self.is_spent.load(Ordering::Relaxed) {
            self.is_spent.store(true, Ordering::Relaxed);
            return Err(EngineError::Stopped { engine: "full" });
        }
        self.engine.write(batch)
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
        if self.is_unreadable.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped { engine: "full" });
        }
        self.engine.snapshot()
    }

    fn room_for(&self, _: u64) -> u64 {
        self.room
    }

    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError> {
        let loaded = self.engine.load_sorted(rows, Batch::new())?;
        self.write(finish).map(|()| loaded)
    }

    fn disk_bytes(&self) -> Result<u64, EngineError> {
        self.engine.disk_bytes()
    }

    fn retire(&self) {}

    fn put_aside(&self, _: &Path) {}
}

struct Engines {
    is_full: Arc<AtomicBool>,
    made: AtomicU64,
}

impl OpenEngine for Engines {
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError> {
        self.fresh()
    }

    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(OnDisk::new(&self.is_full, 0)))
    }

    fn adopt(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Where stores of a test live: below the reserve when full, but not so far that nothing is tried.
struct Place {
    disk: FaultDisk,
    engines: Arc<Engines>,
}

impl Place {
    fn new() -> Self {
        let engines = Engines { is_full: Arc::default(), made: AtomicU64::new(0) };
        Self { disk: FaultDisk::new(), engines: Arc::new(engines) }
    }

    fn store(&self, engine: Arc<dyn Engine>) -> Records {
        let store = Records::open(engine).unwrap();
        store.mind_room(Arc::new(Space::new(Arc::new(self.disk.clone()), Path::new("/d"), 1000)), self.engines.clone());
        store
    }

    fn set_full(&self, is_full: bool) {
        self.engines.is_full.store(is_full, Ordering::Relaxed);
        self.disk.set_capacity(is_full.then_some(700));
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..1500, proptest::collection::vec(command(), 0..4)).prop_map(|(ms, commands)| Step::Apply(ms, commands)),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Install),
        1 => Just(Step::Full),
        1 => Just(Step::Room),
    ]
}

fn opening() -> Entry {
    let wrapped = Wrapped { wrapping_id: 1, bytes: Blob(vec![7; 72].into()) };
    let limits = Limits { swept_per_entry_max: 2, ..Limits::default() };
    let init = Init {
        lineage_id: LineageId([1; 16]),
        cluster_id: ClusterId([2; 16]),
        cluster_name: "semel".into(),
        downstream_secret: wrapped.clone(),
        feature_level: 1,
        limits,
        policy: Policy::default(),
        first_token: None,
    };
    let (root, data_key) = (wrapped.clone(), wrapped.clone());
    let outer = OuterKey { id: 1, check: [3; 8] };
    let init = SealedInit { init, outer, root: root.clone(), data_key: data_key.clone() };
    let open = |name: &str| {
        let opened = TenantOpened { tenant: Tenant::parse(name).unwrap(), index_key: wrapped.clone() };
        let keys = SealedTenantOpened { opened, root: root.clone(), data_key: data_key.clone() };
        Arc::new(Command::SealedTenantOpened(Box::new(keys)))
    };
    let commands = vec![Arc::new(Command::SealedInit(Box::new(init))), open("aa"), open("b")];
    Entry { time: Time(1_000_000), commands }
}

fn rows(engine: &dyn Engine) -> Vec<(Bytes, Bytes)> {
    let mark = StoreKey::Meta(META_MARK.into()).encode();
    let all = engine.scan(&KeyRange::all()).unwrap().map(Result::unwrap);
    all.filter(|(key, _)| key[..] != mark[..]).collect()
}

fn engine(records: &Records) -> Arc<dyn Engine> {
    Arc::clone(&records.inner.read().overlay.engine)
}

fn run(steps: Vec<Step>) {
    let mut plain = MemoryState::default();
    let place = Place::new();
    let mut store = place.store(place.engines.fresh().unwrap());
    let mut index = 0;
    let mut time = 1_000_000;
    let mut apply = |store: &Records, plain: &mut MemoryState, entry: Entry| {
        index += 1;
        let mark = Mark { index, term: 1, node: 1, membership: Bytes::from_static(b"members") };
        assert_eq!(store.apply(mark, Some(&entry)), records::apply(plain, &entry));
    };
    apply(&store, &mut plain, opening());
    for step in steps {
        match step {
            Step::Apply(ms, commands) => {
                time += ms;
                let commands = commands.into_iter().map(Arc::new).collect();
                apply(&store, &mut plain, Entry { time: Time(time), commands });
            }
            Step::Flush => store.flush_or_put_off().unwrap(),
            Step::Full => place.set_full(true),
            Step::Room => place.set_full(false),
            Step::Reopen => {
                place.set_full(false);
                store.flush_or_put_off().unwrap();
                store = place.store(engine(&store));
            }
            Step::Install => {
                place.set_full(false);
                store.flush_or_put_off().unwrap();
                let view = store.snapshot().unwrap();
                assert_eq!(view.mark, store.mark());
                let mut rows = view.rows.into_scan().unwrap();
                let next = Records::open(Arc::new(MemoryEngine::new())).unwrap();
                next.install(place.engines.fresh().unwrap(), &mut rows).unwrap();
                assert_eq!(next.mark(), store.mark());
                drop(rows);
                store = place.store(engine(&next));
            }
        }
        let first = plain.due(Time(u64::MAX), 1).first().map(|due| due.0);
        assert_eq!(store.next_due(), first.into_iter().chain(audit::cluster_due(plain.globals())).min());
    }
    place.set_full(false);
    store.flush_or_put_off().unwrap();
    assert!(!store.is_put_off() && store.is_flushed());
    let dump: Vec<(Bytes, Bytes)> = plain.dump().into_iter().map(|(key, value)| (key.into(), value)).collect();
    assert_eq!(rows(&*engine(&store)), dump, "R10: the same log, the same bytes");
    check(dump).unwrap();
}

/// A member may apply what is decided before its own log has it on the disk.
#[test]
fn what_the_log_does_not_hold_durably_reaches_no_engine() {
    let store = Records::open(Arc::new(MemoryEngine::new())).unwrap();
    let durable = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&durable);
    store.follow(Arc::new(move || seen.load(Ordering::Relaxed)));
    assert!(store.flush().is_ok(), "nothing was applied");
    let mark = |index| Mark { index, term: 1, node: 1, membership: Bytes::from_static(b"members") };
    store.apply(mark(1), Some(&opening()));
    store.flush().unwrap();
    assert!(!store.is_flushed());
    assert_eq!(Records::open(engine(&store)).unwrap().mark(), Mark::default());
    // A blank entry moves the mark alone: that counts too.
    store.apply(mark(2), None);
    durable.store(2, Ordering::Relaxed);
    assert_eq!(store.snapshot().unwrap().mark, mark(1), "a flush is written as of when it was begun");
    assert_eq!(Records::open(engine(&store)).unwrap().mark(), mark(1));
    durable.store(3, Ordering::Relaxed);
    assert_eq!(store.snapshot().unwrap().mark, mark(2));
    assert!(store.is_flushed());
}

/// Some engines write in the background, meet the full disk there, and say so at the next write, when there is room again.
#[test]
fn an_engine_that_stopped_while_the_disk_was_full_is_replaced_however_late_it_says_so() {
    let place = Place::new();
    let first = Arc::new(OnDisk::new(&place.engines.is_full, 0));
    let store = place.store(first.clone());
    let mark = Mark { index: 1, term: 1, node: 1, membership: Bytes::from_static(b"members") };
    store.apply(mark, Some(&opening()));
    place.set_full(true);
    assert!(store.room_for.get().unwrap().space.look());
    first.is_spent.store(true, Ordering::Relaxed);
    place.set_full(false);
    store.flush_or_put_off().unwrap();
    assert!(store.is_put_off(), "it has said that it stopped");
    store.flush_or_put_off().unwrap();
    assert!(!store.is_put_off() && store.is_flushed());
    // The next one has met no full disk: what stops it is something else.
    place.engines.is_full.store(true, Ordering::Relaxed);
    let mark = Mark { index: 2, term: 1, node: 1, membership: Bytes::from_static(b"members") };
    store.apply(mark, None);
    assert!(store.flush_or_put_off().is_err());
}

/// sled can't be read any more once a write has failed: so nothing is tried without the room that the engine asks for.
#[test]
fn an_engine_gets_the_room_that_it_asks_for_or_is_not_written() {
    let place = Place::new();
    let engine = Arc::new(OnDisk::new(&place.engines.is_full, 10_000));
    let store = place.store(engine.clone());
    store.apply(Mark { index: 1, term: 1, node: 1, membership: Bytes::from_static(b"members") }, Some(&opening()));
    // Above the reserve, and no write would succeed.
    place.engines.is_full.store(true, Ordering::Relaxed);
    place.disk.set_capacity(Some(9_000));
    store.flush_or_put_off().unwrap();
    assert!(store.is_put_off() && !engine.is_spent.load(Ordering::Relaxed));
    let Err(refused) = store.snapshot() else { panic!("a snapshot begins with a flush") };
    assert!(is_full(&refused) && store.write_anew(&*place.engines).is_err_and(|error| is_full(&error)));
    assert!(!engine.is_spent.load(Ordering::Relaxed));
    place.engines.is_full.store(false, Ordering::Relaxed);
    place.disk.set_capacity(Some(11_000));
    store.flush_or_put_off().unwrap();
    assert!(!store.is_put_off() && store.is_flushed());
}

#[test]
fn a_spent_engine_that_can_not_be_read_is_the_end() {
    let place = Place::new();
    let engine = Arc::new(OnDisk::new(&place.engines.is_full, 0));
    let store = place.store(engine.clone());
    store.apply(Mark { index: 1, term: 1, node: 1, membership: Bytes::from_static(b"members") }, Some(&opening()));
    place.set_full(true);
    store.flush_or_put_off().unwrap();
    engine.is_unreadable.store(true, Ordering::Relaxed);
    store.flush_or_put_off().unwrap();
    assert!(store.is_put_off() && engine.is_spent.load(Ordering::Relaxed));
    place.set_full(false);
    assert!(store.flush_or_put_off().is_err());
}

/// A claim of a record, as a process that begins at once sends it.
fn claim_of(record: RecordRef, n: u8, lease_ms: Option<u32>) -> Command {
    Command::Claim(Box::new(Claim {
        record,
        id: sealed("id"),
        fingerprints: Fingerprints { keyed: vec![(1, [n; 32])], sealed: sealed("fp") },
        attempt_id: Uuid([n; 16]),
        lease_ms,
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: None,
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: sealed("me"),
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_overlay_holds_what_plain_maps_hold(steps in proptest::collection::vec(step(), 1..60)) {
        run(steps);
    }
}

#[test]
fn lists_merge_the_overlay_with_the_engine() {
    let store = Records::open(Arc::new(MemoryEngine::new())).unwrap();
    let mut index = 0;
    let mut apply = |commands: Vec<Command>| {
        index += 1;
        let time = Time(1_000_000 + index);
        let entry = Entry { time, commands: commands.into_iter().map(Arc::new).collect() };
        store.apply(Mark { index, ..Mark::default() }, Some(&entry))
    };
    apply(opening().commands.iter().map(|command| (**command).clone()).collect());
    let claim = |n: u8| claim_of(RecordRef { record: KeyedHash([n; 16]), ..record(1) }, n, None);
    apply(vec![claim(1), claim(3), claim(5)]);
    store.flush().unwrap();
    apply(vec![claim(2), claim(4)]);
    let tenant = record(1).tenant;
    let seen = |max: usize| {
        let state = store.read();
        let mut all = Vec::new();
        let mut after: Option<RecordRef> = None;
        loop {
            let page = state.heads(&tenant, None, after.as_ref(), max);
            let Some((last, _)) = page.last() else { return all };
            after = Some(last.clone());
            all.extend(page.into_iter().map(|(record, _)| record.record.0[0]));
        }
    };
    assert_eq!((seen(1), seen(2), seen(100)), (vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5]));
    let state = store.read();
    let list = crate::records::state::SinceList::InProgress;
    let first = state.since(&tenant, list, None, 3);
    let (at, record) = (first[2].0, first[2].1.clone());
    let rest = state.since(&tenant, list, Some((at, &record)), 100);
    let order: Vec<u8> = first.iter().chain(&rest).map(|(_, record, _)| record.record.0[0]).collect();
    assert_eq!(order, [1, 3, 5, 2, 4], "oldest first");
}

#[test]
fn a_removed_deadline_hides_the_engines_whatever_the_lengths_of_names() {
    let store = Records::open(Arc::new(MemoryEngine::new())).unwrap();
    let mut plain = MemoryState::default();
    let mut index = 0;
    let mut apply = |time: u64, commands: Vec<Command>| {
        index += 1;
        let entry = Entry { time: Time(time), commands: commands.into_iter().map(Arc::new).collect() };
        let answers = store.apply(Mark { index, ..Mark::default() }, Some(&entry));
        assert_eq!(answers, records::apply(&mut plain, &entry));
    };
    let claim = |n: u8| claim_of(record(n), n, Some(1000));
    apply(1_000_000, opening().commands.iter().map(|command| (**command).clone()).collect());
    // Of the tenants `aa` and `b`, due at one time: as texts they stand the other way round than as keys.
    apply(1_000_001, vec![claim(0), claim(1)]);
    store.flush().unwrap();
    // The opening took positions 1 to 4, the sweep 5: the first claim's fence is 6.
    apply(1_000_002, vec![owner(0, 6, OwnerAction::Complete(outcome(1)))]);
    apply(1_001_001, Vec::new());
    assert_eq!(store.next_due(), plain.due(Time(u64::MAX), 1).first().map(|due| due.0));
    store.flush().unwrap();
    let dump: Vec<(Bytes, Bytes)> = plain.dump().into_iter().map(|(key, value)| (key.into(), value)).collect();
    assert_eq!(rows(&*engine(&store)), dump);
}

#[test]
fn a_full_disk_puts_flushes_off_and_a_spent_engine_is_replaced() {
    let place = Place::new();
    let store = place.store(place.engines.fresh().unwrap());
    let apply = |index: u64, entry: &Entry| {
        store.apply(Mark { index, term: 1, node: 1, membership: Bytes::from_static(b"members") }, Some(entry));
    };
    apply(1, &opening());
    store.flush_or_put_off().unwrap();
    // So little is free that nothing is tried.
    place.disk.set_capacity(Some(400));
    apply(2, &Entry { time: Time(2_000_000), commands: vec![Arc::new(claim_of(record(1), 1, Some(1000)))] });
    store.flush_or_put_off().unwrap();
    assert!(store.is_put_off() && store.flush().is_ok(), "the engine has not met the full disk");
    // It meets it, and what comes meanwhile is kept.
    place.set_full(true);
    for index in 3..6u64 {
        let claim = claim_of(record(index as u8), 1, Some(1000));
        apply(index, &Entry { time: Time(2_000_000 + index), commands: vec![Arc::new(claim)] });
        store.flush_or_put_off().unwrap();
        assert!(store.is_put_off() && !store.is_flushed());
    }
    assert!(store.flush().is_err() && store.snapshot().is_err());
    assert!(store.read().head(&record(1)).is_some() && store.read().head(&record(5)).is_some());
    let made = place.engines.made.load(Ordering::Relaxed);
    place.set_full(false);
    store.flush_or_put_off().unwrap();
    assert!(!store.is_put_off() && store.is_flushed());
    assert_eq!(place.engines.made.load(Ordering::Relaxed), made + 1);
    let found = Records::open(engine(&store)).unwrap();
    assert_eq!(found.mark().index, 5);
    assert!((1..6).filter(|n| *n != 2).all(|n| found.read().head(&record(n)).is_some()));
}
