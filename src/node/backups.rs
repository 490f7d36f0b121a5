//! Backups that are fetched from this node: written once, into a file beside the log, and kept for as long as somebody
//! fetches it. `POST /v1/admin/backup`:
//!
//! | request | answer |
//! | --- | --- |
//! | `{"final"?}` | begins one: `{"id", "state": "writing", "bytes_done"}`, or the next |
//! | `{"id"}` | `{"id", "state": "ready", "position", "cluster_time", "lineage_id", "cluster_id", "final", "bytes", "sha256"}` |
//! | `{"id", "offset"}` | its bytes from there on, as a stream |
//! | `{"id", "keyring": true}` | the key ring as it is now, as bytes, once the backup is ready |
//! | `{"id", "release": true}` | removes it |
//!
//! An id that is gone is `not_found`: whoever fetched it begins anew.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Response, header};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    backup::{
        BackupError, Origin,
        manifest::time_text,
        ring::Ring,
        source::{self, Written},
    },
    disk::{Disk, DiskError, File, Mode},
    entropy,
    id::hex,
    json::{Fields, Json},
    limits,
    raft::Consensus,
    records::{
        command::{Command, Deed, WritesEnded},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::{Field, Subject},
    work,
};

/// The backup that this node holds: one at most.
pub(super) struct Backups {
    consensus: Consensus,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    current: Mutex<Option<Current>>,
}

struct Current {
    id: String,
    phase: Phase,
    touched: Instant,
}

#[derive(Clone)]
enum Phase {
    /// So many bytes of rows so far.
    Writing(Arc<AtomicU64>),
    Ready(Written),
    Failed,
}

/// What is asked of a backup.
pub(super) enum Asked {
    Begin { is_final: bool },
    Look { id: String },
    Fetch { id: String, offset: u64 },
    Ring { id: String },
    Release { id: String },
}

impl Asked {
    /// The request of this body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let invalid = |error: &dyn std::fmt::Display| Refusal::invalid(error.to_string());
        let json = Json::parse(body).map_err(|error| invalid(&error))?;
        let mut fields = Fields::new(json).map_err(|error| invalid(&error))?;
        let id = fields.opt_string("id").map_err(|error| invalid(&error))?;
        let offset = fields.opt_u64_text("offset").map_err(|error| invalid(&error))?;
        let is_final = fields.opt_bool("final").map_err(|error| invalid(&error))?;
        let releases = fields.opt_bool("release").map_err(|error| invalid(&error))?;
        let wants_ring = fields.opt_bool("keyring").map_err(|error| invalid(&error))?;
        fields.finish().map_err(|error| invalid(&error))?;
        if wants_ring == Some(true) {
            return match (id, offset, is_final, releases) {
                (Some(id), None, None, None) => Ok(Asked::Ring { id }),
                _ => Err(Refusal::invalid("keyring comes with id alone")),
            };
        }
        match (id, offset, is_final, releases) {
            (None, None, is_final, None) => Ok(Asked::Begin { is_final: is_final.unwrap_or(false) }),
            (Some(id), Some(offset), None, None) => Ok(Asked::Fetch { id, offset }),
            (Some(id), None, None, Some(true)) => Ok(Asked::Release { id }),
            (Some(id), None, None, None | Some(false)) => Ok(Asked::Look { id }),
            _ => Err(Refusal::invalid("id comes alone, with offset, or with release; final comes alone")),
        }
    }
}

fn gone() -> Refusal {
    Refusal::new(Code::NotFound, "this node no longer holds that backup; begin another")
}

fn failed(error: &BackupError) -> Refusal {
    tracing::error!(%error, "a backup could not be written");
    Refusal::new(Code::Internal, "the backup could not be written; the node's log says why")
}

impl Backups {
    /// The backups of a node, in `dir`. What an earlier process has left there is removed.
    pub(super) fn new(consensus: Consensus, disk: Arc<dyn Disk>, dir: PathBuf) -> Arc<Self> {
        let left = disk.list(&dir).unwrap_or_default();
        for name in left.iter().filter(|name| name.starts_with("backup-")) {
            if let Err(error) = disk.remove(&dir.join(name)) {
                tracing::warn!(name, %error, "a backup of an earlier process could not be removed");
            }
        }
        Arc::new(Self { consensus, disk, dir, current: Mutex::new(None) })
    }

    /// Answers a request. `actor` is who asks.
    pub(super) async fn answer(self: &Arc<Self>, asked: Asked, actor: &str) -> Result<Response<Body>, Refusal> {
        match asked {
            Asked::Begin { is_final } => {
                let id = self.begin(is_final, actor).await?;
                self.look(&id).await
            }
            Asked::Look { id } => self.look(&id).await,
            Asked::Fetch { id, offset } => self.fetch(&id, offset),
            Asked::Ring { id } => self.ring(&id).await,
            Asked::Release { id } => {
                self.phase(&id)?;
                self.remove(&id);
                Ok(json(Json::object([("id", Json::String(id)), ("state", "released".into())])))
            }
        }
    }

    /// The ring as it is now: with every root key that the backup needs, and without those that were destroyed since.
    async fn ring(&self, id: &str) -> Result<Response<Body>, Refusal> {
        let Phase::Ready(_) = self.phase(id)? else {
            return Err(Refusal::new(Code::WrongState, "the backup is still being written"));
        };
        self.consensus.read_barrier().await?;
        let records = self.consensus.records();
        let ring = {
            let state = records.read();
            let formed = state.globals().formed.clone();
            let formed = formed.ok_or_else(|| Refusal::new(Code::Unavailable, "the cluster is not formed yet"))?;
            Ring::of(formed.lineage_id, state.globals().position, state.key_table())
        };
        let mut response = Response::new(Body::from(ring.encode()));
        let kind = header::HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    fn is_sealed(&self) -> bool {
        self.consensus.records().read().key_table().sealing.is_some()
    }

    /// The state of a backup that is still there, which is thereby wanted.
    fn phase(&self, id: &str) -> Result<Phase, Refusal> {
        let mut current = self.current.lock();
        let current = current.as_mut().filter(|current| current.id == id).ok_or_else(gone)?;
        current.touched = Instant::now();
        Ok(current.phase.clone())
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("backup-{id}.semel"))
    }

    fn remove(&self, id: &str) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|current| current.id == id) {
            *current = None;
        }
        drop(current);
        self.unlink(id);
    }

    fn unlink(&self, id: &str) {
        match self.disk.remove(&self.path(id)) {
            Err(error) if !error.is_not_found() => tracing::warn!(%error, "a backup could not be removed"),
            _ => {}
        }
    }

    /// Begins a backup of everything that was acknowledged before this call, anywhere.
    async fn begin(self: &Arc<Self>, is_final: bool, actor: &str) -> Result<String, Refusal> {
        let id = hex(&entropy::bytes::<16>());
        let written = Arc::new(AtomicU64::new(0));
        let replaced = {
            let mut current = self.current.lock();
            let busy = Duration::from_millis(limits::BACKUP_BUSY_MS);
            if let Some(found) = current.as_ref()
                && (matches!(found.phase, Phase::Writing(_)) || found.touched.elapsed() < busy)
                && !matches!(found.phase, Phase::Failed)
            {
                let detail = "another backup is being taken from this node; wait for it, or ask another node";
                return Err(Refusal::new(Code::WrongState, detail));
            }
            let phase = Phase::Writing(Arc::clone(&written));
            current.replace(Current { id: id.clone(), phase, touched: Instant::now() })
        };
        if let Some(replaced) = replaced {
            self.unlink(&replaced.id);
        }
        if let Err(refusal) = self.agree(is_final, actor).await {
            self.remove(&id);
            return Err(refusal);
        }
        tokio::spawn(Arc::clone(self).write_and_keep(id.clone(), actor.to_owned(), written));
        Ok(id)
    }

    /// Ends the cluster's writes, if this is its final backup, and makes sure that this node holds all that was answered.
    async fn agree(&self, is_final: bool, actor: &str) -> Result<(), Refusal> {
        if is_final {
            let cipher = self.consensus.keys().cipher(&*self.consensus.records().read(), None)?;
            let actor = cipher.seal(Field::AuditActor, Subject::Audit, actor.as_bytes().to_vec());
            let ended = Command::WritesEnded(WritesEnded { actor });
            self.consensus.propose(Arc::new(ended)).await?.answer?;
        }
        self.consensus.read_barrier().await
    }

    async fn write_and_keep(self: Arc<Self>, id: String, actor: String, done: Arc<AtomicU64>) {
        let phase = match self.write(&id, &done).await {
            Some(written) => self.noted(written, &actor).await,
            None => Phase::Failed,
        };
        let is_failed = matches!(phase, Phase::Failed);
        let is_current = match self.current.lock().as_mut().filter(|current| current.id == id) {
            Some(current) => {
                (current.phase, current.touched) = (phase, Instant::now());
                true
            }
            None => false,
        };
        if is_failed || !is_current {
            self.unlink(&id);
        }
        self.keep(&id).await;
    }

    /// Writes all that is applied by now. What the log here does not hold durably yet is in no view of the state: it is waited
    /// for.
    async fn write(self: &Arc<Self>, id: &str, done: &Arc<AtomicU64>) -> Option<Written> {
        let wanted = self.consensus.records().mark().index;
        loop {
            let (this, path, done) = (Arc::clone(self), self.path(id), Arc::clone(done));
            let tried = work::run(move || {
                this.disk.create_dir_all(&this.dir)?;
                let view = this.consensus.records().snapshot()?;
                if view.mark.index < wanted {
                    return Ok(None);
                }
                let tell = &mut |bytes| done.store(bytes, Ordering::Relaxed);
                source::write(&*this.disk, &path, view, tell).map(Some)
            });
            match tried.await {
                Ok(Ok(None)) => {}
                Ok(Ok(written)) => return written,
                Ok(Err(error)) => {
                    failed(&error);
                    return None;
                }
                Err(_) => return None,
            }
            tokio::time::sleep(Duration::from_millis(limits::BACKUP_LOOK_MS)).await;
        }
    }

    /// A backup is handed out once it stands in the audit chain that it was made.
    async fn noted(&self, written: Written, actor: &str) -> Phase {
        let Origin { position, is_final, .. } = written.origin;
        let detail = Json::object([
            ("position", Json::u64_text(position.0)),
            ("final", Json::Bool(is_final)),
            ("bytes", Json::u64_text(written.bytes)),
            ("sha256", Json::String(hex(&written.sha256))),
        ]);
        match self.consensus.note(Deed::BackupMade, actor, &detail).await {
            Ok(()) => Phase::Ready(written),
            Err(refusal) => {
                tracing::error!(%refusal, "a backup could not be audited, and is not handed out");
                Phase::Failed
            }
        }
    }

    /// Removes the backup once nobody has fetched of it for a while.
    async fn keep(&self, id: &str) {
        let kept = Duration::from_millis(limits::BACKUP_KEPT_MS);
        loop {
            let touched =
                self.current.lock().as_ref().filter(|current| current.id == id).map(|current| current.touched);
            let Some(touched) = touched else { return };
            if touched.elapsed() >= kept {
                return self.remove(id);
            }
            tokio::time::sleep_until(touched + kept).await;
        }
    }

    /// How a backup stands; while it is being written the answer waits a little.
    async fn look(&self, id: &str) -> Result<Response<Body>, Refusal> {
        let until = Instant::now() + Duration::from_millis(limits::BACKUP_WAIT_MS);
        loop {
            match self.phase(id)? {
                Phase::Ready(written) => return Ok(json(ready(id, &written, self.is_sealed()))),
                Phase::Failed => {
                    self.remove(id);
                    return Err(Refusal::new(
                        Code::Internal,
                        "the backup could not be written; the node's log says why",
                    ));
                }
                Phase::Writing(done) if Instant::now() >= until => {
                    let bytes = done.load(Ordering::Relaxed);
                    return Ok(json(Json::object([
                        ("id", Json::String(id.to_owned())),
                        ("state", "writing".into()),
                        ("bytes_done", Json::u64_text(bytes)),
                    ])));
                }
                Phase::Writing(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn fetch(self: &Arc<Self>, id: &str, offset: u64) -> Result<Response<Body>, Refusal> {
        let Phase::Ready(written) = self.phase(id)? else {
            return Err(Refusal::new(Code::WrongState, "the backup is still being written"));
        };
        if offset > written.bytes {
            return Err(Refusal::invalid("offset lies behind the end of the backup"));
        }
        let file = self.disk.open(&self.path(id), Mode::Read).map_err(|error| failed(&error.into()))?;
        let (pieces, body) = mpsc::channel(limits::BACKUP_PIECES_MAX);
        let (this, id) = (Arc::clone(self), id.to_owned());
        tokio::spawn(async move { this.send(&id, &file, offset..written.bytes, &pieces).await });
        let mut response = Response::new(Body::from_stream(ReceiverStream::new(body)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, (written.bytes - offset).into());
        Ok(response)
    }

    /// Sends pieces for as long as somebody takes them.
    async fn send(
        &self,
        id: &str,
        file: &Arc<dyn File>,
        range: std::ops::Range<u64>,
        pieces: &mpsc::Sender<Result<Bytes, DiskError>>,
    ) {
        let mut offset = range.start;
        while offset < range.end {
            let bytes = (range.end - offset).min(limits::SNAPSHOT_PIECE_BYTES as u64);
            let (file, at) = (Arc::clone(file), offset);
            let read = work::run(move || {
                let mut piece = vec![0; bytes as usize];
                file.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
            });
            // What can't be read is missed by the receiver, which knows how much there is.
            let Ok(read) = read.await else { return };
            offset += bytes;
            let is_over = read.is_err();
            // Gone with the connection, or with the backup.
            if pieces.send(read).await.is_err() || is_over || self.phase(id).is_err() {
                return;
            }
        }
    }
}

fn ready(id: &str, written: &Written, is_sealed: bool) -> Json {
    let Origin { lineage_id, cluster_id, position, cluster_time, is_final } = written.origin;
    let mut members = vec![
        ("id", Json::String(id.to_owned())),
        ("state", "ready".into()),
        ("position", Json::u64_text(position.0)),
        ("cluster_time", Json::String(time_text(cluster_time))),
        ("lineage_id", Json::String(lineage_id.to_string())),
        ("cluster_id", Json::String(cluster_id.to_string())),
        ("final", Json::Bool(is_final)),
        ("bytes", Json::u64_text(written.bytes)),
        ("sha256", Json::String(hex(&written.sha256))),
    ];
    if is_sealed {
        members.push(("sealed", Json::Bool(true)));
    }
    Json::object(members)
}

fn json(json: Json) -> Response<Body> {
    let mut response = Response::new(Body::from(json.to_text()));
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
