//! Whether this node is in touch with its cluster: what only listens or waits on it must not go on for ever where it is not.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{limits, raft::Consensus};

/// Looks at it, and remembers since when it is lost.
pub(super) struct Touch {
    is_in_touch: Box<dyn Fn() -> bool + Send + Sync>,
    /// Since which look this node neither leads a quorum nor has heard of who leads.
    lost: Mutex<Option<Instant>>,
}

impl Touch {
    /// Of this node.
    pub fn new(consensus: Consensus) -> Arc<Self> {
        Arc::new(Self::by(move || consensus.is_in_touch()))
    }

    fn by(is_in_touch: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_in_touch: Box::new(is_in_touch), lost: Mutex::default() }
    }

    /// Since when it is lost, as of this look.
    fn look(&self) -> Option<Instant> {
        let is_in_touch = (self.is_in_touch)();
        let mut lost = self.lost.lock();
        *lost = if is_in_touch { None } else { Some(lost.unwrap_or_else(Instant::now)) };
        *lost
    }

    /// Whether it has been lost for so long that this node may not have heard of a revocation. One that was last asked long
    /// ago begins to count when it is looked at: that nobody looked says nothing.
    pub fn is_lost(&self) -> bool {
        self.look().is_some_and(|since| since.elapsed() > Duration::from_millis(limits::CUT_OFF_MS))
    }

    /// Looks again and again, for as long as it is polled: so that whoever asks is told at once.
    pub async fn keep(self: Arc<Self>) {
        let mut ticks = interval(Duration::from_millis(limits::TOUCH_LOOK_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_node_is_cut_off_once_its_touch_is_lost_for_a_while_and_not_since_somebody_asked() {
        let in_touch = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&in_touch);
        let touch = Touch::by(move || seen.load(Ordering::SeqCst));
        // Whoever asks first may find it out of touch for a moment, as after a start.
        assert!(!touch.is_lost() && !touch.is_lost());
        let long_ago = Instant::now().checked_sub(Duration::from_millis(limits::CUT_OFF_MS + 1));
        *touch.lost.lock() = long_ago;
        assert!(touch.is_lost());
        in_touch.store(true, Ordering::SeqCst);
        assert!(!touch.is_lost());
        in_touch.store(false, Ordering::SeqCst);
        assert!(!touch.is_lost(), "it begins anew");
    }

    #[tokio::test]
    async fn what_is_lost_counts_also_while_nobody_asks() {
        let touch = Arc::new(Touch::by(|| false));
        let keeping = tokio::spawn(Arc::clone(&touch).keep());
        let seen = async {
            while touch.lost.lock().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), seen).await.expect("somebody looks");
        keeping.abort();
    }
}
