//! The roles of components: the program that each runs, which is its identity.

use super::aliases::Role;
use crate::StackError;
use crate::disk_layout::DiskLayout;
use holdfast_access::{Conditions, KeyName, Manifest, Name, Predicate, Principal, Term, Text};
use holdfast_crypto::Digest;
use std::collections::{BTreeSet, HashMap};

pub(super) const DRIVER: &str = "disk-driver";
pub(super) const FILES: &str = "fs-driver";
pub(super) const POLICY: &str = "policy-manager";
pub(super) const CACHE: &str = "cache-manager";
pub(super) const FORMATTER: &str = "disk-formatter";
pub(super) const SESSION: &str = "vfs-";

/// The name of a component: the first of a kind has the name of the kind.
pub(super) fn numbered(kind: &str, number: usize) -> String {
    if number == 0 { kind.to_owned() } else { format!("{kind}-{number}") }
}

/// The port over which PolicyMgr and CacheMgr send requests to the DiskDriver of a bus.
pub(crate) fn bus_port(bus: u16) -> String {
    format!("driver-{bus}")
}

/// The host's port to a session.
pub(super) fn to_session(component: &str) -> String {
    format!("to-{component}")
}

pub(super) fn session_name(number: usize) -> String {
    format!("{SESSION}{number}")
}

/// The setting that says which blocks an FSDriver manages: it names the disk by its identity, which does not
/// depend on where the disk is plugged in.
fn blocks_of(layout: &DiskLayout, partition: usize) -> String {
    let identity: String = layout.identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let blocks = layout.blocks(partition);
    format!("{identity}:{}+{}", blocks.first, blocks.count)
}

/// The principal of a partition's FSDriver: a process of this component with these blocks. If the layout
/// names a package, it must run a program that the package's key has signed. So the blocks pass from one
/// version of the program to the next by a signed rule: the holder of the key signs a list that contains the
/// new program. Without a package, the blocks belong to every version: the machine alone then decides which
/// program is which component, and it accepts this program's own.
///
/// # Errors
/// [`StackError::Access`].
pub fn driver_of(layout: &DiskLayout, partition: usize) -> Result<Principal, StackError> {
    let component = Term::Component(Name::new(FILES)?);
    let setting = Term::Setting(Name::new("blocks")?, Text::new(&blocks_of(layout, partition))?);
    let terms = match &layout.signed_by {
        None => vec![Term::All(2), component, setting],
        Some(package) => vec![Term::All(3), component, setting, Term::Package(package.clone())],
    };
    Ok(Principal::Such(Predicate::new(terms, Conditions::CLEAN)?))
}

/// The roles of a stack.
pub(super) struct Roles {
    digest: Digest,
    packages: BTreeSet<KeyName>,
    pub(super) by_name: HashMap<String, Role>,
}

impl Roles {
    pub(super) fn new(digest: Digest, packages: BTreeSet<KeyName>) -> Roles {
        Roles { digest, packages, by_name: HashMap::new() }
    }

    fn manifest(&self, kind: &str, settings: &[(&str, String)]) -> Result<Manifest, StackError> {
        let mut manifest = Manifest::of_executable(self.digest, 0);
        manifest.component = Some(Name::new(kind)?);
        for (name, text) in settings {
            manifest.settings.insert(Name::new(name)?, Text::new(text)?);
        }
        Ok(manifest)
    }

    /// Adds a component that is identified by exactly the program it runs.
    pub(super) fn add(
        &mut self,
        component: &str,
        kind: &str,
        settings: &[(&str, String)],
        user: Option<Principal>,
    ) -> Result<Principal, StackError> {
        let manifest = self.manifest(kind, settings)?;
        let program = Principal::Program(manifest.program());
        let role = Role { manifest, program: program.clone(), user, volume: [0; 16] };
        self.by_name.insert(component.to_owned(), role);
        Ok(program)
    }

    /// The VFS of a session on a volume.
    pub(super) fn add_session(
        &mut self,
        component: &str,
        user: &Principal,
        volume: [u8; 16],
    ) -> Result<(), StackError> {
        // The user is named so that a credential can state which sessions its issuer means.
        let of_user = match user {
            Principal::User(name) => name.as_str().to_owned(),
            other => other.digest().to_string(),
        };
        let manifest = self.manifest("vfs", &[("user", of_user)])?;
        let program = Principal::Program(manifest.program());
        let role = Role { manifest, program, user: Some(user.clone()), volume };
        self.by_name.insert(component.to_owned(), role);
        Ok(())
    }

    /// Adds the FSDriver of a partition.
    pub(super) fn add_driver(
        &mut self,
        component: &str,
        layout: &DiskLayout,
        partition: usize,
    ) -> Result<Principal, StackError> {
        let mut manifest = self.manifest(FILES, &[("blocks", blocks_of(layout, partition))])?;
        if let Some(package) = &layout.signed_by {
            if !self.packages.contains(package) {
                return Err(StackError::Component(format!(
                    "the blocks of this volume belong to programs that are signed for as {package}, and this one is not"
                )));
            }
            manifest.packages.insert(package.clone());
        }
        let program = driver_of(layout, partition)?;
        let role = Role { manifest, program: program.clone(), user: None, volume: layout.identity };
        self.by_name.insert(component.to_owned(), role);
        Ok(program)
    }
}
