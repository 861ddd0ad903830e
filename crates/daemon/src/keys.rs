//! Keys: reading key files safely, making new ones, and keys in an SSH agent.
//!
//! A private key that other users of this machine can read is refused, as ssh does. A passphrase is read from
//! the terminal or from the file that `HOLDFAST_PASSPHRASE_FILE` names, never from the command line or an
//! environment variable, where other processes could read it.

mod agent;

pub use agent::{Agent, AgentKey};

use holdfast_client::processes::{KeySource, Processes};
use holdfast_crypto::keyfile::{self, KeyFileError};
use holdfast_crypto::{KeyHolder, PublicKey, SigningKey};
use holdfast_failure::{Exit, Failure, Outcome};
use std::fs::Permissions;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Names the file that holds a passphrase.
pub const PASSPHRASE_FILE: &str = "HOLDFAST_PASSPHRASE_FILE";
/// Most bytes of a key file.
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;

/// A key to sign with.
pub enum Key {
    /// This process has it.
    Here(SigningKey),
    /// An SSH agent has it.
    Kept(AgentKey),
    /// It is in a pipe, unread.
    Handed(KeySource),
}

impl Key {
    /// The public half.
    pub fn public(&self) -> PublicKey {
        match self {
            Key::Here(key) => key.public(),
            Key::Kept(key) => key.public(),
            Key::Handed(source) => source.public(),
        }
    }

    /// Converts the key into a form that another process can sign with; this process forgets the key.
    ///
    /// # Errors
    /// The system cannot create a pipe.
    pub fn into_source(self) -> Outcome<KeySource> {
        match self {
            Key::Here(key) => KeySource::of(&key).map_err(|error| {
                Failure::new(Exit::System, format!("the key cannot be handed over: {error}"))
            }),
            Key::Kept(key) => Ok(KeySource::Agent { socket: key.socket().to_owned(), public: key.public() }),
            Key::Handed(source) => Ok(source),
        }
    }

    /// Starts processes that sign with the key and speak with servers; this process forgets the key.
    ///
    /// # Errors
    /// The system cannot create sandboxes.
    pub fn into_processes(self) -> Outcome<Arc<Processes>> {
        Ok(Processes::start(self.into_source()?)?)
    }

    /// Makes a signer in this process, for work that does not speak with a server.
    ///
    /// # Errors
    /// The key was handed to another process.
    pub fn into_holder(self) -> Outcome<Arc<dyn KeyHolder>> {
        match self {
            Key::Here(key) => Ok(Arc::new(key)),
            Key::Kept(key) => Ok(Arc::new(key)),
            Key::Handed(_) => {
                Err(Failure::new(Exit::Internal, "a key that was handed on is to be used here"))
            }
        }
    }
}

/// The processes of a key. They are started on the first call, because a command that asks a daemon does not
/// need them.
///
/// # Errors
/// See [`Key::into_processes`].
pub fn started<'a>(
    key: &mut Option<Key>,
    processes: &'a mut Option<Arc<Processes>>,
) -> Outcome<&'a Arc<Processes>> {
    match (key.take(), processes) {
        (Some(key), processes) => Ok(processes.insert(key.into_processes()?)),
        (None, Some(processes)) => Ok(processes),
        (None, None) => Err(Failure::new(Exit::Internal, "a key was lost on its way")),
    }
}

/// The key that an argument names: `agent:FINGERPRINT`, `agent:COMMENT`, a public key file (an agent has the
/// private half) or a private key file. If a private key file has a passphrase and an agent has the key, the
/// agent is used.
///
/// # Errors
/// The key is missing, unreadable, readable by others, not an Ed25519 key, or not in the agent; or the
/// passphrase is wrong.
pub fn read(argument: &Path) -> Outcome<Key> {
    if let Some(wanted) = in_agent(argument) {
        return Agent::of_environment()?.find(wanted).map(Key::Kept);
    }
    let text = read_bounded(argument)?;
    if text.trim_start().starts_with("ssh-") {
        let name = argument.display();
        let public = keyfile::parse_public(&text)
            .map_err(|error| Failure::new(Exit::NoInput, format!("{name}: {error}")))?;
        let key = Agent::of_environment().and_then(|agent| agent.key(public));
        return key.map(Key::Kept).map_err(|failure| {
            let message = format!("{name} is the public half of a key: {}", failure.message);
            let hint = match failure.hint {
                Some(hint) => format!("name the private key file; or {hint}"),
                None => "name the private key file".to_owned(),
            };
            Failure::new(failure.code, message).hint(hint)
        });
    }
    // If no agent answers, the passphrase is asked for.
    if let Err(KeyFileError::PassphraseNeeded) = keyfile::parse_private(&text, None)
        && let Ok(public) = keyfile::public_half(&text)
        && let Ok(key) = Agent::of_environment().and_then(|agent| agent.key(public))
    {
        return Ok(Key::Kept(key));
    }
    read_private(argument).map(Key::Here)
}

/// The fingerprint or comment in an argument such as `agent:SHA256:...`.
pub fn in_agent(argument: &Path) -> Option<&str> {
    argument.to_str()?.strip_prefix("agent:")
}

/// Reads a private key file, asking for its passphrase if it has one.
fn read_private(path: &Path) -> Outcome<SigningKey> {
    let text = read_secret(path)?;
    let explain = |error: KeyFileError| {
        let code = match error {
            KeyFileError::PassphraseNeeded | KeyFileError::WrongPassphrase => Exit::NotAllowed,
            KeyFileError::Malformed(_) | KeyFileError::WrongAlgorithm(_) => Exit::NoInput,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    };
    match keyfile::parse_private(&text, None) {
        Err(KeyFileError::PassphraseNeeded) => {
            let passphrase = passphrase(&format!("Passphrase of {}: ", path.display()))?;
            keyfile::parse_private(&text, Some(&passphrase)).map_err(explain)
        }
        other => other.map_err(explain),
    }
}

/// A public key given as `ssh-ed25519 AAAA... comment`, or as a file that holds such a line (or a private
/// key).
///
/// # Errors
/// The text is neither of them, or the key is not an Ed25519 key.
pub fn read_public(argument: &str) -> Outcome<PublicKey> {
    let malformed = |error: KeyFileError| Failure::new(Exit::NoInput, format!("'{argument}': {error}"));
    if argument.trim_start().starts_with("ssh-") {
        return keyfile::parse_public(argument).map_err(malformed);
    }
    let path = Path::new(argument);
    let text = read_bounded(path)?;
    if text.contains("PRIVATE KEY") {
        return Err(Failure::new(Exit::NoInput, format!("{argument}: this is a private key"))
            .hint("ask its owner for the public line that `holdfast keygen` or `ssh-keygen -y` prints; never send private keys"));
    }
    keyfile::parse_public(&text).map_err(malformed)
}

/// The public half of a key that is named in any way: a public key line, a file that contains one, or a
/// private key file, which is not decrypted for that.
///
/// # Errors
/// The text is none of them, or the key is not an Ed25519 key.
pub fn public_of(argument: &str) -> Outcome<PublicKey> {
    if argument.trim_start().starts_with("ssh-") {
        return read_public(argument);
    }
    let text = read_bounded(Path::new(argument))?;
    if text.contains("PRIVATE KEY") {
        return keyfile::public_half(&text)
            .map_err(|error| Failure::new(Exit::NoInput, format!("{argument}: {error}")));
    }
    read_public(argument)
}

/// Reads the passphrase from the file that the environment names, or from the terminal.
///
/// # Errors
/// There is neither.
pub fn passphrase(prompt: &str) -> Outcome<Zeroizing<String>> {
    if let Some(path) = std::env::var_os(PASSPHRASE_FILE) {
        let text = read_secret(Path::new(&path))?;
        return Ok(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()));
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(
            Exit::NotAllowed,
            "a passphrase is needed, and there is no terminal to ask on",
        )
        .hint(format!("put it into a file that only you can read and set {PASSPHRASE_FILE} to its name")));
    }
    rpassword::prompt_password(prompt)
        .map(Zeroizing::new)
        .map_err(|error| Failure::new(Exit::NoInput, format!("the passphrase cannot be read: {error}")))
}

/// Makes a new key from the system's randomness.
///
/// # Errors
/// The system has none.
pub fn generate() -> Outcome<SigningKey> {
    let mut seed = Zeroizing::new([0u8; 32]);
    random(&mut *seed)?;
    Ok(SigningKey::from_seed(&seed))
}

/// Writes a new private key file (mode 0600) and its public half beside it (`.pub`); never overwrites.
///
/// # Errors
/// Either exists, or cannot be written.
pub fn write_new(path: &Path, key: &SigningKey, comment: &str, passphrase: Option<&str>) -> Outcome<PathBuf> {
    let mut salt = [0u8; 16];
    let mut check = [0u8; 4];
    random(&mut salt)?;
    random(&mut check)?;
    let passphrase = passphrase.map(|text| (text, salt, u32::from_le_bytes(check)));
    let private = keyfile::format_private(key, comment, passphrase)
        .map_err(|error| Failure::new(Exit::Internal, error))?;
    let mut public_path = path.as_os_str().to_owned();
    public_path.push(".pub");
    let public_path = PathBuf::from(public_path);
    if public_path.exists() {
        return Err(exists(&public_path));
    }
    if path.exists() {
        // This happens if an earlier run was interrupted between the two files.
        let (private, public) = (path.display(), public_path.display());
        return Err(exists(path).hint(format!(
            "its public half, {public}, is missing; `ssh-keygen -y -f {private} > {public}` makes it"
        )));
    }
    create(path, 0o600, private.as_bytes())?;
    let public = format!("{}\n", keyfile::format_public(&key.public(), comment));
    create(&public_path, 0o644, public.as_bytes()).inspect_err(|_| {
        // The private key is removed again, so that it does not block the next attempt.
        let _ = std::fs::remove_file(path);
    })?;
    Ok(public_path)
}

/// Fills `bytes` from the system's randomness.
///
/// # Errors
/// The system has none.
pub fn random(bytes: &mut [u8]) -> Outcome {
    getrandom::fill(bytes)
        .map_err(|error| Failure::new(Exit::System, format!("the system has no randomness: {error}")))
}

fn exists(path: &Path) -> Failure {
    Failure::new(Exit::CannotCreate, format!("{}: exists already and is not overwritten", path.display()))
        .hint("choose another name, or move the old key away if you are sure that nobody needs it")
}

/// Creates a file that must not exist yet. It gets its name once all of it is durable: half a key would block
/// the next attempt.
///
/// # Errors
/// The file exists, or cannot be created.
pub fn create(path: &Path, mode: u32, bytes: &[u8]) -> Outcome {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let result = tempfile::Builder::new()
        .prefix(".unfinished-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            file.persist_noclobber(path)?;
            std::fs::File::open(folder)?.sync_all()
        });
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::new(Exit::CannotCreate, format!("{}: {error}", path.display())),
    })
}

/// Reads a file that only its owner may read.
///
/// # Errors
/// The file is missing, unreadable, too large, or readable by others.
pub fn read_secret(path: &Path) -> Outcome<Zeroizing<String>> {
    let text = read_bounded(path)?;
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))?;
    // A pipe or the like (`<(pass show key)`) has no protecting mode; the caller vouches for it.
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        let message = format!(
            "{}: others can read this secret (mode {:04o})",
            path.display(),
            metadata.mode() & 0o7777
        );
        return Err(Failure::new(Exit::NotAllowed, message)
            .hint(format!("if only you have read it until now: chmod 600 {}", path.display())));
    }
    Ok(text)
}

fn read_bounded(path: &Path) -> Outcome<Zeroizing<String>> {
    if path.as_os_str().is_empty() {
        return Err(Failure::new(Exit::Usage, "a key is named by an empty text; name its file"));
    }
    let failed = |why: String| Failure::new(Exit::NoInput, format!("{}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed("there is no such file".to_owned()),
        std::io::ErrorKind::PermissionDenied => failed("you may not read this file".to_owned()),
        _ => failed(error.to_string()),
    })?;
    let mut text = Zeroizing::new(String::new());
    file.take(KEY_FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(format!("cannot be read: {error}")))?;
    if text.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(failed("too large for a key file".to_owned()));
    }
    Ok(text)
}
