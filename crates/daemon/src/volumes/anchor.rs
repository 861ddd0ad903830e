//! Anchors state how new a volume must be at least. They are stored where an attacker with access to disk and
//! log has no access.
//!
//! The file has one line, `holdfast-volume-anchor-1 VOLUME NUMBER TAG`: the volume, the last log block that
//! was durable, and its tag, which covers all blocks before it. The file is replaced as a whole, and never by
//! an older anchor.
//!
//! An anchor that is bound to a TPM has a second line, `tpm COUNT TAG`: the value of the TPM's counter while
//! this anchor is the newest, under the volume's key. The file is replaced first, then the counter is
//! incremented. So only the newest of all files is accepted; after a crash between the two steps, also the
//! one before it.

use super::folders;
use super::secret::{decode_hex, hex};
use super::tpm::Counter;
use crate::paths::make_private;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::ring::Anchor;
use holdfast_volume::{AnchorKeeper, Volume, VolumeKey};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const KIND: &str = "holdfast-volume-anchor-1";

/// An anchor as a line.
pub fn format(anchor: &Anchor) -> String {
    format!("{KIND} {} {} {}\n", hex(&anchor.ring), anchor.number, hex(&anchor.tag))
}

/// Parses an anchor, and the line that binds it to a counter.
fn parse(text: &str) -> Option<(Anchor, Option<&str>)> {
    let (first, second) = match text.trim_end().split_once('\n') {
        Some((first, second)) if !second.contains('\n') => (first, Some(second)),
        Some(_) => return None,
        None => (text.trim_end(), None),
    };
    Some((parse_line(first)?, second))
}

fn parse_line(line: &str) -> Option<Anchor> {
    let mut words = line.split(' ');
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
/// The file is malformed or cannot be read; it must not be ignored then.
pub fn read(path: &Path) -> Outcome<Option<Anchor>> {
    Ok(read_bound(path)?.map(|(anchor, _)| anchor))
}

fn read_bound(path: &Path) -> Outcome<Option<(Anchor, Option<String>)>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::new(Exit::Io, format!("{}: {error}", path.display()))),
    };
    match parse(&text) {
        Some((anchor, line)) => Ok(Some((anchor, line.map(str::to_owned)))),
        None => Err(damaged(path)),
    }
}

fn damaged(path: &Path) -> Failure {
    Failure::new(Exit::Data, format!("{}: this is no anchor, or it is damaged", path.display())).hint(
        "put back a good copy of it, or move it away and attach once with --freshness-unknown if you are sure that \
         disk and log are not older copies",
    )
}

/// The status of a volume's anchor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnchorStatus {
    /// The file.
    pub file: PathBuf,
    /// Whether a counter of the TPM confirms that it is the newest.
    pub tpm: bool,
    /// The log block that it names; `None`: there is no anchor.
    pub log_block: Option<u64>,
    /// Log blocks that have become durable since; `None`: the volume is not attached.
    pub blocks_behind: Option<u64>,
    /// Whether it is written at every flush.
    pub every_flush: bool,
    /// Why it could not be written; `None`: it could.
    pub failed: Option<String>,
}

/// The file of a volume's anchor, and the counter that protects against older copies of it.
#[derive(Clone)]
pub struct AnchorStore {
    /// The file.
    pub path: PathBuf,
    /// The counter to which the anchor is bound, if any, and the volume's key.
    counter: Option<(Counter, VolumeKey)>,
}

impl AnchorStore {
    /// An anchor in a file, bound to a counter of the TPM if `tpm`.
    pub fn new(path: PathBuf, tpm: bool, key: &VolumeKey) -> AnchorStore {
        AnchorStore { path, counter: tpm.then(|| (Counter::of(&key.volume()), key.clone())) }
    }

    /// Whether it is bound to a counter.
    pub fn is_bound(&self) -> bool {
        self.counter.is_some()
    }

    /// The newest anchor; `None` if there is none.
    ///
    /// # Errors
    /// As for [`read`]; also if the anchor is older than the counter, or not bound as it should be.
    pub fn read(&self) -> Outcome<Option<Anchor>> {
        let Some((anchor, line)) = read_bound(&self.path)? else { return Ok(None) };
        let file = self.path.display();
        let older = |why: &str| {
            Failure::new(Exit::Alarm, format!("{file}: {why}")).hint(
                "find the newest copies of disk, log and anchor; or, if you are sure that disk and log are the newest, move \
                 the anchor away and attach once with --freshness-unknown",
            )
        };
        let Some((counter, key)) = &self.counter else {
            return match line {
                None => Ok(Some(anchor)),
                Some(_) => Err(Failure::new(Exit::Usage, format!("{file}: is bound to the TPM"))
                    .hint("say so with --tpm")),
            };
        };
        let (count, now) = match (line, counter.exists()?) {
            // The anchor is not bound yet.
            (None, false) => return Ok(Some(anchor)),
            (None, true) => {
                return Err(older("is not bound to the TPM, where its counter is: it is an older copy"));
            }
            (Some(_), false) => return Err(older("is bound to a counter that this TPM does not have")),
            (Some(line), true) => {
                (counted(&line, &anchor, key).ok_or_else(|| damaged(&self.path))?, counter.read()?)
            }
        };
        if count < now || count > now + 1 {
            return Err(older(&format!(
                "is of when the TPM's counter was {count}, and it is {now}: an older state was put back"
            )));
        }
        if count > now {
            // An earlier write was interrupted between the two steps.
            counter.increment()?;
        }
        Ok(Some(anchor))
    }

    /// Writes an anchor.
    ///
    /// # Errors
    /// The file cannot be written, or the counter cannot be incremented.
    pub fn write(&self, anchor: &Anchor) -> Outcome {
        let Some((counter, key)) = &self.counter else { return write(&self.path, anchor) };
        if !counter.exists()? {
            counter.make()?;
        }
        let next = counter.read()? + 1;
        let tag = key.anchor_tag(bound(anchor, next).as_bytes());
        replace(&self.path, &format!("{}tpm {next} {}\n", format(anchor), hex(&tag)))?;
        counter.increment()
    }

    /// Removes the counter, when the volume is given up.
    pub fn release(&self) {
        if let Some((counter, _)) = &self.counter
            && let Err(failure) = counter.remove()
        {
            tracing::warn!(error = failure.message, counter = counter.place(), "a counter stays in the TPM");
        }
    }
}

fn bound(anchor: &Anchor, count: u64) -> String {
    format!("{}{count}", format(anchor))
}

/// The count in the second line of an anchor, if its tag is valid for this volume.
fn counted(line: &str, anchor: &Anchor, key: &VolumeKey) -> Option<u64> {
    let (count, digits) = line.strip_prefix("tpm ")?.split_once(' ')?;
    let count: u64 = count.parse().ok().filter(|count| *count < u64::MAX)?;
    let mut tag = [0; 16];
    decode_hex(digits, &mut tag)?;
    // The comparison need not take constant time, like all tags of volumes: an attacker who can try often
    // controls the machine already.
    (key.anchor_tag(bound(anchor, count).as_bytes()) == tag).then_some(count)
}

/// Writes an anchor.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, anchor: &Anchor) -> Outcome {
    replace(path, &format(anchor))
}

fn replace(path: &Path, text: &str) -> Outcome {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_parent(parent)?;
    }
    folders::replace(path, text.as_bytes())
}

fn make_parent(parent: &Path) -> Outcome {
    if parent.is_dir() { Ok(()) } else { make_private(parent) }
}

/// Stores the anchor of a volume that is in use.
pub struct Keeper {
    kept: AnchorStore,
    written: Mutex<Option<Anchor>>,
    failed: Mutex<Option<String>>,
}

impl Keeper {
    /// A keeper that writes to `kept`.
    pub fn new(kept: AnchorStore) -> Keeper {
        Keeper { kept, written: Mutex::new(None), failed: Mutex::new(None) }
    }

    /// A keeper for a volume that does not change: it writes nothing, and `known` is the present anchor.
    pub fn unchanging(kept: AnchorStore, known: Option<Anchor>) -> Keeper {
        Keeper { kept, written: Mutex::new(known), failed: Mutex::new(None) }
    }

    /// Writes the volume's anchor, if the log has new durable blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_of(&self, volume: &Volume) -> Outcome {
        self.keep_newest(&volume.anchor())
    }

    fn keep_newest(&self, anchor: &Anchor) -> Outcome {
        // The lock is held while writing, so that an older anchor never replaces a newer one.
        let mut written = self.written.lock();
        if written.is_some_and(|written| written.number >= anchor.number) {
            return Ok(());
        }
        let result = self.kept.write(anchor);
        *self.failed.lock() = result.as_ref().err().map(|failure| failure.message.clone());
        if result.is_ok() {
            *written = Some(*anchor);
        }
        result
    }

    /// The status of the anchor.
    pub fn status(&self, volume: &Volume, every_flush: bool) -> AnchorStatus {
        let written = self.written.lock().map(|anchor| anchor.number);
        AnchorStatus {
            file: self.kept.path.clone(),
            tpm: self.kept.is_bound(),
            log_block: written,
            blocks_behind: Some(volume.anchor().number.saturating_sub(written.unwrap_or(0))),
            every_flush,
            failed: self.failed.lock().clone(),
        }
    }
}

impl AnchorKeeper for Keeper {
    fn keep(&self, anchor: &Anchor) -> Result<(), String> {
        self.keep_newest(anchor).map_err(|failure| failure.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: an anchor can be written and read back; any other content is an error, never "no anchor".
    #[test]
    fn anchors_are_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/a.anchor");
        assert_eq!(read(&path).expect("no error"), None);
        let anchor = Anchor { ring: [7; 16], number: u64::MAX, tag: [9; 16] };
        write(&path, &anchor).expect("written");
        assert_eq!(read(&path).expect("read"), Some(anchor));
        let good = std::fs::read_to_string(&path).expect("read");
        // The line for a counter depends on the anchor, the count and the key.
        let key = VolumeKey::new(&[1; 32], &[7; 16]);
        let line =
            |count: u64| format!("tpm {count} {}", hex(&key.anchor_tag(bound(&anchor, count).as_bytes())));
        assert_eq!(counted(&line(5), &anchor, &key), Some(5));
        assert_eq!(counted(&line(5).replace("tpm 5", "tpm 6"), &anchor, &key), None);
        assert_eq!(counted(&line(5), &Anchor { number: 4, ..anchor }, &key), None);
        assert_eq!(counted(&line(5), &anchor, &VolumeKey::new(&[2; 32], &[7; 16])), None);
        std::fs::write(&path, format!("{good}{}\n", line(5))).expect("written");
        assert_eq!(read(&path).expect("read"), Some(anchor));
        let kept = AnchorStore::new(path.clone(), false, &key);
        assert_eq!(kept.read().expect_err("refused").code, Exit::Usage);
        for wrong in ["", "\n", &good[..50], &format!("{} x", good.trim_end()), &good.replace(' ', "  ")] {
            std::fs::write(&path, wrong).expect("written");
            assert_eq!(read(&path).expect_err("refused").code, Exit::Data, "{wrong:?}");
        }
    }
}
