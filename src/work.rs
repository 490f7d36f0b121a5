//! How what blocks on the disk is run. A process has one way: threads. The simulation, where one thread is all there is
//! and time stands still while anything runs, has tasks instead: [`simulate`], before the first node starts.

use std::{
    io,
    path::Path,
    sync::OnceLock,
    thread::{self, JoinHandle as Thread},
    time::Duration,
};

use tokio::task::{JoinError, JoinHandle as Task};

/// How long a log in this directory waits before its next write: a slow disk, or one that hangs.
pub type Delay = Box<dyn Fn(&Path) -> Duration + Send + Sync>;

static SIMULATED: OnceLock<Delay> = OnceLock::new();

/// From now on, and in all of this process, nothing runs on threads of its own. Must come before anything runs; a second
/// call changes nothing.
pub fn simulate(delay: Delay) {
    // Whoever was first has said the same.
    let _ = SIMULATED.set(delay);
}

/// Runs what blocks on the disk where that is allowed, whether or not what this returns is waited for.
pub fn start<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    match SIMULATED.get() {
        None => tokio::task::spawn_blocking(job),
        Some(_) => tokio::spawn(async move {
            tokio::task::yield_now().await;
            job()
        }),
    }
}

/// Runs what blocks on the disk where that is allowed, and returns what it returns.
///
/// # Errors
/// Where it panicked, or the runtime ends.
pub async fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    start(job).await
}

/// Waits as long as the disk under this directory makes its log wait. Only a simulated one does.
pub async fn pause(dir: &Path) {
    if let Some(delay) = SIMULATED.get() {
        let pause = delay(dir);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// What does one thing for as long as its owner lives: a thread, or in the simulation a task.
#[derive(Debug)]
pub enum Worker {
    /// A thread.
    Thread(Thread<()>),
    /// A task.
    Task(Task<()>),
}

impl Worker {
    /// Begins one: `body` on a thread of this name, or `task`, which does the same.
    ///
    /// # Errors
    /// Where the operating system has no thread to give.
    pub fn begin(
        name: &str,
        body: impl FnOnce() + Send + 'static,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        match SIMULATED.get() {
            None => thread::Builder::new().name(name.to_owned()).spawn(body).map(Self::Thread),
            Some(_) => Ok(Self::Task(tokio::spawn(task))),
        }
    }

    /// Waits until it has ended; false where it panicked. A task is not waited for: the thread that would wait is the
    /// one that runs it.
    pub fn join(self) -> bool {
        match self {
            Self::Thread(thread) => thread.join().is_ok(),
            Self::Task(_) => true,
        }
    }

    /// Waits until it has ended; false where it panicked.
    pub async fn ended(self) -> bool {
        match self {
            Self::Thread(thread) => run(move || thread.join().is_ok()).await.unwrap_or(false),
            Self::Task(task) => task.await.is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // In a simulation: tests/simulated_work.rs, which has a process to itself.
    #[tokio::test]
    async fn work_runs_on_threads() {
        let name = || thread::current().name().map(str::to_owned);
        let (told, hear) = std::sync::mpsc::channel();
        let worker = Worker::begin("counts", move || told.send(name()).expect("it is heard"), async {});
        assert!(worker.expect("there is a thread to give").ended().await);
        assert_eq!(hear.recv().expect("it told").as_deref(), Some("counts"));
        assert_eq!(run(|| 7).await.expect("it doesn't panic"), 7);
        assert!(run(|| panic!("on purpose")).await.is_err());
        let panics = Worker::begin("panics", || panic!("on purpose"), async {});
        assert!(!panics.expect("there is a thread to give").ended().await);
    }
}
