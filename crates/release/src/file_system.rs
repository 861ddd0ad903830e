//! Revocation of a writable file system: its superuser's key states that it must never be used again.
//!
//! The id of a file system is the digest of that key. So the certificate, which contains the key, can be
//! verified from the id alone, like that of a release ([`crate::revocation`]); anybody may distribute it.

use crate::admit::{Unreadable, certificates};
use crate::form::{self, Kind, Malformed, RuleViolation, fit_for_people};
use crate::keys::ReleaseId;
use crate::revocation::REASON_BYTES_MAX;
use crate::signing::{Signable, SignatureError, Signed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, Domain, PublicKey};
use std::path::PathBuf;

/// The statement that a file system is revoked.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statement {
    /// The id of the file system.
    pub file_system: Digest,
    /// The reason, for people: at most [`REASON_BYTES_MAX`] bytes, no control characters except line ends.
    pub reason: String,
}

impl Signable for Statement {
    const DOMAIN: Domain = Domain::FileSystemRevocation;
    const WHAT: &'static str = "revocation";
}

/// A certificate as it is stored. It proves nothing before [`verify`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Revocation {
    /// The superuser's key, whose digest is the file system's id.
    pub superuser: PublicKey,
    /// The statement.
    pub statement: Signed<Statement>,
}

impl Kind for Revocation {
    const MAGIC: &'static [u8; 7] = b"HF-revf";
    const WHAT: &'static str = "revocation certificate of a file system";
    const BYTES_MAX: u64 = 4 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        let reason = &self.statement.value.reason;
        fit_for_people("reason", reason, REASON_BYTES_MAX, Some('\n'))?;
        Ok(())
    }
}

/// Why a certificate has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// The bytes are not a certificate.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The certificate is for another file system, or not by its superuser.
    #[error("the certificate is of the file system {found}, not of {expected}")]
    WrongFileSystem {
        /// The file system that was asked for.
        expected: Digest,
        /// The file system that the certificate names.
        found: Digest,
    },
    /// The certificate is not signed, or the signature is wrong.
    #[error(transparent)]
    Signatures(#[from] SignatureError),
}

/// A file system that its superuser has revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Revoked {
    /// The id of the file system.
    pub file_system: Digest,
    /// The superuser's reason.
    pub reason: String,
    /// Where the certificate was found.
    pub found: PathBuf,
    /// The certificate, to be stored.
    pub certificate: Vec<u8>,
}

impl std::fmt::Display for Revoked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the file system {} was revoked for good by its superuser", self.file_system)?;
        match self.reason.as_str() {
            "" => write!(f, ", without a reason")?,
            reason => write!(f, ": {reason}")?,
        }
        write!(f, " ({})", self.found.display())
    }
}

/// Reads and checks a certificate; returns its reason.
///
/// # Errors
/// [`RevocationError`]: the certificate has no effect.
pub fn verify(id: Digest, bytes: &[u8]) -> Result<String, RevocationError> {
    let Revocation { superuser, statement } = form::read(bytes)?;
    for found in [superuser.file_system_id(), statement.value.file_system] {
        if found != id {
            return Err(RevocationError::WrongFileSystem { expected: id, found });
        }
    }
    if statement.signers(|key| *key == superuser)?.is_empty() {
        let whose = "its superuser".to_owned();
        let (what, signed_by) = (Statement::WHAT, Vec::new());
        return Err(SignatureError::TooFew { what, whose, needed: 1, signed_by }.into());
    }
    Ok(statement.value.reason)
}

/// Looks for a certificate in directories, under the names `ID` and `ID.revoked`. Returns it, or notices for
/// people about invalid ones.
///
/// # Errors
/// [`Unreadable`]: a directory cannot be read, so its content is unknown.
pub fn revoked(id: Digest, directories: &[PathBuf]) -> Result<Result<Revoked, Vec<String>>, Unreadable> {
    let mut notices = Vec::new();
    for directory in directories {
        for (path, certificate) in certificates(directory, ReleaseId(id))? {
            match verify(id, &certificate) {
                Ok(reason) => return Ok(Ok(Revoked { file_system: id, reason, found: path, certificate })),
                Err(error) => {
                    notices
                        .push(format!("{}: a false revocation, which is ignored: {error}", path.display()));
                }
            }
        }
    }
    Ok(Err(notices))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::SigningKey;

    fn certificate(superuser: &SigningKey, of: Digest, by: &[&SigningKey]) -> Vec<u8> {
        let mut statement = Signed::unsigned(Statement { file_system: of, reason: "stolen".to_owned() });
        by.iter().for_each(|key| statement.sign(*key).expect("it signs"));
        form::write(&Revocation { superuser: superuser.public(), statement })
    }

    /// Proves: only certificates signed by the superuser of this very file system take effect, whichever
    /// directory they are in; invalid ones are reported.
    #[test]
    fn only_the_superuser_revokes() {
        let (superuser, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let id = superuser.public().file_system_id();
        let good = certificate(&superuser, id, &[&superuser]);
        assert_eq!(verify(id, &good), Ok("stolen".to_owned()));
        let elsewhere = other.public().file_system_id();
        for bad in [
            certificate(&other, id, &[&other]),
            certificate(&superuser, elsewhere, &[&superuser]),
            certificate(&superuser, id, &[]),
            certificate(&superuser, id, &[&other]),
            certificate(&superuser, id, &[&superuser, &other]),
            good[..good.len() - 1].to_vec(),
            [&good[..], b"x"].concat(),
            Vec::new(),
        ] {
            assert!(verify(id, &bad).is_err());
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(verify(id, &bad).is_err(), "byte {at} counts");
        }
        assert!(verify(elsewhere, &good).is_err());

        let folder = tempfile::tempdir().expect("a folder");
        let directories = [folder.path().to_owned()];
        assert_eq!(revoked(id, &directories).expect("readable"), Err(Vec::new()));
        std::fs::write(folder.path().join(id.to_string()), b"HF-revf nonsense").expect("written");
        assert_eq!(revoked(id, &directories).expect("readable").expect_err("false").len(), 1);
        std::fs::write(folder.path().join(format!("{id}.revoked")), &good).expect("written");
        let found = revoked(id, &directories).expect("readable").expect("revoked");
        assert!(found.to_string().contains("stolen") && found.certificate == good);
        assert!(revoked(id, &[folder.path().join("none")]).is_err());
    }
}
