use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, time::Duration};

use proptest::prelude::*;

use super::{
    cipher::{Cipher, Holder, Kind, Subject, aead, encrypted, field_bound, wrap_bound},
    key::Key,
    key_file::{KeyFile, KeyFileError, KeySource, generate, printed},
    keychain::Keychain,
    noted::{Noted, NotedError},
    *,
};
use crate::{
    disk::{Disk, fault::FaultDisk},
    fuzz::Target,
    id::{ClusterId, Fence, KeyedHash, LineageId, Tenant, Time, hex},
    records::{
        apply,
        codec::Blob,
        command::{Command, Entry, Init, Sealed, Wrapped},
        memory::MemoryState,
        policy::{Limits, Policy},
        rekey::{DataKeyAdded, KeyRotated, RootsRewrapped},
        sealing::OuterKey,
        state::State,
    },
};

const LINEAGE: LineageId = LineageId([0x11; 16]);

fn key() -> Key {
    let bytes: Vec<u8> = (0..32).collect();
    Key::of(&bytes).unwrap()
}

fn nonce() -> [u8; 24] {
    std::array::from_fn(|at| 0x40 + at as u8)
}

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

fn record(byte: u8) -> Subject {
    Subject::Record(KeyedHash([byte; 16]))
}

fn golden() -> BTreeMap<String, String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/seal-v1.txt");
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split_once(": ").unwrap()).map(|(name, hex)| (name.into(), hex.into())).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The golden file was made by another implementation of the cipher.
#[test]
fn the_bytes_of_format_1_stay_what_they_are() {
    let golden = golden();
    let acme = tenant("acme");
    let fields = [
        ("id", Some(&acme), Field::Id, 1, record(0x22), u64::MAX, &b"order-7"[..]),
        ("body", Some(&acme), Field::OutcomeBody, 7, record(0x22), 42, &br#"{"charged":100}"#[..]),
        ("audit", None, Field::AuditActor, 1, Subject::Audit, u64::MAX, &b"node:1"[..]),
        ("scope", Some(&acme), Field::TokenScope, 1, Subject::Token([5; 10]), u64::MAX, &b""[..]),
    ];
    for (name, of, field, key_id, subject, fence, plaintext) in fields {
        let bound = field_bound(LINEAGE, of, field.tag(), key_id, subject, fence);
        assert_eq!(hex(&bound), golden[&format!("bound {name}")], "{name}");
        let Some(sealed) = golden.get(&format!("sealed {name}")) else { continue };
        assert_eq!(hex(&encrypted(&aead(&key()), &nonce(), &bound, plaintext)), *sealed, "{name}");
        let cipher = Cipher::new(LINEAGE, of.cloned(), key_id, [(key_id, key())], Arc::default());
        let stored = Sealed { key_id, bytes: Blob(bytes(sealed).into()) };
        let opened = cipher.open_fenced(field, subject, Fence(fence), &stored).unwrap();
        assert_eq!(opened, plaintext, "{name}");
    }
    let of = |tenant| Holder { lineage_id: LINEAGE, tenant };
    assert_eq!(hex(&wrap_bound(of(Some(&acme)), Kind::Root, 3)), golden["bound root"]);
    let wrapped = [
        ("root", Some(&acme), Kind::Root, 3),
        ("index", Some(&acme), Kind::Index, 1),
        ("data", Some(&acme), Kind::Data(9), 1),
        ("downstream", None, Kind::Downstream, 1),
    ];
    for (name, tenant, kind, wrapping_id) in wrapped {
        let stored = Wrapped { wrapping_id, bytes: Blob(bytes(&golden[&format!("wrapped {name}")]).into()) };
        let opened = of(tenant).unwrap(kind, &stored, &key());
        assert_eq!(*opened.ok().unwrap().reveal(), [0x77; 32], "{name}");
        let others = wrapped.iter().filter(|(other, ..)| *other != name);
        for (_, tenant, kind, wrapping_id) in others {
            let moved = Wrapped { wrapping_id: *wrapping_id, ..stored.clone() };
            assert!(of(*tenant).unwrap(*kind, &moved, &key()).is_err());
        }
    }
    assert_eq!(hex(&key().check()), golden["check"]);
}

#[test]
fn the_example_of_the_format_page_is_a_golden_one() {
    let page = include_str!("FORMAT.md");
    let lines = page.lines().filter_map(|line| line.split_once(" |")).map(|(hex, _)| hex.trim());
    let hex: String = lines.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit() || b == b' ')).collect();
    let golden = golden();
    assert_eq!(hex.replace(' ', ""), golden["bound body"].clone() + &golden["sealed body"]);
}

#[derive(Clone, Debug, PartialEq)]
struct Place {
    tenant: Option<&'static str>,
    field: Field,
    subject: Subject,
    fence: u64,
    key_id: u32,
    lineage: u8,
}

impl Place {
    fn cipher(&self) -> Cipher {
        let lineage_id = LineageId([self.lineage; 16]);
        let keys = (1..=3).map(|id| (id, key()));
        Cipher::new(lineage_id, self.tenant.map(tenant), self.key_id, keys, Arc::default())
    }
}

fn places() -> impl Strategy<Value = Place> {
    let fields = prop::sample::select(vec![
        Field::Id,
        Field::Fingerprints,
        Field::OutcomeMeta,
        Field::OutcomeBody,
        Field::Checkpoint,
        Field::Labels,
        Field::Reason,
        Field::Evidence,
        Field::Actor,
        Field::AuditActor,
        Field::AuditDetail,
        Field::TokenScope,
    ]);
    let subjects = prop::sample::select(vec![record(1), record(2), Subject::Token([1; 10]), Subject::Audit]);
    let tenants = prop::sample::select(vec![None, Some("a"), Some("aa")]);
    (tenants, fields, subjects, 0..3_u64, 1..=3_u32, 0..2_u8).prop_map(
        |(tenant, field, subject, fence, key_id, lineage)| Place { tenant, field, subject, fence, key_id, lineage },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// S1: a field opens at its place, and at no other.
    #[test]
    fn a_field_opens_at_its_place_alone(here in places(), there in places(), plaintext: Vec<u8>) {
        let sealed = here.cipher().seal_fenced(here.field, here.subject, Fence(here.fence), plaintext.clone());
        prop_assert_eq!(sealed.key_id, here.key_id);
        let opened = there.cipher().open_fenced(
            there.field,
            there.subject,
            Fence(there.fence),
            &Sealed { key_id: there.key_id, ..sealed },
        );
        match opened {
            Ok(opened) => prop_assert!(here == there && opened == plaintext),
            Err(_) => prop_assert!(here != there),
        }
    }

    #[test]
    fn no_flipped_bit_opens(here in places(), plaintext in prop::collection::vec(any::<u8>(), 0..40)) {
        let cipher = here.cipher();
        let sealed = cipher.seal(here.field, here.subject, plaintext);
        for bit in 0..sealed.len() * 8 {
            let mut bytes = sealed.bytes.0.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = Sealed { bytes: Blob(bytes.into()), ..sealed.clone() };
            prop_assert!(cipher.open(here.field, here.subject, &changed).is_err(), "bit {}", bit);
        }
        for length in 0..sealed.len() {
            let cut = Sealed { bytes: Blob(sealed.bytes.0.slice(..length)), ..sealed.clone() };
            prop_assert!(cipher.open(here.field, here.subject, &cut).is_err(), "cut to {}", length);
        }
    }

    #[test]
    fn a_key_file_never_panics(text: Vec<u8>) {
        let _ = KeyFile::parse(&text);
        let _ = Noted::decode(&text);
    }
}

/// A sealed field opens where it is what was sealed, and never otherwise.
#[test]
fn fuzz_sealed_field() {
    let here = Place { tenant: Some("a"), field: Field::Labels, subject: record(1), fence: 1, key_id: 2, lineage: 1 };
    let cipher = here.cipher();
    let good: Vec<Vec<u8>> =
        [0, 1, 200].map(|length| cipher.seal(here.field, here.subject, vec![7; length]).bytes.0.to_vec()).to_vec();
    let sealed = good.clone();
    Target { name: "sealed-field", good, words: &[], cases: 3000 }.run(
        |_| {},
        |bytes| {
            let field = Sealed { key_id: here.key_id, bytes: Blob(bytes.to_vec().into()) };
            let opened = cipher.open(here.field, here.subject, &field).is_ok();
            assert_eq!(opened, sealed.iter().any(|sealed| sealed == bytes));
            opened
        },
    );
}

/// The files that sealing reads.
#[test]
fn fuzz_key_file() {
    let file = format!("[[key]]\nid = 1\nkey = \"{}\"\n", "A".repeat(43) + "=");
    let good = vec![file.into_bytes(), noted().encode().into_bytes()];
    let words = &["[[key]]", "id = ", "key = ", "\"", "=", "4294967296", "\"keys\":", "{", "[", "null"];
    Target { name: "key-file", good, words, cases: 3000 }
        .run(|_| {}, |bytes| [KeyFile::parse(bytes).is_ok(), Noted::decode(bytes).is_ok()].contains(&true));
}

#[test]
fn what_does_not_open_is_counted() {
    let unreadable = Arc::default();
    let cipher = Cipher::new(LINEAGE, None, 1, [(1, key())], Arc::clone(&unreadable));
    let sealed = cipher.seal(Field::Reason, record(1), "why".as_bytes());
    assert!(matches!(cipher.open(Field::Reason, record(2), &sealed), Err(SealError::NotAuthentic)));
    let elsewhere = Sealed { key_id: 2, ..sealed };
    assert!(matches!(cipher.open(Field::Reason, record(1), &elsewhere), Err(SealError::KeyMissing { key_id: 2 })));
    // S3: what is in clear is no field of a sealed tenant.
    assert!(matches!(
        cipher.open(Field::Reason, record(1), &Sealed::plain("why".as_bytes())),
        Err(SealError::NotAuthentic)
    ));
    let refusal = crate::refusal::Refusal::from(SealError::NotAuthentic);
    assert_eq!(refusal.code, crate::refusal::Code::Internal);
    assert_eq!(unreadable.load(std::sync::atomic::Ordering::Relaxed), 3);
}

#[test]
fn two_seals_of_one_text_differ() {
    let cipher = Cipher::new(LINEAGE, None, 1, [(1, key())], Arc::default());
    let seal = || cipher.seal(Field::Reason, record(1), "why".as_bytes());
    assert_ne!(seal(), seal());
}

const KEYS: &str = "[[key]]\nid = 1\nkey = \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"\n";

#[test]
fn a_key_file_is_read_strictly_and_never_quoted() {
    let keys = KeyFile::parse(KEYS.as_bytes()).ok().unwrap();
    assert!(keys.key(1).unwrap().is(&key()) && keys.key(2).is_none());
    let wrong = [
        KEYS.replace("id = 1", "id = 0"),
        KEYS.replace("id = 1", "id = 4294967296"),
        KEYS.replace("AAEC", "AAE"),
        KEYS.replace("key = ", "secret = "),
        KEYS.replace("id = 1\n", ""),
        format!("{KEYS}{KEYS}"),
        KEYS.to_owned() + &KEYS.replace("id = 1", "id = 2"),
        KEYS.replace("[[key]]", "[[keys]]"),
        format!("{KEYS}more"),
    ];
    for text in wrong {
        let error = KeyFile::parse(text.as_bytes()).err().expect(&text).to_string();
        assert!(!error.contains("AAEC") && !error.contains("BAUG"), "{error}");
    }
}

#[test]
fn a_key_file_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seal.keys");
    assert_eq!(generate(&path, None).unwrap(), 1);
    assert_eq!(generate(&path, Some(7)).unwrap(), 7);
    assert_eq!(generate(&path, None).unwrap(), 8);
    assert!(matches!(generate(&path, Some(7)), Err(KeyFileError::Taken { id: 7, .. })));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let read = || KeyFile::read(&KeySource::File(path.clone()));
    assert_eq!(read().ok().unwrap().ids().collect::<Vec<_>>(), [1, 7, 8]);
    for mode in [0o640, 0o604, 0o610] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(read(), Err(KeyFileError::Exposed { .. })), "{mode:o}");
        assert!(matches!(generate(&path, None), Err(KeyFileError::Exposed { .. })), "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "").unwrap();
    assert!(matches!(read(), Err(KeyFileError::Empty)));
}

#[test]
fn a_key_command_is_bounded_in_everything() {
    let run = |script: &str| {
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        printed(&words, Duration::from_millis(1500))
    };
    assert_eq!(&run(&format!("printf '%s' '{KEYS}'")).ok().unwrap()[..], KEYS.as_bytes());
    assert_eq!(&run("echo $HOME$SECRET; test -n \"$PATH\"").ok().unwrap()[..], b"\n");
    assert!(matches!(run("exit 3"), Err(KeyFileError::Failed { .. })));
    assert!(matches!(run("sleep 9"), Err(KeyFileError::Late { .. })));
    assert!(matches!(run("cat /dev/zero"), Err(KeyFileError::TooLarge)));
    let nobody = printed(&["/nonexistent".to_owned()], Duration::from_secs(1));
    assert!(matches!(nobody, Err(KeyFileError::Run { .. })));
}

fn noted() -> Noted {
    let check = key().check();
    Noted { lineage_id: LINEAGE, current: 1, keys: vec![OuterKey { id: 1, check }] }
}

#[test]
fn a_start_with_other_keys_says_which_and_changes_nothing() {
    let keys = |text: String| KeyFile::parse(text.as_bytes()).ok().unwrap();
    let other = KEYS.replace("AAEC", "BAEC");
    noted().judge(&keys(KEYS.to_owned())).unwrap();
    let said = |noted: &Noted, keys: &KeyFile| noted.judge(keys).unwrap_err().to_string();
    let two = Noted { keys: vec![OuterKey { id: 2, check: [0; 8] }], current: 2, ..noted() };
    let missing = "sealing key 2 is missing (found: 1); nothing was changed";
    assert_eq!(said(&two, &keys(KEYS.to_owned())), missing);
    assert_eq!(said(&two, &KeyFile::default()), missing.replace(": 1", ": none"));
    let differs = "sealing key 1 is not the key this cluster was sealed with; nothing was changed";
    assert_eq!(said(&noted(), &keys(other)), differs);
}

#[test]
fn what_is_noted_is_read_back() {
    let disk = FaultDisk::new();
    let dir = PathBuf::from("/data");
    disk.create_dir_all(&dir).unwrap();
    assert!(Noted::read(&disk, &dir).unwrap().is_none());
    noted().write(&disk, &dir).unwrap();
    noted().write(&disk, &dir).unwrap();
    assert_eq!(Noted::read(&disk, &dir).unwrap(), Some(noted()));
    let text = noted().encode();
    assert_eq!(
        text,
        "{\"version\":1,\"lineage_id\":\"11111111111111111111111111111111\",\"current\":1,\
         \"keys\":[{\"id\":1,\"check\":\"53edd2a5f774efe3\"}]}\n"
    );
    let newer = text.replace("\"version\":1", "\"version\":2");
    assert!(matches!(Noted::decode(newer.as_bytes()), Err(NotedError::Version(2))));
    let absent = text.replace("\"current\":1", "\"current\":2");
    assert!(matches!(Noted::decode(absent.as_bytes()), Err(NotedError::Damaged)));
}

fn init() -> Init {
    Init {
        lineage_id: LINEAGE,
        cluster_id: ClusterId([2; 16]),
        cluster_name: "semel".into(),
        downstream_secret: Wrapped { wrapping_id: 0, bytes: Blob(vec![9; 32].into()) },
        feature_level: 1,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    }
}

fn run(state: &mut MemoryState, command: Command) {
    let time = Time(state.globals().time.0 + 1);
    let answers = apply(state, &Entry { time, commands: vec![Arc::new(command)] });
    answers.into_iter().for_each(|applied| drop(applied.answer.unwrap()));
}

fn keychain() -> Keychain {
    Keychain::of(KeyFile::parse(KEYS.as_bytes()).ok().unwrap())
}

/// S2: of two first uses at once the first stands, and both nodes read its keys from the state.
#[test]
fn the_first_of_two_first_uses_stands() {
    let (one, other) = (keychain(), keychain());
    let mut state = MemoryState::default();
    let secret = Key::of(&[9; 32]).unwrap();
    run(&mut state, one.founding((LINEAGE, ClusterId([2; 16])), init(), &secret).unwrap());
    let acme = tenant("acme");
    let (first, second) = (one.opening(&state, &acme).unwrap(), other.opening(&state, &acme).unwrap());
    run(&mut state, second);
    run(&mut state, first);
    let opened = state.tenant(&acme).unwrap();
    let index = |keys: &Keychain| keys.index_key(&state, &acme, &opened.index_key).unwrap().unwrap();
    assert!(index(&one).is(&index(&other)));
    let sealed = one.cipher(&state, Some(&acme)).unwrap().seal(Field::Reason, record(1), "why".as_bytes());
    assert_eq!(sealed.key_id, 1);
    let read = other.cipher(&state, Some(&acme)).unwrap().open(Field::Reason, record(1), &sealed).unwrap();
    assert_eq!(read, "why");
    assert!(other.cipher(&state, None).unwrap().open(Field::Reason, record(1), &sealed).is_err());
    let formed = state.globals().formed.clone().unwrap();
    let downstream = other.downstream(&state, &formed.downstream_secret).unwrap().unwrap();
    assert!(downstream.is(&secret));
    // The whole state is wrapped keys: neither the secret nor an index key stands in it.
    let dump: Vec<u8> = state.dump().into_values().flatten().collect();
    for plain in [secret.reveal(), index(&one).reveal()] {
        assert!(!dump.windows(32).any(|window| window == plain));
    }
    assert_eq!(MemoryState::load(state.dump()).unwrap().dump(), state.dump());
}

#[test]
fn without_its_key_a_sealed_cluster_stays_shut() {
    let mut state = MemoryState::default();
    let secret = Key::of(&[9; 32]).unwrap();
    run(&mut state, keychain().founding((LINEAGE, ClusterId([2; 16])), init(), &secret).unwrap());
    let acme = tenant("acme");
    let opening = keychain().opening(&state, &acme).unwrap();
    run(&mut state, opening);
    let none = Keychain::default();
    let other = Keychain::of(KeyFile::parse(KEYS.replace("AAEC", "BAEC").as_bytes()).ok().unwrap());
    assert!(matches!(none.cipher(&state, Some(&acme)), Err(SealError::OuterMissing { id: 1 })));
    assert!(matches!(other.cipher(&state, Some(&acme)), Err(SealError::OuterDiffers { id: 1 })));
    assert!(none.opening(&state, &tenant("b")).is_err());
    assert!(matches!(keychain().cipher(&state, Some(&tenant("b"))), Err(SealError::Absent("data"))));
    let refusal = crate::refusal::Refusal::from(none.cipher(&state, None).err().unwrap());
    assert_eq!(refusal.code, crate::refusal::Code::Unavailable);
    // Opened without keys, as by a node that has not heard of the sealing yet.
    let plain = Keychain::default().opening(&MemoryState::default(), &tenant("b")).unwrap();
    let answers = apply(&mut state, &Entry { time: Time(9), commands: vec![Arc::new(plain)] });
    assert!(answers[0].answer.is_err() && state.tenant(&tenant("b")).is_none());
}

#[test]
fn without_keys_nothing_is_sealed() {
    let mut state = MemoryState::default();
    let none = Keychain::default();
    let secret = Key::of(&[9; 32]).unwrap();
    let founding = none.founding((LINEAGE, ClusterId([2; 16])), init(), &secret).unwrap();
    assert_eq!(founding, Command::Init(Box::new(init())));
    run(&mut state, founding);
    let acme = tenant("acme");
    let opening = none.opening(&state, &acme).unwrap();
    assert!(matches!(opening, Command::TenantOpened(_)));
    run(&mut state, opening);
    let sealed = none.cipher(&state, Some(&acme)).unwrap().seal(Field::Reason, record(1), "why".as_bytes());
    assert_eq!(sealed, Sealed::plain("why".as_bytes()));
}

fn two_keys() -> KeyFile {
    let other = "[[key]]\nid = 2\nkey = \"BBECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"\n";
    KeyFile::parse(format!("{KEYS}{other}").as_bytes()).ok().unwrap()
}

/// A cluster that was formed under key 1, with a tenant, at a node that has key 2 as well.
fn opened_under(keys: &Keychain) -> MemoryState {
    let mut state = MemoryState::default();
    let secret = Key::of(&[9; 32]).unwrap();
    run(&mut state, keychain().founding((LINEAGE, ClusterId([2; 16])), init(), &secret).unwrap());
    let opening = keys.opening(&state, &tenant("acme")).unwrap();
    run(&mut state, opening);
    state
}

#[test]
fn root_keys_open_under_another_key_and_say_the_same() {
    let both = Keychain::of(two_keys());
    let mut state = opened_under(&both);
    let acme = tenant("acme");
    let sealed = both.cipher(&state, Some(&acme)).unwrap().seal(Field::Reason, record(1), "why".as_bytes());
    assert!(both.rewrapped(&state, 9).unwrap().is_empty());
    let held = both.held();
    assert_eq!(held.iter().map(|key| key.id).collect::<Vec<_>>(), [1, 2]);
    let (actor, detail) = (sealed.clone(), sealed.clone());
    run(&mut state, Command::KeyRotated(KeyRotated { outer: held[1], actor, detail }));
    assert_eq!(both.rewrapped(&state, 1).unwrap().len(), 1);
    assert!(matches!(keychain().rewrapped(&state, 9), Err(SealError::OuterMissing { id: 2 })));
    let roots = both.rewrapped(&state, 9).unwrap();
    assert_eq!(roots.len(), 2);
    run(&mut state, Command::RootsRewrapped(RootsRewrapped { roots }));
    // A node that never had the first key opens what was sealed before.
    let text = format!("[[key]]{}", std::str::from_utf8(TWO_ALONE).unwrap());
    let later = Keychain::of(KeyFile::parse(text.as_bytes()).ok().unwrap());
    let opened = later.cipher(&state, Some(&acme)).unwrap().open(Field::Reason, record(1), &sealed).unwrap();
    assert_eq!(opened, "why");
    assert!(matches!(keychain().cipher(&state, Some(&acme)), Err(SealError::OuterMissing { id: 2 })));
}

const TWO_ALONE: &[u8] = b"\nid = 2\nkey = \"BBECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"\n";

/// Whoever holds a cipher goes on with the keys of now, and with none once they are destroyed.
#[test]
fn a_cipher_follows_its_keys() {
    let keys = keychain();
    let mut state = opened_under(&keys);
    let acme = tenant("acme");
    let cipher = keys.cipher(&state, Some(&acme)).unwrap();
    let first = cipher.seal(Field::Reason, record(1), "why".as_bytes());
    let key = keys.next_data_key(&state, Some(&acme)).unwrap();
    let (actor, detail) = (first.clone(), first.clone());
    run(&mut state, Command::DataKeyAdded(DataKeyAdded { of: Some(acme.clone()), key, keys_max: 9, actor, detail }));
    assert_eq!(cipher.current(), 1);
    assert!(Arc::ptr_eq(&cipher, &keys.cipher(&state, Some(&acme)).unwrap()));
    assert_eq!(cipher.current(), 2);
    let second = cipher.seal(Field::Reason, record(1), "then".as_bytes());
    assert_eq!(second.key_id, 2);
    let opened = |sealed| cipher.open(Field::Reason, record(1), sealed);
    assert_eq!((opened(&first).unwrap(), opened(&second).unwrap()), ("why".into(), "then".into()));
    keys.forget(&acme);
    assert!(opened(&first).is_err() && opened(&second).is_err());
    let third = cipher.seal(Field::Reason, record(1), "too late".as_bytes());
    assert!(third.key_id != 0 && opened(&third).is_err(), "nobody opens it, and it is not in clear");
}
