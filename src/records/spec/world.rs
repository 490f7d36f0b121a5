//! Runs lines on the pure core. After every line: the codec gave the entry back, a replica that applied the decoded bytes
//! holds the same (R10), the whole state passes its check (R8, R12), and neither time nor position ran back (R11).

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest, Sha256};

use super::{answer, line::Line};
use crate::{
    id::{Fence, KeyedHash, Position, Tenant, Time, Uuid},
    records::{
        answer::{Answer, Applied, ClaimAnswer},
        apply, check, codec,
        command::{
            Claim, Command, Deed, DoubtEnded, Entry, FeatureRaised, Fingerprints, Forget, Init, Investigate,
            KeyedDigest, LapseRule, NodeRetired, Noted, OwnerAction, OwnerCommand, PolicySet, ProposedOutcome,
            ProposedPoint, Reconciler, RecordRef, Resolve, Restored, Sealed, TenantOpened, Token, Verdict, Wrapped,
            WritesEnded,
        },
        memory::MemoryState,
        policy::{ExpiredClaims, Limits, LowEntropyKeys, Oversize, Patch, Policy, PolicyPatch},
        state::State,
    },
};

/// Cluster time at the start of a scenario, ms: far enough from zero to count back from.
pub const START_MS: u64 = 1_767_225_600_000;

/// How a world sweeps: what is answered must not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweeps {
    /// By its entries alone, with the limit of the scenario.
    AsTold,
    /// Never: every reading is derived.
    Never,
    /// Everything that is due is written down before each line.
    Eagerly,
}

/// A state with its replica and the names that a scenario knows things by.
pub struct World {
    pub state: MemoryState,
    replica: MemoryState,
    sweeps: Sweeps,
    /// Positions of the record commands, in order: what a scenario counts by.
    commands: Vec<Position>,
    /// Position of the last grant of each record.
    own: BTreeMap<RecordRef, Position>,
    pub names: Names,
    /// The encoded entries.
    pub log: Vec<bytes::Bytes>,
    told: usize,
}

/// Hashes back to the words of the scenario.
#[derive(Default)]
pub struct Names {
    pub keys: BTreeMap<KeyedHash, String>,
    pub attempts: BTreeMap<Uuid, String>,
}

impl World {
    /// A formed cluster; `limits` changes some of the numbers that apply uses.
    pub fn new(sweeps: Sweeps, limits: Option<&Line>) -> Self {
        let (state, replica) = (MemoryState::default(), MemoryState::default());
        let mut world = Self {
            state,
            replica,
            sweeps,
            commands: Vec::new(),
            own: BTreeMap::new(),
            names: Names::default(),
            log: Vec::new(),
            told: 0,
        };
        let mut numbers = Limits::default();
        if let Some(line) = limits {
            set_limits(&mut numbers, line);
        }
        if sweeps == Sweeps::Never {
            numbers.swept_per_entry_max = 0;
        }
        let init = Init {
            lineage_id: Default::default(),
            cluster_id: Default::default(),
            cluster_name: "scenario".into(),
            downstream_secret: wrapped(),
            feature_level: 1,
            limits: numbers,
            policy: Policy::default(),
            first_token: Some(token()),
        };
        world.entry(world.time(0), vec![Command::Init(Box::new(init))]);
        world
    }

    /// A time of the scenario as cluster time.
    pub fn time(&self, ms: i64) -> Time {
        Time(START_MS.checked_add_signed(ms).expect("scenarios stay near their start"))
    }

    /// The number of the record command at a position, as scenarios count.
    pub fn label(&self, position: Position) -> String {
        match self.commands.iter().position(|command| *command == position) {
            Some(index) => (index + 1).to_string(),
            // A number that no command had when it was named.
            None => (u64::MAX - position.0).to_string(),
        }
    }

    /// A fence or version: a number, `own` (the last grant of this key), `now` (the record's version) or `other` (neither).
    fn position(&self, line: &Line, name: &str) -> Option<Position> {
        match line.value(name)? {
            "own" => return Some(self.own.get(&reference(line, line.key())).copied().unwrap_or(Position(1))),
            "now" => {
                let head = self.state.head(&reference(line, line.key()));
                return Some(head.map_or(Position(1), |head| head.version));
            }
            "other" => return Some(Position(1)),
            _ => {}
        }
        let number = line.number(name)?;
        let known = usize::try_from(number).ok().and_then(|number| self.commands.get(number.checked_sub(1)?));
        // A number that no command has yet: above everything that was granted.
        Some(known.copied().unwrap_or(Position(u64::MAX - number)))
    }

    /// Runs one line.
    pub fn run(&mut self, line: &Line) -> String {
        self.run_entry(std::slice::from_ref(line)).remove(0)
    }

    /// Runs lines that share one entry, each after those before it.
    pub fn run_entry(&mut self, lines: &[Line]) -> Vec<String> {
        let at = lines[0].ms("at").map_or(self.state.globals().time, |ms| self.time(ms));
        self.sweep_eagerly(at);
        lines.iter().for_each(|line| self.open(line));
        if !is_command(&lines[0]) {
            self.entry(at, Vec::new());
            self.check();
            return lines.iter().map(|line| self.read(line)).collect();
        }
        let first = self.commands.len();
        let commands = lines.iter().enumerate().map(|(index, line)| self.command(line, first + index + 1)).collect();
        let applied = self.entry(at, commands);
        self.check();
        for (line, applied) in lines.iter().zip(&applied) {
            if line.is_record_command() {
                self.commands.push(applied.index);
            }
            if let Ok(Answer::Claim(ClaimAnswer::New(new))) = &applied.answer {
                self.own.insert(reference(line, line.key()), Position(new.fence.0));
            }
        }
        applied.iter().map(|applied| answer::of(self, applied)).collect()
    }

    fn sweep_eagerly(&mut self, at: Time) {
        if self.sweeps != Sweeps::Eagerly {
            return;
        }
        self.entry(at, Vec::new());
        while !self.state.due(self.state.globals().time, 1).is_empty() {
            self.entry(at, Vec::new());
        }
    }

    /// A tenant is opened by the first line that names it.
    fn open(&mut self, line: &Line) {
        let tenant = tenant(line.tenant());
        if line.verb != "open" && self.state.tenant(&tenant).is_none() {
            let opened = TenantOpened { tenant, index_key: wrapped() };
            self.entry(self.state.globals().time, vec![Command::TenantOpened(opened)]);
        }
    }

    fn entry(&mut self, time: Time, commands: Vec<Command>) -> Vec<Applied> {
        let entry = Entry { time, commands: commands.into_iter().map(Arc::new).collect() };
        let bytes = codec::encode(&entry);
        let decoded: Entry = codec::decode(&bytes).expect("an encoded entry decodes");
        assert_eq!(decoded, entry);
        let before = (self.state.globals().time, self.state.globals().position);
        self.log.push(bytes);
        let applied = apply(&mut self.state, &entry);
        assert_eq!(apply(&mut self.replica, &decoded), applied, "R10: replicas answer alike");
        let after = (self.state.globals().time, self.state.globals().position);
        assert!(after.0 >= before.0 && after.1 > before.1, "R11: {before:?} then {after:?}");
        assert!(self.state == self.replica, "R10: replicas hold the same");
        applied
    }

    /// The whole state passes its check (R8, R12).
    fn check(&self) {
        if let Err(error) = check::check(self.state.dump()) {
            panic!("{error}");
        }
    }

    /// Replicas have byte-equal dumps (R10): at the end, for in between their parts are compared.
    pub fn end(&self) {
        assert!(self.state.dump() == self.replica.dump(), "R10: replicas have equal dumps");
    }

    /// Puts a state that was read back from the dump in the place of this one.
    pub fn restart_from_dump(&mut self) {
        let dump = self.state.dump();
        self.state = MemoryState::load(&dump).expect("a dump reads back");
        assert!(self.state.dump() == dump, "a state that was read back has the same dump");
        // What was told before is not told again by a state that was read back.
        self.replica.events.clear();
        self.told = 0;
    }

    fn read(&mut self, line: &Line) -> String {
        let now = self.state.globals().time;
        let record = || reference(line, line.key());
        match line.verb.as_str() {
            "tick" => "ok".to_owned(),
            "get" => answer::view(self, self.state.head(&record()).as_deref(), &record(), now),
            "history" => answer::history(self, &record(), now),
            "counters" => {
                let operation = line.value("op").map(|_| operation(line));
                let counters = self.state.counters(&tenant(line.tenant()), operation);
                format!(
                    "counters records={} in_progress={} indeterminate={}",
                    counters.records, counters.in_progress, counters.indeterminate
                )
            }
            "audit" => answer::audit(self, (!line.flag("cluster")).then(|| tenant(line.tenant())).as_ref()),
            "list" => answer::list(self, line.key()),
            "events" => {
                let events = answer::events(self, self.told);
                self.told = self.state.events.len();
                events
            }
            verb => panic!("unknown verb {verb}"),
        }
    }

    fn command(&mut self, line: &Line, number: usize) -> Command {
        match line.verb.as_str() {
            "claim" => Command::Claim(Box::new(self.claim(line, number))),
            "investigate" => Command::Investigate(Box::new(Investigate {
                record: self.record(line),
                lease_ms: line.length_ms("lease"),
                version: self.position(line, "version"),
                by: reconciler(line),
            })),
            "resolve" => Command::Resolve(Box::new(self.resolve(line, number))),
            "forget" => Command::Forget(Box::new(Forget {
                record: self.record(line),
                actor: actor(line),
                reason: line.value("reason").map(sealed),
            })),
            "policy" => Command::PolicySet(Box::new(self.policy(line))),
            "restored" => {
                let gap = self.state.globals().formed.as_ref().expect("formed").limits.restore_position_gap;
                let least = self.state.globals().position.0 + 2 + gap;
                Command::Restored(Box::new(Restored {
                    cluster_id: Default::default(),
                    first_position: Position(least - u64::from(line.flag("low"))),
                    gap_end: line.ms("gap_end").map(|ms| self.time(ms)),
                    actor: actor(line),
                }))
            }
            "end-doubt" => Command::DoubtEnded(DoubtEnded { actor: actor(line) }),
            "retire" => {
                let node_id = line.number("node").expect("a node's id");
                Command::NodeRetired(NodeRetired { node_id })
            }
            "raise" => {
                let level = line.number("level").and_then(|level| u32::try_from(level).ok());
                Command::FeatureRaised(FeatureRaised { level: level.expect("a level") })
            }
            "note" => Command::Noted(Noted {
                deed: Deed::parse(line.value("deed").expect("a deed")).expect("a deed that there is"),
                actor: actor(line),
                detail: sealed("{}"),
            }),
            "end-writes" => Command::WritesEnded(WritesEnded { actor: actor(line) }),
            "open" => Command::TenantOpened(TenantOpened { tenant: tenant(line.tenant()), index_key: wrapped() }),
            _ => Command::Owner(Box::new(OwnerCommand {
                record: self.record(line),
                fence: Fence(self.position(line, "fence").expect("an owner's command names a fence").0),
                action: owner_action(line),
                actor: actor(line),
            })),
        }
    }

    fn record(&mut self, line: &Line) -> RecordRef {
        let record = reference(line, line.key());
        self.names.keys.insert(record.record, line.key().to_owned());
        record
    }

    fn claim(&mut self, line: &Line, number: usize) -> Claim {
        let id = line.value("id").map_or_else(|| format!("drawn-{number}"), str::to_owned);
        self.names.attempts.insert(uuid(&id), id.clone());
        Claim {
            record: self.record(line),
            id: sealed(&format!("{} {} {}", line.tenant(), line.operation(), line.key())),
            fingerprints: fingerprints(line.value("fp").unwrap_or("a")),
            attempt_id: uuid(&id),
            lease_ms: line.length_ms("lease"),
            staged: line.flag("staged"),
            on_lapse: line.value("on_lapse").map(|word| LapseRule::parse(word).expect("hold or retake")),
            first_sent_at: line.ms("first_sent").map(|ms| self.time(ms)),
            labels: line.value("labels").map(sealed),
            replay_s: line.length_s("replay"),
            evidence_s: line.length_s("evidence"),
            not_after: line.ms("not_after").map(|ms| self.time(ms)),
            actor: actor(line),
        }
    }

    fn resolve(&mut self, line: &Line, number: usize) -> Resolve {
        let verdict = match line.value("verdict").expect("a verdict") {
            "completed" => Verdict::Completed(outcome(line)),
            "no_effect" => Verdict::NoEffect(()),
            _ => Verdict::Unknown(self.time(line.ms("check_at").expect("unknown names a time to check again"))),
        };
        Resolve {
            record: self.record(line),
            version: self.position(line, "version").expect("a verdict names a version"),
            verdict,
            by: reconciler(line),
            evidence: sealed(line.value("evidence").unwrap_or("ledger")),
            request_id: uuid(&line.value("request").map_or_else(|| format!("request-{number}"), str::to_owned)),
        }
    }

    fn policy(&self, line: &Line) -> PolicySet {
        let mut patch = PolicyPatch::default();
        for (name, value) in &line.values {
            self.patch(&mut patch, line, name, value);
        }
        let operation = line.value("op").map(|_| operation(line));
        PolicySet { tenant: tenant(line.tenant()), operation, patch, actor: actor(line), detail: sealed("patch") }
    }

    fn patch(&self, patch: &mut PolicyPatch, line: &Line, name: &str, value: &str) {
        fn set<T>(value: &str, parse: impl FnOnce(&str) -> T) -> Patch<T> {
            if value == "none" { Patch::Clear } else { Patch::Set(parse(value)) }
        }
        let length_ms = |_: &str| line.length_ms(name).expect("a length");
        let length_s = |_: &str| line.length_s(name).expect("a length");
        let small = |text: &str| text.parse::<u32>().expect("a number");
        // `now` is what is counted now: a quota can be set to exactly that.
        let counted = self.state.counters(&tenant(line.tenant()), line.value("op").map(|_| operation(line)));
        let quota = |now: u64| {
            move |text: &str| match text.strip_prefix("now") {
                Some(more) => now.checked_add_signed(more.parse().unwrap_or(0)).expect("a quota is no negative number"),
                None => text.parse().expect("a number"),
            }
        };
        match name {
            "lease_ms_default" => patch.lease_ms_default = set(value, length_ms),
            "lease_ms_max" => patch.lease_ms_max = set(value, length_ms),
            "wait_ms_max" => patch.wait_ms_max = set(value, length_ms),
            "effect_ms_max" => patch.effect_ms_max = set(value, length_ms),
            "replay_s" => patch.replay_s = set(value, length_s),
            "evidence_s" => patch.evidence_s = set(value, length_s),
            "replay_s_max" => patch.replay_s_max = set(value, length_s),
            "evidence_s_max" => patch.evidence_s_max = set(value, length_s),
            "outcome_bytes_max" => patch.outcome_bytes_max = set(value, small),
            "checkpoint_bytes_max" => patch.checkpoint_bytes_max = set(value, small),
            "key_bytes_min" => patch.key_bytes_min = set(value, small),
            "claims_per_s" => patch.claims_per_s = set(value, small),
            "on_lapse" => patch.on_lapse = set(value, |word| LapseRule::parse(word).expect("hold or retake")),
            "oversize" => patch.oversize = set(value, |word| Oversize::parse(word).expect("reject or digest_only")),
            "expired_claims" => {
                patch.expired_claims = set(value, |word| ExpiredClaims::parse(word).expect("reject or run_as_new"));
            }
            "low_entropy_keys" => {
                patch.low_entropy_keys = set(value, |word| LowEntropyKeys::parse(word).expect("allow, warn or refuse"));
            }
            "records_max" => patch.records_max = set(value, quota(counted.records)),
            "bytes_max" => patch.bytes_max = set(value, quota(counted.bytes)),
            "indeterminate_max" => patch.indeterminate_max = set(value, quota(counted.indeterminate)),
            "at" | "tenant" | "op" | "by" => {}
            unknown => panic!("no field {unknown} in a policy"),
        }
    }
}

fn token() -> Token {
    Token {
        id: *b"first-tokn",
        hash: [9; 32],
        tenant: None,
        permissions: 16,
        created_at: Time(START_MS),
        expires_at: Some(Time(START_MS + 1)),
        revoked_at: None,
        created: Position(2),
        scope: sealed("*"),
    }
}

/// Whether a line is proposed, not read.
pub fn is_command(line: &Line) -> bool {
    const VERBS: [&str; 8] = ["policy", "restored", "end-doubt", "end-writes", "open", "retire", "raise", "note"];
    line.is_record_command() || VERBS.contains(&line.verb.as_str())
}

fn set_limits(limits: &mut Limits, line: &Line) {
    let small = |name: &str| line.number(name).map(|number| u32::try_from(number).expect("a limit fits 32 bits"));
    let set = |field: &mut u32, name| *field = small(name).unwrap_or(*field);
    set(&mut limits.swept_per_entry_max, "swept_per_entry_max");
    set(&mut limits.inline_body_bytes_max, "inline_body_bytes_max");
    set(&mut limits.tenants_max, "tenants_max");
    set(&mut limits.policies_per_tenant_max, "policies_per_tenant_max");
    let tiny = |name, or: u8| small(name).map_or(or, |number| u8::try_from(number).expect("a limit fits 8 bits"));
    limits.history_rows_max = tiny("history_rows_max", limits.history_rows_max);
    limits.resolves_kept = tiny("resolves_kept", limits.resolves_kept);
    limits.audit_s = line.length_s("audit_s").unwrap_or(limits.audit_s);
    limits.gap_skew_ms = line.length_ms("gap_skew_ms").unwrap_or(limits.gap_skew_ms);
}

fn owner_action(line: &Line) -> OwnerAction {
    let lease_ms = line.length_ms("lease");
    match line.verb.as_str() {
        "begin" => OwnerAction::Begin(lease_ms),
        "renew" => OwnerAction::Renew(lease_ms),
        "checkpoint" => {
            let text = expanded(line.value("point").unwrap_or("step"));
            let data_bytes = u32::try_from(text.len()).expect("small");
            OwnerAction::Checkpoint(ProposedPoint { sealed: sealed(&text), digest: digest("cp", &text), data_bytes })
        }
        "complete" => OwnerAction::Complete(outcome(line)),
        "release" => OwnerAction::Release(line.value("evidence").map(sealed)),
        "suspend" => OwnerAction::Suspend(line.value("reason").map(sealed)),
        verb => panic!("unknown verb {verb}"),
    }
}

fn outcome(line: &Line) -> ProposedOutcome {
    let body = expanded(line.value("body").unwrap_or("done"));
    let body_bytes = u32::try_from(body.len()).expect("small");
    ProposedOutcome { meta: sealed("200"), digest: digest("oc", &body), body: sealed(&body), body_bytes }
}

/// `*N` is a text of N bytes.
fn expanded(text: &str) -> String {
    match text.strip_prefix('*') {
        Some(length) => "x".repeat(length.parse().expect("a length")),
        None => text.to_owned(),
    }
}

fn reconciler(line: &Line) -> Reconciler {
    let by = line.value("by").unwrap_or("ops");
    Reconciler { actor: sealed(by), digest: digest("by", by) }
}

fn actor(line: &Line) -> Sealed {
    sealed(line.value("by").unwrap_or("caller"))
}

fn sealed(text: &str) -> Sealed {
    Sealed::plain(text.as_bytes().to_vec())
}

/// `a` is a digest under scheme 1; `2:b,3:c` names schemes.
fn fingerprints(text: &str) -> Fingerprints {
    let pairs = text.split(',').map(|pair| pair.split_once(':').unwrap_or(("1", pair)));
    let keyed = pairs.map(|(scheme, name)| (scheme.parse().expect("a scheme"), digest("fp", name))).collect();
    Fingerprints { keyed, sealed: sealed(text) }
}

fn digest(kind: &str, text: &str) -> KeyedDigest {
    Sha256::digest(format!("{kind} {text}")).into()
}

fn hash(text: &str) -> KeyedHash {
    let digest: [u8; 32] = Sha256::digest(text).into();
    KeyedHash(digest[..16].try_into().expect("16 of 32 bytes"))
}

fn uuid(text: &str) -> Uuid {
    Uuid(hash(text).0)
}

pub fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).expect("scenarios name good tenants")
}

fn operation(line: &Line) -> KeyedHash {
    hash(line.operation())
}

/// The record of a line.
pub fn reference(line: &Line, key: &str) -> RecordRef {
    let whole = format!("{} {} {key}", line.tenant(), line.operation());
    RecordRef { tenant: tenant(line.tenant()), operation: operation(line), record: hash(&whole) }
}

fn wrapped() -> Wrapped {
    Wrapped { wrapping_id: 0, bytes: codec::Blob(vec![7; 32].into()) }
}
