//! Style that is executed: which module may know which, that the pure core is pure, how long a file may be, and words that
//! have no place here. Of the source text alone, and fast; what the compiler and its lints can say is left to them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Longest source file, lines.
const FILE_LINES_MAX: usize = 600;

/// Tier 0, and the doors' shared parts: these import nothing but what is named.
const IMPORTS_ONLY: &[(&str, &[&str])] = &[
    ("limits", &[]),
    ("proto", &[]),
    ("id", &["limits"]),
    ("json", &["limits"]),
    ("fingerprint", &["id", "json", "limits"]),
    ("refusal", &["id"]),
    ("problems", &["refusal"]),
    ("records", &["id", "limits", "refusal"]),
    ("clock", &["id"]),
    ("entropy", &[]),
    ("disk", &["limits", "fatal"]),
    ("fatal", &[]),
    ("net", &["id", "limits"]),
    ("traces", &["id"]),
    ("unidle", &[]),
    ("work", &[]),
    ("planted", &[]),
];

/// The tiers above: whom they never import. The log and the store do not know each other, the edges know no consensus and
/// no storage, and what a client is built from knows nothing of a server.
const NEVER_IMPORTS: &[(&str, &[&str])] = &[
    ("wal", &["store", "records", "backup", "raft", "service", "rpc", "http"]),
    ("store", &["wal", "raft", "backup", "service", "rpc", "http"]),
    ("backup", &["wal", "raft", "service", "rpc", "http", "cli", "client", "node"]),
    ("seal", &["store", "wal", "raft", "service", "rpc", "http"]),
    ("metrics", &["store", "wal", "raft", "service", "rpc", "http"]),
    ("tls", &["store", "wal", "raft", "service", "rpc", "http", "auth", "client", "node", "cli", "config"]),
    ("auth", &["store", "wal", "raft", "service", "rpc", "http"]),
    ("raft", &["backup", "service", "rpc", "http", "console", "cli", "client"]),
    ("service", &["wal", "rpc", "http", "console", "cli", "client"]),
    ("rpc", &["store", "wal", "raft", "seal", "cli", "client", "node"]),
    ("http", &["store", "wal", "raft", "seal", "cli", "client", "node"]),
    ("console", &["store", "wal", "raft", "seal", "cli", "client", "node"]),
    ("client", &["records", "store", "wal", "raft", "service", "rpc", "http", "auth", "seal", "node"]),
    ("door", &["records", "store", "wal", "raft", "service", "rpc", "auth", "seal", "node", "cli", "config"]),
];

/// What the pure core may not name: clocks, randomness, I/O, threads, and maps without an order.
const IMPURE: &[&str] = &[
    "HashMap",
    "HashSet",
    "Instant",
    "SystemTime",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "tokio::",
    "getrandom",
    "Mutex",
    "RwLock",
    "Atomic",
    "f32",
    "f64",
    "println!",
    "tracing::",
];

/// Words that stand in no file of the project.
const NOWHERE: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("/wo", "rk/"), concat!("../sha", "red")];

/// Names that say nothing about what a module does.
const NO_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "manager", "common", "misc"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extensions: &[&str], into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("a folder of the project can be read").path();
        if path.is_dir() {
            files(&path, extensions, into);
        } else if path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)) {
            into.push(path);
        }
    }
}

fn sources(folders: &[&str], extensions: &[&str]) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    folders.iter().for_each(|folder| files(&root().join(folder), extensions, &mut paths));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("sources are text");
        (path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned(), text)
    };
    paths.into_iter().map(read).collect()
}

/// The code of a file: without comment lines and without the tests at its end; nothing of a file of tests.
fn code(path: &str, text: &str) -> String {
    let is_test =
        |part: &str| part == "spec" || part.trim_end_matches(".rs").split('_').any(|word| word.starts_with("test"));
    if path.split('/').any(is_test) {
        return String::new();
    }
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a text names behind `crate::`, also inside braces.
fn imports(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut part) = (0, String::new());
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => drop(found.insert(word(std::mem::take(&mut part).trim()))),
                c if depth == 0 => part.push(c),
                _ => {}
            }
        }
        found.insert(word(part.trim()));
    }
    found.remove("");
    found
}

#[test]
fn modules_import_downward() {
    let mut wrong = Vec::new();
    for (path, text) in sources(&["src"], &["rs"]) {
        let module = path.trim_start_matches("src/").split('/').next().unwrap_or("").trim_end_matches(".rs").to_owned();
        for import in imports(&code(&path, &text)).into_iter().filter(|import| *import != module) {
            let only = IMPORTS_ONLY.iter().find(|(of, _)| *of == module);
            let never = NEVER_IMPORTS.iter().find(|(of, _)| *of == module);
            let allowed = only.is_none_or(|(_, only)| only.contains(&import.as_str()))
                && never.is_none_or(|(_, never)| !never.contains(&import.as_str()));
            if !allowed {
                wrong.push(format!("{path} imports crate::{import}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "use crate::{\n    id::{Fence, Time},\n    limits, refusal::Code,\n};\nlet a = crate::clock::now();";
    let found: Vec<String> = imports(text).into_iter().collect();
    assert_eq!(found, ["clock", "id", "limits", "refusal"]);
    assert!(code("src/records/spec/world.rs", text).is_empty() && code("src/store/tests.rs", text).is_empty());
    assert!(!code("src/store/layer.rs", text).is_empty());
}

/// The lints are denied where the core begins, they name what they must, and the text names nothing impure either.
#[test]
fn the_core_is_pure() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file of the project");
    assert!(read("src/records/mod.rs").contains("\n#![deny(clippy::disallowed_methods, clippy::disallowed_types)]\n"));
    let lints = read("clippy.toml");
    for path in
        ["std::time::SystemTime::now", "std::time::Instant::now", "std::collections::HashMap", "getrandom::fill"]
    {
        assert!(lints.contains(&format!("\"{path}\"")), "clippy.toml does not disallow {path}");
    }
    for (path, text) in sources(&["src/records"], &["rs"]) {
        let code = code(&path, &text);
        assert!(!code.contains("allow(clippy::disallowed"), "{path} allows itself what the core is denied");
        for word in IMPURE {
            assert!(!code.contains(word), "{path} names {word}");
        }
    }
}

/// openraft is a choice of one module; it does not leak into the others.
#[test]
fn consensus_stays_in_its_module() {
    for (path, text) in sources(&["src"], &["rs"]) {
        let inside = path.starts_with("src/raft");
        assert!(inside || !code(&path, &text).contains("openraft::"), "{path} names openraft");
    }
}

#[test]
fn files_are_short_and_well_named() {
    for (path, text) in sources(&["src", "tests", "benches", "simulation"], &["rs"]) {
        assert!(text.lines().count() <= FILE_LINES_MAX, "{path} has {} lines", text.lines().count());
        for part in path.split('/') {
            let name = part.trim_end_matches(".rs");
            assert!(!NO_NAMES.contains(&name), "{path}: {name} says nothing about what is in it");
        }
    }
}

#[test]
fn some_words_stand_nowhere() {
    let folders =
        ["src", "tests", "benches", "simulation", "proto", "docs", "scripts", ".ci", "clients", "deploy", "examples"];
    for (path, text) in sources(&folders, &["rs", "md", "proto", "toml", "txt", "sh", "py", "yml", "json"]) {
        for word in NOWHERE {
            assert!(!text.contains(word), "{path} says {word}");
        }
    }
}

/// A scenario says in its first line what it is about.
#[test]
fn scenarios_begin_with_their_reason() {
    for (path, text) in sources(&["src/records/testscripts"], &["txt"]) {
        assert!(text.starts_with("# ") && text.lines().next().is_some_and(|line| line.ends_with('.')), "{path}");
    }
}
