//! The cost of one operation, and the bytes stored, as a file system grows: many members, many devices that have
//! signed, a directory of many entries, many files. Server and clients are in this process, so memory is that of both.
//!
//! Trees are built through the engine, a thousand files an operation, as mounts would take hours.

use crate::ops::meters::Syncs;
use crate::ops::site::{Count, Site};
use crate::report::{median, micros};
use anyhow::Context;
use holdfast_client::files::{Caller, OpenFlags, WriteSource};
use holdfast_client::{Changes, Engine, FsError};
use holdfast_content::{Device, Entry, Handle, Inode, InodeKind, Membership, User};
use holdfast_crypto::SigningKey;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::Response;
use holdfast_protocol::signer::{Effect, Event, Signer};
use holdfast_rpc::{Connector, ServerProof};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files made, looked at and removed at each size.
const SAMPLES: usize = 64;
/// Files that one operation makes while a directory is built.
const BULK: u32 = 1000;
/// Users that one operation adds.
const USERS: usize = 2500;

/// How long the server may take to order an operation.
const PATIENCE: Duration = Duration::from_secs(60);
/// The server's time-out for pending operations: longer than any measurement, so that none is aborted.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Options of the growth benchmark.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo run --release -p holdfast-bench -- growth --entries 10,1000,100000")]
pub struct Options {
    /// Numbers of enrolled members, each with a device that has never signed.
    #[arg(long, value_delimiter = ',', default_value = "10,1000,10000")]
    members: Vec<usize>,
    /// Numbers of devices that have signed, so that every view shows them. Views grow with the square of it: a
    /// thousand take some ten minutes.
    #[arg(long, value_delimiter = ',', default_value = "10,100,300")]
    devices: Vec<usize>,
    /// Numbers of other devices' operations that are under way: ordered, and not committed. Every view shows them, so the
    /// slow path is what is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    pending: Vec<usize>,
    /// Numbers of files, all in one directory.
    #[arg(long, value_delimiter = ',', default_value = "10,1000,100000,1000000")]
    entries: Vec<u32>,
    /// Numbers of states that have a name, each after a change.
    #[arg(long, value_delimiter = ',', default_value = "10,1000")]
    snapshots: Vec<usize>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>11} {:>9} {:>11} {:>9} {:>10} {:>10}",
        "",
        "create us",
        "stat us",
        "unlink us",
        "after other",
        "sent/op",
        "received/op",
        "state/op",
        "memory MiB",
        "store MiB"
    );
    growing("members", &options.members, |site, have, want| enrol(site, have, want).map(drop))?;
    growing("devices that signed", &options.devices, |site, have, want| {
        for key in enrol(site, have, want)? {
            site.device(key)?.stop();
        }
        Ok(())
    })?;
    growing("operations pending", &options.pending, leave_pending)?;
    growing("files in one directory", &options.entries, fill)?;
    growing("snapshots", &options.snapshots, name_states)?;
    stored()
}

/// The bytes that the server stores for incompressible bytes, orders and directories included.
fn stored() -> anyhow::Result<()> {
    let directory = tempfile::Builder::new().prefix("holdfast-growth.").tempdir()?;
    let site = Site::new(directory.path(), Syncs::Real)?;
    let caller = Caller { uid: 1000, gid: 1000, thread: 1 };
    for (count, bytes) in [(1000, 1 << 10), (1000, 8 << 10), (1, 64 << 20)] {
        let before = site.stored_bytes()?;
        for file in 0..count {
            let mut content = vec![0; bytes];
            blake3::Hasher::new()
                .update(format!("{bytes} {file}").as_bytes())
                .finalize_xof()
                .fill(&mut content);
            let name = format!("{bytes}-{file}").into_bytes();
            let (_, made) = site.files.create(&caller, site.home, &name, 0o644, OpenFlags::READ_WRITE)?;
            for (at, piece) in content.chunks(1 << 20).enumerate() {
                site.files.write(made.handle, (at << 20) as u64, piece, WriteSource::Call)?;
            }
            site.files.flush(made.handle)?;
            site.files.release(made.handle);
        }
        let stored = site.stored_bytes()? - before;
        let times = stored as f64 / (count * bytes) as f64;
        println!("{count} files of {bytes} bytes: {stored} bytes in the store, {times:.2} times as much");
    }
    Ok(())
}

/// Lets a new file system grow and measures it at each size.
fn growing<N: Copy + Default + std::fmt::Display>(
    what: &str,
    sizes: &[N],
    grow: impl Fn(&Site, N, N) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if sizes.is_empty() {
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("holdfast-growth.").tempdir()?;
    let site = Site::with(directory.path(), Syncs::Real, Some(NEVER))?;
    let superuser = site.superuser()?;
    let mut have = N::default();
    superuser.stop();
    for want in sizes {
        let start = Instant::now();
        grow(&site, have, *want).with_context(|| format!("{want} {what}"))?;
        have = *want;
        let grown = start.elapsed().as_secs_f64();
        let row = measure(&site)?;
        println!("{:<28} {row}   (grown in {grown:.0} s)", format!("{want} {what}"));
    }
    Ok(())
}

/// Creates, looks at and removes files, alone and in turns with another device.
fn measure(site: &Site) -> anyhow::Result<String> {
    let caller = Caller { uid: 1000, gid: 1000, thread: 1 };
    let files = &site.files;
    let name = |file: usize| format!("sample-{file}").into_bytes();
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    // What only the first operation after growing costs (the new membership, the new table) is not counted.
    files.lookup(&caller, site.home, b"nobody").err().context("there is no such file")?;
    let before = site.counts();
    let create = each(|file| {
        let made = files.create(&caller, site.home, &name(file), 0o644, exclusive)?;
        files.release(made.1.handle);
        Ok(())
    })?;
    let stat = each(|file| Ok(files.lookup(&caller, site.home, &name(file)).map(drop)?))?;
    let unlink = each(|file| Ok(files.unlink(&caller, site.home, &name(file))?))?;
    let mut gained = crate::ops::site::Counts::default();
    gained.gain(&before, &site.counts());
    let operations = gained.of(Count::Operations).max(1.0);
    let sent = gained.of(Count::Sent) / operations;
    let received = gained.of(Count::Received) / operations;
    let written = gained.of(Count::ClientWritten) / operations;
    let other = site.superuser()?;
    let mut after_other = Vec::new();
    for _ in 0..SAMPLES / 4 {
        other.fetch()?;
        other.flush_commits()?;
        let start = Instant::now();
        site.engine.fetch()?;
        after_other.push(micros(start.elapsed()));
    }
    other.stop();
    Ok(format!(
        "{create:>9.0} {stat:>9.0} {unlink:>9.0} {:>11.0} {sent:>9.0} {received:>11.0} {written:>9.0} {:>10.0} {:>10.1}",
        median(&after_other),
        resident_mib()?,
        site.stored_bytes()? as f64 / f64::from(1 << 20)
    ))
}

/// Median microseconds.
fn each(work: impl Fn(usize) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut taken = Vec::new();
    for file in 0..SAMPLES {
        let start = Instant::now();
        work(file)?;
        taken.push(micros(start.elapsed()));
    }
    Ok(median(&taken))
}

/// Adds members until there are `want`; returns the new devices' keys.
fn enrol(site: &Site, have: usize, want: usize) -> anyhow::Result<Vec<SigningKey>> {
    let superuser = site.superuser()?;
    let key = |number: usize| {
        let mut seed = [9; 32];
        seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
        SigningKey::from_seed(&seed)
    };
    for from in (have..want).step_by(USERS) {
        let new: Vec<usize> = (from..want.min(from + USERS)).collect();
        modify(&superuser, move |changes| {
            let mut membership = changes.membership()?;
            let mut members: Membership = membership.next();
            for number in &new {
                let user = members.next_user();
                members.users.insert(user, User { name: format!("user{number}"), removed: false });
                let device = members.next_device();
                let (name, key) = ("laptop".to_owned(), key(*number).public());
                members.devices.insert(device, Device { user, name, key, removed_at: None });
            }
            membership.set(members)
        })?;
    }
    superuser.stop();
    Ok((have..want).map(key).collect())
}

/// Has other devices order an operation each and nothing more, until there are `want`.
fn leave_pending(site: &Site, have: usize, want: usize) -> anyhow::Result<()> {
    for key in enrol(site, have, want)? {
        let proof = ServerProof { file_system: site.address.file_system, minimum_sequence: 0 };
        let connection =
            Connector::new(key.clone(), vec![site.server.clone()], Some(proof)).connect(PATIENCE)?;
        let welcome = connection.welcome().context("no greeting")?;
        let (superuser, server_keys) = welcome.file_system.context("the file system is not there")?;
        let device = welcome.device.context("the device is no member's")?;
        let mut signer = Signer::new(Floor::new(superuser, device));
        signer.step(&key, Event::ServerKeys(server_keys))?;
        let begin = Event::Begin { deltas: Vec::new(), time_ns: 0, fast: None };
        for effect in signer.step(&key, begin)? {
            if let Effect::Send(request) = effect {
                match connection.call_blocking(*request, PATIENCE)? {
                    Response::View(_) => {}
                    other => anyhow::bail!("not ordered: {other:?}"),
                }
            }
        }
    }
    Ok(())
}

/// Adds empty files to the home until there are `want`.
fn fill(site: &Site, have: u32, want: u32) -> anyhow::Result<()> {
    let home = site.engine.fetch()?;
    let home =
        holdfast_client::View::entry(&*home, Handle::ROOT, b"user")?.context("the user has no home")?.handle;
    for from in (have..want).step_by(BULK as usize) {
        let until = want.min(from + BULK);
        modify(&site.engine, move |changes| {
            for file in from..until {
                let handle = changes.allocate(home.principal)?;
                let inode = Inode::new(InodeKind::File, 0o644, changes.me(), i64::from(file));
                changes.set_inode(handle, inode)?;
                let entry = Entry { handle, kind: InodeKind::File };
                changes.set_entry(home, format!("file-{file:08}").as_bytes(), Some(entry), 0)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Gives states names, each after a change.
fn name_states(site: &Site, have: usize, want: usize) -> anyhow::Result<()> {
    let caller = Caller { uid: 1000, gid: 1000, thread: 1 };
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    for number in have..want {
        let name = format!("state-{number}");
        let made = site.files.create(&caller, site.home, name.as_bytes(), 0o644, exclusive)?;
        site.files.release(made.1.handle);
        site.engine.name_state(&name)?;
    }
    Ok(())
}

fn modify(
    engine: &Engine,
    edit: impl FnMut(&mut dyn Changes) -> Result<(), FsError> + Send + 'static,
) -> anyhow::Result<()> {
    engine.modify(Arc::new(parking_lot::Mutex::new(edit)))?;
    Ok(engine.flush_commits()?)
}

/// Memory of this process: the server and all clients.
fn resident_mib() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).context("/proc/self/statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64 / f64::from(1 << 20))
}
