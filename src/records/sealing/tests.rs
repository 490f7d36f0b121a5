use std::{fs, path::PathBuf};

use super::*;
use crate::{
    id::{ClusterId, LineageId},
    records::{
        apply,
        check::check,
        codec::Blob,
        command::{Command, Entry},
        memory::MemoryState,
        policy::{Limits, Policy},
    },
};

pub(in crate::records) const NOW: Time = Time(1_767_225_600_000);

pub(in crate::records) fn wrapped(wrapping_id: u32, byte: u8) -> Wrapped {
    let length = if wrapping_id == 0 { 32 } else { 72 };
    Wrapped { wrapping_id, bytes: Blob(vec![byte; length].into()) }
}

pub(in crate::records) fn acme() -> Tenant {
    Tenant::parse("acme").unwrap()
}

pub(in crate::records) fn init() -> Command {
    let init = Init {
        lineage_id: LineageId([5; 16]),
        cluster_id: ClusterId([6; 16]),
        cluster_name: "semel".into(),
        downstream_secret: wrapped(1, 7),
        feature_level: 1,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    };
    let outer = OuterKey { id: 3, check: [9; 8] };
    Command::SealedInit(Box::new(SealedInit { init, outer, root: wrapped(3, 1), data_key: wrapped(1, 2) }))
}

pub(in crate::records) fn opened(outer: u32, byte: u8) -> Command {
    let opened = TenantOpened { tenant: acme(), index_key: wrapped(1, byte) };
    let (root, data_key) = (wrapped(outer, byte + 1), wrapped(1, byte + 2));
    Command::SealedTenantOpened(Box::new(SealedTenantOpened { opened, root, data_key }))
}

pub(in crate::records) struct World {
    pub(in crate::records) state: MemoryState,
    pub(in crate::records) log: Vec<Bytes>,
}

impl World {
    pub(in crate::records) fn new() -> Self {
        Self { state: MemoryState::default(), log: Vec::new() }
    }

    pub(in crate::records) fn ask(&mut self, command: Command) -> Result<Answer, Refusal> {
        self.entry(vec![Arc::new(command)]).pop().unwrap()
    }

    /// Compares the log and the state with a golden file, and has every entry of it read back and no cut one.
    pub(in crate::records) fn is_golden(&self, name: &str) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut lines: Vec<String> = self.log.iter().map(|entry| hex(entry)).collect();
        lines.extend(self.state.dump().iter().map(|(key, value)| format!("{} {}", hex(key), hex(value))));
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/records-v1").join(name);
        if std::env::var_os("SEMEL_GOLDEN").is_some_and(|write| write == "write") {
            fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap();
        assert!(golden.lines().eq(lines.iter().map(String::as_str)), "the bytes of {name} are not what they were");
        for (line, entry) in golden.lines().zip(&self.log) {
            let decoded: Entry = codec::decode(entry).unwrap();
            assert_eq!(hex(&codec::encode(&decoded)), line);
            (0..entry.len()).for_each(|cut| assert!(codec::decode::<Entry>(&entry[..cut]).is_err(), "cut to {cut}"));
        }
    }

    /// One entry: the log, what is stored and what must hold of it are looked at after each.
    pub(in crate::records) fn entry(&mut self, commands: Vec<Arc<Command>>) -> Vec<Result<Answer, Refusal>> {
        let entry = Entry { time: NOW, commands };
        self.log.push(codec::encode(&entry));
        let decoded: Entry = codec::decode(self.log.last().unwrap()).unwrap();
        assert_eq!(decoded, entry);
        let answers = apply(&mut self.state, &entry).into_iter().map(|applied| applied.answer).collect();
        check(self.state.dump()).unwrap();
        assert_eq!(MemoryState::load(self.state.dump()).unwrap().dump(), self.state.dump());
        answers
    }
}

#[test]
fn the_first_keys_of_a_tenant_stay() {
    let mut world = World::new();
    assert_eq!(world.ask(opened(3, 20)).unwrap_err().code, Code::Unavailable);
    world.ask(init()).unwrap();
    assert_eq!(world.ask(init()).unwrap_err().code, Code::WrongState);
    // Wrapped by a key that is not the current one: its maker has to look again.
    assert_eq!(world.ask(opened(4, 20)).unwrap_err().code, Code::Unavailable);
    assert!(world.state.tenant(&acme()).is_none() && world.state.key_table().ring.len() == 1);
    world.ask(opened(3, 30)).unwrap();
    world.ask(opened(3, 40)).unwrap();
    world.ask(opened(4, 50)).unwrap();
    assert_eq!(world.state.tenant(&acme()).unwrap().index_key, wrapped(1, 30));
    let table = world.state.key_table();
    assert_eq!(table.ring[&Some(acme())].root, Some(wrapped(3, 31)));
    assert_eq!(table.data[&Some(acme())].keys, [DataKey { id: 1, key: wrapped(1, 32) }]);
    assert_eq!(table.data[&None].keys, [DataKey { id: 1, key: wrapped(1, 2) }]);
}

#[test]
fn a_sealed_cluster_opens_no_tenant_without_keys() {
    let mut world = World::new();
    world.ask(init()).unwrap();
    let plain = TenantOpened { tenant: acme(), index_key: wrapped(0, 1) };
    assert_eq!(world.ask(Command::TenantOpened(plain)).unwrap_err().code, Code::Unavailable);
    assert!(world.state.tenant(&acme()).is_none());
}

/// The bytes of the commands and of the state that they make are the bytes that they were. `SEMEL_GOLDEN=write` writes
/// them: a changed one is a changed format, a reviewed decision.
#[test]
fn the_format_of_keys_stays_as_it_is() {
    let mut world = World::new();
    world.ask(init()).unwrap();
    world.ask(opened(3, 30)).unwrap();
    world.is_golden("sealing.hex");
}
