//! A directory with the files of a release, from which nothing else can be had.
//!
//! A directory may be as hostile as a web server (a stick, a share, what somebody unpacked), and a server must not
//! serve what lies outside its release. So files are opened *beneath* the directory, by the kernel's own check
//! (`openat2`): no symbolic links, no way up, no other device nodes. Whatever is not a regular file is refused.

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A directory that was opened once. What it is called later does not matter.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens a directory.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(open(path, flags, Mode::empty())?))
    }

    /// A file, by a name of [`crate::layout`], and its length; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file beneath the directory.
    pub fn file(&self, name: &str) -> io::Result<Option<(File, u64)>> {
        // Not to wait for somebody to write into a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.0, name, flags, Mode::empty(), within) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::LOOP) => return Err(refused("there is a symbolic link in its place")),
            Err(Errno::XDEV) => return Err(refused("it leads out of the directory")),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok(Some((file, metadata.len()))),
            false => Err(refused("it is not a regular file")),
        }
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Only regular files beneath the directory can be had, whatever somebody put there, and none of it hangs.
    #[test]
    fn nothing_else_can_be_had() {
        let outside = tempfile::tempdir().expect("a directory");
        std::fs::write(outside.path().join("secret"), "secret").expect("written");
        let inside = tempfile::tempdir().expect("a directory");
        let path = inside.path();
        std::fs::create_dir(path.join("packs")).expect("made");
        std::fs::write(path.join("packs/a"), "good").expect("written");
        symlink(outside.path().join("secret"), path.join("root")).expect("linked");
        symlink(outside.path(), path.join("keys")).expect("linked");
        symlink("packs/a", path.join("revoked")).expect("linked");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("made");
        let folder = Folder::open(path).expect("opened");
        let (mut file, length) = folder.file("packs/a").expect("opened").expect("there");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!((text.as_str(), length), ("good", 4));
        assert!(folder.file("packs/b").expect("no error").is_none());
        assert!(folder.file("packs/a/b").expect("no error").is_none());
        let up = format!("../{}/secret", outside.path().file_name().expect("a name").to_string_lossy());
        for name in ["root", "keys/secret", "revoked", "packs", "pipe", "/etc/passwd", &up] {
            assert!(folder.file(name).is_err(), "{name}");
        }
    }
}
