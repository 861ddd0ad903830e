//! Signed lists of the executables of a package, so that rules stay valid over upgrades: a rule names the
//! signer and the package, and each version brings its list. Its signature is checked, so it may be stored
//! anywhere. But a signed list counts as long as it is found, so remove lists of versions that should open
//! nothing any more.
//!
//! Stored form: `HFPKG`, one byte of version (1), the signer's public key, its signature of the body
//! ([`Domain::PackageManifest`]), then the body in borsh.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, Domain, PublicKey, Signature, SigningKey, decode, encode};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// First bytes of a manifest.
const MAGIC: &[u8; 5] = b"HFPKG";
/// The version written and read.
const VERSION: u8 = 1;
/// Most executables of one package.
pub const PROGRAMS_MAX: usize = 4096;
/// Most bytes of a manifest.
const BYTES_MAX: u64 = 1 << 20;
/// Most manifests read of one directory.
const FILES_MAX: usize = 1024;
/// The extension of manifests' file names.
pub const SUFFIX: &str = "hfpkg";

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A newer version wrote it.
    #[error("it is of version {0}, which this holdfast does not know")]
    Newer(u8),
    /// The bytes are not a manifest.
    #[error("it is no manifest: {0}")]
    Malformed(String),
    /// The signature was not made with the key.
    #[error("its signature is not that of the key in it")]
    Forged,
}

/// The executables of one version of a package.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Manifest {
    /// The name of the package.
    pub name: String,
    /// Digests of its executables, and where they are, for people.
    pub programs: BTreeMap<Digest, String>,
}

impl Manifest {
    /// The stored form, signed.
    pub fn sign(&self, key: &SigningKey) -> Vec<u8> {
        let body = encode(self);
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&key.public().0);
        bytes.extend_from_slice(&key.sign(Domain::PackageManifest, &body).0);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads and verifies the stored form.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(bytes: &[u8]) -> Result<(PublicKey, Manifest), ManifestError> {
        let cut = || ManifestError::Malformed("cut short".to_owned());
        let rest = bytes
            .strip_prefix(MAGIC.as_slice())
            .ok_or_else(|| ManifestError::Malformed("another kind of file".into()))?;
        let (version, rest) = rest.split_first().ok_or_else(cut)?;
        if *version != VERSION {
            return Err(ManifestError::Newer(*version));
        }
        let (key, rest) = rest.split_first_chunk::<32>().ok_or_else(cut)?;
        let (signature, body) = rest.split_first_chunk::<64>().ok_or_else(cut)?;
        let key = PublicKey(*key);
        if !key.verify(Domain::PackageManifest, body, &Signature(*signature)) {
            return Err(ManifestError::Forged);
        }
        let manifest: Manifest = decode(body).map_err(|error| ManifestError::Malformed(error.why))?;
        if manifest.programs.len() > PROGRAMS_MAX {
            return Err(ManifestError::Malformed("too many programs".into()));
        }
        Ok((key, manifest))
    }
}

/// Directories with manifests: the machine's, then the user's own.
pub fn directories() -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::from("/etc/holdfast/programs.d")];
    let own = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    directories.extend(own.filter(|path| path.is_absolute()).map(|path| path.join("holdfast/programs")));
    directories
}

/// Whether a manifest in one of these directories, signed by `key` for the package `name`, lists an
/// executable. Files that are no manifests are skipped.
pub fn lists(directories: &[PathBuf], key: &PublicKey, name: &str, program: &Digest) -> bool {
    directories.iter().any(|directory| {
        let Ok(found) = std::fs::read_dir(directory) else { return false };
        let files = found.flatten().map(|entry| entry.path());
        let mut manifests =
            files.filter(|path| path.extension().is_some_and(|end| end == SUFFIX)).take(FILES_MAX);
        manifests.any(|path| {
            read_file(&path).is_some_and(|(signer, manifest)| {
                signer == *key && manifest.name == name && manifest.programs.contains_key(program)
            })
        })
    })
}

fn read_file(path: &Path) -> Option<(PublicKey, Manifest)> {
    let bytes = crate::hashes::read_small(path, BYTES_MAX).ok()?;
    let read = Manifest::read(&bytes);
    if let Err(error) = &read {
        tracing::warn!(path = %path.display(), %error, "a manifest of a package is passed over");
    }
    read.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let programs = BTreeMap::from([(Digest([5; 32]), "/usr/bin/ssh".to_owned())]);
        Manifest { name: "openssh".to_owned(), programs }
    }

    /// The stored form of version 1 never changes (Ed25519 signatures are deterministic).
    #[test]
    fn golden() {
        let bytes = manifest().sign(&SigningKey::from_seed(&[1; 32]));
        let digest = holdfast_crypto::DigestKey::WELL_KNOWN.digest(Domain::Executable, &bytes);
        assert_eq!(&bytes[..6], b"HFPKG\x01");
        assert_eq!(bytes.len(), 6 + 32 + 64 + 4 + 7 + 4 + 32 + 4 + 12);
        assert_eq!(digest.to_string(), "16168732622b5cb45829dc2690e8bc0502520e057276715461c0b7fac7d97690");
    }

    /// A manifest is refused whichever byte is changed, and a list of another signer counts only for that
    /// signer.
    #[test]
    fn altered_manifests_are_refused() {
        let key = SigningKey::from_seed(&[1; 32]);
        let bytes = manifest().sign(&key);
        assert_eq!(Manifest::read(&bytes), Ok((key.public(), manifest())));
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Manifest::read(&altered).is_err(), "{at}");
            assert!(Manifest::read(&bytes[..at]).is_err(), "{at}");
        }
    }

    /// Lists count by signer, name and program, wherever they are stored; other files in the directories do
    /// no harm.
    #[test]
    fn lists_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = SigningKey::from_seed(&[1; 32]);
        std::fs::write(folder.path().join("junk.hfpkg"), "junk").expect("written");
        std::fs::write(folder.path().join("a.hfpkg"), manifest().sign(&key)).expect("written");
        let directories = [folder.path().join("missing"), folder.path().to_owned()];
        assert!(lists(&directories, &key.public(), "openssh", &Digest([5; 32])));
        assert!(!lists(&directories, &key.public(), "openssh", &Digest([6; 32])));
        assert!(!lists(&directories, &key.public(), "other", &Digest([5; 32])));
        assert!(!lists(&directories, &SigningKey::from_seed(&[2; 32]).public(), "openssh", &Digest([5; 32])));
    }
}
