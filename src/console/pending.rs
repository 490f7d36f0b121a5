//! Verdicts that a second person has to confirm. They wait on this node, for an hour at most; what is proposed in the end
//! is compared with the record's version, like every verdict.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    id::{Position, RecordId},
    limits,
    refusal::{Code, Refusal},
    service::request::ResolveRequest,
};

/// A verdict that waits.
#[derive(Clone)]
pub(super) struct Waiting {
    pub request: ResolveRequest,
    /// Who has given it.
    pub by: String,
    since: Instant,
}

/// All that wait.
#[derive(Default)]
pub(super) struct Pending(Mutex<HashMap<(RecordId, Position), Waiting>>);

impl Pending {
    /// Keeps a verdict until somebody else confirms it. One that waits already is replaced by its giver alone.
    pub fn keep(&self, record: RecordId, request: ResolveRequest, by: &str) -> Result<(), Refusal> {
        let (mut all, now) = (self.0.lock(), Instant::now());
        all.retain(|_, waiting| now.duration_since(waiting.since) < Duration::from_secs(limits::CONSOLE_PENDING_S));
        let place = (record, request.version);
        if all.get(&place).is_some_and(|waiting| waiting.by != by) {
            return Err(Refusal::new(
                Code::WrongState,
                "somebody else's verdict waits; confirm that one, or let it lapse",
            ));
        }
        if all.len() >= limits::CONSOLE_PENDING_MAX {
            return Err(Refusal::new(Code::RateLimited, "too many verdicts wait for a second person"));
        }
        all.insert(place, Waiting { request, by: by.to_owned(), since: now });
        Ok(())
    }

    /// The verdict that waits for this version of a record.
    pub fn of(&self, record: &RecordId, version: Position) -> Option<Waiting> {
        let all = self.0.lock();
        let waiting = all.get(&(record.clone(), version))?;
        (waiting.since.elapsed() < Duration::from_secs(limits::CONSOLE_PENDING_S)).then(|| waiting.clone())
    }

    /// The verdict, to be proposed: somebody else than its giver confirms it.
    pub fn confirm(&self, record: &RecordId, version: Position, by: &str) -> Result<Waiting, Refusal> {
        let waiting = self.of(record, version);
        let waiting = waiting.ok_or_else(|| Refusal::new(Code::WrongState, "no verdict waits for this version"))?;
        if waiting.by == by {
            return Err(Refusal::new(
                Code::WrongState,
                "a verdict is confirmed by somebody else than who has given it",
            ));
        }
        Ok(waiting)
    }

    /// It was decided, one way or another.
    pub fn end(&self, record: &RecordId, version: Position) {
        self.0.lock().remove(&(record.clone(), version));
    }
}
