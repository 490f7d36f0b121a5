//! What no good client does, and what many do at once: other requests under a key, requests that come late, inputs that
//! are too large or malformed, and hundreds of deadlines at one moment.

use std::time::Duration;

use rand::{Rng, seq::IndexedRandom};
use semel::{limits, proto::v1};
use tokio::time::Instant;

use super::{caller::Caller, draw};
use crate::{
    fault::FaultKind,
    history::{Answered, Call, Name},
};

/// A request is late when it was first sent so long ago.
const LATE: Duration = Duration::from_secs(2);
/// Records whose deadlines fall due together.
const BURST_RECORDS: u32 = 150;

impl Caller {
    /// Another request under a key that is taken, or will be.
    pub async fn conflict(&mut self, name: &Name) {
        let attempt_id = self.attempt_id(1);
        let request = v1::ClaimRequest {
            fingerprints: vec![draw::fingerprint(name, 1)],
            staged: Some(true),
            ..draw::claim(name, attempt_id, &mut self.rng)
        };
        // Where the key was free the record is this request's now. It gives it back; if that is lost, the lapse does.
        if let Some(answer) = self.claim(name, request).await
            && let Some(fence) = answer.fence
        {
            let request = v1::ReleaseRequest { record: Some(name.to_id()), fence: Some(fence), evidence: None };
            self.send_and_repeat(name, Call::Release(request)).await;
        }
    }

    /// Sends an old request again, long after its attempt was over. False where none is old enough.
    pub async fn late(&mut self) -> bool {
        let now = Instant::now();
        let old: Vec<_> = self.remembered.iter().filter(|(sent, ..)| now.duration_since(*sent) > LATE).collect();
        let Some((_, name, call)) = old.choose(&mut self.rng).map(|old| (*old).clone()) else { return false };
        self.send(&name, call).await;
        true
    }

    /// A change of a policy in mid flight. Windows become longer and shorter: what was promised stays.
    pub async fn change_policy(&mut self, name: &Name) {
        let operation = if self.rng.random_ratio(2, 3) { "brief" } else { "again" };
        let name = Name { key: String::new(), operation: operation.to_owned(), ..name.clone() };
        let replay_s = self.rng.random_range(1..4);
        let evidence_s = replay_s + self.rng.random_range(0..5);
        let policy = v1::Policy { replay_s: Some(replay_s), evidence_s: Some(evidence_s), ..v1::Policy::default() };
        self.set_policy(&name, policy).await;
    }

    /// Many staged claims of one lease, in one batch: their deadlines fall due at one moment.
    pub async fn burst(&mut self) {
        self.setting.fired.hit(FaultKind::ExpiryBurst);
        let tenant = (*draw::tenants(&self.setting.options).choose(&mut self.rng).expect("not empty")).to_owned();
        let lease_ms = self.rng.random_range(500..2_000);
        let mut items = Vec::new();
        let mut recorded = Vec::new();
        let now = self.setting.watch.now();
        for number in 0..BURST_RECORDS {
            let operation = draw::BURST.to_owned();
            let key = format!("burst-{number:04}");
            let name = Name { tenant: tenant.clone(), operation, key, ..Name::default() };
            let attempt_id = self.attempt_id(0);
            let staged = Some(self.rng.random_ratio(3, 4));
            let claim = draw::claim(&name, attempt_id, &mut self.rng);
            let claim = v1::ClaimRequest { lease_ms: Some(lease_ms), staged, ..claim };
            let id = self.setting.history.invoked(self.number, name, Call::Claim(Box::new(claim.clone())), now);
            recorded.push(id);
            items.push(v1::Item { command: Some(v1::item::Command::Claim(claim)) });
        }
        let answer = self.client.batch(v1::BatchRequest { items }).await;
        let now = self.setting.watch.now();
        for (at, id) in recorded.into_iter().enumerate() {
            let answered = match &answer {
                Ok(answer) => answer.items.get(at).map_or(Answered::Not, item),
                Err(error) => Answered::of_error(error),
            };
            self.setting.history.returned(id, answered, now);
        }
    }

    /// As large as allowed, or a byte larger.
    pub async fn oversized(&mut self) {
        let name = self.name();
        let attempt_id = self.attempt_id(0);
        let mut request = v1::ClaimRequest { staged: Some(true), ..draw::claim(&name, attempt_id, &mut self.rng) };
        let over = usize::from(self.rng.random::<bool>());
        match self.rng.random_range(0..4) {
            0 => {
                let key = "k".repeat(limits::KEY_BYTES_MAX + over);
                request.record = Some(v1::RecordId { key, ..name.to_id() });
            }
            1 => {
                let value = "v".repeat(limits::LABEL_VALUE_BYTES_MAX + over);
                request.labels.insert("large".to_owned(), value);
            }
            2 => {
                request.labels = (0..limits::LABELS_MAX + over).map(|at| (format!("l{at}"), String::new())).collect();
            }
            _ => request.request = Some(vec![b' '; limits::REQUEST_BYTES_MAX - 512 + 1024 * over].into()),
        }
        let name = request.record.as_ref().map(Name::of).unwrap_or_default();
        self.send(&name, Call::Claim(Box::new(request))).await;
    }

    /// Malformed, or about what is another's. Nothing of it may be done, and nothing may break.
    pub async fn hostile(&mut self) {
        let name = self.name();
        let attempt_id = self.attempt_id(0);
        let good = v1::ClaimRequest { staged: Some(true), ..draw::claim(&name, attempt_id, &mut self.rng) };
        let fence = Some(self.rng.random::<u64>());
        let record = Some(name.to_id());
        let call = match self.rng.random_range(0..9) {
            0 => Call::Claim(Box::new(v1::ClaimRequest { fingerprints: Vec::new(), ..good })),
            1 => Call::Claim(Box::new(v1::ClaimRequest { attempt_id: Some("not-a-uuid".to_owned()), ..good })),
            2 => Call::Claim(Box::new(v1::ClaimRequest { record: None, ..good })),
            3 => {
                let digest = vec![7; self.rng.random_range(0..100)];
                let short = v1::Fingerprint { scheme: 0, digest: digest.into() };
                Call::Claim(Box::new(v1::ClaimRequest { fingerprints: vec![short], ..good }))
            }
            4 => {
                let key = "line\nbreak \u{0} é".to_owned();
                let record = Some(v1::RecordId { key, ..name.to_id() });
                Call::Claim(Box::new(v1::ClaimRequest { record, ..good }))
            }
            5 => Call::Complete(v1::CompleteRequest { record, fence, outcome: None }),
            6 => Call::Complete(v1::CompleteRequest {
                record,
                fence,
                outcome: Some(draw::outcome(&name, "forged", &mut self.rng)),
            }),
            7 => Call::Release(v1::ReleaseRequest { record, fence, evidence: Some("forged".to_owned()) }),
            _ => Call::Resolve(Box::new(v1::ResolveRequest {
                record,
                version: fence,
                evidence: "forged".to_owned(),
                verdict: v1::Verdict::NoEffect.into(),
                actor: Some("mallory".to_owned()),
                request_id: Some(self.attempt_id(8)),
                ..v1::ResolveRequest::default()
            })),
        };
        self.send(&name, call).await;
    }
}

/// What an item of a batch was answered.
fn item(item: &v1::ItemAnswer) -> Answered {
    use v1::item_answer::Answer;
    match &item.answer {
        Some(Answer::Claim(answer)) => Answered::Claim(Box::new(answer.clone())),
        Some(Answer::Refused(refused)) if refused.effect == i32::from(v1::Effect::None) => {
            Answered::Refused { code: refused.code.clone(), index: refused.index }
        }
        Some(Answer::Refused(refused)) => Answered::Unknown(refused.code.clone()),
        _ => Answered::Unknown("no answer of this kind".to_owned()),
    }
}
