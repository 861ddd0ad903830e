//! Signed notes (c2sp.org/signed-note): text, an empty line, and signature lines by named keys.
//!
//! Invariants: a note has no control characters except newlines, and its text ends with one. A signature
//! counts only if name *and* id are those of a key that was given beforehand, so a colliding id is only a
//! failed signature. Unknown signatures are skipped and preserved.

use base64ct::{Base64, Encoding};
use holdfast_crypto::{PublicKey, Signature};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// Longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 16 << 10;
/// Most signatures of a note.
pub const SIGNATURES_MAX: usize = 32;
/// Longest name of a key, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Beginning of a signature line.
const DASH: &str = "\u{2014} ";

/// Why a text is not a note, or not a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoteError {
    /// The text is no signed note.
    #[error("not a signed note: {0}")]
    Malformed(&'static str),
    /// The text is no verifier key.
    #[error("'{0}' is not a verifier key, which reads NAME+HASH+BASE64: {1}")]
    Key(String, &'static str),
    /// A key's name breaks the rules.
    #[error("'{0}' cannot be the name of a key: it must be short, with neither spaces nor '+'")]
    Name(String),
}

/// The kind of signature that a key makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum KeyKind {
    /// Texts of notes: a log's key.
    Note = 1,
    /// Cosignatures with a time: a witness's key.
    Cosignature = 4,
}

/// A key that verifies signatures of notes. Its text is `NAME+HASH+BASE64`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerifierKey {
    name: String,
    kind: KeyKind,
    key: PublicKey,
}

impl VerifierKey {
    /// The verifier key of this name.
    ///
    /// # Errors
    /// [`NoteError::Name`].
    pub fn new(name: &str, kind: KeyKind, key: PublicKey) -> Result<VerifierKey, NoteError> {
        if !is_name(name) {
            return Err(NoteError::Name(name.to_owned()));
        }
        Ok(VerifierKey { name: name.to_owned(), kind, key })
    }

    /// Its name; of a log's key the log's origin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of signature that it makes.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The Ed25519 key.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// The first four bytes of a digest of name, kind and key; an identifier, no proof of anything.
    pub fn id(&self) -> [u8; 4] {
        let hash = Sha256::new()
            .chain_update(self.name.as_bytes())
            .chain_update([b'\n', self.kind as u8])
            .chain_update(self.key.0)
            .finalize();
        [hash[0], hash[1], hash[2], hash[3]]
    }

    /// This key's line for a signature.
    pub fn line(&self, signature: &[u8]) -> NoteSignature {
        NoteSignature { name: self.name.clone(), id: self.id(), signature: signature.to_vec() }
    }

    /// Whether a line claims to be by this key.
    pub fn is_meant(&self, line: &NoteSignature) -> bool {
        line.name == self.name && line.id == self.id()
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut material = vec![self.kind as u8];
        material.extend(self.key.0);
        let [a, b, c, d] = self.id();
        write!(f, "{}+{a:02x}{b:02x}{c:02x}{d:02x}+{}", self.name, Base64::encode_string(&material))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for VerifierKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<VerifierKey, NoteError> {
        let wrong = |why| NoteError::Key(text.chars().take(2 * NAME_BYTES_MAX).collect(), why);
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(material)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("it has not three parts"));
        };
        let material = Base64::decode_vec(material).map_err(|_| wrong("its last part is not Base64"))?;
        let (kind, key) = material.split_first().ok_or_else(|| wrong("its last part is empty"))?;
        let kind = match kind {
            1 => KeyKind::Note,
            4 => KeyKind::Cosignature,
            _ => return Err(wrong("it is neither an Ed25519 key (1) nor one for cosignatures (4)")),
        };
        let key: [u8; 32] = key.try_into().map_err(|_| wrong("an Ed25519 key has 32 bytes"))?;
        let found = VerifierKey::new(name, kind, PublicKey(key))?;
        let expected: String = found.id().iter().map(|byte| format!("{byte:02x}")).collect();
        if !id.eq_ignore_ascii_case(&expected) {
            return Err(wrong("its hash is not that of its name and key"));
        }
        Ok(found)
    }
}

/// A line of a note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoteSignature {
    /// Name of the key.
    pub name: String,
    /// Id of the key.
    pub id: [u8; 4],
    /// The signature that the key made of the text.
    pub signature: Vec<u8>,
}

impl fmt::Display for NoteSignature {
    /// The line, without its newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.id.to_vec();
        bytes.extend(&self.signature);
        write!(f, "{DASH}{} {}", self.name, Base64::encode_string(&bytes))
    }
}

impl FromStr for NoteSignature {
    type Err = NoteError;

    fn from_str(line: &str) -> Result<NoteSignature, NoteError> {
        let wrong = NoteError::Malformed;
        let rest = line.strip_prefix(DASH).ok_or(wrong("a line with a signature begins with a dash"))?;
        let (name, encoded) = rest.split_once(' ').ok_or(wrong("a signature has a name and a value"))?;
        if !is_name(name) {
            return Err(NoteError::Name(name.to_owned()));
        }
        let bytes = Base64::decode_vec(encoded).map_err(|_| wrong("a signature is not Base64"))?;
        let (id, signature) = bytes.split_first_chunk().ok_or(wrong("a signature is too short"))?;
        if signature.is_empty() {
            return Err(wrong("a signature is too short"));
        }
        Ok(NoteSignature { name: name.to_owned(), id: *id, signature: signature.to_vec() })
    }
}

/// A text and its signatures, none of them verified yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The signed text, with its last newline.
    pub text: String,
    /// The signatures.
    pub signatures: Vec<NoteSignature>,
}

impl Note {
    /// Whether this key, a log's, has signed it.
    pub fn is_signed_by(&self, key: &VerifierKey) -> bool {
        key.kind() == KeyKind::Note
            && self.signatures.iter().filter(|line| key.is_meant(line)).any(|line| {
                let signature: Result<[u8; 64], _> = line.signature.as_slice().try_into();
                signature.is_ok_and(|bytes| key.key().verify_text(&self.text, &Signature(bytes)))
            })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl FromStr for Note {
    type Err = NoteError;

    fn from_str(note: &str) -> Result<Note, NoteError> {
        let wrong = NoteError::Malformed;
        if note.len() > NOTE_BYTES_MAX {
            return Err(wrong("it is too long"));
        }
        if note.chars().any(|c| c < ' ' && c != '\n') {
            return Err(wrong("it has control characters"));
        }
        let at = note.rfind("\n\n").ok_or(wrong("no empty line is before its signatures"))?;
        let (text, lines) = (&note[..at + 1], &note[at + 2..]);
        let lines = lines.strip_suffix('\n').ok_or(wrong("its last line has no end"))?;
        let signatures: Vec<NoteSignature> = lines.split('\n').map(str::parse).collect::<Result<_, _>>()?;
        if signatures.len() > SIGNATURES_MAX {
            return Err(wrong("it has too many signatures"));
        }
        Ok(Note { text: text.to_owned(), signatures })
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.chars().any(|c| c == '+' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::SigningKey;
    use proptest::prelude::*;

    fn signed() -> (VerifierKey, Note) {
        let key = SigningKey::from_seed(&[7; 32]);
        let verifier = VerifierKey::new("log.example/1", KeyKind::Note, key.public()).unwrap();
        let text = format!("{}\n", "a line that is long enough to be the text of a note ".repeat(2));
        let signature = key.sign_text(&text);
        (verifier.clone(), Note { signatures: vec![verifier.line(&signature.0)], text })
    }

    /// Keys and notes are read as they are written, and a signature is good for its own text, name and key only.
    #[test]
    fn round_trip_and_refusals() {
        let (key, note) = signed();
        assert_eq!(key.to_string().parse::<VerifierKey>().unwrap(), key);
        assert_eq!(note.to_string().parse::<Note>().unwrap(), note);
        assert!(note.is_signed_by(&key));
        let other_name = VerifierKey::new("log.example/2", KeyKind::Note, key.key()).unwrap();
        assert!(!note.is_signed_by(&other_name));
        let other_kind = VerifierKey::new("log.example/1", KeyKind::Cosignature, key.key()).unwrap();
        assert!(!note.is_signed_by(&other_kind));
        let altered = Note { text: note.text.replace("long", "wide"), ..note.clone() };
        assert!(!altered.is_signed_by(&key));
    }

    /// Texts that are not exactly a note or a key are refused, with the reason.
    #[test]
    fn malformed_notes_and_keys() {
        let (key, note) = signed();
        let good = note.to_string();
        let cases = [
            (good.trim_end().to_owned(), "no end"),
            (good.replace("\n\n", "\n"), "no empty line"),
            (good.replace("text", "te\txt"), "control characters"),
            (good.replace("log.example/1 ", "log.example/1"), "a name and a value"),
            (good.replace('\u{2014}', "-"), "begins with a dash"),
            (format!("text\n\n{DASH}name AAAA\n"), "too short"),
            (format!("text\n\n{DASH}name ????\n"), "not Base64"),
            ("x".repeat(NOTE_BYTES_MAX + 1), "too long"),
            (format!("text\n\n{}", format!("{DASH}n AAAAAAA=\n").repeat(33)), "too many"),
        ];
        for (text, why) in cases {
            let error = text.parse::<Note>().expect_err(why);
            assert!(error.to_string().contains(why), "{why}: {error}");
        }
        let good = key.to_string();
        for wrong in [
            good.replace('+', "-"),
            good.replace("log.example/1", "log.example/3"),
            good.replace("log.example/1", ""),
            format!("{good}AAAA"),
            good[..good.len() - 4].to_owned(),
        ] {
            assert!(wrong.parse::<VerifierKey>().is_err(), "{wrong}");
        }
    }

    proptest! {
        /// No text makes the parsers panic, and parsing and writing restores the text.
        #[test]
        fn any_text(text in "(\u{2014}|[ -~]|\n){0,200}") {
            if let Ok(note) = text.parse::<Note>() {
                prop_assert_eq!(note.to_string(), text.clone());
            }
            let _ = text.parse::<VerifierKey>();
            let _ = text.parse::<NoteSignature>();
        }
    }
}
