//! Key-encryption keys: from a file, or from a command that prints one (for a KMS).
//!
//! ```toml
//! [[key]]
//! id = 1                                               # 1 or more, never used again
//! key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" # 32 bytes, base64
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::key::Key;
use crate::limits;

/// Where key-encryption keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// What a command prints.
    Command(Vec<String>),
}

/// Why there are no keys. Never quotes what was read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file can't be read.
    #[error("the sealing keys can't be read: {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others than its owner can read the file.
    #[error("{} can be read by group or others; `chmod 600` it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The file is there already.
    #[error("{} holds a key {id} already", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The key.
        id: u32,
    },
    /// The command can't be run.
    #[error("{program} can't be run: {source}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The command said that it failed.
    #[error("{program} ended with {status}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The command took too long.
    #[error("{program} did not end within {} s", limits::KEY_COMMAND_S)]
    Late {
        /// The program.
        program: String,
    },
    /// More than a key file holds.
    #[error("a key file has at most {} bytes", limits::KEY_FILE_BYTES_MAX)]
    TooLarge,
    /// Not TOML of this shape.
    #[error("the sealing keys, line {line}: {reason}")]
    Shape {
        /// Where.
        line: usize,
        /// What is wrong, without the file's text.
        reason: &'static str,
    },
    /// A key that is none.
    #[error("sealing key {entry} of the file: {reason}")]
    Entry {
        /// Its place, from 1.
        entry: usize,
        /// What it must be.
        reason: &'static str,
    },
    /// No key at all.
    #[error("the key file holds no [[key]]; `semel keys generate --out FILE` writes one")]
    Empty,
}

/// Key-encryption keys by id.
#[derive(Clone, Default)]
pub struct KeyFile {
    keys: BTreeMap<u32, Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    key: Vec<EntryText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    id: i64,
    key: String,
}

impl KeyFile {
    /// The keys of this source, as they are now. Takes as long as a command takes.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn read(source: &KeySource) -> Result<Self, KeyFileError> {
        let text = match source {
            KeySource::File(path) => read_file(path)?,
            KeySource::Command(words) => printed(words, Duration::from_secs(limits::KEY_COMMAND_S))?,
        };
        let keys = Self::parse(&text)?;
        if keys.keys.is_empty() { Err(KeyFileError::Empty) } else { Ok(keys) }
    }

    /// The keys of this text.
    ///
    /// # Errors
    /// [`KeyFileError`], for the first entry that is none.
    pub fn parse(text: &[u8]) -> Result<Self, KeyFileError> {
        let not_text = KeyFileError::Shape { line: 1, reason: "it is not UTF-8" };
        let text = std::str::from_utf8(text).map_err(|_| not_text)?;
        // The parser's own words may quote the text.
        let read: FileText = toml::from_str(text).map_err(|error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            let line = text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
            KeyFileError::Shape { line, reason: "it must be [[key]] tables with id = NUMBER and key = \"BASE64\"" }
        })?;
        let mut keys = BTreeMap::new();
        for (at, EntryText { id, key }) in read.key.into_iter().enumerate() {
            let text = Zeroizing::new(key);
            let wrong = |reason| KeyFileError::Entry { entry: at + 1, reason };
            let id = u32::try_from(id).ok().filter(|id| *id >= 1);
            let id = id.ok_or_else(|| wrong("`id` is a number from 1 to 4294967295"))?;
            let bytes = STANDARD.decode(text.as_bytes()).map(Zeroizing::new);
            let key = bytes.ok().and_then(|bytes| Key::of(&bytes));
            let key = key.ok_or_else(|| wrong("`key` is 32 bytes in base64"))?;
            if keys.values().any(|known: &Key| known.is(&key)) {
                return Err(wrong("`key` is that of another entry"));
            }
            if keys.insert(id, key).is_some() {
                return Err(wrong("`id` is that of another entry"));
            }
        }
        Ok(Self { keys })
    }

    /// The key of this id.
    pub fn key(&self, id: u32) -> Option<&Key> {
        self.keys.get(&id)
    }

    /// All ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }

    /// The key with which something new is begun: the one with the highest id.
    pub fn highest(&self) -> Option<(u32, &Key)> {
        self.keys.last_key_value().map(|(id, key)| (*id, key))
    }
}

/// Writes a new key into a key file, which may be there already and keeps its other keys; the id is the next one where none
/// is named. Answers the id.
///
/// # Errors
/// [`KeyFileError`]; the file is then as it was.
pub fn generate(path: &Path, id: Option<u32>) -> Result<u32, KeyFileError> {
    let (text, known) = match read_file(path) {
        Ok(text) => {
            let known = KeyFile::parse(&text)?;
            (text, known)
        }
        Err(KeyFileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (Zeroizing::new(Vec::new()), KeyFile::default())
        }
        Err(error) => return Err(error),
    };
    let next = known.highest().map_or(1, |(id, _)| id.saturating_add(1));
    let id = id.unwrap_or(next);
    if known.key(id).is_some() || id == 0 {
        return Err(KeyFileError::Taken { path: path.to_owned(), id });
    }
    let key = Zeroizing::new(STANDARD.encode(Key::draw().reveal()));
    let mut extended = text;
    if !extended.is_empty() && !extended.ends_with(b"\n") {
        extended.push(b'\n');
    }
    extended.extend_from_slice(format!("[[key]]\nid = {id}\nkey = \"{}\"\n", *key).as_bytes());
    let failed = |source| KeyFileError::Read { path: path.to_owned(), source };
    write_private(path, &extended).map_err(failed)?;
    Ok(id)
}

/// Replaces a file whole: durable on return, readable by its owner alone.
///
/// # Errors
/// The system's; the file is then as it was.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = path.with_file_name(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(dir)?.sync_all()
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| KeyFileError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    // Of the file that is open, not of whatever bears its name a moment later.
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned() });
    }
    bounded(file).map_err(failed)?.ok_or(KeyFileError::TooLarge)
}

fn bounded(from: impl Read) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    // All the room at once: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(limits::KEY_FILE_BYTES_MAX + 1));
    from.take(limits::KEY_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok((text.len() <= limits::KEY_FILE_BYTES_MAX).then_some(text))
}

/// What a command prints: no shell, no environment but PATH, in this time at most.
pub(super) fn printed(words: &[String], within: Duration) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let program = words.first().cloned().unwrap_or_default();
    let cannot = |source| KeyFileError::Run { program: program.clone(), source };
    let mut command = Command::new(&program);
    command.args(words.iter().skip(1)).env_clear().stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    let mut child = command.spawn().map_err(cannot)?;
    let text = collected(&mut child, within, &program);
    if text.is_err() {
        // It has ended, or is to.
        let _ = child.kill();
    }
    let _ = child.wait();
    text
}

/// Reads while the command runs, so that neither waits for the other, and no longer than it may take.
fn collected(child: &mut Child, within: Duration, program: &str) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let cannot = |source| KeyFileError::Run { program: program.to_owned(), source };
    let until = Instant::now() + within;
    let mut out = child.stdout.take().expect("its output is piped");
    let flags = rustix::fs::fcntl_getfl(&out).map_err(|error| cannot(error.into()))?;
    let nonblocking = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&out, nonblocking).map_err(|error| cannot(error.into()))?;
    let mut text = Zeroizing::new(Vec::with_capacity(limits::KEY_FILE_BYTES_MAX + 1));
    let mut piece = Zeroizing::new([0; 4096]);
    let mut ended = None;
    loop {
        match out.read(&mut piece[..]) {
            Ok(0) if ended.is_some() => break,
            Ok(0) => {}
            Ok(read) => {
                if text.len() + read > limits::KEY_FILE_BYTES_MAX {
                    return Err(KeyFileError::TooLarge);
                }
                text.extend_from_slice(&piece[..read]);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Somebody else holds the other end: what the command has said is here.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && ended.is_some() => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(cannot(error)),
        }
        if Instant::now() >= until {
            return Err(KeyFileError::Late { program: program.to_owned() });
        }
        ended = ended.or(child.try_wait().map_err(cannot)?);
        if ended.is_none() {
            std::thread::sleep(Duration::from_millis(limits::KEY_COMMAND_POLL_MS));
        }
    }
    match ended.expect("it has ended") {
        status if status.success() => Ok(text),
        status => Err(KeyFileError::Failed { program: program.to_owned(), status }),
    }
}
