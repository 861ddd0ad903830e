//! What is to be made again, as it is kept.
//!
//! ```text
//! STATE/sent-again   1 byte format = 1 | list of borsh records, what is to be done first comes first
//! ```

use super::SentAgain;
use crate::files::Record;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::floor::Floor;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Name of the file in a state directory.
const FILE: &str = "sent-again";
/// Its format.
const FORMAT: u8 = 1;

/// What one restore lost.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Work {
    /// The epoch that the restore began.
    pub epoch: Digest,
    /// What the device had accepted before.
    pub floor: Floor,
    /// Operations to be made, first to last; `None` until they are planned.
    pub batches: Option<Vec<Record>>,
    /// What became of those that are not among them any more.
    pub report: SentAgain,
}

impl Work {
    /// Nothing is planned yet.
    pub fn new(epoch: Digest, floor: Floor, kept: Option<&Path>) -> Work {
        let kept = kept.map(|path| path.display().to_string());
        Work { epoch, floor, batches: None, report: SentAgain { kept, ..SentAgain::default() } }
    }

    /// Names it in marks.
    pub fn id(&self) -> u128 {
        u128::from_le_bytes(self.epoch.0[..16].try_into().expect("16 of 32 bytes"))
    }
}

/// What is kept in a state directory.
pub fn read(state_dir: &Path) -> io::Result<Vec<Work>> {
    let bytes = match std::fs::read(state_dir.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let refuse = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    match bytes.split_first() {
        Some((&FORMAT, rest)) => decode(rest).map_err(|error| refuse(error.to_string())),
        other => Err(refuse(format!("format {:?} is not known", other.map(|(format, _)| format)))),
    }
}

/// Keeps it, durably.
pub fn save(state_dir: &Path, works: &Vec<Work>) -> io::Result<()> {
    let (path, new) = (state_dir.join(FILE), state_dir.join("sent-again.new"));
    if works.is_empty() {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return File::open(state_dir)?.sync_all(),
        }
    }
    let mut file = File::create(&new)?;
    file.write_all(&[&[FORMAT][..], &encode(works)].concat())?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    File::open(state_dir)?.sync_all()
}
