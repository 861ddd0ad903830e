//! `holdfast server convert`: moves a server between one machine, a block server, a bucket and etcd, in any
//! direction.

use super::operate::{as_owner, config};
use crate::args::ServerConvert;
use crate::output::{Format, bytes_bar, clean};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_server::{ConvertError, ConvertReport, ConvertedFileSystem, Destination};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct ConvertOutput<'a> {
    data: &'a Path,
    /// Whether everything had been converted before.
    was_done: bool,
    file_systems: Vec<Moved>,
}

#[derive(Serialize)]
struct Moved {
    file_system: String,
    operations: u64,
    blocks: u64,
    sent_blocks: u64,
    sent_bytes: u64,
    damaged: Vec<String>,
    broken_holds: Vec<String>,
    signed_blocks_left: u64,
    devices_charged_otherwise: u64,
}

/// `holdfast server convert`
pub fn run(arguments: &ServerConvert, format: Format) -> Outcome {
    let destination = Destination {
        data: arguments.to.clone(),
        blocks: arguments.blocks.clone(),
        order: arguments.order.clone(),
        order_login: arguments.order_login.clone(),
    };
    let bar = bytes_bar("copying");
    let done = holdfast_server::convert(&config(&arguments.data), &destination, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let ConvertReport { file_systems, was_done } = done.map_err(explain)?;
    let has_damage = file_systems.iter().any(|one| !one.damaged.is_empty());
    let file_systems = file_systems.into_iter().map(Moved::from).collect();
    let told = ConvertOutput { data: &arguments.to, was_done, file_systems };
    format.print(&told, ConvertOutput::text)?;
    match has_damage {
        false => Ok(()),
        true => Err(Failure::new(Exit::Data, "all was moved but blocks that are damaged in the old directory")
            .hint("a client that has them stores them again when it uses them; or put the old directory right, and begin anew")),
    }
}

fn explain(error: ConvertError) -> Failure {
    match error {
        ConvertError::Open(error) => error.into(),
        ConvertError::NoServer(_) => Failure::new(Exit::NoInput, error),
        ConvertError::NotOwner { owner, .. } => Failure::new(Exit::NotAllowed, error).hint(as_owner(owner)),
        ConvertError::Refused(_) => Failure::new(Exit::Usage, error),
        ConvertError::Io { .. } => Failure::new(Exit::Io, error),
        ConvertError::Damaged(_) => Failure::new(Exit::Data, error),
        ConvertError::Place(_) => Failure::new(Exit::Unavailable, error),
    }
}

impl From<ConvertedFileSystem> for Moved {
    fn from(one: ConvertedFileSystem) -> Moved {
        Moved {
            file_system: one.file_system.to_string(),
            operations: one.operations,
            blocks: one.blocks,
            sent_blocks: one.sent_blocks,
            sent_bytes: one.sent_bytes,
            damaged: one.damaged,
            broken_holds: one.broken_holds,
            signed_blocks_left: one.signed_blocks,
            devices_charged_otherwise: one.other_charges,
        }
    }
}

impl Moved {
    fn lines(&self, lines: &mut Vec<String>) {
        lines.push(format!(
            "{}: {} operations; {} blocks are there, {} of them ({} bytes) were sent now",
            self.file_system, self.operations, self.blocks, self.sent_blocks, self.sent_bytes
        ));
        for damaged in self.damaged.iter().take(100) {
            lines.push(format!("  LEFT OUT, because it is damaged: block {}", clean(damaged)));
        }
        for hold in &self.broken_holds {
            lines.push(format!("  LEFT OUT, because it is not whole: hold {}", clean(hold)));
        }
        if self.signed_blocks_left > 0 {
            lines.push(format!("  LEFT OUT: {} signed blocks (VSTORE)", self.signed_blocks_left));
        }
        if self.devices_charged_otherwise > 0 {
            lines.push(format!(
                "  {} devices are charged for something else than before, until the next collection at the latest",
                self.devices_charged_otherwise
            ));
        }
    }
}

impl ConvertOutput<'_> {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        self.file_systems.iter().for_each(|one| one.lines(&mut lines));
        if self.file_systems.is_empty() && !self.was_done {
            lines.push("There was no file system.".to_owned());
        }
        lines.push(format!(
            "All is at the new place: start the server with --data {}. No server starts on the old directory any more; keep \
             it until you are content, then remove it.",
            self.data.display()
        ));
        lines.join("\n")
    }
}
