//! `holdfast release publish`: makes a signed release from a directory.

use crate::bucket;
use crate::live::{self, LiveDirectory};
use crate::output::{Format, bytes_bar};
use crate::reading::args::Publish;
use crate::reading::source::span_of;
use holdfast_components::Program;
use holdfast_content::Handle;
use holdfast_crypto::{DigestKey, KeyHolder};
use holdfast_daemon::keys;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::moment::moment;
use holdfast_release::open::now_s;
use holdfast_release::publish::PublishError;
use holdfast_release::publish::bucket::BucketTarget;
use holdfast_release::publish::compose::{ReleaseOptions, Report};
use holdfast_release::publish::live::{LiveSource, find_directory};
use holdfast_release::publish::publication::{Publication, PublicationProgress, Walker};
use holdfast_release::publish::rules::Rules;
use holdfast_release::send;
use indicatif::ProgressBar;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many files are sent to a bucket at once.
const CONNECTIONS: usize = 4;

#[derive(Serialize)]
struct PublishOutput {
    id: String,
    directory: PathBuf,
    /// The bucket of the release, and the URL at which it can be read if that is public.
    bucket: Option<String>,
    url: Option<String>,
    /// What was sent to the bucket.
    sent: Option<send::Report>,
    expires: String,
    #[serde(flatten)]
    report: Report,
    /// Whether this is the first release.
    first: bool,
    /// The live file system that has the files' data, if the release is made from one.
    origin: Option<String>,
    /// The draft that waits for signatures, and what it lacks.
    draft: Option<PathBuf>,
    lacking: Vec<String>,
}

/// `holdfast release publish`
pub fn run(arguments: &Publish, directories: &Directories, format: Format) -> Outcome {
    let bucket =
        bucket::address(&arguments.to).map(|address| bucket::open(address, directories)).transpose()?;
    let target = match &bucket {
        Some(bucket) => bucket.copy(),
        None => std::path::absolute(&arguments.to)
            .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", arguments.to.display())))?,
    };
    let live = live::parse(&arguments.directory)?;
    if live.is_some() && bucket.is_some() {
        let message = "the data of a live file system stays at its server, and a bucket cannot reach that";
        return Err(Failure::new(Exit::Usage, message).hint(
            "publish into a directory, and send it with `holdfast release pull RELEASEDIR s3://... --origin URL --key \
             KEY`",
        ));
    }
    let origin = live.as_ref().map(|live| live.address.to_string());
    let source = match &live {
        Some(_) => arguments.directory.clone(),
        None => local(&arguments.directory, &target)?,
    };
    let rules = Rules::new(&arguments.exclude, &arguments.opaque)
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let life_s = span_of("--expires", &arguments.expires)?;
    let sending = bucket::sending(&arguments.sending, CONNECTIONS)?;
    let signers = signers(arguments, live.is_none(), &source, &rules)?;
    let opened = live.map(|live| open_live(&live, arguments, directories)).transpose()?;
    let memory = match arguments.forget {
        true => None,
        false => Some(memory_file(directories, &source, &target)?),
    };
    let mut salt = [0; 16];
    keys::random(&mut salt)?;
    let mut first_key = DigestKey::WELL_KNOWN;
    if arguments.private_digests {
        keys::random(&mut first_key.0)?;
    }
    let options = ReleaseOptions {
        source: &source,
        target: &target,
        now_s: now_s(),
        life_s,
        note: &arguments.note,
        keep: arguments.keep.into(),
        first_key,
        rules: &rules,
        newest: arguments.newest,
        level: arguments.level.into(),
        threads: std::thread::available_parallelism().map_or(1, Into::into),
        memory: memory.as_deref(),
        live: opened.as_ref().map(|(opened, directory)| LiveSource {
            base: &opened.base,
            directory: *directory,
            server: &*opened.server,
        }),
    };
    let walker = match arguments.one_process {
        true => Walker::Inside,
        false => Walker::Apart(Program::current().map_err(|error| PublishError::Sandbox(error.to_string()))?),
    };
    let expires_s = options.now_s.saturating_add(life_s);
    let to_bucket = bucket.as_ref().map(|bucket| (bucket, sending));
    let publication = Publication { options, signers: &signers, salt, walker, bucket: to_bucket };
    let bar = bytes_bar("looking");
    let published = publication.run(&|progress| {
        show(&bar, progress);
        true
    })?;
    bar.finish_and_clear();
    let (draft, lacking) = published.draft.unzip();
    let mut done = PublishOutput {
        origin,
        id: published.id.to_string(),
        directory: target.clone(),
        bucket: bucket.as_ref().map(BucketTarget::name),
        url: bucket.as_ref().map(BucketTarget::url),
        sent: published.sent,
        expires: moment(expires_s),
        report: published.report,
        first: published.first,
        draft,
        lacking: lacking.iter().flatten().map(ToString::to_string).collect(),
    };
    if arguments.one_process {
        done.report.notes.push("--one-process: what parses the tree had the keys in its memory".to_owned());
    }
    format.print(&done, describe)
}

/// Displays the progress of a publication.
fn show(bar: &ProgressBar, progress: PublicationProgress) {
    let (message, bytes) = match progress {
        PublicationProgress::Fetching(at) => ("fetching what the bucket has".to_owned(), at.bytes),
        PublicationProgress::Reading(at) if at.names.0 > 0 => {
            (format!("publishing {}/{} files", at.names.0, at.names.1), at.bytes)
        }
        PublicationProgress::Reading(at) => (format!("looking: {} files", at.names.1), at.bytes),
        PublicationProgress::Sending(at) => return bucket::show(bar, at),
        PublicationProgress::Reached(_) => return,
    };
    bar.set_message(message);
    bar.set_length(bytes.1);
    bar.set_position(bytes.0);
}

/// The keys that sign here. A key file inside the local tree `source` is refused, because it would be
/// published.
fn signers(
    arguments: &Publish,
    is_local: bool,
    source: &Path,
    rules: &Rules,
) -> Outcome<Vec<Arc<dyn KeyHolder>>> {
    let signer = |file: &PathBuf| {
        let key = keys::read(file)?;
        if is_local && matches!(key, keys::Key::Here(_)) {
            apart_from(file, source, rules)?;
        }
        key.into_holder()
    };
    arguments.key.iter().map(signer).collect()
}

/// A local directory to publish. The release directory must not be inside it.
fn local(directory: &Path, target: &Path) -> Outcome<PathBuf> {
    let source = directory
        .canonicalize()
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", directory.display())))?;
    if target.starts_with(&source) {
        let message =
            format!("{} lies in {}, and would become part of itself", target.display(), source.display());
        return Err(Failure::new(Exit::Usage, message).hint("publish into a directory elsewhere"));
    }
    Ok(source)
}

fn apart_from(key: &Path, source: &Path, rules: &Rules) -> Outcome {
    use std::os::unix::ffi::OsStrExt;
    let path = key.canonicalize().unwrap_or_default();
    let Ok(within) = path.strip_prefix(source) else { return Ok(()) };
    if within.ancestors().any(|part| rules.is_excluded(part.as_os_str().as_bytes())) {
        return Ok(());
    }
    let message = format!("{} lies in the tree, and would be published with it", key.display());
    Err(Failure::new(Exit::Usage, message).hint("keep the key elsewhere, or leave it out with --exclude"))
}

/// Opens a directory of a live file system.
fn open_live(
    live: &LiveDirectory,
    arguments: &Publish,
    directories: &Directories,
) -> Outcome<(live::Opened, Handle)> {
    if arguments.private_digests {
        let message = "the blocks of a live file system have the digests that they have";
        return Err(Failure::new(Exit::Usage, message)
            .hint("leave --private-digests out, or publish a directory where it is mounted"));
    }
    if arguments.one_process {
        let message = "--one-process is for directories of this machine: there is no tree to be parsed here";
        return Err(Failure::new(Exit::Usage, message).hint("leave it out"));
    }
    let Some(key) = &arguments.device_key else {
        return Err(Failure::new(
            Exit::Usage,
            "whose view of the file system is to be published is not said",
        )
        .hint("give --as KEY, the key that this device mounts it with"));
    };
    let opened = live::open(&live.address, key, directories)?;
    let directory = find_directory(&opened.base, &live.path)?;
    Ok((opened, directory))
}

/// The file that remembers what of `source` was published into `target`.
fn memory_file(directories: &Directories, source: &Path, target: &Path) -> Outcome<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let folder = directories.cache_base()?.join("publish");
    make_private(&folder)?;
    let both = [source.as_os_str().as_bytes(), b"\0", target.as_os_str().as_bytes()].concat();
    let name = DigestKey::WELL_KNOWN.digest(holdfast_crypto::Domain::ReleasePath, &both);
    Ok(folder.join(format!("{}.seen", name.short())))
}

fn describe(done: &PublishOutput) -> String {
    let Report { sequence, names, bytes, files_read, blocks_added, bytes_added, blocks_at_origin, .. } =
        done.report;
    let looked_at = if done.origin.is_some() { "new or changed" } else { "read" };
    let mut text = String::new();
    for note in &done.report.notes {
        text += &format!("Note: {note}\n");
    }
    text += &format!(
        "Release {sequence}: {names} names, {bytes} bytes; {files_read} files {looked_at}, {blocks_added} blocks new \
         ({bytes_added} bytes){}{}.\n",
        match blocks_at_origin {
            0 => String::new(),
            count => format!(", {count} more stay where they are, at the file system's server"),
        },
        if done.report.unchanged { "; the tree is as it was" } else { "" },
    );
    if let Some(draft) = &done.draft {
        text += "It is not in force yet. What it lacks:\n";
        text += &done.lacking.iter().map(|part| format!("  {part}\n")).collect::<String>();
        text += &format!(
            "Let them sign {0} with `holdfast release sign {0} --key KEY`, the last of them with --to {1}.",
            draft.display(),
            done.directory.display()
        );
        if let Some(bucket) = &done.bucket {
            let (id, folder) = (&done.id, done.directory.display());
            text += &format!("\nThen send it:\n  holdfast release pull hf+release:{id}@{folder} '{bucket}'");
        }
        return text;
    }
    text += &format!("It counts until {}.\nID: {}\n", done.expires, done.id);
    if let (Some(bucket), Some(url), Some(sent)) = (&done.bucket, &done.url, &done.sent) {
        text += &format!("\n{}\nIt is in {bucket}.", bucket::describe(sent));
        text += &match done.first {
            true => format!(
                " Where everybody may read there, anybody who has its ID can:\n  holdfast mount {url} DIR --id {0}\nWho \
                 has credentials can in any case:\n  holdfast release ls 'hf+release:{0}@{bucket}'",
                done.id
            ),
            false => format!(" Try it: holdfast release ls 'hf+release:{}@{bucket}'", done.id),
        };
        return text;
    }
    let link = format!("hf+release:{}@{}", done.id, done.directory.display());
    text += &match (done.first, &done.origin) {
        (true, Some(origin)) => format!(
            "\nThe data of its files stays at {origin}. Offer it with any member's key:\n  holdfast release serve {0} \
             --origin {origin} --key KEY\nor make a mirror that stands alone, for any web server:\n  holdfast release pull \
             hf+release:{1}@{0} MIRROR --origin {origin} --key KEY\nTell people its ID, by a way that they trust.",
            done.directory.display(),
            done.id
        ),
        (true, None) => format!(
            "\nCopy {} to any web server (or run `holdfast release serve` on it) and tell people its ID, by a way that \
             they trust. They can then, from anywhere:\n  holdfast mount https://HOST/PATH/ DIR --id {}\nTry it here:\n  \
             holdfast release ls {link}",
            done.directory.display(),
            done.id
        ),
        (false, _) => format!("Try it: holdfast release ls {link}"),
    };
    text
}
