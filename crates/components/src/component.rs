//! A component from inside: how a program becomes one, and what it finds there.

use crate::channel::packet::{self, Patience};
use crate::error::{ComponentError, During, Result};
use crate::kernel;
use crate::ports::{ComponentMessage, Ports};
use crate::sandbox::{self, StartArguments, Wall};
use crate::selfcheck;
use crate::spawn::{ARGUMENT, REGIONS};
use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long a component waits for its supervisor to accept its first message.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a component gets when it starts.
pub struct Context {
    /// The name it was started under.
    pub name: String,
    /// Its ports, regions and files.
    pub ports: Arc<Ports>,
    /// The configuration from the plan.
    pub configuration: Vec<u8>,
    /// Number of this run of the supervisor's components, different for every run.
    pub run: u64,
}

/// A component's code. It runs in its sandbox, on its first thread.
pub type Main = fn(Context) -> ExitCode;

/// If this process was started as a component, enters the sandbox, runs the component, and returns how it
/// ended. To be called first in `main`, before there are threads, open files or parsed arguments.
pub fn run_if_component(table: &[(&str, Main)]) -> Option<ExitCode> {
    // Arguments of other commands need not be text.
    let mut arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let name = arguments.next().unwrap_or_default();
    let argument = arguments.next().unwrap_or_default();
    let control = match kernel::inherited(kernel::CONTROL) {
        Ok(control) => control,
        Err(_) => {
            eprintln!("{ARGUMENT} is how this program starts parts of itself; it is not a command");
            return Some(ExitCode::from(2));
        }
    };
    if name == REGIONS {
        return Some(match make_mounts(&control, &argument) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        });
    }
    let own: &[(&str, Main)] = &[(selfcheck::PROBE, selfcheck::probe)];
    let main = own.iter().chain(table).find(|(known, _)| *known == name).map(|(_, main)| *main);
    Some(match begin(name, &argument, control, main) {
        Ok((context, main)) => main(context),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn begin(name: String, argument: &str, control: OwnedFd, main: Option<Main>) -> Result<(Context, Main)> {
    let say = |word: &ComponentMessage, files: &[OwnedFd]| {
        let bytes = borsh::to_vec(word).expect("a vector takes everything");
        packet::send(control.as_fd(), &[&bytes], &packet::borrowed(files), Patience::of(PATIENCE))
            .map_err(|_| ComponentError::Disconnected("control".to_owned()))
    };
    let prepared = || -> Result<(OwnedFd, Vec<Wall>, Main)> {
        let main = main.ok_or_else(|| ComponentError::NoSuchComponent(name.clone()))?;
        let arguments = StartArguments::from_argument(argument)
            .ok_or_else(|| ComponentError::Plan("a component's argument is not orders".to_owned()))?;
        let (listener, lacking) = sandbox::enter(&arguments)?;
        Ok((listener, lacking, main))
    };
    let (listener, lacking, main) = match prepared() {
        Ok(prepared) => prepared,
        Err(error) => {
            say(&ComponentMessage::Failed(error.to_string()), &[])?;
            return Err(error);
        }
    };
    // The listener is sent away and no copy stays: no process may answer for its own violations.
    say(&ComponentMessage::Guarded { lacking }, std::slice::from_ref(&listener))?;
    drop(listener);
    let ports = Ports::new(Some(control));
    let (configuration, run) = ports.wait_for_begin()?;
    Ok((Context { name, ports, configuration, run }, main))
}

/// Makes the two mounts of regions, in the namespaces this process was started in, and hands them over.
fn make_mounts(control: &OwnedFd, bytes_max: &str) -> Result<()> {
    let what = "making mounts for regions";
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).during(what)?;
    for (key, value) in [("size", bytes_max), ("mode", "0700"), ("nr_inodes", "65536")] {
        fsconfig_set_string(&context, key, value).during(what)?;
    }
    fsconfig_create(&context).during(what)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).during(what)?;
    // Before Linux 6.15 only mounted file systems can be copied. Any existing directory will do, in this
    // process's own mount namespace, which ends with it. The copies are mounted nowhere.
    move_mount(&made, "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).during(what)?;
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = || open_tree(&made, "", flags).during("copying the mount for regions");
    let (writable, readable) = (copy()?, copy()?);
    kernel::make_mount_read_only(readable.as_fd()).during("making a mount read-only")?;
    let files = [writable.as_fd(), readable.as_fd()];
    packet::send(control.as_fd(), &[b"mounts"], &files, Patience::of(PATIENCE))
        .map_err(|_| ComponentError::Disconnected("control".to_owned()))
}
