//! `semel keys`: the keys that everything is sealed under.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::failure::Failure;
use crate::seal::key_file::{KeyFileError, generate};

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Draw a key-encryption key, into a new key file or one that is there.
    Generate(Generate),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel keys generate --out seal.keys
  semel keys generate --out seal.keys --id 7

All nodes of a cluster have the same keys: copy the file to each, name it in [seal] key_file, and keep a copy where the disks
are not. A cluster is formed under the key with the highest id. Whoever loses the file has lost all that was sealed.")]
pub(super) struct Generate {
    /// The key file: it is made, or gets one more key.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The number of the key; the next one by default. It must never have been used.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    id: Option<u32>,
}

impl KeysCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            KeysCommand::Generate(command) => command.run(),
        }
    }
}

impl Generate {
    fn run(self) -> Result<(), Failure> {
        match generate(&self.out, self.id) {
            Ok(id) => {
                println!("key {id} is in {}", self.out.display());
                Ok(())
            }
            Err(error @ (KeyFileError::Taken { .. } | KeyFileError::Exposed { .. })) => {
                Err(Failure::Usage(error.to_string()))
            }
            Err(error) => Err(Failure::Failed(error.into())),
        }
    }
}
