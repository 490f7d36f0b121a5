use proptest::prelude::*;

use super::*;
use crate::{
    id::{Fence, KeyedHash, Uuid},
    records::{
        command::{
            Claim, Command, Fingerprints, Investigate, OwnerAction, OwnerCommand, ProposedOutcome, ProposedPoint,
            Reconciler, Token, TokenCreated,
        },
        rekey::DataKeyAdded,
        sealing::{DataKey, tests::*},
    },
};

fn field(key_id: u32, byte: u8, bytes: usize) -> Sealed {
    Sealed { key_id, bytes: Blob(vec![byte; bytes].into()) }
}

fn record() -> RecordRef {
    RecordRef { tenant: acme(), operation: KeyedHash([1; 16]), record: KeyedHash([2; 16]) }
}

fn claim() -> Command {
    Command::Claim(Box::new(Claim {
        record: record(),
        id: field(1, 1, 60),
        fingerprints: Fingerprints { keyed: vec![(1, [3; 32])], sealed: field(1, 2, 70) },
        attempt_id: Uuid([4; 16]),
        lease_ms: Some(60_000),
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: Some(field(1, 3, 50)),
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: field(1, 4, 45),
    }))
}

fn owner(world: &World, action: OwnerAction) -> Command {
    let fence = world.state.head(&record()).and_then(|head| head.grant().map(|grant| grant.fence()));
    let (fence, actor) = (fence.unwrap_or(Fence(1)), field(1, 5, 45));
    Command::Owner(Box::new(OwnerCommand { record: record(), fence, action, actor }))
}

/// A record that has all that a record can have, one after the other, and at last the second data key.
fn lived(what: u8, body: usize) -> World {
    let mut world = World::new();
    world.ask(init()).unwrap();
    world.ask(opened(3, 30)).unwrap();
    world.ask(claim()).unwrap();
    let point = ProposedPoint { sealed: field(1, 6, 80), digest: [1; 32], data_bytes: 3 };
    world.ask(owner(&world, OwnerAction::Checkpoint(point))).unwrap();
    // A row with who came with a fence that is none.
    let stale =
        OwnerCommand { record: record(), fence: Fence(1), action: OwnerAction::Begin(None), actor: field(1, 15, 45) };
    world.ask(Command::Owner(Box::new(stale))).unwrap_err();
    match what {
        0 => {}
        1 => {
            world.ask(owner(&world, OwnerAction::Suspend(Some(field(1, 7, 55))))).unwrap();
            let by = Reconciler { actor: field(1, 8, 45), digest: [1; 32] };
            let asked = Investigate { record: record(), lease_ms: Some(60_000), version: None, by };
            world.ask(Command::Investigate(Box::new(asked))).unwrap();
        }
        2 => {
            let outcome =
                ProposedOutcome { meta: field(1, 9, 65), body: field(1, 10, body), digest: [9; 32], body_bytes: 7 };
            world.ask(owner(&world, OwnerAction::Complete(outcome))).unwrap();
        }
        _ => drop(world.ask(owner(&world, OwnerAction::Release(Some(field(1, 11, 55))))).unwrap()),
    }
    let key = DataKey { id: 2, key: wrapped(1, 9) };
    let (actor, detail) = (field(1, 12, 40), field(1, 13, 40));
    world.ask(Command::DataKeyAdded(DataKeyAdded { of: Some(acme()), key, keys_max: 9, actor, detail })).unwrap();
    world
}

/// All of its fields under data key 2, each longer by so many bytes.
fn resealed(world: &World, longer: usize) -> ResealedRecord {
    let head = world.state.head(&record()).unwrap();
    let fields = fields(&world.state, &record(), &head).into_iter().map(|(place, old)| {
        let new = field(2, old.bytes.0[0] + 100, old.len() + longer);
        Replacement::of(place, &old, new)
    });
    ResealedRecord { record: record(), version: head.version, fields: fields.collect() }
}

fn ask(world: &mut World, resealed: ResealedRecord) -> Result<Answer, Refusal> {
    world.ask(Command::Resealed(Box::new(Resealed::Record(resealed))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// In every state of a record all of its fields are replaced, and nothing else is: neither version nor any place in an index.
    #[test]
    fn all_fields_are_replaced_and_nothing_that_can_be_seen(what in 0..4_u8, large: bool, longer in 0..60_usize) {
        let mut world = lived(what, if large { 5000 } else { 50 });
        let before = world.state.head(&record()).unwrap();
        let rows = |world: &World, prefix: u8| {
            world.state.dump().into_keys().filter(|key| key[0] == prefix).collect::<Vec<_>>()
        };
        let places = [3, 4, 6].map(|prefix| rows(&world, prefix));
        let events = world.state.events.len();
        let all = resealed(&world, longer);
        let least = if what == 3 { 3 } else { 6 };
        prop_assert!(all.fields.len() >= least);
        ask(&mut world, all.clone()).unwrap();
        let after = world.state.head(&record()).unwrap();
        prop_assert_eq!((after.version, after.cleared, after.rows), (before.version, before.cleared, before.rows));
        prop_assert!(fields(&world.state, &record(), &after).iter().all(|(_, field)| field.key_id == 2));
        prop_assert_eq!(places, [3, 4, 6].map(|prefix| rows(&world, prefix)));
        prop_assert_eq!(world.state.events.len(), events, "nobody is told of a change");
        // Said again, it is no longer so.
        prop_assert_eq!(ask(&mut world, all).unwrap_err().code, Code::VersionChanged);
    }
}

#[test]
fn what_changed_meanwhile_is_left_alone() {
    for (what, spoil) in [
        (0, (|all: &mut ResealedRecord| all.version = Position(1)) as fn(&mut ResealedRecord)),
        (0, |all| all.fields[0].was = 0),
        (0, |all| all.fields[1].told = Blob(vec![9; 24].into())),
        (2, |all| all.fields.last_mut().unwrap().told = Blob(vec![9; 24].into())),
        (0, |all| all.fields[0].place = Place::Reason(())),
        (0, |all| all.fields[0].place = Place::RowDetail(0)),
        (0, |all| all.fields[0].place = Place::RowActor(63)),
        (1, |all| all.fields[0].place = Place::OutcomeBody(())),
    ] {
        let mut world = lived(what, 5000);
        let mut all = resealed(&world, 7);
        spoil(&mut all);
        let before = world.state.dump();
        assert_eq!(ask(&mut world, all.clone()).unwrap_err().code, Code::VersionChanged, "{all:?}");
        let after = world.state.dump();
        let changed = before.iter().filter(|(key, value)| after.get(*key) != Some(value)).count();
        assert_eq!((changed, before.len()), (1, after.len()), "the small state alone");
    }
    // Under an older key it is refused, as anything new is.
    let mut world = lived(0, 50);
    let mut all = resealed(&world, 7);
    all.fields[0].field.key_id = 1;
    assert_eq!(ask(&mut world, all).unwrap_err().code, Code::Unavailable);
}

#[test]
fn a_tokens_scope_is_replaced_where_it_is_what_was_looked_at() {
    let mut world = World::new();
    world.ask(init()).unwrap();
    let token = Token {
        id: [1; 10],
        hash: [2; 32],
        tenant: None,
        permissions: 16,
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
        created: Position::default(),
        scope: field(1, 3, 60),
    };
    let (actor, detail) = (field(1, 4, 40), field(1, 5, 40));
    let created = TokenCreated { token: token.clone(), tenant_max: 9, total_max: 9, actor, detail };
    world.ask(Command::TokenCreated(Box::new(created))).unwrap();
    let key = DataKey { id: 2, key: wrapped(1, 9) };
    let (actor, detail) = (field(1, 6, 40), field(1, 7, 40));
    world.ask(Command::DataKeyAdded(DataKeyAdded { of: None, key, keys_max: 9, actor, detail })).unwrap();
    let scope = Replacement::of(Place::Id(()), &token.scope, field(2, 8, 60));
    let resealed = |of, scope| Command::Resealed(Box::new(Resealed::Token(ResealedToken { id: [1; 10], of, scope })));
    let other = Replacement::of(Place::Id(()), &field(1, 9, 60), field(2, 8, 60));
    assert_eq!(world.ask(resealed(None, other)).unwrap_err().code, Code::VersionChanged);
    world.ask(resealed(None, scope.clone())).unwrap();
    assert_eq!(world.state.token(&[1; 10]).unwrap().scope, field(2, 8, 60));
    assert!(world.ask(resealed(Some(acme()), scope)).is_err(), "it is not that tenant's");
}

/// The bytes of the command in both of its forms.
#[test]
fn the_format_of_a_reseal_stays_as_it_is() {
    let mut world = lived(2, 40);
    world.log.clear();
    let all = resealed(&world, 3);
    ask(&mut world, all).unwrap();
    let scope = Replacement::of(Place::Id(()), &field(1, 9, 60), field(2, 8, 60));
    let token = ResealedToken { id: [1; 10], of: Some(acme()), scope };
    world.ask(Command::Resealed(Box::new(Resealed::Token(token)))).unwrap_err();
    world.is_golden("reseal.hex");
}
