//! Bundles: everything that one machine has of a file system, in one file. It has what a device has accepted,
//! the leaves of the log that it stored, and the blocks of its cache to which the view refers.
//!
//! ```text
//! magic "hfbundle" | format u8 | file system (32) | records: kind u8, length u32, borsh | last record: the end
//! kinds: 1 statement   2 leaves: first u64, leaves   3 block: address, block   0 end: blocks u64
//! ```
//!
//! A file that breaks off has no end record and is refused, since its author would not know what is missing.
//! Limits: a statement of 64 MiB, other records of 8 MiB. Nothing in it is trusted: see [`super`].

use crate::statement::Statement;
use holdfast_content::StoredBlock;
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::message::AddressedBlock;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"hfbundle";
const FORMAT: u8 = 1;
const END: u8 = 0;
const STATEMENT: u8 = 1;
const LEAVES: u8 = 2;
const BLOCK: u8 = 3;
const STATEMENT_BYTES_MAX: u32 = 64 << 20;
const RECORD_BYTES_MAX: u32 = 8 << 20;

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Path of the bundle.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is not a bundle, is damaged, or was not finished.
    #[error("{path}: no whole bundle: {why}", path = .path.display())]
    Damaged {
        /// Path of the bundle.
        path: PathBuf,
        /// Why it cannot be used.
        why: String,
    },
}

/// A bundle being written. The file gets its final name when it is finished.
pub struct BundleWriter {
    file: BufWriter<File>,
    to: PathBuf,
    temporary: PathBuf,
    blocks: u64,
    bytes: u64,
}

impl BundleWriter {
    /// Starts a bundle. An existing file is not overwritten, but an unfinished bundle of the same name is.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn begin(to: &Path, statement: &Statement) -> Result<BundleWriter, BundleError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| BundleError::Io { path, source }
        };
        if fs::symlink_metadata(to).is_ok() {
            return Err(at(to)(io::ErrorKind::AlreadyExists.into()));
        }
        let mut temporary = to.as_os_str().to_owned();
        temporary.push(".unfinished");
        let temporary = PathBuf::from(temporary);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = BufWriter::new(file.map_err(at(&temporary))?);
        let mut writer = BundleWriter { file, to: to.to_owned(), temporary, blocks: 0, bytes: 0 };
        let head = [&MAGIC[..], &[FORMAT], &statement.floor.file_system().0].concat();
        writer.file.write_all(&head).map_err(at(&writer.temporary))?;
        writer.record(STATEMENT, &encode(statement))?;
        Ok(writer)
    }

    /// Adds leaves of the log from `first` on; unknown ones are zero.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn leaves(&mut self, first: u64, leaves: &[Digest]) -> Result<(), BundleError> {
        self.record(LEAVES, &encode(&(first, leaves)))
    }

    /// Adds a block.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn block(&mut self, address: Digest, block: StoredBlock) -> Result<(), BundleError> {
        self.blocks += 1;
        self.bytes += block.body.len() as u64;
        self.record(BLOCK, &encode(&AddressedBlock { address, block }))
    }

    /// Finishes the bundle; returns the number of its blocks and their bytes.
    ///
    /// # Errors
    /// [`BundleError::Io`].
    pub fn finish(mut self) -> Result<(u64, u64), BundleError> {
        self.record(END, &encode(&self.blocks))?;
        let mut finish = || -> io::Result<()> {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            // A hard link does not replace a file that was created meanwhile.
            fs::hard_link(&self.temporary, &self.to)?;
            fs::remove_file(&self.temporary)
        };
        finish().map_err(|source| BundleError::Io { path: self.to.clone(), source })?;
        Ok((self.blocks, self.bytes))
    }

    fn record(&mut self, kind: u8, body: &[u8]) -> Result<(), BundleError> {
        let mut write = || {
            self.file.write_all(&[kind])?;
            self.file.write_all(&(body.len() as u32).to_le_bytes())?;
            self.file.write_all(body)
        };
        write().map_err(|source| BundleError::Io { path: self.temporary.clone(), source })
    }
}

/// An open bundle; everything except the blocks is in memory.
pub struct Bundle {
    path: PathBuf,
    file: File,
    /// The statement of the device.
    pub statement: Statement,
    /// Runs of leaves of the log, each with the number of its first.
    pub leaves: Vec<(u64, Vec<Digest>)>,
    blocks: HashMap<Digest, (u64, u32)>,
}

impl Bundle {
    /// Opens a bundle, and reads it to its end.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn open(path: &Path) -> Result<Bundle, BundleError> {
        let damaged = |why: &str| BundleError::Damaged { path: path.to_owned(), why: why.to_owned() };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it breaks off"),
            _ => BundleError::Io { path: path.to_owned(), source },
        };
        let file = File::open(path).map_err(failed)?;
        let mut reader = BufReader::with_capacity(1 << 16, file.try_clone().map_err(failed)?);
        let mut head = [0; 41];
        reader.read_exact(&mut head).map_err(failed)?;
        if head[..8] != MAGIC[..] {
            return Err(damaged("it does not begin like one"));
        }
        if head[8] != FORMAT {
            return Err(damaged("it is of a newer form: use the newer program"));
        }
        let (mut statement, mut leaves, mut blocks) = (None::<Statement>, Vec::new(), HashMap::new());
        let (mut at, mut found) = (head.len() as u64, 0u64);
        loop {
            let mut prefix = [0; 5];
            reader.read_exact(&mut prefix).map_err(failed)?;
            let (kind, length) = (prefix[0], u32::from_le_bytes(prefix[1..].try_into().expect("4 bytes")));
            at += prefix.len() as u64;
            let most = if kind == STATEMENT { STATEMENT_BYTES_MAX } else { RECORD_BYTES_MAX };
            if length > most {
                return Err(damaged("a record in it is too long"));
            }
            if kind == BLOCK {
                // Notes only the block's place; its bytes are read when they are needed.
                let mut address = [0; 32];
                let rest = length.checked_sub(32).ok_or_else(|| damaged("a block in it has no address"))?;
                reader.read_exact(&mut address).map_err(failed)?;
                blocks.entry(Digest(address)).or_insert((at, length));
                found += 1;
                reader.seek_relative(rest.into()).map_err(failed)?;
                at += u64::from(length);
                continue;
            }
            let mut body = vec![0; length as usize];
            reader.read_exact(&mut body).map_err(failed)?;
            at += u64::from(length);
            match (kind, &statement) {
                (STATEMENT, None) => {
                    statement = Some(decode(&body).map_err(|error| damaged(&error.to_string()))?)
                }
                (LEAVES, Some(_)) => {
                    leaves.push(decode(&body).map_err(|error| damaged(&error.to_string()))?);
                }
                (END, Some(_)) if decode::<u64>(&body).ok() == Some(found) => break,
                _ => return Err(damaged("its records are out of order")),
            }
        }
        if reader.read(&mut [0]).map_err(failed)? > 0 {
            return Err(damaged("something follows its end"));
        }
        let length = file.metadata().map_err(failed)?.len();
        if at != length {
            return Err(damaged("it breaks off"));
        }
        let statement = statement.ok_or_else(|| damaged("there is no statement in it"))?;
        if statement.floor.file_system().0 != head[9..] {
            return Err(damaged("it names two file systems"));
        }
        Ok(Bundle { path: path.to_owned(), file, statement, leaves, blocks })
    }

    /// Path of the bundle.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of blocks in it.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The block that the bundle has under this address, not verified. `None` if there is none or it is
    /// unreadable.
    pub fn block(&self, address: &Digest) -> Option<StoredBlock> {
        let (at, length) = *self.blocks.get(address)?;
        let mut body = vec![0; length as usize];
        self.file.read_exact_at(&mut body, at).ok()?;
        decode::<AddressedBlock>(&body)
            .ok()
            .filter(|found| found.address == *address)
            .map(|found| found.block)
    }
}
