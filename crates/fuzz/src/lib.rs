//! Fuzz targets: everything that decodes bytes from somebody who is not trusted. Each target has samples to begin with,
//! and says of any bytes whether they are one of its values. It panics if a decoded value does not encode to the same
//! bytes, or does not print to what is read back as the same.
//!
//! `tests/any_bytes.rs` tries them all in each run of the tests; `scripts/fuzz` for as long as it is let, guided by
//! coverage. What was worth keeping is in `corpus`, by target: in `TARGET.inputs` what together reaches all that was ever
//! reached ([`corpus`]), in the directory `TARGET` bytes that once ended in a panic, a file each.

mod channels;
pub mod corpus;
pub mod mutate;
mod others;
mod releases;
mod samples;
mod shared;
mod stack;

use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A decoder of untrusted bytes.
pub struct Target {
    /// The name of the target.
    pub name: &'static str,
    /// Bytes that are values.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Whether these bytes are a value.
    pub run: fn(&[u8]) -> bool,
}

impl Target {
    /// The directory with bytes that once caused a panic.
    pub fn panics(&self) -> PathBuf {
        Path::new(corpus::DIRECTORY).join(self.name)
    }

    /// The file with the rest of its corpus.
    pub fn inputs(&self) -> PathBuf {
        Path::new(corpus::DIRECTORY).join(format!("{}.inputs", self.name))
    }

    /// Its samples, and its corpus.
    ///
    /// # Panics
    /// The corpus cannot be read.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        let mut kept = (self.samples)();
        kept.extend(corpus::files(&self.panics()).expect("files of the corpus"));
        kept.extend(corpus::load(&self.inputs()).expect("a file of the corpus"));
        kept
    }
}

/// All targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    [shared::TARGETS, releases::TARGETS, stack::TARGETS, channels::TARGETS, others::TARGETS]
        .into_iter()
        .flatten()
}

/// A channel's grammar: kinds of messages, told apart by their first byte.
pub struct Grammar {
    /// The name of the target that tests the grammar.
    pub target: &'static str,
    /// Whether the grammar has a kind that begins with this byte.
    pub has: fn(u8) -> bool,
}

/// The grammars of channels.
pub fn grammars() -> &'static [Grammar] {
    channels::GRAMMARS
}

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

fn encode(value: &impl BorshSerialize) -> Vec<u8> {
    borsh::to_vec(value).expect("a vector takes everything")
}

/// Panics unless a value has one encoding.
fn message<T: BorshDeserialize + BorshSerialize>(bytes: &[u8]) -> bool {
    let Ok(value) = borsh::from_slice::<T>(bytes) else { return false };
    assert!(encode(&value) == bytes, "two encodings of one value");
    true
}

/// Whether a message may begin with this byte: it may not if decoding the byte alone says that there is no such kind.
fn kind<T: BorshDeserialize>(first: u8) -> bool {
    let none = |error: std::io::Error| error.to_string().contains("variant tag");
    !borsh::from_slice::<T>(&[first]).err().is_some_and(none)
}

/// Panics unless what is printed is read back as the same.
fn text<T: FromStr + Display + PartialEq>(bytes: &[u8]) -> bool {
    let Ok(words) = std::str::from_utf8(bytes) else { return false };
    let Ok(value) = T::from_str(words) else { return false };
    let printed = value.to_string();
    assert!(T::from_str(&printed).is_ok_and(|again| again == value), "{words} prints as {printed}");
    true
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
