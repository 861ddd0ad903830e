//! The components of a stack, their permissions, and their channels.
//!
//! There is one DiskDriver for each bus, one FSDriver for each used partition, one VFS for each session, and
//! one PolicyMgr and one CacheMgr for all. An FSDriver has no channel to another, nor to another's sessions.

use super::encode;
use super::people::ProgramGate;
use super::roles::{
    CACHE, DRIVER, FILES, FORMATTER, POLICY, Roles, bus_port, numbered, session_name, to_session,
};
use super::service::port;
use super::start::{Configuration, DiskPlan, Session};
use crate::protocol::{Blocks, STAGE_PAGES};
use crate::{StackError, cache_manager, disk_driver, formatter, fs_driver, policy_manager, vfs};
use holdfast_access::Principal;
use holdfast_components::{
    Access, ChannelPlan, ComponentPlan, End, Permission, Profile, Region, RegionGrant, Regions, Restart,
};
use holdfast_monitor::PAGE_BYTES;
use std::collections::HashMap;
use std::sync::Arc;

/// How many empty regions of a disk are retained for later blocks.
const SPARE_REGIONS: u32 = 4;

/// An FSDriver.
pub(super) struct Driver {
    /// The name of its component.
    pub(super) name: String,
    pub(super) disk: u16,
    /// The position of its partition in the disk's list.
    pub(super) partition: usize,
    pub(super) principal: Principal,
    blocks: Blocks,
}

/// The components of a stack and their principals.
pub(super) struct ComponentSet {
    pub(super) roles: Roles,
    pub(super) policy: Principal,
    pub(super) cache: Principal,
    /// The DiskDriver of each bus.
    pub(super) buses: Vec<Principal>,
    /// The bus of each disk.
    pub(super) bus_of: Vec<u16>,
    /// The FSDriver of each used partition, in the order of the disks.
    pub(super) drivers: Vec<Driver>,
}

impl ComponentSet {
    pub(super) fn of(configuration: &Configuration) -> Result<ComponentSet, StackError> {
        let mut names: Vec<&str> = Vec::new();
        let mut bus_of = Vec::new();
        for disk in &configuration.disks {
            let known = names.iter().position(|name| *name == disk.bus);
            bus_of.push(known.unwrap_or(names.len()) as u16);
            if known.is_none() {
                names.push(&disk.bus);
            }
        }
        let mut roles = Roles::new(configuration.digest, configuration.packages.clone());
        let policy = roles.add(POLICY, POLICY, &[], None)?;
        let cache = roles.add(CACHE, CACHE, &[], None)?;
        let mut buses = Vec::new();
        for bus in 0..names.len() {
            let disks: Vec<String> = (0..bus_of.len())
                .filter(|disk| usize::from(bus_of[*disk]) == bus)
                .map(|disk| disk.to_string())
                .collect();
            buses.push(roles.add(&numbered(DRIVER, bus), DRIVER, &[("disks", disks.join("+"))], None)?);
        }
        let mut drivers: Vec<Driver> = Vec::new();
        for (disk, DiskPlan { layout, format, .. }) in configuration.disks.iter().enumerate() {
            let disk = disk as u16;
            for partition in 0..layout.partitions.len() {
                let number = layout.partitions[partition].number;
                let is_used = |session: &Session| session.disk == disk && session.partition == number;
                if format.is_none() && !configuration.sessions.iter().any(is_used) {
                    continue;
                }
                let name = numbered(FILES, drivers.len());
                let principal = roles.add_driver(&name, layout, partition)?;
                drivers.push(Driver { name, disk, partition, principal, blocks: layout.blocks(partition) });
            }
        }
        if configuration.disks.iter().any(|disk| disk.format.is_some()) {
            roles.add(FORMATTER, FORMATTER, &[], Some(configuration.administrator.clone()))?;
        }
        for (number, session) in configuration.sessions.iter().enumerate() {
            let disk = configuration.disks.get(usize::from(session.disk));
            let volume = disk.map_or([0; 16], |disk| disk.layout.identity);
            roles.add_session(&session_name(number), &session.user, volume)?;
        }
        Ok(ComponentSet { roles, policy, cache, buses, bus_of, drivers })
    }

    /// The FSDriver that a session uses.
    pub(super) fn driver(&self, session: &Session, disks: &[DiskPlan]) -> Result<&Driver, StackError> {
        let none = || {
            let Session { disk, partition, .. } = session;
            StackError::Component(format!("disk {disk} has no file system in partition {partition}"))
        };
        let layout = &disks.get(usize::from(session.disk)).ok_or_else(none)?.layout;
        let partition = layout.find(session.partition).ok_or_else(none)?;
        let is_it = |driver: &&Driver| driver.disk == session.disk && driver.partition == partition;
        self.drivers.iter().find(is_it).ok_or_else(none)
    }
}

/// The areas (stages) through which PolicyMgr and each FSDriver pass content to the monitor.
pub(super) fn stages(
    cast: &ComponentSet,
    regions: &Arc<Regions>,
) -> Result<HashMap<String, Arc<Region>>, StackError> {
    let bytes = (STAGE_PAGES * PAGE_BYTES) as u64;
    let names = std::iter::once(POLICY).chain(cast.drivers.iter().map(|driver| &*driver.name));
    names.map(|name| Ok((name.to_owned(), Arc::new(regions.region(bytes)?)))).collect()
}

fn host(component: &str) -> ChannelPlan {
    ChannelPlan {
        bounds: holdfast_components::Bounds { files_max: 2, ..Default::default() },
        ..ChannelPlan::new(End::of(component, "monitor"), End::host(&port(component)))
    }
}

fn between(from: &str, name: &str, to: &str) -> ChannelPlan {
    ChannelPlan::new(End::of(from, name), End::of(to, &format!("from-{from}")))
}

/// The gates of sessions for programs, and the user id of each.
pub(super) type Gates = HashMap<String, (Arc<ProgramGate>, u32)>;

/// Plans the components and channels, and the gates of sessions. Takes the sessions' mounts, which are passed
/// to their VFSs.
pub(super) fn plan(
    cast: &ComponentSet,
    configuration: &mut Configuration,
    stages: &HashMap<String, Arc<Region>>,
) -> Result<(Vec<ComponentPlan>, Vec<ChannelPlan>, Gates), StackError> {
    let stage = |component: &str| RegionGrant {
        name: "stage".to_owned(),
        region: Arc::clone(&stages[component]),
        access: Access::ReadWrite,
    };
    let (mut components, mut channels, mut gates) = (Vec::new(), Vec::new(), Gates::new());
    let may_ask = vec![cast.policy.digest().0, cast.cache.digest().0];
    for bus in 0..cast.buses.len() {
        let name = numbered(DRIVER, bus);
        let disks = (0..).zip(&cast.bus_of).filter(|(_, of)| usize::from(**of) == bus);
        let disks: Vec<u16> = disks.map(|(disk, _)| disk).collect();
        components.push(ComponentPlan {
            program: DRIVER.to_owned(),
            configuration: encode(&disk_driver::Configuration { may_ask: may_ask.clone(), disks }),
            guards: vec!["transfers: only for PolicyMgr and CacheMgr, of the disks of its bus".to_owned()],
            ..ComponentPlan::new(&name, Profile::with_permissions(&[Permission::Threads]))
        });
        channels.extend([
            host(&name),
            between(POLICY, &bus_port(bus as u16), &name),
            between(CACHE, &bus_port(bus as u16), &name),
        ]);
    }
    let disks = (0..).zip(&configuration.disks);
    let drivers = cast.drivers.iter();
    components.push(ComponentPlan {
        configuration: encode(&policy_manager::Configuration {
            disks: disks.map(|(number, disk)| (disk.layout.disk(number), disk.format.is_some())).collect(),
            buses: cast.bus_of.clone(),
            administrator: configuration.administrator.clone(),
            cache_manager: cast.cache.clone(),
            drivers: drivers.map(|driver| (driver.disk, driver.blocks, driver.principal.clone())).collect(),
            principals: std::iter::once(cast.policy.clone())
                .chain(configuration.sessions.iter().map(|session| session.user.clone()))
                .collect(),
            spare_regions: SPARE_REGIONS,
        }),
        regions: vec![stage(POLICY)],
        guards: vec![
            "owners and ACLs: only for who speaks for the owner".to_owned(),
            "pages: only for CacheMgr, in regions of one ACL".to_owned(),
        ],
        source: Some("policy-manager".to_owned()),
        ..ComponentPlan::new(POLICY, Profile::default())
    });
    let tables: u64 = configuration.disks.iter().map(|disk| disk.layout.table.1).sum();
    // While several disks load blocks at once, the bound may be exceeded for a moment, so some pages are left
    // spare.
    let spare = 64 + 256 * (configuration.disks.len() as u64 - 1);
    let pages_max = (configuration.pages_max as u64).saturating_sub(tables + spare).max(64) as u32;
    components.push(ComponentPlan {
        configuration: encode(&cache_manager::Configuration { pages_max, buses: cast.bus_of.clone() }),
        guards: vec!["pages: of any block, without its content".to_owned()],
        ..ComponentPlan::new(CACHE, Profile::with_permissions(&[Permission::Threads]))
    });
    channels.extend([host(POLICY), host(CACHE), between(CACHE, "policy", POLICY)]);
    let new: Vec<(u16, Blocks, Principal)> = cast
        .drivers
        .iter()
        .filter(|driver| configuration.disks[usize::from(driver.disk)].format.is_some())
        .map(|driver| (driver.disk, driver.blocks, driver.principal.clone()))
        .collect();
    if !new.is_empty() {
        components.push(ComponentPlan {
            configuration: encode(&formatter::Configuration { partitions: new }),
            guards: vec!["speaks for the administrator, who owns what was just erased".to_owned()],
            ..ComponentPlan::new(FORMATTER, Profile::default())
        });
        channels.push(between(FORMATTER, "policy", POLICY));
    }
    for Driver { name, disk, partition, principal, blocks } in &cast.drivers {
        let DiskPlan { layout, format, .. } = &configuration.disks[usize::from(*disk)];
        components.push(ComponentPlan {
            program: FILES.to_owned(),
            configuration: encode(&fs_driver::Configuration {
                disk: *disk,
                partition: layout.partitions[*partition],
                blocks: *blocks,
                own: principal.clone(),
                format: format.as_ref().map(|new| (new.label.clone(), new.cluster_bytes, new.id)),
            }),
            regions: vec![stage(name)],
            guards: vec!["changes of a file with blocks: only for the owner of its first".to_owned()],
            ..ComponentPlan::new(name, Profile::default())
        });
        channels.extend([
            ChannelPlan::new(End::host(name), End::of(name, "from-host")),
            host(name),
            between(name, "cache", CACHE),
            between(name, "policy", POLICY),
        ]);
    }
    for (number, session) in std::mem::take(&mut configuration.sessions).into_iter().enumerate() {
        let name = session_name(number);
        let driver = cast.driver(&session, &configuration.disks)?;
        let (files, driver) = (driver.name.clone(), driver.principal.clone());
        components.push(ComponentPlan {
            program: "vfs".to_owned(),
            configuration: encode(&vfs::Configuration {
                disk: session.disk,
                user: session.user,
                driver,
                acl: session.acl,
                uid: session.uid,
                gid: session.gid,
                credentials: session.credentials,
                is_program: session.gate.is_some(),
                volume: configuration.disks[usize::from(session.disk)].layout.identity,
            }),
            files: vec![("fuse".to_owned(), session.fuse)],
            guards: vec!["requests: only of its mount".to_owned()],
            // A FUSE session cannot be continued by another process, because the kernel keeps its state.
            restart: Restart::NEVER,
            ..ComponentPlan::new(&name, Profile::with_permissions(&[Permission::Threads, Permission::Fuse]))
        });
        if let Some(gate) = session.gate {
            gates.insert(name.clone(), (Arc::new(gate), session.uid));
        }
        channels.extend([
            host(&name),
            ChannelPlan::new(End::host(&to_session(&name)), End::of(&name, "from-host")),
            between(&name, "files", &files),
            between(&name, "cache", CACHE),
            between(&name, "policy", POLICY),
        ]);
    }
    Ok((components, channels, gates))
}
