//! The documents: everything they link to and name exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The documents at the root, beside the verifier for browsers, and everywhere below `docs`.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned(), root.join("web/verify"), root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.starts_with(root.join("docs")) && folder != *root {
                folders.push(path);
            } else if path.is_file() && path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The lines that are not code, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The anchor by which links lead to a heading on GitHub.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    // Of a link in a heading the words count, and not its target.
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    text.push_str(rest);
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    text.trim().to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All anchors of a document. Headings with the same name are numbered from the second on.
fn anchors(document: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(document).expect("text");
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (_, line) in prose(&text).into_iter().filter(|(_, line)| line.starts_with('#')) {
        let name = slug(line.trim_start_matches('#'));
        let before = times.entry(name.clone()).or_default();
        found.insert(if *before == 0 { name } else { format!("{name}-{before}") });
        *before += 1;
    }
    found
}

/// The targets of the links of a line, except links to other sites.
fn links(line: &str) -> Vec<String> {
    // Every second piece is code.
    let plain = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
    let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains(':')).map(str::to_owned).collect()
}

/// The sources that a line names; `crates/a/{b,c}.rs` names two.
fn sources(line: &str) -> Vec<String> {
    let mut named = Vec::new();
    for code in line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("crates/")) {
        if code.contains([' ', '*', '<']) || code.contains("NAME") {
            continue;
        }
        match (code.split_once('{'), code.split_once('}')) {
            (Some((before, rest)), Some((_, after))) => {
                let inner = rest.split('}').next().expect("a first part");
                named.extend(inner.split(',').map(|part| format!("{before}{part}{after}")));
            }
            _ => named.push(code.to_owned()),
        }
    }
    named
}

/// Proves that every link of a document leads to an existing file, and to a heading of it, and that every source that a
/// document names exists.
#[test]
fn links_in_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in documents(&root) {
        let text = fs::read_to_string(&path).expect("text");
        let folder = path.parent().expect("a folder");
        for (number, line) in prose(&text) {
            for link in links(line) {
                seen += 1;
                let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
                let target = if file.is_empty() { path.clone() } else { folder.join(file) };
                if !target.exists() {
                    wrong.push(format!("{}:{number}: {link}: no such file", path.display()));
                } else if !anchor.is_empty() && !anchors(&target).contains(anchor) {
                    wrong.push(format!("{}:{number}: {link}: no such heading", path.display()));
                }
            }
            for source in sources(line).into_iter().filter(|source| !root.join(source).exists()) {
                wrong.push(format!("{}:{number}: `{source}` is not there", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "{seen}");
}
