//! The cases, as the published list writes them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::expect::Expect;
use crate::cli::args::fresh_uuid;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    version: u32,
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<CaseText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseText {
    id: String,
    from: String,
    title: String,
    needs: Option<String>,
    steps: Vec<Step>,
}

/// A case: requests one after the other, and what is expected of each answer.
#[derive(Debug)]
pub(super) struct Case {
    pub id: String,
    pub is_of_draft: bool,
    pub title: String,
    pub needs: Option<String>,
    pub steps: Vec<Step>,
}

/// A request, or several of it at once.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub send: Send,
    #[serde(default = "once")]
    pub at_once: usize,
    pub expect: Expect,
}

fn once() -> usize {
    1
}

/// What is sent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Send {
    /// Lines of Idempotency-Key.
    pub key: Vec<String>,
    /// Other fields.
    pub fields: BTreeMap<String, String>,
    /// Which body: none for the usual, `other`, or `spelled otherwise`.
    pub body: Option<String>,
    pub content_type: Option<String>,
    pub query: Option<String>,
    /// Names of fields with capitals.
    pub title_case: bool,
}

/// The list's cases.
pub(super) fn parse(text: &str) -> Result<Vec<Case>, String> {
    let list: List = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if list.version != 1 {
        return Err(format!("version {} is not known", list.version));
    }
    let case = |CaseText { id, from, title, needs, steps }| {
        let is_of_draft = match from.as_str() {
            "draft" => true,
            "semel" => false,
            other => return Err(format!("{id}: from {other}")),
        };
        Ok(Case { id, is_of_draft, title, needs, steps })
    };
    list.cases.into_iter().map(case).collect()
}

/// Keys that nobody has used.
pub(super) struct Keys {
    one: String,
    two: String,
}

impl Keys {
    pub fn fresh() -> Self {
        Self { one: fresh_uuid().hyphenated(), two: fresh_uuid().hyphenated() }
    }

    fn put(&self, text: &str) -> String {
        let mut text = text.replace("{key}", &self.one).replace("{key2}", &self.two);
        // A key of exactly so many bytes.
        for bytes in [255, 256] {
            text = text.replace(&format!("{{bytes:{bytes}}}"), &format!("{:x<bytes$}", self.one));
        }
        text
    }
}

impl Send {
    /// The same with these keys.
    pub fn with(&self, keys: &Keys) -> Self {
        Self {
            key: self.key.iter().map(|key| keys.put(key)).collect(),
            fields: self.fields.iter().map(|(name, value)| (name.clone(), keys.put(value))).collect(),
            ..self.clone()
        }
    }
}
