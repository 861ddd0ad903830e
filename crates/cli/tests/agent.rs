//! Keys that a real SSH agent holds: everything works without the private key file. When something is wrong with the
//! agent, the user is told, calls wait, and the mount recovers.

use crate::common;

use common::holder::Holder;
use common::{PATIENCE, World, eventually, eventually_some, run, text};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The number of the error "Required key not available".
const ENOKEY: i32 = 126;

/// An SSH agent at a socket; dropping it ends the agent.
struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Agent {
    /// Starts an agent. With a confirmation script, it asks before each use of a key, and the answer is yes while the
    /// file `yes` exists.
    fn start(world: &World) -> Agent {
        let socket = world.path("agent");
        let _ = fs::remove_file(&socket);
        let asking = world.path("asking");
        fs::write(&asking, format!("#!/bin/sh\ntest -e '{}'\n", world.path("yes").display()))
            .expect("written");
        fs::set_permissions(&asking, PermissionsExt::from_mode(0o700)).expect("set");
        let child = Command::new("ssh-agent")
            .arg("-D")
            .arg("-a")
            .arg(&socket)
            .env("SSH_ASKPASS", &asking)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .env("DISPLAY", ":0")
            .stdout(Stdio::null())
            .spawn()
            .expect("ssh-agent is installed");
        eventually("the agent listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        Agent { child, socket }
    }

    #[track_caller]
    fn ssh_add(&self, arguments: &[&str], key: &Path) {
        run(Command::new("ssh-add").args(arguments).arg(key).env("SSH_AUTH_SOCK", &self.socket));
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command of `who` with the agent's socket in its environment.
fn holdfast(world: &World, who: &str, agent: &Agent) -> Command {
    let mut command = world.holdfast(who);
    command.env("SSH_AUTH_SOCK", &agent.socket).stdin(Stdio::null());
    command
}

fn try_mount(world: &World, agent: &Agent, key: &str) -> Output {
    try_mount_for(world, agent, key, PATIENCE.as_secs())
}

/// Mounts with calls that fail after waiting for so many seconds.
fn try_mount_for(world: &World, agent: &Agent, key: &str, seconds: u64) -> Output {
    let directory = world.path("anna-mnt");
    fs::create_dir_all(&directory).expect("a mount point");
    holdfast(world, "anna", agent)
        .args(["mount", &world.url])
        .arg(&directory)
        .args(["--timeout", &seconds.to_string(), "--key", key])
        .output()
        .expect("it runs")
}

/// A mount of Anna's. Dropping it unmounts, even if it can no longer sign.
struct Mount<'a>(&'a World);

impl<'a> Mount<'a> {
    #[track_caller]
    fn new(world: &'a World, agent: &Agent, key: &str) -> Mount<'a> {
        let output = try_mount(world, agent, key);
        assert!(output.status.success(), "{}", text(&output));
        Mount(world)
    }

    /// Mounts with calls that wait for one second only.
    #[track_caller]
    fn impatient(world: &'a World, agent: &Agent, key: &str) -> Mount<'a> {
        eventually("it is mounted", || try_mount_for(world, agent, key, 1).status.success());
        Mount(world)
    }

    fn team(&self) -> PathBuf {
        self.0.path("anna-mnt/team")
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let directory = self.0.path("anna-mnt");
        let _ = self.0.holdfast("anna").args(["umount", "--lazy"]).arg(&directory).output();
        eventually("it is unmounted", || !common::is_mounted(&directory));
    }
}

fn fingerprint(public: &Path) -> String {
    let line = run(Command::new("ssh-keygen").arg("-lf").arg(public));
    line.split_whitespace().nth(1).expect("a fingerprint").to_owned()
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let printed = text(output);
    assert!(!output.status.success(), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{word:?} is not in {printed}");
    }
}

/// Proves: a mount whose key is in an agent works without the private key file. While the agent is gone, calls wait,
/// fail and say why, and nothing that was acknowledged is lost; all goes on when there is an agent again.
#[test]
fn a_mount_outlives_its_agent() {
    let mut world = World::new(&["anna", "ben"]);
    let ben = world.mount("ben").join("team");
    let mut agent = Agent::start(&world);
    agent.ssh_add(&[], &world.key("anna"));
    let moved_aside = world.path("kept-elsewhere");
    fs::rename(world.key("anna"), &moved_aside).expect("moved");
    let public = world.path("anna.key.pub");
    let mount = Mount::impatient(&world, &agent, public.to_str().expect("a name"));
    let team = mount.team();
    eventually("it is acknowledged", || fs::write(team.join("before"), "acknowledged").is_ok());
    let mut open = eventually_some("it is opened", || Holder::try_open(&team.join("open")).ok());
    open.write(b"first").expect("written");
    eventually("it is published", || open.sync().is_ok());
    open.write(b" and second").expect("written here");

    agent.end();
    // On a busy machine a call's second may be over before the agent was asked.
    let lacks_key = |result: std::io::Result<()>| result.expect_err("no key").raw_os_error() == Some(ENOKEY);
    eventually("it lacks the key", || lacks_key(fs::create_dir(team.join("meanwhile"))));
    eventually("it lacks the key", || lacks_key(open.sync()));
    let status = world.status("anna");
    let socket = agent.socket.display().to_string();
    assert!(status.contains("waiting for this device's key") && status.contains(&socket), "{status}");
    assert!(!status.contains("ALARM"), "{status}");

    let agent = Agent::start(&world);
    eventually("it does not have the key yet", || {
        lacks_key(open.sync()) && world.status("anna").contains("no longer holds the key")
    });
    agent.ssh_add(&[], &moved_aside);
    eventually("it goes on", || open.sync().is_ok());
    assert_eq!(fs::read_to_string(ben.join("before")).expect("read"), "acknowledged");
    assert_eq!(fs::read_to_string(ben.join("open")).expect("read"), "first and second");
    eventually("it works", || world.status("anna").contains("working"));

    // A new connection needs a signature of the key as well.
    drop(mount);
    let by_print = format!("agent:{}", fingerprint(&public));
    let mount = Mount::new(&world, &agent, &by_print);
    assert_eq!(fs::read_to_string(mount.team().join("before")).expect("read"), "acknowledged");
    drop(mount);
}

/// Proves: with `--write-back`, a mount whose agent is gone can be unmounted. The command says what is not at the
/// server and why, and the next mount sends it.
#[test]
fn unmounting_without_the_agent() {
    let world = World::new(&["anna"]);
    let mut agent = Agent::start(&world);
    agent.ssh_add(&[], &world.key("anna"));
    let (directory, public) = (world.path("anna-mnt"), world.path("anna.key.pub"));
    fs::create_dir_all(&directory).expect("a mount point");
    let mount = |agent: &Agent| {
        let mut command = holdfast(&world, "anna", agent);
        command.args(["mount", "--write-back", &world.url]).arg(&directory).arg("--key").arg(&public);
        run(&mut command)
    };
    let is_sent = || world.process_status("anna")["write_back"]["edits"] == 0;
    mount(&agent);
    fs::write(directory.join("team/file"), "made with it").expect("written");
    eventually("it is sent", is_sent);
    agent.end();
    fs::write(directory.join("team/file"), "made without the key").expect("kept here");
    let output = world.holdfast("anna").arg("umount").arg(&directory).output().expect("it runs");
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("are not at the server yet"), "{printed}");
    assert!(!common::is_mounted(&directory));
    let agent = Agent::start(&world);
    agent.ssh_add(&[], &world.key("anna"));
    mount(&agent);
    assert_eq!(fs::read(directory.join("team/file")).expect("read"), b"made without the key");
    eventually("it is sent", is_sent);
    run(world.holdfast("anna").arg("umount").arg(&directory));
}

/// Proves: an agent that asks a person does so once for each call, and the call fails at once if the answer is no.
#[test]
fn a_confirmation_that_is_refused() {
    let world = World::new(&["anna"]);
    let agent = Agent::start(&world);
    agent.ssh_add(&["-q", "-c"], &world.key("anna"));
    let public = world.path("anna.key.pub");
    let key = public.to_str().expect("a name");
    refused(&try_mount(&world, &agent, key), &["refused to sign", "confirmation"]);
    fs::write(world.path("yes"), "").expect("written");
    let mount = Mount::new(&world, &agent, key);
    fs::write(mount.team().join("file"), "yes").expect("written");
    fs::remove_file(world.path("yes")).expect("removed");
    let error = fs::create_dir(mount.team().join("no")).expect_err("refused");
    assert_eq!(error.raw_os_error(), Some(ENOKEY));
    let status = world.status("anna");
    assert!(status.contains("refused to sign"), "{status}");
    fs::write(world.path("yes"), "").expect("written");
    fs::create_dir(mount.team().join("yes")).expect("it may again");
    assert!(fs::metadata(mount.team().join("no")).is_err(), "what was refused has not happened");
}

/// Proves: a file system can be created and administered with a superuser key that only the agent has; and a key file
/// with a passphrase is not opened if the agent has its key.
#[test]
fn superusers_and_passphrases() {
    let world = World::new(&["anna"]);
    let agent = Agent::start(&world);
    let root = world.path("root");
    run(Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "the root", "-f"])
        .arg(&root));
    agent.ssh_add(&[], &root);
    fs::remove_file(&root).expect("removed");
    let server = format!("127.0.0.1:{}", world.port);
    let public = world.path("root.pub");
    let created =
        run(holdfast(&world, "root", &agent).args(["fs", "create", &server, "--superuser"]).arg(&public));
    let url =
        created.split_whitespace().find(|word| word.starts_with("hf://")).expect("an address").to_owned();
    let line = fs::read_to_string(world.path("anna.key.pub")).expect("a public key");
    let add = ["fs", "user", "add", &url, "anna", line.trim(), "--superuser", "agent:the root"];
    run(holdfast(&world, "root", &agent).args(add));
    let printed = run(holdfast(&world, "root", &agent).args(["fs", "show", &url, "--key", "agent:the root"]));
    assert!(printed.contains("anna"), "{printed}");

    let sealed = world.key("anna");
    run(Command::new("ssh-keygen").args(["-q", "-p", "-P", "", "-N", "secret", "-f"]).arg(&sealed));
    let show = |agent: &Agent| {
        let mut command = holdfast(&world, "anna", agent);
        command.args(["fs", "show", &url, "--key"]).arg(&sealed).output().expect("it runs")
    };
    refused(&show(&agent), &["passphrase"]);
    let open = world.path("open");
    fs::copy(&sealed, &open).expect("copied");
    run(Command::new("ssh-keygen").args(["-q", "-p", "-P", "secret", "-N", "", "-f"]).arg(&open));
    agent.ssh_add(&[], &open);
    let printed = show(&agent);
    assert!(printed.status.success(), "{}", text(&printed));
}

/// Proves: whatever is wrong with the agent, or with the key in it, the error says what, and lists the keys that the
/// agent holds.
#[test]
fn what_can_be_wrong() {
    let world = World::new(&["anna"]);
    let mut agent = Agent::start(&world);
    let public = world.path("anna.key.pub");
    let public = public.to_str().expect("a name");
    refused(&try_mount(&world, &agent, public), &["public half", "it holds no keys", "ssh-add"]);
    let other = world.path("other");
    run(Command::new("ssh-keygen").args(["-q", "-t", "ecdsa", "-N", "", "-C", "old one", "-f"]).arg(&other));
    agent.ssh_add(&[], &other);
    let print = fingerprint(&world.path("other.pub"));
    refused(&try_mount(&world, &agent, public), &["does not hold", &print, "old one", "ecdsa"]);
    for name in ["agent:old one", &format!("agent:{print}")] {
        refused(
            &try_mount(&world, &agent, name),
            &["ecdsa-sha2-nistp256", "Ed25519", "ssh-keygen -t ed25519"],
        );
    }
    refused(&try_mount(&world, &agent, "agent:nobody"), &["a key 'nobody'", &print]);
    for name in ["twin1", "twin2"] {
        let path = world.path(name);
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "twin", "-f"])
            .arg(&path));
        agent.ssh_add(&[], &path);
    }
    refused(&try_mount(&world, &agent, "agent:twin"), &["several keys 'twin'", "fingerprint"]);
    agent.end();
    let socket = agent.socket.display().to_string();
    refused(&try_mount(&world, &agent, public), &["public half", &socket, "Connection refused"]);
    let mut command = world.holdfast("anna");
    let output = command.args(["fs", "show", &world.url, "--key", public]).output().expect("it runs");
    refused(&output, &["SSH_AUTH_SOCK is not set", "ssh-add"]);
    // A socket that accepts connections and is no agent.
    let port = std::os::unix::net::UnixListener::bind(world.path("stranger")).expect("a socket");
    std::thread::spawn(move || {
        for stream in port.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.read(&mut [0; 5]);
            let _ = stream.write_all(&[0, 0, 0, 1, 99]);
        }
    });
    agent.socket = world.path("stranger");
    refused(&try_mount(&world, &agent, public), &["does not speak the SSH agent protocol"]);
}
