//! `holdfast volume anchor`: prints, exports and imports a volume's anchor.

use super::args::AnchorCommand;
use super::attached::attached_at;
use crate::output::Format;
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::anchor::{format, read, write};
use holdfast_daemon::volumes::folders::VolumeFolders;
use holdfast_daemon::volumes::secret::hex;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::ring::Anchor;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct AnchorOutput {
    volume: String,
    log_block: u64,
    tag: String,
}

fn shown(anchor: &Anchor) -> AnchorOutput {
    AnchorOutput { volume: hex(&anchor.ring), log_block: anchor.number, tag: hex(&anchor.tag) }
}

/// `holdfast volume anchor`
pub fn run(command: &AnchorCommand, directories: &Directories, out: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let of = |wanted: &Path| {
        let (place, about) = places.find(wanted, attached_at)?;
        let file = place.anchor_of(&about);
        let missing = || Failure::new(Exit::NoInput, format!("{}: there is no anchor of it", file.display()));
        read(&file)?.ok_or_else(missing)
    };
    match command {
        AnchorCommand::Show(which) => {
            let anchor = of(&which.volume)?;
            out.print(&shown(&anchor), |_| format(&anchor))
        }
        AnchorCommand::Export { which, to } => {
            keys::create(to, 0o600, format(&of(&which.volume)?).as_bytes())
        }
        AnchorCommand::Import { file } => {
            let no_file =
                || Failure::new(Exit::NoInput, format!("{}: there is no such file", file.display()));
            let anchor = read(file)?.ok_or_else(no_file)?;
            let place = places.of(&anchor.ring);
            // The lock makes sure that no running process updates the anchor meanwhile.
            let _lock = place.lock()?;
            if place.record().is_some_and(|about| about.tpm) {
                let message = format!("volume {} is bound to this machine's TPM", place.name());
                return Err(Failure::new(Exit::NotAllowed, message)
                    .hint("the TPM knows how new it is; no other machine's anchor counts"));
            }
            let kept = place.record().map_or(place.anchor.clone(), |about| place.anchor_of(&about));
            if let Some(known) = read(&kept)?
                && known.number > anchor.number
            {
                let message = format!(
                    "{}: is older (log block {}) than what is known here of volume {} (log block {})",
                    file.display(),
                    anchor.number,
                    place.name(),
                    known.number
                );
                return Err(Failure::new(Exit::NotAllowed, message)
                    .hint(format!("if it is right all the same, move {} away first", kept.display())));
            }
            write(&kept, &anchor)?;
            out.print(&shown(&anchor), |shown| {
                format!("volume {} was durable up to log block {}", shown.volume, shown.log_block)
            })
        }
    }
}
