//! `semel certs`: a set of certificates of one's own, in a directory.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Args;

use super::failure::Failure;
use crate::{
    clock::{Clock, SystemClock},
    config::Tls,
    id::NodeId,
    limits,
    tls::{
        Asked, TlsError, TlsFiles,
        issue::{Authority, Issued, Subject},
    },
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel certs --out certs --node 1=10.0.0.1 --node 2=10.0.0.2 --node 3=node-3.example,10.0.0.3 --client billing
  semel certs --out certs --node 1=10.0.0.1 --node 2=10.0.0.2 --node 3=10.0.0.3 --renew

Writes two authorities (clients-ca.pem for the ports of clients and operators, peers-ca.pem for the nodes among themselves),
and of each node node-N-client.pem, node-N-admin.pem and node-N-peer.pem, each with its key in …-key.pem. Whoever has the
keys of the authorities can make further ones: keep them elsewhere.")]
pub(super) struct Certs {
    /// The directory, made where there is none.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The name of the cluster, as its nodes are configured.
    #[arg(long, default_value = "semel", value_name = "NAME", value_parser = cluster_name)]
    cluster_name: String,
    /// A node, and the names or addresses of its host. Once for each.
    #[arg(long = "node", required = true, value_name = "N=HOST[,HOST]", value_parser = node)]
    nodes: Vec<NodeHosts>,
    /// A client that presents a certificate. Can be repeated.
    #[arg(long = "client", value_name = "NAME", value_parser = client)]
    clients: Vec<String>,
    /// How long they are good; the authorities, 10 years.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Make new certificates under the authorities that are there.
    #[arg(long)]
    renew: bool,
}

/// A node and its host's names.
#[derive(Clone, Debug)]
pub(super) struct NodeHosts {
    pub id: NodeId,
    pub hosts: Vec<String>,
}

fn cluster_name(text: &str) -> Result<String, String> {
    let is_good = (1..=limits::CLUSTER_NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if is_good { Ok(text.to_owned()) } else { Err("1 to 63 of a-z, 0-9 and -".to_owned()) }
}

fn node(text: &str) -> Result<NodeHosts, String> {
    let rule = || "write N=HOST[,HOST], such as 1=10.0.0.1,node-1.example".to_owned();
    let (id, hosts) = text.split_once('=').ok_or_else(rule)?;
    let id = crate::id::parse_decimal(id).filter(|id| *id > 0).ok_or_else(rule)?;
    let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    if hosts.iter().any(String::is_empty) { Err(rule()) } else { Ok(NodeHosts { id, hosts }) }
}

/// A name becomes a part of a file's name.
fn client(text: &str) -> Result<String, String> {
    let is_good = (1..=64).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if is_good { Ok(text.to_owned()) } else { Err("1 to 64 letters, digits, dots, hyphens or underscores".to_owned()) }
}

impl Certs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut ids: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|two| two[0] == two[1]) {
            return Err(Failure::Usage("each --node needs a number of its own".to_owned()));
        }
        let set = Set { cluster_name: &self.cluster_name, nodes: &self.nodes, clients: &self.clients, days: self.days };
        let written = set.write(&self.out, self.renew)?;
        println!("{written} certificates with their keys in {}", self.out.display());
        Ok(())
    }
}

/// What is to be certified.
pub(super) struct Set<'a> {
    pub cluster_name: &'a str,
    pub nodes: &'a [NodeHosts],
    pub clients: &'a [String],
    pub days: u32,
}

const CLIENTS_CA: &str = "clients-ca";
const PEERS_CA: &str = "peers-ca";

impl Set<'_> {
    /// Draws all of it and writes it; with `renew`, under the authorities that are there. Where a file exists that would be
    /// written, nothing is.
    pub fn write(&self, dir: &Path, renew: bool) -> Result<usize, Failure> {
        let now = SystemClock::default().wall();
        let mut files: Vec<(String, Issued)> = Vec::new();
        let mut authority = |name: &str, title: String| -> Result<Authority, Failure> {
            if renew {
                let read = |file: String| fs::read_to_string(dir.join(&file)).context(file);
                let kept = Issued { cert: read(format!("{name}.pem"))?, key: read(format!("{name}-key.pem"))? };
                return Ok(Authority::of(&kept).map_err(failed)?);
            }
            let (authority, issued) = Authority::draw(&title, now).map_err(failed)?;
            files.push((name.to_owned(), issued));
            Ok(authority)
        };
        let clients = authority(CLIENTS_CA, format!("{} clients", self.cluster_name))?;
        let peers = authority(PEERS_CA, format!("{} peers", self.cluster_name))?;
        let lasts = Duration::from_secs(u64::from(self.days) * 24 * 3600);
        let mut certify = |authority: &Authority, file: String, uri: Option<String>, hosts: &[String]| {
            let subject = Subject { name: format!("{} {file}", self.cluster_name), uri, hosts: hosts.to_vec() };
            let issued = authority.certify(&subject, now, lasts).map_err(failed)?;
            files.push((file, issued));
            Ok::<_, anyhow::Error>(())
        };
        for NodeHosts { id, hosts } in self.nodes {
            certify(&clients, format!("node-{id}-client"), None, hosts)?;
            certify(&clients, format!("node-{id}-admin"), None, hosts)?;
            let uri = format!("semel://{}/node/{id}", self.cluster_name);
            certify(&peers, format!("node-{id}-peer"), Some(uri), hosts)?;
        }
        for name in self.clients {
            let uri = format!("semel://{}/client/{name}", self.cluster_name);
            certify(&clients, format!("client-{name}"), Some(uri), &[])?;
        }
        write(dir, &files, renew)?;
        Ok(files.len())
    }
}

fn failed(error: TlsError) -> anyhow::Error {
    anyhow::Error::new(error)
}

fn write(dir: &Path, files: &[(String, Issued)], replace: bool) -> Result<(), Failure> {
    let texts: Vec<(PathBuf, &str)> = files
        .iter()
        .flat_map(|(name, issued)| {
            let at = |end: &str| dir.join(format!("{name}{end}.pem"));
            [(at(""), issued.cert.as_str()), (at("-key"), issued.key.as_str())]
        })
        .collect();
    if let Some((path, _)) = texts.iter().find(|(path, _)| !replace && path.exists()) {
        let text = format!("{} exists; nothing was written (--renew makes new certificates)", path.display());
        return Err(Failure::Failed(anyhow::anyhow!(text)));
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| dir.display().to_string())?;
    for (path, text) in texts {
        written(&path, text, replace).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// A file that its owner alone can read; a replaced one is whole before and after.
fn written(path: &Path, text: &str, replace: bool) -> io::Result<()> {
    let to = if replace { path.with_extension("pem.new") } else { path.to_owned() };
    if replace {
        match fs::remove_file(&to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&to)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    if replace { fs::rename(&to, path) } else { Ok(()) }
}

/// The certificates of `semel dev --tls`: drawn at the first start, renewed at every further one.
pub(super) fn for_dev(dir: &Path, nodes: &[NodeHosts]) -> Result<(), Failure> {
    let set = Set { cluster_name: DEV_CLUSTER_NAME, nodes, clients: &[], days: 90 };
    let is_there = dir.join(format!("{CLIENTS_CA}.pem")).exists();
    set.write(dir, is_there).map(drop)
}

/// The authority that certifies the ports of clients and operators.
pub(super) fn clients_ca(dir: &Path) -> PathBuf {
    dir.join(format!("{CLIENTS_CA}.pem"))
}

/// The settings of a node with the certificates of this directory.
pub(super) fn settings(dir: &Path, node: NodeId, tls: Tls) -> Tls {
    let files = |port: &str, ca: &str, asked| {
        let at = |end: &str| dir.join(format!("node-{node}-{port}{end}.pem"));
        Some(TlsFiles { cert: at(""), key: at("-key"), ca: Some(dir.join(format!("{ca}.pem"))), crl: None, asked })
    };
    Tls {
        client: files("client", CLIENTS_CA, Asked::Optional),
        peer: files("peer", PEERS_CA, Asked::Required),
        admin: files("admin", CLIENTS_CA, Asked::Optional),
        ..tls
    }
}

/// The name of a cluster that was given none.
const DEV_CLUSTER_NAME: &str = "semel";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::{Exposure, Purpose};

    #[test]
    fn a_set_is_written_once_and_renewed_under_the_same_authorities() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().join("certs");
        let nodes = [node("1=127.0.0.1,localhost").unwrap(), node("2=node-2.example").unwrap()];
        let clients = ["billing".to_owned()];
        let set = Set { cluster_name: "prod", nodes: &nodes, clients: &clients, days: 90 };
        assert_eq!(set.write(&dir, false).unwrap(), 2 + 2 * 3 + 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("node-1-peer-key.pem"))), (0o700, 0o600));
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let (ca, leaf) = (read("peers-ca.pem"), read("node-2-peer.pem"));
        // Once more: nothing is written, whatever there is.
        fs::remove_file(dir.join("node-2-peer.pem")).unwrap();
        assert_eq!(set.write(&dir, false).unwrap_err().status(), 1);
        assert!(!dir.join("node-2-peer.pem").exists());
        set.write(&dir, true).unwrap();
        assert_eq!(read("peers-ca.pem"), ca);
        assert_ne!(read("node-2-peer.pem"), leaf);
        // What was written is what a node takes.
        let tls =
            settings(&dir, 2, crate::config::Source::default().check(Purpose::Dev, Exposure::default()).unwrap().tls);
        let role = crate::tls::Role::Peer { cluster_name: "prod".into(), node: 2 };
        let clock = std::sync::Arc::new(SystemClock::default());
        crate::tls::Certificates::read(tls.peer.unwrap(), role, clock).unwrap();
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_none() {
        for name in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(65)] {
            assert!(client(name).is_err(), "{name}");
        }
        for text in ["1", "0=a", "01=a", "1=", "1=a,,b", "x=a"] {
            assert!(node(text).is_err(), "{text}");
        }
        assert!(cluster_name("Prod").is_err() && cluster_name("prod-1").is_ok());
    }
}
