//! Conflict copies, as a daemon lists and reads them.

use crate::control::Bytes;
use holdfast_client::files::{ConflictCopy, ConflictCopyPart};
use serde::{Deserialize, Serialize};

/// Most versions in one reply: paths may be long, and bytes in them that are not text take even more room.
pub const PAGE: usize = 100;

/// Some bytes of a conflict copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConflictPart {
    /// Identifies the content, so that parts of different copies are not mixed up.
    pub content: String,
    /// Size of the copy in bytes.
    pub size: u64,
    /// The offset of the bytes; what was skipped before it is a hole. Equal to the size if there are no more
    /// bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl From<ConflictCopyPart> for ConflictPart {
    fn from(part: ConflictCopyPart) -> ConflictPart {
        let ConflictCopyPart { content, size, offset, bytes } = part;
        ConflictPart { content, size, offset, bytes: Bytes(bytes) }
    }
}

/// The position of a version in the list.
pub fn position(version: &ConflictCopy) -> (i64, String) {
    (version.overwritten_ns, version.id.clone())
}

/// A page of the versions after `after`; few enough for one message.
pub fn page(mut versions: Vec<ConflictCopy>, after: Option<&(i64, String)>) -> Vec<ConflictCopy> {
    versions.sort_by_key(position);
    let later = versions.into_iter().filter(|version| after.is_none_or(|after| position(version) > *after));
    later.take(PAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: pages follow each other without a gap, even if several versions were overwritten at the same
    /// time.
    #[test]
    fn pages_are_complete() {
        let version = |number: i64| ConflictCopy {
            id: format!("u1-{number:04x}"),
            path: "f".into(),
            ino: 1,
            owner: "anna".into(),
            bytes: 0,
            modified_ns: 0,
            written_by: "ben".into(),
            overwritten_ns: number / 7,
            overwritten_by: "anna".into(),
        };
        let all: Vec<ConflictCopy> = (0..250).map(version).collect();
        let mut found: Vec<ConflictCopy> = Vec::new();
        loop {
            let mut reversed = all.clone();
            reversed.reverse();
            let next = page(reversed, found.last().map(position).as_ref());
            if next.is_empty() {
                break;
            }
            assert!(next.len() <= PAGE);
            found.extend(next);
        }
        assert_eq!(found, all);
    }

    /// Proves: bytes of a part pass through a message unchanged, and other messages are refused.
    #[test]
    fn parts_survive_their_way() {
        let bytes: Vec<u8> = (0..=255).collect();
        let part = ConflictCopyPart { content: "x".into(), size: 300, offset: 44, bytes: bytes.clone() };
        let text = serde_json::to_string(&ConflictPart::from(part)).unwrap();
        let part: ConflictPart = serde_json::from_str(&text).unwrap();
        assert_eq!((part.bytes, part.size, part.offset), (Bytes(bytes), 300, 44));
        assert!(serde_json::from_str::<ConflictPart>(&text.replace("\"AAEC", "\"AAE!")).is_err());
    }
}
