//! Drafts: values that people sign on several machines. A draft has a key set, a record, a renewal or a
//! revocation.
//!
//! A draft holds everything that a signer needs in order to check what they sign: the key sets so far, and
//! what is new. It is passed from one signer to the next, or copies of it are signed separately and merged. A
//! rotation is one draft: the new key set, and the record signed again under it, because clients that have
//! the new keys refuse a record signed by the old ones.
//!
//! Invariants: all signatures in a draft are correct and by keys that may sign; [`Draft::finish`] returns
//! only what clients accept. A draft is no file of a release and is never stored at a mirror.

use crate::form::{Kind, Malformed, RuleViolation};
use crate::keys::{KeyChain, KeySet, KeysError, Origin, ReleaseId, SETS_MAX, SignedKeySet, whose};
use crate::record::{NotAuthentic, RootFile, authenticate};
use crate::revocation::{Revocation, RevocationError, Statement};
use crate::signing::{Role, Signable, SignatureError, Signed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{KeyHolder, PublicKey, SignError, keyfile};
use std::collections::BTreeSet;

/// A value to be signed. It is passed between signers until enough of them have signed.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Draft {
    /// The key sets so far, first to last, signed. Empty for the first key set of a release.
    pub sets: Vec<SignedKeySet>,
    /// A new key set.
    pub keys: Option<SignedKeySet>,
    /// A record to be signed by the last key set (the new one, if there is one); or a signed record with a
    /// new renewal.
    pub root: Option<RootFile>,
    /// A revocation.
    pub statement: Option<Signed<Statement>>,
}

impl Kind for Draft {
    const MAGIC: &'static [u8; 7] = b"HF-drft";
    const WHAT: &'static str = "draft of something to be signed";
    const BYTES_MAX: u64 = SETS_MAX * SignedKeySet::BYTES_MAX + 64 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        if self.keys.is_none() && self.root.is_none() && self.statement.is_none() {
            return Err(RuleViolation::Rule("there is nothing in it to sign"));
        }
        if self.sets.is_empty() && self.keys.is_none() {
            return Err(RuleViolation::Rule("it has no key set"));
        }
        self.keys.iter().try_for_each(Kind::well_formed)?;
        self.root.iter().try_for_each(Kind::well_formed)?;
        self.statement.iter().try_for_each(|statement| statement.value.well_formed())
    }
}

/// The signed values of a finished draft.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FinishedDraft {
    /// All key sets, the new one included.
    pub chain: KeyChain,
    /// Whether the last key set is new.
    pub keys_are_new: bool,
    /// The record with its renewal.
    pub root: Option<RootFile>,
    /// The certificate.
    pub revocation: Option<Revocation>,
}

/// A value to be signed, and the keys that must sign it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DraftPart {
    /// The name of the part, for people.
    pub what: String,
    /// The sets of keys whose signatures are needed: all of them, or for a revocation one of them.
    pub needs: Vec<RequiredSignatures>,
    /// Whether the signatures of one set in `needs` are enough.
    pub any: bool,
}

/// The signatures that are needed from one set of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequiredSignatures {
    /// The name of the set of keys.
    pub whose: String,
    /// The number of keys that must sign.
    pub threshold: u16,
    /// The keys that have signed.
    pub signed: Vec<PublicKey>,
    /// The keys that have not signed.
    pub lacking: Vec<PublicKey>,
}

impl RequiredSignatures {
    fn new(whose: String, role: &Role, signers: &BTreeSet<PublicKey>) -> RequiredSignatures {
        let (signed, lacking) = role.keys.iter().partition(|key| signers.contains(key));
        RequiredSignatures { whose, threshold: role.threshold, signed, lacking }
    }

    /// Whether enough have signed.
    pub fn is_satisfied(&self) -> bool {
        self.signed.len() >= usize::from(self.threshold)
    }
}

impl DraftPart {
    /// Whether enough keys have signed all that is needed.
    pub fn is_signed(&self) -> bool {
        match self.any {
            true => self.needs.iter().any(RequiredSignatures::is_satisfied),
            false => self.needs.iter().all(RequiredSignatures::is_satisfied),
        }
    }
}

impl std::fmt::Display for DraftPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_signed() {
            return write!(f, "{}: signed", self.what);
        }
        write!(f, "{}: needs ", self.what)?;
        let unmet = self.needs.iter().filter(|need| !need.is_satisfied());
        for (index, need) in unmet.enumerate() {
            match (index, self.any) {
                (0, _) => {}
                (_, true) => write!(f, ", or ")?,
                (_, false) => write!(f, ", and ")?,
            }
            let more = usize::from(need.threshold) - need.signed.len();
            let keys: Vec<String> = need.lacking.iter().map(keyfile::fingerprint).collect();
            write!(f, "{more} more of {} ({})", need.whose, keys.join(", "))?;
        }
        Ok(())
    }
}

/// Why a draft cannot be used or signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The draft's key sets are refused.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The draft's record or renewal is refused.
    #[error(transparent)]
    Record(#[from] NotAuthentic),
    /// The draft's revocation is refused.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// A signature in the draft is wrong.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The parts of the draft do not fit together.
    #[error("the draft makes no sense: {0}")]
    Unfit(String),
    /// The key may not sign any part of the draft.
    #[error("the key {} may sign nothing in this draft", keyfile::fingerprint(.0))]
    NotASigner(PublicKey),
    /// The holder of the key refused to sign, or failed.
    #[error(transparent)]
    NotSigned(#[from] SignError),
    /// The two drafts are about different values.
    #[error("the two drafts differ in what is to be signed, not only in signatures")]
    Different,
    /// Not enough keys have signed these parts.
    #[error("not signed by enough people yet; {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unfinished(Vec<DraftPart>),
}

impl From<Malformed> for DraftError {
    fn from(error: Malformed) -> DraftError {
        DraftError::Keys(KeysError::Malformed(error))
    }
}

impl Draft {
    /// The release that the draft belongs to.
    ///
    /// # Errors
    /// [`DraftError::Unfit`]: the draft has no key set.
    pub fn id(&self) -> Result<ReleaseId, DraftError> {
        let first = self.sets.first().or(self.keys.as_ref());
        let first = first.ok_or_else(|| DraftError::Unfit("it has no key set".to_owned()))?;
        Ok(ReleaseId(first.value.digest()))
    }

    /// The parts to be signed, and the keys that have signed them. Checks everything that can be checked.
    ///
    /// # Errors
    /// [`DraftError`]: something in the draft is wrong.
    pub fn parts(&self) -> Result<Vec<DraftPart>, DraftError> {
        let id = self.id()?;
        let chain = match self.sets.as_slice() {
            [] => None,
            sets => Some(KeyChain::of_sets(id, sets.to_vec())?),
        };
        let mut parts = Vec::new();
        if let Some(keys) = &self.keys {
            parts.push(part_of_keys(chain.as_ref(), keys)?);
        }
        if let Some(root) = &self.root {
            parts.extend(self.parts_of_root(id, root)?);
        }
        if let Some(statement) = &self.statement {
            let chain = chain.as_ref().ok_or_else(|| {
                DraftError::Unfit("it revokes a release that has no signed key set".to_owned())
            })?;
            parts.push(part_of_revocation(chain, statement)?);
        }
        Ok(parts)
    }

    /// Adds this key's signature to every part that it may sign and has not signed yet. Returns the names of
    /// these parts.
    ///
    /// # Errors
    /// [`DraftError`].
    pub fn sign(&mut self, key: &dyn KeyHolder) -> Result<Vec<String>, DraftError> {
        let public = key.public();
        let parts = self.parts()?;
        let may = |part: &DraftPart| {
            part.needs.iter().any(|need| need.signed.contains(&public) || need.lacking.contains(&public))
        };
        if !parts.iter().any(may) {
            return Err(DraftError::NotASigner(public));
        }
        let to_sign = |what: &str| {
            let waits = |part: &DraftPart| part.needs.iter().any(|need| need.lacking.contains(&public));
            parts.iter().any(|part| part.what == what && waits(part))
        };
        let mut signed = Vec::new();
        if let Some(keys) = &mut self.keys
            && to_sign(&name_of_keys(keys))
        {
            keys.sign(key)?;
            signed.push(name_of_keys(keys));
        }
        if let Some(root) = &mut self.root {
            if to_sign(&name_of_record(root)) {
                root.record.sign(key)?;
                signed.push(name_of_record(root));
            }
            let name = name_of_renewal(root);
            if let Some(freshness) = &mut root.freshness
                && to_sign(&name)
            {
                freshness.sign(key)?;
                signed.push(name);
            }
        }
        if let Some(statement) = &mut self.statement
            && to_sign(NAME_OF_REVOCATION)
        {
            statement.sign(key)?;
            signed.push(NAME_OF_REVOCATION.to_owned());
        }
        Ok(signed)
    }

    /// Adds the signatures of another copy.
    ///
    /// # Errors
    /// [`DraftError::Different`], or a signature in the other copy is wrong; nothing is changed then.
    pub fn merge(&mut self, other: &Draft) -> Result<(), DraftError> {
        if self.bare() != other.bare() {
            return Err(DraftError::Different);
        }
        other.parts()?;
        let mut merged = self.clone();
        if let (Some(ours), Some(theirs)) = (&mut merged.keys, &other.keys) {
            ours.signatures.extend(&theirs.signatures);
        }
        if let (Some(ours), Some(theirs)) = (&mut merged.root, &other.root) {
            ours.record.signatures.extend(&theirs.record.signatures);
            if let (Some(ours), Some(theirs)) = (&mut ours.freshness, &theirs.freshness) {
                ours.signatures.extend(&theirs.signatures);
            }
        }
        if let (Some(ours), Some(theirs)) = (&mut merged.statement, &other.statement) {
            ours.signatures.extend(&theirs.signatures);
        }
        merged.parts()?;
        *self = merged;
        Ok(())
    }

    /// The signed values, if enough keys have signed everything.
    ///
    /// # Errors
    /// [`DraftError::Unfinished`], or something in the draft is wrong.
    pub fn finish(&self) -> Result<FinishedDraft, DraftError> {
        let lacking: Vec<DraftPart> = self.parts()?.into_iter().filter(|part| !part.is_signed()).collect();
        if !lacking.is_empty() {
            return Err(DraftError::Unfinished(lacking));
        }
        let id = self.id()?;
        let sets = self.sets.iter().chain(&self.keys).cloned().collect();
        let chain = KeyChain::of_sets(id, sets)?;
        if let Some(root) = &self.root {
            authenticate(&chain, root)?;
        }
        let revocation =
            self.statement.clone().map(|statement| Revocation { sets: self.sets.clone(), statement });
        if let Some(revocation) = &revocation {
            revocation.clone().verify(id)?;
        }
        Ok(FinishedDraft { chain, keys_are_new: self.keys.is_some(), root: self.root.clone(), revocation })
    }

    /// The draft without the signatures that are being gathered.
    fn bare(&self) -> Draft {
        let mut bare = self.clone();
        bare.keys.iter_mut().for_each(|keys| keys.signatures.clear());
        if let Some(root) = &mut bare.root {
            root.record.signatures.clear();
            root.freshness.iter_mut().for_each(|freshness| freshness.signatures.clear());
        }
        bare.statement.iter_mut().for_each(|statement| statement.signatures.clear());
        bare
    }

    fn parts_of_root(&self, id: ReleaseId, root: &RootFile) -> Result<Vec<DraftPart>, DraftError> {
        let record = &root.record.value;
        let last = self.keys.as_ref().or(self.sets.last());
        let set = &last.ok_or_else(|| DraftError::Unfit("it has no key set".to_owned()))?.value;
        if record.release != id {
            return Err(NotAuthentic::WrongRelease { expected: id, found: record.release }.into());
        }
        if record.key_set != set.number {
            let why = format!(
                "its record names key set {}, and key set {} is to sign it",
                record.key_set, set.number
            );
            return Err(DraftError::Unfit(why));
        }
        let mut parts = vec![part(name_of_record(root), &root.record, vec![(whose(set.number), &set.role)])?];
        if let Some(freshness) = &root.freshness {
            let Some(allowed) = &set.freshness else {
                return Err(NotAuthentic::NoRenewals(set.number).into());
            };
            if freshness.value.release != id || freshness.value.record != record.digest() {
                return Err(DraftError::Unfit("its renewal is of another record".to_owned()));
            }
            let whose = format!("{} for renewals", whose(set.number));
            parts.push(part(name_of_renewal(root), freshness, vec![(whose, &allowed.role)])?);
        }
        Ok(parts)
    }
}

const NAME_OF_REVOCATION: &str = "the revocation";

fn name_of_keys(keys: &SignedKeySet) -> String {
    whose(keys.value.number)
}

fn name_of_record(root: &RootFile) -> String {
    format!("record {}", root.record.value.sequence)
}

fn name_of_renewal(root: &RootFile) -> String {
    format!("the renewal of record {}", root.record.value.sequence)
}

/// A part, with the keys of these roles that have signed `signed`.
fn part<T: Signable>(
    what: String,
    signed: &Signed<T>,
    roles: Vec<(String, &Role)>,
) -> Result<DraftPart, SignatureError> {
    let signers = signed.signers(|key| roles.iter().any(|(_, role)| role.keys.contains(key)))?;
    let needs =
        roles.into_iter().map(|(whose, role)| RequiredSignatures::new(whose, role, &signers)).collect();
    Ok(DraftPart { what, needs, any: false })
}

fn part_of_keys(chain: Option<&KeyChain>, keys: &SignedKeySet) -> Result<DraftPart, DraftError> {
    let KeySet { number, origin, role, certificates, .. } = &keys.value;
    let own = (whose(*number), role);
    let Some(chain) = chain else {
        if *number != 1 {
            return Err(KeysError::Skipped { expected: 1, found: *number }.into());
        }
        return Ok(part(name_of_keys(keys), keys, vec![own])?);
    };
    let before = chain.current();
    if *number != before.number + 1 {
        return Err(KeysError::Skipped { expected: before.number + 1, found: *number }.into());
    }
    if *certificates != before.certificates {
        return Err(KeysError::Purpose { number: *number }.into());
    }
    if *origin != (Origin::After { previous: before.digest() }) {
        return Err(DraftError::Unfit(format!(
            "its key set {number} follows another key set {}",
            before.number
        )));
    }
    Ok(part(name_of_keys(keys), keys, vec![(whose(before.number), &before.role), own])?)
}

fn part_of_revocation(chain: &KeyChain, statement: &Signed<Statement>) -> Result<DraftPart, DraftError> {
    let id = chain.id();
    if statement.value.release != id {
        return Err(RevocationError::WrongRelease { expected: id, found: statement.value.release }.into());
    }
    let roles = chain.sets().iter().rev().map(|set| (whose(set.value.number), &set.value.role)).collect();
    let part = part(NAME_OF_REVOCATION.to_owned(), statement, roles)?;
    Ok(DraftPart { any: true, ..part })
}
