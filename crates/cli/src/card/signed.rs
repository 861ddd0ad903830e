//! Volumes whose blocks belong to signed programs: lists that a key has signed (`holdfast program sign`)
//! decide which versions of Holdfast may run the drivers of their file systems, rather than this machine.

use super::failing::bad;
use holdfast_access::{KeyName, Name};
use holdfast_crypto::Digest;
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::{hashes, manifest};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// Parses a package, `KEY/NAME`.
///
/// # Errors
/// The text is not a package, or the key cannot be read.
pub(super) fn package(text: &str) -> Outcome<KeyName> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, format!("'{text}': {why}"))
            .hint("give a public key (a file or the key itself) and a name: release.pub/holdfast")
    };
    let (key, name) = text.rsplit_once('/').ok_or_else(|| wrong(&"names no package"))?;
    Ok(KeyName { key: keys::read_public(key)?, name: Name::new(name).map_err(|error| wrong(&error))? })
}

/// The digest of this program.
///
/// # Errors
/// It cannot be read.
pub(super) fn own_digest() -> Outcome<Digest> {
    let own = Path::new("/proc/self/exe");
    let mut file = File::open(own).map_err(|error| bad(own, error))?;
    Ok(hashes::digest_of(&mut file).map_err(|error| bad(own, error))?.digest)
}

/// Returns the packages; each of them must list this program.
///
/// # Errors
/// A package does not list it.
pub(super) fn listing<'a>(
    wanted: impl Iterator<Item = &'a KeyName>,
    own: &Digest,
) -> Outcome<BTreeSet<KeyName>> {
    let places = manifest::directories();
    let mut found = BTreeSet::new();
    for package in wanted {
        if !manifest::lists(&places, &package.key, package.name.as_str(), own) {
            let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            let message = format!(
                "this program (hash:{own}) is on no list that {} has signed as {}, and the volume's blocks belong to \
                 programs that are",
                package.key, package.name
            );
            return Err(Failure::new(Exit::NotAllowed, message).hint(format!(
                "whoever has the key lists it with `holdfast program sign`; lists are looked for in {}",
                looked.join(", ")
            )));
        }
        found.insert(package.clone());
    }
    Ok(found)
}
