//! Publishing in two processes: an honest walker makes what one process makes; a compromised walker gets nothing that
//! it must not have, and leaves the release as it was.

use crate::publisher;

use holdfast_components::Program;
use holdfast_crypto::DigestKey;
use holdfast_release::layout;
use holdfast_release::publish::PublishError;
use holdfast_release::publish::compose::{Composed, ReleaseOptions, compose, compose_apart, tidy};
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::store::read_index;
use holdfast_release::record::RootFile;
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::tree::Tree;
use holdfast_testing::noise;
use publisher::{DAY_S, LIFE_S, START_S, chain, first_set, key, signed};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HOST: &str = env!("CARGO_BIN_EXE_holdfast-release-host");

/// After this time a file is old enough that a later change must show in its times.
const YOUNG: std::time::Duration = std::time::Duration::from_millis(2_100);

/// A publisher's folder: the tree, other files beside it, the release directory, and the memory of the last publishing.
struct Workspace(tempfile::TempDir);

impl Workspace {
    /// A publisher whose tree has this name.
    fn new(name: &str) -> Workspace {
        let workspace = Workspace(tempfile::tempdir().expect("a folder"));
        let tree = workspace.tree(name);
        fs::create_dir_all(tree.join("inside")).expect("made");
        fs::create_dir_all(tree.join("empty/directories")).expect("made");
        fs::write(workspace.at("secret"), "what is beside it").expect("written");
        fs::write(tree.join("file"), "text").expect("written");
        fs::write(tree.join("left-out.o"), "not to be published").expect("written");
        fs::write(tree.join("inside/file"), "more\n".repeat(40_000)).expect("written");
        for number in 0..300u32 {
            fs::write(tree.join(format!("inside/{number}")), number.to_string().repeat(number as usize))
                .expect("written");
        }
        fs::write(tree.join("large"), noise(7, 3_000_000)).expect("written");
        fs::hard_link(tree.join("large"), tree.join("linked")).expect("linked");
        symlink("../secret", tree.join("to-secret")).expect("linked");
        symlink("..", tree.join("to-parent")).expect("linked");
        rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::Mode::RUSR).expect("made");
        workspace
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.at("trees").join(name)
    }

    fn compose(&self, name: &str, target: &str, is_apart: bool) -> Result<Composed, PublishError> {
        let (source, target, memory) = (self.tree(name), self.at(target), self.at("memory"));
        fs::create_dir_all(&target).expect("made");
        let dir = ReleaseDir::new(&target);
        if dir.chain().is_err() {
            let mut draft = holdfast_release::draft::Draft {
                sets: Vec::new(),
                keys: Some(signed(first_set(), &[1, 2])),
                root: None,
                statement: None,
            };
            draft.sign(&key(3)).expect("signed");
            dir.install(&draft.finish().expect("a key set")).expect("installed");
        }
        let terms = ReleaseOptions {
            source: &source,
            target: &target,
            now_s: START_S,
            life_s: LIFE_S,
            note: "a note",
            keep: 1,
            first_key: DigestKey::WELL_KNOWN,
            rules: &Rules::new(&["*.o".to_owned()], &["inside".to_owned()]).expect("patterns"),
            newest: Some((START_S + DAY_S) as i64),
            level: 3,
            threads: 3,
            memory: Some(&memory),
            live: None,
        };
        match is_apart {
            false => compose(&terms, &mut |_| true),
            true => {
                let program = Program::open(Path::new(HOST)).expect("it was built");
                compose_apart(&terms, program, &mut |_| true)
            }
        }
    }

    fn install(&self, mut composed: Composed, target: &str) -> RootFile {
        for signer in [1, 2] {
            composed.draft.sign(&key(signer)).expect("signed");
        }
        let finished = composed.draft.finish().expect("enough signatures");
        ReleaseDir::new(&self.at(target)).install(&finished).expect("installed");
        composed.remember().expect("remembered");
        tidy(&self.at(target), 1).expect("tidied");
        finished.root.expect("a record")
    }

    fn publish(&self, name: &str, target: &str, is_apart: bool) -> RootFile {
        self.install(self.compose(name, target, is_apart).expect("composed"), target)
    }

    /// All files of a release directory.
    fn files(&self, target: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.at(target)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("read") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(self.at(target)).expect("below it").to_owned();
                    files.insert(name, fs::read(path).expect("read"));
                }
            }
        }
        files
    }

    fn read(&self, target: &str, root: &RootFile, path: &str) -> Vec<u8> {
        let index = read_index(&self.at(target), &root.index.digest).expect("an index");
        let blocks = FolderBlocks::new(&self.at(target), root.record.value.digest_key, index);
        let tree = Tree::new(Arc::new(blocks), root.record.value.root_dir);
        let mut node = tree.root().expect("a root");
        for name in path.split('/') {
            node = tree.child(&node, name.as_bytes()).expect("read").expect("it is there");
        }
        tree.read(&node, 0, 1 << 30).expect("read")
    }
}

/// Proves: two processes make, byte for byte, the release that one makes; so they do when little has changed, and then
/// only that is read.
#[test]
fn the_same_release() {
    let workspace = Workspace::new("tree");
    std::thread::sleep(YOUNG);
    let one = workspace.publish("tree", "one", false);
    fs::remove_file(workspace.at("memory")).expect("it is there");
    let two = workspace.publish("tree", "two", true);
    assert_eq!(two.record.value.root_dir, one.record.value.root_dir);
    assert_eq!(two.hints, one.hints);
    assert_eq!(workspace.files("two"), workspace.files("one"));
    assert_eq!(workspace.read("two", &two, "large"), noise(7, 3_000_000));

    fs::write(workspace.tree("tree").join("inside/file"), "changed").expect("written");
    let composed = workspace.compose("tree", "two", true).expect("composed");
    assert_eq!((composed.report.files_read, composed.report.unchanged), (1, false));
    let again = workspace.install(composed, "two");
    assert_eq!(again.record.value.sequence, 2);
    assert_eq!(workspace.read("two", &again, "inside/file"), b"changed");
    assert_eq!(workspace.read("two", &again, "large"), noise(7, 3_000_000));
}

/// The outcome of publishing with a compromised walker.
#[derive(Debug)]
enum Verdict {
    /// The error says in these words what the walker did wrong.
    Misbehaved(&'static str),
    /// The error says in these words that the walker ended.
    Ended(&'static str),
    /// The error has the walker's own words: what it obtained.
    Says(&'static str),
}

/// Proves: whatever a walker does, it gets no file but those of the tree, for reading. Publishing ends with words that
/// say what was wrong. The release directory is as it was, except for packs that nothing names, which the next
/// publishing removes, and the memory of the last publishing is unchanged.
#[test]
fn walkers_that_were_taken_over() {
    use Verdict::{Ended, Misbehaved, Says};
    let table = [
        ("garbage", Misbehaved("no question")),
        ("endless question", Misbehaved("longer than any")),
        ("file", Misbehaved("no question")),
        ("answers", Misbehaved("no question")),
        ("alias", Misbehaved("no question")),
        ("does not read", Misbehaved("does not read")),
        ("names", Says("got: []")),
        ("own calls: open", Ended("forbidden system call")),
        ("own calls: connect", Ended("forbidden system call")),
        ("own calls: program", Ended("forbidden system call")),
        ("own calls: write", Says("written: false, read: true text")),
        ("dies", Ended("code 3")),
        ("false block", Misbehaved("not the one it calls it")),
        ("dangling", Misbehaved("refers to what is not there")),
        ("no root", Misbehaved("is not there")),
        ("hints", Misbehaved("more hints")),
        ("words", Says("a [2Jb cannot be published")),
        ("memory", Ended("code 4")),
    ];
    let workspace = Workspace::new("tree");
    for (name, _) in &table {
        symlink("tree", workspace.tree(name)).expect("linked");
    }
    std::thread::sleep(YOUNG);
    let mut before = workspace.publish("tree", "release", true);
    for (name, verdict) in table {
        let files = workspace.files("release");
        let error =
            workspace.compose(name, "release", true).err().unwrap_or_else(|| panic!("{name} published"));
        let is_as_told = match (&verdict, &error) {
            (Misbehaved(words), PublishError::Misbehaved(why)) => why.contains(words),
            (Ended(words), PublishError::Ended(why)) => why.contains(words),
            (Says(words), PublishError::Unfit { .. }) => error.to_string().contains(words),
            _ => false,
        };
        let shown = error.to_string();
        assert!(is_as_told, "{name}: {verdict:?}, not: {shown}");
        assert!(!shown.contains(|c: char| c.is_control()), "{name}: {shown:?}");
        assert!(!leftovers(&workspace), "{name}: something unfinished was left");
        let mut after = workspace.files("release");
        after.retain(|path, _| !path.starts_with("packs") || files.contains_key(path));
        assert!(after == files, "{name}: the release is not as it was");

        let composed = workspace.compose("tree", "release", true).expect("composed");
        assert_eq!(composed.report.files_read, 0, "{name}: what is remembered is what it was");
        let next = workspace.install(composed, "release");
        assert_eq!(next.record.value.sequence, before.record.value.sequence + 1, "{name}");
        assert_eq!(next.record.value.root_dir, before.record.value.root_dir, "{name}");
        before = next;
    }
    assert_eq!(workspace.read("release", &before, "file"), b"text");
    let index = read_index(&workspace.at("release"), &before.index.digest).expect("an index");
    let named: Vec<PathBuf> = index.packs.iter().map(|pack| layout::pack(&pack.digest).into()).collect();
    let packs = workspace.files("release").into_keys().filter(|path| path.starts_with("packs"));
    assert!(packs.into_iter().all(|path| named.contains(&path)), "what was half made is gone");
}

/// Whether an unfinished file is in the release directory or beside the memory.
fn leftovers(workspace: &Workspace) -> bool {
    let is_new =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("new-"));
    let beside = fs::read_dir(workspace.at("")).expect("read").map(|entry| entry.expect("an entry").path());
    workspace.files("release").into_keys().chain(beside).any(|path| is_new(&path))
}

/// Proves what docs/internals/processes.md says: a compromised walker chooses the content of a release, and nothing
/// else. Invalid hints do no harm.
#[test]
fn it_chooses_the_content_and_nothing_else() {
    let workspace = Workspace::new("tree");
    symlink("tree", workspace.tree("another tree")).expect("linked");
    let first = workspace.publish("tree", "release", true);
    let second = workspace.publish("another tree", "release", true);
    let (before, after) = (&first.record.value, &second.record.value);
    assert_ne!(after.root_dir, before.root_dir);
    assert_eq!((after.release, after.sequence, after.key_set), (chain().id(), 2, 1));
    assert_eq!((after.issued_s, after.expires_s), (START_S, START_S + LIFE_S));
    assert_eq!((after.digest_key, after.note.as_str()), (before.digest_key, "a note"));
    let hints = second.hints.expect("it sent some");
    assert_eq!(
        fs::read(workspace.at("release").join(layout::hints(&hints.digest))).expect("read"),
        b"not hints"
    );
    let third = workspace.publish("tree", "release", true);
    assert_eq!(third.record.value.root_dir, before.root_dir);
}
