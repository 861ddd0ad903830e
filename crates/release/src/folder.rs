//! A directory with the files of a release. Nothing outside of the directory can be opened through it.
//!
//! A directory may be as hostile as a web server (a USB stick, a share, an unpacked archive), and a server
//! must not serve what is outside its release. So files are opened *beneath* the directory, one component of
//! their names after the other, without symbolic links or `..`. Everything that is not a regular file is
//! refused. (`openat2` is not used: systemd denies it to every service with `RestrictSUIDSGID=`, which
//! `DynamicUser=` implies.)

use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, openat, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A directory that stays open. Renaming it has no effect.
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

    /// A file, by a name of [`crate::layout`], and its length; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file beneath the directory.
    pub fn file(&self, name: &str) -> io::Result<Option<(File, u64)>> {
        // With NONBLOCK, opening a pipe does not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (folders, last) = name.rsplit_once('/').map_or((None, name), |(some, last)| (Some(some), last));
        let mut within = None;
        for part in folders.into_iter().flat_map(|folders| folders.split('/')) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match step(within.as_ref().unwrap_or(&self.0), part, flags)? {
                Some(folder) => within = Some(folder),
                None => return Ok(None),
            }
        }
        let Some(file) = step(within.as_ref().unwrap_or(&self.0), last, flags)?.map(File::from) else {
            return Ok(None);
        };
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok(Some((file, metadata.len()))),
            false => Err(refused("it is not a regular file")),
        }
    }
}

/// Opens one component of a name; `None` if it does not exist.
fn step(within: &OwnedFd, part: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    if matches!(part, "" | "." | "..") {
        return Err(refused("it leads out of the directory"));
    }
    let is_link = || {
        statat(within, part, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    };
    match openat(within, part, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::LOOP | Errno::NOTDIR) if is_link() => {
            Err(refused("there is a symbolic link in its place"))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
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

    /// Proves: only regular files beneath the directory can be opened, whatever else is there, and nothing
    /// makes opening hang.
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
