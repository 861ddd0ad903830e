//! Bytes that are kept: many in one file, each after its length.
//!
//! ```text
//! length (4 bytes, little-endian), bytes; by length, then by bytes
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The directory with the corpora of all targets.
pub const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");

/// The entries of one file; none if there is no such file.
///
/// # Errors
/// The file system's; the file is cut off.
pub fn load(file: &Path) -> io::Result<Vec<Vec<u8>>> {
    let bytes = match std::fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let (mut rest, mut inputs) = (&bytes[..], Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let cut_off = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is cut off", file.display()));
        inputs.push(behind.get(..length).ok_or_else(cut_off)?.to_vec());
        rest = &behind[length..];
    }
    Ok(inputs)
}

/// Writes one file of entries that are worth keeping.
///
/// # Errors
/// The file system's.
pub fn save(file: &Path, inputs: impl IntoIterator<Item = Vec<u8>>) -> io::Result<()> {
    let inputs: BTreeSet<(usize, Vec<u8>)> = inputs.into_iter().map(|input| (input.len(), input)).collect();
    let mut bytes = Vec::new();
    for (length, input) in inputs {
        bytes.extend(u32::try_from(length).map_err(io::Error::other)?.to_le_bytes());
        bytes.extend(input);
    }
    std::fs::write(file, bytes)
}

/// The entries of a directory of files, by file name; none if there is no such directory.
///
/// # Errors
/// The file system's.
pub fn files(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: what is saved is loaded, in one order and each entry once, and a file that is cut off is noticed.
    #[test]
    fn saved_and_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("x.inputs");
        assert_eq!(load(&file).expect("none"), Vec::<Vec<u8>>::new());
        let inputs: [&[u8]; 5] = [b"bb", b"", b"a", b"ba", b"a"];
        save(&file, inputs.map(<[u8]>::to_vec)).expect("saved");
        assert_eq!(load(&file).expect("it is there"), [&b""[..], b"a", b"ba", b"bb"]);
        let bytes = std::fs::read(&file).expect("it is there");
        std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("cut");
        assert_eq!(load(&file).expect_err("it is cut off").kind(), io::ErrorKind::InvalidData);
    }
}
