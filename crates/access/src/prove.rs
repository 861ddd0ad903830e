//! Assembles proofs for processes that present them. Not in the trusted base: [`crate::check`] judges the
//! result.

use crate::{Credential, CredentialId, Principal, Proof, STEPS_MAX, Statement, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A proof being assembled. Each method adds steps and says the number of the last.
#[derive(Clone, Debug, Default)]
pub struct Prover(Vec<Step>);

impl Prover {
    /// A proof without steps.
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

    /// The issuer assigns the name that the credential is about: "Machine says (B speaksfor user:alice)".
    pub fn namers_word(&mut self, credential: CredentialId, name: Principal) -> u8 {
        let authority = self.step(Step::Namer(name));
        self.step(Step::Handoff(credential, authority))
    }

    /// The process of the manifest credential is a constituent of the group.
    pub fn constituent(&mut self, manifest: CredentialId, group: Principal) -> u8 {
        self.step(Step::Constituent(manifest, group))
    }

    /// Adds a step: the first, then the second.
    pub fn chain(&mut self, first: u8, second: u8) -> u8 {
        self.step(Step::Chain(first, second))
    }

    /// The proof of what the last step concludes.
    pub fn proof(self) -> Proof {
        Proof(self.0)
    }
}

/// The principals for which `who` speaks by these credentials, each with a proof, nearest first. `groups` are
/// intensional groups that are tried besides those that the credentials name.
///
/// Proofs are searched for here, outside of the trusted base, by the process that wants something. A proof
/// that is found may still be refused: because a credential was ended, or because restrictions leave nothing.
pub fn reachable(
    who: &Principal,
    credentials: &[Credential],
    groups: &[Principal],
) -> Vec<(Principal, Proof)> {
    let delegates = credentials.iter().filter_map(|credential| match &credential.statement {
        Statement::SpeaksFor { delegate, .. } => Some(delegate),
        _ => None,
    });
    let groups: BTreeSet<&Principal> = delegates.chain(groups).collect();
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([who.clone()]);
    // For each principal on the way, the steps that prove that `who` speaks for it; for itself none are
    // needed.
    let mut open: VecDeque<(Principal, Prover)> = VecDeque::from([(who.clone(), Prover::new())]);
    while let Some((at, prover_so_far)) = open.pop_front() {
        for (next, edge) in edges(&at, credentials, &groups) {
            let mut prover = prover_so_far.clone();
            let before = prover.0.len().checked_sub(1);
            let shift = prover.0.len() as u8;
            let mut last = 0;
            for step in edge {
                last = prover.step(match step {
                    Step::Handoff(credential, authority) => Step::Handoff(credential, authority + shift),
                    step => step,
                });
            }
            if let Some(before) = before {
                prover.chain(before as u8, last);
            }
            if prover.0.len() > STEPS_MAX || !seen.insert(next.clone()) {
                continue;
            }
            found.push((next.clone(), prover.clone().proof()));
            open.push_back((next, prover));
        }
    }
    found
}

/// The principals for which `at` speaks by one credential, and the steps that show it.
fn edges(
    at: &Principal,
    credentials: &[Credential],
    groups: &BTreeSet<&Principal>,
) -> Vec<(Principal, Vec<Step>)> {
    let mut edges: BTreeMap<Principal, Vec<Step>> = BTreeMap::new();
    for credential in credentials {
        match &credential.statement {
            Statement::SpeaksFor { delegate, principal, .. } if delegate == at => {
                let authority = match principal {
                    principal if credential.issuer == *principal => Step::Itself(principal.clone()),
                    principal if principal.namer().as_ref() == Some(&credential.issuer) => {
                        Step::Namer(principal.clone())
                    }
                    _ => continue,
                };
                let steps = vec![authority, Step::Handoff(credential.id(), 0)];
                edges.entry(principal.clone()).or_insert(steps);
            }
            Statement::Runs { process, manifest } if *at == Principal::Process(*process) => {
                let admitting = groups.iter().filter(|group| group.admits(manifest) == Some(true));
                for group in admitting {
                    let steps = vec![Step::Constituent(credential.id(), (*group).clone())];
                    edges.entry((*group).clone()).or_insert(steps);
                }
            }
            _ => {}
        }
    }
    edges.into_iter().collect()
}
