//! Images of releases: `holdfast release export`, and what `mount`, `verify` and `status` do with them.

pub mod args;

use crate::args::Mount;
use crate::output::{Format, progress};
use crate::reading::args::{Demands, ReleaseSource, Verify};
use crate::reading::source::{Named, release_failure};
use args::Export;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use holdfast_release::image::attach::{AttachError, Reads, SOURCE, attach};
use holdfast_release::image::{self, Checked, ExportOptions, ImageError, ImageOf, Report};
use holdfast_release::moment::moment;
use holdfast_release::record::Record;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Whether the name is that of an image's directory.
pub fn is_meant(name: &str) -> bool {
    image::is_image(Path::new(name))
}

/// `holdfast release export`
pub fn export(arguments: &Export, directories: &Directories, format: Format) -> Outcome {
    let Named { mirrors, .. } = arguments.source.named()?;
    let release = arguments.source.open(directories)?;
    let current = release.current();
    let terms = ExportOptions {
        directory: &arguments.to,
        tree: &current.tree,
        record: &current.accepted.record,
        mirrors,
        prune: arguments.prune,
    };
    let bar = progress("exporting");
    let told = |names: u64, bytes: u64| bar.set_message(format!("exporting: {names} names, {bytes} bytes"));
    let report = image::export(&terms, &told).map_err(failure)?;
    bar.finish_and_clear();
    if report.left_out > 0 {
        let _ = writeln!(
            std::io::stderr(),
            "holdfast: warning: {} device nodes with number 0/0 are left out: overlayfs takes them for deletions",
            report.left_out
        );
    }
    format.print(&report, |report| describe(report, &arguments.to))
}

fn describe(report: &Report, directory: &Path) -> String {
    let Report { of, names, bytes, .. } = report;
    let deleted = match report.objects_deleted {
        0 => String::new(),
        count => format!("; {count} deleted ({} bytes)", report.bytes_deleted),
    };
    format!(
        "{0} is now an image of release {1}{2}: {names} names, {bytes} bytes.\n{3} objects written ({4} bytes), {5} files' \
         objects were there{deleted}.\nImage (fs-verity): {6}\n`holdfast mount {0} MNT` mounts it.",
        directory.display(),
        of.sequence,
        title(of),
        report.objects_added,
        report.bytes_added,
        report.objects_kept,
        of.image,
    )
}

fn title(of: &ImageOf) -> String {
    if of.note.is_empty() { String::new() } else { format!(" ({})", of.note) }
}

#[derive(Serialize)]
struct Verified {
    of: ImageOf,
    #[serde(flatten)]
    checked: Checked,
}

/// `holdfast release verify` of an image's directory.
pub fn verify(arguments: &Verify, directories: &Directories, format: Format) -> Outcome {
    let usage = |message: &str| Failure::new(Exit::Usage, message);
    if arguments.as_of.is_some() || arguments.path.as_os_str() != "." {
        return Err(usage("an image is verified whole, by the record that it was made of"));
    }
    let directory = Path::new(&arguments.source.release);
    let of = image::image_at(directory).map_err(failure)?;
    if arguments.source.demands.id.as_ref().is_some_and(|id| *id != of.id) {
        let message =
            format!("{} is an image of {}, not of the release with that id", directory.display(), of.id);
        return Err(Failure::new(Exit::Alarm, message));
    }
    let mut mirrors = [&arguments.source.demands.mirror[..], &of.mirrors[..]].concat().into_iter();
    let first = mirrors.next().ok_or_else(|| usage("no mirror is known").hint("name one with --mirror"))?;
    let source = ReleaseSource {
        release: first,
        demands: Demands {
            id: Some(of.id.clone()),
            mirror: mirrors.collect(),
            ..arguments.source.demands.clone()
        },
        cache_mib: arguments.source.cache_mib,
    };
    let release = source.open(directories)?;
    let current = release.current();
    let tree = if current.accepted.record.sequence == of.sequence {
        current.tree.clone()
    } else {
        let is_meant = |record: &Record| {
            record.sequence == of.sequence && record.root_dir.address.to_string() == of.root
        };
        let then = release.trust().latest(is_meant).map_err(release_failure)?;
        let then = then.ok_or_else(|| {
            let message = format!("no record {} of this release was ever accepted here", of.sequence);
            Failure::new(Exit::NoInput, message).hint("export the release again, to the same directory")
        })?;
        release.tree_of(&then.file)?
    };
    let bar = progress("verifying");
    let told = |names: u64, bytes: u64| bar.set_message(format!("verifying: {names} names, {bytes} bytes"));
    let checked = image::check(directory, &tree, &told).map_err(failure)?;
    bar.finish_and_clear();
    if !checked.wrong.is_empty() {
        let message =
            format!("{} is not what was signed:\n  {}", directory.display(), checked.wrong.join("\n  "));
        return Err(Failure::new(Exit::Alarm, message)
            .hint("unmount it, find out who changed it, delete the directory and export the release again"));
    }
    let newer = current.accepted.record.sequence.saturating_sub(of.sequence);
    format.print(&Verified { of, checked }, |verified| {
        let of = &verified.of;
        let newer = match newer {
            0 => String::new(),
            count => {
                format!("\n{count} newer releases are out; `holdfast release export` brings it up to date.")
            }
        };
        format!(
            "{} is release {}{} of {}, of {}: all {} names and {} bytes are as signed.{newer}",
            directory.display(),
            of.sequence,
            title(of),
            of.id,
            moment(of.issued_s),
            verified.checked.names,
            verified.checked.bytes,
        )
    })
}

/// `holdfast mount` of an image's directory. Returns the mount point and what is mounted.
pub fn mount(arguments: &Mount) -> Outcome<(PathBuf, String)> {
    let usage = |message: &str| Err(Failure::new(Exit::Usage, message));
    if arguments.key.is_some() {
        return usage("an image is mounted without a key");
    }
    if arguments.foreground {
        return usage(
            "an image is mounted by the kernel alone; there is no process to stay in the foreground",
        );
    }
    let directory = Path::new(&arguments.url);
    let directory = directory
        .canonicalize()
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", directory.display())))?;
    if let Some(id) = &arguments.release.demands.id {
        let of = image::image_at(&directory).map_err(failure)?;
        if of.id != *id {
            let message = format!("{} is an image of {}, not of {id}", directory.display(), of.id);
            return Err(Failure::new(Exit::Alarm, message));
        }
    }
    let target = mountpoint::prepare(&arguments.directory)?;
    let reads = if arguments.image.verity { Reads::Checked } else { Reads::Unchecked };
    attach(&directory, &target, reads).map_err(attach_failure)?;
    Ok((target, format!("{SOURCE}{}", directory.display())))
}

/// The status of a mounted image, in lines; `source` is its source in the table of mounts.
pub fn says(source: &str) -> Option<Vec<String>> {
    let directory = Path::new(source.strip_prefix(SOURCE)?);
    let first = match image::image_at(directory) {
        Ok(of) => format!("image of release {}{} of {}", of.sequence, title(&of), of.id),
        Err(error) => error.to_string(),
    };
    Some(vec![
        first,
        format!("`holdfast release verify {}` compares it with what was signed", directory.display()),
    ])
}

fn attach_failure(error: AttachError) -> Failure {
    let text = error.to_string();
    match error {
        AttachError::Image(error) => failure(error),
        AttachError::NotRoot | AttachError::NotYours(_) => Failure::new(Exit::NotAllowed, text),
        AttachError::Kernel { .. } => Failure::new(Exit::System, text),
        AttachError::Refused { .. } => Failure::new(Exit::MountPoint, text).hint(
            "`holdfast release verify` tells whether the image is whole; docs/releases.md how to mount it by hand",
        ),
    }
}

fn failure(error: ImageError) -> Failure {
    let text = error.to_string();
    match error {
        ImageError::Content { path, error } => crate::reading::source::content_failure(&path, &error),
        ImageError::Disk { .. } => Failure::new(Exit::Io, text),
        ImageError::None(_) => Failure::new(Exit::NoInput, text),
        ImageError::Unclear { .. } => Failure::new(Exit::Data, text),
        ImageError::InUse(_) | ImageError::Mounted { .. } => Failure::new(Exit::InUse, text),
        ImageError::TooLarge { .. } => Failure::new(Exit::Protocol, text),
        ImageError::Foreign(_) => Failure::new(Exit::CannotCreate, text),
    }
}
