//! Hints name the blocks that looking up a path needs: all of them, and hardly any others.

use holdfast_content::{Block, BlockKind, BlockSource, Reference, SourceError};
use holdfast_crypto::DigestKey;
use holdfast_release::hints::{self, FIXED_BYTES, Hints, NODE_BYTES, Sizes};
use holdfast_release::index::{Index, Key, key_of};
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Options, PublishedTree, publish};
use holdfast_release::tree::Tree;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Blocks in memory, and a record of those that were fetched.
struct Recorder {
    inner: FolderBlocks,
    fetched: Mutex<BTreeSet<Key>>,
}

impl BlockSource for Recorder {
    fn digest_key(&self) -> DigestKey {
        self.inner.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        self.fetched.lock().expect("not poisoned").insert(key_of(&reference.address));
        self.inner.fetch(reference, kind)
    }
}

fn published(source: &Path, target: &Path) -> PublishedTree {
    let rules = Rules::default();
    let options = Options {
        source,
        target,
        digest_key: DigestKey::WELL_KNOWN,
        rules: &rules,
        newest: None,
        level: 1,
        threads: 1,
        memory: None,
    };
    publish(&options, &Index::default(), &mut |_| true).expect("published")
}

fn blocks_of(bytes: &[u8], path: &[u8]) -> Vec<Key> {
    let sizes = Sizes::read(bytes).expect("hints");
    assert_eq!(sizes.bytes(), bytes.len() as u64);
    let node = |number: u32| -> Result<[u8; NODE_BYTES], Infallible> {
        let at = sizes.nodes_at() as usize + number as usize * NODE_BYTES;
        Ok(*bytes[at..].first_chunk().expect("a node"))
    };
    let directories = &bytes[FIXED_BYTES..sizes.nodes_at() as usize];
    let Ok(keys) = Hints { sizes, directories, node: &node }.blocks_of(path);
    keys
}

/// Proves: for names that exist and names that do not, in small directories and in large ones, also where names begin
/// alike for longer than hints have of them, hints name all blocks that a look-up fetches.
#[test]
fn all_that_is_needed() {
    let source = tempfile::tempdir().expect("a directory");
    let mut paths: Vec<String> = Vec::new();
    let mut add = |path: &str| {
        let file = source.path().join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(&file, path).expect("written");
        paths.push(path.to_owned());
    };
    add("file");
    add("one/two/three/four/five/file");
    (0..3000).for_each(|n| add(&format!("many/name {n:05}")));
    let alike = "a name that is longer than what hints keep of it";
    (0..2000).for_each(|n| add(&format!("one/alike/{alike} {n}")));
    (0..200).for_each(|n| add(&format!("folders/{n}/file")));
    fs::create_dir(source.path().join("empty")).expect("made");
    // A directory whose inode is a block of its own.
    for n in 0..40 {
        fs::create_dir_all(source.path().join("attributes")).expect("made");
        let value = [n; 60];
        let name = format!("user.{n}");
        let set = rustix::fs::setxattr(
            source.path().join("attributes"),
            name.as_str(),
            &value,
            rustix::fs::XattrFlags::CREATE,
        );
        set.expect("an attribute");
    }
    add("attributes/file");
    let there = paths.len();
    for absent in [
        "nothing",
        "empty/x",
        "many/a",
        "many/name 01500x",
        "many/zzz",
        "many",
        "one/two",
        "",
        "file/x",
        "no/such/path",
        "folders/77",
        "attributes/z",
    ] {
        paths.push(absent.to_owned());
    }
    paths.push(format!("one/alike/{alike}"));
    paths.push(format!("one/alike/{alike} 77x"));
    let target = tempfile::tempdir().expect("a directory");
    let published = published(source.path(), target.path());
    let blocks = FolderBlocks::new(target.path(), DigestKey::WELL_KNOWN, published.index);
    let made = hints::make(&blocks, &published.root).expect("made");
    assert_eq!(hints::make(&blocks, &published.root).expect("made"), made, "the same again");
    let recorder = Arc::new(Recorder { inner: blocks, fetched: Mutex::default() });
    let tree = Tree::new(recorder.clone(), published.root);
    let (mut needed, mut hinted, mut own_inodes) = (0, 0, 0);
    for (number, path) in paths.iter().enumerate() {
        recorder.fetched.lock().expect("not poisoned").clear();
        let found = tree.resolve(path.as_bytes(), false).expect("resolved");
        let fetched = recorder.fetched.lock().expect("not poisoned").clone();
        let keys = blocks_of(&made, path.as_bytes());
        let given: BTreeSet<Key> = keys.iter().copied().collect();
        let lacking = fetched.difference(&given).count();
        assert_eq!(lacking, 0, "{path}: {found:?}");
        if number < there {
            needed += fetched.len();
            hinted += keys.len();
            own_inodes += usize::from(path.starts_with("attributes"));
        }
    }
    assert_eq!(own_inodes, 1);
    assert!(hinted < needed * 3 / 2, "{hinted} hinted, {needed} needed");
    assert!(made.len() < 300 * 25 + 60 * 40 + 600 * 40, "{} bytes", made.len());
}

/// Proves: damaged hints lead to other blocks or to none, never to a panic or to a node that does not exist.
#[test]
fn damaged_hints() {
    let source = tempfile::tempdir().expect("a directory");
    for n in 0..300 {
        let folder = source.path().join(format!("{}/{}", n % 7, n % 3));
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(n.to_string()), "").expect("written");
    }
    let target = tempfile::tempdir().expect("a directory");
    let published = published(source.path(), target.path());
    let blocks = FolderBlocks::new(target.path(), DigestKey::WELL_KNOWN, published.index);
    let made = hints::make(&blocks, &published.root).expect("made");
    let whole = blocks_of(&made, b"3/2/17");
    assert!(!whole.is_empty());
    let mut others = 0;
    for at in FIXED_BYTES..made.len() {
        for bit in [1, 0x80] {
            let mut damaged = made.clone();
            damaged[at] ^= bit;
            let keys = blocks_of(&damaged, b"3/2/17");
            others += usize::from(keys != whole);
            assert!(keys.len() <= 4 * 18 * 2);
        }
    }
    assert!(others > 0);
    for length in 0..FIXED_BYTES {
        assert!(Sizes::read(&made[..length]).is_err());
    }
    assert!(Sizes::read(b"HFHINTS2\0\0\0\0\0\0\0\0").is_err());
}
