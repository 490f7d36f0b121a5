//! A record by hand: from the claim through the effect to the report, and every way in which that ends early.

use std::time::Duration;

use rand::Rng;
use semel::{limits, proto::v1};
use tokio::time::Instant;

use super::{caller::Caller, draw, pause};
use crate::{
    history::{Answered, Call, Name},
    ledger::{Manner, Told},
};

/// What an owner needs to know.
struct Grant {
    fence: u64,
    downstream_key: String,
    is_begun: bool,
    /// No effect is started after this, by the client's own clock.
    last_start: Instant,
    lease: Duration,
}

impl Grant {
    fn of(answer: &v1::ClaimAnswer, sent_at: Instant) -> Option<Self> {
        if answer.answer() != v1::Answer::New {
            return None;
        }
        let lease = Duration::from_millis(answer.lease_ms?.into());
        Some(Self {
            fence: answer.fence?,
            downstream_key: answer.downstream_key.clone()?,
            is_begun: answer.phase() == v1::Phase::Begun,
            last_start: sent_at + lease * limits::CLIENT_LEASE_PERCENT / 100,
            lease,
        })
    }
}

impl Caller {
    /// Claims, and where it is granted does what is to be done.
    pub async fn drive(&mut self, name: &Name) {
        let attempt_id = self.attempt_id(0);
        let request = draw::claim(name, attempt_id, &mut self.rng);
        self.claim_and_own(name, request).await;
    }

    /// The same, begun at once.
    pub async fn drive_as_begun(&mut self, name: &Name) {
        let attempt_id = self.attempt_id(0);
        let request = v1::ClaimRequest { staged: Some(false), ..draw::claim(name, attempt_id, &mut self.rng) };
        self.claim_and_own(name, request).await;
    }

    /// The same, waiting for whoever is at it.
    pub async fn wait_for(&mut self, name: &Name) {
        let attempt_id = self.attempt_id(0);
        let wait_ms = Some(self.rng.random_range(100..4_000));
        let request = v1::ClaimRequest { wait_ms, ..draw::claim(name, attempt_id, &mut self.rng) };
        self.claim_and_own(name, request).await;
    }

    async fn claim_and_own(&mut self, name: &Name, request: v1::ClaimRequest) {
        let sent_at = Instant::now();
        let Some(answer) = self.claim(name, request).await else { return };
        if let Some(grant) = Grant::of(&answer, sent_at) {
            self.own(name, grant).await;
        }
    }

    async fn own(&mut self, name: &Name, mut grant: Grant) {
        if !grant.is_begun {
            match self.rng.random_range(0..12) {
                // Gives it back before anything was begun, or forgets it.
                0 => return self.release(name, &grant).await,
                1 => return,
                _ => {}
            }
            if !self.begin(name, &mut grant).await {
                return;
            }
        }
        self.on_the_way(name, &mut grant).await;
        match self.rng.random_range(0..12) {
            0 => return self.release(name, &grant).await,
            1 => return self.suspend(name, &grant).await,
            2 => return,
            _ => {}
        }
        if Instant::now() >= grant.last_start {
            return;
        }
        let manner = Manner::draw(&mut self.rng);
        let ledger = self.setting.ledger.clone();
        match ledger.perform(name, &grant.downstream_key, grant.fence, manner, &mut self.rng).await {
            // A process that ends here leaves it to whoever asks the provider.
            Told::Done(_) if self.rng.random_ratio(1, 16) => {}
            Told::Done(receipt) => self.complete(name, &grant, &receipt).await,
            Told::NeverSent => self.release(name, &grant).await,
            Told::TimedOut if self.rng.random_ratio(1, 3) => {}
            Told::TimedOut => self.suspend(name, &grant).await,
        }
    }

    /// What an owner does before the effect: renews, keeps recovery points, takes its time.
    async fn on_the_way(&mut self, name: &Name, grant: &mut Grant) {
        for _ in 0..self.rng.random_range(0..3) {
            let sent_at = Instant::now();
            let fence = Some(grant.fence);
            if self.rng.random::<bool>() {
                let lease_ms = self.rng.random::<bool>().then(|| self.rng.random_range(500..4_000));
                let request = v1::RenewRequest { record: Some(name.to_id()), fence, lease_ms };
                if let Answered::Owner(answer) = self.send_and_repeat(name, Call::Renew(request)).await
                    && let Some(lease_ms) = answer.lease_ms
                {
                    grant.lease = Duration::from_millis(lease_ms.into());
                    let last_start = sent_at + grant.lease * limits::CLIENT_LEASE_PERCENT / 100;
                    grant.last_start = grant.last_start.max(last_start);
                }
            } else {
                let data = Some(format!("step {}", self.rng.random_range(0..3)).into());
                let request =
                    v1::CheckpointRequest { record: Some(name.to_id()), fence, name: "step".to_owned(), data };
                self.send_and_repeat(name, Call::Checkpoint(request)).await;
            }
            let thinks = self.rng.random_range(0..200);
            pause(thinks).await;
        }
    }

    /// Begins; false where no effect may be started.
    async fn begin(&mut self, name: &Name, grant: &mut Grant) -> bool {
        let sent_at = Instant::now();
        let lease_ms = self.rng.random_ratio(1, 4).then(|| self.rng.random_range(500..3_000));
        let request = v1::BeginRequest { record: Some(name.to_id()), fence: Some(grant.fence), lease_ms };
        let Answered::Owner(answer) = self.send_and_repeat(name, Call::Begin(request)).await else { return false };
        if let (Some(_), Some(granted)) = (lease_ms, answer.lease_ms) {
            let lease = Duration::from_millis(granted.into());
            grant.last_start = grant.last_start.max(sent_at + lease * limits::CLIENT_LEASE_PERCENT / 100);
        }
        grant.is_begun = true;
        answer.phase() == v1::Phase::Begun
    }

    async fn complete(&mut self, name: &Name, grant: &Grant, receipt: &str) {
        let outcome = draw::outcome(name, receipt, &mut self.rng);
        let request = |outcome| v1::CompleteRequest {
            record: Some(name.to_id()),
            fence: Some(grant.fence),
            outcome: Some(outcome),
        };
        let told = self.send_and_repeat(name, Call::Complete(request(outcome.clone()))).await;
        // A confused owner: what it says second must count for nothing.
        match self.rng.random_range(0..40) {
            0 | 1 => {
                let other = v1::Outcome { body: Some("another outcome".into()), ..outcome };
                self.send(name, Call::Complete(request(other))).await;
            }
            // Where the outcome may not be recorded this would be a lie, and not only confused.
            2 if matches!(told, Answered::Owner(_)) => self.release(name, grant).await,
            _ => {}
        }
    }

    async fn release(&mut self, name: &Name, grant: &Grant) {
        let evidence = Some("the provider was never asked".to_owned());
        let request = v1::ReleaseRequest { record: Some(name.to_id()), fence: Some(grant.fence), evidence };
        self.send_and_repeat(name, Call::Release(request)).await;
    }

    async fn suspend(&mut self, name: &Name, grant: &Grant) {
        let reason = Some("no answer from the provider".to_owned());
        let request = v1::SuspendRequest { record: Some(name.to_id()), fence: Some(grant.fence), reason };
        self.send_and_repeat(name, Call::Suspend(request)).await;
    }
}
