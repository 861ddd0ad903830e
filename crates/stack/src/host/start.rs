//! Starting a stack: which components there are, what each may do, and who may speak with whom.

use super::aliases::{Aliases, Role};
use super::memory::Tmpfs;
use super::service::{Service, port};
use super::variant::{Runtime, TO_CACHE, Variant};
use crate::protocol::{AskCache, AskFiles, Blocks, CacheSays, FilesSay, STAGE_PAGES};
use crate::{StackError, cache_manager, disk_driver, formatter, fs_driver, policy_manager, vfs};
use holdfast_access::{Acl, Conditions, Manifest, Name, Predicate, Principal, ProcessName, Term, Text};
use holdfast_components::{
    Access, ChannelPlan, ComponentPlan, Door, End, Event, Patience, Plan, Ports, Profile, Program,
    RegionGrant, Regions, Supervisor,
};
use holdfast_crypto::Digest;
use holdfast_fat::Layout as FatLayout;
use holdfast_log::ring::Anchor;
use holdfast_monitor::{Disk, Extent, Layout, Monitor, Names, PAGE_BYTES};
use holdfast_volume::Volume;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Where the blocks of a disk are.
#[derive(Clone, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Place {
    /// Drawn when it was formatted or adopted.
    pub identity: [u8; 16],
    /// Where the file system begins on the volume, in bytes.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where the policy table is, in bytes, and how many blocks it has.
    pub table: (u64, u64),
}

/// Somebody who uses the file system, through a mount of their own.
pub struct Session {
    /// In whose name.
    pub user: Principal,
    /// What files get that they make.
    pub acl: Acl,
    /// The mount: an open session with FUSE that nobody has read from.
    pub fuse: OwnedFd,
    /// The numbers that files are shown to belong to.
    pub uid: u32,
    /// And to which group.
    pub gid: u32,
}

/// What to start.
pub struct Configuration {
    /// Its name in listings.
    pub name: String,
    /// The program that components run: this one.
    pub program: Program,
    /// Its digest.
    pub digest: Digest,
    /// What verifies the disk.
    pub volume: Volume,
    /// Where its blocks are.
    pub place: Place,
    /// The file system.
    pub fat: FatLayout,
    /// The disk has no table and no file system yet: all of it is erased, and formatted with this label, clusters of so
    /// many bytes, and serial number.
    pub format: Option<(String, Option<u32>, u32)>,
    /// Who may format.
    pub administrator: Principal,
    /// Users.
    pub sessions: Vec<Session>,
    /// Pages of memory for blocks.
    pub pages_max: usize,
}

/// A stack that runs.
pub struct Stack {
    runtime: Option<Runtime>,
    serving: Option<std::thread::JoinHandle<()>>,
    service: Arc<Service>,
    /// Sessions that have not ended.
    sessions: Arc<AtomicUsize>,
}

/// Threads that answer for the monitor.
const THREADS: usize = 4;

/// The name of the only disk's DiskDriver, of the file system's driver, and so on.
const DRIVER: &str = "disk-driver";
pub(super) const FILES: &str = "fs-driver";
pub(super) const POLICY: &str = "policy-manager";
pub(super) const CACHE: &str = "cache-manager";
const FORMATTER: &str = "disk-formatter";

pub(super) const SESSION: &str = "vfs-";

fn session_name(number: usize) -> String {
    format!("{SESSION}{number}")
}

impl Place {
    /// The stretches of blocks of the file system: its metadata area, with what is left over of it, and its data area; then
    /// the policy table.
    ///
    /// # Errors
    /// The file system is not within its place.
    pub fn extents(&self, fat: &FatLayout) -> Result<Vec<Extent>, StackError> {
        use holdfast_fat::Area;
        let block_bytes = fat.block_bytes as u16;
        let metadata = fat.area_start(Area::Data);
        let whole = metadata / u64::from(fat.block_bytes);
        let rest = metadata % u64::from(fat.block_bytes);
        let data_end = metadata + fat.area_blocks(Area::Data) * u64::from(fat.block_bytes);
        if data_end > self.bytes {
            return Err(StackError::Component("the file system is larger than its partition".to_owned()));
        }
        let mut extents = vec![Extent { offset: self.start, block_bytes, blocks: whole }];
        if rest > 0 {
            let offset = self.start + whole * u64::from(fat.block_bytes);
            extents.push(Extent { offset, block_bytes: rest as u16, blocks: 1 });
        }
        let blocks = fat.area_blocks(Area::Data);
        extents.push(Extent { offset: self.start + metadata, block_bytes, blocks });
        let (offset, blocks) = self.table;
        extents.push(Extent { offset, block_bytes: PAGE_BYTES as u16, blocks });
        Ok(extents)
    }
}

fn manifest(digest: Digest, component: &str, settings: &[(&str, String)]) -> Result<Manifest, StackError> {
    let mut manifest = Manifest::of_executable(digest, 0);
    manifest.component = Some(Name::new(component)?);
    for (name, text) in settings {
        manifest.settings.insert(Name::new(name)?, Text::new(text)?);
    }
    Ok(manifest)
}

impl Stack {
    /// Starts the components of one disk with one file system, and a VFS for each session.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn start(configuration: Configuration) -> Result<Stack, StackError> {
        Stack::start_as(Variant::default(), configuration)
    }

    /// The same in another arrangement, for measuring.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn start_as(variant: Variant, configuration: Configuration) -> Result<Stack, StackError> {
        let Configuration { name, program, digest, volume, place, fat, format, .. } = configuration;
        let is_new = format.is_some();
        let extents = place.extents(&fat)?;
        let layout = Layout::new(extents, volume.size_bytes()).map_err(StackError::Component)?;
        let table_first = layout.blocks() - place.table.1;
        let disk = holdfast_policy::Disk {
            number: 0,
            identity: place.identity,
            blocks: table_first,
            table_first,
            table_blocks: place.table.1,
        };
        let of_files = Blocks { first: 0, count: table_first };

        // What each runs is who each is.
        let of_disk = ("disks", "0".to_owned());
        let of_blocks = ("blocks", format!("0:{}+{}", of_files.first, of_files.count));
        let mut roles = HashMap::new();
        let mut role = |component: &str, kind: &str, settings: &[(&str, String)], user: Option<Principal>| {
            let manifest = manifest(digest, kind, settings)?;
            let program = Principal::Program(manifest.program());
            roles.insert(component.to_owned(), Role { manifest, program: program.clone(), user });
            Ok::<_, StackError>(program)
        };
        let policy = role(POLICY, POLICY, &[], None)?;
        let cache = role(CACHE, CACHE, &[], None)?;
        let driver = role(DRIVER, DRIVER, &[of_disk], None)?;
        // The driver's blocks are its own whichever version of this program it is: the machine alone says who is which
        // component, and does so of this program's own.
        let component = Term::Component(Name::new(FILES)?);
        let setting = Term::Setting(Name::new("blocks")?, Text::new(&of_blocks.1)?);
        let files = Predicate::new(vec![Term::All(2), component, setting], Conditions::CLEAN)?;
        let files = Principal::Such(files);
        let runs = manifest(digest, FILES, &[of_blocks])?;
        role(FORMATTER, FORMATTER, &[], Some(configuration.administrator.clone()))?;
        for (number, session) in configuration.sessions.iter().enumerate() {
            role(&session_name(number), "vfs", &[], Some(session.user.clone()))?;
        }
        roles.insert(FILES.to_owned(), Role { manifest: runs, program: files.clone(), user: None });
        let aliases = Arc::new(Aliases::new(roles));
        let sessions = configuration.sessions.len();

        let memory = (configuration.pages_max * PAGE_BYTES) as u64;
        // Regions are filled in part only, and each has its words.
        let regions = Regions::create(&program, memory * 4 + (256 << 20))?;
        let stage_bytes = (STAGE_PAGES * PAGE_BYTES) as u64;
        let mut stages = HashMap::new();
        for component in [POLICY, FILES] {
            stages.insert(component.to_owned(), Arc::new(regions.region(stage_bytes)?));
        }
        let stage = |component: &str| RegionGrant {
            name: "stage".to_owned(),
            region: Arc::clone(&stages[component]),
            access: Access::ReadWrite,
        };

        let names = Names { policy_manager: policy.clone(), cache_manager: cache.clone() };
        let digests = vec![policy.digest().0, cache.digest().0];
        let monitor_disk = Disk { volume, layout, driver };
        let monitor = Monitor::new(Tmpfs::new(regions), vec![monitor_disk], names, configuration.pages_max);

        let everybody = configuration.sessions.iter().map(|session| session.user.clone()).collect();
        let owner = files.clone();
        let mut components = vec![
            ComponentPlan {
                configuration: encode(&disk_driver::Configuration { may_ask: digests, disks: vec![0] }),
                guards: vec![
                    "transfers: only for PolicyMgr and CacheMgr, of the disks of its bus".to_owned(),
                ],
                ..ComponentPlan::new(DRIVER, Profile::with_doors(&[Door::Threads]))
            },
            ComponentPlan {
                configuration: encode(&policy_manager::Configuration {
                    disks: vec![(disk, is_new)],
                    administrator: configuration.administrator.clone(),
                    cache_manager: cache,
                    drivers: vec![(0, of_files, files.clone())],
                    principals: std::iter::once(policy)
                        .chain(configuration.sessions.iter().map(|session| session.user.clone()))
                        .collect(),
                }),
                regions: vec![stage(POLICY)],
                guards: vec![
                    "owners and ACLs: only for who speaks for the owner".to_owned(),
                    "pages: only for CacheMgr, in regions of one ACL".to_owned(),
                ],
                source: Some("policy-manager".to_owned()),
                ..ComponentPlan::new(POLICY, Profile::default())
            },
            ComponentPlan {
                configuration: encode(&cache_manager::Configuration {
                    pages_max: (configuration.pages_max - place.table.1 as usize - 64) as u32,
                    disks: 1,
                }),
                guards: vec!["pages: of any block, without its content".to_owned()],
                ..ComponentPlan::new(CACHE, Profile::with_doors(&[Door::Threads]))
            },
            ComponentPlan {
                configuration: encode(&fs_driver::Configuration {
                    disk: 0,
                    blocks: of_files,
                    partition_bytes: place.bytes,
                    own: files.clone(),
                    format,
                }),
                regions: vec![stage(FILES)],
                guards: vec!["changes of a file with blocks: only for the owner of its first".to_owned()],
                ..ComponentPlan::new(FILES, Profile::default())
            },
        ];
        let host = |component: &str| ChannelPlan {
            bounds: holdfast_components::Bounds { files_max: 2, ..Default::default() },
            ..ChannelPlan::new(End::of(component, "monitor"), End::host(&port(component)))
        };
        let between = |from: &str, name: &str, to: &str| {
            ChannelPlan::new(End::of(from, name), End::of(to, &format!("from-{from}")))
        };
        let mut channels = vec![
            ChannelPlan::new(End::host(FILES), End::of(FILES, "from-host")),
            host(DRIVER),
            host(POLICY),
            host(CACHE),
            host(FILES),
            between(POLICY, "driver", DRIVER),
            between(CACHE, "driver", DRIVER),
            between(CACHE, "policy", POLICY),
            between(FILES, "cache", CACHE),
            between(FILES, "policy", POLICY),
        ];
        if is_new {
            let before_files = components.len() - 1;
            let plan = ComponentPlan {
                configuration: encode(&formatter::Configuration {
                    disk: 0,
                    partitions: vec![(of_files, files)],
                }),
                guards: vec!["speaks for the administrator, who owns what was just erased".to_owned()],
                ..ComponentPlan::new(FORMATTER, Profile::default())
            };
            components.insert(before_files, plan);
            channels.push(between(FORMATTER, "policy", POLICY));
        }
        for (number, session) in configuration.sessions.into_iter().enumerate() {
            let name = session_name(number);
            let plan = ComponentPlan {
                program: "vfs".to_owned(),
                configuration: encode(&vfs::Configuration {
                    disk: 0,
                    user: session.user,
                    acl: session.acl,
                    uid: session.uid,
                    gid: session.gid,
                }),
                files: vec![("fuse".to_owned(), session.fuse)],
                guards: vec!["requests: only of its mount".to_owned()],
                // A session with FUSE cannot be taken up by another process yet: the kernel keeps its state.
                restart: holdfast_components::Restart::NEVER,
                ..ComponentPlan::new(&name, Profile::with_doors(&[Door::Threads, Door::Fuse]))
            };
            components.push(plan);
            channels.extend([
                host(&name),
                between(&name, "files", FILES),
                between(&name, "cache", CACHE),
                between(&name, "policy", POLICY),
            ]);
        }

        let service = Arc::new(Service { monitor, aliases: Arc::clone(&aliases), stages });
        let sessions = Arc::new(AtomicUsize::new(sessions));
        let left = Arc::clone(&sessions);
        let mut plan = Plan { name, components, channels };
        variant.apply(&mut plan, &owner, everybody);
        let runtime = Runtime::start(&variant, program, plan, move |event| match event {
            Event::Starting { component, process, aliases: page, .. } => {
                let name = ProcessName { boot: process.realm, number: process.counter };
                if let Err(error) = aliases.started(component, name, page) {
                    tracing::error!(component, %error, "its names could not be proved; it will be refused everything");
                }
            }
            Event::Ended { component, process, reason, restarts } => {
                let name = ProcessName { boot: process.realm, number: process.counter };
                aliases.ended(component, name);
                if component.starts_with(SESSION) && !restarts {
                    left.fetch_sub(1, Relaxed);
                }
                tracing::warn!(component, reason, restarts, "a component ended");
            }
        })?;
        let ports = Arc::clone(runtime.ports());
        let answering = Arc::clone(&service);
        let serving = std::thread::Builder::new().name("monitor".to_owned()).spawn(move || {
            if let Err(error) = ports.serve_owned(THREADS, move |request| answering.answer(&request)) {
                tracing::error!(%error, "the monitor ends");
            }
        });
        let serving = serving.map_err(|error| StackError::Component(error.to_string()))?;
        Ok(Stack { runtime: Some(runtime), serving: Some(serving), service, sessions })
    }

    /// Waits until the file system can be used: recovered, and formatted if that was asked for.
    ///
    /// # Errors
    /// Its driver does not come up; in words of the driver, if it said any.
    pub fn wait_until_ready(&self, patience: Duration) -> Result<(), StackError> {
        let files = self.ports().asker::<AskFiles, FilesSay>(FILES)?;
        let started = std::time::Instant::now();
        loop {
            let asked = files.ask(0, &AskFiles::Sizes, Patience::of(Duration::from_secs(1)));
            let Err(error) = asked else { return Ok(()) };
            let Some(Runtime::Apart(supervisor)) = &self.runtime else { return Err(error.into()) };
            let listing = supervisor.listing();
            // Whoever is down keeps the others waiting.
            let is_late = started.elapsed() > patience;
            let failed = listing.components.iter().find(|component| component.state.starts_with("down"));
            if let Some(failed) = failed {
                let words = failed.last_end.clone().unwrap_or_default();
                return Err(StackError::Component(format!("{}: {words}", failed.name)));
            }
            if is_late {
                return Err(error.into());
            }
        }
    }

    /// How many sessions have not ended.
    pub fn sessions(&self) -> usize {
        self.sessions.load(Relaxed)
    }

    /// How new the volume is.
    pub fn anchor(&self) -> Anchor {
        self.service.monitor.anchor(0).expect("there is one disk")
    }

    /// What runs.
    ///
    /// # Panics
    /// There are no processes, as in a merged [`Variant`].
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

    /// Has CacheMgr give up every block, for measuring from a cold cache; the [`Variant`] must say that this is done.
    ///
    /// # Errors
    /// It says not so, or the blocks cannot be written.
    pub fn empty_cache(&self) -> Result<(), StackError> {
        let cache = self.ports().asker::<AskCache, CacheSays>(TO_CACHE)?;
        cache.ask(0, &AskCache::Empty, Patience::of(Duration::from_secs(60)))?;
        Ok(())
    }

    /// Ends the components, and makes everything durable that they wrote. How new the volume is then.
    ///
    /// # Errors
    /// The volume.
    pub fn stop(mut self) -> Result<Anchor, StackError> {
        if let Some(runtime) = self.runtime.take() {
            runtime.stop();
        }
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
        self.service.monitor.close()?;
        Ok(self.anchor())
    }
}

pub(super) fn encode(configuration: &impl borsh::BorshSerialize) -> Vec<u8> {
    borsh::to_vec(configuration).expect("a vector takes everything")
}
