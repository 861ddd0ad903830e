//! What is fuzzed: whatever decodes bytes of somebody who is not trusted. Each target has samples to begin with, and
//! says of any bytes whether they are one of its values. It panics if a value that was decoded does not encode to the
//! same bytes, or does not print to what is read back as the same.
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

/// One way in for bytes.
pub struct Target {
    /// What it is called.
    pub name: &'static str,
    /// Bytes that are values.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Whether these bytes are a value.
    pub run: fn(&[u8]) -> bool,
}

impl Target {
    /// Where bytes are that once ended in a panic.
    pub fn panics(&self) -> PathBuf {
        Path::new(corpus::DIRECTORY).join(self.name)
    }

    /// Where the rest of its corpus is.
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

/// All of them.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    [shared::TARGETS, releases::TARGETS, stack::TARGETS, channels::TARGETS, others::TARGETS]
        .into_iter()
        .flatten()
}

/// A channel's grammar: kinds of messages, told apart by their first byte.
pub struct Grammar {
    /// The target that is it.
    pub target: &'static str,
    /// Whether it has a kind that begins so.
    pub has: fn(u8) -> bool,
}

/// The grammars of channels.
pub fn grammars() -> &'static [Grammar] {
    channels::GRAMMARS
}

/// The one of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

fn encode(value: &impl BorshSerialize) -> Vec<u8> {
    borsh::to_vec(value).expect("a vector takes everything")
}

/// A value has one encoding.
fn message<T: BorshDeserialize + BorshSerialize>(bytes: &[u8]) -> bool {
    let Ok(value) = borsh::from_slice::<T>(bytes) else { return false };
    assert!(encode(&value) == bytes, "two encodings of one value");
    true
}

/// Whether a message may begin with this byte: it is no kind, if that is what decoding nothing more says.
fn kind<T: BorshDeserialize>(first: u8) -> bool {
    let none = |error: std::io::Error| error.to_string().contains("variant tag");
    !borsh::from_slice::<T>(&[first]).err().is_some_and(none)
}

/// What is printed is read back as the same.
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
