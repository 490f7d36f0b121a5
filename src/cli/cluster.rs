//! Forming a cluster, and how it is.

use clap::Subcommand;

use crate::json::Json;

use super::{
    args::{AdminConnection, Members},
    call::Node,
    failure::Failure,
    records::print,
    show,
};

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Form the cluster, once. Asked again with the same nodes it is done already.
    #[command(after_help = "Example: semel cluster init --node 1=10.0.0.1:7172,10.0.0.1:7171")]
    Init {
        /// A member: ID=PEER_ADDRESS,CLIENT_ADDRESS.
        #[arg(long = "node", required = true, value_name = "ID=PEER,CLIENT", value_parser = member)]
        nodes: Vec<Member>,
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// End the doubt of a restore: nothing is missing any more. Records that are in doubt stay so.
    #[command(after_help = "Example: semel cluster end-doubt")]
    EndDoubt {
        #[command(flatten)]
        connection: AdminConnection,
    },
    /// What this node is and what it knows of the others.
    #[command(after_help = "Example: semel cluster status --json")]
    Status {
        #[command(flatten)]
        connection: AdminConnection,
    },
}

/// A member as it is named at init.
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

impl ClusterCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            ClusterCommand::Init { nodes, connection } => {
                let connection = connection.connection();
                let mut ids: Vec<u64> = nodes.iter().map(|node| node.id).collect();
                ids.sort_unstable();
                if ids.windows(2).any(|two| two[0] == two[1]) {
                    return Err(Failure::Usage("each --node needs an id of its own".to_owned()));
                }
                let mut members = Members::default();
                members.value("nodes", Json::object(nodes.iter().map(|node| (node.id.to_string(), node.json()))));
                let answer = Node::of(&connection)?.post("/v1/admin/init", &members.json(), 0)?;
                print(&connection, &answer);
                Ok(())
            }
            ClusterCommand::EndDoubt { connection } => {
                let connection = connection.connection();
                let answer = Node::of(&connection)?.post("/v1/admin/end_doubt", &Members::default().json(), 0)?;
                print(&connection, &answer);
                Ok(())
            }
            ClusterCommand::Status { connection } => {
                let connection = connection.connection();
                let answer = Node::of(&connection)?.get("/v1/status")?;
                print(&connection, &answer);
                if !connection.json {
                    print_members(&answer.json);
                }
                Ok(())
            }
        }
    }
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

    /// As a request names it.
    pub(super) fn json(&self) -> Json {
        Json::object([("peer", self.peer.as_str().into()), ("client", self.client.as_str().into())])
    }
}

fn print_members(status: &Json) {
    let Some(Json::Array(members)) = status.member("members") else { return };
    let paths = ["id", "role", "state", "reachable", "matched", "lag", "clock_offset_ms", "disk_bytes", "disk_id"];
    let rows: Vec<Vec<String>> =
        members.iter().map(|one| paths.iter().map(|path| show::member(one, path)).collect()).collect();
    let headings = ["NODE", "ROLE", "STATE", "REACHABLE", "MATCHED", "LAG", "CLOCK ms", "DISK B", "DISK ID"];
    print!("\n{}", show::table(&headings, &rows));
}
