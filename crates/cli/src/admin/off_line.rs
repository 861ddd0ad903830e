//! Changes of the membership whose superuser key is off line: `--prepare`, `holdfast fs sign`, `holdfast fs
//! submit`.

use super::asking::ask;
use crate::args::{FsSign, FsSubmit};
use crate::output::{Format, clean, line};
use holdfast_client::admin::off_line::{FILE_BYTES_MAX, SigningRequest};
use holdfast_crypto::SignError;
use holdfast_daemon::control::Bytes;
use holdfast_daemon::keys;
use holdfast_daemon::membership::{Change, PrepareChange, SubmitChange, unusable_request};
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The report on a change in a file.
#[derive(Serialize)]
struct RequestOutput<'a> {
    file: &'a Path,
    file_system: String,
    address: &'a str,
    follows_version: u64,
    changes: &'a [String],
    directory: Option<&'a str>,
}

impl<'a> RequestOutput<'a> {
    fn of(file: &'a Path, request: &'a SigningRequest, changes: &'a [String]) -> RequestOutput<'a> {
        RequestOutput {
            file,
            file_system: request.change.file_system.to_string(),
            address: &request.url,
            follows_version: request.change.version,
            changes,
            directory: request.home.as_ref().map(|(_, name)| name.as_str()),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "File system {} ({}), after version {} of its membership:\n",
            self.address, self.file_system, self.follows_version
        );
        for change in self.changes {
            text += &format!("  - {change}\n");
        }
        if let Some(name) = self.directory {
            text += &format!("  - /{name} is made for them afterwards, if whoever submits it may\n");
        }
        clean(text.trim_end())
    }
}

/// `holdfast fs ... --prepare`
pub fn prepare(
    url: &str,
    key: &Path,
    change: Change,
    out: &Path,
    directories: &Directories,
    format: Format,
) -> Outcome {
    let Bytes(request) = ask(url, key, &PrepareChange { url: url.to_owned(), change }, directories)?;
    let parsed = SigningRequest::from_bytes(&request).map_err(|why| Failure::new(Exit::Internal, why))?;
    let changes = parsed.words();
    if changes.is_empty() {
        return Err(Failure::new(Exit::Failed, "that is so already: there is nothing to change"));
    }
    write_new(out, &request)?;
    format.print(&RequestOutput::of(out, &parsed, &changes), |told| {
        format!(
            "{}\n\nPrepared, and not in force. Where the superuser's key is:\n  holdfast fs sign {} --superuser KEY --out \
             SIGNED\nand then here, or on any device that stays a member:\n  holdfast fs submit SIGNED --key KEY",
            told.text(),
            out.display()
        )
    })
}

/// `holdfast fs sign`: needs no network.
pub fn sign(arguments: &FsSign, directories: &Directories, format: Format) -> Outcome {
    let mut request = read(&arguments.file)?;
    let id = request.change.file_system;
    let superuser = keys::read(&arguments.superuser)?;
    if superuser.public().file_system_id() != id {
        let message = format!("{}: not the superuser's key", arguments.superuser.display());
        let hint = "the file system's id is the digest of its superuser's key, so no other key can change its membership";
        return Err(Failure::new(Exit::NotAllowed, message).hint(hint));
    }
    let changes = request.words();
    if changes.is_empty() {
        return Err(Failure::new(Exit::Data, format!("{}: it changes nothing", arguments.file.display())));
    }
    let told = RequestOutput::of(&arguments.file, &request, &changes).text();
    if !arguments.yes {
        confirm(&told)?;
    }
    let state_dir = directories.state_of(&id, &superuser.public())?;
    make_private(&state_dir)?;
    let processes = superuser.into_processes()?;
    processes.begin(&state_dir, &id, None)?;
    request.sign(&*processes).map_err(|error| match error {
        SignError::Away(_) => Failure::new(Exit::Unavailable, error),
        SignError::Refused(_) => Failure::new(Exit::NotAllowed, error),
    })?;
    let bytes = request.to_bytes().map_err(|why| Failure::new(Exit::Internal, why))?;
    write_new(&arguments.out, &bytes)?;
    format.print(&RequestOutput::of(&arguments.out, &request, &changes), |told| {
        format!(
            "{}\n\nSigned. It comes into force with `holdfast fs submit {} --key KEY`, on any device that stays a \
             member, unless something else changes the membership before.",
            told.text(),
            arguments.out.display()
        )
    })
}

/// `holdfast fs submit`
pub fn submit(arguments: &FsSubmit, directories: &Directories, format: Format) -> Outcome {
    let request = read(&arguments.file)?;
    if request.signature.is_none() {
        let message = format!("{}: the superuser has not signed it", arguments.file.display());
        return Err(Failure::new(Exit::NotAllowed, message)
            .hint("`holdfast fs sign` does, on the machine that has the superuser's key"));
    }
    let bytes = request.to_bytes().map_err(|why| Failure::new(Exit::Internal, why))?;
    let request_to_submit = SubmitChange { signed: Bytes(bytes) };
    let done = ask(&request.url, &arguments.key, &request_to_submit, directories)?;
    format.print(&serde_json::json!({ "done": done }), |_| clean(&done))
}

fn read(path: &Path) -> Outcome<SigningRequest> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    SigningRequest::from_bytes(&bytes).map_err(|why| {
        let failure = unusable_request(why);
        Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> Outcome {
    let failed =
        |error: std::io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", path.display()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o644).open(path).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)
}

/// Prints what is to be signed, and asks for confirmation.
fn confirm(told: &str) -> Outcome {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::new(Exit::Usage, "nobody is there to say whether this is to be signed")
            .hint("--yes signs without asking; what it is:\n".to_owned() + told));
    }
    line(told)?;
    eprint!("\nSign this? yes or no: ");
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(|error| Failure::new(Exit::Io, error))?;
    match answer.trim() {
        "yes" | "y" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not signed")),
    }
}
