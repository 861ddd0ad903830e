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

/// Files of a crate that use each other in a circle, the largest circle of each; other crates have none. A circle is opened
/// by moving what both ends use to a file of its own; these numbers only go down.
const CIRCLES: &[(&str, usize)] = &[
    ("bench", 2),
    ("client", 7),
    ("components", 7),
    ("daemon", 3),
    ("export", 4),
    ("fat", 3),
    ("fuse", 2),
    ("log", 2),
    ("model", 3),
    ("policy", 2),
    ("protocol", 4),
    ("release", 2),
    ("rpc", 4),
    ("server", 2),
    ("sim", 4),
    ("stack", 3),
    ("store", 12),
    ("tiered", 5),
    ("volume", 2),
];

/// The paths that a use declaration names: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths_of(tree: &str) -> Vec<Vec<String>> {
    let names = |text: &str| -> Vec<String> {
        let text = text.split(" as ").next().unwrap_or("");
        text.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let Some((head, body)) = tree.split_once('{') else { return vec![names(tree)] };
    let body = body.trim_end().trim_end_matches('}');
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, letter) in body.char_indices().chain([(body.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let rest = paths_of(&body[start..at]).into_iter();
                found.extend(rest.map(|path| [names(head), path].concat()));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The module that a file is, as the names from the crate's root to it.
fn module_of(source: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(source).expect("below it").with_extension("");
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

/// Which files of a crate each file uses, by its `use crate::` and `use super::`; tests are left out.
fn uses(source: &Path) -> BTreeMap<Vec<String>, Vec<Vec<String>>> {
    let files = sources(source);
    let modules: Vec<_> = files.iter().map(|file| module_of(source, file)).collect();
    let mut uses = BTreeMap::new();
    for (file, module) in files.iter().zip(&modules) {
        let text = std::fs::read_to_string(file).expect("a source");
        let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or("");
        let code: String = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .fold(String::new(), |code, line| code + line.trim_start().trim_start_matches("pub ") + "\n");
        let declarations = code.split('\n').enumerate().filter(|(_, line)| line.starts_with("use "));
        let lines: Vec<&str> = code.split('\n').collect();
        let mut used: Vec<Vec<String>> = Vec::new();
        for (number, _) in declarations {
            let whole = lines[number..].join(" ");
            let tree = whole.trim_start_matches("use ").split(';').next().unwrap_or("");
            for path in paths_of(tree) {
                let (mut place, mut rest) = match path.first().map(String::as_str) {
                    Some("crate") => (Vec::new(), &path[1..]),
                    Some("super" | "self") => (module.clone(), &path[..]),
                    _ => continue,
                };
                while let Some(first) = rest.first() {
                    match first.as_str() {
                        "super" => drop(place.pop()),
                        "self" => {}
                        name => {
                            let inner = [&place[..], &[name.to_owned()]].concat();
                            if !modules.contains(&inner) {
                                break;
                            }
                            place = inner;
                        }
                    }
                    rest = &rest[1..];
                }
                if place != *module && modules.contains(&place) {
                    used.push(place);
                }
            }
        }
        uses.insert(module.clone(), used);
    }
    uses
}

/// All that a file uses, and what that uses.
fn reached<'a>(
    uses: &'a BTreeMap<Vec<String>, Vec<Vec<String>>>,
    from: &'a Vec<String>,
) -> Vec<&'a Vec<String>> {
    let (mut found, mut next) = (Vec::new(), vec![from]);
    while let Some(module) = next.pop() {
        for used in &uses[module] {
            if !found.contains(&used) {
                found.push(used);
                next.push(used);
            }
        }
    }
    found
}

/// Proves that dependencies within a crate point one way too, but for the circles that are counted above.
#[test]
fn files_use_each_other_in_no_new_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for folder in std::fs::read_dir(crates).expect("a folder") {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let uses = uses(&folder.join("src"));
        let reach: BTreeMap<_, _> = uses.keys().map(|module| (module, reached(&uses, module))).collect();
        let circle = |module| reach[module].iter().filter(|other| reach[*other].contains(&module)).count();
        let largest = uses.keys().map(circle).max().unwrap_or(0).max(1);
        let known = CIRCLES.iter().find(|(known, _)| *known == name).map_or(1, |(_, files)| *files);
        if largest != known {
            let in_it = uses.keys().filter(|module| circle(module) == largest && largest > 1);
            let files: Vec<String> = in_it.map(|module| module.join("::")).collect();
            wrong.push(format!("{name}: {largest} files, {known} are known: {}", files.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
