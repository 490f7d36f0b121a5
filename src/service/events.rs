//! What happened to the indeterminate records lately: a bounded ring from which watchers resume.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    id::Position,
    limits,
    records::{
        command::{RecordRef, Sealed},
        record::StateWord,
        state::Event,
    },
};

/// A change: which record; and where it is no longer indeterminate its id, and what it is now.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub at: Position,
    pub record: RecordRef,
    pub gone: Option<(Sealed, StateWord)>,
}

#[derive(Default)]
struct Ring {
    changes: VecDeque<Change>,
    /// Changes up to this position are no longer kept; none while nothing was heard.
    forgotten_to: Option<Position>,
}

/// The ring and who waits for it to grow.
pub(super) struct Events {
    ring: Mutex<Ring>,
    seen: watch::Sender<Position>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), seen: watch::channel(Position(0)).0 }
    }
}

impl Events {
    /// Adds what an entry changed; `position` is where the state stands now.
    pub fn add(&self, events: Vec<(Position, Event)>, position: Position) {
        let mut ring = self.ring.lock();
        if ring.forgotten_to.is_none() {
            // What came before the first entry that this process applied was not heard.
            let first = events.first().map_or(position, |(first, _)| Position(first.0.saturating_sub(1)));
            ring.forgotten_to = Some(first);
        }
        let is_empty = events.is_empty();
        for (at, event) in events {
            let (record, gone) = match event {
                Event::Indeterminate(record) => (record, None),
                Event::Gone(record, id, to) => (record, Some((id, to))),
                Event::DoubtEnded => {
                    // Of many records at once: whoever watches gets the whole set anew.
                    ring.changes.clear();
                    ring.forgotten_to = Some(at);
                    continue;
                }
                // Whoever watches the tenant is woken, and looks whether it is still there.
                Event::Closed(_) | Event::Rekeyed(_) => continue,
            };
            ring.changes.push_back(Change { at, record, gone });
        }
        while ring.changes.len() > limits::WATCH_CHANGES_KEPT {
            if let Some(old) = ring.changes.pop_front() {
                ring.forgotten_to = Some(old.at);
            }
        }
        drop(ring);
        if !is_empty {
            self.seen.send_replace(position);
        }
    }

    /// Has everybody look again.
    pub fn wake(&self, position: Position) {
        self.seen.send_replace(position);
    }

    /// Everything after a position; none where that is no longer known.
    pub fn after(&self, position: Position) -> Option<Vec<Change>> {
        let ring = self.ring.lock();
        match ring.forgotten_to {
            Some(forgotten_to) if position >= forgotten_to => {
                Some(ring.changes.iter().filter(|change| change.at > position).cloned().collect())
            }
            _ => None,
        }
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.seen.receiver_count()
    }

    /// Tells when there is more.
    pub fn listen(&self) -> watch::Receiver<Position> {
        self.seen.subscribe()
    }
}
