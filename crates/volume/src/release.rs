//! Giving the plain disk back.

use crate::VolumeError;
use crate::layout::{BLOCK_BYTES, io};
use crate::map::Value;
use crate::volume::Volume;

/// Most blocks read at once.
const RUN_BLOCKS: u64 = 256;

impl Volume {
    /// Closes the volume and gives the disk the volume's content: everything is written to it, and discarded
    /// blocks that read as zeroes are zeroed. `progress` gets the number of blocks done and of all, and
    /// returns whether to continue. Returns whether everything is done. Until then, and afterwards, the
    /// volume can still be opened.
    ///
    /// # Errors
    /// As [`Volume::close`]; [`VolumeError::BadMap`].
    pub fn release(&self, progress: &dyn Fn(u64, u64) -> bool) -> Result<bool, VolumeError> {
        self.close()?;
        let inner = &*self.inner;
        let blocks = inner.header.blocks;
        let block_bytes = BLOCK_BYTES as u64;
        let mut bytes = vec![0; RUN_BLOCKS as usize * BLOCK_BYTES];
        let mut at = 0;
        while at < blocks && progress(at, blocks) {
            let end = blocks.min(at + RUN_BLOCKS);
            let mut gone = Vec::new();
            for block in at..end {
                if inner.map.get(block)? == Value::Discarded {
                    gone.push(block);
                }
            }
            for run in gone.chunk_by(|a, b| a + 1 == *b) {
                let offset = run[0] * block_bytes;
                let found = &mut bytes[..run.len() * BLOCK_BYTES];
                io(&*inner.disk, "reading", inner.disk.read_at(offset, found))?;
                // Holes of an image stay holes.
                for (at, block) in found.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                    if block.iter().any(|byte| *byte != 0) {
                        block.fill(0);
                        let offset = offset + at as u64 * block_bytes;
                        io(&*inner.disk, "writing", inner.disk.write_at(offset, block))?;
                    }
                }
            }
            at = end;
        }
        io(&*inner.disk, "flushing", inner.disk.flush())?;
        progress(at, blocks);
        Ok(at == blocks)
    }
}
