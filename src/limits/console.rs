//! Bounds of the console.

/// Bytes of a form: an outcome as base64, spelled for a form.
pub const CONSOLE_FORM_BYTES_MAX: usize = 2 << 20;
/// People signed in at a node.
pub const CONSOLE_SESSIONS_MAX: usize = 1000;
/// How long a session lasts without a request, s.
pub const CONSOLE_IDLE_S: u64 = 30 * 60;
/// How long it lasts at most, s.
pub const CONSOLE_SESSION_S_MAX: u64 = 8 * 3600;
/// Rows of a page.
pub const CONSOLE_PAGE_ROWS: u32 = 50;
/// Bytes of a content that a page shows.
pub const CONSOLE_CONTENT_BYTES_MAX: usize = 64 << 10;
/// Verdicts that wait for a second person at a node, and how long one does, s.
pub const CONSOLE_PENDING_MAX: usize = 1000;
/// How long a verdict waits for a second person, s.
pub const CONSOLE_PENDING_S: u64 = 3600;
/// How long whoever looks into a record keeps others from settling it, ms.
pub const CONSOLE_INVESTIGATION_MS: u32 = 600_000;
/// The longest time after which a record is to be looked at again, ms: 30 days.
pub const CONSOLE_ASK_AGAIN_MS_MAX: u64 = 30 * 86_400_000;
/// Records of which a node remembers that claims were turned away.
pub const CONSOLE_BLOCKED_MAX: usize = 10_000;
/// Conflicts that a node remembers.
pub const CONSOLE_CONFLICTS_MAX: usize = 1000;
/// Between two samples of the metrics, s.
pub const CONSOLE_SAMPLE_S: u64 = 5;
/// Samples that are kept: ten minutes.
pub const CONSOLE_SAMPLES_MAX: usize = 120;
/// Names under which the console is reached.
pub const CONSOLE_HOSTS_MAX: usize = 64;
