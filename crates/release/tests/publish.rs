//! A published tree is the tree as it is; the same tree makes the same release; and only what has changed is read
//! again.

use holdfast_content::{Content, InodeKind, catalog};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_release::index::Index;
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Memory, Options, Progress, PublishError, PublishedTree, publish};
use holdfast_release::tree::{Node, PathLookup, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const KEY: DigestKey = DigestKey::WELL_KNOWN;

struct Release {
    folder: tempfile::TempDir,
    published: PublishedTree,
}

fn options<'a>(source: &'a Path, target: &'a Path, rules: &'a Rules) -> Options<'a> {
    Options { source, target, digest_key: KEY, rules, newest: None, level: 1, threads: 2, memory: None }
}

fn publish_all(source: &Path) -> Release {
    let folder = tempfile::tempdir().unwrap();
    let rules = Rules::default();
    let mut told = Progress::default();
    let published = publish(&options(source, folder.path(), &rules), &Index::default(), &mut |progress| {
        told = progress;
        true
    })
    .unwrap();
    assert_eq!(told.names, (published.names, published.names), "the bar ends where it should");
    assert_eq!(told.bytes, (published.bytes, published.bytes));
    Release { folder, published }
}

fn tree(folder: &Path, published: &PublishedTree) -> Tree {
    Tree::new(Arc::new(FolderBlocks::new(folder, KEY, published.index.clone())), published.root)
}

impl Release {
    fn tree(&self) -> Tree {
        tree(self.folder.path(), &self.published)
    }

    fn packs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let packs = fs::read_dir(self.folder.path().join("packs")).unwrap();
        packs
            .map(|pack| pack.unwrap().path())
            .map(|path| (path.file_name().unwrap().into(), fs::read(&path).unwrap()))
            .collect()
    }
}

/// Makes a tree with everything that a tree can have.
fn rich_tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for directory in ["empty", "src/deep/er", "many", "src/deep/er/still"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    let mut random = 7u64;
    let mut noise = |length: usize| -> Vec<u8> {
        (0..length)
            .map(|_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 56) as u8
            })
            .collect()
    };
    for size in [0, 1, 255, 256, 257, 1000, 70_000, 3_000_000] {
        fs::write(at(&format!("src/{size}")), noise(size)).unwrap();
    }
    fs::write(at("src/text"), "the same line again and again\n".repeat(10_000)).unwrap();
    for number in 0..300 {
        fs::write(at(&format!("many/{number:03}")), noise(number)).unwrap();
    }
    fs::hard_link(at("src/1000"), at("many/linked")).unwrap();
    fs::hard_link(at("src/1000"), at("src/deep/linked too")).unwrap();
    symlink("../many/001", at("src/link")).unwrap();
    symlink("/etc/hosts", at("src/away")).unwrap();
    fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"not \xff\xfe UTF-8\n")), "x").unwrap();
    fs::write(at(&"n".repeat(255)), "longest name").unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(&noise(10_000), 20 << 20).unwrap();
    sparse.write_all_at(b"end", (50 << 20) - 3).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::set_permissions(at("src/257"), std::os::unix::fs::PermissionsExt::from_mode(0o4751)).unwrap();
    let attribute = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(at("src/257"), "user.colour", b"blue", attribute).is_ok() {
        rustix::fs::setxattr(at("many"), "user.of a directory", b"", attribute).unwrap();
    }
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(at("src/1")).unwrap().set_modified(past).unwrap();
    File::open(at("many")).unwrap().set_modified(past).unwrap();
    age(folder.path());
    folder
}

/// Waits until changes of the tree are old enough that a later change must show in the times.
fn age(_: &Path) {
    std::thread::sleep(Duration::from_millis(2_100));
}

/// Compares a directory with its published tree, all the way down, and returns the number of names.
fn compare(tree: &Tree, node: &Node, path: &Path, links: &mut BTreeMap<u64, BTreeSet<u64>>) -> u64 {
    let attributes = fs::symlink_metadata(path).unwrap();
    let inode = &node.inode;
    assert_eq!(inode.mode, attributes.mode() & 0o7777, "{path:?}");
    assert_eq!(inode.modified_ns, attributes.mtime() * 1_000_000_000 + attributes.mtime_nsec(), "{path:?}");
    let mut names = 1;
    match inode.kind {
        InodeKind::Directory => {
            let mut there: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
            there.sort();
            let entries = tree.entries(node, None, usize::MAX).unwrap();
            assert_eq!(entries.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), there);
            for (name, entry) in entries {
                let child = tree.node(entry).unwrap();
                assert_eq!(tree.child(node, &name).unwrap().unwrap(), child);
                names += compare(tree, &child, &path.join(std::ffi::OsStr::from_bytes(&name)), links);
            }
            assert_eq!(tree.child(node, b"no such name").unwrap(), None);
        }
        InodeKind::File => {
            let content = fs::read(path).unwrap();
            assert_eq!(inode.size, content.len() as u64);
            assert!(tree.read(node, 0, content.len() + 1).unwrap() == content, "{path:?}");
            assert_eq!(u64::from(inode.links), attributes.nlink(), "{path:?}");
            assert_eq!(node.link.is_some(), attributes.nlink() > 1);
            if let Some(link) = node.link {
                links.entry(link).or_default().insert(attributes.ino());
            }
        }
        InodeKind::Symlink => {
            let target = fs::read_link(path).unwrap();
            assert_eq!(inode.content, Content::Target(target.into_os_string().into_vec()));
        }
        InodeKind::Fifo | InodeKind::Socket => {}
        kind => panic!("{kind:?}"),
    }
    let mut buffer = vec![0; 1000];
    let count = rustix::fs::llistxattr(path, &mut buffer).unwrap_or(0);
    let there: BTreeSet<_> =
        buffer[..count].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")).collect();
    assert_eq!(inode.xattrs.keys().map(Vec::as_slice).collect::<BTreeSet<_>>(), there, "{path:?}");
    names
}

/// Proves: a tree with files of all sizes, holes, hard links, symbolic links, special files, attributes and names of
/// all kinds reads back as it is. The same tree makes the same bytes, wherever it is and in whatever order it was made.
#[test]
fn trees_read_back_and_are_reproducible() {
    let source = rich_tree();
    let release = publish_all(source.path());
    let tree = release.tree();
    let mut links = BTreeMap::new();
    let names = compare(&tree, &tree.root().unwrap(), source.path(), &mut links);
    assert_eq!(names, release.published.names + 1);
    assert!(links.values().all(|inodes| inodes.len() == 1) && links.len() == 1, "{links:?}");
    // Holes are not stored.
    assert!(release.packs().values().map(Vec::len).sum::<usize>() < 8 << 20);

    let copy = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-a", "-T"])
        .arg(source.path())
        .arg(copy.path())
        .status()
        .unwrap();
    assert!(copied.success());
    let again = publish_all(copy.path());
    assert_eq!(again.published.root, release.published.root);
    assert!(again.packs() == release.packs());
    assert_eq!(again.published.index, release.published.index);
}

/// Proves: paths are followed, through links too, and a path that leaves the tree is told apart from one that does not
/// exist.
#[test]
fn paths() {
    let source = rich_tree();
    let release = publish_all(source.path());
    let tree = release.tree();
    let node = |path: &str, follow| match tree.resolve(path.as_bytes(), follow).unwrap() {
        PathLookup::Node(node) => Some(node),
        _ => None,
    };
    assert_eq!(node("src/link", true), node("many/001", true));
    assert_eq!(node("src/link", false).unwrap().inode.kind, InodeKind::Symlink);
    assert_eq!(node("/src/./deep/../link", true), node("many/001", false));
    assert_eq!(tree.resolve(b"src/away", true).unwrap(), PathLookup::Outside);
    assert_eq!(tree.resolve(b"..", true).unwrap(), PathLookup::Outside);
    assert_eq!(tree.resolve(b"src/none", true).unwrap(), PathLookup::Nothing);
    assert_eq!(tree.resolve(b"src/1/none", true).unwrap(), PathLookup::Nothing);
}

/// Proves: publishing again reads what has changed and nothing else, adds only what is new, and makes the same tree as
/// publishing everything. A memory that belongs to another release directory is not used.
#[test]
fn only_what_changed_is_read() {
    let source = rich_tree();
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = state.path().join("seen");
    let rules = Rules::default();
    let record = |number: u8| Digest([number; 32]);
    let again = |index: &Index, basis: Option<Digest>| {
        let memory = Some(Memory { file: &file, basis });
        let options = Options { memory, ..options(source.path(), folder.path(), &rules) };
        publish(&options, index, &mut |_| true).unwrap()
    };
    let first = again(&Index::default(), None);
    assert!(first.read > 300);
    let index = first.index.clone();
    (first.remember)(record(1)).unwrap();

    let same = again(&index, Some(record(1)));
    assert_eq!((same.read, same.added.blocks, same.root), (0, 0, first.root));
    (same.remember)(record(2)).unwrap();
    assert!(again(&index, Some(record(1))).read > 300, "what is remembered is of another record");

    let path = source.path().join("src/70000");
    let mut content = fs::read(&path).unwrap();
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    content[35_000] ^= 1;
    fs::write(&path, content).unwrap();
    // Even a change that keeps size and time.
    File::open(&path).unwrap().set_modified(times).unwrap();
    fs::remove_file(source.path().join("many/200")).unwrap();
    fs::rename(source.path().join("many/201"), source.path().join("many/moved")).unwrap();
    let changed = again(&index, Some(record(2)));
    assert_eq!(changed.read, 2, "the changed one and the moved one");
    assert!(changed.added.bytes < 200_000, "{:?}", changed.added);
    let tree = tree(folder.path(), &changed);
    compare(&tree, &tree.root().unwrap(), source.path(), &mut BTreeMap::new());
    assert_eq!(publish_all(source.path()).published.root, changed.root);
    // The file is too young to be remembered.
    let index = changed.index.clone();
    (changed.remember)(record(3)).unwrap();
    assert_eq!(again(&index, Some(record(3))).read, 2);
}

/// Proves: rules leave out what they name, and mark directories as opaque; times can be rounded down.
#[test]
fn rules_and_times() {
    let source = rich_tree();
    let folder = tempfile::tempdir().unwrap();
    let rules = Rules::new(&["many".into(), "*linked*".into()], &["src/deep".into()]).unwrap();
    let options = Options { newest: Some(1_000_000_001), ..options(source.path(), folder.path(), &rules) };
    let published = publish(&options, &Index::default(), &mut |_| true).unwrap();
    let tree = tree(folder.path(), &published);
    assert_eq!(tree.resolve(b"many", true).unwrap(), PathLookup::Nothing);
    let found = |path: &str| match tree.resolve(path.as_bytes(), false).unwrap() {
        PathLookup::Node(node) => node,
        other => panic!("{path}: {other:?}"),
    };
    assert!(found("src/deep").inode.xattrs.contains_key(catalog::OPAQUE));
    assert!(!found("src").inode.xattrs.contains_key(catalog::OPAQUE));
    assert_eq!(found("src/1000").inode.links, 1, "its other names are left out");
    assert_eq!(found("src/text").inode.modified_ns, 1_000_000_001_000_000_000);
    assert_eq!(found("src/1").inode.modified_ns, 1_000_000_000_123_456_789);
}

/// Proves: publishing can be stopped at any point, says so, and leaves nothing behind that could be mistaken for a
/// pack.
#[test]
fn stopping() {
    let source = rich_tree();
    let rules = Rules::default();
    for after in [0, 1, 2, 5] {
        let folder = tempfile::tempdir().unwrap();
        let mut left = after;
        let stopped = publish(&options(source.path(), folder.path(), &rules), &Index::default(), &mut |_| {
            left -= 1;
            left >= 0
        });
        assert!(matches!(stopped, Err(PublishError::Stopped)));
        let left = fs::read_dir(folder.path().join("packs")).map_or(0, Iterator::count);
        assert_eq!(left, 0);
    }
}
