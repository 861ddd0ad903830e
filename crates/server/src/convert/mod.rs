//! Moves the order and the blocks of a server to other places, while it does not run; or those of several
//! servers that have their orders in etcd. Blocks move between a data directory, a block server and a bucket,
//! orders between a data directory and etcd.
//!
//! ```text
//! OLD/converted     where everything was moved to, once it is complete; no server starts on OLD then
//! PREFIX/moved      the same in etcd, for all servers that had their orders there
//! NEW/converting    what is moved here from where; no server starts on NEW while this exists
//! ```
//!
//! Invariants:
//! - OLD is only read (except that a checkpoint of its order is written) until everything at the new place is
//!   complete, durable and compared. Then it is marked, etcd first, and only then may a server start on NEW.
//!   So there is no moment at which both can be served.
//! - A moved order becomes valid in one step, with its checkpoint, which is written after everything that it
//!   refers to.
//! - If the call is interrupted at any moment, the same call continues: nothing is sent twice.
//! - A destination that contains anything else is refused before anything is written there.

mod blocks;
mod error;
mod marks;
mod order;
mod source;

pub use error::ConvertError;
#[cfg(test)]
pub(crate) use order::copy_order;

use crate::block_store::{
    self, BlockStore, BlockStoreError, BlocksLocation, BucketSettings, LocalBlocks, LocationError,
    RemoteBlocks,
};
use crate::block_store::{RemoteBlocksSettings, blocks_elsewhere};
use crate::config::ServerConfig;
use crate::data::DataDirectory;
use crate::error::UnservedReason;
use crate::moved::moved_from;
use crate::server_core::ServerCore;
use error::{failed, put_file};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_etcd::Access;
use marks::{ConversionMark, ConversionPlan};
use source::SourceOrder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The destination of a conversion.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The new data directory. It gets the server's key, and the order if that does not go into etcd.
    pub data: PathBuf,
    /// Where blocks go; `None`: they stay outside the data directory where they are.
    pub blocks: Option<BlockDestination>,
    /// Where the order goes; `None`: into the new data directory, which is refused if the order is in etcd.
    pub order: Option<OrderDestination>,
    /// A file with the credentials for that etcd.
    pub order_login: Option<PathBuf>,
}

/// Where blocks are moved to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockDestination {
    /// Into the new data directory.
    Here,
    /// To a block server or a bucket.
    At(BlocksLocation),
}

/// Where orders are moved to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OrderDestination {
    /// Into the new data directory.
    Here,
    /// Into etcd.
    Etcd(Access),
}

/// The word on the command line that means the new data directory.
const HERE: &str = "here";

impl std::str::FromStr for BlockDestination {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<BlockDestination, LocationError> {
        if text == HERE { Ok(BlockDestination::Here) } else { text.parse().map(BlockDestination::At) }
    }
}

impl std::fmt::Display for BlockDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BlockDestination::Here => f.write_str(HERE),
            BlockDestination::At(place) => place.fmt(f),
        }
    }
}

impl std::str::FromStr for OrderDestination {
    type Err = holdfast_etcd::AccessError;

    fn from_str(text: &str) -> Result<OrderDestination, Self::Err> {
        if text == HERE { Ok(OrderDestination::Here) } else { text.parse().map(OrderDestination::Etcd) }
    }
}

impl std::fmt::Display for OrderDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OrderDestination::Here => f.write_str("in this directory"),
            OrderDestination::Etcd(access) => access.fmt(f),
        }
    }
}

/// What a conversion moved.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ConvertReport {
    /// The file systems.
    pub file_systems: Vec<ConvertedFileSystem>,
    /// Whether everything had been moved before this call.
    pub was_done: bool,
}

/// What was moved of one file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvertedFileSystem {
    /// The file system that was moved.
    pub file_system: Digest,
    /// Operations in its order.
    pub operations: u64,
    /// Blocks at the new place.
    pub blocks: u64,
    /// How many of these blocks this call has sent.
    pub sent_blocks: u64,
    /// Bytes of the sent blocks in the old log.
    pub sent_bytes: u64,
    /// Blocks that are damaged in the old store, with the reason. They are not at the new place.
    pub damaged: Vec<String>,
    /// Holds that were not copied because blocks of their trees are missing.
    pub broken_holds: Vec<String>,
    /// Versions of signed blocks, which were not moved.
    pub signed_blocks: u64,
    /// Number of devices that are charged for more or less than before.
    pub other_charges: u64,
}

impl ConvertedFileSystem {
    fn new(file_system: Digest, operations: u64) -> ConvertedFileSystem {
        ConvertedFileSystem {
            file_system,
            operations,
            blocks: 0,
            sent_blocks: 0,
            sent_bytes: 0,
            damaged: Vec::new(),
            broken_holds: Vec::new(),
            signed_blocks: 0,
            other_charges: 0,
        }
    }
}

/// Moves the order and the blocks of the data directory in `config`. No server may run on it. `progress` is
/// given the bytes done and the bytes in all.
///
/// # Errors
/// See [`ConvertError`]. If the call is repeated, it continues.
pub fn convert(
    config: &ServerConfig,
    to: &Destination,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport, ConvertError> {
    let old = config.data.canonicalize().map_err(failed("looking for", &config.data))?;
    if !old.join("store").is_dir() {
        return Err(ConvertError::NoServer(config.data.clone()));
    }
    let owner = old.metadata().map_err(failed("looking at", &old))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(ConvertError::NotOwner { path: config.data.clone(), owner });
    }
    let begun = ConversionPlan {
        from: old.clone(),
        blocks: to.blocks.as_ref().map_or_else(|| "as they are".to_owned(), ToString::to_string),
        order: to.order.as_ref().unwrap_or(&OrderDestination::Here).to_string(),
    };
    let done = || Ok(ConvertReport { was_done: true, ..ConvertReport::default() });
    if marks::is_converted_to(&old, &to.data, &begun)? {
        return done();
    }
    let was_elsewhere = blocks_elsewhere(&old).map(|location| location.to_string());
    let (core, data, key) = crate::server::open_bare(config, &|storage| Arc::new(storage))?;
    let mut source = SourceOrder::of(&data)?;
    check_destinations(to, was_elsewhere.as_deref(), source.as_ref().map(SourceOrder::access))?;
    if let Some(source) = &source
        && let Some(moved) = source.moved()?
    {
        // Everything has been moved, and nothing can have changed since; only the remaining marks have to be
        // written.
        let ours = marks::converted_text(&to.data, &begun).ok();
        let Some(text) = ours.filter(|text| moved == source::mark_text(text)) else {
            return Err(ConvertError::Refused(moved_from(source.access(), &moved)));
        };
        marks::put_converted(&old, &text)?;
        marks::is_converted_to(&old, &to.data, &begun)?;
        return done();
    }
    let core = match &mut source {
        Some(source) => source.open(core)?,
        None => Arc::new(core),
    };
    check_whole(&core)?;
    core.final_checkpoints();
    let mut mark = ConversionMark::of(&to.data, &begun)?;
    for name in ["server-key", "allowed-superusers"] {
        copy_file(&old.join(name), &to.data.join(name))?;
    }
    let orders = order::OrderWriter::open(to, &core)?;
    let blocks = blocks_at(to, &core, &key, &orders)?;
    if !mark.is_checked() {
        if let Some(blocks) = &blocks
            && blocks.figures()?.blocks > 0
        {
            return Err(ConvertError::Refused(
                "there are blocks of a server with this key at the new place already; it must be empty"
                    .to_owned(),
            ));
        }
        orders.check_empty(&core)?;
        mark.checked()?;
    }
    // The list is read once: a file system that ends meanwhile, because the lease in etcd was lost, must not
    // be left out.
    let file_systems = core.file_systems();
    let mut report = ConvertReport::default();
    let (mut bytes, all_bytes) = (0, core.resources.blocks.figures()?.block_bytes);
    for file_system in &file_systems {
        let id = file_system.id();
        let mut converted = ConvertedFileSystem::new(id, file_system.log_size());
        if let Some(blocks) = &blocks {
            blocks::BlockCopier::new(&core, &**blocks, id).all(&mut converted, &mut |more| {
                bytes += more;
                progress(bytes, all_bytes.max(bytes));
            })?;
        }
        converted.signed_blocks = core.resources.store.signed_count(id)?;
        report.file_systems.push(converted);
    }
    orders.copy(&file_systems, &old, &to.data)?;
    if was_elsewhere.is_some() && blocks.is_none() {
        copy_block_store_notes(&old, &to.data)?;
    }
    drop((blocks, orders));
    let text = marks::converted_text(&to.data, &begun)?;
    if let Some(source) = &source {
        source.put_moved(&core, &source::mark_text(&text))?;
    }
    marks::put_converted(&old, &text)?;
    mark.take_away()?;
    Ok(report)
}

/// Copies the notes about a block store that stays where it is: its address, and what it has acknowledged.
fn copy_block_store_notes(old: &Path, new: &Path) -> Result<(), ConvertError> {
    for name in block_store::FILES {
        copy_file(&old.join(name), &new.join(name))?;
    }
    for path in block_store::files_of_shards(old) {
        let target = new.join(&path);
        let folder = target.parent().expect("it is in one");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed("making", folder))?;
        copy_file(&old.join(&path), &target)?;
    }
    Ok(())
}

/// Checks that the requested destinations are possible.
fn check_destinations(
    to: &Destination,
    blocks_were: Option<&str>,
    order_was: Option<&Access>,
) -> Result<(), ConvertError> {
    let refuse = |why: String| Err(ConvertError::Refused(why));
    let blocks_go = match &to.blocks {
        Some(BlockDestination::Here) => None,
        Some(BlockDestination::At(place)) => Some(place.to_string()),
        None => blocks_were.map(str::to_owned),
    };
    let order_goes = match (&to.order, order_was) {
        (None, Some(at)) => {
            return refuse(format!(
                "its order is at {at}, where other servers find it, and with it where the blocks are: --order here, or \
                 --order with another prefix, says where the order goes"
            ));
        }
        (Some(OrderDestination::Etcd(place)), _) => Some(place),
        (None | Some(OrderDestination::Here), _) => None,
    };
    let stay = to.blocks.is_none() || blocks_go.as_deref() == blocks_were;
    match (stay, order_goes) {
        (true, None) if order_was.is_none() && to.blocks.is_none() && blocks_were.is_some() => refuse(
            "its blocks are elsewhere already; --order moves its order, --blocks its blocks".to_owned(),
        ),
        (true, None) if order_was.is_none() && to.blocks.is_none() => {
            refuse("--blocks or --order says what is to be moved".to_owned())
        }
        (true, _) if to.blocks.is_some() => refuse(format!(
            "its blocks are {} already, and are not moved from there: leave --blocks out",
            blocks_were.map_or_else(|| "in its data directory".to_owned(), |at| format!("at {at}"))
        )),
        (_, Some(place)) if order_was == Some(place) => {
            refuse(format!("its order is at {place} already; it must be another prefix"))
        }
        (_, Some(_)) if blocks_go.is_none() => refuse(
            "with the order in etcd the blocks must be where other servers find them: give --blocks too"
                .to_owned(),
        ),
        (stay, Some(_)) if blocks_go.as_deref().is_some_and(|at| at.starts_with("s3:")) => refuse(if stay {
            format!(
                "its blocks are in a bucket ({}), which has one writer; servers with --order need a block server",
                blocks_go.unwrap_or_default()
            )
        } else {
            "a bucket has one writer: with --order the blocks go to a block server, which may have them in the bucket \
             (`holdfast server blocks --blocks s3://...`, docs/growing.md)"
                .to_owned()
        }),
        _ => Ok(()),
    }
}

/// Checks that the present state can be moved as it is.
fn check_whole(core: &ServerCore) -> Result<(), ConvertError> {
    // The new store would not remember this doubt.
    if let Some(doubt) = core.resources.blocks.status().and_then(|status| status.doubt) {
        return Err(ConvertError::Damaged(BlockStoreError::Doubtful { doubt }.to_string()));
    }
    if let Some((id, why)) = core.damaged().into_iter().find(|(_, why)| *why != UnservedReason::NeverCreated)
    {
        return Err(ConvertError::Damaged(format!(
            "the order of {id} is damaged ({why}): put it right first (docs/when-something-is-wrong.md)"
        )));
    }
    match core.file_systems().iter().find(|one| core.awaiting.has(&one.id())) {
        Some(one) => Err(ConvertError::Refused(format!(
            "{} waits for its superuser's word that it was put back (holdfast fs restored): first that, then this",
            one.id()
        ))),
        None => Ok(()),
    }
}

/// The new block store; `None` if blocks stay where they are.
fn blocks_at(
    to: &Destination,
    core: &ServerCore,
    key: &SigningKey,
    orders: &order::OrderWriter,
) -> Result<Option<Box<dyn BlockStore>>, ConvertError> {
    let (data, anew) = (to.data.as_path(), false);
    match to.blocks.clone() {
        None => Ok(None),
        Some(BlockDestination::Here) => {
            let store = orders.store().expect("without a place for other servers the order goes there too");
            Ok(Some(Box::new(LocalBlocks::new(store.clone()))))
        }
        Some(BlockDestination::At(BlocksLocation::Server(address))) => {
            let settings = RemoteBlocksSettings { address: Some(address), data, key: key.clone(), anew };
            let remote =
                RemoteBlocks::open(settings).map_err(|error| ConvertError::Place(error.to_string()))?;
            Ok(remote.map(|remote| Box::new(remote) as Box<dyn BlockStore>))
        }
        Some(BlockDestination::At(BlocksLocation::Bucket(address))) => {
            let store = core.resources.settings.store.clone();
            let settings = BucketSettings {
                address: Some(address),
                data,
                store,
                anew,
                takes_over: false,
                patience: None,
            };
            let local =
                LocalBlocks::in_bucket(settings).map_err(|error| ConvertError::Place(error.to_string()))?;
            Ok(local.map(|local| Box::new(local) as Box<dyn BlockStore>))
        }
    }
}

/// Copies a small file, if it exists, durably, and either completely or not at all.
fn copy_file(from: &Path, to: &Path) -> Result<(), ConvertError> {
    let bytes = match std::fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => zeroize::Zeroizing::new(other.map_err(failed("reading", from))?),
    };
    put_file(to, &bytes)
}

/// The data directory that a server will be started on.
fn new_data(to: &Destination) -> Result<DataDirectory, ConvertError> {
    Ok(DataDirectory::open(&to.data)?)
}
