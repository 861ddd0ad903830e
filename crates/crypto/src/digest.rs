//! Keyed, domain-separated BLAKE3-256.

use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt;

/// A 32-byte BLAKE3 digest. `Display` prints 64 hexadecimal digits; `Debug` the first 12.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// All zeroes: stands for "nothing yet" where a format says so. No known input has this digest.
    pub const ZERO: Digest = Digest([0; 32]);

    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Digest> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut out = [0u8; 32];
        for (index, pair) in bytes.chunks_exact(2).enumerate() {
            let high = (pair[0] as char).to_digit(16)?;
            let low = (pair[1] as char).to_digit(16)?;
            out[index] = (high * 16 + low) as u8;
        }
        Some(Digest(out))
    }

    /// The first 12 hexadecimal digits, for messages.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", self.short())
    }
}

/// The kind of content that a digest is of. The number is part of every digest ever made: never reuse or
/// renumber.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Domain {
    /// Data chunk block.
    Chunk = 1,
    /// Merkle map leaf block.
    MapLeaf = 2,
    /// Merkle map inner block.
    MapInner = 3,
    /// Inode block.
    Inode = 4,
    /// I-handle block (table root and its change log).
    Table = 5,
    /// Membership block.
    Membership = 6,
    /// File system id: digest of the superuser's public key.
    FileSystem = 16,
    /// Update certificate, as signed.
    Certificate = 17,
    /// Version structure without i-handles (the forecast, L).
    Forecast = 18,
    /// Version structure, as signed.
    Structure = 19,
    /// List of server keys, as signed by the superuser.
    ServerKeys = 20,
    /// Commit receipt, as signed by a server.
    Receipt = 21,
    /// Leaf of the log of updates.
    LogLeaf = 22,
    /// Inner node of the log of updates.
    LogNode = 23,
    /// In-memory canonical map root (version vectors, void sets): leaf.
    SetLeaf = 24,
    /// In-memory canonical map root: inner node.
    SetInner = 25,
    /// Content-defined boundaries of Merkle maps and chunks.
    Boundary = 26,
    /// Request that creates a file system.
    CreateFileSystem = 27,
    /// Signed block (VSTORE).
    SignedBlock = 28,
    /// Record in a local state file or log.
    LocalRecord = 29,
    /// Evidence file.
    Evidence = 30,
    /// Change of a file system's membership, as its superuser signs it off-line.
    Warrant = 31,
    /// Restore of a server, as its file system's superuser declares it; and the epoch that begins with it.
    Restore = 33,
    /// Messages of clients that look for each other, before they are introduced.
    Meeting = 32,
    /// Slots of a view that is sent as a difference.
    Slots = 34,
    /// Set of keys of a release: its id, and as signed.
    ReleaseKeys = 40,
    /// Record of a release, as signed.
    ReleaseRecord = 41,
    /// Renewal of a release's freshness, as signed.
    ReleaseFreshness = 42,
    /// Revocation of a release, as signed.
    ReleaseRevocation = 43,
    /// File of a release: pack, index, hints.
    ReleaseFile = 44,
    /// Path in a release.
    ReleasePath = 45,
    /// Revocation of a writable file system, as signed.
    FileSystemRevocation = 46,
    /// Name for a past state of a file system, as signed.
    Snapshot = 50,
    /// End of such a name, as signed.
    SnapshotEnd = 51,
    /// Principal of the access logic.
    Principal = 60,
    /// Code and configuration of a process: its hash group.
    Program = 61,
    /// Credential, as signed or spoken.
    Credential = 62,
    /// Principal together with a restriction: an alias.
    Alias = 63,
    /// Block of a policy table.
    PolicyBlock = 64,
    /// Owner and ACL of blocks, as interned by a policy table.
    PolicyLabel = 65,
    /// Executable file of a program, whole.
    Executable = 80,
    /// List of the executables of a package, as signed.
    PackageManifest = 81,
}

/// Inputs up to this many bytes are digested in one call.
const SHORT_BYTES: usize = 120;

/// Keys every digest of one file system (the read-only paper's `iv`).
#[derive(Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct DigestKey(pub [u8; 32]);

impl DigestKey {
    /// The well-known key: equal content has equal addresses across file systems that use it.
    pub const WELL_KNOWN: DigestKey = DigestKey(*b"holdfast well-known digest key 1");

    /// Digest of `bytes` in `domain`.
    pub fn digest(&self, domain: Domain, bytes: &[u8]) -> Digest {
        // Short inputs, such as keys of maps, in one call: an incremental hasher costs more than the hash.
        let mut framed = [0u8; SHORT_BYTES + 8];
        match framed.get_mut(8..8 + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                framed[0] = domain as u8;
                Digest(*blake3::keyed_hash(&self.0, &framed[..8 + bytes.len()]).as_bytes())
            }
            None => self.hasher(domain).update(bytes).finish(),
        }
    }

    /// Starts an incremental digest in `domain`.
    pub fn hasher(&self, domain: Domain) -> DigestHasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[domain as u8, 0, 0, 0, 0, 0, 0, 0]);
        DigestHasher(hasher)
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::WELL_KNOWN { "DigestKey(well-known)" } else { "DigestKey(private)" })
    }
}

/// An incremental digest.
pub struct DigestHasher(blake3::Hasher);

impl DigestHasher {
    /// Adds bytes.
    pub fn update(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Ends the digest.
    pub fn finish(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}
