//! Policies of a tenant and of its operations.

use clap::{Args, Subcommand};

use crate::json::{Json, Number};

use super::{
    args::{Connection, Members, pair},
    failure::Failure,
    records::ask,
};

/// Fields that are 64-bit numbers, which JSON carries as strings.
const LONG: [&str; 3] = ["records_max", "bytes_max", "indeterminate_max"];

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// The policy in force, and what was set for exactly this tenant or operation.
    #[command(after_help = "Example: semel policy get --operation 'POST /v1/charges'")]
    Get {
        #[command(flatten)]
        level: Level,
        #[command(flatten)]
        connection: Connection,
    },
    /// Change fields; the others stay.
    #[command(after_help = "Examples:
  semel policy set replay_s=86400 evidence_s=2592000
  semel policy set --operation 'POST /v1/charges' on_lapse=hold records_max=1000000
  semel policy set --operation 'POST /v1/charges' records_max=null        (back to what the tenant has)")]
    Set {
        #[command(flatten)]
        level: Level,
        /// FIELD=VALUE; null removes what was set.
        #[arg(required = true, value_name = "FIELD=VALUE", value_parser = pair)]
        fields: Vec<(String, String)>,
        #[command(flatten)]
        connection: Connection,
    },
}

#[derive(Debug, Args)]
pub(super) struct Level {
    /// The tenant. Default: the token's own; on an open node `default`.
    #[arg(long, env = "SEMEL_TENANT")]
    tenant: Option<String>,
    /// One operation of it. Default: the tenant as a whole.
    #[arg(long, value_name = "OP")]
    operation: Option<String>,
}

impl Level {
    fn members(&self) -> Members {
        let mut members = Members::default();
        members.opt_text("tenant", self.tenant.as_deref());
        members.opt_text("operation", self.operation.as_deref());
        members
    }
}

impl PolicyCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            PolicyCommand::Get { level, connection } => ask(&connection, "/v1/policy/get", &level.members().json()),
            PolicyCommand::Set { level, fields, connection } => {
                let mut members = level.members();
                let mut seen: Vec<&str> = Vec::new();
                for (name, _) in &fields {
                    if seen.contains(&name.as_str()) {
                        return Err(Failure::Usage(format!("{name} is given twice")));
                    }
                    seen.push(name);
                }
                members.value(
                    "policy",
                    Json::object(fields.iter().map(|(name, value)| (name.as_str(), typed(name, value)))),
                );
                ask(&connection, "/v1/policy/set", &members.json())
            }
        }
    }
}

/// A value as the field wants it; whether the field exists is the service's to say.
pub(super) fn typed(name: &str, value: &str) -> Json {
    match Number::parse(value) {
        _ if value == "null" => Json::Null,
        Some(number) if !LONG.contains(&name) => Json::Number(number),
        _ => Json::String(value.to_owned()),
    }
}
