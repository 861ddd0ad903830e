//! The messages of the SSH agent protocol (draft-ietf-sshm-ssh-agent) that Holdfast uses: listing keys, and signing
//! with one of them.
//!
//! Bytes in, bytes out: the caller has the socket. An agent is trusted with the key, but not to be free of
//! bugs: lengths in its answers are checked, and a signature is returned only if it verifies.

use crate::{PublicKey, SignError, Signature, keyfile};
use ssh_key::sha2::{Digest, Sha256};
use std::io::{self, Read, Write};

/// Longest answer that is read, as in OpenSSH.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;
/// How long to wait for an agent, which may have to ask a person.
pub const PATIENCE_SECONDS: u64 = 30;

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
const ED25519: &[u8] = b"ssh-ed25519";

/// A key that an agent holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The key, if it is an Ed25519 one.
    pub key: Option<PublicKey>,
    /// Its algorithm as SSH names it.
    pub algorithm: String,
    /// Its fingerprint, `SHA256:...`, as `ssh-add -l` shows it.
    pub fingerprint: String,
    /// The comment that its owner gave it.
    pub comment: String,
}

/// An answer that no agent gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it does not speak the SSH agent protocol")]
pub struct NotAnAgent;

/// A request for the list of keys.
pub fn identities_request() -> Vec<u8> {
    message(&[REQUEST_IDENTITIES])
}

/// A request for a signature of `key` over `bytes`.
pub fn signature_request(key: &PublicKey, bytes: &[u8]) -> Vec<u8> {
    let mut body = vec![SIGN_REQUEST];
    put(&mut body, &blob(key));
    put(&mut body, bytes);
    body.extend_from_slice(&0u32.to_be_bytes());
    message(&body)
}

/// Reads the answer to [`identities_request`], without its length.
///
/// # Errors
/// [`NotAnAgent`].
pub fn identities(answer: &[u8]) -> Result<Vec<Identity>, NotAnAgent> {
    let Some((&IDENTITIES_ANSWER, mut rest)) = answer.split_first() else { return Err(NotAnAgent) };
    let count = number(&mut rest)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let blob = string(&mut rest)?;
        let comment = String::from_utf8_lossy(string(&mut rest)?).into_owned();
        let mut fields = blob;
        let algorithm = string(&mut fields)?;
        let key = match algorithm {
            ED25519 => Some(PublicKey(string(&mut fields)?.try_into().map_err(|_| NotAnAgent)?)),
            _ => None,
        };
        let algorithm = String::from_utf8_lossy(algorithm).into_owned();
        let fingerprint = ssh_key::Fingerprint::Sha256(Sha256::digest(blob).into()).to_string();
        found.push(Identity { key, algorithm, fingerprint, comment });
    }
    Ok(found)
}

/// Decodes the answer to [`signature_request`] for the same key and bytes, without its length. `None`: the
/// agent refused.
///
/// # Errors
/// [`NotAnAgent`], also for a signature that is not this key's.
pub fn signature(answer: &[u8], key: &PublicKey, bytes: &[u8]) -> Result<Option<Signature>, NotAnAgent> {
    match answer.split_first() {
        Some((&FAILURE, _)) => Ok(None),
        Some((&SIGN_RESPONSE, mut rest)) => {
            let mut fields = string(&mut rest)?;
            if string(&mut fields)? != ED25519 {
                return Err(NotAnAgent);
            }
            let signature = Signature(string(&mut fields)?.try_into().map_err(|_| NotAnAgent)?);
            if key.verify_message(bytes, &signature) { Ok(Some(signature)) } else { Err(NotAnAgent) }
        }
        _ => Err(NotAnAgent),
    }
}

/// A description of the keys that an agent holds.
pub fn list(held: &[Identity]) -> String {
    let words = |identity: &Identity| {
        format!("{} {} ({})", identity.fingerprint, identity.comment, identity.algorithm)
    };
    match held {
        [] => "it holds no keys".to_owned(),
        held => format!("it holds {}", held.iter().map(words).collect::<Vec<_>>().join(", ")),
    }
}

/// Sends a request over a connection, and reads the reply without its length. Waits as long as the connection does.
///
/// # Errors
/// The connection failed; the text says how the agent misbehaved.
pub fn converse(connection: &mut (impl Read + Write), question: &[u8]) -> io::Result<Vec<u8>> {
    let mut exchange = || {
        connection.write_all(question)?;
        let mut length = [0; 4];
        connection.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::other(NotAnAgent));
        }
        let mut answer = vec![0; length];
        connection.read_exact(&mut answer)?;
        Ok(answer)
    };
    exchange().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!("no answer within {PATIENCE_SECONDS} s")),
        io::ErrorKind::UnexpectedEof => io::Error::other("it hung up"),
        _ => error,
    })
}

/// Sends a request to an agent and returns its reply.
pub type AgentExchange<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<u8>, String>;

/// Has the agent called `name` sign, with `ask` to bring it questions.
///
/// # Errors
/// See [`SignError`].
pub fn sign(
    name: &str,
    public: &PublicKey,
    message: &[u8],
    ask: AgentExchange<'_>,
) -> Result<Signature, SignError> {
    let away = |why: String| SignError::Away(format!("{name}: {why}"));
    let answer = ask(&signature_request(public, message)).map_err(away)?;
    if let Some(signature) = signature(&answer, public, message).map_err(|error| away(error.to_string()))? {
        return Ok(signature);
    }
    let fingerprint = keyfile::fingerprint(public);
    let answer = ask(&identities_request()).map_err(away)?;
    let held = identities(&answer).map_err(|error| away(error.to_string()))?;
    if held.iter().any(|identity| identity.key == Some(*public)) {
        Err(SignError::Refused(format!(
            "{name} holds the key {fingerprint} and refused to sign; it may ask for a confirmation that was not given, \
             or the key was added for certain hosts only"
        )))
    } else {
        Err(away(format!(
            "it no longer holds the key {fingerprint}; {}; `ssh-add KEYFILE` adds it",
            list(&held)
        )))
    }
}

fn blob(key: &PublicKey) -> Vec<u8> {
    let mut blob = Vec::new();
    put(&mut blob, ED25519);
    put(&mut blob, &key.0);
    blob
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    to.extend_from_slice(bytes);
}

fn message(body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    put(&mut message, body);
    message
}

fn number(from: &mut &[u8]) -> Result<u32, NotAnAgent> {
    let (number, rest) = from.split_first_chunk().ok_or(NotAnAgent)?;
    *from = rest;
    Ok(u32::from_be_bytes(*number))
}

fn string<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], NotAnAgent> {
    let length = number(from)? as usize;
    let (string, rest) = from.split_at_checked(length).ok_or(NotAnAgent)?;
    *from = rest;
    Ok(string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SigningKey;

    fn answer_of(identities: &[(&[u8], &str)]) -> Vec<u8> {
        let mut answer = vec![IDENTITIES_ANSWER];
        answer.extend_from_slice(&(identities.len() as u32).to_be_bytes());
        for (blob, comment) in identities {
            put(&mut answer, blob);
            put(&mut answer, comment.as_bytes());
        }
        answer
    }

    fn signed(key: &SigningKey, bytes: &[u8]) -> Vec<u8> {
        let mut fields = Vec::new();
        put(&mut fields, ED25519);
        put(&mut fields, &key.sign_message(bytes).0);
        let mut answer = vec![SIGN_RESPONSE];
        put(&mut answer, &fields);
        answer
    }

    /// Proves: keys of every kind are listed under the names that `ssh-add -l` shows, and only Ed25519 ones can
    /// be used.
    #[test]
    fn keys_are_listed() {
        let key = SigningKey::from_seed(&[1; 32]).public();
        let mut other = Vec::new();
        put(&mut other, b"ssh-rsa");
        put(&mut other, &[1, 0, 1]);
        let found =
            identities(&answer_of(&[(&blob(&key), "anna@laptop"), (&other, "old")])).expect("an answer");
        assert_eq!(found[0].key, Some(key));
        assert_eq!(found[0].comment, "anna@laptop");
        assert_eq!(found[0].fingerprint, crate::keyfile::fingerprint(&key));
        assert_eq!((found[1].key, found[1].algorithm.as_str()), (None, "ssh-rsa"));
    }

    /// Proves: only a correct signature of the right key is accepted; a refusal is distinguished from
    /// malformed answers.
    #[test]
    fn signatures_are_checked() {
        let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
        let right = signature(&signed(&key, b"text"), &key.public(), b"text");
        assert_eq!(right, Ok(Some(key.sign_message(b"text"))));
        assert_eq!(signature(&signed(&key, b"another"), &key.public(), b"text"), Err(NotAnAgent));
        assert_eq!(signature(&signed(&other, b"text"), &key.public(), b"text"), Err(NotAnAgent));
        assert_eq!(signature(&[FAILURE], &key.public(), b"text"), Ok(None));
        assert_eq!(signature(&[], &key.public(), b"text"), Err(NotAnAgent));
    }

    /// Proves: an answer that is truncated anywhere, or has a wrong length, is refused and nothing panics.
    #[test]
    fn cut_answers_are_refused() {
        let key = SigningKey::from_seed(&[1; 32]);
        let list = answer_of(&[(&blob(&key.public()), "comment")]);
        let answer = signed(&key, b"text");
        for end in 0..list.len() {
            assert_eq!(identities(&list[..end]), Err(NotAnAgent), "{end}");
        }
        for end in 0..answer.len() {
            assert_eq!(signature(&answer[..end], &key.public(), b"text"), Err(NotAnAgent), "{end}");
        }
        let mut lie = list;
        lie[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(identities(&lie), Err(NotAnAgent));
    }
}
