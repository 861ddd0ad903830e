//! Alias pages: the principals that a process speaks for, in a page that only the runtime writes and its
//! peers read.
//!
//! Every message has the index of an entry in its sender's page. The receiver looks it up without asking
//! anybody: a valid entry yields the digest of a principal and a generation; otherwise the message is
//! refused. So no message can carry a name that was not proven to the runtime before, and a revocation takes
//! effect as soon as its one word is stored.
//!
//! The page is a memfd sealed against every writer except its maker's existing mapping
//! (`F_SEAL_FUTURE_WRITE`), against changes of its size, and against other seals. Readers get a descriptor
//! that cannot write.
//!
//! Layout, in words of eight bytes: an entry is eight words: its state, four words of digest, three unused.
//! The state is a generation that grows by one with every change: odd while the entry is valid, even while it
//! is not or is being changed. A reader reads the state, the digest and the state again, and accepts them if
//! both states are equal and odd.

use crate::error::{ComponentError, During, Result};
use crate::memory::Mapping;
use parking_lot::Mutex;
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, openat,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// The digest of a principal.
pub type PrincipalDigest = [u8; 32];

/// Entries of a page.
pub const ALIASES: u16 = 64;
const ENTRY_WORDS: usize = 8;
const PAGE_BYTES: usize = ALIASES as usize * ENTRY_WORDS * 8;
const _: () = assert!(PAGE_BYTES == 4096);

/// A principal that a message was sent on behalf of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alias {
    /// The index in the sender's table.
    pub index: u16,
    /// The digest of the principal.
    pub principal: PrincipalDigest,
    /// Changes whenever the entry does.
    pub generation: u64,
}

/// The writable side of a page, which only the runtime has.
pub struct AliasPage {
    words: Mapping,
    reader: OwnedFd,
    /// Locked while an entry is written.
    writing: Mutex<()>,
}

impl AliasPage {
    /// A page with no valid entry.
    ///
    /// # Errors
    /// The system has no memory for it, or no seals.
    pub fn create() -> Result<AliasPage> {
        let what = "making a page of aliases";
        let file = memfd_create("aliases", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).during(what)?;
        ftruncate(&file, PAGE_BYTES as u64).during(what)?;
        let words = Mapping::new(&file, PAGE_BYTES, true).during(what)?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).during("sealing a page of aliases")?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reader = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during(what)?;
        Ok(AliasPage { words, reader, writing: Mutex::new(()) })
    }

    /// A descriptor for a peer, which can read and not write.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn reader(&self) -> Result<OwnedFd> {
        self.reader.try_clone().during("handing out a page of aliases")
    }

    /// Sets the principal of an entry.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn set(&self, index: u16, principal: &PrincipalDigest) -> Result<()> {
        let _alone = self.writing.lock();
        let base = place(index)?;
        let state = self.invalidate(base);
        for (word, bytes) in principal.chunks_exact(8).enumerate() {
            self.words.store(base + 1 + word, u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        }
        self.words.store(base, state + 1);
        Ok(())
    }

    /// Revokes an entry from this moment on.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn revoke(&self, index: u16) -> Result<()> {
        let _alone = self.writing.lock();
        self.invalidate(place(index)?);
        Ok(())
    }

    /// Revokes all entries: the process is dead, and messages that it left in queues have no sender.
    pub fn revoke_all(&self) {
        let _alone = self.writing.lock();
        for index in 0..usize::from(ALIASES) {
            self.invalidate(index * ENTRY_WORDS);
        }
    }

    /// Leaves the state even, greater than before; returns it.
    fn invalidate(&self, base: usize) -> u64 {
        let state = self.words.load(base);
        let even = state + (state & 1);
        self.words.store(base, even);
        // The digest that follows must not be seen with the old state; a full fence keeps later stores
        // behind.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        even
    }
}

fn place(index: u16) -> Result<usize> {
    if index < ALIASES {
        Ok(usize::from(index) * ENTRY_WORDS)
    } else {
        Err(ComponentError::NoSuchAlias { index, count: ALIASES })
    }
}

/// The reading side: a peer's page.
pub struct AliasView(Mapping);

impl AliasView {
    /// Maps a page that the runtime passed to this process.
    ///
    /// # Errors
    /// The file is no page of aliases: its size may change under the reader, or it is too small.
    pub fn map(file: &OwnedFd) -> Result<AliasView> {
        let seals = fcntl_get_seals(file).during("looking at a page of aliases")?;
        let size = fstat(file).during("looking at a page of aliases")?.st_size;
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL | SealFlags::FUTURE_WRITE)
            || size != PAGE_BYTES as i64
        {
            return Err(ComponentError::PeerMisbehaved {
                port: "control".to_owned(),
                offence: "what was handed out is not a sealed page of aliases",
            });
        }
        Ok(AliasView(Mapping::new(file, PAGE_BYTES, false).during("mapping a page of aliases")?))
    }

    /// The principal of an entry at this moment; nobody if the entry is not valid, is being changed, or does
    /// not exist.
    pub fn resolve(&self, index: u16) -> Option<Alias> {
        let base = place(index).ok()?;
        let generation = self.0.load(base);
        if generation & 1 == 0 {
            return None;
        }
        let mut principal = [0; 32];
        for (word, bytes) in principal.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.0.load(base + 1 + word).to_le_bytes());
        }
        // Loads acquire, so this one is not reordered before those of the digest.
        (self.0.load(base) == generation).then_some(Alias { index, principal, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn pair() -> (AliasPage, AliasView) {
        let page = AliasPage::create().expect("a page");
        let view = AliasView::map(&page.reader().expect("a reader")).expect("mapped");
        (page, view)
    }

    /// An entry is invalid until it is set and after it is revoked; each change has its own generation.
    #[test]
    fn set_resolve_revoke() {
        let (page, view) = pair();
        assert_eq!(view.resolve(0), None);
        page.set(3, &[7; 32]).expect("set");
        let first = view.resolve(3).expect("valid");
        assert_eq!((first.index, first.principal), (3, [7; 32]));
        page.set(3, &[8; 32]).expect("set");
        let second = view.resolve(3).expect("valid");
        assert!(second.principal == [8; 32] && second.generation > first.generation);
        page.revoke(3).expect("revoked");
        assert_eq!(view.resolve(3), None);
        page.set(3, &[7; 32]).expect("set");
        assert!(view.resolve(3).expect("valid").generation > second.generation);
        page.set(63, &[1; 32]).expect("set");
        page.revoke_all();
        assert_eq!(
            (view.resolve(3), view.resolve(63), view.resolve(64), view.resolve(u16::MAX)),
            (None, None, None, None)
        );
        assert!(page.set(64, &[1; 32]).is_err());
    }

    /// Nobody who holds the handed-out descriptor can write the page: not by it, not re-opened, not mapped,
    /// not resized.
    #[test]
    fn readers_cannot_write() {
        let (page, view) = pair();
        page.set(0, &[1; 32]).expect("set");
        let reader = page.reader().expect("a reader");
        assert!(rustix::io::pwrite(&reader, &[9], 8).is_err());
        assert!(ftruncate(&reader, 0).is_err());
        assert!(Mapping::new(&reader, PAGE_BYTES, true).is_err());
        let again = openat(CWD, format!("/proc/self/fd/{}", reader.as_raw_fd()), OFlags::RDWR, Mode::empty());
        if let Ok(again) = again {
            assert!(rustix::io::pwrite(&again, &[9], 8).is_err());
            assert!(ftruncate(&again, 0).is_err());
            assert!(ftruncate(&again, 8192).is_err());
            assert!(Mapping::new(&again, PAGE_BYTES, true).is_err());
        }
        assert_eq!(view.resolve(0).map(|alias| alias.principal), Some([1; 32]));
    }

    /// A file that is no sealed page is refused: its size could change under the reader.
    #[test]
    fn other_files_are_refused() {
        let file = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&file, PAGE_BYTES as u64).expect("sized");
        assert!(AliasView::map(&file).is_err());
        let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
        assert!(AliasView::map(&reader).is_err());
    }

    /// A reader never sees a digest that was not set, however the writer changes the entry meanwhile.
    #[test]
    fn no_mixed_digest() {
        let (page, view) = pair();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = std::thread::scope(|scope| {
            let stopped = Arc::clone(&stop);
            let reader = scope.spawn(move || {
                let mut seen = 0u64;
                while !stopped.load(Ordering::Relaxed) {
                    if let Some(alias) = view.resolve(5) {
                        assert!(alias.principal.iter().all(|byte| *byte == alias.principal[0]), "{alias:?}");
                        seen += 1;
                    }
                }
                seen + u64::from(view.resolve(5).is_some())
            });
            for round in 0..200_000u32 {
                page.set(5, &[round as u8; 32]).expect("set");
                if round % 3 == 0 {
                    page.revoke(5).expect("revoked");
                }
            }
            page.set(5, &[1; 32]).expect("set");
            stop.store(true, Ordering::Relaxed);
            reader.join().expect("no mixture")
        });
        assert!(seen > 0);
    }
}
