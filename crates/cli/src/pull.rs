//! `holdfast pull`: a directory becomes a mirror of a release, or is brought up to date.

use crate::exit::{Exit, Failure, Outcome};
use crate::live;
use crate::output::{Format, bytes_bar};
use crate::paths::{Directories, make_private};
use crate::reading::args::{Pull, ReleaseSource};
use crate::reading::{Named, open_failure};
use holdfast_release::accept::Stale;
use holdfast_release::mirror;
use holdfast_release::moment::moment;
use holdfast_release::open::Options;
use holdfast_release::origin::OriginMirror;
use holdfast_release::pull::{Progress, PullError, Report, Terms, pull};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Serialize)]
struct Done {
    id: String,
    directory: PathBuf,
    valid_until: String,
    #[serde(flatten)]
    report: Report,
}

/// `holdfast pull`
pub fn run(arguments: &Pull, directories: &Directories, format: Format) -> Outcome {
    let source =
        ReleaseSource { release: arguments.source.clone(), demands: arguments.demands.clone(), cache_mib: 0 };
    let Named { id, mirrors } = source.named()?;
    let mut mirrors = mirrors
        .iter()
        .map(|address| mirror::parse(address))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    if let (Some(origin), Some(key)) = (&arguments.origin, &arguments.key) {
        mirrors.push(Arc::new(OriginMirror(live::origin(origin, key, 0)?)));
    }
    let absolute = |path: &PathBuf| {
        std::path::absolute(path)
            .map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", path.display())))
    };
    let target = absolute(&arguments.directory)?;
    let from = arguments.from.iter().map(absolute).collect::<Outcome<Vec<_>>>()?;
    let trust = directories.releases_base()?;
    make_private(&trust)?;
    let options = Options {
        id,
        trust,
        revocations: arguments.demands.revocations.clone(),
        stale: if arguments.demands.allow_stale { Stale::Allow } else { Stale::Refuse },
        cache: None,
        memory_bytes: 0,
    };
    let terms = Terms {
        target: &target,
        keep: arguments.keep.map_or(usize::MAX, usize::from),
        from: &from,
        quick: arguments.quick,
        connections: arguments.connections.into(),
    };
    let bar = bytes_bar("looking");
    let shown = |progress: Progress| {
        bar.set_length(progress.bytes.1);
        bar.set_position(progress.bytes.0);
        bar.set_message(match progress.blocks {
            0 => "fetching".to_owned(),
            blocks => format!("checking: {blocks} blocks"),
        });
        true
    };
    let report = pull(&options, mirrors, &terms, &shown).map_err(failure)?;
    bar.finish_and_clear();
    for notice in &report.notices {
        let _ = writeln!(std::io::stderr(), "holdfast: warning: {notice}");
    }
    let done = Done {
        id: id.to_string(),
        directory: target.clone(),
        valid_until: moment(report.valid_until_s),
        report,
    };
    format.print(&done, describe)
}

fn describe(done: &Done) -> String {
    let report = &done.report;
    let head = match report.changed {
        true => format!("{} is now a mirror of release {}", done.directory.display(), report.sequence),
        false => format!("{} is up to date with release {}", done.directory.display(), report.sequence),
    };
    let older = match report.releases {
        1 => String::new(),
        count => format!(" and {} before it", count - 1),
    };
    format!(
        "{head}{older}, valid until {}.\n{} bytes in {} requests, {} bytes were here already; {} packs new, {} kept; \
         {} blocks checked{}.",
        done.valid_until,
        report.bytes_fetched,
        report.requests,
        report.bytes_reused,
        report.packs_added,
        report.packs_kept,
        report.blocks_verified,
        match report.blocks_known {
            0 => String::new(),
            known => format!(", {known} were before"),
        },
    )
}

fn failure(error: PullError) -> Failure {
    let text = error.to_string();
    match error {
        PullError::Open(error) => open_failure(error),
        PullError::Disk(error) => error.into(),
        PullError::NotHad(..) => {
            Failure::new(Exit::Unavailable, text).hint("try again, or name another mirror with --mirror")
        }
        PullError::Torn { .. } | PullError::Behind { .. } => Failure::new(Exit::Protocol, text),
        PullError::Foreign { .. } => Failure::new(Exit::CannotCreate, text),
        PullError::NoRoom { .. } => Failure::new(Exit::Io, text),
        PullError::Stopped => Failure::new(Exit::Failed, text),
    }
}
