//! The second tree of the log of updates, whose heads witnesses co-sign, and those heads.
//!
//! Invariant: the tree is made from the leaves of the log and can always be made again. The file `heads-FSID`
//! says how many leaves the tree's file had when it was last synced, with the root and the last leaf. If that
//! does not fit the log or the file, the tree is made again from the first leaf.

use super::ledger::Ledger;
use crate::refusal::RequestError;
use crate::tree::{Tree, TreeError};
use holdfast_checkpoint::note::{Note, NoteSignature};
use holdfast_checkpoint::tree::{CHECKPOINTS, leaf};
use holdfast_crypto::Digest;
use holdfast_log::{Storage, StorageFile, SyncSite};
use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::structure::LogHead;
use sha2::Digest as _;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

const MARK_WRITTEN: SyncSite = SyncSite("server: mark of the witnesses' tree");
const MARK_MAGIC: [u8; 8] = *b"hf-heads";
const MARK_BYTES: usize = 8 + 8 + 32 + 32 + 32;
/// Leaves read from the log at a time. The ledger is locked meanwhile, so no operation can be ordered.
pub(super) const LEAVES_AT_ONCE: u64 = 4096;
/// Number of leaves after which the tree is written to its file.
const LEAVES_IN_MEMORY: u64 = 16_384;

/// The heads of one file system's log. Empty until the first request for a head.
#[derive(Default)]
pub(super) struct Heads {
    pub(super) open: Option<SecondTree>,
    /// The heads that witnesses have signed, oldest first.
    pub(super) signed: VecDeque<SignedHead>,
    /// The size that each witness signed last, as far as this process knows.
    pub(super) last_sizes: BTreeMap<usize, u64>,
    /// Whether the tree on disk has proven wrong, and must be made again.
    pub(super) is_damaged: bool,
}

impl Heads {
    pub(super) fn rebuild(&mut self) {
        self.open = None;
        self.is_damaged = true;
    }

    pub(super) fn unless_damaged<T>(&mut self, result: Result<T, TreeError>) -> Result<T, TreeError> {
        result.inspect_err(|_| self.rebuild())
    }

    /// Writes the tree to disk, so that the next start need not make it again.
    pub(super) fn persist(&mut self) -> Result<(), RequestError> {
        self.open.as_mut().map_or(Ok(()), SecondTree::persist)
    }
}

/// The second tree, with the mark up to which it is on disk.
pub(super) struct SecondTree {
    pub(super) tree: Tree,
    frontier: Frontier,
    mark: SyncMark,
}

/// A checkpoint with its cosignatures.
pub(super) struct SignedHead {
    pub(super) head: LogHead,
    pub(super) note: Note,
    pub(super) made_ms: u64,
    pub(super) by: BTreeMap<usize, (NoteSignature, u64)>,
}

impl SecondTree {
    /// Resumes from the file, if what was synced last belongs to this log. Otherwise begins with an empty
    /// tree.
    pub(super) fn open(
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

    /// Appends leaves of the log.
    pub(super) fn append(&mut self, leaves: Vec<Digest>) -> Result<(), RequestError> {
        for update in leaves {
            self.tree.extend(self.frontier.append_to(CHECKPOINTS, leaf(update)));
            self.mark.leaf = update;
        }
        self.persist_if_due()
    }

    /// The newest head.
    pub(super) fn head(&self) -> LogHead {
        self.frontier.head_of(CHECKPOINTS)
    }

    fn persist_if_due(&mut self) -> Result<(), RequestError> {
        let size = self.head().size;
        if size - self.tree.stored() < LEAVES_IN_MEMORY { Ok(()) } else { self.persist() }
    }

    fn persist(&mut self) -> Result<(), RequestError> {
        let head = self.head();
        if head.size == self.tree.stored() {
            return Ok(());
        }
        self.tree.persist()?;
        Ok(self.mark.write(head)?)
    }
}

const EMPTY: LogHead = LogHead { size: 0, root: Digest::ZERO };

/// The mark up to which the tree's file was synced: magic, size, root, last leaf of the log, and a digest of
/// these.
struct SyncMark {
    name: String,
    file: Arc<dyn StorageFile>,
    /// The last leaf of the log that is in the tree.
    leaf: Digest,
}

impl SyncMark {
    /// A file without a complete mark counts as empty: the mark was never written, or its writing was
    /// interrupted.
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
