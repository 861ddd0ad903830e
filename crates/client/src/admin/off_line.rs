//! Changes of the membership with a superuser's key that is stored off line. A change is prepared by any
//! member's device, signed where the key is, and submitted by any device that stays a member. In between it
//! is one file, a [`SigningRequest`].
//!
//! ```text
//! magic "hfchange" | format u8 (1) | url string | body of the present membership's block bytes
//!                  | change (holdfast_protocol::warrant) | home? (principal, name) | signature?      borsh
//! ```
//!
//! Attack answered: the file is carried by hand, and a person who carries or prepares it may alter it. What
//! will be signed is described completely from the file's own content ([`SigningRequest::words`]); and a
//! change that does not follow the membership in force is worthless.

use super::adopt::{self, Leavers};
use super::make_home;
use crate::engine::Engine;
use crate::error::FsError;
use crate::tree::Changes;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{
    BODY_BYTES_MAX, Block, BlockKind, Device, DeviceId, GroupId, Membership, PrincipalId, UserId,
};
use holdfast_crypto::keyfile::format_public;
use holdfast_crypto::{Digest, DigestKey, Domain, KeyHolder, SignError, Signature, decode, encode};
use holdfast_protocol::epoch;
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::warrant::Change;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"hfchange";
const FORMAT: u8 = 1;
/// Longest file in bytes: two memberships, and little else.
pub const FILE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize + 4096;
/// Longest address (URL) in a change file, in bytes.
const URL_BYTES_MAX: usize = 1024;
/// How long a submission waits for other changes to finish.
const PATIENCE: Duration = Duration::from_secs(30);

/// A change of the membership that the superuser has signed or is asked to sign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SigningRequest {
    /// The file system's address.
    pub url: String,
    /// The membership that the change follows.
    pub present: Membership,
    /// The change that the superuser signs.
    pub change: Change,
    /// The user or group for which to make a directory under the root once the change is in force. Not
    /// signed, since it gives nobody any rights.
    pub home: Option<(PrincipalId, String)>,
    /// The superuser's signature, once there is one.
    pub signature: Option<Signature>,
}

/// A change file as it is encoded.
#[derive(BorshSerialize, BorshDeserialize)]
struct ChangeFile {
    url: String,
    present: Vec<u8>,
    change: Change,
    home: Option<(PrincipalId, String)>,
    signature: Option<Signature>,
}

/// Why a change file is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeFileError {
    /// It is not a change file, or it is damaged.
    #[error("this is no change of a membership, or it is damaged: {0}")]
    Malformed(String),
    /// It was written by a later version of this program.
    #[error("it is of format {0}, and this program knows up to {FORMAT}; use a newer holdfast")]
    Newer(u8),
    /// It was altered after it was signed.
    #[error(
        "the signature in it is not the superuser's for this change: it was altered, or signed with another key"
    )]
    NotSigned,
}

impl SigningRequest {
    /// Encodes the change file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ChangeFileError> {
        let malformed = |error: &dyn std::fmt::Display| ChangeFileError::Malformed(error.to_string());
        let block = self.present.to_block(&DigestKey::WELL_KNOWN).map_err(|error| malformed(&error))?;
        let written = ChangeFile {
            url: self.url.clone(),
            present: block.body().to_vec(),
            change: self.change.clone(),
            home: self.home.clone(),
            signature: self.signature,
        };
        Ok([&MAGIC[..], &encode(&(FORMAT, written))].concat())
    }

    /// Decodes a file and checks that it is complete, consistent and, if signed, validly signed.
    ///
    /// # Errors
    /// See [`ChangeFileError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<SigningRequest, ChangeFileError> {
        let malformed = |why: &str| ChangeFileError::Malformed(why.to_owned());
        if bytes.len() > FILE_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| malformed("it begins otherwise"))?;
        let rest = match rest.split_first() {
            Some((&FORMAT, rest)) => rest,
            Some((&format, _)) => return Err(ChangeFileError::Newer(format)),
            None => return Err(malformed("it ends too soon")),
        };
        let ChangeFile { url, present, change, home, signature } =
            decode(rest).map_err(|error| malformed(&error.why))?;
        if url.len() > URL_BYTES_MAX || present.len() > BODY_BYTES_MAX as usize {
            return Err(malformed("a part of it is too long"));
        }
        let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Membership, Vec::new(), present);
        if block.reference().address != change.follows {
            return Err(malformed("the membership in it is not the one that the change follows"));
        }
        let present = Membership::from_block(&block).map_err(|error| malformed(&error.to_string()))?;
        let request = SigningRequest { url, present, change, home, signature };
        request.check().map_err(ChangeFileError::Malformed)?;
        if let Some(signature) = &request.signature {
            let superuser = request.present.devices[&DeviceId::SUPERUSER].key;
            if !superuser.verify(Domain::Warrant, &request.change.signed_bytes(), signature) {
                return Err(ChangeFileError::NotSigned);
            }
        }
        Ok(request)
    }

    fn check(&self) -> Result<(), String> {
        let change = &self.change;
        if !self.present.devices.contains_key(&DeviceId::SUPERUSER)
            || epoch_of(&self.present) != change.file_system
        {
            return Err("it is not of the superuser's file system".to_owned());
        }
        if change.version < self.present.version {
            return Err("it follows a membership before that was in force".to_owned());
        }
        if change.next.version != 0 || change.next.undated() != change.next {
            return Err("it says itself when it comes into force".to_owned());
        }
        let next = self.next();
        self.present.validate_successor(&next).map_err(|why| why.to_string())?;
        match &self.home {
            None => Ok(()),
            Some((PrincipalId::User(id), name)) if next.users.get(id).is_some_and(|u| u.name == *name) => {
                Ok(())
            }
            Some((PrincipalId::Group(id), name)) if next.groups.get(id).is_some_and(|g| g.name == *name) => {
                Ok(())
            }
            Some(_) => Err("it is to make a directory for nobody".to_owned()),
        }
    }

    /// The next membership, at the first version that it can have.
    fn next(&self) -> Membership {
        self.change.next.dated(self.change.version.saturating_add(1))
    }

    /// A complete description of the change, one line for each part; empty if it changes nothing.
    pub fn words(&self) -> Vec<String> {
        words(&self.present, &self.next())
    }

    /// For each group, the users who leave it by this change.
    fn leavers(&self) -> Leavers {
        adopt::leavers(&self.present, &self.next())
    }

    /// Signs the change with the superuser's key, wherever that is.
    ///
    /// # Errors
    /// See [`SignError`]; one reason is that another change was signed to follow the same membership.
    pub fn sign(&mut self, superuser: &dyn KeyHolder) -> Result<(), SignError> {
        self.signature = Some(Signed::by(self.change.clone(), superuser)?.signature);
        Ok(())
    }
}

/// Describes what changes from `before` to `after`.
fn words(before: &Membership, after: &Membership) -> Vec<String> {
    let mut lines = Vec::new();
    let user = |id: &UserId| match after.users.get(id) {
        Some(user) => user.name.clone(),
        None => format!("number {}", id.0),
    };
    if before.name != after.name {
        lines.push(format!("the file system is called {} from then on", after.name));
    }
    for (id, now) in &after.users {
        match before.users.get(id) {
            None => lines.push(format!("user {} is added", now.name)),
            Some(then) if !then.removed && now.removed => {
                lines.push(format!("user {} is removed; what they wrote stays", now.name));
            }
            _ => {}
        }
        if let Some(then) = before.users.get(id).filter(|then| then.name != now.name) {
            lines.push(format!("user {} is called {} from then on", then.name, now.name));
        }
    }
    let group = |id: &GroupId| match after.groups.get(id) {
        Some(group) => format!("@{}", group.name),
        None => format!("group number {}", id.0),
    };
    for (id, now) in &after.groups {
        let names = |users: Vec<&UserId>, groups: Vec<&GroupId>| {
            users.into_iter().map(user).chain(groups.into_iter().map(group)).collect::<Vec<_>>().join(", ")
        };
        let Some(then) = before.groups.get(id) else {
            let members = match now.members.is_empty() && now.groups.is_empty() {
                true => "no members yet".to_owned(),
                false => {
                    format!("members {}", names(now.members.iter().collect(), now.groups.iter().collect()))
                }
            };
            lines.push(format!("group {} is added, with {members}", now.name));
            continue;
        };
        if then.name != now.name {
            lines.push(format!("group {} is called {} from then on", then.name, now.name));
        }
        if !then.removed && now.removed {
            // Users who belonged to it through groups within it become its direct members, and those groups
            // leave it.
            lines.push(format!("group {} is removed; what it wrote stays", now.name));
            if now.groups.is_empty() && now.members == *before.effective_members(*id) {
                continue;
            }
        }
        let joined = names(
            now.members.difference(&then.members).collect(),
            now.groups.difference(&then.groups).collect(),
        );
        let left = names(
            then.members.difference(&now.members).collect(),
            then.groups.difference(&now.groups).collect(),
        );
        if !joined.is_empty() {
            lines.push(format!("group {}: {joined} joins", now.name));
        }
        if !left.is_empty() {
            lines.push(format!("group {}: {left} leaves, and may no longer write what is its", now.name));
        }
    }
    let with_quotas: BTreeSet<&UserId> = before.quotas.keys().chain(after.quotas.keys()).collect();
    for id in with_quotas {
        match (before.quotas.get(id), after.quotas.get(id)) {
            (then, Some(now)) if then != Some(now) => {
                lines.push(format!("user {} may store {now} bytes at the server", user(id)));
            }
            (Some(_), None) => lines.push(format!("user {} may store any amount at the server", user(id))),
            _ => {}
        }
    }
    let described = |device: &Device| {
        format!(
            "device {} of user {}, key {}",
            device.name,
            user(&device.user),
            format_public(&device.key, "").trim()
        )
    };
    for (id, now) in &after.devices {
        match before.devices.get(id) {
            None => lines.push(format!(
                "{} is enrolled: whoever has that key may then write as this user",
                described(now)
            )),
            Some(then) => {
                if then.removed_at.is_none() && now.removed_at.is_some() {
                    lines
                        .push(format!("{} is removed: nothing it signs from then on counts", described(now)));
                }
                if then.name != now.name {
                    lines.push(format!("{} was called {} before", described(now), then.name));
                }
            }
        }
    }
    lines
}

/// Prepares a change of the membership in force, in the view that the server shows now.
///
/// # Errors
/// Those of the edit; as [`Engine::modify`].
pub fn prepare(
    engine: &Engine,
    url: String,
    edit: impl Fn(&mut Membership) -> Result<Option<(PrincipalId, String)>, FsError> + Send + 'static,
) -> Result<SigningRequest, FsError> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let look = move |changes: &mut dyn Changes| {
        let (handle, present) = changes.membership()?.present()?;
        let version = handle.version.saturating_add(1);
        let mut next = Membership { version, ..Membership::clone(&present) };
        let home = edit(&mut next)?;
        let next = present.succeeded_by(next, version);
        present.validate_successor(&next).map_err(|why| FsError::Invalid(why.to_string()))?;
        *slot.lock() = Some((handle, present, next, home));
        Ok::<(), FsError>(())
    };
    engine.modify(Arc::new(Mutex::new(look)))?;
    let (handle, present, next, home) = result.lock().take().expect("the edit that succeeded left a result");
    let change = Change::new(epoch_of(&present), &handle, &next);
    Ok(SigningRequest { url, present: (*present).clone(), change, home, signature: None })
}

/// The result of submitting a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubmitReport {
    /// Number of groups' files that were taken over from users who left.
    pub adopted: usize,
    /// The directory that was requested and that this device could not make, with the reason.
    pub no_home: Option<String>,
}

/// Submits a signed change as an operation of this device.
///
/// # Errors
/// [`FsError::Expired`] if another change came first; [`FsError::NotPermitted`] if another device must submit
/// it; as [`Engine::modify`].
pub fn submit(engine: &Engine, request: &SigningRequest, now_ns: i64) -> Result<SubmitReport, FsError> {
    let signature = request.signature.ok_or_else(|| FsError::Invalid("it is not signed".to_owned()))?;
    let leavers = request.leavers();
    let deadline = Instant::now() + PATIENCE;
    let mut adopted = 0;
    loop {
        if !is_due(engine, request)? {
            // The change was submitted before, by a device that could not make the directory.
            break;
        }
        for (group, users) in &leavers {
            let one = Leavers::from([(*group, users.clone())]);
            adopted += adopt::take_over(engine, &one).map_err(|error| match error {
                FsError::Access(_) => FsError::NotPermitted(format!(
                    "files of group {} are held by a device of a user who leaves it, and must be taken over by one who \
                     stays: submit it from a device of a member of that group, or of the superuser's",
                    request.present.groups[group].name
                )),
                error => error,
            })?;
        }
        let (change, leaving) = (request.change.clone(), leavers.clone());
        let edit = move |changes: &mut dyn Changes| {
            let mut membership = changes.membership()?;
            if adopt::holds_any(&membership, &leaving)? {
                return Err(FsError::Busy);
            }
            membership.enact(&change, signature)
        };
        match engine.modify(Arc::new(Mutex::new(edit))).and_then(|_| engine.flush_commits()) {
            Ok(()) => break,
            // Files were taken back meanwhile, or another change is under way.
            Err(FsError::Busy | FsError::Refused(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) => return Err(error),
        }
    }
    let no_home = match &request.home {
        None => None,
        Some((owner, name)) => match make_home(engine, *owner, name, now_ns) {
            Ok(()) => None,
            Err(error @ (FsError::Access(_) | FsError::Exists)) => Some(error.to_string()),
            Err(error) => return Err(error),
        },
    };
    Ok(SubmitReport { adopted, no_home })
}

/// The id that changes name as their file system: that of the latest epoch.
fn epoch_of(members: &Membership) -> Digest {
    epoch::latest(members.devices[&DeviceId::SUPERUSER].key.file_system_id(), &members.restores)
}

/// Whether the change follows the membership in force. `false`: it is in force already, and only its
/// directory must still be made. Otherwise the error describes the changes in between.
fn is_due(engine: &Engine, request: &SigningRequest) -> Result<bool, FsError> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let look = move |changes: &mut dyn Changes| {
        *slot.lock() = Some(changes.membership()?.present()?);
        Ok::<(), FsError>(())
    };
    engine.modify(Arc::new(Mutex::new(look)))?;
    let (handle, present) = result.lock().take().expect("the edit that succeeded left a result");
    let change = &request.change;
    if change.file_system != epoch_of(&present) {
        let why = "it is for another file system, or from before a restore of the server";
        return Err(FsError::Invalid(why.to_owned()));
    }
    if (handle.version, handle.reference.address) == (change.version, change.follows) {
        return Ok(true);
    }
    if present.warrant.is_some() && request.signature == present.warrant.map(|warrant| warrant.signature) {
        if request.home.is_some() {
            return Ok(false);
        }
        return Err(FsError::Expired(format!(
            "it is in force already: it came into force as version {}",
            present.version
        )));
    }
    let came_between = words(&request.present, &present);
    let came_between = match came_between.is_empty() {
        true => "one that had no effect".to_owned(),
        false => came_between.join("; "),
    };
    Err(FsError::Expired(format!(
        "it was signed to follow version {} of the membership, and version {} is in force. What came between: \
         {came_between}. Prepare it anew, and have that signed",
        change.version, handle.version
    )))
}

#[cfg(test)]
mod tests;
