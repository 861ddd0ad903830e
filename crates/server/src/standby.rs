//! Decides which file systems this server is the active one of, where several servers share orders in etcd.
//! It takes over file systems without an active server, stops serving those that another server has taken,
//! and hands file systems over.
//!
//! A server that takes over a file system starts with nothing in memory, as after a restart: it reads the
//! order, and waits for sessions that may hold locks or leases. A server that gives one up discards its state
//! in memory; the clients then look for the active server again.

use crate::error::UnservedReason;
use crate::file_system::{FileSystem, InheritedState};
use crate::order::etcd::{Cluster, Shard};
use crate::order::{ActiveStatus, Notes, Order, OrderError};
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use holdfast_crypto::Digest;
use holdfast_etcd::EtcdError;
use holdfast_protocol::message::{Response, SERVERS_TOLD_MAX, ServerError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the list of active servers is read from etcd.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often this server's lease in etcd is renewed.
const RENEW_EVERY: Duration = Duration::from_millis(600);
/// When etcd has not answered for this long, clients that greet a file system get an error that says so.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// How long a hand-over waits for clients to give up their leases.
const LEASES_PATIENCE: Duration = Duration::from_secs(3);

/// Why a file system is not handed over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    /// Operator: the order is in this server's data directory, so no other server can serve it.
    #[error("this server has the order in its own data directory: there is no other (docs/growing.md)")]
    Alone,
    /// Operator: no server runs at the address.
    #[error("no server runs at {to}; there are: {}", .servers.join(", "))]
    NoSuchServer { to: String, servers: Vec<String> },
    /// Operator: the file system is served by another server, at this address.
    #[error("{0} has it: say it there")]
    Elsewhere(String),
    /// No server is the active one of the file system.
    #[error("no server has it")]
    Nowhere,
    /// etcd cannot be reached, or refuses.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
}

/// The threads that renew this server's lease and take or give up file systems, until this is dropped.
pub(crate) struct StandbyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl StandbyThreads {
    pub(crate) fn start(core: &Arc<ServerCore>) -> std::io::Result<StandbyThreads> {
        let mut tending = StandbyThreads { stop: Arc::default(), threads: Vec::new() };
        let Some(cluster) = core.cluster.clone() else { return Ok(tending) };
        let core = core.clone();
        tending.run("lease", RENEW_EVERY, move || {
            if let Err(error) = cluster.keep_alive() {
                tracing::warn!(%error, "the lease was not renewed");
            }
        })?;
        let mut was_away = false;
        tending.run("standby", LOOK_EVERY, move || match core.tend() {
            Err(error) if !was_away => {
                tracing::error!(%error, "file systems wait until it is back; nothing acknowledged is lost");
                was_away = true;
            }
            Err(_) => {}
            Ok(()) if was_away => {
                tracing::info!("etcd answers again");
                was_away = false;
            }
            Ok(()) => {}
        })?;
        Ok(tending)
    }

    fn run(
        &mut self,
        name: &str,
        every: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> std::io::Result<()> {
        let stop = self.stop.clone();
        let work = move || {
            while !stop.load(Ordering::Acquire) {
                let start = Instant::now();
                act();
                std::thread::park_timeout(every.saturating_sub(start.elapsed()));
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

impl Drop for StandbyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl ServerCore {
    /// The error for a client that greets a file system that is not served here.
    pub(crate) fn why_not_here(&self, id: &Digest) -> ServerError {
        let Some(cluster) = &self.cluster else { return ServerError::UnknownFileSystem };
        let silence = cluster.silence();
        let state = cluster.state();
        if silence > SILENCE_MAX {
            let etcd = cluster.describe();
            return ServerError::Storage(format!("the order is in etcd, which does not answer ({etcd})"));
        }
        match state.active.get(id) {
            _ if !state.file_systems.contains(id) => ServerError::UnknownFileSystem,
            Some((address, _)) if address != cluster.address() => {
                ServerError::Elsewhere(Some(address.clone()))
            }
            _ => ServerError::Elsewhere(None),
        }
    }

    /// The addresses of this server and of the others of its group, as each has announced it.
    pub(crate) fn servers(&self) -> Response {
        let Some(cluster) = &self.cluster else { return Response::Servers { own: None, others: Vec::new() } };
        let own = cluster.address().to_owned();
        let others = cluster.state().servers.into_iter().filter(|address| *address != own);
        Response::Servers { others: others.take(SERVERS_TOLD_MAX).collect(), own: Some(own) }
    }

    /// The order of a file system that is about to be created, of which this server becomes the active one.
    pub(crate) fn begun(&self, id: Digest) -> Result<Arc<dyn Order>, RequestError> {
        let Some(cluster) = &self.cluster else { return Ok(self.resources.embedded(id)) };
        let Some(shard) = cluster.take(id)? else { return Err(ServerError::Elsewhere(None).into()) };
        cluster.held.lock().insert(id, shard.clone());
        // An interrupted creation leaves one record at most: the list of server keys.
        let is_there = |(checkpoint, records): (Option<Vec<u8>>, Vec<Vec<u8>>)| {
            checkpoint.is_some() || records.len() > 1
        };
        let is_there = if shard.is_new() { Ok(false) } else { shard.recover().map(is_there) };
        match is_there {
            Ok(false) => Ok(Arc::new(shard)),
            Ok(true) => {
                self.not_begun(id);
                Err(ServerError::Busy.into())
            }
            Err(error) => {
                self.not_begun(id);
                Err(error.into())
            }
        }
    }

    /// Gives up a file system whose creation has failed.
    pub(crate) fn not_begun(&self, id: Digest) {
        if let Some(cluster) = &self.cluster {
            release(cluster, id);
        }
    }

    /// Becomes the active server of file systems that have none, stops serving those that another server has
    /// taken, and reads those again whose state in memory is not valid any more.
    pub(crate) fn tend(&self) -> Result<(), OrderError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let held: Vec<Digest> = cluster.held.lock().keys().copied().collect();
        let looked = cluster.look();
        if let Ok(state) = &looked {
            for id in held.iter().filter(|id| !cluster.is_ours(state, id)) {
                if let Some(shard) = cluster.held.lock().get(id) {
                    shard.lose();
                }
            }
        }
        for file_system in self.file_systems() {
            if file_system.active_status() == ActiveStatus::Lost {
                let is_ours = looked.as_ref().is_ok_and(|state| cluster.is_ours(state, &file_system.id()));
                self.end_or_read_again(cluster, &file_system, is_ours);
            }
        }
        let state = looked?;
        for id in &state.file_systems {
            let _creating = self.creating.lock();
            if self.file_systems.read().contains_key(id) || self.damaged.read().contains_key(id) {
                continue;
            }
            if cluster.is_ours(&state, id) {
                cluster.disown(*id)?;
            } else if cluster.may_take(&state, id) {
                match cluster.take(*id) {
                    Ok(Some(shard)) => {
                        cluster.held.lock().insert(*id, shard.clone());
                        self.activate(cluster, *id, shard);
                    }
                    Ok(None) => {}
                    // One damaged file system is no reason not to serve the others.
                    Err(OrderError::Damaged(why)) => {
                        tracing::error!(file_system = %id, why, "this file system is not served");
                        self.damaged.write().insert(*id, UnservedReason::Damaged(why));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn end_or_read_again(&self, cluster: &Arc<Cluster>, file_system: &FileSystem, is_ours: bool) {
        let _creating = self.creating.lock();
        let id = file_system.id();
        self.file_systems.write().remove(&id);
        file_system.end();
        let Some(shard) = cluster.held.lock().remove(&id) else { return };
        if !is_ours || !shard.is_leased() {
            tracing::warn!(file_system = %id, "another server may have it now: not active any more");
            return;
        }
        match shard.again() {
            Ok(again) => {
                cluster.held.lock().insert(id, again.clone());
                self.activate(cluster, id, again);
            }
            Err(error) => {
                tracing::warn!(file_system = %id, %error, "it cannot be read again now");
                let _ = cluster.give_up(id, shard.epoch());
            }
        }
    }

    /// Reads the order of a file system that this server is the active one of, and serves it.
    fn activate(&self, cluster: &Arc<Cluster>, id: Digest, shard: Shard) {
        let start = Instant::now();
        let opened = self.before(&shard).map_err(|error| crate::error::OpenError::order(id, error));
        let opened =
            opened.and_then(|before| FileSystem::open(self.resources.clone(), Arc::new(shard), id, before));
        match opened {
            Ok(Some(file_system)) => {
                let operations = file_system.log_size();
                self.file_systems.write().insert(id, Arc::new(file_system));
                if self.resources.settings.is_restored
                    && cluster.restored.lock().insert(id)
                    && let Err(error) = self.awaiting.add(id)
                {
                    tracing::error!(%error, "it cannot be noted that it waits for its superuser's word");
                }
                let took_ms = start.elapsed().as_millis() as u64;
                tracing::info!(file_system = %id, operations, took_ms, "active: serving");
            }
            Ok(None) => {
                tracing::info!(file_system = %id, "ignoring a file system that was never created");
                release(cluster, id);
                self.damaged.write().insert(id, UnservedReason::NeverCreated);
            }
            Err(error) if error.is_of_one_file_system() => {
                tracing::error!(file_system = %id, %error, "this file system is not served");
                self.damaged.write().insert(id, UnservedReason::Damaged(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(file_system = %id, %error, "it cannot be served now");
                release(cluster, id);
            }
        }
    }

    /// The locks and leases that clients may hold from before. Also stores the new lease epoch.
    fn before(&self, shard: &Shard) -> Result<InheritedState, OrderError> {
        let former: u64 = shard.text("epoch")?.and_then(|text| text.parse().ok()).unwrap_or(0);
        let first_epoch = self.resources.clock.wall_ns().unsigned_abs().max(former + 1);
        match shard.put("epoch", &first_epoch.to_string()) {
            // If etcd is full, the file system can still be read; no lease or lock that needs a note is
            // granted.
            Err(OrderError::Full(_)) | Ok(()) => {}
            Err(error) => return Err(error),
        }
        Ok(InheritedState {
            locks_held: shard.text("locks")?.is_some_and(|text| !text.is_empty()),
            leases: crate::notes::inherited(shard.text("leases")?.as_deref(), shard.id()),
            first_epoch,
        })
    }

    /// Hands a file system over to another server, because the operator asked for it.
    pub(crate) fn hand_over(&self, id: Digest, to: &str) -> Result<(), MoveError> {
        let cluster = self.cluster.as_ref().ok_or(MoveError::Alone)?;
        let state = cluster.look()?;
        if !state.servers.contains(to) {
            let servers = state.servers.into_iter().collect();
            return Err(MoveError::NoSuchServer { to: to.to_owned(), servers });
        }
        let Some(file_system) = self.file_system(&id) else {
            return Err(match state.active.get(&id) {
                Some((address, _)) => MoveError::Elsewhere(address.clone()),
                None => MoveError::Nowhere,
            });
        };
        cluster.want(id, Some(to))?;
        if to == cluster.address() {
            return Ok(());
        }
        file_system.close_leases();
        let start = Instant::now();
        while !file_system.is_unleased() && start.elapsed() < LEASES_PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        file_system.checkpoint();
        let _creating = self.creating.lock();
        self.file_systems.write().remove(&id);
        file_system.settle_notes();
        file_system.end();
        release(cluster, id);
        tracing::info!(file_system = %id, to, "handed over");
        Ok(())
    }

    /// Gives up all file systems, so that other servers may take them. Called at a clean shutdown, once every
    /// checkpoint is written.
    pub(crate) fn leave(&self) {
        let Some(cluster) = &self.cluster else { return };
        for file_system in self.file_systems() {
            file_system.settle_notes();
        }
        cluster.leave();
    }
}

/// Stops being the active server of a file system.
fn release(cluster: &Cluster, id: Digest) {
    let Some(shard) = cluster.held.lock().remove(&id) else { return };
    shard.lose();
    if let Err(error) = cluster.give_up(id, shard.epoch()) {
        tracing::warn!(file_system = %id, %error, "it is given up when the lease has run out");
    }
}
