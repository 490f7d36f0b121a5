use super::*;
use crate::{
    id::{Fence, Position, Time, Uuid},
    records::{
        self,
        answer::{Changed, ExpiredReason, Phase, Reason, Replay},
        command::{Entry, Sealed},
        memory::MemoryState,
        policy::{Effective, Policy, Quotas, Raised},
        record::{BodyPlace, Outcome, ReasonTag, StateWord},
    },
};

fn samples() -> Answers {
    let applied = |answer| Ok(Applied { index: Position(7), now: Time(1_700_000_000_000), answer });
    let outcome = |body| Outcome { meta: Sealed::plain(vec![1; 5]), body, fence: Fence(3) };
    let replay = |body, separate| Replay { outcome: outcome(body), body: separate, completed_at: Time(9) };
    let quotas = Quotas { records_max: Some(5), bytes_max: None, indeterminate_max: Some(0) };
    let policy = Effective {
        policy: Policy::default(),
        tenant: quotas,
        operation: Quotas::default(),
        raised: [Some(Raised { at: Time(4), previous_s: 60 }), None],
    };
    let changed = Changed {
        state: StateWord::InProgress,
        phase: Some(Phase::Begun),
        lease_ms: Some(30_000),
        lease_deadline: Some(Time(77)),
        version: Some(Position(6)),
    };
    let refusal = Refusal {
        code: Code::StaleFence,
        detail: "another owns it".into(),
        retry_after_ms: Some(5),
        index: Some(Position(8)),
        attempt_id: Some(Uuid([4; 16])),
        leader: None,
    };
    let expired = |reason| ClaimAnswer::Expired { reason, completed_at: Some(Time(1)), evidence_until: Some(Time(2)) };
    let separate = replay(BodyPlace::Separate(3), Some(Sealed::plain(vec![2; 3])));
    let reason = Reason { tag: ReasonTag::Owner, text: Some(Sealed::plain(vec![6; 2])) };
    vec![
        applied(Ok(Answer::Done)),
        applied(Ok(Answer::Changed(changed))),
        applied(Ok(Answer::Policy(Box::new(policy)))),
        applied(Ok(Answer::Claim(ClaimAnswer::InProgress { retry_after_ms: 1000, since: Time(3) }))),
        applied(Ok(Answer::Claim(ClaimAnswer::Conflict { state: StateWord::Expired, since: Time(3) }))),
        applied(Ok(Answer::Claim(ClaimAnswer::Indeterminate { since: Time(3), reason, retry_after_ms: 60_000 }))),
        applied(Ok(Answer::Claim(ClaimAnswer::Completed(Box::new(separate))))),
        applied(Ok(Answer::Claim(ClaimAnswer::Completed(Box::new(replay(BodyPlace::NotStored(()), None)))))),
        applied(Ok(Answer::Claim(expired(ExpiredReason::ReplayOver)))),
        applied(Ok(Answer::Claim(expired(ExpiredReason::TooOld)))),
        applied(Err(refusal.clone())),
        Err(refusal),
        Err(Refusal::new(Code::Unavailable, "no leader")),
    ]
}

#[test]
fn answers_come_back_as_they_were_sent() {
    assert_eq!(decode_answers(&encode_answers(&samples())).unwrap(), samples());
    assert_eq!(decode_answers(&encode_answers(&Vec::new())).unwrap(), Vec::new());
    let refusal = Refusal::new(Code::OwnerMayAct, "wait").retry_after_ms(9);
    assert_eq!(decode_refusal(&encode_refusal(&refusal)).unwrap(), refusal);
}

#[test]
fn answers_that_are_cut_or_changed_never_panic_and_cut_ones_are_refused() {
    let whole = encode_answers(&samples());
    for cut in 0..whole.len() {
        assert!(decode_answers(&whole[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 0x5a;
        let _ = decode_answers(&changed);
    }
}

/// What is answered to a claim that is granted, and to an investigation, holds whole heads: as apply makes them.
#[test]
fn grants_come_back_as_they_were_sent() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/records-v1/entries.hex");
    let mut state = MemoryState::default();
    let mut answered = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let digits: Vec<u8> = line.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let entry: Entry = codec::decode(&digits.chunks(2).map(byte).collect::<Vec<u8>>()).unwrap();
        answered.extend(records::apply(&mut state, &entry).into_iter().map(Ok));
    }
    let grants = answered
        .iter()
        .filter(|answer| matches!(answer, Ok(Applied { answer: Ok(Answer::Claim(ClaimAnswer::New(_))), .. })));
    assert!(grants.count() > 0, "a claim is granted");
    let investigated =
        |answer: &Result<Applied, Refusal>| matches!(answer, Ok(Applied { answer: Ok(Answer::Investigated(_)), .. }));
    assert!(answered.iter().any(investigated), "a record is investigated");
    assert_eq!(decode_answers(&encode_answers(&answered)).unwrap(), answered);
}
