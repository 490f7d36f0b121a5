//! How a node ends itself. A failed write, a damaged log or a stopped consensus core is final: going on could acknowledge
//! what is not durable, so the process ends with one clear line and its supervisor starts it again.

use std::{
    fmt::Display,
    sync::{Arc, RwLock},
};

/// The exit status of a node that ended itself.
pub const EXIT_STATUS: i32 = 70;

/// What a test puts in the place of the end.
pub type Hook = Arc<dyn Fn(&str) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Ends the process with `semel: fatal: {reason}` on stderr. Returns only where a test has [set a hook](set_hook): the
/// caller then leaves what it was doing as if it had failed.
pub fn end(reason: impl Display) {
    let reason = reason.to_string();
    let hook = HOOK.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    if let Some(hook) = hook {
        return hook(&reason);
    }
    eprintln!("semel: fatal: {}", reason.replace('\n', " "));
    std::process::exit(EXIT_STATUS);
}

/// Calls `hook` with the reason instead of ending the process, from now on and in all of it. For tests.
pub fn set_hook(hook: Hook) {
    *HOOK.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(hook);
}
