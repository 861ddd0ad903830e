//! `holdfast release pull`: makes a directory a mirror of a release, or updates it.

use crate::bucket;
use crate::live;
use crate::output::{Format, bytes_bar};
use crate::reading::args::{Pull, ReleaseSource};
use crate::reading::source::Named;
use holdfast_daemon::paths::{Directories, DirectoryList, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::mirror;
use holdfast_release::moment::moment;
use holdfast_release::open::Options;
use holdfast_release::origin::OriginMirror;
use holdfast_release::publish::bucket::BucketTarget;
use holdfast_release::publish::compose::lock;
use holdfast_release::pull::{CheckedRelease, Progress, PullOptions, Report, check, pull};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Serialize)]
struct PullOutput {
    id: String,
    directory: PathBuf,
    valid_until: String,
    #[serde(flatten)]
    report: Report,
}

#[derive(Serialize)]
struct Sent {
    id: String,
    bucket: String,
    url: String,
    valid_until: String,
    blocks_verified: u64,
    #[serde(flatten)]
    report: holdfast_release::send::Report,
}

/// `holdfast release pull`
pub fn run(arguments: &Pull, directories: &Directories, format: Format) -> Outcome {
    let source =
        ReleaseSource { release: arguments.source.clone(), demands: arguments.demands.clone(), cache_mib: 0 };
    let Named { id, mirrors } = source.named()?;
    let folder = match &mirrors[..] {
        [only] if arguments.origin.is_none() => Some(only.strip_prefix("file://").unwrap_or(only)),
        _ => None,
    };
    let folder = folder.filter(|only| only.starts_with('/')).map(PathBuf::from);
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
    let bucket = bucket::address(&arguments.directory)
        .map(|address| bucket::open(address, directories))
        .transpose()?;
    if let Some(bucket) = &bucket {
        bucket.no_other(id)?;
    }
    let target = match &bucket {
        Some(bucket) => bucket.copy(),
        None => absolute(&arguments.directory)?,
    };
    let from = arguments.from.iter().map(absolute).collect::<Outcome<Vec<_>>>()?;
    let trust = directories.releases_base()?;
    make_private(&trust)?;
    let options = Options {
        id,
        trust,
        revocations: DirectoryList::all(&arguments.demands.revocations),
        stale: if arguments.demands.allow_stale { ExpiredPolicy::Allow } else { ExpiredPolicy::Refuse },
        cache: None,
        memory_bytes: 0,
    };
    let terms = PullOptions {
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
    if let (Some(bucket), Some(folder)) = (&bucket, folder) {
        let whole = check(&options, &folder, &shown)?;
        bar.finish_and_clear();
        return send(arguments, bucket, &folder, &options, &whole, format);
    }
    let report = pull(&options, mirrors, &terms, &shown)?;
    bar.finish_and_clear();
    if let Some(bucket) = &bucket {
        let Report { valid_until_s, blocks_verified, notices, .. } = report;
        let whole = CheckedRelease { valid_until_s, blocks_verified, notices };
        return send(arguments, bucket, &target, &options, &whole, format);
    }
    tell(&report.notices);
    let done = PullOutput {
        id: id.to_string(),
        directory: target.clone(),
        valid_until: moment(report.valid_until_s),
        report,
    };
    format.print(&done, describe)
}

fn tell(notices: &[String]) {
    for notice in notices {
        let _ = writeln!(std::io::stderr(), "holdfast: warning: {notice}");
    }
}

/// Updates a bucket to what a directory has.
fn send(
    arguments: &Pull,
    bucket: &BucketTarget,
    folder: &Path,
    options: &Options,
    whole: &CheckedRelease,
    format: Format,
) -> Outcome {
    tell(&whole.notices);
    let _lock = lock(folder)?;
    let sending = bucket::sending(&arguments.sending, arguments.connections.into())?;
    let bar = bytes_bar("sending");
    let report = bucket.send(folder, &sending, &|progress| {
        bucket::show(&bar, progress);
        true
    })?;
    bar.finish_and_clear();
    let sent = Sent {
        id: options.id.to_string(),
        bucket: bucket.name(),
        url: bucket.url(),
        valid_until: moment(whole.valid_until_s),
        blocks_verified: whole.blocks_verified,
        report,
    };
    format.print(&sent, |sent| {
        format!(
            "{} has release {}, valid until {}; {} blocks checked.\n{}\nWhere everybody may read there, it is {} too.",
            sent.bucket,
            sent.report.sequence,
            sent.valid_until,
            sent.blocks_verified,
            bucket::describe(&sent.report),
            sent.url,
        )
    })
}

fn describe(done: &PullOutput) -> String {
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
