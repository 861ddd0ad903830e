//! The directories of a client: its state (signer, control socket, log, evidence) and its cache.

use holdfast_crypto::{Digest, PublicKey};
use holdfast_failure::{Exit, Failure, Outcome};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directories that the user may choose.
#[derive(Clone, Debug, Default)]
pub struct Directories {
    /// The directory of the signer's state, log and evidence; `None`: `$XDG_STATE_HOME/holdfast`, or for root
    /// `/var/lib/holdfast/client`.
    pub state: Option<PathBuf>,
    /// The directory of cached blocks; `None`: `$XDG_CACHE_HOME/holdfast`, or for root `/var/cache/holdfast`.
    pub cache: Option<PathBuf>,
}

/// Directories in one argument, separated by `:`. In a name of the form `@HOST:PORT,ID` (see `holdfast
/// automount`), `:` is part of the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryList(Vec<PathBuf>);

impl From<OsString> for DirectoryList {
    fn from(text: OsString) -> DirectoryList {
        let mut paths = vec![Vec::new()];
        let mut in_name = false;
        let mut begins = true;
        for byte in text.into_vec() {
            in_name = match byte {
                b'/' | b',' => false,
                b'@' if begins => true,
                _ => in_name,
            };
            begins = byte == b'/' || byte == b':' && !in_name;
            match paths.last_mut() {
                Some(last) if byte != b':' || in_name => last.push(byte),
                _ => paths.push(Vec::new()),
            }
        }
        let paths = paths.into_iter().filter(|path| !path.is_empty());
        DirectoryList(paths.map(|path| OsString::from_vec(path).into()).collect())
    }
}

impl DirectoryList {
    /// The directories of all arguments.
    pub fn all(lists: &[DirectoryList]) -> Vec<PathBuf> {
        lists.iter().flat_map(|list| list.0.iter().cloned()).collect()
    }
}

impl Directories {
    /// The base of all state.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn state_base(&self) -> Outcome<PathBuf> {
        base(self.state.as_deref(), "XDG_STATE_HOME", ".local/state", "/var/lib/holdfast/client")
    }

    /// The state of one key in one file system.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn state_of(&self, file_system: &Digest, key: &PublicKey) -> Outcome<PathBuf> {
        Ok(self.state_base()?.join(file_system.to_string()).join(key.to_string()))
    }

    /// The directory that remembers which records and keys of releases were seen.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn releases_base(&self) -> Outcome<PathBuf> {
        Ok(self.state_base()?.join("releases"))
    }

    /// The base of all caches.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn cache_base(&self) -> Outcome<PathBuf> {
        base(self.cache.as_deref(), "XDG_CACHE_HOME", ".cache", "/var/cache/holdfast")
    }

    /// The cache of one file system. Blocks are verified on every use, so all keys of a user share it.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn cache_of(&self, file_system: &Digest) -> Outcome<PathBuf> {
        Ok(self.cache_base()?.join(file_system.to_string()))
    }

    /// State directories of all keys: `FSID/KEY` below the base.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn all_states(&self) -> Outcome<Vec<PathBuf>> {
        let mut found = Vec::new();
        let is_id =
            |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| Digest::from_hex(name).is_some());
        let below = |path: &Path| -> Vec<PathBuf> {
            let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
            entries.flatten().filter(|entry| is_id(&entry.file_name())).map(|entry| entry.path()).collect()
        };
        for file_system in below(&self.state_base()?) {
            found.extend(below(&file_system));
        }
        found.sort();
        Ok(found)
    }
}

/// The directory of running services: volumes that root attached, and the socket of the identification
/// helper.
pub const RUN_DIRECTORY: &str = "/run/holdfast";

/// Creates a directory that everybody can read, whatever the umask. An existing one is not changed, except
/// [`RUN_DIRECTORY`], which earlier versions created for root alone.
///
/// # Errors
/// The directory cannot be created.
pub fn make_shared(path: &Path) -> Outcome {
    let is_own = path == Path::new(RUN_DIRECTORY) && geteuid().is_root();
    if path.is_dir() && !is_own {
        return Ok(());
    }
    std::fs::create_dir_all(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|error| Failure::new(Exit::CannotCreate, format!("{}: {error}", path.display())))
}

/// Creates a directory that only its owner can access.
///
/// # Errors
/// The directory cannot be created, or belongs to another user.
pub fn make_private(path: &Path) -> Outcome {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", path.display())))?;
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", path.display())))?;
    if metadata.uid() != geteuid().as_raw() {
        let message = format!("{}: belongs to another user (uid {})", path.display(), metadata.uid());
        return Err(Failure::new(Exit::NotAllowed, message).hint("use --state and --cache to name your own"));
    }
    Ok(())
}

fn base(chosen: Option<&Path>, variable: &str, below_home: &str, for_root: &str) -> Outcome<PathBuf> {
    if let Some(path) = chosen {
        return std::path::absolute(path)
            .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())));
    }
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = named(variable) {
        return Ok(path.join("holdfast"));
    }
    if geteuid().is_root() {
        return Ok(PathBuf::from(for_root));
    }
    match named("HOME") {
        Some(home) => Ok(home.join(below_home).join("holdfast")),
        None => Err(Failure::new(Exit::NoInput, "no home directory is known ($HOME is not set)")
            .hint("use --state and --cache to say where to keep things")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the colon before a port in a name does not separate directories; all other colons do.
    #[test]
    fn lists_of_directories() {
        for (text, expected) in [
            ("/a", &["/a"][..]),
            ("/a:b:/c", &["/a", "b", "/c"]),
            ("/hf/@h:1!x,5e/y:/b", &["/hf/@h:1!x,5e/y", "/b"]),
            ("@h:1,5e:@[::1]:9,5e/z:a@b:c", &["@h:1,5e", "@[::1]:9,5e/z", "a@b", "c"]),
            ("::/a:", &["/a"]),
            ("", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(DirectoryList::all(&[OsString::from(text).into()]), expected, "{text}");
        }
    }
}
