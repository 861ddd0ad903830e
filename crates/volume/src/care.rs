//! Looking after a volume: scrubbing, and repairing from a replica.

use crate::VolumeError;
use crate::layout::{BLOCK_BYTES, io};
use crate::map::{Value, same_tag};
use crate::volume::Volume;
use std::ops::Range;

impl Volume {
    /// Reads blocks from the disk itself and verifies them. Bad ones are returned, and refused from now on; a block that
    /// cannot be read counts as bad.
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::BadMap`].
    pub fn scrub(&self, blocks: Range<u64>) -> Result<Vec<u64>, VolumeError> {
        let inner = &*self.inner;
        let block_bytes = BLOCK_BYTES as u64;
        if blocks.end > inner.header.blocks {
            return Err(VolumeError::Range {
                offset: blocks.start * block_bytes,
                end: blocks.end * block_bytes,
            });
        }
        let mut bad = Vec::new();
        let length = (blocks.end - blocks.start) * block_bytes;
        inner.disk.drop_cache(blocks.start * block_bytes, length);
        let mut bytes = vec![0; length as usize];
        if inner.read_blocks(blocks.clone(), &mut bytes).is_ok() {
            return Ok(bad);
        }
        // One at a time, to tell which.
        for block in blocks {
            match inner.read_blocks(block..block + 1, &mut bytes[..BLOCK_BYTES]) {
                Ok(()) => {}
                Err(VolumeError::BadBlock { .. } | VolumeError::Io { .. }) => bad.push(block),
                Err(error) => return Err(error),
            }
        }
        Ok(bad)
    }

    /// Writes what a replica has for a block to the disk, if that is what was written to it last. Whether it was. The
    /// replica need not be trusted.
    ///
    /// # Errors
    /// [`VolumeError::Io`], [`VolumeError::BadMap`], [`VolumeError::Stopped`].
    pub fn repair(&self, block: u64, bytes: &[u8; BLOCK_BYTES]) -> Result<bool, VolumeError> {
        let inner = &*self.inner;
        inner.must_run()?;
        // Nobody writes the block meanwhile, and it has no hash that is not stable.
        self.flush()?;
        inner.checkpoint_all().map_err(|error| inner.stop_with(error))?;
        let Value::Known(tag) = inner.map.get(block)? else { return Ok(false) };
        if !same_tag(&inner.key.block(block, bytes), &tag) {
            return Ok(false);
        }
        io(&*inner.disk, "writing", inner.disk.write_at(block * BLOCK_BYTES as u64, bytes))?;
        io(&*inner.disk, "flushing", inner.disk.flush())?;
        inner.mend(block..block + 1);
        Ok(true)
    }
}
