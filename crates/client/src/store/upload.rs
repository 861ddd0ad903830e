//! Data on its way to the server before an operation names it.

use super::{BATCH_BYTES, Blocks, PARALLEL, StoreJob, VerifiedStore, batches};
use crate::error::FsError;
use crate::interrupt;
use holdfast_content::{Block, BlockSink, BlockSource, Reference};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_rpc::RpcError;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Up to this many bytes stay here and ride along with the operation that names them.
const ATTACH_BYTES: usize = 128 << 10;

/// A sink that stores what it is given, in batches, while more is being made. At most a few batches are held
/// in memory; [`BlockSink::put`] waits when the server is slower than the writer.
pub struct Upload {
    store: VerifiedStore,
    /// Everything put, so that it stays readable until the operation is made.
    held: Vec<Digest>,
    waiting: Vec<Arc<Block>>,
    waiting_bytes: usize,
    under_way: usize,
    done: Sender<Result<(), RpcError>>,
    results: Receiver<Result<(), RpcError>>,
    failed: Option<RpcError>,
}

/// Keeps unsent blocks readable and sendable. Keep it until the operation that names them has been made.
pub struct Held {
    store: VerifiedStore,
    addresses: Vec<Digest>,
}

impl Upload {
    pub(super) fn new(store: VerifiedStore) -> Upload {
        let (done, results) = channel();
        Upload {
            store,
            held: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            under_way: 0,
            done,
            results,
            failed: None,
        }
    }

    /// Waits until everything is durable at the server, or small enough to ride along with the operation.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::NoSpace`] or [`FsError::Refused`]: the data is not at the server.
    pub fn finish(mut self) -> Result<Held, FsError> {
        if self.waiting_bytes > ATTACH_BYTES || self.under_way > 0 {
            self.flush();
        }
        while self.under_way > 0 {
            self.reap();
        }
        match self.failed.take() {
            Some(error) => Err(FsError::from(&error)),
            None => Ok(Held { store: self.store.clone(), addresses: std::mem::take(&mut self.held) }),
        }
    }

    fn flush(&mut self) {
        let blocks = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        for batch in batches(&blocks, |block| block.body().len()) {
            while self.under_way >= PARALLEL {
                self.reap();
            }
            let job = StoreJob { blocks: batch.to_vec(), done: self.done.clone() };
            if self.store.lanes.storing.send(job).is_err() {
                self.failed = Some(RpcError::Closed);
                return;
            }
            self.under_way += 1;
        }
    }

    fn reap(&mut self) {
        self.under_way -= 1;
        if let Err(error) = interrupt::receive(&self.results).unwrap_or(Err(RpcError::Closed)) {
            self.failed.get_or_insert(error);
        }
    }
}

impl BlockSink for Upload {
    fn digest_key(&self) -> DigestKey {
        self.store.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        let size = block.body().len() + 32 * block.references().len();
        if self.store.hold(block) {
            self.held.push(reference.address);
            if let Some(block) = self.store.collect_one(&reference.address) {
                self.waiting.push(block);
                self.waiting_bytes += size;
            }
        }
        if self.waiting_bytes >= BATCH_BYTES && self.failed.is_none() {
            self.flush();
        }
        reference
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        for address in &self.held {
            self.store.release(address);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for address in &self.addresses {
            self.store.release(address);
        }
    }
}
