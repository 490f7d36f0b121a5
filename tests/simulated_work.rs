//! Work without threads, as the simulation has it. Alone in its process: what it switches is the process's.

use std::{path::Path, sync::mpsc, thread, time::Duration};

use semel::work::{self, Worker};

#[tokio::test]
async fn simulated_work_runs_in_tasks_and_waits_for_its_disk() {
    const SLOW: Duration = Duration::from_millis(50);
    work::simulate(Box::new(|dir| if dir == Path::new("/slow") { SLOW } else { Duration::ZERO }));
    let here = thread::current().id();
    let (told, hear) = mpsc::channel();
    let worker = Worker::begin("never", || panic!("no thread is begun"), async move {
        told.send(thread::current().id()).expect("it is heard");
    });
    assert!(worker.expect("a task needs nothing").ended().await);
    assert_eq!(hear.recv().expect("it told"), here);
    assert_eq!(work::run(|| thread::current().id()).await.expect("it doesn't panic"), here);
    let began = tokio::time::Instant::now();
    work::pause(Path::new("/slow")).await;
    assert!(began.elapsed() >= SLOW);
}
