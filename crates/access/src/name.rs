//! Names: of users, packages and settings, and of processes while they are alive.
//!
//! Invariants: a [`Name`] and a [`Text`] obey their rules however they were made, decoding included, so that no
//! text form is ever ambiguous and no message can carry terminal codes.

use crate::{AccessError, malformed};
use borsh::{BorshDeserialize, BorshSerialize, io};

/// The longest [`Name`], in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The longest [`Text`], in bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// A name: 1 to 64 of the ASCII letters, digits and `.`, `_`, `-`, `+`, `@`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize)]
pub struct Name(String);

impl Name {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`AccessError::BadName`].
    pub fn new(text: &str) -> Result<Name, AccessError> {
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte)) {
            Ok(Name(text.to_owned()))
        } else {
            Err(AccessError::BadName(text.chars().take(NAME_BYTES_MAX).collect()))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl BorshDeserialize for Name {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Name::new(&String::deserialize_reader(reader)?).map_err(malformed)
    }
}

/// The value of a setting: at most 256 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize)]
pub struct Text(String);

impl Text {
    /// Checks and takes a text.
    ///
    /// # Errors
    /// [`AccessError::BadText`].
    pub fn new(text: &str) -> Result<Text, AccessError> {
        if text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control) {
            Ok(Text(text.to_owned()))
        } else {
            Err(AccessError::BadText)
        }
    }

    /// The text as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl BorshDeserialize for Text {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Text::new(&String::deserialize_reader(reader)?).map_err(malformed)
    }
}

/// The name of one process: the runtime draws `boot` at its start and counts processes, so no name is ever
/// used twice. It ends with the process, and is refused wherever something outlives the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct ProcessName {
    /// Drawn by the runtime at its start.
    pub boot: [u8; 16],
    /// A number that the runtime never gives twice.
    pub number: u64,
}
