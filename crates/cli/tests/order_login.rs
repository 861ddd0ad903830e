//! An order in an etcd that speaks TLS, asks for a certificate and a password, and allows this user one prefix only.

use crate::common;

use common::block_server::BlockServer;
use common::certificates::certificates;
use common::{World, ended, eventually, free_port, run, text};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// One member of etcd that trusts its own authority, and the login file for it.
struct Guarded {
    folder: PathBuf,
    port: u16,
    child: Child,
}

impl Guarded {
    fn start(folder: &Path) -> Guarded {
        let folder = folder.join("guarded");
        fs::create_dir(&folder).expect("a folder");
        certificates(
            &folder,
            &[("member", "/CN=member"), ("client", "/O=holdfast"), ("named", "/CN=holdfast")],
        );
        let (port, peer) = (free_port(), free_port());
        let (url, peer) = (format!("https://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let log = fs::File::create(folder.join("log")).expect("a log");
        let file = |name: &str| folder.join(name);
        let mut command = Command::new("etcd");
        command.args(["--name", "n0", "--initial-cluster", &format!("n0={peer}"), "--data-dir"]);
        command.arg(file("data")).args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--cert-file").arg(file("member.pem")).arg("--key-file").arg(file("member.key"));
        command
            .arg("--trusted-ca-file")
            .arg(file("ca.pem"))
            .args(["--client-cert-auth", "--unsafe-no-fsync"]);
        let command =
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = command.spawn().expect("etcd starts: it is in Debian's package etcd-server");
        let guarded = Guarded { folder, port, child };
        eventually("etcd has a leader", || guarded.control(&["endpoint", "health"]).is_some());
        for line in [
            "user add root:rootsecret",
            "user grant-role root root",
            "role add holdfast",
            "role grant-permission holdfast --prefix=true readwrite ours/",
            "user add holdfast:oursecret",
            "user grant-role holdfast holdfast",
            "auth enable",
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert!(guarded.control(&words).is_some(), "{line}");
        }
        guarded
    }

    fn control(&self, arguments: &[&str]) -> Option<String> {
        let file = |name: &str| self.folder.join(name);
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &format!("https://127.0.0.1:{}", self.port)]);
        command.arg("--cacert").arg(file("ca.pem")).arg("--cert").arg(file("client.pem"));
        command.arg("--key").arg(file("client.key")).args(arguments).stdin(Stdio::null());
        let output = command.output().expect("etcdctl runs: it is in Debian's package etcd-client");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn order(&self, prefix: &str) -> String {
        format!("etcds://127.0.0.1:{}/{prefix}", self.port)
    }

    /// Writes a login file for etcd.
    fn login(&self, name: &str, lines: &[(&str, &str)]) -> PathBuf {
        let path = self.folder.join(name);
        let mut text = String::new();
        for (key, value) in lines {
            let value = match *key {
                "user" | "password" => value.to_string(),
                _ => self.folder.join(value).display().to_string(),
            };
            text += &format!("{key} = {value}\n");
        }
        let mut file = fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&path).expect("made");
        std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        path
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Proves: with a right login file the server works, also after a restart and after its token has expired. Mistakes in
/// the file end the start, with words that have no secret in them.
#[test]
fn an_order_behind_a_login() {
    const CA: (&str, &str) = ("ca", "ca.pem");
    const OWN: [(&str, &str); 2] = [("certificate", "client.pem"), ("key", "client.key")];
    const USER: (&str, &str) = ("user", "holdfast");
    let mut made = None;
    let mut world = World::with_server(&["anna"], |world| {
        let etcd = Guarded::start(world.folder.path());
        let blocks = BlockServer::new(world.folder.path(), &world.data());
        let login = etcd.login("right", &[USER, ("password", "oursecret"), CA, OWN[0], OWN[1]]);
        let arguments = ["--blocks".to_owned(), blocks.address(), "--order".to_owned(), etcd.order("ours")];
        let login = ["--order-login".to_owned(), login.display().to_string()];
        made = Some((etcd, blocks));
        arguments.into_iter().chain(login).collect()
    });
    let (etcd, blocks) = made.expect("it was just made");
    let right = etcd.folder.join("right").display().to_string();
    let anna = world.mount("anna");
    fs::write(anna.join("anna/first"), "behind a login").expect("written");
    world.stop_server();
    world.start_server_with(&["--order-login", &right]);
    // The token is revoked, as if it had expired: the server asks for another.
    let password = ["--user", "root:rootsecret"];
    assert!(etcd.control(&[&password[..], &["auth", "disable"]].concat()).is_some());
    assert!(etcd.control(&["auth", "enable"]).is_some());
    fs::write(anna.join("anna/second"), "and again").expect("written");
    assert_eq!(fs::read_to_string(anna.join("anna/first")).expect("read"), "behind a login");

    let secrets = ["oursecret", "wrongsecret"];
    let start = |name: &str, prefix: &str, lines: &[(&str, &str)]| {
        let data = world.path(&format!("data-{name}"));
        run(Command::new("mkdir").args(["-m", "700"]).arg(&data));
        run(Command::new("cp").arg("-p").arg(world.data().join("server-key")).arg(&data));
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["server", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(&data).args(["--blocks", &blocks.address(), "--order", &etcd.order(prefix)]);
        let output = ended(command.arg("--order-login").arg(etcd.login(name, lines)).stdin(Stdio::null()));
        let printed = text(&output);
        assert!(!output.status.success(), "{name}: {printed}");
        assert!(secrets.iter().all(|secret| !printed.contains(secret)), "{name}: {printed}");
        printed
    };
    let (good, wrong) = (("password", "oursecret"), ("password", "wrongsecret"));
    let named = [("certificate", "named.pem"), ("key", "named.key")];
    for (name, prefix, lines, words) in [
        (
            "password",
            "ours",
            &[USER, wrong, CA, OWN[0], OWN[1]][..],
            "invalid user ID or password. They are in the file",
        ),
        (
            "prefix",
            "theirs",
            &[USER, good, CA, OWN[0], OWN[1]],
            "permission denied. The user must be allowed",
        ),
        ("nobody", "ours", &[CA, OWN[0], OWN[1]], "asks for a name and a password"),
        ("authority", "ours", &[USER, good, OWN[0], OWN[1]], "(ca = FILE)"),
        ("certificate", "ours", &[USER, good, CA], "asks for a certificate that it believes"),
        ("name", "ours", &[USER, good, CA, named[0], named[1]], "without a common name"),
    ] {
        let printed = start(name, prefix, lines);
        assert!(printed.contains(words), "{name}: {printed}");
    }
}
