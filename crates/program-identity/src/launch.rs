//! Starts a program clean: it gets nothing of the caller's but arguments, standard streams and a few
//! variables.
//!
//! The program is run from a private copy in memory that nobody can write (sealed) or read (mode 0111). So
//! what is hashed is what runs. And the kernel lets no process of the same user trace it or examine its
//! memory: a program whose file cannot be read is not dumpable, whatever it or its caller requests.

use crate::hashes::{self, Hashed};
use crate::{kernel, starts};
use rustix::fs::{Mode, OFlags, SealFlags};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Variables that are passed on, besides those that begin with `LC_`.
const KEPT: [&str; 9] =
    ["HOME", "USER", "LOGNAME", "LANG", "TERM", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"];
/// The PATH of the started program.
const PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// A program ready to be started.
pub struct Program {
    copy: OwnedFd,
    /// The digest of the program.
    pub hashed: Hashed,
}

/// Copies a program and hashes the copy.
///
/// # Errors
/// The program cannot be read, or is a script: then its interpreter has to be named instead.
pub fn prepare(path: &Path) -> io::Result<Program> {
    let mut source = File::open(path)?;
    let name = path.file_name().map_or_else(|| "program".into(), |name| name.to_string_lossy().into_owned());
    let made = kernel::memory_file(&name)?;
    let mut writing = File::from(made);
    io::copy(&mut source, &mut writing)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&writing, seals)?;
    // Opened again for reading: a file that is open for writing cannot be run.
    let reading = OFlags::RDONLY | OFlags::CLOEXEC;
    let copy = rustix::fs::open(format!("/proc/self/fd/{}", writing.as_raw_fd()), reading, Mode::empty())?;
    drop(writing);
    let mut copy = File::from(copy);
    let mut first = [0u8; 2];
    use std::os::unix::fs::FileExt;
    if copy.read_at(&mut first, 0)? == 2 && &first == b"#!" {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a script, which its interpreter runs",
        ));
    }
    let hashed = hashes::digest_of(&mut copy)?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(0o111))?;
    Ok(Program { copy: copy.into(), hashed })
}

impl Program {
    /// Becomes the program, after registering with the helper at `helper` as started clean; `untold` is
    /// called if that fails. `arguments` begin with the program's name. Returns only on failure.
    pub fn start(
        self,
        arguments: Vec<OsString>,
        helper: &Path,
        untold: impl FnOnce(&io::Error),
    ) -> io::Error {
        let strings = |texts: Vec<OsString>| -> io::Result<Vec<CString>> {
            texts.into_iter().map(|text| CString::new(text.into_vec()).map_err(io::Error::from)).collect()
        };
        let environment = environment(std::env::vars_os());
        let prepared = strings(arguments).and_then(|arguments| {
            kernel::close_on_execute(3)?;
            rustix::thread::set_no_new_privs(true)?;
            Ok((arguments, strings(environment)?))
        });
        match prepared {
            Ok((arguments, environment)) => {
                if let Err(error) = starts::ask(helper, &self.copy) {
                    untold(&error);
                }
                kernel::execute(&self.copy, &arguments, &environment)
            }
            Err(error) => error,
        }
    }
}

/// The variables of an environment that a clean program gets.
fn environment(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
    let kept = all.filter(|(name, _)| {
        name.to_str().is_some_and(|name| KEPT.contains(&name) || name.starts_with("LC_"))
    });
    let joined = kept.map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    joined.chain([OsString::from(PATH)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No variable that names code to load is passed on.
    #[test]
    fn environments() {
        let all =
            [("LD_PRELOAD", "x"), ("LC_ALL", "C"), ("HOME", "/h"), ("PATH", "/evil"), ("PYTHONPATH", "x")];
        let kept = environment(all.iter().map(|(name, value)| (name.into(), value.into())));
        let expected: Vec<OsString> = ["LC_ALL=C", "HOME=/h", PATH].iter().map(Into::into).collect();
        assert_eq!(kept, expected);
    }

    /// The copy is the program, byte for byte, and cannot be written any more; a script is refused.
    #[test]
    fn copies() {
        let program = prepare(Path::new("/bin/cat")).expect("it is there");
        let real = hashes::digest_of(&mut File::open("/bin/cat").expect("there")).expect("read");
        assert_eq!(program.hashed, real);
        let place = format!("/proc/self/fd/{}", program.copy.as_raw_fd());
        let mut writing = File::options().write(true).open(place);
        use std::io::Write;
        assert!(
            writing.as_mut().map_or(Ok(()), |file| file.write_all(b"x").map_or(Ok(()), |()| Err(()))).is_ok()
        );
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").expect("written");
        assert!(prepare(&script).is_err());
    }
}
