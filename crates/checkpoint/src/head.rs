//! Connects a co-signed head with the log that a client has accepted.
//!
//! Attack answered: a server that presents two histories to two people can have only one of them co-signed.
//! To the other person it can present only co-signed heads that are old, or heads of a different log. Time
//! exposes old heads ([`crate::freshness`]); this module exposes heads of a different log.

use crate::checkpoint::{Checkpoint, log_key};
use crate::cosignature;
use crate::note::{Note, VerifierKey};
use crate::tree::{CHECKPOINTS, leaf};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_protocol::log_tree::UPDATES;
use holdfast_protocol::message::WitnessedHead;
use holdfast_protocol::structure::LogHead;

/// Why a head does not count.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeadError {
    /// The head is no checkpoint of this file system's log signed by a listed server: anybody could have
    /// invented it.
    #[error("the server showed a head that is none: {0}")]
    NotAHead(String),
    /// None of the trusted witnesses has co-signed the head.
    #[error("no witness that is trusted here has co-signed it")]
    NotWitnessed,
    /// The server has signed, and witnesses have seen, another history than the one accepted here.
    #[error(
        "the history of {witnessed} operations that its server has signed and witnesses have co-signed is not the one \
         shown to this device (of {accepted} operations)"
    )]
    OtherHistory {
        /// Size of the head.
        witnessed: u64,
        /// Size of the accepted log.
        accepted: u64,
    },
}

/// A head within the accepted log, and when witnesses signed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CosignedHead {
    /// Size and root (SHA-256) of the head.
    pub head: LogHead,
    /// The witnesses that co-signed, by index in the list, each with its newest time in seconds since 1970.
    pub by: Vec<(usize, u64)>,
}

/// Checks a head against the log `accepted`. `servers` are the keys on the newest list of server keys.
///
/// # Errors
/// [`HeadError`]; only [`HeadError::OtherHistory`] proves an offence of the server.
pub fn verify(
    file_system: &Digest,
    servers: &[PublicKey],
    witnesses: &[VerifierKey],
    accepted: LogHead,
    shown: &WitnessedHead,
) -> Result<CosignedHead, HeadError> {
    let not_a_head = |why: String| HeadError::NotAHead(why);
    let note: Note = shown.note.parse().map_err(|error| not_a_head(format!("{error}")))?;
    let checkpoint: Checkpoint = note.text.parse().map_err(|error| not_a_head(format!("{error}")))?;
    let is_ours = checkpoint == Checkpoint::of(file_system, checkpoint.head);
    if !is_ours || !servers.iter().any(|server| note.is_signed_by(&log_key(file_system, *server))) {
        return Err(not_a_head("it is not signed by a listed server for this file system".to_owned()));
    }
    let head = checkpoint.head;
    if head.size == 0 || head.size > accepted.size {
        return Err(not_a_head(format!(
            "it is of {} operations, of {} asked about",
            head.size, accepted.size
        )));
    }
    let by: Vec<(usize, u64)> = witnesses
        .iter()
        .enumerate()
        .filter_map(|(place, witness)| Some((place, cosignature::newest(witness, &note)?)))
        .collect();
    if by.is_empty() {
        return Err(HeadError::NotWitnessed);
    }
    let last = head.size - 1;
    if !CHECKPOINTS.verify_inclusion(last, leaf(shown.leaf), head, &shown.in_checkpoint) {
        return Err(not_a_head("the leaf shown with it is not its last".to_owned()));
    }
    if !UPDATES.verify_inclusion(last, shown.leaf, accepted, &shown.in_log) {
        return Err(HeadError::OtherHistory { witnessed: head.size, accepted: accepted.size });
    }
    Ok(CosignedHead { head, by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::KeyKind;
    use holdfast_crypto::SigningKey;
    use holdfast_protocol::log_tree::{Frontier, TreeHash};
    use std::collections::HashMap;

    /// A log of updates with both its trees.
    struct Log {
        updates: (Frontier, HashMap<(u8, u64), Digest>),
        checkpoints: (Frontier, HashMap<(u8, u64), Digest>),
        leaves: Vec<Digest>,
    }

    fn proof(tree: TreeHash, nodes: &HashMap<(u8, u64), Digest>, index: u64, size: u64) -> Vec<Digest> {
        tree.inclusion_proof(index, size, &mut |level, at| nodes.get(&(level, at)).copied()).expect("kept")
    }

    impl Log {
        fn of(leaves: impl IntoIterator<Item = u8>) -> Log {
            let mut log =
                Log { updates: Default::default(), checkpoints: Default::default(), leaves: vec![] };
            for number in leaves {
                let update = Digest([number; 32]);
                log.leaves.push(update);
                log.updates.1.extend(log.updates.0.append(update));
                log.checkpoints.1.extend(log.checkpoints.0.append_to(CHECKPOINTS, leaf(update)));
            }
            log
        }

        fn witnessed(&self, accepted: &Log, server: &SigningKey, witness: &SigningKey) -> WitnessedHead {
            let head = self.checkpoints.0.head_of(CHECKPOINTS);
            let mut note = Checkpoint::signed(&ID, head, server);
            note.signatures.push(cosignature::cosign(&verifier(witness), witness, &note.text, 1_700_000_000));
            let last = head.size - 1;
            WitnessedHead {
                note: note.to_string(),
                leaf: self.leaves[last as usize],
                in_log: proof(UPDATES, &accepted.updates.1, last, accepted.leaves.len() as u64),
                in_checkpoint: proof(CHECKPOINTS, &self.checkpoints.1, last, head.size),
            }
        }
    }

    const ID: Digest = Digest([5; 32]);

    fn verifier(witness: &SigningKey) -> VerifierKey {
        VerifierKey::new("witness.example/w1", KeyKind::Cosignature, witness.public()).expect("a name")
    }

    /// Only a head within the accepted log, signed by a listed server and a trusted witness, counts.
    /// Everything else has a verdict of its own, and only another history is an alarm.
    #[test]
    fn verdicts() {
        let (server, witness) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let (servers, witnesses) = ([server.public()], [verifier(&witness)]);
        let accepted = Log::of(0..9);
        let head = accepted.updates.0.head();
        let check = |shown: &WitnessedHead| verify(&ID, &servers, &witnesses, head, shown);
        for size in 1..=9 {
            let shown = Log::of(0..size).witnessed(&accepted, &server, &witness);
            let vouched = check(&shown).expect("it is within the log");
            assert_eq!((vouched.head.size, vouched.by), (u64::from(size), vec![(0, 1_700_000_000)]));
        }
        let good = Log::of(0..7).witnessed(&accepted, &server, &witness);
        // The other side of a fork, with whatever proof of ours.
        let forked = Log::of((0..6).chain([77])).witnessed(&accepted, &server, &witness);
        assert!(matches!(check(&forked), Err(HeadError::OtherHistory { witnessed: 7, accepted: 9 })));
        let disguised = WitnessedHead { leaf: good.leaf, ..forked };
        assert!(matches!(check(&disguised), Err(HeadError::NotAHead(_))));
        let stranger = SigningKey::from_seed(&[3; 32]);
        let by_stranger = Log::of(0..7).witnessed(&accepted, &stranger, &witness);
        assert!(matches!(check(&by_stranger), Err(HeadError::NotAHead(_))));
        let unwitnessed = Log::of(0..7).witnessed(&accepted, &server, &stranger);
        assert_eq!(check(&unwitnessed), Err(HeadError::NotWitnessed));
        let beyond = Log::of(0..9).witnessed(&accepted, &server, &witness);
        let shorter = Log::of(0..8).updates.0.head();
        let judged = verify(&ID, &servers, &witnesses, shorter, &beyond);
        assert!(matches!(judged, Err(HeadError::NotAHead(_))));
        let other = verify(&Digest([6; 32]), &servers, &witnesses, head, &good);
        assert!(matches!(other, Err(HeadError::NotAHead(_))));
        let cut = WitnessedHead { note: good.note[..50].to_owned(), ..good };
        assert!(matches!(check(&cut), Err(HeadError::NotAHead(_))));
    }
}
