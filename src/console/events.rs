//! What may point at a second effect: fences that were not the current one, and requests that don't match.

use super::{
    Console,
    form::{Form, address},
    page::{Page, moment},
    session::Session,
};
use crate::{
    auth::Method,
    http::admin::Observed,
    limits,
    refusal::Refusal,
    service::{
        Calls,
        answer::{AuditAnswer, AuditEvent},
        request::AuditRequest,
    },
};

impl<C: Calls, O: Observed> Console<C, O> {
    pub(super) async fn events(&self, session: &Session, form: &Form, page: &mut Page) -> Result<(), Refusal> {
        let tenant = Self::tenant(session, form)?;
        // The newest page: how far the chain reaches is asked first.
        let rows = limits::CONSOLE_PAGE_ROWS;
        let ask = |from_seq, page_size| {
            self.calls.audit(&session.caller, AuditRequest { tenant: tenant.clone(), from_seq, page_size })
        };
        session.caller.permit(Method::Audit)?;
        let end = match form.number("before")? {
            Some(before) => before,
            None => ask(u64::MAX, 1).await?.head.map_or(0, |head| head.seq) + 1,
        };
        let from: u64 = end.saturating_sub(u64::from(rows)).max(1);
        let only = form.text("kind");
        let answer: AuditAnswer = ask(from, rows).await?;
        page.heading("Events");
        if let Some(tenant) = &tenant {
            let conflicts = self.seen.conflicts(tenant);
            let html = page.html();
            html.raw("<h2>Conflicts seen by this node</h2>");
            if conflicts.is_empty() {
                html.raw("<p class=empty>None: every repeated key came with its own request.</p>");
            } else {
                html.raw("<table class=rows><thead><tr><th>When<th>Operation<th>Key<th>By</thead><tbody>");
                for conflict in conflicts.iter().take(rows as usize) {
                    html.raw("<tr><td data-name=When>");
                    moment(html, conflict.at);
                    html.element(
                        "<td data-name=Operation>",
                        &conflict.record.operation,
                        "<td data-name=Key><a href=\"",
                    );
                    html.text(address("/console/record", &conflict.record)).raw("\">");
                    html.element("", &conflict.record.key, "</a>").element("<td data-name=By>", &conflict.actor, "");
                }
                html.raw("</tbody></table>");
            }
        }
        let html = page.html();
        html.raw("<h2>Audit</h2><form class=filter><label>Kind <input name=kind value=\"").text(only);
        html.raw("\" placeholder=stale_fence data-search></label> <button>Show</button></form>");
        html.raw("<table class=rows><thead><tr><th>Row<th>When<th>What<th>By<th>Record<th>Detail</thead><tbody>");
        let wanted = |event: &&AuditEvent| event.seq < end && (only.is_empty() || event.kind.as_str() == only);
        for event in answer.events.iter().rev().filter(wanted) {
            html.element("<tr><td data-name=Row>", event.seq, "<td data-name=When>");
            moment(html, event.at);
            html.element("<td data-name=What>", event.kind.as_str(), "");
            html.element("<td data-name=By>", event.actor.as_deref().unwrap_or_default(), "<td data-name=Record>");
            if let Some(record) = event.record {
                html.element("<code>", record, "</code>");
            }
            html.element("<td data-name=Detail>", event.detail.as_deref().unwrap_or_default(), "");
        }
        html.raw("</tbody></table>");
        if from > 1 {
            html.raw("<p><a rel=next href=\"/console/events?before=").text(from);
            if let Some(tenant) = &tenant {
                html.text("&tenant=").text(tenant.as_str());
            }
            html.text("&kind=").text(form_urlencoded::byte_serialize(only.as_bytes()).collect::<String>());
            html.raw("\">Older</a></p>");
        }
        Ok(())
    }
}
