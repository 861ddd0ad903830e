//! Holds a release's blocks at the server of the live file system. The new blocks of the release, which are
//! few, are stored there. A hold on its root then protects everything that it reaches, above all chunks of
//! the live file system, however that changes.
//!
//! Invariant: no record is signed before the server has granted the hold, and it grants none for an
//! incomplete tree.

use super::PublishError;
use super::folder::FolderBlocks;
use super::retention::{children, retained};
use crate::index::{Index, Key, key_of};
use crate::keys::ReleaseId;
use crate::release_dir::ReleaseDir;
use holdfast_client::remote::{Remote, call_patiently};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{AddressedBlock, HoldEntry, Request, Response};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// How long a request waits for the server, which walks the whole release before it grants a hold.
const PATIENCE: Duration = Duration::from_secs(600);
/// Blocks stored with one request; [`BATCH_BYTES`] bounds their bytes.
const BATCH_BLOCKS: usize = 1024;
const BATCH_BYTES: usize = 2 << 20;
/// How many times the server may list missing blocks.
const ROUNDS_MAX: usize = 64;

/// The name of a release's hold, from its number and root, so that a draft that waits for signatures has a
/// hold of its own while another is made.
fn name(release: ReleaseId, sequence: u64, root: &Digest) -> String {
    format!("release/{release}/{sequence}/{root}")
}

/// The number and root of the release that a hold is for.
fn release_of(hold: &HoldEntry, release: ReleaseId) -> Option<(u64, String)> {
    let rest = hold.name.strip_prefix(&format!("release/{release}/"))?;
    let (sequence, root) = rest.split_once('/')?;
    Some((sequence.parse().ok()?, root.to_owned()))
}

fn not_held(why: impl ToString) -> PublishError {
    PublishError::NotHeld(why.to_string())
}

/// Stores blocks at the server.
struct BlockUpload<'a> {
    server: &'a dyn Remote,
    blocks: &'a FolderBlocks,
    batch: Vec<AddressedBlock>,
    bytes: usize,
    done: HashSet<Key>,
}

impl BlockUpload<'_> {
    /// Stores a block and all blocks below it, except data and those for which `is_known` holds.
    fn tree(&mut self, root: Digest, is_known: &dyn Fn(&Key) -> bool) -> Result<(), PublishError> {
        let mut stack = vec![root];
        while let Some(address) = stack.pop() {
            let key = key_of(&address);
            if is_known(&key) || self.done.contains(&key) {
                continue;
            }
            let Some(location) = self.blocks.location(&address).filter(|location| !location.is_at_origin())
            else {
                continue;
            };
            let Some(below) = children(self.blocks, &location).map_err(not_held)? else { continue };
            stack.extend(below);
            self.block(address)?;
        }
        Ok(())
    }

    /// Stores a block at the server.
    fn block(&mut self, address: Digest) -> Result<(), PublishError> {
        let block = self.blocks.stored(&address).map_err(not_held)?;
        self.done.insert(key_of(&address));
        self.bytes += block.body.len() + block.references.len() * 32;
        self.batch.push(AddressedBlock { address, block });
        if self.batch.len() >= BATCH_BLOCKS || self.bytes >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), PublishError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        match ask(self.server, &Request::Store(std::mem::take(&mut self.batch)))? {
            Response::Done => Ok(()),
            _ => Err(not_held("its answer makes no sense")),
        }
    }
}

fn ask(server: &dyn Remote, request: &Request) -> Result<Response, PublishError> {
    call_patiently(server, request, PATIENCE).map_err(not_held)
}

/// Makes the server hold the tree of a release. `before` is the index of what earlier releases have stored
/// there; whether the server really has all of it is checked.
///
/// # Errors
/// [`PublishError::NotHeld`]: no hold was granted.
pub fn hold(
    server: &dyn Remote,
    blocks: &FolderBlocks,
    before: &Index,
    release: ReleaseId,
    sequence: u64,
    root: Digest,
) -> Result<(), PublishError> {
    let mut storing = BlockUpload { server, blocks, batch: Vec::new(), bytes: 0, done: HashSet::new() };
    storing.tree(root, &|key| before.entries.binary_search_by_key(key, |(known, _)| *known).is_ok())?;
    let request = Request::Hold { name: name(release, sequence, &root), roots: vec![root] };
    for _ in 0..ROUNDS_MAX {
        storing.send()?;
        let missing = match ask(server, &request)? {
            Response::Held(missing) => missing,
            _ => return Err(not_held("its answer makes no sense")),
        };
        if missing.is_empty() {
            return Ok(());
        }
        for address in missing {
            let is_here = blocks.location(&address).is_some_and(|location| !location.is_at_origin());
            if storing.done.contains(&key_of(&address)) {
                return Err(not_held(format!("it loses block {}, which it was given", address.short())));
            }
            if !is_here {
                return Err(not_held(format!(
                    "data of a file (block {}) is gone; files were replaced or removed meanwhile, so publish again",
                    address.short()
                )));
            }
            storing.tree(address, &|_| false)?;
            if !storing.done.contains(&key_of(&address)) {
                // An earlier release that was made of a directory has this data in a pack.
                storing.block(address)?;
            }
        }
    }
    Err(not_held("it finds more to be missing each time"))
}

/// Ends the holds of releases that the release directory no longer retains. The hold of the one before the
/// newest stays, for readers that still use it, and so do holds of drafts of the next. Returns how many were
/// ended.
///
/// # Errors
/// [`PublishError`]; holds that could not be ended stay until the next time.
pub fn release_holds(server: &dyn Remote, target: &Path) -> Result<usize, PublishError> {
    let dir = ReleaseDir::new(target);
    let damaged = |why: String| PublishError::Damaged { path: target.to_owned(), why };
    let chain = dir.chain().map_err(|error| damaged(error.to_string()))?;
    let Some(root) = dir.root(&chain).map_err(|error| damaged(error.to_string()))? else { return Ok(0) };
    let newest = root.record.value.sequence;
    let mut stays: HashSet<(u64, String)> = retained(target, usize::MAX)?
        .iter()
        .map(|retained| (retained.sequence(), retained.root().address.to_string()))
        .collect();
    stays.insert((newest, root.record.value.root_dir.address.to_string()));
    let Response::Holds(holds) = ask(server, &Request::Holds)? else {
        return Err(not_held("its answer makes no sense"));
    };
    let goes = |hold: &HoldEntry| {
        release_of(hold, chain.id())
            .is_some_and(|held| held.0 <= newest && held.0 + 1 != newest && !stays.contains(&held))
    };
    let mut gone = 0;
    for hold in holds.into_iter().filter(goes) {
        ask(server, &Request::Unhold { name: hold.name })?;
        gone += 1;
    }
    Ok(gone)
}
