//! Every number that bounds something, and how they relate.

// ---- The store's engines ----

/// Rows an engine without read views of its own hands over under one lock.
pub const STORE_SCAN_PAGE_ROWS: usize = 256;
