//! What a witness makes of a checkpoint: the checks of c2sp.org/tlog-witness, in its order.
//!
//! Invariant: given the head that was signed last, what is accepted extends it; so if each accepted head is durable
//! before it is signed, and judging and keeping are one step, no two heads are ever signed that contradict each other.

use crate::checkpoint::Checkpoint;
use crate::note::{Note, VerifierKey};
use crate::submission::Submission;
use crate::tree::CHECKPOINTS;
use holdfast_protocol::structure::LogHead;

/// Why a witness does not sign.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Status 400.
    #[error("{0}")]
    Malformed(String),
    /// Status 404.
    #[error("this witness does not know the log '{0}'")]
    UnknownLog(String),
    /// Status 403.
    #[error("the checkpoint is not signed by a key of its log")]
    NotSigned,
    /// Status 409: the size signed last is another.
    #[error("the checkpoint signed last has size {0}")]
    OldSize(u64),
    /// Status 409: the log has signed two trees of one size.
    #[error("the checkpoint signed last has the same size ({0}) and another root")]
    OtherRoot(u64),
    /// Status 422.
    #[error("the proof does not lead from the checkpoint signed last (size {0}) to this one")]
    NotConsistent(u64),
}

impl Refusal {
    /// The status of HTTP that stands for it.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::Malformed(_) => 400,
            Refusal::UnknownLog(_) => 404,
            Refusal::NotSigned => 403,
            Refusal::OldSize(_) | Refusal::OtherRoot(_) => 409,
            Refusal::NotConsistent(_) => 422,
        }
    }
}

/// A checkpoint that is its log's: signed by a key that is trusted for its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authentic {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The note it came in.
    pub note: Note,
    old_size: u64,
    proof: Vec<holdfast_crypto::Digest>,
}

/// Finds out whose checkpoint a body is. `logs` are the keys of all logs that the witness serves.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::UnknownLog`], [`Refusal::NotSigned`].
pub fn authenticate(body: &str, logs: &[VerifierKey]) -> Result<Authentic, Refusal> {
    let malformed = |error: crate::note::NoteError| Refusal::Malformed(error.to_string());
    let Submission { old_size, proof, note } = body.parse().map_err(malformed)?;
    let checkpoint: Checkpoint = note.text.parse().map_err(malformed)?;
    let mut keys = logs.iter().filter(|key| key.name() == checkpoint.origin).peekable();
    if keys.peek().is_none() {
        return Err(Refusal::UnknownLog(checkpoint.origin));
    }
    if !keys.any(|key| note.is_signed_by(key)) {
        return Err(Refusal::NotSigned);
    }
    if old_size > checkpoint.head.size {
        return Err(Refusal::Malformed(format!(
            "the size before ({old_size}) is greater than that of the checkpoint ({})",
            checkpoint.head.size
        )));
    }
    Ok(Authentic { checkpoint, note, old_size, proof })
}

impl Authentic {
    /// Whether it extends what was signed last (`None`: nothing was), and so may be kept and signed.
    ///
    /// # Errors
    /// [`Refusal::OldSize`], [`Refusal::OtherRoot`], [`Refusal::NotConsistent`].
    pub fn extends(&self, last: Option<LogHead>) -> Result<(), Refusal> {
        let last_size = last.map_or(0, |last| last.size);
        if self.old_size != last_size {
            return Err(Refusal::OldSize(last_size));
        }
        let new = self.checkpoint.head;
        match last {
            Some(last) if last.size == new.size && last.root != new.root => {
                Err(Refusal::OtherRoot(last.size))
            }
            Some(last) if last.size > 0 => match CHECKPOINTS.verify_consistency(last, new, &self.proof) {
                true => Ok(()),
                false => Err(Refusal::NotConsistent(last.size)),
            },
            _ if self.proof.is_empty() => Ok(()),
            _ => Err(Refusal::NotConsistent(0)),
        }
    }
}
