//! The verdict of a witness on a checkpoint: the checks of c2sp.org/tlog-witness, in that order.
//!
//! Invariant: an accepted head extends the head that was signed last. So if each accepted head is durable
//! before it is signed, and judging and storing are one step, no two signed heads contradict each other.

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
    /// The HTTP status for this refusal.
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

/// A checkpoint signed by a key that is trusted for its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthenticSubmission {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The note that contains the checkpoint.
    pub note: Note,
    old_size: u64,
    proof: Vec<holdfast_crypto::Digest>,
}

/// Finds the log of a submission. `logs` are the keys of all logs that the witness serves.
///
/// # Errors
/// [`Refusal::Malformed`], [`Refusal::UnknownLog`], [`Refusal::SignError`].
pub fn authenticate(body: &str, logs: &[VerifierKey]) -> Result<AuthenticSubmission, Refusal> {
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
    Ok(AuthenticSubmission { checkpoint, note, old_size, proof })
}

impl AuthenticSubmission {
    /// Checks that the checkpoint extends what was signed last (`None`: nothing was), so that it may be
    /// stored and signed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Checkpoint, log_key};
    use crate::tree::{Frontier, leaf};
    use holdfast_crypto::{Digest, SigningKey};
    use proptest::prelude::*;

    const ID: Digest = Digest([0xf5; 32]);

    fn head(leaves: &[u8]) -> (LogHead, Vec<Vec<Digest>>) {
        let mut frontier = Frontier::default();
        let mut nodes = std::collections::HashMap::new();
        for number in leaves {
            nodes.extend(frontier.append_to(CHECKPOINTS, leaf(Digest([*number; 32]))));
        }
        let head = frontier.head_of(CHECKPOINTS);
        let mut node = |level, at| nodes.get(&(level, at)).copied();
        let proofs = (0..=head.size).map(|old| CHECKPOINTS.consistency_proof(old, head.size, &mut node));
        (head, proofs.map(|proof| proof.expect("all nodes are there")).collect())
    }

    proptest! {
        /// No bytes make a witness panic, and none that its log did not sign are accepted.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400), text in "(old [0-9]{1,22}|[A-Za-z0-9+/=]{44}|\u{2014} |[ -~]|\n){0,60}") {
            let key = log_key(&ID, SigningKey::from_seed(&[1; 32]).public());
            for body in [String::from_utf8_lossy(&bytes).into_owned(), text] {
                prop_assert!(authenticate(&body, std::slice::from_ref(&key)).is_err());
            }
        }

        /// Whatever a log sends in whatever order, with correct or other proofs, a witness accepts only one
        /// history.
        #[test]
        fn one_history(sent in proptest::collection::vec((0u8..3, 1usize..9, 0usize..10, 0usize..10, any::<bool>()), 1..40)) {
            let key = SigningKey::from_seed(&[1; 32]);
            let log = log_key(&ID, key.public());
            // Three histories that part after one, three and six operations.
            let history = |number: u8, size: usize| -> Vec<u8> {
                (0..size as u8).map(|at| if at < 3 * number { at } else { at + 50 * (number + 1) }).collect()
            };
            let mut last: Option<LogHead> = None;
            let mut accepted: Vec<Vec<u8>> = Vec::new();
            for (number, size, old_size, proof_from, knows) in sent {
                let leaves = history(number, size);
                let (new, proofs) = head(&leaves);
                let last_size = last.map_or(0, |last| last.size as usize);
                let (old_size, proof_from) = if knows { (last_size, last_size) } else { (old_size, proof_from) };
                let proof = proofs.get(proof_from).cloned().unwrap_or_default();
                let note = Checkpoint::signed(&ID, new, &key);
                let body = Submission { old_size: old_size as u64, proof, note }.to_string();
                let judged = authenticate(&body, std::slice::from_ref(&log)).and_then(|one| one.extends(last));
                let follows = accepted.last().is_none_or(|before| leaves.starts_with(before));
                if judged.is_ok() {
                    prop_assert!(follows, "{leaves:?} after {accepted:?}");
                    last = Some(new);
                    accepted.push(leaves);
                } else if knows && old_size <= size {
                    prop_assert!(!follows, "{leaves:?} after {accepted:?} was refused");
                }
            }
        }
    }
}
