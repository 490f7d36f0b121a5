//! How far something long is, on standard error, about once a second.

use std::{io::IsTerminal, time::Duration};

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(1);
const MIB: f64 = (1 << 20) as f64;

/// How far something is.
pub(super) struct Progress {
    what: &'static str,
    total: u64,
    told: Instant,
    has_told: bool,
}

impl Progress {
    /// Of `total` bytes; 0 where nobody knows.
    pub(super) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, told: Instant::now(), has_told: false }
    }

    /// So many bytes are done.
    pub(super) fn at(&mut self, bytes: u64) {
        if self.told.elapsed() >= PAUSE {
            self.told = Instant::now();
            self.has_told = true;
            let of = if self.total == 0 { String::new() } else { format!(" of {:.1}", self.total as f64 / MIB) };
            let text = format!("semel: {} {:.1}{of} MiB", self.what, bytes as f64 / MIB);
            if std::io::stderr().is_terminal() { eprint!("\r{text}") } else { eprintln!("{text}") }
        }
    }

    /// All of it is.
    pub(super) fn end(self) {
        if self.has_told && std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
