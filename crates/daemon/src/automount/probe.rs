//! Finds out whether a name leads to a writable file system or a release. Both protocols are tried at the
//! location in the name, and the ID decides: the server must prove that it has what the ID stands for, so
//! nobody can lie about the kind.

use super::name::Name;
use super::refusal::Refusal;
use crate::keys;
use holdfast_fuse::automount::Trouble;
use holdfast_release::accept::{ExpiredPolicy, Refusal as Unaccepted};
use holdfast_release::admit::{AdmitError, admit};
use holdfast_release::form::Kind;
use holdfast_release::keys::{KeyChain, KeysError, ReleaseId, SignedKeySet};
use holdfast_release::layout;
use holdfast_release::mirror::{self, Mirror};
use holdfast_release::open::now_s;
use holdfast_release::trust::{Trust, TrustError};
use holdfast_rpc::{Address, Connector, RpcError, ServerProof, WrongServer};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for a server of writable file systems.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeResult {
    /// A writable file system.
    FileSystem(Address),
    /// A release: the URL of its mirror.
    Release(String),
}

/// The result of one of the two protocols.
enum Answer {
    Found(ProbeResult),
    /// No server there has this ID.
    Nobody(String),
    /// A server answers, but with something other than the ID stands for.
    Wrong(String),
    /// It is there, but must not be used.
    Not(Refusal),
}

/// Tries both protocols.
///
/// # Errors
/// Why nothing can be mounted.
pub fn find(name: &Name, trust: &Path, revocations: &[PathBuf]) -> Result<ProbeResult, Refusal> {
    let release = |scheme| release(name, scheme, trust, revocations);
    let answers = std::thread::scope(|scope| {
        let file_system = name.file_system().map(|address| scope.spawn(|| file_system(address)));
        let mut answers = vec![release("https")];
        // Without TLS only if there is no other way: others could then see what is read, though not change
        // it.
        if !matches!(answers[0], Answer::Found(_) | Answer::Not(_)) {
            answers.push(release("http"));
        }
        let file_system = file_system.map(|asked| {
            asked.join().unwrap_or_else(|_| Answer::Nobody("asking for a file system failed".to_owned()))
        });
        answers.extend(file_system);
        answers
    });
    judge(answers)
}

fn judge(answers: Vec<Answer>) -> Result<ProbeResult, Refusal> {
    let (mut wrong, mut refused, mut said) = (false, None, Vec::new());
    for answer in answers {
        match answer {
            Answer::Found(found) => return Ok(found),
            Answer::Not(refusal) => refused = Some(refusal),
            Answer::Wrong(why) => {
                wrong = true;
                said.push(why);
            }
            Answer::Nobody(why) => said.push(why),
        }
    }
    let trouble = if wrong { Trouble::Wrong } else { Trouble::Unreachable };
    Err(refused.unwrap_or_else(|| Refusal::new(trouble, said.join("; "))))
}

fn file_system(address: Address) -> Answer {
    // Any key can be used to ask; so the user's own is not revealed before the server has proved what it is.
    let key = match keys::generate() {
        Ok(key) => key,
        Err(failure) => return Answer::Nobody(failure.message),
    };
    let proof = ServerProof { file_system: address.file_system, minimum_sequence: 0 };
    let mut connector = Connector::new(key, address.servers(), Some(proof));
    connector.options.connect_patience = PATIENCE;
    match connector.connect(Duration::ZERO) {
        Ok(_) => Answer::Found(ProbeResult::FileSystem(address)),
        Err(error @ RpcError::WrongServer { why: WrongServer::NotHoldfast(_), .. }) => {
            Answer::Nobody(error.to_string())
        }
        Err(error @ RpcError::WrongServer { .. }) => Answer::Wrong(error.to_string()),
        Err(error) => Answer::Nobody(error.to_string()),
    }
}

fn release(name: &Name, scheme: &str, trust: &Path, revocations: &[PathBuf]) -> Answer {
    let Some(url) = name.mirror(scheme) else {
        return Answer::Nobody("a mirror has one host".to_owned());
    };
    let mirror = match mirror::parse(&url) {
        Ok(mirror) => mirror,
        Err(error) => return Answer::Nobody(error.to_string()),
    };
    let id = ReleaseId(name.id);
    // The first key set is checked first, so that nothing is remembered of a release with another ID.
    match mirror.get(&layout::keys(1), None, SignedKeySet::BYTES_MAX) {
        Err(error) => return Answer::Nobody(error.to_string()),
        Ok(bytes) => match KeyChain::begin_with_file(id, &bytes) {
            Ok(_) => {}
            Err(error @ KeysError::Malformed(_)) => return Answer::Nobody(format!("{url}: {error}")),
            Err(error) => return Answer::Wrong(format!("{url}: {error}")),
        },
    }
    match may_be_used(id, &*mirror, trust, revocations) {
        Ok(()) => Answer::Found(ProbeResult::Release(url)),
        Err(refusal) => Answer::Not(refusal),
    }
}

/// Checks whether the release is in force, by the mirror's record, its key sets and revocations.
fn may_be_used(
    id: ReleaseId,
    mirror: &dyn Mirror,
    trust: &Path,
    revocations: &[PathBuf],
) -> Result<(), Refusal> {
    let trust = Trust::open(trust, id).map_err(|error| Refusal::new(Trouble::Failed, error))?;
    match admit(&trust, mirror, revocations, now_s(), ExpiredPolicy::Refuse) {
        Ok(_) => Ok(()),
        Err(error) => Err(Refusal::new(trouble(&error), error)),
    }
}

fn trouble(error: &AdmitError) -> Trouble {
    match error {
        AdmitError::Revoked { .. } => Trouble::Revoked,
        AdmitError::Mirror(_) => Trouble::Unreachable,
        AdmitError::Malformed { .. } => Trouble::Wrong,
        AdmitError::Refused { error, .. } => match &**error {
            TrustError::Refused { refusal: Unaccepted::Expired { .. }, .. } => Trouble::Expired,
            _ => Trouble::Wrong,
        },
        AdmitError::Trust(_) | AdmitError::RevocationsUnreadable { .. } => Trouble::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a server that was found takes precedence over other answers; a refusal takes precedence over a
    /// wrong server, and that over an absent one.
    #[test]
    fn verdicts() {
        let nobody = || Answer::Nobody("nobody".to_owned());
        let wrong = || Answer::Wrong("another".to_owned());
        let revoked = || Answer::Not(Refusal::new(Trouble::Revoked, "revoked"));
        let found = || Answer::Found(ProbeResult::Release("https://h/".to_owned()));
        assert!(judge(vec![nobody(), wrong(), found()]).is_ok());
        let trouble = |answers| judge(answers).map_err(|refusal| refusal.trouble);
        assert_eq!(trouble(vec![wrong(), revoked(), nobody()]), Err(Trouble::Revoked));
        assert_eq!(trouble(vec![nobody(), wrong()]), Err(Trouble::Wrong));
        assert_eq!(trouble(vec![nobody(), nobody()]), Err(Trouble::Unreachable));
    }
}
