//! An exported audit chain, recomputed row by row from the stored bytes.

use std::{fs, path::Path};

use anyhow::{Context, anyhow};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

use crate::{
    cli::failure::Failure,
    json::Json,
    records::{codec, state::AuditRow},
};

/// What a whole file proves.
#[derive(Debug, PartialEq, Eq)]
struct Proven {
    rows: u64,
    seq: u64,
    hash: String,
}

/// Recomputes the chain of this file. `kept`: a hash that was kept elsewhere, of a row that must be in it.
pub(super) fn verify(path: &Path, kept: Option<&str>) -> Result<(), Failure> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let proven = chain(&text, kept).map_err(|why| anyhow!("{}: {why}", path.display()))?;
    println!("{} rows, whole up to row {} with hash {}", proven.rows, proven.seq, proven.hash);
    Ok(())
}

fn chain(text: &str, kept: Option<&str>) -> Result<Proven, String> {
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
        let (seq, hash) = row(&json, last.as_ref()).map_err(|why| wrong(&why))?;
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
fn row(json: &Json, last: Option<&(u64, String)>) -> Result<(u64, String), String> {
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
    // Under the null cipher what stands in clear beside the bytes is judged as well.
    let texts = [("actor", &stored.actor, word("actor")), ("detail", &stored.detail, detail(json))];
    for (name, sealed, shown) in texts {
        let plain = sealed.as_ref().filter(|sealed| sealed.key_id == 0).map(|sealed| &sealed.bytes.0);
        let is_other = match (plain, shown) {
            (Some(bytes), Some(shown)) => String::from_utf8_lossy(bytes) != shown,
            (None, Some(_)) => sealed.is_none(),
            (Some(_), None) => true,
            (None, None) => false,
        };
        if is_other {
            return Err(format!("its {name} is not that of its bytes"));
        }
    }
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

fn detail(json: &Json) -> Option<&str> {
    json.member("detail").and_then(|detail| detail.member("text")).and_then(Json::as_str)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::audit_line,
        id::{Position, Tenant, Time},
        records::{command::Sealed, state::AuditKind},
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
        let proven = chain(&lines.join("\n"), Some(&kept)).expect("it is whole");
        assert_eq!((proven.rows, proven.seq), (5, 5));
        // From the middle on, as `--from` exports it.
        assert_eq!(chain(&lines[2..].join("\n"), None).expect("it is whole").rows, 3);
        assert!(chain(&lines[3..].join("\n"), Some(&kept)).is_err(), "the kept row is not in it");
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
            let why = chain(&text, None).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }
}
