//! The library's own way: `Operation::run` with a handler that performs the effect. Its records belong to it alone.

use rand::Rng;
use semel::{
    client::{Done, Error, Outcome, Verdict},
    fingerprint::Fingerprint,
};

use super::{caller::Caller, draw};
use crate::{
    history::{Answered, Call, Name},
    ledger::{Manner, Told},
};

impl Caller {
    /// Runs an operation on one of the records that only runs touch.
    pub async fn guarded(&mut self, name: &Name) {
        let name = Name { operation: draw::GUARDED.to_owned(), ..name.clone() };
        let manner = Manner::draw(&mut self.rng);
        let lease = std::time::Duration::from_millis(self.rng.random_range(500..5_000));
        let wait = std::time::Duration::from_millis(if self.rng.random_ratio(1, 3) { 1_000 } else { 0 });
        let digest = Fingerprint::json_text(format!("\"{}\"", name.key)).expect("a JSON string");
        let mut operation =
            self.client.operation(&name.operation).tenant(&name.tenant).key(&name.key).fingerprint(digest);
        operation = operation.lease(lease).wait(wait).label("client", self.number.to_string());
        if self.rng.random_ratio(1, 5) {
            operation = operation.begun();
        }
        let purpose = self.attempt_id(9);
        let (ledger, mut rng) = (self.setting.ledger.clone(), self.setting.options.rng(&purpose));
        let run = operation.run(async |claim| {
            if claim.check().is_err() {
                return Verdict::no_effect("too little of the lease was left");
            }
            match ledger.perform(&name, claim.downstream_key(), claim.fence(), manner, &mut rng).await {
                Told::Done(receipt) => Verdict::completed(201, receipt),
                Told::NeverSent => Verdict::no_effect("the provider was never asked"),
                Told::TimedOut => Verdict::unknown("no answer from the provider"),
            }
        });
        let _ = self.recorded(&name, Call::Run, run, ran).await.inspect_err(|error| {
            if let Error::Unrecorded { source, .. } = error {
                // The effect stands in the ledger; what became of the report shows in the log.
                let _ = source;
            }
        });
    }
}

fn ran(done: &Done) -> Answered {
    let body = |outcome: &Outcome| outcome.body.as_ref().map(|body| body.to_vec());
    match done {
        Done::Ran(outcome) => Answered::Ran("ran", body(outcome)),
        Done::Replayed(outcome) => Answered::Ran("replayed", body(outcome)),
        Done::Conflict(_) => Answered::Ran("conflict", None),
        Done::InProgress(_) => Answered::Ran("in_progress", None),
        Done::Indeterminate(_) => Answered::Ran("indeterminate", None),
        Done::Expired(_) => Answered::Ran("expired", None),
    }
}
