//! Reading every byte, to find damage while there are peers to heal from.

use std::collections::VecDeque;

use super::error::{Damage, Flaw, WalError};
use super::frame::{Frame, Kind, frame_bytes};
use super::map::Extract;
use super::recovery::read_footer;
use super::segment::{HEADER_BYTES, Header, HeaderRead, Segment};
use super::tape::Tape;
use crate::disk::DiskError;
use crate::limits::SCRUB_STEP_BYTES;

/// One pass over the segments there were when it began, in steps of about [`SCRUB_STEP_BYTES`]. Whoever drives it
/// decides how long to rest between them.
pub struct Scrub {
    left: VecDeque<Extract>,
    /// How far the first of them is read, bytes.
    at: u64,
    /// The index that its next entry must have; `None` where any may come.
    next: Option<u64>,
}

/// What a step of the scrub has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read.
    pub bytes: u64,
    /// The first damage in the segment, if any: the pass goes on with the next one.
    pub damage: Option<Damage>,
}

impl Scrub {
    pub(super) fn new(segments: Vec<Extract>) -> Self {
        Self { left: segments.into(), at: 0, next: None }
    }

    /// Reads on in a segment. `Break` when it's done with: sound, or damaged there.
    fn read_on(&mut self, segment: &Segment, end: u64, sealed: bool) -> Result<Step, DiskError> {
        if self.at == 0 {
            let mut block = [0_u8; HEADER_BYTES];
            segment.file.read_exact_at(&mut block, 0)?;
            if Header::read(&block) != HeaderRead::Sound(segment.header) {
                return Ok(Step::Damaged(0, Flaw::Header));
            }
            self.at = HEADER_BYTES as u64;
        }
        let mut tape = Tape::new(&*segment.file, end);
        let until = end.min(self.at + SCRUB_STEP_BYTES);
        while self.at < until {
            let frame = match tape.frame(self.at, segment.header.salt)? {
                Ok(frame) => frame,
                Err(no) => return Ok(Step::Damaged(self.at, Flaw::Frame(no))),
            };
            if !follows(&frame, &mut self.next) {
                return Ok(Step::Damaged(self.at, Flaw::Order));
            }
            self.at += frame_bytes(frame.payload.len());
        }
        if self.at < end {
            return Ok(Step::More);
        }
        let sound = !sealed || read_footer(segment)?.is_some_and(|footer| footer.end == end);
        Ok(if sound { Step::Sound } else { Step::Damaged(segment.bytes(), Flaw::Footer) })
    }
}

/// What reading on in a segment came to.
enum Step {
    More,
    Sound,
    Damaged(u64, Flaw),
}

impl Iterator for Scrub {
    type Item = Result<Scrubbed, WalError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Extract { segment, end } = self.left.front()?.clone();
        let (before, sealed) = (self.at, self.left.len() > 1);
        let step = match self.read_on(&segment, end, sealed) {
            Ok(step) => step,
            // Whatever can't be read may be readable the next time; what follows is read all the same.
            Err(error) => {
                self.left.pop_front();
                (self.at, self.next) = (0, None);
                return Some(Err(error.into()));
            }
        };
        let bytes = self.at - before;
        let damage = match step {
            Step::More => return Some(Ok(Scrubbed { bytes, damage: None })),
            Step::Sound => None,
            Step::Damaged(offset, what) => Some(Damage { file: segment.file.path().to_owned(), offset, what }),
        };
        self.left.pop_front();
        (self.at, self.next) = (0, None);
        Some(Ok(Scrubbed { bytes, damage }))
    }
}

/// Whether an entry has the index that the frames before allow; `None` where they allow any.
fn follows(frame: &Frame<'_>, next: &mut Option<u64>) -> bool {
    match frame.kind {
        Kind::Entry => {
            let sound = next.is_none_or(|next| next == frame.index);
            *next = Some(frame.index + 1);
            sound
        }
        Kind::Truncate | Kind::Purge => {
            *next = None;
            true
        }
        Kind::Vote | Kind::Seal | Kind::PeerMark => true,
    }
}
