//! The cluster's nodes: role, lag, clock and disk.

use super::{Console, html::Html, page::Page, session::Session};
use crate::{auth::Method, http::admin::Observed, json::Json, refusal::Refusal, service::Calls};

/// What is shown of each member, in this order.
const COLUMNS: [(&str, &str); 7] = [
    ("id", "Node"),
    ("role", "Role"),
    ("client", "Address"),
    ("matched_index", "Has the log up to"),
    ("lag", "Behind by"),
    ("clock_offset_ms", "Clock ahead by, ms"),
    ("disk_id", "Disk"),
];

impl<C: Calls, O: Observed> Console<C, O> {
    pub(super) async fn nodes(&self, session: &Session, page: &mut Page) -> Result<(), Refusal> {
        session.caller.permit(Method::ConsoleNodes)?;
        let status = self.node.status().await;
        page.heading("Nodes");
        page.refresh(10);
        let html = page.html();
        html.raw("<dl class=card>");
        if let Json::Object(members) = &status {
            for (name, value) in members.iter().filter(|(_, value)| !matches!(value, Json::Array(_) | Json::Object(_)))
            {
                html.element("<dt>", name.replace('_', " "), "</dt>").element("<dd>", shown(value), "</dd>");
            }
        }
        html.raw("</dl>");
        if let Some(Json::Array(members)) = status.member("members") {
            html.raw("<h2>Members</h2><table class=rows><thead><tr>");
            let present: Vec<_> =
                COLUMNS.iter().filter(|(name, _)| members.iter().any(|member| member.member(name).is_some())).collect();
            present.iter().for_each(|(_, title)| {
                html.element("<th>", title, "");
            });
            html.raw("</thead><tbody>");
            members.iter().for_each(|member| row(html, member, &present));
            html.raw("</tbody></table>");
        }
        Ok(())
    }
}

fn row(html: &mut Html, member: &Json, columns: &[&(&str, &str)]) {
    html.raw("<tr>");
    for (name, title) in columns {
        html.raw("<td data-name=\"").text(title).raw("\">");
        html.text(member.member(name).map(shown).unwrap_or_default());
    }
}

fn shown(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => "–".to_owned(),
        other => other.to_text(),
    }
}
