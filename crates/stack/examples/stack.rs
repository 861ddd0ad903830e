//! Formats an image and mounts it, or mounts it again, until it is told to end by a line on its input.
use holdfast_access::{Access, Acl, Name, Principal};
use holdfast_components::{Program, run_if_component};
use holdfast_log::device::{Device, FileDevice};
use holdfast_stack::{COMPONENTS, Configuration, Place, Session, Stack};
use holdfast_volume::{Options, Volume, VolumeKey};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    if let Some(code) = run_if_component(COMPONENTS) {
        return code;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, disk, log, size, directory] = &arguments[..] else { return ExitCode::from(64) };
    let size: u64 = size.parse().expect("a size");
    let table = 256_u64;
    let total = size + table * 4096;
    let key = VolumeKey::new(&[7; 32], b"an example volum");
    if verb == "format" {
        for (path, bytes) in [(disk, total), (log, 64 << 20)] {
            std::fs::File::create(path).expect("made").set_len(bytes).expect("sized");
        }
    }
    let open = |path: &str| -> Arc<dyn Device> { Arc::new(FileDevice::open(path.as_ref()).expect("opens")) };
    let (disk, log) = (open(disk), open(log));
    if verb == "format" {
        Volume::format(&*disk, &*log, &key, None).expect("formatted");
        Volume::adopt_empty(disk.clone(), log.clone(), &key, [1; 16], &|_, _| true).expect("adopted");
    }
    let (volume, report) = Volume::open(disk, log, &key, Options::default(), None, [2; 16]).expect("opens");
    eprintln!("{report:?}");
    volume.start().expect("starts");
    let options = holdfast_fat::format::FormatOptions {
        sector_bytes: 512,
        cluster_bytes: Some(4096),
        label: "EXAMPLE".to_owned(),
        volume_id: 7,
        hidden_sectors: 0,
        now: holdfast_fat::Moment { seconds: 0, nanoseconds: 0 },
        utc_offset_minutes: 0,
    };
    let fat = holdfast_fat::format::format(size, &options).expect("formats").layout;
    let user = Principal::User(Name::new("alice").expect("a name"));
    let fuse = rustix::fs::open("/dev/fuse", rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()).expect("fuse");
    use std::os::fd::AsRawFd;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,subtype=holdfast,default_permissions", fuse.as_raw_fd());
    let data = std::ffi::CString::new(data).expect("text");
    rustix::mount::mount("example", directory.as_str(), "fuse", rustix::mount::MountFlags::NOSUID, &*data).expect("mounted");
    let configuration = Configuration {
        name: "example".to_owned(),
        program: Program::current().expect("itself"),
        digest: holdfast_crypto::Digest([3; 32]),
        volume,
        place: Place { identity: [4; 16], start: 0, bytes: size, table: (size, table) },
        fat,
        format: (verb == "format").then(|| ("EXAMPLE".to_owned(), Some(4096), 7)),
        administrator: Principal::User(Name::new("admin").expect("a name")),
        sessions: vec![Session { acl: Acl::of(user.clone(), Access::ReadWrite).expect("storable"), user, fuse, uid: 0, gid: 0 }],
        pages_max: 16_384,
    };
    let stack = Stack::start(configuration).expect("starts");
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    let _ = rustix::mount::unmount(directory.as_str(), rustix::mount::UnmountFlags::DETACH);
    stack.stop().expect("stops");
    ExitCode::SUCCESS
}
