//! A service that remembers what it was asked and answers by the record's key: `new`, `in_progress`, … are answers to
//! a claim, the name of a refusal's code refuses.

use std::{collections::BTreeMap, sync::Mutex};

use futures_util::stream;

use crate::{
    auth::Caller,
    fingerprint::Fingerprint,
    id::{ClusterId, Fence, Key, Operation, Position, Principal, RecordId, Tenant, Time, Uuid},
    records::{
        answer::{ExpiredReason, Phase},
        command::LapseRule,
        policy::{Overrides, Oversize, Policy},
        record::StateWord,
    },
    refusal::{Code, Leader, Refusal},
    service::{
        Calls, Changes,
        answer::{Outcome, *},
        request::*,
    },
};

/// What was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Claim(ClaimRequest),
    Owner(OwnerRequest),
    Get(GetRequest),
    Batch(BatchRequest),
    List(ListRequest),
    Investigate(InvestigateRequest),
    Resolve(ResolveRequest),
    Forget(ForgetRequest),
    History(HistoryRequest),
    Watch(WatchRequest),
    GetPolicy(GetPolicyRequest),
    SetPolicy(SetPolicyRequest),
}

#[derive(Default)]
pub struct Scripted {
    pub(super) asked: Mutex<Vec<Asked>>,
    completed: tokio::sync::Notify,
    /// The leader, where it is another node: none inside where it isn't known.
    leader: Mutex<Option<Option<Leader>>>,
    /// What the key `slow` waits for before it is begun.
    pub released: tokio::sync::Notify,
}

impl Scripted {
    /// What was asked since the last look.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// From now on another node leads, if one does.
    pub fn set_leader(&self, leader: Option<Option<Leader>>) {
        *self.leader.lock().unwrap() = leader;
    }

    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }
}

/// A refusal with everything that one can carry.
pub fn refusal(code: Code) -> Refusal {
    Refusal {
        index: Some(Position(u64::MAX)),
        attempt_id: Some(attempt()),
        ..Refusal::new(code, "as the script says").retry_after_ms(1_001)
    }
}

/// What the Idempotency-Key door calls a refusal is an answer here.
fn refused(name: &RecordName) -> Result<(), Refusal> {
    let code = Code::parse(name.key.as_str()).filter(|code| *code != Code::InProgress);
    code.map_or(Ok(()), |code| Err(refusal(code)))
}

fn attempt() -> Uuid {
    Uuid::parse_hyphenated("00112233-4455-6677-8899-aabbccddeeff").unwrap()
}

fn checkpoint() -> Checkpoint {
    let name = CheckpointName::parse("name", "step".to_owned()).unwrap();
    Checkpoint { name, data: Payload(vec![0, 255].into()) }
}

fn outcome(body: Option<&'static [u8]>) -> Outcome {
    Outcome {
        status: -1,
        headers: Headers::parse(BTreeMap::from([("etag".to_owned(), "\"v1\"".to_owned())])).unwrap(),
        content_type: Some("text/plain".to_owned()),
        body: body.map(|body| Payload(body.into())),
        valid_until: Some(Time(1_769_851_800_123)),
    }
}

fn found(key: &str) -> Found {
    match key {
        "in_progress" => Found::InProgress { retry_after_ms: 2_700, since: Time(5) },
        "completed" => {
            let outcome = outcome(Some(b"\0\xff body"));
            Found::Completed(Box::new(Replay { stale: false, outcome, completed_at: Time(6) }))
        }
        "not_stored" => {
            let outcome = outcome(None);
            Found::Completed(Box::new(Replay { stale: true, outcome, completed_at: Time(6) }))
        }
        "conflict" => Found::Conflict { state: StateWord::Completed, since: Time(7) },
        "indeterminate" => {
            let reason = Reason("the provider\n\"timed out\"".to_owned());
            Found::Indeterminate { since: Time(8), reason, retry_after_ms: 60_000 }
        }
        "expired" => Found::Expired {
            reason: ExpiredReason::ReplayOver,
            completed_at: Some(Time(9)),
            evidence_until: Some(Time(10)),
        },
        "too_old" => Found::Expired { reason: ExpiredReason::TooOld, completed_at: None, evidence_until: None },
        key => Found::New(Box::new(New {
            fence: Fence(u64::MAX),
            attempt: 2,
            phase: Phase::Staged,
            version: Position(41),
            repeated: false,
            lease_ms: 30_000,
            lease_deadline: Time(253_402_300_799_999),
            downstream_key: "sml_abc".to_owned(),
            checkpoint: (key == "taken_over").then(checkpoint),
        })),
    }
}

fn owner_answer(state: StateWord) -> OwnerAnswer {
    let in_progress = state == StateWord::InProgress;
    OwnerAnswer {
        state,
        phase: in_progress.then_some(Phase::Begun),
        lease_ms: in_progress.then_some(30_000),
        lease_deadline: in_progress.then_some(Time(11)),
        version: (state != StateWord::Absent).then_some(Position(42)),
        index: Position(43),
    }
}

/// A record with every field there, or with none that can be missing.
pub fn record(whole: bool) -> Record {
    Record {
        id: RecordId {
            tenant: Tenant::parse("acme").unwrap(),
            principal: Principal::parse(if whole { "user-7" } else { "" }).unwrap(),
            operation: Operation::parse("POST /v1/charges").unwrap(),
            key: Key::parse("k \"1\"").unwrap(),
        },
        state: StateWord::Indeterminate,
        version: Position(8),
        fence: Fence(7),
        attempt: 1,
        phase: whole.then_some(Phase::Begun),
        attempt_id: attempt(),
        fingerprints: vec![Fingerprint::new(1, [0xab; 32]), Fingerprint::new(2, [0; 32])],
        lease_deadline: whole.then_some(Time(12)),
        since: Time(13),
        reason: whole.then(|| Reason("lease_lapsed".to_owned())),
        checkpoint: whole.then(checkpoint),
        labels: Labels::parse(BTreeMap::from([("amount".to_owned(), "100 €".to_owned())])).unwrap(),
        outcome: whole.then(|| outcome(Some(b""))),
        completed_at: whole.then_some(Time(14)),
        replay_until: whole.then_some(Time(15)),
        evidence_until: whole.then_some(Time(16)),
        downstream_key: "sml_abc".to_owned(),
        investigation: whole.then(|| Investigation { actor: "ops@example".to_owned(), deadline: Time(17) }),
        check_again_at: whole.then_some(Time(18)),
        on_lapse: whole.then_some(LapseRule::Retake),
        index: Position(99),
    }
}

impl Calls for Scripted {
    async fn claim(&self, _: &Caller, request: ClaimRequest) -> Result<ClaimAnswer, Refusal> {
        self.note(Asked::Claim(request.clone()));
        refused(&request.record)?;
        let key = request.record.key.as_str();
        if key == "waits" && request.wait_ms > 0 {
            self.completed.notified().await;
            return Ok(ClaimAnswer { attempt_id: attempt(), index: Position(98), found: found("completed") });
        }
        let key = if key == "waits" { "in_progress" } else { key };
        Ok(ClaimAnswer { attempt_id: attempt(), index: Position(97), found: found(key) })
    }

    async fn owner(&self, _: &Caller, request: OwnerRequest) -> Result<OwnerAnswer, Refusal> {
        self.note(Asked::Owner(request.clone()));
        refused(&request.record)?;
        if request.record.key.as_str() == "slow" && request.action.kind() == OwnerKind::Begin {
            self.released.notified().await;
        }
        Ok(match request.action.kind() {
            OwnerKind::Complete => {
                self.completed.notify_waiters();
                owner_answer(StateWord::Completed)
            }
            OwnerKind::Release => owner_answer(StateWord::Absent),
            OwnerKind::Suspend => owner_answer(StateWord::Indeterminate),
            OwnerKind::Begin | OwnerKind::Renew | OwnerKind::Checkpoint => owner_answer(StateWord::InProgress),
        })
    }

    async fn get(&self, _: &Caller, request: GetRequest) -> Result<Record, Refusal> {
        self.note(Asked::Get(request.clone()));
        refused(&request.record)?;
        Ok(record(request.with_outcome))
    }

    async fn batch(&self, caller: &Caller, request: BatchRequest) -> Result<BatchAnswer, Refusal> {
        self.note(Asked::Batch(request.clone()));
        let mut items = Vec::new();
        for item in request.items {
            items.push(match item {
                Err(refusal) => Err(refusal),
                Ok(Command::Claim(claim)) => self.claim(caller, *claim).await.map(ItemAnswer::Claim),
                Ok(Command::Get(get)) => self.get(caller, get).await.map(|own| ItemAnswer::Get(Box::new(own))),
                Ok(Command::Owner(owner)) => {
                    let kind = owner.action.kind();
                    self.owner(caller, *owner).await.map(|answer| ItemAnswer::Owner(kind, answer))
                }
            });
        }
        Ok(BatchAnswer { items, index: Position(100) })
    }

    async fn list(&self, _: &Caller, request: ListRequest) -> Result<ListAnswer, Refusal> {
        self.note(Asked::List(request.clone()));
        let (records, cursor) = match request.cursor.as_deref() {
            None => (vec![record(true), record(false)], Some("second".to_owned())),
            Some("second") => (Vec::new(), None),
            Some(_) => return Err(Refusal::invalid("cursor: it was not given out by this cluster")),
        };
        Ok(ListAnswer { records, cursor, index: Position(101) })
    }

    async fn investigate(&self, _: &Caller, request: InvestigateRequest) -> Result<Record, Refusal> {
        self.note(Asked::Investigate(request.clone()));
        refused(&request.record)?;
        Ok(record(true))
    }

    async fn resolve(&self, _: &Caller, request: ResolveRequest) -> Result<OwnerAnswer, Refusal> {
        self.note(Asked::Resolve(request.clone()));
        refused(&request.record)?;
        Ok(owner_answer(StateWord::Absent))
    }

    async fn forget(&self, _: &Caller, request: ForgetRequest) -> Result<OwnerAnswer, Refusal> {
        self.note(Asked::Forget(request.clone()));
        refused(&request.record)?;
        Ok(owner_answer(StateWord::Expired))
    }

    async fn history(&self, _: &Caller, request: HistoryRequest) -> Result<HistoryAnswer, Refusal> {
        self.note(Asked::History(request.clone()));
        refused(&request.record)?;
        let event = |kind| HistoryEvent {
            at: Time(19),
            index: Position(20),
            kind,
            actor: (kind == "claimed").then(|| "open".to_owned()),
            fence: (kind == "claimed").then_some(Fence(20)),
            detail: (kind == "claimed").then(|| "x".to_owned()),
        };
        let events = HISTORY_KINDS.into_iter().map(event).collect();
        Ok(HistoryAnswer { events, cursor: None, index: Position(102) })
    }

    async fn watch(&self, _: &Caller, request: WatchRequest) -> Result<Changes, Refusal> {
        self.note(Asked::Watch(request));
        let set = WatchAnswer {
            index: Position(5),
            reset: true,
            indeterminate: vec![record(false)],
            gone: Vec::new(),
            more: false,
        };
        let gone = WatchAnswer {
            index: Position(6),
            reset: false,
            indeterminate: vec![record(false)],
            gone: vec![(record(false).id, StateWord::Completed)],
            more: false,
        };
        Ok(Box::pin(stream::iter([Ok(set), Ok(gone)])))
    }

    async fn get_policy(&self, _: &Caller, request: GetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        self.note(Asked::GetPolicy(request));
        let overrides = Overrides { oversize: Some(Oversize::DigestOnly), ..Overrides::default() };
        Ok(PolicyAnswer { policy: Policy::default().under(&overrides), overrides, index: Position(103) })
    }

    async fn set_policy(&self, _: &Caller, request: SetPolicyRequest) -> Result<PolicyAnswer, Refusal> {
        let overrides = request.patch.on(&Overrides { replay_s: Some(1), ..Overrides::default() });
        self.note(Asked::SetPolicy(request));
        Ok(PolicyAnswer { policy: Policy::default().under(&overrides), overrides, index: Position(104) })
    }

    fn leading(&self) -> Result<(), Refusal> {
        match self.leader.lock().unwrap().clone() {
            Some(leader) => Err(Refusal {
                leader: leader.map(Box::new),
                ..Refusal::new(Code::Unavailable, "another node leads, if any does")
            }),
            None => Ok(()),
        }
    }

    fn cluster_id(&self) -> Option<ClusterId> {
        Some(ClusterId([0xc1; 16]))
    }
}
