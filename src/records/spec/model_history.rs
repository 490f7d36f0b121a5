//! The timeline as the model keeps it: a list of what happened, and what time has done since.

use super::model::{Record, State};

/// An event: when, by which command, what, how often.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: i64,
    pub number: u64,
    pub kind: String,
    pub times: u32,
}

impl Event {
    pub fn new(at: i64, number: u64, kind: String) -> Self {
        Self { at, number, kind, times: 1 }
    }

    /// Of one command the cause comes first.
    fn rank(&self) -> u8 {
        match self.kind.split('/').next() {
            Some("claimed") => 0,
            Some("begun") => 1,
            Some("completed") => 3,
            _ => 2,
        }
    }
}

impl Record {
    /// The lease ran out while it was owned: that stays in the timeline whatever ended the ownership.
    pub fn note_lapse(&mut self, now: i64) {
        let known = self.events.iter().any(|event| event.kind == "lapsed" && event.number == self.owner.fence);
        // After the owner's own suspend there is no lease left to run out.
        let suspended = matches!(&self.state, State::Doubtful { tag: "owner", .. });
        if now >= self.owner.deadline && self.owner.attempt > 0 && !known && !suspended {
            self.events.push(Event::new(self.owner.deadline, self.owner.fence, "lapsed".into()));
        }
    }

    /// The same for a record that stays in doubt.
    pub fn note_lapse_if_held(&mut self, now: i64) {
        self.note_lapse(now);
    }

    /// The events of a record that another grant takes over or lives on from.
    pub fn ended(&self, now: i64) -> Vec<Event> {
        self.whole(now)
    }

    fn whole(&self, now: i64) -> Vec<Event> {
        let mut record = self.clone();
        match &self.state {
            State::Owned | State::Doubtful { .. } => record.note_lapse(now),
            State::Done { replay_until, forgotten, .. } => {
                let completed = record.events.iter().rev().find(|event| event.kind == "completed");
                let number = completed.map_or(0, |event| event.number);
                if forgotten.is_none() && now >= *replay_until {
                    record.events.push(Event::new(*replay_until, number, "expired".into()));
                }
            }
            State::Gone { .. } => {}
        }
        record.events
    }

    /// The timeline in words, oldest first.
    pub fn history(&self, now: i64) -> String {
        let mut events = self.whole(now);
        events.sort_by_key(|event| (event.at, event.number, event.rank()));
        let words = events.iter().map(|event| {
            let times = if event.times > 1 { format!("x{}", event.times) } else { String::new() };
            format!("{}@{}ms{times}", event.kind, event.at)
        });
        words.collect::<Vec<_>>().join(" ")
    }
}
