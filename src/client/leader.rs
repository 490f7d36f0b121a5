//! Which node is talked to. Any node takes every call and forwards it to the leader; a node that won't, names the
//! leader, and then the client goes there itself. A node that fails is left for the next one.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::{builder::is_loopback, connector::Connector, error::Error};
use crate::{
    limits,
    proto::v1::{policies_client::PoliciesClient, records_client::RecordsClient},
};

/// A client of the generated service, with its limits set.
pub(super) type Stub = RecordsClient<Channel>;

/// A node, by its address for clients.
#[derive(Debug)]
pub(super) struct Node {
    endpoint: String,
    calls: Channel,
    /// Claims that wait hold a stream each: on a connection of their own they keep no place from anything else.
    waits: Channel,
}

impl Node {
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn calls(&self) -> Stub {
        stub(self.calls.clone())
    }

    pub(super) fn policies(&self) -> PoliciesClient<Channel> {
        PoliciesClient::new(self.calls.clone())
    }

    pub(super) fn waits(&self) -> Stub {
        stub(self.waits.clone())
    }
}

fn stub(channel: Channel) -> Stub {
    RecordsClient::new(channel)
        .max_decoding_message_size(limits::CLIENT_ANSWER_BYTES_MAX)
        // The service itself refuses what is too large: its refusal says that nothing was done.
        .max_encoding_message_size(usize::MAX)
}

/// The nodes that a client knows, and the one that it talks to now.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Whether addresses outside loopback may be talked to in plaintext: not with a token.
    plaintext_anywhere: bool,
    connector: Connector,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: Vec<Arc<Node>>,
    current: usize,
}

impl Nodes {
    /// The nodes of these endpoints; nothing is connected yet.
    pub(super) fn new(endpoints: &[String], plaintext_anywhere: bool, connector: Connector) -> Result<Self, Error> {
        let mut nodes = Vec::new();
        for endpoint in endpoints {
            let (text, target) = parse(endpoint, plaintext_anywhere, &connector)?;
            nodes.push(Arc::new(node(text, &target, &connector)));
        }
        let wrong = |problem: &str| Err(Error::Configuration { option: "endpoint", problem: problem.to_owned() });
        match nodes.len() {
            0 => wrong("name at least one, like http://127.0.0.1:7171"),
            1..=limits::CLIENT_ENDPOINTS_MAX => {
                Ok(Self { plaintext_anywhere, connector, state: Mutex::new(State { nodes, current: 0 }) })
            }
            _ => wrong("more than the most that a client keeps; name some of the cluster's nodes"),
        }
    }

    /// The node to talk to now.
    pub(super) fn current(&self) -> Arc<Node> {
        let state = self.lock();
        state.nodes[state.current].clone()
    }

    pub(super) fn is_current(&self, node: &Arc<Node>) -> bool {
        let state = self.lock();
        Arc::ptr_eq(&state.nodes[state.current], node)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().nodes.len()
    }

    /// This node failed: the next one is talked to, unless somebody else has moved on already.
    pub(super) fn failed(&self, node: &Arc<Node>) {
        let mut state = self.lock();
        if Arc::ptr_eq(&state.nodes[state.current], node) {
            state.current = (state.current + 1) % state.nodes.len();
        }
    }

    /// A node said that this one leads. An address that the client would not have been built with is not followed.
    pub(super) fn follow(&self, endpoint: &str) {
        let Ok((text, target)) = parse(endpoint, self.plaintext_anywhere, &self.connector) else {
            tracing::debug!("a leader's address was not followed: it is none that this client may use");
            return;
        };
        let mut state = self.lock();
        if let Some(at) = state.nodes.iter().position(|node| node.endpoint == text) {
            state.current = at;
        } else if state.nodes.len() < limits::CLIENT_ENDPOINTS_MAX {
            state.nodes.push(Arc::new(node(text, &target, &self.connector)));
            state.current = state.nodes.len() - 1;
        }
    }

    /// Connects to the first node that can be reached.
    pub(super) async fn reach(&self) -> Result<(), Error> {
        let mut last = None;
        for _ in 0..self.len() {
            let node = self.current();
            match self.connector.connect(&target(&node.endpoint)?).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    last = Some(Error::Unreachable { endpoint: node.endpoint.clone(), detail: innermost(&error) });
                    self.failed(&node);
                }
            }
        }
        Err(last.expect("there is at least one node"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn node(endpoint: String, target: &Endpoint, connector: &Connector) -> Node {
    Node { endpoint, calls: connector.connect_lazy(target), waits: connector.connect_lazy(target) }
}

/// An endpoint's one spelling (`scheme://host:port`), and how it is connected to.
fn parse(endpoint: &str, plaintext_anywhere: bool, connector: &Connector) -> Result<(String, Endpoint), Error> {
    let wrong = |problem: String| Error::Configuration { option: "endpoint", problem };
    let trimmed = endpoint.trim().trim_end_matches('/');
    let text = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
    let uri: Uri = text.parse().map_err(|_| wrong(format!("{trimmed:?} is no address; like http://127.0.0.1:7171")))?;
    let host = uri.host().ok_or_else(|| wrong(format!("{trimmed:?} names no host; like http://127.0.0.1:7171")))?;
    match uri.scheme_str() {
        Some("http") if plaintext_anywhere || is_loopback(host) => {}
        Some("http") => {
            return Err(wrong(format!(
                "a token is not sent to {host} in plaintext; use https://, or see Builder::insecure_plaintext"
            )));
        }
        Some("https") if connector.trust.is_some() => {}
        Some("https") => return Err(wrong(format!("{trimmed:?} is encrypted: name its authority with Builder::ca"))),
        _ => return Err(wrong(format!("{trimmed:?}: begin it with http:// or https://"))),
    }
    let target = target(&text)?;
    Ok((text, target))
}

fn target(endpoint: &str) -> Result<Endpoint, Error> {
    let target = Endpoint::from_shared(endpoint.to_owned())
        .map_err(|error| Error::Configuration { option: "endpoint", problem: error.to_string() })?;
    let keep_alive = Duration::from_millis(limits::CLIENT_KEEP_ALIVE_MS);
    Ok(target
        .connect_timeout(Duration::from_millis(limits::CLIENT_CONNECT_MS))
        .tcp_nodelay(true)
        .tcp_keepalive(Some(keep_alive))
        .http2_keep_alive_interval(keep_alive)
        .keep_alive_timeout(keep_alive / 2)
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(endpoints: &[&str]) -> Nodes {
        let endpoints: Vec<String> = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
        Nodes::new(&endpoints, false, Connector::default()).unwrap()
    }

    #[tokio::test]
    async fn a_failed_node_is_left_once_however_many_saw_it_fail() {
        let nodes = nodes(&["127.0.0.1:1", "http://127.0.0.1:2/", "http://localhost:3"]);
        let first = nodes.current();
        assert_eq!(first.endpoint(), "http://127.0.0.1:1");
        nodes.failed(&first);
        nodes.failed(&first);
        assert_eq!(nodes.current().endpoint(), "http://127.0.0.1:2");
        nodes.failed(&nodes.current());
        nodes.failed(&nodes.current());
        assert!(nodes.is_current(&first), "round they go");
    }

    #[tokio::test]
    async fn a_leader_is_followed_to_addresses_that_a_token_may_go_to() {
        let nodes = nodes(&["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        nodes.follow("127.0.0.1:2");
        assert_eq!((nodes.current().endpoint(), nodes.len()), ("http://127.0.0.1:2", 2));
        nodes.follow("http://127.0.0.1:9");
        assert_eq!((nodes.current().endpoint(), nodes.len()), ("http://127.0.0.1:9", 3));
        nodes.follow("http://192.0.2.7:7171");
        nodes.follow("not an address");
        assert_eq!((nodes.current().endpoint(), nodes.len()), ("http://127.0.0.1:9", 3));
    }

    #[test]
    fn endpoints_that_cannot_work_say_why() {
        for (endpoint, hint) in [
            ("https://127.0.0.1:1", "Builder::ca"),
            ("http://192.0.2.7:1", "plaintext"),
            ("::", "address"),
            ("ftp://127.0.0.1:1", "begin it"),
        ] {
            let error = Nodes::new(&[endpoint.to_owned()], false, Connector::default()).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
        assert!(Nodes::new(&[], true, Connector::default()).is_err());
    }
}
