//! What can be seen of the nodes from outside: a thread that forms their cluster, once, and then looks at each now and then.

use std::{fmt, thread, time::Duration};

use tokio::sync::mpsc;

use super::layout::Node;
use crate::{
    auth::TokenText,
    cli::{call, failure::Failure},
    json::Json,
    limits,
};

/// Something that is worth a line.
pub(super) enum Seen {
    /// The cluster is there; formed by us, or before.
    Formed { id: String, created: bool },
    /// Forming it was refused, so far.
    Unformed { why: String },
    /// A node takes claims.
    Ready { id: u64 },
    /// A node leads.
    Leads { id: u64, term: String },
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Formed { id, created: true } => write!(f, "cluster {id} is formed"),
            Seen::Formed { id, created: false } => write!(f, "cluster {id} is back"),
            Seen::Unformed { why } => write!(f, "the cluster is not formed yet: {why}"),
            Seen::Ready { id } => write!(f, "node {id} is ready"),
            Seen::Leads { id, term } => write!(f, "node {id} leads in term {term}"),
        }
    }
}

/// Starts looking. The thread ends when nobody listens any more, or with the process.
pub(super) fn start(nodes: Vec<Node>, way: Way) -> mpsc::Receiver<Seen> {
    let (sender, seen) = mpsc::channel(limits::DEV_EVENTS_MAX);
    thread::spawn(move || {
        let nodes: Vec<Looked> = nodes.into_iter().map(|node| Looked { node, way: way.clone() }).collect();
        let _ = watch(&nodes, &sender);
    });
    seen
}

/// How nodes are spoken to.
#[derive(Clone)]
pub(super) struct Way {
    /// Who certifies their ports, where those are encrypted.
    pub ca: Option<String>,
    /// The token that their cluster is formed with, if any.
    pub first_token: Option<TokenText>,
}

/// A node, and how it is looked at.
struct Looked {
    node: Node,
    way: Way,
}

/// Nobody listens any more.
struct Unheard;

fn watch(nodes: &[Looked], seen: &mpsc::Sender<Seen>) -> Result<(), Unheard> {
    let tell = |event| seen.blocking_send(event).map_err(|_| Unheard);
    let pause = || thread::sleep(Duration::from_millis(limits::DEV_LOOK_MS));
    let mut said = String::new();
    loop {
        match formed(nodes) {
            Forming::Done(event) => {
                tell(event)?;
                break;
            }
            Forming::NotYet => {}
            Forming::Refused(why) if why != said => {
                said.clone_from(&why);
                tell(Seen::Unformed { why })?;
            }
            Forming::Refused(_) => {}
        }
        pause();
    }
    let mut ready = vec![false; nodes.len()];
    let mut leads = None;
    loop {
        for (node, was_ready) in nodes.iter().zip(&mut ready) {
            let is_ready = is_ready(node);
            if is_ready && !*was_ready {
                tell(Seen::Ready { id: node.node.id })?;
            }
            *was_ready = is_ready;
            let Some(status) = ask(node, "/v1/status") else { continue };
            if text(&status, "role") == "leader" {
                let now = (node.node.id, text(&status, "term"));
                // An old leader that is cut off may believe in itself for a while: the higher term counts.
                let is_newer = leads.as_ref().is_none_or(|(_, term): &(u64, String)| number(&now.1) > number(term));
                if is_newer {
                    leads = Some(now.clone());
                    tell(Seen::Leads { id: now.0, term: now.1 })?;
                }
            }
        }
        if seen.is_closed() {
            return Err(Unheard);
        }
        pause();
    }
}

enum Forming {
    Done(Seen),
    NotYet,
    Refused(String),
}

/// Forms the cluster through node 1, once every node is there and none of them is in one. Where one is, it is that
/// cluster: nothing is formed beside it.
fn formed(nodes: &[Looked]) -> Forming {
    let statuses: Vec<Option<Json>> = nodes.iter().map(|node| ask(node, "/v1/status")).collect();
    let known = statuses.iter().flatten().map(|status| text(status, "cluster_id")).find(|id| !id.is_empty());
    if let Some(id) = known {
        return Forming::Done(Seen::Formed { id, created: false });
    }
    if statuses.iter().any(Option::is_none) {
        return Forming::NotYet;
    }
    let member = |Looked { node, .. }: &Looked| {
        let addresses =
            Json::object([("peer", node.peer_listen.as_str().into()), ("client", node.listen.as_str().into())]);
        (node.id.to_string(), addresses)
    };
    let Some(first) = nodes.first() else { return Forming::NotYet };
    let token = first.way.first_token.as_ref().map(|token| ("token", Json::String(token.reveal())));
    let founders = ("nodes", Json::object(nodes.iter().map(member)));
    let request = Json::object([founders].into_iter().chain(token));
    match door(first).and_then(|door| door.post("/v1/admin/init", &request, limits::CLUSTER_CHANGE_MS)) {
        Ok(answer) => {
            let created = answer.json.member("created") == Some(&Json::Bool(true));
            Forming::Done(Seen::Formed { id: text(&answer.json, "cluster_id"), created })
        }
        Err(Failure::Refused { problem, .. } | Failure::Unavailable { problem, .. }) => {
            Forming::Refused(text(&problem, "detail"))
        }
        Err(Failure::Unreachable(why)) => Forming::Refused(why),
        Err(_) => Forming::NotYet,
    }
}

fn is_ready(node: &Looked) -> bool {
    door(node).is_ok_and(|door| door.is_ready())
}

fn ask(node: &Looked, path: &str) -> Option<Json> {
    door(node).and_then(|door| door.get(path)).ok().map(|answer| answer.json)
}

fn door(Looked { node, way: Way { ca, .. } }: &Looked) -> Result<call::Node, Failure> {
    let scheme = if ca.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", node.admin_listen);
    call::Node::plain(&endpoint, ca.clone(), Duration::from_millis(limits::DEV_ANSWER_MS))
}

fn text(json: &Json, name: &str) -> String {
    json.member(name).and_then(Json::as_str).unwrap_or_default().to_owned()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}
