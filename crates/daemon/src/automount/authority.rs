//! The directories that an automounter consults: directories of links that give names a meaning, and
//! directories of revocations. Both may be below the automounted directory itself, in releases or file
//! systems that are mounted for this.

use super::refusal::Refusal;
use crate::paths::Directories;
use crate::revoked::{self, NotUsable};
use holdfast_crypto::Digest;
use holdfast_fuse::automount::Trouble;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Directories of links and of revocations, as absolute paths.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// Directories in which names are looked up, in this order.
    pub certpath: Vec<PathBuf>,
    /// Directories in which revocations are looked up.
    pub revocations: Vec<PathBuf>,
    /// The directories in which found revocations are stored.
    pub directories: Directories,
}

impl Authorities {
    /// The name below `directory` that a path leads through, if any.
    pub fn name_in(&self, directory: &Path, path: &Path) -> Option<Vec<u8>> {
        match path.strip_prefix(directory).ok()?.components().next()? {
            Component::Normal(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        }
    }

    /// The directories in which revocations of what `name` leads to are looked up. If `name` itself leads to
    /// a directory of revocations, only directories outside of the automounter are consulted: otherwise two
    /// that contain each other's revocations would wait for each other.
    pub fn revocations_for(&self, directory: &Path, name: &[u8]) -> Vec<PathBuf> {
        let through = |path: &PathBuf| self.name_in(directory, path);
        let holds_some = self.revocations.iter().any(|path| through(path).as_deref() == Some(name));
        let wanted = |path: &&PathBuf| !holds_some || through(path).is_none();
        self.revocations.iter().filter(wanted).cloned().collect()
    }

    /// Checks that a writable file system with this id is not revoked. (For releases, that is checked by the
    /// code that reads the record.)
    ///
    /// # Errors
    /// It is revoked, or that cannot be determined.
    pub fn not_revoked(&self, id: &Digest, revocations: &[PathBuf]) -> Result<(), Refusal> {
        // A certificate that is invalid for a file system may be valid for a release with this id, whose
        // reader reports invalid ones.
        let told = |notice: &str| tracing::debug!(notice, "revocations");
        revoked::check(id, revocations, &self.directories, &told).map_err(|checked| match checked {
            NotUsable::Revoked(why) => Refusal::new(Trouble::Revoked, why),
            NotUsable::Unknown(why) => Refusal::new(Trouble::Failed, why),
        })
    }

    /// The target of a name in the first directory of links that has it. `reach` makes sure that a directory
    /// is mounted.
    ///
    /// # Errors
    /// No directory has the name; or a directory before the first that has it cannot be read. Later
    /// directories are not consulted in that case, because an attacker who blocks one could otherwise choose
    /// the name's meaning.
    pub fn link(
        &self,
        name: &[u8],
        reach: &dyn Fn(&Path) -> Result<(), Refusal>,
    ) -> Result<PathBuf, Refusal> {
        // Hidden names, which desktops and shells look for everywhere, are never looked up.
        if name.starts_with(b".") || name.len() > 255 {
            return Err(Refusal::new(Trouble::NoName, "such names are not looked for"));
        }
        for directory in &self.certpath {
            reach(directory)?;
            let path = directory.join(OsStr::from_bytes(name));
            match path.symlink_metadata() {
                Ok(_) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound && directory.is_dir() => {}
                Err(error) => {
                    let trouble = match rustix::io::Errno::from_io_error(&error) {
                        Some(rustix::io::Errno::KEYEXPIRED) => Trouble::Expired,
                        Some(rustix::io::Errno::KEYREVOKED) => Trouble::Revoked,
                        _ => Trouble::Failed,
                    };
                    return Err(Refusal::new(trouble, format!("{}: {error}", path.display())));
                }
            }
        }
        Err(Refusal::new(Trouble::NoName, "no directory of links has it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorities(certpath: Vec<PathBuf>, revocations: &[&str]) -> Authorities {
        let revocations = revocations.iter().map(PathBuf::from).collect();
        Authorities { certpath, revocations, directories: Directories::default() }
    }

    /// Proves: directories of revocations below the automounted one do not wait for themselves or each other.
    #[test]
    fn revocations_that_hold_revocations() {
        let all = authorities(Vec::new(), &["/local", "/hf/@a,1/x", "/hf/@b,2"]);
        let of = |name: &str| -> Vec<String> {
            let found = all.revocations_for(Path::new("/hf"), name.as_bytes());
            found.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(of("@c,3"), ["/local", "/hf/@a,1/x", "/hf/@b,2"]);
        assert_eq!(of("@a,1"), ["/local"]);
        assert_eq!(of("@b,2"), ["/local"]);
        assert_eq!(all.name_in(Path::new("/hf"), Path::new("/hfx/@a,1")), None);
        assert_eq!(all.name_in(Path::new("/hf"), Path::new("/hf")), None);
    }

    /// Proves: a name is taken from the first directory that has it. If a directory cannot be read, later
    /// ones are not consulted.
    #[test]
    fn names_are_looked_for_in_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for directory in [&one, &two] {
            std::fs::create_dir(directory).expect("made");
            std::os::unix::fs::symlink("/nowhere", directory.join("both")).expect("a link");
        }
        std::os::unix::fs::symlink("/nowhere", two.join("second")).expect("a link");
        let fine = |_: &Path| Ok(());
        let both = authorities(vec![one.clone(), two.clone()], &[]);
        assert_eq!(both.link(b"both", &fine), Ok(one.join("both")));
        assert_eq!(both.link(b"second", &fine), Ok(two.join("second")));
        let trouble = |found: Result<PathBuf, Refusal>| found.expect_err("nothing").trouble;
        assert_eq!(trouble(both.link(b"third", &fine)), Trouble::NoName);
        assert_eq!(trouble(both.link(b".git", &fine)), Trouble::NoName);
        let unreached = |path: &Path| match path == one {
            true => Err(Refusal::new(Trouble::Unreachable, "down")),
            false => Ok(()),
        };
        assert_eq!(trouble(both.link(b"second", &unreached)), Trouble::Unreachable);
        let missing = authorities(vec![folder.path().join("none"), two], &[]);
        assert_eq!(trouble(missing.link(b"second", &fine)), Trouble::Failed);
    }
}
