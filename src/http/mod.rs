//! The HTTP door: JSON over the same calls as the gRPC door, on one port with it; and the operators' port.
//!
//! [`client`] is the clients' port, [`admin`] and [`operations`] the operators', [`serve`] accepts connections for either,
//! `gate` bounds them, `connection` knows what one is doing, `frames` what came on it.
//! A body is read within bounds (`body`), its JSON becomes a message (`read`), the message is judged and asked as at the gRPC door, the
//! answer becomes JSON (`write`), a refusal a problem (`problem`).

pub mod admin;
mod body;
pub mod client;
mod connection;
mod frames;
mod gate;
mod moment;
pub mod operations;
pub(crate) mod problem;
mod read;
pub mod serve;
mod watch;
mod words;
mod write;

/// A time as JSON carries it.
pub(crate) fn moment_text(time: crate::id::Time) -> String {
    moment::write(&crate::rpc::answer::time(time))
}

/// A policy as rows: the name of a rule, what is in force, and what was set for exactly this tenant or operation.
pub(crate) fn policy_rows(answer: crate::service::answer::PolicyAnswer) -> Vec<(String, String, String)> {
    use write::ToJson;
    let json = crate::proto::v1::PolicyAnswer::from(answer).to_json();
    let (policy, overrides) = (json.member("policy"), json.member("overrides"));
    let text = |value: Option<&crate::json::Json>| match value {
        None | Some(crate::json::Json::Null) => String::new(),
        Some(crate::json::Json::String(text)) => text.clone(),
        Some(other) => other.to_text(),
    };
    let Some(crate::json::Json::Object(rules)) = policy else { return Vec::new() };
    let own = |name: &str| overrides.and_then(|overrides| overrides.member(name));
    rules.iter().map(|(name, value)| (name.clone(), text(Some(value)), text(own(name)))).collect()
}

/// A row of an audit chain as it is exported.
#[cfg(test)]
pub(crate) fn audit_line(seq: u64, row: &crate::records::state::AuditRow) -> String {
    use write::ToJson;
    crate::service::audit_event(seq, row).to_json().to_text()
}

#[cfg(test)]
mod tests;
