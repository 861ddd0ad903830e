//! A test from inside that the walls hold, before any input is read. It tries what must fail.
//!
//! The filter of system calls is not tested here, since a violation ends the process. `crate::selfcheck` does
//! that, in processes of its own.

use super::{Permission, Profile, Wall};
use crate::error::{ComponentError, During, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{DumpableBehavior, dumpable_behavior};
use rustix::thread::{capabilities, no_new_privs};

/// Checks that the walls hold.
///
/// # Errors
/// The first wall that does not.
pub(crate) fn holds(profile: &Profile, lacking: &[Wall]) -> Result<()> {
    let leak = |what| Err(ComponentError::SandboxLeaks(what));
    let sets = capabilities(None).during("looking at capabilities")?;
    if !(sets.effective | sets.permitted | sets.inheritable).is_empty() {
        return leak("it has capabilities");
    }
    if !no_new_privs().during("looking at privileges")? {
        return leak("it could gain privileges by executing a program");
    }
    if dumpable_behavior().during("looking at memory's openness")? != DumpableBehavior::NotDumpable {
        return leak("its memory is open to processes of the same user");
    }
    let contained = !lacking.contains(&Wall::Namespaces);
    let landlocked = !lacking.contains(&Wall::Landlock);
    if contained && std::process::id() != 1 {
        return leak("it sees other processes");
    }
    if contained || landlocked {
        for path in ["/etc/passwd", "/proc/self/mem", "/dev/null", "/", "."] {
            if openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok()
                && (landlocked || !matches!(path, "/" | "."))
            {
                return leak("it can open files");
            }
        }
        if openat(CWD, "made", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).is_ok() {
            return leak("it can make files");
        }
    }
    if contained && !profile.has(Permission::Connect) {
        let nowhere = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
        match socket(AddressFamily::INET, SocketType::DGRAM, None) {
            Ok(outward) if rustix::net::connect(&outward, &nowhere) != Err(Errno::NETUNREACH) => {
                return leak("it reaches a network");
            }
            _ => {}
        }
    }
    Ok(())
}
