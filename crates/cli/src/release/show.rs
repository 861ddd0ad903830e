//! `holdfast release show`

use super::args::Show;
use super::settling::{now_s, words};
use crate::output::{Format, clean};
use holdfast_crypto::keyfile;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::accept::{ExpiredPolicy, accept};
use holdfast_release::draft::Draft;
use holdfast_release::form::{self, Kind};
use holdfast_release::keys::{KeyChain, KeySet, KeysError, SignedKeySet};
use holdfast_release::layout;
use holdfast_release::moment::{moment, span};
use holdfast_release::record::{RootFile, authenticate};
use holdfast_release::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_release::revocation::Revocation;
use holdfast_release::signing::{Role, Signable, Signed};
use serde::Serialize;
use std::path::Path;

/// The report on a release, or on a file of one. Times are seconds since 1970.
#[derive(Default, Serialize)]
struct ReleaseOutput {
    what: &'static str,
    release: Option<String>,
    /// Whether it is in force now, for a client that has only the id.
    valid: bool,
    why_not: Option<String>,
    certificates: bool,
    key_sets: Vec<ShownKeys>,
    record: Option<ShownRecord>,
    revocation: Option<ShownRevocation>,
    /// The parts of a draft, with the signatures that are needed.
    to_sign: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ShownKeys {
    number: u64,
    threshold: u16,
    keys: Vec<ShownKey>,
    renewals: Option<ShownRenewers>,
}

#[derive(Serialize)]
struct ShownKey {
    fingerprint: String,
    public_key: String,
    signed: bool,
}

#[derive(Serialize)]
struct ShownRenewers {
    threshold: u16,
    keys: Vec<ShownKey>,
    term_max_s: u64,
    until_s: u64,
}

#[derive(Serialize)]
struct ShownRecord {
    sequence: u64,
    note: String,
    key_set: u64,
    digest: String,
    root_dir: String,
    issued_s: u64,
    expires_s: u64,
    signed_by: Vec<String>,
    renewal: Option<ShownRenewal>,
    /// The last second of its validity, if its signatures are valid.
    valid_until_s: Option<u64>,
}

#[derive(Serialize)]
struct ShownRenewal {
    issued_s: u64,
    expires_s: u64,
    signed_by: Vec<String>,
}

#[derive(Serialize)]
struct ShownRevocation {
    reason: String,
    successor: Option<String>,
}

/// Prints the report; fails if the release is not in force.
pub fn show(arguments: &Show, format: Format) -> Outcome {
    let path = &arguments.path;
    let shown = if path.is_dir() { of_directory(path)? } else { of_file(path)? };
    format.print(&shown, ReleaseOutput::describe)?;
    match (&shown.why_not, shown.valid) {
        (_, true) => Ok(()),
        (why, false) => {
            let why = why.clone().unwrap_or_else(|| "it is not signed".to_owned());
            Err(Failure::new(Exit::Failed, format!("{}: NOT VALID: {why}", path.display())))
        }
    }
}

fn of_directory(path: &Path) -> Outcome<ReleaseOutput> {
    let directory = ReleaseDir::new(path);
    let chain = directory.chain()?;
    let mut shown = ReleaseOutput { what: "release", valid: true, ..ReleaseOutput::of_chain(&chain) };
    let root = directory.file(layout::ROOT);
    if let Some(bytes) =
        holdfast_durable::read(&root, RootFile::BYTES_MAX).map_err(|error| unreadable(&root, error))?
    {
        let file: RootFile = form::read(&bytes)
            .map_err(|error| Failure::new(Exit::Data, format!("{}: {error}", root.display())))?;
        shown.judge(Some(&chain), &file);
    }
    if let Some(revoked) = directory.revoked(chain.id())? {
        shown.refuse(revoked.to_string());
    }
    Ok(shown)
}

fn of_file(path: &Path) -> Outcome<ReleaseOutput> {
    let bytes = holdfast_durable::read(path, Draft::BYTES_MAX).map_err(|error| unreadable(path, error))?;
    let bytes = bytes
        .ok_or_else(|| Failure::new(Exit::NoInput, format!("{}: there is no such file", path.display())))?;
    let malformed = |error| Failure::new(Exit::Data, format!("{}: {error}", path.display()));
    if form::claims::<RootFile>(&bytes) {
        let file: RootFile = form::read(&bytes).map_err(malformed)?;
        let chain = chain_near(path)?;
        let mut shown = chain.as_ref().map(ReleaseOutput::of_chain).unwrap_or_default();
        (shown.what, shown.valid) = ("record", true);
        shown.judge(chain.as_ref(), &file);
        return Ok(shown);
    }
    if form::claims::<SignedKeySet>(&bytes) {
        return of_key_set(form::read(&bytes).map_err(malformed)?, chain_near(path)?);
    }
    if form::claims::<Draft>(&bytes) {
        return of_draft(form::read(&bytes).map_err(malformed)?);
    }
    if form::claims::<Revocation>(&bytes) {
        return Ok(of_revocation(form::read(&bytes).map_err(malformed)?));
    }
    Err(Failure::new(Exit::NoInput, format!("{}: this is no signed file of a release", path.display())))
}

/// The key sets of the release directory that a file is in; `None` if it is in none.
fn chain_near(path: &Path) -> Outcome<Option<KeyChain>> {
    let path = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
    for folder in path.ancestors().skip(1).take(2) {
        match ReleaseDir::new(folder).chain() {
            Ok(chain) => return Ok(Some(chain)),
            Err(ReleaseDirError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn of_key_set(set: SignedKeySet, chain: Option<KeyChain>) -> Outcome<ReleaseOutput> {
    let number = set.value.number;
    let before = number.checked_sub(1).and_then(|before| chain.as_ref()?.set(before).cloned());
    let mut shown = ReleaseOutput {
        what: "key set",
        valid: true,
        certificates: set.value.certificates,
        key_sets: vec![ShownKeys::of(&set)],
        ..ReleaseOutput::default()
    };
    let checked = match (number, chain) {
        (1, _) => {
            let id = holdfast_release::keys::ReleaseId(set.value.digest());
            shown.release = Some(id.to_string());
            KeyChain::begin(id, set).map(drop)
        }
        (_, Some(mut chain)) if before.is_some() => {
            shown.release = Some(chain.id().to_string());
            chain.extend(set)
        }
        _ => {
            shown.refuse("the key sets before it are not beside it, so it cannot be checked".to_owned());
            return Ok(shown);
        }
    };
    checked.unwrap_or_else(|error: KeysError| shown.refuse(error.to_string()));
    Ok(shown)
}

fn of_draft(draft: Draft) -> Outcome<ReleaseOutput> {
    let parts = draft.parts()?;
    let mut shown = ReleaseOutput {
        what: "draft",
        release: Some(draft.id()?.to_string()),
        key_sets: draft.keys.iter().map(ShownKeys::of).collect(),
        to_sign: words(&parts),
        ..ReleaseOutput::default()
    };
    let last = draft.keys.as_ref().or(draft.sets.last()).map(|set| &set.value);
    shown.certificates = last.is_some_and(|set| set.certificates);
    shown.record = draft.root.as_ref().map(|root| ShownRecord::of(root, last));
    shown.revocation = draft.statement.as_ref().map(|statement| ShownRevocation {
        reason: clean(&statement.value.reason),
        successor: statement.value.successor.map(|id| id.to_string()),
    });
    shown.refuse(match parts.iter().all(holdfast_release::draft::DraftPart::is_signed) {
        true => "it is signed by enough people, but still a draft; `holdfast release sign DRAFT --to PATH` puts it \
                 in its place"
            .to_owned(),
        false => "it is a draft, and needs more signatures".to_owned(),
    });
    Ok(shown)
}

fn of_revocation(revocation: Revocation) -> ReleaseOutput {
    let statement = &revocation.statement.value;
    let release = statement.release;
    let mut shown = ReleaseOutput {
        what: "revocation certificate",
        release: Some(release.to_string()),
        valid: true,
        revocation: Some(ShownRevocation {
            reason: clean(&statement.reason),
            successor: statement.successor.map(|id| id.to_string()),
        }),
        ..ReleaseOutput::default()
    };
    if let Err(error) = revocation.verify(release) {
        shown.refuse(error.to_string());
    }
    shown
}

fn unreadable(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Exit::NoInput, format!("{}: {error}", path.display()))
}

impl ReleaseOutput {
    fn of_chain(chain: &KeyChain) -> ReleaseOutput {
        ReleaseOutput {
            release: Some(chain.id().to_string()),
            certificates: chain.current().certificates,
            key_sets: chain.sets().iter().map(ShownKeys::of).collect(),
            ..ReleaseOutput::default()
        }
    }

    /// Marks the release as not in force. The first reason is the one reported.
    fn refuse(&mut self, why: String) {
        self.valid = false;
        self.why_not.get_or_insert(why);
    }

    fn judge(&mut self, chain: Option<&KeyChain>, file: &RootFile) {
        let mut record = ShownRecord::of(file, chain.and_then(|chain| chain.set(file.record.value.key_set)));
        match chain {
            None => {
                self.release = Some(file.record.value.release.to_string());
                self.refuse("its key sets are not beside it, so nobody can check it".to_owned());
            }
            Some(chain) => {
                let validity = authenticate(chain, file).map(|authentic| authentic.validity());
                record.valid_until_s = validity.ok().map(|validity| validity.until_s);
                match accept(chain, file, None, now_s(), ExpiredPolicy::Refuse) {
                    Ok(accepted) => self.warnings.extend(accepted.warnings.iter().map(ToString::to_string)),
                    Err(refusal) => self.refuse(refusal.to_string()),
                }
            }
        }
        self.record = Some(record);
    }

    fn describe(&self) -> String {
        let mut lines = vec![match &self.release {
            Some(id) => format!("{} of {id}", self.what),
            None => self.what.to_owned(),
        }];
        if self.certificates {
            lines.push("a certificate directory: never used after it has expired".to_owned());
        }
        self.key_sets.iter().for_each(|keys| keys.describe(&mut lines));
        match &self.record {
            Some(record) => record.describe(&mut lines),
            None if self.what == "release" => lines.push("\nnothing was published yet".to_owned()),
            None => {}
        }
        if let Some(revocation) = &self.revocation {
            lines.push(format!("\nrevokes the release for good: {}", revocation.reason));
            lines.extend(revocation.successor.as_ref().map(|id| format!("  successor  {id}")));
        }
        if !self.to_sign.is_empty() {
            lines.push("\nto be signed".to_owned());
            lines.extend(self.to_sign.iter().map(|part| format!("  {part}")));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("\nWARNING: {warning}")));
        lines.push(match &self.why_not {
            None => "\nvalid".to_owned(),
            Some(why) => format!("\nNOT VALID: {why}"),
        });
        lines.join("\n")
    }
}

impl ShownKeys {
    fn of(set: &SignedKeySet) -> ShownKeys {
        let KeySet { number, role, freshness, .. } = &set.value;
        // Signatures by keys of this set; signatures by keys of the set before are listed there.
        let renewals = freshness.as_ref().map(|renewals| ShownRenewers {
            threshold: renewals.role.threshold,
            keys: shown_keys(&renewals.role, |_| false),
            term_max_s: renewals.term_max_s,
            until_s: renewals.until_s,
        });
        let bytes = set.value.signed_bytes();
        let keys = shown_keys(role, |key| {
            set.signatures.get(key).is_some_and(|signature| key.verify(KeySet::DOMAIN, &bytes, signature))
        });
        ShownKeys { number: *number, threshold: role.threshold, keys, renewals }
    }

    fn describe(&self, lines: &mut Vec<String>) {
        lines.push(format!("\nkey set {}: {} of {} must sign", self.number, self.threshold, self.keys.len()));
        for key in &self.keys {
            lines.push(format!("  {}{}", key.fingerprint, if key.signed { "  signed this set" } else { "" }));
        }
        if let Some(renewals) = &self.renewals {
            lines.push(format!(
                "  renewals by {} of {}, for {} at most, until {}",
                renewals.threshold,
                renewals.keys.len(),
                span(renewals.term_max_s),
                moment(renewals.until_s)
            ));
            lines.extend(renewals.keys.iter().map(|key| format!("    {}", key.fingerprint)));
        }
    }
}

fn shown_keys(role: &Role, signed: impl Fn(&holdfast_crypto::PublicKey) -> bool) -> Vec<ShownKey> {
    let shown = |key| ShownKey {
        fingerprint: keyfile::fingerprint(key),
        public_key: keyfile::format_public(key, "").trim_end().to_owned(),
        signed: signed(key),
    };
    role.keys.iter().map(shown).collect()
}

/// The keys that have signed, if all signatures are valid and by keys of the role; otherwise none.
fn signers<T: Signable>(value: &Signed<T>, role: Option<&Role>) -> Vec<String> {
    let signers = value.signers(|key| role.is_some_and(|role| role.keys.contains(key))).unwrap_or_default();
    signers.iter().map(keyfile::fingerprint).collect()
}

impl ShownRecord {
    fn of(file: &RootFile, set: Option<&KeySet>) -> ShownRecord {
        let record = &file.record.value;
        let renewers = set.and_then(|set| set.freshness.as_ref()).map(|renewals| &renewals.role);
        ShownRecord {
            sequence: record.sequence,
            note: clean(&record.note),
            key_set: record.key_set,
            digest: record.digest().to_string(),
            root_dir: record.root_dir.address.to_string(),
            issued_s: record.issued_s,
            expires_s: record.expires_s,
            signed_by: signers(&file.record, set.map(|set| &set.role)),
            renewal: file.freshness.as_ref().map(|freshness| ShownRenewal {
                issued_s: freshness.value.issued_s,
                expires_s: freshness.value.expires_s,
                signed_by: signers(freshness, renewers),
            }),
            valid_until_s: None,
        }
    }

    fn describe(&self, lines: &mut Vec<String>) {
        lines.push(format!("\nrelease {} {}", self.sequence, self.note).trim_end().to_owned());
        lines.push(format!("  issued     {}", moment(self.issued_s)));
        lines.push(format!("  expires    {}", moment(self.expires_s)));
        if let Some(renewal) = &self.renewal {
            lines.push(format!(
                "  renewed    {}, until {}",
                moment(renewal.issued_s),
                moment(renewal.expires_s)
            ));
            lines.push(format!("  renewed by {}", people(&renewal.signed_by)));
        }
        lines.push(format!("  signed by  {} (key set {})", people(&self.signed_by), self.key_set));
        lines.push(format!("  digest     {}", self.digest));
        lines.push(format!("  tree       {}", self.root_dir));
    }
}

fn people(fingerprints: &[String]) -> String {
    match fingerprints {
        [] => "nobody whose signature is found good".to_owned(),
        fingerprints => fingerprints.join(", "),
    }
}
