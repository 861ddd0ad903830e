//! A directory of this machine, such as a mounted file system. Its content is served as it is and is not
//! signed.
//!
//! Everything is opened beneath the directory by the kernel's own check (`openat2`), so no name and no
//! symbolic link leads out of it, even while somebody changes it. Only regular files are opened for reading;
//! pipes and devices are left alone.

use super::view::{
    Banner, BannerStyle, Change, Content, Kind, Listing, OpenFile, PathTarget, Row, TreeSummary, View,
    ViewError,
};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most names of a directory that are read.
const NAMES_MAX: u64 = 1_000_000;

/// A view of a local directory.
pub struct FolderView {
    path: PathBuf,
    folder: OwnedFd,
}

impl FolderView {
    /// Opens a directory.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<FolderView> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(FolderView { path: path.to_owned(), folder })
    }

    fn beneath(&self, path: &[Vec<u8>], flags: OFlags) -> Result<OwnedFd, Errno> {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let joined = path.join(&b'/');
        let name = if joined.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(&joined) };
        openat2(&self.folder, name, flags | OFlags::CLOEXEC, Mode::empty(), within)
    }
}

fn view_error(error: impl ToString) -> ViewError {
    ViewError { why: error.to_string(), is_false: false }
}

fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        FileType::Fifo => Kind::Other("fifo"),
        FileType::Socket => Kind::Other("socket"),
        _ => Kind::Other("device"),
    }
}

struct FolderFile(File);

impl Content for FolderFile {
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ViewError> {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match self.0.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(view_error(error)),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

impl View for FolderView {
    fn about(&self) -> TreeSummary {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        let signed = "Nobody has signed what is shown here: it is as good as the machine that shows it, and the way to it.";
        TreeSummary {
            title: super::address::display_name(name.as_bytes()),
            banners: vec![Banner { mood: BannerStyle::Plain, head: signed.to_owned(), lines: Vec::new() }],
            facts: Vec::new(),
            usable: true,
            is_release: false,
        }
    }

    fn look(&self, path: &[Vec<u8>]) -> Result<PathTarget, ViewError> {
        let found = match self.beneath(path, OFlags::PATH) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(PathTarget::Nothing { proven: false }),
            Err(Errno::XDEV) => return Ok(PathTarget::Outside),
            Err(error) => return Err(view_error(error)),
        };
        match kind_of(&fstat(&found).map_err(view_error)?) {
            Kind::Directory => return Ok(PathTarget::Directory),
            Kind::File => {}
            Kind::Link => return Ok(PathTarget::Other("link")),
            Kind::Other(what) => return Ok(PathTarget::Other(what)),
        }
        // With NONBLOCK, opening does not wait if a pipe has taken the file's place.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.beneath(path, flags).map_err(view_error)?;
        let stat = fstat(&file).map_err(view_error)?;
        if kind_of(&stat) != Kind::File {
            return Err(view_error("it is no longer a file"));
        }
        Ok(PathTarget::File(OpenFile {
            size: stat.st_size as u64,
            modified_s: stat.st_mtime,
            tag: format!("{:x}-{:x}-{:x}-{:x}", stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec),
            content: Box::new(FolderFile(file.into())),
        }))
    }

    fn list(&self, path: &[Vec<u8>], after: Option<&[u8]>, limit: usize) -> Result<Listing, ViewError> {
        let folder = self.beneath(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(view_error)?;
        // A heap with the first names after `after`, the last of them on top; all others are only counted.
        let mut first: BinaryHeap<Vec<u8>> = BinaryHeap::new();
        let (mut total, mut more) = (0, false);
        for entry in Dir::read_from(&folder).map_err(view_error)? {
            let entry = entry.map_err(view_error)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            total += 1;
            if total > NAMES_MAX {
                return Err(view_error(format!("it has more than {NAMES_MAX} names")));
            }
            if after.is_some_and(|after| name <= after) {
                continue;
            }
            first.push(name.to_vec());
            if first.len() > limit {
                first.pop();
                more = true;
            }
        }
        let rows = first.into_sorted_vec().into_iter().filter_map(|name| row(&folder, name)).collect();
        Ok(Listing { rows, total: Some(total), more, opaque: false })
    }

    fn changes(&self, _limit: usize) -> Result<Vec<Change>, ViewError> {
        Err(view_error("this is no release"))
    }
}

/// An entry of a listing; `None` if the file no longer exists.
fn row(folder: &OwnedFd, name: Vec<u8>) -> Option<Row> {
    let stat = statat(folder, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let kind = kind_of(&stat);
    let target = match kind {
        Kind::Link => {
            readlinkat(folder, OsStr::from_bytes(&name), Vec::new()).ok().map(|target| target.into_bytes())
        }
        _ => None,
    };
    Some(Row { name, kind, size: stat.st_size as u64, modified_s: stat.st_mtime, target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(view: &FolderView, after: Option<&[u8]>, limit: usize) -> (Vec<String>, bool) {
        let listing = view.list(&[], after, limit).expect("listed");
        (
            listing.rows.iter().map(|row| super::super::address::display_name(&row.name)).collect(),
            listing.more,
        )
    }

    /// Proves: files outside of the directory are not served, whatever links exist, and pipes are not waited
    /// for.
    #[test]
    fn nothing_outside() {
        let outside = tempfile::tempdir().expect("a directory");
        std::fs::write(outside.path().join("secret"), "secret").expect("written");
        let folder = tempfile::tempdir().expect("a directory");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("inner")).expect("made");
        std::fs::write(at("inner/file"), "good").expect("written");
        symlink("inner/file", at("inside")).expect("linked");
        symlink(outside.path(), at("absolute")).expect("linked");
        symlink("../..", at("up")).expect("linked");
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        let view = FolderView::open(folder.path()).expect("opened");
        let path = |text: &str| text.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let look = |text: &str| view.look(&path(text));
        let Ok(PathTarget::File(file)) = look("inside") else {
            panic!("a link that stays inside is followed")
        };
        assert_eq!(file.content.read(1, 100), Ok(b"ood".to_vec()));
        assert!(matches!(look("inner"), Ok(PathTarget::Directory)));
        assert!(matches!(look("pipe"), Ok(PathTarget::Other("fifo"))));
        assert!(matches!(look("inner/gone"), Ok(PathTarget::Nothing { proven: false })));
        for name in ["absolute", "absolute/secret", "up", "up/etc"] {
            assert!(matches!(look(name), Ok(PathTarget::Outside)), "{name}");
            assert!(view.list(&path(name), None, 10).is_err(), "{name}");
        }
    }

    /// Proves: the pages of a directory have every name once, in order, whatever the order on disk.
    #[test]
    fn pages() {
        let folder = tempfile::tempdir().expect("a directory");
        for number in 0..25 {
            std::fs::write(folder.path().join(format!("{number:02}")), "").expect("written");
        }
        let view = FolderView::open(folder.path()).expect("opened");
        let (first, more) = names(&view, None, 10);
        assert!(more && first[0] == "00" && first[9] == "09");
        assert_eq!(names(&view, Some(b"09"), 10).0[0], "10");
        let (last, more) = names(&view, Some(b"19"), 10);
        assert!(!more && last == ["20", "21", "22", "23", "24"]);
        assert_eq!(view.list(&[], None, 1).expect("listed").total, Some(25));
    }
}
