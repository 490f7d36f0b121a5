//! `seal.json` in the data directory: which key-encryption keys this node's cluster wants, so that a start without them
//! ends before anything else happens.

use std::{path::Path, sync::Arc};

use super::key_file::KeyFile;
use crate::{
    disk::{Disk, DiskError, Mode},
    id::{LineageId, hex},
    json::{Fields, Json, Number},
    limits,
    records::sealing::{OuterKey, Sealing},
};

const NAME: &str = "seal.json";
const TEMPORARY: &str = "seal.json.tmp";
const VERSION: u32 = 1;

/// Which keys a cluster wants, as a node has written it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The cluster's lineage.
    pub lineage_id: LineageId,
    /// The key that wraps root keys.
    pub current: u32,
    /// All keys that something may be wrapped with.
    pub keys: Vec<OuterKey>,
}

/// Why a node can't go on with the keys it has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotedError {
    /// A key is not there.
    #[error("sealing key {id} is missing (found: {found}); nothing was changed")]
    Missing {
        /// Its id.
        id: u32,
        /// The ids that are there.
        found: String,
    },
    /// Another key bears its id.
    #[error("sealing key {id} is not the key this cluster was sealed with; nothing was changed")]
    Differs {
        /// Its id.
        id: u32,
    },
    /// The file can't be read.
    #[error("{NAME} in the data directory is damaged; it is written anew when it is moved away")]
    Damaged,
    /// A newer release wrote the file.
    #[error("{NAME} in the data directory is of a newer release: version {0}")]
    Version(u32),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

fn number(value: u32) -> Json {
    Json::Number(Number::parse(&value.to_string()).expect("an integer is a JSON number"))
}

impl Noted {
    /// What the state of a cluster says.
    pub fn of(lineage_id: LineageId, sealing: &Sealing) -> Self {
        Self { lineage_id, current: sealing.current, keys: sealing.keys.clone() }
    }

    /// The text of the file.
    pub fn encode(&self) -> String {
        let keys = self.keys.iter().map(|key| {
            let check = hex(&key.check);
            Json::object([("id", number(key.id)), ("check", Json::String(check))])
        });
        let members = [
            ("version", number(VERSION)),
            ("lineage_id", Json::String(self.lineage_id.to_string())),
            ("current", number(self.current)),
            ("keys", Json::Array(keys.collect())),
        ];
        Json::object(members).to_text() + "\n"
    }

    /// What this text says.
    ///
    /// # Errors
    /// [`NotedError::Damaged`] or [`NotedError::Version`].
    pub fn decode(text: &[u8]) -> Result<Self, NotedError> {
        let damaged = |_| NotedError::Damaged;
        let mut fields = Fields::new(Json::parse(text).map_err(|_| NotedError::Damaged)?).map_err(damaged)?;
        let version = fields.u32("version").map_err(damaged)?;
        if version != VERSION {
            return Err(NotedError::Version(version));
        }
        let lineage_id = LineageId::parse(&fields.string("lineage_id").map_err(damaged)?).ok_or(NotedError::Damaged)?;
        let current = fields.u32("current").map_err(damaged)?;
        let mut keys = Vec::new();
        for mut key in fields.opt_objects("keys").map_err(damaged)?.unwrap_or_default() {
            let id = key.u32("id").map_err(damaged)?;
            let check = parse_check(&key.string("check").map_err(damaged)?).ok_or(NotedError::Damaged)?;
            keys.push(OuterKey { id, check });
        }
        if !keys.iter().any(|key| key.id == current) {
            return Err(NotedError::Damaged);
        }
        Ok(Self { lineage_id, current, keys })
    }

    /// What a node has written down; none where there is nothing. Changes nothing.
    ///
    /// # Errors
    /// [`NotedError`].
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, NotedError> {
        let file: Arc<dyn crate::disk::File> = match disk.open(&dir.join(NAME), Mode::Read) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        let length = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        if length > limits::SEAL_NOTE_BYTES_MAX {
            return Err(NotedError::Damaged);
        }
        let mut text = vec![0; length];
        file.read_exact_at(&mut text, 0)?;
        Self::decode(&text).map(Some)
    }

    /// Writes it down, durable on return.
    ///
    /// # Errors
    /// The disk's; what was there before is then still there.
    pub fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), DiskError> {
        let (temporary, path) = (dir.join(TEMPORARY), dir.join(NAME));
        match disk.remove(&temporary) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let file = disk.open(&temporary, Mode::CreateNew)?;
        file.write_at(self.encode().as_bytes(), 0)?;
        file.sync_data()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(dir)
    }

    /// Whether all keys are there, and are the ones.
    ///
    /// # Errors
    /// [`NotedError::Missing`] or [`NotedError::Differs`], for the first that is not.
    pub fn judge(&self, keys: &KeyFile) -> Result<(), NotedError> {
        for OuterKey { id, check } in &self.keys {
            match keys.key(*id) {
                None => {
                    let found: Vec<String> = keys.ids().map(|id| id.to_string()).collect();
                    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
                    return Err(NotedError::Missing { id: *id, found });
                }
                Some(key) if key.check() != *check => return Err(NotedError::Differs { id: *id }),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

fn parse_check(text: &str) -> Option<[u8; 8]> {
    let mut check = [0; 8];
    if text.len() != 16 || !text.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit)) {
        return None;
    }
    for (at, byte) in check.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(check)
}
