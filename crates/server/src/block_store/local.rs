//! Blocks in the server's own log, beside its order.

use super::{BlockStore, BlockStoreError, Standing};
use crate::blocks::stored_bytes;
use crate::control::Scrubbed;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::LogError;
use holdfast_protocol::block_server::{BlockFigures, LoadedBlock};
use holdfast_protocol::message::StoreHeader;
use holdfast_store::{
    Allowance, Charge, CollectReport, DecrefOutcome, Hold, HoldOutcome, ScrubReport, StoreError,
};
use std::collections::{BTreeMap, BTreeSet};

/// The store of this process.
#[derive(Clone)]
pub struct Local(holdfast_store::BlockStore);

impl Local {
    /// Over an open store.
    pub fn new(store: holdfast_store::BlockStore) -> Local {
        Local(store)
    }

    fn load_one(&self, file_system: Digest, address: Digest) -> Result<LoadedBlock, StoreError> {
        match self.0.retrieve(file_system, address) {
            Ok(None) => Ok(LoadedBlock::Absent),
            Ok(Some((header, block))) => Ok(LoadedBlock::Found(
                StoreHeader { owner: header.owner, stored_ns: header.stored_ns },
                block,
            )),
            Err(error @ (StoreError::Damaged { .. } | StoreError::MayBeDamaged { .. })) => {
                Ok(LoadedBlock::Damaged(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

impl BlockStore for Local {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        Ok(self.0.store_within(file_system, owner, blocks, allowance, now_ns)?)
    }

    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError> {
        let (mut blocks, mut bytes) = (Vec::with_capacity(addresses.len()), 0);
        for address in addresses {
            let loaded = self.load_one(file_system, *address)?;
            if let LoadedBlock::Found(_, block) = &loaded {
                bytes += stored_bytes(block);
            }
            if bytes > bytes_max && !blocks.is_empty() {
                break;
            }
            blocks.push(loaded);
        }
        Ok(blocks)
    }

    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError> {
        let of = |address: &Digest| match self.0.references(file_system, *address) {
            Err(error @ StoreError::Log(LogError::Away { .. })) => Err(error.into()),
            Err(
                error @ (StoreError::Damaged { .. } | StoreError::MayBeDamaged { .. } | StoreError::Log(_)),
            ) => {
                tracing::error!(%file_system, %address, %error, "a block is damaged; answering that it is missing");
                Ok(None)
            }
            other => Ok(other?),
        };
        addresses.iter().map(of).collect()
    }

    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError> {
        Ok(self.0.contains_all(file_system, addresses)?)
    }

    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError> {
        Ok(self.0.contains_renew_all(file_system, addresses, now_ns)?)
    }

    fn dereference(
        &self,
        file_system: Digest,
        owner: DeviceId,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<u32, BlockStoreError> {
        let mut dropped = 0;
        for address in addresses {
            let outcome = self.0.decref(file_system, owner, *address, now_ns)?;
            dropped += u32::from(outcome == DecrefOutcome::Dropped);
        }
        Ok(dropped)
    }

    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError> {
        Ok(self.0.snapshot(file_system, now_ns)?)
    }

    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        Ok(self.0.pin(file_system, holder, addresses, until_ns, now_ns)?)
    }

    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError> {
        Ok(self.0.hold(file_system, hold)?)
    }

    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError> {
        Ok(self.0.unhold(file_system, name)?)
    }

    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError> {
        Ok(self.0.holds(&file_system))
    }

    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError> {
        Ok(self.0.charged(file_system, devices))
    }

    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        Ok(self.0.charges(file_system)?)
    }

    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError> {
        Ok(self.0.collect_with(file_system, roots, short, now_ns, &mut |_| {})?)
    }

    fn sync(&self) -> Result<(), BlockStoreError> {
        Ok(self.0.commit()?)
    }

    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Scrubbed, BlockStoreError> {
        Ok(in_words(&self.0.scrub(progress)?))
    }

    fn figures(&self) -> Result<BlockFigures, BlockStoreError> {
        // What is not in the index yet would be counted only in part.
        self.0.checkpoint()?;
        let store = self.0.statistics()?;
        Ok(BlockFigures {
            blocks: store.blocks + store.recent_entries,
            block_bytes: store.block_bytes,
            deleted_bytes: store.deleted_bytes,
            log_bytes: store.log_bytes,
            free_bytes: store.free_bytes,
            damaged_blocks: store.damaged_blocks,
        })
    }

    fn batch(&self) -> usize {
        1
    }

    fn standing(&self) -> Option<Standing> {
        None
    }
}

/// A scrub's findings for people.
pub(crate) fn in_words(report: &ScrubReport) -> Scrubbed {
    let bad = report.bad.iter().map(|bad| {
        let what = match (&bad.block, bad.live) {
            (Some((file_system, address)), true) => format!("block {address} of {file_system}: "),
            (Some(_), false) => "garbage: ".to_owned(),
            (None, _) => String::new(),
        };
        format!("{what}{} at offset {}: {}", bad.file, bad.offset, bad.why)
    });
    Scrubbed {
        records: report.records,
        bytes: report.bytes,
        bad: bad.collect(),
        bad_count: report.bad_count + report.index_errors + report.charge_errors,
    }
}
