//! `semel audit`: what was done, row by row, as each chain proves it.

use std::io::{self, Write};

use clap::Subcommand;

use super::{
    args::{Connection, Members},
    call::Node,
    failure::Failure,
};
use crate::json::Json;

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Print a chain as JSON lines, its head last.
    #[command(after_help = "Examples:
  semel audit export --tenant acme > acme.audit
  semel audit export --tenant acme --from 1200
  semel verify audit acme.audit

Each line is a row; `row` holds the stored bytes, which `hash` is the SHA-256 of and the next row's `previous` repeats. The last line
is the head: keep it elsewhere, and `semel verify audit FILE --head HASH` shows whether rows behind it were ever cut away. Without a
tenant, a token with `cluster` exports the cluster's own chain.")]
    Export {
        /// Whose chain. Default: the token's own tenant; with `cluster`, the cluster's.
        #[arg(long, env = "SEMEL_TENANT")]
        tenant: Option<String>,
        /// The first row.
        #[arg(long = "from", value_name = "SEQ", default_value_t = 1)]
        from_seq: u64,
        #[command(flatten)]
        connection: Connection,
    },
}

impl AuditCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        let AuditCommand::Export { tenant, mut from_seq, connection } = self;
        let node = Node::of(&connection)?;
        let mut out = io::stdout().lock();
        loop {
            let mut members = Members::default();
            members.opt_text("tenant", tenant.as_deref());
            members.text("from_seq", &from_seq.to_string());
            members.number("page_size", crate::limits::PAGE_SIZE_MAX);
            let page = node.post("/v1/audit", &members.json(), 0)?.json;
            if let Some(Json::Array(rows)) = page.member("events") {
                for row in rows {
                    writeln!(out, "{}", row.to_text()).map_err(anyhow::Error::new)?;
                }
            }
            let next = page.member("next_seq").and_then(Json::as_str).and_then(|text| text.parse().ok());
            match next {
                Some(next) => from_seq = next,
                None => {
                    let head = page.member("head").cloned().unwrap_or(Json::Null);
                    writeln!(out, "{}", Json::object([("head", head)]).to_text()).map_err(anyhow::Error::new)?;
                    return Ok(());
                }
            }
        }
    }
}
