//! Forming a cluster, changing it, and how it is. Any node takes these: what only the leader can do is asked of it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};

use crate::{
    json::{Json, Number},
    limits,
};

use super::{
    args::{AdminConnection, Connection, Members},
    call::{Answer, Node},
    failure::Failure,
    records::print,
    standing::Standing,
    token::kept_or_drawn,
};

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Form the cluster, once. Asked again with the same nodes it is done already.
    #[command(after_help = "Examples:
  semel cluster init --node 1=10.0.0.1:7172,10.0.0.1:7171
  semel cluster init --admin-endpoint http://10.0.0.1:7173 --node 1=10.0.0.1:7172,10.0.0.1:7171 \\
    --node 2=10.0.0.2:7172,10.0.0.2:7171 --node 3=10.0.0.3:7172,10.0.0.3:7171
  semel cluster init --admin-token-file admin.token --node 1=…     (the token that makes all others)

Every node must run and be in no cluster yet. Asked for two clusters at once, at most one is formed.")]
    Init {
        /// A member: ID=PEER_ADDRESS,CLIENT_ADDRESS. Once for each.
        #[arg(long = "node", required = true, value_name = "ID=PEER,CLIENT", value_parser = member)]
        nodes: Vec<Member>,
        /// Make a token with `cluster` and write it to this file; one that is there already is used again.
        #[arg(long, value_name = "FILE")]
        admin_token_file: Option<PathBuf>,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// What each node is, and how far its log, its disk and its clock have come.
    #[command(after_help = "Example: semel cluster status --json")]
    Status {
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Add a node: it learns, and does not vote yet. It must run and be in no cluster.
    #[command(
        after_help = "Example: semel cluster add 4=10.0.0.4:7172,10.0.0.4:7171    (then: semel cluster promote 4)"
    )]
    Add {
        /// The node: ID=PEER_ADDRESS,CLIENT_ADDRESS. An id that was ever used can't be used again.
        #[arg(value_name = "ID=PEER,CLIENT", value_parser = member)]
        node: Member,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Have a learner vote, once it has nearly all of the log.
    #[command(after_help = "Example: semel cluster promote 4 --timeout 5m")]
    Promote {
        /// Its id.
        #[arg(value_name = "ID")]
        id: u64,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Take a node out for good. Its process ends; its id is never used again.
    #[command(after_help = "Example: semel cluster remove 2")]
    Remove {
        #[command(flatten)]
        which: Forcible,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Have a node go on with another disk, perhaps on another machine, after it has lost its own.
    #[command(after_help = "Examples:
  semel cluster replace 2
  semel cluster replace 2 --node 2=10.0.0.9:7172,10.0.0.9:7171

Whatever the node holds is put aside, never deleted.")]
    Replace {
        #[command(flatten)]
        which: Forcible,
        /// Where it is from now on.
        #[arg(long, value_name = "ID=PEER,CLIENT", value_parser = member)]
        node: Option<Member>,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Have another node lead.
    #[command(after_help = "Example: semel cluster transfer 3")]
    Transfer {
        /// Its id.
        #[arg(value_name = "ID")]
        id: u64,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Say that nothing can come any more of what the old cluster granted after the backup.
    #[command(after_help = "Example: semel cluster end-doubt")]
    EndDoubt {
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// Take a snapshot now, verify it, and purge the log as the rule allows.
    #[command(after_help = "Example: semel cluster snapshot 2")]
    Snapshot {
        /// Of this node. Default: the one that is asked.
        #[arg(value_name = "ID")]
        id: Option<u64>,
        #[command(flatten)]
        connection: AdminConnection,
    },
}

/// A node, and whether what protects the cluster is to be passed by.
#[derive(Debug, Args)]
pub(super) struct Forcible {
    /// Its id.
    #[arg(value_name = "ID")]
    id: u64,
    /// Although the cluster would have too few live members, or the old disk was seen a moment ago.
    #[arg(long)]
    force: bool,
}

impl Forcible {
    fn members(&self) -> Members {
        let mut members = id_member(self.id);
        members.flag("force", self.force);
        members
    }
}

/// A member as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    id: u64,
    peer: String,
    client: String,
}

/// `ID=PEER,CLIENT`.
pub(super) fn member(text: &str) -> Result<Member, String> {
    let rule = || "write ID=PEER_ADDRESS,CLIENT_ADDRESS, such as 1=10.0.0.1:7172,10.0.0.1:7171".to_owned();
    let (id, addresses) = text.split_once('=').ok_or_else(rule)?;
    let (peer, client) = addresses.split_once(',').ok_or_else(rule)?;
    let id = crate::id::parse_decimal(id).filter(|id| *id > 0).ok_or_else(rule)?;
    let is_address = |text: &str| text.rsplit_once(':').is_some_and(|(h, p)| !h.is_empty() && p.parse::<u16>().is_ok());
    if !is_address(peer) || !is_address(client) || client.contains(',') {
        return Err(rule());
    }
    Ok(Member { id, peer: peer.to_owned(), client: client.to_owned() })
}

impl Member {
    /// Its id.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Where clients reach it.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    /// As a request names it, by its id.
    pub(super) fn json(&self) -> Json {
        Json::object([("peer", self.peer.as_str().into()), ("client", self.client.as_str().into())])
    }

    fn members(&self) -> Members {
        let mut members = id_member(self.id);
        members.text("peer", &self.peer);
        members.text("client", &self.client);
        members
    }
}

fn id_member(id: u64) -> Members {
    let mut members = Members::default();
    let number = Number::parse(&id.to_string()).expect("an integer is a JSON number");
    members.value("id", Json::Number(number));
    members
}

impl ClusterCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            ClusterCommand::Init { nodes, admin_token_file, connection } => {
                init(&nodes, admin_token_file.as_deref(), &connection.connection())
            }
            ClusterCommand::Status { connection } => Standing::ask(&connection.connection()),
            ClusterCommand::Add { node, connection } => {
                change(&connection.connection(), "add", node.members(), limits::CLUSTER_CHANGE_MS)
            }
            ClusterCommand::Promote { id, connection } => {
                change(&connection.connection_for(limits::CLUSTER_CATCH_UP_MS), "promote", id_member(id), 0)
            }
            ClusterCommand::Remove { which, connection } => {
                change(&connection.connection(), "remove", which.members(), limits::CLUSTER_CHANGE_MS)
            }
            ClusterCommand::Replace { which, node, connection } => {
                let mut members = which.members();
                if let Some(node) = node {
                    if node.id != which.id {
                        return Err(Failure::Usage("a replaced node keeps its id".to_owned()));
                    }
                    members.value("node", node.members().json());
                }
                change(&connection.connection_for(limits::CLUSTER_CATCH_UP_MS), "replace", members, 0)
            }
            ClusterCommand::Transfer { id, connection } => {
                change(&connection.connection(), "transfer", id_member(id), limits::CLUSTER_CHANGE_MS)
            }
            ClusterCommand::EndDoubt { connection } => {
                change(&connection.connection(), "end_doubt", Members::default(), 0)
            }
            ClusterCommand::Snapshot { id, connection } => snapshot(id, &connection.connection()),
        }
    }
}

fn init(nodes: &[Member], token_file: Option<&Path>, connection: &Connection) -> Result<(), Failure> {
    let mut ids: Vec<u64> = nodes.iter().map(|node| node.id).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|two| two[0] == two[1]) {
        return Err(Failure::Usage("each --node needs an id of its own".to_owned()));
    }
    let connection = &Standing::first_of(connection);
    let mut members = Members::default();
    members.value("nodes", Json::object(nodes.iter().map(|node| (node.id.to_string(), node.json()))));
    let drawn = token_file.filter(|path| !path.exists());
    if let Some(path) = token_file {
        members.text("token", &kept_or_drawn(path)?.reveal());
    }
    let answer = Node::of(connection)?.post("/v1/admin/init", &members.json(), limits::CLUSTER_CHANGE_MS)?;
    print(connection, &answer);
    match drawn {
        // Whoever formed it has the first token; one that was drawn now opens nothing.
        Some(path) if answer.json.member("created") == Some(&Json::Bool(false)) => {
            let _ = std::fs::remove_file(path);
            let text = format!("the cluster was formed before, with another token; {} is not made", path.display());
            Err(Failure::Failed(anyhow::anyhow!(text)))
        }
        _ => Ok(()),
    }
}

/// Asks for a change. One that is refused for now (a learner that is far behind, no leader) is asked for again until the
/// time is over; what keeps it back is told meanwhile.
fn change(connection: &Connection, verb: &str, members: Members, wait_ms: u32) -> Result<(), Failure> {
    let connection = &Standing::first_of(connection);
    let once = Connection { timeout: 0, ..connection.clone() };
    let (node, path, request) = (Node::of(&once)?, format!("/v1/admin/{verb}"), members.json());
    let until = Instant::now() + Duration::from_millis(u64::from(connection.timeout));
    let wait_ms = if wait_ms == 0 { connection.timeout.max(limits::CLUSTER_CHANGE_MS) } else { wait_ms };
    let mut said = String::new();
    loop {
        let (why, failure) = match node.post(&path, &request, wait_ms) {
            Ok(answer) => {
                print(connection, &answer);
                return Ok(());
            }
            Err(failure @ Failure::Unavailable { .. }) => (failure.text(), failure),
            Err(failure) => return Err(failure),
        };
        if Instant::now() + RETRY_PAUSE >= until {
            return Err(given_up(connection, verb, failure));
        }
        if why != said {
            eprintln!("{why}");
            said = why;
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Why a change did not come about in time. A node that has yet to catch up is refused by a leader that is there: the
/// cluster is reachable, and status 3 would say that it isn't.
fn given_up(connection: &Connection, verb: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Unavailable { problem, as_json }
            if (verb == "promote" || verb == "replace") && Standing::has_leader(connection) =>
        {
            Failure::Refused { problem, as_json }
        }
        failure => failure,
    }
}

/// The pause before a change that is refused for now is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

fn snapshot(id: Option<u64>, connection: &Connection) -> Result<(), Failure> {
    let connection = &Standing::first_of(connection);
    let members = id.map_or_else(Members::default, id_member);
    let answer = match id {
        None => Node::of(connection)?.post("/v1/admin/snapshot", &members.json(), limits::CLUSTER_CATCH_UP_MS),
        Some(id) => at_node(id, connection, &members.json()),
    }?;
    print(connection, &answer);
    Ok(())
}

/// Asks the node itself: a snapshot is its own affair.
fn at_node(id: u64, connection: &Connection, request: &Json) -> Result<Answer, Failure> {
    let post = |connection: &Connection| {
        Node::of(connection)?.post("/v1/admin/snapshot", request, limits::CLUSTER_CATCH_UP_MS)
    };
    match Standing::admin_endpoint(id, connection)? {
        Some(endpoint) => post(&Connection { endpoint, ..connection.clone() }),
        // The one that was named may be it; if not, it says so.
        None => post(connection),
    }
}
