//! The body of `add-checkpoint` (c2sp.org/tlog-witness): the size before, a consistency proof, and a checkpoint.

use crate::checkpoint::{parse_hash, parse_size, show_hash};
use crate::note::{NOTE_BYTES_MAX, Note, NoteError};
use holdfast_crypto::Digest;
use std::fmt;
use std::str::FromStr;

/// Most hashes of a proof.
pub const PROOF_MAX: usize = 63;
/// Longest body, in bytes.
pub const BODY_BYTES_MAX: usize = NOTE_BYTES_MAX + (PROOF_MAX + 1) * 64;
/// Content type of the reply with the size of the last signed head.
pub const SIZE_TYPE: &str = "text/x.tlog.size";

/// A submission of a log to a witness.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// Size of the checkpoint that the witness signed last.
    pub old_size: u64,
    /// Proof that the new one extends it.
    pub proof: Vec<Digest>,
    /// The new checkpoint's note.
    pub note: Note,
}

impl fmt::Display for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.old_size)?;
        self.proof.iter().try_for_each(|hash| writeln!(f, "{}", show_hash(hash)))?;
        write!(f, "\n{}", self.note)
    }
}

impl FromStr for Submission {
    type Err = NoteError;

    fn from_str(body: &str) -> Result<Submission, NoteError> {
        let wrong = NoteError::Malformed;
        let (head, note) = body.split_once("\n\n").ok_or(wrong("no empty line is before the checkpoint"))?;
        let mut lines = head.split('\n');
        let old_size = lines.next().and_then(|line| line.strip_prefix("old ")).and_then(parse_size);
        let old_size = old_size.ok_or(wrong("the first line does not name the size before"))?;
        let proof: Option<Vec<Digest>> = lines.map(parse_hash).collect();
        let proof = proof.ok_or(wrong("a line of the proof is not a hash"))?;
        if proof.len() > PROOF_MAX {
            return Err(wrong("the proof is too long"));
        }
        Ok(Submission { old_size, proof, note: note.parse()? })
    }
}
