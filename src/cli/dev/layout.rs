//! Where the nodes of a `semel dev` cluster lie: their ports, their directories, and `nodes.json`, which tells both to
//! whoever asks.
//!
//! `nodes.json` is written by the parent, and by a node that was started again alone. Each changes its own entries only,
//! under a lock, and replaces the file by a rename: whoever reads it sees a whole one.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{
    cli::failure::Failure,
    json::{Json, Number},
    limits,
};

/// A node of the cluster: its number and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub id: u64,
    /// None: it does not run.
    pub pid: Option<u32>,
    pub listen: String,
    pub peer_listen: String,
    pub admin_listen: String,
}

impl Node {
    /// Node `id` of a cluster whose first node listens at `base`: 10 ports on for each node, the peer port is the next,
    /// the admin port the one after it.
    pub fn at(base: &str, id: u64) -> Result<Self, Failure> {
        let usage = |why: &str| Failure::Usage(format!("--listen {base}: {why}"));
        let (host, port) = base.rsplit_once(':').ok_or_else(|| usage("must be HOST:PORT, such as 127.0.0.1:7171"))?;
        let port: u64 = port.parse().map_err(|_| usage("must end in a port, such as 127.0.0.1:7171"))?;
        if port == 0 {
            return Err(usage("several nodes need a port that is named: the others' follow from it"));
        }
        let first = port + limits::DEV_PORTS_PER_NODE * (id - 1);
        if first + 2 > u64::from(u16::MAX) {
            return Err(usage("the ports of the last node would be above 65535"));
        }
        let address = |port: u64| format!("{host}:{port}");
        Ok(Self {
            id,
            pid: None,
            listen: address(first),
            peer_listen: address(first + 1),
            admin_listen: address(first + 2),
        })
    }

    fn json(&self, layout: &Layout) -> Json {
        let number = |n: u64| Json::Number(Number::parse(&n.to_string()).expect("an integer is a JSON number"));
        Json::object([
            ("id", number(self.id)),
            ("pid", self.pid.map_or(Json::Null, |pid| number(pid.into()))),
            ("listen", self.listen.as_str().into()),
            ("peer_listen", self.peer_listen.as_str().into()),
            ("admin_listen", self.admin_listen.as_str().into()),
            ("data_dir", layout.node_dir(self.id).display().to_string().as_str().into()),
        ])
    }

    fn of(json: &Json) -> Option<Self> {
        let text = |name: &str| json.member(name).and_then(Json::as_str).map(str::to_owned);
        let number = |name: &str| match json.member(name) {
            Some(Json::Number(number)) => number.as_str().parse::<u64>().ok(),
            _ => None,
        };
        Some(Self {
            id: number("id").filter(|id| *id > 0)?,
            pid: number("pid").and_then(|pid| u32::try_from(pid).ok()),
            listen: text("listen")?,
            peer_listen: text("peer_listen")?,
            admin_listen: text("admin_listen")?,
        })
    }
}

/// The directory of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn node_dir(&self, id: u64) -> PathBuf {
        self.dir.join(format!("node-{id}"))
    }

    /// Where certificates are, if there are any.
    pub fn certs(&self) -> PathBuf {
        self.dir.join("certs")
    }

    /// Where the token of whoever runs the cluster is, if tokens are wanted.
    pub fn admin_token(&self) -> PathBuf {
        self.dir.join("admin.token")
    }

    /// Where the key lies that everything is sealed under.
    pub fn seal_keys(&self) -> PathBuf {
        self.dir.join("seal.keys")
    }

    fn file(&self) -> PathBuf {
        self.dir.join("nodes.json")
    }

    /// Whether one node alone has its data directly in this directory.
    pub fn is_single(&self) -> bool {
        self.dir.join("wal").exists()
    }

    /// The nodes of the cluster that is here; empty where there is none.
    pub fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let path = self.file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Failure::Failed(anyhow::Error::new(error).context(path.display().to_string()))),
        };
        let damaged = || Failure::Usage(format!("{} is not the list of a cluster's nodes", path.display()));
        let Ok(Json::Array(items)) = Json::parse(&text) else { return Err(damaged()) };
        items.iter().map(|item| Node::of(item).ok_or_else(damaged)).collect()
    }

    /// Changes the list as it stands now.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Node>)) -> Result<(), Failure> {
        let lock = self.dir.join("nodes.lock");
        let lock = File::create(&lock).with_context(|| lock.display().to_string())?;
        // Held for a moment, and given back by whoever holds it even if they are killed.
        lock.lock().context("nodes.lock")?;
        let before = self.nodes()?;
        let mut nodes = before.clone();
        change(&mut nodes);
        if nodes != before {
            self.replace(&nodes).with_context(|| self.file().display().to_string())?;
        }
        Ok(())
    }

    /// Notes under which process a node runs, or that it doesn't.
    pub fn set_pid(&self, id: u64, pid: Option<u32>) -> Result<(), Failure> {
        self.change(|nodes| {
            if let Some(node) = nodes.iter_mut().find(|node| node.id == id) {
                node.pid = pid;
            }
        })
    }

    fn replace(&self, nodes: &[Node]) -> io::Result<()> {
        let lines: Vec<String> = nodes.iter().map(|node| format!("  {}", node.json(self).to_text())).collect();
        let next = self.dir.join(format!("nodes.json.{}", std::process::id()));
        let mut file = File::create(&next)?;
        file.write_all(format!("[\n{}\n]\n", lines.join(",\n")).as_bytes())?;
        drop(file);
        fs::rename(&next, self.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_from_the_first_nodes() {
        let third = Node::at("127.0.0.1:7171", 3).unwrap();
        assert_eq!(
            (third.listen.as_str(), third.peer_listen.as_str(), third.admin_listen.as_str()),
            ("127.0.0.1:7191", "127.0.0.1:7192", "127.0.0.1:7193")
        );
        assert_eq!(Node::at("[::1]:80", 1).unwrap().peer_listen, "[::1]:81");
        for base in ["127.0.0.1:0", "127.0.0.1", "127.0.0.1:65520", "7171"] {
            assert!(Node::at(base, 3).is_err(), "{base}");
        }
    }

    #[test]
    fn the_list_is_replaced_and_each_writer_changes_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        assert_eq!(layout.nodes().unwrap(), []);
        let nodes: Vec<Node> = (1..=3).map(|id| Node::at("127.0.0.1:7171", id).unwrap()).collect();
        layout.change(|list| list.clone_from(&nodes)).unwrap();
        layout.set_pid(2, Some(77)).unwrap();
        layout.set_pid(3, Some(78)).unwrap();
        layout.set_pid(2, None).unwrap();
        let pids: Vec<_> = layout.nodes().unwrap().iter().map(|node| node.pid).collect();
        assert_eq!(pids, [None, None, Some(78)]);
        let text = fs::read_to_string(directory.path().join("nodes.json")).unwrap();
        assert!(text.contains(r#""id":2,"pid":null,"listen":"127.0.0.1:7181""#), "{text}");
        assert!(text.contains(&format!("\"data_dir\":\"{}\"", layout.node_dir(2).display())), "{text}");
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "nothing but the list and its lock: {left:?}");
    }

    #[test]
    fn a_list_that_is_none_is_said_to_be_none() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["{}", "[1]", "[{\"id\":0}]", "nonsense"] {
            fs::write(directory.path().join("nodes.json"), text).unwrap();
            assert!(Layout::new(directory.path()).nodes().is_err(), "{text}");
        }
    }
}
