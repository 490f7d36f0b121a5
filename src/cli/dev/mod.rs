//! `semel dev`: one node in this process, or several real ones: a parent that starts each as a process of its own over a
//! directory of its own, forms their cluster once, and tells what becomes of them (`layout`, `child`, `parent`,
//! `watching`).

mod child;
mod layout;
mod parent;
mod watching;

use anyhow::Context;
use clap::Args;

use super::{
    certs::{self, NodeHosts},
    failure::Failure,
    node::{self, NodeFlags},
    token::kept_or_drawn,
};
use crate::{
    auth::TokenText,
    config::{Access, Config, Exposure, Forming, MemberAt, NodeLimits, Overrides, Purpose, Source},
    id::NodeId,
    limits,
    node::Node as Running,
    seal::key_file::{KeySource, generate},
};
use layout::{Layout, Node};
use watching::Way;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel dev
  semel dev --data-dir /tmp/semel --listen 127.0.0.1:9000
  semel dev --nodes 3
  semel dev --auth                  (then: semel token create --token @semel-dev/admin.token --tenant acme --permission claim)
  semel dev --tls                   (then: semel list --endpoint https://127.0.0.1:7171 --ca semel-dev/certs/clients-ca.pem)
  semel dev --sealed                (all that is stored is encrypted; the key is in semel-dev/seal.keys)
  semel dev --secure                (all three)
  semel dev --node 2                (a node of that cluster that has died, once more)

Needs no configuration and no credentials: whoever can reach it may do everything, so it listens on loopback.
Ctrl-C ends it; what was acknowledged is there again at the next start. SEMEL_LOG=debug says more.

With --nodes 3 each node is a process of its own: node 1 listens where --listen says, node 2 ten ports further, node 3
ten more; the peer port is the next one, the operators' port the one after it. nodes.json in the data directory tells
processes and addresses. A node that dies stays dead, unless --respawn is given.")]
pub(super) struct Dev {
    #[command(flatten)]
    flags: NodeFlags,
    /// Outside loopback: let whoever reaches it do everything.
    #[arg(long)]
    insecure_no_authentication: bool,
    /// Encrypt all ports, with certificates that are made in DATA_DIR/certs.
    #[arg(long)]
    tls: bool,
    /// Refuse whoever shows no token. The first, with `cluster`, is in DATA_DIR/admin.token.
    #[arg(long)]
    auth: bool,
    /// Seal everything that is stored, under a key that is made in DATA_DIR/seal.keys. For a new data directory.
    #[arg(long)]
    sealed: bool,
    /// All three: --auth, --tls and --sealed.
    #[arg(long)]
    secure: bool,
    /// How many nodes, each a process of its own.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=limits::DEV_NODES_MAX))]
    nodes: u64,
    /// Start nodes that died again.
    #[arg(long, requires = "nodes")]
    respawn: bool,
    /// Start this one node of a cluster that is there already, in this process.
    #[arg(long, value_name = "I", conflicts_with_all = ["nodes", "respawn"], value_parser = clap::value_parser!(u64).range(1..))]
    node: Option<u64>,
    /// The process whose end ends this one.
    #[arg(long, hide = true, requires = "node", value_name = "PID")]
    parent: Option<u32>,
}

impl Dev {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let all = self.secure;
        (self.auth, self.tls, self.sealed) = (self.auth || all, self.tls || all, self.sealed || all);
        let dir = self.flags.data_dir.get_or_insert_with(|| "./semel-dev".to_owned()).clone();
        let layout = Layout::new(dir);
        match self.node {
            Some(id) => self.run_member(&layout, id),
            None if self.nodes > 1 => self.run_parent(layout),
            None => {
                let known = layout.nodes()?.len();
                if known > 0 {
                    return Err(cluster_is_here(&layout, known));
                }
                let config = self.config(self.flags.overrides(None))?;
                self.make_certs(&layout, &[(config.node_id, config.listen.to_string())])?;
                self.make_keys(&layout)?;
                let config = Config { first_token: self.first_token(&layout)?, ..self.secured(&layout, config) };
                let _ = node::log(node::DEV_LOG);
                node::open_many_files();
                node::run(config, node::AtHangup::Stop, welcome)
            }
        }
    }

    fn exposure(&self) -> Exposure {
        self.flags.exposure(self.insecure_no_authentication || self.auth)
    }

    fn config(&self, overrides: Overrides) -> Result<Config, Failure> {
        Ok(Source::default().with(overrides).check(Purpose::Dev, self.exposure())?)
    }

    /// The certificates of these nodes, where they are wanted.
    fn make_certs(&self, layout: &Layout, nodes: &[(NodeId, String)]) -> Result<(), Failure> {
        if !self.tls {
            return Ok(());
        }
        let hosts = |listen: &str| {
            let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
            let mut hosts = vec![host.trim_start_matches('[').trim_end_matches(']').to_owned()];
            hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
            hosts
        };
        let nodes: Vec<_> = nodes.iter().map(|(id, listen)| NodeHosts { id: *id, hosts: hosts(listen) }).collect();
        certs::for_dev(&layout.certs(), &nodes)
    }

    fn secured(&self, layout: &Layout, mut config: Config) -> Config {
        if self.tls {
            config.tls = certs::settings(&layout.certs(), config.node_id, config.tls);
        }
        if self.sealed {
            config.seal = Some(KeySource::File(layout.seal_keys()));
        }
        if self.auth && config.access == Access::Open {
            config.access = Access::Closed;
        }
        config
    }

    /// The key that everything is sealed under, where that is wanted.
    fn make_keys(&self, layout: &Layout) -> Result<(), Failure> {
        let is_made = |id: u64| layout.node_dir(id).join("seal.json").exists();
        // What is sealed already is sealed under a key that isn't here: another one would only hide that.
        let is_sealed = layout.dir().join("seal.json").exists() || (1..=limits::DEV_NODES_MAX).any(is_made);
        if !self.sealed || layout.seal_keys().exists() || is_sealed {
            return Ok(());
        }
        std::fs::create_dir_all(layout.dir()).with_context(|| layout.dir().display().to_string())?;
        generate(&layout.seal_keys(), None).context("the sealing key")?;
        Ok(())
    }

    /// The token of whoever runs this, where tokens are wanted.
    fn first_token(&self, layout: &Layout) -> Result<Option<TokenText>, Failure> {
        if !self.auth {
            return Ok(None);
        }
        std::fs::create_dir_all(layout.dir()).with_context(|| layout.dir().display().to_string())?;
        kept_or_drawn(&layout.admin_token()).map(Some)
    }

    /// The settings of one of several nodes.
    fn member_config(&self, layout: &Layout, node: &Node, all: &[Node]) -> Result<Config, Failure> {
        let flags = &self.flags;
        let named = [
            ("--peer-listen", &flags.peer_listen),
            ("--admin-listen", &flags.admin_listen),
            ("--advertise", &flags.advertise),
            ("--peer-advertise", &flags.peer_advertise),
        ];
        if let Some((flag, _)) = named.iter().find(|(_, value)| value.is_some()) {
            return Err(Failure::Usage(format!("{flag} is for one node; the ports of several follow from --listen")));
        }
        let at = |node: &Node| MemberAt { peer: node.peer_listen.clone(), client: node.listen.clone() };
        let members = all.iter().map(|node| (node.id, at(node))).collect();
        let config = self.config(Overrides {
            data_dir: Some(layout.node_dir(node.id).display().to_string()),
            listen: Some(node.listen.clone()),
            peer_listen: Some(node.peer_listen.clone()),
            admin_listen: Some(node.admin_listen.clone()),
            ..flags.overrides(Some(node.id))
        })?;
        // Several nodes fill several files ahead of use, on one disk.
        let limits = NodeLimits { wal_segment_bytes: limits::DEV_WAL_SEGMENT_BYTES, ..config.limits };
        Ok(self.secured(layout, Config { forming: Forming::OnInit, members, limits, ..config }))
    }

    fn run_parent(self, layout: Layout) -> Result<(), Failure> {
        if layout.is_single() {
            let text = format!("{} holds one node alone; give the cluster another --data-dir", layout.dir().display());
            return Err(Failure::Usage(text));
        }
        let known = layout.nodes()?;
        if !known.is_empty() && known.len() as u64 != self.nodes {
            return Err(cluster_is_here(&layout, known.len()));
        }
        let base = self.flags.listen.clone().unwrap_or_else(|| DEV_LISTEN.to_owned());
        let nodes = (1..=self.nodes).map(|id| Node::at(&base, id)).collect::<Result<Vec<_>, _>>()?;
        for node in &nodes {
            self.member_config(&layout, node, &nodes)?;
        }
        let listening: Vec<_> = nodes.iter().map(|node| (node.id, node.listen.clone())).collect();
        self.make_certs(&layout, &listening)?;
        self.make_keys(&layout)?;
        let ca = self.tls.then(|| certs::clients_ca(&layout.certs()).display().to_string());
        let way = Way { ca, first_token: self.first_token(&layout)? };
        parent::run(layout, nodes, |id| self.arguments(id, &base), self.respawn, way)
    }

    /// What a child is told: everything that the parent was told, and which node it is.
    fn arguments(&self, id: u64, base: &str) -> Vec<String> {
        let mut arguments = vec!["dev".to_owned()];
        let mut add = |flag: &str, value: &str| arguments.extend([flag.to_owned(), value.to_owned()]);
        add("--node", &id.to_string());
        add("--parent", &std::process::id().to_string());
        add("--listen", base);
        let given = [
            ("--data-dir", &self.flags.data_dir),
            ("--store", &self.flags.store),
            ("--token-file", &self.flags.token_file),
        ];
        for (flag, value) in given {
            if let Some(value) = value {
                add(flag, value);
            }
        }
        let switches = [
            ("--insecure-plaintext-clients", self.flags.insecure_plaintext_clients),
            ("--insecure-plaintext-peers", self.flags.insecure_plaintext_peers),
            ("--insecure-plaintext-admin", self.flags.insecure_plaintext_admin),
            ("--insecure-no-authentication", self.insecure_no_authentication),
            ("--tls", self.tls),
            ("--auth", self.auth),
            ("--sealed", self.sealed),
        ];
        arguments.extend(switches.iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| (*flag).to_owned()));
        arguments
    }

    /// One node of a cluster, in this process: for the parent, or for whoever starts a dead one again.
    fn run_member(self, layout: &Layout, id: u64) -> Result<(), Failure> {
        if let Some(parent) = self.parent {
            child::end_with_parent(parent)?;
        }
        let known = layout.nodes()?;
        let Some(listed) = known.iter().find(|node| node.id == id) else {
            let dir = layout.dir().display();
            let text =
                format!("there is no node {id} in {dir}; `semel dev --nodes 3 --data-dir {dir}` makes a cluster");
            return Err(Failure::Usage(text));
        };
        let node = match &self.flags.listen {
            Some(base) => Node::at(base, id)?,
            None => listed.clone(),
        };
        let config = self.member_config(layout, &node, &known)?;
        let _ = node::log(node::DEV_LOG);
        node::open_many_files();
        if self.parent.is_some() {
            return node::run(config, node::AtHangup::Stop, |_, _| {});
        }
        let noted = node::run(config, node::AtHangup::Stop, |_, running| {
            let pid = std::process::id();
            match layout.set_pid(id, Some(pid)) {
                Ok(()) => {
                    println!("node {id} runs: clients at {}, operators at {}", running.listen(), running.admin_listen())
                }
                Err(_) => eprintln!("semel: nodes.json could not be changed"),
            }
        });
        layout.change(|nodes| {
            let own = nodes.iter_mut().find(|node| node.id == id && node.pid == Some(std::process::id()));
            own.into_iter().for_each(|node| node.pid = None);
        })?;
        noted
    }
}

const DEV_LISTEN: &str = "127.0.0.1:7171";

fn cluster_is_here(layout: &Layout, nodes: usize) -> Failure {
    let dir = layout.dir().display();
    Failure::Usage(format!(
        "{dir} holds a cluster of {nodes} nodes; start it with --nodes {nodes}, or name another --data-dir"
    ))
}

fn welcome(config: &Config, node: &Running) {
    let (listen, admin, data) = (node.listen(), node.admin_listen(), config.data_dir.display());
    let scheme = if config.tls.client.is_some() { "https" } else { "http" };
    let ca = config.tls.client.as_ref().and_then(|files| files.ca.as_ref()).map(|ca| ca.display().to_string());
    let curl_ca = ca.as_ref().map_or_else(String::new, |ca| format!(" --cacert {ca}"));
    let own_ca = ca.as_ref().map_or_else(String::new, |ca| format!(" --ca {ca}"));
    let is_default = listen.port() == 7171 && ca.is_none();
    let endpoint = if is_default { String::new() } else { format!(" --endpoint {scheme}://{listen}") };
    let token = config.first_token.as_ref().map(|_| config.data_dir.join("admin.token").display().to_string());
    let who = match &token {
        Some(path) => format!("for whoever shows a token (the first is in {path})"),
        None => "open to everybody on this machine".to_owned(),
    };
    let admin_scheme = if config.tls.admin.is_some() { "https" } else { "http" };
    // The first token makes others; it claims nothing itself.
    let first = token.as_ref().map_or_else(String::new, |path| {
        format!(
            "\n  semel token create{endpoint}{own_ca} --token @{path} --tenant acme --permission claim --permission reconcile --out acme.token"
        )
    });
    let shown = token.as_ref().map_or("", |_| " -H \"Authorization: Bearer $(cat acme.token)\"");
    let given = token.as_ref().map_or("", |_| " --token @acme.token");
    println!(
        "semel dev: one node, {who}. Its data: {data}

  clients    {scheme}://{listen}    gRPC and HTTP/JSON
  operators  {admin_scheme}://{admin}    /console /metrics /healthz /readyz /v1/status

Try:
{first}
  curl -s{curl_ca}{shown} {scheme}://{listen}/v1/claim -d '{{\"record\":{{\"operation\":\"charge\",\"key\":\"order-7\"}},\"request\":{{\"amount\":100}}}}'
  semel list{endpoint}{own_ca}{given}

Ctrl-C ends it; what was acknowledged stays.",
    );
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        dev: Dev,
    }

    #[test]
    fn no_new_key_is_made_over_a_lost_one() {
        let dev = Line::try_parse_from(["dev", "--sealed"]).expect("a command line").dev;
        for sealed in ["seal.json", "node-2/seal.json"] {
            let dir = tempfile::tempdir().expect("a directory");
            let layout = Layout::new(dir.path());
            dev.make_keys(&layout).expect("a new directory");
            let first = std::fs::read(layout.seal_keys()).expect("a key");
            dev.make_keys(&layout).expect("a key that is there");
            assert_eq!(std::fs::read(layout.seal_keys()).expect("the same"), first);
            std::fs::create_dir_all(layout.node_dir(2)).expect("a directory");
            std::fs::write(dir.path().join(sealed), "{}").expect("what tells of the key");
            std::fs::remove_file(layout.seal_keys()).expect("it is lost");
            dev.make_keys(&layout).expect("that is for the node to say");
            assert!(!layout.seal_keys().exists(), "{sealed}");
        }
    }
}
