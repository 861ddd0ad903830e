//! `holdfast release get`: fetches a tree of a release. It is whole under its name, or not there.
//!
//! The tree is built under a temporary name beside its target, and renamed at the end. What an earlier run
//! has left there is examined and reused, whatever release it was from: a file stays if its chunks have the
//! expected digests.

use super::args::Get;
use super::source::{BadMirrors, PAGE, READ_BYTES, content_failure, find, inside, look_ahead};
use crate::history::restore::remove;
use crate::output::{Format, progress};
use holdfast_client::files::{SeekTo, seek_in};
use holdfast_content::{Block, BlockKind, Content, ContentError, INLINE_BYTES_MAX, Inode, InodeKind};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::tree::{Node, Tree};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// `holdfast release get`
pub fn get(arguments: &Get, directories: &Directories, format: Format) -> Outcome {
    let release = arguments.source.open(directories)?;
    let _bad = BadMirrors(&release);
    let tree = &release.current().tree;
    let path = inside(&arguments.path);
    look_ahead(&release, &[path]);
    let node = find(tree, path, true)?;
    let partial = Partial::claim(&arguments.to)?;
    let bar = progress("fetching");
    let mut taken =
        TreeCopy { tree, bar: &bar, links: Default::default(), count: 0, bytes: 0, left_out: Vec::new() };
    let within = match node.inode.kind {
        InodeKind::Directory => partial.path.clone(),
        _ => partial.path.join(ONE),
    };
    let made = taken.take(&node, path, &within).and_then(|()| partial.finish(&within, &arguments.to));
    bar.finish_and_clear();
    made.map_err(|mut failure| {
        failure.message += &format!(
            "\n  {} was not made; what was fetched so far is in {}, and the same command goes on with it",
            arguments.to.display(),
            partial.path.display()
        );
        failure
    })?;
    let TreeCopy { count, bytes, left_out, .. } = taken;
    let sequence = release.current().accepted.record.sequence;
    let report = serde_json::json!({
        "release": release.id().to_string(), "sequence": sequence, "names": count, "bytes": bytes,
        "left_out": left_out,
    });
    format.print(&report, |_| {
        let mut text = format!(
            "{count} names and {bytes} bytes of release {sequence}, all verified, are in {}.",
            arguments.to.display()
        );
        for name in &left_out {
            text += &format!("\nLeft out, as it is a device node: {name}");
        }
        text
    })
}

fn hidden(name: &OsStr) -> OsString {
    OsString::from_vec([b".", name.as_bytes(), b".partial"].concat())
}

/// The name, within the temporary directory, of a file or link that is fetched by itself.
const ONE: &str = "it";

/// The temporary directory of a tree that is not whole yet. It is locked while this value exists.
struct Partial {
    path: PathBuf,
    locked: File,
}

impl Partial {
    fn claim(to: &Path) -> Outcome<Partial> {
        let cannot = |message: String| Failure::new(Exit::CannotCreate, message);
        let there_already = || {
            let message = format!("{}: it is there already", to.display());
            cannot(message).hint("name something that is not there yet")
        };
        let name = to.file_name().ok_or_else(there_already)?;
        let path = to.with_file_name(hidden(name));
        let failed = |error: io::Error| cannot(format!("{}: {error}", path.display()));
        loop {
            if to.symlink_metadata().is_ok() {
                return Err(there_already());
            }
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ => {}
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let locked: File = match rustix::fs::open(&path, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened.map_err(|error| failed(error.into()))?.into(),
            };
            match rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    return Err(cannot(format!(
                        "{}: another holdfast release get is making it",
                        to.display()
                    )));
                }
                taken => taken.map_err(|error| failed(error.into()))?,
            }
            let there = locked.metadata().map_err(failed)?;
            if there.uid() != rustix::process::geteuid().as_raw() {
                return Err(cannot(format!("{}: it is somebody else's", path.display())));
            }
            // Another process may have finished and removed the directory meanwhile.
            if path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == (there.dev(), there.ino())) {
                return Ok(Partial { path, locked });
            }
        }
    }

    /// Gives the finished tree its name.
    fn finish(&self, within: &Path, to: &Path) -> Outcome {
        let failed = |error: Errno| Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display()));
        // Without this, a power failure could keep the name and lose the files' content.
        rustix::fs::syncfs(&self.locked).map_err(failed)?;
        if within == self.path || within.symlink_metadata().is_ok() {
            rename(within, to).map_err(failed)?;
        }
        if within != self.path {
            // What else is in it comes from an earlier run, and may stay.
            let _ = remove(&self.path);
        }
        Ok(())
    }
}

fn rename(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems support only the plain rename.
        Err(Errno::INVAL) if to.symlink_metadata().is_err() => rustix::fs::rename(from, to),
        renamed => renamed,
    }
}

/// A tree that is being copied out.
struct TreeCopy<'a> {
    tree: &'a Tree,
    bar: &'a indicatif::ProgressBar,
    links: HashMap<u64, PathBuf>,
    count: u64,
    bytes: u64,
    left_out: Vec<String>,
}

impl TreeCopy<'_> {
    fn take(&mut self, node: &Node, path: &[u8], to: &Path) -> Outcome {
        let failed =
            |error: &io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display()));
        let inode = &node.inode;
        self.count += 1;
        self.bar.set_message(format!("fetching: {} names, {} bytes", self.count, self.bytes));
        let first = node.link.and_then(|link| self.links.get(&link));
        if first.is_some() || !matches!(inode.kind, InodeKind::Directory | InodeKind::File) {
            remove(to).map_err(|error| failed(&error))?;
        }
        if let Some(first) = first {
            return fs::hard_link(first, to).map_err(|error| failed(&error));
        }
        match inode.kind {
            InodeKind::Directory => return self.directory(node, path, to),
            InodeKind::File => self.file(node, path, to)?,
            InodeKind::Symlink => {
                let Content::Target(target) = &inode.content else { return Ok(()) };
                let target = OsStr::from_bytes(target);
                symlink(target, to).map_err(|error| failed(&error))?;
            }
            // Device nodes of an untrusted release would give access to this machine's devices.
            InodeKind::CharDevice | InodeKind::BlockDevice => {
                self.left_out.push(String::from_utf8_lossy(path).into_owned());
                return Ok(());
            }
            InodeKind::Fifo | InodeKind::Socket => {
                let kind = match inode.kind {
                    InodeKind::Socket => rustix::fs::FileType::Socket,
                    _ => rustix::fs::FileType::Fifo,
                };
                let mode = Mode::from_raw_mode(inode.mode & 0o1777);
                rustix::fs::mknodat(CWD, to, kind, mode, 0).map_err(|error| failed(&error.into()))?;
            }
        }
        if let Some(link) = node.link {
            self.links.insert(link, to.to_owned());
        }
        set_time(inode, to).map_err(|error| failed(&error))
    }

    fn directory(&mut self, node: &Node, path: &[u8], to: &Path) -> Outcome {
        let failed =
            |error: &io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display()));
        if !to.symlink_metadata().is_ok_and(|there| there.is_dir()) {
            remove(to).and_then(|()| fs::create_dir(to)).map_err(|error| failed(&error))?;
        }
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(to, private).map_err(|error| failed(&error))?;
        let mut strangers = names(to).map_err(|error| failed(&error))?;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.tree.entries(node, after.as_deref(), PAGE);
            let page = page.map_err(|error| content_failure(path, &error))?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, entry) in page {
                strangers.remove(&name);
                let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
                let child = self.tree.node(entry).map_err(|error| content_failure(&below, &error))?;
                self.take(&child, &below, &to.join(OsString::from_vec(name)))?;
            }
        }
        // Names that an earlier run has left from another release.
        for name in strangers {
            remove(&to.join(OsString::from_vec(name))).map_err(|error| failed(&error))?;
        }
        set_attributes(&node.inode, to).map_err(|error| failed(&error))?;
        set_mode(&node.inode, to).map_err(|error| failed(&error))?;
        set_time(&node.inode, to).map_err(|error| failed(&error))
    }

    fn file(&mut self, node: &Node, path: &[u8], to: &Path) -> Outcome {
        let failed =
            |error: &io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display()));
        let there = rustix::fs::open(to, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty());
        let is_whole = match there {
            Ok(there) => self.is_whole(&there.into(), node).map_err(|error| content_failure(path, &error))?,
            Err(_) => false,
        };
        if !is_whole {
            remove(to).map_err(|error| failed(&error))?;
            let file = File::create_new(to).map_err(|error| failed(&error))?;
            let size = node.inode.size;
            let next = |at, to| {
                let found = seek_in(&**self.tree.source(), &node.inode, at..size, to);
                found.map_err(|error| content_failure(path, &error))
            };
            let mut at = 0;
            while let Some(data) = next(at, SeekTo::Data)? {
                let end = next(data, SeekTo::Hole)?.unwrap_or(size);
                at = data;
                while at < end {
                    let bytes = self.tree.read(node, at, READ_BYTES.min((end - at) as usize));
                    let bytes = bytes.map_err(|error| content_failure(path, &error))?;
                    file.write_all_at(&bytes, at).map_err(|error| failed(&error))?;
                    at += bytes.len() as u64;
                }
            }
            file.set_len(size).map_err(|error| failed(&error))?;
        }
        self.bytes += node.inode.size;
        set_attributes(&node.inode, to).map_err(|error| failed(&error))?;
        set_mode(&node.inode, to).map_err(|error| failed(&error))
    }

    /// Whether a file that an earlier run has left has the right content, checked without fetching the
    /// content. If extents are only parts of chunks, that cannot be determined.
    fn is_whole(&self, file: &File, node: &Node) -> Result<bool, ContentError> {
        let inode = &node.inode;
        let Ok(there) = file.metadata() else { return Ok(false) };
        // Hard links of one file in an older release may be separate files now.
        let is_alone = node.link.is_some() || there.nlink() == 1;
        if !there.is_file() || there.len() != inode.size || !is_alone {
            return Ok(false);
        }
        let read = |at: u64, length: u64| {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
        };
        let is_hole = |from: u64, to: u64| {
            (from..to).step_by(READ_BYTES).all(|at| {
                let bytes = read(at, (to - at).min(READ_BYTES as u64));
                bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
            })
        };
        let Content::Extents(map) = &inode.content else {
            let inline = self.tree.read(node, 0, INLINE_BYTES_MAX)?;
            let end = inline.len() as u64;
            return Ok(read(0, end).is_some_and(|bytes| bytes == inline) && is_hole(end, inode.size));
        };
        let key = self.tree.source().digest_key();
        let (mut end, mut is_same) = (0, true);
        map.visit(&**self.tree.source(), 0..inode.size, &mut |at, extent| {
            let length = extent.length.into();
            let chunk = read(at, length).map(|bytes| Block::new(&key, BlockKind::Chunk, Vec::new(), bytes));
            is_same = is_hole(end, at) && chunk.is_some_and(|chunk| chunk.reference() == extent.reference);
            end = at + length;
            Ok(is_same)
        })?;
        Ok(is_same && is_hole(end, inode.size))
    }
}

fn names(directory: &Path) -> io::Result<HashSet<Vec<u8>>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_vec())).collect()
}

fn set_mode(inode: &Inode, path: &Path) -> io::Result<()> {
    // A set-user-ID file of an untrusted release would belong to the user who fetches it.
    fs::set_permissions(path, fs::Permissions::from_mode(inode.mode & 0o1777))
}

fn set_attributes(inode: &Inode, path: &Path) -> io::Result<()> {
    let mut known = vec![0; 64 << 10];
    // The attributes that the file has: those of an earlier run may be from another release.
    let length = rustix::fs::listxattr(path, &mut known[..]).unwrap_or(0);
    let known = known[..length].split(|byte| *byte == 0);
    for name in known.filter(|name| name.starts_with(b"user.") && !inode.xattrs.contains_key(*name)) {
        rustix::fs::removexattr(path, name)?;
    }
    for (name, value) in inode.xattrs.iter().filter(|(name, _)| name.starts_with(b"user.")) {
        let name = OsStr::from_bytes(name);
        match rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()) {
            // Some file systems do not support attributes.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn set_time(inode: &Inode, path: &Path) -> io::Result<()> {
    let time = rustix::fs::Timespec {
        tv_sec: inode.modified_ns.div_euclid(1_000_000_000),
        tv_nsec: inode.modified_ns.rem_euclid(1_000_000_000),
    };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(CWD, path, &times, flags).map_err(Into::into)
}
