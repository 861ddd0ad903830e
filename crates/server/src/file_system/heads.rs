//! Heads of the log of updates in the form that witnesses co-sign: what the server submits to witnesses, and
//! which co-signed heads it sends to clients.
//!
//! Invariants:
//! - The server signs a checkpoint only of what is durable in its log. Otherwise an honest server would have
//!   signed two histories after a power loss.
//! - A proof leaves only if it verifies.

use super::FileSystem;
use super::second_tree::{Heads, LEAVES_AT_ONCE, SecondTree, SignedHead};
use crate::refusal::{RequestError, refuse};
use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::note::{Note, NoteSignature};
use holdfast_checkpoint::submission::Submission;
use holdfast_protocol::message::{HEADS_MAX, WitnessedHead};
use std::collections::BTreeMap;

/// Number of checkpoints remembered, so that clients that have not seen the newest operations find one.
const CHECKPOINTS_KEPT: usize = 64;

impl FileSystem {
    /// What to send to a witness: the newest checkpoint, with a proof that it extends what this witness
    /// signed last. A new checkpoint is signed if the log has grown and the last one is at least `gap_ms`
    /// old.
    pub(crate) fn submission(&self, witness: usize, gap_ms: u64) -> Result<Submission, RequestError> {
        let mut heads = self.heads.lock();
        let now_ms = self.now_ms();
        let size = self.log_size();
        let is_open = heads.open.is_some();
        let is_due = !is_open
            || heads
                .signed
                .back()
                .is_none_or(|last| last.head.size < size && now_ms.saturating_sub(last.made_ms) >= gap_ms);
        if is_due {
            let open = self.grow(&mut heads)?;
            let head = open.head();
            let note = Checkpoint::signed(&self.epoch(), head, &self.resources.key);
            heads.signed.push_back(SignedHead { head, note, made_ms: now_ms, by: BTreeMap::new() });
            if heads.signed.len() > CHECKPOINTS_KEPT {
                heads.signed.pop_front();
            }
        }
        let old_size = heads.last_sizes.get(&witness).copied().unwrap_or(0);
        let (Some(open), Some(last)) = (&heads.open, heads.signed.back()) else {
            return refuse("there is no head yet");
        };
        let (old_size, note) = (old_size.min(last.head.size), last.note.clone());
        let proof = open.tree.prove(old_size, last.head);
        let proof = heads.unless_damaged(proof)?.unwrap_or_default();
        Ok(Submission { old_size, proof, note })
    }

    /// Notes the size that a witness says it signed last. Returns whether that can be of this log: it must
    /// not be longer than the log.
    pub(crate) fn witness_is_at(&self, witness: usize, size: u64) -> bool {
        self.heads.lock().last_sizes.insert(witness, size);
        size <= self.log_size()
    }

    /// Notes that a witness has co-signed a checkpoint.
    pub(crate) fn cosigned(&self, witness: usize, note: &Note, line: NoteSignature, time_s: u64) {
        let mut heads = self.heads.lock();
        if let Some(signed) = heads.signed.iter_mut().rev().find(|signed| signed.note.text == note.text) {
            signed.by.insert(witness, (line, time_s));
            let size = signed.head.size;
            heads.last_sizes.insert(witness, size);
        }
    }

    /// The size of the head that a witness co-signed last, and the time of that by the witness's clock, in
    /// seconds.
    pub(crate) fn head_of_witness(&self, witness: usize) -> Option<(u64, u64)> {
        let heads = self.heads.lock();
        heads.signed.iter().rev().find_map(|signed| {
            let (_, time_s) = signed.by.get(&witness)?;
            Some((signed.head.size, *time_s))
        })
    }

    /// The newest co-signed heads within the first `log_size` operations: for each witness the one that it
    /// signed last.
    pub(crate) fn witnessed_heads(&self, log_size: u64) -> Result<Vec<WitnessedHead>, RequestError> {
        let mut heads = self.heads.lock();
        let shown = self.proven_heads(&heads, log_size);
        if shown.is_err() {
            heads.rebuild();
        }
        shown
    }

    fn proven_heads(&self, heads: &Heads, log_size: u64) -> Result<Vec<WitnessedHead>, RequestError> {
        let Some(open) = &heads.open else { return Ok(Vec::new()) };
        let mut sent = Vec::new();
        let mut found = Vec::new();
        for signed in heads.signed.iter().rev().filter(|signed| signed.head.size <= log_size) {
            let fresh: Vec<usize> =
                signed.by.keys().copied().filter(|witness| !sent.contains(witness)).collect();
            if fresh.is_empty() || found.len() == HEADS_MAX {
                continue;
            }
            sent.extend(fresh);
            let mut note = signed.note.clone();
            note.signatures.extend(signed.by.values().map(|(line, _)| line.clone()));
            found.push((signed.head, note));
        }
        let newest = open.head();
        let ledger = self.current()?;
        let mut shown = Vec::new();
        for (head, note) in found {
            let last = head.size - 1;
            let in_log = ledger.include(last, log_size)?;
            let in_checkpoint = open.tree.include(last, head.size, newest)?;
            let (Some((leaf, in_log)), Some((_, in_checkpoint))) = (in_log, in_checkpoint) else {
                // The client has seen more operations than there are. It gets no head, and finds out itself
                // that this server has lost some.
                return Ok(Vec::new());
            };
            shown.push(WitnessedHead { note: note.to_string(), leaf, in_log, in_checkpoint });
        }
        Ok(shown)
    }

    /// Extends the second tree up to the durable end of the log.
    fn grow<'a>(&self, heads: &'a mut Heads) -> Result<&'a SecondTree, RequestError> {
        if heads.open.is_none() {
            let ledger = self.current()?;
            heads.open =
                Some(SecondTree::open(&self.resources.storage, &self.id, &ledger, heads.is_damaged)?);
            heads.is_damaged = false;
        }
        let Some(open) = &mut heads.open else { unreachable!("it was just opened") };
        let end = self.current()?.log_head().size;
        // The head that the caller signs must survive a power loss.
        self.sync()?;
        while open.head().size < end {
            let first = open.head().size;
            let leaves = self.current()?.leaves(first..end.min(first + LEAVES_AT_ONCE))?;
            open.append(leaves)?;
        }
        Ok(open)
    }
}
