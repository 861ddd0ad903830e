//! Heads of the log of updates in the form that witnesses know: the second tree, the checkpoints signed of it, and what
//! witnesses made of them.
//!
//! Invariants:
//! - a checkpoint is signed only of what is durable in the log: else a power loss would make an honest server one that
//!   has signed two histories;
//! - the second tree is made from the leaves of the log and can always be made again. `heads-FSID` says up to where its
//!   file was synced, with root and last leaf; what does not fit them is made anew from the first leaf on;
//! - a proof leaves only if it verifies.

use super::FileSystem;
use super::ledger::Ledger;
use crate::refusal::RequestError;
use crate::tree::{Tree, TreeError};
use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::note::{Note, NoteSignature};
use holdfast_checkpoint::submission::Submission;
use holdfast_checkpoint::tree::{CHECKPOINTS, leaf};
use holdfast_crypto::Digest;
use holdfast_log::{Storage, StorageFile, SyncSite};
use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::message::{HEADS_MAX, WitnessedHead};
use holdfast_protocol::structure::LogHead;
use sha2::Digest as _;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

const MARK_WRITTEN: SyncSite = SyncSite("server: mark of the witnesses' tree");
const MARK_MAGIC: [u8; 8] = *b"hf-heads";
const MARK_BYTES: usize = 8 + 8 + 32 + 32 + 32;
/// Leaves read from the log at a time. The ledger is locked meanwhile, so no operation can be ordered.
const LEAVES_AT_ONCE: u64 = 4096;
/// Leaves after which the tree goes to its file.
const LEAVES_IN_MEMORY: u64 = 16_384;
/// Checkpoints remembered, so that clients that have not seen the newest operations find one.
const CHECKPOINTS_KEPT: usize = 64;

/// The heads of one file system's log. Empty until the first request for a head.
#[derive(Default)]
pub(super) struct Heads {
    open: Option<SecondTree>,
    /// The heads that witnesses have signed, oldest first.
    signed: VecDeque<SignedHead>,
    /// The size that each witness signed last, as far as is known.
    last_sizes: BTreeMap<usize, u64>,
    /// What is on disk has led nowhere, and is made anew.
    is_damaged: bool,
}

impl Heads {
    fn rebuild(&mut self) {
        self.open = None;
        self.is_damaged = true;
    }

    fn unless_damaged<T>(&mut self, result: Result<T, TreeError>) -> Result<T, TreeError> {
        result.inspect_err(|_| self.rebuild())
    }

    /// Puts the tree on disk, so that the next start need not make it again.
    pub(super) fn persist(&mut self) -> Result<(), RequestError> {
        self.open.as_mut().map_or(Ok(()), SecondTree::persist)
    }
}

struct SecondTree {
    tree: Tree,
    frontier: Frontier,
    mark: SyncMark,
}

/// A checkpoint with its cosignatures.
struct SignedHead {
    head: LogHead,
    note: Note,
    made_ms: u64,
    by: BTreeMap<usize, (NoteSignature, u64)>,
}

impl FileSystem {
    /// What to send to a witness: the newest checkpoint, made anew if the log has grown since `gap_ms` ago, with a proof
    /// from what it signed last.
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
            let head = open.frontier.head_of(CHECKPOINTS);
            let note = Checkpoint::signed(&self.epoch(), head, &self.resources.key);
            heads.signed.push_back(SignedHead { head, note, made_ms: now_ms, by: BTreeMap::new() });
            if heads.signed.len() > CHECKPOINTS_KEPT {
                heads.signed.pop_front();
            }
        }
        let old_size = heads.last_sizes.get(&witness).copied().unwrap_or(0);
        let (Some(open), Some(last)) = (&heads.open, heads.signed.back()) else {
            return crate::refusal::refuse("there is no head yet");
        };
        let (old_size, note) = (old_size.min(last.head.size), last.note.clone());
        let proof = open.tree.prove(old_size, last.head);
        let proof = heads.unless_damaged(proof)?.unwrap_or_default();
        Ok(Submission { old_size, proof, note })
    }

    /// A witness says what it signed last. Whether that can be of this log: it may have seen no more than there is.
    pub(crate) fn witness_is_at(&self, witness: usize, size: u64) -> bool {
        self.heads.lock().last_sizes.insert(witness, size);
        size <= self.log_size()
    }

    /// A witness has co-signed a checkpoint.
    pub(crate) fn cosigned(&self, witness: usize, note: &Note, line: NoteSignature, time_s: u64) {
        let mut heads = self.heads.lock();
        if let Some(signed) = heads.signed.iter_mut().rev().find(|signed| signed.note.text == note.text) {
            signed.by.insert(witness, (line, time_s));
            let size = signed.head.size;
            heads.last_sizes.insert(witness, size);
        }
    }

    /// Size of the head that a witness co-signed last, and when by its clock.
    pub(crate) fn head_of_witness(&self, witness: usize) -> Option<(u64, u64)> {
        let heads = self.heads.lock();
        heads.signed.iter().rev().find_map(|signed| {
            let (_, time_s) = signed.by.get(&witness)?;
            Some((signed.head.size, *time_s))
        })
    }

    /// The newest heads within the first `log_size` operations: of each witness the one that it signed last.
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
        let newest = open.frontier.head_of(CHECKPOINTS);
        let ledger = self.current()?;
        let mut shown = Vec::new();
        for (head, note) in found {
            let last = head.size - 1;
            let in_log = ledger.include(last, log_size)?;
            let in_checkpoint = open.tree.include(last, head.size, newest)?;
            let (Some((leaf, in_log)), Some((_, in_checkpoint))) = (in_log, in_checkpoint) else {
                // The client has seen more than there is, and must see for itself that this server lost something.
                return Ok(Vec::new());
            };
            shown.push(WitnessedHead { note: note.to_string(), leaf, in_log, in_checkpoint });
        }
        Ok(shown)
    }

    /// Brings the second tree up to the durable end of the log.
    fn grow<'a>(&self, heads: &'a mut Heads) -> Result<&'a SecondTree, RequestError> {
        if heads.open.is_none() {
            let ledger = self.current()?;
            heads.open =
                Some(SecondTree::open(&self.resources.storage, &self.id, &ledger, heads.is_damaged)?);
            heads.is_damaged = false;
        }
        let Some(open) = &mut heads.open else { unreachable!("it was just opened") };
        let end = self.current()?.log_head().size;
        // What is signed below must outlive a power loss.
        self.sync()?;
        while open.frontier.head_of(CHECKPOINTS).size < end {
            let first = open.frontier.head_of(CHECKPOINTS).size;
            let leaves = self.current()?.leaves(first..end.min(first + LEAVES_AT_ONCE))?;
            for update in leaves {
                open.tree.extend(open.frontier.append_to(CHECKPOINTS, leaf(update)));
                open.mark.leaf = update;
            }
            open.persist_if_due()?;
        }
        Ok(open)
    }
}

impl SecondTree {
    /// Goes on where the file was synced last, if what is there is of this log; else begins anew.
    fn open(
        storage: &Arc<dyn Storage>,
        id: &Digest,
        ledger: &Ledger,
        is_damaged: bool,
    ) -> Result<SecondTree, RequestError> {
        let name = format!("witness-tree-{id}");
        let (mark, at) = SyncMark::open(storage, id)?;
        let is_ours = !is_damaged
            && at.size > 0
            && at.size <= ledger.log_head().size
            && ledger.leaves(at.size - 1..at.size)? == [mark.leaf];
        if is_ours {
            let empty = Tree::open_named(storage, name.clone(), CHECKPOINTS, 0, Vec::new(), &[], EMPTY)?;
            let resumed = empty.peaks_at(at.size).ok().and_then(|peaks| {
                let frontier = Frontier::of(at.size, peaks.clone())?;
                let tree =
                    Tree::open_named(storage, name.clone(), CHECKPOINTS, at.size, Vec::new(), &peaks, at)
                        .ok()?;
                (frontier.head_of(CHECKPOINTS) == at).then_some((tree, frontier))
            });
            if let Some((tree, frontier)) = resumed {
                return Ok(SecondTree { tree, frontier, mark });
            }
        }
        if ledger.log_head().size > LEAVES_AT_ONCE {
            tracing::info!(file_system = %id, "making the tree that witnesses know");
        }
        let tree = Tree::open_named(storage, name, CHECKPOINTS, 0, Vec::new(), &[], EMPTY)?;
        Ok(SecondTree { tree, frontier: Frontier::default(), mark })
    }

    fn persist_if_due(&mut self) -> Result<(), RequestError> {
        let size = self.frontier.head_of(CHECKPOINTS).size;
        if size - self.tree.stored() < LEAVES_IN_MEMORY { Ok(()) } else { self.persist() }
    }

    fn persist(&mut self) -> Result<(), RequestError> {
        let head = self.frontier.head_of(CHECKPOINTS);
        if head.size == self.tree.stored() {
            return Ok(());
        }
        self.tree.persist()?;
        Ok(self.mark.write(head)?)
    }
}

const EMPTY: LogHead = LogHead { size: 0, root: Digest::ZERO };

/// Up to where the file of the tree was synced: magic, size, root, last leaf of the log, and a digest of these.
struct SyncMark {
    name: String,
    file: Arc<dyn StorageFile>,
    /// The last leaf of the log that is in the tree.
    leaf: Digest,
}

impl SyncMark {
    /// A file without a complete mark counts as empty: the mark was never written, or not to its end.
    fn open(storage: &Arc<dyn Storage>, id: &Digest) -> Result<(SyncMark, LogHead), TreeError> {
        let name = format!("heads-{id}");
        let failed = |action, error| TreeError::Io { action, file: name.clone(), error };
        let file = match storage.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                storage.create(&name).map_err(|error| failed("creating", error))?
            }
            file => file.map_err(|error| failed("opening", error))?,
        };
        let mut bytes = [0; MARK_BYTES];
        let read = file.read_at(0, &mut bytes).map_err(|error| failed("reading", error))?;
        let mut mark = SyncMark { name, file, leaf: Digest::ZERO };
        let (body, sum) = bytes.split_at(MARK_BYTES - 32);
        if read < MARK_BYTES || body[..8] != MARK_MAGIC || sha2::Sha256::digest(body).as_slice() != sum {
            return Ok((mark, EMPTY));
        }
        let digest = |from: usize| Digest(body[from..from + 32].try_into().expect("32 bytes"));
        mark.leaf = digest(48);
        let size = u64::from_le_bytes(body[8..16].try_into().expect("8 bytes"));
        Ok((mark, LogHead { size, root: digest(16) }))
    }

    fn write(&self, head: LogHead) -> Result<(), TreeError> {
        let mut bytes = MARK_MAGIC.to_vec();
        bytes.extend(head.size.to_le_bytes());
        bytes.extend(head.root.0);
        bytes.extend(self.leaf.0);
        bytes.extend(sha2::Sha256::digest(&bytes));
        let failed = |action| {
            let file = self.name.clone();
            move |error| TreeError::Io { action, file, error }
        };
        self.file.write_at(0, &bytes).map_err(failed("writing"))?;
        self.file.sync(MARK_WRITTEN).map_err(failed("syncing"))
    }
}
