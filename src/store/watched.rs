//! An engine under watch: its first error or panic condemns its files.
//!
//! An error is final (E4) and the node stops. But files whose damage shows only when a block of them is read would open
//! again without complaint, and the node would stop at the same read after every start. So the error leaves a mark in the
//! engine's directory, and the next start deletes what is marked and builds it again.

use std::{
    any::Any,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::engine::{Batch, Engine, EngineError, EngineSnapshot, KeyRange, LoadRows, Row, Scan};

const MARK: &str = "condemned";

/// Whether an error has condemned the engine at `path`.
pub(super) fn is_condemned(path: &Path) -> bool {
    path.join(MARK).exists()
}

/// Runs `call`, and turns a panic of the engine into the damage that it is.
pub(super) fn caught<T>(engine: &'static str, call: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    // Whatever state the panic has left behind is given up: the files are deleted, and the node ends.
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(EngineError::Damaged { engine, reason: panic_message(panic.as_ref()) }))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// Where the mark goes, and whose it is.
struct Watch {
    name: &'static str,
    path: PathBuf,
}

impl Watch {
    fn judge<T>(&self, call: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        caught(self.name, call).inspect_err(|error| match error {
            // What the caller did, not the engine.
            EngineError::NotEmpty | EngineError::OutOfOrder | EngineError::Source(_) => {}
            _ => self.condemn(error),
        })
    }

    fn condemn(&self, error: &EngineError) {
        tracing::error!(path = %self.path.display(), %error, "the store is given up and will be built again");
        // Best effort: on a disk that takes no more, the next start meets the error again and tries again.
        if let Err(error) = fs::write(self.path.join(MARK), error.to_string()) {
            tracing::error!(path = %self.path.display(), %error, "the store could not be marked");
        }
    }
}

/// An engine with files, under watch.
pub(super) struct Watched<E> {
    engine: E,
    watch: Arc<Watch>,
}

impl<E: Engine> Watched<E> {
    pub(super) fn new(name: &'static str, path: &Path, engine: E) -> Self {
        Self { engine, watch: Arc::new(Watch { name, path: path.to_owned() }) }
    }
}

impl<E: Engine> Engine for Watched<E> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.watch.judge(|| self.engine.get(key))
    }

    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError> {
        let scan = self.watch.judge(|| self.engine.scan(range))?;
        Ok(Box::new(WatchedScan { scan: Some(scan), watch: Arc::clone(&self.watch) }))
    }

    fn write(&self, batch: Batch) -> Result<(), EngineError> {
        self.watch.judge(|| self.engine.write(batch))
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
        let view = self.watch.judge(|| self.engine.snapshot())?;
        Ok(Box::new(WatchedView { view, watch: Arc::clone(&self.watch) }))
    }

    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError> {
        self.watch.judge(|| self.engine.load_sorted(rows, finish))
    }

    fn disk_bytes(&self) -> Result<u64, EngineError> {
        // What it takes says nothing of what it holds: no reason to give it up.
        caught(self.watch.name, || self.engine.disk_bytes())
    }

    fn room_for(&self, bytes: u64) -> u64 {
        self.engine.room_for(bytes)
    }

    fn settle(&self) {
        self.engine.settle();
    }

    fn retire(&self) {
        self.engine.retire();
    }

    fn put_aside(&self, to: &Path) {
        self.engine.put_aside(to);
    }
}

struct WatchedView {
    view: Box<dyn EngineSnapshot>,
    watch: Arc<Watch>,
}

impl EngineSnapshot for WatchedView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.watch.judge(|| self.view.get(key))
    }

    fn into_scan(self: Box<Self>) -> Result<Scan<'static>, EngineError> {
        let Self { view, watch } = *self;
        let scan = watch.judge(|| view.into_scan())?;
        Ok(Box::new(WatchedScan { scan: Some(scan), watch }))
    }
}

struct WatchedScan<'a> {
    /// Gone after an error: it is the last item, and nobody asks what a panic has left any further.
    scan: Option<Scan<'a>>,
    watch: Arc<Watch>,
}

impl Iterator for WatchedScan<'_> {
    type Item = Result<Row, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let scan = self.scan.as_mut()?;
        let row = self.watch.judge(|| scan.next().transpose());
        if row.is_err() {
            self.scan = None;
        }
        row.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that fails in the way its key says.
    struct Failing;

    impl Engine for Failing {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
            match key {
                b"panic" => panic!("a page is gone"),
                b"error" => Err(EngineError::Stopped { engine: "failing" }),
                _ => Ok(None),
            }
        }

        fn scan(&self, _: &KeyRange) -> Result<Scan<'_>, EngineError> {
            let row = (Bytes::from_static(b"a"), Bytes::new());
            Ok(Box::new(std::iter::once(Ok(row)).chain(std::iter::from_fn(|| panic!("a page is gone")))))
        }

        fn write(&self, _: Batch) -> Result<(), EngineError> {
            Err(EngineError::Stopped { engine: "failing" })
        }

        fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
            panic!("no view")
        }

        fn load_sorted(&self, _: LoadRows<'_>, _: Batch) -> Result<u64, EngineError> {
            Err(EngineError::NotEmpty)
        }

        fn disk_bytes(&self) -> Result<u64, EngineError> {
            Err(EngineError::Stopped { engine: "failing" })
        }

        fn retire(&self) {}

        fn put_aside(&self, _: &Path) {}
    }

    #[test]
    fn errors_and_panics_condemn_and_misuse_does_not() {
        type Call = fn(&Watched<Failing>) -> Result<(), EngineError>;
        let condemning: [Call; 5] = [
            |engine| engine.get(b"panic").map(|_| ()),
            |engine| engine.get(b"error").map(|_| ()),
            |engine| engine.write(Batch::new()),
            |engine| engine.snapshot().map(|_| ()),
            |engine| {
                let mut scan = engine.scan(&KeyRange::all())?;
                assert!(scan.next().is_some_and(|row| row.is_ok()));
                let error = scan.next().expect("the panic is an item").expect_err("an error");
                assert!(scan.next().is_none(), "and the last one");
                Err(error)
            },
        ];
        let harmless: [Call; 3] = [
            |engine| engine.get(b"absent").map(|_| ()),
            |engine| engine.load_sorted(&mut std::iter::empty(), Batch::new()).map(|_| ()).or(Ok(())),
            |engine| engine.disk_bytes().map(|_| ()).or(Ok(())),
        ];
        for (calls, condemns) in [(&condemning[..], true), (&harmless[..], false)] {
            for call in calls {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let engine = Watched::new("failing", dir.path(), Failing);
                assert_eq!(call(&engine).is_err(), condemns);
                assert_eq!(is_condemned(dir.path()), condemns);
            }
        }
    }
}
