//! The nodes of a file system's log of updates, stored for consistency proofs; and those of its second tree,
//! in which witnesses co-sign heads ([`crate::witnessing`]).
//!
//! Complete nodes never change and have a fixed place: the nodes that leaf `n` completes follow each other
//! from slot `2n - popcount(n)` on, lowest first. So the file is an array, which is written only at
//! checkpoints. Nodes completed after the last checkpoint are in memory, and are made again when the ordering
//! records are replayed.
//!
//! Invariants:
//! - A node is written and synced before the checkpoint that replaces the records it came from.
//! - A proof leaves the server only if it leads to the present head: a damaged file must not make honest
//!   clients believe that the server has forked. Damaged inner nodes are made again from the leaves below
//!   them.

use holdfast_crypto::Digest;
use holdfast_log::{Storage, StorageFile, SyncSite};
use holdfast_protocol::log_tree::{Frontier, Node, TreeHash, UPDATES};
use holdfast_protocol::structure::LogHead;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const NODES_SYNCED: SyncSite = SyncSite("server: log-tree nodes before checkpoint");
const FILE_CREATED: SyncSite = SyncSite("server: log-tree file created");
const HEADER: [u8; 32] = *b"holdfast log-tree nodes, form 1\n";
/// The header of a file made in a rebuild of a lost server. Slots of nodes that no client had are empty.
const HEADER_WITH_GAPS: [u8; 32] = *b"holdfast log-tree nodes, gaps 1\n";
const SLOT_BYTES: u64 = 32;
/// How many bytes are written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Why nodes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Medium: a file operation failed.
    #[error("{action} {file}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// Medium: the file is of a newer or unknown form.
    #[error("{0} is not a file of log-tree nodes that this program knows: use the newer program")]
    Form(String),
    /// The server was lost, and no client that it was rebuilt from knew this operation.
    #[error(
        "operation {leaf} of the log of updates was lost with the server, and nobody from whom it was rebuilt knew it: a \
         device that saw the file system last at about that time cannot be shown that nothing else has changed. Rebuild \
         it once more with what that device's machine has (`holdfast fs bundle`), or enrol a new key for the device"
    )]
    Lost {
        /// The index of the leaf.
        leaf: u64,
    },
    /// Medium: nodes are lost or altered and cannot be made again.
    #[error("{file}: log-tree nodes are damaged: {why}; restore the file from a backup")]
    Damaged {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
}

/// The log tree of one file system.
pub(crate) struct Tree {
    hash: TreeHash,
    name: String,
    file: Arc<dyn StorageFile>,
    /// Whether nodes may be lost for good.
    has_gaps: bool,
    /// Number of leaves whose nodes are in the file.
    stored: u64,
    /// Nodes completed since the file was last written.
    fresh: BTreeMap<(u8, u64), Digest>,
}

/// The slot of a complete node.
fn slot(level: u8, index: u64) -> u64 {
    let last_leaf = ((index + 1) << level) - 1;
    2 * last_leaf - u64::from(last_leaf.count_ones()) + u64::from(level)
}

impl Tree {
    /// Opens the tree whose first `stored` leaves are in the file and whose later nodes are `fresh`. Together
    /// they must lead to `head`, whose peaks are `peaks`.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        file_system: &Digest,
        stored: u64,
        fresh: Vec<Node>,
        peaks: &[Digest],
        head: LogHead,
    ) -> Result<Tree, TreeError> {
        Tree::open_named(storage, format!("tree-{file_system}"), UPDATES, stored, fresh, peaks, head)
    }

    /// Like [`Tree::open`], but for any tree of this shape, in a file with the given name.
    pub(crate) fn open_named(
        storage: &Arc<dyn Storage>,
        name: String,
        hash: TreeHash,
        stored: u64,
        fresh: Vec<Node>,
        peaks: &[Digest],
        head: LogHead,
    ) -> Result<Tree, TreeError> {
        let failed = |action: &'static str| {
            let file = name.clone();
            move |error: io::Error| TreeError::Io { action, file, error }
        };
        let file = match storage.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && stored == 0 => {
                let file = storage.create(&name).map_err(failed("creating"))?;
                file.write_at(0, &HEADER).map_err(failed("writing"))?;
                // The header itself is synced together with the first nodes.
                storage.sync_dir(FILE_CREATED).map_err(failed("syncing the directory of"))?;
                file
            }
            Err(error) => return Err(failed("opening")(error)),
        };
        let mut header = [0; 32];
        let read = file.read_at(0, &mut header).map_err(failed("reading"))?;
        if stored == 0 && read < header.len() {
            // The file was created but never used.
            file.write_at(0, &HEADER).map_err(failed("writing"))?;
        } else if header != HEADER && header != HEADER_WITH_GAPS {
            return Err(TreeError::Form(name));
        }
        let has_gaps = header == HEADER_WITH_GAPS;
        let mut tree = Tree { hash, name, file, has_gaps, stored, fresh: fresh.into_iter().collect() };
        tree.check_peaks(peaks, head)?;
        Ok(tree)
    }

    /// Adds the nodes that an operation completed.
    pub(crate) fn extend(&mut self, nodes: Vec<Node>) {
        self.fresh.extend(nodes);
    }

    /// Proof that the log with head `new` extends the log of `old` leaves; `None` if `old` is greater than
    /// the size of `new`.
    pub(crate) fn prove(&self, old: u64, new: LogHead) -> Result<Option<Vec<Digest>>, TreeError> {
        if old > new.size {
            return Ok(None);
        }
        if old == 0 || old == new.size {
            return Ok(Some(Vec::new()));
        }
        match self.checked_proof(old, new) {
            Ok(Some(proof)) => return Ok(Some(proof)),
            Ok(None) | Err(TreeError::Damaged { .. }) => {}
            // A lost node cannot be made again.
            Err(error) => return Err(error),
        }
        tracing::error!(file = self.name, "log-tree nodes are damaged; making them again from the leaves");
        self.mend()?;
        match self.checked_proof(old, new)? {
            Some(proof) => Ok(Some(proof)),
            None => Err(self.damaged(format!("no proof from size {old} leads to the present head"))),
        }
    }

    fn checked_proof(&self, old: u64, new: LogHead) -> Result<Option<Vec<Digest>>, TreeError> {
        let mut failure = None;
        let mut node = |level, index| match self.node(level, index) {
            Ok(node) => Some(node),
            Err(error) => {
                failure.get_or_insert(error);
                None
            }
        };
        let proof = self.hash.consistency_proof(old, new.size, &mut node);
        if let Some(error) = failure {
            return Err(error);
        }
        let old_head = self.head_at(old)?;
        Ok(proof.filter(|proof| self.hash.verify_consistency(old_head, new, proof)))
    }

    /// The root of the tree of `size` leaves, computed from complete nodes. All its leaves must be complete.
    pub(crate) fn head_at(&self, size: u64) -> Result<LogHead, TreeError> {
        Ok(Frontier::of(size, self.peaks_at(size)?).expect("one peak a bit").head_of(self.hash))
    }

    /// Roots of the complete subtrees of the tree of `size` leaves, largest first.
    pub(crate) fn peaks_at(&self, size: u64) -> Result<Vec<Digest>, TreeError> {
        let mut peaks = Vec::new();
        let mut first = 0;
        for level in (0..64).rev().filter(|level| size >> level & 1 == 1) {
            peaks.push(self.node(level, first >> level)?);
            first += 1 << level;
        }
        Ok(peaks)
    }

    /// A leaf, and proof that it is in the tree of `size` leaves, which the tree with head `new` extends.
    /// Returns `None` if there is no such leaf, or `size` is greater than that of `new`.
    pub(crate) fn include(
        &self,
        index: u64,
        size: u64,
        new: LogHead,
    ) -> Result<Option<(Digest, Vec<Digest>)>, TreeError> {
        if index >= size || self.prove(size, new)?.is_none() {
            return Ok(None);
        }
        match self.checked_inclusion(index, size, new) {
            Ok(Some(found)) => return Ok(Some(found)),
            Err(error @ TreeError::Lost { .. }) => return Err(error),
            _ => {}
        }
        tracing::error!(file = self.name, "log-tree nodes are damaged; making them again from the leaves");
        self.mend()?;
        match self.checked_inclusion(index, size, new)? {
            Some(found) => Ok(Some(found)),
            None => Err(self.damaged(format!("no proof leads from leaf {index} to the head of size {size}"))),
        }
    }

    fn checked_inclusion(
        &self,
        index: u64,
        size: u64,
        new: LogHead,
    ) -> Result<Option<(Digest, Vec<Digest>)>, TreeError> {
        let mut failure = None;
        let proof = self.hash.inclusion_proof(index, size, &mut |level, index| {
            self.node(level, index).map_err(|error| failure = Some(error)).ok()
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let leaf = self.node(0, index)?;
        let head = if size == new.size { new } else { self.head_at(size)? };
        let proof = proof.filter(|proof| self.hash.verify_inclusion(index, leaf, head, proof));
        Ok(proof.map(|proof| (leaf, proof)))
    }

    /// A leaf. It must be complete.
    pub(crate) fn leaf(&self, index: u64) -> Result<Digest, TreeError> {
        self.node(0, index)
    }

    /// Whether nodes may be lost for good, so that some proofs cannot be made.
    pub(crate) fn has_gaps(&self) -> bool {
        self.has_gaps
    }

    /// A node. It must be complete.
    pub(crate) fn node_at(&self, level: u8, index: u64) -> Result<Digest, TreeError> {
        self.node(level, index)
    }

    fn node(&self, level: u8, index: u64) -> Result<Digest, TreeError> {
        if let Some(node) = self.fresh.get(&(level, index)) {
            return Ok(*node);
        }
        let mut bytes = [0; 32];
        let at = HEADER.len() as u64 + slot(level, index) * SLOT_BYTES;
        let read = self.file.read_at(at, &mut bytes).map_err(|error| TreeError::Io {
            action: "reading",
            file: self.name.clone(),
            error,
        })?;
        if read < bytes.len() {
            return Err(self.damaged(format!("it ends before node {index} of level {level}")));
        }
        match Digest(bytes) {
            Digest::ZERO if self.has_gaps => Err(self.unknown(level, index)),
            node => Ok(node),
        }
    }

    /// Why a node's slot is empty: a leaf below it is lost, or the file is damaged.
    fn unknown(&self, level: u8, index: u64) -> TreeError {
        let lost = (index << level..(index + 1) << level).find(|leaf| self.slot_is_empty(*leaf));
        match lost {
            Some(leaf) => TreeError::Lost { leaf },
            None => self.damaged(format!("node {index} of level {level} is not there")),
        }
    }

    fn slot_is_empty(&self, leaf: u64) -> bool {
        let mut bytes = [0; 32];
        let at = HEADER.len() as u64 + slot(0, leaf) * SLOT_BYTES;
        self.file.read_at(at, &mut bytes).is_ok_and(|read| read == bytes.len() && bytes == Digest::ZERO.0)
    }

    /// Writes and syncs the file of a log of `size` leaves of which only some nodes are known. Slots of the
    /// others stay empty.
    pub(crate) fn rewrite(
        storage: &Arc<dyn Storage>,
        file_system: &Digest,
        size: u64,
        known: &dyn Fn(u8, u64) -> Option<Digest>,
    ) -> Result<(), TreeError> {
        let name = format!("tree-{file_system}");
        let failed = |action: &'static str| {
            let file = name.clone();
            move |error: io::Error| TreeError::Io { action, file, error }
        };
        let file = match storage.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                storage.create(&name).map_err(failed("creating"))?
            }
            other => other.map_err(failed("opening"))?,
        };
        let mut at = 0;
        let whole = (0..size).all(|leaf| known(0, leaf).is_some());
        let mut bytes = if whole { HEADER } else { HEADER_WITH_GAPS }.to_vec();
        for leaf in 0..size {
            for level in 0..=leaf.trailing_ones() as u8 {
                bytes.extend(known(level, leaf >> level).unwrap_or(Digest::ZERO).0);
            }
            if bytes.len() >= WRITE_BYTES || leaf + 1 == size {
                file.write_at(at, &bytes).map_err(failed("writing"))?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        file.sync(NODES_SYNCED).map_err(failed("syncing"))?;
        storage.sync_dir(FILE_CREATED).map_err(failed("syncing the directory of"))
    }

    /// Writes and syncs all nodes that are only in memory. Called before a checkpoint replaces the records
    /// they came from.
    pub(crate) fn persist(&mut self) -> Result<(), TreeError> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        let failed = |action: &'static str| {
            let file = self.name.clone();
            move |error: io::Error| TreeError::Io { action, file, error }
        };
        let mut nodes: Vec<(u64, Digest)> =
            self.fresh.iter().map(|((level, index), node)| (slot(*level, *index), *node)).collect();
        nodes.sort_unstable_by_key(|(slot, _)| *slot);
        // Slots of consecutive leaves are consecutive, so this is one write.
        let first = nodes[0].0;
        debug_assert!(nodes.iter().zip(first..).all(|((slot, _), expected)| *slot == expected));
        let bytes: Vec<u8> = nodes.iter().flat_map(|(_, node)| node.0).collect();
        self.file.write_at(HEADER.len() as u64 + first * SLOT_BYTES, &bytes).map_err(failed("writing"))?;
        self.file.sync(NODES_SYNCED).map_err(failed("syncing"))?;
        self.stored += self.fresh.keys().filter(|(level, _)| *level == 0).count() as u64;
        self.fresh.clear();
        Ok(())
    }

    /// Number of leaves whose nodes are in the file.
    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    fn check_peaks(&mut self, peaks: &[Digest], head: LogHead) -> Result<(), TreeError> {
        let intact = |tree: &Tree| -> Result<bool, TreeError> {
            let mut first = 0;
            let levels = (0..64u8).rev().filter(|level| head.size >> level & 1 == 1);
            for (level, peak) in levels.zip(peaks) {
                if tree.node(level, first >> level)? != *peak {
                    return Ok(false);
                }
                first += 1 << level;
            }
            Ok(true)
        };
        match intact(self) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(TreeError::Damaged { .. }) => self.mend()?,
            Err(error) => return Err(error),
        }
        match intact(self)? {
            true => Ok(()),
            false => Err(self.damaged("its nodes do not lead to the head of the log".to_owned())),
        }
    }

    /// Makes inner nodes in the file again from the leaves, except above lost leaves.
    fn mend(&self) -> Result<(), TreeError> {
        // Roots of the complete subtrees so far, largest first; `None` where a leaf below is lost.
        let mut peaks: Vec<Option<Digest>> = Vec::new();
        for leaf in 0..self.stored {
            let mut root = match self.node(0, leaf) {
                Ok(leaf) => Some(leaf),
                Err(TreeError::Lost { .. }) => None,
                Err(error) => return Err(error),
            };
            for level in 1..=leaf.trailing_ones() as u8 {
                let left = peaks.pop().expect("a peak for each bit of the size");
                root = left.zip(root).map(|(left, right)| (self.hash.0)(left, right));
                let index = leaf >> level;
                if let Some(node) = root
                    && !matches!(self.node(level, index), Ok(known) if known == node)
                {
                    let at = HEADER.len() as u64 + slot(level, index) * SLOT_BYTES;
                    self.file.write_at(at, &node.0).map_err(|error| TreeError::Io {
                        action: "writing",
                        file: self.name.clone(),
                        error,
                    })?;
                }
            }
            peaks.push(root);
        }
        Ok(())
    }

    fn damaged(&self, why: String) -> TreeError {
        TreeError::Damaged { file: self.name.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_log::simulated::{Crash, PowerLoss};
    use holdfast_protocol::log_tree::verify_consistency;

    struct Model {
        frontier: Frontier,
        heads: Vec<LogHead>,
    }

    impl Model {
        fn grow(&mut self, tree: &mut Tree, count: u64) {
            for _ in 0..count {
                let number = self.heads.len() as u64;
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                tree.extend(self.frontier.append(Digest(bytes)));
                self.heads.push(self.frontier.head());
            }
        }

        fn check(&self, tree: &Tree) {
            let new = *self.heads.last().unwrap();
            for old in &self.heads {
                let proof = tree.prove(old.size, new).unwrap().unwrap();
                assert!(verify_consistency(*old, new, &proof), "{} to {}", old.size, new.size);
                for index in [0, old.size / 2, old.size.saturating_sub(1)] {
                    let Some((leaf, proof)) = tree.include(index, old.size, new).unwrap() else { continue };
                    assert!(UPDATES.verify_inclusion(index, leaf, *old, &proof), "{index} of {}", old.size);
                }
            }
            assert!(tree.prove(new.size + 1, new).unwrap().is_none());
        }

        fn open(&self, storage: &Arc<dyn Storage>, stored: u64) -> Result<Tree, TreeError> {
            let head = self.frontier.head();
            Tree::open(storage, &Digest::ZERO, stored, Vec::new(), self.frontier.peaks(), head)
        }
    }

    fn model() -> (PowerLoss, Arc<dyn Storage>, Model, Tree) {
        let disk = PowerLoss::new(1);
        let storage = disk.storage();
        let frontier = Frontier::default();
        let model = Model { heads: vec![frontier.head()], frontier };
        let tree = model.open(&storage, 0).unwrap();
        (disk, storage, model, tree)
    }

    /// Proves: slots of complete nodes are exactly 0, 1, 2 and so on in the order in which they are
    /// completed.
    #[test]
    fn slots_are_dense() {
        let mut frontier = Frontier::default();
        let nodes = (0..300).flat_map(|_| frontier.append(Digest::ZERO));
        for (expected, ((level, index), _)) in nodes.enumerate() {
            assert_eq!(slot(level, index), expected as u64);
        }
    }

    /// Proves: proofs verify whether nodes are in memory, in the file, or both; and after a power loss the
    /// file holds what a checkpoint relies on.
    #[test]
    fn proofs_survive_persisting_and_power_loss() {
        let (disk, _, mut model, mut tree) = model();
        model.grow(&mut tree, 5);
        model.check(&tree);
        tree.persist().unwrap();
        model.check(&tree);
        model.grow(&mut tree, 9);
        model.check(&tree);
        tree.persist().unwrap();
        assert_eq!(tree.stored(), 14);
        drop(tree);
        disk.restart(Crash::PowerLoss);
        let tree = model.open(&disk.storage(), 14).unwrap();
        model.check(&tree);
    }

    /// Proves: an altered inner node is made again from the leaves, and an altered leaf or a lost file is
    /// refused. So no proof leaves that an honest client would take for a fork.
    #[test]
    fn damage_is_mended_or_refused() {
        let (disk, storage, mut model, mut tree) = model();
        model.grow(&mut tree, 37);
        tree.persist().unwrap();
        let name = format!("tree-{}", Digest::ZERO);
        let offset = |level, index| 32 + slot(level, index) * SLOT_BYTES + 3;
        for (level, index) in [(1, 0), (2, 3), (5, 0)] {
            disk.corrupt(&name, offset(level, index));
            model.check(&tree);
            disk.corrupt(&name, offset(level, index));
            model.check(&model.open(&storage, 37).unwrap());
        }
        disk.corrupt(&name, offset(0, 36));
        assert!(matches!(model.open(&storage, 37), Err(TreeError::Damaged { .. })));
        disk.corrupt(&name, offset(0, 36));
        model.open(&storage, 37).unwrap();
        disk.corrupt(&name, 5);
        assert!(matches!(model.open(&storage, 37), Err(TreeError::Form(_))));
        disk.delete(&name);
        assert!(matches!(model.open(&storage, 37), Err(TreeError::Io { .. })));
    }
    /// Proves: where a rebuilt log has gaps, every proof that does not need a lost node verifies, and the
    /// others are refused with the lost operation. This stays so when the log grows, is opened again, and
    /// inner nodes are damaged.
    #[test]
    fn gaps_are_refused_and_nothing_else() {
        let (disk, storage, mut model, mut tree) = model();
        model.grow(&mut tree, 37);
        drop(tree);
        let mut all = BTreeMap::new();
        let mut frontier = Frontier::default();
        for number in 1..=37u64 {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            all.extend(frontier.append(Digest(bytes)));
        }
        let lost = 21;
        // A node above the lost leaf is known only where it is a peak.
        let is_lost = |level: u8, index: u64| level < 5 && lost >> level == index;
        let known = |level, index| all.get(&(level, index)).copied().filter(|_| !is_lost(level, index));
        Tree::rewrite(&storage, &Digest::ZERO, 37, &known).unwrap();
        let check = |model: &Model, tree: &Tree| {
            let new = *model.heads.last().unwrap();
            let mut refused = 0;
            for old in &model.heads {
                match tree.prove(old.size, new) {
                    Ok(proof) => assert!(verify_consistency(*old, new, &proof.unwrap()), "{}", old.size),
                    Err(TreeError::Lost { leaf }) => {
                        assert_eq!(leaf, lost);
                        refused += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            // Every proof for a client that is behind the first 32 leaves needs a node above the lost leaf.
            assert!((1..=31).contains(&refused), "{refused}");
            assert!(matches!(tree.leaf(lost), Err(TreeError::Lost { .. })));
        };
        let mut tree = model.open(&storage, 37).unwrap();
        assert!(tree.has_gaps());
        check(&model, &tree);
        model.grow(&mut tree, 30);
        check(&model, &tree);
        tree.persist().unwrap();
        drop(tree);
        disk.restart(Crash::PowerLoss);
        let name = format!("tree-{}", Digest::ZERO);
        disk.corrupt(&name, 32 + slot(1, 20) * SLOT_BYTES + 3);
        let tree = model.open(&disk.storage(), 67).unwrap();
        check(&model, &tree);

        // After another rebuild with all nodes, the tree is whole.
        let whole = |level, index| all.get(&(level, index)).copied();
        let mut model = Model { heads: model.heads[..38].to_vec(), frontier };
        Tree::rewrite(&disk.storage(), &Digest::ZERO, 37, &whole).unwrap();
        let mut tree = model.open(&disk.storage(), 37).unwrap();
        assert!(!tree.has_gaps());
        model.check(&tree);
        model.grow(&mut tree, 3);
        model.check(&tree);
    }
}
