//! Where each entry lies. Pure: the writer feeds it what it has synced, recovery what it reads, and both get the same.
//!
//! It stays small: for each segment a point every [`WAL_POINT_BYTES`] of frames, and for the log one pair for each run
//! of entries of one term. A reader goes from the nearest point on.
//!
//! Invariants:
//! - M1 `first <= next`; entries are exactly `first..next`; everything below `first` was purged or never was.
//! - M2 Extents are in the order of their sequences, and their `next` never falls from one to the next.
//! - M3 From a point to the next one of its extent, the entries follow each other without one that is void.

use std::collections::VecDeque;
use std::sync::Arc;

use super::segment::{Footer, Point, Segment};
use crate::limits::WAL_POINT_BYTES;

/// The indexes that exist: `first..next`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) first: u64,
    pub(super) next: u64,
    /// One above the last entry purged, 0 where none was. It's `first`, but for a log that began higher.
    pub(super) floor: u64,
}

impl Bounds {
    /// Whether an entry with this index may come next. A log without past may begin anywhere.
    pub(super) fn accepts(&self, index: u64) -> bool {
        index == self.next || *self == Self::default()
    }

    pub(super) fn entry(&mut self, index: u64) {
        if self.first == self.next {
            self.first = index;
        }
        self.next = index + 1;
    }

    /// Makes `from` and what follows void; answers what is void in truth: never what is purged. While a log is being
    /// recovered, `from` can lie below `first`: the segments that held what it voids are gone already.
    pub(super) fn truncate(&mut self, from: u64) -> u64 {
        self.next = self.next.min(from.max(self.floor));
        self.first = self.first.min(self.next);
        self.next
    }

    pub(super) fn purge(&mut self, upto: u64) {
        self.floor = self.floor.max(upto + 1);
        self.first = self.first.max(self.floor);
        self.next = self.next.max(self.first);
    }
}

struct Extent {
    segment: Arc<Segment>,
    first: u64,
    next: u64,
    points: Vec<Point>,
    /// Where its synced frames end.
    end: u64,
}

/// Where to read on.
pub(super) struct Run {
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
    /// The first index behind the run.
    pub(super) until: u64,
    pub(super) end: u64,
}

/// A segment as the scrub reads it.
#[derive(Clone)]
pub(super) struct Extract {
    pub(super) segment: Arc<Segment>,
    pub(super) end: u64,
}

#[derive(Default)]
pub(super) struct Map {
    pub(super) bounds: Bounds,
    /// Index and term of the newest purge.
    pub(super) purged: Option<(u64, u64)>,
    extents: VecDeque<Extent>,
    /// First index and term of each run of entries of one term.
    terms: VecDeque<(u64, u64)>,
    /// The next entry begins a point: what precedes it on disk doesn't precede it in the log (M3).
    fresh: bool,
}

impl Map {
    /// The term of the last entry, or of the last one purged; 0 where there was none.
    pub(super) fn last_term(&self) -> u64 {
        match self.terms.back() {
            Some((_, term)) => *term,
            None => self.purged.map_or(0, |(_, term)| term),
        }
    }

    /// A segment that was just begun: its frames end at `end`.
    pub(super) fn begin(&mut self, segment: Arc<Segment>, end: u64) {
        let next = self.bounds.next;
        self.extents.push_back(Extent { segment, first: next, next, points: Vec::new(), end });
    }

    /// A sealed segment, as its footer tells.
    pub(super) fn sealed(&mut self, segment: Arc<Segment>, footer: &Footer) {
        self.void(footer.first);
        if self.bounds.first == self.bounds.next {
            self.bounds.first = footer.points.first().map_or(footer.next, |point| point.index);
        }
        self.bounds.next = footer.next;
        for (first, term) in &footer.terms {
            self.term_runs_on(*first, *term);
        }
        self.extents.push_back(Extent {
            segment,
            first: footer.first,
            next: footer.next,
            points: footer.points.clone(),
            end: footer.end,
        });
    }

    /// An entry whose frame begins at `offset` of the newest segment.
    pub(super) fn entry(&mut self, index: u64, term: u64, offset: u64) {
        if index > self.bounds.next {
            self.jump(index);
        }
        self.bounds.entry(index);
        self.term_runs_on(index, term);
        let fresh = std::mem::take(&mut self.fresh);
        let extent = self.newest();
        extent.next = index + 1;
        if fresh || extent.points.last().is_none_or(|point| offset - point.offset >= WAL_POINT_BYTES) {
            extent.points.push(Point { index, offset });
        }
    }

    /// Entries from `from` on are void.
    pub(super) fn truncate(&mut self, from: u64) {
        let from = self.bounds.truncate(from);
        self.void(from);
        let extent = self.newest();
        extent.first = extent.first.min(from);
    }

    /// Entries up to `upto` are no longer needed.
    pub(super) fn purge(&mut self, upto: u64, term: u64) {
        if self.purged.is_some_and(|(index, _)| index >= upto) {
            return;
        }
        self.purged = Some((upto, term));
        if upto >= self.bounds.next {
            self.jump(upto + 1);
        }
        self.bounds.purge(upto);
        while self.terms.len() > 1 && self.terms[1].0 <= self.bounds.first {
            self.terms.pop_front();
        }
        if self.bounds.first == self.bounds.next {
            self.terms.clear();
        }
    }

    /// Frames of the newest segment end here, synced.
    pub(super) fn synced(&mut self, end: u64) {
        self.newest().end = end;
    }

    /// Takes out the oldest segments that hold nothing that isn't purged; never the newest.
    pub(super) fn retire(&mut self) -> Vec<Arc<Segment>> {
        let Some((upto, _)) = self.purged else { return Vec::new() };
        let mut retired = Vec::new();
        // By where the next one began, not by what this one holds now: a later truncation lowers the latter, and the
        // frame that says so must not outlive what it voids.
        while self.extents.len() > 1 && self.extents[1].segment.header.first_index <= upto + 1 {
            retired.extend(self.extents.pop_front().map(|extent| extent.segment));
        }
        retired
    }

    /// Where to read the entry `index`.
    pub(super) fn run(&self, index: u64) -> Option<Run> {
        if index < self.bounds.first || index >= self.bounds.next {
            return None;
        }
        let extent = &self.extents[self.extents.partition_point(|extent| extent.next <= index)];
        let at = extent.points.partition_point(|point| point.index <= index).checked_sub(1)?;
        Some(Run {
            segment: extent.segment.clone(),
            offset: extent.points[at].offset,
            until: extent.points.get(at + 1).map_or(extent.next, |point| point.index),
            end: extent.end,
        })
    }

    /// The term of an entry that exists.
    pub(super) fn term(&self, index: u64) -> Option<u64> {
        if index < self.bounds.first || index >= self.bounds.next {
            return None;
        }
        let at = self.terms.partition_point(|(first, _)| *first <= index).checked_sub(1)?;
        Some(self.terms[at].1)
    }

    /// The footer that the newest segment would get now. Terms of entries that lie in it alone.
    pub(super) fn footer(&self) -> Footer {
        let extent = self.extents.back().expect("a log has a segment from its creation on");
        let at = self.terms.partition_point(|(first, _)| *first <= extent.first).saturating_sub(1);
        let mut terms: Vec<(u64, u64)> = Vec::new();
        if extent.first < extent.next {
            terms.extend(self.terms.range(at..).map(|(first, term)| (*first.max(&extent.first), *term)));
        }
        let header = &extent.segment.header;
        Footer {
            sequence: header.sequence,
            salt: header.salt,
            first: extent.first,
            next: self.bounds.next,
            last_term: self.last_term(),
            end: extent.end,
            terms,
            points: extent.points.clone(),
        }
    }

    /// Points and runs of terms so far: what bounds the footer's size.
    pub(super) fn footer_counts(&self) -> (usize, usize) {
        let points = self.extents.back().map_or(0, |extent| extent.points.len());
        let first = self.extents.back().map_or(0, |extent| extent.first);
        (self.terms.len() - self.terms.partition_point(|(from, _)| *from < first) + 1, points)
    }

    /// Segments with entries that are not purged, the one that is written included.
    pub(super) fn segments(&self) -> usize {
        self.extents.len()
    }

    /// The index with which the newest segment begins.
    pub(super) fn newest_first(&self) -> u64 {
        self.extents.back().map_or(0, |extent| extent.segment.header.first_index)
    }

    /// The segments from the oldest on.
    pub(super) fn extracts(&self) -> Vec<Extract> {
        let of = |extent: &Extent| Extract { segment: extent.segment.clone(), end: extent.end };
        self.extents.iter().map(of).collect()
    }

    fn term_runs_on(&mut self, index: u64, term: u64) {
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index, term));
        }
    }

    fn newest(&mut self) -> &mut Extent {
        self.extents.back_mut().expect("a log has a segment from its creation on")
    }

    /// Forgets where entries from `from` on lie.
    fn void(&mut self, from: u64) {
        for extent in self.extents.iter_mut().rev().take_while(|extent| extent.next > from) {
            extent.next = from;
            extent.first = extent.first.min(from);
            let kept = extent.points.partition_point(|point| point.index < from);
            extent.points.truncate(kept);
        }
        while self.terms.back().is_some_and(|(first, _)| *first >= from) {
            self.terms.pop_back();
        }
        self.bounds.next = self.bounds.next.min(from);
        self.bounds.first = self.bounds.first.min(from);
        if self.bounds.first == self.bounds.next {
            // A run that reached into what is kept may have begun in what is purged: nothing of it is left.
            self.terms.clear();
        }
        self.fresh = true;
    }

    /// Nothing is left of the log, and it goes on at `index`. The newest extent keeps its `first`: what it decided
    /// about earlier segments stays decided.
    fn jump(&mut self, index: u64) {
        (self.bounds.first, self.bounds.next) = (index, index);
        self.terms.clear();
        self.fresh = true;
        let extent = self.newest();
        extent.next = index;
        extent.points.clear();
    }
}
