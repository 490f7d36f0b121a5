//! The parent of a `semel dev` cluster: starts the nodes, tells what becomes of them, one line an event, and ends them all.

use std::{io, path::Path, time::Duration};

use anyhow::Context;
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    child::{Child, Ended, words},
    layout::{Layout, Node},
    watching::{self, Seen, Way},
};
use crate::{
    cli::failure::Failure,
    disk::{Disk, Lock, OsDisk},
    limits,
};

/// A node's place: whether it runs, and when it is started again.
struct Place {
    node: Node,
    child: Option<Child>,
    started_at: Instant,
    start_at: Option<Instant>,
    pause: Duration,
}

struct Parent<'a> {
    layout: Layout,
    places: Vec<Place>,
    arguments: &'a dyn Fn(u64) -> Vec<String>,
    respawn: bool,
    ended: mpsc::Sender<Ended>,
    is_formed: bool,
}

/// Runs these nodes until a signal ends all of them. `way`: how they are spoken to.
pub(super) fn run(
    layout: Layout,
    nodes: Vec<Node>,
    arguments: impl Fn(u64) -> Vec<String>,
    respawn: bool,
    way: Way,
) -> Result<(), Failure> {
    // On this thread alone: children end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    std::fs::create_dir_all(layout.dir()).with_context(|| layout.dir().display().to_string())?;
    let _lock = lock(layout.dir())?;
    layout.change(|list| {
        *list = nodes.clone();
    })?;
    let place = |node| {
        let (started_at, start_at) = (Instant::now(), Some(Instant::now()));
        Place { node, child: None, started_at, start_at, pause: Duration::from_millis(limits::DEV_RESPAWN_MS) }
    };
    runtime.block_on(async {
        let (ended, ends) = mpsc::channel(nodes.len());
        let places = nodes.clone().into_iter().map(place).collect();
        let mut parent = Parent { layout, places, arguments: &arguments, respawn, ended, is_formed: false };
        parent.watch_over(nodes, ends, way).await
    })
}

/// Takes the directory, as a node takes its own: one that was killed may have it for a moment.
fn lock(dir: &Path) -> Result<Box<dyn Lock>, Failure> {
    let mut tries = limits::DIRECTORY_LOCK_TRIES;
    loop {
        tries -= 1;
        match OsDisk.try_lock(&dir.join("lock")) {
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(limits::DIRECTORY_LOCK_PAUSE_MS));
            }
            locked => return locked.map_err(|error| in_use(dir, error)),
        }
    }
}

fn in_use(dir: &Path, error: crate::disk::DiskError) -> Failure {
    if error.kind() == io::ErrorKind::WouldBlock {
        let dir = dir.display();
        return Failure::Failed(anyhow::anyhow!("the data directory {dir} is in use by another process"));
    }
    Failure::Failed(anyhow::Error::new(error).context(dir.display().to_string()))
}

impl Parent<'_> {
    async fn watch_over(&mut self, nodes: Vec<Node>, mut ends: mpsc::Receiver<Ended>, way: Way) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let mut hang_up = signal(SignalKind::hangup()).context("SIGHUP")?;
        println!("{} nodes in {}; Ctrl-C ends all", nodes.len(), self.layout.dir().display());
        self.start_due();
        let mut seen = watching::start(nodes, way);
        let outcome = loop {
            let next_start = self.places.iter().filter_map(|place| place.start_at).min();
            let due = sleep_until(next_start.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600)));
            tokio::select! {
                _ = terminate.recv() => break Ok(()),
                _ = interrupt.recv() => break Ok(()),
                _ = hang_up.recv() => break Ok(()),
                Some(ended) = ends.recv() => {
                    self.ended(&ended);
                    if !self.is_formed && !self.respawn {
                        let text = format!("node {} ended before there was a cluster; the others are ended too", ended.id);
                        break Err(Failure::Failed(anyhow::anyhow!(text)));
                    }
                }
                Some(event) = seen.recv() => {
                    self.is_formed |= matches!(event, Seen::Formed { .. });
                    println!("{event}");
                }
                () = due => self.start_due(),
            }
        };
        println!("ending all nodes");
        self.end_all(&mut ends).await;
        outcome
    }

    /// Starts every node whose time has come.
    fn start_due(&mut self) {
        let now = Instant::now();
        for place in &mut self.places {
            if place.start_at.is_none_or(|at| at > now) {
                continue;
            }
            place.start_at = None;
            let id = place.node.id;
            match Child::start(id, &(self.arguments)(id), self.ended.clone()) {
                Ok(child) => {
                    println!("node {id} started: pid {}, clients at {}", child.pid, place.node.listen);
                    note(&self.layout, id, Some(child.pid));
                    (place.child, place.started_at) = (Some(child), now);
                }
                Err(error) => {
                    println!("node {id} can't be started: {error}");
                    self.ended.try_send(Ended { id, status: Err(error) }).ok();
                }
            }
        }
    }

    fn ended(&mut self, ended: &Ended) {
        let Some(place) = self.places.iter_mut().find(|place| place.node.id == ended.id) else { return };
        place.child = None;
        note(&self.layout, ended.id, None);
        let shortest = Duration::from_millis(limits::DEV_RESPAWN_MS);
        if self.respawn {
            let longest = Duration::from_millis(limits::DEV_RESPAWN_MS_MAX);
            if place.started_at.elapsed() > longest {
                place.pause = shortest;
            }
            place.start_at = Some(Instant::now() + place.pause);
            let ms = place.pause.as_millis();
            println!("node {} ended: {}; started again in {ms} ms", ended.id, words(&ended.status));
            place.pause = (place.pause * 2).min(longest);
        } else {
            let dir = self.layout.dir().display();
            let (id, how) = (ended.id, words(&ended.status));
            println!("node {id} ended: {how}; `semel dev --node {id} --data-dir {dir}` starts it again");
        }
    }

    /// Tells every node to end, and ends those that don't.
    async fn end_all(&mut self, ends: &mut mpsc::Receiver<Ended>) {
        let running = |places: &[Place]| places.iter().filter(|place| place.child.is_some()).count();
        let tell = |places: &[Place], with| {
            places.iter().filter_map(|place| place.child.as_ref()).for_each(|child| child.signal(with));
        };
        for (with, within_ms) in [(Signal::TERM, limits::DEV_STOP_MS), (Signal::KILL, limits::DEV_KILL_MS)] {
            // One that is stopped hears nothing before it goes on.
            tell(&self.places, with);
            tell(&self.places, Signal::CONT);
            let until = Instant::now() + Duration::from_millis(within_ms);
            while running(&self.places) > 0 {
                let Ok(Some(ended)) = timeout_at(until, ends.recv()).await else { break };
                if let Some(place) = self.places.iter_mut().find(|place| place.node.id == ended.id) {
                    place.child = None;
                }
                note(&self.layout, ended.id, None);
                println!("node {} ended: {}", ended.id, words(&ended.status));
            }
        }
    }
}

fn note(layout: &Layout, id: u64, pid: Option<u32>) {
    if let Err(error) = layout.set_pid(id, pid) {
        eprintln!("semel: nodes.json could not be changed: {error:?}");
    }
}
