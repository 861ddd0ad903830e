//! Proofs that one principal speaks for another, and their checker.
//!
//! A proof is a list of steps. Each concludes a judgement "A speaksfor B within S" by one rule from
//! credentials and from earlier steps; the last one is what is proved. So a check is one pass, without
//! search, nesting or recursion. The rules, as in `docs/internals/access.md`:
//!
//! ```text
//! itself                                            A ⇒ A
//! namer        N hands out the name A        ⊢      N ⇒ A
//! constituent  Machine says (P runs M), φ(M) ⊢      P ⇒ {P : φ(P)}
//! handoff      I says (B ⇒ A within S), I ⇒ A  ⊢    B ⇒ A within S
//! chain        A ⇒ B within S, B ⇒ C within T  ⊢    A ⇒ C within S ∩ T
//! narrow       A ⇒ B within S, T ⊆ S         ⊢      A ⇒ B within T
//! ```
//!
//! Attack answered: a delegate that passes on more than it has. *Handoff* demands that the issuer speak for A
//! without any restriction; a delegate with a restriction can only state things for itself, and *chain*
//! intersects.

use crate::{AccessError, CredentialId, Credentials, Principal, Revocations, Scope, Statement};
use borsh::{BorshDeserialize, BorshSerialize};

/// The most steps in a proof.
pub const STEPS_MAX: usize = 64;

/// One step. Numbers are of earlier steps, from 0. The order of the variants is part of the message format.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Step {
    /// The principal speaks for itself.
    Itself(Principal),
    /// The principal that assigns this name speaks for it.
    Namer(Principal),
    /// The process of this manifest credential is a constituent of the group.
    Constituent(CredentialId, Principal),
    /// The statement of the credential holds, since (step) its issuer speaks for the principal without restriction.
    Handoff(CredentialId, u8),
    /// The first step's delegate speaks for the second step's principal.
    Chain(u8, u8),
    /// The step, restricted to a smaller scope.
    Narrow(u8, Scope),
}

/// A proof, as its holder presents it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Proof(pub Vec<Step>);

/// A credential that a proof rests on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Premise {
    /// The issuer.
    pub issuer: Principal,
    /// The serial.
    pub serial: u64,
    /// The last second at which it counts, since 1970.
    pub expires_s: Option<u64>,
}

/// "`delegate` speaksfor `principal` within `scope`", as long as the premises are valid. Only [`check`] makes
/// one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proven {
    delegate: Principal,
    principal: Principal,
    scope: Scope,
    premises: Vec<Premise>,
}

impl Proven {
    /// The principal that may speak.
    pub fn delegate(&self) -> &Principal {
        &self.delegate
    }

    /// The principal for which it may speak.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The restriction.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The credentials that it rests on, each once.
    pub fn premises(&self) -> &[Premise] {
        &self.premises
    }
}

struct Conclusion {
    delegate: Principal,
    principal: Principal,
    scope: Scope,
}

fn everything(delegate: Principal, principal: Principal) -> Conclusion {
    Conclusion { delegate, principal, scope: Scope::EVERYTHING }
}

/// Checks a proof. Every credential in it must be valid at `now_s` (seconds since 1970).
///
/// # Errors
/// [`AccessError::DoesNotFollow`] with the step and the premise that failed; [`AccessError::BadLength`];
/// [`AccessError::UnknownCredential`], [`AccessError::Revoked`], [`AccessError::Expired`] for a credential;
/// [`AccessError::EmptyScope`] when restrictions leave nothing.
pub fn check(
    proof: &Proof,
    credentials: &Credentials,
    revocations: &Revocations,
    now_s: u64,
) -> Result<Proven, AccessError> {
    if proof.0.len() > STEPS_MAX {
        return Err(AccessError::BadLength);
    }
    let mut judged: Vec<Conclusion> = Vec::with_capacity(proof.0.len());
    let mut premises: Vec<Premise> = Vec::new();
    for (step, rule) in proof.0.iter().enumerate() {
        let refuse = |why| AccessError::DoesNotFollow { step, why };
        let earlier = |number: u8| {
            judged.get(usize::from(number)).ok_or(refuse("it uses a step that is not before it"))
        };
        let mut statement = |id| -> Result<_, AccessError> {
            let credential = credentials.get(id)?;
            revocations.check(credential, now_s)?;
            let (issuer, serial) = (credential.issuer.clone(), credential.serial);
            premises.push(Premise { issuer, serial, expires_s: credential.expires_s });
            Ok(credential)
        };
        let judgement = match rule {
            Step::Itself(principal) => everything(principal.clone(), principal.clone()),
            Step::Namer(name) => {
                let namer = name.namer().ok_or(refuse("nobody hands out this name"))?;
                everything(namer, name.clone())
            }
            Step::Constituent(id, group) => {
                let credential = statement(*id)?;
                let Statement::Runs { process, manifest } = &credential.statement else {
                    return Err(refuse("the credential is not a manifest"));
                };
                if credential.issuer != Principal::Machine {
                    return Err(refuse("only the machine's word counts on what a process runs"));
                }
                match group.admits(manifest) {
                    Some(true) => everything(Principal::Process(*process), group.clone()),
                    Some(false) => return Err(refuse("the manifest does not satisfy the group's predicate")),
                    None => return Err(refuse("the group is not one of processes")),
                }
            }
            Step::Handoff(id, authority) => {
                let credential = statement(*id)?;
                let Statement::SpeaksFor { delegate, principal, scope } = &credential.statement else {
                    return Err(refuse("the credential delegates nothing"));
                };
                let authority = earlier(*authority)?;
                if authority.delegate != credential.issuer || authority.principal != *principal {
                    return Err(refuse(
                        "the step named does not show that the issuer speaks for the principal",
                    ));
                }
                if authority.scope != Scope::EVERYTHING {
                    return Err(refuse("the issuer speaks for the principal only with restrictions"));
                }
                Conclusion { delegate: delegate.clone(), principal: principal.clone(), scope: scope.clone() }
            }
            Step::Chain(first, second) => {
                let (first, second) = (earlier(*first)?, earlier(*second)?);
                if first.principal != second.delegate {
                    return Err(refuse("the first step's principal is not the second step's delegate"));
                }
                Conclusion {
                    delegate: first.delegate.clone(),
                    principal: second.principal.clone(),
                    scope: first.scope.intersect(&second.scope)?,
                }
            }
            Step::Narrow(wide, scope) => {
                let wide = earlier(*wide)?;
                if !wide.scope.contains(scope) {
                    return Err(refuse("the narrower scope is not within the wider one"));
                }
                Conclusion {
                    delegate: wide.delegate.clone(),
                    principal: wide.principal.clone(),
                    scope: scope.clone(),
                }
            }
        };
        judged.push(judgement);
    }
    let Conclusion { delegate, principal, scope } = judged.pop().ok_or(AccessError::BadLength)?;
    premises.sort();
    premises.dedup();
    Ok(Proven { delegate, principal, scope, premises })
}
