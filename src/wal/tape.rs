//! Reads a segment's frames in order, a piece of the file at a time, and searches behind a hole.

use super::frame::{ALIGN, Frame, HEAD_BYTES, NoFrame, SALT_AT, announced_bytes, decode, frame_bytes, u32_at};
use crate::disk::{DiskError, File};
use crate::limits::WAL_READ_CHUNK_BYTES;

/// A window on a file that slides forward. Frames are borrowed from it.
pub(super) struct Tape<'f> {
    file: &'f dyn File,
    /// Nothing is read at or beyond this offset.
    limit: u64,
    chunk_bytes: usize,
    window: Vec<u8>,
    window_at: u64,
}

/// What lies behind a place where no frame is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Behind {
    /// The largest `durable_upto` of the valid frames there.
    pub(super) durable_upto: u64,
    /// Valid frames there.
    pub(super) frames: u64,
    /// Something carries this life's salt where a frame's salt would be.
    pub(super) salted: bool,
    /// One behind the last byte that isn't zero, 0 where all are.
    pub(super) data_end: u64,
}

impl<'f> Tape<'f> {
    pub(super) fn new(file: &'f dyn File, limit: u64) -> Self {
        Self::with_chunk(file, limit, WAL_READ_CHUNK_BYTES)
    }

    /// For reads that want little: begins with so many bytes at a time.
    pub(super) fn with_chunk(file: &'f dyn File, limit: u64, chunk_bytes: usize) -> Self {
        let chunk_bytes = chunk_bytes.clamp(HEAD_BYTES, WAL_READ_CHUNK_BYTES);
        Self { file, limit, chunk_bytes, window: Vec::new(), window_at: 0 }
    }

    /// At least `bytes` bytes from `offset` on, fewer at the limit or the end of the file, more where they are at hand.
    pub(super) fn view(&mut self, offset: u64, bytes: usize) -> Result<&[u8], DiskError> {
        let wanted_end = self.limit.min(offset + bytes as u64);
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || wanted_end > window_end {
            let length = (self.limit.saturating_sub(offset) as usize).min(bytes.max(self.chunk_bytes));
            self.window.clear();
            self.window.resize(length, 0);
            self.window_at = offset;
            let mut done = 0;
            while done < length {
                let read = self.file.read_at(&mut self.window[done..], offset + done as u64)?;
                if read == 0 {
                    break;
                }
                done += read;
            }
            self.window.truncate(done);
        }
        let from = (offset - self.window_at) as usize;
        Ok(self.window.get(from..).unwrap_or_default())
    }

    /// The frame that begins at `offset`.
    pub(super) fn frame(&mut self, offset: u64, salt: u32) -> Result<Result<Frame<'_>, NoFrame>, DiskError> {
        let whole = match announced_bytes(self.view(offset, HEAD_BYTES)?, salt) {
            Ok(whole) => whole,
            Err(no) => return Ok(Err(no)),
        };
        if offset + whole > self.limit {
            return Ok(Err(NoFrame::Short));
        }
        Ok(decode(self.view(offset, whole as usize)?, salt))
    }

    /// Looks at every place behind the hole at `hole` where a frame could begin.
    pub(super) fn behind(&mut self, hole: u64, salt: u32) -> Result<Behind, DiskError> {
        let mut behind = Behind::default();
        let mut at = hole;
        while at < self.limit {
            // A stretch that is looked through for the salt before any frame is tried.
            let stretch = self.view(at, HEAD_BYTES)?;
            let places = stretch.len().saturating_sub(HEAD_BYTES) / ALIGN as usize + 1;
            let looked = if stretch.len() < HEAD_BYTES { stretch.len() } else { places * ALIGN as usize };
            if looked == 0 {
                break;
            }
            let found = (0..places)
                .map(|place| place * ALIGN as usize)
                .find(|place| stretch.len() >= place + HEAD_BYTES && u32_at(stretch, place + SALT_AT) == salt);
            // Each byte is looked at once: what is behind a find is looked at again from there.
            let passed = found.map_or(looked, |found| found + ALIGN as usize).min(stretch.len());
            if let Some(last) = last_set(&stretch[..passed]) {
                behind.data_end = behind.data_end.max(at + last as u64 + 1);
            }
            let Some(found) = found else {
                at += looked as u64;
                continue;
            };
            let place = at + found as u64;
            behind.salted = true;
            at = place + ALIGN;
            match self.frame(place, salt)? {
                Ok(frame) => {
                    let last = last_set(frame.payload).map_or(HEAD_BYTES, |last| HEAD_BYTES + last + 1);
                    behind.data_end = behind.data_end.max(place + last as u64);
                    behind.frames += 1;
                    behind.durable_upto = behind.durable_upto.max(frame.durable_upto);
                    at = place + frame_bytes(frame.payload.len());
                }
                // Nothing is known of it but that a newer version wrote it: it counts as if it covered everything.
                Err(NoFrame::Kind(_)) => behind.durable_upto = u64::MAX,
                Err(_) => {}
            }
        }
        Ok(behind)
    }
}

/// Where the last byte is that isn't zero. Zeros are most of what is looked through: eight at a time.
fn last_set(bytes: &[u8]) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let in_rest = rest.iter().rposition(|byte| *byte != 0).map(|at| chunks.len() * 8 + at);
    in_rest.or_else(|| {
        let at = chunks.iter().rposition(|chunk| u64::from_ne_bytes(*chunk) != 0)?;
        chunks[at].iter().rposition(|byte| *byte != 0).map(|last| at * 8 + last)
    })
}
