//! Manifests: the runtime's knowledge of the code that a process runs.
//!
//! Attack answered: a process that claims to be another program, or that is a program with foreign code in
//! it. So everything that can change what the code does is in the manifest, and conditions that let others
//! steer the process exclude it from every group that does not tolerate them by name.

use crate::{KeyName, Name, ProgramHash, Text, malformed};
use borsh::{BorshDeserialize, BorshSerialize, io};
use holdfast_crypto::{Digest, DigestKey, Domain, encode};
use std::collections::{BTreeMap, BTreeSet};

/// A condition that makes the hash of a program's code say less than it seems to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Condition {
    /// Another process may read or change its memory.
    Traceable = 1,
    /// The program runs code that comes as data, as shells and scripting languages do.
    Interpreter = 2,
    /// The process has executable memory that no file backs, or that can be written.
    LooseCode = 4,
    /// Libraries were put into it from outside (`LD_PRELOAD` and its kin).
    Preloaded = 8,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Condition; 4] =
        [Condition::Traceable, Condition::Interpreter, Condition::LooseCode, Condition::Preloaded];
}

/// A set of conditions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize)]
pub struct Conditions(u8);

impl Conditions {
    /// No condition.
    pub const CLEAN: Conditions = Conditions(0);

    /// These conditions and one more.
    #[must_use]
    pub fn with(self, condition: Condition) -> Conditions {
        Conditions(self.0 | condition as u8)
    }

    /// Whether the condition is among them.
    pub fn contains(self, condition: Condition) -> bool {
        self.0 & condition as u8 != 0
    }

    /// Whether there is no condition.
    pub fn is_clean(self) -> bool {
        self == Conditions::CLEAN
    }

    /// Whether all of these are among `tolerated`.
    pub fn within(self, tolerated: Conditions) -> bool {
        self.0 & !tolerated.0 == 0
    }
}

impl BorshDeserialize for Conditions {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bits = u8::deserialize_reader(reader)?;
        if bits > 15 {
            return Err(malformed("a condition that this version does not know"));
        }
        Ok(Conditions(bits))
    }
}

/// The program that a process runs. Only a statement of the runtime about it counts
/// ([`crate::Statement::Runs`]).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Manifest {
    /// Digest of the executable file.
    pub executable: Digest,
    /// Digests of other files mapped executable, if the runtime fixes them; empty if it only forbids unknown
    /// ones (and reports that by [`Condition::Preloaded`]).
    pub code: BTreeSet<Digest>,
    /// The component of Holdfast that it is.
    pub component: Option<Name>,
    /// Its configuration, such as the blocks of the partition that a driver manages.
    pub settings: BTreeMap<Name, Text>,
    /// Packages whose key signed for the executable; the runtime verified that.
    pub packages: BTreeSet<KeyName>,
    /// The user id it runs under.
    pub uid: u32,
    /// Conditions that weaken all of this.
    pub conditions: Conditions,
}

impl Manifest {
    /// The manifest of an executable of which nothing else is known.
    pub fn of_executable(executable: Digest, uid: u32) -> Manifest {
        Manifest {
            executable,
            code: BTreeSet::new(),
            component: None,
            settings: BTreeMap::new(),
            packages: BTreeSet::new(),
            uid,
            conditions: Conditions::CLEAN,
        }
    }

    /// H(P): the digest of code, configuration and conditions, not of the user or of who packaged it.
    pub fn program(&self) -> ProgramHash {
        let parts = (&self.executable, &self.code, &self.component, &self.settings, &self.conditions);
        ProgramHash(DigestKey::WELL_KNOWN.digest(Domain::Program, &encode(&parts)))
    }
}

impl ProgramHash {
    /// The hash group of an executable without configuration: what `prog:FILE` stands for.
    pub fn of_executable(executable: Digest) -> ProgramHash {
        Manifest::of_executable(executable, 0).program()
    }
}
