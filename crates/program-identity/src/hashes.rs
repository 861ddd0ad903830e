//! Digests of programs, cached while the file is unchanged, and a limit on how many bytes are hashed for each
//! user.
//!
//! A file counts as unchanged while device, inode, size and both times are the same. That only holds for
//! files that nobody but root can change: a user who may write a file on tmpfs can map a page of it and
//! change it later without a trace in the times. So digests of such files are not cached. Nor are those of
//! files that changed within the last two seconds, since a change within the clock's resolution could go
//! unnoticed.
//!
//! What is not cached is read at each open, while other opens wait. So each user has a budget of bytes: a
//! user who starts large programs again and again is refused, and nobody else waits for them.

use holdfast_crypto::{Digest, DigestKey, Domain};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most programs remembered.
const REMEMBERED_MAX: usize = 1024;
/// Largest program that is hashed.
pub const PROGRAM_BYTES_MAX: u64 = 1 << 30;
/// Minimum age of a file's last change for its digest to be cached.
const SETTLED: Duration = Duration::from_secs(2);
/// Strings that only occur in programs that run other programs' code.
const MARKS: [(&[u8], &str); 10] = [
    (b"Py_BytesMain", "it has Python in it"),
    (b"PyRun_", "it has Python in it"),
    (b"perl_parse", "it has Perl in it"),
    (b"ruby_run_node", "it has Ruby in it"),
    (b"luaL_openlibs", "it has Lua in it"),
    (b"php_execute_script", "it has PHP in it"),
    (b"BASH_EXECUTION_STRING", "it is a shell"),
    (b"JNI_CreateJavaVM", "it has Java in it"),
    (b"NODE_OPTIONS", "it has Node in it"),
    (b"LD_TRACE_LOADED_OBJECTS", "it is a loader of programs"),
];
/// Names of interpreters; what follows may be a version.
const NAMES: [&str; 34] = [
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox", "python", "pypy", "perl",
    "ruby", "node", "nodejs", "deno", "bun", "lua", "luajit", "php", "tclsh", "wish", "awk", "gawk", "mawk",
    "java", "guile", "ghci", "emacs", "vim", "gdb", "env", "find",
];

/// What the bytes of a program's file say about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hashed {
    /// The digest of the program's file.
    pub digest: Digest,
    /// Why the file looks like an interpreter, if it does.
    pub interpreter: Option<&'static str>,
}

#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Key {
    device: u64,
    inode: u64,
    size: u64,
    times: [i64; 4],
}

impl Key {
    fn of(file: &File) -> io::Result<Key> {
        let seen = file.metadata()?;
        if !seen.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Key {
            device: seen.dev(),
            inode: seen.ino(),
            size: seen.size(),
            times: [seen.mtime(), seen.mtime_nsec(), seen.ctime(), seen.ctime_nsec()],
        })
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let age = SETTLED.as_secs() as i64;
        [self.times[0], self.times[2]].iter().all(|changed| changed + age < now)
    }
}

/// Bytes that may be hashed for a user at once; the next constant is how many are added each second.
const BUDGET_BYTES: u64 = PROGRAM_BYTES_MAX;
const BUDGET_BYTES_A_SECOND: u64 = 64 << 20;
/// Most users whose budgets are remembered.
const BUDGETS_MAX: usize = 4096;

/// The bytes that may still be read for a user.
struct Budget {
    bytes: u64,
    at: Instant,
}

impl Budget {
    /// Takes bytes from what is left at `now`, if there are enough.
    fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let passed_ms = now.saturating_duration_since(self.at).as_millis() as u64;
        let earned = passed_ms.saturating_mul(BUDGET_BYTES_A_SECOND) / 1000;
        *self = Budget { bytes: self.bytes.saturating_add(earned).min(BUDGET_BYTES), at: now };
        let is_enough = self.bytes >= bytes;
        self.bytes -= if is_enough { bytes } else { 0 };
        is_enough
    }
}

/// Remembered digests, and the budgets of users.
#[derive(Default)]
pub struct Hashes {
    remembered: Mutex<HashMap<Key, Hashed>>,
    budgets: Mutex<HashMap<u32, Budget>>,
}

impl Hashes {
    /// The digest of the file of a program that `user` runs. `is_roots`: whether only root can change the
    /// file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or changed meanwhile; or the user's budget is used up.
    pub fn of(&self, file: &mut File, user: u32, is_roots: bool) -> io::Result<Hashed> {
        self.of_at(file, user, is_roots, SystemTime::now())
    }

    fn of_at(&self, file: &mut File, user: u32, is_roots: bool, now: SystemTime) -> io::Result<Hashed> {
        let key = Key::of(file)?;
        if is_roots && let Some(hashed) = self.remembered.lock().get(&key) {
            return Ok(hashed.clone());
        }
        if !is_roots && !self.spend(user, key.size, Instant::now()) {
            return Err(io::Error::other(format!(
                "user {user} has had too many bytes of programs read that others than root may change; try again in a \
                 minute"
            )));
        }
        let hashed = hash(file, key.size)?;
        if Key::of(file)? != key {
            return Err(io::Error::other("the program's file changes while it is read"));
        }
        if is_roots && key.is_settled(now) {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert(key, hashed.clone());
        }
        Ok(hashed)
    }

    fn spend(&self, user: u32, bytes: u64, now: Instant) -> bool {
        let mut budgets = self.budgets.lock();
        if budgets.len() >= BUDGETS_MAX && !budgets.contains_key(&user) {
            let refilled = Duration::from_secs(BUDGET_BYTES / BUDGET_BYTES_A_SECOND);
            budgets.retain(|_, budget| now.saturating_duration_since(budget.at) < refilled);
            if budgets.len() >= BUDGETS_MAX {
                return false;
            }
        }
        budgets.entry(user).or_insert(Budget { bytes: BUDGET_BYTES, at: now }).take(bytes, now)
    }
}

/// Reads a program's file and describes its content.
///
/// # Errors
/// As for [`Hashes::of`], except for budgets.
pub fn digest_of(file: &mut File) -> io::Result<Hashed> {
    Hashes::default().of(file, 0, false)
}

fn hash(file: &mut File, size: u64) -> io::Result<Hashed> {
    const PIECE: usize = 1 << 20;
    const OVERLAP: usize = 32;
    if size > PROGRAM_BYTES_MAX {
        return Err(io::Error::other("too large for a program"));
    }
    let mut hasher = DigestKey::WELL_KNOWN.hasher(Domain::Executable);
    let mut piece = vec![0; OVERLAP + PIECE];
    let (mut overlap, mut total, mut interpreter) = (0, 0u64, None);
    use std::os::unix::fs::FileExt;
    loop {
        let read = match file.read_at(&mut piece[overlap..], total) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        total += read as u64;
        if read == 0 || total > PROGRAM_BYTES_MAX {
            break;
        }
        hasher = hasher.update(&piece[overlap..overlap + read]);
        let seen = &piece[..overlap + read];
        interpreter = interpreter.or_else(|| {
            let found = MARKS.iter().find(|(mark, _)| memchr::memmem::find(seen, mark).is_some());
            found.map(|(_, why)| *why)
        });
        // A mark may lie across two pieces.
        let keep = seen.len().min(OVERLAP);
        let from = seen.len() - keep;
        piece.copy_within(from..from + keep, 0);
        overlap = keep;
    }
    Ok(Hashed { digest: hasher.finish(), interpreter })
}

/// Why a program of this name counts as an interpreter; `None` if its name is not known as one.
pub fn interpreter_by_name(path: &str) -> Option<&'static str> {
    let name = path.strip_suffix(" (deleted)").unwrap_or(path).rsplit('/').next()?;
    if name.starts_with("ld-linux") || name.starts_with("ld-musl") || name == "ld.so" {
        return Some("it is a loader of programs");
    }
    let known = |interpreter: &&str| {
        let version = name.strip_prefix(*interpreter);
        version.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || b".-".contains(&byte)))
    };
    NAMES.iter().any(known).then_some("its name is that of one")
}

/// Reads all of a small file.
///
/// # Errors
/// It cannot be read, or is longer than `most`.
pub fn read_small(path: &std::path::Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too long"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A digest covers all bytes, wherever pieces end; marks are found across pieces; a change in place is
    /// noticed.
    #[test]
    fn digests() {
        let mut file = tempfile::tempfile().expect("a file");
        let mut bytes = vec![7u8; (1 << 20) + 100];
        let hashes = Hashes::default();
        file.write_all(&bytes).expect("written");
        let whole = DigestKey::WELL_KNOWN.digest(Domain::Executable, &bytes);
        assert_eq!(hashes.of(&mut file, 1, true).expect("read"), Hashed { digest: whole, interpreter: None });
        let mark = b"Py_BytesMain";
        for at in [(1 << 20) - 5, (1 << 20) + 25, (1 << 20) + 80] {
            bytes.fill(7);
            bytes[at..at + mark.len()].copy_from_slice(mark);
            use std::os::unix::fs::FileExt;
            file.write_all_at(&bytes, 0).expect("written");
            let found = hashes.of(&mut file, 1, true).expect("read");
            assert_eq!(found.digest, DigestKey::WELL_KNOWN.digest(Domain::Executable, &bytes), "{at}");
            assert_eq!(found.interpreter, Some("it has Python in it"), "{at}");
        }
    }

    /// A cached digest is dropped after any change that the file's times show.
    #[test]
    fn remembered_while_the_same() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"one").expect("written");
        let changed = file.metadata().and_then(|seen| seen.modified()).expect("there");
        let hashes = Hashes::default();
        hashes.of_at(&mut file, 1, true, changed + Duration::from_secs(1)).expect("read");
        assert!(hashes.remembered.lock().is_empty(), "it changed a moment ago");
        hashes.of_at(&mut file, 1, true, changed + Duration::from_secs(10)).expect("read");
        assert_eq!(hashes.remembered.lock().len(), 1);
        file.write_all(b"two").expect("written");
        let digest = DigestKey::WELL_KNOWN.digest(Domain::Executable, b"onetwo");
        assert_eq!(hashes.of_at(&mut file, 1, true, changed).expect("read").digest, digest);
    }

    /// A digest is remembered only of a file that nobody but root can change.
    #[test]
    fn only_roots_files_are_remembered() {
        let long_ago = File::open("/bin/cat").expect("there");
        for (is_roots, remembered) in [(false, 0), (true, 1)] {
            let hashes = Hashes::default();
            hashes.of(&mut long_ago.try_clone().expect("a copy"), 1, is_roots).expect("read");
            assert_eq!(hashes.remembered.lock().len(), remembered);
        }
    }

    /// A user's budget is used up by bytes, refills with time, and is separate from others'.
    #[test]
    fn budgets() {
        let (hashes, now) = (Hashes::default(), Instant::now());
        assert!(hashes.spend(1, BUDGET_BYTES - 5, now));
        assert!(!hashes.spend(1, 6, now), "used up");
        assert!(hashes.spend(1, 5, now), "to the last byte");
        assert!(hashes.spend(2, BUDGET_BYTES, now), "another user");
        let later = now + Duration::from_secs(2);
        assert!(hashes.spend(1, 2 * BUDGET_BYTES_A_SECOND, later));
        assert!(!hashes.spend(1, 1, later));
        assert!(
            !hashes.spend(1, BUDGET_BYTES + 1, later + Duration::from_secs(10_000)),
            "never more than all"
        );
    }

    /// Names with versions are recognised, others are not.
    #[test]
    fn names() {
        for name in
            ["/usr/bin/python3.11", "/bin/bash", "dash", "/lib64/ld-linux-x86-64.so.2", "/x/perl (deleted)"]
        {
            assert!(interpreter_by_name(name).is_some(), "{name}");
        }
        for name in ["/usr/bin/ssh", "/usr/bin/pythonish", "/usr/bin/cat", "/usr/bin/shred"] {
            assert!(interpreter_by_name(name).is_none(), "{name}");
        }
    }
}
