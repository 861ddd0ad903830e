//! The sources of a release's files.
//!
//! A mirror is not trusted: the caller checks everything it sends. This module bounds what a mirror can
//! *cost*: memory (an answer that is too long is abandoned before it is read), time (deadlines, and a lowest
//! speed), and requests (they go where the user sent them, never where a mirror redirects them).
//!
//! - [`Directory`] and [`Http`] are mirrors; [`parse`] makes one from the address that a person wrote.
//! - [`Mirrors`] asks several, the fastest first, and drops those whose content is bad.

mod address;
mod bucket;
mod directory;
mod http;
mod many;
mod names;
mod pace;
mod speed;

pub use address::{AddressError, parse};
pub use directory::Directory;
pub use http::{Http, Patience};
pub use many::{MirrorFailure, MirrorState, MirrorStatus, Mirrors, Unavailable};

use holdfast_crypto::Digest;
use std::ops::Range;
use std::time::Duration;

/// A source of a release's files. Untrusted: the caller checks every answer.
pub trait Mirror: Send + Sync {
    /// The name for messages: its URL or directory.
    fn name(&self) -> &str;

    /// A file, or the part of `range` that the file has. An answer that would be longer than `bytes_max` is
    /// abandoned before it is read.
    ///
    /// # Errors
    /// [`MirrorError`].
    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError>;

    /// Frames (see [`crate::pack`]) of blocks that the look-up of `paths` needs, as far as the mirror's hints
    /// say; at most `bytes_max`. Only `holdfast release serve` can do that; for other mirrors, [`PATHS`] is
    /// missing.
    ///
    /// # Errors
    /// [`MirrorError`].
    fn paths(&self, _paths: &[&[u8]], _bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        Err(Fault::Missing.of(self.name(), PATHS))
    }

    /// A problem that the operator of the mirror should solve, if there is one: it works, but badly.
    fn notice(&self) -> Option<String> {
        None
    }

    /// Frames (see [`crate::pack`]) of some of these blocks, at least one, and as many as fit. The blocks are
    /// data at the origin of a release. Only mirrors that reach the origin have any; for others, [`OBJECTS`]
    /// is missing.
    ///
    /// # Errors
    /// [`MirrorError`]: missing if the mirror has none of these blocks.
    fn objects(&self, _addresses: &[Digest]) -> Result<Vec<u8>, MirrorError> {
        Err(missing(self.name(), OBJECTS))
    }
}

/// Why bytes of a mirror are not what was asked for, as the caller's check found.
pub type BadContent = Box<dyn std::error::Error + Send + Sync>;

/// The name by which paths are looked up, in place of a file's.
pub const PATHS: &str = "paths";
/// Most bytes of all paths of a request, with a separator between each two.
pub const PATHS_BYTES_MAX: usize = 16 << 10;

/// The name by which blocks are requested, in place of a file's.
pub const OBJECTS: &str = "objects";
/// Most blocks of one request.
pub const OBJECTS_MAX: usize = 64;
/// Most bytes of an answer, unless its only block is longer.
pub const OBJECTS_ANSWER_BYTES_MAX: usize = 1 << 20;

/// The error of a mirror that does not have a file.
pub(crate) fn missing(mirror: &str, file: &str) -> MirrorError {
    Fault::Missing.of(mirror, file)
}

/// Why a mirror did not send a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The mirror says that it does not have the file. It may be lying.
    #[error("{mirror} does not have {file}")]
    Missing {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
    },
    /// The reply is useless: too long, not what was asked for, or a redirection elsewhere.
    #[error("{mirror} answered wrongly when asked for {file}: {why}")]
    Wrong {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// The mirror does not answer, or not in time.
    #[error("{mirror} cannot be reached: {why}")]
    Unreachable {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// The reason, in words.
        why: String,
        /// How long the mirror asks not to be asked again, if it says so.
        retry_after: Option<Duration>,
    },
}

/// A [`MirrorError`] without the names of mirror and file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    Missing,
    Wrong(String),
    Unreachable(String),
    /// Unreachable; the mirror says for how long.
    Busy(String, Duration),
}

impl Fault {
    fn too_long(bytes_max: u64) -> Fault {
        Fault::Wrong(format!("it is longer than {bytes_max} bytes"))
    }

    fn name() -> Fault {
        Fault::Wrong("no file of a release has such a name".to_owned())
    }

    fn of(self, mirror: &str, file: &str) -> MirrorError {
        let (mirror, file) = (mirror.to_owned(), file.to_owned());
        match self {
            Fault::Missing => MirrorError::Missing { mirror, file },
            Fault::Wrong(why) => MirrorError::Wrong { mirror, file, why },
            Fault::Unreachable(why) => MirrorError::Unreachable { mirror, file, why, retry_after: None },
            Fault::Busy(why, retry_after) => {
                MirrorError::Unreachable { mirror, file, why, retry_after: Some(retry_after) }
            }
        }
    }
}

/// Whether `file` consists of the characters of [`crate::layout`], so that it means the same in a URL and in
/// a directory.
fn is_name(file: &str) -> bool {
    file.len() <= 128
        && file.split('/').all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

/// Text of a mirror, made fit for a message: short, on one line, without control characters.
fn printable(text: &str) -> String {
    const CHARACTERS_MAX: usize = 200;
    let mut out: String =
        text.chars().take(CHARACTERS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(CHARACTERS_MAX).is_some() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    /// Proves: every name of the layout is accepted, and no name that has another meaning somewhere.
    #[test]
    fn names() {
        let digest = Digest([0xab; 32]);
        let good = [
            layout::ROOT.to_owned(),
            layout::REVOKED.to_owned(),
            layout::keys(7),
            layout::record(u64::MAX),
            layout::pack(&digest),
            layout::index(&digest),
            layout::hints(&digest),
        ];
        for name in good {
            assert!(is_name(&name), "{name}");
        }
        for name in [
            "", "/", "root/", "/root", "keys//1", "..", "keys/..", "keys/%2e", "a b", "root?x", "root#x",
            "Root", "a\\b",
        ] {
            assert!(!is_name(name), "{name}");
        }
        assert!(!is_name(&"a".repeat(129)));
    }

    /// Proves: text from a mirror cannot disturb a terminal or a log.
    #[test]
    fn text_of_mirrors() {
        assert_eq!(printable("fine"), "fine");
        assert_eq!(printable("a\r\n\u{1b}[31mb"), "a\u{fffd}\u{fffd}\u{fffd}[31mb");
        assert_eq!(printable(&"x".repeat(300)).len(), 203);
    }
}
