//! What is fuzzed: whatever decodes bytes of somebody who is not trusted. Each target has samples to begin with, and
//! says of any bytes whether they are one of its values. It panics if a value that was decoded does not encode to the
//! same bytes, or does not print to what is read back as the same.
//!
//! `tests/any_bytes.rs` tries them all in each run of the tests; `scripts/fuzz` for as long as it is let, guided by
//! coverage. What was worth keeping is in `corpus`, by target.

pub mod mutate;
mod others;
mod releases;
mod samples;
mod shared;
mod stack;

use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt::Display;
use std::path::PathBuf;
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
    /// Where its corpus is.
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(self.name)
    }

    /// Its samples, and its corpus.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        let mut kept = (self.samples)();
        let entries = std::fs::read_dir(self.corpus()).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        kept.extend(files.iter().map(|file| std::fs::read(file).expect("a file of the corpus")));
        kept
    }
}

/// All of them.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    [shared::TARGETS, releases::TARGETS, stack::TARGETS, others::TARGETS].into_iter().flatten()
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
