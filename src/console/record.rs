//! One record: what is known, what happened, and what can be done about it.

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Response;

use super::{
    Console,
    form::{Form, address},
    html::Html,
    page::{Page, moment},
    queue::{fact, labels, when},
    session::Session,
    to,
};
use crate::{
    auth::Method,
    entropy,
    http::admin::Observed,
    id::{RecordId, Uuid},
    limits,
    records::record::StateWord,
    refusal::Refusal,
    service::{
        Calls,
        answer::{HistoryEvent, Record},
        request::{
            GetRequest, Headers, HistoryRequest, InvestigateRequest, Outcome, Payload, ResolveRequest, Statement,
            Verdict,
        },
    },
};

impl<C: Calls, O: Observed> Console<C, O> {
    pub(super) async fn record(&self, session: &Session, form: &Form, page: &mut Page) -> Result<(), Refusal> {
        let caller = &session.caller;
        caller.permit(Method::History)?;
        let name = form.record(Self::tenant(session, form)?)?;
        let may_read = caller.permit(Method::GetOutcome).is_ok();
        let get = GetRequest { record: name.clone(), with_outcome: may_read };
        let record = self.calls.get(caller, get).await?;
        let asked = HistoryRequest {
            record: name,
            page_size: limits::PAGE_SIZE_DEFAULT,
            cursor: form.given("cursor").map(str::to_owned),
        };
        let history = self.calls.history(caller, asked).await?;
        page.heading("Record");
        facts(page.html(), &record, may_read);
        if record.state == StateWord::Indeterminate && caller.permit(Method::Resolve).is_ok() {
            self.actions(session, page, &record);
        }
        let html = page.html();
        html.raw("<h2>What happened</h2><ol class=timeline>");
        history.events.iter().for_each(|event| happened(html, event));
        html.raw("</ol>");
        if let Some(cursor) = &history.cursor {
            let cursor: String = form_urlencoded::byte_serialize(cursor.as_bytes()).collect();
            html.raw("<p><a rel=next href=\"")
                .text(address("/console/record", &record.id))
                .text("&cursor=")
                .text(cursor);
            html.raw("\">More</a></p>");
        }
        Ok(())
    }

    fn actions(&self, session: &Session, page: &mut Page, record: &Record) {
        let csrf = page.csrf();
        let mut hidden = Html::default();
        hidden.with(&csrf);
        let RecordId { tenant, principal, operation, key } = &record.id;
        let fields = [
            ("tenant", tenant.as_str().to_owned()),
            ("principal", principal.as_str().to_owned()),
            ("operation", operation.as_str().to_owned()),
            ("key", key.as_str().to_owned()),
            ("version", record.version.to_string()),
        ];
        for (name, value) in fields {
            hidden.raw("<input type=hidden name=").text(name).raw(" value=\"").text(value).raw("\">");
        }
        let html = page.html();
        html.raw("<h2>Settle it</h2>");
        if let Some(waiting) = self.pending.of(&record.id, record.version) {
            html.raw("<form method=post action=/console/resolve class=card>").with(&hidden);
            html.element("<p><strong>", &waiting.by, "</strong> says: ").text(verdict_text(&waiting.request.verdict));
            html.element(". Evidence: ", waiting.request.evidence.as_str(), "</p>");
            if waiting.by == session.caller.actor(None) {
                html.raw("<p class=hint>Somebody else has to confirm it.</p>");
            } else {
                html.raw("<button name=verdict value=confirm>Confirm</button>");
            }
            html.raw("</form>");
        }
        html.raw("<form method=post action=/console/investigate class=inline>").with(&hidden);
        html.raw("<button class=quiet>I look into it: nobody else settles it for ten minutes</button></form>");
        html.raw("<form method=post action=/console/resolve class=card>").with(&hidden);
        // The same form sent twice gets the first answer.
        html.raw("<input type=hidden name=request_id value=\"").text(fresh_request_id().hyphenated()).raw("\">");
        html.raw("<fieldset><legend>What did the provider say?</legend>")
            .raw("<label><input type=radio name=verdict value=completed required> It happened</label>")
            .raw("<div class=of><label>Status <input name=status inputmode=numeric value=200 size=6></label> ")
            .raw("<label>Content type <input name=content_type placeholder=application/json></label>")
            .raw("<label>Outcome <textarea name=body rows=4></textarea></label>")
            .raw("<label><input type=checkbox name=body_is_base64 value=1> the outcome is written in base64</label></div>")
            .raw("<label><input type=radio name=verdict value=no_effect> It did not happen, and will not: the key may be claimed again</label>")
            .raw("<label><input type=radio name=verdict value=unknown> Not known yet: ask again in ")
            .raw("<input name=minutes inputmode=numeric value=15 size=4> minutes</label></fieldset>")
            .raw("<label for=evidence>Evidence: how do you know? (required)</label>")
            .raw("<textarea id=evidence name=evidence rows=2 required maxlength=1024></textarea>");
        if self.two_person {
            html.raw("<p class=hint>A second person has to confirm it.</p>");
        }
        html.raw("<button>Settle</button></form>");
    }

    /// Settles a record by a form.
    pub(super) async fn settle(&self, session: &Session, form: &Form) -> Result<Response<Body>, Refusal> {
        let caller = &session.caller;
        caller.permit(Method::Resolve)?;
        let name = form.record(Self::tenant(session, form)?)?;
        let by = caller.actor(None);
        // Read first: a verdict waits under the record's whole identity, and of a record that may be seen alone.
        let record = self.calls.get(caller, GetRequest { record: name.clone(), with_outcome: false }).await?;
        let (id, version) = (record.id, form.version()?);
        if form.text("verdict") == "confirm" {
            let waiting = self.pending.confirm(&id, version, by)?;
            let evidence = format!("{} (confirmed by {by})", waiting.request.evidence.as_str());
            let request = ResolveRequest { evidence: statement(&evidence)?, ..waiting.request };
            self.calls.resolve(caller, request).await?;
            self.pending.end(&id, version);
            return Ok(to(&address("/console/record", &id)));
        }
        let request_id = form.given("request_id").and_then(Uuid::parse_hyphenated);
        let request = ResolveRequest {
            record: name,
            version,
            verdict: self.verdict(form)?,
            actor: None,
            evidence: statement(form.text("evidence").trim())?,
            request_id,
        };
        if self.two_person {
            let evidence = format!("{} (found by {by})", request.evidence.as_str());
            let request = ResolveRequest { evidence: statement(&evidence)?, ..request };
            self.pending.keep(id.clone(), request, by)?;
        } else {
            self.calls.resolve(caller, request).await?;
        }
        Ok(to(&address("/console/record", &id)))
    }

    /// Takes a record up.
    pub(super) async fn take_up(&self, session: &Session, form: &Form) -> Result<Response<Body>, Refusal> {
        let request = InvestigateRequest {
            record: form.record(Self::tenant(session, form)?)?,
            lease_ms: Some(limits::CONSOLE_INVESTIGATION_MS),
            actor: None,
            version: Some(form.version()?),
        };
        let record = self.calls.investigate(&session.caller, request).await?;
        Ok(to(&address("/console/record", &record.id)))
    }

    fn verdict(&self, form: &Form) -> Result<Verdict, Refusal> {
        match form.text("verdict") {
            "completed" => {
                let body = form.text("body");
                let body = match form.given("body_is_base64") {
                    Some(_) => {
                        let text: String = body.split_whitespace().collect();
                        STANDARD.decode(text).map_err(|_| Refusal::invalid("the outcome is not base64"))?
                    }
                    None => body.as_bytes().to_vec(),
                };
                if body.len() > limits::OUTCOME_BYTES_MAX as usize {
                    return Err(Refusal::invalid("the outcome is larger than an outcome may be"));
                }
                Ok(Verdict::Completed(Outcome {
                    status: form.number("status")?.unwrap_or(200),
                    headers: Headers::default(),
                    content_type: form.given("content_type").map(str::to_owned),
                    body: Payload(body.into()),
                    valid_until: None,
                }))
            }
            "no_effect" => Ok(Verdict::NoEffect),
            "unknown" => {
                let minutes: u64 = form.number("minutes")?.unwrap_or(15);
                let ms = minutes.saturating_mul(60_000).min(limits::CONSOLE_ASK_AGAIN_MS_MAX);
                Ok(Verdict::Unknown { check_again_at: self.node.time().plus_ms(ms) })
            }
            _ => {
                Err(Refusal::invalid("choose what the provider said: verdict must be completed, no_effect or unknown"))
            }
        }
    }
}

fn statement(text: &str) -> Result<Statement, Refusal> {
    Statement::parse("evidence", text.to_owned())
}

fn fresh_request_id() -> Uuid {
    Uuid(entropy::bytes())
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Completed(outcome) => format!("it happened, with status {}", outcome.status),
        Verdict::NoEffect => "it did not happen".to_owned(),
        Verdict::Unknown { .. } => "not known yet".to_owned(),
    }
}

fn facts(html: &mut Html, record: &Record, may_read: bool) {
    html.raw("<dl class=card>");
    fact(html, "State", |html| {
        html.raw("<strong class=state>").text(record.state.as_str()).raw("</strong>");
        if let Some(phase) = record.phase {
            html.text(", ").text(phase.as_str());
        }
    });
    fact(html, "Operation", |html| {
        html.text(&record.id.operation);
    });
    fact(html, "Key", |html| {
        html.raw("<code>").text(&record.id.key).raw("</code>");
    });
    if !record.id.principal.as_str().is_empty() {
        fact(html, "Principal", |html| {
            html.text(&record.id.principal);
        });
    }
    fact(html, "Tenant", |html| {
        html.text(&record.id.tenant);
    });
    when(html, "Since", Some(record.since));
    if let Some(reason) = &record.reason {
        fact(html, "Why", |html| {
            html.text(&reason.0);
        });
    }
    fact(html, "Owner", |html| {
        html.text("fence ").text(record.fence).text(", attempt ").text(record.attempt);
    });
    when(html, "Lease ends", record.lease_deadline);
    fact(html, "Provider's key", |html| {
        html.raw("<code>").text(&record.downstream_key).raw("</code>");
    });
    if !record.labels.is_empty() {
        fact(html, "Labels", |html| labels(html, record));
    }
    if let Some(point) = &record.checkpoint {
        fact(html, "Last checkpoint", |html| {
            html.text(point.name.as_str()).text(" ");
            content(html, &point.data.0, may_read);
        });
    }
    if let Some(investigation) = &record.investigation {
        fact(html, "Looked into by", |html| {
            html.text(&investigation.actor).text(" until ");
            moment(html, investigation.deadline);
        });
    }
    when(html, "Ask again at", record.check_again_at);
    when(html, "Completed", record.completed_at);
    when(html, "Replays until", record.replay_until);
    when(html, "Evidence until", record.evidence_until);
    if let Some(outcome) = &record.outcome {
        fact(html, "Outcome", |html| {
            html.text("status ").text(outcome.status).text(" ");
            match &outcome.body {
                Some(body) => content(html, &body.0, may_read),
                None => {
                    html.raw("<em>only its digest is kept</em>");
                }
            }
        });
    } else if record.state == StateWord::Completed {
        fact(html, "Outcome", |html| {
            html.raw("<em>not shown: it takes the permission read_outcomes</em>");
        });
    }
    html.raw("</dl>");
}

/// A caller's own bytes, for whoever may read them.
fn content(html: &mut Html, bytes: &[u8], may_read: bool) {
    if !may_read {
        html.text(bytes.len()).raw(" bytes, <em>not shown</em>");
        return;
    }
    let shown = &bytes[..bytes.len().min(limits::CONSOLE_CONTENT_BYTES_MAX)];
    match std::str::from_utf8(shown) {
        Ok(text) => html.element("<pre>", text, "</pre>"),
        Err(_) => html.element("<pre>", STANDARD.encode(shown), "</pre>"),
    };
    if shown.len() < bytes.len() {
        html.text("the first of ").text(bytes.len()).text(" bytes");
    }
}

fn happened(html: &mut Html, event: &HistoryEvent) {
    html.raw("<li>");
    moment(html, event.at);
    html.element(" <strong>", event.kind, "</strong>");
    if let Some(actor) = &event.actor {
        html.text(" by ").text(actor);
    }
    if let Some(fence) = event.fence {
        html.text(", fence ").text(fence);
    }
    if let Some(detail) = &event.detail {
        html.element("<br><span class=hint>", detail, "</span>");
    }
}
