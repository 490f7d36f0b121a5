//! Who waits for which record. Waiting costs no log entry, and only one waiter of a record proposes at a time: ten
//! thousand of them wake without a stampede. No waiter's word counts: the log decides every claim.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    id::Tenant,
    limits,
    records::command::RecordRef,
    refusal::{Code, Refusal},
};

struct Place {
    changes: watch::Sender<u64>,
    waiting: usize,
    /// Whether one of the waiters is proposing.
    is_proposing: Arc<AtomicBool>,
}

#[derive(Default)]
struct Table {
    places: HashMap<RecordRef, Place>,
    tenants: HashMap<Tenant, usize>,
    total: usize,
}

/// All waiters of this node.
#[derive(Default)]
pub(super) struct Waiters {
    table: Mutex<Table>,
    has_ended: AtomicBool,
}

impl Waiters {
    /// How many wait.
    pub fn count(&self) -> usize {
        self.table.lock().total
    }

    /// Enters a waiter; it leaves by being dropped.
    pub fn enter(self: &Arc<Self>, record: &RecordRef) -> Result<Waiter, Refusal> {
        let mut table = self.table.lock();
        let of_tenant = table.tenants.get(&record.tenant).copied().unwrap_or(0);
        if table.total >= limits::WAITERS_MAX || of_tenant >= limits::TENANT_WAITERS_MAX {
            let detail = "too many claims are waiting; claim without wait_ms, or later";
            return Err(Refusal::new(Code::RateLimited, detail).retry_after_ms(limits::WAITERS_RETRY_AFTER_MS));
        }
        table.total += 1;
        *table.tenants.entry(record.tenant.clone()).or_default() += 1;
        let place = table.places.entry(record.clone()).or_insert_with(|| Place {
            changes: watch::channel(0).0,
            waiting: 0,
            is_proposing: Arc::default(),
        });
        place.waiting += 1;
        Ok(Waiter {
            changes: place.changes.subscribe(),
            is_proposing: Arc::clone(&place.is_proposing),
            record: record.clone(),
            waiters: Arc::clone(self),
        })
    }

    /// Wakes whoever waits for these records.
    pub fn wake(&self, records: &[RecordRef]) {
        let table = self.table.lock();
        if table.total == 0 {
            return;
        }
        for record in records {
            if let Some(place) = table.places.get(record) {
                place.changes.send_modify(|changes| *changes += 1);
            }
        }
    }

    /// Wakes whoever waits for a record of this tenant.
    pub fn wake_tenant(&self, tenant: &Tenant) {
        let table = self.table.lock();
        for (_, place) in table.places.iter().filter(|(record, _)| record.tenant == *tenant) {
            place.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Ends all waiting, now and later: whoever waits is answered as things stand.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        for place in self.table.lock().places.values() {
            place.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Whether waiting has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn leave(&self, record: &RecordRef) {
        let mut table = self.table.lock();
        table.total -= 1;
        if let Some(place) = table.places.get_mut(record) {
            place.waiting -= 1;
            if place.waiting == 0 {
                table.places.remove(record);
            }
        }
        if let Some(of_tenant) = table.tenants.get_mut(&record.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                table.tenants.remove(&record.tenant);
            }
        }
    }
}

/// A waiter's place in the table.
pub(super) struct Waiter {
    changes: watch::Receiver<u64>,
    is_proposing: Arc<AtomicBool>,
    record: RecordRef,
    waiters: Arc<Waiters>,
}

impl Waiter {
    /// Whatever changes from now on ends the next [`Waiter::changed`].
    pub fn look(&mut self) {
        self.changes.mark_unchanged();
        self.changes.borrow_and_update();
    }

    /// Waits for a change since the last look.
    pub async fn changed(&mut self) {
        // The sender stands in the table for as long as this waiter does.
        let _ = self.changes.changed().await;
    }

    /// The right to propose for this record, unless another waiter has it.
    pub fn turn(&self) -> Option<Turn> {
        let is_free = self.is_proposing.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        is_free.then(|| Turn {
            is_proposing: Arc::clone(&self.is_proposing),
            record: self.record.clone(),
            waiters: Arc::clone(&self.waiters),
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiters.leave(&self.record);
    }
}

/// The right of one waiter to propose; passes on when it is dropped.
pub(super) struct Turn {
    is_proposing: Arc<AtomicBool>,
    record: RecordRef,
    waiters: Arc<Waiters>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.is_proposing.store(false, Ordering::Release);
        self.waiters.wake(std::slice::from_ref(&self.record));
    }
}
