//! What is expected of answers.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Reply;
use crate::json::Json;

/// Statuses: a class such as `2xx`, or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Statuses {
    Class(String),
    These(Vec<u16>),
}

impl Statuses {
    fn fit(&self, status: u16) -> bool {
        match self {
            Statuses::Class(class) => class.strip_suffix("xx") == Some((status / 100).to_string().as_str()),
            Statuses::These(these) => these.contains(&status),
        }
    }

    fn text(&self) -> String {
        match self {
            Statuses::Class(class) => class.clone(),
            Statuses::These(these) => these.iter().map(u16::to_string).collect::<Vec<_>>().join(" or "),
        }
    }
}

/// What is expected of a step's answers. What isn't named is not looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Expect {
    status: Option<Statuses>,
    /// Status and body are those of this step's answer, from 1.
    same_as: Option<usize>,
    /// The body is another than this step's.
    differs_from: Option<usize>,
    /// Fields that are those of the step in `same_as`.
    same_fields: Vec<String>,
    fields: BTreeMap<String, String>,
    /// Fields that are not there.
    without: Vec<String>,
    /// Members of the JSON body.
    members: Vec<String>,
    /// Of several at once: one has such a status, the others are like it to the byte, or have one of `others`.
    one_of_them: Option<Statuses>,
    others: Option<Statuses>,
    /// Several at once are alike to the byte.
    all_same: bool,
}

impl Expect {
    /// Judges the answers of a step, after those of the steps before.
    pub fn judge(&self, replies: &[Reply], before: &[Reply]) -> Result<(), String> {
        if let Some(wanted) = &self.one_of_them {
            let first = replies.iter().find(|reply| wanted.fit(reply.status));
            let first = first.ok_or_else(|| format!("none of them was answered with {}", wanted.text()))?;
            let is_other = |reply: &&Reply| {
                !is_same(reply, first) && !self.others.as_ref().is_some_and(|others| others.fit(reply.status))
            };
            return match replies.iter().find(is_other) {
                Some(reply) => Err(format!("its twin was answered with {}: two executions?", reply.status)),
                None => Ok(()),
            };
        }
        let Some(reply) = replies.first() else { return Ok(()) };
        if self.all_same && !replies.iter().all(|other| is_same(other, reply)) {
            let statuses: Vec<_> = replies.iter().map(|reply| reply.status.to_string()).collect();
            return Err(format!("the answers differ: {}", statuses.join(", ")));
        }
        self.judge_one(reply, before)
    }

    fn judge_one(&self, reply: &Reply, before: &[Reply]) -> Result<(), String> {
        if let Some(wanted) = self.status.as_ref().filter(|wanted| !wanted.fit(reply.status)) {
            return Err(format!("answered with {}, expected {}", reply.status, wanted.text()));
        }
        let earlier = |step: usize| before.get(step - 1).ok_or_else(|| format!("there is no step {step} before"));
        if let Some(step) = self.same_as {
            let first = earlier(step)?;
            if !is_same(reply, first) {
                return Err(format!(
                    "answered with {}, and not as step {step}: it ran again, or was refused",
                    reply.status
                ));
            }
            for name in &self.same_fields {
                if reply.fields.get(name) != first.fields.get(name) {
                    return Err(format!("{name} is another than in step {step}"));
                }
            }
        }
        if let Some(step) = self.differs_from
            && reply.body == earlier(step)?.body
        {
            return Err(format!("answered as step {step}: it did not run"));
        }
        for (name, wanted) in &self.fields {
            let found = reply.fields.get(name).and_then(|value| value.to_str().ok());
            // Parameters of a media type, and further directives, don't matter here.
            let fits = found.is_some_and(|found| found.split([';', ',']).any(|part| part.trim() == wanted));
            if !fits {
                return Err(format!("{name} is {}, expected {wanted}", found.unwrap_or("absent")));
            }
        }
        if let Some(name) = self.without.iter().find(|name| reply.fields.contains_key(name.as_str())) {
            return Err(format!("{name} is there"));
        }
        if self.members.is_empty() {
            return Ok(());
        }
        let json = Json::parse(&reply.body).map_err(|error| format!("the body is no JSON: {error}"))?;
        match self.members.iter().find(|name| json.member(name).is_none()) {
            Some(name) => Err(format!("the body has no member {name}")),
            None => Ok(()),
        }
    }
}

fn is_same(one: &Reply, other: &Reply) -> bool {
    one.status == other.status && one.body == other.body
}
