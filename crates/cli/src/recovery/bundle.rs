//! `holdfast fs bundle`: writes what this machine knows of a file system to one file, for rebuilding its
//! server.

use super::args::Bundle;
use super::listed;
use crate::evidence;
use crate::output::{Format, progress};
use holdfast_client::rebuild::bundle::BundleWriter;
use holdfast_client::rebuild::leaves::{self, LeafFile};
use holdfast_client::statement::Statement;
use holdfast_client::store::DiskCache;
use holdfast_content::{BODY_BYTES_MAX, Membership, MemoryBlocks};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_protocol::check::membership_wanted;
use serde::Serialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Number of leaves in one record.
const LEAVES_AT_ONCE: u64 = 16_384;

#[derive(Serialize)]
struct Written<'a> {
    file: &'a Path,
    file_system: String,
    device: u32,
    operations: u64,
    blocks: u64,
    bytes: u64,
    blocks_elsewhere: u64,
}

/// `holdfast fs bundle`
pub fn run(arguments: &Bundle, directories: &Directories, format: Format) -> Outcome {
    let statement = evidence::accepted(&arguments.which, arguments.key.as_deref(), directories)?;
    if statement.floor.view.slots.is_empty() {
        return Err(Failure::new(Exit::NoInput, "this device has seen nothing of the file system yet"));
    }
    let only = arguments.lost.as_deref().map(listed).transpose()?;
    let folder = directories.cache_of(&statement.floor.file_system())?;
    // A bound of 0 is harmless, because nothing is added to the cache.
    let mut cache = match folder.is_dir() {
        true => Some(DiskCache::open(&folder, 0).map_err(|error| failed(&folder, &error))?),
        false => None,
    };
    let bar = progress("collecting");
    let mut writer = BundleWriter::begin(&arguments.to, &statement)?;
    if let Some(state_dir) = state_of(&statement, directories)? {
        write_leaves(&state_dir, statement.floor.log().size, &mut writer)?;
    }
    let mut elsewhere = 0;
    let mut seen: HashSet<Digest> = HashSet::new();
    let slots = statement.floor.view.slots.values();
    let tables = slots.flat_map(|slot| slot.value.handles.values().map(|handle| handle.reference.address));
    let mut open: Vec<Digest> = tables.chain(only.iter().flatten().copied()).collect();
    while let Some(address) = open.pop() {
        if !seen.insert(address) {
            continue;
        }
        let found =
            cache.as_mut().and_then(|cache| cache.locate(&address)).and_then(|located| located.read());
        let whole = found
            .filter(|block| block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX).is_ok());
        let Some(block) = whole else {
            elsewhere += 1;
            continue;
        };
        open.extend(&block.references);
        if only.as_ref().is_none_or(|only| only.contains(&address)) {
            writer.block(address, block)?;
        }
    }
    let (blocks, bytes) = writer.finish()?;
    bar.finish_and_clear();
    let written = Written {
        file: &arguments.to,
        file_system: statement.floor.file_system().to_string(),
        device: statement.floor.device.0,
        operations: statement.floor.log().size,
        blocks,
        bytes,
        blocks_elsewhere: elsewhere,
    };
    format.print(&written, |written| {
        let rest = match written.blocks_elsewhere {
            0 => "That is all there is of it.".to_owned(),
            more => format!("At least {more} blocks of it are not on this machine."),
        };
        format!(
            "{}: the file system after {} operations, as device {} has seen it, and {} blocks ({} bytes). {rest} \
             Whoever has the file can read what is in it.",
            written.file.display(),
            written.operations,
            written.device,
            written.blocks,
            written.bytes
        )
    })
}

/// The state directory of the statement's device on this machine.
fn state_of(statement: &Statement, directories: &Directories) -> Outcome<Option<PathBuf>> {
    let floor = &statement.floor;
    let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
    statement.blocks.iter().for_each(|block| blocks.replace(block.address, block.block.clone()));
    let members =
        membership_wanted(floor, &floor.view).ok().and_then(|wanted| Membership::load(&blocks, &wanted).ok());
    let device = members.and_then(|members| Some(members.devices.get(&floor.device)?.key));
    device.map(|key| directories.state_of(&floor.file_system(), &key)).transpose()
}

fn write_leaves(state_dir: &Path, size: u64, writer: &mut BundleWriter) -> Outcome {
    let path = state_dir.join(leaves::FILE);
    if !path.is_file() {
        return Ok(());
    }
    let file = LeafFile::open(state_dir).map_err(|error| failed(&path, &error))?;
    let mut first = 0;
    while first < size {
        let found =
            file.read(first, LEAVES_AT_ONCE.min(size - first)).map_err(|error| failed(&path, &error))?;
        if found.is_empty() {
            break;
        }
        writer.leaves(first, &found)?;
        first += found.len() as u64;
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}
