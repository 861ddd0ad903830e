//! What a rebuild came to, for people and for programs.

use crate::output::table;
use holdfast_client::rebuild::losses::{Loss, LossKind};
use holdfast_client::statement::device_name;
use holdfast_content::{DeviceId, Membership};
use serde::Serialize;
use std::path::PathBuf;

/// Files told one by one.
const TOLD_MAX: usize = 100;

/// The findings.
#[derive(Serialize)]
pub struct Report {
    /// The file system.
    pub file_system: String,
    /// What its superuser calls it.
    pub name: String,
    /// Where it is.
    pub data: PathBuf,
    /// Length of the log of updates.
    pub operations: u64,
    /// How many of these are known, so that all who have seen them can be shown that they are in the log.
    pub operations_known: u64,
    /// Whether the end of the log follows from signatures, or rests on the newest device's word.
    pub log_is_proven: bool,
    /// Operations that were under way, and are to be made again by their devices.
    pub dead: usize,
    /// Blocks that the directory had.
    pub blocks_kept: u64,
    /// Blocks out of bundles.
    pub blocks_brought: u64,
    /// Their bytes.
    pub bytes_brought: u64,
    /// Blocks that nobody brought.
    pub blocks_missing: usize,
    /// What is not whole without them.
    pub lost: Vec<LostFile>,
    /// Whether these are all.
    pub all_told: bool,
    /// Bundles with blocks that are not what their addresses say, and how many; they were not used.
    pub false_blocks: Vec<(PathBuf, u64)>,
    /// How devices stand.
    pub devices: Vec<Device>,
}

/// A file that is not whole.
#[derive(Serialize)]
pub struct LostFile {
    path: String,
    lost: LossKind,
    /// Who wrote it last, and may have it.
    writer: Option<String>,
}

impl LostFile {
    /// With the name of its writer.
    pub fn of(loss: Loss, members: &Membership) -> LostFile {
        let writer = loss.writer.map(|writer| device_name(members, DeviceId(writer)));
        LostFile { path: loss.path, lost: loss.lost, writer }
    }
}

/// A device, and what it will make of the rebuilt server.
#[derive(Serialize)]
pub struct Device {
    /// Its number.
    pub number: u32,
    /// What it is called.
    pub name: String,
    /// How it stands.
    pub standing: DeviceStanding,
    /// The operations it has seen; of one not heard, up to its last known own.
    pub operations: u64,
}

/// How a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceStanding {
    /// As if nothing had happened.
    GoesOn,
    /// It cannot be shown that nothing else has changed since it last looked.
    Unproven,
    /// It brought no bundle.
    NotHeard,
}

impl Report {
    /// For people.
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
