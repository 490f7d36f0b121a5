//! `semel verify`: reads what was kept, to its last byte.

mod audit;
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
  semel verify audit acme.audit --head 9f86d081884c7d65…
  semel verify audit acme.audit --keys seal.keys --keyring semel.ring      (what is sealed too)

Of a node that is stopped, the log and the snapshots are read; the store is an index that a node rebuilds from these.
Nothing is changed. Exit status 0: every byte is as it was written. 1: what isn't is named, with file, offset and what to do.")]
pub(super) struct Verify {
    /// A backup, or the data directory of a stopped node; or `audit` and the file of an exported chain.
    #[arg(value_name = "DIR | audit FILE", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// Of an exported chain: the hash of a row that must be in it, kept elsewhere from an earlier export's head.
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
    /// Of an exported chain: the key file; with it, what is sealed is opened and compared with what is shown.
    #[arg(long, value_name = "FILE", requires = "keyring")]
    keys: Option<PathBuf>,
    /// The key ring that was exported with a backup.
    #[arg(long, value_name = "FILE", requires = "keys")]
    keyring: Option<PathBuf>,
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
        let path = match &self.paths[..] {
            [what, file] if what.as_os_str() == "audit" => {
                let held = self.keys.as_deref().zip(self.keyring.as_deref());
                let held = held.map(|(keys, ring)| audit::Held::read(keys, ring)).transpose()?;
                return audit::verify(file, self.head.as_deref(), held.as_ref());
            }
            [path] if self.head.is_none() && self.keys.is_none() => path,
            [_] => {
                return Err(Failure::Usage(
                    "--head, --keys and --keyring are for `semel verify audit FILE`".to_owned(),
                ));
            }
            _ => return Err(Failure::Usage("verify one directory, or `audit FILE`".to_owned())),
        };
        match What::of(path) {
            What::Backup => backup(path),
            What::DataDir => data_dir::verify(path, self.json),
            What::Neither => {
                let path = path.display();
                Err(anyhow!("{path} holds no {MANIFEST} and no wal/: it is not a backup, and not a node's directory")
                    .into())
            }
        }
    }
}

fn backup(path: &Path) -> Result<(), Failure> {
    let mut progress = Progress::new("checked", 0);
    let verified = backup::verify(path, &mut |bytes| progress.at(bytes))?;
    progress.end();
    print_backup(path, &verified.manifest);
    Ok(())
}
