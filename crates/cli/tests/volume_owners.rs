//! Owners, ACLs, credentials and programs on volumes, through real mounts and the real command. As root.

use crate::common;

use common::{errno, eventually, is_mounted, run, text};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const MIB: u64 = 1 << 20;

/// A folder with a formatted card, and a state directory.
struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Workspace {
        let folder = tempfile::Builder::new().prefix("holdfast-owners.").tempdir().expect("a folder");
        // Users other than root go through this folder to their mounts.
        run(Command::new("chmod").arg("755").arg(folder.path()));
        let workspace = Workspace { folder };
        File::create(workspace.path("card")).expect("made").set_len(80 * MIB).expect("sized");
        run(workspace.holdfast().args(["volume", "format", "card", "--sidecar", "card.d"]));
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn holdfast(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(self.folder.path()).env("HOLDFAST_STATE_DIR", self.path("state"));
        command
    }

    /// Mounts for these sessions, each on its directory; the first session is the user's.
    fn mount(&self, sessions: &[(&str, &str)], more: &[&str]) -> Mounted {
        let mut command = self.holdfast();
        let (user, directory) = sessions[0];
        command.args(["volume", "mount", "card", directory, "--sidecar", "card.d", "--user", user]);
        for (who, directory) in &sessions[1..] {
            command.args(["--session", &format!("{who}={directory}")]);
        }
        for (_, directory) in sessions {
            let _ = fs::create_dir(self.path(directory));
        }
        let child = command.args(more).stdout(Stdio::null()).spawn().expect("starts");
        let directories = sessions.iter().map(|(_, directory)| self.path(directory)).collect();
        let mounted = Mounted { child, directories };
        eventually("the mounts are there", || {
            mounted.directories.iter().all(|directory| is_mounted(directory))
        });
        mounted
    }

    /// A command of the user `nobody`, with an almost empty environment.
    fn as_nobody(&self, command: &[&str]) -> Command {
        let mut other = Command::new("/usr/bin/setpriv");
        other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).args(command);
        other.current_dir(self.folder.path()).env_clear().env("PATH", "/usr/bin:/bin");
        other.env("HOLDFAST_STATE_DIR", "/nonexistent").env("HOME", "/nonexistent").stdin(Stdio::null());
        other
    }

    /// A copy of the command that every user can execute.
    fn public_holdfast(&self) -> String {
        let binary = self.path("holdfast");
        fs::copy(env!("CARGO_BIN_EXE_holdfast"), &binary).expect("copied");
        binary.to_str().expect("text").to_owned()
    }

    #[track_caller]
    fn does(&self, arguments: &[&str]) -> String {
        run(self.holdfast().args(arguments))
    }

    /// Runs a command, given as one line of words, that must succeed; returns its output.
    #[track_caller]
    fn does_line(&self, line: &str) -> String {
        self.does(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command that must fail, and returns its output.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.holdfast().args(arguments).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    /// Runs a command, given as one line of words, that must fail; returns its output.
    #[track_caller]
    fn refused_line(&self, line: &str) -> String {
        self.refused(&line.split_whitespace().collect::<Vec<_>>())
    }
}

struct Mounted {
    child: Child,
    directories: Vec<PathBuf>,
}

impl Mounted {
    fn unmount(mut self) {
        for directory in &self.directories {
            holdfast_testing::unmount(directory);
        }
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for directory in &self.directories {
            let _ = Command::new("umount").arg("-l").arg(directory).stderr(Stdio::null()).status();
        }
    }
}

const EACCES: Option<i32> = Some(13);

/// What a session may do with a file: as letters, r, w, a (change the ACL) and o (see the owner).
fn rights(workspace: &Workspace, path: &Path) -> String {
    let mut rights = String::new();
    if fs::read(path).is_ok() {
        rights.push('r');
    }
    match File::options().write(true).open(path) {
        Ok(file) => {
            file.write_all_at(b"X", 0).expect("who may open it to write may write");
            rights.push('w');
        }
        Err(error) => assert_eq!(error.raw_os_error(), EACCES),
    }
    let both = File::options().read(true).write(true).open(path);
    assert_eq!(both.is_ok(), rights.contains('w'), "{both:?}");
    let path = path.to_str().expect("text");
    for (letter, arguments) in
        [('a', ["acl", "set", path, "user:nobody-else=r"].as_slice()), ('o', &["owner", "show", path])]
    {
        if workspace.holdfast().args(arguments).output().expect("runs").status.success() {
            rights.push(letter);
        }
    }
    rights
}

/// Proves: who may read, change, see the owner of, and change the ACL of a file: its owner, and users and members of
/// groups that the ACL names, as it says; nobody else, not even the administrator. A change of the ACL applies to what
/// others have open, in the kernel's cache too, and to what the file grows by.
#[test]
fn who_may_what() {
    let workspace = Workspace::new();
    let sessions =
        [("alice", "alice"), ("bob", "bob"), ("carol", "carol"), ("dave", "dave"), ("root", "admin")];
    let mounted = workspace.mount(&sessions, &["--group", "staff=carol,dave", "--group", "other=bob"]);
    let acls: [(&str, &[&str], [&str; 5]); 6] = [
        ("private", &[], ["rwao", "", "", "", ""]),
        ("bob-reads", &["user:bob=r"], ["rwao", "r", "", "", ""]),
        ("bob-writes", &["user:bob=rw"], ["rwao", "rw", "", "", ""]),
        ("staff-reads", &["group:staff=r"], ["rwao", "", "r", "r", ""]),
        ("staff-and-carol", &["group:staff=r", "user:carol=rw"], ["rwao", "", "rw", "r", ""]),
        ("program", &["prog:/usr/bin/head=r"], ["rwao", "", "", "", ""]),
    ];
    for (name, entries, _) in &acls {
        let path = workspace.path("alice").join(name);
        fs::write(&path, vec![7; 10_000]).expect("written");
        if !entries.is_empty() {
            let path = path.to_str().expect("text");
            workspace.does(&[&["acl", "set", path], *entries].concat());
        }
    }
    for (name, _, expected) in &acls {
        for ((who, directory), expected) in sessions.iter().zip(expected) {
            let found = rights(&workspace, &workspace.path(directory).join(name));
            assert_eq!(&found, expected, "{who} and {name}");
        }
    }
    // The ACL in words.
    let shown = workspace.does(&["acl", "show", "alice/bob-reads"]);
    assert!(shown.contains("user:alice=rw") && shown.contains("user:bob=r"), "{shown}");
    assert_eq!(workspace.does(&["owner", "show", "alice/private"]).trim(), "user:alice");
    assert!(workspace.refused(&["acl", "show", "bob/bob-reads"]).contains("not yours"));
    let why = workspace.does(&["why", "alice/bob-reads", "user:bob"]);
    assert!(why.contains("user:bob may read it: by the entry user:bob=r"), "{why}");
    assert!(workspace.does(&["why", "alice/bob-reads", "user:carol"]).contains("user:carol is refused"));
    assert!(workspace.does(&["why", "alice/program", "/usr/bin/head"]).contains("may read it"));
    assert!(workspace.does(&["why", "alice/program", "/usr/bin/tail"]).contains("is refused"));
    assert!(workspace.refused(&["acl", "set", "alice/private", "prog:/bin/bash=r"]).contains("interpreter"));
    fs::write(workspace.path("alice/empty"), b"").expect("made");
    assert!(workspace.refused(&["acl", "set", "alice/empty", "user:bob=r"]).contains("write to it first"));
    assert!(workspace.refused(&["acl", "set", "alice", "user:bob=r"]).contains("directories"));

    // The ACL applies to what the file grows by.
    let file = File::options().write(true).open(workspace.path("alice/bob-reads")).expect("opens");
    file.write_all_at(&[9; 50_000], 10_000).expect("written");
    eventually("all of it is read", || {
        fs::read(workspace.path("bob/bob-reads")).expect("read").len() == 60_000
    });

    // Open, read, in the kernel's cache, and mapped.
    let open = File::open(workspace.path("bob/bob-reads")).expect("opens");
    let mut byte = [0];
    open.read_exact_at(&mut byte, 5).expect("read");
    let code = "import mmap,sys\nf=open(sys.argv[1],'rb')\nm=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n\
        print(m[100],flush=True)\nsys.stdin.readline()\nprint(m[100],flush=True)";
    let mut mapper = Command::new("python3")
        .args(["-c", code])
        .arg(workspace.path("bob/bob-reads"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut said = BufReader::new(mapper.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it speaks");
    assert_eq!(line.trim(), "7");
    workspace.does(&["acl", "remove", "alice/bob-reads", "user:bob"]);
    eventually("what is open can be read no more", || errno(open.read_exact_at(&mut [0], 5)) == EACCES);
    writeln!(mapper.stdin.take().expect("piped"), "again").expect("told");
    assert!(!mapper.wait().expect("ends").success(), "the mapping is gone");
    assert_eq!(errno(fs::read(workspace.path("bob/bob-reads"))), EACCES);
    drop((open, file));

    // The owner can change the ACL even when it does not name the owner.
    workspace.does(&["acl", "remove", "alice/private", "user:alice"]);
    eventually("she reads it no more", || errno(fs::read(workspace.path("alice/private"))) == EACCES);
    workspace.does(&["acl", "clear", "alice/private"]);
    assert_eq!(fs::read(workspace.path("alice/private")).expect("hers").len(), 10_000);
    mounted.unmount();

    // The ACL is the same after mounting again.
    let mounted = workspace.mount(&sessions, &["--group", "staff=dave"]);
    assert_eq!(rights(&workspace, &workspace.path("bob/bob-writes")), "rw");
    assert_eq!(rights(&workspace, &workspace.path("dave/staff-reads")), "r");
    assert_eq!(rights(&workspace, &workspace.path("carol/staff-reads")), "", "no member any more");
    mounted.unmount();
}

/// Proves: a file gets a new owner, with its content, when its owner gives it and the new one accepts; neither alone
/// suffices. Afterwards it is the new owner's only.
#[test]
fn given_and_accepted() {
    let workspace = Workspace::new();
    let mounted = workspace.mount(&[("alice", "alice"), ("bob", "bob"), ("carol", "carol")], &[]);
    let content: Vec<u8> = (0..70_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(workspace.path("alice/gift"), &content).expect("written");
    assert!(workspace.refused(&["owner", "accept", "bob/gift"]).contains("not nominated"));
    assert!(workspace.refused(&["owner", "give", "bob/gift", "--to", "bob"]).contains("not yours"));
    workspace.does(&["owner", "give", "alice/gift", "--to", "bob"]);
    assert_eq!(errno(fs::read(workspace.path("bob/gift"))), EACCES, "not before he accepts");
    assert!(workspace.refused(&["owner", "accept", "carol/gift"]).contains("not nominated"));
    workspace.does(&["owner", "accept", "bob/gift"]);
    assert!(fs::read(workspace.path("bob/gift")).expect("his") == content);
    eventually("it is hers no more", || errno(fs::read(workspace.path("alice/gift"))) == EACCES);
    assert!(workspace.refused(&["acl", "set", "alice/gift", "user:alice=rw"]).contains("not yours"));
    assert_eq!(rights(&workspace, &workspace.path("bob/gift")), "rwao");

    // Malformed requests of any length and content are refused, and the session goes on.
    let code = "import fcntl,os,random,sys\nrandom.seed(5)\nfd=os.open(sys.argv[1],os.O_RDONLY)\n\
        for round in range(300):\n  n=random.choice([0,1,2,9,40,500,15996,15997,2**32-1])\n\
        \x20 body=bytes([random.randrange(8)])+random.randbytes(min(n,15995))\n\
        \x20 order=bytearray((n.to_bytes(4,'little')+body).ljust(16000,b'\\0')[:16000])\n\
        \x20 fcntl.ioctl(fd,0xfe804801,order,True)\n\
        try:\n  fcntl.ioctl(fd,0xfe804802,bytearray(16000),True)\nexcept OSError as error:\n  print(error.errno)";
    let said = run(Command::new("python3").args(["-c", code]).arg(workspace.path("bob")));
    assert_eq!(said.trim(), "25", "another ioctl is none of ours");
    assert!(fs::read(workspace.path("bob/gift")).expect("his").len() == content.len());
    mounted.unmount();
    let mounted = workspace.mount(&[("alice", "alice"), ("bob", "bob")], &[]);
    assert_eq!(rights(&workspace, &workspace.path("bob/gift")), "rwao");
    assert_eq!(rights(&workspace, &workspace.path("alice/gift")), "");
    mounted.unmount();
}

/// Proves: a session of a user of this machine, mounted by root, obeys that user; root can neither read nor send
/// requests there.
#[test]
fn a_session_obeys_its_user() {
    let workspace = Workspace::new();
    let mounted = workspace.mount(&[("root", "admin"), ("nobody", "nobody")], &[]);
    let file = workspace.path("nobody/file");
    let binary = workspace.public_holdfast();
    run(&mut workspace.as_nobody(&["sh", "-c", "echo mine > nobody/file"]));
    assert_eq!(errno(fs::read(&file)), EACCES);
    assert_eq!(errno(fs::write(workspace.path("nobody/other"), b"x")), EACCES);
    let said = workspace.refused(&["acl", "show", "nobody/file"]);
    assert!(said.contains("session is user:nobody's"), "{said}");
    assert!(workspace.refused(&["owner", "show", "admin/file"]).contains("not yours"));
    assert_eq!(fs::metadata(workspace.path("admin/file")).expect("seen").len(), 5, "sizes are seen");
    let shown = run(&mut workspace.as_nobody(&[&binary, "acl", "show", "nobody/file"]));
    assert_eq!(shown.trim(), "user:nobody=rw");
    run(&mut workspace.as_nobody(&[&binary, "acl", "set", "nobody/file", "user:root=r"]));
    assert_eq!(fs::read(workspace.path("admin/file")).expect("let in"), b"mine\n");
    mounted.unmount();
}

/// The helper that identifies programs.
struct Helper(Child);

impl Helper {
    fn start(workspace: &Workspace) -> Helper {
        let socket = workspace.path("callers");
        let mut child = workspace
            .holdfast()
            .args(["callers", "--socket"])
            .arg(&socket)
            .env("HOLDFAST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut words = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("identifying programs") {
            line.clear();
            assert_ne!(words.read_line(&mut line).expect("it speaks"), 0, "it ended");
        }
        std::thread::spawn(move || std::io::copy(&mut words, &mut std::io::sink()));
        Helper(child)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plain(program: &Path, file: &Path) -> Output {
    Command::new(program).arg(file).env_clear().stdin(Stdio::null()).output().expect("runs")
}

/// Proves: a file that its owner restricts to a program can be read by that program alone, through the program's
/// session, while the helper identifies who opens; no other program can read it there, and nobody in the owner's own
/// session. Programs own what they make. Each refusal is explained.
#[test]
fn programs() {
    let workspace = Workspace::new();
    // The rule is about the program's content, whatever its name.
    let (reader, tail) = (workspace.path("reader"), Path::new("/usr/bin/tail"));
    fs::copy("/usr/bin/head", &reader).expect("copied");
    let session = format!("prog:{}", reader.display());
    let socket = workspace.path("callers");
    let helper = Helper::start(&workspace);
    let callers = ["--callers", socket.to_str().expect("text")];
    let mounted = workspace.mount(&[("alice", "alice"), (&session, "reading"), ("bob", "bob")], &callers);
    let (hers, file) = (workspace.path("alice/secret"), workspace.path("reading/secret"));
    fs::write(&hers, b"the secret").expect("written");
    fs::write(workspace.path("alice/private"), b"not for programs").expect("written");
    let entry = format!("{session}=r");
    workspace.does(&["acl", "set", "alice/secret", &entry]);
    workspace.does(&["acl", "remove", "alice/secret", "user:alice"]);

    let read = |program: &Path| plain(program, &file);
    assert_eq!(text(&read(&reader)), "the secret");
    assert_eq!(text(&read(Path::new("/usr/bin/head"))), "the secret", "the same program elsewhere");
    let denied = |output: Output| {
        let said = text(&output);
        assert!(said.contains("Permission denied") && !said.contains("the secret"), "{said}");
    };
    denied(read(tail));
    denied(plain(&reader, &hers));
    eventually("her own programs read it no more", || errno(fs::read(&hers)) == EACCES);
    denied(plain(&reader, &workspace.path("bob/secret")));
    denied(plain(&reader, &workspace.path("reading/private")));
    assert_eq!(errno(File::options().write(true).open(&file)), EACCES, "this is another program");
    denied(Command::new(&reader).arg(&file).env_clear().env("LD_BIND_NOW", "1").output().expect("runs"));
    // The content is in the kernel's cache for the program, and still not for others.
    denied(read(tail));
    assert_eq!(text(&read(&reader)), "the secret");
    let why = workspace.does(&["why", "reading/secret"]);
    assert!(why.contains("/usr/bin/tail") && why.contains("no rule of the file names this program"), "{why}");
    let why = workspace.does(&["why", "alice/secret", reader.to_str().expect("text")]);
    assert!(why.contains("may read it") && why.contains("through a session for it"), "{why}");
    // Nobody changes names in a program's session, or sends requests there.
    assert_eq!(errno(fs::remove_file(&file)), Some(1));
    assert_eq!(errno(fs::rename(&file, workspace.path("reading/other"))), Some(1));
    assert!(workspace.refused(&["acl", "set", "reading/secret", "user:bob=r"]).contains("a program's"));
    // Started by `holdfast program run`.
    let run_clean = workspace
        .holdfast()
        .args(["run", "--as", &session, "--"])
        .arg(&reader)
        .arg(&file)
        .output()
        .expect("runs");
    assert!(text(&run_clean).contains("the secret"), "{}", text(&run_clean));

    drop(helper);
    denied(read(&reader));
    let why = workspace.does(&["why", "reading/secret"]);
    assert!(why.contains("holdfast program callers"), "{why}");
    let helper = Helper::start(&workspace);
    assert_eq!(text(&read(&reader)), "the secret");
    drop(helper);
    mounted.unmount();
}

/// Proves: a session for a program lets in a program of an ordinary user only if `holdfast program run` started it, so
/// that no other process of that user can take what it has opened. A session mounted with `+plain` lets it in however
/// it was started.
#[test]
fn programs_started_clean() {
    let workspace = Workspace::new();
    let (reader, socket) = (workspace.path("reader"), workspace.path("callers"));
    fs::copy("/usr/bin/head", &reader).expect("copied");
    let (reader, socket) = (reader.to_str().expect("text"), socket.to_str().expect("text"));
    let helper = Helper::start(&workspace);
    let (clean, plainly) = (format!("prog:{reader}"), format!("prog:{reader}+plain"));
    let sessions = [("nobody", "nobody"), (&clean, "clean"), (&plainly, "plainly")];
    let mounted = workspace.mount(&sessions, &["--callers", socket]);
    let binary = workspace.public_holdfast();
    run(&mut workspace.as_nobody(&["sh", "-c", "echo the secret > nobody/secret"]));
    let entries = [format!("prog:{reader}=r"), format!("prog:{reader}=r+plain")];
    run(&mut workspace.as_nobody(&[&binary, "acl", "set", "nobody/secret", &entries[0], &entries[1]]));
    let acl = run(&mut workspace.as_nobody(&[&binary, "acl", "show", "nobody/secret"]));
    assert_eq!(acl.matches("=r+plain").count(), 1, "{acl}");

    let said = |command: &mut Command| text(&command.output().expect("runs"));
    let refused = said(&mut workspace.as_nobody(&[reader, "clean/secret"]));
    assert!(refused.contains("Permission denied") && !refused.contains("the secret"), "{refused}");
    let why = said(&mut workspace.as_nobody(&[&binary, "why", "clean/secret"]));
    assert!(why.contains("was not started clean") && why.contains("holdfast program run"), "{why}");
    let run_clean = [&binary, "run", "--callers", socket, "--", reader, "clean/secret"];
    let read = said(&mut workspace.as_nobody(&run_clean));
    assert!(read.contains("the secret"), "{read}");
    assert_eq!(said(&mut workspace.as_nobody(&[reader, "plainly/secret"])), "the secret\n");
    drop(helper);
    mounted.unmount();
}

/// Proves: an entry for a package admits each program that its key signed, without a further change when a new version
/// comes.
#[test]
fn packages() {
    let workspace = Workspace::new();
    let helper = Helper::start(&workspace);
    workspace.does(&["keygen", "--out", "packager"]);
    let socket = workspace.path("callers");
    let package = format!("pkg:{}/tools", workspace.path("packager.pub").display());
    let home = workspace.path("home");
    fs::create_dir_all(home.join(".config/holdfast/programs")).expect("made");
    let sign = |program: &str, list: &str| {
        let out = home.join(".config/holdfast/programs").join(list);
        let out = out.to_str().expect("text");
        workspace.does(&["program", "sign", "--key", "packager", "--name", "tools", "--out", out, program]);
    };
    sign("/usr/bin/head", "1.hfpkg");
    // The mount's process looks for manifests where its user keeps them.
    let mut command = workspace.holdfast();
    for directory in ["alice", "tools"] {
        fs::create_dir(workspace.path(directory)).expect("made");
    }
    command
        .env("HOME", &home)
        .env_remove("XDG_CONFIG_HOME")
        .args(["volume", "mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"])
        .args(["--session", &format!("{package}=tools"), "--callers", socket.to_str().expect("text")]);
    let child = command.stdout(Stdio::null()).spawn().expect("starts");
    let directories = vec![workspace.path("alice"), workspace.path("tools")];
    let mounted = Mounted { child, directories };
    eventually("the mounts are there", || mounted.directories.iter().all(|path| is_mounted(path)));
    fs::write(workspace.path("alice/secret"), b"the secret").expect("written");
    workspace.does(&["acl", "set", "alice/secret", &format!("{package}=r")]);
    let read = |program: &str| text(&plain(Path::new(program), &workspace.path("tools/secret")));
    assert_eq!(read("/usr/bin/head"), "the secret");
    assert!(read("/usr/bin/tail").contains("Permission denied"));
    sign("/usr/bin/tail", "2.hfpkg");
    assert_eq!(read("/usr/bin/tail"), "the secret");
    fs::remove_file(home.join(".config/holdfast/programs/1.hfpkg")).expect("there");
    assert!(read("/usr/bin/head").contains("Permission denied"), "the old version is let in no more");
    drop(helper);
    mounted.unmount();
}

/// Proves: what a key's owner delegates, within its limits, a session can use until it is revoked, also for open files
/// and after a restart. What is forged, stale, revoked, for others, or more than was given is refused in words. The
/// holder of a key proves who they are with it, and the host's word does not suffice.
#[test]
fn credentials() {
    let workspace = Workspace::new();
    for key in ["alice", "job"] {
        workspace.does(&["keygen", "--out", &format!("{key}.key")]);
    }
    let sessions = [("alice", "alice"), ("bob", "bob"), ("carol", "carol")];
    // Before Alice has a key, the host says who she is.
    let mounted = workspace.mount(&sessions, &[]);
    for (name, content) in [("shared", "what bob's job needs"), ("private", "what it does not")] {
        fs::write(workspace.path("alice").join(name), content).expect("written");
    }
    let issue = |more: &[&str]| {
        workspace.does(&[&["credential", "issue", "--key", "alice.key"], more].concat());
    };
    issue(&["--to", "session:alice", "--volume", "alice", "--out", "own.cred"]);
    issue(&["--to", "user:bob", "--may", "read", "--file", "alice/shared", "--out", "bob.cred"]);
    issue(&["--to", "key:job.key.pub", "--may", "read", "--file", "alice/shared", "--out", "job.cred"]);
    issue(&["--to", "user:bob", "--may", "read", "--volume", "alice", "--days", "0", "--out", "stale.cred"]);
    issue(&["--to", "user:bob", "--may", "read", "--volume", &"5".repeat(32), "--out", "other.cred"]);
    let delegate = ["credential", "delegate", "--key", "job.key", "--from", "job.cred", "--to", "user:carol"];
    workspace.does(&[&delegate[..], &["--out", "carol.cred"]].concat());
    let more = workspace.refused(&[&delegate[..], &["--may", "write", "--out", "more.cred"]].concat());
    assert!(more.contains("no more can be handed on"), "{more}");
    assert!(workspace.does(&["credential", "show", "carol.cred"]).contains("user:carol speaks for"));
    mounted.unmount();

    // Once her key is known, a session in her name has only the rights that she signed.
    let key = ["--user-key", "alice=alice.key.pub"];
    let mounted = workspace.mount(&sessions, &key);
    assert_eq!(errno(fs::read(workspace.path("alice/private"))), EACCES);
    workspace.does(&["credential", "present", "alice", "own.cred"]);
    assert_eq!(fs::read(workspace.path("alice/private")).expect("hers"), b"what it does not");
    assert!(workspace.refused(&["credential", "present", "bob", "own.cred"]).contains("speaks for nobody"));

    assert_eq!(errno(fs::read(workspace.path("bob/shared"))), EACCES);
    let speaks = workspace.does(&["credential", "present", "bob", "bob.cred"]);
    assert!(speaks.contains("speaks for user:alice on read, on"), "{speaks}");
    let open = File::open(workspace.path("bob/shared")).expect("opens");
    open.read_exact_at(&mut [0], 3).expect("read");
    assert_eq!(rights(&workspace, &workspace.path("bob/shared")), "r");
    assert_eq!(rights(&workspace, &workspace.path("bob/private")), "");
    workspace.does(&["credential", "present", "carol", "carol.cred"]);
    assert_eq!(rights(&workspace, &workspace.path("carol/shared")), "r");

    // These credentials are refused.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let expired = workspace.refused(&["credential", "present", "bob", "stale.cred"]);
    assert!(expired.contains("has expired"), "{expired}");
    for (who, file) in [("bob", "other.cred"), ("carol", "bob.cred")] {
        let said = workspace.refused(&["credential", "present", who, file]);
        assert!(said.contains("speaks for nobody"), "{file}: {said}");
    }
    let mut forged = fs::read(workspace.path("bob.cred")).expect("read");
    let middle = forged.len() / 2;
    forged[middle] ^= 1;
    fs::write(workspace.path("forged.cred"), &forged).expect("written");
    workspace.refused(&["credential", "present", "bob", "forged.cred"]);
    let others = workspace.refused_line("credential revoke --key job.key --credential bob.cred --mount bob");
    assert!(others.contains("this key signed none of it"), "{others}");

    // Revoked: open files at once, and for good. What others were given stays.
    let revoke = ["credential", "revoke", "--key", "alice.key", "--credential"];
    workspace.does(&[&revoke[..], &["bob.cred", "--mount", "alice"]].concat());
    eventually("what is open can be read no more", || errno(open.read_exact_at(&mut [0], 3)) == EACCES);
    drop(open);
    assert_eq!(errno(fs::read(workspace.path("bob/shared"))), EACCES);
    assert_eq!(fs::read(workspace.path("carol/shared")).expect("by the job's key").len(), 20);
    let again = workspace.refused(&["credential", "present", "bob", "bob.cred"]);
    assert!(again.contains("was revoked"), "{again}");
    mounted.unmount();

    let mounted = workspace.mount(&sessions, &[&key[..], &["--credential", "carol=carol.cred"]].concat());
    let again = workspace.refused(&["credential", "present", "bob", "bob.cred"]);
    assert!(again.contains("was revoked"), "{again}");
    assert_eq!(fs::read(workspace.path("carol/shared")).expect("from the beginning").len(), 20);
    // A chain ends where any link of it does: here at its first.
    workspace.does(&[&revoke[..], &["carol.cred", "--mount", "bob"]].concat());
    eventually("the chain has ended", || errno(fs::read(workspace.path("carol/shared"))) == EACCES);
    mounted.unmount();
}

/// Proves: a session whose credential was revoked, and one whose VFS was killed, end alone. Their directories are free,
/// the reason is reported, calls that wait for them get an error, and the other mounts go on.
#[test]
fn a_session_ends_alone() {
    let workspace = Workspace::new();
    workspace.does(&["keygen", "--out", "alice.key"]);
    let sessions = [("alice", "alice"), ("bob", "bob"), ("carol", "carol")];
    let mounted = workspace.mount(&sessions, &[]);
    fs::write(workspace.path("alice/file"), "hers").expect("written");
    workspace.does_line("credential issue --key alice.key --to session:alice --volume alice --out own.cred");
    workspace
        .does_line("credential issue --key alice.key --to user:bob --may read --volume alice --out bob.cred");
    mounted.unmount();
    let key = ["--user-key", "alice=alice.key.pub", "--credential", "alice=own.cred"];
    let mounted = workspace.mount(&sessions, &key);
    eventually("she is known", || fs::read(workspace.path("alice/file")).is_ok());
    workspace.does_line("credential revoke --key alice.key --credential bob.cred --mount alice");
    mounted.unmount();

    let mut command = workspace.holdfast();
    command.args(["volume", "mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"]).args(key);
    command.args(["--session", "bob=bob", "--session", "carol=carol", "--credential", "bob=bob.cred"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let (out, said) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let directories = sessions.iter().map(|(_, directory)| workspace.path(directory)).collect();
    let mut mounted = Mounted { child, directories };
    let mut shown = String::new();
    BufReader::new(out).read_line(&mut shown).expect("it says what it mounted");
    let mut said = BufReader::new(said).lines().map(|line| line.expect("text"));
    let mut heard = |words: &str| said.by_ref().find(|line| line.contains(words)).expect("it is said");
    let why = heard("the mount of bob");
    assert!(why.contains("was revoked"), "{why}");
    assert!(!is_mounted(&workspace.path("bob")));
    assert_eq!(fs::read(workspace.path("alice/file")).expect("read"), b"hers");

    let listing: serde_json::Value =
        serde_json::from_str(&workspace.does(&["components", "--json"])).expect("JSON");
    let child = u64::from(mounted.child.id());
    let listings = listing.as_array().expect("a list");
    let own = listings.iter().find(|one| one["pid"].as_u64() == Some(child)).expect("this one");
    let components = own["components"].as_array().expect("a list");
    let vfs = components.iter().find(|one| one["name"] == "vfs-2").expect("carol's");
    let open = File::open(workspace.path("carol")).expect("open");
    run(Command::new("kill").args(["-9", &vfs["pid"].to_string()]));
    let why = heard("the mount of carol");
    assert!(why.contains("it was killed"), "{why}");
    eventually("her directory is free", || !is_mounted(&workspace.path("carol")));
    assert_eq!(errno(fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd()))), Some(107), "ENOTCONN");
    assert_eq!(fs::read(workspace.path("alice/file")).expect("read"), b"hers");
    mounted.directories.truncate(1);
    mounted.unmount();
}

/// Proves: what a session for a key makes is owned by the key. So the host's word makes nobody its owner, and only a
/// credential that the key signed lets a session act for it. An ACL can name a key.
#[test]
fn keys_own_files() {
    let workspace = Workspace::new();
    for key in ["alice", "bob"] {
        workspace.does(&["keygen", "--out", &format!("{key}.key")]);
    }
    let sessions = [("root", "admin"), ("key:alice.key.pub", "alice"), ("key:bob.key.pub", "bob")];
    let mounted = workspace.mount(&sessions, &[]);
    assert_eq!(errno(fs::write(workspace.path("alice/file"), b"hers")), EACCES, "nobody yet");
    for key in ["alice", "bob"] {
        let (file, session) = (format!("{key}.key"), format!("session:key:{key}.key.pub"));
        let out = format!("{key}.cred");
        workspace
            .does_line(&format!("credential issue --key {file} --to {session} --volume admin --out {out}"));
    }
    assert!(workspace.refused(&["credential", "present", "bob", "alice.cred"]).contains("speaks for nobody"));
    workspace.does(&["credential", "present", "alice", "alice.cred"]);
    fs::write(workspace.path("alice/file"), b"hers").expect("her own");
    workspace.does(&["credential", "present", "bob", "bob.cred"]);
    assert_eq!(errno(fs::read(workspace.path("bob/file"))), EACCES);
    workspace.does(&["acl", "set", "alice/file", "key:bob.key.pub=r"]);
    assert_eq!(fs::read(workspace.path("bob/file")).expect("on its ACL"), b"hers");
    assert_eq!(rights(&workspace, &workspace.path("admin/file")), "");
    mounted.unmount();
    // A user whom the host calls by the same name is not the key.
    let mounted = workspace.mount(&[("alice", "admin"), ("key:alice.key.pub", "alice")], &[]);
    assert_eq!(rights(&workspace, &workspace.path("admin/file")), "");
    assert_eq!(rights(&workspace, &workspace.path("alice/file")), "");
    mounted.unmount();
}
