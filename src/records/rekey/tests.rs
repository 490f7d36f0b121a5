use super::*;
use crate::{
    id::{Fence, KeyedHash, Uuid},
    records::{
        codec::Blob,
        command::{Fingerprints, RecordRef, TenantOpened},
        sealing::{SealedTenantOpened, tests::*},
    },
};

fn sealed(key_id: u32, byte: u8) -> Sealed {
    Sealed { key_id, bytes: Blob(vec![byte; 60].into()) }
}

fn rotated(id: u32, check: u8) -> Command {
    let outer = OuterKey { id, check: [check; 8] };
    Command::KeyRotated(KeyRotated { outer, actor: sealed(1, 1), detail: sealed(1, 2) })
}

fn rewrapped(roots: Vec<(Option<Tenant>, u32, u8)>) -> Command {
    let roots = roots.into_iter().map(|(of, id, byte)| Rewrapped { of, root: wrapped(id, byte) }).collect();
    Command::RootsRewrapped(RootsRewrapped { roots })
}

fn added(of: Option<Tenant>, id: u32) -> Command {
    let key = DataKey { id, key: wrapped(1, u8::try_from(id).unwrap()) };
    let (actor, detail) = (sealed(1, 1), sealed(1, 2));
    Command::DataKeyAdded(DataKeyAdded { of, key, keys_max: 3, actor, detail })
}

fn removed(of: Option<Tenant>, id: u32) -> Command {
    Command::DataKeyRemoved(DataKeyRemoved { of, id, actor: sealed(1, 1), detail: sealed(1, 2) })
}

fn claim(key_id: u32) -> Command {
    let record = RecordRef { tenant: acme(), operation: KeyedHash([1; 16]), record: KeyedHash([2; 16]) };
    let field = || sealed(key_id, 5);
    Command::Claim(Box::new(Claim {
        record,
        id: field(),
        fingerprints: Fingerprints { keyed: vec![(1, [3; 32])], sealed: field() },
        attempt_id: Uuid([4; 16]),
        lease_ms: Some(60_000),
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: Some(field()),
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: field(),
    }))
}

fn begun(key_id: u32) -> Command {
    let Command::Claim(claim) = claim(1) else { unreachable!("it is a claim") };
    let owner = OwnerCommand {
        record: claim.record,
        fence: Fence(1),
        action: OwnerAction::Begin(None),
        actor: sealed(key_id, 1),
    };
    Command::Owner(Box::new(owner))
}

fn kinds(world: &World) -> Vec<AuditKind> {
    let last = world.state.globals().audit.map_or(0, |chain| chain.sequence);
    (1..=last).map(|sequence| world.state.audit_row(None, sequence).unwrap().kind).collect()
}

fn opened_world() -> World {
    let mut world = World::new();
    world.ask(init()).unwrap();
    world.ask(opened(3, 30)).unwrap();
    world
}

#[test]
fn another_key_wraps_and_the_older_is_wanted_as_long_as_it_wraps_anything() {
    let mut world = opened_world();
    let keys = |world: &World| {
        let sealing = world.state.key_table().sealing.clone().unwrap();
        (sealing.current, sealing.keys.iter().map(|key| key.id).collect::<Vec<_>>())
    };
    assert_eq!(world.ask(rotated(3, 1)).unwrap_err().code, Code::WrongState, "another key of this id");
    world.ask(rotated(3, 9)).unwrap();
    world.ask(rotated(5, 5)).unwrap();
    world.ask(rotated(5, 5)).unwrap();
    assert_eq!(keys(&world), (5, vec![3, 5]));
    assert_eq!(kinds(&world), [AuditKind::KeyRotated]);
    // A tenant that is opened with the key of before is asked for again.
    let Command::SealedTenantOpened(other) = opened(3, 60) else { unreachable!("it is an opening") };
    let other = TenantOpened { tenant: Tenant::parse("b").unwrap(), ..other.opened.clone() };
    let other = SealedTenantOpened { opened: other, root: wrapped(3, 61), data_key: wrapped(1, 62) };
    assert_eq!(world.ask(Command::SealedTenantOpened(Box::new(other))).unwrap_err().code, Code::Unavailable);
    assert_eq!(world.ask(rewrapped(vec![(None, 3, 70)])).unwrap_err().code, Code::Unavailable);
    world.ask(rewrapped(vec![(Some(acme()), 5, 70)])).unwrap();
    assert_eq!(keys(&world), (5, vec![3, 5]));
    world.ask(rewrapped(vec![(None, 5, 71), (Some(acme()), 5, 72)])).unwrap();
    assert_eq!(keys(&world), (5, vec![5]));
    let ring = &world.state.key_table().ring;
    assert_eq!(ring[&Some(acme())].root, Some(wrapped(5, 70)), "wrapped by the current key already");
    assert_eq!(ring[&None].root, Some(wrapped(5, 71)));
}

#[test]
fn nothing_new_is_sealed_by_an_older_data_key() {
    let mut world = opened_world();
    for key_id in [0, 2] {
        assert_eq!(world.ask(claim(key_id)).unwrap_err().code, Code::Unavailable, "data key {key_id}");
    }
    world.ask(claim(1)).unwrap();
    assert_eq!(world.ask(added(Some(acme()), 3)).unwrap_err().code, Code::Unavailable, "it is not the next one");
    world.ask(added(Some(acme()), 2)).unwrap();
    assert_eq!(world.state.events.last().unwrap().1, Event::Rekeyed(Some(acme())));
    for command in [claim(1), begun(1), claim(1).by_token([9; 10])] {
        assert_eq!(world.ask(command).unwrap_err().code, Code::Unavailable);
    }
    world.ask(claim(2)).unwrap();
    assert_eq!(world.ask(begun(2)).unwrap_err().code, Code::StaleFence);
    world.ask(added(Some(acme()), 3)).unwrap();
    assert_eq!(world.ask(added(Some(acme()), 4)).unwrap_err().code, Code::WrongState, "as many as there may be");
    assert_eq!(world.ask(removed(Some(acme()), 3)).unwrap_err().code, Code::WrongState, "it seals");
    world.ask(removed(Some(acme()), 1)).unwrap();
    world.ask(removed(Some(acme()), 1)).unwrap();
    let ids: Vec<u32> = world.state.key_table().data[&Some(acme())].keys.iter().map(|key| key.id).collect();
    assert_eq!(ids, [2, 3]);
    let kinds = kinds(&world);
    assert_eq!(kinds, [AuditKind::KeyRotated, AuditKind::KeyRotated, AuditKind::DataKeyRemoved]);
    assert_eq!(world.ask(added(Some(Tenant::parse("b").unwrap()), 1)).unwrap_err().code, Code::WrongState);
}

/// A cluster that was formed without keys: from the entry on nothing in clear is taken, and tenants keep their index keys.
#[test]
fn what_comes_after_sealing_was_enabled_is_sealed() {
    let mut world = World::new();
    let Command::SealedInit(sealed_init) = init() else { unreachable!("it is sealed") };
    world.ask(Command::Init(Box::new(sealed_init.init.clone()))).unwrap();
    let plain = TenantOpened { tenant: acme(), index_key: wrapped(0, 1) };
    world.ask(Command::TenantOpened(plain.clone())).unwrap();
    world.ask(claim(0)).unwrap();
    assert_eq!(world.ask(rotated(3, 9)).unwrap_err().code, Code::WrongState);
    let enabled = Command::SealingEnabled(Box::new(SealingEnabled {
        outer: OuterKey { id: 3, check: [9; 8] },
        root: wrapped(3, 1),
        data_key: wrapped(1, 2),
        downstream_secret: wrapped(1, 3),
        actor: sealed(1, 4),
        detail: sealed(1, 5),
    }));
    world.ask(enabled.clone()).unwrap();
    world.ask(enabled).unwrap();
    assert_eq!(kinds(&world), [AuditKind::SealingEnabled]);
    assert_eq!(world.state.globals().formed.as_ref().unwrap().downstream_secret, wrapped(1, 3));
    assert_eq!(world.ask(Command::TenantOpened(plain)).unwrap_err().code, Code::Unavailable);
    for key_id in [0, 1] {
        assert_eq!(world.ask(claim(key_id)).unwrap_err().code, Code::Unavailable, "it has no keys yet");
    }
    assert_eq!(world.ask(opened(4, 40)).unwrap_err().code, Code::Unavailable);
    world.ask(opened(3, 40)).unwrap();
    world.ask(opened(3, 50)).unwrap();
    assert_eq!(world.state.tenant(&acme()).unwrap().index_key, wrapped(1, 40));
    assert_eq!(world.ask(claim(0)).unwrap_err().code, Code::Unavailable);
    world.ask(claim(1)).unwrap();
    let ids = |of: &Option<Tenant>| world.state.key_table().data[of].keys.iter().map(|key| key.id).collect::<Vec<_>>();
    assert_eq!((ids(&None), ids(&Some(acme()))), (vec![0, 1], vec![0, 1]));
}

/// The bytes of every command of this module, and of what they leave.
#[test]
fn the_format_of_other_keys_stays_as_it_is() {
    let mut world = opened_world();
    world.log.clear();
    for command in [
        rotated(5, 5),
        rewrapped(vec![(None, 5, 70), (Some(acme()), 5, 71)]),
        added(Some(acme()), 2),
        removed(Some(acme()), 1),
    ] {
        world.ask(command).unwrap();
    }
    world.is_golden("rekey.hex");
    let mut world = World::new();
    let Command::SealedInit(sealed_init) = init() else { unreachable!("it is sealed") };
    world.ask(Command::Init(Box::new(sealed_init.init.clone()))).unwrap();
    world.log.clear();
    let enabled = SealingEnabled {
        outer: OuterKey { id: 3, check: [9; 8] },
        root: wrapped(3, 1),
        data_key: wrapped(1, 2),
        downstream_secret: wrapped(1, 3),
        actor: sealed(1, 4),
        detail: sealed(1, 5),
    };
    world.ask(Command::SealingEnabled(Box::new(enabled))).unwrap();
    world.is_golden("sealing-enabled.hex");
}
