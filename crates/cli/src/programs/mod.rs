//! Who may use what, on the command line: `holdfast program`, and `holdfast volume owner` and `credential`.

pub mod acl;
pub mod args;
pub mod credential;
pub mod owned;
mod owned_why;
mod session;
pub mod whom;
pub mod why;

use crate::control::{Client, Request};
use crate::exit::{Exit, Failure, Outcome};
use crate::keys::{self, Key};
use crate::output::Format;
use crate::paths::{Directories, make_shared};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_daemon::mounts::requests::MountRequest;
use holdfast_fuse::mountpoint;
use holdfast_program_identity::hashes::{self, Hashed};
use holdfast_program_identity::manifest::{self, Manifest};
use holdfast_program_identity::rules::Subject;
use holdfast_program_identity::{helper, launch};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file in a mount, as its process knows it.
pub struct MountedFile {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Its number.
    pub inode: u64,
    /// Where it is mounted.
    pub mount: PathBuf,
}

/// Finds a file's mount.
///
/// # Errors
/// It is not there, or in no mount of holdfast.
pub fn place(file: &Path) -> Outcome<MountedFile> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", file.display()));
    let path = file.canonicalize().map_err(failed)?;
    let inode = std::fs::metadata(&path).map_err(failed)?.ino();
    let mounts = mountpoint::mounted()?.into_iter().filter(|mount| path.starts_with(&mount.directory));
    let nearest = mounts.max_by_key(|mount| (mount.directory.as_os_str().len(), mount.id));
    match nearest {
        Some(mount) if mount.is_holdfast() => Ok(MountedFile { path, inode, mount: mount.directory }),
        _ => Err(Failure::new(Exit::MountPoint, format!("{}: is in no holdfast mount", path.display()))),
    }
}

/// Asks the daemon of a mount.
///
/// # Errors
/// What it answers, or that no process of this user serves it.
pub fn ask<R: Request<Any = MountRequest>>(
    mount: &Path,
    directories: &Directories,
    request: &R,
) -> Outcome<R::Reply> {
    for state_dir in directories.all_states()? {
        let Ok(Some(process)) = Client::connect(&state_dir) else { continue };
        match process.call(request) {
            Err(failure) if failure.code == Exit::MountPoint => {}
            other => return other,
        }
    }
    let message = format!("{}: no process of yours serves this mount", mount.display());
    Err(Failure::new(Exit::NotAllowed, message)
        .hint("whoever mounted it changes its rules; if it was mounted with --state, give the same"))
}

/// Hashes a program.
///
/// # Errors
/// It cannot be read.
pub fn hash(path: &Path) -> Outcome<Hashed> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display()));
    let mut hashed = File::open(path).and_then(|mut file| hashes::digest_of(&mut file)).map_err(failed)?;
    let real = path.canonicalize().map_err(failed)?;
    hashed.interpreter = hashed.interpreter.or_else(|| hashes::interpreter_by_name(&real.to_string_lossy()));
    Ok(hashed)
}

/// Whom a text names; with the hash and the path of a program that is there.
///
/// # Errors
/// It names nobody, or what cannot be read.
pub fn who(text: &str) -> Outcome<(Subject, Option<Hashed>, String)> {
    let wrong = |what: &str| {
        Failure::new(Exit::Usage, format!("'{text}' {what}"))
            .hint("name programs as prog:PATH, hash:HEX, pkg:KEYFILE/NAME or any")
    };
    if text == "any" {
        return Ok((Subject::Anybody, None, String::new()));
    }
    match text.split_once(':') {
        Some(("prog", path)) => {
            let path = Path::new(path);
            let hashed = hash(path)?;
            let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let most = holdfast_program_identity::rules::TEXT_BYTES_MAX / char::MAX.len_utf8();
            let hint = real.to_string_lossy().chars().take(most).collect();
            Ok((Subject::Program(hashed.digest), Some(hashed), hint))
        }
        Some(("hash", hex)) => {
            let digest = Digest::from_hex(hex).ok_or_else(|| wrong("is no hash: 64 hexadecimal digits"))?;
            Ok((Subject::Program(digest), None, String::new()))
        }
        Some(("pkg", package)) => {
            let (key, name) = package.rsplit_once('/').ok_or_else(|| wrong("names no package"))?;
            let key = keys::read_public(key)?.0;
            Ok((Subject::Package { key, name: name.to_owned() }, None, String::new()))
        }
        _ => Err(wrong("names nobody")),
    }
}

/// Whether an executable is the one that a text names.
fn is_meant(who: &Subject, digest: &Digest) -> bool {
    match who {
        Subject::Program(wanted) => wanted == digest,
        Subject::Package { key, name } => {
            manifest::lists(&manifest::directories(), &PublicKey(*key), name, digest)
        }
        Subject::Anybody => true,
    }
}

/// `holdfast program callers`
pub fn callers(arguments: &args::Callers) -> Outcome {
    crate::logging::to_stderr();
    if let Some(folder) = arguments.socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_shared(folder)?;
    }
    let ready = || tracing::info!(socket = %arguments.socket.display(), "identifying programs");
    helper::serve(&arguments.socket, ready).map_err(|error| {
        let failure = Failure::new(Exit::System, format!("programs cannot be identified: {error}"));
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => failure.hint("it must run as root"),
            std::io::ErrorKind::AddrInUse => failure.hint("another helper runs already"),
            _ => failure,
        }
    })
}

/// `holdfast program run`
pub fn run(arguments: &args::Run) -> Outcome {
    let path = Path::new(&arguments.program[0]);
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display()));
    if path.components().count() < 2 {
        return Err(Failure::new(Exit::Usage, format!("{}: give the whole path", path.display()))
            .hint("which program a bare name means depends on the environment"));
    }
    let program = launch::prepare(path).map_err(failed)?;
    if let Some(text) = &arguments.expected {
        let (expected, ..) = who(text)?;
        if !is_meant(&expected, &program.hashed.digest) {
            let message =
                format!("{} is hash:{}, which is not {text}", path.display(), program.hashed.digest);
            return Err(Failure::new(Exit::NotAllowed, message).hint("it was not started"));
        }
    }
    let _ =
        writeln!(std::io::stderr(), "holdfast: {} runs as hash:{}", path.display(), program.hashed.digest);
    let untold = |error: &std::io::Error| {
        let _ = writeln!(
            std::io::stderr(),
            "holdfast: no helper knows that it was started clean ({}: {error}); rules without +plain refuse it",
            arguments.callers.display()
        );
    };
    Err(failed(program.start(arguments.program.clone(), &arguments.callers, untold)))
}

/// What `holdfast program show` prints as JSON.
#[derive(Serialize)]
struct ProgramOutput {
    path: PathBuf,
    hash: String,
    interpreter: Option<&'static str>,
}

/// `holdfast program`
pub fn program(arguments: &args::Program, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        args::ProgramCommand::Acl(arguments) => acl::run(arguments, directories, format),
        args::ProgramCommand::Why(arguments) => why::run(arguments, directories, format),
        args::ProgramCommand::Run(arguments) => run(arguments),
        args::ProgramCommand::Callers(arguments) => callers(arguments),
        args::ProgramCommand::Sign(sign) => sign_manifest(sign, format),
        args::ProgramCommand::Show(show) => {
            let mut shown = Vec::new();
            for path in &show.programs {
                let hashed = hash(path)?;
                let hash = format!("hash:{}", hashed.digest);
                shown.push(ProgramOutput { path: path.clone(), hash, interpreter: hashed.interpreter });
            }
            format.print(&shown, |shown| {
                let line = |one: &ProgramOutput| match one.interpreter {
                    Some(why) => format!("{} {} (an interpreter: {why})", one.hash, one.path.display()),
                    None => format!("{} {}", one.hash, one.path.display()),
                };
                shown.iter().map(line).collect::<Vec<_>>().join("\n")
            })
        }
    }
}

fn sign_manifest(arguments: &args::ProgramSign, format: Format) -> Outcome {
    let Key::Here(key) = keys::read(&arguments.key)? else {
        return Err(Failure::new(
            Exit::Usage,
            "manifests are signed with a key in a file, not one in an agent",
        ));
    };
    if arguments.name.is_empty() || arguments.name.contains('/') {
        return Err(Failure::new(Exit::Usage, "the name of a package is not empty and has no /"));
    }
    let mut listed = Manifest { name: arguments.name.clone(), programs: Default::default() };
    for path in &arguments.programs {
        listed.programs.insert(hash(path)?.digest, path.to_string_lossy().into_owned());
    }
    let failed = |error: std::io::Error| {
        Failure::new(Exit::CannotCreate, format!("{}: {error}", arguments.out.display()))
    };
    let mut file =
        File::options().write(true).create_new(true).mode(0o644).open(&arguments.out).map_err(failed)?;
    file.write_all(&listed.sign(&key)).and_then(|()| file.sync_all()).map_err(failed)?;
    let programs: Vec<String> = listed.programs.keys().map(|digest| format!("hash:{digest}")).collect();
    format.print(&programs, |programs| {
        format!("{} lists {} of {}", arguments.out.display(), programs.join(", "), arguments.name)
    })
}
