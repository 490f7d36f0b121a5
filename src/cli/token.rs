//! Tokens: made, listed, ended.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{
    args::{Connection, Members, duration_s},
    call::Node,
    failure::Failure,
    records::{ask, print},
};
use crate::{auth::TokenText, json::Json};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token. It is shown once.
    #[command(after_help = "Examples:
  semel token create --tenant acme --permission claim --operation 'POST /v1/*' --out acme.token
  semel token create --tenant acme --permission reconcile --permission read_outcomes --ttl 30d --note 'night shift'

The token that asks (--token) must have `administer` for the tenant, or `cluster`.")]
    Create(Create),
    /// List tokens, without their secrets.
    #[command(after_help = "Example: semel token list --tenant acme")]
    List {
        /// The tenant. Default: the token's own; with `cluster`, all.
        #[arg(long, env = "SEMEL_TENANT")]
        tenant: Option<String>,
        /// Tokens a page.
        #[arg(long)]
        page_size: Option<u32>,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        connection: Connection,
    },
    /// End a token at once, on every node.
    #[command(after_help = "Example: semel token revoke gaytemzugu3doobz --reason 'left the company'")]
    Revoke {
        /// Its id: what stands between `semel_` and the dot.
        #[arg(value_name = "ID")]
        id: String,
        /// Why.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        connection: Connection,
    },
}

#[derive(Debug, Args)]
pub(super) struct Create {
    /// Whose records. Left out: the token's own tenant; with `--permission cluster`, none.
    #[arg(long, env = "SEMEL_TENANT")]
    tenant: Option<String>,
    /// Operations, as patterns: a * in the last place stands for any rest. Default: all. Can be repeated.
    #[arg(long = "operation", value_name = "PATTERN")]
    operations: Vec<String>,
    /// claim, reconcile, read_outcomes, administer; or cluster alone. Can be repeated.
    #[arg(long = "permission", value_name = "P", required = true)]
    permissions: Vec<String>,
    /// How long it is good, at most 366d. Default: 90d.
    #[arg(long, value_name = "DURATION", value_parser = duration_s)]
    ttl: Option<u32>,
    /// For people.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Writes the token to this new file instead of showing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

impl TokenCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            TokenCommand::Create(create) => create.run(),
            TokenCommand::List { tenant, page_size, cursor, connection } => {
                let mut members = Members::default();
                members.opt_text("tenant", tenant.as_deref());
                members.opt_number("page_size", page_size);
                members.opt_text("cursor", cursor.as_deref());
                ask(&connection, "/v1/token/list", &members.json())
            }
            TokenCommand::Revoke { id, reason, connection } => {
                let mut members = Members::default();
                members.text("token_id", &id);
                members.text("reason", &reason);
                ask(&connection, "/v1/token/revoke", &members.json())
            }
        }
    }
}

impl Create {
    fn run(self) -> Result<(), Failure> {
        // Drawn here, and written down before it is asked for: a lost answer loses no token, and asking again is harmless.
        let token = TokenText::draw();
        if let Some(out) = &self.out {
            keep(out, &token).with_context(|| out.display().to_string())?;
        }
        let mut members = Members::default();
        let list = |items: &[String]| Json::Array(items.iter().map(|item| item.as_str().into()).collect());
        members.opt_text("tenant", self.tenant.as_deref());
        match &self.operations[..] {
            [] if self.permissions == ["cluster"] => {}
            [] => members.value("operations", list(&["*".to_owned()])),
            patterns => members.value("operations", list(patterns)),
        }
        members.value("permissions", list(&self.permissions));
        members.opt_number("ttl_s", self.ttl);
        members.opt_text("note", self.note.as_deref());
        members.text("token", &token.reveal());
        let asked = Node::of(&self.connection).and_then(|node| node.post("/v1/token/create", &members.json(), 0));
        let mut answer = match (asked, &self.out) {
            (Ok(answer), _) => answer,
            (Err(failure), Some(out)) => {
                // A refusal made no token; of an answer that was lost, the file is what is left.
                if matches!(failure, Failure::Refused { .. } | Failure::Usage(_) | Failure::Unavailable { .. }) {
                    let _ = fs::remove_file(out);
                }
                return Err(failure);
            }
            (Err(failure), None) => return Err(failure),
        };
        if self.out.is_some() {
            answer.hide("token");
        }
        print(&self.connection, &answer);
        Ok(())
    }
}

/// Writes a token into a new file that its owner alone can read.
pub(super) fn keep(path: &Path, token: &TokenText) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{}\n", token.reveal()).as_bytes())?;
    file.sync_all()
}

/// The token of a file; a new one, written to it, where there is no such file.
pub(super) fn kept_or_drawn(path: &Path) -> Result<TokenText, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => TokenText::parse(text.trim().as_bytes())
            .ok_or_else(|| Failure::Usage(format!("{} holds no token of Semel", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = TokenText::draw();
            keep(path, &token).with_context(|| path.display().to_string())?;
            Ok(token)
        }
        Err(error) => Err(Failure::Failed(anyhow::Error::new(error).context(path.display().to_string()))),
    }
}
