//! The keys of the file: which there are, where one stands, and what was meant by one that there is not.

use std::path::Path;

use super::{
    ConfigError,
    settings::{
        AuthSettings, ConsoleSettings, JwtSettings, LimitSettings, ListenerTlsSettings, MetricsSettings, RaftSettings,
        SealSettings, Settings, TlsSettings,
    },
};
use crate::limits;

/// The tables of the file by their names, with the names of their keys.
pub(super) const TABLES: [(&str, &[&str]); 11] = [
    ("raft", RaftSettings::KEYS),
    ("limits", LimitSettings::KEYS),
    ("auth", AuthSettings::KEYS),
    ("auth.jwt", JwtSettings::KEYS),
    ("console", ConsoleSettings::KEYS),
    ("metrics", MetricsSettings::KEYS),
    ("tls", TlsSettings::KEYS),
    ("tls.client", ListenerTlsSettings::KEYS),
    ("tls.peer", ListenerTlsSettings::KEYS),
    ("tls.admin", ListenerTlsSettings::KEYS),
    ("seal", SealSettings::KEYS),
];

pub(super) fn check_keys(path: &Path, text: &str, tables: &toml::de::DeTable<'_>) -> Result<(), ConfigError> {
    for (key, value) in tables {
        let name = key.get_ref().as_ref();
        if TABLES.iter().any(|(table, _)| *table == name) {
            check_table(path, text, name, value.get_ref())?;
        } else if !Settings::KEYS.contains(&name) {
            let place = place(path, text, key.span().start);
            return Err(ConfigError::UnknownKey { place, key: name.to_owned(), hint: hint(name) });
        }
    }
    Ok(())
}

fn check_table(path: &Path, text: &str, table: &str, value: &toml::de::DeValue<'_>) -> Result<(), ConfigError> {
    let known = TABLES.iter().find(|(name, _)| *name == table).map_or(&[][..], |(_, keys)| keys);
    for (key, value) in value.as_table().into_iter().flatten() {
        let (inner, whole) = (key.get_ref().as_ref(), format!("{table}.{}", key.get_ref()));
        // A list of tables: its keys are judged where they are read.
        if whole == "auth.certificate" {
            continue;
        }
        if TABLES.iter().any(|(name, _)| *name == whole) {
            check_table(path, text, &whole, value.get_ref())?;
        } else if !known.contains(&inner) {
            let place = place(path, text, key.span().start);
            return Err(ConfigError::UnknownKey { place, key: whole, hint: hint(inner) });
        }
    }
    Ok(())
}

/// `; did you mean …?` where a key is close to the one that was written.
fn hint(written: &str) -> String {
    let top = Settings::KEYS.iter().map(|key| (*key, (*key).to_owned()));
    let tables = TABLES.iter().map(|(table, _)| (*table, format!("[{table}]")));
    let inside = TABLES.iter().flat_map(|(table, keys)| keys.iter().map(move |key| (*key, format!("{table}.{key}"))));
    let nearest = top.chain(tables).chain(inside).map(|(key, shown)| (distance(written, key), shown)).min();
    match nearest {
        Some((distance, shown)) if distance <= written.len().div_ceil(3) => format!("; did you mean `{shown}`?"),
        _ => String::new(),
    }
}

/// How many letters must be put in, taken out or exchanged to make one of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    // A written key is of any length; what is far too long is far away without looking.
    if one.len() > 2 * limits::CONFIG_KEY_BYTES_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in other.bytes().enumerate() {
            let exchanged = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = exchanged.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

pub(super) fn place(path: &Path, text: &str, offset: usize) -> String {
    let line = text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1;
    format!("{}, line {line}", path.display())
}

/// Where a key (`table.key` or `key`) stands in the file.
pub(super) fn offset_of(text: &str, key: &str) -> Option<usize> {
    let tables = toml::de::DeTable::parse(text).ok()?;
    let mut within = tables.get_ref();
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        let (found, value) = within.iter().find(|(k, _)| k.get_ref().as_ref() == part)?;
        if parts.peek().is_none() {
            return Some(found.span().start);
        }
        within = value.get_ref().as_table()?;
    }
    None
}
