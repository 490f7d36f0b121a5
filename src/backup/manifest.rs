//! `manifest.json`: what a backup holds, for people and for whoever reads it back.
//!
//! There is one spelling for every content, so that a changed byte shows even where it changes no meaning.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Origin;
use crate::{
    id::{ClusterId, LineageId, Position, Time, hex},
    json::{FieldError, Fields, Json, Number},
    limits,
};

/// The name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// The format this release writes, and the only one so far.
pub const FORMAT: u32 = 1;

/// The name of a part.
pub fn part_name(number: usize) -> String {
    format!("part-{number:06}")
}

/// The number of the part of this name; none for other names.
pub fn part_number(name: &str) -> Option<usize> {
    let number: usize = name.strip_prefix("part-")?.parse().ok()?;
    (part_name(number) == name && number < limits::BACKUP_PARTS_MAX).then_some(number)
}

/// A part as the manifest tells it; its name is its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it is a backup of.
    pub origin: Origin,
    /// Bytes of all parts.
    pub bytes: u64,
    /// SHA-256 of the parts, joined.
    pub sha256: [u8; 32],
    /// The parts in order.
    pub parts: Vec<Part>,
}

/// Why a text is no manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is no JSON.
    #[error(transparent)]
    Json(#[from] crate::json::Error),
    /// A member is missing, unknown or of another kind.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A newer release wrote it.
    #[error("format {0}")]
    Version(u64),
    /// A member holds something that it never does.
    #[error("{0} holds what it never does")]
    Value(&'static str),
    /// It says the same in another spelling.
    #[error("it is not spelt as it was written")]
    Spelling,
}

fn number(value: u32) -> Json {
    Json::Number(Number::parse(&value.to_string()).expect("an integer is a JSON number"))
}

impl Manifest {
    /// The text of the file.
    pub fn encode(&self) -> String {
        let parts = self.parts.iter().enumerate().map(|(number, part)| {
            Json::object([
                ("name", Json::String(part_name(number))),
                ("bytes", Json::u64_text(part.bytes)),
                ("sha256", Json::String(hex(&part.sha256))),
            ])
        });
        let Origin { lineage_id, cluster_id, position, cluster_time, is_final } = self.origin;
        let members = [
            ("format", number(FORMAT)),
            ("position", Json::u64_text(position.0)),
            ("cluster_time", Json::String(time_text(cluster_time))),
            ("lineage_id", Json::String(lineage_id.to_string())),
            ("cluster_id", Json::String(cluster_id.to_string())),
            ("final", Json::Bool(is_final)),
            ("bytes", Json::u64_text(self.bytes)),
            ("sha256", Json::String(hex(&self.sha256))),
            ("parts", Json::Array(parts.collect())),
        ];
        Json::object(members).to_text() + "\n"
    }

    /// The manifest of this text.
    ///
    /// # Errors
    /// [`ManifestError`], for any text that [`Manifest::encode`] does not write.
    pub fn decode(text: &[u8]) -> Result<Self, ManifestError> {
        let json = Json::parse(text)?;
        if let Some(Json::Number(format)) = json.member("format")
            && let Ok(format) = format.as_str().parse::<u64>()
            && format != u64::from(FORMAT)
        {
            return Err(ManifestError::Version(format));
        }
        let mut fields = Fields::new(json)?;
        fields.u32("format")?;
        let origin = Origin {
            position: Position(fields.u64_text("position")?),
            cluster_time: parse_time(&fields.string("cluster_time")?).ok_or(ManifestError::Value("cluster_time"))?,
            lineage_id: LineageId::parse(&fields.string("lineage_id")?).ok_or(ManifestError::Value("lineage_id"))?,
            cluster_id: ClusterId::parse(&fields.string("cluster_id")?).ok_or(ManifestError::Value("cluster_id"))?,
            is_final: fields.opt_bool("final")?.ok_or(ManifestError::Value("final"))?,
        };
        let bytes = fields.u64_text("bytes")?;
        let sha256 = parse_digest(&fields.string("sha256")?).ok_or(ManifestError::Value("sha256"))?;
        let mut parts = Vec::new();
        for mut part in fields.opt_objects("parts")?.unwrap_or_default() {
            if part_number(&part.string("name")?) != Some(parts.len()) {
                return Err(ManifestError::Value("name"));
            }
            let bytes = part.u64_text("bytes")?;
            let sha256 = parse_digest(&part.string("sha256")?).ok_or(ManifestError::Value("sha256"))?;
            part.finish()?;
            parts.push(Part { bytes, sha256 });
        }
        fields.finish()?;
        let manifest = Self { origin, bytes, sha256, parts };
        manifest.check()?;
        if manifest.encode().as_bytes() != text {
            return Err(ManifestError::Spelling);
        }
        Ok(manifest)
    }

    /// Sizes that add up, each within its bounds.
    fn check(&self) -> Result<(), ManifestError> {
        let in_bounds = |part: &Part| (1..=limits::BACKUP_PART_BYTES).contains(&part.bytes);
        if self.parts.is_empty() || !self.parts.iter().all(in_bounds) {
            return Err(ManifestError::Value("parts"));
        }
        // At most BACKUP_PARTS_MAX parts of BACKUP_PART_BYTES: far below what a u64 holds.
        if self.parts.iter().map(|part| part.bytes).sum::<u64>() != self.bytes {
            return Err(ManifestError::Value("bytes"));
        }
        Ok(())
    }
}

/// The digest of 64 hex digits.
pub fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let (high, low) = text.split_at_checked(32)?;
    let mut digest = [0; 32];
    digest[..16].copy_from_slice(&LineageId::parse(high)?.0);
    digest[16..].copy_from_slice(&LineageId::parse(low)?.0);
    Some(digest)
}

/// A time as RFC 3339 in UTC with milliseconds.
pub fn time_text(time: Time) -> String {
    let nanos = i128::from(time.0.min(limits::TIME_S_MAX * 1000)) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).expect("times end with the year 9999");
    let (hour, minute, second, ms) = at.time().as_hms_milli();
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The time of an RFC 3339 text, cut to milliseconds; none before 1970.
pub fn parse_time(text: &str) -> Option<Time> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().map(Time)
}
