//! The automounter: a directory in which a name that contains an ID is mounted as soon as it is used. By programs,
//! through links, and when something goes wrong.

use crate::common;

use common::{PATIENCE, World, ended, eventually, free_port, is_mounted, run, run_json, text};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A server of a writable file system, mirrors of releases, and Anna with the automounter's directory.
struct Names {
    world: World,
    servers: Vec<Child>,
    directory: PathBuf,
}

impl Names {
    fn new() -> Names {
        let world = World::new(&["anna"]);
        // The automounter resolves links to this path, so it must have no links in it.
        let directory = world.folder.path().canonicalize().expect("a path").join("hf");
        fs::create_dir(&directory).expect("made");
        Names { world, servers: Vec::new(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.path(name)
    }

    fn holdfast(&self) -> Command {
        let mut command = self.world.holdfast("anna");
        command.current_dir(self.world.folder.path()).env_remove("HOLDFAST_REVOCATIONS");
        command
    }

    /// Publishes a directory as the release `NAME.release` with the key `NAME.key`, and returns its ID.
    fn publish(&self, name: &str, tree: &str, extra: &[&str]) -> String {
        let key = format!("{name}.key");
        if !self.path(&key).exists() {
            self.world.keygen(name);
        }
        let release = format!("{name}.release");
        let mut command = self.holdfast();
        command.args(["publish", tree, "--to", &release, "--key", &key]).args(extra);
        run(&mut command);
        let report = self.holdfast().args(["--json", "release", "show", &release]).output().expect("it runs");
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
        report["release"].as_str().expect("an id").to_owned()
    }

    /// Publishes one file, serves it, and returns the name under which the automounter mounts it.
    fn release(&mut self, name: &str, file: &str, content: &str) -> String {
        let tree = format!("{name}.tree");
        fs::create_dir_all(self.path(&tree)).expect("made");
        fs::write(self.path(&tree).join(file), content).expect("written");
        let id = self.publish(name, &tree, &[]);
        format!("@127.0.0.1:{},{id}", self.serve(name))
    }

    fn serve(&mut self, name: &str) -> u16 {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let server = self
            .holdfast()
            .args(["serve", &format!("{name}.release"), "--listen", &address])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        self.servers.push(server);
        eventually("the mirror answers", || std::net::TcpStream::connect(&address).is_ok());
        port
    }

    /// The name under which the automounter mounts the writable file system.
    fn shared(&self) -> String {
        format!("@127.0.0.1:{},{}", self.world.port, self.world.fsid())
    }

    #[track_caller]
    fn automount(&self, extra: &[&str]) {
        run(self.holdfast().arg("automount").arg(&self.directory).args(extra));
    }

    #[track_caller]
    fn umount(&self) {
        run(self.holdfast().arg("umount").arg(&self.directory));
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    #[track_caller]
    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.status()))
    }

    fn status(&self) -> String {
        text(&self.holdfast().arg("status").arg(&self.directory).output().expect("it runs"))
    }

    /// The error with which opening a name fails.
    #[track_caller]
    fn refused(&self, path: &str) -> Errno {
        let error = fs::read_dir(self.at(path)).expect_err("it is refused");
        Errno::from_io_error(&error).expect("the kernel's")
    }

    fn mounted(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mounts").expect("a table");
        let below = format!("{}/", self.world.folder.path().canonicalize().expect("a path").display());
        let points = table.lines().filter_map(|line| line.split(' ').nth(1)?.strip_prefix(&below));
        points.filter(|point| point.contains('@')).map(str::to_owned).collect()
    }

    fn revoke_release(&self, name: &str, to: &Path) {
        let mut command = self.holdfast();
        command.args(["release", "revoke", &format!("{name}.release"), "--key", &format!("{name}.key")]);
        run(command.args(["--reason", "the key was stolen", "--out"]).arg(to));
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if is_mounted(&self.directory) {
            let _ = self.holdfast().args(["umount", "--lazy"]).arg(&self.directory).output();
            let _ = Command::new("fusermount3").arg("-uz").arg(&self.directory).output();
        }
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn id_of(name: &str) -> &str {
    name.rsplit_once(',').expect("a name").1
}

fn sh(directory: &Path, script: &str) -> Output {
    ended(Command::new("sh").args(["-euc", script]).current_dir(directory))
}

/// A name leads to the release or writable file system of its ID wherever it is used: by cat, cd, pwd, `..`, and in
/// writing. Looking at the directory from outside mounts nothing. What nobody uses is unmounted, and mounted again at
/// the next use. All mounts end with the automounter.
#[test]
fn names_are_mounted_when_they_are_used() {
    let mut names = Names::new();
    fs::create_dir_all(names.path("site.tree/deep")).expect("made");
    fs::write(names.path("site.tree/deep/file"), "below").expect("written");
    let release = names.release("site", "README", "as published");
    let shared = names.shared();
    names.automount(&["--key", "anna.key", "--idle", "1s"]);

    assert!(fs::metadata(names.at(&release)).expect("stat").is_dir());
    assert!(names.mounted().is_empty(), "looking from outside mounts nothing");
    assert_eq!(names.read(&format!("{release}/README")), "as published");
    fs::write(names.at(&format!("{shared}/team/note")), "by name").expect("written");
    assert_eq!(names.read(&format!("{shared}/team/note")), "by name");
    // A mount with an open file is not idle.
    let held = [format!("{release}/README"), format!("{shared}/team/note")]
        .map(|path| fs::File::open(names.at(&path)).expect("opened"));
    assert_eq!(names.mounted().len(), 2);
    let listed: Vec<_> = fs::read_dir(&names.directory)
        .expect("listed")
        .map(|name| name.expect("a name").file_name().into_string().expect("text"))
        .collect();
    assert!(listed.len() == 2 && listed.contains(&release) && listed.contains(&shared), "{listed:?}");
    let printed = names.status();
    assert!(
        printed.contains(&release) && printed.contains("release at http://") && printed.contains("hf://"),
        "{printed}"
    );

    let script = format!("cd '{release}/deep'; pwd -P; cat file; cd ../..; pwd -P");
    let output = sh(&names.directory, &script);
    let directory = names.directory.display();
    assert_eq!(text(&output), format!("{directory}/{release}/deep\nbelow{directory}\n"));

    drop(held);
    eventually("idle mounts go", || names.mounted().is_empty());
    // A working directory keeps its mount in use: another mount that was used later, and is in nobody's use, goes
    // first. From the working directory that other one can be mounted again.
    let output = sh(
        &names.directory,
        &format!(
            "cd '{release}/deep'; cat '../../{shared}/team/note'; \
             while grep -q '/{shared} ' /proc/self/mounts; do sleep 0.1; done; \
             cat file ../README; cat '../../{shared}/team/note'"
        ),
    );
    assert_eq!(text(&output), "by namebelowas publishedby name");

    let holder = fs::File::open(names.at(&format!("{release}/README"))).expect("opened");
    let busy = names.holdfast().arg("umount").arg(&names.directory).output().expect("it runs");
    assert!(!busy.status.success() && text(&busy).contains("busy"), "{}", text(&busy));
    assert_eq!(names.read(&format!("{release}/README")), "as published");
    drop(holder);
    names.umount();
    assert!(names.mounted().is_empty() && !is_mounted(&names.directory));
    // Anna's own mount shows what was written through the name.
    let mount = names.world.mount("anna");
    assert_eq!(fs::read_to_string(mount.join("team/note")).expect("read"), "by name");
}

/// For users who are not root, names are links to mounts elsewhere, which are made before the link is read. All else is
/// the same.
#[test]
fn names_as_links() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    let shared = names.shared();
    names.automount(&["--key", "anna.key", "--idle", "2s", "--beside", "beside"]);
    // On a busy machine the mount may be gone again between the look-up of the link and its use.
    let is_read = || fs::read(names.at(&format!("{release}/README"))).is_ok_and(|it| it == b"as published");
    eventually("it is read", is_read);
    eventually("it is written", || fs::write(names.at(&format!("{shared}/team/note")), "by name").is_ok());
    let target = fs::read_link(names.at(&release)).expect("a link");
    assert!(target.starts_with(names.path("beside").canonicalize().expect("a path")), "{}", target.display());
    assert_eq!(names.refused(&format!("@127.0.0.1:1,{}", id_of(&release))), Errno::HOSTUNREACH);
    eventually("idle mounts go", || names.mounted().is_empty());
    eventually("it is read again", is_read);
    names.umount();
    assert!(names.mounted().is_empty());
}

/// If a name cannot be mounted, the error number says why, and `status` says it in words. A text that is no such name
/// does not exist, and this is answered at once.
#[test]
fn what_cannot_be_mounted_says_why() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    let shared = names.shared();
    names.automount(&["--refresh", "1"]);
    for nothing in [".git", "README", &release[1..], &format!("{release}x"), "@host,5e"] {
        assert_eq!(names.refused(nothing), Errno::NOENT, "{nothing}");
    }
    let nobody = free_port();
    let point = |name: &str| name.rsplit_once(',').expect("a name").0.to_owned();
    let elsewhere = format!("@127.0.0.1:{nobody},{}", id_of(&release));
    let other = format!("{},{}", point(&release), "5e".repeat(32));
    let crossed = format!("{},{}", point(&shared), id_of(&release));
    assert_eq!(names.refused(&elsewhere), Errno::HOSTUNREACH);
    assert_eq!(names.refused(&other), Errno::KEYREJECTED, "a mirror cannot say what the name means");
    assert_eq!(names.refused(&crossed), Errno::HOSTUNREACH, "nor a server that does not have it");
    assert_eq!(names.refused(&shared), Errno::NOKEY);
    let printed = names.status();
    for (name, why) in [(&elsewhere, "refused"), (&other, "not of 5e5e"), (&shared, "--key")] {
        assert!(printed.contains(name.as_str()) && printed.contains(why), "{name} {why}: {printed}");
    }
    for refused in [
        fs::create_dir(names.at("new")),
        fs::write(names.at("new"), "x"),
        symlink("x", names.at("new")),
        fs::remove_dir(names.at(&release)),
    ] {
        let error = refused.expect_err("nothing is made here");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
    }
    // A failure is remembered for a limited time only.
    let address = format!("127.0.0.1:{nobody}");
    let mirror = names
        .holdfast()
        .args(["serve", "site.release", "--listen", &address])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    names.servers.push(mirror.expect("it runs"));
    eventually("it is tried again", || fs::read(names.at(&format!("{elsewhere}/README"))).is_ok());
}

/// When many programs use a name at once, it is mounted once, and all of them get in.
#[test]
fn many_at_once() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    names.automount(&[]);
    for round in 0..3 {
        let script = format!(
            "for n in $(seq 40); do cat '{release}/README' & done; for n in $(seq 20); do (cd '{release}' && ls) & done; wait"
        );
        let printed = text(&sh(&names.directory, &script));
        assert_eq!(printed.matches("as published").count(), 40, "round {round}: {printed}");
        assert_eq!(printed.matches("README").count(), 20, "round {round}: {printed}");
        assert_eq!(names.mounted().len(), 1);
        run(names.holdfast().arg("umount").arg(names.at(&release)));
    }
}

/// A release full of links says which names mean what. Such a link leads to a release or to a writable file system;
/// names without an ID are looked up in the release. Once it has expired, its links are followed no more.
#[test]
fn certificate_directories() {
    let mut names = Names::new();
    let release = names.release("debian", "README", "a distribution");
    let shared = names.shared();
    let authority = names.path("authority.tree");
    fs::create_dir_all(&authority).expect("made");
    symlink(names.at(&release), authority.join("debian")).expect("a link");
    symlink(names.at(&shared).join("team"), authority.join("team")).expect("a link");
    names.world.keygen("authority");
    run(names.holdfast().args([
        "release",
        "keys",
        "init",
        "--certificates",
        "--out",
        "authority.release",
        "--key",
        "authority.key",
    ]));
    let id = names.publish("authority", "authority.tree", &["--opaque", ".", "--expires", "1h"]);
    let authority = format!("@127.0.0.1:{},{id}", names.serve("authority"));
    let certpath = format!("{}:{}", names.path("own").display(), names.at(&authority).display());
    fs::create_dir(names.path("own")).expect("made");
    symlink("/nowhere", names.path("own/mine")).expect("a link");
    names.automount(&["--key", "anna.key", "--certpath", &certpath, "--refresh", "1"]);

    assert_eq!(names.read("debian/README"), "a distribution");
    assert_eq!(names.read(&format!("{authority}/debian/README")), "a distribution");
    fs::write(names.at("team/note"), "by authority").expect("written");
    assert_eq!(names.read(&format!("{shared}/team/note")), "by authority");
    let output = sh(&names.directory, "cd debian; cat README; pwd -P");
    assert_eq!(text(&output), format!("a distribution{}\n", names.at(&release).display()));
    assert_eq!(fs::read_link(names.at("mine")).expect("a link"), names.path("own/mine"));
    assert_eq!(names.refused("unknown"), Errno::NOENT);
    assert!(fs::read_dir(names.at(&authority)).expect("listed").count() <= 2, "it is opaque");

    eventually("it expires", || {
        // A busy machine may look only after this release has expired, and keep the one before.
        names.publish("authority", "authority.tree", &["--opaque", ".", "--expires", "2s"]);
        std::thread::sleep(Duration::from_secs(3));
        let error = fs::read_link(names.at("debian")).err();
        error.is_some_and(|error| Errno::from_io_error(&error) == Some(Errno::KEYEXPIRED))
    });
    // Directories that come earlier in the path of certificates still count, and so do names that contain an ID.
    assert_eq!(fs::read_link(names.at("mine")).expect("a link"), names.path("own/mine"));
    assert_eq!(names.read(&format!("{release}/README")), "a distribution");
}

/// A revocation in a directory of revocations ends a release or a file system, before it is mounted and while it is.
/// Files that are no valid revocation are passed over. The directory may itself be mounted by the automounter.
#[test]
fn revocations() {
    let mut names = Names::new();
    let (one, two) = (names.release("one", "README", "one"), names.release("two", "README", "two"));
    let shared = names.shared();
    fs::create_dir(names.path("revocations.tree")).expect("made");
    fs::write(names.path("revocations.tree").join(id_of(&one)), "a forgery").expect("written");
    fs::write(names.path("revocations.tree").join(id_of(&shared)), "another").expect("written");
    let id = names.publish("revocations", "revocations.tree", &[]);
    let revocations = format!("@127.0.0.1:{},{id}", names.serve("revocations"));
    fs::create_dir(names.path("local")).expect("made");
    let where_ = format!("{}:{}", names.path("local").display(), names.at(&revocations).display());
    names.automount(&["--key", "anna.key", "--revocations", &where_, "--refresh", "1", "--idle", "1h"]);

    assert_eq!(names.read(&format!("{one}/README")), "one");
    assert_eq!(names.read(&format!("{two}/README")), "two");
    fs::write(names.at(&format!("{shared}/team/note")), "before").expect("written");
    assert!(names.mounted().contains(&format!("hf/{revocations}")), "{:?}", names.mounted());

    // Revoked while they are mounted: one through the directory that is a release, the others through the local one.
    fs::remove_file(names.path("revocations.tree").join(id_of(&one))).expect("removed");
    names.revoke_release("one", &names.path("revocations.tree").join(id_of(&one)));
    names.publish("revocations", "revocations.tree", &[]);
    let is_revoked = |path: String| {
        let error = fs::read(names.at(&path)).err();
        error.is_some_and(|error| Errno::from_io_error(&error) == Some(Errno::KEYREVOKED))
    };
    eventually("one is revoked", || is_revoked(format!("{one}/none")));
    assert_eq!(names.read(&format!("{two}/README")), "two");
    let certificate = names.path("local").join(format!("{}.revoked", id_of(&shared)));
    names.world.administer(&[
        "fs",
        "revoke",
        &names.world.url,
        "--reason",
        "moved",
        "--out",
        certificate.to_str().expect("text"),
    ]);
    eventually("the file system is revoked", || is_revoked(format!("{shared}/team/note")));
    names.umount();

    // The revocation stays in force after its directory is gone.
    fs::create_dir(names.path("point")).expect("made");
    names.automount(&["--key", "anna.key"]);
    assert_eq!(names.refused(&one), Errno::KEYREVOKED);
    assert_eq!(names.refused(&shared), Errno::KEYREVOKED);
    assert!(
        names.status().contains("moved") && names.status().contains("the key was stolen"),
        "{}",
        names.status()
    );
    assert_eq!(names.read(&format!("{two}/README")), "two");
    let mount = names.holdfast().args(["mount", &names.world.url, "point", "--key", "anna.key"]).output();
    assert!(text(&mount.expect("it runs")).contains("revoked for good"));
}

/// If a directory of revocations cannot be read, nothing is mounted: anything might be revoked in it.
#[test]
fn revocations_that_cannot_be_had() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    let away = names.at(&format!("@127.0.0.1:1,{}", "5e".repeat(32)));
    names.automount(&["--revocations", away.to_str().expect("text")]);
    assert_eq!(names.refused(&release), Errno::HOSTUNREACH);
    assert!(names.mounted().is_empty());
    assert!(names.status().contains("5e5e"), "{}", names.status());
}

/// When the automounter is killed, all its mounts are removed, and the next one starts as if nothing had been mounted.
#[test]
fn killed() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    for beside in [false, true] {
        let extra: &[&str] = if beside { &["--beside", "beside"] } else { &[] };
        names.automount(extra);
        assert_eq!(names.read(&format!("{release}/README")), "as published");
        // Status of this directory only: for all of them the command also fails because of dead mounts of others.
        let printed = run_json(names.holdfast().args(["status", "--json"]).arg(&names.directory));
        let mine = |automount: &&serde_json::Value| {
            automount["directory"] == names.directory.to_str().expect("text")
        };
        let automounts = printed["automounts"].as_array().expect("a list");
        let process = automounts.iter().find(mine).expect("it is there")["process"].to_string();
        run(Command::new("kill").args(["-KILL", &process]));
        eventually("it goes", || !is_mounted(&names.directory));
        names.automount(extra);
        assert!(names.mounted().is_empty(), "{:?}", names.mounted());
        assert_eq!(names.read(&format!("{release}/README")), "as published");
        names.umount();
        assert!(names.mounted().is_empty());
    }
}

/// When the process that serves a mount is killed, or somebody unmounts it, the next use mounts it again.
#[test]
fn mounts_that_go_by_themselves() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    names.automount(&[]);
    assert_eq!(names.read(&format!("{release}/README")), "as published");
    run(names.holdfast().arg("umount").arg(names.at(&release)));
    assert!(names.mounted().is_empty());
    assert_eq!(names.read(&format!("{release}/README")), "as published");
    let point = names.at(&release);
    let served = run(Command::new("pgrep").arg("-f").arg(&point));
    run(Command::new("kill").arg("-KILL").args(served.split_whitespace()));
    eventually("it is mounted again", || fs::read(point.join("README")).is_ok());
}

/// When as many names are mounted as are allowed, the one that was not used for longest is unmounted, unless all are in
/// use.
#[test]
fn making_room() {
    let mut names = Names::new();
    let all: Vec<String> =
        ["one", "two", "three"].iter().map(|name| names.release(name, "README", name)).collect();
    names.automount(&["--mounts-max", "2", "--refresh", "1"]);
    let file = |at: usize| format!("{}/README", all[at]);
    names.read(&file(0));
    names.read(&file(1));
    // The kernel caches a name for a second, without asking the automounter.
    std::thread::sleep(Duration::from_millis(1_100));
    names.read(&file(0));
    names.read(&file(2));
    let mut mounted = names.mounted();
    mounted.sort();
    let mut expected = vec![format!("hf/{}", all[0]), format!("hf/{}", all[2])];
    expected.sort();
    assert_eq!(mounted, expected);
    let held = [0, 2].map(|at| fs::File::open(names.at(&file(at))).expect("opened"));
    assert_eq!(names.refused(&all[1]), Errno::MFILE);
    assert!(names.status().contains("--mounts-max"), "{}", names.status());
    drop(held);
    eventually("there is room again", || fs::read(names.at(&file(1))).is_ok());
}

/// While a server does not answer, other names are mounted, and a program that waits for it can be killed.
#[test]
fn servers_that_never_answer() {
    let mut names = Names::new();
    let release = names.release("site", "README", "as published");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    let silent = format!("@127.0.0.1:{port},{}", id_of(&release));
    names.automount(&["--timeout", &(2 * PATIENCE).as_secs().to_string()]);
    let mut waits = Command::new("cat").arg(names.at(&format!("{silent}/README"))).spawn().expect("cat runs");
    let _asked = listener.accept().expect("it is asked");
    assert_eq!(names.read(&format!("{release}/README")), "as published", "others need not wait");
    assert!(waits.try_wait().expect("a child").is_none());
    // A user can have only a limited number of names waited for.
    let mut many: Vec<Child> = (0..40)
        .map(|n| {
            let path = names.at(&silent.replace(',', &format!("!{n},")));
            Command::new("ls").arg(path).stderr(Stdio::piped()).spawn().expect("ls runs")
        })
        .collect();
    // These and the first make 32 that wait.
    eventually("the others are refused", || {
        many.iter_mut().filter_map(|one| one.try_wait().expect("a child")).count() >= 9
    });
    let mut refused = 0;
    for mut one in many {
        let waits = one.try_wait().expect("a child").is_none();
        one.kill().expect("a child");
        let printed = text(&one.wait_with_output().expect("it ends"));
        assert!(waits || printed.contains("Too many open files"), "{printed}");
        refused += usize::from(!waits);
    }
    assert_eq!(refused, 9, "were refused");
    waits.kill().expect("a child");
    eventually("who waits can be killed", || waits.try_wait().expect("a child").is_some());
    assert_eq!(waits.wait().expect("it ended").signal(), Some(9));
}
