//! A process that runs a stack in one of its arrangements, on an image, and follows commands line by line.

use super::client::{Measurement, Order};
use crate::volume::{device, key, salt};
use anyhow::{Context, bail};
use holdfast_access::{Access, Acl, Name, Principal};
use holdfast_components::{Asker, Patience, Program};
use holdfast_crypto::Digest;
use holdfast_log::device::Device;
use holdfast_stack::{
    Configuration, DiskLayout, DiskPlan, FormatRequest, NewFileSystem, Partition, Session, Stack, TO_CLIENT,
    Variant, lay_out,
};
use holdfast_volume::Volume;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the file system: the fewest that FAT32 can have with clusters of 4 KiB, and some more.
pub const BYTES: u64 = 320 << 20;
const TABLE_BLOCKS: u64 = 256;
const LOG_BYTES: u64 = 96 << 20;
const RING_BYTES: u64 = 64 << 20;
/// Memory for blocks: 64 MiB, more than all that is read.
const PAGES: usize = 16 << 10;
const WAIT: Duration = Duration::from_secs(120);

/// Arrangements of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Arrangement {
    /// The stack as it is shipped.
    Decomposed,
    /// All components in one process.
    Merged,
    /// One ACL for everything.
    ConstPolicy,
    /// FSDriver maps its metadata.
    Mapped,
    /// A program with VFS as a library.
    Client,
    /// A program with VFS as a library, which maps what it reads.
    ClientMapped,
}

impl Arrangement {
    fn variant(self) -> Variant {
        let client = match self {
            Arrangement::Client => Some("bench-client"),
            Arrangement::ClientMapped => Some("bench-client-mapped"),
            _ => None,
        };
        Variant {
            is_merged: self == Arrangement::Merged,
            has_constant_policy: self == Arrangement::ConstPolicy,
            is_mapped: self == Arrangement::Mapped,
            client,
            keeps_regions: matches!(self, Arrangement::Mapped | Arrangement::ClientMapped),
            is_measured: true,
        }
    }

    pub fn is_client(self) -> bool {
        matches!(self, Arrangement::Client | Arrangement::ClientMapped)
    }
}

#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    arrangement: Arrangement,
    /// The image, and its log.
    #[arg(long)]
    disk: PathBuf,
    #[arg(long)]
    log: PathBuf,
    /// Make both, and an empty file system.
    #[arg(long)]
    format: bool,
    /// The directory for the mount.
    #[arg(long)]
    at: PathBuf,
}

fn user(name: &str) -> anyhow::Result<Principal> {
    Ok(Principal::User(Name::new(name)?))
}

/// A session that is mounted over FUSE; a client, which does without the kernel, gets no mount.
fn session(arrangement: Arrangement, at: &Path) -> anyhow::Result<Session> {
    let path = if arrangement.is_client() { "/dev/null" } else { "/dev/fuse" };
    let file: OwnedFd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    if !arrangement.is_client() {
        let options = "rootmode=40000,user_id=0,group_id=0,subtype=holdfast,default_permissions";
        let data = CString::new(format!("fd={},{options}", file.as_raw_fd()))?;
        mount("holdfast-bench", at, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*data)?;
    }
    let user = user("measured")?;
    Ok(Session {
        disk: 0,
        partition: 0,
        acl: Acl::of(user.clone(), Access::ReadWrite)?,
        user,
        fuse: file,
        uid: 0,
        gid: 0,
        credentials: Vec::new(),
        gate: None,
    })
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    // The reason why a component ended is printed nowhere else.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let make = |path: &Path, bytes| -> anyhow::Result<()> { Ok(File::create(path)?.set_len(bytes)?) };
    if options.format {
        make(&options.disk, BYTES + TABLE_BLOCKS * 4096)?;
        make(&options.log, LOG_BYTES)?;
    }
    let (disk, log): (Arc<dyn Device>, Arc<dyn Device>) = (device(&options.disk)?, device(&options.log)?);
    if options.format {
        Volume::format(&*disk, &*log, &key(), Some(RING_BYTES))?;
        Volume::adopt_empty(disk.clone(), log.clone(), &key(), salt()?, &|_, _| true)?;
    }
    let (volume, _) = Volume::open(disk.clone(), log.clone(), &key(), Default::default(), None, salt()?)?;
    volume.start()?;
    // The file system begins with the disk, as cards without a partition table have it; what is drawn up has one.
    let new = NewFileSystem { label: "MEASURED".to_owned(), cluster_bytes: Some(4096), id: 7 };
    let wanted = FormatRequest {
        disk_bytes: BYTES + (1 << 20),
        partitions: vec![(1 << 20, BYTES)],
        cluster_bytes: new.cluster_bytes,
        label: new.label.clone(),
        id: new.id,
    };
    let geometry = lay_out(wanted)?.geometries[0];
    let partition = Partition { number: 0, start: 0, bytes: BYTES, geometry };
    let layout = DiskLayout {
        identity: [4; 16],
        partitions: vec![partition],
        table: (BYTES, TABLE_BLOCKS),
        signed_by: None,
    };
    let format = options.format.then_some(new);
    let configuration = Configuration {
        name: format!("measured {}", std::process::id()),
        program: Program::current()?,
        digest: Digest([3; 32]),
        packages: Default::default(),
        disks: vec![DiskPlan { volume, layout, bus: "files".to_owned(), format }],
        administrator: user("admin")?,
        sessions: vec![session(options.arrangement, &options.at)?],
        people: Default::default(),
        pages_max: PAGES,
    };
    let stack = Stack::start_as(options.arrangement.variant(), configuration)?;
    stack.wait_until_ready(WAIT)?;
    let client: Option<Asker<Order, Measurement>> = match options.arrangement.is_client() {
        true => Some(stack.ports().asker(TO_CLIENT)?),
        false => None,
    };
    say(&Measurement::default())?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let answer = match (&*line, &client) {
            ("cool", _) => {
                stack.empty_cache()?;
                for (device, bytes) in [(&disk, disk.size_bytes()), (&log, log.size_bytes())] {
                    device.flush()?;
                    device.drop_cache(0, bytes);
                }
                Measurement::default()
            }
            ("stop", _) => break,
            (order, Some(client)) => {
                let order: Order = serde_json::from_str(order).context("an order")?;
                client.ask(0, &order, Patience::of(WAIT))?
            }
            (order, None) => bail!("{order} is not understood"),
        };
        say(&answer)?;
    }
    if !options.arrangement.is_client() {
        unmount(&options.at, UnmountFlags::DETACH)?;
        // The VFS notices that its mount is gone, and ends.
        std::thread::sleep(Duration::from_millis(100));
    }
    stack.stop()?;
    say(&Measurement::default())
}

fn say(taken: &Measurement) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(taken)?);
    Ok(())
}
