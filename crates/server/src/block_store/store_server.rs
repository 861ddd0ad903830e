//! One consistency server's store at a block server: its blocks, their references, holds and pins.
//!
//! ```text
//! DATA/servers/KEY/name      the name of the store: the bucket's, or else random, drawn when it was made
//! DATA/servers/KEY/store/    its blocks; or, if they are in a bucket:
//! DATA/servers/KEY/objects/  segments that the bucket does not have yet, the index, a cache
//! ```
//!
//! Invariant: a reply leaves when everything it speaks of is durable, and says up to which position the store
//! is durable.

use super::bucket::{self, BucketSettings};
use super::interface::{BlockStore, BlockStoreError};
use super::local::{LocalBlocks, OwnLog};
use super::note::{digits, id_of};
use super::server_error::ServedStoreError;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::{LocalStorage, LogError};
use holdfast_protocol::block_server::{
    BlockCall, BlockCollection, BlockFault, BlockReply, BlockRequest, BlockResult, StoreId,
};
use holdfast_protocol::message::{BATCH_MAX, HoldEntry, MESSAGE_BYTES_MAX};
use holdfast_store::{Allowance, CollectReport, Hold, HoldOutcome, StoreConfig, StoreError};
use holdfast_tiered::{Bucket, BucketAddress};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// File with the name of the store.
const NAME: &str = "name";
/// Most bytes of references in a reply.
const REFERENCES_BYTES: usize = MESSAGE_BYTES_MAX / 2;
/// The id, of no file system, under which the store keeps records of its own.
const OWN: Digest = Digest([0xff; 32]);

/// How long an acknowledgement waits for the bucket: less than the caller's deadline, so that the caller gets
/// the reason.
const PATIENCE: Duration = Duration::from_secs(10);

/// The store of one consistency server, or one shard of it.
pub(crate) struct StoreServer {
    name: StoreId,
    blocks: LocalBlocks,
    /// Number of long calls under way.
    long: AtomicUsize,
}

/// Why a store does not answer any more.
#[derive(Debug)]
pub(crate) enum StoreEnd {
    /// The local disk failed, so nothing can be made durable any more.
    Fatal(String),
    /// Another block server has taken over the store.
    TakenOver(String),
}

/// Where in a bucket a store is.
pub(super) struct BucketLocation {
    pub(super) bucket: Arc<dyn Bucket>,
    /// The address of this store's own prefix.
    pub(super) address: BucketAddress,
    /// Whether the operator accepts whatever is in the bucket.
    pub(super) anew: bool,
    /// Whether another block server of the same group may have had the store before.
    pub(super) takes_over: bool,
}

impl StoreServer {
    /// Opens the store in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`ServedStoreError`]
    pub(super) fn open(
        directory: &Path,
        config: StoreConfig,
        location: Option<BucketLocation>,
    ) -> Result<StoreServer, ServedStoreError> {
        let failed = |error| ServedStoreError::Io { directory: directory.to_owned(), error };
        let files = directory.join("store");
        let (other, made) = match location {
            Some(_) => (files.clone(), directory.to_owned()),
            None => (directory.join(bucket::DIRECTORY), files.clone()),
        };
        if other.exists() {
            return Err(ServedStoreError::OtherKind(other));
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&made).map_err(failed)?;
        let Some(BucketLocation { bucket, address, anew, takes_over }) = location else {
            let name = match name_in(directory).map_err(failed)? {
                Some(name) => name,
                None => drawn_name(directory).map_err(failed)?,
            };
            let storage = LocalStorage::open(&files).map_err(failed)?;
            let store = holdfast_store::LogStore::open(Arc::new(storage), config)?;
            return Ok(StoreServer::new(name, LocalBlocks::over_log(store, OwnLog::OnDisk)));
        };
        let (data, patience) = (directory, Some(PATIENCE));
        let settings = BucketSettings { address: None, data, store: config, anew, takes_over, patience };
        let blocks = LocalBlocks::over_bucket(bucket, &address, &settings)?;
        if takes_over {
            // The noted name is from when this block server had the store last, so it may be outdated.
            put_name(directory, &blocks.tier().expect("it is in a bucket").name()).map_err(failed)?;
        }
        StoreServer::in_bucket(directory, blocks)
    }

    /// A server for a store in a bucket. The store has the bucket's name, so it is recognised even if the
    /// local disk was lost. If the operator accepted the loss of objects, the bucket's name has changed,
    /// because a store that lacks something is not the one that the consistency server relies on.
    fn in_bucket(directory: &Path, blocks: LocalBlocks) -> Result<StoreServer, ServedStoreError> {
        let failed = |error| ServedStoreError::Io { directory: directory.to_owned(), error };
        let tier = blocks.tier().expect("it is in a bucket");
        let name = match name_in(directory).map_err(failed)? {
            Some(name) if !tier.has_losses() => name,
            _ => {
                put_name(directory, &tier.name()).map_err(failed)?;
                tier.name()
            }
        };
        Ok(StoreServer::new(name, blocks))
    }

    fn new(name: StoreId, blocks: LocalBlocks) -> StoreServer {
        StoreServer { name, blocks, long: AtomicUsize::new(0) }
    }

    /// Whether a call that takes long is running.
    pub(super) fn is_long_busy(&self) -> bool {
        self.long.load(Relaxed) > 0
    }

    /// A description of the server that has taken over the store, if one has.
    pub(super) fn taken_over(&self) -> Option<String> {
        self.blocks.tier()?.taken_over()
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// [`StoreEnd`]
    pub(crate) fn answer(&self, request: BlockRequest) -> Result<BlockReply, StoreEnd> {
        let long = usize::from(request.call.takes_long());
        self.long.fetch_add(long, Relaxed);
        let answer = self.answered(request);
        self.long.fetch_sub(long, Relaxed);
        answer
    }

    fn answered(&self, request: BlockRequest) -> Result<BlockReply, StoreEnd> {
        let outcome = if request.store.is_some_and(|meant| meant != self.name) {
            Err(BlockFault::OtherStore.into())
        } else if request.known > self.blocks.durable() {
            Err(BlockFault::OlderStore.into())
        } else {
            self.carry_out(request.file_system, request.call)
        };
        let outcome = match outcome {
            Ok(answer) => Ok(answer),
            Err(Fault::Fatal(why)) => return Err(StoreEnd::Fatal(why)),
            Err(Fault::Reply(fault)) => match self.taken_over() {
                Some(why) => return Err(StoreEnd::TakenOver(why)),
                None => Err(fault),
            },
        };
        Ok(BlockReply { store: self.name, position: self.blocks.durable(), outcome })
    }

    fn carry_out(&self, file_system: Digest, call: BlockCall) -> Result<BlockResult, Fault> {
        let blocks = &self.blocks;
        let counts = match &call {
            BlockCall::Store { blocks, .. } => blocks.len(),
            BlockCall::Load { addresses, .. }
            | BlockCall::Renew { addresses, .. }
            | BlockCall::Dereference { addresses, .. } => addresses.len(),
            BlockCall::References(addresses) | BlockCall::Contains(addresses) => addresses.len(),
            _ => 0,
        };
        if counts > BATCH_MAX || file_system == OWN {
            return Err(BlockFault::Refused(format!("more than {BATCH_MAX} blocks at once")).into());
        }
        Ok(match call {
            BlockCall::Greet => BlockResult::Done,
            BlockCall::Store { owner, blocks: given, allowance, now_ns } => {
                let given = given.into_iter().map(|given| (given.address, given.block)).collect();
                let allowance = allowance.map(|all| Allowance {
                    devices: all.devices,
                    bytes: all.bytes,
                    reserve: all.reserve,
                });
                blocks.store(file_system, owner, given, allowance.as_ref(), now_ns)?;
                BlockResult::Done
            }
            BlockCall::Load { addresses, bytes_max } => {
                let bytes_max = (bytes_max as usize).min(MESSAGE_BYTES_MAX - (2 << 20));
                BlockResult::Loaded(blocks.load(file_system, &addresses, bytes_max)?)
            }
            BlockCall::References(addresses) => self.references(file_system, &addresses)?,
            BlockCall::Contains(addresses) => {
                BlockResult::Flags(blocks.contains(file_system, &addresses)?.into_iter().collect())
            }
            BlockCall::Renew { addresses, now_ns } => {
                BlockResult::Flags(blocks.renew(file_system, &addresses, now_ns)?.into_iter().collect())
            }
            BlockCall::Dereference { owner, addresses, now_ns } => {
                let dropped = blocks.dereference(file_system, owner, &addresses, now_ns)?;
                BlockResult::Count(dropped)
            }
            BlockCall::Snapshot { now_ns } => {
                blocks.snapshot(file_system, now_ns)?;
                BlockResult::Done
            }
            BlockCall::Pin { holder, addresses, until_ns, now_ns } => {
                blocks.pin(file_system, holder, &addresses, until_ns, now_ns)?;
                BlockResult::Done
            }
            BlockCall::Hold(HoldEntry { name, device, made_ns, roots }) => {
                let outcome = blocks.hold(file_system, Hold { name, device, made_ns, roots })?;
                BlockResult::Missing(match outcome {
                    HoldOutcome::Held => Vec::new(),
                    HoldOutcome::Missing(missing) => missing,
                })
            }
            BlockCall::Unhold(name) => {
                let was = blocks.unhold(file_system, &name)?;
                BlockResult::Count(was.into())
            }
            BlockCall::Holds => {
                BlockResult::Holds(blocks.holds(file_system)?.into_iter().map(hold_entry).collect())
            }
            BlockCall::List { after } => BlockResult::Listed(blocks.list(file_system, after)?),
            BlockCall::Pinned { after } => BlockResult::Pinned(blocks.pinned(file_system, after)?),
            BlockCall::Charged(devices) => {
                let charge = blocks.charged(file_system, &devices)?;
                BlockResult::Charges(vec![(DeviceId::SUPERUSER, charge.blocks, charge.bytes)])
            }
            BlockCall::Charges => {
                let charges = blocks.charges(file_system)?.into_iter();
                BlockResult::Charges(
                    charges.map(|(device, charge)| (device, charge.blocks, charge.bytes)).collect(),
                )
            }
            BlockCall::Collect { roots, short, now_ns } => {
                // The log then has a record after all that may be removed, so its end never goes back.
                blocks.mark_end(OWN)?;
                let report = blocks.collect(file_system, &roots, &short.into_iter().collect(), now_ns)?;
                BlockResult::Collected(collection_of(report))
            }
            BlockCall::Scrub => {
                let found = blocks.scrub(&mut |_, _| {})?;
                let (records, bytes, bad_count) = (found.records, found.bytes, found.bad_count);
                BlockResult::Scrubbed { records, bytes, bad: found.bad, bad_count }
            }
            BlockCall::Figures => {
                let figures = blocks.figures()?;
                match blocks.tier().and_then(|tier| tier.status(None).bucket) {
                    None => BlockResult::Figures(figures),
                    Some(bucket) => BlockResult::FiguresInBucket(figures, bucket),
                }
            }
        })
    }

    /// As many references as fit into one reply. The caller requests the rest again.
    fn references(&self, file_system: Digest, addresses: &[Digest]) -> Result<BlockResult, Fault> {
        let (mut references, mut bytes) = (Vec::with_capacity(addresses.len()), 0);
        for address in addresses {
            let found = self.blocks.references(file_system, &[*address])?.pop().flatten();
            bytes += 8 + found.as_ref().map_or(0, |found| found.len() * 32);
            if bytes > REFERENCES_BYTES && !references.is_empty() {
                break;
            }
            references.push(found);
        }
        Ok(BlockResult::References(references))
    }
}

fn hold_entry(Hold { name, device, made_ns, roots }: Hold) -> HoldEntry {
    HoldEntry { name, device, made_ns, roots }
}

fn collection_of(report: CollectReport) -> BlockCollection {
    BlockCollection {
        marked: report.marked,
        dropped: report.dropped,
        dropped_bytes: report.dropped_bytes,
        kept: report.kept,
        kept_bytes: report.kept_bytes,
        moved: report.moved,
        removed_bytes: report.freed_bytes(),
        damaged: report.damaged,
        missing: report.missing,
    }
}

/// Why a call failed.
enum Fault {
    /// The consistency server gets this reply.
    Reply(BlockFault),
    /// The local disk failed, so nothing can be made durable any more.
    Fatal(String),
}

impl From<BlockFault> for Fault {
    fn from(fault: BlockFault) -> Fault {
        Fault::Reply(fault)
    }
}

impl From<BlockStoreError> for Fault {
    fn from(error: BlockStoreError) -> Fault {
        Fault::Reply(match error {
            BlockStoreError::Local(StoreError::Log(LogError::Poisoned(why))) => return Fault::Fatal(why),
            BlockStoreError::Local(error) if error.is_full() => BlockFault::Full,
            BlockStoreError::Local(StoreError::OverQuota { used, limit, .. }) => {
                BlockFault::OverQuota { used, limit }
            }
            BlockStoreError::Local(StoreError::Busy) => BlockFault::Busy,
            BlockStoreError::Local(StoreError::Refused(why)) => BlockFault::Refused(why),
            other => BlockFault::Failed(other.to_string()),
        })
    }
}

/// The name of the store in a directory; `None` if it has none yet.
fn name_in(directory: &Path) -> std::io::Result<Option<StoreId>> {
    match std::fs::read_to_string(directory.join(NAME)) {
        Ok(text) => id_of(text.trim()).map(Some).ok_or_else(|| std::io::Error::other("its name is damaged")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn drawn_name(directory: &Path) -> std::io::Result<StoreId> {
    let mut name = StoreId::default();
    getrandom::fill(&mut name).map_err(|error| std::io::Error::other(error.to_string()))?;
    put_name(directory, &name)?;
    Ok(name)
}

fn put_name(directory: &Path, name: &StoreId) -> std::io::Result<()> {
    holdfast_durable::replace(
        &directory.join(NAME),
        format!("{}\n", digits(name)).as_bytes(),
        holdfast_durable::PRIVATE,
    )
}
