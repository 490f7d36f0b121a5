//! An exported audit chain, recomputed row by row from the stored bytes.

use std::{fs, path::Path};

use anyhow::{Context, anyhow};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

use crate::{
    backup::ring::Ring,
    cli::failure::Failure,
    id::{Tenant, hex},
    json::Json,
    records::{
        codec::{self, Blob},
        command::Wrapped,
        state::AuditRow,
    },
    seal::{
        Cipher,
        cipher::{Holder, Kind},
        key_file::{KeyFile, KeySource},
    },
    service::sealed_as,
};

/// What a whole file proves.
#[derive(Debug, PartialEq, Eq)]
struct Proven {
    rows: u64,
    seq: u64,
    hash: String,
}

/// What opens what is sealed: key-encryption keys, and the root keys that they wrap.
pub(super) struct Held {
    keys: KeyFile,
    ring: Ring,
}

impl Held {
    /// The keys of these files.
    pub(super) fn read(keys: &Path, ring: &Path) -> Result<Self, Failure> {
        let keys = KeyFile::read(&KeySource::File(keys.to_owned())).map_err(anyhow::Error::new)?;
        let bytes = fs::read(ring).with_context(|| ring.display().to_string())?;
        let ring = Ring::decode(&bytes).with_context(|| ring.display().to_string())?;
        Ok(Self { keys, ring })
    }

    /// The cipher of the chain with this head, which brings its data keys along.
    fn cipher(&self, head: &Json) -> Result<Cipher, String> {
        let tenant = head.member("tenant").and_then(Json::as_str).map(Tenant::parse);
        let tenant = tenant.transpose().map_err(|error| format!("the head names no tenant: {error}"))?;
        let entry = self.ring.entries.iter().find(|entry| entry.tenant == tenant);
        let root = entry.and_then(|entry| entry.stored().ok()?.root);
        let root = root.ok_or("the key ring holds no root key for this chain")?;
        let id = root.wrapping_id;
        let outer = self.keys.key(id).ok_or_else(|| format!("sealing key {id} is missing in the key file"))?;
        let holder = Holder { lineage_id: self.ring.lineage_id, tenant: tenant.as_ref() };
        let not = |what: &str| format!("{what} does not open: it is another cluster's, or another key's");
        let root = holder.unwrap(Kind::Root, &root, outer).map_err(|_| not("the root key"))?;
        let mut opened = Vec::new();
        let Some(Json::Array(data_keys)) = head.member("data_keys") else {
            return Err("the head brings no data keys: a newer release exports them".to_owned());
        };
        for key in data_keys {
            let id = key.member("id").and_then(|id| id.to_text().parse().ok()).ok_or("a data key has no id")?;
            let bytes = key.member("key").and_then(Json::as_str).and_then(|text| STANDARD.decode(text).ok());
            let bytes = bytes.ok_or("a data key is none")?;
            let (wrapping_id, bytes) = bytes.split_first_chunk::<4>().ok_or("a data key is none")?;
            let wrapping_id = u32::from_be_bytes(*wrapping_id);
            if id != 0 {
                let wrapped = Wrapped { wrapping_id, bytes: Blob(bytes.to_vec().into()) };
                opened.push((id, holder.unwrap(Kind::Data(id), &wrapped, &root).map_err(|_| not("a data key"))?));
            }
        }
        let current = opened.iter().map(|(id, _)| *id).max().unwrap_or(0);
        Ok(Cipher::new(self.ring.lineage_id, tenant, current, opened, std::sync::Arc::default()))
    }
}

/// Recomputes the chain of this file. `kept`: a hash that was kept elsewhere, of a row that must be in it. With keys, what is
/// sealed is opened and compared too.
pub(super) fn verify(path: &Path, kept: Option<&str>, held: Option<&Held>) -> Result<(), Failure> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let proven = chain(&text, kept, held).map_err(|why| anyhow!("{}: {why}", path.display()))?;
    println!("{} rows, whole up to row {} with hash {}", proven.rows, proven.seq, proven.hash);
    Ok(())
}

/// The head of an exported chain: what its last line holds.
fn head_of(text: &str) -> Result<Json, String> {
    let last = text.lines().last().and_then(|line| Json::parse(line.as_bytes()).ok());
    let head = last.as_ref().and_then(|line| line.member("head")).cloned();
    head.ok_or_else(|| "there is no head in the last line: the export broke off, or was cut".to_owned())
}

fn chain(text: &str, kept: Option<&str>, held: Option<&Held>) -> Result<Proven, String> {
    let cipher = held.map(|held| held.cipher(&head_of(text)?)).transpose()?;
    let mut last: Option<(u64, String)> = None;
    let (mut rows, mut head, mut is_kept_there) = (0, None, kept.is_none());
    for (at, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", at + 1);
        if head.is_some() {
            return Err(wrong("something follows the head"));
        }
        let json = Json::parse(line.as_bytes()).map_err(|error| wrong(&format!("no JSON: {error}")))?;
        if let Some(own) = json.member("head") {
            head = Some(own.clone());
            continue;
        }
        let (seq, hash) = row(&json, last.as_ref(), cipher.as_ref()).map_err(|why| wrong(&why))?;
        is_kept_there = is_kept_there || kept.is_some_and(|kept| kept.eq_ignore_ascii_case(&hash));
        rows += 1;
        last = Some((seq, hash));
    }
    let head = head.ok_or("there is no head in the last line: the export broke off, or was cut")?;
    let word = |name: &str| head.member(name).and_then(Json::as_str).unwrap_or_default();
    let (seq, hash) = match last {
        Some(last) => last,
        None => (word("seq").parse().unwrap_or_default(), word("hash").to_owned()),
    };
    if word("seq") != seq.to_string() || word("hash") != hash {
        return Err(format!("the head names row {}, and the last row is {seq}: rows are missing", word("seq")));
    }
    is_kept_there = is_kept_there || kept.is_some_and(|kept| kept.eq_ignore_ascii_case(&hash));
    if !is_kept_there {
        return Err("no row has the hash that was kept: the chain was cut, or is another".to_owned());
    }
    Ok(Proven { rows, seq, hash })
}

/// The place and hash of a row that is what its bytes say, and follows the one before.
fn row(json: &Json, last: Option<&(u64, String)>, cipher: Option<&Cipher>) -> Result<(u64, String), String> {
    let word = |name: &str| json.member(name).and_then(Json::as_str);
    let seq: u64 = word("seq").and_then(|text| text.parse().ok()).ok_or("it has no sequence")?;
    let bytes = word("row").and_then(|text| STANDARD.decode(text).ok()).ok_or("its bytes are missing")?;
    let stored: AuditRow = codec::decode(&bytes).map_err(|error| format!("its bytes are no row: {error}"))?;
    let hash = hex(&Sha256::digest(&bytes));
    if word("hash") != Some(hash.as_str()) {
        return Err("its hash is not that of its bytes".to_owned());
    }
    let record = stored.record.map(|record| record.to_string());
    let plain = [
        ("position", Some(stored.position.0.to_string())),
        ("at", Some(crate::http::moment_text(stored.at))),
        ("kind", Some(stored.kind.as_str().to_owned())),
        ("tenant", stored.tenant.as_ref().map(|tenant| tenant.as_str().to_owned())),
        ("record_hash", record),
        ("previous", Some(hex(&stored.previous))),
    ];
    for (name, own) in plain {
        if word(name) != own.as_deref() {
            return Err(format!("its {name} is not that of its bytes"));
        }
    }
    judge_fields(json, &stored, cipher)?;
    if let Some((before, before_hash)) = last {
        if seq != before + 1 {
            return Err(format!("it is row {seq}, and the one before is {before}"));
        }
        if *before_hash != hex(&stored.previous) {
            return Err("it does not follow the row before".to_owned());
        }
    }
    Ok((seq, hash))
}

/// Whether what is shown of the sealed fields is what they say: under the null cipher always, else where the keys are at hand.
fn judge_fields(json: &Json, stored: &AuditRow, cipher: Option<&Cipher>) -> Result<(), String> {
    let (subject, actor, detail_field) = sealed_as(stored);
    let shown_actor = json.member("actor").and_then(Json::as_str);
    let fields = [("actor", actor, &stored.actor, shown_actor), ("detail", detail_field, &stored.detail, detail(json))];
    for (name, field, sealed, shown) in fields {
        let plain = match (sealed, cipher) {
            (Some(sealed), _) if sealed.key_id == 0 => Some(sealed.bytes.0.clone()),
            (Some(sealed), Some(cipher)) => {
                let opened = cipher.open(field, subject, sealed);
                Some(opened.map_err(|_| format!("its {name} does not open under the keys that were given"))?)
            }
            _ => None,
        };
        let is_other = match (plain, shown) {
            (Some(bytes), Some(shown)) => String::from_utf8_lossy(&bytes) != shown,
            (None, Some(_)) => sealed.is_none(),
            (Some(_), None) => true,
            (None, None) => false,
        };
        if is_other {
            return Err(format!("its {name} is not that of its bytes"));
        }
    }
    Ok(())
}

fn detail(json: &Json) -> Option<&str> {
    json.member("detail").and_then(|detail| detail.member("text")).and_then(Json::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::audit_line,
        id::{LineageId, Position, Time},
        records::{command::Sealed, sealing::RingState, state::AuditKind},
        seal::{Field, Subject, key::Key, key_file::generate},
    };

    /// An exported chain of so many rows.
    fn exported(rows: u64) -> Vec<String> {
        let tenant = Tenant::parse("acme").expect("a tenant");
        let (mut previous, mut lines) = ([7; 32], Vec::new());
        for seq in 1..=rows {
            let row = AuditRow {
                position: Position(100 + seq),
                at: Time(1_700_000_000_000 + seq),
                kind: AuditKind::Resolved,
                tenant: Some(tenant.clone()),
                record: None,
                actor: Some(Sealed::plain(b"token:abc".to_vec())),
                detail: Some(Sealed::plain(format!("evidence {seq}").into_bytes())),
                previous,
            };
            lines.push(audit_line(seq, &row));
            previous = Sha256::digest(codec::encode(&row)).into();
        }
        let head = format!(
            r#"{{"head":{{"tenant":"acme","seq":"{rows}","hash":"{}","at":"2026-01-01T00:00:00.000Z"}}}}"#,
            hex(&previous)
        );
        lines.push(head);
        lines
    }

    fn hash_of(line: &str) -> String {
        let json = Json::parse(line.as_bytes()).expect("a line");
        json.member("hash").and_then(Json::as_str).expect("a hash").to_owned()
    }

    #[test]
    fn a_whole_chain_is_proven_and_a_kept_head_found() {
        let lines = exported(5);
        let kept = hash_of(&lines[2]);
        let proven = chain(&lines.join("\n"), Some(&kept), None).expect("it is whole");
        assert_eq!((proven.rows, proven.seq), (5, 5));
        // From the middle on, as `--from` exports it.
        assert_eq!(chain(&lines[2..].join("\n"), None, None).expect("it is whole").rows, 3);
        assert!(chain(&lines[3..].join("\n"), Some(&kept), None).is_err(), "the kept row is not in it");
    }

    #[test]
    fn whatever_is_changed_left_out_or_cut_is_told_with_its_line() {
        let lines = exported(4);
        let changed = |at: usize, from: &str, to: &str| {
            let mut lines = lines.clone();
            assert!(lines[at].contains(from), "{}", lines[at]);
            lines[at] = lines[at].replace(from, to);
            lines.join("\n")
        };
        let cases = [
            (changed(1, "resolved", "released"), "line 2: its kind"),
            (changed(1, "evidence 2", "evidence 9"), "line 2: its detail"),
            (changed(1, "token:abc", "token:abd"), "line 2: its actor"),
            (changed(1, r#""position":"102""#, r#""position":"103""#), "line 2: its position"),
            (changed(1, r#""seq":"2""#, r#""seq":"3""#), "line 2: it is row 3"),
            ([&lines[..1], &lines[2..]].concat().join("\n"), "line 2: it is row 3"),
            (lines[..4].join("\n"), "no head"),
            ([&lines[..3], &lines[4..]].concat().join("\n"), "the head names row 4"),
            (format!("{}\n{}", lines.join("\n"), lines[0]), "line 6: something follows"),
        ];
        for (text, expected) in cases {
            let why = chain(&text, None, None).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }

    /// A sealed chain of one row as it is exported, the keys to it, and what it must not be taken for.
    #[test]
    fn with_the_keys_what_is_sealed_is_compared_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let (key_file, ring_file) = (dir.path().join("seal.keys"), dir.path().join("semel.ring"));
        generate(&key_file, None).expect("a key");
        let keys = KeyFile::read(&KeySource::File(key_file.clone())).expect("keys");
        let tenant = Tenant::parse("acme").expect("a tenant");
        let lineage_id = LineageId([7; 16]);
        let holder = Holder { lineage_id, tenant: Some(&tenant) };
        let (root, data) = (Key::draw(), Key::draw());
        let wrapped = holder.wrap(Kind::Root, &root, keys.key(1).expect("key 1"), 1);
        let entry = crate::backup::ring::RingEntry {
            tenant: Some(tenant.clone()),
            state: RingState::Open,
            at_ms: 1,
            wrapped_root: Some([&wrapped.wrapping_id.to_be_bytes()[..], &wrapped.bytes.0].concat()),
        };
        let ring = Ring { lineage_id, position: Position(1), entries: vec![entry] };
        fs::write(&ring_file, ring.encode()).expect("a ring");
        let held = Held::read(&key_file, &ring_file).expect("keys");
        let data_key = holder.wrap(Kind::Data(1), &data, &root, 1);
        let cipher = Cipher::new(lineage_id, Some(tenant.clone()), 1, [(1, data)], std::sync::Arc::default());
        let seal = |field, text: &str| Some(cipher.seal(field, Subject::Audit, text.as_bytes().to_vec()));
        let row = AuditRow {
            position: Position(9),
            at: Time(1_700_000_000_000),
            kind: AuditKind::PolicySet,
            tenant: Some(tenant),
            record: None,
            actor: seal(Field::AuditActor, "token:abc"),
            detail: seal(Field::AuditDetail, "more"),
            previous: [7; 32],
        };
        let bytes = codec::encode(&row);
        // As the server shows it, whose keys open it.
        let sealed = audit_line(1, &row);
        let line = sealed
            .replace(r#""actor":null"#, r#""actor":"token:abc""#)
            .replace(r#""detail":null"#, r#""detail":{"text":"more"}"#);
        assert_ne!(line, sealed);
        let data_key = [&data_key.wrapping_id.to_be_bytes()[..], &data_key.bytes.0].concat();
        let head = format!(
            r#"{{"head":{{"tenant":"acme","seq":"1","hash":"{}","at":null,"data_keys":[{{"id":1,"key":"{}"}}]}}}}"#,
            hex(&Sha256::digest(&bytes)),
            STANDARD.encode(data_key)
        );
        let of = |line: &str, head: &str| chain(&format!("{line}\n{head}"), None, Some(&held));
        assert_eq!(of(&line, &head).expect("it is whole").rows, 1);
        for (line, head, expected) in [
            (line.replace("token:abc", "token:abd"), head.clone(), "line 1: its actor is not"),
            (line.replace("more", "less"), head.clone(), "line 1: its detail is not"),
            (sealed, head.clone(), "line 1: its actor is not"),
            (line.clone(), head.replace("acme", "b"), "holds no root key"),
            (line.clone(), head.replace(r#""id":1"#, r#""id":2"#), "a data key does not open"),
            (line.clone(), head.replace("data_keys", "data"), "brings no data keys"),
        ] {
            let why = of(&line, &head).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }
}
