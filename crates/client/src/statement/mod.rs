//! Statements: what a device can prove to a third party about the views it was shown. A statement can be
//! checked with nothing but the file system's id ([`verify()`]), and two of them can be compared file by file
//! ([`compare()`]).
//!
//! A statement has the device's floor (its own last structure with the server's receipt, the last accepted
//! view with everybody's structures, the superuser's key and list of server keys); the membership by which
//! the signatures are checked; the refused reply, if there was one; and as many small blocks (tables, inodes,
//! directories) as fit, so that files can be named without a server. It has no chunks of files; small files
//! are in their inodes.
//!
//! Invariant: nothing in a statement is believed only because the teller says so. What signatures cover is
//! checked. What they do not cover (which view was shown when, what was refused) is reported as the teller's
//! word.
//!
//! Attack answered: a server that shows two people different histories and denies it, and a person who
//! invents such a story.

mod blocks;
mod branch;
mod copy;
mod explanation;
mod verify;

pub use blocks::{CacheOnly, Sources};
pub use branch::{Branch, Comparison, Difference, Limits, PathDifference, Version, compare};
pub use verify::{Conclusion, LabeledStatement, StatementView, UnusableStatement, Verdict, branch, verify};

use crate::evidence::{EvidenceFile, Proof, now_ns};
use blocks::Recorder;
use borsh::{BorshDeserialize, BorshSerialize};
use branch::walk;
use holdfast_content::{BlockKind, BlockSource, DeviceId, Membership, Reference};
use holdfast_crypto::decode;
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{AddressedBlock, ViewReply};
use holdfast_protocol::structure::View;
use std::sync::Arc;

/// Most bytes of blocks in a statement.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Most files whose attributes are put into a statement.
const FILES_MAX: u64 = 100_000;

/// A device's statement about the views it was shown.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statement {
    /// The floor: the newest view that the device had accepted, with the edge of the log.
    pub floor: Floor,
    /// The reply that it refused, if there was one.
    pub refused: Option<RefusedReply>,
    /// Blocks that these views refer to: the membership, then metadata as far as available.
    pub blocks: Vec<AddressedBlock>,
    /// Whether the blocks include all metadata of the accepted view.
    pub is_whole: bool,
}

/// A reply that was refused.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct RefusedReply {
    /// The alarm that it raised.
    pub alarm: Alarm,
    /// The reply, if it was a view.
    pub reply: Option<ViewReply>,
}

impl Statement {
    /// A statement about what `floor` has accepted and, if given, what was then refused, with the membership
    /// from `source`.
    pub fn of(floor: Floor, refused: Option<RefusedReply>, source: &dyn BlockSource) -> Statement {
        let mut statement = Statement { floor, refused, blocks: Vec::new(), is_whole: false };
        let wanted: Vec<Reference> =
            statement.views().filter_map(|view| membership_wanted(&statement.floor, view).ok()).collect();
        for reference in wanted {
            if let Ok(block) = source.fetch(&reference, BlockKind::Membership) {
                statement.add(AddressedBlock { address: reference.address, block: block.to_stored() });
            }
        }
        statement
    }

    /// The statement in evidence of any format; `None` if the evidence is not about the order.
    pub fn of_evidence(evidence: &EvidenceFile) -> Option<Statement> {
        match &evidence.proof {
            Proof::Statement(statement) | Proof::Meeting { statement, .. } => {
                Some(Statement::clone(statement))
            }
            Proof::Order { alarm, floor, reply } => {
                let reply = decode(reply).ok();
                let refused = decode(alarm).ok().map(|alarm| RefusedReply { alarm, reply });
                let floor = decode(floor).ok()?;
                Some(Statement { floor, refused, blocks: Vec::new(), is_whole: false })
            }
            Proof::Block { .. } | Proof::Missing { .. } | Proof::Head { .. } => None,
        }
    }

    /// Turns the statement into evidence, with an explanation for the user.
    pub fn into_evidence(self, explanation: String) -> EvidenceFile {
        EvidenceFile {
            format: 2,
            file_system: self.floor.file_system(),
            device: Some(self.floor.device),
            noticed_ns: now_ns(),
            explanation,
            proof: Proof::Statement(Box::new(self)),
        }
    }

    /// The accepted view and the refused one.
    pub fn views(&self) -> impl Iterator<Item = &View> {
        let refused = self.refused.as_ref().and_then(|refused| refused.reply.as_ref());
        [Some(&self.floor.view), refused.map(|reply| &reply.view)].into_iter().flatten()
    }

    /// Adds metadata blocks that `source` has, within [`BLOCK_BYTES_MAX`].
    pub fn fill(&mut self, source: Arc<dyn BlockSource + Send + Sync>) {
        let recorder = Arc::new(Recorder::new(source, BLOCK_BYTES_MAX));
        for address in self.blocks.iter().map(|block| block.address) {
            recorder.know(address);
        }
        let mut whole = true;
        let views: Vec<View> = self.views().cloned().collect();
        for (index, view) in views.iter().enumerate() {
            let Ok(reference) = membership_wanted(&self.floor, view) else { continue };
            let Ok(membership) = Membership::load(&*recorder, &reference) else {
                whole &= index > 0;
                continue;
            };
            let device = self.floor.device;
            let branch = Branch::reading(view.clone(), membership, device, recorder.clone());
            let read_all = walk(&branch, FILES_MAX);
            whole &= read_all || index > 0;
        }
        let (blocks, all_kept) = recorder.take();
        for block in blocks {
            self.add(block);
        }
        self.is_whole = whole && all_kept;
    }

    fn add(&mut self, block: AddressedBlock) {
        if !self.blocks.iter().any(|known| known.address == block.address) {
            self.blocks.push(block);
        }
    }
}

/// The name of a device for messages, according to a membership.
pub fn device_name(membership: &Membership, device: DeviceId) -> String {
    match membership.devices.get(&device) {
        Some(known) => {
            let user = membership.users.get(&known.user).map_or("?", |user| user.name.as_str());
            if user == known.name {
                format!("{user} (device {})", device.0)
            } else {
                format!("{user}'s {} (device {})", known.name, device.0)
            }
        }
        None => format!("device {}", device.0),
    }
}
