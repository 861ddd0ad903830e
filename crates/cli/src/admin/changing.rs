//! Changes of the membership, with a superuser's key that is here or elsewhere.

use super::asking::ask;
use super::off_line;
use crate::args::Administer;
use crate::output::{Format, clean};
use holdfast_daemon::membership::{self, Change};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;

#[derive(Serialize)]
struct ChangeOutput {
    done: String,
}

/// Makes a change, or prepares it for the superuser's signature, and prints what was done.
pub fn apply(administer: &Administer, change: Change, directories: &Directories, format: Format) -> Outcome {
    apply_saying(administer, change, directories, format, |done| done)
}

/// Like [`apply`], with the daemon's words about what was done replaced by `words`.
pub fn apply_saying(
    administer: &Administer,
    change: Change,
    directories: &Directories,
    format: Format,
    words: impl FnOnce(String) -> String,
) -> Outcome {
    let Administer { url, superuser, prepare, member } = administer;
    let superuser = match (superuser, prepare, member) {
        (Some(superuser), ..) => superuser,
        (None, Some(out), Some(key)) => {
            return off_line::prepare(url, key, change, out, directories, format);
        }
        _ => return Err(Failure::new(Exit::Usage, "give --superuser, or --prepare with --key")),
    };
    let done = words(ask(url, superuser, &membership::Administer(change), directories)?);
    format.print(&ChangeOutput { done }, |done| clean(&done.done))
}
