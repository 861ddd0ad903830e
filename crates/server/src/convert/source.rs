//! The source of a conversion whose orders are in etcd. The conversion joins the servers there as the only
//! one, and in the end leaves a mark there, after which no server becomes active any more.

use super::error::ConvertError;
use crate::block_store::machine_name;
use crate::data::DataDirectory;
use crate::error::OrderLocationError;
use crate::file_system::FileSystem;
use crate::order::etcd::Cluster;
use crate::server::cluster_at;
use crate::server_core::ServerCore;
use crate::standby::StandbyThreads;
use holdfast_crypto::Digest;
use holdfast_etcd::{Access, EtcdError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The address by which the conversion is listed among the servers in etcd; no server has such an address.
pub(super) const OURSELVES: &str = "(converting)";
/// How long etcd may be unreachable, or another server's lease may last.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// How long servers that were killed may still be listed.
const LISTED: Duration = Duration::from_secs(5);

/// Orders in etcd that are moved from there.
pub(super) struct SourceOrder {
    cluster: Arc<Cluster>,
    access: Access,
    threads: Option<StandbyThreads>,
    /// The epochs under which this conversion is the active server, for all file systems.
    epochs: BTreeMap<Digest, i64>,
}

impl SourceOrder {
    /// Joins the servers of a data directory; none of them may run. Returns `None` if the order is in the
    /// directory itself.
    pub(super) fn of(data: &DataDirectory) -> Result<Option<SourceOrder>, ConvertError> {
        let Some((place, login)) = data.order_elsewhere()? else { return Ok(None) };
        let access: Access = place.parse().map_err(|error: holdfast_etcd::AccessError| {
            ConvertError::Refused(format!("{}: {error}", data.path().display()))
        })?;
        let cluster = Arc::new(cluster_at(&access, login.as_deref(), OURSELVES, PATIENCE)?);
        let former = SourceOrder { cluster, access, threads: None, epochs: BTreeMap::new() };
        alone(&former.cluster)?;
        Ok(Some(former))
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Where everything was moved to, if it was.
    pub(super) fn moved(&self) -> Result<Option<String>, ConvertError> {
        self.cluster.moved().map_err(away)
    }

    /// Marks all opened file systems as moved, so that no server becomes active here any more. Fails if a
    /// server was active or was started meanwhile, because it might have created a file system.
    pub(super) fn put_moved(&self, core: &ServerCore, text: &str) -> Result<(), ConvertError> {
        alone(&self.cluster)?;
        let seen = self.cluster.look().map_err(away)?;
        let (damaged, epochs) = (core.damaged(), &self.epochs);
        let is_known = seen.file_systems.iter().all(|id| epochs.contains_key(id) || damaged.contains_key(id));
        match is_known && self.cluster.put_moved(text, epochs).map_err(away)? {
            true => Ok(()),
            false => Err(ConvertError::Place(format!(
                "the lease in etcd was lost, or a server ran meanwhile, so what is there may have changed ({})",
                self.access
            ))),
        }
    }

    /// Opens all file systems, as the only server would.
    pub(super) fn open(&mut self, mut core: ServerCore) -> Result<Arc<ServerCore>, ConvertError> {
        core.cluster = Some(self.cluster.clone());
        let core = Arc::new(core);
        let threads = StandbyThreads::start(&core).map_err(OrderLocationError::Thread)?;
        self.threads = Some(threads);
        let start = Instant::now();
        loop {
            let damaged = core.damaged();
            let is_open =
                |id| damaged.contains_key(id) || core.file_systems().iter().any(|one| one.id() == *id);
            match self.cluster.state().file_systems.iter().find(|id| !is_open(id)) {
                None => {
                    let held = self.cluster.held.lock();
                    let epoch = |one: Arc<FileSystem>| Some((one.id(), held.get(&one.id())?.epoch()));
                    self.epochs = core.file_systems().into_iter().filter_map(epoch).collect();
                    drop(held);
                    return Ok(core);
                }
                Some(id) if start.elapsed() > PATIENCE => {
                    return Err(ConvertError::Place(format!(
                        "{id} cannot be taken over in etcd ({})",
                        self.access
                    )));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for SourceOrder {
    fn drop(&mut self) {
        // The threads end first, so that they do not take a new lease after the present one is given back.
        drop(self.threads.take());
        self.cluster.leave();
    }
}

/// Checks that no server with its orders in this etcd runs.
pub(super) fn alone(cluster: &Cluster) -> Result<(), ConvertError> {
    let start = Instant::now();
    loop {
        let seen = cluster.look().map_err(away)?;
        let others: Vec<String> = seen.servers.into_iter().filter(|address| address != OURSELVES).collect();
        if others.is_empty() {
            return Ok(());
        }
        if start.elapsed() > LISTED {
            cluster.leave();
            return Err(ConvertError::Refused(format!(
                "servers run that have their orders there ({}), and would serve file systems of which only a part is moved: \
                 stop them first",
                others.join(", ")
            )));
        }
        cluster.keep_alive().map_err(away)?;
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub(super) fn away(error: EtcdError) -> ConvertError {
    crate::order::OrderError::from(error).into()
}

/// The text of the mark: the new directory, this machine, and the other lines of the directory's mark.
pub(super) fn mark_text(converted: &str) -> String {
    let (new, rest) = converted.split_once('\n').unwrap_or((converted, ""));
    format!("{new}\n{}\n{rest}", machine_name())
}
