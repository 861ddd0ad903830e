//! The marks that a conversion leaves where the order was (`convert`). No server starts on such a data
//! directory.

use crate::error::OpenError;
use holdfast_etcd::Access;
use std::io::ErrorKind;
use std::path::Path;

/// Name of the mark in the new directory until everything is there.
pub(crate) const CONVERTING: &str = "converting";
/// Name of the mark in the old directory from then on.
pub(crate) const CONVERTED: &str = "converted";

pub(crate) fn converted(data: &Path) -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(data.join(CONVERTED)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn refusal(data: &Path, text: &str) -> String {
    let new = text.lines().next().unwrap_or("another directory");
    format!(
        "{data} was moved: its file systems are served from {new} now. Served from here too, they would split in two, and \
         their clients would alarm. If no server has ever run on {new}, and none will, remove {mark} to serve them from here \
         again",
        data = data.display(),
        mark = data.join(CONVERTED).display()
    )
}

/// Checks that a server may start on a data directory, as far as conversions are concerned.
pub(crate) fn check_served(data: &Path) -> Result<(), OpenError> {
    let mark = data.join(CONVERTED);
    let text = converted(data).map_err(|error| OpenError::io("reading", &mark, error))?;
    if let Some(text) = text {
        return Err(OpenError::Converted(refusal(data, &text)));
    }
    match data.join(CONVERTING).exists() {
        true => Err(OpenError::Converted(format!(
            "{} is not all there yet: call the same `holdfast server convert` again, which goes on; or remove it, and go on \
             serving the old one",
            data.display()
        ))),
        false => Ok(()),
    }
}

/// The message for a server that finds such a mark in etcd.
pub(crate) fn moved_from(access: &Access, mark: &str) -> String {
    let mut lines = mark.lines();
    let (new, machine) =
        (lines.next().unwrap_or("another directory"), lines.next().unwrap_or("another machine"));
    format!(
        "the file systems of {access} were moved: they are served from {new} on {machine} now. Served from here too, they would \
         split in two, and their clients would alarm. If no server has ever run on {new}, and none will, delete the key \
         {prefix}/moved in etcd, and the file `converted` in the data directory that was named, to serve them from here again",
        prefix = access.prefix
    )
}
