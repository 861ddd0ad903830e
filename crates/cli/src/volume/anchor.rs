//! Anchors: how new a volume is known to be, kept where whoever has its disk and log does not reach.
//!
//! The file has one line, `holdfast-volume-anchor-1 VOLUME NUMBER TAG`: the volume, the last log block known durable and
//! its tag, which binds all before it. It is replaced whole, and never by an older one.

use super::args::AnchorCommand;
use super::places::{self, Places};
use super::secret::{decode_hex, hex};
use super::{attached_at, status};
use crate::exit::{Exit, Failure, Outcome};
use crate::keys;
use crate::output::Format;
use crate::paths::{Directories, make_private};
use holdfast_log::ring::Anchor;
use holdfast_volume::Volume;
use parking_lot::Mutex;
use serde::Serialize;
use std::path::{Path, PathBuf};

const KIND: &str = "holdfast-volume-anchor-1";

/// An anchor as a line.
pub fn format(anchor: &Anchor) -> String {
    format!("{KIND} {} {} {}\n", hex(&anchor.ring), anchor.number, hex(&anchor.tag))
}

fn parse(text: &str) -> Option<Anchor> {
    let mut words = text.trim_end().split(' ');
    let mut anchor = Anchor { ring: [0; 16], number: 0, tag: [0; 16] };
    if words.next()? != KIND {
        return None;
    }
    decode_hex(words.next()?, &mut anchor.ring)?;
    anchor.number = words.next()?.parse().ok()?;
    decode_hex(words.next()?, &mut anchor.tag)?;
    words.next().is_none().then_some(anchor)
}

/// Reads an anchor; `None` if the file is not there.
///
/// # Errors
/// It is something else, or cannot be read: that is no reason to do without it.
pub fn read(path: &Path) -> Outcome<Option<Anchor>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new(Exit::Io, format!("{}: {error}", path.display()))),
    };
    parse(&text).map(Some).ok_or_else(|| {
        Failure::new(Exit::Data, format!("{}: this is no anchor, or it is damaged", path.display())).hint(
            "put back a good copy of it, or move it away and attach once with --freshness-unknown if you are sure that \
             disk and log are not older copies",
        )
    })
}

/// Writes an anchor.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, anchor: &Anchor) -> Outcome {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_parent(parent)?;
    }
    places::replace(path, format(anchor).as_bytes())
}

fn make_parent(parent: &Path) -> Outcome {
    if parent.is_dir() { Ok(()) } else { make_private(parent) }
}

/// Keeps the anchor of a volume that is in use.
pub struct Keeper {
    path: PathBuf,
    written: Mutex<Option<Anchor>>,
    failed: Mutex<Option<String>>,
}

impl Keeper {
    /// For the file at `path`.
    pub fn new(path: PathBuf) -> Keeper {
        Keeper { path, written: Mutex::new(None), failed: Mutex::new(None) }
    }

    /// Writes it, if the log has got on.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, volume: &Volume) -> Outcome {
        // Under the lock, so that an older one never comes after a newer one.
        let mut written = self.written.lock();
        let now = volume.anchor();
        if written.is_some_and(|written| written.number >= now.number) {
            return Ok(());
        }
        let result = write(&self.path, &now);
        *self.failed.lock() = result.as_ref().err().map(|failure| failure.message.clone());
        if result.is_ok() {
            *written = Some(now);
        }
        result
    }

    /// What it is about, for people.
    pub fn status(&self, volume: &Volume, every_flush: bool) -> status::Anchored {
        let written = self.written.lock().map(|anchor| anchor.number);
        status::Anchored {
            file: self.path.clone(),
            log_block: written,
            blocks_behind: Some(volume.anchor().number.saturating_sub(written.unwrap_or(0))),
            every_flush,
            failed: self.failed.lock().clone(),
        }
    }
}

#[derive(Serialize)]
struct Shown {
    volume: String,
    log_block: u64,
    tag: String,
}

fn shown(anchor: &Anchor) -> Shown {
    Shown { volume: hex(&anchor.ring), log_block: anchor.number, tag: hex(&anchor.tag) }
}

/// `holdfast volume anchor`
pub fn run(command: &AnchorCommand, directories: &Directories, out: Format) -> Outcome {
    let places = Places::new(directories)?;
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
            keys::create(to, 0o600, format(&of(&which.volume)?).as_bytes())?;
            places::sync_parent(to)
        }
        AnchorCommand::Import { file } => {
            let no_file =
                || Failure::new(Exit::NoInput, format!("{}: there is no such file", file.display()));
            let anchor = read(file)?.ok_or_else(no_file)?;
            let place = places.of(&anchor.ring);
            // Not while a process that keeps it is running.
            let _lock = place.lock()?;
            let kept = place.about().map_or(place.anchor.clone(), |about| place.anchor_of(&about));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An anchor survives being written and read; whatever else there is is an error, never "no anchor".
    #[test]
    fn anchors_are_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/a.anchor");
        assert_eq!(read(&path).expect("no error"), None);
        let anchor = Anchor { ring: [7; 16], number: u64::MAX, tag: [9; 16] };
        write(&path, &anchor).expect("written");
        assert_eq!(read(&path).expect("read"), Some(anchor));
        let good = std::fs::read_to_string(&path).expect("read");
        for wrong in ["", "\n", &good[..50], &format!("{} x", good.trim_end()), &good.replace(' ', "  ")] {
            std::fs::write(&path, wrong).expect("written");
            assert_eq!(read(&path).expect_err("refused").code, Exit::Data, "{wrong:?}");
        }
    }
}
