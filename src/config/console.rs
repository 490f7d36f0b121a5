//! The table of the console.

use super::{ConfigError, Source, settings::ConsoleSettings};
use crate::{console::Options, limits};

impl Source {
    /// How the console behaves.
    pub(super) fn console(&self, console: &ConsoleSettings) -> Result<Options, ConfigError> {
        let is_host = |host: &String| {
            !host.is_empty()
                && host.len() <= limits::ADVERTISED_BYTES_MAX
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
        };
        if console.hosts.len() > limits::CONSOLE_HOSTS_MAX || !console.hosts.iter().all(is_host) {
            return Err(self.value("console.hosts", "must be at most 64 names of hosts, without port"));
        }
        Ok(Options { hosts: console.hosts.clone(), two_person: console.two_person })
    }
}
