//! Identifies a process from /proc while it waits in its open.
//!
//! While it waits, the process cannot exit, execute or be replaced, unless it is killed; a pidfd that is
//! still alive after everything was read proves that all of it was of the same process. Code counts as the
//! program's own if it is in a file that only root can change, or in the executable itself if the kernel
//! prevents changes while it runs. A digest of a file that others may change says nothing about the next
//! moment, so such files are refused.

use crate::hashes::{Hashes, interpreter_by_name};
use crate::identity::Identity;
use crate::process;
use crate::starts::CleanStarts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most executable mappings that are examined.
const MAPPINGS_MAX: usize = 4096;
/// Most bytes of a path in an identity.
const PATH_BYTES_MAX: usize = 512;
/// Type of FUSE file systems, whose server decides which owners files have.
const FUSE: i64 = 0x6573_5546;
/// Type of file systems in memory.
const TMPFS: i64 = 0x0102_1994;
/// Types of file systems on disks: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS.
const DISKS: [i64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1];

/// Identifies a process. The pidfd, if there is one, must belong to it.
///
/// # Errors
/// An explanation: the process has no program, has ended, or cannot be examined.
pub fn identify(
    number: u32,
    pidfd: Option<impl AsFd>,
    hashes: &Hashes,
    starts: &CleanStarts,
) -> Result<Identity, String> {
    let place = PathBuf::from(format!("/proc/{number}"));
    let read = |name: &str| process::read(&place.join(name)).map_err(|error| unreadable(number, &error));
    let started = process::started(&read("stat")?).ok_or("its beginning is not told")?;
    let path = std::fs::read_link(place.join("exe")).map_err(|error| unreadable(number, &error))?;
    let mut program = File::open(place.join("exe")).map_err(|error| unreadable(number, &error))?;
    let own = program.metadata().map_err(|error| unreadable(number, &error))?;
    let status = process::status(&read("status")?).ok_or("its state is not told")?;
    let is_roots = only_root_changes(&program).unwrap_or(false);
    let stays = is_roots || is_held(&program, &place.join("exe")).unwrap_or(false);
    // A process that was started clean runs a file that nobody can change, which was hashed then.
    let clean = starts.of(number, started, (own.dev(), own.ino()));
    let is_clean = clean.is_some() || status.is_roots;
    let hashed = clean.map_or_else(|| hashes.of(&mut program, status.user, is_roots), Ok);
    let hashed = hashed.map_err(|error| format!("{}: {error}", path.display()))?;
    let path = bounded(&path.to_string_lossy());
    let mut identity = Identity {
        process: number,
        started,
        digest: hashed.digest,
        interpreter: hashed.interpreter.or_else(|| interpreter_by_name(&path)).map(str::to_owned),
        foreign: (!stays).then(|| path.clone()),
        path,
        tracer: status.tracer,
        preload: process::preload(&read("environ")?),
        altered: None,
        generated: false,
        clean: is_clean,
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
        let of = |error| format!("its code of {} cannot be looked at: {error}", bounded(&mapping.name));
        if !is_own_or_roots(&file, (own.dev(), own.ino())).map_err(of)? {
            identity.foreign.get_or_insert_with(|| bounded(&mapping.name));
        }
    }
    if process::started(&read("stat")?) != Some(started) || pidfd.is_some_and(|pidfd| has_ended(&pidfd)) {
        return Err("it ended meanwhile".to_owned());
    }
    Ok(identity)
}

fn unreadable(number: u32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("process {number} has no program (the kernel's own, or it ended)"),
        _ => format!("process {number} cannot be looked at: {error}"),
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(PATH_BYTES_MAX / 4).collect()
}

/// Whether a mapped file is the executable, which is judged separately, or one that only root can change.
fn is_own_or_roots(mapped: &Path, own: (u64, u64)) -> io::Result<bool> {
    let file = rustix::fs::open(mapped, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let seen = rustix::fs::fstat(&file)?;
    Ok((seen.st_dev, seen.st_ino) == own || only_root_changes(&file)?)
}

/// Whether nobody but root can change a file. On a nosuid mount the machine does not trust the owners that
/// the file system reports, so neither does this.
fn only_root_changes(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    let believed = !rustix::fs::fstatvfs(file)?.f_flag.contains(StatVfsMountFlags::NOSUID)
        && rustix::fs::fstatfs(file)?.f_type as i64 != FUSE;
    let seen = rustix::fs::fstat(file)?;
    Ok(believed && seen.st_uid == 0 && seen.st_mode & 0o022 == 0)
}

/// Whether the kernel prevents changes of a running program's file: the file is in memory, or on a disk that
/// only root can write, and cannot be opened for writing. (Linux 6.11 and 6.12 let running programs be
/// written. A FUSE or network file system, or the lower directory of an overlay, can change a file's content
/// at any time.)
fn is_held(program: &File, path: &Path) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(program)?.f_type as i64;
    let is_disk = DISKS.contains(&kind);
    let is_mounted_by_root = !rustix::fs::fstatvfs(program)?.f_flag.contains(StatVfsMountFlags::NOSUID);
    if kind != TMPFS && !(is_disk && is_mounted_by_root) {
        return Ok(false);
    }
    let opened = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    Ok(matches!(opened, Err(Errno::TXTBSY | Errno::ROFS)))
}

/// Whether the process of a pidfd has ended.
fn has_ended(pidfd: &impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Allowed;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    fn of(command: &mut Command) -> Result<Identity, String> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        // The process runs its own code once it has repeated a byte.
        child.stdin.as_mut().expect("piped").write_all(b"x").expect("written");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("repeated");
        let found =
            identify(child.id(), None::<std::os::fd::OwnedFd>, &Hashes::default(), &CleanStarts::default());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        found
    }

    /// A plain program is identified by its file; a variable for the loader is reported; a process that ended
    /// cannot be identified.
    #[test]
    fn processes() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let plain = of(Command::new("/bin/cat").env_clear()).expect("identified");
        let digest =
            crate::hashes::digest_of(&mut File::open("/bin/cat").expect("there")).expect("read").digest;
        assert_eq!(plain.digest, digest);
        assert_eq!(plain.weakness(Allowed::default()), None, "{plain:?}");
        let preloaded = of(Command::new("/bin/cat").env_clear().env("LD_BIND_NOW", "1")).expect("identified");
        assert_eq!(preloaded.preload.as_deref(), Some("LD_BIND_NOW"));
        let mut ended = Command::new("/bin/true").spawn().expect("it starts");
        ended.wait().expect("it ends");
        assert!(
            identify(ended.id(), None::<std::os::fd::OwnedFd>, &Hashes::default(), &CleanStarts::default())
                .is_err()
        );
        // A kernel thread has no program.
        assert!(
            identify(2, None::<std::os::fd::OwnedFd>, &Hashes::default(), &CleanStarts::default()).is_err()
        );
    }
}
