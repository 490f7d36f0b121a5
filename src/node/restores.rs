//! A backup that is streamed into a node which is in no cluster, and becomes its state. `POST /v1/admin/restore`: one line of
//! JSON, `{"nodes", "bytes", "sha256", "gap_end"?, "no_gap"?, "keyring_bytes"?, "close_missing"?}`, a line feed, so many bytes of a key ring,
//! and the bytes of the backup's parts, joined.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::{
    backup::{
        BackupError,
        keyed::Joining,
        manifest::{parse_digest, parse_time},
        ring::Ring,
        verify::{Content, check_rows},
    },
    clock::Clock,
    disk::{Disk, Mode},
    entropy,
    id::{ClusterId, NodeId},
    json::{Fields, Json},
    limits,
    raft::{
        Addresses, Consensus, FormError,
        restore::{self, FirstCommand, Gap, Incoming, RestoreError},
    },
    records::{
        command::Sealed,
        memory::MemoryState,
        state::{Globals, State},
    },
    refusal::{Code, Refusal},
    seal::{Field, SealError, Subject},
    store::{
        engine::{EngineCause, EngineError},
        snapshot::read::SnapshotRows,
    },
    work,
};

/// Restores into this node, one at a time.
pub(super) struct Restores {
    consensus: Consensus,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    node_id: NodeId,
    under_way: Arc<Mutex<()>>,
}

/// What stands in front of the bytes.
struct Head {
    nodes: BTreeMap<NodeId, Addresses>,
    bytes: u64,
    sha256: [u8; 32],
    gap: Gap,
    ring_bytes: u64,
    close_missing: bool,
    ring: Option<Ring>,
}

impl Head {
    fn parse(line: &[u8]) -> Result<Self, Refusal> {
        let invalid = |error: &dyn std::fmt::Display| Refusal::invalid(error.to_string());
        let json = Json::parse(line).map_err(|error| invalid(&error))?;
        let mut fields = Fields::new(json).map_err(|error| invalid(&error))?;
        let nodes = super::operating::nodes_of(&mut fields)?;
        let bytes = fields.u64_text("bytes").map_err(|error| invalid(&error))?;
        let sha256 = fields.string("sha256").map_err(|error| invalid(&error))?;
        let sha256 = parse_digest(&sha256).ok_or_else(|| Refusal::invalid("sha256 is 64 lower-case hex digits"))?;
        let gap_end = fields.opt_string("gap_end").map_err(|error| invalid(&error))?;
        let no_gap = fields.opt_bool("no_gap").map_err(|error| invalid(&error))?.unwrap_or(false);
        let ring_bytes = fields.opt_u64_text("keyring_bytes").map_err(|error| invalid(&error))?.unwrap_or(0);
        let close_missing = fields.opt_bool("close_missing").map_err(|error| invalid(&error))?.unwrap_or(false);
        fields.finish().map_err(|error| invalid(&error))?;
        if ring_bytes > limits::KEY_RING_BYTES_MAX {
            return Err(Refusal::invalid("keyring_bytes: a key ring is smaller than this"));
        }
        let gap = match (gap_end, no_gap) {
            (Some(_), true) => return Err(Refusal::invalid("gap_end and no_gap exclude each other")),
            (None, true) => Gap::None,
            (None, false) => Gap::Unknown,
            (Some(end), false) => {
                let end = parse_time(&end);
                Gap::EndedBy(end.ok_or_else(|| Refusal::invalid("gap_end is an RFC 3339 time"))?)
            }
        };
        Ok(Self { nodes, bytes, sha256, gap, ring_bytes, close_missing, ring: None })
    }
}

fn broke_off() -> Refusal {
    Refusal::invalid("the backup broke off on its way; nothing was restored")
}

fn failed(error: &dyn std::error::Error) -> Refusal {
    tracing::error!(error = %ErrorChain(error), "a backup could not be restored");
    Refusal::new(Code::Internal, "the backup could not be restored; the node's log says why")
}

/// An error with what is beneath it.
struct ErrorChain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl From<RestoreError> for Refusal {
    fn from(error: RestoreError) -> Self {
        match &error {
            RestoreError::Occupied | RestoreError::ClockBehind { .. } | RestoreError::NotFinal => {
                Refusal::new(Code::WrongState, error.to_string())
            }
            RestoreError::GapEndsEarly { .. } | RestoreError::Unformed => Refusal::invalid(error.to_string()),
            _ => failed(&error),
        }
    }
}

impl Restores {
    pub(super) fn new(
        consensus: Consensus,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        clock: Arc<dyn Clock>,
        node_id: NodeId,
    ) -> Arc<Self> {
        Arc::new(Self { consensus, disk, dir, clock, node_id, under_way: Arc::default() })
    }

    /// Takes a backup in and forms a cluster from it. Broken off, nothing of it is left. Once all of it is here, whoever
    /// sent it may go away: it is carried through all the same.
    pub(super) async fn restore(self: &Arc<Self>, body: Body, actor: &str) -> Result<Json, Refusal> {
        let busy = |_| Refusal::new(Code::WrongState, "another restore into this node is under way");
        let alone = Arc::clone(&self.under_way).try_lock_owned().map_err(busy)?;
        if self.consensus.has_log() {
            return self.resumed(body).await;
        }
        let head = match self.taken_in(body).await {
            Ok(head) => head,
            Err(refusal) => {
                self.clear().await?;
                return Err(refusal);
            }
        };
        let (this, actor) = (Arc::clone(self), actor.to_owned());
        let forming = tokio::spawn(async move {
            let _alone = alone;
            let formed = this.form(head, &actor).await;
            if formed.is_err() {
                this.clear().await?;
            }
            formed
        });
        forming.await.map_err(|_| Refusal::new(Code::Internal, "the restore broke down"))?
    }

    /// Asked again of a node that has begun the log of its restore: what broke off behind that is finished by the members
    /// themselves, and answered here as done before.
    async fn resumed(&self, mut body: Body) -> Result<Json, Refusal> {
        let (head, _) = head(&mut body).await?;
        let (cluster_id, lineage_id, first_position) = self.consensus.restored(&head.nodes).await?;
        Ok(Json::object([
            ("cluster_id", Json::String(cluster_id.to_string())),
            ("created", Json::Bool(false)),
            ("lineage_id", Json::String(lineage_id.to_string())),
            ("position", Json::u64_text(first_position.0)),
        ]))
    }

    async fn clear(&self) -> Result<(), Refusal> {
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        Ok(blocking(move || restore::clear(&*disk, &dir)).await??)
    }

    /// Everything that was sent, in a file of this node's.
    async fn taken_in(&self, mut body: Body) -> Result<Head, Refusal> {
        let (mut head, mut rest) = head(&mut body).await?;
        if !head.nodes.contains_key(&self.node_id) {
            let detail = format!("nodes must name this node, which is node {}", self.node_id);
            return Err(Refusal::invalid(detail));
        }
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        blocking(move || restore::begin(&*disk, &dir)).await??;
        if head.ring_bytes > 0 {
            let ring = taken(&mut rest, &mut body, head.ring_bytes as usize).await?;
            head.ring = Some(Ring::decode(&ring).map_err(|error| Refusal::invalid(format!("the key ring: {error}")))?);
        }
        self.receive(&head, rest, body).await?;
        Ok(head)
    }

    /// Reads what was sent to its end, and forms the cluster from it.
    async fn form(&self, head: Head, actor: &str) -> Result<Json, Refusal> {
        let (disk, path) = (Arc::clone(&self.disk), restore::incoming(&self.dir));
        let checked = blocking(move || {
            let file = disk.open(&path, Mode::Read)?;
            let checked = check_rows(Arc::clone(&file), &mut |_| {})?;
            Ok::<_, BackupError>((checked, file))
        });
        let (Content { origin, globals, keys }, file) = checked.await?.map_err(|error| match error {
            BackupError::Damaged { offset, flaw, .. } => {
                Refusal::invalid(format!("the backup is damaged at byte {offset}: {flaw}"))
            }
            error => failed(&error),
        })?;
        let (ring, held, now) = (head.ring.as_ref(), self.consensus.keys().held(), self.clock.wall());
        let joining = Joining::of(&keys, origin.lineage_id, ring, &held, head.close_missing, now);
        let joining = joining.map_err(|error| Refusal::new(Code::WrongState, error.to_string()))?;
        let actor = self.sealed_actor(actor, &globals, &joining)?;
        let first = FirstCommand::new(&globals, origin.is_final, self.clock.wall(), head.gap, actor)?;
        let first_position = first.first_position();
        let rows = SnapshotRows::of(file).map_err(|error| failed(&error))?;
        let rows = rows.map(|row| row.map_err(|error| EngineError::Source(EngineCause::new(error))));
        let rows = joining.rows(rows);
        let incoming = Incoming { cluster_id: ClusterId(entropy::bytes()), globals, first, rows };
        let formed = self.consensus.init_restored(head.nodes, incoming).await;
        let formed = formed.map_err(|error| match error {
            FormError::Refused(refusal) => refusal,
            FormError::Restore(error) => error.into(),
            FormError::Unreachable { node_id, reason } => {
                let detail = format!("node {node_id} can't be reached: {reason}");
                Refusal::new(Code::Unavailable, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
            }
            error @ (FormError::Start(_) | FormError::Membership { .. }) => failed(&error),
            error => Refusal::new(Code::WrongState, error.to_string()),
        })?;
        Ok(Json::object([
            ("cluster_id", Json::String(formed.cluster_id.to_string())),
            ("created", Json::Bool(formed.created)),
            ("lineage_id", Json::String(origin.lineage_id.to_string())),
            ("position", Json::u64_text(first_position.0)),
        ]))
    }

    /// Who restores, sealed as everything is in the cluster that comes of it. A node that lacks its keys takes no restore.
    fn sealed_actor(&self, actor: &str, globals: &Globals, joining: &Joining) -> Result<Sealed, Refusal> {
        let mut state = MemoryState::default();
        *state.globals_mut() = globals.clone();
        joining.table.rows().for_each(|row| state.put_key(row));
        // Nothing is written down before the node is in that cluster.
        let cipher = self.consensus.keys().without_notes().cipher(&state, None).map_err(|error| match error {
            error @ (SealError::OuterMissing { .. } | SealError::OuterDiffers { .. }) => {
                Refusal::new(Code::WrongState, format!("{error}; nothing was restored"))
            }
            error => error.into(),
        })?;
        Ok(cipher.seal(Field::AuditActor, Subject::Audit, actor.as_bytes().to_vec()))
    }

    /// Writes what arrives into the file of incoming backups, and compares length and checksum.
    async fn receive(&self, head: &Head, rest: Bytes, mut body: Body) -> Result<(), Refusal> {
        let disk_failed = |error: &crate::disk::DiskError| match error.kind() {
            io::ErrorKind::StorageFull => {
                Refusal::new(Code::WrongState, "the node's disk is full; nothing was restored")
            }
            _ => failed(error),
        };
        let file = self.disk.open(&restore::incoming(&self.dir), Mode::CreateNew).map_err(|e| disk_failed(&e))?;
        let (mut hash, mut received) = (Sha256::new(), 0_u64);
        let mut next = Some(rest);
        while let Some(piece) = next {
            if received + piece.len() as u64 > head.bytes {
                return Err(Refusal::invalid("more bytes came than were announced"));
            }
            hash.update(&piece);
            let (to, at) = (Arc::clone(&file), received);
            received += piece.len() as u64;
            blocking(move || to.write_at(&piece, at)).await?.map_err(|error| disk_failed(&error))?;
            next = next_piece(&mut body).await?;
        }
        if received != head.bytes {
            return Err(broke_off());
        }
        if hash.finalize()[..] != head.sha256[..] {
            return Err(Refusal::invalid("the backup that arrived has another SHA-256 than the one announced"));
        }
        blocking(move || file.sync_data()).await?.map_err(|error| disk_failed(&error))
    }
}

/// The line in front, and what came of the bytes behind it.
async fn head(body: &mut Body) -> Result<(Head, Bytes), Refusal> {
    let mut begun = BytesMut::new();
    loop {
        if let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
            let line = begun.split_to(end + 1);
            return Ok((Head::parse(&line[..end])?, begun.freeze()));
        }
        if begun.len() > limits::RESTORE_HEAD_BYTES_MAX {
            return Err(Refusal::invalid("the body begins with one line of JSON"));
        }
        match next_piece(body).await? {
            Some(piece) => begun.extend_from_slice(&piece),
            None => return Err(broke_off()),
        }
    }
}

/// So many bytes that come before the others.
async fn taken(rest: &mut Bytes, body: &mut Body, bytes: usize) -> Result<Bytes, Refusal> {
    let mut taken = BytesMut::from(&rest[..]);
    while taken.len() < bytes {
        taken.extend_from_slice(&next_piece(body).await?.ok_or_else(broke_off)?);
    }
    *rest = taken.split_off(bytes).freeze();
    Ok(taken.freeze())
}

async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Refusal> {
    loop {
        // One that stops arriving fails by itself.
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => return Err(broke_off()),
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    work::run(job).await.map_err(|_| Refusal::new(Code::Internal, "the restore broke down"))
}
