//! Servers as processes: started, measured with all that they have started themselves, and ended.

use std::{
    collections::HashMap,
    fs::{self, File},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::measure::processor_s;

const STOPS_WITHIN: Duration = Duration::from_secs(15);

/// A port of loopback that nobody has at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    listener.local_addr().expect("it is bound").port()
}

/// Waits until somebody listens at this port.
pub async fn listening(port: u16) {
    for _ in 0..300 {
        if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nobody listens at port {port}");
}

/// A server's process. It ends when this is dropped.
pub struct Process {
    child: Child,
    stop: &'static str,
}

impl Process {
    /// Starts it; what it says goes to `log`. `stop` is the signal that asks it to end.
    pub fn start(command: &mut Command, log: &Path, stop: &'static str) -> Self {
        let log = File::create(log).expect("the directory can be written");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, stop }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = Command::new("kill").args([self.stop, &self.child.id().to_string()]).status();
        let until = Instant::now() + STOPS_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What servers have taken since they were started.
#[derive(Clone, Copy, Default)]
pub struct Taken {
    pub processor_s: f64,
    pub written_bytes: f64,
}

/// These processes and all that they have started.
fn with_children(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").expect("Linux has /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut all = roots.to_vec();
    let mut at = 0;
    while at < all.len() {
        all.extend(children.remove(&all[at]).unwrap_or_default());
        at += 1;
    }
    all
}

fn named(path: &str, name: &str) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0.0)
}

pub fn taken(roots: &[u32]) -> Taken {
    let mut taken = Taken::default();
    for pid in with_children(roots) {
        let (own, system) = processor_s(&pid.to_string());
        // A process that has just ended counts no more.
        taken.processor_s += if own.is_nan() { 0.0 } else { own + system };
        taken.written_bytes += named(&format!("/proc/{pid}/io"), "write_bytes:");
    }
    taken
}

/// Resident memory, MiB: what several processes share is counted once.
pub fn resident_mib(roots: &[u32]) -> f64 {
    let of = |pid: &u32| named(&format!("/proc/{pid}/smaps_rollup"), "Pss:") / 1024.0;
    with_children(roots).iter().map(of).sum()
}
