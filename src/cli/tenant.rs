//! `semel tenant`: the end of one.

use clap::{Args, Subcommand};

use super::{
    args::{AdminConnection, Members, fresh_uuid, uuid},
    failure::Failure,
    keys::operate,
};
use crate::id::Uuid;

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Close a tenant for good and destroy its keys. There is no undo.
    #[command(after_help = "Example:
  semel tenant shred acme --confirm acme --reason 'contract ended'
  semel tenant status acme
  semel backup --out DIR --keyring FILE    (over the key ring that was exported before)

Every call for the tenant is refused from now on, and its name is never used again. Its root key, data keys and index key leave every
node; what is left of them in logs, snapshots and stores is erased by and by. Backups from before stay unreadable without a key ring
from before: export the ring over the old one.")]
    Shred(Shred),
    /// How far the end of a tenant has come, on each node.
    #[command(after_help = "Example: semel tenant status acme")]
    Status {
        /// The tenant.
        #[arg(value_name = "TENANT")]
        tenant: String,
        #[command(flatten)]
        connection: AdminConnection,
    },
}

#[derive(Debug, Args)]
pub(super) struct Shred {
    /// The tenant.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Its name again.
    #[arg(long, value_name = "TENANT")]
    confirm: String,
    /// Why: it stands in the cluster's audit chain.
    #[arg(long)]
    reason: String,
    /// The tenant was opened before the cluster was sealed, and older logs and backups can still be read.
    #[arg(long)]
    older_copies_stay: bool,
    /// The same request again. Default: a new one.
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    request_id: Option<Uuid>,
    #[command(flatten)]
    connection: AdminConnection,
}

impl TenantCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            TenantCommand::Shred(shred) => shred.run(),
            TenantCommand::Status { tenant, connection } => {
                let mut members = Members::default();
                members.text("tenant", &tenant);
                operate(&connection.connection(), "/v1/admin/tenant/status", &members.json())
            }
        }
    }
}

impl Shred {
    fn run(self) -> Result<(), Failure> {
        let Self { tenant, confirm, reason, older_copies_stay, request_id, connection } = self;
        let mut members = Members::default();
        members.text("tenant", &tenant);
        members.text("confirm", &confirm);
        members.text("reason", &reason);
        members.text("request_id", &request_id.unwrap_or_else(fresh_uuid).hyphenated());
        members.flag("older_copies_stay", older_copies_stay);
        operate(&connection.connection(), "/v1/admin/tenant/shred", &members.json())
    }
}
