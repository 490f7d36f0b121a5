//! What a directory holds, judged file by file and frame by frame, before anything is appended to it.
//!
//! A place without a frame is a torn tail only where nothing behind it proves that it was synced; else it's damage, and
//! the log isn't served. A torn tail is copied aside, zeroed and reported, never cut without a word.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::error::{Damage, Flaw, WalError};
use super::frame::{Frame, HEAD_BYTES, Kind, NoFrame, PeerMark, frame_bytes};
use super::map::Map;
use super::segment::{FOOTER_TAIL_BYTES, Footer, HEADER_BYTES, Header, HeaderRead, Identity, Segment, sequence_of};
use super::tape::{Behind, Tape};
use super::writer::Repeated;
use super::{Purged, TornTail};
use crate::disk::{Disk, DiskError, File, Mode};
use crate::limits::{WAL_READ_CHUNK_BYTES, WAL_TORN_COPIES_MAX};

/// A file that is named like a segment.
pub(super) struct Candidate {
    pub(super) sequence: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    pub(super) bytes: u64,
    header: HeaderRead,
    /// Something in it bears the salt of this sequence, for those that weren't begun.
    salted: bool,
}

/// The files of a directory: those in use, oldest first, and those that aren't.
pub(super) struct Survey {
    /// Consecutive sequences, up to the newest.
    pub(super) used: Vec<Segment>,
    /// Below a gap: needed only where the purge doesn't cover them.
    pub(super) before: Vec<Candidate>,
    /// Above the newest in use: prepared and not begun, as far as anyone was told.
    pub(super) unused: Vec<Candidate>,
}

impl Candidate {
    fn own_header(&self) -> Option<&Header> {
        match &self.header {
            HeaderRead::Sound(header) if header.sequence == self.sequence => Some(header),
            _ => None,
        }
    }

    /// Its header, or why it isn't in use.
    pub(super) fn begun(&self) -> Result<Header, String> {
        match (&self.header, self.own_header()) {
            (_, Some(header)) => Ok(*header),
            (HeaderRead::Blank, _) => Err("prepared, never in use".into()),
            (HeaderRead::Sound(header), _) => Err(format!("prepared, was segment {}", header.sequence)),
            (HeaderRead::Version(version), _) => Err(format!("of format version {version}")),
            (HeaderRead::Damaged, _) => Err("the header doesn't match its checksum".into()),
        }
    }

    fn damage(&self, what: Flaw) -> Damage {
        Damage { file: self.path.clone(), offset: 0, what }
    }

    /// Whether frames prove that the header and what is repeated behind it were written and synced. Before that,
    /// nothing in the segment was acknowledged, and the vote may be missing in it: the one before counts.
    fn was_begun(&mut self, identity: &Identity) -> Result<bool, DiskError> {
        let mut tape = Tape::new(&*self.file, self.bytes);
        let behind = tape.behind(HEADER_BYTES as u64, identity.salt(self.sequence))?;
        self.salted = behind.salted;
        Ok(behind.durable_upto >= HEADER_BYTES as u64)
    }

    /// The sequence of its earlier life, where it can serve as the next segment without its zeros: nothing in it may
    /// bear the salt that it's going to get.
    pub(super) fn earlier_life(&self) -> Option<u64> {
        match &self.header {
            HeaderRead::Sound(header) if header.sequence < self.sequence && !self.salted => Some(header.sequence),
            _ => None,
        }
    }
}

fn read_header(file: &dyn File, bytes: u64) -> Result<HeaderRead, DiskError> {
    let mut block = [0_u8; HEADER_BYTES];
    let there = (bytes as usize).min(HEADER_BYTES);
    file.read_exact_at(&mut block[..there], 0)?;
    Ok(Header::read(&block))
}

/// The files named like segments, by sequence.
pub(super) fn candidates(disk: &dyn Disk, dir: &Path, mode: Mode) -> Result<Vec<Candidate>, WalError> {
    let names = match disk.list(dir) {
        Err(error) if error.is_not_found() => Vec::new(),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names {
        let Some(sequence) = sequence_of(&name) else { continue };
        let path = dir.join(name);
        let file = disk.open(&path, mode)?;
        let bytes = file.len()?;
        let header = read_header(&*file, bytes)?;
        found.push(Candidate { sequence, path, file, bytes, header, salted: false });
    }
    Ok(found)
}

/// The identity that the newest segment in use tells, `None` where there is none: also where a log was about to be created,
/// and has a header and nothing behind it.
pub(super) fn identity(disk: &dyn Disk, dir: &Path) -> Result<Option<Identity>, WalError> {
    let found = candidates(disk, dir, Mode::Read)?;
    let Some(identity) = found.iter().rev().find_map(Candidate::own_header).map(|header| header.identity) else {
        return Ok(None);
    };
    // What is damaged has an identity all the same: whoever opens it says what is wrong.
    match survey(disk, dir, &identity, Mode::Read) {
        Ok(survey) if survey.used.is_empty() => Ok(None),
        _ => Ok(Some(identity)),
    }
}

/// Sorts out the files. `used` is empty where no log was created.
pub(super) fn survey(disk: &dyn Disk, dir: &Path, expected: &Identity, mode: Mode) -> Result<Survey, WalError> {
    let mut found = candidates(disk, dir, mode)?;
    for candidate in &found {
        if let HeaderRead::Version(version) = candidate.header {
            return Err(WalError::damaged(candidate.damage(Flaw::Version(version))));
        }
        if let HeaderRead::Sound(header) = &candidate.header
            && header.identity != *expected
        {
            return Err(WalError::Identity {
                dir: dir.to_owned(),
                expected: Box::new(*expected),
                found: Box::new(header.identity),
            });
        }
    }
    let mut unused = Vec::new();
    while let Some(mut candidate) = found.pop() {
        let begun = candidate.was_begun(expected)?;
        match (begun, candidate.own_header()) {
            (true, Some(_)) => {
                found.push(candidate);
                break;
            }
            // Its header is gone, but its frames say that it was synced: it must not pass for one never begun.
            (true, None) => return Err(WalError::damaged(candidate.damage(Flaw::Header))),
            // The file had its length before it got a header.
            (false, Some(header)) if candidate.bytes < header.bytes => {
                return Err(WalError::damaged(candidate.damage(Flaw::Header)));
            }
            (false, _) => unused.push(candidate),
        }
    }
    unused.reverse();
    let mut used = Vec::new();
    while let Some(candidate) = found.pop() {
        let follows = used.last().is_none_or(|next: &Segment| next.header.sequence == candidate.sequence + 1);
        let Some(header) = candidate.own_header().copied().filter(|_| follows) else {
            found.push(candidate);
            break;
        };
        if candidate.bytes < header.bytes || header.salt != expected.salt(header.sequence) {
            return Err(WalError::damaged(candidate.damage(Flaw::Header)));
        }
        used.push(Segment { file: candidate.file, header });
    }
    used.reverse();
    Ok(Survey { used, before: found, unused })
}

/// What frames build up.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) map: Map,
    pub(super) repeated: Repeated,
}

impl Replay {
    /// Takes in the next frame of the newest segment.
    pub(super) fn apply(&mut self, frame: &Frame<'_>, offset: u64) -> Result<(), Flaw> {
        match frame.kind {
            Kind::Entry => {
                if !self.map.bounds.accepts(frame.index) {
                    return Err(Flaw::Order);
                }
                self.map.entry(frame.index, frame.term, offset);
            }
            Kind::Vote => self.repeated.vote = Some(Bytes::copy_from_slice(frame.payload)),
            Kind::Purge => {
                self.map.purge(frame.index, frame.term);
                if self.repeated.purged.as_ref().is_none_or(|last| last.index < frame.index) {
                    let payload = Bytes::copy_from_slice(frame.payload);
                    self.repeated.purged = Some(Purged { index: frame.index, term: frame.term, payload });
                }
            }
            Kind::Truncate => self.map.truncate(frame.index),
            Kind::Seal => {}
            Kind::PeerMark => {
                let (mark, forgotten) = PeerMark::read(frame).ok_or(Flaw::Frame(NoFrame::Kind(frame.kind as u8)))?;
                match forgotten {
                    true => self.repeated.marks.remove(&mark.node_id),
                    false => self.repeated.marks.insert(mark.node_id, mark),
                };
            }
        }
        Ok(())
    }
}

/// Copies aside and reports what a segment holds that was never begun: a first batch that was torn.
pub(super) fn torn_beginning(disk: &dyn Disk, dir: &Path, unused: &[Candidate]) -> Result<Option<TornTail>, WalError> {
    let Some((candidate, header)) = unused.first().and_then(|first| Some((first, *first.own_header()?))) else {
        return Ok(None);
    };
    let segment = Segment { file: candidate.file.clone(), header };
    let mut tape = Tape::new(&*segment.file, header.bytes);
    let mut at = HEADER_BYTES as u64;
    while let Ok(frame) = tape.frame(at, header.salt)? {
        at += frame_bytes(frame.payload.len());
    }
    let behind = tape.behind(at, header.salt)?;
    cut_torn_tail(disk, dir, &segment, at, &behind)
}

/// A segment's footer, `None` where it has none of its life.
pub(super) fn read_footer(segment: &Segment) -> Result<Option<Footer>, DiskError> {
    let (file, salt, length) = (&*segment.file, segment.header.salt, segment.bytes());
    let mut tail = [0_u8; FOOTER_TAIL_BYTES];
    file.read_exact_at(&mut tail, length - FOOTER_TAIL_BYTES as u64)?;
    let Some(bytes) = Footer::announced_bytes(&tail, salt, length) else { return Ok(None) };
    let mut whole = vec![0_u8; bytes as usize];
    file.read_exact_at(&mut whole, length - bytes)?;
    Ok(Footer::decode(&whole).filter(|footer| {
        let frames = HEADER_BYTES as u64..=length - bytes;
        footer.sequence == segment.header.sequence && footer.salt == salt && frames.contains(&footer.end)
    }))
}

/// The newest segment, read to its end.
pub(super) struct Newest {
    pub(super) segment: Arc<Segment>,
    /// Where its frames end.
    pub(super) end: u64,
    pub(super) sealed: bool,
    /// Its last frame is a seal.
    pub(super) ends_in_seal: bool,
    pub(super) torn: Option<TornTail>,
}

/// Whether what recovery reads is mended, to be appended to, or left as it lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mending {
    /// The newest segment is made durable, and its torn tail is cut.
    Mend,
    /// Nothing is written.
    Leave,
}

/// Replays the footers of the sealed segments and all frames of the newest one, and mends the newest.
pub(super) fn replay(
    disk: &dyn Disk,
    dir: &Path,
    used: Vec<Segment>,
    mending: Mending,
) -> Result<(Replay, Newest), WalError> {
    let mut replay = Replay::default();
    let mut used: Vec<Arc<Segment>> = used.into_iter().map(Arc::new).collect();
    let newest = used.pop().expect("the caller has seen a segment in use");
    let first = used.first().unwrap_or(&newest).header;
    replay.map.bounds.first = first.first_index;
    replay.map.bounds.next = first.first_index;
    let mut previous_term = first.previous_term;
    for segment in used {
        check_link(&replay.map, previous_term, &segment)?;
        let footer = read_footer(&segment)?.ok_or_else(|| damage(&segment, segment.bytes(), Flaw::Footer))?;
        previous_term = footer.last_term;
        replay.map.sealed(segment, &footer);
    }
    check_link(&replay.map, previous_term, &newest)?;
    let newest = replay_newest(&mut replay, disk, dir, newest, mending)?;
    let needed = replay.map.purged.map_or(0, |(index, _)| index + 1);
    if first.sequence > 1 && first.first_index > needed {
        let file = dir.join(super::segment::file_name(first.sequence - 1));
        return Err(WalError::damaged(Damage { file, offset: 0, what: Flaw::Chain }));
    }
    Ok((replay, newest))
}

fn damage(segment: &Segment, offset: u64, what: Flaw) -> WalError {
    WalError::damaged(Damage { file: segment.file.path().to_owned(), offset, what })
}

fn check_link(map: &Map, previous_term: u64, segment: &Segment) -> Result<(), WalError> {
    let header = &segment.header;
    let follows = header.first_index == map.bounds.next && header.previous_term == previous_term;
    if follows { Ok(()) } else { Err(damage(segment, 0, Flaw::Chain)) }
}

fn replay_newest(
    replay: &mut Replay,
    disk: &dyn Disk,
    dir: &Path,
    segment: Arc<Segment>,
    mending: Mending,
) -> Result<Newest, WalError> {
    let salt = segment.header.salt;
    let footer = read_footer(&segment)?;
    replay.map.begin(segment.clone(), HEADER_BYTES as u64);
    let mut tape = Tape::new(&*segment.file, segment.bytes());
    let (mut at, mut durable, mut ends_in_seal) = (HEADER_BYTES as u64, 0, false);
    let stop = loop {
        if footer.as_ref().is_some_and(|footer| footer.end == at) {
            break None;
        }
        let frame = match tape.frame(at, salt)? {
            Ok(frame) => frame,
            Err(no) => break Some(no),
        };
        replay.apply(&frame, at).map_err(|flaw| damage(&segment, at, flaw))?;
        durable = frame.durable_upto.max(durable);
        ends_in_seal = frame.kind == Kind::Seal;
        at += frame_bytes(frame.payload.len());
    };
    replay.map.synced(at);
    let torn = match stop {
        None => None,
        Some(no @ NoFrame::Kind(_)) => return Err(damage(&segment, at, Flaw::Frame(no))),
        Some(no) => {
            let behind = tape.behind(at, salt)?;
            // Whatever was sealed was synced first, to the last frame.
            if (behind.durable_upto > at || durable > at || footer.is_some()) && !planted!(DamageCut) {
                return Err(damage(&segment, at, Flaw::Frame(no)));
            }
            match mending {
                Mending::Mend => cut_torn_tail(disk, dir, &segment, at, &behind)?,
                Mending::Leave => None,
            }
        }
    };
    if mending == Mending::Mend {
        let rewrite_end = if footer.is_some() { segment.bytes() } else { at };
        make_durable(&segment, durable, rewrite_end)?;
    }
    Ok(Newest { segment, end: at, sealed: footer.is_some(), ends_in_seal, torn })
}

/// Makes sure that what was read is on the disk. A process before may have died of a failed sync: its pages are in the
/// cache, marked clean, and not on the disk, and a sync alone would leave them so. Written again, they're synced.
fn make_durable(segment: &Segment, durable_upto: u64, end: u64) -> Result<(), WalError> {
    let mut at = if durable_upto < HEADER_BYTES as u64 { 0 } else { durable_upto };
    let mut piece = Vec::new();
    while at < end {
        piece.resize((end - at).min(WAL_READ_CHUNK_BYTES as u64) as usize, 0);
        segment.file.read_exact_at(&mut piece, at)?;
        segment.file.write_at(&piece, at)?;
        at += piece.len() as u64;
    }
    Ok(segment.file.sync_data()?)
}

/// Whether bytes of this life lie behind the last frame, which ends at `at`. In a file that was used before, they are its
/// past, unless they bear the salt of this life.
pub(super) fn is_torn(segment: &Segment, at: u64, behind: &Behind) -> bool {
    behind.salted || (segment.header.recycled_from == 0 && behind.data_end > at)
}

/// Copies what lies behind the last frame aside, and zeroes it. `None` where nothing of this life lies there.
fn cut_torn_tail(
    disk: &dyn Disk,
    dir: &Path,
    segment: &Segment,
    at: u64,
    behind: &Behind,
) -> Result<Option<TornTail>, WalError> {
    if !is_torn(segment, at, behind) {
        return Ok(None);
    }
    let end = behind.data_end.max(at + HEAD_BYTES as u64).min(segment.bytes());
    let names = disk.list(dir)?;
    let mut copies: Vec<(u64, &String)> = names.iter().filter_map(|name| Some((copy_number(name)?, name))).collect();
    copies.sort_unstable();
    let number = copies.last().map_or(1, |(number, _)| number + 1);
    let copy = dir.join(format!("torn-{number:06}-{:020}-{at}.bin", segment.header.sequence));
    let file = disk.open(&copy, Mode::CreateNew)?;
    let mut offset = at;
    let mut piece = Vec::new();
    while offset < end {
        piece.resize((end - offset).min(WAL_READ_CHUNK_BYTES as u64) as usize, 0);
        segment.file.read_exact_at(&mut piece, offset)?;
        file.write_at(&piece, offset - at)?;
        offset += piece.len() as u64;
    }
    file.sync_data()?;
    let excess = (copies.len() + 1).saturating_sub(WAL_TORN_COPIES_MAX);
    for (_, name) in &copies[..excess] {
        disk.remove(&dir.join(name))?;
    }
    disk.sync_dir(dir)?;
    segment.file.zero_fill(at, segment.bytes())?;
    let file = segment.file.path().to_owned();
    Ok(Some(TornTail { file, offset: at, bytes: end - at, frames: behind.frames, copy }))
}

fn copy_number(name: &str) -> Option<u64> {
    name.strip_prefix("torn-")?.strip_suffix(".bin")?.split('-').next()?.parse().ok()
}

/// Removes files that no log uses.
pub(super) fn remove_all(disk: &dyn Disk, dir: &Path, files: &[Candidate]) -> Result<(), DiskError> {
    for candidate in files {
        disk.remove(&candidate.path)?;
    }
    if files.is_empty() { Ok(()) } else { disk.sync_dir(dir) }
}
