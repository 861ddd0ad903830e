//! Several writes of which a crash leaves all or none. For file systems without a metadata journal, this
//! volume's log is the journal: recovering the log recovers them.
//!
//! All blocks are in one record. Recovery uses a record whole or not at all, and none of its blocks is
//! written to the disk before the record is durable.

use crate::VolumeError;
use crate::buffers::Stamp;
use crate::layout::BLOCK_BYTES;
use crate::map::Value;
use crate::records::{CLIENT, TOGETHER};
use crate::volume::{Inner, Volume};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A block's new content, and the stamp of the content from which it was computed if a part of it stays.
struct Image {
    bytes: [u8; BLOCK_BYTES],
    before: Option<Stamp>,
}

impl Volume {
    /// Most blocks that may be [written together](Volume::write_together), whole or in part.
    pub fn together_max(&self) -> usize {
        self.inner.together_max()
    }

    /// Writes whole sectors at several byte offsets, later ones over earlier ones. After a crash either all
    /// of a call is there or nothing, and a call is there only with all calls before it. Durable after
    /// [`Volume::flush`].
    ///
    /// # Errors
    /// As of [`Volume::write`]; [`VolumeError::Size`] for more than [`Volume::together_max`] blocks: nothing
    /// was written.
    pub fn write_together(&self, writes: &[(u64, &[u8])]) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        for (offset, bytes) in writes {
            inner.check(*offset, bytes.len() as u64)?;
        }
        inner.must_run()?;
        inner.wait_for_room()?;
        let _parts = inner.partial.lock();
        let _one = inner.hashing.lock();
        loop {
            let images = inner.images(writes)?;
            if images.len() > inner.together_max() {
                return Err(VolumeError::Size(format!(
                    "{} blocks are too many to be written together; this log takes {}",
                    images.len(),
                    inner.together_max()
                )));
            }
            if inner.log_together(&images).map_err(|error| inner.stop_with(error))? {
                let bytes: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
                inner.counters.written_bytes.fetch_add(bytes as u64, Relaxed);
                images.keys().for_each(|block| inner.mend(*block..block + 1));
                return Ok(());
            }
        }
    }
}

impl Inner {
    fn together_max(&self) -> usize {
        self.batch_bytes() as usize / (BLOCK_BYTES + 8)
    }

    /// The blocks that `writes` make, with the parts that they leave read and verified.
    fn images(&self, writes: &[(u64, &[u8])]) -> Result<BTreeMap<u64, Image>, VolumeError> {
        let mut images = BTreeMap::new();
        for (offset, bytes) in writes {
            let (mut offset, mut rest) = (*offset, *bytes);
            while !rest.is_empty() {
                let block = offset / BLOCK_BYTES as u64;
                let skipped = (offset % BLOCK_BYTES as u64) as usize;
                let (now, after) = rest.split_at(rest.len().min(BLOCK_BYTES - skipped));
                let image = match images.entry(block) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        let mut image = Image { bytes: [0; BLOCK_BYTES], before: None };
                        if now.len() < BLOCK_BYTES {
                            image.before = Some(self.buffers.lock().stamp(block));
                            self.read_blocks(block..block + 1, &mut image.bytes)?;
                        }
                        place.insert(image)
                    }
                };
                image.bytes[skipped..skipped + now.len()].copy_from_slice(now);
                (offset, rest) = (offset + now.len() as u64, after);
            }
        }
        Ok(images)
    }

    /// Makes the record and the buffers of it at once; `false` if a block of which a part stays has changed meanwhile.
    /// The caller holds the lock of `hashing`.
    fn log_together(&self, images: &BTreeMap<u64, Image>) -> Result<bool, VolumeError> {
        if images.is_empty() {
            return Ok(true);
        }
        self.have_room()?;
        self.keep_few_candidates(images.keys().copied())?;
        let numbers: Vec<u8> = images.keys().flat_map(|block| block.to_le_bytes()).collect();
        let mut parts: Vec<&[u8]> = vec![&numbers];
        parts.extend(images.values().map(|image| &image.bytes[..]));
        let tags: Vec<_> = images.iter().map(|(block, image)| self.key.block(*block, &image.bytes)).collect();
        self.counters.hashed.fetch_add(tags.len() as u64, Relaxed);
        // No other thread writes these blocks between the record and the buffers, so that the log has them in
        // one order.
        let mut buffers = self.buffers.lock();
        let is_same =
            |(block, image): (&u64, &Image)| image.before.is_none_or(|s| s == buffers.stamp(*block));
        if !images.iter().all(is_same) {
            return Ok(false);
        }
        let place = self.ring.append_reserved(CLIENT, TOGETHER, &parts)?;
        for ((block, image), tag) in images.iter().zip(tags) {
            buffers.put_logged(*block, Arc::new(image.bytes), &place, Value::Known(tag));
        }
        Ok(true)
    }
}
