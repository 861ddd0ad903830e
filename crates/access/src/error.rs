//! The errors, with messages that say what is affected and what to do.

use crate::Principal;
use crate::credential::CredentialId;

/// Why something was refused. Each is caused by the requester, except [`AccessError::TooManyIssuers`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// A name breaks the rule of [`crate::Name`].
    #[error("{0:?} is no name: use 1 to 64 of the letters A-Z and a-z, digits, and . _ - + @")]
    BadName(String),
    /// A text breaks the rule of [`crate::Text`].
    #[error("a setting's value is at most 256 bytes without control characters")]
    BadText,
    /// The terms of a predicate are not one tree.
    #[error("the predicate is malformed: {0}")]
    BadPredicate(&'static str),
    /// The ranges of a restriction are not canonical.
    #[error("the objects of a restriction must be at most 64 ranges in order that neither overlap nor touch")]
    BadScope,
    /// A scope restricts to nothing.
    #[error("the restrictions leave nothing that could be done")]
    EmptyScope,
    /// A principal that must not outlive the machine's run.
    #[error("{0} cannot be an owner or stand in an ACL: name the user, key or program behind it")]
    NotStorable(Principal),
    /// The ACL would be too long.
    #[error("the ACL has 64 entries already: put the principals into a group and list that")]
    AclFull,
    /// The bytes are no credential, or the text is no principal.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The kind of value that was expected.
        what: &'static str,
        /// Why it is no such value, in words.
        why: String,
    },
    /// The issuer of a signed credential is not a key, or of a spoken one not the speaker.
    #[error("the credential is issued by {issuer}, who did not say it")]
    NotTheirs {
        /// The issuer that the credential names.
        issuer: Principal,
    },
    /// The signature does not match.
    #[error("the signature on the credential is not by {0}")]
    BadSignature(Principal),
    /// Too many credentials held for one process.
    #[error("256 credentials are held for this process already: drop some that are no longer needed")]
    TooManyCredentials,
    /// Too many issuers or serials ended.
    #[error("too many revocations: end all serials before a number (Before) instead of one by one")]
    TooManyIssuers,
    /// The proof uses a credential that was not presented.
    #[error("the proof uses credential {0}, which was not heard")]
    UnknownCredential(CredentialId),
    /// The credential was ended by its issuer, or its issuer was a process that has ended.
    #[error("credential {serial} of {issuer} was revoked: ask them for a new one")]
    Revoked {
        /// The issuer of the credential.
        issuer: Principal,
        /// The serial of the credential.
        serial: u64,
    },
    /// The credential's time is over.
    #[error("credential {serial} of {issuer} has expired: ask them for a new one")]
    Expired {
        /// The issuer of the credential.
        issuer: Principal,
        /// The serial of the credential.
        serial: u64,
    },
    /// The proof is no proof.
    #[error("step {step} of the proof does not follow: {why}")]
    DoesNotFollow {
        /// The step of the proof, from 0.
        step: usize,
        /// The premise of its rule that failed.
        why: &'static str,
    },
    /// The proof has no step, or more than [`crate::STEPS_MAX`].
    #[error("a proof has 1 to 64 steps")]
    BadLength,
    /// The proof is about another delegate than the process.
    #[error("the proof is about {0}, not about the process that brought it")]
    NotAboutYou(Principal),
    /// The alias table is full.
    #[error("the alias table has 64 entries already: remove one that is no longer needed")]
    TooManyAliases,
    /// The table has no such entry.
    #[error("there is no alias at index {0}")]
    NoSuchAlias(u16),
    /// The process of the table has ended.
    #[error("the process has ended")]
    Ended,
}
