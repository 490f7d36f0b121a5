use super::*;
use crate::{
    id::{Fence, KeyedHash},
    records::{
        command::{
            Claim, Command, Fingerprints, Forget, Init, Investigate, OwnerAction, OwnerCommand, PolicySet,
            ProposedOutcome, Reconciler, RecordRef, Resolve, TenantOpened, Token, TokenCreated, Verdict,
        },
        policy::{Limits, PolicyPatch},
        sealing::{SealedInit, tests::*},
    },
};

fn sealed(byte: u8) -> Sealed {
    Sealed { key_id: 1, bytes: Blob(vec![byte; 60].into()) }
}

fn record(n: u8) -> RecordRef {
    RecordRef { tenant: acme(), operation: KeyedHash([n % 2; 16]), record: KeyedHash([n; 16]) }
}

fn claim(n: u8) -> Command {
    Command::Claim(Box::new(Claim {
        record: record(n),
        id: sealed(n),
        fingerprints: Fingerprints { keyed: vec![(1, [n; 32])], sealed: sealed(n) },
        attempt_id: Uuid([n; 16]),
        lease_ms: Some(60_000),
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: Some(sealed(n)),
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: sealed(n),
    }))
}

fn outcome(bytes: usize) -> ProposedOutcome {
    let body = Sealed { key_id: 1, bytes: Blob(vec![7; bytes].into()) };
    ProposedOutcome { meta: sealed(8), body, digest: [9; 32], body_bytes: u32::try_from(bytes).unwrap() }
}

fn owner(n: u8, fence: u64, action: OwnerAction) -> Command {
    Command::Owner(Box::new(OwnerCommand { record: record(n), fence: Fence(fence), action, actor: sealed(n) }))
}

fn policy() -> Command {
    Command::PolicySet(Box::new(PolicySet {
        tenant: acme(),
        operation: Some(KeyedHash([1; 16])),
        patch: PolicyPatch::default(),
        actor: sealed(1),
        detail: sealed(2),
    }))
}

fn token() -> Command {
    let token = Token {
        id: [1; 10],
        hash: [2; 32],
        tenant: Some(acme()),
        permissions: 1,
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
        created: Position::default(),
        scope: sealed(3),
    };
    let (actor, detail) = (sealed(4), sealed(5));
    Command::TokenCreated(Box::new(TokenCreated { token, tenant_max: 9, total_max: 9, actor, detail }))
}

fn closed() -> Command {
    let (request_id, older_copies_stay) = (Uuid([6; 16]), false);
    let (actor, detail) = (sealed(6), sealed(7));
    Command::TenantClosed(Box::new(TenantClosed { tenant: acme(), request_id, older_copies_stay, actor, detail }))
}

fn destroyed() -> Command {
    let (actor, detail) = (sealed(8), sealed(9));
    Command::TenantKeysDestroyed(Box::new(TenantKeysDestroyed { tenant: acme(), actor, detail }))
}

/// A tenant with records in several states, whose sweep deletes two records at once.
fn lived() -> World {
    let mut world = World::new();
    let Command::SealedInit(sealed_init) = init() else { panic!("it is sealed") };
    let limits = Limits { swept_per_entry_max: 16, ..Limits::default() };
    let init = Init { limits, ..sealed_init.init.clone() };
    world.ask(Command::SealedInit(Box::new(SealedInit { init, ..*sealed_init }))).unwrap();
    world.ask(opened(3, 30)).unwrap();
    for n in 1..=5 {
        world.ask(claim(n)).unwrap();
    }
    let fence = |world: &World, n: u8| world.state.head(&record(n)).unwrap().grant().unwrap().fence().0;
    let (one, two, three) = (fence(&world, 1), fence(&world, 2), fence(&world, 3));
    world.ask(owner(1, one, OwnerAction::Complete(outcome(5000)))).unwrap();
    world.ask(owner(2, two, OwnerAction::Suspend(Some(sealed(1))))).unwrap();
    world.ask(owner(3, three, OwnerAction::Release(Some(sealed(2))))).unwrap();
    world.ask(owner(4, 1, OwnerAction::Begin(None))).unwrap_err();
    world.ask(policy()).unwrap();
    world.ask(token()).unwrap();
    world
}

#[test]
fn nothing_is_taken_for_a_tenant_that_is_closed() {
    let mut world = lived();
    let rows = world.state.globals().audit.map_or(0, |chain| chain.sequence);
    world.ask(closed()).unwrap();
    world.ask(closed()).unwrap();
    assert_eq!(world.state.globals().audit.unwrap().sequence, rows + 1, "a repeat leaves no row");
    let (by, version) = (Reconciler { actor: sealed(1), digest: [1; 32] }, Position(9));
    let commands = [
        claim(1),
        claim(9),
        owner(4, 9, OwnerAction::Complete(outcome(5))),
        Command::Investigate(Box::new(Investigate {
            record: record(2),
            lease_ms: None,
            version: None,
            by: by.clone(),
        })),
        Command::Resolve(Box::new(Resolve {
            record: record(2),
            version,
            verdict: Verdict::NoEffect(()),
            by,
            evidence: sealed(1),
            request_id: Uuid([1; 16]),
        })),
        Command::Forget(Box::new(Forget { record: record(1), actor: sealed(1), reason: None })),
        policy(),
        token(),
        opened(3, 30),
        opened(4, 50),
    ];
    for when in ["closed", "keys destroyed", "emptied"] {
        for command in &commands {
            let by_token = command.clone().by_token([1; 10]);
            assert_eq!(world.ask(command.clone()).unwrap_err().code, Code::Forbidden, "{when}: {command:?}");
            assert_eq!(world.ask(by_token).unwrap_err().code, Code::Forbidden, "{when}: {command:?}");
        }
        world.ask(destroyed()).unwrap();
    }
    assert!(is_closed(&world.state, &acme()) && world.state.token(&[1; 10]).is_some());
}

#[test]
fn its_rows_go_step_by_step_and_its_keys_at_once() {
    let mut world = lived();
    let dumped = |world: &World, prefix: u8| world.state.dump().keys().filter(|key| key[0] == prefix).count();
    assert_eq!((dumped(&world, 1), dumped(&world, 2)), (5, 1));
    assert_eq!(world.ask(destroyed()).unwrap_err().code, Code::WrongState);
    world.ask(closed()).unwrap();
    assert_eq!(dumped(&world, 1), 5, "the entry that closes it has swept before");
    world.ask(destroyed()).unwrap();
    assert_eq!(dumped(&world, 1), 3);
    let table = world.state.key_table();
    let of = Some(acme());
    assert_eq!((table.ring[&of].state, &table.ring[&of].root), (RingState::Shredded, &None));
    assert!(!table.data.contains_key(&of));
    assert!(world.state.tenant(&acme()).unwrap().index_key == no_key());
    assert_eq!(world.state.events.last().unwrap().1, Event::Closed(acme()));
    for left in [1, 0] {
        world.entry(vec![]);
        assert_eq!(dumped(&world, 1), left);
        assert!(world.state.key_table().closings[&acme()].emptied.is_none());
    }
    world.entry(vec![]);
    let closing = world.state.key_table().closings[&acme()].clone();
    assert_eq!(closing.emptied, Some(world.state.globals().position));
    for prefix in [1, 2, 4, 5, 6, 8] {
        assert_eq!(dumped(&world, prefix), 0, "keys of prefix {prefix}");
    }
    // The audit chain stays, and its entry of the deadline index.
    assert!(dumped(&world, 7) > 3 && dumped(&world, 3) == 1);
    assert_eq!(world.state.globals().total, Default::default());
    let before = world.state.dump();
    world.ask(destroyed()).unwrap();
    world.ask(closed()).unwrap();
    let positions = |dump: &std::collections::BTreeMap<Vec<u8>, bytes::Bytes>| dump.len();
    assert_eq!(positions(&world.state.dump()), positions(&before), "done is done");
}

#[test]
fn what_is_not_sealed_or_was_never_opened_is_not_closed() {
    let mut world = World::new();
    world.ask(init()).unwrap();
    assert_eq!(world.ask(closed()).unwrap_err().code, Code::NotFound);
    let mut plain = World::new();
    let Command::SealedInit(sealed_init) = init() else { panic!("it is sealed") };
    plain.ask(Command::Init(Box::new(sealed_init.init.clone()))).unwrap();
    plain.ask(Command::TenantOpened(TenantOpened { tenant: acme(), index_key: wrapped(0, 1) })).unwrap();
    assert_eq!(plain.ask(closed()).unwrap_err().code, Code::WrongState);
    assert_eq!(plain.ask(destroyed()).unwrap_err().code, Code::WrongState);
}

/// The bytes of both commands, and of what they leave.
#[test]
fn the_format_of_an_end_stays_as_it_is() {
    let mut world = lived();
    world.log.clear();
    world.ask(closed()).unwrap();
    world.ask(destroyed()).unwrap();
    for _ in 0..4 {
        world.entry(vec![]);
    }
    world.is_golden("closing.hex");
}
