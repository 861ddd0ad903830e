//! A protected image under a file system: exported by a process of its own that can be killed, or by this one, and
//! mounted by way of a loop device. Whatever a test leaves behind is removed.

use holdfast_fuse::{Options, Session, UnmountMode, mount_disk};
use holdfast_log::device::{Device, FileDevice};
use holdfast_testing::{eventually, text};
use holdfast_volume::{Plan, Volume, VolumeKey};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

/// A file system, and how it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ext4,
    /// With blocks of 1024 bytes, on sectors of 512.
    SmallExt4,
    Xfs,
    /// With blocks of 1024 bytes, on sectors of 512.
    SmallXfs,
    Btrfs,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ext4, Kind::SmallExt4, Kind::Xfs, Kind::SmallXfs, Kind::Btrfs];

    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 | Kind::SmallExt4 => "ext4",
            Kind::Xfs | Kind::SmallXfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// Little more than the least that its tools accept.
    pub fn image_bytes(self) -> u64 {
        match self {
            Kind::Ext4 | Kind::SmallExt4 => 96 << 20,
            Kind::Xfs | Kind::SmallXfs => 320 << 20,
            Kind::Btrfs => 192 << 20,
        }
    }

    fn sector_bytes(self) -> &'static str {
        match self {
            Kind::SmallExt4 | Kind::SmallXfs => "512",
            _ => "4096",
        }
    }

    /// Whether its tools are here, and whether we may mount at all.
    pub fn is_possible(self) -> bool {
        let tool = format!("mkfs.{}", self.name());
        let is_installed = Command::new(&tool).arg("-V").output().is_ok();
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let is_known = known.lines().any(|line| line.split_whitespace().last() == Some(self.name()));
        let is_possible = rustix::process::geteuid().is_root() && is_installed && is_known;
        if !is_possible {
            eprintln!("not tested: {self:?} needs root, {tool} and a kernel that has it");
        }
        is_possible
    }

    pub fn make(self, image: &Path) {
        self.make_of(image, self.image_bytes());
    }

    pub fn make_of(self, image: &Path, bytes: u64) {
        File::create(image).expect("made").set_len(bytes).expect("sized");
        let arguments = match self {
            Kind::Ext4 => "mkfs.ext4 -q -F -b 4096",
            Kind::SmallExt4 => "mkfs.ext4 -q -F -b 1024",
            Kind::Xfs => "mkfs.xfs -q -f -s size=4096",
            Kind::SmallXfs => "mkfs.xfs -q -f -s size=512 -b size=1024",
            Kind::Btrfs => "mkfs.btrfs -q -f",
        };
        run(arguments, &[image]);
    }

    /// Has its own tool look for anything wrong.
    pub fn check(self, image: &Path) {
        let arguments = match self {
            Kind::Ext4 | Kind::SmallExt4 => "e2fsck -f -n",
            Kind::Xfs | Kind::SmallXfs => "xfs_repair -n -f",
            Kind::Btrfs => "btrfs check --readonly",
        };
        run(arguments, &[image]);
    }
}

fn command(line: &str, arguments: &[&Path]) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words).args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command.
#[track_caller]
pub fn attempt(line: &str, arguments: &[&Path]) -> Output {
    holdfast_testing::ended(&mut command(line, arguments))
}

/// Runs a command that must succeed, and returns what it printed.
#[track_caller]
pub fn run(line: &str, arguments: &[&Path]) -> String {
    holdfast_testing::run(&mut command(line, arguments))
}

/// Waits until a command succeeds: loop devices let go of files late, and of devices that are checked.
#[track_caller]
pub fn until_done(command: &str, argument: &Path) {
    eventually(command, || attempt(command, &[argument]).status.success());
}

pub fn key() -> VolumeKey {
    VolumeKey::new(&[6; 32], b"a tested volume.")
}

pub fn device(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Makes the log of an image, and takes over what is on it.
pub fn protect(image: &Path, log: &Path) {
    let bytes = fs::metadata(image).expect("it is there").len();
    File::create(log).expect("made").set_len(Plan::new(bytes, None).bytes).expect("sized");
    Volume::format(&*device(image), &*device(log), &key(), None).expect("formatted");
    let done = Volume::adopt(device(image), device(log), &key(), [1; 16], None, &|_, _| true);
    assert!(done.expect("adopted"));
}

/// A volume exported by this process.
pub struct Attached {
    pub volume: Arc<Volume>,
    session: Session,
}

impl Attached {
    /// Opens and exports. No block may be refused: file systems never have blocks of unacknowledged writes in use
    /// that they read before they write them, but for those that `may_refuse` speaks of.
    pub fn new(disk: Arc<dyn Device>, log: Arc<dyn Device>, at: &Path, may_refuse: bool) -> Attached {
        let (volume, report) =
            Volume::open(disk, log, &key(), Default::default(), None, [5; 16]).expect("opens");
        assert!(may_refuse || report.refused.is_empty(), "{:?}", report.refused);
        volume.start().expect("started");
        let volume = Arc::new(volume);
        let options = Options {
            source: "a tested disk".into(),
            allow_other: false,
            read_only: false,
            no_exec: true,
            local_locks: false,
        };
        let disk = volume.clone();
        let session = mount_disk(disk, "disk", at, &options, || ()).expect("mounted");
        Attached { volume, session }
    }

    pub fn detach(&self) {
        eventually("nobody uses it", || self.session.unmount(UnmountMode::Gently).is_ok());
        self.session.wait();
        self.volume.close().expect("closed");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.session.unmount(UnmountMode::Lazily);
    }
}

/// Names what [`export_here`] is to export: image, log and directory, with colons between.
const EXPORT: &str = "HOLDFAST_TEST_EXPORT";

/// What a process that [`Exporter`] has started does: it exports until it is unmounted, or killed.
pub fn export_here() {
    let wanted = std::env::var(EXPORT).expect("another test runs this one");
    let [image, log, at] = wanted.split(':').collect::<Vec<_>>()[..] else { panic!("{wanted}") };
    let attached = Attached::new(device(image.as_ref()), device(log.as_ref()), at.as_ref(), false);
    println!("exported");
    attached.session.wait();
    attached.volume.close().expect("closed");
}

/// A volume exported by a process of its own.
pub struct Exporter {
    child: Child,
    at: PathBuf,
}

impl Exporter {
    pub fn start(image: &Path, log: &Path, at: &Path) -> Exporter {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["volumes::exporting_process", "--exact", "--ignored", "--nocapture"])
            .env(EXPORT, format!("{}:{}:{}", image.display(), log.display(), at.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        let exporter = Exporter { child, at: at.to_owned() };
        // Not dropped while the process says more.
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("exported")), "it did not export");
        std::thread::spawn(move || lines.for_each(drop));
        exporter
    }

    /// As by the kernel, without a word.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    pub fn detach(mut self) {
        until_done("umount", &self.at);
        assert!(self.child.wait().expect("gone").success());
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        attempt("fusermount3 -uzq", &[&self.at]);
    }
}

/// An image under a file system, by way of a loop device.
pub struct Mounted {
    device: PathBuf,
    image: String,
    directory: PathBuf,
}

impl Mounted {
    pub fn new(kind: Kind, image: &Path, directory: &Path) -> Mounted {
        let command = format!("losetup --show --direct-io=on --sector-size {} -f", kind.sector_bytes());
        let device = PathBuf::from(run(&command, &[image]).trim());
        // Two images may be the same file system at two times.
        let options = if kind.name() == "xfs" { "-o nouuid " } else { "" };
        let mounted = Mounted {
            device: device.clone(),
            image: format!("({})", image.display()),
            directory: directory.to_owned(),
        };
        run(format!("mount -t {} {options}", kind.name()).trim_end(), &[&device, directory]);
        mounted
    }

    pub fn unmount(self) {
        until_done("umount", &self.directory);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        attempt("umount -lq", &[&self.directory]);
        attempt("losetup -d", &[&self.device]);
        // Two devices with one btrfs would be taken for one. (Another test may have this device by now.)
        let is_ours = || text(&attempt("losetup", &[&self.device])).contains(&*self.image);
        if !std::thread::panicking() {
            eventually("the loop device lets go of the image", || !is_ours());
        }
    }
}

/// Directories and files of a test.
pub struct Workspace {
    home: TempDir,
}

impl Workspace {
    pub fn new() -> Workspace {
        let home = tempfile::tempdir().expect("a directory");
        // Databases work as somebody else.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(home.path(), everybody).expect("allowed");
        for directory in ["at", "disk"] {
            fs::create_dir(home.path().join(directory)).expect("made");
        }
        Workspace { home }
    }

    pub fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    pub fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// Where the volume is exported.
    pub fn at(&self) -> PathBuf {
        self.home.path().join("at")
    }

    /// The exported file.
    pub fn exported(&self) -> PathBuf {
        self.at().join("disk")
    }

    /// Where file systems are mounted.
    pub fn disk(&self) -> PathBuf {
        self.home.path().join("disk")
    }
}
