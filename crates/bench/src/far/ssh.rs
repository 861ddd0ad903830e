//! An sshd at the server's end, and what goes to it: sshfs, rclone, rsync.

use super::place::{LinkedHosts, limited, patiently};
use crate::link::Running;
use anyhow::ensure;
use holdfast_link::{SERVER, Side};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 2222;
/// Where rclone tells, at the client's own end.
const RCLONE: &str = "127.0.0.1:5572";

pub(super) struct Ssh<'p> {
    place: &'p LinkedHosts,
    _server: Running,
}

impl<'p> Ssh<'p> {
    pub(super) fn start(place: &'p LinkedHosts) -> anyhow::Result<Ssh<'p>> {
        let keys = place.path("ssh");
        std::fs::create_dir(&keys)?;
        std::fs::create_dir(place.path("data"))?;
        for name in ["host", "user"] {
            let mut keygen = patiently("ssh-keygen");
            place.run(
                Side::Server,
                keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(keys.join(name)),
            )?;
        }
        // Where sshd wants an empty directory of its own to be.
        std::fs::create_dir_all("/run/sshd")?;
        let mut sshd = Command::new("/usr/sbin/sshd");
        sshd.args(["-D", "-e", "-f", "/dev/null", "-p", &PORT.to_string(), "-h"]).arg(keys.join("host"));
        let authorized = format!("AuthorizedKeysFile={}", keys.join("user.pub").display());
        for option in [
            authorized.as_str(),
            "StrictModes=no",
            "PidFile=none",
            "UsePAM=no",
            "PermitRootLogin=yes",
            "Subsystem=sftp internal-sftp",
        ] {
            sshd.args(["-o", option]);
        }
        let mut server = place.start(Side::Server, "sshd", &mut sshd)?;
        place.wait_until(&mut server, "sshd", || place.listens(PORT))?;
        Ok(Ssh { place, _server: server })
    }

    /// What the server shows.
    pub(super) fn data(&self) -> PathBuf {
        self.place.path("data")
    }

    /// Options of ssh as `-o` takes them.
    fn options(&self) -> [String; 5] {
        [
            format!("Port={PORT}"),
            format!("IdentityFile={}", self.place.path("ssh/user").display()),
            "StrictHostKeyChecking=no".to_owned(),
            "UserKnownHostsFile=/dev/null".to_owned(),
            "LogLevel=ERROR".to_owned(),
        ]
    }

    pub(super) fn sshfs(&self, mount: &Path) -> anyhow::Result<Running> {
        let mut sshfs = Command::new("sshfs");
        sshfs.args(["-f", "-C", "-F", "/dev/null"]);
        for option in self.options() {
            sshfs.args(["-o", &option]);
        }
        sshfs.arg(format!("root@{SERVER}:{}", self.data().display())).arg(mount);
        self.place.start(Side::Client, "sshfs", &mut sshfs)
    }

    pub(super) fn rclone(&self, mount: &Path) -> anyhow::Result<Running> {
        let mut rclone = Command::new("rclone");
        rclone.args(["mount", &format!(":sftp:{}", self.data().display())]).arg(mount);
        rclone.args([
            "--config",
            "",
            "--sftp-host",
            SERVER,
            "--sftp-port",
            &PORT.to_string(),
            "--sftp-user",
            "root",
        ]);
        rclone.arg("--sftp-key-file").arg(self.place.path("ssh/user"));
        rclone.args(["--vfs-cache-mode", "writes", "--cache-dir"]).arg(self.place.path("rclone-cache"));
        rclone.args(["--rc", "--rc-no-auth", "--rc-addr", RCLONE]);
        self.place.start(Side::Client, "rclone", &mut rclone)
    }

    /// Waits until rclone has nothing left to send.
    pub(super) fn wait_rclone(&self, limit: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let mut ask = patiently("rclone");
            ask.args(["rc", "--config", "", "--url", &format!("http://{RCLONE}/"), "vfs/stats"]);
            let said: serde_json::Value = serde_json::from_str(&self.place.run(Side::Client, &mut ask)?)?;
            let count = |name: &str| said["diskCache"][name].as_u64();
            let waiting = [count("uploadsInProgress"), count("uploadsQueued")];
            ensure!(waiting.iter().all(Option::is_some), "rclone does not tell what it has to send: {said}");
            if waiting.iter().flatten().all(|count| *count == 0) {
                return Ok(());
            }
            ensure!(start.elapsed() < limit, "not everything was sent in time");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The first words of rsync, and the server's directory.
    pub(super) fn rsync(&self, limit: Duration) -> (Command, String) {
        let options: Vec<String> = self.options().iter().map(|option| format!("-o {option}")).collect();
        let mut rsync = limited(limit, "rsync");
        rsync.args(["-az", "--delete", "-e", &format!("ssh -F /dev/null {}", options.join(" "))]);
        (rsync, format!("root@{SERVER}:{}", self.data().display()))
    }

    pub(super) fn unmount(mount: &Path) -> anyhow::Result<()> {
        let status = patiently("fusermount3").arg("-u").arg(mount).status()?;
        ensure!(status.success(), "fusermount3 -u {}: {status}", mount.display());
        Ok(())
    }
}
