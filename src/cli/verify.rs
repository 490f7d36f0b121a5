//! `semel verify`: reads what was kept, to its last byte.

mod data_dir;

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;

use crate::backup::{self, manifest::MANIFEST};

use super::{backup::print_backup, failure::Failure, progress::Progress};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel verify backups/monday
  semel verify ./semel-dev

Of a node that is stopped, the log and the snapshots are read; the store is an index that a node rebuilds from these.
Nothing is changed. Exit status 0: every byte is as it was written. 1: what isn't is named, with file, offset and what to do.")]
pub(super) struct Verify {
    /// A backup, or the data directory of a stopped node.
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Print what a data directory holds as JSON; what a backup holds always is.
    #[arg(long)]
    json: bool,
}

/// What a directory is.
enum What {
    Backup,
    DataDir,
    Neither,
}

impl What {
    fn of(path: &Path) -> Self {
        if path.join(MANIFEST).symlink_metadata().is_ok() {
            Self::Backup
        } else if path.join("wal").is_dir() {
            Self::DataDir
        } else {
            Self::Neither
        }
    }
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        match What::of(&self.path) {
            What::Backup => self.backup(),
            What::DataDir => data_dir::verify(&self.path, self.json),
            What::Neither => {
                let path = self.path.display();
                Err(anyhow!("{path} holds no {MANIFEST} and no wal/: it is not a backup, and not a node's directory")
                    .into())
            }
        }
    }

    fn backup(&self) -> Result<(), Failure> {
        let mut progress = Progress::new("checked", 0);
        let verified = backup::verify(&self.path, &mut |bytes| progress.at(bytes))?;
        progress.end();
        print_backup(&self.path, &verified.manifest);
        Ok(())
    }
}
