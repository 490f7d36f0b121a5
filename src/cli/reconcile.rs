//! The commands of whoever finds out what happened.

use clap::{ArgGroup, Args};

use crate::{
    backup::manifest::time_text,
    clock::{Clock, SystemClock},
    json::Json,
    limits::CHECK_AGAIN_MS,
};

use super::{
    args::{
        Connection, Members, OutcomeDetails, RecordName, decimal, duration_ms, fresh_uuid, local_actor, read_input,
    },
    call::Node,
    failure::Failure,
    records::{ask, print},
    show,
};

#[derive(Debug, Args)]
#[command(after_help = "Example: semel investigate 'POST /v1/charges' order-7 --lease 5m")]
pub(super) struct Investigate {
    #[command(flatten)]
    record: RecordName,
    /// How long nobody else may resolve it. Default: the policy's lease.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    lease: Option<u32>,
    /// Who looks into it. Default: the user of this machine. With a token the actor is the token.
    #[arg(long)]
    actor: Option<String>,
    /// Only if this is the record's version.
    #[arg(long, value_name = "N", value_parser = decimal)]
    version: Option<u64>,
    #[command(flatten)]
    connection: Connection,
}

impl Investigate {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut members = Members::of(&self.record);
        members.opt_number("lease_ms", self.lease);
        members.text("actor", &self.actor.unwrap_or_else(local_actor));
        if let Some(version) = self.version {
            members.value("version", Json::u64_text(version));
        }
        ask(&self.connection, "/v1/investigate", &members.json())
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("verdict").required(true), after_help = "Examples:
  semel resolve charge order-7 --completed receipt.json --status 201 --evidence 'provider ledger, line 7'
  semel resolve charge order-7 --no-effect --evidence 'the provider has no such charge'
  semel resolve charge order-7 --unknown --check-again-at 2030-01-31T12:00:00Z --evidence 'provider is down'")]
pub(super) struct Resolve {
    #[command(flatten)]
    record: RecordName,
    /// It happened: the body of its outcome, a file or - for standard input.
    #[arg(long, value_name = "FILE|-", group = "verdict")]
    completed: Option<String>,
    /// It didn't happen: the key can be claimed again.
    #[arg(long, group = "verdict")]
    no_effect: bool,
    /// Still not known.
    #[arg(long, group = "verdict")]
    unknown: bool,
    /// With --unknown: when to look again, RFC 3339. Default: in an hour.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["completed", "no_effect"])]
    check_again_at: Option<String>,
    /// How you know. Kept for as long as the record's history.
    #[arg(long, value_name = "TEXT")]
    evidence: String,
    /// Only if this is the record's version. Default: as it is read now, right before.
    #[arg(long, value_name = "N", value_parser = decimal)]
    version: Option<u64>,
    /// Who found out. Default: the user of this machine. With a token the actor is the token.
    #[arg(long)]
    actor: Option<String>,
    #[command(flatten)]
    outcome: OutcomeDetails,
    #[command(flatten)]
    connection: Connection,
}

impl Resolve {
    fn body(&self, version: &str) -> Result<Json, Failure> {
        let mut members = Members::of(&self.record);
        members.text("version", version);
        match &self.completed {
            Some(path) => {
                members.text("verdict", "completed");
                members.value("outcome", self.outcome.json(Some(read_input(path)?))?);
            }
            None if self.no_effect => members.text("verdict", "no_effect"),
            None => members.text("verdict", "unknown"),
        }
        let again = match &self.check_again_at {
            None if self.unknown => Some(time_text(SystemClock::default().wall().plus_ms(CHECK_AGAIN_MS))),
            at => at.clone(),
        };
        members.opt_text("check_again_at", again.as_deref());
        members.text("actor", &self.actor.clone().unwrap_or_else(local_actor));
        members.text("evidence", &self.evidence);
        // Asked again after a break, it gets the first answer.
        members.text("request_id", &fresh_uuid().hyphenated());
        Ok(members.json())
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        let node = Node::of(&self.connection)?;
        let version = match self.version {
            Some(version) => version.to_string(),
            None => show::member(&node.post("/v1/get", &Members::of(&self.record).json(), 0)?.json, "version"),
        };
        let answer = node.post("/v1/resolve", &self.body(&version)?, 0)?;
        print(&self.connection, &answer);
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example: semel forget 'POST /v1/charges' order-7 --reason 'erasure request 4711'")]
pub(super) struct Forget {
    #[command(flatten)]
    record: RecordName,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Forget {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut members = Members::of(&self.record);
        members.opt_text("reason", self.reason.as_deref());
        ask(&self.connection, "/v1/forget", &members.json())
    }
}
