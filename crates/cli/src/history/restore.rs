//! `holdfast restore`: copies a tree out of `.snapshots`, through the mount.
//!
//! Invariants:
//! - Nothing is replaced without `--force`, and then only by a complete copy. The copy is made under another
//!   name beside its target and then renamed. If it replaces something, the two are exchanged, and then the
//!   old one is removed.
//! - The mount copies ranges of past files by reference, so no content crosses the network.

use super::args::Restore;
use super::{MountedPath, place, states};
use crate::output::{Format, clean, progress};
use holdfast_client::files::time_name;
use holdfast_daemon::mounts::past::PastState;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::{moment, now_ns};
use holdfast_failure::{Exit, Failure, Outcome};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};
use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SECOND_NS: i64 = 1_000_000_000;

#[derive(Default, Serialize)]
struct Restored {
    state: String,
    path: PathBuf,
    files: u64,
    bytes: u64,
    /// Files that cannot be restored: sockets and devices.
    left_out: Vec<PathBuf>,
}

/// `holdfast restore`
pub fn run(arguments: &Restore, directories: &Directories, format: Format) -> Outcome {
    let MountedPath { mount, path } = place(&arguments.file)?;
    if path.as_os_str().is_empty() && arguments.to.is_none() {
        return Err(Failure::new(Exit::Usage, "the root itself cannot be replaced; say where to with --to"));
    }
    let to = match &arguments.to {
        None => mount.join(&path),
        Some(to) => {
            let there = place(to)?;
            if there.mount != mount {
                let message = format!("{}: is not in the mount {}", to.display(), mount.display());
                return Err(
                    Failure::new(Exit::Usage, message).hint("copy from `.snapshots` with cp -a instead")
                );
            }
            there.mount.join(there.path)
        }
    };
    let state = find(&arguments.at, &states(&mount, directories)?)?;
    let from = mount.join(".snapshots").join(&state.name).join(&path);
    let failed = |at: &Path, error: io::Error| Failure::new(Exit::Io, format!("{}: {error}", at.display()));
    match fs::symlink_metadata(&from) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = clean(&state.name);
            let message = format!("{}: was not there in {name}", arguments.file.display());
            return Err(Failure::new(Exit::NoInput, message)
                .hint("`holdfast history FILE` shows which states have it"));
        }
        Err(error) => return Err(failed(&from, error)),
    }
    let exists = fs::symlink_metadata(&to).is_ok();
    if exists && !arguments.force {
        let message = format!("{}: exists already", to.display());
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("--force replaces it; --to PATH restores it elsewhere"));
    }
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(Failure::new(Exit::Usage, format!("{}: is no place to restore to", to.display())));
    };
    fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
    let mut fresh = std::ffi::OsString::from(".holdfast-restore-");
    fresh.push(format!("{}-", std::process::id()));
    fresh.push(name);
    let fresh = parent.join(fresh);
    let bar = progress("restoring");
    let mut restored = Restored { state: state.name.clone(), path: to.clone(), ..Restored::default() };
    let made = copy(&from, &fresh, &mut restored).and_then(|()| {
        let (how, at) = match exists {
            true => (RenameFlags::EXCHANGE, &to),
            false => (RenameFlags::NOREPLACE, &to),
        };
        rustix::fs::renameat_with(CWD, &fresh, CWD, at, how).map_err(|error| (at.clone(), error.into()))
    });
    bar.finish_and_clear();
    // Either what was replaced, or an incomplete copy.
    let left = remove(&fresh);
    made.map_err(|(at, error)| failed(&at, error))?;
    left.map_err(|error| failed(&fresh, error))?;
    format.print(&restored, |restored| {
        let mut text = format!(
            "{}: restored as it was on {} ({} files, {} bytes)",
            restored.path.display(),
            moment(state.time_ns),
            restored.files,
            restored.bytes
        );
        for path in &restored.left_out {
            text += &format!("\n  left out, since it is a socket or a device: {}", path.display());
        }
        text
    })
}

/// The retained state that the user means.
fn find(at: &str, states: &[PastState]) -> Outcome<PastState> {
    if let Some(state) = states.iter().find(|state| state.name == at) {
        return Ok(state.clone());
    }
    let none = |why: String| {
        Failure::new(Exit::NoInput, why)
            .hint("`holdfast snapshot list DIR --all` shows which states are kept")
    };
    let until_ns = moment_of(at, now_ns())
        .ok_or_else(|| none(format!("{}: is no snapshot, no state that is kept, and no time", clean(at))))?;
    let before = states.iter().filter(|state| state.time_ns <= until_ns);
    before
        .max_by_key(|state| state.log_size)
        .cloned()
        .ok_or_else(|| none(format!("no state of {} or before is kept", moment(until_ns))))
}

/// The last nanosecond of a time that may be given only in part (`2026-11-22`, `2026-11-22T21:30`), or the
/// time so long before now (`2h`).
fn moment_of(text: &str, now_ns: i64) -> Option<i64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        'w' => Some(7 * 86_400),
        _ => None,
    };
    if let Some(seconds) = seconds {
        let count: i64 = text.strip_suffix(unit)?.parse().ok().filter(|count| *count >= 0)?;
        return now_ns.checked_sub(count.checked_mul(seconds)?.checked_mul(SECOND_NS)?);
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let digits: Vec<&str> = text.split(['-', 'T', ' ', ':', '.']).collect();
    if !(3..=6).contains(&digits.len()) || !digits.iter().all(|part| part.chars().all(|c| c.is_ascii_digit()))
    {
        return None;
    }
    // Names of times sort in order of time, so the time is found by bisection.
    let mut wanted = String::new();
    for (part, (before, length)) in
        digits.iter().zip([("", 4), ("-", 2), ("-", 2), ("T", 2), (".", 2), (".", 2)])
    {
        if part.len() != length {
            return None;
        }
        wanted += before;
        wanted += part;
    }
    let (mut low, mut high) = (0, i64::MAX / SECOND_NS);
    let part_of = |second: i64| time_name(second * SECOND_NS)[..wanted.len()].to_owned();
    while low < high {
        let middle = low + (high - low + 1) / 2;
        if part_of(middle) <= wanted { low = middle } else { high = middle - 1 }
    }
    (part_of(low) == wanted).then_some(low * SECOND_NS + SECOND_NS - 1)
}

type Copied = Result<(), (PathBuf, io::Error)>;

/// Copies a tree. Symbolic links are copied, not followed.
fn copy(from: &Path, to: &Path, restored: &mut Restored) -> Copied {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| (path, error)
    };
    let meta = fs::symlink_metadata(from).map_err(at(from))?;
    let kind = meta.file_type();
    if kind.is_dir() {
        fs::DirBuilder::new().mode(0o700).create(to).map_err(at(to))?;
        for entry in fs::read_dir(from).map_err(at(from))? {
            let name = entry.map_err(at(from))?.file_name();
            copy(&from.join(&name), &to.join(&name), restored)?;
        }
        fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777)).map_err(at(to))?;
    } else if kind.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from).map_err(at(from))?, to).map_err(at(to))?;
    } else if kind.is_file() {
        restored.bytes += fs::copy(from, to).map_err(at(to))?;
    } else if kind.is_fifo() {
        let mode = Mode::from_raw_mode(meta.mode() & 0o7777);
        rustix::fs::mknodat(CWD, to, FileType::Fifo, mode, 0).map_err(|error| at(to)(error.into()))?;
    } else {
        restored.left_out.push(from.to_owned());
        return Ok(());
    }
    restored.files += 1;
    if !kind.is_symlink() {
        attributes(from, to).map_err(at(to))?;
    }
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let modified = time(meta.mtime(), meta.mtime_nsec());
    let times = Timestamps { last_access: modified, last_modification: modified };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| at(to)(error.into()))
}

/// Copies extended attributes, except those with a meaning for Holdfast itself.
fn attributes(from: &Path, to: &Path) -> io::Result<()> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(from, &mut names[..])?;
    let names = names[..length].split(|byte| *byte == 0);
    for name in names.filter(|name| name.starts_with(b"user.") && !name.starts_with(b"user.holdfast.")) {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(from, name, &mut value[..])?;
        rustix::fs::lsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

/// Removes a file or directory tree, if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: times are parsed as people write them, as the end of the given period, and other text is
    /// rejected.
    #[test]
    fn times_are_understood() {
        let now = 1_700_000_000 * SECOND_NS;
        for (text, second) in [
            ("1970-01-01", 86_399),
            ("2023-11-14T22:13:20Z", 1_700_000_000),
            ("2023-11-14 22:13", 1_700_000_039),
            ("2023-11-14T22.13.20", 1_700_000_000),
            ("2000-02-29", 951_868_799),
        ] {
            assert_eq!(moment_of(text, now), Some(second * SECOND_NS + SECOND_NS - 1), "{text}");
        }
        assert_eq!(moment_of("2h", now), Some(now - 7200 * SECOND_NS));
        for nonsense in ["", "yesterday", "2023-13-01", "2023-02-30", "23-11-14", "2023", "-2h", "h", "1.5h"]
        {
            assert_eq!(moment_of(nonsense, now), None, "{nonsense}");
        }
    }

    /// Proves: a name is used as it is, a time means the last state not after it, and a missing state is
    /// reported.
    #[test]
    fn the_state_meant_is_found() {
        let state = |name: &str, log_size, second: i64| PastState {
            name: name.to_owned(),
            log_size,
            time_ns: second * SECOND_NS,
            named_by: None,
            named_ns: None,
        };
        let states =
            [state("1970-01-01T00.00.10Z", 3, 10), state("1970-01-01T00.01.00Z", 9, 60), state("x", 3, 10)];
        let found = |at: &str| find(at, &states).map(|state| state.log_size);
        assert_eq!(found("x"), Ok(3));
        assert_eq!(found("1970-01-01T00:00"), Ok(3));
        assert_eq!(found("1970-01-01"), Ok(9));
        assert_eq!(found("1970-01-01T00:00:09").map_err(|failure| failure.code), Err(Exit::NoInput));
        assert_eq!(found("nothing").map_err(|failure| failure.code), Err(Exit::NoInput));
    }
}
