//! Reconcilers: they ask the provider, and say only what it said. By hand, under record, for what clients drive by hand;
//! the library's own loop for what the library runs.

use std::{rc::Rc, time::Duration};

use rand::Rng;
use semel::{
    client::{Error, Finding, Outcome, Reconciler, Unresolved},
    proto::v1,
};

use super::{Setting, caller::Caller, draw, pause};
use crate::{
    history::{Answered, Call, Name},
    ledger::Known,
};

/// From one look through the list to the next, ms.
const EVERY_MS: u64 = 1_500;
/// How long a record is kept from other reconcilers, ms.
const LEASE_MS: u32 = 2_000;

/// A reconciler's life.
pub async fn run(setting: Rc<Setting>, number: u8) -> Result<(), Error> {
    // Beyond every client's number.
    let caller = Caller::new(setting.clone(), 50_000 + u16::from(number))?;
    let actor = format!("reconciler-{number}");
    tokio::join!(by_hand(caller, actor.clone()), by_library(setting.clone(), actor));
    Ok(())
}

async fn by_library(setting: Rc<Setting>, actor: String) {
    // The list of the library's loop is one tenant's: the first one's. Of the others' they are settled by hand.
    let tenant = draw::tenants(&setting.options)[0];
    let Ok(client) = (setting.connect)(60_000).tenant(tenant).connect_lazy() else { return };
    let ask = |unresolved: Unresolved| {
        let ledger = setting.ledger.clone();
        async move {
            match ledger.ask(&unresolved.downstream_key).await {
                Known::Happened(receipt) => Finding::completed(Outcome::new(201).body(receipt), "in its books"),
                Known::Pending => Finding::unknown("under way", Duration::from_secs(1)),
                Known::Nothing => Finding::no_effect("nothing under the downstream key"),
            }
        }
    };
    let operation = draw::GUARDED;
    let mut reconciler =
        Reconciler::new(&client, actor).operation(operation).lease(Duration::from_millis(LEASE_MS.into()));
    while (setting.goes_on)() {
        let _not_listed_this_time = reconciler.pass(&ask).await;
        pause(EVERY_MS).await;
    }
}

async fn by_hand(mut caller: Caller, actor: String) {
    let setting = caller.setting.clone();
    while (setting.goes_on)() {
        for tenant in draw::tenants(&setting.options) {
            let mut listing = caller.client.list(v1::ListRequest {
                tenant: Some((*tenant).to_owned()),
                state: Some(v1::State::Indeterminate.into()),
                page_size: Some(20),
                ..v1::ListRequest::default()
            });
            while let Ok(Some(page)) = listing.next_page().await {
                for record in page.records {
                    let is_guarded = record.record.as_ref().is_some_and(|id| id.operation == draw::GUARDED);
                    // The first tenant's are the library's.
                    if !(is_guarded && *tenant == draw::tenants(&setting.options)[0]) {
                        caller.settle(&record, &actor).await;
                    }
                }
                if !(setting.goes_on)() {
                    break;
                }
            }
        }
        let jitter = caller.rng.random_range(0..EVERY_MS);
        pause(EVERY_MS / 2 + jitter).await;
    }
}

impl Caller {
    /// Takes a record up, asks the provider, and says what it said.
    async fn settle(&mut self, listed: &v1::Record, actor: &str) {
        let Some(id) = listed.record.clone() else { return };
        let name = Name::of(&id);
        let request = v1::InvestigateRequest {
            record: Some(id.clone()),
            lease_ms: Some(LEASE_MS),
            actor: Some(actor.to_owned()),
            version: Some(listed.version),
        };
        let Answered::Record(taken) = self.send(&name, Call::Investigate(request)).await else { return };
        // Who walks away keeps others from it until its time is over; who dawdles speaks while it is another's.
        match self.rng.random_range(0..12) {
            0 | 1 => return,
            2 => pause(u64::from(LEASE_MS) * 3 / 2).await,
            _ => {}
        }
        let ledger = self.setting.ledger.clone();
        let known = ledger.ask(&taken.downstream_key).await;
        let mut request = v1::ResolveRequest {
            record: Some(id),
            version: Some(taken.version),
            actor: Some(actor.to_owned()),
            evidence: "the provider's books".to_owned(),
            request_id: Some(self.attempt_id(7)),
            ..v1::ResolveRequest::default()
        };
        match known {
            Known::Happened(receipt) => {
                request.set_verdict(v1::Verdict::Completed);
                request.outcome = Some(draw::outcome(&name, &receipt, &mut self.rng));
            }
            Known::Nothing => request.set_verdict(v1::Verdict::NoEffect),
            Known::Pending => {
                request.set_verdict(v1::Verdict::Unknown);
                // A second from the epoch is long past for the cluster: to be looked at again at once.
                request.check_again_at = Some(prost_types::Timestamp { seconds: 1, nanos: 0 });
            }
        }
        self.send_and_repeat(&name, Call::Resolve(Box::new(request))).await;
    }
}
