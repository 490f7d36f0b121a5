//! Handmade runs for the tests of the checkers: commands go through the product's own core, so that a good run is good, and
//! what a test spoils afterwards is the only thing that is bad.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use semel::{
    id::{ClusterId, Fence, KeyedHash, LineageId, Position, Tenant, Time, Uuid},
    proto::v1,
    records::{
        answer::{Answer, Applied, ClaimAnswer},
        apply,
        codec::Blob,
        command::{
            Claim, Command, Entry, Fingerprints, Forget, Init, Investigate, LapseRule, OwnerAction, OwnerCommand,
            PolicySet, ProposedOutcome, ProposedPoint, Reconciler, RecordRef, Resolve, Restored, Sealed, TenantOpened,
            Verdict, Wrapped,
        },
        memory::MemoryState,
        policy::{Limits, Policy, PolicyPatch},
        state::State,
    },
};

use crate::{
    history::{Answered, Call, Name, Operation},
    invariants::Evidence,
    ledger::Effect,
    log::Step,
};

/// Cluster time at the beginning, ms.
pub const START_MS: u64 = 1_700_000_000_000;

/// A run in the making. A second of cluster time is a second of simulated time.
pub struct Made {
    pub state: MemoryState,
    pub evidence: Evidence,
    pub now_ms: u64,
}

pub fn name(key: &str) -> Name {
    Name { tenant: "acme".into(), principal: String::new(), operation: "charge".into(), key: key.into() }
}

pub fn reference(name: &Name) -> RecordRef {
    let hash = |text: &str| {
        let mut bytes = [0; 16];
        text.bytes().enumerate().for_each(|(at, byte)| bytes[at % 16] ^= byte.rotate_left(at as u32 % 7));
        KeyedHash(bytes)
    };
    RecordRef {
        tenant: Tenant::parse(&name.tenant).expect("a good tenant"),
        operation: hash(&name.operation),
        record: hash(&format!("{}/{}", name.operation, name.key)),
    }
}

pub fn uuid(number: u8) -> Uuid {
    Uuid([number; 16])
}

pub fn sealed(text: &str) -> Sealed {
    Sealed::plain(text.as_bytes().to_vec())
}

pub fn proposed(body: &str) -> ProposedOutcome {
    let mut digest = [0; 32];
    body.bytes().enumerate().for_each(|(at, byte)| digest[at % 32] ^= byte.rotate_left(at as u32 % 5));
    ProposedOutcome { meta: sealed("201"), body: sealed(body), digest, body_bytes: body.len() as u32 }
}

pub fn claim(name: &Name, attempt: u8, print: u8) -> Claim {
    Claim {
        record: reference(name),
        id: sealed(&name.key),
        fingerprints: Fingerprints { keyed: vec![(1, [print; 32])], sealed: sealed("p") },
        attempt_id: uuid(attempt),
        lease_ms: Some(2_000),
        staged: false,
        on_lapse: Some(LapseRule::Hold),
        first_sent_at: None,
        labels: None,
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: sealed("caller"),
    }
}

impl Made {
    pub fn new() -> Self {
        let mut made = Self { state: MemoryState::default(), evidence: Evidence::default(), now_ms: START_MS };
        let wrapped = Wrapped { wrapping_id: 0, bytes: Blob(vec![7; 32].into()) };
        let init = Init {
            lineage_id: LineageId([1; 16]),
            cluster_id: ClusterId([2; 16]),
            cluster_name: "made".into(),
            downstream_secret: wrapped.clone(),
            feature_level: 1,
            limits: Limits::default(),
            policy: Policy::default(),
            first_token: None,
        };
        made.run(Command::Init(Box::new(init)));
        for tenant in ["acme", "globex"] {
            let tenant = Tenant::parse(tenant).expect("a good tenant");
            made.run(Command::TenantOpened(TenantOpened { tenant, index_key: wrapped.clone() }));
        }
        made
    }

    /// Time goes on.
    pub fn wait_ms(&mut self, ms: u64) -> &mut Self {
        self.now_ms += ms;
        self
    }

    /// An entry of one command.
    pub fn run(&mut self, command: Command) -> Applied {
        let entry = Entry { time: Time(self.now_ms), commands: vec![Arc::new(command)] };
        self.entry(entry).remove(0)
    }

    pub fn tick(&mut self) {
        self.entry(Entry { time: Time(self.now_ms), commands: Vec::new() });
    }

    pub fn entry(&mut self, entry: Entry) -> Vec<Applied> {
        let applied = apply(&mut self.state, &entry);
        let position = self.state.globals().position.0;
        let commands = entry.commands.iter().cloned().zip(applied.iter().cloned()).collect();
        let seen = self.micros();
        self.evidence.steps.push(Step { position, time: entry.time.0, commands, seen, by: 1 });
        applied
    }

    pub fn micros(&self) -> u64 {
        (self.now_ms - START_MS) * 1_000
    }

    /// What a client recorded of a call that took a millisecond.
    pub fn told(&mut self, name: &Name, call: Call, answered: Answered) -> usize {
        let id = self.evidence.operations.len();
        let invoked = self.micros();
        self.evidence.operations.push(Operation {
            id,
            client: 1,
            name: name.clone(),
            call,
            invoked,
            returned: Some(invoked + 1_000),
            answered,
        });
        self.now_ms += 2;
        id
    }

    /// A claim with its record in the history; the fence, where it was granted.
    pub fn claim(&mut self, claim: Claim, name: &Name) -> Option<u64> {
        let request = v1::ClaimRequest {
            record: Some(name.to_id()),
            fingerprints: vec![v1::Fingerprint {
                scheme: 1,
                digest: Bytes::copy_from_slice(&claim.fingerprints.keyed[0].1),
            }],
            attempt_id: Some(claim.attempt_id.hyphenated()),
            staged: Some(claim.staged),
            lease_ms: claim.lease_ms,
            ..v1::ClaimRequest::default()
        };
        let applied = self.run(Command::Claim(Box::new(claim)));
        let (answered, fence) = claim_answered(&applied);
        self.told(name, Call::Claim(Box::new(request)), answered);
        fence
    }

    /// An owner's command, with its record in the history.
    pub fn owner(&mut self, name: &Name, fence: u64, action: OwnerAction) -> Applied {
        let call = owner_call(name, fence, &action);
        let command = OwnerCommand { record: reference(name), fence: Fence(fence), action, actor: sealed("caller") };
        let applied = self.run(Command::Owner(Box::new(command)));
        self.told(name, call, changed_answered(&applied));
        applied
    }

    pub fn complete(&mut self, name: &Name, fence: u64, body: &str) -> Applied {
        self.owner(name, fence, OwnerAction::Complete(proposed(body)))
    }

    pub fn suspend(&mut self, name: &Name, fence: u64) -> Applied {
        self.owner(name, fence, OwnerAction::Suspend(None))
    }

    pub fn release(&mut self, name: &Name, fence: u64) -> Applied {
        self.owner(name, fence, OwnerAction::Release(Some(sealed("never sent"))))
    }

    pub fn checkpoint(&mut self, name: &Name, fence: u64, data: &str) -> Applied {
        let point =
            ProposedPoint { sealed: sealed(data), digest: proposed(data).digest, data_bytes: data.len() as u32 };
        self.owner(name, fence, OwnerAction::Checkpoint(point))
    }

    pub fn investigate(&mut self, name: &Name) -> Applied {
        let investigate =
            Investigate { record: reference(name), lease_ms: Some(1_000), version: None, by: reconciler() };
        self.run(Command::Investigate(Box::new(investigate)))
    }

    pub fn resolve(&mut self, name: &Name, verdict: Verdict, request: u8) -> Applied {
        let version = self.state.head(&reference(name)).map_or(Position(0), |head| head.version);
        self.run(Command::Resolve(Box::new(Resolve {
            record: reference(name),
            version,
            verdict,
            by: reconciler(),
            evidence: sealed("books"),
            request_id: uuid(request),
        })))
    }

    pub fn forget(&mut self, name: &Name) -> Applied {
        self.run(Command::Forget(Box::new(Forget { record: reference(name), actor: sealed("ops"), reason: None })))
    }

    /// All since the backup with this dump is lost, and what follows knows of nothing else.
    pub fn restore(&mut self, dump: &BTreeMap<Vec<u8>, Bytes>) {
        self.state = MemoryState::load(dump).expect("it was dumped");
        let backup = self.state.globals().position.0;
        let last = self.evidence.steps.last().map_or(0, |step| step.position);
        let first = last + 2 + Limits::default().restore_position_gap;
        self.evidence.restores.insert(first, backup);
        self.run(Command::Restored(Box::new(Restored {
            cluster_id: ClusterId([3; 16]),
            first_position: Position(first),
            gap_end: None,
            actor: sealed("ops"),
        })));
    }

    pub fn set_policy(&mut self, name: &Name, patch: PolicyPatch) -> Applied {
        let reference = reference(name);
        self.run(Command::PolicySet(Box::new(PolicySet {
            tenant: reference.tenant,
            operation: Some(reference.operation),
            patch,
            actor: sealed("ops"),
            detail: sealed("{}"),
        })))
    }

    /// An effect, now.
    pub fn effect(&mut self, name: &Name, fence: u64) {
        let at = self.micros();
        let downstream_key = format!("sml_{name}");
        self.evidence.effects.push(Effect { name: name.clone(), downstream_key, fence, sent: at, at });
        self.now_ms += 1;
    }

    /// The evidence, with the dumps of three replicas that hold the same.
    pub fn evidence(&self) -> Evidence {
        let mut evidence = self.evidence.clone();
        let dump: BTreeMap<Vec<u8>, Bytes> = self.state.dump();
        let position = self.state.globals().position.0;
        evidence.dumps = (1..=3).map(|node| (node, position, dump.clone())).collect();
        evidence
    }
}

fn reconciler() -> Reconciler {
    Reconciler { actor: sealed("ops"), digest: [9; 32] }
}

fn time(time: Time) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: (time.0 / 1_000) as i64, nanos: (time.0 % 1_000) as i32 * 1_000_000 }
}

fn refused(applied: &Applied) -> Option<Answered> {
    let refusal = applied.answer.as_ref().err()?;
    Some(Answered::Refused { code: refusal.code.as_str().to_owned(), index: Some(applied.index.0) })
}

/// What a client is told of a claim, and the fence where it was granted.
pub fn claim_answered(applied: &Applied) -> (Answered, Option<u64>) {
    if let Some(refused) = refused(applied) {
        return (refused, None);
    }
    let Ok(Answer::Claim(answer)) = &applied.answer else { panic!("no claim's answer: {applied:?}") };
    let mut told = v1::ClaimAnswer { index: applied.index.0, ..v1::ClaimAnswer::default() };
    match answer {
        ClaimAnswer::New(new) => {
            told.set_answer(v1::Answer::New);
            (told.fence, told.attempt) = (Some(new.fence.0), Some(new.attempt));
            let begun = new.phase == semel::records::answer::Phase::Begun;
            told.set_phase(if begun { v1::Phase::Begun } else { v1::Phase::Staged });
            (told.version, told.repeated) = (Some(new.version.0), Some(new.repeated));
            (told.lease_ms, told.lease_deadline) = (Some(new.lease_ms), Some(time(new.lease_deadline)));
            told.checkpoint = new.checkpoint.as_ref().map(|_| v1::CheckpointData::default());
        }
        ClaimAnswer::InProgress { retry_after_ms, since } => {
            told.set_answer(v1::Answer::InProgress);
            (told.retry_after_ms, told.since) = (Some(*retry_after_ms as u32), Some(time(*since)));
        }
        ClaimAnswer::Conflict { state, since } => {
            told.set_answer(v1::Answer::Conflict);
            told.set_state(shown(*state));
            told.since = Some(time(*since));
        }
        ClaimAnswer::Indeterminate { since, reason, retry_after_ms } => {
            told.set_answer(v1::Answer::Indeterminate);
            (told.retry_after_ms, told.since) = (Some(*retry_after_ms as u32), Some(time(*since)));
            told.reason = Some(reason.tag.as_str().to_owned());
        }
        ClaimAnswer::Completed(replay) => {
            told.set_answer(v1::Answer::Completed);
            told.completed_at = Some(time(replay.completed_at));
            let body = replay.sealed_body().map(|body| body.bytes.0.clone());
            told.outcome =
                Some(v1::Outcome { status: Some(201), not_stored: body.is_none(), body, ..Default::default() });
        }
        ClaimAnswer::Expired { reason, completed_at, evidence_until } => {
            told.set_answer(v1::Answer::Expired);
            told.reason = Some(reason.as_str().to_owned());
            (told.completed_at, told.evidence_until) = (completed_at.map(time), evidence_until.map(time));
        }
    }
    let fence = told.fence;
    (Answered::Claim(Box::new(told)), fence)
}

fn shown(state: semel::records::record::StateWord) -> v1::State {
    use semel::records::record::StateWord;
    match state {
        StateWord::Absent => v1::State::Absent,
        StateWord::InProgress => v1::State::InProgress,
        StateWord::Indeterminate => v1::State::Indeterminate,
        StateWord::Completed => v1::State::Completed,
        StateWord::Expired => v1::State::Expired,
    }
}

fn changed_answered(applied: &Applied) -> Answered {
    if let Some(refused) = refused(applied) {
        return refused;
    }
    let Ok(Answer::Changed(changed)) = &applied.answer else { panic!("no owner's answer: {applied:?}") };
    let begun =
        |phase| if phase == semel::records::answer::Phase::Begun { v1::Phase::Begun } else { v1::Phase::Staged };
    Answered::Owner(v1::OwnerAnswer {
        state: shown(changed.state).into(),
        phase: changed.phase.map(|phase| begun(phase).into()),
        lease_ms: changed.lease_ms,
        lease_deadline: changed.lease_deadline.map(time),
        version: changed.version.map(|version| version.0),
        index: applied.index.0,
    })
}

fn owner_call(name: &Name, fence: u64, action: &OwnerAction) -> Call {
    let (record, fence) = (Some(name.to_id()), Some(fence));
    match action {
        OwnerAction::Begin(lease_ms) => Call::Begin(v1::BeginRequest { record, fence, lease_ms: *lease_ms }),
        OwnerAction::Renew(lease_ms) => Call::Renew(v1::RenewRequest { record, fence, lease_ms: *lease_ms }),
        OwnerAction::Checkpoint(_) => {
            Call::Checkpoint(v1::CheckpointRequest { record, fence, name: "step".into(), data: None })
        }
        OwnerAction::Complete(outcome) => {
            let body = Some(outcome.body.bytes.0.clone());
            let outcome = v1::Outcome { status: Some(201), body, ..v1::Outcome::default() };
            Call::Complete(v1::CompleteRequest { record, fence, outcome: Some(outcome) })
        }
        OwnerAction::Release(evidence) => Call::Release(v1::ReleaseRequest {
            record,
            fence,
            evidence: evidence.as_ref().map(|_| "never sent".to_owned()),
        }),
        OwnerAction::Suspend(_) => Call::Suspend(v1::SuspendRequest { record, fence, reason: None }),
    }
}
