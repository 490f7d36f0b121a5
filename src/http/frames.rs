//! The frames of an HTTP/2 connection, as far as somebody without a credential could wear a node out with them. Bodies and
//! heads are bounded by the library that reads them; how often a stream is reset, or settings and pings are sent, is not.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

/// What a client sends first.
const PREFACE_BYTES: usize = 24;
/// Length, kind, flags and stream.
const HEAD_BYTES: usize = 9;

const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// GOAWAY without a last stream, for ENHANCE_YOUR_CALM.
pub(super) const CALM: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];

/// Where the frames of one direction begin and end.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes until the next head.
    rest: usize,
    head: [u8; HEAD_BYTES],
    have: usize,
}

impl Frames {
    /// What a client sends.
    pub(super) fn received() -> Self {
        Self { rest: PREFACE_BYTES, head: [0; HEAD_BYTES], have: 0 }
    }

    /// What a server sends.
    pub(super) fn sent() -> Self {
        Self { rest: 0, ..Self::received() }
    }

    /// Whether what has passed ends with a whole frame.
    pub(super) fn is_between(&self) -> bool {
        self.rest == 0 && self.have == 0
    }

    /// Goes over these bytes, and calls with the kind of each frame that begins in them.
    pub(super) fn pass(&mut self, mut bytes: &[u8], mut begins: impl FnMut(u8)) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let over = self.rest.min(bytes.len());
                self.rest -= over;
                bytes = &bytes[over..];
                continue;
            }
            let part = (HEAD_BYTES - self.have).min(bytes.len());
            self.head[self.have..self.have + part].copy_from_slice(&bytes[..part]);
            self.have += part;
            bytes = &bytes[part..];
            if self.have == HEAD_BYTES {
                let [a, b, c, kind, ..] = self.head;
                (self.rest, self.have) = (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c), 0);
                begins(kind);
            }
        }
    }
}

/// What a client without a credential has sent lately.
#[derive(Debug)]
pub(super) struct Counted {
    frames: Frames,
    since: Instant,
    resets: u32,
    settings_and_pings: u32,
}

impl Counted {
    pub(super) fn new(now: Instant) -> Self {
        Self { frames: Frames::received(), since: now, resets: 0, settings_and_pings: 0 }
    }

    /// Counts what stands in these bytes. Where it is too much: of what, in a word of the metrics.
    pub(super) fn received(&mut self, bytes: &[u8], now: Instant) -> Option<&'static str> {
        if now.duration_since(self.since) > Duration::from_millis(limits::FRAMES_COUNTED_MS) {
            (self.since, self.resets, self.settings_and_pings) = (now, 0, 0);
        }
        let (mut resets, mut others) = (0, 0);
        self.frames.pass(bytes, |kind| match kind {
            RST_STREAM => resets += 1,
            SETTINGS | PING => others += 1,
            _ => {}
        });
        self.resets += resets;
        self.settings_and_pings += others;
        match (self.resets > limits::RESETS_MAX, self.settings_and_pings > limits::SETTINGS_AND_PINGS_MAX) {
            (true, _) => Some("resets_max"),
            (false, true) => Some("settings_and_pings_max"),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + payload, kind);
        frame
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let whole = [vec![b'P'; PREFACE_BYTES], frame(4, 0), frame(3, 4), frame(0, 70_000), frame(6, 8)].concat();
        for piece in [1, 2, 7, 9, 10, 1000, whole.len()] {
            let (mut frames, mut kinds) = (Frames::received(), Vec::new());
            whole.chunks(piece).for_each(|bytes| frames.pass(bytes, |kind| kinds.push(kind)));
            assert_eq!(kinds, [4, 3, 0, 6], "in pieces of {piece}");
            assert!(frames.is_between());
        }
        let mut frames = Frames::sent();
        frames.pass(&whole[PREFACE_BYTES..whole.len() - 1], |_| {});
        assert!(!frames.is_between());
    }

    #[test]
    fn too_many_in_a_span_are_too_many() {
        let began = Instant::now();
        let span = Duration::from_millis(limits::FRAMES_COUNTED_MS);
        let mut counted = Counted::new(began);
        assert_eq!(counted.received(&[b'P'; PREFACE_BYTES], began), None);
        for _ in 0..limits::RESETS_MAX {
            assert_eq!(counted.received(&frame(RST_STREAM, 4), began), None);
        }
        // What came long ago counts no more.
        let later = began + span + Duration::from_millis(1);
        for _ in 0..limits::RESETS_MAX {
            assert_eq!(counted.received(&frame(RST_STREAM, 4), later), None);
        }
        assert_eq!(counted.received(&frame(RST_STREAM, 4), later), Some("resets_max"));
        let mut counted = Counted::new(began);
        counted.received(&[b'P'; PREFACE_BYTES], began);
        let pings = frame(PING, 8).repeat(limits::SETTINGS_AND_PINGS_MAX as usize);
        assert_eq!(counted.received(&pings, began), None);
        assert_eq!(counted.received(&frame(SETTINGS, 0), began), Some("settings_and_pings_max"));
    }

    #[test]
    fn the_goaway_is_one_whole_frame() {
        let (mut frames, mut kinds) = (Frames::sent(), Vec::new());
        frames.pass(&CALM, |kind| kinds.push(kind));
        assert!(kinds == [7] && frames.is_between());
    }
}
