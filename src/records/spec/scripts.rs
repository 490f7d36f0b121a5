//! Runs every scenario file of `testscripts/`, each three times: as it stands, never swept, and swept of all that is due
//! before every line. The answers are the same, for sweeping only reclaims space. Where a file is about the sweep itself
//! its second line says `limits …`, and it runs as it stands alone.

use std::{fs, panic, path::Path};

use super::{
    line::{Line, answers},
    world::{Sweeps, World},
};

/// Files are a contract too: one that is lost is noticed.
const FILES_MIN: usize = 140;

#[test]
fn scenarios_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/records/testscripts");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= FILES_MIN, "{} scenario files", files.len());
    let mut failures = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(text.starts_with("# "), "{name}: the first line says what and why");
        let as_told_only = text.lines().any(|line| line.starts_with("limits "));
        let modes: &[Sweeps] =
            if as_told_only { &[Sweeps::AsTold] } else { &[Sweeps::AsTold, Sweeps::Never, Sweeps::Eagerly] };
        for sweeps in modes {
            let run = || run(&name, &text, *sweeps);
            match panic::catch_unwind(panic::AssertUnwindSafe(run)) {
                Ok(differing) => failures.extend(differing),
                Err(_) => failures.push(format!("{name} ({sweeps:?}) broke an invariant: see above")),
            }
        }
    }
    assert!(failures.is_empty(), "{} answers differ:\n{}", failures.len(), failures.join("\n"));
}

/// Runs one file; lines that begin with `&` share the entry of the line before. Returns what differs.
fn run(name: &str, text: &str, sweeps: Sweeps) -> Vec<String> {
    let lines =
        text.lines().enumerate().map(|(number, line)| (number + 1, line.split('#').next().unwrap_or("").trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty()).peekable();
    let limits = lines.next_if(|(_, line)| line.starts_with("limits ")).map(|(_, line)| Line::parse(line));
    let mut world = World::new(sweeps, limits.as_ref());
    let mut failures = Vec::new();
    while let Some(first) = lines.next() {
        let mut entry = vec![first];
        while let Some(next) = lines.next_if(|(_, line)| line.starts_with('&')) {
            entry.push(next);
        }
        let parts: Vec<_> = entry
            .iter()
            .map(|(number, line)| {
                let (command, expected) = line.split_once('→').unwrap_or((line, "ok"));
                (*number, Line::parse(command.trim_start_matches('&')), expected.trim())
            })
            .collect();
        let commands: Vec<_> = parts.iter().map(|(_, line, _)| line.clone()).collect();
        for ((number, line, expected), got) in parts.iter().zip(world.run_entry(&commands)) {
            let whole = ["history", "audit", "list", "events"].contains(&line.verb.as_str());
            let same = if whole { exact(expected) == got } else { answers(expected, &got) };
            if !same {
                failures.push(format!(
                    "{name}:{number} ({sweeps:?})\n    {line}\n    expected {expected}\n    got      {got}"
                ));
            }
        }
    }
    world.end();
    failures
}

/// Lists in one spelling: times in ms, one space between.
fn exact(expected: &str) -> String {
    let word = |word: &str| match word.split_once('@') {
        Some((kind, rest)) => {
            let (time, times) = rest.split_once('x').map_or((rest, String::new()), |(time, n)| (time, format!("x{n}")));
            format!("{kind}@{}ms{times}", super::line::parse_ms(time).expect("a time"))
        }
        None => word.to_owned(),
    };
    let words: Vec<_> = expected.split_whitespace().filter(|word| *word != "nothing").map(word).collect();
    words.join(" ")
}
