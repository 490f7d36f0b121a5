//! The world outside the cluster: a provider that performs effects. It repeats nothing by itself and refuses nothing, so
//! that a second effect shows; it can be asked what it knows of a key.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::{Rng, rngs::SmallRng};

use crate::history::{Micros, Name, Watch};

/// An effect that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Of which record.
    pub name: Name,
    /// Under which key the provider knows it.
    pub downstream_key: String,
    /// With the fence of which owner.
    pub fence: u64,
    /// When it was sent.
    pub sent: Micros,
    /// When it happened.
    pub at: Micros,
}

/// How the provider takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It happens, and the caller is told.
    Plain,
    /// The connection breaks before anything left: the caller knows that nothing happens.
    NeverSent,
    /// A time-out, and nothing happens.
    TimeoutBefore,
    /// It happens, and then a time-out.
    TimeoutAfter,
    /// A time-out, and it happens only then.
    Late,
}

impl Manner {
    /// Mostly plain.
    pub fn draw(rng: &mut SmallRng) -> Self {
        match rng.random_range(0..20) {
            0 => Manner::NeverSent,
            1 => Manner::TimeoutBefore,
            2 => Manner::TimeoutAfter,
            3 => Manner::Late,
            _ => Manner::Plain,
        }
    }
}

/// What the caller of the provider learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It happened; this is its receipt.
    Done(String),
    /// Nothing happened, and nothing will.
    NeverSent,
    /// No answer came.
    TimedOut,
}

/// What the provider answers when it is asked about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// This receipt stands in its books.
    Happened(String),
    /// A request was taken and isn't done with.
    Pending,
    /// Nothing was ever taken.
    Nothing,
}

/// How long a request takes at the provider, µs.
const TAKES: std::ops::Range<Micros> = 1_000..400_000;
/// How long a caller waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How much later than the time-out a late effect happens, µs.
const LATE: std::ops::Range<Micros> = 100_000..2_000_000;

#[derive(Debug, Default)]
struct Books {
    effects: Vec<Effect>,
    /// Requests that were taken and not done with, by downstream key.
    pending: BTreeMap<String, u32>,
}

/// The provider. Clones keep the same books.
#[derive(Clone, Debug)]
pub struct Ledger {
    books: Arc<Mutex<Books>>,
    watch: Watch,
}

impl Ledger {
    /// A provider that has done nothing yet.
    pub fn new(watch: Watch) -> Self {
        Self { books: Arc::default(), watch }
    }

    /// Asks for the effect. What was taken takes place also when the caller dies meanwhile.
    pub async fn perform(
        &self,
        name: &Name,
        downstream_key: &str,
        fence: u64,
        manner: Manner,
        rng: &mut SmallRng,
    ) -> Told {
        let sent = self.watch.now();
        let (takes, late) = (rng.random_range(TAKES), rng.random_range(LATE));
        let effect = Effect { name: name.clone(), downstream_key: downstream_key.to_owned(), fence, sent, at: sent };
        match manner {
            Manner::NeverSent => {
                pause(takes).await;
                Told::NeverSent
            }
            Manner::TimeoutBefore => {
                tokio::time::sleep(TIMEOUT).await;
                Told::TimedOut
            }
            Manner::Plain | Manner::TimeoutAfter => {
                let taken = self.take(effect, takes);
                if manner == Manner::TimeoutAfter {
                    tokio::time::sleep(TIMEOUT).await;
                    return Told::TimedOut;
                }
                // The task ends with the runtime alone.
                taken.await.map_or(Told::TimedOut, Told::Done)
            }
            Manner::Late => {
                let _not_waited_for = self.take(effect, late);
                tokio::time::sleep(TIMEOUT).await;
                Told::TimedOut
            }
        }
    }

    /// Takes a request: it happens after a while, whoever waits for it.
    fn take(&self, effect: Effect, takes: Micros) -> tokio::task::JoinHandle<String> {
        *self.lock().pending.entry(effect.downstream_key.clone()).or_default() += 1;
        let ledger = self.clone();
        tokio::spawn(async move {
            pause(takes).await;
            let at = ledger.watch.now();
            let mut books = ledger.lock();
            if let Some(pending) = books.pending.get_mut(&effect.downstream_key) {
                *pending -= 1;
            }
            books.effects.push(Effect { at, ..effect.clone() });
            receipt(&effect)
        })
    }

    /// What the provider knows of a key.
    pub async fn ask(&self, downstream_key: &str) -> Known {
        pause(TAKES.start).await;
        let books = self.lock();
        if books.pending.get(downstream_key).is_some_and(|pending| *pending > 0) {
            return Known::Pending;
        }
        match books.effects.iter().rev().find(|effect| effect.downstream_key == downstream_key) {
            Some(effect) => Known::Happened(receipt(effect)),
            None => Known::Nothing,
        }
    }

    /// Everything that happened, in its order.
    pub fn effects(&self) -> Vec<Effect> {
        self.lock().effects.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn pause(micros: Micros) {
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// A receipt names the attempt whose effect it is.
fn receipt(effect: &Effect) -> String {
    format!("receipt {} {}", effect.downstream_key, effect.fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::rng;

    fn ledger() -> Ledger {
        let start = tokio::time::Instant::now();
        Ledger::new(Watch(Arc::new(move || u64::try_from(start.elapsed().as_micros()).unwrap())))
    }

    async fn perform(ledger: &Ledger, key: &str, manner: Manner) -> Told {
        ledger.perform(&Name::default(), key, 7, manner, &mut rng(1, "test")).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_out_says_nothing_of_what_happened() {
        let ledger = ledger();
        assert_eq!(perform(&ledger, "after", Manner::TimeoutAfter).await, Told::TimedOut);
        assert_eq!(ledger.ask("after").await, Known::Happened("receipt after 7".into()));
        assert_eq!(perform(&ledger, "before", Manner::TimeoutBefore).await, Told::TimedOut);
        assert_eq!(ledger.ask("before").await, Known::Nothing);
        assert_eq!(perform(&ledger, "never", Manner::NeverSent).await, Told::NeverSent);
        assert_eq!(ledger.ask("never").await, Known::Nothing);
        assert_eq!(ledger.effects().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_told_as_such_and_happens_once_and_without_its_caller() {
        let ledger = ledger();
        let caller = tokio::time::timeout(Duration::from_micros(1), perform(&ledger, "k", Manner::Plain)).await;
        assert!(caller.is_err(), "the caller is gone");
        assert_eq!(ledger.ask("k").await, Known::Pending);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ledger.ask("k").await, Known::Happened("receipt k 7".into()));
        assert_eq!(perform(&ledger, "k", Manner::Plain).await, Told::Done("receipt k 7".into()));
        assert_eq!(ledger.effects().len(), 2, "it refuses nothing: a second effect shows");
    }
}
