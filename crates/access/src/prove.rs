//! Assembles proofs, for whoever brings them. Not in the trusted base: [`crate::check`] judges the result.

use crate::{CredentialId, Principal, Proof, Scope, Step};

/// A proof being assembled. Each method adds steps and says the number of the last.
#[derive(Clone, Debug, Default)]
pub struct Prover(Vec<Step>);

impl Prover {
    /// No steps yet.
    pub fn new() -> Prover {
        Prover::default()
    }

    /// Adds a step as it is. Numbers beyond a byte saturate, and the checker refuses them.
    pub fn step(&mut self, step: Step) -> u8 {
        self.0.push(step);
        u8::try_from(self.0.len() - 1).unwrap_or(u8::MAX)
    }

    /// The credential is by the very principal that it speaks about: "A says (B speaksfor A)".
    pub fn own_word(&mut self, credential: CredentialId, principal: Principal) -> u8 {
        let authority = self.step(Step::Itself(principal));
        self.step(Step::Handoff(credential, authority))
    }

    /// The credential is by who hands out the name that it speaks about: "Machine says (B speaksfor user:alice)".
    pub fn namers_word(&mut self, credential: CredentialId, name: Principal) -> u8 {
        let authority = self.step(Step::Namer(name));
        self.step(Step::Handoff(credential, authority))
    }

    /// The process of the manifest credential is a constituent of the group.
    pub fn constituent(&mut self, manifest: CredentialId, group: Principal) -> u8 {
        self.step(Step::Constituent(manifest, group))
    }

    /// One after the other.
    pub fn chain(&mut self, first: u8, second: u8) -> u8 {
        self.step(Step::Chain(first, second))
    }

    /// The same within less.
    pub fn narrow(&mut self, wide: u8, scope: Scope) -> u8 {
        self.step(Step::Narrow(wide, scope))
    }

    /// The proof of what the last step concludes.
    pub fn proof(self) -> Proof {
        Proof(self.0)
    }
}
