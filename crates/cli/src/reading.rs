//! Naming and opening releases; and `holdfast release ls`, `cat`, `get`, `verify`, which read them without a mount.

pub mod args;
mod get;

pub use get::get;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Format, bytes_bar};
use crate::paths::{Directories, DirectoryList, make_private};
use args::{Cat, Ls, ReleaseSource, Verify};
use holdfast_content::{Content, ContentError, Inode, InodeKind, SourceError};
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::keys::ReleaseId;
use holdfast_release::mirror;
use holdfast_release::moment::{moment, parse_moment, parse_span};
use holdfast_release::open::{Options, Release};
use holdfast_release::tree::{Node, PathLookup, Tree};
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How links to releases begin.
pub const SCHEME: &str = "hf+release:";
/// Bytes read at once.
const READ_BYTES: usize = 4 << 20;
/// Names listed at once.
const PAGE: usize = 1024;

/// A failure about a release that needs no code of its own.
pub fn release_failure(error: impl Display) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

/// A span of time in an argument.
pub fn span_of(name: &str, text: &str) -> Outcome<u64> {
    parse_span(text).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{name} {text}: no span of time")).hint("such as 30d, 12h or 90m")
    })
}

/// A release and its mirrors, as arguments name them.
pub struct Named {
    /// The release's ID.
    pub id: ReleaseId,
    /// Where, as given.
    pub mirrors: Vec<String>,
}

impl ReleaseSource {
    /// Which release is meant, and where it is.
    ///
    /// # Errors
    /// The id is missing or malformed, or there are two.
    pub fn named(&self) -> Outcome<Named> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let (mut ids, mut mirrors) = (Vec::new(), Vec::new());
        match self.release.strip_prefix(SCHEME) {
            Some(rest) => match rest.split_once('@') {
                Some((id, mirror)) => {
                    ids.push(id);
                    mirrors.push(mirror.to_owned());
                }
                None => ids.push(rest),
            },
            None => mirrors.push(self.release.clone()),
        }
        ids.extend(self.demands.id.iter().map(String::as_str));
        mirrors.extend(self.demands.mirror.iter().cloned());
        let Some(id) = ids.first() else {
            let hint = "give --id ID, or hf+release:ID@MIRROR; the publisher tells the ID. A mirror cannot vouch for \
                        itself";
            return Err(usage(format!("{}: which release is not said", self.release)).hint(hint));
        };
        if ids.iter().any(|other| other != id) {
            return Err(usage("the link and --id name two releases".into()));
        }
        let id = ReleaseId::from_hex(id)
            .ok_or_else(|| usage(format!("{id}: no id of a release")).hint("it has 64 hexadecimal digits"))?;
        if mirrors.is_empty() {
            return Err(usage(format!("{}: no mirror is named", self.release))
                .hint("give hf+release:ID@https://HOST/PATH/, or --mirror"));
        }
        // A directory that was named from here.
        for mirror in &mut mirrors {
            if !mirror.contains("://") && !mirror.starts_with('/') {
                let path =
                    std::path::absolute(&*mirror).map_err(|error| usage(format!("{mirror}: {error}")))?;
                *mirror = path.display().to_string();
            }
        }
        Ok(Named { id, mirrors })
    }

    /// Opens it. What people should be told goes to standard error.
    ///
    /// # Errors
    /// No mirror has it as it should be, it is revoked, or something here is damaged.
    pub fn open(&self, directories: &Directories) -> Outcome<Release> {
        self.open_telling(directories, &|text| drop(writeln!(std::io::stderr(), "holdfast: {text}")))
    }

    /// As [`ReleaseSource::open`]; what people should be told goes to `tell`.
    ///
    /// # Errors
    /// As of [`ReleaseSource::open`].
    pub fn open_telling(&self, directories: &Directories, tell: &dyn Fn(&str)) -> Outcome<Release> {
        let Named { id, mirrors } = self.named()?;
        let trust = directories.releases_base()?;
        make_private(&trust)?;
        let folder = directories.cache_base()?.join("releases").join(id.to_string());
        make_private(&folder)?;
        // Nothing is kept for who wants that, whatever was chosen.
        let bytes_max = match (self.cache_mib, holdfast_daemon::cache::size_chosen(directories)?) {
            (0, _) => 0,
            (_, Some(chosen)) => chosen,
            (mib, None) => mib.saturating_mul(1 << 20),
        };
        let options = Options {
            id,
            trust,
            revocations: DirectoryList::all(&self.demands.revocations),
            stale: if self.demands.allow_stale { ExpiredPolicy::Allow } else { ExpiredPolicy::Refuse },
            cache: Some((folder.clone(), bytes_max)),
            memory_bytes: 64 << 20,
        };
        let mirrors = mirrors
            .iter()
            .map(|address| mirror::parse(address))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        let release = Release::open(options, mirrors)?;
        warnings(&release).for_each(|text| tell(&format!("warning: {text}")));
        holdfast_daemon::cache::remember(
            &folder,
            &format!("{SCHEME}{id}"),
            &release.current().accepted.record.digest_key,
        );
        Ok(release)
    }
}

/// What people should know about what was accepted.
fn warnings(release: &Release) -> impl Iterator<Item = String> {
    let current = release.current();
    let warnings: Vec<String> = current.accepted.warnings.iter().map(ToString::to_string).collect();
    warnings.into_iter().chain(current.notices.clone())
}

/// Says at the end which mirrors turned out to be bad, however it ends.
struct BadMirrors<'a>(&'a Release);

impl Drop for BadMirrors<'_> {
    fn drop(&mut self) {
        for (mirror, why) in self.0.mirrors().dropped() {
            let _ = writeln!(std::io::stderr(), "holdfast: warning: {mirror} is a bad mirror: {why}");
        }
    }
}

/// What content that cannot be had means for people.
pub fn content_failure(path: &[u8], error: &ContentError) -> Failure {
    let path = String::from_utf8_lossy(path).into_owned();
    let name = if path.is_empty() { "the root directory".to_owned() } else { path };
    match error {
        ContentError::Source(SourceError::Unreachable(_, why)) => {
            Failure::new(Exit::Unavailable, format!("{name}: {why}"))
        }
        ContentError::Source(SourceError::Missing(address)) => {
            Failure::new(Exit::Unavailable, format!("{name}: no mirror has block {}", address.short()))
                .hint("the mirror may not be whole; name another with --mirror")
        }
        error => Failure::new(Exit::Alarm, format!("{name}: {error}"))
            .hint("what the mirrors sent is not what the publisher signed; name another with --mirror"),
    }
}

/// A path in a release as it is shown before names below it.
fn inside(path: &Path) -> &[u8] {
    let path = path.as_os_str().as_bytes();
    if path == b"." { b"" } else { path }
}

/// One round trip instead of several, where a path is long enough for that.
fn look_ahead(release: &Release, paths: &[&[u8]]) {
    if paths.iter().any(|path| path.contains(&b'/')) {
        release.look_ahead(paths);
    }
}

/// The node of a path that must be there.
fn find(tree: &Tree, path: &[u8], follow: bool) -> Outcome<Node> {
    let shown = String::from_utf8_lossy(path).into_owned();
    match tree.resolve(path, follow).map_err(|error| content_failure(path, &error))? {
        PathLookup::Node(node) => Ok(node),
        PathLookup::Nothing => {
            Err(Failure::new(Exit::NoInput, format!("{shown}: provably not in the release")))
        }
        PathLookup::Outside => Err(Failure::new(Exit::NoInput, format!("{shown}: leads out of the release"))),
    }
}

#[derive(Serialize)]
struct Listed {
    name: String,
    kind: &'static str,
    mode: String,
    links: u32,
    size: u64,
    modified: String,
    target: Option<String>,
}

fn kind_of(kind: InodeKind) -> &'static str {
    match kind {
        InodeKind::File => "file",
        InodeKind::Directory => "directory",
        InodeKind::Symlink => "link",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharDevice => "character device",
        InodeKind::BlockDevice => "block device",
    }
}

fn listed(name: &[u8], inode: &Inode) -> Listed {
    Listed {
        name: String::from_utf8_lossy(name).into_owned(),
        kind: kind_of(inode.kind),
        mode: format!("{:04o}", inode.mode),
        links: inode.links,
        size: inode.size,
        modified: crate::time::moment(inode.modified_ns),
        target: match &inode.content {
            Content::Target(target) => Some(String::from_utf8_lossy(target).into_owned()),
            _ => None,
        },
    }
}

/// `holdfast release ls`
pub fn ls(arguments: &Ls, directories: &Directories, format: Format) -> Outcome {
    let release = arguments.source.open(directories)?;
    let _bad = BadMirrors(&release);
    let tree = &release.current().tree;
    let path = arguments.path.as_os_str().as_bytes();
    look_ahead(&release, &[path]);
    let node = find(tree, path, true)?;
    let failed = |error: ContentError| content_failure(path, &error);
    let mut found = Vec::new();
    if node.inode.kind == InodeKind::Directory {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = tree.entries(&node, after.as_deref(), PAGE).map_err(failed)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, entry) in page {
                let child = tree.node(entry).map_err(failed)?;
                found.push(listed(&name, &child.inode));
            }
        }
    } else {
        found.push(listed(path, &node.inode));
    }
    format.print(&found, |found| {
        let show = |one: &Listed| {
            let mut name = one.name.escape_debug().to_string().replace("\\'", "'");
            if let (Some(target), true) = (&one.target, arguments.long) {
                name += &format!(" -> {target}");
            }
            match arguments.long {
                true => {
                    format!(
                        "{:<9} {} {:>3} {:>12} {} {name}",
                        one.kind, one.mode, one.links, one.size, one.modified
                    )
                }
                false if one.kind == "directory" => name + "/",
                false => name,
            }
        };
        found.iter().map(show).collect::<Vec<_>>().join("\n")
    })
}

/// `holdfast release cat`
pub fn cat(arguments: &Cat, directories: &Directories) -> Outcome {
    let release = arguments.source.open(directories)?;
    let _bad = BadMirrors(&release);
    let tree = &release.current().tree;
    let mut out = std::io::stdout().lock();
    look_ahead(&release, &arguments.paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>());
    for path in &arguments.paths {
        let path = path.as_os_str().as_bytes();
        let node = find(tree, path, true)?;
        if node.inode.kind != InodeKind::File {
            let message = format!("{}: a {}", String::from_utf8_lossy(path), kind_of(node.inode.kind));
            return Err(Failure::new(Exit::NoInput, message).hint("`holdfast release ls` lists directories"));
        }
        let written = copy(tree, &node, path, &mut |bytes| out.write_all(bytes));
        match written {
            Err(CopyError::Out(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(CopyError::Out(error)) => {
                return Err(Failure::new(Exit::Io, format!("standard output: {error}")));
            }
            Err(CopyError::In(failure)) => return Err(failure),
            Ok(()) => {}
        }
    }
    out.flush().map_err(|error| Failure::new(Exit::Io, format!("standard output: {error}")))
}

enum CopyError {
    In(Failure),
    Out(std::io::Error),
}

/// Reads a file piece by piece, each verified before it is passed on.
fn copy(
    tree: &Tree,
    node: &Node,
    path: &[u8],
    out: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), CopyError> {
    let mut at = 0;
    while at < node.inode.size {
        let bytes =
            tree.read(node, at, READ_BYTES).map_err(|error| CopyError::In(content_failure(path, &error)))?;
        at += bytes.len() as u64;
        out(&bytes).map_err(CopyError::Out)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Verified {
    release: String,
    sequence: u64,
    issued: String,
    valid_until: String,
    note: String,
    path: String,
    /// Whether the path is there; that it is not is proven too.
    present: bool,
    names: u64,
    bytes: u64,
}

/// `holdfast release verify`
pub fn verify(arguments: &Verify, directories: &Directories, format: Format) -> Outcome {
    if crate::image::is_meant(&arguments.source.release) {
        return crate::image::verify(arguments, directories, format);
    }
    let release = arguments.source.open(directories)?;
    let _bad = BadMirrors(&release);
    let (tree, record, valid_until_s) = match &arguments.as_of {
        None => {
            let current = release.current();
            (current.tree.clone(), current.accepted.record.clone(), current.accepted.valid_until_s)
        }
        Some(date) => {
            let time_s = parse_moment(date).ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--as-of {date}: no time"))
                    .hint("such as 2026-11-21 or 2026-11-21T08:00Z")
            })?;
            let found = release.trust().as_of(time_s).map_err(release_failure)?;
            let found = found.ok_or_else(|| {
                Failure::new(Exit::NoInput, format!("no record of {} or before was ever accepted here", moment(time_s)))
                    .hint("records are archived when they are accepted; a machine that used the release then has it")
            })?;
            let tree = release.tree_of(&found.file)?;
            (tree, found.file.record.value.clone(), found.validity.until_s)
        }
    };
    let path = arguments.path.as_os_str().as_bytes();
    let found = tree.resolve(path, false).map_err(|error| content_failure(path, &error))?;
    let mut verified = Verified {
        release: release.id().to_string(),
        sequence: record.sequence,
        issued: moment(record.issued_s),
        valid_until: moment(valid_until_s),
        note: record.note.clone(),
        path: if path == b"." { String::new() } else { String::from_utf8_lossy(path).into_owned() },
        present: matches!(found, PathLookup::Node(_)),
        names: 0,
        bytes: 0,
    };
    if let PathLookup::Node(node) = found {
        let bar = bytes_bar("verifying");
        check_all(&tree, &node, inside(&arguments.path), &mut verified, &bar)?;
        bar.finish_and_clear();
    }
    format.print(&verified, |verified| {
        let head = format!(
            "Release {} of {}{}, valid until {}: ",
            verified.sequence,
            verified.issued,
            if verified.note.is_empty() { String::new() } else { format!(" ({})", verified.note) },
            verified.valid_until
        );
        let name = if verified.path.is_empty() { "the whole tree" } else { &verified.path };
        head + &match verified.present {
            true => format!(
                "{name} is there; {} names and {} bytes are as signed.",
                verified.names, verified.bytes
            ),
            false => format!("{name} is provably not there."),
        }
    })
}

fn check_all(
    tree: &Tree,
    node: &Node,
    path: &[u8],
    verified: &mut Verified,
    bar: &indicatif::ProgressBar,
) -> Outcome {
    verified.names += 1;
    match node.inode.kind {
        InodeKind::File => {
            let count = &mut |bytes: &[u8]| {
                verified.bytes += bytes.len() as u64;
                bar.set_position(verified.bytes);
                Ok(())
            };
            match copy(tree, node, path, count) {
                Err(CopyError::In(failure)) => Err(failure),
                Err(CopyError::Out(_)) | Ok(()) => Ok(()),
            }
        }
        InodeKind::Directory => {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = tree.entries(node, after.as_deref(), PAGE);
                let page = page.map_err(|error| content_failure(path, &error))?;
                let Some((last, _)) = page.last() else { return Ok(()) };
                after = Some(last.clone());
                for (name, entry) in page {
                    let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
                    let child = tree.node(entry).map_err(|error| content_failure(&below, &error))?;
                    check_all(tree, &child, &below, verified, bar)?;
                }
            }
        }
        _ => Ok(()),
    }
}
