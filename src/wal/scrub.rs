//! Reading every byte, to find damage while there are peers to heal from.

use std::collections::VecDeque;

use super::error::{Damage, Flaw, WalError};
use super::frame::{Frame, Kind, frame_bytes};
use super::map::Extract;
use super::recovery::read_footer;
use super::segment::{HEADER_BYTES, Header, HeaderRead, Segment};
use super::tape::Tape;

/// One pass over the segments there were when it began. Each step reads one whole segment: whoever drives it decides how
/// long to rest between them.
pub struct Scrub {
    left: VecDeque<Extract>,
}

/// What a step of the scrub has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read.
    pub bytes: u64,
    /// The first damage in the segment, if any.
    pub damage: Option<Damage>,
}

impl Scrub {
    pub(super) fn new(segments: Vec<Extract>) -> Self {
        Self { left: segments.into() }
    }
}

impl Iterator for Scrub {
    type Item = Result<Scrubbed, WalError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Extract { segment, end } = self.left.pop_front()?;
        let sealed = !self.left.is_empty();
        let damage = match scrub_segment(&segment, end, sealed) {
            Ok(damage) => damage,
            Err(error) => return Some(Err(error)),
        };
        let damage = damage.map(|(offset, what)| Damage { file: segment.file.path().to_owned(), offset, what });
        Some(Ok(Scrubbed { bytes: end, damage }))
    }
}

fn scrub_segment(segment: &Segment, end: u64, sealed: bool) -> Result<Option<(u64, Flaw)>, WalError> {
    let mut block = [0_u8; HEADER_BYTES];
    segment.file.read_exact_at(&mut block, 0)?;
    if Header::read(&block) != HeaderRead::Sound(segment.header) {
        return Ok(Some((0, Flaw::Header)));
    }
    let mut tape = Tape::new(&*segment.file, end);
    let mut at = HEADER_BYTES as u64;
    let mut next = None;
    while at < end {
        let frame = match tape.frame(at, segment.header.salt)? {
            Ok(frame) => frame,
            Err(no) => return Ok(Some((at, Flaw::Frame(no)))),
        };
        if !follows(&frame, &mut next) {
            return Ok(Some((at, Flaw::Order)));
        }
        at += frame_bytes(frame.payload.len());
    }
    if !sealed {
        return Ok(None);
    }
    let sound = read_footer(segment)?.is_some_and(|footer| footer.end == end);
    Ok((!sound).then_some((segment.bytes(), Flaw::Footer)))
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
