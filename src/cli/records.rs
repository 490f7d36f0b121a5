//! The commands of a record: what they are asked with, what they send, what they show.

use clap::Args;

use crate::{
    id::Uuid,
    json::{Json, Number},
};

use super::{
    args::{
        Connection, Members, OutcomeDetails, RecordName, decimal, duration_ms, duration_s, fresh_uuid, pair,
        read_input, read_json, uuid,
    },
    call::{Answer, Node},
    failure::Failure,
    show,
};

/// Prints the answer: as it came, or for people.
pub(super) fn print(connection: &Connection, answer: &Answer) {
    if connection.json {
        println!("{}", String::from_utf8_lossy(&answer.text));
    } else {
        print!("{}", show::answer(&answer.json));
    }
}

/// Asks once and prints the answer.
pub(super) fn ask(connection: &Connection, path: &str, request: &Json) -> Result<(), Failure> {
    let answer = Node::of(connection)?.post(path, request, 0)?;
    print(connection, &answer);
    Ok(())
}

/// A comment for people, on stderr, so that stdout holds the answer alone.
fn note(connection: &Connection, text: &str) {
    if !connection.json {
        eprintln!("\n{text}");
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel claim 'POST /v1/charges' order-7 --request order-7.json --lease 30s
  echo '{\"amount\":100}' | semel claim charge order-7 --request - --staged
  semel claim charge order-7 --request order-7.json --wait 10s      (until its owner is done)")]
pub(super) struct Claim {
    #[command(flatten)]
    record: RecordName,
    /// The request as JSON, a file or - for standard input; the node computes its fingerprint. Default: null.
    #[arg(long, value_name = "FILE|-", conflicts_with = "fingerprint")]
    request: Option<String>,
    /// The request's fingerprint, scheme 1: 64 hex digits, as `semel fingerprint` prints it.
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// A JSON pointer that is left out of the fingerprint, e.g. /client_ts. Can be repeated.
    #[arg(long, value_name = "POINTER", conflicts_with = "fingerprint")]
    ignore: Vec<String>,
    /// How long the record is yours. Default: the policy's.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    lease: Option<u32>,
    /// How long to wait for another owner to be done.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    wait: Option<u32>,
    /// No effect begins before `semel begin`: if the lease ends before it, anybody can claim.
    #[arg(long)]
    staged: bool,
    /// What the end of the lease means once begun: hold (nobody knows: indeterminate) or retake (safe to repeat).
    #[arg(long, value_name = "RULE", value_parser = ["hold", "retake"])]
    on_lapse: Option<String>,
    /// The id of this attempt. Give it again to repeat a claim whose answer was lost. Default: a fresh one.
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    attempt: Option<Uuid>,
    /// A label for whoever investigates, NAME=VALUE. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// When the request was first sent, RFC 3339: if that is older than the evidence window, it won't run.
    #[arg(long, value_name = "TIME")]
    first_sent_at: Option<String>,
    /// How long the outcome is replayed, from completion.
    #[arg(long, value_name = "DURATION", value_parser = duration_s)]
    replay: Option<u32>,
    /// How long the key can't run again, from completion.
    #[arg(long, value_name = "DURATION", value_parser = duration_s)]
    evidence: Option<u32>,
    /// Refuse the claim if it can't be recorded within this time.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    ttl: Option<u32>,
    #[command(flatten)]
    connection: Connection,
}

impl Claim {
    pub(super) fn body(&self, attempt: Uuid) -> Result<Json, Failure> {
        let mut members = Members::of(&self.record);
        match &self.fingerprint {
            Some(digest) => {
                let scheme = Json::Number(Number::parse("1").expect("a number"));
                let fingerprint = Json::object([("scheme", scheme), ("digest", Json::String(digest.clone()))]);
                members.value("fingerprints", Json::Array(vec![fingerprint]));
            }
            None => members.value("request", self.request.as_deref().map_or(Ok(Json::Null), read_json)?),
        }
        if !self.ignore.is_empty() {
            members.value("ignore", Json::Array(self.ignore.iter().cloned().map(Json::String).collect()));
        }
        members.text("attempt_id", &attempt.hyphenated());
        members.opt_number("lease_ms", self.lease);
        members.opt_number("wait_ms", self.wait);
        members.flag("staged", self.staged);
        members.opt_text("on_lapse", self.on_lapse.as_deref());
        members.pairs("labels", &self.label)?;
        members.opt_text("first_sent_at", self.first_sent_at.as_deref());
        members.opt_number("replay_s", self.replay);
        members.opt_number("evidence_s", self.evidence);
        members.opt_number("ttl_ms", self.ttl);
        Ok(members.json())
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        let body = self.body(self.attempt.unwrap_or_else(fresh_uuid))?;
        let answer = Node::of(&self.connection)?.post("/v1/claim", &body, self.wait.unwrap_or(0))?;
        print(&self.connection, &answer);
        let member = |name| show::member(&answer.json, name);
        let next = match member("answer").as_str() {
            "new" => {
                let fence = member("fence");
                let verb = if member("phase") == "staged" { "semel begin" } else { "semel complete" };
                format!("The record is yours until the lease ends. Next: {verb} OP KEY --fence {fence}")
            }
            "in_progress" => "Somebody else is at it. Ask again, or wait: --wait 10s".to_owned(),
            "completed" => "It was done before; this is what came of it. Don't do it again.".to_owned(),
            "conflict" => "The key belongs to another request. A new intent needs a new key.".to_owned(),
            "indeterminate" => {
                "Nobody knows whether it was done. Don't do it again; find out, then: semel resolve OP KEY".to_owned()
            }
            "expired" => "It was done, or must be taken as done, too long ago for a replay.".to_owned(),
            _ => return Ok(()),
        };
        note(&self.connection, &next);
        Ok(())
    }
}

/// Declares a command that an owner gives with its fence.
macro_rules! owner_command {
    ($Name:ident $path:literal $help:literal {
        $($(#[$attribute:meta])* $field:ident: $Type:ty,)*
    } |$this:ident, $members:ident| $fill:block) => {
        #[derive(Debug, Args)]
        #[command(after_help = $help)]
        pub(super) struct $Name {
            #[command(flatten)]
            record: RecordName,
            /// The fence that the claim answered.
            #[arg(long, value_name = "N", value_parser = decimal)]
            fence: u64,
            $($(#[$attribute])* $field: $Type,)*
            #[command(flatten)]
            connection: Connection,
        }

        impl $Name {
            pub(super) fn body(&self) -> Result<Json, Failure> {
                let $this = self;
                let mut $members = Members::of(&self.record);
                $members.value("fence", Json::u64_text(self.fence));
                $fill
                Ok($members.json())
            }

            pub(super) fn run(self) -> Result<(), Failure> {
                ask(&self.connection, $path, &self.body()?)
            }
        }
    };
}

owner_command! {
    Begin "/v1/begin" "Example: semel begin 'POST /v1/charges' order-7 --fence 42" {
        /// Extend the lease to this long from now.
        #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
        lease: Option<u32>,
    } |this, members| { members.opt_number("lease_ms", this.lease); }
}

owner_command! {
    Renew "/v1/renew" "Example: semel renew 'POST /v1/charges' order-7 --fence 42 --lease 1m" {
        /// The new length, from now. Default: the length last granted.
        #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
        lease: Option<u32>,
    } |this, members| { members.opt_number("lease_ms", this.lease); }
}

owner_command! {
    Checkpoint "/v1/checkpoint"
        "Example: semel checkpoint charge order-7 --fence 42 --name authorized --data authorization.json" {
        /// The name of the point.
        #[arg(long)]
        name: String,
        /// What is needed to go on from there: a file, or - for standard input.
        #[arg(long, value_name = "FILE|-")]
        data: Option<String>,
    } |this, members| {
        members.text("name", &this.name);
        members.opt_bytes("data", this.data.as_deref().map(read_input).transpose()?.as_deref());
    }
}

owner_command! {
    Complete "/v1/complete" "Examples:
  semel complete charge order-7 --fence 42 --status 201 --body receipt.json --content-type application/json
  semel complete charge order-7 --fence 42 --status 303 --header location=/charges/7" {
        /// The body of the outcome: a file, or - for standard input.
        #[arg(long, value_name = "FILE|-")]
        body: Option<String>,
        #[command(flatten)]
        outcome: OutcomeDetails,
    } |this, members| {
        let body = this.body.as_deref().map(read_input).transpose()?;
        members.value("outcome", this.outcome.json(body)?);
    }
}

owner_command! {
    Release "/v1/release" "Example: semel release charge order-7 --fence 42 --evidence 'the card was never sent'" {
        /// How you know that no effect happened. Required once the record was begun.
        #[arg(long, value_name = "TEXT")]
        evidence: Option<String>,
    } |this, members| { members.opt_text("evidence", this.evidence.as_deref()); }
}

owner_command! {
    Suspend "/v1/suspend" "Example: semel suspend charge order-7 --fence 42 --reason 'the provider timed out'" {
        /// Why you don't know. Shown to whoever asks.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    } |this, members| { members.opt_text("reason", this.reason.as_deref()); }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel get 'POST /v1/charges' order-7
  semel get 'POST /v1/charges' order-7 --with-outcome --json | jq -r .outcome.body | base64 -d")]
pub(super) struct Get {
    #[command(flatten)]
    record: RecordName,
    /// With the outcome, where there is one.
    #[arg(long)]
    with_outcome: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Get {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut members = Members::of(&self.record);
        members.flag("with_outcome", self.with_outcome);
        ask(&self.connection, "/v1/get", &members.json())
    }
}

/// The words of a state.
const STATES: [&str; 4] = ["in_progress", "indeterminate", "completed", "expired"];

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel list --state indeterminate --older 10m      (what waits for somebody)
  semel list --operation 'POST /v1/charges' --all --json")]
pub(super) struct List {
    /// The tenant. Default: the token's own; on an open node `default`.
    #[arg(long, env = "SEMEL_TENANT")]
    tenant: Option<String>,
    /// Only this end user's or account's.
    #[arg(long)]
    principal: Option<String>,
    /// Only in this state.
    #[arg(long, value_parser = STATES)]
    state: Option<String>,
    /// Only this operation's.
    #[arg(long, value_name = "OP")]
    operation: Option<String>,
    /// Only what has been in its state for longer than this.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    older: Option<u32>,
    /// Records a page, at most 1000.
    #[arg(long, default_value_t = 100)]
    page_size: u32,
    /// Go on where a page before ended.
    #[arg(long)]
    cursor: Option<String>,
    /// All pages. With --json one answer a line.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

impl List {
    fn body(&self, cursor: Option<&str>) -> Json {
        let mut members = Members::default();
        members.opt_text("tenant", self.tenant.as_deref());
        members.opt_text("principal", self.principal.as_deref());
        members.opt_text("state", self.state.as_deref());
        members.opt_text("operation", self.operation.as_deref());
        members.opt_number("older_than_ms", self.older);
        members.number("page_size", self.page_size);
        members.opt_text("cursor", cursor);
        members.json()
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        let node = Node::of(&self.connection)?;
        let mut cursor = self.cursor.clone();
        let mut rows = Vec::new();
        loop {
            let answer = node.post("/v1/list", &self.body(cursor.as_deref()), 0)?;
            let next = answer.json.member("cursor").and_then(Json::as_str).map(str::to_owned);
            let found = records_of(&answer.json);
            let empty = found.is_empty();
            // A page may be empty with a cursor: for people it is no answer.
            let done = next.is_none() || !self.all && (!empty || self.connection.json);
            if self.connection.json && (self.all || done) {
                println!("{}", String::from_utf8_lossy(&answer.text));
            } else {
                rows.extend(found.iter().map(row));
            }
            cursor = next;
            if done {
                break;
            }
        }
        if !self.connection.json {
            let headings = ["STATE", "SINCE", "OPERATION", "KEY", "PRINCIPAL", "FENCE", "ATTEMPT", "VERSION", "REASON"];
            print!("{}", show::table(&headings, &rows));
            if let Some(cursor) = cursor {
                note(&self.connection, &format!("There is more: --cursor {}, or --all", show::printable(&cursor)));
            }
        }
        Ok(())
    }
}

fn records_of(answer: &Json) -> &[Json] {
    match answer.member("records") {
        Some(Json::Array(records)) => records,
        _ => &[],
    }
}

fn row(record: &Json) -> Vec<String> {
    let paths = [
        "state",
        "since",
        "record.operation",
        "record.key",
        "record.principal",
        "fence",
        "attempt",
        "version",
        "reason",
    ];
    paths.iter().map(|path| show::member(record, path)).collect()
}

#[derive(Debug, Args)]
#[command(after_help = "Example: semel history 'POST /v1/charges' order-7")]
pub(super) struct History {
    #[command(flatten)]
    record: RecordName,
    /// Go on where a page before ended.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl History {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut members = Members::of(&self.record);
        members.opt_text("cursor", self.cursor.as_deref());
        let answer = Node::of(&self.connection)?.post("/v1/history", &members.json(), 0)?;
        if self.connection.json {
            print(&self.connection, &answer);
            return Ok(());
        }
        let events = match answer.json.member("events") {
            Some(Json::Array(events)) => events.as_slice(),
            _ => &[],
        };
        let paths = ["at", "index", "kind", "fence", "actor", "detail"];
        let rows: Vec<Vec<String>> =
            events.iter().map(|event| paths.iter().map(|path| show::member(event, path)).collect()).collect();
        print!("{}", show::table(&["AT", "INDEX", "KIND", "FENCE", "ACTOR", "DETAIL"], &rows));
        if let Some(cursor) = answer.json.member("cursor").and_then(Json::as_str) {
            note(&self.connection, &format!("There is more: --cursor {}", show::printable(cursor)));
        }
        Ok(())
    }
}
