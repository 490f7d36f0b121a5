//! Sealed backups and their key rings: what fits, what is refused by name, and what is closed.

use super::{
    super::keyed::{Joining, KeyringError, Keys},
    *,
};
use crate::records::{
    check::check,
    command::Token,
    sealing::{OuterKey, RingState, SealedInit, SealedTenantOpened},
};

const LINEAGE: LineageId = LineageId([0x11; 16]);
const NOW: Time = Time(1_767_225_900_000);

fn wrapped(wrapping_id: u32, byte: u8) -> Wrapped {
    Wrapped { wrapping_id, bytes: codec::Blob(vec![byte; 72].into()) }
}

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

/// A sealed state with these tenants.
fn sealed(tenants: &[&str]) -> MemoryState {
    let init = Init {
        lineage_id: LINEAGE,
        cluster_id: ClusterId([0x22; 16]),
        cluster_name: "golden".into(),
        downstream_secret: wrapped(1, 9),
        feature_level: 1,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    };
    let outer = OuterKey { id: 1, check: [1; 8] };
    let init = SealedInit { init, outer, root: wrapped(1, 2), data_key: wrapped(1, 3) };
    let mut commands = vec![Command::SealedInit(Box::new(init))];
    commands.extend(tenants.iter().map(|name| {
        let opened = TenantOpened { tenant: tenant(name), index_key: wrapped(1, 4) };
        let keys = SealedTenantOpened { opened, root: wrapped(1, 5), data_key: wrapped(1, 6) };
        Command::SealedTenantOpened(Box::new(keys))
    }));
    let commands = commands.into_iter().map(Arc::new).collect();
    let mut state = MemoryState::default();
    apply(&mut state, &Entry { time: Time(1_767_225_600_000), commands });
    state
}

fn keys(state: &MemoryState) -> Keys {
    let mut keys = Keys::default();
    for (key, value) in state.dump().into_iter().filter(|(key, _)| source::belongs(key)) {
        keys.see(&StoreKey::decode(&key).unwrap(), &value).unwrap();
    }
    keys
}

fn ring(state: &MemoryState) -> Ring {
    Ring::decode(&Ring::of(LINEAGE, state.globals().position, state.key_table()).encode()).unwrap()
}

/// What is restored of a backup of this state.
fn restored(state: &MemoryState, joining: &Joining) -> MemoryState {
    let rows: Vec<(Bytes, Bytes)> = state
        .dump()
        .into_iter()
        .filter(|(key, _)| source::belongs(key))
        .map(|(key, value)| (key.into(), value))
        .collect();
    let rows: Result<Vec<_>, ()> = joining.rows(rows.into_iter().map(Ok)).collect();
    let rows = rows.unwrap();
    assert!(rows.is_sorted_by(|(one, _), (other, _)| one < other), "a snapshot has its rows in order");
    check(rows.clone()).unwrap();
    MemoryState::load(rows).unwrap()
}

#[test]
fn a_backup_holds_no_ring_and_with_its_ring_it_is_the_state() {
    let state = sealed(&["acme", "b"]);
    assert!(keys(&state).table.ring.is_empty() && keys(&state).tenants.len() == 2);
    let joining = Joining::of(&keys(&state), LINEAGE, Some(&ring(&state)), &[], false, NOW).unwrap();
    assert_eq!(restored(&state, &joining).dump(), state.dump());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let state = sealed(&["acme", "b"]);
    let of = |ring: Option<&Ring>, close| Joining::of(&keys(&state), LINEAGE, ring, &[], close, NOW).unwrap_err();
    assert_eq!(of(None, false), KeyringError::Needed);
    let other = Ring { lineage_id: LineageId([3; 16]), ..ring(&state) };
    assert_eq!(of(Some(&other), true), KeyringError::Lineage);
    let without = |gone: Option<Tenant>| {
        let mut ring = ring(&state);
        ring.entries.retain(|entry| entry.tenant != gone);
        ring
    };
    assert_eq!(of(Some(&without(None)), true), KeyringError::NoCluster);
    let said = of(Some(&without(Some(tenant("b")))), false).to_string();
    assert_eq!(said, "the key ring has no key of tenant b; --close-missing closes what it can't open, for good");
    let mut rotated = ring(&state);
    rotated.entries[0].wrapped_root.as_mut().unwrap()[3] = 2;
    assert_eq!(of(Some(&rotated), true), KeyringError::Unknown(2));
    // A backup that is not sealed needs none.
    let plain = MemoryState::default();
    assert!(restored(&plain, &Joining::of(&keys(&plain), LINEAGE, None, &[], false, NOW).unwrap()) == plain);
}

#[test]
fn what_the_ring_cannot_open_is_closed_before_anything_is_served() {
    let mut state = sealed(&["acme", "b", "c"]);
    for (id, name) in [(1, "acme"), (2, "c")] {
        state.put_token(Token {
            id: [id; 10],
            hash: [0; 32],
            tenant: Some(tenant(name)),
            permissions: 1,
            created_at: NOW,
            expires_at: None,
            revoked_at: None,
            created: Position(1),
            scope: Sealed { key_id: 1, bytes: codec::Blob(Bytes::from_static(b"sealed")) },
        });
    }
    let mut old = ring(&state);
    for entry in &mut old.entries {
        if entry.tenant == Some(tenant("acme")) {
            (entry.state, entry.wrapped_root, entry.at_ms) = (RingState::Shredded, None, 5);
        }
    }
    old.entries.retain(|entry| entry.tenant != Some(tenant("b")));
    let of = |name: &str, state, root: Option<Vec<u8>>| RingEntry {
        tenant: Some(tenant(name)),
        state,
        at_ms: 6,
        wrapped_root: root,
    };
    // Of after the backup: one that was opened, and one that was opened and shredded.
    old.entries.push(of("later", RingState::Open, Some(vec![0; 76])));
    old.entries.push(of("never", RingState::Shredded, None));
    old.entries.last_mut().unwrap().at_ms = 7;
    old.entries.iter_mut().filter(|entry| entry.tenant == Some(tenant("later"))).for_each(|entry| {
        entry.wrapped_root.as_mut().unwrap()[3] = 1;
    });
    let joining = Joining::of(&keys(&state), LINEAGE, Some(&old), &[], true, NOW).unwrap();
    let mut restored = restored(&state, &joining);
    for (name, is_closed, at) in [("acme", true, 5), ("b", true, NOW.0), ("c", false, 1_767_225_600_000)] {
        let of = Some(tenant(name));
        assert_eq!(restored.tenant(&tenant(name)).unwrap().closed, is_closed, "{name}");
        assert_eq!(restored.key_table().data.contains_key(&of), !is_closed, "{name}");
        assert_eq!(restored.key_table().ring[&of].at.0, at, "{name}");
    }
    assert!(restored.token(&[1; 10]).is_none() && restored.token(&[2; 10]).is_some());
    assert!(!restored.key_table().ring.contains_key(&Some(tenant("later"))));
    // Neither a closed name nor one that was shredded after the backup is opened again.
    for (name, is_open) in [("acme", false), ("b", false), ("never", false), ("later", true)] {
        let opened = TenantOpened { tenant: tenant(name), index_key: wrapped(1, 4) };
        let command = SealedTenantOpened { opened, root: wrapped(1, 5), data_key: wrapped(1, 6) };
        let commands = vec![Arc::new(Command::SealedTenantOpened(Box::new(command)))];
        let answer = apply(&mut restored, &Entry { time: NOW, commands }).pop().unwrap().answer;
        assert_eq!(answer.is_ok(), is_open, "{name}");
    }
}

/// A ring of after another key has taken over: the restoring node has that key, and the backup need not know it.
#[test]
fn a_later_ring_may_be_wrapped_by_a_later_key() {
    let state = sealed(&["acme", "b"]);
    let mut later = ring(&state);
    for entry in &mut later.entries {
        entry.wrapped_root.as_mut().unwrap()[3] = 2;
    }
    let of = |held: &[OuterKey]| Joining::of(&keys(&state), LINEAGE, Some(&later), held, false, NOW);
    let two = OuterKey { id: 2, check: [2; 8] };
    assert_eq!(of(&[OuterKey { id: 3, check: [3; 8] }]).unwrap_err(), KeyringError::Unknown(2));
    let restored = restored(&state, &of(&[two]).unwrap());
    let sealing = restored.key_table().sealing.clone().unwrap();
    assert_eq!((sealing.current, &sealing.keys[..]), (2, &[two][..]), "the older one is wanted no more");
    // Half way, the cluster's own root key was first.
    later.entries[1].wrapped_root.as_mut().unwrap()[3] = 1;
    let joining = Joining::of(&keys(&state), LINEAGE, Some(&later), &[two], false, NOW).unwrap();
    let sealing = joining.table.sealing.clone().unwrap();
    assert_eq!((sealing.current, sealing.keys.iter().map(|key| key.id).collect::<Vec<_>>()), (2, vec![1, 2]));
}

/// What was closed by a restore is emptied by the cluster that comes of it.
#[test]
fn a_tenant_that_a_restore_closes_is_emptied() {
    let state = sealed(&["acme", "b"]);
    let mut later = ring(&state);
    let of_acme = later.entries.iter_mut().find(|entry| entry.tenant == Some(tenant("acme"))).unwrap();
    (of_acme.state, of_acme.wrapped_root) = (RingState::Shredded, None);
    let joining = Joining::of(&keys(&state), LINEAGE, Some(&later), &[], false, NOW).unwrap();
    let mut restored = restored(&state, &joining);
    let closing = |state: &MemoryState| state.key_table().closings[&tenant("acme")].clone();
    assert!(closing(&restored).destroyed.is_some() && closing(&restored).emptied.is_none());
    apply(&mut restored, &Entry { time: NOW, commands: vec![] });
    assert_eq!(closing(&restored).emptied, Some(restored.globals().position));
    check(restored.dump()).unwrap();
    // A backup of it says so itself: nothing is said twice.
    let again = Joining::of(&keys(&restored), LINEAGE, Some(&ring(&restored)), &[], false, NOW).unwrap();
    assert_eq!(super::keyed::restored(&restored, &again).dump(), restored.dump());
}
