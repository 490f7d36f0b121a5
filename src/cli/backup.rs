//! `semel backup`: the state of a cluster, fetched from one of its nodes into a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::time::Instant;

use crate::{
    backup::{
        self, BackupError, Origin,
        manifest::{MANIFEST, Manifest, parse_digest, parse_time},
        parts::PartsWriter,
        ring::Ring,
    },
    disk::{Disk, OsDisk},
    id::{ClusterId, LineageId, Position},
    json::Json,
    limits,
};

use super::{
    args::{AdminConnection, Members},
    call::Node,
    failure::Failure,
    progress::Progress,
};

const ROUTE: &str = "/v1/admin/backup";
/// What an unfinished directory remembers.
const RESUME: &str = "resume.json";
/// The pause before a node that could not be reached is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often a backup begins anew because the node has lost it, or what came of it.
const BEGINNINGS_MAX: usize = 3;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  semel backup --out backups/monday
  semel backup --out backups/monday --resume
  semel backup --out backups/last --final
  semel backup --out backups/monday --keyring keys/semel.ring     (of a sealed cluster)

Any node can be asked; the cluster goes on. The state is of one position, no older than the last command that was
acknowledged before. Everything is read back before the directory gets its name. Keep the printed sha256 elsewhere.")]
pub(super) struct Backup {
    /// The directory to make. It must not exist; until it is whole it is called DIR.partial.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Go on with DIR.partial, if the node still has that backup; else begin anew.
    #[arg(long)]
    resume: bool,
    /// First end the cluster's writes, for good: every later command is refused as unavailable. For a move without a gap.
    #[arg(long = "final")]
    is_final: bool,
    /// Write the key ring into this file, outside DIR: without it sealed fields stay shut.
    #[arg(long, value_name = "FILE")]
    keyring: Option<PathBuf>,
    /// Of a sealed cluster: without the key ring, which was exported before. It must be no older than the youngest tenant.
    #[arg(long, conflicts_with = "keyring")]
    no_keyring: bool,
    #[command(flatten)]
    connection: AdminConnection,
}

/// A backup that a node holds.
struct Held {
    id: String,
    origin: Origin,
    bytes: u64,
    sha256: [u8; 32],
    is_sealed: bool,
    text: String,
}

impl Held {
    fn of(answer: &Json) -> Option<Self> {
        let text = |name| answer.member(name).and_then(Json::as_str);
        let number = |name| text(name).and_then(crate::id::parse_decimal);
        Some(Self {
            id: text("id")?.to_owned(),
            origin: Origin {
                lineage_id: LineageId::parse(text("lineage_id")?)?,
                cluster_id: ClusterId::parse(text("cluster_id")?)?,
                position: Position(number("position")?),
                cluster_time: parse_time(text("cluster_time")?)?,
                is_final: answer.member("final") == Some(&Json::Bool(true)),
            },
            bytes: number("bytes")?,
            sha256: parse_digest(text("sha256")?)?,
            is_sealed: answer.member("sealed") == Some(&Json::Bool(true)),
            text: answer.to_text(),
        })
    }
}

/// How an attempt to fetch ended.
enum Fetched {
    Whole,
    /// The node no longer has it, or what came is not it.
    Anew(&'static str),
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Failure::Failed(error.into())
    }
}

impl Backup {
    pub(super) fn run(self) -> Result<(), Failure> {
        let partial = self.partial()?;
        let connection = self.connection.clone().connection();
        let node = Node::of(&connection)?;
        let patience = Duration::from_millis(u64::from(connection.timeout));
        if let Some(keyring) = &self.keyring
            && absolute(keyring)?.starts_with(absolute(&self.out)?)
        {
            return Err(Failure::Usage(
                "the key ring belongs outside the backup: --keyring names a file in it".to_owned(),
            ));
        }
        self.prepare(&partial)?;
        let mut held = remembered(&partial);
        for _ in 0..BEGINNINGS_MAX {
            let found = match held.take() {
                Some(known) => look(&node, &known)?,
                None => Some(begin(&node, self.is_final)?),
            };
            let Some(found) = found else {
                eprintln!("semel: the node no longer holds that backup; it begins anew");
                PartsWriter::clear(&partial)?;
                continue;
            };
            if found.is_sealed && self.keyring.is_none() && !self.no_keyring {
                release(&node, &found.id);
                PartsWriter::clear(&partial)?;
                // Empty, unless somebody else has put something there.
                let _ = fs::remove_dir(&partial);
                let text = "the cluster is sealed: --keyring FILE keeps the keys that open the backup, outside of it; \
                            or say --no-keyring";
                return Err(Failure::Usage(text.to_owned()));
            }
            fs::write(partial.join(RESUME), &found.text).context(RESUME)?;
            match fetch(&node, &found, &partial, patience)? {
                Fetched::Whole => return self.finish(&node, &found, &partial),
                Fetched::Anew(why) => {
                    eprintln!("semel: {why}; it begins anew");
                    PartsWriter::clear(&partial)?;
                    // Else the node would keep this one for whoever fetches it.
                    release(&node, &found.id);
                }
            }
        }
        Err(anyhow!("the node could not keep a backup for as long as it takes to fetch it").into())
    }

    /// `DIR.partial`, beside `DIR`.
    fn partial(&self) -> Result<PathBuf, Failure> {
        let name = self.out.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Failure::Usage("--out must name a directory to make".to_owned()))?;
        Ok(self.out.with_file_name(format!("{name}.partial")))
    }

    fn prepare(&self, partial: &Path) -> Result<(), Failure> {
        if self.out.symlink_metadata().is_ok() {
            return Err(anyhow!("{} exists already; name a directory that doesn't", self.out.display()).into());
        }
        if partial.symlink_metadata().is_ok() && !self.resume {
            let partial = partial.display();
            return Err(
                anyhow!("{partial} is left of an earlier attempt; --resume goes on with it, or delete it").into()
            );
        }
        OsDisk.create_dir_all(partial).map_err(BackupError::from)?;
        if !partial.join(RESUME).exists() {
            PartsWriter::clear(partial)?;
        }
        Ok(())
    }

    fn finish(&self, node: &Node, held: &Held, partial: &Path) -> Result<(), Failure> {
        // What was fetched is whole by its length and checksum; the rest is read from what lies on the disk now.
        let (parts, sha256) = PartsWriter::open(partial)?.end()?;
        let manifest = Manifest { origin: held.origin, bytes: held.bytes, sha256, parts };
        write_durably(&partial.join(MANIFEST), manifest.encode().as_bytes())?;
        fs::remove_file(partial.join(RESUME)).context(RESUME)?;
        OsDisk.sync_dir(partial).map_err(BackupError::from)?;
        let mut progress = Progress::new("checked", 2 * held.bytes);
        backup::verify(partial, &mut |bytes| progress.at(bytes))?;
        progress.end();
        if let Some(keyring) = &self.keyring {
            let ring = fetch_ring(node, held)?;
            write_durably(keyring, &ring)?;
        }
        OsDisk.rename(partial, &self.out).map_err(BackupError::from)?;
        OsDisk.sync_dir(beside(&self.out)).map_err(BackupError::from)?;
        release(node, &held.id);
        print_backup(&self.out, &manifest);
        Ok(())
    }
}

/// `{"path","position","cluster_time","lineage_id","cluster_id","bytes","sha256"}`.
pub(super) fn print_backup(path: &Path, manifest: &Manifest) {
    let Origin { lineage_id, cluster_id, position, cluster_time, is_final } = manifest.origin;
    let told = Json::object([
        ("path", Json::String(path.display().to_string())),
        ("position", Json::u64_text(position.0)),
        ("cluster_time", Json::String(backup::manifest::time_text(cluster_time))),
        ("lineage_id", Json::String(lineage_id.to_string())),
        ("cluster_id", Json::String(cluster_id.to_string())),
        ("final", Json::Bool(is_final)),
        ("bytes", Json::u64_text(manifest.bytes)),
        ("sha256", Json::String(crate::id::hex(&manifest.sha256))),
    ]);
    println!("{}", told.to_text());
}

fn beside(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    Ok(std::path::absolute(path).with_context(|| path.display().to_string())?)
}

/// Writes a file whole or not at all, in the place of one that may be there.
fn write_durably(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let name = || path.display().to_string();
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let written = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(beside(path))?.sync_all()
    };
    written().with_context(name)
}

fn remembered(partial: &Path) -> Option<Held> {
    let text = fs::read(partial.join(RESUME)).ok()?;
    Held::of(&Json::parse(&text).ok()?)
}

fn by_id(id: &str) -> Members {
    let mut members = Members::default();
    members.text("id", id);
    members
}

/// Lets go of the node's copy. One that it can't be told of goes by itself after a while.
fn release(node: &Node, id: &str) {
    let mut request = by_id(id);
    request.flag("release", true);
    let _ = node.post(ROUTE, &request.json(), 0);
}

fn is_gone(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused { problem, .. } if problem.member("code").and_then(Json::as_str) == Some("not_found"))
}

/// Begins a backup on the node, and waits until it is written there.
fn begin(node: &Node, is_final: bool) -> Result<Held, Failure> {
    let mut request = Members::default();
    request.flag("final", is_final);
    let mut answer = node.post(ROUTE, &request.json(), 0)?.json;
    let mut progress = Progress::new("written on the node", 0);
    loop {
        if let Some(held) = Held::of(&answer) {
            progress.end();
            return Ok(held);
        }
        let text = |name| answer.member(name).and_then(Json::as_str);
        let id = text("id").ok_or_else(|| anyhow!("the node's answer is not one of this release"))?.to_owned();
        progress.at(text("bytes_done").and_then(crate::id::parse_decimal).unwrap_or(0));
        answer = node.post(ROUTE, &by_id(&id).json(), 0)?.json;
    }
}

/// The backup that was begun earlier, if the node still holds it.
fn look(node: &Node, known: &Held) -> Result<Option<Held>, Failure> {
    match node.post(ROUTE, &by_id(&known.id).json(), 0) {
        Ok(answer) => Ok(Held::of(&answer.json).filter(|held| held.sha256 == known.sha256)),
        Err(failure) if is_gone(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The key ring, as the node holds it now.
fn fetch_ring(node: &Node, held: &Held) -> Result<Vec<u8>, Failure> {
    let mut request = by_id(&held.id);
    request.flag("keyring", true);
    let mut bytes = Vec::new();
    node.download(ROUTE, &request.json(), &mut |piece| {
        if (bytes.len() + piece.len()) as u64 > limits::KEY_RING_BYTES_MAX {
            return Err(anyhow!("a key ring is smaller than this").into());
        }
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    let ring = Ring::decode(&bytes).context("the key ring")?;
    if ring.lineage_id != held.origin.lineage_id || ring.position < held.origin.position {
        return Err(anyhow!("the key ring is not one of this backup's cluster").into());
    }
    Ok(bytes)
}

/// Fetches what is missing. A connection that breaks is made again, for as long as bytes come now and then.
fn fetch(node: &Node, held: &Held, partial: &Path, patience: Duration) -> Result<Fetched, Failure> {
    let mut parts = PartsWriter::open(partial)?;
    let mut progress = Progress::new("fetched", held.bytes);
    let mut moved = Instant::now();
    while parts.bytes() < held.bytes {
        let before = parts.bytes();
        let mut request = by_id(&held.id);
        request.text("offset", &before.to_string());
        let fetched = node.download(ROUTE, &request.json(), &mut |bytes| {
            parts.append(bytes)?;
            progress.at(parts.bytes());
            Ok(())
        });
        if parts.bytes() > before {
            moved = Instant::now();
        }
        match fetched {
            Ok(()) => {}
            Err(failure) if is_gone(&failure) => return Ok(Fetched::Anew("the node no longer holds the backup")),
            Err(Failure::Unreachable(why)) if moved.elapsed() < patience => {
                eprintln!("semel: {why}; {} of {} bytes are here", parts.bytes(), held.bytes);
                std::thread::sleep(AGAIN);
            }
            Err(failure) => return Err(failure),
        }
    }
    progress.end();
    let bytes = parts.bytes();
    let (_, sha256) = parts.end()?;
    Ok(match bytes == held.bytes && sha256 == held.sha256 {
        true => Fetched::Whole,
        false => Fetched::Anew("what lies here is not what the node holds"),
    })
}
