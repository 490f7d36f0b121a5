//! What a browser sends: the fields of a form, or of an address.

use std::{collections::BTreeMap, time::Duration};

use axum::extract::Request;
use http::{Uri, header};

use crate::{
    id::{Key, Operation, Position, Principal, Tenant},
    limits,
    refusal::{Code, Refusal},
    service::request::RecordName,
};

/// Fields by name. Of two with one name neither counts: two readers would read two forms.
#[derive(Debug, Default)]
pub(super) struct Form(BTreeMap<String, Option<String>>);

impl Form {
    fn parse(bytes: &[u8]) -> Self {
        let mut fields = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(bytes) {
            let value = Some(value.into_owned());
            fields.entry(name.into_owned()).and_modify(|known| *known = None).or_insert(value);
        }
        Self(fields)
    }

    /// The fields of an address.
    pub fn of_query(uri: &Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }

    /// Whether a request has a form for a body.
    pub fn is_sent(request: &Request) -> bool {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.is_some_and(|kind| kind.split(';').next() == Some("application/x-www-form-urlencoded"))
    }

    /// The fields of a form that was sent.
    pub async fn read(request: Request) -> Result<Self, Refusal> {
        if !Self::is_sent(&request) {
            return Err(Refusal::invalid("the body must be a form (application/x-www-form-urlencoded)"));
        }
        let too_large = || Refusal::new(Code::RequestTooLarge, "the form is too large, or broke off");
        let whole = axum::body::to_bytes(request.into_body(), limits::CONSOLE_FORM_BYTES_MAX);
        let body = tokio::time::timeout(Duration::from_millis(limits::BODY_IDLE_MS), whole).await;
        Ok(Self::parse(&body.map_err(|_| too_large())?.map_err(|_| too_large())?))
    }

    /// A field; empty where there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Option::as_deref).unwrap_or_default()
    }

    /// A field that is there and not empty.
    pub fn given(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// A number.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, Refusal> {
        let Some(text) = self.given(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| Refusal::invalid(format!("{name} must be a number")))
    }

    /// The version of the record that was looked at.
    pub fn version(&self) -> Result<Position, Refusal> {
        self.number("version")?.map(Position).ok_or_else(|| Refusal::invalid("version is missing"))
    }

    /// The record that is named.
    pub fn record(&self, tenant: Option<Tenant>) -> Result<RecordName, Refusal> {
        let bad = |field: &'static str| move |error| Refusal::invalid(format!("{field}: {error}"));
        Ok(RecordName {
            tenant,
            principal: Principal::parse(self.text("principal")).map_err(bad("principal"))?,
            operation: Operation::parse(self.text("operation")).map_err(bad("operation"))?,
            key: Key::parse(self.text("key")).map_err(bad("key"))?,
        })
    }
}

/// The address of a page about a record.
pub(super) fn address(path: &str, record: &crate::id::RecordId) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("tenant", record.tenant.as_str());
    query.append_pair("principal", record.principal.as_str());
    query.append_pair("operation", record.operation.as_str());
    query.append_pair("key", record.key.as_str());
    format!("{path}?{}", query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_fields_with_one_name_neither_counts() {
        let form = Form::parse(b"a=1&b=x+y%26&a=2&c=");
        assert_eq!((form.text("a"), form.text("b"), form.given("c"), form.given("d")), ("", "x y&", None, None));
    }
}
