//! The fingerprint of a request, and where two requests differ.

use clap::Args;

use crate::{
    fingerprint::{DifferenceKind, Fingerprint as Digest, Ignore, differences},
    json::Json,
};

use super::{args::read_json, failure::Failure, show::printable};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel fingerprint order-7.json
  semel fingerprint order-7.json order-7-retry.json --ignore /client_ts

With two requests: exit status 0 if they have the same fingerprint, 1 if not.")]
pub(super) struct Fingerprint {
    /// A request as JSON, a file or - for standard input.
    #[arg(value_name = "A.json")]
    first: String,
    /// Another one: says where they differ.
    #[arg(value_name = "B.json")]
    second: Option<String>,
    /// A JSON pointer that is left out, e.g. /client_ts. Can be repeated.
    #[arg(long, value_name = "POINTER")]
    ignore: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Fingerprint {
    pub(super) fn run(self) -> Result<(), Failure> {
        let usage = |error: crate::fingerprint::Error| Failure::Usage(error.to_string());
        let ignore = Ignore::new(&self.ignore).map_err(usage)?;
        let first = read_json(&self.first)?;
        let digest = Digest::json_without(&first, &ignore).map_err(usage)?;
        let Some(second) = &self.second else {
            let shown = Json::object([("scheme", 1u32.into()), ("digest", Json::String(digest.hex()))]);
            println!("{}", if self.json { shown.to_text() } else { digest.hex() });
            return Ok(());
        };
        let second = read_json(second)?;
        let other = Digest::json_without(&second, &ignore).map_err(usage)?;
        let found = differences(&first, &second, &ignore).map_err(usage)?;
        let same = found.places.is_empty();
        if self.json {
            let places = found.places.iter().map(|place| {
                let text = |text: &str| Json::String(text.to_owned());
                Json::object([("pointer", text(&place.pointer)), ("kind", text(word(place.kind)))])
            });
            let shown = Json::object([
                ("same", Json::Bool(same)),
                ("digests", Json::Array(vec![Json::String(digest.hex()), Json::String(other.hex())])),
                ("differences", Json::Array(places.collect())),
                ("more", Json::Bool(found.more)),
            ]);
            println!("{}", shown.to_text());
        } else if same {
            println!("same fingerprint {}", digest.hex());
        } else {
            for place in &found.places {
                let pointer = if place.pointer.is_empty() { "(the whole request)" } else { &place.pointer };
                println!("{:14}  {}", word(place.kind), printable(pointer));
            }
            if found.more {
                println!("… and more");
            }
        }
        if same { Ok(()) } else { Err(Failure::Differ) }
    }
}

fn word(kind: DifferenceKind) -> &'static str {
    match kind {
        DifferenceKind::Changed => "changed",
        DifferenceKind::OnlyInFirst => "only in first",
        DifferenceKind::OnlyInSecond => "only in second",
    }
}
