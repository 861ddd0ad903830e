//! Starts, watches and ends a stack.

use super::aliases::Aliases;
use super::memory::Tmpfs;
use super::mounts::{self, MountTable};
use super::people::{People, ProgramGate};
use super::plan::{ComponentSet, plan, stages};
use super::roles::{SESSION, session_name};
use super::service::Service;
use super::tending::tend;
use super::variant::{Runtime, TO_CACHE, Variant};
use crate::StackError;
use crate::disk_layout::DiskLayout;
use crate::protocol::{CacheReply, CacheRequest, FilesReply, FilesRequest, STAGE_PAGES};
use holdfast_access::{Acl, KeyName, Principal, ProcessName};
use holdfast_components::{
    Asker, ComponentError, ComponentListing, Event, Patience, Plan, Ports, Program, Regions, Supervisor,
    Ticket,
};
use holdfast_crypto::Digest;
use holdfast_log::ring::Anchor;
use holdfast_monitor::{Disk, Layout, Monitor, Names, PAGE_BYTES};
use holdfast_volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// A session: a user of a file system, with a mount of their own.
pub struct Session {
    /// The disk, by its position in the configuration.
    pub disk: u16,
    /// The partition, by its number in the partition table.
    pub partition: u32,
    /// The user in whose name the session acts.
    pub user: Principal,
    /// The ACL of the files that the session creates.
    pub acl: Acl,
    /// The mount: an open FUSE session from which nothing has been read yet.
    pub fuse: OwnedFd,
    /// The user id of its files in the mount.
    pub uid: u32,
    /// The group id of its files in the mount.
    pub gid: u32,
    /// Signed credentials that it presents at its beginning.
    pub credentials: Vec<Vec<u8>>,
    /// The gate, if the session is for a program.
    pub gate: Option<ProgramGate>,
}

/// Options of the file systems on a new disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFileSystem {
    /// The label of the file systems.
    pub label: String,
    /// Bytes of a cluster; `None`: by the size of the file system.
    pub cluster_bytes: Option<u32>,
    /// The serial number of the file systems.
    pub id: u32,
}

/// A disk of the stack.
pub struct DiskPlan {
    /// The volume on which it is stored, which verifies its content.
    pub volume: Volume,
    /// The layout of the disk.
    pub layout: DiskLayout,
    /// The name of its bus: disks with the same one share a DiskDriver.
    pub bus: String,
    /// Whether the disk is new, without policy table and file systems: its partitions are then erased and
    /// formatted.
    pub format: Option<NewFileSystem>,
}

/// The configuration of a stack.
pub struct Configuration {
    /// The name of the stack in listings.
    pub name: String,
    /// The program that components run: this one.
    pub program: Program,
    /// The digest of the program.
    pub digest: Digest,
    /// Packages whose verified lists contain this program, so that it may run drivers of layouts that belong
    /// to them.
    pub packages: BTreeSet<KeyName>,
    /// The disks. Each of their file systems that is new or used by a session gets a driver.
    pub disks: Vec<DiskPlan>,
    /// The principal that may format disks.
    pub administrator: Principal,
    /// The sessions to start.
    pub sessions: Vec<Session>,
    /// The users' keys and groups.
    pub people: People,
    /// Most pages of memory for blocks, including the policy tables.
    pub pages_max: usize,
}

/// A running stack.
pub struct Stack {
    runtime: Option<Runtime>,
    serving: Option<std::thread::JoinHandle<()>>,
    service: Arc<Service>,
    mounts: Arc<MountTable>,
    /// FSDrivers by name, each with a description of what it serves.
    drivers: BTreeMap<String, (Arc<Asker<FilesRequest, FilesReply>>, String)>,
    disks: u16,
}

/// Threads that serve the monitor's requests.
const THREADS: usize = 4;

impl Stack {
    /// Starts the components for these disks, and a VFS for each session.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn start(configuration: Configuration) -> Result<Stack, StackError> {
        Stack::start_as(Variant::default(), configuration)
    }

    /// Like [`Stack::start`], in another arrangement of components, for measurements.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn start_as(variant: Variant, mut configuration: Configuration) -> Result<Stack, StackError> {
        let cast = ComponentSet::of(&configuration)?;
        let mounts = Arc::new(MountTable::default());
        for (number, session) in configuration.sessions.iter().enumerate() {
            mounts.add(&session_name(number), &cast.driver(session, &configuration.disks)?.name);
        }
        // A component that replaces a VFS may have no kernel that could be notified.
        let sessions = if variant.client.is_none() { configuration.sessions.len() } else { 0 };
        // Regions are only partly filled, and each has its words.
        let memory = (configuration.pages_max * PAGE_BYTES * 4 + (256 << 20)) as u64;
        let staged = (STAGE_PAGES * PAGE_BYTES * (cast.drivers.len() + 1)) as u64;
        let regions = Regions::create(&configuration.program, memory + staged)?;
        let stages = stages(&cast, &regions)?;
        let everybody = configuration.sessions.iter().map(|session| session.user.clone()).collect();
        let (components, channels, gates) = plan(&cast, &mut configuration, &stages)?;
        let mut plan = Plan { name: configuration.name, components, channels };
        variant.apply(&mut plan, &cast, everybody)?;
        let served = cast.drivers.iter().map(|driver| {
            let number =
                configuration.disks[usize::from(driver.disk)].layout.partitions[driver.partition].number;
            (driver.name.clone(), format!("disk {}, partition {number}", driver.disk))
        });
        let served: Vec<(String, String)> = served.collect();

        let names = Names { policy_manager: cast.policy.clone(), cache_manager: cast.cache.clone() };
        let mut disks = Vec::new();
        for (disk, bus) in configuration.disks.into_iter().zip(&cast.bus_of) {
            let layout = Layout::new(disk.layout.extents(), disk.volume.size_bytes());
            let layout = layout.map_err(|error| StackError::Component(error.to_string()))?;
            let driver = cast.buses[usize::from(*bus)].clone();
            disks.push(Disk { volume: disk.volume, layout, driver });
        }
        let count = disks.len() as u16;
        let monitor = Monitor::new(Tmpfs::new(regions), disks, names, configuration.pages_max);
        let aliases = Arc::new(Aliases::new(cast.roles.by_name, configuration.people));
        let (withdrawn, notices) = sync_channel(1);
        let service = Arc::new(Service { monitor, aliases: Arc::clone(&aliases), stages, gates, withdrawn });

        let (ended, ends) = std::sync::mpsc::channel();
        let table = Arc::clone(&mounts);
        let runtime = Runtime::start(&variant, configuration.program, plan, move |event| match event {
            Event::Starting { component, process, aliases: page, .. } => {
                let name = ProcessName { boot: process.realm, number: process.counter };
                if let Err(error) = aliases.started(component, name, page) {
                    tracing::error!(component, %error, "its names could not be proved; it will be refused everything");
                }
            }
            Event::Ended { component, process, reason, restarts } => {
                let name = ProcessName { boot: process.realm, number: process.counter };
                aliases.ended(component, name);
                if component.starts_with(SESSION)
                    && !restarts
                    && let Some(driver) = table.remove(component)
                {
                    // The receiver is gone when the stack is being dropped.
                    let _ = ended.send((component.to_owned(), driver));
                }
                tracing::warn!(component, reason, restarts, "a component ended");
            }
        })?;
        let ports = Arc::clone(runtime.ports());
        let mut notified = BTreeMap::new();
        let mut drivers = BTreeMap::new();
        for (name, what) in served {
            let asker = Arc::new(ports.asker::<FilesRequest, FilesReply>(&name)?);
            notified.insert(name.clone(), Arc::clone(&asker));
            drivers.insert(name, (asker, what));
        }
        let failed = |error: std::io::Error| StackError::Component(error.to_string());
        let answering = Arc::clone(&service);
        let serving = std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
            if let Err(error) = ports.serve_owned(THREADS, move |request| answering.answer(&request)) {
                tracing::error!(%error, "the monitor ends");
            }
        });
        let serving = Some(serving.map_err(failed)?);
        let notifier = std::thread::Builder::new().name("mounts".to_owned());
        notifier.spawn(move || mounts::notify(&ends, &notified)).map_err(failed)?;
        tend(runtime.ports(), sessions, &service, notices)?;
        Ok(Stack { runtime: Some(runtime), serving, service, mounts, drivers, disks: count })
    }

    /// Waits until all file systems can be used: recovered, and formatted if that was requested. A session
    /// may have ended by then ([`Stack::ended`]), which does not affect the others.
    ///
    /// # Errors
    /// A driver does not start; the error contains the driver's output, if there is any.
    pub fn wait_until_ready(&self, patience: Duration) -> Result<(), StackError> {
        let started = Instant::now();
        let look = || Patience::of(Duration::from_secs(1));
        for (name, (asker, what)) in &self.drivers {
            // One request is pending at a time, however long its reply takes; a new one is sent if the driver
            // was restarted.
            let mut asked: Option<Ticket> = None;
            loop {
                let answer = match asked {
                    None => {
                        asker.start(0, &FilesRequest::Sizes, &[], look()).map(|ticket| asked = Some(ticket))
                    }
                    Some(ticket) => match asker.finish(ticket, look()) {
                        Ok(_) => break,
                        Err(error) => {
                            asked = asked.filter(|_| matches!(error, ComponentError::TimedOut(_)));
                            Err(error)
                        }
                    },
                };
                let Err(error) = answer else { continue };
                // A component that is down delays the others.
                let is_late = started.elapsed() > patience;
                let Some(Runtime::Apart(supervisor)) = &self.runtime else { return Err(error.into()) };
                let listing = supervisor.listing();
                let is_down = |component: &&ComponentListing| {
                    component.state.starts_with("down") && !component.name.starts_with(SESSION)
                };
                let failed = listing.components.iter().find(is_down);
                if let Some(failed) = failed {
                    let words = failed.last_end.clone().unwrap_or_default();
                    let what = if failed.name == *name { format!(" ({what})") } else { String::new() };
                    return Err(StackError::Component(format!("{}{what}: {words}", failed.name)));
                }
                if is_late {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Why a session has ended, by its position in the configuration: `None` if it has not; an empty text if
    /// it was unmounted.
    pub fn ended(&self, session: usize) -> Option<String> {
        let name = session_name(session);
        if self.mounts.has(&name) {
            return None;
        }
        let Some(Runtime::Apart(supervisor)) = &self.runtime else { return Some(String::new()) };
        let listing = supervisor.listing();
        let found = listing.components.into_iter().find(|component| component.name == name);
        let found = found.filter(|component| component.state.starts_with("down"));
        Some(found.and_then(|component| component.last_end).unwrap_or_default())
    }

    /// The anchor of each disk's volume, which states how new the volume is.
    pub fn anchors(&self) -> Vec<Anchor> {
        let anchor = |disk| self.service.monitor.anchor(disk).expect("the disk is there");
        (0..self.disks).map(anchor).collect()
    }

    /// The supervisor of the components.
    ///
    /// # Panics
    /// If the components are not processes, as in a merged [`Variant`].
    pub fn supervisor(&self) -> &Supervisor {
        match self.runtime.as_ref() {
            Some(Runtime::Apart(supervisor)) => supervisor,
            _ => panic!("these components are no processes"),
        }
    }

    /// The host's ends of channels.
    pub fn ports(&self) -> &Arc<Ports> {
        self.runtime.as_ref().expect("it runs until it is stopped").ports()
    }

    /// Empties the cache, for measurements with a cold one; the [`Variant`] must allow it.
    ///
    /// # Errors
    /// The cache manager does not confirm, or blocks cannot be written.
    pub fn empty_cache(&self) -> Result<(), StackError> {
        let cache = self.ports().asker::<CacheRequest, CacheReply>(TO_CACHE)?;
        cache.ask(0, &CacheRequest::Empty, Patience::of(Duration::from_secs(60)))?;
        Ok(())
    }

    /// Ends the components, and makes everything durable that they wrote. Returns the volumes' anchors after
    /// that.
    ///
    /// # Errors
    /// The failure of a volume; the others are closed nevertheless.
    pub fn stop(mut self) -> Result<Vec<Anchor>, StackError> {
        if let Some(runtime) = self.runtime.take() {
            runtime.stop();
        }
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
        self.service.monitor.close()?;
        Ok(self.anchors())
    }
}
