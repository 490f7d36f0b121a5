//! The service: the calls over the replicated log and the state that it makes.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Weak},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;

use super::{
    Log, Streams, events::Events, names::Names, request::RecordName, seen::Seen, tenants::Tenants, waiters::Waiters,
};
use crate::{
    auth::{Caller, Method},
    entropy,
    id::{ClusterId, KeyedHash, Position, RecordId, Tenant, Time, Uuid},
    limits,
    records::{
        answer::{Answer, Applied},
        command::{Command, RecordRef},
        effective_of,
        policy::Effective,
        record::Standing,
        state::{Event, State},
    },
    refusal::{Code, Refusal},
    seal::Keychain,
    store::{
        overlay::Overlay,
        records::{Listener, Records},
    },
};

/// The calls of one node.
pub struct Service<L> {
    pub(super) log: Arc<L>,
    pub(super) records: Arc<Records>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) events: Arc<Events>,
    /// What was turned away, for people to see.
    pub seen: Arc<Seen>,
    pub(super) tenants: Arc<Tenants>,
    pub(super) streams: Arc<Streams>,
    rates: Mutex<HashMap<(Tenant, Option<KeyedHash>), Rate>>,
}

/// A limiter of claims and the rate that it was made for.
struct Rate {
    per_s: u32,
    limiter: DefaultDirectRateLimiter,
}

/// Takes note of what an entry changed.
struct Hearing {
    waiters: Arc<Waiters>,
    events: Arc<Events>,
    /// They hold the records, which hold this.
    tenants: Weak<Tenants>,
    seen: Arc<Seen>,
}

impl Listener for Hearing {
    fn applied(&self, touched: Vec<RecordRef>, events: Vec<(Position, Event)>, state: &Overlay) {
        self.waiters.wake(&touched);
        for (_, event) in &events {
            match event {
                Event::Closed(tenant) => {
                    self.tenants.upgrade().into_iter().for_each(|tenants| tenants.forget(tenant));
                    self.seen.forget(tenant);
                    self.waiters.wake_tenant(tenant);
                }
                Event::Rekeyed(of) => {
                    self.tenants.upgrade().into_iter().for_each(|tenants| tenants.rekeyed(state, of.as_ref()));
                }
                Event::Indeterminate(_) | Event::Gone(..) | Event::DoubtEnded => {}
            }
        }
        self.events.add(events, state.globals().position);
    }

    fn replaced(&self, state: &Overlay) {
        self.tenants.upgrade().into_iter().for_each(|tenants| tenants.replaced(state));
        state.key_table().closings.keys().for_each(|tenant| self.waiters.wake_tenant(tenant));
        self.events.wake(state.globals().position);
    }
}

/// A record that a call names, found under its tenant's keys.
pub(super) struct Target {
    pub names: Arc<Names>,
    pub id: RecordId,
    pub record: RecordRef,
    pub joined: bytes::Bytes,
}

impl<L: Log> Service<L> {
    /// The calls over this log and the state that it makes, whose sealed fields these keys open.
    pub fn new(log: Arc<L>, records: Arc<Records>, keys: Arc<Keychain>) -> Self {
        let waiters = Arc::new(Waiters::default());
        let events = Arc::new(Events::default());
        let (tenants, seen) = (Arc::new(Tenants::new(Arc::clone(&records), keys)), Arc::new(Seen::default()));
        let hearing = Hearing {
            waiters: Arc::clone(&waiters),
            events: Arc::clone(&events),
            tenants: Arc::downgrade(&tenants),
            seen: Arc::clone(&seen),
        };
        records.listen(Arc::new(hearing));
        Self { log, records, waiters, events, seen, tenants, streams: Arc::default(), rates: Mutex::default() }
    }

    /// How many claims wait now.
    pub fn waiting(&self) -> usize {
        self.waiters.count()
    }

    /// How many watch indeterminate records now.
    pub fn watching(&self) -> usize {
        self.events.listeners()
    }

    /// The cluster that answers; none while it isn't formed.
    pub(super) fn formed_as(&self) -> Option<ClusterId> {
        self.records.read().globals().formed.as_ref().map(|formed| formed.cluster_id)
    }

    /// Judges a call on one record: permission, tenant, operation.
    pub(super) fn authorize(&self, caller: &Caller, method: Method, name: RecordName) -> Result<RecordId, Refusal> {
        let tenant = caller.authorize(method, name.tenant.as_ref(), &name.operation)?;
        Ok(name.within(tenant))
    }

    /// The keys of a tenant that is open; none where it never was.
    pub(super) fn names_of(&self, tenant: &Tenant) -> Result<Option<Arc<Names>>, Refusal> {
        self.tenants.names_of(tenant)
    }

    /// The keys of a tenant, opened where this is its first use.
    pub(super) async fn names_or_open(&self, tenant: &Tenant) -> Result<Arc<Names>, Refusal> {
        if let Some(names) = self.names_of(tenant)? {
            return Ok(names);
        }
        let opening = self.tenants.opening(tenant)?;
        Box::pin(self.propose(opening)).await?.answer?;
        // Of two first uses at once the first entry stands: the key is read back, never remembered from the proposal.
        if let Some(names) = self.names_of(tenant)? {
            return Ok(names);
        }
        // It was decided elsewhere, and this node is behind.
        Box::pin(self.log.barrier()).await?;
        self.names_of(tenant)?.ok_or_else(|| Refusal::new(Code::Internal, "the tenant was opened and is not there"))
    }

    /// The record that a call names, in a tenant that is open.
    pub(super) fn target(&self, id: RecordId) -> Result<Option<Target>, Refusal> {
        let Some(names) = self.names_of(&id.tenant)? else { return Ok(None) };
        let (record, joined) = names.record(&id);
        Ok(Some(Target { names, id, record, joined }))
    }

    /// The same, also where this node has not heard yet that the tenant was opened.
    pub(super) async fn known_target(&self, id: RecordId) -> Result<Option<Target>, Refusal> {
        if let Some(target) = self.target(id.clone())? {
            return Ok(Some(target));
        }
        Box::pin(self.log.barrier()).await?;
        self.target(id)
    }

    /// The same, in a tenant that is opened where this is its first use.
    pub(super) async fn target_or_open(&self, id: RecordId) -> Result<Target, Refusal> {
        let names = self.names_or_open(&id.tenant).await?;
        let (record, joined) = names.record(&id);
        Ok(Target { names, id, record, joined })
    }

    /// Proposes one command.
    pub(super) async fn propose(&self, command: Command) -> Result<Applied, Refusal> {
        let mut answers = self.log.propose(vec![Arc::new(command)]).await;
        answers.pop().unwrap_or_else(|| Err(Refusal::new(Code::Internal, "the log gave no answer")))
    }

    /// Proposes one command in the name of a caller: it counts only if the caller's token does, where it is applied.
    pub(super) async fn propose_by(&self, caller: &Caller, command: Command) -> Result<Applied, Refusal> {
        let applied = self.propose(caller.commands(command)).await?;
        match &applied.answer {
            // One body for each refusal, wherever it came from.
            Err(refusal) if refusal.code == Code::Unauthenticated => Err(crate::auth::caller::unauthenticated()),
            _ => Ok(applied),
        }
    }

    /// Waits until the local state is linearizable, and until no deadline of this record lies between the applied time
    /// and now: reads are decided at applied time. Answers now.
    pub(super) async fn settle(&self, record: &RecordRef) -> Result<Time, Refusal> {
        let now = self.log.barrier().await?;
        let due = {
            let state = self.records.read();
            let applied = state.globals().time;
            let head = state.head(record);
            Standing::of(head.as_deref(), applied, state.globals()).next_change(applied)
        };
        match due {
            Some(due) if due <= now => self.log.tick_to(due).await.map(|()| now),
            _ => Ok(now),
        }
    }

    /// The policies that hold for an operation.
    pub(super) fn policy(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Effective {
        effective_of(&*self.records.read(), tenant, operation)
    }

    /// Refuses a claim beyond the rate of its tenant or operation. Soft, and per node.
    pub(super) fn admit_rate(&self, record: &RecordRef, policy: &Effective) -> Result<(), Refusal> {
        let Some(per_s) = policy.policy.claims_per_s else { return Ok(()) };
        let Some(quota) = NonZeroU32::new(per_s) else { return Err(rate_limited(1000)) };
        let own = self.records.read().policy(&record.tenant, Some(record.operation));
        let level = own.filter(|level| level.overrides.claims_per_s.is_some()).map(|_| record.operation);
        let mut rates = self.rates.lock();
        if rates.len() >= limits::RATES_KEPT_MAX {
            rates.clear();
        }
        let make = || Rate { per_s, limiter: RateLimiter::direct(Quota::per_second(quota)) };
        let rate = rates.entry((record.tenant.clone(), level)).or_insert_with(make);
        if rate.per_s != per_s {
            *rate = make();
        }
        rate.limiter.check().map_err(|not_until| {
            use governor::clock::Clock;
            let wait = not_until.wait_time_from(governor::clock::DefaultClock::default().now());
            rate_limited(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
        })
    }

    /// The position that the local state stands at.
    pub(super) fn position(&self) -> Position {
        self.records.read().globals().position
    }

    /// The last applied time.
    pub(super) fn applied_time(&self) -> Time {
        self.records.read().globals().time
    }
}

fn rate_limited(retry_after_ms: u64) -> Refusal {
    let detail = "more claims a second than claims_per_s of the policy; send them later";
    Refusal::new(Code::RateLimited, detail).retry_after_ms(retry_after_ms)
}

/// A UUID of version 4.
pub(super) fn fresh_uuid() -> Uuid {
    let mut bytes = entropy::bytes::<16>();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Uuid(bytes)
}

/// What a command of another kind than this call's can't answer.
pub(super) fn mismatch(answer: &Answer) -> Refusal {
    tracing::error!(?answer, "the log answered another kind of command");
    Refusal::new(Code::Internal, "the log answered another kind of command")
}

/// Refuses as from the log: with the position at which it was decided.
pub(super) fn at(index: Position, refusal: Refusal) -> Refusal {
    Refusal { index: Some(index), ..refusal }
}
