//! A stack for tests: formats an image and mounts it for alice and bob, or mounts it again, and then carries
//! out commands, one in each line of input: `kill COMPONENT`, `list`, `stop`.
//!
//! Usage: holdfast-stack-host format|mount DISK LOG BYTES CLUSTER_BYTES DIR_OF_ALICE DIR_OF_BOB

use holdfast_access::{Access, Acl, Name, Principal};
use holdfast_components::{Program, run_if_component};
use holdfast_crypto::Digest;
use holdfast_log::device::{Device, FileDevice};
use holdfast_stack::{
    COMPONENTS, Configuration, DiskLayout, DiskPlan, FormatRequest, NewFileSystem, Partition, Session, Stack,
    lay_out,
};
use holdfast_volume::{Options, Volume, VolumeKey};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::io::stdin;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const TABLE_BLOCKS: u64 = 256;
const LOG_BYTES: u64 = 96 << 20;
const RING_BYTES: u64 = 64 << 20;

fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

fn session(name: &str, directory: &str) -> Session {
    let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let fuse: OwnedFd = fuse.expect("the kernel has FUSE");
    let options = "rootmode=40000,user_id=0,group_id=0,subtype=holdfast,default_permissions";
    let data = CString::new(format!("fd={},{options}", fuse.as_raw_fd())).expect("text");
    mount("holdfast-stack", directory, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*data)
        .expect("mounted");
    let acl = Acl::of(user(name), Access::ReadWrite).expect("storable");
    Session {
        disk: 0,
        partition: 0,
        user: user(name),
        acl,
        fuse,
        uid: 0,
        gid: 0,
        credentials: Vec::new(),
        gate: None,
    }
}

/// Runs as a component, or as the host.
pub fn main() -> ExitCode {
    if let Some(code) = run_if_component(COMPONENTS) {
        return code;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, disk, log, bytes, cluster, alice, bob] = &arguments[..] else { return ExitCode::from(64) };
    let bytes: u64 = bytes.parse().expect("bytes");
    let cluster: u32 = cluster.parse().expect("bytes of a cluster");
    let is_new = verb == "format";
    let key = VolumeKey::new(&[7; 32], b"a tested volume.");
    if is_new {
        File::create(disk).and_then(|file| file.set_len(bytes + TABLE_BLOCKS * 4096)).expect("made");
        File::create(log).and_then(|file| file.set_len(LOG_BYTES)).expect("made");
    }
    let open = |path: &str| -> Arc<dyn Device> { Arc::new(FileDevice::open(path.as_ref()).expect("opens")) };
    let (disk, log) = (open(disk), open(log));
    if is_new {
        Volume::format(&*disk, &*log, &key, Some(RING_BYTES)).expect("formatted");
        Volume::adopt_empty(disk.clone(), log.clone(), &key, [1; 16], &|_, _| true).expect("adopted");
    }
    let mut salt = [0; 16];
    salt[..4].copy_from_slice(&std::process::id().to_le_bytes());
    let (volume, _) = Volume::open(disk, log, &key, Options::default(), None, salt).expect("opens");
    volume.start().expect("starts");
    // The file system begins at the start of the disk, as on cards without a partition table.
    let wanted = FormatRequest {
        disk_bytes: bytes + MIB,
        partitions: vec![(MIB, bytes)],
        cluster_bytes: Some(cluster),
        label: "TESTED".to_owned(),
        id: 7,
    };
    let geometry = lay_out(wanted).expect("it can be").geometries[0];
    let partition = Partition { number: 0, start: 0, bytes, geometry };
    let layout = DiskLayout {
        identity: [4; 16],
        partitions: vec![partition],
        table: (bytes, TABLE_BLOCKS),
        signed_by: None,
    };
    let new = NewFileSystem { label: "TESTED".to_owned(), cluster_bytes: Some(cluster), id: 7 };
    let format = is_new.then_some(new);
    let configuration = Configuration {
        name: format!("tested {}", std::process::id()),
        program: Program::current().expect("itself"),
        digest: Digest([3; 32]),
        packages: Default::default(),
        disks: vec![DiskPlan { volume, layout, bus: "files".to_owned(), format }],
        administrator: user("admin"),
        sessions: vec![session("alice", alice), session("bob", bob)],
        people: Default::default(),
        pages_max: 2048,
    };
    let stack = Stack::start(configuration).expect("starts");
    println!("ready");
    for line in stdin().lines() {
        let line = line.expect("text");
        match line.split_once(' ') {
            Some(("kill", component)) => stack.supervisor().kill(component).expect("it runs"),
            None if line == "list" => {
                println!("{}", serde_json::to_string(&stack.supervisor().listing()).expect("JSON"));
            }
            None if line == "stop" => break,
            _ => return ExitCode::from(64),
        }
        println!("done");
    }
    for directory in [alice, bob] {
        let _ = unmount(directory.as_str(), UnmountFlags::DETACH);
    }
    stack.stop().expect("stops");
    println!("stopped");
    ExitCode::SUCCESS
}
