//! What the log costs over the disk: appends of 300 B entries by 1, 16 and 256 waiters, against a bare loop that writes
//! and syncs the same bytes in the same batches on a file full of zeros.
//!
//! Each waiter appends again as soon as it's told, so a batch is what arrived while the one before was synced. The bare
//! loop gets the batch sizes that the log had in the run before, and runs take turns: the disk's moods hit both.
//!
//! `cargo bench --bench wal_append -- [DIR [SECONDS]]`; the default directory is the system's temporary one, which must
//! not be in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use semel::disk::{Call, Disk, DiskError, File, Lock, Mode, OsDisk};
use semel::id::{ClusterId, DiskId, LineageId};
use semel::wal::{Identity, Options, Purged, Wal, WalEntry};

const ENTRY_BYTES: usize = 300;
/// A frame of such an entry: 40 bytes before it, padded to 8.
const FRAME_BYTES: u64 = 344;
const ROUNDS: usize = 5;
const SEGMENT_BYTES: u64 = 64 << 20;

struct Outcome {
    appends_per_s: f64,
    latency: Histogram<u64>,
    /// Bytes of each write that a sync followed.
    batches: Vec<u64>,
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let dir =
        args.next().map_or_else(std::env::temp_dir, PathBuf::from).join(format!("semel-wal-{}", std::process::id()));
    let seconds = args.next().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    println!("{ROUNDS} rounds of {seconds} s each, entries of {ENTRY_BYTES} B, in {}", dir.display());
    println!("waiters  log/s (p50/p99 us)        bare/s (p50/p99 us)       log : bare, rounds          median  batch");
    for waiters in [1, 16, 256] {
        compare(&dir, waiters, time);
    }
    std::fs::remove_dir_all(&dir).expect("the bench removes what it made");
}

fn compare(dir: &Path, waiters: usize, time: Duration) {
    let mut ratios = Vec::new();
    let (mut log, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let run = dir.join(format!("{waiters}-{round}"));
        let of_log = run_log(&run, waiters, time);
        let of_bare = run_bare(&run, &of_log.batches, time);
        ratios.push(of_log.appends_per_s / of_bare.appends_per_s);
        log.push(of_log);
        bare.push(of_bare);
        std::fs::remove_dir_all(&run).expect("the bench removes what it made");
    }
    let batches: usize = log.iter().map(|outcome| outcome.batches.len()).sum();
    let bytes: u64 = log.iter().flat_map(|outcome| &outcome.batches).sum();
    let rounds: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    println!(
        "{waiters:>7}  {:<24}  {:<24}  {:<26}  {:.2}    {:.1}",
        describe(&log),
        describe(&bare),
        rounds.join(" "),
        median(&mut ratios),
        bytes as f64 / FRAME_BYTES as f64 / batches as f64,
    );
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}

fn describe(outcomes: &[Outcome]) -> String {
    let mut rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.appends_per_s).collect();
    let mut all = histogram();
    for outcome in outcomes {
        all.add(&outcome.latency).expect("histograms of one shape");
    }
    format!("{:.0} ({}/{})", median(&mut rates), all.value_at_quantile(0.5), all.value_at_quantile(0.99))
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds that make sense")
}

fn identity() -> Identity {
    Identity { lineage_id: LineageId([1; 16]), cluster_id: ClusterId([1; 16]), node_id: 1, disk_id: DiskId([1; 16]) }
}

fn run_log(dir: &Path, waiters: usize, time: Duration) -> Outcome {
    let batches = Arc::new(Batches::default());
    let disk = Arc::new(Watched { batches: batches.clone() });
    let options = Options::new(SEGMENT_BYTES).expect("a size that fits");
    let wal = Wal::create(disk, dir, identity(), &options).expect("a fresh directory takes a log");
    // The first segment ahead of use is being filled: that isn't what is measured.
    std::thread::sleep(Duration::from_secs(1));
    batches.on.store(true, Ordering::Relaxed);
    let (tell, told) = mpsc::sync_channel::<Instant>(waiters);
    let payload = Bytes::from(vec![7; ENTRY_BYTES]);
    let mut index = 0;
    let mut append = || {
        let (tell, asked) = (tell.clone(), Instant::now());
        let entry = WalEntry { index, term: 1, payload: payload.clone() };
        wal.append(vec![entry], move |done| {
            done.expect("the disk works");
            tell.send(asked).expect("the bench waits for everyone");
        });
        // As a node does: what is old enough goes, and its segments are used again.
        if index % 100_000 == 99_999 {
            wal.purge(Purged { index: index - 50_000, term: 1, payload: Bytes::new() }, |_| {});
        }
        index += 1;
    };
    let began = Instant::now();
    (0..waiters).for_each(|_| append());
    let mut latency = histogram();
    let mut done = 0;
    while began.elapsed() < time {
        let asked = told.recv().expect("the log answers");
        latency.record(asked.elapsed().as_micros() as u64).expect("within a minute");
        done += 1;
        append();
    }
    let appends_per_s = f64::from(done) / began.elapsed().as_secs_f64();
    batches.on.store(false, Ordering::Relaxed);
    for _ in 0..waiters {
        told.recv().expect("the log answers");
    }
    wal.close();
    let batches = std::mem::take(&mut *batches.bytes.lock().expect("nobody panics"));
    Outcome { appends_per_s, latency, batches }
}

/// Writes and syncs batches of these sizes, one behind the other, through files that were filled with zeros before.
fn run_bare(dir: &Path, batches: &[u64], time: Duration) -> Outcome {
    let file = OsDisk.open(&dir.join("bare"), Mode::CreateNew).expect("a fresh file");
    file.zero_fill(0, 4 * SEGMENT_BYTES).expect("there is room");
    file.sync_data().expect("the disk works");
    let bytes = vec![7; batches.iter().copied().max().unwrap_or(FRAME_BYTES) as usize];
    let mut latency = histogram();
    let (mut at, mut done) = (0, 0.0);
    let began = Instant::now();
    for batch in batches.iter().cycle() {
        if began.elapsed() >= time {
            break;
        }
        if at + batch > 4 * SEGMENT_BYTES {
            at = 0;
        }
        let asked = Instant::now();
        file.write_at(&bytes[..*batch as usize], at).expect("the disk works");
        file.sync_data().expect("the disk works");
        latency.record(asked.elapsed().as_micros() as u64).expect("within a minute");
        at += batch;
        done += *batch as f64 / FRAME_BYTES as f64;
    }
    Outcome { appends_per_s: done / began.elapsed().as_secs_f64(), latency, batches: Vec::new() }
}

/// What the log wrote before each sync, while it's watched.
#[derive(Default)]
struct Batches {
    on: AtomicBool,
    written: AtomicU64,
    bytes: std::sync::Mutex<Vec<u64>>,
}

/// The real disk, which notes the sizes of batches.
struct Watched {
    batches: Arc<Batches>,
}

struct WatchedFile {
    batches: Arc<Batches>,
    file: Arc<dyn File>,
}

impl Disk for Watched {
    fn open(&self, path: &Path, mode: Mode) -> Result<Arc<dyn File>, DiskError> {
        let file = OsDisk.open(path, mode)?;
        Ok(Arc::new(WatchedFile { batches: self.batches.clone(), file }))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        OsDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        OsDisk.remove(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        OsDisk.list(dir)
    }
    fn dirs(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        OsDisk.dirs(dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        OsDisk.remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        OsDisk.sync_dir(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        OsDisk.create_dir_all(dir)
    }
    fn try_lock(&self, path: &Path) -> Result<Box<dyn Lock>, DiskError> {
        OsDisk.try_lock(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64, DiskError> {
        OsDisk.free_bytes(dir)
    }
}

impl File for WatchedFile {
    fn path(&self) -> &Path {
        self.file.path()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.batches.written.store(buf.len() as u64, Ordering::Relaxed);
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> Result<(), DiskError> {
        let written = self.batches.written.swap(0, Ordering::Relaxed);
        if written >= FRAME_BYTES && self.batches.on.load(Ordering::Relaxed) {
            self.batches.bytes.lock().map_err(|_| self.fail())?.push(written);
        }
        self.file.sync_data()
    }
    fn set_len(&self, bytes: u64) -> Result<(), DiskError> {
        self.file.set_len(bytes)
    }
    fn zero_fill(&self, from: u64, to: u64) -> Result<(), DiskError> {
        self.file.zero_fill(from, to)
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
}

impl WatchedFile {
    fn fail(&self) -> DiskError {
        DiskError::new(Call::Sync, self.path(), std::io::ErrorKind::Other.into())
    }
}
