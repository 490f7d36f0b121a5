//! `semel restore`: a new cluster from a backup.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};

use crate::{
    backup::{
        self, Verified,
        keyed::{Joining, KeyringError},
        manifest::{parse_time, time_text},
        ring::Ring,
        verify::joined,
    },
    clock::{Clock, SystemClock},
    disk::{Disk, OsDisk},
    entropy,
    id::{ClusterId, DiskId, Time},
    json::Json,
    limits,
    raft::{
        Member as RaftMember,
        restore::{self, FirstCommand, Gap, RestoreError, Restoring},
    },
    records::command::Sealed,
    store::{
        engine::{EngineCause, EngineError},
        snapshot::read::SnapshotRows,
    },
    wal::{self, Identity},
};

use super::{
    args::{AdminConnection, Connection, Members, local_actor},
    call::Node,
    cluster::{Member, member},
    failure::Failure,
    progress::Progress,
    records::print,
};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("where").required(true).args(["data_dir", "nodes"])))]
#[command(after_help = "Examples:
  semel restore backups/monday --data-dir ./semel-dev        (then: semel dev)
  semel restore backups/monday --admin-endpoint http://10.0.0.1:7173 --node 1=10.0.0.1:7172,10.0.0.1:7171
  semel restore backups/monday --admin-endpoint http://10.0.0.1:7173 --node 1=10.0.0.1:7172,10.0.0.1:7171 \
    --node 2=10.0.0.2:7172,10.0.0.2:7171 --node 3=10.0.0.3:7172,10.0.0.3:7171
  semel restore backups/monday --data-dir ./new --gap-end 2026-01-31T09:30:00Z
  semel restore backups/last --data-dir ./new --no-gap

The new cluster has a new id and refuses every older fence. What happened between the backup and the old cluster's end is
unknown to it, so a claim that would be new is indeterminate until you know better: see docs/restore.md. With --gap-end,
claims first sent after that time are free of it. Without, `semel cluster end-doubt` ends it.")]
pub(super) struct Restore {
    /// The backup.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Into this data directory, of a node that is not running: a cluster of one.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The number of that node.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "data_dir", value_parser = clap::value_parser!(u64).range(1..))]
    node_id: u64,
    /// A member of the new cluster, which runs and is in none: ID=PEER_ADDRESS,CLIENT_ADDRESS. Once for each.
    #[arg(long = "node", value_name = "ID=PEER,CLIENT", value_parser = member)]
    nodes: Vec<Member>,
    /// Nothing is missing: the backup was made with --final.
    #[arg(long, conflicts_with = "gap_end")]
    no_gap: bool,
    /// When the old cluster was surely dead: RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    gap_end: Option<Time>,
    /// The key ring of the backup.
    #[arg(long, value_name = "FILE")]
    keyring: Option<PathBuf>,
    /// Close tenants that the key ring can't open, for good.
    #[arg(long, requires = "keyring")]
    close_missing: bool,
    #[command(flatten)]
    connection: AdminConnection,
}

fn moment(text: &str) -> Result<Time, String> {
    parse_time(text).ok_or_else(|| "write a time as 2026-01-31T09:30:00Z".to_owned())
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::GapEndsEarly { .. } => Failure::Usage(error.to_string()),
            error => Failure::Failed(error.into()),
        }
    }
}

impl Restore {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut progress = Progress::new("checked", 0);
        let verified = backup::verify(&self.dir, &mut |bytes| progress.at(bytes))?;
        progress.end();
        let ring = self.ring()?;
        // Judged before anything is touched, wherever it is restored to.
        let wall = SystemClock::default().wall();
        let decoded = ring.as_ref().map(|(_, ring)| ring);
        let lineage_id = verified.manifest.origin.lineage_id;
        let joining = match Joining::of(&verified.keys, lineage_id, decoded, &[], self.close_missing, wall) {
            // A node that runs may have the key, and judges for itself.
            Err(KeyringError::Unknown(_)) if self.data_dir.is_none() => Joining::default(),
            joining => joining.map_err(|error| Failure::Failed(error.into()))?,
        };
        // Without the keys nothing can be sealed here, and in a sealed cluster nobody is named in clear.
        let is_sealed = verified.keys.table.sealing.is_some();
        let actor = if is_sealed { "restore".to_owned() } else { local_actor() };
        let actor = Sealed::plain(actor.into_bytes());
        let is_final = verified.manifest.origin.is_final;
        let first = FirstCommand::new(&verified.globals, is_final, wall, self.gap(), actor)?;
        match &self.data_dir {
            Some(data_dir) => self.offline(data_dir, &verified, first, &joining),
            None => self.online(&verified, ring.map(|(bytes, _)| bytes)),
        }
    }

    fn gap(&self) -> Gap {
        match (self.no_gap, self.gap_end) {
            (true, _) => Gap::None,
            (false, Some(end)) => Gap::EndedBy(end),
            (false, None) => Gap::Unknown,
        }
    }

    /// The key ring that was named.
    fn ring(&self) -> Result<Option<(Vec<u8>, Ring)>, Failure> {
        let Some(path) = &self.keyring else { return Ok(None) };
        let name = || path.display().to_string();
        let bytes = fs::metadata(path).with_context(name)?.len();
        if bytes > limits::KEY_RING_BYTES_MAX {
            return Err(anyhow!("{}: a key ring is smaller than this", name()).into());
        }
        let bytes = fs::read(path).with_context(name)?;
        let ring = Ring::decode(&bytes).with_context(name)?;
        Ok(Some((bytes, ring)))
    }

    fn offline(
        &self,
        data_dir: &Path,
        verified: &Verified,
        first: FirstCommand,
        joining: &Joining,
    ) -> Result<(), Failure> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk);
        disk.create_dir_all(data_dir).map_err(RestoreError::from)?;
        let in_use = || format!("{} is in use by another process; stop it first", data_dir.display());
        let _held = disk.try_lock(&data_dir.join("lock")).with_context(in_use)?;
        if data_dir.join("store").symlink_metadata().is_ok() {
            return Err(RestoreError::Occupied.into());
        }
        restore::begin(&*disk, data_dir)?;
        let origin = verified.manifest.origin;
        let identity = Identity {
            lineage_id: origin.lineage_id,
            cluster_id: ClusterId(entropy::bytes()),
            node_id: self.node_id,
            disk_id: DiskId(entropy::bytes()),
        };
        // Where a node alone is reached it says itself when it starts.
        let member = RaftMember {
            peer_addr: "127.0.0.1:7172".to_owned(),
            client_addr: "127.0.0.1:7171".to_owned(),
            disk_id: identity.disk_id,
        };
        let members = BTreeMap::from([(self.node_id, member)]);
        let first_position = first.first_position();
        let restoring = Restoring { identity, members, globals: verified.globals.clone(), first };
        let parts = joined(&self.dir, &verified.manifest);
        let rows = SnapshotRows::of(Arc::new(parts)).context("the backup")?;
        let rows = rows.map(|row| row.map_err(|error| EngineError::Source(EngineCause::new(error))));
        let mut rows = joining.rows(rows);
        let laid_out = restore::lay_out(&disk, data_dir, &wal::Options::default(), restoring, &mut rows);
        if let Err(error) = laid_out {
            restore::clear(&*disk, data_dir)?;
            return Err(error.into());
        }
        let told = Json::object([
            ("data_dir", Json::String(data_dir.display().to_string())),
            ("cluster_id", Json::String(identity.cluster_id.to_string())),
            ("lineage_id", Json::String(identity.lineage_id.to_string())),
            ("position", Json::u64_text(first_position.0)),
        ]);
        println!("{}", told.to_text());
        Ok(())
    }

    fn online(&self, verified: &Verified, ring: Option<Vec<u8>>) -> Result<(), Failure> {
        let connection = self.connection.clone().connection();
        let node = Node::of(&connection)?;
        for member in &self.nodes {
            if let Some(id) = old_cluster(member, &connection) {
                let client = member.client();
                return Err(anyhow!("cluster {id} answers at {client}: a backup is restored into a new one").into());
            }
        }
        let manifest = &verified.manifest;
        let mut head = Members::default();
        head.value("nodes", Json::object(self.nodes.iter().map(|node| (node.id().to_string(), node.json()))));
        head.text("bytes", &manifest.bytes.to_string());
        head.text("sha256", &crate::id::hex(&manifest.sha256));
        head.opt_text("gap_end", self.gap_end.map(time_text).as_deref());
        head.flag("no_gap", self.no_gap);
        let ring = ring.unwrap_or_default();
        if !ring.is_empty() {
            head.text("keyring_bytes", &ring.len().to_string());
        }
        head.flag("close_missing", self.close_missing);
        let mut progress = Progress::new("sent", manifest.bytes);
        let parts = Arc::new(joined(&self.dir, manifest));
        let answer = node.upload("/v1/admin/restore", &head.json(), &ring, parts, move |bytes| progress.at(bytes))?;
        print(&connection, &answer);
        Ok(())
    }
}

/// The cluster that answers where clients of a new member are to connect.
fn old_cluster(member: &Member, connection: &Connection) -> Option<String> {
    let asked = Connection { token: None, ..connection.at(member.client()) };
    Node::of(&asked).ok()?.cluster_id()
}
