//! What waits for the writer, and what all handles of a log share.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::Notify;

use super::error::WalError;
use super::frame::{PeerMark, frame_bytes};
use super::map::{Bounds, Map};
use super::reserve::Reserve;
use super::{Purged, WalEntry};
use crate::id::NodeId;
use crate::limits::{
    WAL_LOOKS_BEFORE_SLEEP, WAL_PAYLOAD_BYTES_MAX, WAL_PEER_MARKS_MAX, WAL_QUEUE_BYTES_MAX, WAL_QUEUE_CALLS_MAX,
    WAL_REPEATED_BYTES_MAX, WAL_ROOM_AGAIN, WAL_ROOM_KEPT, WAL_SEAL_AFTER,
};

/// Told when the call's frames are durable, or why they never will be.
pub(super) type Done = Box<dyn FnOnce(Result<(), WalError>) + Send>;

pub(super) enum Work {
    Append(Vec<WalEntry>),
    Vote(Bytes),
    Truncate(u64),
    Purge(Purged),
    Mark(PeerMark),
    Forget(NodeId),
    /// Goes on in the next segment, if there is room for one.
    Roll,
}

pub(super) struct Request {
    pub(super) work: Work,
    pub(super) bytes: u64,
    pub(super) done: Done,
}

/// In what state a log is for its callers.
struct Queue {
    requests: VecDeque<Request>,
    bytes: u64,
    /// The indexes there will be once all that waits is written.
    bounds: Bounds,
    marked: BTreeSet<NodeId>,
    closed: bool,
    failed: Option<WalError>,
}

/// Shared by the handles, the writer and the thread that prepares segments.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    arrived: Condvar,
    pub(super) arrived_task: Notify,
    room: Notify,
    /// Whether `queue` holds any, to be seen without its lock.
    has_requests: AtomicBool,
    /// Bytes of the present segment behind what is synced.
    pub(super) left: AtomicU64,
    /// Synced entries alone.
    pub(super) map: RwLock<Map>,
    pub(super) reserve: Reserve,
}

impl Shared {
    pub(super) fn new(map: Map, reserve: Reserve, marked: BTreeSet<NodeId>) -> Self {
        let queue =
            Queue { requests: VecDeque::new(), bytes: 0, bounds: map.bounds, marked, closed: false, failed: None };
        Self {
            queue: Mutex::new(queue),
            arrived: Condvar::new(),
            arrived_task: Notify::new(),
            room: Notify::new(),
            has_requests: AtomicBool::new(false),
            left: AtomicU64::new(u64::MAX),
            map: RwLock::new(map),
            reserve,
        }
    }

    /// Queues a call, or tells `done` at once why not.
    pub(super) fn submit(&self, work: Work, done: Done) {
        let refused = {
            let mut queue = self.queue.lock();
            match queue.admit(&work) {
                Ok(bytes) => {
                    queue.bytes += bytes;
                    queue.requests.push_back(Request { work, bytes, done });
                    self.has_requests.store(true, Ordering::Release);
                    None
                }
                Err(error) => Some((error, done)),
            }
        };
        match refused {
            Some((error, done)) => done(Err(error)),
            None => {
                self.arrived.notify_one();
                self.arrived_task.notify_one();
            }
        }
    }

    /// Moves what waits into `into`, which is empty, up to about so many bytes. Answers whether the log was closed.
    pub(super) fn take(&self, bytes_max: u64, into: &mut VecDeque<Request>) -> bool {
        let mut queue = self.queue.lock();
        if queue.bytes <= bytes_max {
            std::mem::swap(&mut queue.requests, into);
            queue.bytes = 0;
        } else {
            let mut taken = 0;
            while taken < bytes_max
                && let Some(request) = queue.requests.pop_front()
            {
                taken += request.bytes;
                into.push_back(request);
            }
            queue.bytes -= taken;
        }
        self.has_requests.store(!queue.requests.is_empty(), Ordering::Release);
        let closed = queue.closed;
        drop(queue);
        if !into.is_empty() {
            self.room.notify_waiters();
        }
        closed
    }

    /// Waits until there is something to do.
    pub(super) fn wait(&self) {
        let mut queue = self.queue.lock();
        while queue.requests.is_empty() && !queue.closed && queue.failed.is_none() {
            self.arrived.wait(&mut queue);
        }
    }

    /// Waits until there may be room for the next segment.
    pub(super) fn wait_for_room(&self) {
        let mut queue = self.queue.lock();
        if !queue.closed && queue.failed.is_none() {
            self.arrived.wait_for(&mut queue, WAL_ROOM_AGAIN);
        }
    }

    /// There is room for the next segment again: a writer that waits goes on.
    pub(super) fn has_room_again(&self) {
        self.arrived.notify_all();
        self.arrived_task.notify_one();
    }

    /// What fits while there is no room for the next segment, a part kept back.
    pub(super) fn last_room(&self) -> Option<u64> {
        self.reserve.is_lacking().then(|| {
            let kept = self.reserve.segment_bytes / WAL_ROOM_KEPT;
            let waiting = self.queue.lock().bytes;
            self.left.load(Ordering::Acquire).saturating_sub(kept + waiting)
        })
    }

    /// Whether no more calls come.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// Waits as long as a batch may stay unsealed; true where nothing came.
    pub(super) fn wait_before_seal(&self) -> bool {
        // Whoever was just told asks again at once. Looking out for that costs less than to fall asleep and be woken, which
        // takes as long as a good part of a sync; and each look leaves the processor to whoever has more to do.
        for _ in 0..WAL_LOOKS_BEFORE_SLEEP {
            if self.has_requests.load(Ordering::Acquire) {
                return false;
            }
            std::thread::yield_now();
        }
        let mut queue = self.queue.lock();
        if !queue.requests.is_empty() || queue.closed {
            return queue.requests.is_empty();
        }
        self.arrived.wait_for(&mut queue, WAL_SEAL_AFTER);
        queue.requests.is_empty()
    }

    /// Waits until a call would not be refused for want of room.
    pub(super) async fn room(&self) -> Result<(), WalError> {
        loop {
            let notified = self.room.notified();
            {
                let queue = self.queue.lock();
                if let Some(error) = queue.stopped() {
                    return Err(error);
                }
                if !queue.is_full() {
                    return Ok(());
                }
            }
            notified.await;
        }
    }

    /// The first error stays the answer for good; everyone who waits gets it.
    pub(super) fn fail(&self, error: WalError) {
        let (error, waiting) = {
            let mut queue = self.queue.lock();
            let error = queue.failed.get_or_insert(error).clone();
            queue.bytes = 0;
            (error, std::mem::take(&mut queue.requests))
        };
        self.arrived.notify_all();
        self.arrived_task.notify_one();
        self.room.notify_waiters();
        self.reserve.close();
        for request in waiting {
            (request.done)(Err(error.clone()));
        }
    }

    /// No more calls; the writer finishes those that wait.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_all();
        self.arrived_task.notify_one();
        self.room.notify_waiters();
        self.reserve.close();
    }

    /// Why the log takes no calls, where it doesn't.
    pub(super) fn stopped(&self) -> Option<WalError> {
        self.queue.lock().stopped()
    }

    /// The error that poisoned the log.
    pub(super) fn failed(&self) -> Option<WalError> {
        self.queue.lock().failed.clone()
    }
}

impl Queue {
    fn stopped(&self) -> Option<WalError> {
        self.failed.clone().or_else(|| self.closed.then_some(WalError::Closed))
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= WAL_QUEUE_CALLS_MAX || self.bytes >= WAL_QUEUE_BYTES_MAX
    }

    /// Judges a call and remembers what it will have changed. Answers its bytes.
    fn admit(&mut self, work: &Work) -> Result<u64, WalError> {
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        if self.is_full() {
            return Err(WalError::Full);
        }
        match work {
            Work::Append(entries) => {
                let mut bounds = self.bounds;
                let mut bytes = 0;
                for entry in entries {
                    if !bounds.accepts(entry.index) {
                        return Err(WalError::Gap { expected: bounds.next, found: entry.index });
                    }
                    bounds.entry(entry.index);
                    bytes += sized(&entry.payload, WAL_PAYLOAD_BYTES_MAX)?;
                }
                self.bounds = bounds;
                Ok(bytes)
            }
            Work::Vote(payload) => sized(payload, WAL_REPEATED_BYTES_MAX),
            Work::Truncate(from) => {
                self.bounds.truncate(*from);
                Ok(frame_bytes(0))
            }
            Work::Purge(purged) => {
                let bytes = sized(&purged.payload, WAL_REPEATED_BYTES_MAX)?;
                self.bounds.purge(purged.index);
                Ok(bytes)
            }
            Work::Mark(mark) => {
                let bytes = sized(&mark.vote, WAL_REPEATED_BYTES_MAX)?;
                if self.marked.len() >= WAL_PEER_MARKS_MAX && !self.marked.contains(&mark.node_id) {
                    return Err(WalError::Full);
                }
                self.marked.insert(mark.node_id);
                Ok(bytes)
            }
            Work::Forget(node_id) => {
                self.marked.remove(node_id);
                Ok(frame_bytes(0))
            }
            Work::Roll => Ok(frame_bytes(0)),
        }
    }
}

fn sized(payload: &Bytes, bytes_max: usize) -> Result<u64, WalError> {
    if payload.len() > bytes_max {
        return Err(WalError::TooLarge { bytes: payload.len(), bytes_max });
    }
    Ok(frame_bytes(payload.len()))
}
