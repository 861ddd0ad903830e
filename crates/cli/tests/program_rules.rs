//! Rules for programs on real mounts, with the real helper: which programs are let in, and every known way around it.
//! Needs root, as the helper does; without it these tests do nothing.

use crate::common;

use common::{World, eventually, run, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const SECRET: &str = "the secret";
/// The messages of EACCES and EPERM.
const REFUSED: [&str; 2] = ["Permission denied", "Operation not permitted"];

/// A mount with a ruled file, and the helper.
pub struct Site {
    pub world: World,
    helper: Option<Child>,
    pub team: PathBuf,
    /// The program that is let in: a copy of cat.
    pub reader: PathBuf,
}

impl Site {
    /// `None` where the test does not run as root.
    pub fn new() -> Option<Site> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let mut world = World::new(&["anna"]);
        let socket = world.path("callers.socket");
        let team = world.mount_with("anna", &["--allow-other", "--callers", text_of(&socket)]).join("team");
        let reader = world.path("reader");
        fs::copy("/bin/cat", &reader).expect("copied");
        let mut site = Site { world, helper: None, team, reader };
        site.start_helper();
        fs::write(site.file(), SECRET).expect("written");
        site.set(&site.file(), &[&format!("prog:{}=r", site.reader.display())]);
        Some(site)
    }

    pub fn socket(&self) -> PathBuf {
        self.world.path("callers.socket")
    }

    pub fn file(&self) -> PathBuf {
        self.team.join("secret")
    }

    fn start_helper(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.world.path("callers.log"))
            .expect("a log");
        let helper = self
            .world
            .holdfast("root")
            .args(["callers", "--socket"])
            .arg(self.socket())
            .env("HOLDFAST_LOG", "debug")
            .stderr(log)
            .spawn()
            .expect("it starts");
        self.helper = Some(helper);
        let log = self.world.path("callers.log");
        let lines = |path: &Path| {
            fs::read_to_string(path).unwrap_or_default().matches("identifying programs").count()
        };
        let wanted = 1 + self.starts();
        eventually("the helper listens", || lines(&log) >= wanted);
        fs::write(self.world.path("starts"), wanted.to_string()).expect("written");
    }

    /// The helper's process.
    pub fn helper_id(&self) -> u32 {
        self.helper.as_ref().expect("it was started").id()
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.world.path("starts")).ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    fn kill_helper(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            helper.kill().expect("a child can be killed");
            helper.wait().expect("it ends");
        }
    }

    #[track_caller]
    fn set(&self, file: &Path, rules: &[&str]) -> String {
        run(self.world.holdfast("anna").args(["acl", "set"]).arg(file).args(rules))
    }

    fn why(&self, arguments: &[&str]) -> String {
        let output = self
            .world
            .holdfast("anna")
            .arg("why")
            .arg(self.file())
            .args(arguments)
            .output()
            .expect("it runs");
        text(&output)
    }

    #[track_caller]
    pub fn admits(&self, command: &mut Command) {
        assert_eq!(run(command.env_clear()), SECRET, "{}", self.why(&[]));
    }

    #[track_caller]
    pub fn refuses(&self, command: &mut Command) {
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        self.refused(&output);
    }

    #[track_caller]
    fn refused(&self, output: &Output) {
        let printed = text(output);
        assert!(!printed.contains(SECRET), "{printed}");
        assert!(REFUSED.iter().any(|word| printed.contains(word)), "{printed}\n{}", self.why(&[]));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_helper();
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("text")
}

pub fn plain(program: impl AsRef<Path>, file: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    command.arg(file).env_clear();
    command
}

/// Proves: the program that a rule names is let in, for reading only, wherever a copy of it is. Other programs are not,
/// nor is one with a changed byte. Each refusal is explained.
#[test]
fn the_named_program_and_no_other() {
    let Some(site) = Site::new() else { return };
    let file = site.file();
    site.admits(&mut plain(&site.reader, &file));
    // The system's cat is the same program.
    site.admits(&mut plain("/bin/cat", &file));
    site.refuses(&mut plain("/usr/bin/head", &file));
    let printed = site.why(&[]);
    assert!(
        printed.contains("no rule of the file names this program") && printed.contains("/usr/bin/head"),
        "{printed}"
    );
    assert!(site.why(&["/bin/cat"]).contains("is let in to read"), "{}", site.why(&["/bin/cat"]));
    assert!(site.why(&["/usr/bin/head"]).contains("is refused"));

    let elsewhere = site.world.path("elsewhere");
    fs::copy(&site.reader, &elsewhere).expect("copied");
    site.admits(&mut plain(&elsewhere, &file));
    let mut bytes = fs::read(&elsewhere).expect("read");
    // One byte of its messages, so that it still runs.
    let at = bytes.windows(8).position(|part| part == b"GNU core").expect("cat speaks of itself");
    bytes[at] ^= 1;
    let changed = site.world.path("changed");
    fs::write(&changed, &bytes).expect("written");
    fs::set_permissions(&changed, fs::Permissions::from_mode(0o755)).expect("set");
    site.refuses(&mut plain(&changed, &file));

    // This process is not cat: it can neither read the file nor do anything else with its name.
    for failed in [
        fs::read(&file).map(drop),
        fs::write(&file, "x"),
        fs::File::options().append(true).open(&file).map(drop),
        fs::hard_link(&file, site.team.join("link"))
            .and_then(|()| fs::read(site.team.join("link")).map(drop)),
        fs::rename(site.team.join("link"), site.team.join("moved"))
            .and_then(|()| fs::read(site.team.join("moved")).map(drop)),
    ] {
        assert_eq!(failed.expect_err("refused").kind(), std::io::ErrorKind::PermissionDenied);
    }
    let truncated =
        run(Command::new("sh").arg("-c").arg(format!("truncate -s 0 {} 2>&1 || true", file.display())));
    assert!(REFUSED.iter().any(|word| truncated.contains(word)), "{truncated}");
    let descriptor = fs::File::options().read(true).custom_flags_path(&file);
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor));
    assert!(fs::read(again).is_err(), "an O_PATH descriptor opens nothing by itself");
    // The rule's rights refuse writing, although the program may open the file.
    let output = Command::new("/bin/cat").env_clear().arg("/dev/null").stdout(Stdio::null()).status();
    assert!(output.expect("it runs").success());
    site.admits(&mut plain(&site.reader, &file));

    // A file without rules needs no helper.
    fs::write(site.team.join("open"), "to all").expect("written");
    assert_eq!(fs::read_to_string(site.team.join("open")).expect("read"), "to all");
    run(site.world.holdfast("anna").args(["acl", "clear"]).arg(&file));
    assert_eq!(fs::read_to_string(&file).expect("read"), SECRET);
}

/// Opens with O_PATH.
trait PathOnly {
    fn custom_flags_path(&mut self, path: &Path) -> fs::File;
}

impl PathOnly for fs::OpenOptions {
    fn custom_flags_path(&mut self, path: &Path) -> fs::File {
        use std::os::unix::fs::OpenOptionsExt;
        const O_PATH: i32 = 0o10_000_000;
        self.custom_flags(O_PATH).open(path).expect("a name may be looked at")
    }
}

/// Proves: the admitted program is refused when something else could act through it: code that its environment loads, a
/// tracer, or a script that it interprets.
#[test]
fn a_program_that_is_not_itself() {
    let Some(site) = Site::new() else { return };
    let file = site.file();
    for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_BIND_NOW", "GCONV_PATH"] {
        site.refuses(plain(&site.reader, &file).env(variable, ""));
    }
    assert!(site.why(&[]).contains("its environment has"), "{}", site.why(&[]));
    // Run by the loader, the process's program is the loader.
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    if loader.exists() {
        site.refuses(plain(loader, &site.reader).arg(&file));
    }
    site.refuses(
        Command::new("/usr/bin/strace").args(["-f", "-o", "/dev/null"]).arg(&site.reader).arg(&file),
    );
    assert!(site.why(&[]).contains("traces it"), "{}", site.why(&[]));
    // The program of a script is its interpreter, and an interpreter is let in only if the rule says so.
    let named = site.world.holdfast("anna").args(["acl", "set"]).arg(&file).arg("prog:/bin/bash=r").output();
    let printed = text(&named.expect("it runs"));
    assert!(printed.contains("interpreter"), "{printed}");
    let hash = run(site.world.holdfast("anna").args(["program", "show", "/bin/bash"]));
    let hash = hash.split_whitespace().next().expect("a hash").to_owned();
    site.set(&file, &[&format!("{hash}=r")]);
    let script = ["-c".to_owned(), format!("read line < {} || true; echo -n \"$line\"", file.display())];
    site.refuses(Command::new("/bin/bash").args(&script).env_clear());
    assert!(site.why(&[]).contains("+interpreter"), "{}", site.why(&[]));
    site.set(&file, &[&format!("{hash}=r+interpreter")]);
    assert_eq!(run(Command::new("/bin/bash").args(&script).env_clear()), SECRET);
}

/// Proves: a program's file that others than root may change is not trusted to be the program.
#[test]
fn a_library_of_somebody_else() {
    let Some(site) = Site::new() else { return };
    let source = site.world.path("opener.c");
    let library = "void helper(void) {}\n";
    let program = "#include <stdio.h>\n#include <dlfcn.h>\nint main(int n, char **a) { if (n > 2) dlopen(a[2], 2);\n\
        FILE *f = fopen(a[1], \"r\"); if (!f) { perror(a[1]); return 1; } int c; while ((c = getc(f)) != -1) putchar(c);\n\
        return 0; }\n";
    fs::write(&source, program).expect("written");
    let built = site.world.path("opener");
    run(Command::new("cc").arg("-o").arg(&built).arg(&source));
    let library_source = site.world.path("library.c");
    fs::write(&library_source, library).expect("written");
    let shared = site.world.path("library.so");
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shared).arg(&library_source));
    site.set(&site.file(), &[&format!("prog:{}=r", built.display())]);
    site.admits(&mut plain(&built, &site.file()));
    std::os::unix::fs::chown(&shared, Some(1000), Some(1000)).expect("root gives it away");
    site.refuses(plain(&built, &site.file()).arg(&shared));
    assert!(site.why(&[]).contains("others than root may change"), "{}", site.why(&[]));
}

/// Proves: without the helper a ruled file is refused. Killing and restarting the helper takes effect at once, and a
/// helper that does not run as root counts for nothing.
#[test]
fn the_helper_gone_back_and_false() {
    let Some(mut site) = Site::new() else { return };
    let file = site.file();
    site.admits(&mut plain(&site.reader, &file));
    for _ in 0..3 {
        site.kill_helper();
        site.refuses(&mut plain(&site.reader, &file));
        let printed = site.why(&["/bin/cat"]);
        assert!(printed.contains("missing") && printed.contains("holdfast program callers"), "{printed}");
        site.start_helper();
        site.admits(&mut plain(&site.reader, &file));
    }
    site.kill_helper();
    fs::remove_file(site.socket()).expect("it was left");
    // Another user's helper at the very same socket.
    fs::set_permissions(site.world.folder.path(), fs::Permissions::from_mode(0o777)).expect("set");
    let code = "import socket,sys,time\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\ns.bind(sys.argv[1])\n\
        s.listen(8)\nprint('up',flush=True)\ntime.sleep(3600)";
    let mut fake = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "/usr/bin/env", "python3", "-c", code])
        .arg(site.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    // Its end changes nothing, so nothing is reported.
    let mut printed = String::new();
    let out = fake.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut printed).expect("read");
    site.refuses(&mut plain(&site.reader, &file));
    if printed == "up\n" {
        assert!(site.why(&[]).contains("does not count"), "{}", site.why(&[]));
    }
    fake.kill().expect("a child can be killed");
    fake.wait().expect("it ends");
}

/// Proves: programs cannot set, damage or remove rules through the mount; rules that cannot be read refuse every
/// program.
#[test]
fn rules_are_out_of_reach() {
    let Some(site) = Site::new() else { return };
    let file = site.file();
    let before = run(site.world.holdfast("anna").args(["acl", "get"]).arg(&file));
    for arguments in [["-n", "user.holdfast.acl", "-v", "none"].as_slice(), &["-x", "user.holdfast.acl"]] {
        let code = match arguments.len() {
            4 => "import os,sys; os.setxattr(sys.argv[1], 'user.holdfast.acl', b'none')",
            _ => "import os,sys; os.removexattr(sys.argv[1], 'user.holdfast.acl')",
        };
        site.refuses(Command::new("python3").args(["-c", code]).arg(&file));
    }
    assert_eq!(run(site.world.holdfast("anna").args(["acl", "get"]).arg(&file)), before);
    site.admits(&mut plain(&site.reader, &file));
    let last = site.world.holdfast("anna").args(["acl", "remove"]).arg(&file).arg("prog:/bin/cat").output();
    assert!(text(&last.expect("it runs")).contains("last rule"));
}

/// Proves: files that are made in a directory with rules get these rules, the program that makes them must be let in by
/// the rules, and names keep working.
#[test]
fn directories_hand_rules_down() {
    let Some(mut site) = Site::new() else { return };
    let keys = site.team.join("keys");
    fs::create_dir(&keys).expect("made");
    fs::write(keys.join("old"), SECRET).expect("written");
    let touch = site.world.path("writer");
    fs::copy("/bin/dd", &touch).expect("copied");
    let rules = ["prog:/bin/dd=rw".to_owned(), "prog:/bin/cat=r".to_owned()];
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    site.set(&keys, &rules);
    assert_eq!(fs::read_to_string(keys.join("old")).expect("it was there before"), SECRET);
    let dd = |to: &Path| {
        let mut command = Command::new(&touch);
        command
            .arg(format!("if={}", site.world.path("content").display()))
            .arg(format!("of={}", to.display()));
        command.env_clear();
        command
    };
    fs::write(site.world.path("content"), SECRET).expect("written");
    run(&mut dd(&keys.join("new")));
    site.admits(&mut plain(&site.reader, &keys.join("new")));
    site.refuses(&mut plain("/usr/bin/head", &keys.join("new")));
    assert!(fs::write(keys.join("mine"), "x").is_err(), "this process is not named");
    assert!(fs::read(keys.join("mine")).is_err());
    // Rules apply below, and with --recursive to what was there.
    fs::create_dir(keys.join("sub")).expect("directories are made by whoever may");
    run(&mut dd(&keys.join("sub/deep")));
    site.refuses(&mut plain("/usr/bin/head", &keys.join("sub/deep")));
    run(site.world.holdfast("anna").args(["acl", "set", "--recursive"]).arg(&keys).args(&rules));
    site.refuses(&mut plain("/usr/bin/head", &keys.join("old")));
    site.admits(&mut plain(&site.reader, &keys.join("old")));
    // One file is excepted.
    site.set(&keys.join("old"), &["any=rw"]);
    assert_eq!(fs::read_to_string(keys.join("old")).expect("read"), SECRET);
    // Without the helper nothing can be made there.
    site.kill_helper();
    assert!(fs::write(keys.join("other"), "x").is_err());
    assert!(!keys.join("other").exists());
}

/// Proves: a rule for a package lets in what its key signed for it, version after version, and nothing else.
#[test]
fn packages_outlive_upgrades() {
    let Some(mut site) = Site::new() else { return };
    let config = site.world.path("config");
    let manifests = config.join("holdfast/programs");
    fs::create_dir_all(&manifests).expect("made");
    site.world.keygen("packager");
    let public = site.world.path("packager.key.pub");
    // The mount is started anew, where its process finds the manifests.
    site.world.umount("anna");
    site.world.environment.push(("XDG_CONFIG_HOME".to_owned(), text_of(&config).to_owned()));
    let socket = site.socket();
    site.world.mount_with("anna", &["--allow-other", "--callers", text_of(&socket)]);
    let file = site.file();
    site.set(&file, &[&format!("pkg:{}/reader=r", public.display())]);
    run(site.world.holdfast("anna").args(["acl", "remove"]).arg(&file).arg("prog:/bin/cat"));
    site.refuses(&mut plain(&site.reader, &file));
    let sign = |name: &str, package: &str, program: &Path| {
        let out = manifests.join(name);
        let key = site.world.key("packager");
        let mut command = site.world.holdfast("packager");
        command.args(["program", "sign", "--key"]).arg(key).args(["--name", package, "--out"]).arg(out);
        run(command.arg(program));
    };
    sign("other.hfpkg", "other", &site.reader);
    site.refuses(&mut plain(&site.reader, &file));
    sign("reader-1.hfpkg", "reader", &site.reader);
    site.admits(&mut plain(&site.reader, &file));
    // The next version: another program under the same name.
    fs::copy("/bin/tac", &site.reader).expect("copied");
    site.refuses(&mut plain(&site.reader, &file));
    sign("reader-2.hfpkg", "reader", &site.reader);
    site.admits(&mut plain(&site.reader, &file));
    let mut forged = fs::read(manifests.join("reader-2.hfpkg")).expect("read");
    let last = forged.len() - 1;
    forged[last] ^= 1;
    fs::write(manifests.join("reader-2.hfpkg"), forged).expect("written");
    site.refuses(&mut plain(&site.reader, &file));
}

/// Proves: a program that `holdfast program run` started is itself whatever its environment, cannot be traced, and is
/// not started if it is another than expected.
#[test]
fn started_clean() {
    let Some(site) = Site::new() else { return };
    let file = site.file();
    let start = |expected: &str| {
        let mut command = site.world.holdfast("anna");
        command.args(["run", "--as", expected, "--"]).arg(&site.reader).arg(&file).env("LD_BIND_NOW", "1");
        command.stdin(Stdio::null()).output().expect("it runs")
    };
    let output = start("prog:/bin/cat");
    assert_eq!(String::from_utf8_lossy(&output.stdout), SECRET, "{}\n{}", text(&output), site.why(&[]));
    assert!(text(&output).contains("runs as hash:"));
    let output = start("prog:/usr/bin/head");
    assert!(text(&output).contains("was not started"), "{}", text(&output));

    // While it runs, another process of its user cannot look into it.
    let mut running = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .args(["run", "--", "/bin/cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let process_dir = format!("/proc/{}", running.id());
    let is_cat = || {
        fs::read_link(format!("{process_dir}/exe"))
            .is_ok_and(|exe| exe.to_string_lossy().contains("memfd:cat"))
    };
    eventually("it runs", is_cat);
    let look = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "cat"])
        .arg(format!("{process_dir}/maps"))
        .output()
        .expect("it runs");
    assert!(text(&look).contains("Permission denied"), "{}", text(&look));
    drop(running.stdin.take());
    running.wait().expect("it ends");
}

/// Proves: whatever umask root starts the helper with, all users can reach its socket.
#[test]
fn the_helper_is_there_for_all() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::new(&["anna"]);
    let socket = world.path("run/callers");
    let start =
        format!("umask 077; exec {} callers --socket {}", env!("CARGO_BIN_EXE_holdfast"), text_of(&socket));
    let mut helper =
        Command::new("sh").args(["-c", &start]).stderr(Stdio::null()).spawn().expect("it starts");
    eventually("it listens", || socket.exists());
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    eventually("all may speak to it", || mode(&socket) == 0o666);
    assert_eq!(mode(socket.parent().expect("a folder")), 0o755);
    helper.kill().expect("killed");
    helper.wait().expect("ended");
}

/// Starts a program as an ordinary user.
fn as_user(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]).arg(program).stdin(Stdio::null());
    command
}

/// A Python program that takes descriptor 3 of a process, traces it, and reads its memory; it prints what succeeded.
const REACH: &str = r#"
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
done = []
pidfd = libc.syscall(434, pid, 0)
if libc.syscall(438, pidfd, 3, 0) >= 0: done.append('descriptor')
if libc.ptrace(0x4206, pid, 0, 0) >= 0: done.append('trace')
try:
    os.open(f'/proc/{pid}/mem', os.O_RDONLY); done.append('memory')
except OSError: pass
try:
    os.open(f'/proc/{pid}/fd/3', os.O_RDONLY); done.append('reopened')
except OSError: pass
print(*done)
"#;

/// A Python program that installs a filter of system calls, which lets everything pass, and then executes a program.
const FILTERED: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
class Filter(ctypes.Structure): _fields_ = [('code', ctypes.c_ushort), ('jt', ctypes.c_ubyte), ('jf', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Program(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.POINTER(Filter))]
allow = (Filter * 1)(Filter(6, 0, 0, 0x7fff0000))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Program(1, allow))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Asserts: unless a rule says +plain, it lets in a program of an ordinary user only if `holdfast program run` started
/// it, unobserved: then no process of that user can take its descriptors, trace it or read its memory. A program that
/// was traced or filtered before, that is in a user namespace, that executes another, or that is a child is refused;
/// one that was started plainly can be reached into.
pub fn reaching_into(site: &Site) {
    fs::set_permissions(site.world.folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let (file, socket) = (site.file(), site.socket());
    let holdfast = env!("CARGO_BIN_EXE_holdfast");
    let clean = |before: &[&str], program: &[&Path]| {
        let mut command = as_user("/usr/bin/env");
        command
            .arg("-i")
            .args(before)
            .arg(holdfast)
            .args(["run", "--callers"])
            .arg(&socket)
            .arg("--")
            .args(program);
        command.output().expect("it runs")
    };
    site.refuses(as_user(&site.reader).arg(&file).env_clear());
    assert!(site.why(&[]).contains("was not started clean"), "{}", site.why(&[]));
    let output = clean(&[], &[&site.reader, &file]);
    let log = || fs::read_to_string(site.world.path("callers.log")).unwrap_or_default();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        SECRET,
        "{}\n{}\n{}",
        text(&output),
        site.why(&[]),
        log()
    );
    assert!(!text(&output).contains("no helper knows"), "{}", text(&output));

    site.refused(&clean(&["python3", "-c", FILTERED], &[&site.reader, &file]));
    site.refused(&clean(&["strace", "-f", "-o", "/dev/null"], &[&site.reader, &file]));
    if as_user("unshare").args(["-Ur", "true"]).status().expect("it runs").success() {
        site.refused(&clean(&["unshare", "-Ur"], &[&site.reader, &file]));
    }
    site.refused(&clean(&[], &[Path::new("/usr/bin/env"), &site.reader, &file]));
    site.refused(&clean(&[], &[Path::new("/usr/bin/timeout"), Path::new("9"), &site.reader, &file]));

    // One program keeps the file open; another process of its user tries to reach into it.
    let tail = site.world.path("tail");
    fs::copy("/usr/bin/tail", &tail).expect("copied");
    let reach = |mut running: Child| {
        let opened = format!("/proc/{}/fd/3", running.id());
        eventually("it has the file open", || fs::read_link(&opened).is_ok_and(|path| path == file));
        let done = run(as_user("python3").args(["-c", REACH, &running.id().to_string()]));
        running.kill().expect("killed");
        running.wait().expect("ended");
        done.trim().to_owned()
    };
    site.set(&file, &[&format!("prog:{}=r", tail.display())]);
    let mut command = as_user(holdfast);
    command.env_clear().args(["run", "--callers"]).arg(&socket).arg("--").arg(&tail).arg("-f").arg(&file);
    assert_eq!(reach(command.stdout(Stdio::null()).spawn().expect("starts")), "", "nobody reaches into it");
    site.set(&file, &[&format!("prog:{}=r+plain", tail.display())]);
    assert!(site.why(&[text_of(&tail)]).contains("+plain"));
    let mut command = as_user(&tail);
    command.env_clear().arg("-f").arg(&file).stdout(Stdio::null());
    let done = reach(command.spawn().expect("starts"));
    // Where Yama restricts tracing, processes that did not start it cannot trace it in any case.
    let is_restricted =
        fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.trim() != "0");
    assert_eq!(
        done.contains("descriptor"),
        !is_restricted,
        "{done}: docs/programs.md says what a plain start withstands"
    );
}

/// Proves: a program whose code was changed in memory, by whoever can write there, is not the program any more.
#[test]
fn code_changed_in_memory() {
    let Some(site) = Site::new() else { return };
    let start = || {
        let mut command = Command::new(&site.reader);
        // The program opens the file when its standard input ends.
        command.arg("-").arg(site.file()).env_clear().stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let code_of = |process: u32| {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let reader = text_of(&site.reader).to_owned();
        let line = maps.lines().find(|line| line.contains("r-xp") && line.ends_with(&reader))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    };
    for is_changed in [false, true] {
        let mut running = start();
        eventually("it runs", || code_of(running.id()).is_some());
        if is_changed {
            use std::os::unix::fs::FileExt;
            let process_dir = code_of(running.id()).expect("it runs");
            let memory = format!("/proc/{}/mem", running.id());
            let memory = fs::File::options().read(true).write(true).open(memory).expect("root may");
            let mut byte = [0];
            memory.read_exact_at(&mut byte, process_dir).expect("read");
            memory.write_all_at(&byte, process_dir).expect("written, though with what was there");
        }
        drop(running.stdin.take());
        let output = running.wait_with_output().expect("it ends");
        match is_changed {
            false => assert_eq!(String::from_utf8_lossy(&output.stdout), SECRET, "{}", site.why(&[])),
            true => {
                site.refused(&output);
                assert!(site.why(&[]).contains("was changed in memory"), "{}", site.why(&[]));
            }
        }
    }
}

/// Proves: rules travel to other devices, where each mount asks a helper of its own machine; so do two mounts of one
/// key. A file that is executed is opened by the process that executes it.
#[test]
fn several_mounts() {
    let Some(mut site) = Site::new() else { return };
    site.world.keygen("ben");
    let public = fs::read_to_string(site.world.path("ben.key.pub")).expect("a public key");
    let url = site.world.url.clone();
    site.world.administer(&["fs", "user", "add", &url, "ben", public.trim()]);
    let nowhere = site.world.path("nowhere");
    let ben = site.world.mount_with("ben", &["--callers", text_of(&nowhere)]).join("team");
    site.refuses(&mut plain(&site.reader, &ben.join("secret")));
    site.world.umount("ben");
    let socket = site.socket();
    let ben = site.world.mount_with("ben", &["--callers", text_of(&socket)]).join("team");
    site.admits(&mut plain(&site.reader, &ben.join("secret")));
    site.refuses(&mut plain("/usr/bin/head", &ben.join("secret")));
    let second = site.world.mount_at("anna", "anna-second", &["--callers", text_of(&socket)]).join("team");
    site.admits(&mut plain(&site.reader, &second.join("secret")));
    site.refuses(&mut plain("/usr/bin/head", &second.join("secret")));
    site.admits(&mut plain(&site.reader, &site.file()));

    let tool = site.team.join("tool");
    fs::copy("/bin/true", &tool).expect("copied");
    run(&mut Command::new(&tool));
    site.set(&tool, &["prog:/bin/cat=r"]);
    let failed = Command::new(&tool).status().expect_err("this process is no cat");
    assert_eq!(failed.kind(), std::io::ErrorKind::PermissionDenied);
}

/// Proves: a mount of an ordinary user, which shuts out even root, is guarded all the same; another user cannot have it
/// guarded, nor anything that is no mount of theirs.
#[test]
fn a_mount_of_an_ordinary_user() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let home = world.path("uma");
    let mount = home.join("mnt");
    fs::create_dir_all(&mount).expect("made");
    for folder in [&home, &mount] {
        std::os::unix::fs::chown(folder, Some(1000), Some(1000)).expect("root gives it away");
    }
    let as_uma = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]).arg(program).env_clear();
        command.env("HOME", &home).env("PATH", "/usr/bin:/bin").current_dir(&home);
        command.env("HOLDFAST_STATE_DIR", home.join("state")).env("HOLDFAST_CACHE_DIR", home.join("cache"));
        command
    };
    let holdfast = || as_uma(Path::new(env!("CARGO_BIN_EXE_holdfast")));
    let key = home.join("key");
    run(holdfast().args(["keygen", "--out"]).arg(&key));
    let public = fs::read_to_string(home.join("key.pub")).expect("a public key");
    world.administer(&["fs", "user", "add", &world.url, "uma", public.trim()]);
    let mut mounting = holdfast();
    mounting
        .args(["mount", &world.url])
        .arg(&mount)
        .arg("--key")
        .arg(&key)
        .arg("--callers")
        .arg(site.socket());
    let mounted = mounting.output().expect("it runs");
    if !mounted.status.success() {
        // Users may not mount here: there is no fusermount3, or /dev/fuse is root's.
        assert!(text(&mounted).contains("fuse"), "{}", text(&mounted));
        return;
    }
    let file = mount.join("uma/secret");
    run(as_uma(Path::new("/usr/bin/tee")).arg(&file).stdin(Stdio::null()));
    let rule = format!("prog:{}=rw+plain", site.reader.display());
    run(holdfast().args(["acl", "set"]).arg(&file).arg(&rule));
    run(as_uma(&site.reader).arg(&file));
    let refused = as_uma(Path::new("/usr/bin/head")).arg(&file).output().expect("it runs");
    site.refused(&refused);
    let printed = text(&holdfast().arg("why").arg(&file).output().expect("it runs"));
    assert!(printed.contains("/usr/bin/head") && printed.contains("served by your own user"), "{printed}");
    // Without an open directory of it, the helper does not prevent unmounting.
    run(holdfast().arg("umount").arg(&mount));
}

/// Proves: a process that opens again and again on one thread, while others of its threads become the admitted program,
/// gets nothing; neither does one that opens through io_uring.
#[test]
fn races_and_rings() {
    let Some(site) = Site::new() else { return };
    let source = site.world.path("racer.c");
    fs::write(&source, RACER).expect("written");
    let racer = site.world.path("racer");
    run(Command::new("cc").args(["-pthread", "-o"]).arg(&racer).arg(&source));
    let output =
        Command::new(&racer).arg(site.file()).arg(&site.reader).env_clear().output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("opened 0"), "{}", text(&output));
    site.admits(&mut plain(&site.reader, &site.file()));
    // A program with io_uring that no rule names, then one that a rule names: both are identified.
    fs::write(&source, RING).expect("written");
    let ring = site.world.path("ring");
    run(Command::new("cc").arg("-o").arg(&ring).arg(&source));
    let result = |expected: &str| {
        let printed = text(&Command::new(&ring).arg(site.file()).env_clear().output().expect("it runs"));
        assert!(printed.contains(expected), "{printed}\n{}", site.why(&[]));
    };
    result("result -13 -13");
    site.set(&site.file(), &[&format!("prog:{}=r", ring.display())]);
    result("result ok ok");
}

/// Children in which one thread opens while another becomes the admitted program, whose output is discarded; counts the
/// opens that succeeded while the process was still this program.
const RACER: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static char **args; static volatile int *opened;
static void *opener(void *x) { for (;;) { int f = open(args[1], O_RDONLY); if (f >= 0) { (*opened)++; close(f); } } return x; }
int main(int n, char **a) {
  (void)n; args = a;
  opened = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 60; i++) {
    pid_t p = fork();
    if (!p) {
      pthread_t t[2]; for (int k = 0; k < 2; k++) pthread_create(&t[k], 0, opener, 0);
      usleep(rand() % 3000);
      int null = open("/dev/null", O_WRONLY); dup2(null, 1);
      char *with[] = { a[2], a[1], 0 }, *none[] = { 0 };
      execve(a[2], with, none); _exit(9);
    }
    int status; waitpid(p, &status, 0);
    if (status) { printf("child %x\n", status); return 1; }
  }
  printf("opened %d\n", *opened); return 0;
}
"#;

/// A program that opens by io_uring, at once and by a worker of the kernel, and prints both results.
const RING: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int ask(const char *path, unsigned flags) {
  struct io_uring_params p; memset(&p, 0, sizeof p);
  int r = syscall(SYS_io_uring_setup, 4, &p); if (r < 0) return -1000;
  char *sq = mmap(0, p.sq_off.array + p.sq_entries * 4, 3, MAP_SHARED, r, IORING_OFF_SQ_RING);
  char *cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), 3, MAP_SHARED, r, IORING_OFF_CQ_RING);
  struct io_uring_sqe *s = mmap(0, p.sq_entries * sizeof *s, 3, MAP_SHARED, r, IORING_OFF_SQES);
  memset(s, 0, sizeof *s); s->opcode = IORING_OP_OPENAT; s->flags = flags; s->fd = AT_FDCWD;
  s->addr = (unsigned long)path; s->open_flags = O_RDONLY;
  *(unsigned *)(sq + p.sq_off.array) = 0;
  __atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
  syscall(SYS_io_uring_enter, r, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
  return ((struct io_uring_cqe *)(cq + p.cq_off.cqes))->res;
}
int main(int n, char **a) {
  (void)n; int one = ask(a[1], 0), two = ask(a[1], IOSQE_ASYNC);
  if (one >= 0 && two >= 0) printf("result ok ok\n"); else printf("result %d %d\n", one, two);
  return 0;
}
"#;
