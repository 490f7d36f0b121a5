//! `semel verify`: reads what was kept, to its last byte.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;

use crate::backup::{self, manifest::MANIFEST};

use super::{backup::print_backup, failure::Failure, progress::Progress};

#[derive(Debug, Args)]
#[command(after_help = "Example: semel verify backups/monday

Exit status 0: every byte is as it was written. 1: the first that isn't is named, with its file, offset and reason.")]
pub(super) struct Verify {
    /// A backup.
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.path.join(MANIFEST).symlink_metadata().is_err() {
            return Err(anyhow!("{} holds no {MANIFEST}: it is not a backup", self.path.display()).into());
        }
        let mut progress = Progress::new("checked", 0);
        let verified = backup::verify(&self.path, &mut |bytes| progress.at(bytes))?;
        progress.end();
        print_backup(&self.path, &verified.manifest);
        Ok(())
    }
}
