//! Reads /proc about a process. Parsers are pure; all bytes in /proc that a process can choose (its name, its
//! environment, names of its files) are read as such.

use std::io::{self, Read};
use std::path::Path;

/// Most bytes read of one file of /proc.
const BYTES_MAX: u64 = 16 << 20;

/// The contents of `/proc/PID/status` about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The process that a thread belongs to.
    pub process: u32,
    /// The process that traces it; 0 if none does.
    pub tracer: u32,
    /// The user it runs for (the real user id).
    pub user: u32,
    /// Whether all its user ids are root's.
    pub is_roots: bool,
    /// Whether its system calls are filtered: 0 if not (seccomp).
    pub filters: u32,
}

/// An executable mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its name in `map_files`.
    pub range: String,
    /// Whether it is writable too.
    pub writable: bool,
    /// The file's name, or the kernel's name of the mapping; may be empty.
    pub name: String,
    /// Whether a file is behind it.
    pub has_file: bool,
    /// Whether pages of it are no longer the file's.
    pub altered: bool,
}

/// Reads a file of /proc, up to a limit.
///
/// # Errors
/// As for read(2); a file that is longer than any real one is refused.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is too long", path.display())));
    }
    Ok(bytes)
}

/// Parses `status`. The name in its first line cannot contain a newline, so later lines are the kernel's.
pub fn status(text: &[u8]) -> Option<Status> {
    let field = |name: &[u8]| {
        let line = text.split(|byte| *byte == b'\n').skip(1).find_map(|line| line.strip_prefix(name))?;
        std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
    };
    let users = text.split(|byte| *byte == b'\n').skip(1).find_map(|line| line.strip_prefix(b"Uid:"))?;
    let users = std::str::from_utf8(users).ok()?;
    Some(Status {
        process: field(b"Tgid:")?,
        tracer: field(b"TracerPid:")?,
        user: field(b"Uid:")?,
        is_roots: users.split_ascii_whitespace().all(|user| user == "0"),
        filters: field(b"Seccomp:").unwrap_or(0),
    })
}

/// Parses `stat`: when the process started. The name in it may contain anything, so only what follows the
/// last `)` counts.
pub fn started(text: &[u8]) -> Option<u64> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
    // The state is the third field, and the start time the 22nd.
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Parses `environ`: the first variable that changes which code a program loads.
pub fn preload(environ: &[u8]) -> Option<String> {
    const NAMES: [&[u8]; 2] = [b"GCONV_PATH", b"GLIBC_TUNABLES"];
    environ.split(|byte| *byte == 0).find_map(|variable| {
        let name = variable.split(|byte| *byte == b'=').next()?;
        let loads = name.starts_with(b"LD_") || NAMES.contains(&name);
        loads.then(|| String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned())
    })
}

/// Parses `smaps`: the executable mappings.
pub fn executable_mappings(text: &[u8]) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(mapping) = header(line) {
            found.extend(current.take());
            current = mapping;
        } else if let (Some(mapping), Some(value)) = (&mut current, line.strip_prefix(b"Anonymous:")) {
            let kib = String::from_utf8_lossy(value);
            mapping.altered = kib.split_ascii_whitespace().next() != Some("0");
        }
    }
    found.extend(current);
    found
}

/// Parses the first line of a mapping. `Some(None)`: the mapping is not executable. `None`: it is another
/// line.
fn header(line: &[u8]) -> Option<Option<Mapping>> {
    let text = String::from_utf8_lossy(line);
    let mut fields = text.splitn(6, ' ');
    let (range, rights) = (fields.next()?, fields.next()?);
    let is_range = range.split_once('-').is_some_and(|(from, to)| {
        [from, to].iter().all(|end| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_hexdigit()))
    });
    if !is_range || rights.len() != 4 {
        return None;
    }
    let (_offset, _device) = (fields.next()?, fields.next()?);
    let inode = fields.next()?;
    if rights.as_bytes()[2] != b'x' {
        return Some(None);
    }
    let name = fields.next().unwrap_or("").trim_start().to_owned();
    // Addresses are padded to eight digits here but not in `map_files`; programs at fixed addresses begin at
    // 0x400000.
    let (from, to) = range.split_once('-')?;
    let unpadded = |address: &str| u64::from_str_radix(address, 16).ok();
    let (from, to) = (unpadded(from)?, unpadded(to)?);
    Some(Some(Mapping {
        range: format!("{from:x}-{to:x}"),
        writable: rights.as_bytes()[1] == b'w',
        name,
        has_file: inode != "0",
        altered: false,
    }))
}

/// The process of a thread, and when that process started.
///
/// # Errors
/// The thread has ended, or /proc does not show it.
pub fn of_thread(thread: u32) -> io::Result<(u32, u64)> {
    let gone =
        || io::Error::new(io::ErrorKind::NotFound, format!("thread {thread} is not to be seen in /proc"));
    let status = status(&read(Path::new(&format!("/proc/{thread}/status")))?).ok_or_else(gone)?;
    let started = started(&read(Path::new(&format!("/proc/{}/stat", status.process)))?).ok_or_else(gone)?;
    Ok((status.process, started))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A process gains nothing by a name that imitates the searched text.
    #[test]
    fn names_are_not_believed() {
        let text =
            b"Name:\tTgid:\t1\\n\nUmask:\t0022\nTgid:\t77\nPid:\t78\nTracerPid:\t5\nUid:\t1000\t0\t0\t0\n";
        let expected = Status { process: 77, tracer: 5, user: 1000, is_roots: false, filters: 0 };
        assert_eq!(status(text), Some(expected));
        let roots = b"Name:\tx\nTgid:\t7\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nSeccomp:\t2\n";
        assert_eq!(status(roots).map(|status| (status.is_roots, status.filters)), Some((true, 2)));
        let stat = b"77 (a) R 1 2 3 ) S 1 77 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1";
        assert_eq!(started(stat), Some(987_654));
        assert_eq!(preload(b"A=LD_PRELOAD=x\0B=1\0"), None);
        assert_eq!(preload(b"A=1\0LD_AUDIT=x\0"), Some("LD_AUDIT".into()));
        assert_eq!(preload(b"GCONV_PATH=/tmp"), Some("GCONV_PATH".into()));
    }

    /// Executable mappings, and which of them were changed or have no file.
    #[test]
    fn mappings() {
        let text = b"\
5581-5582 r--p 00000000 fe:00 12   /usr/bin/a b\nSize: 4 kB\nAnonymous:   8 kB\n\
5582-5583 r-xp 00001000 fe:00 12   /usr/bin/a b\nSize: 4 kB\nAnonymous:   0 kB\n\
7f00-7f01 r-xp 00000000 fe:00 13   /lib/x.so\nAnonymous:   4 kB\n\
7f02-7f03 rwxp 00000000 00:00 0 \nAnonymous:   4 kB\n\
00400000-00401000 r-xp 00001000 fe:00 14   /usr/bin/fixed\nAnonymous:   0 kB\n\
7ff0-7ff1 r-xp 00000000 00:00 0   [vdso]\nAnonymous: 0 kB\n";
        let found = executable_mappings(text);
        let short: Vec<_> = found
            .iter()
            .map(|m| (m.range.as_str(), m.name.as_str(), m.has_file, m.writable, m.altered))
            .collect();
        assert_eq!(
            short,
            [
                ("5582-5583", "/usr/bin/a b", true, false, false),
                ("7f00-7f01", "/lib/x.so", true, false, true),
                ("7f02-7f03", "", false, true, true),
                ("400000-401000", "/usr/bin/fixed", true, false, false),
                ("7ff0-7ff1", "[vdso]", false, false, false),
            ]
        );
    }

    proptest! {
        /// No input makes a parser panic.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (status(&bytes), started(&bytes), preload(&bytes), executable_mappings(&bytes));
        }
    }

    /// This process is found by its own thread.
    #[test]
    fn oneself() {
        let (process, started) = of_thread(crate::kernel::thread()).expect("it is there");
        assert_eq!(process, std::process::id());
        assert!(started > 0);
    }
}
