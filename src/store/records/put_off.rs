//! What becomes of flushes while the disk is full: they wait in memory, and an engine that has failed is replaced.
//!
//! An engine's error is final (E4), and no engine says what it is worth after it has met a full disk. But it can be read
//! still: so once there is room its rows are copied into a fresh one, which then takes what the overlay has kept.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use super::{OpenEngine, Records, StoreError, load};
use crate::{
    disk::{Space, is_full},
    store::engine::{EngineError, EngineSnapshot},
};

/// Why no fresh engine took the place of a spent one.
pub(super) enum Unrenewed {
    /// The spent one can't be read: final. The next start builds it again.
    Spent(StoreError),
    /// The fresh one can't be written: it may be, once there is more room.
    Fresh(StoreError),
}

impl Unrenewed {
    fn fresh(error: EngineError) -> Self {
        Self::Fresh(error.into())
    }

    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Spent(error) | Self::Fresh(error) => error,
        }
    }
}

/// The room that there must be, and where an engine comes from that takes the place of a spent one.
pub(super) struct RoomFor {
    pub(super) space: Arc<Space>,
    engines: Arc<dyn OpenEngine>,
}

impl Records {
    /// From now on flushes are put off while the disk has no room for them. Only the first call counts.
    pub fn mind_room(&self, space: Arc<Space>, engines: Arc<dyn OpenEngine>) {
        let _ = self.room_for.set(RoomFor { space, engines });
    }

    /// Whether changes are kept in memory alone because the disk has no room.
    pub fn is_put_off(&self) -> bool {
        self.is_put_off.load(Ordering::Relaxed)
    }

    /// Whether an error of this store came of a full disk: because it says so, or because the disk is full, or was since the
    /// engine came into use. Engines don't always tell why they have stopped, and those that write in the background don't tell
    /// when.
    pub fn is_for_room(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let of_room = |of: &RoomFor| is_full(error) || of.space.look() || of.space.was_short() || self.is_put_off();
        self.room_for.get().is_some_and(of_room)
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.unfinished.lock().is_none() && self.inner.read().overlay.active.is_empty()
    }

    pub(super) fn forget_put_off(&self) {
        *self.unfinished.lock() = None;
        self.is_spent.store(false, Ordering::Relaxed);
        self.is_put_off.store(false, Ordering::Relaxed);
    }

    /// Flushes, if the disk has room.
    ///
    /// # Errors
    /// When the engine can't be written for another reason: final.
    pub(super) fn flush_or_put_off(&self) -> Result<(), StoreError> {
        let Some(of) = self.room_for.get() else { return self.flush() };
        if !of.space.fits(self.room_to_flush()) {
            self.put_off();
            return Ok(());
        }
        if self.is_spent.load(Ordering::Relaxed) {
            match self.renew(&*of.engines) {
                Ok(()) => of.space.forget(),
                // Where there is little room, building it again after a restart would fail too.
                Err(Unrenewed::Spent(error)) if !of.space.is_short() => return Err(error),
                Err(Unrenewed::Spent(error) | Unrenewed::Fresh(error)) => {
                    tracing::warn!(%error, "the store can't be written anew yet");
                    self.put_off();
                    return Ok(());
                }
            }
        }
        match self.flush() {
            Ok(()) => {
                if self.is_put_off.swap(false, Ordering::Relaxed) {
                    tracing::info!("the disk has room for the store again");
                }
                Ok(())
            }
            Err(error) if self.is_for_room(&error) => {
                tracing::warn!(%error, "the store has met a full disk");
                self.is_spent.store(true, Ordering::Relaxed);
                self.put_off();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Free bytes without which nothing is flushed.
    fn room_to_flush(&self) -> u64 {
        let inner = self.inner.read();
        let flushing = inner.overlay.flushing.as_ref().map_or(0, |layer| layer.bytes);
        inner.overlay.engine.room_for((inner.overlay.active.bytes + flushing) as u64)
    }

    fn put_off(&self) {
        if !self.is_put_off.swap(true, Ordering::Relaxed) {
            tracing::error!("the disk has no room for the store: changes wait in memory, and in the log");
        }
    }

    /// Notes that flushes are put off where the disk has no room for what there is to flush.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn have_room(&self) -> Result<(), StoreError> {
        match self.room_for.get() {
            Some(of) if !self.is_flushed() && !of.space.fits(self.room_to_flush()) => {
                self.put_off();
                Err(StoreError::NoRoom(io::ErrorKind::StorageFull.into()))
            }
            _ => Ok(()),
        }
    }

    /// Has a fresh engine, with the rows of the spent one, take its place.
    pub(super) fn renew(&self, engines: &dyn OpenEngine) -> Result<(), Unrenewed> {
        let _boundary = self.boundary.lock();
        let spent = Arc::clone(&self.inner.read().overlay.engine);
        let fresh = engines.fresh().map_err(Unrenewed::fresh)?;
        let mut is_read = true;
        let rows = spent.snapshot().and_then(EngineSnapshot::into_scan).inspect_err(|_| is_read = false);
        let copied = rows.and_then(|rows| load(&*fresh, &mut rows.inspect(|row| is_read &= row.is_ok())));
        if let Err(error) = copied.and_then(|()| engines.adopt()) {
            fresh.retire();
            return Err(if is_read { Unrenewed::fresh(error) } else { Unrenewed::Spent(error.into()) });
        }
        self.inner.write().overlay.engine = fresh;
        spent.retire();
        self.is_spent.store(false, Ordering::Relaxed);
        tracing::info!("the store was written anew");
        Ok(())
    }
}
