//! Prints a snapshot file for a person: `semel inspect snapshot PATH`.

use std::{fmt, io, path::Path};

use super::{SnapshotError, read::SnapshotRows};
use crate::disk::Disk;

/// Gives the line for a row from its key and its value, or `None` to leave it out.
pub type FormatRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Option<String>;

/// Writes the header, the rows and the totals of the file at `path` to `out`, a line each. The whole file is
/// read and checked, rows left out too, and what checks is printed before the error.
///
/// # Errors
/// The first thing in the file that does not check, or `out` takes no more.
pub fn inspect(disk: &dyn Disk, path: &Path, out: &mut dyn io::Write, row: FormatRow<'_>) -> Result<(), SnapshotError> {
    let mut rows = SnapshotRows::open(disk, path)?;
    let meta = rows.meta().clone();
    let mut line = |text: fmt::Arguments<'_>| writeln!(out, "{text}").map_err(|e| SnapshotError::Report(e.kind()));
    line(format_args!("format version   {}", super::format::VERSION))?;
    line(format_args!("lineage          {}", Hex(&meta.lineage)))?;
    line(format_args!("cluster          {}", Hex(&meta.cluster)))?;
    line(format_args!("log index        {}", meta.index))?;
    line(format_args!("log term         {}", meta.term))?;
    line(format_args!("position         {}", meta.position))?;
    line(format_args!("cluster time ms  {}", meta.cluster_time_ms))?;
    line(format_args!("log id           {}", Hex(&meta.log_id)))?;
    line(format_args!("membership       {}", Hex(&meta.membership)))?;
    for item in &mut rows {
        let (key, value) = item?;
        if let Some(text) = row(&key, &value) {
            line(format_args!("{text}"))?;
        }
    }
    let totals = rows.totals();
    line(format_args!("rows             {}", totals.rows))?;
    line(format_args!("chunks           {}", totals.chunks))?;
    line(format_args!("row bytes        {}", totals.row_bytes))?;
    line(format_args!("file bytes       {}", rows.bytes()))?;
    line(format_args!("crc32            {:08x}", totals.crc))?;
    line(format_args!("whole            yes"))
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
