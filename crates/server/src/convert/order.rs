//! Copies orders to their destination: first the files of each, then its checkpoint, which makes the order
//! valid.

use super::error::{ConvertError, failed, put_file};
use super::source::PATIENCE;
use super::source::{OURSELVES, alone, away};
use super::{Destination, OrderDestination, new_data};
use crate::file_system::FileSystem;
use crate::history_file;
use crate::notes::{note_about, notes_together};
use crate::order::etcd::{Cluster, Shard};
use crate::order::{Embedded, Notes, Order, OrderError};
use crate::server::cluster_at;
use crate::server_core::ServerCore;
use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_crypto::Digest;
use holdfast_etcd::Access;
use holdfast_log::{LocalStorage, Storage, StorageFile, SyncSite};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RENEW_EVERY: Duration = Duration::from_millis(600);
/// How many bytes are copied at a time.
const PIECE_BYTES: usize = 1 << 20;
const SITE: SyncSite = SyncSite("converted order");

/// The destination of orders, opened.
pub(super) enum OrderWriter {
    /// The orders go into the log of the new data directory.
    Here { store: holdfast_store::LogStore, storage: Arc<dyn Storage> },
    /// The orders go into etcd.
    Etcd { cluster: Box<Cluster>, access: Access },
}

impl OrderWriter {
    pub(super) fn open(to: &Destination, core: &ServerCore) -> Result<OrderWriter, ConvertError> {
        let data = new_data(to)?;
        let Some(OrderDestination::Etcd(access)) = &to.order else {
            let path = data.store();
            let storage: Arc<dyn Storage> =
                Arc::new(LocalStorage::open(&path).map_err(failed("opening", &path))?);
            let store =
                holdfast_store::LogStore::open(storage.clone(), core.resources.settings.store.clone())?;
            return Ok(OrderWriter::Here { store, storage });
        };
        let cluster = cluster_at(access, to.order_login.as_deref(), OURSELVES, PATIENCE)?;
        alone(&cluster)?;
        if let Some(moved) = cluster.moved().map_err(away)? {
            cluster.leave();
            return Err(ConvertError::Refused(crate::moved::moved_from(access, &moved)));
        }
        data.note_order(&access.to_string(), to.order_login.as_deref())?;
        Ok(OrderWriter::Etcd { cluster: Box::new(cluster), access: access.clone() })
    }

    /// The log in the new data directory, if the orders go there.
    pub(super) fn store(&self) -> Option<&holdfast_store::LogStore> {
        match self {
            OrderWriter::Here { store, .. } => Some(store),
            OrderWriter::Etcd { .. } => None,
        }
    }

    /// Checks that none of the file systems has an order at the destination.
    pub(super) fn check_empty(&self, core: &ServerCore) -> Result<(), ConvertError> {
        let OrderWriter::Etcd { cluster, access } = self else { return Ok(()) };
        match core.file_systems().iter().find(|one| cluster.state().file_systems.contains(&one.id())) {
            None => Ok(()),
            Some(one) => Err(ConvertError::Refused(format!(
                "there is an order of {} at {access} already; it must be another prefix",
                one.id()
            ))),
        }
    }

    /// Copies all orders, and the notes of leases and locks. `old` is the data directory they were served
    /// from.
    pub(super) fn copy(
        &self,
        file_systems: &[Arc<FileSystem>],
        old: &Path,
        new: &Path,
    ) -> Result<(), ConvertError> {
        match self {
            OrderWriter::Here { store, storage } => {
                let (mut leases, mut has_locks) = (Vec::new(), false);
                for one in file_systems {
                    let id = one.id();
                    let to = Embedded { store: store.clone(), storage: storage.clone(), id };
                    copy_order(&*one.order, &to, id)?;
                    let held = LeaseHolders::of(one, old)?;
                    leases.push(held.leases);
                    has_locks |= held.has_locks;
                }
                let leases = notes_together(&leases);
                if !leases.is_empty() {
                    put_file(&new.join("leases"), leases.as_bytes())?;
                }
                if has_locks {
                    put_file(&new.join("locks-held"), b"")?;
                }
                Ok(())
            }
            OrderWriter::Etcd { cluster, .. } => {
                let copied = while_leased(cluster, || {
                    file_systems.iter().try_for_each(|one| into_etcd(cluster, one, old))
                });
                cluster.leave();
                copied
            }
        }
    }
}

/// The sessions that may hold leases and locks of a file system from before.
struct LeaseHolders {
    /// The note about sessions that may hold leases; empty if there can be none.
    leases: String,
    has_locks: bool,
}

impl LeaseHolders {
    fn of(one: &FileSystem, old: &Path) -> Result<LeaseHolders, ConvertError> {
        if let Some(notes) = one.order.notes() {
            let has_locks = notes.text("locks")?.is_some_and(|text| !text.is_empty());
            return Ok(LeaseHolders { leases: notes.text("leases")?.unwrap_or_default(), has_locks });
        }
        let path = old.join("leases");
        let leases = match std::fs::read(&path) {
            Ok(note) => note_about(&String::from_utf8_lossy(&note), one.id()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("reading", &path)(error)),
        };
        Ok(LeaseHolders { leases, has_locks: old.join("locks-held").exists() })
    }
}

/// Runs `work` while the lease in etcd is kept alive.
fn while_leased<T>(cluster: &Cluster, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                if let Err(error) = cluster.keep_alive() {
                    tracing::warn!(%error, "the lease was not renewed");
                }
                std::thread::park_timeout(RENEW_EVERY);
            }
        });
        let result = work();
        stop.store(true, Ordering::Release);
        keeper.thread().unpark();
        result
    })
}

fn into_etcd(cluster: &Cluster, one: &FileSystem, old: &Path) -> Result<(), ConvertError> {
    let id = one.id();
    let shard = take_over(cluster, id)?;
    // The server that takes over the file system reads these notes when it becomes active.
    let held = LeaseHolders::of(one, old)?;
    shard.put("leases", &held.leases)?;
    if held.has_locks {
        shard.put("locks", "held")?;
    }
    copy_order(&*one.order, &shard, id)?;
    cluster.give_up(id, shard.epoch()).map_err(away)
}

/// Becomes the active server. If an earlier attempt was killed, its lease may have to expire first.
fn take_over(cluster: &Cluster, id: Digest) -> Result<Shard, ConvertError> {
    let start = Instant::now();
    let take = || cluster.take(id).map_err(Some)?.ok_or(None);
    take.retry(ConstantBuilder::new().with_delay(Duration::from_millis(200)).without_max_times())
        .when(|error| matches!(error, None | Some(OrderError::Away(_))) && start.elapsed() <= PATIENCE)
        .call()
        .map_err(|error| match error {
            None => ConvertError::Place(format!("another server has {id} in etcd")),
            Some(error) => error.into(),
        })
}

/// Copies an order, replaces what an earlier attempt has written, and compares.
pub(crate) fn copy_order(from: &dyn Order, to: &dyn Order, id: Digest) -> Result<(), ConvertError> {
    let was = from.recover()?;
    let (Some(checkpoint), true) = (&was.0, was.1.is_empty()) else {
        return Err(ConvertError::Damaged(format!("no checkpoint of the order of {id} could be written")));
    };
    let (from_files, to_files) = (from.files(), to.files());
    let of_the_medium =
        |error: io::Error| ConvertError::Place(format!("files of the order of {id}: {error}"));
    for name in names(&*from_files, id).map_err(of_the_medium)? {
        copy(&*from_files, &*to_files, &name).map_err(of_the_medium)?;
    }
    // An equal copy need not be written again.
    if to.recover()? != was {
        to.checkpoint(checkpoint)?;
        to.commit()?;
    }
    match to.recover()? == was {
        true => Ok(()),
        false => Err(ConvertError::Place(format!("the order of {id} reads otherwise than it was written"))),
    }
}

/// Names of the files of an order: nodes of its log tree, past states. The tree that witnesses co-sign is not
/// copied, because it can be made again.
fn names(files: &dyn Storage, id: Digest) -> io::Result<Vec<String>> {
    let wanted = [format!("tree-{id}"), format!("history-{id}")];
    let is_wanted = |name: &String| {
        wanted.iter().any(|wanted| name.starts_with(wanted)) && !name.ends_with(history_file::PARTIAL)
    };
    Ok(files.list()?.into_iter().filter(is_wanted).collect())
}

/// Copies a file, replaces an existing one, and compares.
fn copy(from: &dyn Storage, to: &dyn Storage, name: &str) -> io::Result<()> {
    let source = from.open(name)?;
    match to.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = to.create(name)?;
    each_piece(&*source, |offset, piece| {
        file.write_at(offset, piece)?;
        file.sync(SITE)
    })?;
    file.sync(SITE)?;
    to.sync_dir(SITE)?;
    let written = to.open(name)?;
    if written.len()? != source.len()? {
        return Err(io::Error::other(format!("{name} has another length than it was given")));
    }
    each_piece(&*source, |offset, piece| {
        let mut found = vec![0; piece.len()];
        match written.read_at(offset, &mut found)? == piece.len() && found == piece {
            true => Ok(()),
            false => Err(io::Error::other(format!("{name} reads otherwise than it was written"))),
        }
    })
}

fn each_piece(file: &dyn StorageFile, mut take: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let (length, mut offset) = (file.len()?, 0);
    while offset < length {
        let mut piece = vec![0; PIECE_BYTES.min((length - offset) as usize)];
        let count = file.read_at(offset, &mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        take(offset, &piece[..count])?;
        offset += count as u64;
    }
    Ok(())
}
