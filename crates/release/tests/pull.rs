//! Mirrors are updated by fetching little, stay whole however a pull ends, and accept nothing false.

use holdfast_content::InodeKind;
use holdfast_crypto::{DigestKey, Domain, SigningKey};
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::draft::Draft;
use holdfast_release::index::Index;
use holdfast_release::keys::{KeySet, Origin, ReleaseId};
use holdfast_release::mirror::{Directory, Mirror, MirrorError};
use holdfast_release::open::{Options, Release, now_s};
use holdfast_release::publish::compose::{self, compose, tidy};
use holdfast_release::publish::rules::Rules;
use holdfast_release::pull::{Progress, PullError, PullOptions, Report, pull};
use holdfast_release::record::RootFile;
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::revocation::Statement;
use holdfast_release::signing::{Role, Signable, Signed};
use holdfast_release::tree::{Node, Tree};
use holdfast_release::{form, layout};
use holdfast_testing::noise;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Files = BTreeMap<String, Vec<u8>>;

/// A publisher, and the releases it has published.
struct Fixture {
    folder: tempfile::TempDir,
    id: ReleaseId,
    /// The content of each release.
    published: BTreeMap<u64, Files>,
}

fn key() -> SigningKey {
    SigningKey::from_seed(&[1; 32])
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("tree/deep/er")).unwrap();
        let dir = ReleaseDir::new(&folder.path().join("release"));
        let set = KeySet {
            number: 1,
            origin: Origin::First { salt: [7; 16] },
            role: Role { keys: [key().public()].into(), threshold: 1 },
            freshness: None,
            certificates: false,
        };
        let mut draft =
            Draft { sets: vec![], keys: Some(Signed::unsigned(set)), root: None, statement: None };
        draft.sign(&key()).unwrap();
        let finished = draft.finish().unwrap();
        dir.install(&finished).unwrap();
        let mut world = Fixture { id: finished.chain.id(), folder, published: BTreeMap::new() };
        for number in 0..40 {
            world.write(&format!("deep/{number}"), &noise(number, 20_000));
        }
        world.write("deep/er/text", &b"the same again\n".repeat(1000));
        world.write("large", &noise(99, 3_000_000));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&mut self, name: &str, bytes: &[u8]) {
        fs::write(self.path("tree").join(name), bytes).unwrap();
    }

    /// Publishes the tree, retaining so many releases, and returns the release's number.
    fn publish(&mut self, keep: usize) -> u64 {
        let (source, target) = (self.path("tree"), self.path("release"));
        let rules = Rules::default();
        let terms = compose::ReleaseOptions {
            source: &source,
            target: &target,
            now_s: now_s(),
            life_s: 86_400,
            note: "",
            keep,
            first_key: DigestKey::WELL_KNOWN,
            rules: &rules,
            newest: None,
            level: 1,
            threads: 1,
            memory: None,
            live: None,
        };
        let mut composed = compose(&terms, &mut |_| true).unwrap();
        composed.draft.sign(&key()).unwrap();
        ReleaseDir::new(&target).install(&composed.draft.finish().unwrap()).unwrap();
        tidy(&target, keep).unwrap();
        let mut files = Files::new();
        for folder in ["", "deep/", "deep/er/"] {
            for entry in fs::read_dir(source.join(folder)).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_file() {
                    let name = format!("{folder}{}", entry.file_name().to_str().unwrap());
                    files.insert(name, fs::read(entry.path()).unwrap());
                }
            }
        }
        self.published.insert(composed.report.sequence, files);
        composed.report.sequence
    }

    fn options(&self, trust: &str) -> Options {
        Options {
            id: self.id,
            trust: self.path(trust),
            revocations: vec![],
            stale: ExpiredPolicy::Refuse,
            cache: None,
            memory_bytes: 1 << 20,
        }
    }

    /// Pulls from these mirrors, with one memory of trust for all pulls.
    fn pull_from(
        &self,
        mirrors: Vec<Arc<dyn Mirror>>,
        target: &str,
        how: &PullSettings<'_>,
    ) -> Result<Report, PullError> {
        let target = self.path(target);
        let from: Vec<PathBuf> = how.from.iter().map(|name| self.path(name)).collect();
        let terms = PullOptions {
            target: &target,
            keep: how.keep,
            from: &from,
            quick: how.quick,
            connections: how.connections,
        };
        pull(&self.options(how.trust), mirrors, &terms, how.progress)
    }

    fn pull(&self, target: &str) -> Report {
        self.pull_from(
            vec![Arc::new(Directory::new(&self.path("release")))],
            target,
            &PullSettings::default(),
        )
        .unwrap()
    }

    /// Proves that a directory is a valid mirror: a stranger who trusts the id alone reads each of its releases to the
    /// last byte. Returns their numbers, the newest first.
    fn releases_of(&self, target: &str) -> Vec<u64> {
        let trust = tempfile::tempdir_in(self.folder.path()).unwrap();
        let options = Options { trust: trust.path().to_owned(), ..self.options("") };
        let release = Release::open(options, vec![Arc::new(Directory::new(&self.path(target)))]).unwrap();
        let newest = release.current().accepted.record.sequence;
        let mut sequences: Vec<u64> = fs::read_dir(self.path(target).join("records"))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok())
            .collect();
        sequences.sort_unstable_by(|a, b| b.cmp(a));
        sequences.retain(|sequence| *sequence <= newest);
        for sequence in &sequences {
            let bytes = fs::read(self.path(target).join(layout::record(*sequence))).unwrap();
            let tree = release.tree_of(&form::read::<RootFile>(&bytes).unwrap()).unwrap();
            let mut files = Files::new();
            read_all(&tree, &tree.root().unwrap(), "", &mut files);
            assert!(files == self.published[sequence], "release {sequence}");
        }
        assert_eq!(sequences.first(), Some(&newest));
        sequences
    }
}

fn read_all(tree: &Tree, node: &Node, path: &str, files: &mut Files) {
    for (name, entry) in tree.entries(node, None, usize::MAX).unwrap() {
        let path = format!("{path}{}", String::from_utf8(name).unwrap());
        let child = tree.node(entry).unwrap();
        match child.inode.kind {
            InodeKind::Directory => read_all(tree, &child, &format!("{path}/"), files),
            _ => {
                let bytes = tree.read(&child, 0, child.inode.size as usize + 1).unwrap();
                files.insert(path, bytes);
            }
        }
    }
}

/// How a test pulls.
struct PullSettings<'a> {
    keep: usize,
    from: &'a [&'a str],
    quick: bool,
    connections: usize,
    trust: &'a str,
    progress: &'a (dyn Fn(Progress) -> bool + Sync),
}

impl Default for PullSettings<'_> {
    fn default() -> Self {
        PullSettings {
            keep: usize::MAX,
            from: &[],
            quick: false,
            connections: 3,
            trust: "trust",
            progress: &|_| true,
        }
    }
}

type Tampering = dyn Fn(&str, Vec<u8>) -> Option<Vec<u8>> + Send + Sync;

/// A mirror that records what it was asked for, and may lie.
struct Source {
    name: String,
    directory: Directory,
    asked: Mutex<Vec<(String, u64)>>,
    /// Changes the content of a whole file; `None` means that the file is missing.
    twist: Box<Tampering>,
}

impl Source {
    fn new(
        path: &Path,
        twist: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Arc<Source> {
        // Mirrors are told apart by their names.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let (name, directory) = (format!("source {number} at {}", path.display()), Directory::new(path));
        Arc::new(Source { name, directory, asked: Mutex::default(), twist: Box::new(twist) })
    }

    fn honest(path: &Path) -> Arc<Source> {
        Source::new(path, |_, bytes| Some(bytes))
    }

    fn asked(&self) -> Vec<(String, u64)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Mirror for Source {
    fn name(&self) -> &str {
        &self.name
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        let missing = || MirrorError::Missing { mirror: self.name.clone(), file: file.to_owned() };
        let read = self.directory.get(file, None, u64::MAX);
        let bytes = match read {
            Err(MirrorError::Missing { .. }) => {
                (self.twist)(file, Vec::new()).filter(|bytes| !bytes.is_empty())
            }
            other => (self.twist)(file, other?),
        };
        let bytes = bytes.ok_or_else(missing)?;
        let length = bytes.len() as u64;
        let range = range.unwrap_or(0..length);
        let part = bytes[range.start.min(length) as usize..range.end.min(length) as usize].to_vec();
        assert!(part.len() as u64 <= bytes_max, "{file}");
        self.asked.lock().push((file.to_owned(), part.len() as u64));
        Ok(part)
    }
}

fn snapshot(path: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(snapshot(&entry.path()));
        } else {
            let modified = entry.metadata().unwrap().modified().unwrap();
            files.insert(entry.path(), (fs::read(entry.path()).unwrap(), modified));
        }
    }
    files
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").args(["-a", "-T"]).args([from, to]).status().unwrap();
    assert!(copied.success());
}

fn flip(mut bytes: Vec<u8>) -> Vec<u8> {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}

/// Proves: an empty directory becomes a whole mirror. After a small change little is fetched. Without a change only the
/// signed files are fetched, and nothing changes. What no release needs is removed, one pull later.
#[test]
fn from_nothing_and_again_and_again() {
    let mut world = Fixture::new();
    world.publish(3);
    let first = world.pull("copy");
    assert!(first.changed && first.bytes_fetched > 3_500_000 && first.blocks_verified > 40, "{first:?}");
    assert_eq!(world.releases_of("copy"), [1]);

    let source = Source::honest(&world.path("release"));
    let again = |how: &PullSettings<'_>| world.pull_from(vec![source.clone()], "copy", how).unwrap();
    for quick in [false, true] {
        let before = snapshot(&world.path("copy"));
        let same = again(&PullSettings { quick, ..PullSettings::default() });
        assert!(!same.changed);
        assert_eq!(same.blocks_verified, if quick { 0 } else { first.blocks_verified });
        let asked: Vec<String> = source.asked().into_iter().map(|(name, _)| name).collect();
        assert!(asked.iter().all(|name| name == "root" || name.starts_with("keys/")), "{asked:?}");
        assert!(snapshot(&world.path("copy")) == before, "nothing is written anew");
    }

    world.write("deep/7", &noise(1007, 20_000));
    world.publish(3);
    let source = Source::honest(&world.path("release"));
    let changed = world
        .pull_from(vec![source.clone()], "copy", &PullSettings { quick: true, ..PullSettings::default() })
        .unwrap();
    assert!(changed.changed && changed.bytes_fetched < 60_000, "{changed:?}");
    assert!(changed.requests <= 8 && changed.packs_added == 1, "{changed:?} {:?}", source.asked());
    assert!(changed.blocks_verified <= 8 && changed.blocks_known > 40, "{changed:?}");
    assert_eq!(world.releases_of("copy"), [2, 1]);

    for number in 0..5 {
        world.write("large", &noise(number, 3_000_000));
        world.publish(2);
        world.pull("copy");
        world.releases_of("copy");
    }
    assert_eq!(world.releases_of("copy"), [7, 6]);
    for folder in ["packs", "index", "hints", "records"] {
        assert_eq!(
            names(&world.path("copy").join(folder)),
            names(&world.path("release").join(folder)),
            "{folder}"
        );
    }
    world.pull_from(vec![source], "copy", &PullSettings { keep: 1, ..PullSettings::default() }).unwrap();
    assert_eq!(world.releases_of("copy"), [7]);
}

/// Proves: wherever a pull is stopped, the directory is the old release or the new one, whole, for strangers too. The
/// next pull completes it with what was fetched already.
#[test]
fn stopped_everywhere() {
    let mut world = Fixture::new();
    world.publish(2);
    world.pull("old");
    world.write("deep/7", &noise(1007, 20_000));
    world.write("large", &noise(100, 3_000_000));
    world.publish(2);
    let whole = world
        .pull_from(vec![Source::honest(&world.path("release"))], "whole", &PullSettings::default())
        .unwrap();

    for from in ["old", "nothing"] {
        for stop in 0.. {
            let target = format!("{from}-{stop}");
            if from == "old" {
                copy(&world.path("old"), &world.path(&target));
            }
            let steps = AtomicU64::new(0);
            let progress = |_| steps.fetch_add(1, Relaxed) < stop;
            let how = PullSettings { connections: 1, progress: &progress, ..PullSettings::default() };
            let mirrors = || -> Vec<Arc<dyn Mirror>> { vec![Source::honest(&world.path("release"))] };
            let pulled = world.pull_from(mirrors(), &target, &how);
            let completed = pulled.is_ok();
            assert!(completed || matches!(pulled, Err(PullError::Stopped)), "{stop}: {pulled:?}");
            match world.path(&target).join("root").exists() {
                true => {
                    let there = world.releases_of(&target);
                    assert!(there == [1] || there == [2, 1], "{from} {stop}: {there:?}");
                    assert!(!completed || there == [2, 1]);
                }
                false => assert_eq!(from, "nothing"),
            }
            let next = world.pull_from(mirrors(), &target, &PullSettings::default()).unwrap();
            assert!(next.bytes_fetched <= whole.bytes_fetched, "{next:?}");
            assert_eq!(world.releases_of(&target), [2, 1]);
            let left = snapshot(&world.path(&target));
            assert!(left.keys().all(|path| path.extension().is_none()), "{left:?}");
            fs::remove_dir_all(world.path(&target)).unwrap();
            if completed {
                assert!(stop > 8, "{stop} steps are too few to be all");
                break;
            }
        }
    }
}

/// A publisher with two releases, and the mirror `old`, which has the first of them only.
fn one_release_behind() -> Fixture {
    let mut world = Fixture::new();
    world.publish(3);
    world.pull("old");
    world.write("large", &noise(100, 3_000_000));
    world.publish(3);
    world
}

/// Proves: a source with a false file of any kind leaves the directory as it was, with an error that names the file,
/// and does no harm when another mirror is good.
#[test]
fn liars() {
    let world = one_release_behind();
    let release = world.path("release");
    type NamedTampering = (&'static str, fn(Vec<u8>) -> Option<Vec<u8>>);
    let lies: [NamedTampering; 10] = [
        ("root", |bytes| Some(flip(bytes))),
        ("root", |_| None),
        ("keys/1", |bytes| Some(flip(bytes))),
        ("records/1", |bytes| Some(flip(bytes))),
        ("index/", |bytes| Some(flip(bytes))),
        ("index/", |_| None),
        ("hints/", |bytes| Some(flip(bytes))),
        ("packs/", |bytes| Some(flip(bytes))),
        ("packs/", |_| None),
        ("packs/", |mut bytes| {
            bytes.truncate(bytes.len() / 2);
            Some(bytes)
        }),
    ];
    for (number, (name, lie)) in lies.into_iter().enumerate() {
        let liar = || {
            Source::new(&release, move |file, bytes| {
                if file.starts_with(name) && !bytes.is_empty() { lie(bytes) } else { Some(bytes) }
            })
        };
        let target = format!("lied-{number}");
        copy(&world.path("old"), &world.path(&target));
        let before = snapshot(&world.path(&target));
        let trust = format!("trust-{number}");
        let how = PullSettings { trust: &trust, ..PullSettings::default() };
        let error = world.pull_from(vec![liar()], &target, &how).expect_err(name);
        assert!(error.to_string().contains(name), "{name}: {error}");
        let after = snapshot(&world.path(&target));
        assert!(before.iter().all(|(path, file)| after.get(path) == Some(file)), "{name}");
        assert_eq!(world.releases_of(&target), [1]);

        let honest = Source::honest(&release);
        world.pull_from(vec![liar(), honest], &target, &how).unwrap();
        assert_eq!(world.releases_of(&target), [2, 1], "{name}");
        fs::remove_dir_all(world.path(&target)).unwrap();
    }
}

/// Proves: an index that matches its digest but is false is detected before anything changes.
#[test]
fn a_false_index() {
    let world = one_release_behind();
    let release = world.path("release");
    let root: RootFile = form::read(&fs::read(release.join("root")).unwrap()).unwrap();
    let index = Index::decode(&fs::read(release.join(layout::index(&root.index.digest))).unwrap()).unwrap();
    let shift = |index: &mut Index| index.entries.iter_mut().for_each(|(_, place)| place.offset -= 1);
    let swap = |index: &mut Index| {
        let first = index.entries[0].1;
        index.entries.iter_mut().for_each(|(_, place)| *place = first);
    };
    let lack = |index: &mut Index| {
        index.entries.pop();
    };
    let huge = |index: &mut Index| index.packs[0].bytes = 1 << 40;
    let lies: [&dyn Fn(&mut Index); 4] = [&shift, &swap, &lack, &huge];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut false_index = index.clone();
        lie(&mut false_index);
        let bytes = false_index.encode();
        let mut root = root.clone();
        root.index.digest = DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &bytes);
        root.index.bytes = bytes.len() as u64;
        let name = layout::index(&root.index.digest);
        let liar = Source::new(&release, move |file, honest| match file {
            "root" => Some(form::write(&root)),
            file if file == name => Some(bytes.clone()),
            _ => Some(honest),
        });
        let before = snapshot(&world.path("old"));
        let error = world.pull_from(vec![liar], "old", &PullSettings::default()).expect_err("it lies");
        let PullError::Torn { sequence, .. } = error else { panic!("{number}: {error}") };
        // The missing block may be in the older release too.
        assert!(sequence == 2 || number == 2 && sequence == 1, "{number}: {sequence}");
        let after = snapshot(&world.path("old"));
        assert!(before.iter().all(|(path, file)| after.get(path) == Some(file)), "{number}");
    }
    let mut vast = root.clone();
    vast.index.bytes = u64::MAX;
    let liar = Source::new(
        &release,
        move |file, bytes| if file == "root" { Some(form::write(&vast)) } else { Some(bytes) },
    );
    let error =
        world.pull_from(vec![liar], "old", &PullSettings::default()).expect_err("nothing is so large");
    assert!(matches!(error, PullError::Torn { .. }), "{error}");
    assert_eq!(world.releases_of("old"), [1]);
    world.pull("old");
    assert_eq!(world.releases_of("old"), [2, 1]);
}

/// Proves: an older source never replaces a newer release, even if the client's memory knows nothing of it.
#[test]
fn a_source_that_is_behind() {
    let mut world = Fixture::new();
    world.publish(3);
    copy(&world.path("release"), &world.path("behind"));
    world.write("deep/1", b"new");
    world.publish(3);
    world.pull("copy");
    let behind = || -> Vec<Arc<dyn Mirror>> { vec![Source::honest(&world.path("behind"))] };
    let error = world.pull_from(behind(), "copy", &PullSettings::default()).expect_err("it is behind");
    assert!(matches!(error, PullError::Open(_)), "{error}");
    let error =
        world.pull_from(behind(), "copy", &PullSettings { trust: "stranger", ..PullSettings::default() });
    assert!(matches!(error, Err(PullError::Behind { .. })), "{error:?}");
    assert_eq!(world.releases_of("copy"), [2, 1]);
}

/// Proves: fetching a large pack continues where it was interrupted, and the partial file is checked.
#[test]
fn partial_packs() {
    let mut world = Fixture::new();
    world.write("large", &noise(5, 14_000_000));
    world.publish(1);
    let source = Source::honest(&world.path("release"));
    let all: u64 = names(&world.path("release/packs"))
        .iter()
        .map(|name| fs::metadata(world.path("release/packs").join(name)).unwrap().len())
        .sum();
    for damaged in [false, true] {
        let target = format!("copy-{damaged}");
        let stop = |progress: Progress| progress.bytes.0 < 8 << 20;
        let how = PullSettings { connections: 1, progress: &stop, ..PullSettings::default() };
        let stopped = world.pull_from(vec![source.clone()], &target, &how);
        assert!(matches!(stopped, Err(PullError::Stopped)), "{stopped:?}");
        let packs = world.path(&target).join("packs");
        let partial = names(&packs).into_iter().find(|name| name.ends_with(".partial")).expect("a part");
        let there = fs::metadata(packs.join(&partial)).unwrap().len();
        assert!(there >= 4 << 20, "{there}");
        if damaged {
            let bytes = fs::read(packs.join(&partial)).unwrap();
            fs::write(packs.join(&partial), flip(bytes)).unwrap();
        }
        let next = world.pull_from(vec![source.clone()], &target, &PullSettings::default()).unwrap();
        match damaged {
            false => {
                assert!(next.bytes_reused == there && next.bytes_fetched < all - there + 100_000, "{next:?}")
            }
            true => assert!(next.bytes_fetched > there, "{next:?}"),
        }
        assert_eq!(world.releases_of(&target), [1]);
    }
}

/// Proves: blocks that are here already, in another pack after the publisher repacked or in another directory, are
/// copied and not fetched.
#[test]
fn blocks_that_are_here() {
    let mut world = Fixture::new();
    for number in 0..40 {
        world.write(&format!("deep/{number}"), &noise(number, 120_000));
    }
    world.publish(1);
    world.pull("copy");
    world.pull("elsewhere");
    // Most of the pack of small files is garbage then, so the rest is repacked.
    for number in 10..40 {
        fs::remove_file(world.path("tree/deep").join(number.to_string())).unwrap();
    }
    world.publish(1);
    let moved = world.pull("copy");
    assert!(moved.packs_added > 0 && moved.bytes_reused > 1_100_000, "{moved:?}");
    assert!(moved.bytes_fetched < 100_000, "{moved:?}");
    assert_eq!(world.releases_of("copy"), [2]);

    let mirrors = || -> Vec<Arc<dyn Mirror>> { vec![Source::honest(&world.path("release"))] };
    let how = PullSettings { from: &["elsewhere"], ..PullSettings::default() };
    let fresh = world.pull_from(mirrors(), "fresh", &how).unwrap();
    assert!(fresh.bytes_fetched < 100_000 && fresh.bytes_reused > 4_000_000, "{fresh:?}");
    assert_eq!(world.releases_of("fresh"), [2]);

    // The other directory may have anything in it.
    for name in names(&world.path("elsewhere/packs")) {
        let path = world.path("elsewhere/packs").join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, flip(bytes)).unwrap();
    }
    world.pull_from(mirrors(), "careful", &how).unwrap();
    assert_eq!(world.releases_of("careful"), [2]);
    let none = PullSettings { from: &["tree"], ..PullSettings::default() };
    let error = world.pull_from(mirrors(), "none", &none).expect_err("it is no release");
    assert!(error.to_string().contains("tree/root"), "{error}");
}

/// Proves: a pack that was damaged on the disk is fetched again, and so are signed files.
#[test]
fn damage_is_repaired() {
    let mut world = Fixture::new();
    world.publish(1);
    world.pull("copy");
    for folder in ["packs", "index", "hints", "records", "keys", ""] {
        let folder = world.path("copy").join(folder);
        for name in names(&folder).into_iter().filter(|name| folder.join(name).is_file()) {
            let bytes = fs::read(folder.join(&name)).unwrap();
            fs::write(folder.join(&name), flip(bytes)).unwrap();
            let repaired = world.pull("copy");
            assert_eq!(world.releases_of("copy"), [1], "{name}");
            assert!(repaired.blocks_verified > 40);
        }
    }
}

/// Proves: a disk without enough room is reported before anything is fetched, and one that becomes full meanwhile does
/// no harm.
#[test]
fn a_full_disk() {
    let mut world = Fixture::new();
    world.publish(1);
    let disk = world.path("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |size: &str| {
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&disk)
            .output();
        mounted.is_ok_and(|output| output.status.success())
    };
    let unmount = || holdfast_testing::unmount(&disk);
    if !mount("1m") {
        eprintln!("not tested: only root can mount a small disk");
        return;
    }
    let mirrors = || -> Vec<Arc<dyn Mirror>> { vec![Source::honest(&world.path("release"))] };
    let small = world.pull_from(mirrors(), "disk/copy", &PullSettings::default());
    unmount();
    assert!(matches!(small, Err(PullError::NoRoom { .. })), "{small:?}");

    assert!(mount("6m"));
    let filler = disk.join("filler");
    let fill = |progress: Progress| {
        // The disk is full once packs are fetched.
        if progress.bytes.0 > 200_000 {
            let _ = fs::write(&filler, vec![1; 6 << 20]);
        }
        true
    };
    let how = PullSettings { progress: &fill, connections: 1, ..PullSettings::default() };
    let full = world.pull_from(mirrors(), "disk/copy", &how);
    let has_root = disk.join("copy/root").exists();
    fs::remove_file(&filler).unwrap();
    let next = world.pull_from(mirrors(), "disk/copy", &PullSettings::default());
    let releases = next.is_ok().then(|| world.releases_of("disk/copy"));
    unmount();
    assert!(matches!(full, Err(PullError::Disk(_))), "{full:?}");
    assert!(!has_root);
    assert_eq!(releases, Some(vec![1]), "{next:?}");
}

/// Proves: new keys arrive together with the record under them, and what was signed under the old keys stays.
#[test]
fn new_keys() {
    let mut world = Fixture::new();
    world.publish(3);
    world.pull("copy");
    let dir = ReleaseDir::new(&world.path("release"));
    let chain = dir.chain().unwrap();
    let origin = Origin::After { previous: chain.current().digest() };
    let set = KeySet { number: 2, origin, ..chain.current().clone() };
    let sets = chain.sets().to_vec();
    let mut draft = Draft { sets, keys: Some(Signed::unsigned(set)), root: None, statement: None };
    draft.sign(&key()).unwrap();
    dir.install(&draft.finish().unwrap()).unwrap();
    world.write("deep/7", b"under new keys");
    world.publish(3);
    world.pull("copy");
    assert_eq!(names(&world.path("copy/keys")), ["1", "2"]);
    assert_eq!(world.releases_of("copy"), [2, 1]);
}

/// Proves: directories with something else in them are refused, and a revocation is passed on to a mirror's readers.
#[test]
fn other_directories_and_revocations() {
    let mut world = Fixture::new();
    world.publish(1);
    world.pull("copy");
    let mirrors = || -> Vec<Arc<dyn Mirror>> { vec![Source::honest(&world.path("release"))] };
    let error = world.pull_from(mirrors(), "tree", &PullSettings::default()).expect_err("it is no mirror");
    assert!(matches!(error, PullError::Foreign { .. }), "{error}");
    fs::create_dir_all(world.path("other/keys")).unwrap();
    let bytes = fs::read(world.path("release/keys/1")).unwrap();
    let mut set: holdfast_release::keys::SignedKeySet = form::read(&bytes).unwrap();
    set.value.origin = Origin::First { salt: [8; 16] };
    fs::write(world.path("other/keys/1"), form::write(&set)).unwrap();
    let error = world.pull_from(mirrors(), "other", &PullSettings::default()).expect_err("it is another's");
    assert!(error.to_string().contains("another release"), "{error}");

    let statement = Statement { release: world.id, reason: "stolen".into(), successor: None };
    let dir = ReleaseDir::new(&world.path("release"));
    let sets = dir.chain().unwrap().sets().to_vec();
    let mut draft = Draft { sets, keys: None, root: None, statement: Some(Signed::unsigned(statement)) };
    draft.sign(&key()).unwrap();
    dir.install(&draft.finish().unwrap()).unwrap();
    let error = world.pull_from(mirrors(), "copy", &PullSettings::default()).expect_err("it is revoked");
    assert!(error.to_string().contains("stolen"), "{error}");
    assert_eq!(
        fs::read(world.path("copy/revoked")).unwrap(),
        fs::read(world.path("release/revoked")).unwrap(),
        "whoever reads there learns of it"
    );
}
