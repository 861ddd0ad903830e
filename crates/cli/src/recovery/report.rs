//! The result of a rebuild, for people and for programs.

use crate::output::table;
use holdfast_client::rebuild::losses::{Loss, LossKind};
use holdfast_client::statement::device_name;
use holdfast_content::{DeviceId, Membership};
use serde::Serialize;
use std::path::PathBuf;

/// Most files that are listed.
const TOLD_MAX: usize = 100;

/// The result of a rebuild.
#[derive(Serialize)]
pub struct Report {
    /// The file system.
    pub file_system: String,
    /// The name that its superuser gave it.
    pub name: String,
    /// The data directory.
    pub data: PathBuf,
    /// Length of the log of updates.
    pub operations: u64,
    /// How many of these are known, so that it can be proven to those who have seen them that they are in the
    /// log.
    pub operations_known: u64,
    /// Whether the end of the log is proven by signatures, rather than resting on the newest device's
    /// statement.
    pub log_is_proven: bool,
    /// Operations that were under way and must be made again by their devices.
    pub dead: usize,
    /// Blocks that the directory had before.
    pub blocks_kept: u64,
    /// Blocks taken from bundles.
    pub blocks_brought: u64,
    /// Their bytes.
    pub bytes_brought: u64,
    /// Blocks that are in no bundle.
    pub blocks_missing: usize,
    /// The files that are incomplete without them.
    pub lost: Vec<LostFile>,
    /// Whether the list is complete.
    pub all_told: bool,
    /// Bundles with blocks that do not have their digests, and the number of these blocks, which were not
    /// used.
    pub false_blocks: Vec<(PathBuf, u64)>,
    /// The standing of each device.
    pub devices: Vec<Device>,
}

/// A file that is incomplete.
#[derive(Serialize)]
pub struct LostFile {
    path: String,
    lost: LossKind,
    /// The device that wrote it last, and that may still have it.
    writer: Option<String>,
}

impl LostFile {
    /// A lost file, with the name of its writer.
    pub fn of(loss: Loss, members: &Membership) -> LostFile {
        let writer = loss.writer.map(|writer| device_name(members, DeviceId(writer)));
        LostFile { path: loss.path, lost: loss.lost, writer }
    }
}

/// A device, and how the rebuilt server appears to it.
#[derive(Serialize)]
pub struct Device {
    /// The number of the device.
    pub number: u32,
    /// The name of the device.
    pub name: String,
    /// The standing of the device.
    pub standing: DeviceStanding,
    /// The number of operations that it has seen; if it brought no bundle, up to its last known one.
    pub operations: u64,
}

/// The standing of a device towards the rebuilt server.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceStanding {
    /// It continues as if nothing had happened.
    GoesOn,
    /// It cannot be proven to the device that nothing else has changed since it last looked.
    Unproven,
    /// It brought no bundle.
    NotHeard,
}

impl Report {
    /// The report for people.
    pub fn words(&self) -> String {
        let mut text = format!(
            "{} ({}) is rebuilt in {}, after {} operations: {} blocks brought ({} bytes), {} there before.\n",
            self.name,
            self.file_system,
            self.data.display(),
            self.operations,
            self.blocks_brought,
            self.bytes_brought,
            self.blocks_kept
        );
        for (path, count) in &self.false_blocks {
            text.push_str(&format!(
                "{}: {count} blocks in it are not what their addresses say; they were not used.\n",
                path.display()
            ));
        }
        if self.dead > 0 {
            text.push_str(&format!(
                "{} operations were under way when the server was lost; their devices make them again.\n",
                self.dead
            ));
        }
        text.push('\n');
        let rows: Vec<Vec<String>> = self.devices.iter().map(Device::row).collect();
        text.push_str(&table(&rows));
        text.push('\n');
        if self.operations_known < self.operations {
            text.push_str(&format!(
                "\n{} of {} operations in the log are known to nobody here. A device that last looked before one of them \
                 may be refused by the server, with the reason; more bundles may bring them.\n",
                self.operations - self.operations_known,
                self.operations
            ));
        }
        if !self.log_is_proven {
            text.push_str(
                "\nWhere the log ends is the newest device's word alone, as too little of the log is known. If others cannot \
                 be shown that it extends theirs, that device may have made it up: rebuild without its bundle.\n",
            );
        }
        if self.blocks_missing == 0 {
            text.push_str("\nNothing is missing. Start the server: holdfast server --data ");
            text.push_str(&format!("{}\n", self.data.display()));
            return text;
        }
        if self.lost.is_empty() {
            text.push_str(&format!(
                "\n{} blocks are missing that no file needs: they are of tables that newer ones have replaced.\n",
                self.blocks_missing
            ));
            return text;
        }
        text.push_str(&format!("\n{} blocks are missing. Not whole without them:\n", self.blocks_missing));
        for file in self.lost.iter().take(TOLD_MAX) {
            text.push_str(&file.words());
        }
        if self.lost.len() > TOLD_MAX || !self.all_told {
            text.push_str("  ... and more: --json tells all\n");
        }
        text.push_str(
            "\nReading these fails until somebody who has them in a cache makes a bundle (`holdfast fs bundle`, with --lost \
             and the list that --lost writes here to bring only those), and this is done once more with it; the server can \
             serve meanwhile, and is stopped for that.\n",
        );
        text
    }
}

impl LostFile {
    fn words(&self) -> String {
        let what = match self.lost {
            LossKind::Bytes(bytes) => format!("{bytes} bytes of it"),
            LossKind::Content => "its content".to_owned(),
            LossKind::Names => "the names in it, and what they stood for".to_owned(),
            LossKind::Everything => "all of it".to_owned(),
        };
        match &self.writer {
            Some(writer) => format!("  {}: {what}; written last by {writer}\n", self.path),
            None => format!("  {}: {what}\n", self.path),
        }
    }
}

impl Device {
    fn row(&self) -> Vec<String> {
        let standing = match self.standing {
            DeviceStanding::GoesOn => "goes on as if nothing had happened".to_owned(),
            DeviceStanding::Unproven => {
                "cannot be shown that the rebuilt log extends its own: bring more bundles, or enrol a new key for it"
                    .to_owned()
            }
            DeviceStanding::NotHeard => format!(
                "brought nothing: it goes on if it has seen no more than this, and made nothing after operation {} of \
                 the log",
                self.operations
            ),
        };
        vec![self.name.clone(), standing]
    }
}
