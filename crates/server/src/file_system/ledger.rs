//! The state of a file system's order, in memory and in the log: the sequencer, the nodes of the log of
//! updates, the list of server keys, and the heads whose blocks garbage collection must not remove yet.

use crate::error::OpenError;
use crate::history_file::{HistoryError, HistoryFile, HistoryRetention};
use crate::order::Order;
use crate::refusal::RequestError;
use crate::tree::{Tree, TreeError};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::history::{Archive, HistoryRecord, PointPolicy};
use holdfast_protocol::log_tree::Node;
use holdfast_protocol::message::{ServerError, ServerKeys};
use holdfast_protocol::rebuild::{KnownNodes, Nodes};
use holdfast_protocol::sequencer::{OrderingRecord, Refusal, Sequencer, Step};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{LogHead, Structure, View};
use std::collections::{BTreeMap, VecDeque};

/// Format of checkpoints and of entries other than the sequencer's own records.
const FORMAT: u8 = 1;
/// How many times within a collection window the present heads are noted.
const SAMPLES_PER_WINDOW: i64 = 24;

/// One record of a file system in the log.
#[derive(BorshSerialize, BorshDeserialize)]
enum Entry {
    /// A record of the sequencer, which only the sequencer decodes.
    Order(Vec<u8>),
    /// A new list of server keys.
    ServerKeys(Signed<ServerKeys>),
    /// The heads at one time.
    Heads(Heads),
}

/// Heads that clients may still read from, and when they were present.
#[derive(Clone, BorshSerialize, BorshDeserialize)]
struct Heads {
    at_ns: i64,
    roots: Vec<Digest>,
}

/// The whole state of the order in one record, which replaces all records before it.
#[derive(BorshSerialize, BorshDeserialize)]
struct Checkpoint {
    format: u8,
    /// Number of leaves whose log-tree nodes are in the tree's file.
    leaves: u64,
    sequencer: Vec<u8>,
    server_keys: Signed<ServerKeys>,
    former: VecDeque<Heads>,
}

/// The order of one file system.
pub(crate) struct Ledger {
    id: Digest,
    abort_after_ms: u64,
    sequencer: Sequencer,
    tree: Tree,
    server_keys: Signed<ServerKeys>,
    former: VecDeque<Heads>,
    /// The past states that can still be read.
    archive: Archive,
    history: HistoryFile,
    keeping: HistoryRetention,
    /// Size of the log of updates when each device last committed, as far as this process knows.
    committed_at: BTreeMap<DeviceId, u64>,
    records: u64,
    /// Whether the sequencer may be ahead of the log.
    stale: bool,
}

impl Ledger {
    /// Recovers a ledger. Returns `None` if nothing was ever acknowledged.
    pub(super) fn open(
        order: &dyn Order,
        id: Digest,
        abort_after_ms: u64,
        now_ms: u64,
        keeping: &HistoryRetention,
    ) -> Result<Option<Ledger>, OpenError> {
        let damaged = |why: String| OpenError::Ordering { file_system: id, why };
        let storage = &order.files();
        let (checkpoint, entries) = order.recover().map_err(|error| OpenError::order(id, error))?;
        if checkpoint.is_none() && entries.is_empty() {
            return Ok(None);
        }
        let checkpoint: Option<Checkpoint> = match checkpoint {
            None => None,
            Some(bytes) if bytes.first() != Some(&FORMAT) => {
                return Err(damaged("its checkpoint has a newer format: use the newer program".to_owned()));
            }
            Some(bytes) => Some(decode(&bytes).map_err(|error| damaged(error.to_string()))?),
        };
        let (mut server_keys, mut former, mut leaves, mut state) = (None, VecDeque::new(), 0, None);
        if let Some(checkpoint) = checkpoint {
            server_keys = Some(checkpoint.server_keys);
            former = checkpoint.former;
            leaves = checkpoint.leaves;
            state = Some(checkpoint.sequencer);
        }
        let records = entries.len() as u64;
        let mut ordered = Vec::with_capacity(entries.len());
        for entry in entries {
            match decode(&entry).map_err(|error| damaged(error.to_string()))? {
                Entry::Order(record) => ordered.push(record),
                Entry::ServerKeys(list) => server_keys = Some(list),
                Entry::Heads(heads) => former.push_back(heads),
            }
        }
        if state.is_none() && ordered.is_empty() {
            // The list of server keys went to the log just before the founding operation did.
            return Ok(None);
        }
        let (mut archive, mut reaches) = (Archive::begin(), 0);
        let mut take = |record: HistoryRecord| {
            reaches = reaches.max(record.reaches());
            archive.replay(record);
        };
        let mut history = HistoryFile::open(storage, &id, &mut take).map_err(|error| error.open_error(id))?;
        archive.cut(u64::MAX - 1);
        let (now_ns, mut noted_ns) = (keeping.clock.wall_ns(), 0);
        let mut watch = |sequencer: &Sequencer, record: &OrderingRecord| {
            if let Some(declared_ns) = record.declared_ns() {
                noted_ns = declared_ns.min(now_ns);
            }
            let noting = if keeping.retention.keeps_any() { PointPolicy::Each } else { PointPolicy::None };
            archive.observe(sequencer, record, noted_ns, noting);
        };
        let restored =
            Sequencer::restore_watched(state.as_deref(), &ordered, abort_after_ms, now_ms, &mut watch);
        let (sequencer, nodes) = restored.map_err(|error| damaged(error.to_string()))?;
        // A power loss may have cut off the end of the log, while later past states were saved.
        if reaches > sequencer.log_size() {
            archive = Archive::begin();
            HistoryFile::open(storage, &id, &mut |record| archive.replay(record))
                .map_err(|error| error.open_error(id))?;
            archive.cut(sequencer.log_size());
            history.rewrite_next();
            // The history is saved before the log grows again: otherwise the saved states of lost operations
            // would seem to belong to the new ones.
            let failed = |error: std::io::Error| HistoryError::from(error).open_error(id);
            history.save(&mut archive, sequencer.log_size()).map_err(failed)?;
        }
        if sequencer.file_system() != id {
            return Err(damaged("they belong to another file system".to_owned()));
        }
        let server_keys =
            server_keys.ok_or_else(|| damaged("the list of server keys is missing".to_owned()))?;
        let view = sequencer.look();
        let tree = Tree::open(storage, &id, leaves, nodes, &view.peaks, view.view.log)?;
        let ledger = Ledger {
            id,
            abort_after_ms,
            sequencer,
            tree,
            server_keys,
            former,
            archive,
            history,
            keeping: keeping.clone(),
            committed_at: BTreeMap::new(),
            records,
            stale: false,
        };
        Ok(Some(ledger))
    }

    /// Begins a ledger with a founding operation. It is durable after the next commit.
    #[allow(clippy::too_many_arguments)] // What a file system consists of.
    pub(super) fn create(
        order: &dyn Order,
        sequencer: Sequencer,
        abort_after_ms: u64,
        server_keys: Signed<ServerKeys>,
        records: &[OrderingRecord],
        nodes: Vec<Node>,
        keeping: &HistoryRetention,
    ) -> Result<Ledger, RequestError> {
        let id = sequencer.file_system();
        let view = sequencer.look();
        let storage = &order.files();
        let tree = Tree::open(storage, &id, 0, nodes, &view.peaks, view.view.log)?;
        // The list of server keys comes first. Without the founding record it has no effect, so a creation
        // that is cut off between the two leaves nothing behind.
        order.append(&encode(&Entry::ServerKeys(server_keys.clone())))?;
        let mut ledger = Ledger {
            id,
            abort_after_ms,
            sequencer,
            tree,
            server_keys,
            former: VecDeque::new(),
            archive: Archive::default(),
            history: HistoryFile::new(storage, &id),
            keeping: keeping.clone(),
            committed_at: BTreeMap::new(),
            records: 1,
            stale: false,
        };
        ledger.append(order, records)?;
        ledger.observe(records);
        Ok(ledger)
    }

    /// Replaces the order of this file system; this is durable after the next commit. The ledger in memory
    /// must not be used afterwards.
    pub(super) fn replace(
        order: &dyn Order,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
        before: Option<&Ledger>,
    ) -> Result<(), RequestError> {
        let id = sequencer.file_system();
        let leaves = sequencer.log_size();
        Tree::rewrite(&order.files(), &id, leaves, &|level, index| nodes.get(level, index))?;
        let checkpoint = Checkpoint {
            format: FORMAT,
            leaves,
            sequencer: sequencer.checkpoint(),
            server_keys: server_keys.clone(),
            former: before.map(|ledger| ledger.former.clone()).unwrap_or_default(),
        };
        Ok(order.checkpoint(&encode(&checkpoint))?)
    }

    pub(super) fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Lets the sequencer decide, appends its records to the log and returns its answer. The answer may leave
    /// after the next commit.
    pub(super) fn step<T>(
        &mut self,
        order: &dyn Order,
        decide: impl FnOnce(&mut Sequencer) -> Result<Step<T>, Refusal>,
    ) -> Result<T, RequestError> {
        let _span = tracing::trace_span!(target: "operation", "order").entered();
        // Set until the work below has succeeded: after a panic or an error the state in memory may not match
        // the log.
        self.stale = true;
        let step = match decide(&mut self.sequencer) {
            Ok(step) => step,
            Err(refusal) => {
                self.stale = false;
                return Err(refusal.into());
            }
        };
        self.append(order, &step.records)?;
        self.tree.extend(step.nodes);
        self.stale = false;
        self.observe(&step.records);
        Ok(step.answer)
    }

    /// Notes the states after these records as past states, where the retention settings ask for it.
    fn observe(&mut self, records: &[OrderingRecord]) {
        let now_ns = self.keeping.clock.wall_ns();
        let noting =
            if self.keeping.retention.keeps_any() { PointPolicy::LastOfSecond } else { PointPolicy::None };
        for record in records {
            self.archive.observe(&self.sequencer, record, now_ns, noting);
        }
    }

    /// The past states that can still be read.
    pub(super) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Notes the present state as a past state. Returns `None` while an operation is pending.
    pub(super) fn note_state(&mut self) -> Option<u64> {
        self.archive.note(&self.sequencer, self.keeping.clock.wall_ns(), PointPolicy::LastOfSecond)
    }

    /// Changes which past states have names, durably.
    pub(super) fn rename_states<T>(
        &mut self,
        change: impl FnOnce(&mut Archive) -> T,
    ) -> Result<T, RequestError> {
        let changed = change(&mut self.archive);
        self.save_history()?;
        Ok(changed)
    }

    /// Saves the past states durably. The log that they refer to may be less durable: see [`Ledger::open`].
    fn save_history(&mut self) -> Result<(), RequestError> {
        let saved = self.history.save(&mut self.archive, self.sequencer.log_size());
        saved.map_err(|error| ServerError::Storage(error.to_string()).into())
    }

    /// The log of updates.
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    fn append(&mut self, order: &dyn Order, records: &[OrderingRecord]) -> Result<(), RequestError> {
        for record in records {
            order.append(&encode(&Entry::Order(record.to_bytes())))?;
            self.records += 1;
        }
        Ok(())
    }

    /// Whether the sequencer in memory may be ahead of the log.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Recovers the ledger again from the log.
    pub(super) fn reload(&mut self, order: &dyn Order, now_ms: u64) -> Result<(), RequestError> {
        let reloaded = Ledger::open(order, self.id, self.abort_after_ms, now_ms, &self.keeping);
        match reloaded {
            Ok(Some(ledger)) => {
                let committed_at = std::mem::take(&mut self.committed_at);
                *self = Ledger { committed_at, ..ledger };
                tracing::info!(file_system = %self.id, "went back to what the log holds");
                Ok(())
            }
            Ok(None) => Err(ServerError::Storage("the order is gone from the log".to_owned()).into()),
            Err(OpenError::Store(error)) => Err(error.into()),
            Err(OpenError::Order { error, .. }) => Err(error.into()),
            Err(error) => Err(ServerError::Storage(error.to_string()).into()),
        }
    }

    pub(super) fn prove(&self, old: u64, new: LogHead) -> Result<Vec<Digest>, RequestError> {
        // A client that has seen more operations than there are gets an empty proof, and finds out itself:
        // this server has lost some.
        Ok(self.tree.prove(old, new)?.unwrap_or_default())
    }

    /// Where nodes of the tree may be lost, checks that a device that has seen `old` operations can be given
    /// a proof of the present log. Otherwise no operation may be ordered for the device, because it could not
    /// be answered.
    pub(super) fn must_prove(&self, old: u64) -> Result<(), RequestError> {
        match self.tree.has_gaps() {
            true => self.prove(old, self.log_head()).map(drop),
            false => Ok(()),
        }
    }

    /// Size and root of the log of updates.
    pub(super) fn log_head(&self) -> LogHead {
        self.sequencer.log_head()
    }

    /// Leaves of the log of updates. It is an error if any of them is lost.
    pub(super) fn leaves(&self, range: std::ops::Range<u64>) -> Result<Vec<Digest>, RequestError> {
        Ok(range.map(|index| self.tree.leaf(index)).collect::<Result<_, _>>()?)
    }

    /// Leaves of the log of updates from `first` on, at most `count`, up to the first lost one.
    pub(super) fn some_leaves(&self, first: u64, count: u64) -> Result<Vec<Digest>, RequestError> {
        let end = self.sequencer.log_size().min(first.saturating_add(count));
        let mut leaves = Vec::new();
        for index in first..end {
            match self.tree.leaf(index) {
                Ok(leaf) => leaves.push(leaf),
                Err(TreeError::Lost { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(leaves)
    }

    /// Offers all leaves that this server has, and the nodes above those that it has not.
    pub(super) fn offer_nodes(&self, known: &mut KnownNodes) {
        let size = self.sequencer.log_size();
        known.offer_frontier(self.sequencer.frontier());
        for leaf in 0..size {
            for level in 0..=leaf.trailing_ones() as u8 {
                if let Ok(node) = self.tree.node_at(level, leaf >> level) {
                    known.offer(level, leaf >> level, node);
                }
            }
        }
    }

    /// A leaf, and a proof that it is in the log of `size` leaves. Returns `None` if the log is not that long
    /// yet.
    pub(super) fn include(
        &self,
        index: u64,
        size: u64,
    ) -> Result<Option<(Digest, Vec<Digest>)>, RequestError> {
        Ok(self.tree.include(index, size, self.log_head())?)
    }

    pub(super) fn server_keys(&self) -> &Signed<ServerKeys> {
        &self.server_keys
    }

    pub(super) fn set_server_keys(
        &mut self,
        order: &dyn Order,
        list: Signed<ServerKeys>,
    ) -> Result<(), RequestError> {
        order.append(&encode(&Entry::ServerKeys(list.clone())))?;
        self.records += 1;
        self.server_keys = list;
        Ok(())
    }

    /// The last structure of a device.
    pub(super) fn slot(&self, device: DeviceId) -> Option<Signed<Structure>> {
        self.sequencer.slot(device).cloned()
    }

    pub(super) fn note_commit(&mut self, device: DeviceId) {
        self.committed_at.insert(device, self.sequencer.log_size());
    }

    /// Size of the log of updates when a device's slot became what it is in this view: when its operation was
    /// committed, if this process saw that, or else when the operation was ordered.
    pub(super) fn changed(&self, view: &View, device: DeviceId) -> u64 {
        let ordered = view.slots.get(&device).map_or(0, |slot| slot.value.forecast.log.size + 1);
        self.committed_at.get(&device).copied().unwrap_or(0).max(ordered)
    }

    pub(super) fn records_since_checkpoint(&self) -> u64 {
        self.records
    }

    /// Writes the whole state as one record that replaces all before it. It is durable after the next commit.
    pub(super) fn checkpoint(&mut self, order: &dyn Order) -> Result<(), RequestError> {
        if self.stale || self.records == 0 {
            return Ok(());
        }
        // Without the replaced records, new nodes and past states could not be made again, so they are saved
        // first.
        self.tree.persist()?;
        self.save_history()?;
        let checkpoint = Checkpoint {
            format: FORMAT,
            leaves: self.tree.stored(),
            sequencer: self.sequencer.checkpoint(),
            server_keys: self.server_keys.clone(),
            former: self.former.clone(),
        };
        order.checkpoint(&encode(&checkpoint))?;
        self.records = 0;
        Ok(())
    }

    /// The present heads and all former heads within the window. If the last note is old enough, this also
    /// notes the present heads; the note is durable after the next commit.
    pub(super) fn roots(
        &mut self,
        order: &dyn Order,
        now_ns: i64,
        window_ns: i64,
    ) -> Result<Vec<Digest>, RequestError> {
        let mut roots = self.sequencer.roots();
        while self.former.front().is_some_and(|heads| heads.at_ns < now_ns.saturating_sub(window_ns)) {
            self.former.pop_front();
        }
        let due = self.former.back().is_none_or(|last| {
            now_ns.saturating_sub(last.at_ns) >= window_ns / SAMPLES_PER_WINDOW || last.at_ns > now_ns
        });
        if due && !self.stale {
            let heads = Heads { at_ns: now_ns, roots: roots.clone() };
            order.append(&encode(&Entry::Heads(heads.clone())))?;
            self.records += 1;
            self.former.push_back(heads);
        }
        roots.extend(self.former.iter().flat_map(|heads| heads.roots.iter().copied()));
        // A past state that is given up must stay given up, even after a restart under a clock that was set
        // back, because its blocks are removed. And the states that are left must be all there are of the
        // time before: see `PointPolicy::Each`.
        let given_up = self.archive.retain(&self.keeping.retention, now_ns);
        match self.save_history() {
            Err(refused) if given_up > 0 => return Err(refused),
            // If the disk is full and nothing was given up, the collection goes on: it is what frees space.
            Err(_) => tracing::warn!(file_system = %self.id, "past states cannot be saved now"),
            Ok(()) => {}
        }
        roots.extend(self.archive.roots());
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::{DecodeError, Domain, SigningKey};

    fn list() -> Signed<ServerKeys> {
        let key = SigningKey::from_seed(&[1; 32]);
        let file_system = key.public().file_system_id();
        Signed::new(
            ServerKeys { file_system, sequence: 1, keys: vec![SigningKey::from_seed(&[2; 32]).public()] },
            &key,
        )
    }

    fn fingerprint(bytes: &[u8]) -> String {
        holdfast_crypto::DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes).short()
    }

    /// Proves: the records and checkpoints of the order are encoded as in existing data directories. If this
    /// fails, the format has changed: give it a new number and keep reading the old one.
    #[test]
    fn stored_formats_are_held() {
        let heads = Heads { at_ns: 7, roots: vec![Digest([9; 32])] };
        let entries = [
            (Entry::Order(vec![1, 2, 3]), "0003000000010203".to_owned()),
            (Entry::Heads(heads.clone()), format!("02070000000000000001000000{}", "09".repeat(32))),
        ];
        for (entry, expected) in entries {
            let bytes = encode(&entry);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected);
        }
        assert_eq!(fingerprint(&encode(&Entry::ServerKeys(list()))), GOLDEN_SERVER_KEYS);
        let checkpoint = Checkpoint {
            format: FORMAT,
            leaves: 5,
            sequencer: vec![1],
            server_keys: list(),
            former: VecDeque::from([heads]),
        };
        assert_eq!(fingerprint(&encode(&checkpoint)), GOLDEN_CHECKPOINT);
        let read: Result<Checkpoint, DecodeError> = decode(&encode(&checkpoint));
        assert_eq!(read.unwrap().leaves, 5);
    }

    const GOLDEN_SERVER_KEYS: &str = "d3fb27334995";
    const GOLDEN_CHECKPOINT: &str = "fc9278d3455f";
}
