//! The durable record of operations that a restore lost and that are to be made again.
//!
//! ```text
//! STATE/sent-again   1 byte format = 2 | list of borsh records, next one first
//! ```
//!
//! Format 1 had no earlier views.

use super::ResendReport;
use crate::files::Record;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::structure::View;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Name of the file in a state directory.
const FILE: &str = "sent-again";
/// Format in which the file is written.
const FORMAT: u8 = 2;

/// What one restore lost of this device's operations, and which of them are still to be made again.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LostWork {
    /// The epoch that the restore began.
    pub epoch: Digest,
    /// The floor that the device had accepted before the restore.
    pub floor: Floor,
    /// Earlier accepted views, newest first, of which more data is on this machine; emptied once the plan is
    /// made.
    pub earlier: Vec<View>,
    /// Operations still to be made, in their order; `None` until they are planned.
    pub batches: Option<Vec<Record>>,
    /// Report on the operations that were already handled.
    pub report: ResendReport,
}

impl LostWork {
    /// The work of a restore, with nothing planned yet.
    pub fn new(epoch: Digest, floor: Floor, earlier: Vec<View>, kept: Option<&Path>) -> LostWork {
        let kept = kept.map(|path| path.display().to_string());
        LostWork {
            epoch,
            floor,
            earlier,
            batches: None,
            report: ResendReport { kept, ..ResendReport::default() },
        }
    }

    /// Number that distinguishes this work's marks at the server from those of other works.
    pub fn id(&self) -> u128 {
        u128::from_le_bytes(self.epoch.0[..16].try_into().expect("16 of 32 bytes"))
    }
}

/// The record of format 1.
#[derive(BorshSerialize, BorshDeserialize)]
struct LostWorkV1 {
    epoch: Digest,
    floor: Floor,
    batches: Option<Vec<Record>>,
    report: ResendReport,
}

impl From<LostWorkV1> for LostWork {
    fn from(LostWorkV1 { epoch, floor, batches, report }: LostWorkV1) -> LostWork {
        LostWork { epoch, floor, earlier: Vec::new(), batches, report }
    }
}

/// Reads the list of works in a state directory.
pub fn read(state_dir: &Path) -> io::Result<Vec<LostWork>> {
    let bytes = match std::fs::read(state_dir.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let refuse = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    match bytes.split_first() {
        Some((&FORMAT, rest)) => decode(rest).map_err(|error| refuse(error.to_string())),
        Some((1, rest)) => match decode::<Vec<LostWorkV1>>(rest) {
            Ok(works) => Ok(works.into_iter().map(LostWork::from).collect()),
            Err(error) => Err(refuse(error.to_string())),
        },
        other => Err(refuse(format!("format {:?} is not known", other.map(|(format, _)| format)))),
    }
}

/// Saves the list of works durably.
pub fn save(state_dir: &Path, works: &Vec<LostWork>) -> io::Result<()> {
    let path = state_dir.join(FILE);
    match works.is_empty() {
        true => holdfast_durable::remove(&path),
        false => holdfast_durable::replace(
            &path,
            &[&[FORMAT][..], &encode(works)].concat(),
            holdfast_durable::PRIVATE,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::DeviceId;
    use holdfast_crypto::{DigestKey, Domain, SigningKey};

    /// Proves: a file in the earlier format is read, and then saved in the present format.
    #[test]
    fn the_format_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let floor = Floor::new(SigningKey::from_seed(&[1; 32]).public(), DeviceId(3));
        let before =
            LostWorkV1 { epoch: Digest([7; 32]), floor, batches: None, report: ResendReport::default() };
        let expected = LostWork::new(before.epoch, before.floor.clone(), Vec::new(), None);
        let (before, now) = (encode(&vec![before]), encode(&vec![expected.clone()]));
        // Golden: such a record in the two formats.
        let digest = |bytes: &Vec<u8>| DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes).to_string();
        assert_eq!(
            [&before, &now].map(digest),
            [
                "d89b66b16db3e172afd73614fefb0dbe51631b1c8977fd4d777b56f428202011",
                "4e35947cb82c6d3fc7a48998191fc12036350d6368d533cd7835f4cc37a5c3ab"
            ]
        );
        std::fs::write(directory.path().join(FILE), [&[1][..], &before].concat()).expect("written");
        let works = read(directory.path()).expect("it is read");
        assert_eq!(works, [expected]);
        save(directory.path(), &works).expect("saved");
        assert_eq!(read(directory.path()).expect("it is read"), works);
    }
}
