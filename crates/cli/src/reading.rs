//! `holdfast release ls`, `cat`, `get`, `verify`, which read releases without a mount.

pub mod args;
mod get;
pub mod source;

pub use get::get;

use crate::output::{Format, bytes_bar};
use args::{Cat, Ls, Verify};
use holdfast_content::{Content, ContentError, Inode, InodeKind};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::moment::{moment, parse_moment};
use holdfast_release::tree::{Node, PathLookup, Tree};
use serde::Serialize;
use source::{BadMirrors, PAGE, READ_BYTES, content_failure, find, inside, look_ahead, release_failure};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

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
        modified: holdfast_daemon::time::moment(inode.modified_ns),
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

/// Reads a file piece by piece; each is verified before it is passed on.
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
    /// Whether the path exists. If not, that is proven.
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
