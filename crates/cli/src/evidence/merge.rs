//! `holdfast evidence merge`: puts two histories side by side into a directory, so that people can continue
//! their work.

use super::statement;
use super::verify::{LIMITS, read};
use crate::args::Merge;
use crate::live;
use crate::output::{Format, clean, progress};
use holdfast_client::reader;
use holdfast_client::statement::{
    Branch, Comparison, LabeledStatement, Sources, StatementView, Version, branch, compare, verify,
};
use holdfast_content::BlockSource;
use holdfast_daemon::keys;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_daemon::time::{moment, now_ns};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Address;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for the server.
const DEADLINE: Duration = Duration::from_secs(30);
const MEMORY_BYTES: usize = 64 << 20;
/// Most missing files that are listed.
const TOLD_MAX: usize = 20;

/// The findings, as they are printed and stored.
#[derive(Serialize)]
struct Report {
    ours: String,
    theirs: String,
    made_ns: i64,
    comparison: Comparison,
    copied: u64,
    /// Files that could not be copied: side and path, and why.
    missing: Vec<(String, String)>,
    to: PathBuf,
}

/// `holdfast evidence merge`
pub fn run(arguments: &Merge, directories: &Directories, format: Format) -> Outcome {
    let ours = side(&arguments.ours, directories)?;
    let (theirs, showing) = match &arguments.theirs {
        Some(theirs) => (side(theirs, directories)?, StatementView::Accepted),
        None => (ours.clone(), StatementView::Refused),
    };
    // Forged statements are refused before anything in them is used.
    verify(&[ours.clone(), theirs.clone()], holdfast_client::statement::Limits { paths: 0, ..LIMITS })?;
    let source = source(&[&ours, &theirs], arguments, directories)?;
    let our_branch = opened(&ours, StatementView::Accepted, &source)?;
    let their_branch = opened(&theirs, showing, &source)?;
    let failed = |error: std::io::Error| {
        Failure::new(Exit::CannotCreate, format!("{}: {error}", arguments.to.display()))
    };
    fs::create_dir(&arguments.to).map_err(failed)?;
    let bar = progress("comparing");
    let comparison = compare(&our_branch, &their_branch, LIMITS);
    bar.set_message("copying");
    let mut copier = Copier { copied: 0, missing: Vec::new() };
    for (name, one) in [("ours", &our_branch), ("theirs", &their_branch)] {
        let to = arguments.to.join(name);
        fs::create_dir(&to).map_err(failed)?;
        if arguments.all {
            let missing = &mut copier.missing;
            let all = one.everything(LIMITS.paths, &mut |path, why| {
                missing.push((format!("{name}/{}", path.display()), why));
            });
            for (parts, version) in all {
                copier.copy(name, one, &parts, &version, &to);
            }
            continue;
        }
        for difference in &comparison.differences {
            let version = if name == "ours" { &difference.ours } else { &difference.theirs };
            if let Some(version) = version {
                copier.copy(name, one, &difference.parts, version, &to);
            }
        }
    }
    bar.finish_and_clear();
    let what = match showing {
        StatementView::Accepted => "what was accepted, by",
        StatementView::Refused => "what was refused, by",
    };
    let report = Report {
        ours: format!("what was accepted, by {}", ours.label),
        theirs: format!("{what} {}", theirs.label),
        made_ns: now_ns(),
        comparison,
        copied: copier.copied,
        missing: copier.missing,
        to: arguments.to.clone(),
    };
    let text = report.words();
    let json = serde_json::to_vec_pretty(&report)
        .map_err(|error| Failure::new(Exit::Internal, format!("the report has no JSON form: {error}")))?;
    fs::write(arguments.to.join("REPORT.txt"), &text).map_err(failed)?;
    fs::write(arguments.to.join("report.json"), json).map_err(failed)?;
    format.print(&report, |_| clean(&text))
}

/// A side: a file of evidence, or what this machine has accepted.
fn side(which: &Path, directories: &Directories) -> Outcome<LabeledStatement> {
    if which.is_file() {
        return read(which);
    }
    let statement = statement::of(&which.to_string_lossy(), None, directories)?;
    Ok(LabeledStatement { label: which.display().to_string(), made_ns: now_ns(), statement, met: None })
}

fn opened(
    testimony: &LabeledStatement,
    showing: StatementView,
    source: &Arc<dyn BlockSource + Send + Sync>,
) -> Outcome<Branch> {
    branch(testimony, showing, source.clone())?.ok_or_else(|| {
        let what = match showing {
            StatementView::Accepted => "nothing was accepted yet, by",
            StatementView::Refused => "there is no refused view that could be read, in",
        };
        Failure::new(Exit::NoInput, format!("{what} {}", testimony.label))
            .hint("name the other side as well: somebody else's statement, or a mount")
    })
}

/// A source with the blocks of the files, of the cache, and of a server if one is named.
fn source(
    sides: &[&LabeledStatement],
    arguments: &Merge,
    directories: &Directories,
) -> Outcome<Arc<dyn BlockSource + Send + Sync>> {
    let statements: Vec<_> = sides.iter().map(|side| &side.statement).collect();
    let file_system = statements[0].floor.file_system();
    let sources = Sources::of(&statements);
    let (Some(url), Some(key)) = (&arguments.from, &arguments.key) else {
        return Ok(Arc::new(sources.and(statement::cache(&file_system, directories)?)));
    };
    let address: Address = url.parse()?;
    if address.file_system != file_system {
        return Err(Failure::new(Exit::NoHost, format!("{url}: this is another file system")));
    }
    let server = live::connect(&address, keys::read(key)?)?;
    let folder = directories.cache_of(&file_system)?;
    make_private(&folder)?;
    let cache = Some((folder, holdfast_daemon::cache::size_given(directories)?));
    let evidence = directories.state_base()?.join("evidence");
    Ok(Arc::new(sources.and(Arc::new(reader::blocks(
        &address,
        server,
        evidence,
        cache,
        MEMORY_BYTES,
        DEADLINE,
    )))))
}

struct Copier {
    copied: u64,
    missing: Vec<(String, String)>,
}

impl Copier {
    fn copy(&mut self, side: &str, branch: &Branch, parts: &[Vec<u8>], version: &Version, to: &Path) {
        match branch.copy_out(parts, version, to) {
            Ok(()) => self.copied += 1,
            Err(why) => {
                let path: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
                self.missing.push((format!("{side}/{}", path.join("/")), why));
            }
        }
    }
}

impl Report {
    fn words(&self) -> String {
        let mut text = format!(
            "Two histories of one file system, laid side by side on {}.\n\nFirst side, in ours/: {}\nOther side, in \
             theirs/: {}\n\n",
            moment(self.made_ns),
            self.ours,
            self.theirs
        );
        self.comparison.words(&mut text, &moment);
        text.push_str(&format!("\n{} files, links and directories were copied.\n", self.copied));
        if !self.missing.is_empty() {
            text.push_str(&format!(
                "{} are missing, because their data is neither cached here nor given by a server (--from):\n",
                self.missing.len()
            ));
            for (path, why) in self.missing.iter().take(TOLD_MAX) {
                text.push_str(&format!("  {path}: {why}\n"));
            }
        }
        text.push_str(
            "\nTo carry on: choose for each file that both changed, copy the choice into the file system that goes on \
             (or into a new one, `holdfast fs create`), and copy what only the other side has. A file that was \
             renamed is told as removed and new.\n",
        );
        text
    }
}
