//! Proof of what a server did, kept in files that a third party can check: `NAME.evidence` (canonical bytes,
//! [`EvidenceFile`]) and `NAME.txt` (the same as text).
//!
//! Evidence is written before the failure is reported, and is bounded: one file for each altered block, and
//! at most [`FILES_MAX`] in total.

use crate::statement::Statement;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{BlockError, BlockKind, DeviceId, Reference, StoredBlock};
use holdfast_crypto::{Digest, encode};
use holdfast_protocol::peers::AcknowledgedOperation;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most evidence files that are kept; a server that alters everything cannot fill the disk.
pub const FILES_MAX: usize = 256;

/// Largest evidence file that is read.
pub const BYTES_MAX: u64 = 64 << 20;

/// The content of an evidence file.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EvidenceFile {
    /// Format: 3 if it contains a meeting, 2 if it contains a statement or a head, else 1.
    pub format: u16,
    /// The file system.
    pub file_system: Digest,
    /// The device that noticed the offence.
    pub device: Option<DeviceId>,
    /// When the offence was noticed, in nanoseconds since 1970.
    pub noticed_ns: i64,
    /// What the evidence shows, as text.
    pub explanation: String,
    /// The proof itself.
    pub proof: Proof,
}

/// What the server sent, with what it should have sent.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Proof {
    /// The server sent another block than the one that was asked for.
    Block {
        /// The reference by which the block was requested.
        reference: Reference,
        /// The kind of block required at its place.
        kind: BlockKind,
        /// What the server sent instead.
        served: StoredBlock,
    },
    /// A block that the present view refers to and the server says it does not have.
    Missing {
        /// Address of the missing block.
        address: Digest,
        /// The view that refers to it, encoded.
        view: Vec<u8>,
    },
    /// A reply that does not extend the last accepted view, in the form that earlier versions kept: without
    /// the membership by which its signatures are checked.
    Order {
        /// The alarm, encoded.
        alarm: Vec<u8>,
        /// What was believed before (the floor), encoded.
        floor: Vec<u8>,
        /// The reply, encoded.
        reply: Vec<u8>,
    },
    /// What the server showed to a device, including a reply that the device refused, if any.
    Statement(Box<Statement>),
    /// A head that the server has signed and witnesses have co-signed, and that belongs to another history
    /// than the one accepted here.
    Head {
        /// The floor of this device, encoded.
        floor: Vec<u8>,
        /// The head with its proofs ([`holdfast_protocol::message::WitnessedHead`]), encoded.
        head: Vec<u8>,
        /// A note that the server had signed for a history of the same length, if this device was shown one.
        earlier: Option<String>,
    },
    /// What the server showed to this device, and the operation of another device that it met directly, with
    /// the server's receipt.
    Meeting {
        /// What the server had shown to this device.
        statement: Box<Statement>,
        /// What the other device has received from the server.
        met: Box<AcknowledgedOperation>,
    },
}

/// The directory of evidence.
pub struct Evidence {
    directory: PathBuf,
    file_system: Digest,
    device: Mutex<Option<DeviceId>>,
    blocks: Mutex<HashMap<Digest, PathBuf>>,
}

/// The time in nanoseconds since 1970, by this machine's clock.
pub fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos() as i64)
}

impl Evidence {
    /// Evidence about `file_system` is written to `directory`, which is made when it is first needed.
    pub fn new(directory: PathBuf, file_system: Digest) -> Evidence {
        Evidence { directory, file_system, device: Mutex::default(), blocks: Mutex::default() }
    }

    /// Sets the number of this device.
    pub fn set_device(&self, device: DeviceId) {
        *self.device.lock() = Some(device);
    }

    /// Keeps a block that is not the one requested.
    pub fn keep_block(
        &self,
        reference: &Reference,
        kind: BlockKind,
        served: &StoredBlock,
        error: &BlockError,
    ) {
        let mut blocks = self.blocks.lock();
        if blocks.contains_key(&reference.address) || blocks.len() >= FILES_MAX {
            return;
        }
        let explanation = format!(
            "The server was asked for block {} and answered with something else: {error}.",
            reference.address
        );
        let proof = Proof::Block { reference: *reference, kind, served: served.clone() };
        if let Some(path) = self.keep(&format!("block-{}", reference.address.short()), explanation, proof) {
            blocks.insert(reference.address, path);
        }
    }

    /// Keeps a missing block's address with the view that refers to it.
    pub fn keep_missing(&self, address: Digest, view: Vec<u8>, explanation: String) -> Option<PathBuf> {
        let mut blocks = self.blocks.lock();
        if let Some(path) = blocks.get(&address) {
            return Some(path.clone());
        }
        if blocks.len() >= FILES_MAX {
            return None;
        }
        let name = format!("missing-{}", address.short());
        let path = self.keep(&name, explanation, Proof::Missing { address, view })?;
        blocks.insert(address, path.clone());
        Some(path)
    }

    /// Keeps proof of a wrong order.
    pub fn keep_order(&self, explanation: String, statement: Statement) -> Option<PathBuf> {
        self.keep("order", explanation, Proof::Statement(Box::new(statement)))
    }

    /// Keeps proof of the operations lost by a declared restore of the server.
    pub fn keep_lost(&self, explanation: String, statement: Statement) -> Option<PathBuf> {
        self.keep("lost", explanation, Proof::Statement(Box::new(statement)))
    }

    /// Keeps proof of another history.
    pub fn keep_head(
        &self,
        explanation: String,
        floor: Vec<u8>,
        head: Vec<u8>,
        earlier: Option<String>,
    ) -> Option<PathBuf> {
        self.keep("head", explanation, Proof::Head { floor, head, earlier })
    }

    /// Adds to a piece of evidence the file that it concerns, as far as the mount knows; once for each path.
    pub fn concerns(&self, evidence: &Path, path: &str) {
        let _one_at_a_time = self.blocks.lock();
        let sentence = format!(" It belongs to the file {path}.");
        let amended = read(evidence).and_then(|mut file| {
            if !file.explanation.contains(&sentence) {
                file.explanation.push_str(&sentence);
                let new = evidence.with_extension("new");
                self.write(&new, &file)?;
                holdfast_durable::rename(&new, evidence)?;
            }
            Ok(())
        });
        if let Err(error) = amended {
            tracing::warn!(%error, evidence = %evidence.display(), "evidence could not be amended");
        }
    }

    /// The evidence kept about a block.
    pub fn of_block(&self, address: &Digest) -> Option<PathBuf> {
        self.blocks.lock().get(address).cloned()
    }

    /// Keeps proof of what the server showed to two devices that met.
    pub fn keep_meeting(
        &self,
        explanation: String,
        statement: Statement,
        met: AcknowledgedOperation,
    ) -> Option<PathBuf> {
        let proof = Proof::Meeting { statement: Box::new(statement), met: Box::new(met) };
        self.keep("meeting", explanation, proof)
    }

    fn keep(&self, name: &str, explanation: String, proof: Proof) -> Option<PathBuf> {
        let noticed_ns = now_ns();
        let file = EvidenceFile {
            format: match proof {
                Proof::Meeting { .. } => 3,
                Proof::Statement(_) | Proof::Head { .. } => 2,
                _ => 1,
            },
            file_system: self.file_system,
            device: *self.device.lock(),
            noticed_ns,
            explanation,
            proof,
        };
        let path = self.directory.join(format!("{noticed_ns}-{name}.evidence"));
        match self.write(&path, &file) {
            Ok(()) => Some(path),
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "evidence could not be kept");
                None
            }
        }
    }

    fn write(&self, path: &Path, file: &EvidenceFile) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        write_durably(path, &encode(file))?;
        let by = file.device.map_or("an unknown device".to_owned(), |device| format!("device {}", device.0));
        let text = format!(
            "File system: {}\nNoticed by:  {by}\nNoticed at:  {} ns since 1970-01-01 UTC\n\n{}\n\n\
             The file beside this one ({}) holds the exact bytes: `holdfast evidence verify` checks them, and \
             `holdfast evidence export` makes a file of them that others can check.\n",
            file.file_system,
            file.noticed_ns,
            file.explanation,
            path.file_name().unwrap_or_default().to_string_lossy(),
        );
        write_durably(&path.with_extension("txt"), text.as_bytes())?;
        fs::File::open(&self.directory)?.sync_all()
    }
}

/// Reads an evidence file.
///
/// # Errors
/// I/O errors; `InvalidData` if the file is not evidence.
pub fn read(path: &Path) -> io::Result<EvidenceFile> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    parse(&bytes)
}

/// Reads the content of an evidence file.
///
/// # Errors
/// `InvalidData` if the bytes are not evidence.
pub fn parse(bytes: &[u8]) -> io::Result<EvidenceFile> {
    let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    if bytes.len() as u64 > BYTES_MAX {
        return refuse(format!("more than {BYTES_MAX} bytes: no evidence is so long"));
    }
    let format = bytes.first_chunk().map(|first| u16::from_le_bytes(*first));
    match format {
        Some(1..=3) => {}
        Some(format @ 4..=64) => {
            return refuse(format!("evidence format {format} is newer than this program"));
        }
        _ => return refuse("this is no evidence of holdfast's".to_owned()),
    }
    match holdfast_crypto::decode(bytes) {
        Ok(file) => Ok(file),
        Err(error) => refuse(format!("it is cut off, or no evidence of holdfast's: {error}")),
    }
}

/// Writes an evidence file to a new path.
///
/// # Errors
/// I/O errors; `AlreadyExists`.
pub fn write_new(path: &Path, file: &EvidenceFile) -> io::Result<()> {
    let mut new = fs::File::create_new(path)?;
    new.write_all(&encode(file))?;
    new.sync_all()
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
