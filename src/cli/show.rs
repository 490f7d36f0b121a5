//! Answers for people: two columns for one thing, a table for many. What a terminal would obey is written out.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::json::Json;

/// Longest text that a cell of a table shows whole.
const CELL_CHARS_MAX: usize = 60;

/// Text without anything that steers a terminal.
pub(super) fn printable(text: &str) -> String {
    let written = |c: char| {
        let steers =
            c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if steers { c.escape_unicode().collect::<String>() } else { c.to_string() }
    };
    text.chars().map(written).collect()
}

/// An answer as two columns: names with blanks for underscores, members that are absent left out.
pub(super) fn answer(answer: &Json) -> String {
    let mut rows = Vec::new();
    collect(&mut rows, "", answer);
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

fn collect(rows: &mut Vec<(String, String)>, prefix: &str, value: &Json) {
    let Json::Object(members) = value else { return };
    for (name, value) in members {
        let label =
            if prefix.is_empty() { name.replace('_', " ") } else { format!("{prefix} {}", name.replace('_', " ")) };
        match value {
            Json::Null => {}
            // The record's own four parts need no prefix.
            Json::Object(_) if name == "record" => collect(rows, "", value),
            Json::Object(_) => collect(rows, &label, value),
            Json::Array(items) if items.is_empty() => {}
            Json::Array(items) => {
                let texts = items.iter().map(|item| match item {
                    Json::Object(_) => one_line(item),
                    other => scalar(name, other),
                });
                rows.push((label, texts.collect::<Vec<_>>().join(", ")));
            }
            other => rows.push((label, scalar(name, other))),
        }
    }
}

/// An object on one line, such as a fingerprint: `1:9f86d0…`.
fn one_line(item: &Json) -> String {
    match (item.member("scheme"), item.member("digest")) {
        (Some(scheme), Some(digest)) => format!("{}:{}", scalar("", scheme), scalar("", digest)),
        _ => printable(&item.to_text()),
    }
}

fn scalar(name: &str, value: &Json) -> String {
    match value {
        Json::String(text) if matches!(name, "body" | "data") => content(text),
        Json::String(text) => printable(text),
        Json::Number(number) if name.ends_with("_ms") => milliseconds(number.as_str()),
        other => other.to_text(),
    }
}

/// Base64 content: its text where it is text, else its length.
fn content(base64: &str) -> String {
    let Ok(bytes) = STANDARD.decode(base64) else { return printable(base64) };
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => "(empty)".to_owned(),
        Ok(text) => printable(&text),
        Err(error) => format!("({} bytes)", error.as_bytes().len()),
    }
}

fn milliseconds(number: &str) -> String {
    match number.parse::<u64>() {
        Ok(ms) if ms >= 1000 && ms.is_multiple_of(1000) => format!("{} s", ms / 1000),
        _ => format!("{number} ms"),
    }
}

/// Rows under headings, each column as wide as its widest cell.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let cut = |cell: &str| {
        let cell = printable(cell);
        if cell.chars().count() <= CELL_CHARS_MAX {
            return cell;
        }
        cell.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| cut(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(headings.to_vec());
    rows.iter().for_each(|row| text += &line(row.iter().map(String::as_str).collect()));
    text
}

/// The text of a member, empty where there is none; members of members with a dot.
pub(super) fn member(value: &Json, path: &str) -> String {
    let found = path.split('.').try_fold(value, |value, name| value.member(name));
    match found {
        None | Some(Json::Null) => String::new(),
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn an_answer_is_two_columns_without_what_is_absent() {
        let shown = answer(&json(
            r#"{"answer":"completed","outcome":{"status":201,"headers":{},"body":"eyJvayI6dHJ1ZX0="},
                "reason":null,"lease_ms":30000,"fingerprints":[{"scheme":1,"digest":"ab"}],"index":"7"}"#,
        ));
        let expected = "answer          completed\noutcome status  201\noutcome body    {\"ok\":true}\n\
                        lease ms        30 s\nfingerprints    1:ab\nindex           7\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn content_that_is_no_text_shows_its_length() {
        assert_eq!(content("AP8="), "(2 bytes)");
        assert_eq!(content(""), "(empty)");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{202e}c"), "a\\u{1b}[2Jb\\u{a}\\u{202e}c");
        assert!(!table(&["KEY"], &[vec!["\u{7}bell".to_owned()]]).contains('\u{7}'));
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows = [vec!["k-1".to_owned(), "x".repeat(80)], vec!["a-longer-key".to_owned(), "y".to_owned()]];
        let shown = table(&["KEY", "WHY"], &rows);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "KEY           WHY");
        assert!(lines[1].starts_with("k-1           xxx") && lines[1].ends_with('…'));
        assert_eq!(lines[2], "a-longer-key  y");
    }
}
