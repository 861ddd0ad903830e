//! Key files of volumes: one line with 32 secret bytes, which only their owner may read.

use crate::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_volume::VolumeKey;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The beginning of such a line.
const KIND: &str = "holdfast-volume-key-1 ";

/// The operator's secret.
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Wraps a secret that did not come from a file.
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key of one volume.
    pub fn of(&self, volume: &[u8; 16]) -> VolumeKey {
        VolumeKey::new(&self.0, volume)
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// The file is missing, readable by others, or not a key file.
    pub fn read(path: &Path) -> Outcome<Secret> {
        let text = keys::read_secret(path)?;
        let no_key = || {
            Failure::new(Exit::NoInput, format!("{}: this is no key of a volume", path.display()))
                .hint("`holdfast volume protect` makes one; keys of `holdfast keygen` are for file systems")
        };
        let digits = text.trim_end().strip_prefix(KIND).ok_or_else(no_key)?;
        let mut bytes = Zeroizing::new([0; 32]);
        decode_hex(digits, &mut *bytes).ok_or_else(no_key)?;
        Ok(Secret(bytes))
    }

    /// Reads a key file, or makes one.
    ///
    /// # Errors
    /// As for [`Secret::read`]; also if the file cannot be created.
    pub fn read_or_make(path: &Path) -> Outcome<(Secret, Option<NewKey>)> {
        if path.exists() {
            return Ok((Secret::read(path)?, None));
        }
        let mut bytes = Zeroizing::new([0; 32]);
        keys::random(&mut *bytes)?;
        let line = Zeroizing::new(format!("{KIND}{}\n", *Zeroizing::new(hex(&*bytes))));
        keys::create(path, 0o600, line.as_bytes())?;
        Ok((Secret(bytes), Some(NewKey(path.to_owned()))))
    }
}

/// A new key file. It is removed again when dropped, unless [`NewKey::keep`] is called, which must be done as
/// soon as anything depends on the key. So a command that fails leaves no key behind whose purpose nobody
/// remembers.
pub struct NewKey(PathBuf);

impl NewKey {
    /// Keeps the file, because something depends on the key now.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for NewKey {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Fills `bytes` from exactly as many hexadecimal digits; `None` if the text is anything else.
pub fn decode_hex(text: &str, bytes: &mut [u8]) -> Option<()> {
    if text.len() != bytes.len() * 2 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Proves: a key that was made can be read back, two keys differ, and other files are not accepted as
    /// keys.
    #[test]
    fn key_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let (_, new) = Secret::read_or_make(&path).expect("made");
        drop(new);
        assert!(!path.exists(), "nothing is under it");
        let (made, new) = Secret::read_or_make(&path).expect("made");
        new.expect("it is new").keep();
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        let (read, new) = Secret::read_or_make(&path).expect("read");
        assert!(new.is_none() && read.bytes() == made.bytes());
        let line = std::fs::read_to_string(&path).expect("read");
        for wrong in [&line[..40], "", "holdfast-volume-key-1 \u{e9}", &line.replace("-1", "-2")] {
            std::fs::write(&path, wrong).expect("written");
            assert_eq!(Secret::read(&path).err().expect("refused").code, Exit::NoInput, "{wrong}");
        }
        std::fs::write(&path, &line).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(Secret::read(&path).err().expect("refused").code, Exit::NotAllowed);
    }
}
