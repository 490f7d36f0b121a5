//! A node's process, as its parent holds it: started, watched, told to end.

use std::{
    io::{self, BufRead, BufReader, Read},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Command, ExitStatus, Stdio},
    thread,
};

use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use tokio::sync::mpsc;

use crate::{cli::failure::Failure, limits};

/// A process that ended.
pub(super) struct Ended {
    pub id: u64,
    pub status: io::Result<ExitStatus>,
}

/// A process that runs.
pub(super) struct Child {
    pub pid: u32,
    // Stands for this very process: a number could be another's by now.
    process: OwnedFd,
}

impl Child {
    /// Starts this executable with these arguments, and has its end told. To be called from the thread that lives as
    /// long as the parent does: a child ends with the thread that started it.
    pub fn start(id: u64, arguments: &[String], ended: mpsc::Sender<Ended>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C is for the parent, which ends its children in order.
        command.process_group(0);
        // What these say of the parent is given as arguments where it is for the children too.
        for name in
            ["SEMEL_LISTEN", "SEMEL_PEER_LISTEN", "SEMEL_ADMIN_LISTEN", "SEMEL_ADVERTISE", "SEMEL_PEER_ADVERTISE"]
        {
            command.env_remove(name);
        }
        let mut process = command.spawn()?;
        let pid = process.id();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number above 0");
        let handle = pidfd_open(raw, PidfdFlags::empty())?;
        let said = process.stderr.take().expect("it was asked for");
        thread::Builder::new().name(format!("node-{id}")).spawn(move || {
            repeat(id, said);
            let status = process.wait();
            // Nobody to tell: the parent is ending.
            let _ = ended.blocking_send(Ended { id, status });
        })?;
        Ok(Self { pid, process: handle })
    }

    /// Tells it to end. One that has ended already needs no telling.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.process, signal);
    }
}

/// Repeats what a node says, line by line, with its number in front.
fn repeat(id: u64, said: impl Read) {
    let mut said = BufReader::new(said);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut said).take(limits::DEV_LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => eprintln!("node {id}: {}", String::from_utf8_lossy(&line).trim_end()),
        }
    }
}

/// Has this process end with its parent, however that ends.
pub(super) fn end_with_parent(parent: u32) -> Result<(), Failure> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| Failure::Failed(anyhow::Error::new(error).context("a parent's end can't be waited for")))?;
    // It may have ended before.
    if getppid().is_none_or(|found| found.as_raw_nonzero().get().unsigned_abs() != parent) {
        return Err(Failure::Failed(anyhow::anyhow!("the parent has ended")));
    }
    Ok(())
}

/// How a process ended, in words.
pub(super) fn words(status: &io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}
