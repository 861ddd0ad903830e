//! A Holdfast server at one end of the link, and mounts of two members, one at each end.

use super::place::{LinkedHosts, patiently, unmount_forced};
use super::site;
use crate::link::Running;
use anyhow::{Context, ensure};
use holdfast_link::{SERVER, Side};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PORT: u16 = 7440;

pub(super) struct Holdfast<'p> {
    place: &'p LinkedHosts,
    program: PathBuf,
    url: String,
    _server: Running,
}

impl<'p> Holdfast<'p> {
    /// A server with one file system, and the members `near` and `far` with a directory of both.
    pub(super) fn start(place: &'p LinkedHosts, program: &Path) -> anyhow::Result<Holdfast<'p>> {
        let mut server = Command::new(program);
        server.args(["server", "--listen", &format!("0.0.0.0:{PORT}"), "--data"]).arg(place.path("data"));
        let mut server = place.start(Side::Server, "server", &mut server)?;
        place.wait_until(&mut server, "the server", || place.listens(PORT))?;
        let mut site = Holdfast { place, program: program.to_owned(), url: String::new(), _server: server };
        for name in ["superuser", "near", "far"] {
            site.say(Side::Server, "near", &["keygen", "--out", &site.key(name)])?;
        }
        let superuser = site.key("superuser");
        // Only from the server's own machine can everybody make a file system.
        let host = format!("127.0.0.1:{PORT}");
        let said = site.say(Side::Server, "near", &["fs", "create", &host, "--superuser", &superuser])?;
        let id = said.split_whitespace().find_map(|word| word.strip_prefix(&format!("hf://{host}/")));
        site.url = format!("hf://{SERVER}:{PORT}/{}", id.with_context(|| format!("no address in: {said}"))?);
        for name in ["near", "far"] {
            let key = std::fs::read_to_string(place.path(&format!("{name}.key.pub")))?;
            let add = ["fs", "user", "add", &site.url, name, key.trim(), "--superuser", &superuser];
            site.say(Side::Server, "near", &add)?;
        }
        let add = ["fs", "group", "add", &site.url, "team", "near", "far", "--superuser", &superuser];
        site.say(Side::Server, "near", &add)?;
        Ok(site)
    }

    fn key(&self, name: &str) -> String {
        self.place.path(&format!("{name}.key")).display().to_string()
    }

    /// The command, with directories that belong to `who`.
    fn environment(&self, who: &str, command: &mut Command) {
        command.env("HOLDFAST_STATE_DIR", self.place.path(&format!("{who}-state")));
        command.env("HOLDFAST_CACHE_DIR", self.place.path(&format!("{who}-cache")));
    }

    /// Runs one of its commands as `who` and returns what it printed.
    fn say(&self, side: Side, who: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = patiently(&self.program);
        self.environment(who, command.args(arguments));
        self.place.run(side, &mut command)
    }

    fn start_mount(&self, side: Side, who: &str, on: &Path, ways: &[&str]) -> anyhow::Result<Running> {
        let mut command = Command::new(&self.program);
        command.args(["mount", "--foreground", &self.url]).arg(on).args(["--key", &self.key(who)]).args(ways);
        self.environment(who, &mut command);
        self.place.start(side, who, &mut command)
    }

    /// Gives access to the members' directory through a mount at the server's end, which is unmounted afterwards.
    pub(super) fn near(&self, work: &mut dyn FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let on = self.place.path("near");
        std::fs::create_dir_all(&on)?;
        // It must leave no lease that others would have to wait for.
        let mut mount = self.start_mount(Side::Server, "near", &on, &["--no-leases"])?;
        let result = self.place.wait_mounted(&mut mount, &on).and_then(|()| work(&on.join("team")));
        let unmounted = self.say(Side::Server, "near", &["umount", &on.display().to_string()]);
        if unmounted.is_err() {
            drop(mount);
            unmount_forced(&on);
        } else {
            self.place.wait_ended(mount, "the mount at the server's end")?;
        }
        result?;
        unmounted.map(drop)
    }

    /// Starts the far member's mount.
    pub(super) fn mount(&self, on: &Path, side: site::Side) -> anyhow::Result<Running> {
        let ways: &[&str] = match side {
            site::Side::Plain => &["--transfer", "plain"],
            site::Side::Lbfs | site::Side::LbfsEmpty => &["--transfer", "lbfs"],
            site::Side::WriteBack => &["--write-back"],
            _ => &[],
        };
        self.start_mount(Side::Client, "far", on, ways)
    }

    pub(super) fn unmount(&self, on: &Path) -> anyhow::Result<()> {
        self.say(Side::Client, "far", &["umount", &on.display().to_string()]).map(drop)
    }

    pub(super) fn forget(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(self.place.path("far-cache")).context("the far member's cache")
    }

    /// What `holdfast --json COMMAND` reports of the far member's mount.
    fn told(&self, command: &str, on: &Path) -> anyhow::Result<Value> {
        let said = self.say(Side::Client, "far", &["--json", command, &on.display().to_string()])?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {command}"))
    }

    /// Waits until no change is left in the journal.
    pub(super) fn wait_sent(&self, on: &Path, limit: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let status = self.told("status", on)?;
            match &status["processes"][0]["write_back"] {
                Value::Null => return Ok(()),
                back => {
                    ensure!(back["conflicts"] == Value::Array(vec![]), "conflicts: {}", back["conflicts"]);
                    if back["edits"] == 0 {
                        return Ok(());
                    }
                }
            }
            ensure!(start.elapsed() < limit, "not everything was sent in time");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn round_trips(&self, on: &Path) -> anyhow::Result<u64> {
        let told = self.told("stats", on)?;
        let stats = &told[0][1];
        let count = |value: &Value| value.as_u64().with_context(|| format!("no round trips in {stats}"));
        let store = &stats["store"];
        Ok(count(&stats["rounds"])?
            + count(&store["retrieves"])?
            + count(&store["stores"])?
            + count(&store["transfer"]["questions"])?)
    }
}
