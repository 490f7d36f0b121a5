//! How a command ends when it isn't done: what is said, and the exit status.

use std::process::ExitCode;

use crate::{json::Json, records::token::NO_SUCH_TOKEN};

use super::show::printable;

/// Why a command isn't done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The service refused: its problem document, and whether it is to be printed as it came.
    Refused {
        /// As the service sent it.
        problem: Json,
        /// `--json`.
        as_json: bool,
    },
    /// The service can't take it now, and did nothing.
    Unavailable {
        /// As the service sent it.
        problem: Json,
        /// `--json`.
        as_json: bool,
    },
    /// It was asked for something that can't be.
    Usage(String),
    /// No answer came.
    Unreachable(String),
    /// Two requests differ; that was the answer, and is said already.
    Differ,
    /// Something of this machine failed.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Failed(error)
    }
}

impl Failure {
    /// Says it, and gives the exit status.
    pub(super) fn report(self) -> ExitCode {
        match &self {
            Failure::Refused { problem, as_json } | Failure::Unavailable { problem, as_json } => {
                if *as_json {
                    println!("{}", problem.to_text());
                }
                eprintln!("{}", refusal_text(problem));
            }
            Failure::Usage(text) => eprintln!("semel: {text}"),
            Failure::Unreachable(text) => eprintln!("semel: {text}"),
            Failure::Differ => {}
            Failure::Failed(error) => eprintln!("semel: {error:#}"),
        }
        ExitCode::from(self.status())
    }

    /// What is said of a refusal; nothing of what is none.
    pub(super) fn text(&self) -> String {
        match self {
            Failure::Refused { problem, .. } | Failure::Unavailable { problem, .. } => refusal_text(problem),
            _ => String::new(),
        }
    }

    /// The exit status.
    pub(super) fn status(&self) -> u8 {
        match self {
            Failure::Refused { .. } | Failure::Differ | Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable(_) | Failure::Unavailable { .. } => 3,
        }
    }
}

/// Code, detail, and what to do.
pub(super) fn refusal_text(problem: &Json) -> String {
    let text = |name| problem.member(name).and_then(Json::as_str).map(printable);
    let code = text("code").unwrap_or_else(|| "refused".to_owned());
    let detail = text("detail").or_else(|| text("title")).unwrap_or_default();
    let mut said = format!("semel: {code}: {detail}");
    if text("effect").as_deref() == Some("unknown") {
        said += "\n  effect: unknown";
    }
    let advice = if detail == NO_SUCH_TOKEN { Some(TOKEN_ADVICE) } else { advice(&code) };
    if let Some(advice) = advice {
        said += &format!("\n  {advice}");
    }
    said
}

/// What to do about a token that there is not.
const TOKEN_ADVICE: &str =
    "The id is what stands between `semel_` and the dot. `semel token list` shows those of your tenant.";

fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        "invalid_argument" => "Correct the command; nothing was changed.",
        "unauthenticated" => "Give a token: --token @FILE, or SEMEL_TOKEN.",
        "forbidden" => {
            "Use a token of this tenant with this operation and permission; look at --tenant and the operation."
        }
        "not_found" => {
            "Look at tenant, principal, operation and key: all four name the record. `semel list` shows what there is."
        }
        "stale_fence" => {
            "Somebody else owns the record now, or it is gone. Don't repeat the effect; `semel get` shows how it stands."
        }
        "lease_lapsed" => {
            "If the effect happened, `semel complete` still works with this fence; if not, `semel release`."
        }
        "outcome_immutable" => "Another outcome is recorded and stays; `semel get --with-outcome` shows it.",
        "wrong_state" => "`semel get` shows the state of a record, `semel cluster status` that of a cluster.",
        "version_changed" => "Read it again with `semel get`, and decide on what you see.",
        "owner_may_act" => "Its owner may only be paused. Ask again later, or let the owner suspend it.",
        "outcome_too_large" => "Raise outcome_bytes_max, or set oversize=digest_only, with `semel policy set`.",
        "request_too_large" => "Send less: put the data elsewhere and record where.",
        "quota_exceeded" => "Resolve or wait for what fills the quota, or raise it with `semel policy set`.",
        "rate_limited" | "unavailable" => "Try again shortly; nothing was changed.",
        "result_unknown" => {
            "Repeat the same command (a claim with the same --attempt): it finds out, and does nothing twice."
        }
        "internal" => "The node's log says more. Repeating the same command is safe: it does nothing twice.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Code;

    #[test]
    fn every_code_says_what_to_do() {
        for code in Code::ALL.iter().take_while(|code| **code != Code::KeyMissing) {
            if *code == Code::MethodNotAllowed {
                continue;
            }
            assert!(advice(code.as_str()).is_some(), "{code}");
        }
    }

    #[test]
    fn a_token_that_there_is_not_is_no_record() {
        let said =
            |detail: &str| refusal_text(&Json::object([("code", "not_found".into()), ("detail", detail.into())]));
        assert!(said(NO_SUCH_TOKEN).contains("semel token list") && !said(NO_SUCH_TOKEN).contains("record"));
        assert!(said("nothing is recorded under this identity").contains("name the record"));
    }

    #[test]
    fn a_refusal_says_code_detail_and_effect() {
        let problem = Json::parse(br#"{"code":"result_unknown","detail":"not \u001b[31m learnt","effect":"unknown"}"#);
        let said = refusal_text(&problem.unwrap());
        assert!(said.contains("result_unknown: not ") && said.contains("effect: unknown"), "{said}");
        assert!(!said.contains('\u{1b}'), "a terminal is not to be steered by what a service says");
    }
}
