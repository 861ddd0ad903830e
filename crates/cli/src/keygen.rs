//! `holdfast keygen`

use crate::args::Keygen;
use crate::output::Format;
use holdfast_crypto::keyfile;
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;

#[derive(Serialize)]
struct KeyOutput {
    private_key_file: std::path::PathBuf,
    public_key_file: std::path::PathBuf,
    public_key: String,
    file_system_id: String,
}

/// Makes a key, writes it, prints its public line.
pub fn run(arguments: &Keygen, format: Format) -> Outcome {
    let comment = match &arguments.comment {
        Some(comment) if comment.chars().any(char::is_control) => {
            return Err(Failure::new(Exit::Usage, "a comment has no control characters"));
        }
        Some(comment) => comment.clone(),
        None => default_comment(),
    };
    let passphrase = if arguments.passphrase { Some(new_passphrase()?) } else { None };
    let key = keys::generate()?;
    let public_key_file =
        keys::write_new(&arguments.out, &key, &comment, passphrase.as_ref().map(|text| text.as_str()))?;
    let made = KeyOutput {
        private_key_file: arguments.out.clone(),
        public_key_file,
        public_key: keyfile::format_public(&key.public(), &comment),
        file_system_id: key.public().file_system_id().to_string(),
    };
    format.print(&made, |made| made.public_key.clone())
}

fn new_passphrase() -> Outcome<zeroize::Zeroizing<String>> {
    let first = keys::passphrase("New passphrase: ")?;
    if first.is_empty() {
        return Err(Failure::new(Exit::Usage, "the passphrase is empty")
            .hint("leave --passphrase away to make a key without one"));
    }
    if std::env::var_os(keys::PASSPHRASE_FILE).is_none() && *keys::passphrase("Once more: ")? != *first {
        return Err(Failure::new(Exit::Usage, "the two passphrases differ; no key was made"));
    }
    Ok(first)
}

fn default_comment() -> String {
    let user = std::env::var("USER").unwrap_or_default();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |text: String| -> String { text.chars().filter(|c| c.is_ascii_graphic()).collect() };
    match (plain(user), plain(host)) {
        (user, host) if user.is_empty() => host,
        (user, host) => format!("{user}@{host}"),
    }
}
