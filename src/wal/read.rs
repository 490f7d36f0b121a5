//! Reading entries back.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::RwLock;

use super::WalEntry;
use super::error::{Damage, Flaw, WalError};
use super::frame::{Kind, frame_bytes};
use super::map::{Map, Run};
use super::tape::Tape;
use crate::limits::WAL_POINT_BYTES;

/// The map is locked only while a place is looked up: the run holds its segment, which is not used again meanwhile.
pub(super) fn read(map: &RwLock<Map>, range: Range<u64>, bytes_max: usize) -> Result<Vec<WalEntry>, WalError> {
    let mut entries = Vec::new();
    let mut bytes_left = bytes_max;
    let mut index = range.start;
    while index < range.end && (entries.is_empty() || bytes_left > 0) {
        let run = {
            let map = map.read();
            match map.run(index) {
                Some(run) => run,
                None if entries.is_empty() => {
                    let bounds = map.bounds;
                    return Err(WalError::NotThere { index, first: bounds.first, next: bounds.next });
                }
                None => break,
            }
        };
        let upto = run.until.min(range.end);
        index = read_run(&run, index..upto, &mut bytes_left, &mut entries)?;
    }
    Ok(entries)
}

/// Reads entries of one run until `bytes_left` is used up; answers the index to go on with.
fn read_run(
    run: &Run,
    range: Range<u64>,
    bytes_left: &mut usize,
    entries: &mut Vec<WalEntry>,
) -> Result<u64, WalError> {
    let chunk = bytes_left.saturating_add(WAL_POINT_BYTES as usize);
    let mut tape = Tape::with_chunk(&*run.segment.file, run.end, chunk);
    let mut offset = run.offset;
    let mut index = range.start;
    let damage = |offset, what| WalError::damaged(Damage { file: run.segment.file.path().to_owned(), offset, what });
    while index < range.end {
        let frame = tape.frame(offset, run.segment.header.salt)?.map_err(|no| damage(offset, Flaw::Frame(no)))?;
        if frame.kind == Kind::Entry && frame.index > index {
            return Err(damage(offset, Flaw::Order));
        }
        if frame.kind == Kind::Entry && frame.index == index {
            if !entries.is_empty() && frame.payload.len() > *bytes_left {
                *bytes_left = 0;
                return Ok(index);
            }
            *bytes_left = bytes_left.saturating_sub(frame.payload.len());
            let payload = Bytes::copy_from_slice(frame.payload);
            entries.push(WalEntry { index, term: frame.term, payload });
            index += 1;
        }
        offset += frame_bytes(frame.payload.len());
    }
    Ok(index)
}
