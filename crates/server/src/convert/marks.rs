//! The two marks that prevent a data directory and its converted copy from both being served, as a conversion
//! sets them.

use super::error::{ConvertError, failed, put_file};
use crate::moved::{CONVERTED, CONVERTING, converted, refusal};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const FIRST_LINE: &str = "holdfast converting 1";
const CHECKED: &str = "checked";

/// What is moved where. A conversion that is continued must have the same plan.
pub(super) struct ConversionPlan {
    pub(super) from: PathBuf,
    pub(super) blocks: String,
    pub(super) order: String,
}

impl ConversionPlan {
    fn text(&self) -> String {
        format!("{FIRST_LINE}\nfrom {}\nblocks {}\norder {}\n", self.from.display(), self.blocks, self.order)
    }
}

/// The mark in the new directory.
pub(super) struct ConversionMark {
    path: PathBuf,
    text: String,
    checked: bool,
}

impl ConversionMark {
    /// Creates the new directory with its mark, or continues those of an earlier attempt with the same plan.
    pub(super) fn of(data: &Path, begun: &ConversionPlan) -> Result<ConversionMark, ConvertError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data)
            .map_err(failed("creating", data))?;
        let (path, text) = (data.join(CONVERTING), begun.text());
        let checked = match std::fs::read_to_string(&path) {
            Ok(found) if found == text => false,
            Ok(found) if found.strip_prefix(&text) == Some(CHECKED) => true,
            Ok(found) => {
                return Err(ConvertError::Refused(format!(
                    "something else was begun there: {} says\n{}",
                    path.display(),
                    found.trim_end()
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // An earlier attempt may have been interrupted while it wrote the mark.
                let is_other = |name: &std::ffi::OsString| name != "converting.partial";
                let mut names = std::fs::read_dir(data).map_err(failed("reading", data))?;
                if names.any(|entry| entry.map_or(true, |entry| is_other(&entry.file_name()))) {
                    return Err(ConvertError::Refused(format!(
                        "{} has something in it: the new data directory must be empty",
                        data.display()
                    )));
                }
                put_file(&path, text.as_bytes())?;
                false
            }
            Err(error) => return Err(failed("reading", &path)(error)),
        };
        Ok(ConversionMark { path, text, checked })
    }

    /// Whether the destination was found to be empty, so that everything there now is from this conversion.
    pub(super) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Notes that the destination was empty before the conversion.
    pub(super) fn checked(&mut self) -> Result<(), ConvertError> {
        self.checked = true;
        put_file(&self.path, format!("{}{CHECKED}", self.text).as_bytes())
    }

    /// Removes the mark: everything has been moved, so a server may start.
    pub(super) fn take_away(self) -> Result<(), ConvertError> {
        std::fs::remove_file(&self.path).map_err(failed("removing", &self.path))?;
        let data = self.path.parent().unwrap_or(Path::new("."));
        holdfast_durable::sync_directory(data).map_err(failed("writing", data))
    }
}

/// The text of the mark in the old directory.
pub(super) fn converted_text(new: &Path, begun: &ConversionPlan) -> Result<String, ConvertError> {
    let new = new.canonicalize().map_err(failed("looking for", new))?;
    Ok(format!("{}\nblocks {}\norder {}\n", new.display(), begun.blocks, begun.order))
}

/// Marks the old directory as completely moved.
pub(super) fn put_converted(old: &Path, text: &str) -> Result<(), ConvertError> {
    put_file(&old.join(CONVERTED), text.as_bytes())
}

/// Whether everything in the old directory has been moved to this new one. If so, removes a mark that may be
/// left there.
pub(super) fn is_converted_to(old: &Path, new: &Path, begun: &ConversionPlan) -> Result<bool, ConvertError> {
    let Some(text) = converted(old).map_err(failed("reading", &old.join(CONVERTED)))? else {
        return Ok(false);
    };
    if !new.canonicalize().is_ok_and(|new| text.lines().next() == new.to_str()) {
        return Err(ConvertError::Refused(refusal(old, &text)));
    }
    if new.join(CONVERTING).exists() {
        ConversionMark::of(new, begun)?.take_away()?;
    }
    Ok(true)
}
