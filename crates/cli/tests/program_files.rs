//! Rules for programs, and the files of programs: changed without a trace, at fixed addresses, on file systems of
//! others, and so large that reading them holds others up. Needs root, as the helper does; without it these tests do
//! nothing.

use crate::common;
use crate::program_rules::{Site, plain};

use common::{run, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Prints a file, without needing any shared library.
const READER: &str = "
#include <stdio.h>
int main(int count, char **arguments) {
    FILE *file = fopen(arguments[1], \"r\");
    if (!file) { perror(arguments[1]); return 1; }
    for (int c; (c = fgetc(file)) != EOF;) putchar(c);
    return 0;
}
";

/// A file on a file system in memory; dropping it removes the file.
struct InMemory(std::path::PathBuf);

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Changes a byte of a program's messages through a shared mapping, which on tmpfs does not change the file's times.
fn change_through_a_mapping(program: &Path) {
    let script = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    with mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(b'GNU core')
        memory[at] ^= 1
";
    run(Command::new("python3").args(["-c", script]).arg(program));
}

/// Proves: a program on tmpfs that was changed through a mapping, of which no time of the file tells, is another
/// program; one that was not changed is let in each time.
#[test]
fn a_change_that_no_time_tells() {
    let Some(site) = Site::new() else { return };
    let copy = InMemory(format!("/dev/shm/holdfast-test-{}", std::process::id()).into());
    fs::copy("/bin/cat", &copy.0).expect("copied");
    // An ordinary user's program: what only root can change is trusted.
    std::os::unix::fs::chown(&copy.0, Some(65534), Some(65534)).expect("given away");
    let times = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time");
    let before = times(&copy.0);
    // Old enough that its digest would be remembered, if digests of such files were.
    std::thread::sleep(std::time::Duration::from_secs(4));
    site.admits(&mut plain(&copy.0, &site.file()));
    site.admits(&mut plain(&copy.0, &site.file()));
    change_through_a_mapping(&copy.0);
    assert_eq!(times(&copy.0), before, "the change left no trace");
    site.refuses(&mut plain(&copy.0, &site.file()));
}

/// Proves: programs that are not position-independent are let in like others, linked statically or not.
#[test]
fn programs_at_fixed_addresses() {
    let Some(site) = Site::new() else { return };
    let source = site.world.path("reader.c");
    fs::write(&source, READER).expect("written");
    for (name, options) in [("fixed", &["-no-pie"][..]), ("static", &["-static", "-no-pie"])] {
        let program = site.world.path(name);
        run(Command::new("cc").args(options).arg("-o").arg(&program).arg(&source));
        let rule = format!("prog:{}=r", program.display());
        run(site.world.holdfast("anna").args(["acl", "set"]).arg(site.file()).arg(rule));
        site.admits(&mut plain(&program, &site.file()));
    }
}

/// Proves: a program on a file system whose server may change it at any time is refused, although its bytes are now
/// those that the rule names.
#[test]
fn a_program_whose_file_is_others_affair() {
    let Some(site) = Site::new() else { return };
    let program = site.team.join("reader");
    fs::copy("/bin/cat", &program).expect("copied");
    site.refuses(&mut plain(&program, &site.file()));
    let why = text(&site.world.holdfast("anna").arg("why").arg(site.file()).output().expect("it runs"));
    assert!(why.contains("others than root may change"), "{why}");
}

/// Proves: a user who opens ruled files with huge programs is refused once a budget is used up, with EACCES and a
/// reason, and others are let in meanwhile.
#[test]
fn huge_programs_hold_up_nobody() {
    let Some(site) = Site::new() else { return };
    let huge = site.world.path("huge");
    fs::copy("/bin/cat", &huge).expect("copied");
    // A hole where the loader does not look.
    fs::File::options().write(true).open(&huge).and_then(|file| file.set_len(900 << 20)).expect("grown");
    fs::set_permissions(&huge, fs::Permissions::from_mode(0o777)).expect("set");
    let mut reasons = String::new();
    for _ in 0..4 {
        let output = plain(&huge, &site.file()).output().expect("it runs");
        assert!(text(&output).contains("Permission denied"), "{}", text(&output));
        site.admits(&mut plain(&site.reader, &site.file()));
        reasons += &text(&site.world.holdfast("anna").arg("why").arg(site.file()).output().expect("it runs"));
    }
    assert!(reasons.contains("too many bytes of programs"), "{reasons}");
}
