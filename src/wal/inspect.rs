//! The log for a human's eyes.

use std::path::Path;

use super::error::WalError;
use super::frame::{Frame, Kind, PeerMark, frame_bytes};
use super::recovery::{Candidate, candidates, read_footer};
use super::segment::{HEADER_BYTES, Header, Segment, file_name};
use super::tape::Tape;
use crate::disk::{Disk, Mode};

/// Describes a log, line by line: every header, frame and footer of the segments in `path`, which is the log's directory
/// or one of its segments. Works without knowing whose log it is, and changes nothing. `payload` says in a few words
/// what a payload holds, by the kind of its frame.
///
/// # Errors
/// Whatever the disk says, and [`WalError::NotCreated`] where there is no segment. Damage is described, no error.
pub fn inspect(
    disk: &dyn Disk,
    path: &Path,
    payload: &dyn Fn(Kind, &[u8]) -> String,
    line: &mut dyn FnMut(String),
) -> Result<(), WalError> {
    let is_segment = path.extension().is_some_and(|extension| extension == "wal");
    let dir = if is_segment { path.parent().unwrap_or(Path::new(".")) } else { path };
    let mut found = candidates(disk, dir, Mode::Read)?;
    if is_segment {
        found.retain(|candidate| path.file_name().is_some_and(|name| name == file_name(candidate.sequence).as_str()));
    }
    if found.is_empty() {
        return Err(WalError::NotCreated(path.to_owned()));
    }
    for candidate in found {
        inspect_segment(candidate, payload, line)?;
    }
    Ok(())
}

fn inspect_segment(
    candidate: Candidate,
    payload: &dyn Fn(Kind, &[u8]) -> String,
    line: &mut dyn FnMut(String),
) -> Result<(), WalError> {
    let name = candidate.path.display().to_string();
    let header = match candidate.begun() {
        Ok(header) => header,
        Err(why) => {
            line(format!("segment {name}: {} bytes, {why}", candidate.bytes));
            return Ok(());
        }
    };
    line(format!("segment {name}: {} bytes", candidate.bytes));
    line(describe_header(&header));
    let segment = Segment { file: candidate.file, header };
    let whole = candidate.bytes >= header.bytes;
    let footer = if whole { read_footer(&segment)? } else { None };
    let mut tape = Tape::new(&*segment.file, candidate.bytes.min(header.bytes));
    let mut at = HEADER_BYTES as u64;
    let end = footer.as_ref().map(|footer| footer.end);
    while Some(at) != end {
        match tape.frame(at, header.salt)? {
            Ok(frame) => {
                line(describe_frame(at, &frame, payload));
                at += frame_bytes(frame.payload.len());
            }
            Err(no) => {
                let behind = tape.behind(at, header.salt)?;
                let what = match (behind.durable_upto > at || end.is_some(), behind.salted) {
                    (true, _) => "DAMAGED: synced frames follow or the segment is sealed",
                    (false, true) => "torn tail: not acknowledged",
                    (false, false) => "end",
                };
                line(format!("  {at:>10}  no frame ({no:?}); {what}; {} whole frames behind", behind.frames));
                break;
            }
        }
    }
    match footer {
        Some(footer) => line(format!(
            "  footer: entries {}..{}, last term {}, frames end at {}, {} terms, {} points, crc ok",
            footer.first,
            footer.next,
            footer.last_term,
            footer.end,
            footer.terms.len(),
            footer.points.len()
        )),
        None => line("  not sealed".into()),
    }
    Ok(())
}

fn describe_header(header: &Header) -> String {
    let identity = &header.identity;
    format!(
        "  header: sequence {}, first index {}, previous term {}, node {}, cluster {}, lineage {}, disk {}, salt {:08x}, \
         recycled from {}, {} bytes, crc ok",
        header.sequence,
        header.first_index,
        header.previous_term,
        identity.node_id,
        identity.cluster_id,
        identity.lineage_id,
        identity.disk_id,
        header.salt,
        header.recycled_from,
        header.bytes,
    )
}

fn describe_frame(at: u64, frame: &Frame<'_>, payload: &dyn Fn(Kind, &[u8]) -> String) -> String {
    let length = frame.payload.len();
    let what = match frame.kind {
        Kind::Entry => format!("entry      index {} term {}", frame.index, frame.term),
        Kind::Vote => "vote      ".into(),
        Kind::Purge => format!("purge      index {} term {}", frame.index, frame.term),
        Kind::Truncate => format!("truncate   from {}", frame.index),
        Kind::Seal => "seal      ".into(),
        Kind::PeerMark => match PeerMark::read(frame) {
            Some((mark, true)) => format!("peer mark  node {} forgotten", mark.node_id),
            Some((mark, false)) => format!("peer mark  node {} disk {} log {:?}", mark.node_id, mark.disk_id, mark.log),
            None => "peer mark  of a newer version".into(),
        },
    };
    let text = if length == 0 { String::new() } else { format!("  {}", payload(frame.kind, frame.payload)) };
    format!("  {at:>10}  {what}  {length} bytes  durable up to {}  crc ok{text}", frame.durable_upto)
}
