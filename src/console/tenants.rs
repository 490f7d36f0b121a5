//! Tenants, and what is allowed to them.

use super::{Console, form::Form, page::Page, session::Session};
use crate::{
    auth::{Method, Scope},
    http::admin::Observed,
    id::Operation,
    refusal::Refusal,
    service::{Calls, request::GetPolicyRequest},
};

impl<C: Calls, O: Observed> Console<C, O> {
    pub(super) async fn tenants(&self, session: &Session, form: &Form, page: &mut Page) -> Result<(), Refusal> {
        session.caller.permit(Method::GetPolicy)?;
        let tenant = Self::tenant(session, form)?;
        let operation = form.given("operation").map(Operation::parse).transpose();
        let operation = operation.map_err(|error| Refusal::invalid(format!("operation: {error}")))?;
        page.heading("Tenants and policies");
        if *session.caller.scope() == Scope::Open {
            let html = page.html();
            html.raw("<ul>");
            for name in self.node.tenants() {
                html.raw("<li><a href=\"/console/tenants?tenant=").text(&name).raw("\">").text(&name).raw("</a>");
            }
            html.raw("</ul>");
        }
        let request = GetPolicyRequest { tenant: tenant.clone(), operation };
        let answer = self.calls.get_policy(&session.caller, request).await?;
        let html = page.html();
        html.raw("<form class=filter>");
        if let Some(tenant) = &tenant {
            html.raw("<input type=hidden name=tenant value=\"").text(tenant.as_str()).raw("\">");
            html.element("<h2>", tenant.as_str(), "</h2>");
        }
        html.raw("<label>Operation <input name=operation value=\"").text(form.text("operation"));
        html.raw("\" data-search></label> <button>Show</button></form><table class=rows><thead><tr><th>Rule<th>In force<th>Set here</thead><tbody>");
        for (name, value, own) in crate::http::policy_rows(answer) {
            html.element("<tr><td data-name=Rule>", name, "").element("<td data-name=\"In force\">", value, "");
            html.element("<td data-name=\"Set here\">", own, "");
        }
        html.raw("</tbody></table><p class=hint>Policies are changed by <code>semel policy set</code>.</p>");
        Ok(())
    }
}
