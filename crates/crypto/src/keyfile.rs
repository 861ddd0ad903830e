//! Key files in OpenSSH format, so that a person's existing Ed25519 key works, passphrase included.
//!
//! Text in, text out: the caller reads and writes the files (mode 0600).

use crate::{PublicKey, SigningKey};
use ssh_key::private::{Ed25519Keypair, Ed25519PrivateKey, KeypairData};

/// Why a key could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// The text is no OpenSSH private (or public) key.
    #[error("not an OpenSSH key: {0}")]
    Malformed(String),
    /// A key of another algorithm.
    #[error(
        "the key is {0}; Holdfast uses Ed25519 keys (make one with `holdfast keygen` or `ssh-keygen -t ed25519`)"
    )]
    WrongAlgorithm(String),
    /// Encrypted, and no passphrase was given.
    #[error("the key is protected by a passphrase")]
    PassphraseNeeded,
    /// Encrypted, and the passphrase did not open it.
    #[error("the passphrase does not open this key")]
    WrongPassphrase,
}

/// Reads an OpenSSH private key (`-----BEGIN OPENSSH PRIVATE KEY-----`).
///
/// # Errors
/// See [`KeyFileError`].
pub fn parse_private(text: &str, passphrase: Option<&str>) -> Result<SigningKey, KeyFileError> {
    if let Some(why) = other_kind_of_file(text) {
        return Err(KeyFileError::Malformed(why.to_owned()));
    }
    let key = ssh_key::PrivateKey::from_openssh(text).map_err(refused)?;
    if key.algorithm() != ssh_key::Algorithm::Ed25519 {
        return Err(KeyFileError::WrongAlgorithm(key.algorithm().to_string()));
    }
    let key = if key.is_encrypted() {
        let passphrase = passphrase.ok_or(KeyFileError::PassphraseNeeded)?;
        key.decrypt(passphrase).map_err(|error| match error {
            ssh_key::Error::Crypto => KeyFileError::WrongPassphrase,
            other => refused(other),
        })?
    } else {
        key
    };
    match key.key_data() {
        KeypairData::Ed25519(pair) => Ok(SigningKey::from_seed(&pair.private.to_bytes())),
        other => Err(KeyFileError::WrongAlgorithm(
            other.algorithm().map_or_else(|_| "of an unknown kind".to_owned(), |a| a.to_string()),
        )),
    }
}

/// The public half of an OpenSSH private key; it is readable without the passphrase.
///
/// # Errors
/// See [`KeyFileError`].
pub fn public_half(text: &str) -> Result<PublicKey, KeyFileError> {
    let key = ssh_key::PrivateKey::from_openssh(text).map_err(refused)?;
    ed25519(key.public_key().key_data())
}

/// The fingerprint, `SHA256:...`, as `ssh-add -l` shows it.
pub fn fingerprint(key: &PublicKey) -> String {
    let data = ssh_key::public::KeyData::Ed25519(ssh_key::public::Ed25519PublicKey(key.0));
    data.fingerprint(ssh_key::HashAlg::Sha256).to_string()
}

fn ed25519(data: &ssh_key::public::KeyData) -> Result<PublicKey, KeyFileError> {
    match data {
        ssh_key::public::KeyData::Ed25519(key) => Ok(PublicKey(key.0)),
        other => Err(KeyFileError::WrongAlgorithm(other.algorithm().to_string())),
    }
}

/// Converts the parser's error: it supports few algorithms, so an unsupported one does not mean damage.
fn refused(error: ssh_key::Error) -> KeyFileError {
    match error {
        ssh_key::Error::AlgorithmUnknown | ssh_key::Error::AlgorithmUnsupported { .. } => {
            KeyFileError::WrongAlgorithm("of another algorithm".to_owned())
        }
        other => KeyFileError::Malformed(other.to_string()),
    }
}

/// A description of files that people give by mistake.
fn other_kind_of_file(text: &str) -> Option<&'static str> {
    let start = text.trim_start();
    if start.starts_with("ssh-") || start.starts_with("ecdsa-") || start.starts_with("sk-") {
        Some("this is a public key; the private one is in the file without `.pub`")
    } else if start.starts_with("-----BEGIN ") && !start.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----") {
        Some("this is a PEM file of another kind; `ssh-keygen -p -f FILE` rewrites SSH keys as OpenSSH files")
    } else if start.starts_with("PuTTY-User-Key-File") {
        Some("this is a PuTTY key; PuTTYgen can export it as an OpenSSH key")
    } else {
        None
    }
}

/// Writes an OpenSSH private key. With a passphrase it is encrypted (bcrypt-pbkdf, AES-256-CTR) using
/// `entropy` for the salt and check word.
///
/// # Errors
/// [`KeyFileError::Malformed`] if the comment cannot be written.
pub fn format_private(
    key: &SigningKey,
    comment: &str,
    passphrase: Option<(&str, [u8; 16], u32)>,
) -> Result<zeroize::Zeroizing<String>, KeyFileError> {
    let malformed = |e: ssh_key::Error| KeyFileError::Malformed(e.to_string());
    let pair = Ed25519Keypair::from(Ed25519PrivateKey::from_bytes(&key.seed()));
    let private = ssh_key::PrivateKey::new(KeypairData::Ed25519(pair), comment).map_err(malformed)?;
    let private = match passphrase {
        None => private,
        Some((passphrase, salt, check)) => {
            let kdf = ssh_key::Kdf::Bcrypt { salt: salt.to_vec(), rounds: 16 };
            private.encrypt_with(ssh_key::Cipher::Aes256Ctr, kdf, check, passphrase).map_err(malformed)?
        }
    };
    private.to_openssh(ssh_key::LineEnding::LF).map_err(malformed)
}

/// The one-line form, `ssh-ed25519 AAAA... comment`, as printed by `ssh-keygen -y`.
pub fn format_public(key: &PublicKey, comment: &str) -> String {
    let data = ssh_key::public::KeyData::Ed25519(ssh_key::public::Ed25519PublicKey(key.0));
    ssh_key::PublicKey::new(data, comment).to_openssh().expect("an Ed25519 key has an OpenSSH form")
}

/// Reads the one-line form.
///
/// # Errors
/// See [`KeyFileError`].
pub fn parse_public(text: &str) -> Result<PublicKey, KeyFileError> {
    let key = ssh_key::PublicKey::from_openssh(text.trim()).map_err(refused)?;
    ed25519(key.key_data())
}
