//! Checkpoints (c2sp.org/tlog-checkpoint): origin, size and root of a log, as the text of a note.

use crate::note::{KeyKind, Note, NoteError, VerifierKey};
use base64ct::{Base64, Encoding};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_protocol::structure::LogHead;
use std::fmt;
use std::str::FromStr;

/// Prefix of the origin of a file system's log; the file system's name follows.
const ORIGIN: &str = "holdfast.example/fs/";
/// Most lines of other kinds.
const EXTENSIONS_MAX: usize = 16;

/// The head of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The origin: the name of the log.
    pub origin: String,
    /// Number of leaves, and the root of RFC 6962 over them.
    pub head: LogHead,
    /// Lines of other logs that mean nothing here.
    pub extensions: Vec<String>,
}

/// The origin of the log of a file system.
pub fn origin_of(file_system: &Digest) -> String {
    format!("{ORIGIN}{file_system}")
}

/// The key by which notes of a file system's log are verified, if `server` is one of its servers' keys.
pub fn log_key(file_system: &Digest, server: holdfast_crypto::PublicKey) -> VerifierKey {
    VerifierKey::new(&origin_of(file_system), KeyKind::Note, server).expect("hexadecimal digits make a name")
}

impl Checkpoint {
    /// The head of a file system's log.
    pub fn of(file_system: &Digest, head: LogHead) -> Checkpoint {
        Checkpoint { origin: origin_of(file_system), head, extensions: Vec::new() }
    }

    /// The note of a file system's checkpoint, signed by its server.
    pub fn signed(file_system: &Digest, head: LogHead, key: &SigningKey) -> Note {
        let text = Checkpoint::of(file_system, head).to_string();
        let signature = key.sign_text(&text);
        Note { signatures: vec![log_key(file_system, key.public()).line(&signature.0)], text }
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checkpoint { origin, head, extensions } = self;
        write!(f, "{origin}\n{}\n{}\n", head.size, Base64::encode_string(&head.root.0))?;
        extensions.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl FromStr for Checkpoint {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Checkpoint, NoteError> {
        let wrong = NoteError::Malformed;
        let text = text.strip_suffix('\n').ok_or(wrong("a checkpoint ends with a newline"))?;
        let mut lines = text.split('\n');
        let origin = lines.next().filter(|line| !line.is_empty()).ok_or(wrong("it names no log"))?;
        let size = lines.next().and_then(parse_size).ok_or(wrong("its size is not a number"))?;
        let root = lines.next().and_then(parse_hash).ok_or(wrong("its root is not a digest"))?;
        let extensions: Vec<String> = lines.map(str::to_owned).collect();
        if extensions.len() > EXTENSIONS_MAX || extensions.iter().any(String::is_empty) {
            return Err(wrong("what follows the root is not a checkpoint's"));
        }
        Ok(Checkpoint { origin: origin.to_owned(), head: LogHead { size, root }, extensions })
    }
}

/// A size: decimal digits without leading zeroes, below 2^63.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let leads = text.len() > 1 && text.starts_with('0');
    if !plain || leads { None } else { text.parse::<u64>().ok().filter(|size| size >> 63 == 0) }
}

/// A digest in Base64.
pub(crate) fn parse_hash(text: &str) -> Option<Digest> {
    let bytes = Base64::decode_vec(text).ok()?;
    Some(Digest(bytes.try_into().ok()?))
}

pub(crate) fn show_hash(digest: &Digest) -> String {
    Base64::encode_string(&digest.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints are read as they are written, sizes and roots strictly; extension lines are retained.
    #[test]
    fn round_trip_and_refusals() {
        let head = LogHead { size: 20_852_163, root: Digest([9; 32]) };
        let mut checkpoint = Checkpoint::of(&Digest([1; 32]), head);
        checkpoint.extensions.push("Timestamp: 7".to_owned());
        let text = checkpoint.to_string();
        assert_eq!(text.parse::<Checkpoint>().unwrap(), checkpoint);
        for wrong in [
            text.replace("20852163", "020852163"),
            text.replace("20852163", "+20852163"),
            text.replace("20852163", "20852163 "),
            text.replace("20852163", "18446744073709551615"),
            text.replace("20852163", ""),
            text.replace("CQkJCQ", "CQkJ"),
            text.replace("Timestamp: 7\n", "\n"),
            text.trim_end().to_owned(),
            text[text.find('\n').unwrap()..].to_owned(),
            String::new(),
        ] {
            assert!(wrong.parse::<Checkpoint>().is_err(), "{wrong:?}");
        }
    }

    /// A server's note is verified by its log key, and by no other file system's.
    #[test]
    fn signed_by_the_server() {
        let key = SigningKey::from_seed(&[3; 32]);
        let (ours, theirs) = (Digest([1; 32]), Digest([2; 32]));
        let note = Checkpoint::signed(&ours, LogHead { size: 1, root: ours }, &key);
        assert!(note.is_signed_by(&log_key(&ours, key.public())));
        assert!(!note.is_signed_by(&log_key(&theirs, key.public())));
    }
}
