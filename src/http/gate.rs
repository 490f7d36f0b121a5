//! Who gets in: connections are bounded in number, also from one address. At a bound the oldest one without a good
//! credential makes room, so that whoever only holds connections open keeps nobody else out.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{auth::network, metrics::Metrics, net::Proven};

/// Who gets in.
pub(super) struct Gate {
    connections_max: usize,
    per_address_max: usize,
    table: Arc<Mutex<Table>>,
    metrics: Option<Arc<Metrics>>,
}

#[derive(Default)]
struct Table {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    /// Those that have shown no good credential, by their numbers. Some have since.
    unproven: BTreeMap<u64, Unproven>,
    /// The next number.
    next: u64,
}

struct Unproven {
    address: IpAddr,
    proven: Arc<Proven>,
    taken: Arc<Taken>,
}

/// Whether a connection's place is another one's.
#[derive(Default)]
struct Taken {
    is_taken: AtomicBool,
    told: Notify,
}

/// A connection's place, until it is dropped.
pub(super) struct Place {
    number: u64,
    address: IpAddr,
    table: Arc<Mutex<Table>>,
    metrics: Option<Arc<Metrics>>,
    taken: Arc<Taken>,
}

impl Gate {
    pub(super) fn new(connections_max: usize, per_address_max: usize, metrics: Option<Arc<Metrics>>) -> Self {
        Self { connections_max, per_address_max, table: Arc::default(), metrics }
    }

    /// A place for a connection from this address; `unproven` tells whether it has shown a good credential, where one is
    /// asked for. None where there are too many.
    pub(super) fn admit(&self, address: IpAddr, unproven: Option<Arc<Proven>>) -> Option<Place> {
        let address = network(address);
        let mut table = self.table.lock();
        let of_address = table.by_address.get(&address).copied().unwrap_or(0);
        // Whoever makes room for its own address makes room for all.
        let (why, whose) = match (of_address >= self.per_address_max, table.total >= self.connections_max) {
            (true, _) => ("connections_per_address_max", Some(address)),
            (false, true) => ("connections_max", None),
            (false, false) => ("", None),
        };
        if !why.is_empty() {
            // Of two, one is turned away.
            if let Some(metrics) = &self.metrics {
                metrics.refused_connection(why);
            }
            if !table.make_room(whose) {
                return None;
            }
        }
        table.total += 1;
        *table.by_address.entry(address).or_default() += 1;
        let (number, taken) = (table.next, Arc::<Taken>::default());
        table.next += 1;
        if let Some(proven) = unproven {
            table.unproven.insert(number, Unproven { address, proven, taken: Arc::clone(&taken) });
        }
        drop(table);
        if let Some(metrics) = &self.metrics {
            metrics.connections.inc();
        }
        let (table, metrics) = (Arc::clone(&self.table), self.metrics.clone());
        Some(Place { number, address, table, metrics, taken })
    }
}

impl Table {
    /// Takes the place of the oldest connection without a good credential, of this address where one is named. False where
    /// there is none.
    fn make_room(&mut self, whose: Option<IpAddr>) -> bool {
        self.unproven.retain(|_, unproven| !unproven.proven.is_proven());
        let found = self.unproven.iter().find(|(_, unproven)| whose.is_none_or(|whose| whose == unproven.address));
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        if let Some(oldest) = self.unproven.remove(&number) {
            self.leave(oldest.address);
            oldest.taken.is_taken.store(true, Ordering::Relaxed);
            oldest.taken.told.notify_one();
        }
        true
    }

    fn leave(&mut self, address: IpAddr) {
        self.total -= 1;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl Place {
    /// Counts that the connection is ended by this node.
    pub(super) fn refused(&self, why: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.refused_connection(why);
        }
    }

    /// Returns once the place is another connection's: this one must end.
    pub(super) async fn is_taken(&self) {
        self.taken.told.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.unproven.remove(&self.number);
        // Written under this lock.
        if !self.taken.is_taken.load(Ordering::Relaxed) {
            table.leave(self.address);
        }
        drop(table);
        if let Some(metrics) = &self.metrics {
            metrics.connections.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gate(connections_max: usize, per_address_max: usize) -> (Gate, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        (Gate::new(connections_max, per_address_max, Some(Arc::clone(&metrics))), metrics)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn places_are_bounded_by_address_and_given_back() {
        let (gate, metrics) = gate(5, 2);
        let admit = |text: &str| gate.admit(address(text), None);
        let one = [admit("10.0.0.1"), admit("::ffff:10.0.0.1")];
        assert!(one.iter().all(Option::is_some));
        assert!(admit("10.0.0.1").is_none());
        // Of IPv6 a network of 64 bits is one address.
        let other = [admit("2001:db8:1:2::1"), admit("2001:db8:1:2:ffff::2")];
        assert!(admit("2001:db8:1:2::3").is_none());
        let third = admit("2001:db8:1:3::1");
        assert!(admit("10.0.0.2").is_none());
        assert_eq!(metrics.connections.get(), 5);
        for (why, count) in [("connections_per_address_max", 2), ("connections_max", 1)] {
            let line = format!("semel_refused_connections_total{{reason=\"{why}\"}} {count}");
            assert!(metrics.encode().contains(&line), "{line}");
        }
        drop((one, other, third));
        assert_eq!((metrics.connections.get(), gate.table.lock().by_address.len()), (0, 0));
        assert!(admit("10.0.0.1").is_some());
    }

    #[test]
    fn the_oldest_without_a_credential_makes_room() {
        let (gate, _) = gate(4, 2);
        let is_taken = |place: &Place| place.is_taken().now_or_never().is_some();
        let enter = |text: &str| {
            let proven = Arc::<Proven>::default();
            gate.admit(address(text), Some(Arc::clone(&proven))).map(|place| (place, proven))
        };
        let [first, second, third, fourth] =
            ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|text| enter(text).expect("there is room"));
        // At the bound of an address the oldest of that address, at the other one the oldest of all: but none that has
        // shown a credential.
        first.1.prove();
        let fifth = enter("10.0.0.1").expect("the second makes room");
        assert!(is_taken(&second.0) && !is_taken(&first.0) && !is_taken(&third.0));
        let sixth = enter("10.0.0.4").expect("the third makes room");
        assert!(is_taken(&third.0) && !is_taken(&fourth.0));
        // Those that had to go free nothing more when they have gone.
        drop((second, third));
        assert_eq!(gate.table.lock().total, 4);
        [&fourth, &fifth, &sixth].into_iter().for_each(|(_, proven)| proven.prove());
        assert!(enter("10.0.0.5").is_none(), "nobody has to go for somebody unknown");
        drop(first);
        assert!(enter("10.0.0.5").is_some());
        drop((fourth, fifth, sixth));
        let table = gate.table.lock();
        assert_eq!((table.total, table.by_address.len(), table.unproven.len()), (0, 0, 0));
    }
}
