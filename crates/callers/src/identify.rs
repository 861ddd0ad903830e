//! Who a process is, read from /proc while it waits in its open.
//!
//! The process cannot exit, execute or be replaced while it waits, short of being killed; a pidfd that is still alive
//! after everything was read says that all of it was of the same process. Code counts as the program's own if it is
//! the executable itself (which the kernel keeps from being written while it runs) or a file that only root can
//! change: a digest of a file that others may write says nothing of the next moment, so such files are refused, not
//! hashed.

use crate::hashes::{Hashes, interpreter_by_name};
use crate::identity::Identity;
use crate::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::StatVfsMountFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most executable mappings looked at.
const MAPPINGS_MAX: usize = 4096;
/// Most bytes of a path that is told.
const PATH_BYTES_MAX: usize = 512;
/// Type of FUSE file systems, whose server says what owners files have.
const FUSE: i64 = 0x6573_5546;

/// Identifies a process. The pidfd, if there is one, must be its.
///
/// # Errors
/// In words: it has no program, is gone, or cannot be looked at.
pub fn identify(number: u32, pidfd: Option<impl AsFd>, hashes: &Hashes) -> Result<Identity, String> {
    let place = PathBuf::from(format!("/proc/{number}"));
    let read = |name: &str| process::read(&place.join(name)).map_err(|error| told(number, &error));
    let started = process::started(&read("stat")?).ok_or("its beginning is not told")?;
    let path = std::fs::read_link(place.join("exe")).map_err(|error| told(number, &error))?;
    let mut program = File::open(place.join("exe")).map_err(|error| told(number, &error))?;
    let own = program.metadata().map_err(|error| told(number, &error))?;
    let hashed = hashes.of(&mut program).map_err(|error| format!("{}: {error}", path.display()))?;
    let path = bounded(&path.to_string_lossy());
    let status = process::status(&read("status")?).ok_or("its state is not told")?;
    let mut identity = Identity {
        process: number,
        started,
        digest: hashed.digest,
        interpreter: hashed.interpreter.or_else(|| interpreter_by_name(&path)).map(str::to_owned),
        path,
        tracer: status.tracer,
        preload: process::preload(&read("environ")?),
        foreign: None,
        altered: None,
        generated: false,
    };
    let mappings = process::executable_mappings(&read("smaps")?);
    if mappings.len() > MAPPINGS_MAX {
        return Err("it has too many pieces of code to look at".to_owned());
    }
    for mapping in mappings {
        let is_kernels = matches!(mapping.name.as_str(), "[vdso]" | "[vsyscall]");
        if is_kernels && !mapping.has_file {
            continue;
        }
        if !mapping.has_file || mapping.writable {
            identity.generated = true;
            continue;
        }
        if mapping.altered {
            identity.altered.get_or_insert_with(|| bounded(&mapping.name));
        }
        let file = place.join("map_files").join(&mapping.range);
        if !is_own_or_roots(&file, (own.dev(), own.ino())) {
            identity.foreign.get_or_insert_with(|| bounded(&mapping.name));
        }
    }
    if process::started(&read("stat")?) != Some(started) || pidfd.is_some_and(|pidfd| has_ended(&pidfd)) {
        return Err("it ended meanwhile".to_owned());
    }
    Ok(identity)
}

fn told(number: u32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("process {number} has no program (the kernel's own, or it ended)"),
        _ => format!("process {number} cannot be looked at: {error}"),
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(PATH_BYTES_MAX / 4).collect()
}

/// Whether code of this file stays what it is: the executable, or a file that nobody but root can change. Where
/// set-uid counts for nothing the machine does not believe the file system's owners either, nor do we.
fn is_own_or_roots(mapped: &Path, own: (u64, u64)) -> bool {
    let judged = || -> io::Result<bool> {
        let file = rustix::fs::open(
            mapped,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let seen = rustix::fs::fstat(&file)?;
        if (seen.st_dev, seen.st_ino) == own {
            return Ok(true);
        }
        let believed = !rustix::fs::fstatvfs(&file)?.f_flag.contains(StatVfsMountFlags::NOSUID)
            && rustix::fs::fstatfs(&file)?.f_type as i64 != FUSE;
        Ok(believed && seen.st_uid == 0 && seen.st_mode & 0o022 == 0)
    };
    // What cannot be looked at is not believed.
    judged().unwrap_or(false)
}

/// Whether the process of a pidfd has ended.
fn has_ended(pidfd: &impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    fn of(command: &mut Command) -> Result<Identity, String> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        // It runs its own code when it has repeated a byte.
        child.stdin.as_mut().expect("piped").write_all(b"x").expect("written");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("repeated");
        let found = identify(child.id(), None::<std::os::fd::OwnedFd>, &Hashes::default());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        found
    }

    /// A plain program is its file; a variable of the loader is told; a process that ended is nobody.
    #[test]
    fn processes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let plain = of(Command::new("/bin/cat").env_clear()).expect("identified");
        let digest =
            crate::hashes::digest_of(&mut File::open("/bin/cat").expect("there")).expect("read").digest;
        assert_eq!(plain.digest, digest);
        assert_eq!(plain.weakness(false, false), None, "{plain:?}");
        let preloaded = of(Command::new("/bin/cat").env_clear().env("LD_BIND_NOW", "1")).expect("identified");
        assert_eq!(preloaded.preload.as_deref(), Some("LD_BIND_NOW"));
        let mut ended = Command::new("/bin/true").spawn().expect("it starts");
        ended.wait().expect("it ends");
        assert!(identify(ended.id(), None::<std::os::fd::OwnedFd>, &Hashes::default()).is_err());
        // A thread of the kernel has no program.
        assert!(identify(2, None::<std::os::fd::OwnedFd>, &Hashes::default()).is_err());
    }
}
