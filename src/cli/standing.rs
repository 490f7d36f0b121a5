//! How a cluster stands: every node that can be learnt of is asked, and what they say is put side by side.

use std::{collections::BTreeMap, time::Duration};

use crate::json::Json;

use super::{
    args::Connection,
    call::{Answer, Node},
    failure::Failure,
    show,
};

/// How long one node may take to say how it is.
const STATUS_LIMIT: Duration = Duration::from_secs(3);

/// What the nodes said of themselves.
pub(super) struct Standing {
    /// The first that answered.
    first: Answer,
    /// By their ids.
    own: BTreeMap<u64, Json>,
}

impl Standing {
    /// Asks, and prints what was learnt.
    pub(super) fn ask(connection: &Connection) -> Result<(), Failure> {
        let standing = Self::of(connection)?;
        if connection.json {
            println!("{}", standing.best().to_text());
        } else {
            print!("{}", standing.text());
        }
        Ok(())
    }

    /// The operators' port of a member, where a node knows it.
    pub(super) fn admin_endpoint(id: u64, connection: &Connection) -> Result<Option<String>, Failure> {
        let standing = Self::of(connection)?;
        Ok(admin_of(&standing.first.json, id).map(|address| connection.at(&address).endpoint))
    }

    /// The operators' port of whoever leads, where a node knows it.
    pub(super) fn leader_endpoint(connection: &Connection) -> Result<Option<String>, Failure> {
        let standing = Self::of(connection)?;
        let leader = show::member(standing.best(), "leader_id");
        let leader = leader.parse().ok();
        Ok(leader.and_then(|id| admin_of(&standing.first.json, id)).map(|address| connection.at(&address).endpoint))
    }

    /// The same, of several endpoints the first that answers.
    pub(super) fn first_of(connection: &Connection) -> Connection {
        let mut endpoints = connection.endpoint.split(',').map(str::trim);
        let one = |endpoint: &str| Connection { endpoint: endpoint.to_owned(), ..connection.clone() };
        let Some(first) = endpoints.next().filter(|first| *first != connection.endpoint) else {
            return connection.clone();
        };
        let answers = |endpoint: &str| {
            Node::of(&one(endpoint)).and_then(|node| node.within(STATUS_LIMIT).get("/v1/status")).is_ok()
        };
        let found = std::iter::once(first).chain(endpoints).find(|endpoint| answers(endpoint));
        one(found.unwrap_or(first))
    }

    /// Whether some node says who leads.
    pub(super) fn has_leader(connection: &Connection) -> bool {
        Self::of(connection).is_ok_and(|standing| !show::member(standing.best(), "leader_id").is_empty())
    }

    fn of(connection: &Connection) -> Result<Self, Failure> {
        let endpoints: Vec<&str> = connection.endpoint.split(',').map(str::trim).collect();
        let status = |endpoint: &str| {
            let one = Connection { endpoint: endpoint.to_owned(), ..connection.clone() };
            Node::of(&one)?.within(STATUS_LIMIT).get("/v1/status")
        };
        let (mut first, mut last) = (None, None);
        for endpoint in endpoints {
            match status(endpoint) {
                Ok(answer) => {
                    first = Some(answer);
                    break;
                }
                Err(failure @ Failure::Usage(_)) => return Err(failure),
                Err(failure) => last = Some(failure),
            }
        }
        let Some(first) = first else { return Err(last.expect("a list of endpoints has one at least")) };
        let mut own = BTreeMap::new();
        own.extend(number(&first.json, "node_id").map(|id| (id, first.json.clone())));
        for id in members(&first.json).iter().filter_map(|member| number(member, "id")) {
            let Some(address) = admin_of(&first.json, id).filter(|_| !own.contains_key(&id)) else { continue };
            let answered = status(&connection.at(&address).endpoint).map(|answer| answer.json);
            // An address of loopback is another node's on another machine.
            if let Some(json) = answered.ok().filter(|json| number(json, "node_id") == Some(id)) {
                own.insert(id, json);
            }
        }
        Ok(Self { first, own })
    }

    /// The most that is known: what the leader says, if it could be asked.
    fn best(&self) -> &Json {
        let leads = |status: &&Json| show::member(status, "role") == "leader";
        // An old leader that is cut off may believe in itself for a while: the higher term counts.
        let newest =
            self.own.values().filter(leads).max_by_key(|status| show::member(status, "term").parse::<u64>().ok());
        newest.unwrap_or(&self.first.json)
    }

    fn text(&self) -> String {
        let best = self.best();
        let mut text = String::new();
        for (name, path) in [
            ("cluster", "cluster_id"),
            ("leader", "leader_id"),
            ("term", "term"),
            ("committed", "committed"),
            ("position", "position"),
            ("records", "records"),
            ("store", "store"),
        ] {
            let value = show::member(best, path);
            let value = if value.is_empty() { "none".to_owned() } else { value };
            text += &format!("{name:9}  {value}\n");
        }
        let headings =
            ["NODE", "ROLE", "STATE", "TERM", "LOG", "LAG", "CLOCK ms", "DISK B", "FREE B", "DISK ID", "CLIENTS"];
        let rows: Vec<Vec<String>> = members(best).iter().map(|member| self.row(member)).collect();
        if rows.is_empty() {
            text += "\nThe node is in no cluster yet: semel cluster init\n";
        } else {
            text += &format!("\n{}", show::table(&headings, &rows));
        }
        text
    }

    /// A member: what it says of itself goes before what others know of it.
    fn row(&self, member: &Json) -> Vec<String> {
        let own = number(member, "id").and_then(|id| self.own.get(&id));
        let said = |path: &str| own.map(|own| show::member(own, path)).filter(|text| !text.is_empty());
        let known = |path: &str| show::member(member, path);
        let either = |path: &str| said(path).unwrap_or_else(|| known(path));
        let state = match known("state") {
            state if state.is_empty() && own.is_some() => "ok".to_owned(),
            state => state,
        };
        // It does its part as long as it can, and takes nothing on.
        let state = if either("disk_is_full") == "true" { format!("{state}, disk full") } else { state };
        vec![
            known("id"),
            known("role"),
            state,
            either("term"),
            either("last_log"),
            known("lag"),
            known("clock_offset_ms"),
            either("disk_bytes"),
            either("disk_free_bytes"),
            known("disk_id"),
            known("client"),
        ]
    }
}

fn members(status: &Json) -> &[Json] {
    match status.member("members") {
        Some(Json::Array(members)) => members,
        _ => &[],
    }
}

fn number(value: &Json, name: &str) -> Option<u64> {
    show::member(value, name).parse().ok()
}

fn admin_of(status: &Json, id: u64) -> Option<String> {
    let found = members(status).iter().find(|member| number(member, "id") == Some(id))?;
    Some(show::member(found, "admin")).filter(|address| !address.is_empty())
}
