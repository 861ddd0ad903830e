//! Facts about people and programs for which this machine's host vouches: keys of users, members of groups,
//! and the program of a session.

use holdfast_access::{Condition, Conditions, KeyName, Manifest, Name, Principal};
use holdfast_crypto::PublicKey;
use holdfast_program_identity::guard::{Decision, Guard, OpenRequest};
use holdfast_program_identity::identity::Identity;
use holdfast_program_identity::rules::Rights;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::protocol::{Entering, Entry};

/// Most users with a key, and most memberships, because every session may use all of them in proofs.
pub const PEOPLE_MAX: usize = 100;
/// Most opens of one session that wait for the helper at once, so that other requests to the monitor are
/// still served.
const ENTERING_MAX: usize = 1;

/// Users' keys, and the members of groups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct People {
    /// Users with keys: a session of such a user has no rights until it has presented a credential of theirs.
    pub keys: BTreeMap<Name, PublicKey>,
    /// Groups, and the users in them.
    pub groups: BTreeMap<Name, BTreeSet<Name>>,
}

impl People {
    /// Whether a session speaks for this principal because the host states so, without further proof.
    pub(super) fn takes_our_word(&self, principal: &Principal) -> bool {
        match principal {
            Principal::User(name) => !self.keys.contains_key(name),
            Principal::Group(_) => true,
            _ => false,
        }
    }

    /// The facts that the host states: for users with keys, that the name under their key for this volume
    /// speaks for them; then the members of groups.
    pub(super) fn facts(&self, volume: &[u8; 16]) -> Vec<(Principal, Principal)> {
        let volume =
            Name::new(&crate::session_requests::volume_name(volume)).expect("hexadecimal digits are a name");
        let keys = self.keys.iter().map(|(name, key)| {
            (Principal::Named(KeyName { key: *key, name: volume.clone() }), Principal::User(name.clone()))
        });
        let groups = self.groups.iter().flat_map(|(group, members)| {
            members.iter().map(|name| (Principal::User(name.clone()), Principal::Group(group.clone())))
        });
        keys.chain(groups).take(PEOPLE_MAX).collect()
    }
}

/// The gate of a session for a program: the helper identifies each process that opens a file there, which
/// must run that program.
pub struct ProgramGate {
    /// The guard that judges opens by the helper's tickets.
    pub guard: Arc<Guard>,
    /// The stored set of rules that names the program.
    pub rules: Vec<u8>,
    /// The package that identifies the program, if that is how it is named.
    pub package: Option<KeyName>,
    /// The number of opens that wait for the helper.
    pub(super) entering: AtomicUsize,
}

impl ProgramGate {
    /// A gate whose opens `guard` judges by `rules`.
    pub fn new(guard: Arc<Guard>, rules: Vec<u8>, package: Option<KeyName>) -> ProgramGate {
        ProgramGate { guard, rules, package, entering: AtomicUsize::new(0) }
    }

    /// Decides about an open. Returns the admitted process, or the decision. `None`: another open is being
    /// decided, so the caller must ask again.
    pub(super) fn enter(&self, entering: Entering) -> Option<Result<Identity, Entry>> {
        if self.guard.is_helper(entering.thread) {
            return Some(Err(Entry::Blind));
        }
        if self.entering.fetch_add(1, Ordering::SeqCst) >= ENTERING_MAX {
            self.entering.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let wanted = if entering.writes { Rights::ReadWrite } else { Rights::Read };
        let path = format!("file {}", entering.inode);
        let Entering { inode, thread, .. } = entering;
        let answer = self.guard.identify(&OpenRequest { inode, thread, wanted, rules: &self.rules, path });
        self.entering.fetch_sub(1, Ordering::SeqCst);
        Some(answer.map_err(|answer| match answer {
            Decision::Retry => Entry::Again,
            Decision::Admitted | Decision::Refused(_) => Entry::Refused,
        }))
    }

    /// The manifest of a process, from the helper's identification of its program.
    pub(super) fn manifest(&self, identity: &Identity, uid: u32) -> Manifest {
        let mut manifest = Manifest::of_executable(identity.digest, uid);
        manifest.packages.extend(self.package.clone());
        let conditions = [
            (identity.interpreter.is_some(), Condition::Interpreter),
            (identity.generated, Condition::LooseCode),
            (identity.tracer != 0 || !identity.clean, Condition::Traceable),
            (identity.preload.is_some() || identity.foreign.is_some(), Condition::Preloaded),
        ];
        let met = conditions.into_iter().filter(|(is_met, _)| *is_met);
        manifest.conditions =
            met.fold(Conditions::CLEAN, |conditions, (_, condition)| conditions.with(condition));
        manifest
    }
}
