//! Looking after a volume: scrubbing, and repairing from a replica.

use crate::VolumeError;
use crate::buffers::BufferContent;
use crate::layout::BLOCK_BYTES;
use crate::map::{Value, same_tag};
use crate::volume::Volume;
use std::ops::Range;
use std::sync::Arc;

impl Volume {
    fn check_blocks(&self, blocks: &Range<u64>) -> Result<(), VolumeError> {
        match blocks.start <= blocks.end && blocks.end <= self.inner.header.blocks {
            true => Ok(()),
            false => {
                let byte = |block: u64| block.saturating_mul(BLOCK_BYTES as u64);
                Err(VolumeError::Range { offset: byte(blocks.start), end: byte(blocks.end) })
            }
        }
    }

    /// Reads blocks from the disk, bypassing buffers, and verifies them. Returns the bad ones, which are
    /// refused from now on; a block that cannot be read is bad.
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::BadMap`].
    pub fn scrub(&self, blocks: Range<u64>) -> Result<Vec<u64>, VolumeError> {
        let inner = &*self.inner;
        let block_bytes = BLOCK_BYTES as u64;
        self.check_blocks(&blocks)?;
        let mut bad = Vec::new();
        let length = (blocks.end - blocks.start) * block_bytes;
        inner.disk.drop_cache(blocks.start * block_bytes, length);
        let mut bytes = vec![0; length as usize];
        if inner.read_blocks(blocks.clone(), &mut bytes).is_ok() {
            return Ok(bad);
        }
        // One block at a time, to find which it is.
        for block in blocks {
            match inner.read_blocks(block..block + 1, &mut bytes[..BLOCK_BYTES]) {
                Ok(()) => {}
                Err(VolumeError::BadBlock { .. } | VolumeError::Io { .. }) => bad.push(block),
                Err(error) => return Err(error),
            }
        }
        Ok(bad)
    }

    /// Replaces a block, durably, with the copy from a replica, if that is what was written to the block
    /// last. Returns whether it was. The replica need not be trusted.
    ///
    /// # Errors
    /// [`VolumeError::Range`]; as [`Volume::flush`].
    pub fn repair(&self, block: u64, bytes: &[u8; BLOCK_BYTES]) -> Result<bool, VolumeError> {
        let inner = &*self.inner;
        self.check_blocks(&(block..block + 1))?;
        inner.must_run()?;
        let found = inner.key.block(block, bytes);
        loop {
            let (stamp, here) = {
                let buffers = inner.buffers.lock();
                (buffers.stamp(block), buffers.content(block))
            };
            let value = match here {
                BufferContent::Bytes(newest) => return Ok(*newest == *bytes),
                BufferContent::Value(value) => value,
                BufferContent::Nothing => inner.map.get(block)?,
            };
            if !matches!(value, Value::Known(tag) if same_tag(&tag, &found)) {
                return Ok(false);
            }
            // The usual path of a write, unless the block was written meanwhile.
            let mut buffers = inner.buffers.lock();
            if buffers.stamp(block) == stamp {
                buffers.put(block, Arc::new(*bytes));
                break;
            }
        }
        inner.mend(block..block + 1);
        self.flush()?;
        Ok(true)
    }
}
