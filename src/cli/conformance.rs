//! `semel conformance`: tries a resource against what the Idempotency-Key header field asks, whoever made it.

mod case;
mod expect;

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

use super::{call::Node, failure::Failure};
use crate::json::Json;
use case::{Case, Send, Step};

/// The published list of cases.
const CASES: &str = include_str!("../../conformance/cases.json");
/// How long one answer may take: a twin may wait for the first.
const ANSWER: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel conformance --target http://127.0.0.1:8080/orders
  semel conformance --target https://api.example/v1/charges --ca ca.pem --header 'Authorization: Bearer …' \\
      --body '{\"amount\":1}' --other-body '{\"amount\":2}'
  semel conformance --cases

The target takes POST, and answers every execution with something else (a fresh id, a count): without that nothing can be told.
What it does is done for real, some thirty times. Cases `from` semel go beyond the draft; they count with --strict.
Exit status 0: all that counts holds. 1: something does not. 2: nothing could be told.")]
pub(super) struct Conformance {
    /// The resource: http://HOST:PORT/PATH, or https://… with --ca.
    #[arg(long, value_name = "URL", required_unless_present = "cases")]
    target: Option<String>,
    /// A request body, JSON.
    #[arg(long, value_name = "JSON", default_value = r#"{"amount":1,"note":"a"}"#)]
    body: String,
    /// A body that means something else.
    #[arg(long, value_name = "JSON", default_value = r#"{"amount":2,"note":"a"}"#)]
    other_body: String,
    /// A field of every request, NAME: VALUE. Can be repeated.
    #[arg(long = "header", value_name = "FIELD")]
    fields: Vec<String>,
    /// The path of a resource that takes a second or more to answer: what happens meanwhile is tried there.
    #[arg(long, value_name = "PATH")]
    slow_path: Option<String>,
    /// The path of a resource that wants a key with every request.
    #[arg(long, value_name = "PATH")]
    required_path: Option<String>,
    /// Whose certificates are taken from an https:// target, PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<String>,
    /// What Semel asks beyond the draft counts too.
    #[arg(long)]
    strict: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Print the list of cases, and try nothing.
    #[arg(long)]
    cases: bool,
}

/// An answer, as the cases look at it.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    status: u16,
    fields: HeaderMap,
    body: Bytes,
}

/// What became of a case.
enum Verdict {
    Holds,
    Fails(String),
    Skipped(&'static str),
}

impl Conformance {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.cases {
            print!("{CASES}");
            return Ok(());
        }
        let cases = case::parse(CASES).map_err(|why| Failure::Failed(anyhow::anyhow!("the list of cases: {why}")))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::new)?;
        runtime.block_on(self.try_all(&cases))
    }

    async fn try_all(&self, cases: &[Case]) -> Result<(), Failure> {
        let target = Target::of(self)?;
        // Where two executions can't be told apart, no replay can be either.
        let (one, two) = (target.send(&Send::default()).await?, target.send(&Send::default()).await?);
        if one.body == two.body && one.status < 300 && two.status < 300 {
            let text = "the target answers two executions alike, so nothing can be told; answer each with a fresh id";
            return Err(Failure::Usage(text.to_owned()));
        }
        if one.status >= 300 {
            let text = format!("the target answers a plain POST with {}; see --body and --header", one.status);
            return Err(Failure::Usage(text));
        }
        let mut results = Vec::new();
        for case in cases {
            results.push((case, target.attempt(case).await?));
        }
        self.tell(&results)
    }

    fn tell(&self, results: &[(&Case, Verdict)]) -> Result<(), Failure> {
        let counts = |case: &Case| case.is_of_draft || self.strict;
        let failed = |(case, verdict): &&(&Case, Verdict)| counts(case) && matches!(verdict, Verdict::Fails(_));
        let failures = results.iter().filter(failed).count();
        if self.json {
            let shown = results.iter().map(|(case, verdict)| {
                let (word, why) = match verdict {
                    Verdict::Holds => ("holds", Json::Null),
                    Verdict::Fails(why) => ("fails", why.as_str().into()),
                    Verdict::Skipped(why) => ("skipped", (*why).into()),
                };
                let from = if case.is_of_draft { "draft" } else { "semel" };
                Json::object([
                    ("id", case.id.as_str().into()),
                    ("from", from.into()),
                    ("result", word.into()),
                    ("why", why),
                ])
            });
            println!("{}", Json::object([("cases", Json::Array(shown.collect()))]).to_text());
        } else {
            for (case, verdict) in results {
                let from = if case.is_of_draft { "draft" } else { "semel" };
                match verdict {
                    Verdict::Holds => println!("holds    {from}  {}: {}", case.id, case.title),
                    Verdict::Fails(why) => println!("FAILS    {from}  {}: {}\n           {why}", case.id, case.title),
                    Verdict::Skipped(why) => println!("skipped  {from}  {}: {why}", case.id),
                }
            }
            let held = results.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Holds)).count();
            println!("\n{held} of {} hold; {failures} that count do not", results.len());
        }
        if failures == 0 { Ok(()) } else { Err(Failure::Differ) }
    }
}

/// The resource that is tried.
struct Target<'a> {
    node: Node,
    path: String,
    fields: Vec<(HeaderName, HeaderValue)>,
    asked: &'a Conformance,
}

impl<'a> Target<'a> {
    fn of(asked: &'a Conformance) -> Result<Self, Failure> {
        let bad = |text: &str| Failure::Usage(text.to_owned());
        let uri: Uri =
            asked.target.as_deref().unwrap_or_default().parse().map_err(|_| bad("--target must be a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad("--target must be a URL such as http://127.0.0.1:8080/orders"));
        };
        let node = Node::plain(&format!("{scheme}://{authority}"), asked.ca.clone(), ANSWER)?;
        let field = |text: &String| {
            let (name, value) = text.split_once(':')?;
            Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
        };
        let fields = asked.fields.iter().map(field).collect::<Option<Vec<_>>>();
        let fields = fields.ok_or_else(|| bad("--header must be NAME: VALUE"))?;
        Ok(Self { node, path: uri.path().to_owned(), fields, asked })
    }

    async fn attempt(&self, case: &Case) -> Result<Verdict, Failure> {
        let path = match case.needs.as_deref() {
            Some("slow") => self.asked.slow_path.as_deref(),
            Some("required") => self.asked.required_path.as_deref(),
            _ => Some(self.path.as_str()),
        };
        let Some(path) = path else {
            let is_slow = case.needs.as_deref() == Some("slow");
            return Ok(Verdict::Skipped(if is_slow { "it needs --slow-path" } else { "it needs --required-path" }));
        };
        let keys = case::Keys::fresh();
        let mut before: Vec<Reply> = Vec::new();
        for (at, Step { send, at_once, expect }) in case.steps.iter().enumerate() {
            let send = send.with(&keys);
            let asked = (0..*at_once).map(|_| self.send_to(path, &send));
            let replies = futures_util::future::try_join_all(asked).await?;
            if let Err(why) = expect.judge(&replies, &before) {
                return Ok(Verdict::Fails(format!("step {}: {why}", at + 1)));
            }
            before.extend(replies.into_iter().next());
        }
        Ok(Verdict::Holds)
    }

    async fn send(&self, send: &Send) -> Result<Reply, Failure> {
        self.send_to(&self.path, send).await
    }

    async fn send_to(&self, path: &str, send: &Send) -> Result<Reply, Failure> {
        let bad = |_| Failure::Usage("a case asks for what can't be sent".to_owned());
        let mut fields = HeaderMap::new();
        for (name, value) in &self.fields {
            fields.append(name.clone(), value.clone());
        }
        let kind = send.content_type.as_deref().unwrap_or("application/json");
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_str(kind).map_err(bad)?);
        for key in &send.key {
            fields.append("idempotency-key", HeaderValue::from_str(key).map_err(bad)?);
        }
        for (name, value) in &send.fields {
            let name: HeaderName = name.parse().map_err(|_| Failure::Usage("a case names no field".to_owned()))?;
            fields.append(name, HeaderValue::from_str(value).map_err(bad)?);
        }
        let path = match &send.query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let body = match send.body.as_deref() {
            Some("other") => self.asked.other_body.clone(),
            Some("spelled otherwise") => spelled_otherwise(&self.asked.body),
            _ => self.asked.body.clone(),
        };
        let asked = self.node.exchange(http::Method::POST, &path, fields, body.into(), send.title_case);
        let response = tokio::time::timeout(ANSWER, asked).await;
        let response =
            response.map_err(|_| Failure::Unreachable(format!("no answer within {} s", ANSWER.as_secs())))??;
        let (head, body) = response.into_parts();
        Ok(Reply { status: head.status.as_u16(), fields: head.headers, body })
    }
}

/// The same JSON with its members the other way round, and with room in between.
fn spelled_otherwise(text: &str) -> String {
    match Json::parse(text.as_bytes()) {
        Ok(Json::Object(members)) => {
            let shown = members
                .iter()
                .rev()
                .map(|(name, value)| format!(" {} : {}", Json::String(name.clone()).to_text(), value.to_text()));
            format!("{{\n{}\n}}", shown.collect::<Vec<_>>().join(",\n"))
        }
        _ => format!(" {text}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_cases_are_read_whole() {
        let cases = case::parse(CASES).unwrap();
        assert!(cases.len() > 15 && cases.iter().any(|case| case.is_of_draft));
        let mut ids: Vec<_> = cases.iter().map(|case| &case.id).collect();
        ids.dedup();
        assert_eq!(ids.len(), cases.len());
        assert!(case::parse(&CASES.replace("\"status\"", "\"stats\"")).unwrap_err().contains("stats"));
    }

    #[test]
    fn another_spelling_means_the_same() {
        let text = spelled_otherwise(r#"{"amount":1,"note":"a"}"#);
        assert_eq!(text, "{\n \"note\" : \"a\",\n \"amount\" : 1\n}");
    }
}
