//! What nobody knows the fate of, longest first to wait: the page to begin a day with.

use super::{
    Console,
    form::{Form, address},
    html::Html,
    page::{Page, moment, span},
    session::Session,
};
use crate::{
    auth::{Method, Scope},
    http::admin::Observed,
    id::{Operation, Tenant, Time},
    limits,
    records::record::StateWord,
    refusal::Refusal,
    service::{Calls, answer::Record, request::ListRequest},
};

impl<C: Calls, O: Observed> Console<C, O> {
    pub(super) async fn queue(&self, session: &Session, form: &Form, page: &mut Page) -> Result<(), Refusal> {
        session.caller.permit(Method::List)?;
        let tenant = Self::tenant(session, form)?;
        let operation = form.given("operation").map(Operation::parse).transpose();
        let operation = operation.map_err(|error| Refusal::invalid(format!("operation: {error}")))?;
        let request = ListRequest {
            tenant: tenant.clone(),
            principal: None,
            state: Some(StateWord::Indeterminate),
            operation,
            older_than_ms: None,
            page_size: limits::CONSOLE_PAGE_ROWS,
            cursor: form.given("cursor").map(str::to_owned),
        };
        let answer = self.calls.list(&session.caller, request).await?;
        page.heading("Reconciliation queue");
        filter(page.html(), session, tenant.as_ref(), form.text("operation"));
        if answer.records.is_empty() {
            page.html().raw("<p class=empty>Nothing is indeterminate here.</p>");
        } else {
            let html = page.html();
            html.raw("<table class=rows><thead><tr><th>For<th>Operation<th>Key<th>Why<th>Labels<th>Last checkpoint")
                .raw("<th>Blocked<th>Looked into by</thead><tbody>");
            for record in &answer.records {
                self.row(html, record);
            }
            html.raw("</tbody></table>");
        }
        if let Some(cursor) = &answer.cursor {
            let query = form_urlencoded::Serializer::new(String::new())
                .append_pair("tenant", tenant.as_ref().map_or("", Tenant::as_str))
                .append_pair("operation", form.text("operation"))
                .append_pair("cursor", cursor)
                .finish();
            page.html().raw("<p><a rel=next href=\"/console/queue?").text(query).raw("\">More</a></p>");
        }
        Ok(())
    }

    fn row(&self, html: &mut Html, record: &Record) {
        let now = self.node.time();
        html.raw("<tr><td data-name=For>").text(age(record.since, now));
        html.element("<td data-name=Operation>", &record.id.operation, "");
        html.raw("<td data-name=Key><a href=\"").text(address("/console/record", &record.id)).raw("\">");
        html.text(&record.id.key).raw("</a>");
        if !record.id.principal.as_str().is_empty() {
            html.element("<br><span class=hint>", &record.id.principal, "</span>");
        }
        html.element("<td data-name=Why>", record.reason.as_ref().map_or("", |reason| reason.0.as_str()), "");
        html.raw("<td data-name=Labels>");
        labels(html, record);
        let point = record.checkpoint.as_ref().map_or("", |point| point.name.as_str());
        html.element("<td data-name=\"Last checkpoint\">", point, "");
        html.element("<td data-name=Blocked>", self.seen.blocked_of(&record.id), "");
        html.element("<td data-name=\"Looked into by\">", record.investigation.as_ref().map_or("", |i| &i.actor), "");
    }
}

fn age(since: Time, now: Time) -> String {
    span(now.since_ms(since))
}

/// The labels of a record, one a line.
pub(super) fn labels(html: &mut Html, record: &Record) {
    for (name, value) in record.labels.as_map() {
        html.element("<span class=label>", name, ": ").text(value).raw("</span> ");
    }
}

fn filter(html: &mut Html, session: &Session, tenant: Option<&Tenant>, operation: &str) {
    html.raw("<form class=filter role=search>");
    if *session.caller.scope() == Scope::Open {
        html.raw("<label>Tenant <input name=tenant value=\"")
            .text(tenant.map_or("", Tenant::as_str))
            .raw("\"></label> ");
    }
    html.raw("<label>Operation <input name=operation value=\"").text(operation).raw("\" data-search></label> ");
    html.raw("<button>Show</button></form>");
}

/// A row of facts: a name, and what is so.
pub(super) fn fact(html: &mut Html, name: &'static str, value: impl FnOnce(&mut Html)) {
    html.element("<dt>", name, "</dt><dd>");
    value(html);
    html.raw("</dd>");
}

/// A moment as a fact, where there is one.
pub(super) fn when(html: &mut Html, name: &'static str, at: Option<Time>) {
    if let Some(at) = at {
        fact(html, name, |html| moment(html, at));
    }
}
