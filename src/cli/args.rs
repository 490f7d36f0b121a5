//! Arguments that several commands share, and how their texts are read.

use std::{
    fs,
    io::{self, Read},
};

use anyhow::Context;
use clap::Args;

use crate::{
    id::{Uuid, parse_decimal},
    json::{Json, Number},
    limits,
};

use super::failure::Failure;

/// Which node, as whom, and how the answer is shown.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connection {
    /// The node: http://HOST:PORT, or https://HOST:PORT with --ca.
    #[arg(long, env = "SEMEL_ENDPOINT", default_value = "http://127.0.0.1:7171", value_name = "URL")]
    pub(super) endpoint: String,
    /// A token, or @FILE that holds one.
    #[arg(long, env = "SEMEL_TOKEN", value_name = "TOKEN|@FILE", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Whose certificates are taken from an https:// node, PEM.
    #[arg(long, env = "SEMEL_CA", value_name = "FILE")]
    pub(super) ca: Option<String>,
    /// The certificate to present, PEM.
    #[arg(long, env = "SEMEL_CERT", value_name = "FILE", requires = "cert_key")]
    pub(super) cert: Option<String>,
    /// Its key.
    #[arg(long = "key", env = "SEMEL_KEY", value_name = "FILE", requires = "cert")]
    pub(super) cert_key: Option<String>,
    /// Send the token unencrypted to a node that isn't on this machine.
    #[arg(long)]
    pub(super) insecure_plaintext_clients: bool,
    /// How long to go on while the service is unavailable.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration_ms)]
    pub(super) timeout: u32,
    /// Print the service's answer as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// The node's operators' port.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct AdminConnection {
    /// The operators' port of any node: http://HOST:PORT. Of several, with commas, the first that answers.
    #[arg(long, env = "SEMEL_ADMIN_ENDPOINT", default_value = "http://127.0.0.1:7173", value_name = "URL")]
    admin_endpoint: String,
    /// A token with `cluster`, or @FILE that holds one.
    #[arg(long, env = "SEMEL_TOKEN", value_name = "TOKEN|@FILE", hide_env_values = true)]
    token: Option<String>,
    /// Whose certificates are taken from an https:// node, PEM.
    #[arg(long, env = "SEMEL_CA", value_name = "FILE")]
    ca: Option<String>,
    /// The certificate to present, PEM.
    #[arg(long, env = "SEMEL_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<String>,
    /// Its key.
    #[arg(long = "key", env = "SEMEL_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<String>,
    /// Send the token unencrypted to a node that isn't on this machine.
    #[arg(long)]
    insecure_plaintext_admin: bool,
    /// How long to go on while the service is unavailable. Default: 30s; 60s where a node has to catch up.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    timeout: Option<u32>,
    /// Print the service's answer as JSON.
    #[arg(long)]
    json: bool,
}

impl Connection {
    /// Another node of the same cluster, at this address: spoken to in the same way.
    pub(super) fn at(&self, address: &str) -> Self {
        let scheme = if self.endpoint.trim_start().starts_with("https://") { "https" } else { "http" };
        Self { endpoint: format!("{scheme}://{address}"), ..self.clone() }
    }
}

impl AdminConnection {
    /// As any other connection.
    pub(super) fn connection(self) -> Connection {
        self.connection_for(limits::CLUSTER_CHANGE_MS)
    }

    /// The same, with so much time where none was named.
    pub(super) fn connection_for(self, timeout_ms: u32) -> Connection {
        Connection {
            endpoint: self.admin_endpoint,
            token: self.token,
            ca: self.ca,
            cert: self.cert,
            cert_key: self.cert_key,
            insecure_plaintext_clients: self.insecure_plaintext_admin,
            timeout: self.timeout.unwrap_or(timeout_ms),
            json: self.json,
        }
    }
}

/// Which record.
#[derive(Clone, Debug, Args)]
pub(super) struct RecordName {
    /// The operation, e.g. "POST /v1/charges".
    #[arg(value_name = "OP")]
    pub(super) operation: String,
    /// The idempotency key.
    #[arg(value_name = "KEY")]
    pub(super) key: String,
    /// The tenant. Default: the token's own; on an open node `default`.
    #[arg(long, env = "SEMEL_TENANT")]
    pub(super) tenant: Option<String>,
    /// The end user or account that the key belongs to.
    #[arg(long)]
    pub(super) principal: Option<String>,
}

impl RecordName {
    /// As a request names it.
    pub(super) fn json(&self) -> Json {
        let mut members = Members::default();
        members.opt_text("tenant", self.tenant.as_deref());
        members.opt_text("principal", self.principal.as_deref());
        members.text("operation", &self.operation);
        members.text("key", &self.key);
        members.json()
    }
}

/// What came of an operation.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Outcome")]
pub(super) struct OutcomeDetails {
    /// The status in your protocol, e.g. an HTTP status.
    #[arg(long, default_value_t = 200, allow_negative_numbers = true)]
    pub(super) status: i32,
    /// The media type of the body.
    #[arg(long, value_name = "TYPE")]
    pub(super) content_type: Option<String>,
    /// A header that is replayed, NAME=VALUE. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub(super) header: Vec<(String, String)>,
    /// From then on a replay says `stale`: RFC 3339, e.g. 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub(super) valid_until: Option<String>,
}

impl OutcomeDetails {
    /// As a request tells it, with this body.
    pub(super) fn json(&self, body: Option<Vec<u8>>) -> Result<Json, Failure> {
        let mut members = Members::default();
        members.number("status", self.status);
        members.opt_text("content_type", self.content_type.as_deref());
        members.pairs("headers", &self.header)?;
        members.opt_bytes("body", body.as_deref());
        members.opt_text("valid_until", self.valid_until.as_deref());
        Ok(members.json())
    }
}

/// The members of a request, in the order they are given.
#[derive(Debug, Default)]
pub(super) struct Members(Vec<(String, Json)>);

impl Members {
    /// Members that begin with the record.
    pub(super) fn of(record: &RecordName) -> Self {
        Self(vec![("record".to_owned(), record.json())])
    }

    pub(super) fn value(&mut self, name: &str, value: Json) {
        self.0.push((name.to_owned(), value));
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.value(name, Json::String(value.to_owned()));
    }

    pub(super) fn opt_text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub(super) fn number(&mut self, name: &str, value: impl Into<i64>) {
        let number = Number::parse(&value.into().to_string()).expect("an integer is a JSON number");
        self.value(name, Json::Number(number));
    }

    pub(super) fn opt_number(&mut self, name: &str, value: Option<u32>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    pub(super) fn flag(&mut self, name: &str, set: bool) {
        if set {
            self.value(name, Json::Bool(true));
        }
    }

    pub(super) fn opt_bytes(&mut self, name: &str, value: Option<&[u8]>) {
        use base64::{Engine, engine::general_purpose::STANDARD};
        if let Some(value) = value {
            self.text(name, &STANDARD.encode(value));
        }
    }

    /// An object of these pairs, each name once.
    pub(super) fn pairs(&mut self, name: &str, pairs: &[(String, String)]) -> Result<(), Failure> {
        let twice = pairs.iter().enumerate().find(|(at, (one, _))| pairs[..*at].iter().any(|(other, _)| other == one));
        if let Some((_, (one, _))) = twice {
            return Err(Failure::Usage(format!("{name}: {one} is given twice")));
        }
        if !pairs.is_empty() {
            let members = pairs.iter().map(|(name, value)| (name.clone(), Json::String(value.clone())));
            self.value(name, Json::object(members));
        }
        Ok(())
    }

    pub(super) fn json(self) -> Json {
        Json::Object(self.0)
    }
}

/// The bytes of a file; `-` is standard input.
pub(super) fn read_input(path: &str) -> Result<Vec<u8>, Failure> {
    if path == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
        return Ok(bytes);
    }
    fs::read(path).map_err(|error| Failure::Usage(format!("{path}: {error}")))
}

/// The one JSON document in a file; `-` is standard input.
pub(super) fn read_json(path: &str) -> Result<Json, Failure> {
    let bytes = read_input(path)?;
    let shown = if path == "-" { "standard input" } else { path };
    Json::parse(&bytes).map_err(|error| Failure::Usage(format!("{shown} is no JSON document: {error}")))
}

/// A duration such as 500ms, 30s, 10m, 24h, 30d, in ms.
pub(super) fn duration_ms(text: &str) -> Result<u32, String> {
    let rule = "a duration is a number with its unit: 500ms, 30s, 10m, 24h, 30d";
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(rule.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| rule.to_owned())?;
    let ms = number.checked_mul(unit_ms).and_then(|ms| u32::try_from(ms).ok());
    ms.ok_or_else(|| "the longest duration is 49d".to_owned())
}

/// The same in whole seconds, and up to 136 years.
pub(super) fn duration_s(text: &str) -> Result<u32, String> {
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok()) {
        return days.checked_mul(86_400).ok_or_else(|| "the longest duration is 49710d".to_owned());
    }
    let ms = duration_ms(text)?;
    if ms.is_multiple_of(1000) { Ok(ms / 1000) } else { Err("windows are whole seconds".to_owned()) }
}

/// `NAME=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.is_empty() { Err("write NAME=VALUE".to_owned()) } else { Ok((name.to_owned(), value.to_owned())) }
}

/// A fence or a version: a decimal number.
pub(super) fn decimal(text: &str) -> Result<u64, String> {
    parse_decimal(text).ok_or_else(|| "write the decimal number as the service shows it".to_owned())
}

/// A UUID.
pub(super) fn uuid(text: &str) -> Result<Uuid, String> {
    Uuid::parse_hyphenated(text).ok_or_else(|| "write a UUID: 8-4-4-4-12 hex digits".to_owned())
}

/// A fresh random UUID (version 4): what makes a repeated request the same one.
pub(super) fn fresh_uuid() -> Uuid {
    let mut bytes: [u8; 16] = crate::entropy::bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Uuid(bytes)
}

/// Who acts, where nobody says: the user of this machine.
pub(super) fn local_actor() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let name: String = user.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    if name.is_empty() { "cli".to_owned() } else { format!("cli:{name}") }
}
