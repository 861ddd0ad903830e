//! How a component enters its sandbox: the first thing it does, on its only thread, before it reads any
//! input.
//!
//! It got its namespaces and its user at birth ([`crate::spawn`]). The steps here are in this order because
//! each needs something that the next takes away: die with the parent; an empty root that nobody can write;
//! limits; no capabilities, and no way to get any; not dumpable, so that no process of the same user can
//! inspect it; Landlock; a test that all of that holds; the filter of system calls.

use super::filter::{filter, threads_filter};
use super::{Permission, Profile, StartArguments, Wall, check};
use crate::error::{ComponentError, During, Result};
use crate::kernel;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, fchdir, getrlimit, pivot_root, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};
use std::os::fd::OwnedFd;

/// The newest Landlock that this code was tested with.
const LANDLOCK_KNOWN: ABI = ABI::V7;
/// The version of Landlock from which on each wall exists. (The other versions permit more, or forbid only
/// what is already forbidden together with opening files.)
const LANDLOCK_SINCE: [(Wall, ABI); 4] = [
    (Wall::Landlock, ABI::V1),
    (Wall::LandlockTruncation, ABI::V3),
    (Wall::LandlockPorts, ABI::V4),
    (Wall::LandlockSignals, ABI::V6),
];

/// Enters the sandbox. Returns the listener that reports violations, for the supervisor, and the walls that
/// are lacking.
///
/// # Errors
/// A required wall is not available, or does not hold.
pub(crate) fn enter(arguments: &StartArguments) -> Result<(OwnedFd, Vec<Wall>)> {
    let profile = &arguments.profile;
    set_parent_process_death_signal(Some(Signal::KILL)).during("asking to die with the parent")?;
    if !arguments.lacking.contains(&Wall::Namespaces) {
        empty_root().during("changing to an empty root")?;
    }
    limit(profile).during("setting limits")?;
    drop_capabilities().during("dropping capabilities")?;
    set_no_new_privs(true).during("giving up new privileges")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).during("closing memory to others")?;
    let lacking = [arguments.lacking.clone(), landlock(profile)?].concat();
    check::holds(profile, &lacking)?;
    if let Some(threads) = threads_filter(profile)? {
        seccompiler::apply_filter(&threads).map_err(|error| ComponentError::SandboxLacks {
            what: "a filter of system calls",
            reason: error.to_string(),
        })?;
    }
    let program = filter(profile, std::process::id())?;
    let listener = kernel::install_filter(&program).map_err(|error| ComponentError::SandboxLacks {
        what: "a filter of system calls",
        reason: error.to_string(),
    })?;
    Ok((listener, lacking))
}

/// An empty directory that cannot be written becomes the root, and nothing else stays mounted.
fn empty_root() -> rustix::io::Result<()> {
    // Not at birth: the program and its libraries would then be files in copies of the host's mounts, and
    // would keep all of these in use for as long as this process lives, even after they are unmounted.
    kernel::unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("size", "4096"), ("nr_inodes", "1"), ("mode", "0555")] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // Any existing directory will do: it disappears in a moment, with everything around it.
    move_mount(&root, "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    fchdir(&root)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn limit(profile: &Profile) -> rustix::io::Result<()> {
    let threads = if profile.has(Permission::Threads) { profile.threads_max } else { 1 };
    // Code, read-only data, guard pages of stacks and so on take address space beside memory and regions.
    let overhead = 1 << 30;
    let addresses =
        profile.memory_bytes_max.saturating_add(profile.mapped_bytes_max).saturating_add(overhead);
    // A device may be a file, whose size limits what can be written.
    let region = if profile.has(Permission::Device) { u64::MAX } else { profile.region_bytes_max };
    for (resource, most) in [
        (Resource::Data, profile.memory_bytes_max),
        (Resource::As, addresses),
        (Resource::Fsize, region),
        (Resource::Nofile, u64::from(profile.files_max)),
        (Resource::Nproc, u64::from(threads)),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Sigpending, 16),
        (Resource::Locks, 0),
    ] {
        // If the parent has a lower limit, that applies.
        let most = getrlimit(resource).maximum.map_or(most, |left| most.min(left));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn drop_capabilities() -> rustix::io::Result<()> {
    let keep_dropped = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    // Without namespaces an ordinary user's process has no capability to begin with, and may not set these
    // bits.
    let has_any = !rustix::thread::capabilities(None)?.permitted.is_empty();
    if has_any {
        for bit in 0..64 {
            match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
                // The kernel has no capability of this number, or of a higher one.
                Err(rustix::io::Errno::INVAL) => break,
                done => done?,
            }
        }
        set_capabilities_secure_bits(keep_dropped)?;
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Landlock with all rights handled that the kernel's has, and none granted. Returns which of its walls are
/// lacking.
fn landlock(profile: &Profile) -> Result<Vec<Wall>> {
    let restricted = || -> std::result::Result<RestrictionStatus, RulesetError> {
        let net = match profile.has(Permission::Connect) {
            true => AccessNet::BindTcp.into(),
            false => AccessNet::from_all(LANDLOCK_KNOWN),
        };
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK_KNOWN))?
            .handle_access(net)?
            .scope(Scope::from_all(LANDLOCK_KNOWN))?
            .create()?
            .restrict_self()
    };
    let (version, reason) = match restricted() {
        Ok(RestrictionStatus { ruleset: RulesetStatus::NotEnforced, .. }) => (ABI::Unsupported, None),
        Ok(RestrictionStatus { landlock: LandlockStatus::Available { effective_abi, .. }, .. }) => {
            (effective_abi, None)
        }
        Ok(_) => (ABI::Unsupported, None),
        Err(error) => (ABI::Unsupported, Some(error.to_string())),
    };
    let lacking = match version {
        // The exceptions are given with it.
        ABI::Unsupported => vec![Wall::Landlock],
        _ => LANDLOCK_SINCE.iter().filter(|(_, since)| version < *since).map(|(wall, _)| *wall).collect(),
    };
    match lacking.iter().find(|wall| !profile.accepts_without(**wall)) {
        None => Ok(lacking),
        Some(wall) => Err(ComponentError::SandboxLacks {
            what: "Landlock",
            reason: reason.unwrap_or_else(|| wall.words().to_owned()),
        }),
    }
}
