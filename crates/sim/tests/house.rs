//! The rules of the house that a compiler does not check: which crate may use which, licences, purity, names, and
//! lengths.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The layers of `docs/architecture.md`: a crate may use crates of the layers above it (listed earlier), never
/// of its own layer or below. `log` and the pure crates do not know of each other.
const LAYERS: &[&[&str]] = &[
    &["crypto", "durable", "http-server", "http-client", "testing"],
    &["content", "access", "fat"],
    &["protocol", "log", "policy"],
    &["store", "tiered", "rpc", "volume", "components", "program-identity", "checkpoint", "etcd"],
    &["witness"],
    &["server", "client", "export", "ublk", "monitor"],
    &["stack"],
    &["fuse"],
    &["release"],
    &["failure"],
    &["daemon"],
    &["cli"],
    &["sim", "link", "model"],
    &["bench", "exercise", "fuzz"],
];

/// Licences that let Holdfast stay MIT OR Apache-2.0.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "0BSD",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().expect("a list of packages")
}

/// Proves that dependencies point one way: from drivers to decisions, never back.
#[test]
fn crates_use_only_crates_above_them() {
    let layer_of: BTreeMap<String, usize> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(layer, crates)| crates.iter().map(move |name| (format!("holdfast-{name}"), layer)))
        .collect();
    let metadata = metadata();
    let mut seen = 0;
    for package in packages(&metadata) {
        let name = package["name"].as_str().expect("a name");
        if !name.starts_with("holdfast-") {
            continue;
        }
        seen += 1;
        let layer = layer_of.get(name).unwrap_or_else(|| panic!("{name} has no place in LAYERS"));
        for dependency in package["dependencies"].as_array().expect("a list") {
            // Tests may use the simulator and its faulty disks.
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            let used = dependency["name"].as_str().expect("a name");
            if let Some(used_layer) = layer_of.get(used) {
                assert!(used_layer < layer, "{name} must not depend on {used}");
            }
        }
    }
    assert_eq!(seen, layer_of.len(), "every crate of LAYERS exists");
}

/// Whether an SPDX expression (the subset crates use) can be satisfied from `LICENCES`.
fn acceptable(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // Crates write either pure alternatives or conjunctions of alternatives; AND binds tighter than OR.
    expression
        .split(" OR ")
        .any(|conjunction| conjunction.split(" AND ").all(|licence| LICENCES.contains(&licence.trim())))
        || expression
            .split(" AND ")
            .all(|group| group.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

/// Proves that everything linked in is permissively licensed.
#[test]
fn every_dependency_is_permissively_licensed() {
    let metadata = metadata();
    for package in packages(&metadata) {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("(none)");
        assert!(acceptable(licence), "{name}: licence {licence:?} is not on the list");
    }
    assert!(!acceptable("GPL-3.0-only"));
    assert!(!acceptable("AGPL-3.0 AND MIT"));
    assert!(acceptable("(MIT OR GPL-2.0) AND ISC"));
}

/// Proves that the pure crates stay pure: no ambient clock, randomness, threads, files or sockets.
#[test]
fn pure_crates_use_no_ambient_authority() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["crypto", "content", "access", "policy", "protocol", "checkpoint", "fat"] {
        let mut folders = vec![root.join(name).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("source is text");
                let shipped = text.split("#[cfg(test)]").next().expect("a first part");
                for banned in
                    ["std::fs", "std::net", "std::thread", "SystemTime", "Instant::now", "getrandom"]
                {
                    assert!(!shipped.contains(banned), "{} uses {banned}", path.display());
                }
            }
        }
        let library = std::fs::read_to_string(root.join(name).join("src/lib.rs")).expect("lib.rs");
        assert!(library.contains("#![forbid(unsafe_code)]"), "{name} must forbid unsafe code");
    }
}

/// Proves that no file of tests is left out: each crate's are one program, `tests/main.rs`, which names all of them.
#[test]
fn every_file_of_tests_is_run() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in std::fs::read_dir(crates).expect("a folder") {
        let tests = folder.expect("an entry").path().join("tests");
        let Ok(entries) = std::fs::read_dir(&tests) else { continue };
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let name = |path: std::path::PathBuf| path.file_stem()?.to_str().map(str::to_owned);
        let (files, folders): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_file());
        let files = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
        let folders = folders.into_iter().filter(|path| path.join("mod.rs").exists());
        let names: Vec<_> = files.chain(folders).filter_map(name).filter(|name| name != "main").collect();
        if names.len() == 1 && !tests.join("main.rs").exists() {
            continue;
        }
        let main = std::fs::read_to_string(tests.join("main.rs")).expect("main.rs");
        for name in names {
            assert!(main.contains(&format!("mod {name};")), "{}: {name} is not run", tests.display());
        }
    }
}

/// The sources of a crate's folder, without tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The sources of all crates, without tests.
fn all_sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = std::fs::read_dir(&crates).expect("a folder");
    folders.flat_map(|entry| sources(&entry.expect("an entry").path().join("src"))).collect()
}

/// Words that are no name of a type (`docs/glossary.md`, "Names in the code").
const NO_NAMES: &[&str] = &[
    "Told", "Shown", "Kept", "Held", "Known", "Found", "Done", "Made", "Taken", "Seen", "Asked", "Wanted",
    "Which", "Way", "Fate", "Desk", "Wish", "Lesson", "Vigil", "Door", "Gate", "Beside", "Standing", "Place",
];

/// Comments that say nothing without the file around them.
const NO_COMMENTS: &[&str] = &[
    "See the module.",
    "The same.",
    "It does.",
    "Which.",
    "How many.",
    "None.",
    "What came of it.",
    "So anyway.",
];

/// Proves that types are named by nouns, and that no item's comment is one of those that say nothing.
#[test]
fn names_and_comments_say_something() {
    let mut wrong = Vec::new();
    for path in all_sources() {
        let text = std::fs::read_to_string(&path).expect("a source");
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let kind = words.iter().position(|word| ["struct", "enum", "trait", "type"].contains(word));
            let is_code = !line.trim_start().starts_with("//");
            let name = kind.filter(|_| is_code).and_then(|at| words.get(at + 1)).unwrap_or(&"");
            let comment = line.trim_start().trim_start_matches('/').trim();
            let says_nothing = line.trim_start().starts_with("///") && NO_COMMENTS.contains(&comment);
            if NO_NAMES.contains(name) || says_nothing {
                wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The most lines of a source.
const FILE_LINES_MAX: usize = 1_000;
/// The most lines of a function. Longer ones are named below, with the most lines of each.
const FUNCTION_LINES_MAX: usize = 130;
/// Tables of cases that are written as functions, and functions that are to be split.
const LONG_FUNCTIONS: &[(&str, usize)] = &[
    ("sim/src/adversary/behaviour.rs: prepare", 310),
    ("sim/src/volume/attack.rs: attacks", 190),
    ("sim/src/mirror.rs: answer", 140),
    ("model/src/configurations.rs: honest_ones", 170),
    ("model/src/configurations.rs: lying_ones", 160),
    ("cli/src/publish.rs: run", 150),
    ("cli/src/status.rs: describe", 140),
    ("stack/src/fs_driver/mod.rs: carry_out", 160),
    ("stack/src/host/plan.rs: plan", 140),
    ("components/src/sandbox/filter.rs: list", 140),
];

/// Proves that no source and no function is longer than a reader can keep in mind, except for those that are named.
#[test]
fn nothing_is_too_long() {
    let mut wrong = Vec::new();
    for path in all_sources() {
        let text = std::fs::read_to_string(&path).expect("a source");
        let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
        if lines.len() > FILE_LINES_MAX {
            wrong.push(format!("{}: {} lines", path.display(), lines.len()));
        }
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let code = line.trim_start();
            let is_function = !code.starts_with("//")
                && code.split(' ').take_while(|word| !word.contains('(')).any(|word| word == "fn");
            let head = lines[start..].iter().find(|line| line.ends_with('{') || line.ends_with(';'));
            if !is_function || head.is_none_or(|line| line.ends_with(';')) {
                continue;
            }
            let end = lines[start..].iter().position(|line| *line == format!("{}}}", " ".repeat(indent)));
            let length = end.map_or(0, |end| end + 1);
            let name = code.split("fn ").nth(1).unwrap_or("").split(['(', '<']).next().unwrap_or("");
            let place = path.display().to_string();
            let place = place.split("/../").last().unwrap_or("");
            let named = format!("{place}: {name}");
            let allowed = LONG_FUNCTIONS.iter().find(|(function, _)| *function == named);
            if length > allowed.map_or(FUNCTION_LINES_MAX, |(_, lines)| *lines) {
                wrong.push(format!("{named}: {length} lines"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
