use std::{fs, path::PathBuf, sync::Arc};

use super::*;
use crate::{
    id::{ClusterId, KeyedHash, LineageId, Tenant, Uuid},
    records::{
        apply,
        codec::{self, Blob},
        command::{Claim, Command, Entry, Fingerprints, Init, RecordRef, Sealed, TenantOpened, TokensDropped, Wrapped},
        memory::MemoryState,
        policy::{Limits, Policy},
    },
};

const NOW: Time = Time(1_767_225_600_000);

fn tenant() -> Tenant {
    Tenant::parse("acme").unwrap()
}

fn wrapped(byte: u8) -> Wrapped {
    Wrapped { wrapping_id: 0, bytes: Blob(vec![byte; 32].into()) }
}

fn token(id: u8) -> Token {
    Token {
        id: [id; 10],
        hash: [id; 32],
        tenant: Some(tenant()),
        permissions: 1,
        created_at: Time(0),
        expires_at: Some(NOW.plus_s(100)),
        revoked_at: None,
        created: Position(0),
        scope: Sealed::plain(b"scope".as_slice()),
    }
}

fn created(id: u8) -> Command {
    let (actor, detail) = (Sealed::plain(b"token:x".as_slice()), Sealed::plain(b"more".as_slice()));
    Command::TokenCreated(Box::new(TokenCreated { token: token(id), tenant_max: 2, total_max: 3, actor, detail }))
}

fn revoked(id: u8, of: Option<Tenant>) -> Command {
    let (actor, reason) = (Sealed::plain(b"token:x".as_slice()), Sealed::plain(b"gone".as_slice()));
    Command::TokenRevoked(Box::new(TokenRevoked { id: [id; 10], tenant: of, actor, reason }))
}

fn claim() -> Command {
    Command::Claim(Box::new(Claim {
        record: RecordRef { tenant: tenant(), operation: KeyedHash([1; 16]), record: KeyedHash([2; 16]) },
        id: Sealed::plain(b"id".as_slice()),
        fingerprints: Fingerprints { keyed: vec![(1, [3; 32])], sealed: Sealed::default() },
        attempt_id: Uuid([4; 16]),
        lease_ms: None,
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: None,
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: Sealed::plain(b"token:x".as_slice()),
    }))
}

/// A formed state with an open tenant, and the entries that were applied to it.
struct World {
    state: MemoryState,
    log: Vec<bytes::Bytes>,
    now: Time,
}

impl World {
    fn new() -> Self {
        let mut world = Self { state: MemoryState::default(), log: Vec::new(), now: NOW };
        let init = Init {
            lineage_id: LineageId([5; 16]),
            cluster_id: ClusterId([6; 16]),
            cluster_name: "semel".into(),
            downstream_secret: wrapped(7),
            feature_level: 1,
            limits: Limits::default(),
            policy: Policy::default(),
            first_token: None,
        };
        world.ask(Command::Init(Box::new(init))).unwrap();
        world.ask(Command::TenantOpened(TenantOpened { tenant: tenant(), index_key: wrapped(8) })).unwrap();
        world
    }

    fn ask(&mut self, command: Command) -> Result<Answer, Refusal> {
        let entry = Entry { time: self.now, commands: vec![Arc::new(command)] };
        self.log.push(codec::encode(&entry));
        apply(&mut self.state, &entry).pop().unwrap().answer
    }

    fn code(&mut self, command: Command) -> &'static str {
        self.ask(command).map_or_else(|refusal| refusal.code.as_str(), |_| "ok")
    }
}

#[test]
fn a_token_is_made_once_and_ended_once() {
    let mut world = World::new();
    let Ok(Answer::Token(made)) = world.ask(created(1)) else { panic!("a token") };
    assert_eq!((made.created_at, made.created.0), (NOW, world.state.globals().position.0));
    // Asked for again, perhaps for a little longer: what was made stays.
    world.now = NOW.plus_s(5);
    let mut again = token(1);
    again.expires_at = Some(NOW.plus_s(105));
    let Command::TokenCreated(same) = created(1) else { panic!() };
    let same = TokenCreated { token: again.clone(), ..*same };
    assert_eq!(world.ask(Command::TokenCreated(Box::new(same.clone()))), Ok(Answer::Token(Arc::clone(&made))));
    for other in [
        Token { hash: [9; 32], ..again.clone() },
        Token { permissions: 3, ..again.clone() },
        Token { scope: Sealed::plain(b"other".as_slice()), ..again.clone() },
    ] {
        let other = TokenCreated { token: other, ..same.clone() };
        assert_eq!(world.code(Command::TokenCreated(Box::new(other))), "wrong_state");
    }
    let stranger = Tenant::parse("globex").unwrap();
    assert_eq!(world.code(revoked(1, Some(stranger.clone()))), "not_found", "another tenant's is no token");
    assert_eq!(world.code(revoked(9, None)), "not_found");
    let Ok(Answer::Token(ended)) = world.ask(revoked(1, Some(tenant()))) else { panic!("a token") };
    assert_eq!(ended.revoked_at, Some(world.now));
    world.now = NOW.plus_s(9);
    assert_eq!(world.ask(revoked(1, None)), Ok(Answer::Token(ended)), "the first end stands");
    let unopened = TokenCreated { token: Token { id: [4; 10], tenant: Some(stranger), ..again }, ..same };
    assert_eq!(world.code(Command::TokenCreated(Box::new(unopened))), "forbidden");
}

#[test]
fn what_comes_after_a_revocation_or_the_end_does_not_take_place() {
    let mut world = World::new();
    world.ask(created(1)).unwrap();
    let by = |command: Command| command.by_token([1; 10]);
    assert_eq!(world.code(by(claim())), "ok");
    assert_eq!(world.code(claim().by_token([2; 10])), "unauthenticated", "nobody's token");
    world.ask(revoked(1, None)).unwrap();
    for command in [claim(), created(3), revoked(1, None)] {
        assert_eq!(world.code(by(command)), "unauthenticated");
    }
    assert!(world.state.token(&[3; 10]).is_none());
    world.ask(created(2)).unwrap();
    world.now = NOW.plus_s(100);
    assert_eq!(world.code(claim().by_token([2; 10])), "unauthenticated", "from its end on");
    // What no caller asks for is in nobody's name.
    assert!(matches!(
        Command::TokensDropped(TokensDropped { ids: vec![], ended_before: NOW }).by_token([1; 10]),
        Command::TokensDropped(_)
    ));
}

#[test]
fn tokens_are_bounded_and_dropped_long_after_their_end() {
    let mut world = World::new();
    world.ask(created(1)).unwrap();
    world.ask(created(2)).unwrap();
    assert_eq!(world.code(created(3)), "quota_exceeded");
    world.ask(revoked(1, None)).unwrap();
    assert_eq!(world.code(created(3)), "quota_exceeded", "an ended one still counts");
    let drop =
        |ended_before| Command::TokensDropped(TokensDropped { ids: vec![[1; 10], [2; 10], [9; 10]], ended_before });
    world.now = NOW.plus_s(1);
    world.ask(drop(NOW)).unwrap();
    assert!(world.state.token(&[1; 10]).is_some(), "it ended at that moment, not before");
    world.ask(drop(NOW.plus_ms(1))).unwrap();
    assert!(world.state.token(&[1; 10]).is_none() && world.state.token(&[2; 10]).is_some());
    // One that will end before that time has not ended yet.
    world.ask(drop(NOW.plus_s(1000))).unwrap();
    assert!(world.state.token(&[2; 10]).is_some());
    assert_eq!(world.code(created(3)), "ok");
}

/// The bytes of the commands and of the state that they make are the bytes that they were. `SEMEL_GOLDEN=write` writes
/// them: a changed one is a changed format, a reviewed decision.
#[test]
fn the_format_of_tokens_stays_as_it_is() {
    let mut world = World::new();
    world.ask(created(1)).unwrap();
    world.ask(claim().by_token([1; 10])).unwrap();
    world.ask(created(2).by_token([1; 10])).unwrap();
    world.ask(revoked(1, Some(tenant()))).unwrap();
    world.now = NOW.plus_s(1);
    world.ask(created(3)).unwrap_err();
    world.ask(Command::TokensDropped(TokensDropped { ids: vec![[1; 10]], ended_before: NOW.plus_ms(1) })).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines: Vec<String> = world.log.iter().skip(2).map(|entry| hex(entry)).collect();
    lines.extend(world.state.dump().iter().map(|(key, value)| format!("{} {}", hex(key), hex(value))));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/records-v1/tokens.hex");
    if std::env::var_os("SEMEL_GOLDEN").is_some_and(|write| write == "write") {
        fs::write(&path, lines.join("\n") + "\n").unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    assert!(golden.lines().eq(lines.iter().map(String::as_str)), "the bytes of tokens.hex are not what they were");
    for (line, entry) in golden.lines().zip(world.log.iter().skip(2)) {
        let decoded: Entry = codec::decode(entry).unwrap();
        assert_eq!(hex(&codec::encode(&decoded)), line);
    }
}

/// The worked example of FORMAT.md is what it says.
#[test]
fn the_worked_example_of_a_token_is_right() {
    let format = include_str!("../FORMAT.md");
    let example =
        format.split("## Example: a token ends").nth(1).and_then(|text| text.split("```hex\n").nth(1)).unwrap();
    let digits: Vec<u8> = example
        .split("```")
        .next()
        .unwrap()
        .lines()
        .flat_map(|line| line.split('|').next().unwrap_or_default().bytes())
        .filter_map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let told: Entry = codec::decode(&bytes).unwrap();
    let meant = Entry { time: NOW, commands: vec![Arc::new(revoked(1, Some(tenant())).by_token([1; 10]))] };
    assert_eq!(told, meant);
}
