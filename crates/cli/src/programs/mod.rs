//! `holdfast program`: which programs may use which files.

mod acl;
pub mod args;
pub mod mounted;
pub mod subjects;
mod why;

use crate::output::Format;
use holdfast_daemon::keys::{self, Key};
use holdfast_daemon::paths::{Directories, make_shared};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::manifest::Manifest;
use holdfast_program_identity::{helper, launch};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use subjects::{hash, is_meant, who};

/// `holdfast program callers`
pub fn callers(arguments: &args::Callers) -> Outcome {
    holdfast_daemon::logging::to_stderr();
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
