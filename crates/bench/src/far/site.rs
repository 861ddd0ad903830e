//! One side of a comparison: its server, and its client's mount.

use super::holdfast::Holdfast;
use super::place::{LinkedHosts, unmount_forced};
use super::ssh::Ssh;
use crate::link::Running;
use anyhow::Context;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The sides that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Side {
    /// `sshfs -C`. Closing waits until the server has taken every write; the server's disk is not waited for.
    Sshfs,
    /// `rclone mount --vfs-cache-mode writes` over SFTP. Closing waits for nothing; files are sent 5 s later.
    Rclone,
    /// `rsync -az` over ssh, where a program can be in the place of a file system.
    Rsync,
    /// Holdfast with leases and compression, without looking for chunks.
    Plain,
    /// Holdfast in the way of LBFS.
    Lbfs,
    /// Holdfast in the way of LBFS, with the client's cache and index emptied.
    LbfsEmpty,
    /// Holdfast. Closing waits until it is durable at the server.
    Full,
    /// Holdfast, the client's cache and index emptied.
    FullEmpty,
    /// Holdfast with `--write-back`. Closing waits until it is durable at the client.
    WriteBack,
    /// The local disk, no server.
    Local,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Sshfs => "sshfs",
            Side::Rclone => "rclone",
            Side::Rsync => "rsync",
            Side::Plain => "plain",
            Side::Lbfs => "lbfs",
            Side::LbfsEmpty => "lbfs-empty",
            Side::Full => "full",
            Side::FullEmpty => "full-empty",
            Side::WriteBack => "write-back",
            Side::Local => "local",
        }
    }

    /// Whether the client's cache is emptied before it is measured.
    pub(super) fn forgets(self) -> bool {
        matches!(self, Side::LbfsEmpty | Side::FullEmpty)
    }
}

enum Kind<'p> {
    Local,
    Ssh(Ssh<'p>),
    Holdfast(Holdfast<'p>),
}

/// A side with its link and directory.
pub(super) struct Site<'p> {
    place: &'p LinkedHosts,
    side: Side,
    kind: Kind<'p>,
    /// The client's mount.
    mount: PathBuf,
    client: Mutex<Option<Running>>,
    /// The directory in which work is done through the mount.
    far: PathBuf,
}

impl<'p> Site<'p> {
    pub(super) fn start(place: &'p LinkedHosts, side: Side, holdfast: &Path) -> anyhow::Result<Site<'p>> {
        let mount = place.path("far");
        std::fs::create_dir(&mount)?;
        let (kind, far) = match side {
            Side::Local => (Kind::Local, mount.clone()),
            Side::Sshfs | Side::Rclone | Side::Rsync => (Kind::Ssh(Ssh::start(place)?), mount.clone()),
            _ => (Kind::Holdfast(Holdfast::start(place, holdfast)?), mount.join("team")),
        };
        Ok(Site { place, side, kind, mount, client: Mutex::new(None), far })
    }

    /// The directory that the client works in.
    pub(super) fn far(&self) -> &Path {
        &self.far
    }

    /// Gives access to the same directory at the server's own end, without the link.
    pub(super) fn near(&self, work: &mut dyn FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Local => work(&self.mount),
            Kind::Ssh(ssh) => work(&ssh.data()),
            Kind::Holdfast(holdfast) => holdfast.near(work),
        }
    }

    pub(super) fn mount(&self) -> anyhow::Result<()> {
        let client = match &self.kind {
            Kind::Local => return Ok(()),
            Kind::Ssh(_) if self.side == Side::Rsync => return Ok(()),
            Kind::Ssh(ssh) if self.side == Side::Rclone => ssh.rclone(&self.mount)?,
            Kind::Ssh(ssh) => ssh.sshfs(&self.mount)?,
            Kind::Holdfast(holdfast) => holdfast.mount(&self.mount, self.side)?,
        };
        let mut slot = self.client.lock();
        self.place.wait_mounted(slot.insert(client), &self.mount)
    }

    pub(super) fn unmount(&self) -> anyhow::Result<()> {
        let Some(client) = self.client.lock().take() else { return Ok(()) };
        match &self.kind {
            Kind::Holdfast(holdfast) => holdfast.unmount(&self.mount)?,
            _ => Ssh::unmount(&self.mount)?,
        }
        self.place.wait_ended(client, "the client's mount")
    }

    /// Ends the client at once: calls that wait for its mount are refused.
    pub(super) fn end_client(&self) {
        drop(self.client.lock().take());
        unmount_forced(&self.mount);
    }

    /// Empties the client's cache, while it is not mounted.
    pub(super) fn forget(&self) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Holdfast(holdfast) => holdfast.forget(),
            _ => Ok(()),
        }
    }

    /// What runs rsync, if this side is rsync: its first words, and the server's directory as it names it.
    pub(super) fn rsync(&self, limit: Duration) -> Option<(std::process::Command, String)> {
        match &self.kind {
            Kind::Ssh(ssh) if self.side == Side::Rsync => Some(ssh.rsync(limit)),
            _ => None,
        }
    }

    /// Runs a command at the client's end.
    pub(super) fn at_client(&self, command: &mut std::process::Command) -> anyhow::Result<()> {
        self.place.run(holdfast_link::Side::Client, command).map(drop)
    }

    /// Waits until the server has everything.
    pub(super) fn wait_sent(&self, limit: Duration) -> anyhow::Result<()> {
        match &self.kind {
            Kind::Ssh(ssh) if self.side == Side::Rclone => ssh.wait_rclone(limit),
            Kind::Local | Kind::Ssh(_) => Ok(()),
            Kind::Holdfast(holdfast) => {
                let directory = std::fs::File::open(&self.far)?;
                // Then all operations that were begun before are committed.
                directory.sync_all().context("fsync of the directory")?;
                holdfast.wait_sent(&self.mount, limit)
            }
        }
    }

    /// Operations and requests for blocks so far, where they are counted.
    pub(super) fn round_trips(&self) -> anyhow::Result<Option<u64>> {
        match &self.kind {
            Kind::Holdfast(holdfast) => holdfast.round_trips(&self.mount).map(Some),
            _ => Ok(None),
        }
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        self.end_client();
    }
}
