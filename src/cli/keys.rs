//! `semel keys`: the keys that everything is sealed under.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    args::{AdminConnection, Connection, Members},
    call::Node,
    failure::Failure,
    records::print,
    standing::Standing,
};
use crate::{
    json::Json,
    limits,
    seal::key_file::{KeyFileError, generate},
};

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Draw a key-encryption key, into a new key file or one that is there.
    Generate(Generate),
    /// Which keys there are, on which nodes, and what still hangs on older ones.
    #[command(after_help = "Example: semel keys status --json

A key whose state is `unused` may leave the key file, once no exported key ring needs it. How far resealing has come, the leader
knows: it is asked where it can be reached.")]
    Status {
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Have another key wrap root keys, or new data keys seal what comes.
    #[command(after_help = "Examples:
  semel keys generate --out seal.keys      (then: the file to every node, and SIGHUP)
  semel keys rotate
  semel keys rotate --to 7
  semel keys rotate --data --tenant acme   (what is sealed by older data keys is sealed anew by and by)

Every voter and learner must have the key. It goes on by itself, whoever leads: `semel keys status` shows how far it is.")]
    Rotate {
        /// The key that wraps root keys from now on. Default: the one with the highest id.
        #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "data")]
        to: Option<u32>,
        /// New data keys instead.
        #[arg(long)]
        data: bool,
        /// Of this tenant alone. Default: of all, and of the cluster itself.
        #[arg(long, value_name = "TENANT", requires = "data")]
        tenant: Option<String>,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Seal a cluster that was formed without keys.
    #[command(after_help = "Example: semel keys enable      (after [seal] stands in the configuration of every node)

What comes from now on is sealed, and what is there by and by. Older logs, snapshots and backups stay as they are.")]
    Enable {
        #[command(flatten)]
        connection: AdminConnection,
    },
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
            KeysCommand::Status { connection } => status(&connection.connection()),
            KeysCommand::Rotate { to, data, tenant, connection } => {
                let mut members = Members::default();
                members.opt_number("to", to);
                members.flag("data", data);
                members.opt_text("tenant", tenant.as_deref());
                operate(&connection.connection(), "/v1/admin/keys/rotate", &members.json())
            }
            KeysCommand::Enable { connection } => {
                operate(&connection.connection(), "/v1/admin/keys/enable", &Members::default().json())
            }
        }
    }
}

/// Asks an operators' port, and prints what came of it.
pub(super) fn operate(connection: &Connection, path: &str, request: &Json) -> Result<(), Failure> {
    let connection = &Standing::first_of(connection);
    let answer = Node::of(connection)?.post(path, request, limits::CLUSTER_CHANGE_MS)?;
    print(connection, &answer);
    Ok(())
}

/// Asks the leader, where it is known and can be reached.
fn status(connection: &Connection) -> Result<(), Failure> {
    let request = Members::default().json();
    let path = "/v1/admin/keys/status";
    let connection = &Standing::first_of(connection);
    if let Ok(Some(endpoint)) = Standing::leader_endpoint(connection) {
        let leader = Connection { endpoint, timeout: 0, ..connection.clone() };
        if let Ok(answer) = Node::of(&leader)?.post(path, &request, 0) {
            print(connection, &answer);
            return Ok(());
        }
    }
    operate(connection, path, &request)
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
