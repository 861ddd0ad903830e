//! `holdfast volume credential`: files in which the owner of a key states what others may do.
//!
//! A file of credentials is a chain: each link is signed by the one who passes a right on. It is neither
//! secret nor a password: it names who may use it, and is of no use to anybody else.
//!
//! Stored form: `HFCRED`, one byte of version (1), then borsh: a list of signed credentials
//! (docs/programs.md).

use super::session::Session;
use super::whom;
use crate::output::Format;
use crate::programs::args::{
    self, CredentialCommand, CredentialDelegate, CredentialIssue, CredentialPresent, CredentialRevoke, May,
};
use crate::programs::mounted;
use holdfast_access::{
    Conditions, Credential, Ending, KeyName, Limit, Name, Objects, Operation, Predicate, Principal, Scope,
    Statement, Term, Text, VerifiedCredential,
};
use holdfast_crypto::SigningKey;
use holdfast_daemon::keys::{self, Key};
use holdfast_daemon::time;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_stack::session_requests::{CREDENTIALS_MAX, SessionReply, SessionRequest};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 6] = b"HFCRED";
const VERSION: u8 = 1;
/// Most bytes of a file.
const BYTES_MAX: usize = 256 << 10;
/// Most bytes of a credential, so that it fits into one message to a session.
const CREDENTIAL_BYTES_MAX: usize = 15_000;

/// Reads a file of credentials, and verifies each.
///
/// # Errors
/// The file cannot be read, contains no credentials, or a signature in it is invalid.
pub fn read(path: &Path) -> Outcome<Vec<Vec<u8>>> {
    let bad = |why: &str| Failure::new(Exit::Data, format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))?;
    let rest = bytes.strip_prefix(MAGIC.as_slice()).ok_or_else(|| bad("is no file of credentials"))?;
    let (version, body) = rest.split_first().ok_or_else(|| bad("is cut short"))?;
    if *version != VERSION {
        return Err(Failure::new(Exit::Newer, format!("{}: has version {version}", path.display())));
    }
    if bytes.len() > BYTES_MAX {
        return Err(bad("is too long"));
    }
    let list: Vec<Vec<u8>> = holdfast_crypto::decode(body).map_err(|error| bad(&error.why))?;
    if list.is_empty() || list.len() > CREDENTIALS_MAX {
        return Err(bad("has no credential, or too many"));
    }
    for one in &list {
        VerifiedCredential::signed(one).map_err(|error| bad(&error.to_string()))?;
    }
    Ok(list)
}

fn write(path: &Path, list: &[Vec<u8>]) -> Outcome {
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    bytes.extend(holdfast_crypto::encode(&list.to_vec()));
    keys::create(path, 0o644, &bytes)
}

fn said(bytes: &[u8]) -> Outcome<Credential> {
    let heard = VerifiedCredential::signed(bytes).map_err(|error| Failure::new(Exit::Data, error))?;
    Ok(heard.credential().clone())
}

/// `holdfast volume credential`
pub fn run(arguments: &args::Credential, format: Format) -> Outcome {
    match &arguments.command {
        CredentialCommand::Issue(issue) => self::issue(issue, format),
        CredentialCommand::Delegate(delegate) => self::delegate(delegate, format),
        CredentialCommand::Revoke(revoke) => self::revoke(revoke, format),
        CredentialCommand::Show(show) => {
            let list = read(&show.file)?;
            let shown: Vec<CredentialOutput> =
                list.iter().map(|bytes| said(bytes).map(shown)).collect::<Outcome<_>>()?;
            format.print(&shown, |shown| {
                shown.iter().map(|one| one.says.clone()).collect::<Vec<_>>().join("\n")
            })
        }
        CredentialCommand::Present(present) => self::present(present, format),
    }
}

#[derive(Serialize)]
struct CredentialOutput {
    issuer: String,
    serial: u64,
    expires_s: Option<u64>,
    says: String,
}

fn shown(credential: Credential) -> CredentialOutput {
    let issuer = whom::shown(&credential.issuer);
    let until = credential.expires_s.map_or(String::new(), |last| {
        let ns = i64::try_from(last).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        format!(", until {}", time::moment(ns))
    });
    let what = match &credential.statement {
        Statement::SpeaksFor { delegate, principal, scope } => format!(
            "{} speaks for {} on {}",
            whom::shown(delegate),
            whom::shown(principal),
            scope_in_words(scope)
        ),
        Statement::Runs { .. } => "what a process runs (which no key can say)".to_owned(),
        Statement::Ends(Ending::Serial(serial)) => format!("its credential {serial} is revoked"),
        Statement::Ends(Ending::Before(serial)) => format!("its credentials before {serial} are revoked"),
        Statement::Ends(Ending::Everything) => "all its credentials are revoked, for good".to_owned(),
    };
    let says = format!("{issuer} says ({}{until}): {what}", credential.serial);
    CredentialOutput { issuer, serial: credential.serial, expires_s: credential.expires_s, says }
}

fn scope_in_words(scope: &Scope) -> String {
    let operations = match scope.operations() {
        Limit::Every => "everything".to_owned(),
        Limit::Only(operations) => {
            operations.iter().map(|one| format!("{one:?}").to_lowercase()).collect::<Vec<_>>().join(", ")
        }
    };
    match scope.objects() {
        Limit::Every => operations,
        Limit::Only(ranges) => {
            let blocks: u128 = ranges.iter().map(|one| one.last.saturating_sub(one.first) + 1).sum();
            format!("{operations}, of {blocks} blocks")
        }
    }
}

fn signer(path: &Path) -> Outcome<SigningKey> {
    match keys::read(path)? {
        Key::Here(key) => Ok(key),
        Key::Kept(_) | Key::Handed(_) => {
            Err(Failure::new(Exit::Usage, "credentials are signed with a key in a file, not one in an agent"))
        }
    }
}

/// A serial number that grows: the time in microseconds.
fn serial() -> u64 {
    u64::try_from(time::now_ns() / 1000).unwrap_or(0)
}

fn expiry(days: Option<u32>) -> Option<u64> {
    let now = u64::try_from(time::now_ns() / 1_000_000_000).unwrap_or(0);
    days.map(|days| now + u64::from(days) * 86_400)
}

/// A volume, given by its identity or by a mount of it.
fn volume(text: &str) -> Outcome<[u8; 16]> {
    let is_identity = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let (true, Ok(number)) = (is_identity, u128::from_str_radix(text, 16)) {
        return Ok(number.to_be_bytes());
    }
    Ok(Session::at(&mounted::find(Path::new(text))?.mount)?.facts.volume)
}

fn under(key: &SigningKey, volume: &[u8; 16]) -> Principal {
    whom::on_volume(Principal::Key(key.public()), volume)
}

/// The principal that may use a credential. `session:USER` is the session that a host starts for this user.
fn delegate_of(text: &str, volume: &[u8; 16]) -> Outcome<Principal> {
    let usage = |error: holdfast_access::AccessError| Failure::new(Exit::Usage, error);
    if let Some(user) = text.strip_prefix("session:") {
        // The name that the host gives to the session: the user's name, or the digest of another principal.
        let whose = match user.contains(':') {
            true => whom::on_volume(whom::flagged(user)?, volume).digest().to_string(),
            false => user.to_owned(),
        };
        let component = Term::Component(Name::new("vfs").map_err(usage)?);
        let setting = Term::Setting(Name::new("user").map_err(usage)?, Text::new(&whose).map_err(usage)?);
        let terms = vec![Term::All(2), component, setting];
        return Ok(Principal::Such(Predicate::new(terms, Conditions::CLEAN).map_err(usage)?));
    }
    // A key stands for its name on this volume only, which the key can pass on.
    Ok(whom::on_volume(whom::flagged(text)?, volume))
}

fn operations(may: &[May]) -> Limit<BTreeSet<Operation>> {
    if may.is_empty() {
        return Limit::Every;
    }
    let of = |may: &May| match may {
        May::Read => Operation::Read,
        May::Write => Operation::Write,
        May::Look => Operation::Look,
        May::ChangeAcls => Operation::ChangeAcls,
        May::Chown => Operation::Chown,
    };
    Limit::Only(may.iter().map(of).collect())
}

/// The objects of a credential, and the volume on which they are.
type Meant = (Limit<Vec<Objects>>, Option<[u8; 16]>);

/// The blocks of files, as ordered ranges that do not touch.
fn objects(files: &[PathBuf]) -> Outcome<Meant> {
    if files.is_empty() {
        return Ok((Limit::Every, None));
    }
    let mut runs = Vec::new();
    let mut volume = None;
    for file in files {
        let place = mounted::find(file)?;
        let session = Session::at(&place.mount)?;
        if volume.is_some_and(|volume| volume != session.facts.volume) {
            return Err(Failure::new(Exit::Usage, format!("{}: is on another volume", file.display())));
        }
        volume = Some(session.facts.volume);
        match session.request_about(&place, &SessionRequest::Blocks(place.inode))? {
            SessionReply::Blocks(found) => runs.extend(found),
            _ => {
                return Err(Failure::new(
                    Exit::Protocol,
                    "the mount is served by another version of holdfast",
                ));
            }
        }
    }
    runs.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, count) in runs {
        match joined.last_mut() {
            Some((start, length)) if *start + *length >= first => {
                *length = (*length).max(first + count - *start);
            }
            _ => joined.push((first, count)),
        }
    }
    let ranges = joined.iter().filter_map(|(first, count)| Objects::blocks(0, *first, *count)).collect();
    Ok((Limit::Only(ranges), volume))
}

fn restricted(operations: Limit<BTreeSet<Operation>>, objects: Limit<Vec<Objects>>) -> Outcome<Scope> {
    Scope::new(operations, objects).map_err(|error| {
        Failure::new(Exit::Usage, error)
            .hint("files in many pieces take several credentials, or one without --file")
    })
}

fn issue(arguments: &CredentialIssue, format: Format) -> Outcome {
    let key = signer(&arguments.key)?;
    let (objects, found) = objects(&arguments.files)?;
    let volume = match (&arguments.volume, found) {
        (Some(text), found) => {
            let named = volume(text)?;
            if found.is_some_and(|found| found != named) {
                return Err(Failure::new(Exit::Usage, "the files are on another volume than --volume names"));
            }
            named
        }
        (None, Some(found)) => found,
        (None, None) => {
            return Err(Failure::new(Exit::Usage, "say which volume: --volume DIR, a mount of it")
                .hint("a credential holds on one volume"));
        }
    };
    let statement = Statement::SpeaksFor {
        delegate: delegate_of(&arguments.to, &volume)?,
        principal: under(&key, &volume),
        scope: restricted(operations(&arguments.may), objects)?,
    };
    finish(&key, statement, expiry(arguments.days), Vec::new(), &arguments.out, format)
}

fn delegate(arguments: &CredentialDelegate, format: Format) -> Outcome {
    let key = signer(&arguments.key)?;
    let list = read(&arguments.from)?;
    let last = said(list.last().expect("it has one"))?;
    let Statement::SpeaksFor { delegate, principal, scope: given } = last.statement else {
        return Err(Failure::new(Exit::Usage, format!("{}: delegates nothing", arguments.from.display())));
    };
    let Principal::Named(KeyName { name: volume_name, .. }) = &principal else {
        return Err(Failure::new(Exit::Usage, format!("{}: is for no volume", arguments.from.display())));
    };
    let volume = volume(volume_name.as_str())?;
    let own = under(&key, &volume);
    if delegate != own && !matches!(delegate, Principal::User(_)) {
        let message = format!("{}: is for {}", arguments.from.display(), whom::shown(&delegate));
        return Err(Failure::new(Exit::NotAllowed, message).hint("who it is for hands it on, with their key"));
    }
    let (objects, found) = objects(&arguments.files)?;
    if found.is_some_and(|found| found != volume) {
        return Err(Failure::new(Exit::Usage, "the files are on another volume"));
    }
    // Restrictions that are not given stay as they are in the credential.
    let operations = match arguments.may.as_slice() {
        [] => given.operations().clone(),
        may => operations(may),
    };
    let objects = if arguments.files.is_empty() { given.objects().clone() } else { objects };
    let wanted = restricted(operations, objects)?;
    if !given.contains(&wanted) {
        let message = format!(
            "{} is on {}: no more can be handed on",
            arguments.from.display(),
            scope_in_words(&given)
        );
        return Err(Failure::new(Exit::NotAllowed, message));
    }
    let delegate = delegate_of(&arguments.to, &volume)?;
    let statement = Statement::SpeaksFor { delegate, principal: own, scope: wanted };
    finish(&key, statement, expiry(arguments.days), list, &arguments.out, format)
}

fn finish(
    key: &SigningKey,
    statement: Statement,
    expires_s: Option<u64>,
    mut list: Vec<Vec<u8>>,
    out: &Path,
    format: Format,
) -> Outcome {
    let issuer = Principal::Key(key.public());
    let credential = Credential { issuer, serial: serial(), expires_s, statement };
    let shown = shown(credential.clone());
    let signed = credential.sign(key);
    if signed.len() > CREDENTIAL_BYTES_MAX || list.len() >= CREDENTIALS_MAX {
        return Err(Failure::new(Exit::Usage, "the chain is too long, or names too much"));
    }
    list.push(signed);
    write(out, &list)?;
    format.print(&shown, |shown| shown.says.clone())
}

fn revoke(arguments: &CredentialRevoke, format: Format) -> Outcome {
    let key = signer(&arguments.key)?;
    let issuer = Principal::Key(key.public());
    let ending = match (&arguments.credential, arguments.serial, arguments.before, arguments.all) {
        (Some(file), ..) => {
            let mut own = None;
            for bytes in read(file)? {
                let credential = said(&bytes)?;
                if credential.issuer == issuer {
                    own = Some(credential.serial);
                }
            }
            let none = || {
                Failure::new(Exit::NotAllowed, format!("{}: this key signed none of it", file.display()))
                    .hint("only who issued a credential takes it back")
            };
            Ending::Serial(own.ok_or_else(none)?)
        }
        (None, Some(serial), ..) => Ending::Serial(serial),
        (None, None, Some(before), _) => Ending::Before(before),
        (None, None, None, true) => Ending::Everything,
        _ => {
            return Err(Failure::new(
                Exit::Usage,
                "say what: --credential FILE, --serial, --before or --all",
            ));
        }
    };
    if arguments.out.is_none() && arguments.mounts.is_empty() {
        return Err(Failure::new(Exit::Usage, "say where it is to be known: --mount DIR, or --out FILE"));
    }
    let credential =
        Credential { issuer, serial: serial(), expires_s: None, statement: Statement::Ends(ending) };
    let told = shown(credential.clone());
    let signed = credential.sign(&key);
    if let Some(out) = &arguments.out {
        write(out, std::slice::from_ref(&signed))?;
    }
    for mount in &arguments.mounts {
        let session = Session::at(&mounted::find(mount)?.mount)?;
        session.request(&SessionRequest::Present(vec![signed.clone()]))?;
    }
    format.print(&told, |shown| shown.says.clone())
}

fn present(arguments: &CredentialPresent, format: Format) -> Outcome {
    let session = Session::at(&mounted::find(&arguments.directory)?.mount)?;
    let list = read(&arguments.file)?;
    let total: usize = list.iter().map(Vec::len).sum();
    if total > CREDENTIAL_BYTES_MAX {
        return Err(Failure::new(Exit::Usage, "the chain is too long for one message"));
    }
    let speaks = match session.request(&SessionRequest::Present(list))? {
        SessionReply::Speaks(speaks) => speaks,
        _ => return Err(Failure::new(Exit::Protocol, "the mount is served by another version of holdfast")),
    };
    let user = whom::shown(&session.facts.user);
    let lines: Vec<String> = speaks
        .iter()
        .map(|(principal, scope)| {
            format!("{user}'s session speaks for {} on {scope}", whom::shown(principal))
        })
        .collect();
    format.print(&lines, |lines| match lines.is_empty() {
        true => "it is known there".to_owned(),
        false => lines.join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the stored form of version 1 is as documented, and nothing else is accepted.
    #[test]
    fn files_of_credentials() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let key = SigningKey::from_seed(&[3; 32]);
        let statement = Statement::Ends(Ending::Serial(7));
        let credential =
            Credential { issuer: Principal::Key(key.public()), serial: 9, expires_s: None, statement };
        let signed = credential.sign(&key);
        write(&at("one"), std::slice::from_ref(&signed)).expect("written");
        let bytes = std::fs::read(at("one")).expect("read");
        let mut expected = b"HFCRED\x01\x01\0\0\0".to_vec();
        expected.extend((signed.len() as u32).to_le_bytes());
        expected.extend(&signed);
        assert_eq!(bytes, expected);
        assert_eq!(read(&at("one")).expect("read"), vec![signed]);
        for change in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[change] ^= 1;
            std::fs::write(at("changed"), &changed).expect("written");
            assert!(read(&at("changed")).is_err(), "byte {change}");
            std::fs::write(at("changed"), &bytes[..change]).expect("written");
            assert!(read(&at("changed")).is_err(), "{change} bytes");
        }
        assert!(write(&at("one"), &[]).is_err(), "nothing is overwritten");
    }
}
