//! Stacks to be attacked: a disk with alice's and bob's files, which the honest program makes once, and copies of it
//! that are mounted with an enemy in the stack.

use holdfast_testing::PATIENCE;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes of the disk's file system, and of a cluster.
pub const BYTES: u64 = 40 << 20;
pub const CLUSTER: u32 = 512;
const BLOCK: u64 = 512;
/// A text that no other file has.
const SECRET: &[u8] = b"ALICE'S SECRET, ";
const HONEST: &str = env!("CARGO_BIN_EXE_holdfast-stack-host");
const HOSTILE: &str = env!("CARGO_BIN_EXE_holdfast-stack-red-team");
/// The exit code of the hostile program's process when it has done its part.
const ATTACKED: i32 = 3;
const MARK: &[u8] = b"holdfast red team, orders: ";

/// The content of a file of alice: numbered lines, all different.
pub fn content(number: usize, bytes: usize) -> Vec<u8> {
    let line = |at: usize| [SECRET, format!("{number:07} {at:07}\n").as_bytes()].concat();
    (0..).flat_map(line).take(bytes).collect()
}

/// Alice's files.
pub fn files() -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([("SECRET", content(1, 30_000)), ("other", content(2, 9_000)), ("third", content(3, 700))])
}

/// A stack that runs, with the mounts of alice and bob. Dropping it kills it.
pub struct Running {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub alice: PathBuf,
    pub bob: PathBuf,
    /// The folder with the disk, its log and the mount points.
    pub folder: tempfile::TempDir,
}

/// The enemy: which component, and which attack.
#[derive(Clone, Copy)]
pub struct Enemy {
    pub role: &'static str,
    pub attack: &'static str,
    /// The range of processes of the run, by their numbers, that are enemies.
    pub first: u64,
    pub end: u64,
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it speaks");
    line.trim().to_owned()
}

/// A copy of the hostile program with its instructions in it.
fn ordered(enemy: Enemy, victim: u64, to: &Path) {
    let mut program = fs::read(HOSTILE).expect("built");
    let at = program.windows(MARK.len()).position(|window| window == MARK).expect("its mark");
    let Enemy { role, attack, first, end } = enemy;
    let orders = format!("{role} {attack} {first} {end} {victim} ");
    let from = at + MARK.len();
    program[from..from + orders.len()].copy_from_slice(orders.as_bytes());
    fs::write(to, program).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(to, mode).expect("executable");
}

impl Running {
    /// Formats (`format`) or mounts (`mount`) the disk in a folder, with an enemy in the stack if there is one.
    pub fn start(verb: &str, folder: tempfile::TempDir, enemy: Option<(Enemy, u64)>) -> Running {
        Running::start_with(verb, folder, BYTES, CLUSTER, enemy)
    }

    /// As [`Running::start`], with a file system of this size and clusters of that one.
    pub fn start_with(
        verb: &str,
        folder: tempfile::TempDir,
        bytes: u64,
        cluster: u32,
        enemy: Option<(Enemy, u64)>,
    ) -> Running {
        let at = |name: &str| folder.path().join(name);
        let (alice, bob, disk, log) = (at("alice"), at("bob"), at("disk"), at("log"));
        for directory in [&alice, &bob] {
            fs::create_dir_all(directory).expect("made");
        }
        let program = match enemy {
            None => PathBuf::from(HONEST),
            Some((enemy, victim)) => {
                ordered(enemy, victim, &at("program"));
                at("program")
            }
        };
        let words = fs::File::create(at("words")).expect("made");
        let mut child = Command::new(program)
            .arg(verb)
            .args([&disk, &log])
            .args([bytes.to_string(), cluster.to_string()])
            .args([&alice, &bob])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(words)
            .spawn()
            .expect("starts");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        assert_eq!(line(&mut output), "ready", "{}", fs::read_to_string(at("words")).unwrap_or_default());
        Running { child, input, output, alice, bob, folder }
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("told");
        line(&mut self.output)
    }

    /// Kills a component's process without waiting for its successor.
    pub fn end(&mut self, component: &str) {
        assert_eq!(self.tell(&format!("kill {component}")), "done");
    }

    /// The number of the host's process.
    pub fn host_pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills a component's process, and waits until another has been started.
    pub fn kill(&mut self, component: &str) {
        let before = self.component(component)["process"].clone();
        assert_eq!(self.tell(&format!("kill {component}")), "done");
        self.until("another process", |running| {
            let now = &running.component(component)["process"];
            *now != before && !now.is_null()
        });
    }

    fn listing(&mut self) -> serde_json::Value {
        let text = self.tell("list");
        assert_eq!(line(&mut self.output), "done");
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn component(&mut self, name: &str) -> serde_json::Value {
        let listing = self.listing();
        let components = listing["components"].as_array().expect("components");
        components.iter().find(|component| component["name"] == name).expect("it is there").clone()
    }

    pub fn components(&mut self) -> Vec<serde_json::Value> {
        self.listing()["components"].as_array().expect("components").clone()
    }

    /// Waits until `holds` is true, and fails with the host's log.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Running) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "{what} does not come: {}", self.words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the host has written.
    pub fn words(&self) -> String {
        fs::read_to_string(self.folder.path().join("words")).unwrap_or_default()
    }

    /// Whether a process of the component, in any of its starts, has ended after it was the enemy.
    pub fn has_attacked(&self, component: &str) -> bool {
        self.attackers_end(component).is_some()
    }

    /// The end, in the host's log, of the process that was the enemy. A component's `last_end` may be that of the
    /// honest process that was started after it.
    fn attackers_end(&self, component: &str) -> Option<String> {
        let component = format!("component=\"{component}\"");
        let words = self.words();
        let mut ends = words.lines().filter(|line| line.contains(&component));
        ends.find(|line| line.contains(&format!("ended with code {ATTACKED}"))).map(str::to_owned)
    }

    /// The figures that an enemy reported when it ended, by name; waits for them.
    pub fn report(&mut self, component: &str) -> BTreeMap<String, u64> {
        self.until("a report", |running| running.has_attacked(component));
        let end = self.attackers_end(component).expect("it has ended");
        let words = end.split_once("last words:").unwrap_or_else(|| panic!("no report: {end}")).1;
        let words = words.split('"').next().expect("one part at least");
        let pairs = words.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect()
    }

    /// How a component ended last.
    pub fn last_end(&mut self, component: &str) -> String {
        self.component(component)["last_end"].as_str().unwrap_or_default().to_owned()
    }

    /// The number of restarts of all other components, and whether one of them is down.
    pub fn others(&mut self, role: &str) -> (u64, bool) {
        let is_other = |component: &&serde_json::Value| component["name"] != role;
        let components = self.components();
        let others: Vec<_> = components.iter().filter(is_other).collect();
        let restarts = others.iter().map(|other| other["restarts"].as_u64().expect("a number")).sum();
        let is_down = others.iter().any(|other| {
            other["state"] == "down" || (other["state"] == "done" && other["name"] != "disk-formatter")
        });
        (restarts, is_down)
    }

    /// Bytes of memory of the host or of a component, and the number of the host's open files.
    pub fn memory(&mut self, component: Option<&str>) -> u64 {
        let pid = match component {
            None => u64::from(self.child.id()),
            Some(name) => self.component(name)["pid"].as_u64().expect("it runs"),
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    }

    pub fn host_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it lives").count()
    }

    /// Those of alice's files that she does not see as they were, read without her kernel's cache.
    pub fn altered(&self) -> Vec<String> {
        files()
            .iter()
            .filter_map(|(name, expected)| {
                let path = self.alice.join(name);
                let found = uncached(&path);
                match found {
                    Ok(found) if found == *expected => None,
                    Ok(found) => Some(format!("{name}: {} bytes, other ones", found.len())),
                    Err(error) => Some(format!("{name}: {error}")),
                }
            })
            .collect()
    }

    pub fn stop(mut self) -> tempfile::TempDir {
        assert_eq!(self.tell("stop"), "stopped", "{}", self.words());
        assert!(self.child.wait().expect("ended").success());
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a directory"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for directory in [&self.alice, &self.bob] {
            let _ = Command::new("umount").arg("-l").arg(directory).stderr(Stdio::null()).status();
        }
    }
}

/// A file's content as the file system gives it, and not as the kernel caches it.
pub fn uncached(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let length = file.metadata()?.len();
    if length > BYTES {
        return Err(std::io::Error::other("longer than the disk"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The disk, the first block of alice's secret, and the number of components.
struct Prepared {
    place: PathBuf,
    victim: u64,
    components: u64,
}

/// Made by the first test that needs it, and kept beside the build until the next build.
fn prepared() -> &'static Prepared {
    static PREPARED: OnceLock<Prepared> = OnceLock::new();
    PREPARED.get_or_init(|| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stack-disks");
        fs::create_dir_all(&kept).expect("made");
        let lock = fs::File::create(kept.join("lock")).expect("made");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let built = fs::metadata(HONEST).and_then(|host| host.modified()).expect("built");
        let built = built.duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos();
        let place = kept.join(built.to_string());
        if !place.join("made").exists() {
            for older in fs::read_dir(&kept).expect("listed") {
                let _ = fs::remove_dir_all(older.expect("an entry").path());
            }
            fs::create_dir(&place).expect("made");
            let (victim, components) = prepare(&place);
            fs::write(place.join("made"), format!("{victim} {components}")).expect("written");
        }
        let made = fs::read_to_string(place.join("made")).expect("read");
        let (victim, components) = made.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse().expect("a number");
        Prepared { victim: number(victim), components: number(components), place }
    })
}

/// Makes the disk and its log in `kept`; returns the block with alice's secret, and the number of components.
fn prepare(kept: &Path) -> (u64, u64) {
    let running = Running::start("format", tempfile::tempdir().expect("a directory"), None);
    for (name, bytes) in files() {
        fs::write(running.alice.join(name), bytes).expect("written");
    }
    fs::write(running.bob.join("bob's"), vec![b'b'; 5000]).expect("written");
    fs::File::open(running.alice.join("SECRET")).expect("opens").sync_all().expect("durable");
    let mut running = Running::start("mount", running.stop(), None);
    assert_eq!(running.altered(), Vec::<String>::new());
    let components = running.components().len() as u64;
    let place = running.stop();
    let disk = fs::read(place.path().join("disk")).expect("read");
    let first = content(1, 512);
    let at = disk.windows(512).step_by(512).position(|block| block == first).expect("on the disk");
    for name in ["disk", "log"] {
        copied(&place.path().join(name), &kept.join(name));
    }
    (number_of(&disk, at as u64 * BLOCK), components)
}

/// The number of the block at an offset of the disk: metadata, in blocks of 4096 bytes, has the first numbers.
fn number_of(disk: &[u8], at: u64) -> u64 {
    use holdfast_fat::{Area, Layout};
    let layout = Layout::from_boot_sector(&disk[..512], BYTES).expect("a file system");
    let metadata = layout.area_start(Area::Data);
    let block = u64::from(layout.block_bytes);
    metadata / block + u64::from(!metadata.is_multiple_of(block)) + (at - metadata) / block
}

/// The number of the first process that is a restart.
pub fn second() -> u64 {
    prepared().components + 1
}

fn copied(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--sparse=always").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

/// A copy of the disk.
pub fn copy() -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a directory");
    for name in ["disk", "log"] {
        copied(&prepared().place.join(name), &place.path().join(name));
    }
    place
}

/// Mounts a copy of the disk with an enemy in the stack.
pub fn attacked(enemy: Enemy) -> Running {
    Running::start("mount", copy(), Some((enemy, prepared().victim)))
}

/// Asserts, with honest programs after an attack and a clean end, that alice's files are what they were and the file
/// system is sound.
pub fn aftermath(running: Running) -> Vec<String> {
    let place = running.stop();
    let mut wrong = Vec::new();
    let image = place.path().join("fat");
    let mut part = std::io::Read::take(fs::File::open(place.path().join("disk")).expect("opens"), BYTES);
    std::io::copy(&mut part, &mut fs::File::create(&image).expect("made")).expect("copied");
    let output = Command::new("fsck.fat").args(["-n", "-V"]).arg(&image).output().expect("fsck.fat runs");
    if !output.status.success() {
        wrong.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    fs::remove_file(image).expect("removed");
    let running = Running::start("mount", place, None);
    wrong.extend(running.altered());
    running.stop();
    wrong
}
