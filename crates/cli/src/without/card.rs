//! Replaces `card` in a program that was built without it. Its commands are refused before they get here
//! (`crate::features`).

use crate::output::Format;
use crate::programs::args::{AclCommand, Credential, Owner};
use crate::programs::mounted::MountedFile;
use crate::volume::args as volume;
use holdfast_components::Main;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Outcome, built_without};
use std::path::Path;

/// No component.
pub const COMPONENTS: &[(&str, Main)] = &[];

/// `holdfast volume format`
pub fn format(_: &volume::Format, _: &Directories, _: Format) -> Outcome {
    Err(built_without("card"))
}

/// `holdfast volume adopt`
pub fn adopt(_: &volume::Adopt, _: &Directories, _: Format) -> Outcome {
    Err(built_without("card"))
}

/// `holdfast volume mount`
pub fn mount(_: &volume::Mount, _: &Directories, _: Format) -> Outcome {
    Err(built_without("card"))
}

/// `holdfast volume owner`
pub fn owner(_: &Owner, _: Format) -> Outcome {
    Err(built_without("card"))
}

/// `holdfast volume credential`
pub fn credential(_: &Credential, _: Format) -> Outcome {
    Err(built_without("card"))
}

/// Returns that the mount is not a card's.
pub fn acl(_: &Path, _: &AclCommand, _: Format) -> Outcome<bool> {
    Ok(false)
}

/// Returns that the file is not on a card.
pub fn why(_: &MountedFile, _: Option<&str>, _: Format) -> Outcome<bool> {
    Ok(false)
}
