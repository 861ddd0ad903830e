//! Images of releases: how they are made, updated and found to be altered. EROFS's own tools check their content here,
//! and the command's tests mount them.

use crate::publisher;
use holdfast_testing::noise;

use holdfast_content::{Block, BlockKind, BlockSource, Reference, SourceError};
use holdfast_crypto::DigestKey;
use holdfast_release::image::objects::OBJECTS;
use holdfast_release::image::{Checked, ExportOptions, IMAGE, ImageError, Report, check, export};
use holdfast_release::index::Index;
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Options, publish};
use holdfast_release::tree::Tree;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Blocks in memory, of which only some chunks can be fetched.
struct Failing {
    inner: FolderBlocks,
    chunks: AtomicI64,
}

impl BlockSource for Failing {
    fn digest_key(&self) -> DigestKey {
        self.inner.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        if kind == BlockKind::Chunk && self.chunks.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(SourceError::Unreachable(reference.address, "the link is down".into()));
        }
        self.inner.fetch(reference, kind)
    }
}

struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Workspace {
        let workspace = Workspace { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(workspace.path("tree")).expect("made");
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path("tree").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    /// The tree as it is now, of which so many chunks can be fetched.
    fn published(&self, chunks: i64) -> Tree {
        let rules = Rules::default();
        let target = tempfile::tempdir_in(self.folder.path()).expect("a folder").keep();
        let options = Options {
            source: &self.path("tree"),
            target: &target,
            digest_key: DigestKey::WELL_KNOWN,
            rules: &rules,
            newest: Some(0),
            level: 1,
            threads: 1,
            memory: None,
        };
        let published = publish(&options, &Index::default(), &mut |_| true).expect("published");
        let inner = FolderBlocks::new(&target, DigestKey::WELL_KNOWN, published.index);
        Tree::new(Arc::new(Failing { inner, chunks: AtomicI64::new(chunks) }), published.root)
    }

    fn export(&self, tree: &Tree, prune: bool) -> Result<Report, ImageError> {
        let record = publisher::record(&publisher::chain(), 1);
        let directory = self.path("image");
        let terms =
            ExportOptions { directory: &directory, tree, record: &record, mirrors: Vec::new(), prune };
        export(&terms, &|_, _| {})
    }

    fn check(&self, tree: &Tree) -> Checked {
        check(&self.path("image"), tree, &|_, _| {}).expect("compared")
    }

    fn objects(&self) -> Vec<PathBuf> {
        let list = |path: &Path| -> Vec<PathBuf> {
            fs::read_dir(path).expect("read").map(|entry| entry.expect("read").path()).collect()
        };
        let folders = list(&self.path("image").join(OBJECTS));
        folders.iter().filter(|path| path.is_dir()).flat_map(|folder| list(folder)).collect()
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.path("image").join(IMAGE)).expect("read")
    }
}

/// Proves: the same tree makes the same image anywhere. A later release adds only what is new, what no image needs
/// stays until it is pruned, equal files share an object, and holes stay holes.
#[test]
fn grows_by_what_is_new() {
    let workspace = Workspace::new();
    workspace.write("small", b"kept in the image");
    workspace.write("one", &noise(1, 100_000));
    workspace.write("same/one", &noise(1, 100_000));
    workspace.write("two", &noise(2, 300_000));
    let sparse = fs::File::create(workspace.path("tree/sparse")).expect("made");
    sparse.write_all_at(b"in the middle", 300 << 20).expect("written");
    sparse.set_len(600 << 20).expect("set");
    let first = workspace.published(i64::MAX);
    let report = workspace.export(&first, false).expect("exported");
    assert_eq!((report.objects_added, report.objects_kept, workspace.objects().len()), (3, 1, 3));
    let used = |path: &PathBuf| std::os::unix::fs::MetadataExt::blocks(&path.metadata().expect("there"));
    assert!(workspace.objects().iter().map(used).sum::<u64>() < 2048, "the hole is stored");
    let image = workspace.image();
    assert_eq!(workspace.check(&first).wrong, Vec::<String>::new());

    workspace.write("two", &noise(3, 300_000));
    workspace.write("three", &noise(4, 5000));
    let second = workspace.published(i64::MAX);
    let report = workspace.export(&second, false).expect("exported");
    assert_eq!((report.objects_added, report.objects_kept, report.objects_deleted), (2, 3, 0));
    assert_ne!(workspace.image(), image);
    // No chunk can be fetched: nothing that is there is fetched again.
    let report = workspace.export(&workspace.published(0), true).expect("exported");
    assert_eq!((report.objects_added, report.objects_deleted, workspace.objects().len()), (0, 1, 4));
    assert_eq!(workspace.check(&workspace.published(0)).wrong, Vec::<String>::new());
    assert_eq!(workspace.check(&first).wrong.len(), 1, "of the first, one object is gone");

    let other = Workspace::new();
    for name in ["small", "one", "same/one"] {
        other.write(name, &fs::read(workspace.path("tree").join(name)).expect("read"));
    }
    other.write("two", &noise(2, 300_000));
    let sparse = fs::File::create(other.path("tree/sparse")).expect("made");
    sparse.write_all_at(b"in the middle", 300 << 20).expect("written");
    sparse.set_len(600 << 20).expect("set");
    other.export(&other.published(i64::MAX), false).expect("exported");
    assert_eq!(other.image(), image);
}

/// Proves: an export that ends anywhere leaves the image as it was, whole, and the next one completes it, also if the
/// record of objects was lost.
#[test]
fn stopped_anywhere() {
    let workspace = Workspace::new();
    (0..20).for_each(|n| workspace.write(&format!("file {n}"), &noise(n, 3000 + n as usize)));
    let first = workspace.published(i64::MAX);
    workspace.export(&first, false).expect("exported");
    let image = workspace.image();
    (0..20).for_each(|n| workspace.write(&format!("file {n}"), &noise(100 + n, 4000)));
    for chunks in [0, 1, 7, 19] {
        let error = workspace.export(&workspace.published(chunks), true).expect_err("a chunk is missing");
        assert!(error.to_string().starts_with("file "), "{error}");
        assert_eq!(workspace.image(), image);
        assert_eq!(workspace.check(&first).wrong, Vec::<String>::new());
    }
    fs::write(workspace.path("image/known"), b"no database").expect("written");
    let second = workspace.published(i64::MAX);
    let report = workspace.export(&second, true).expect("exported");
    assert_eq!((report.objects_added, report.objects_deleted), (20, 20));
    assert_eq!(workspace.check(&second).wrong, Vec::<String>::new());
}

/// Proves: whatever is altered in an image's directory is found and named: content, a hole, a size, a missing object,
/// the image, and objects that were exchanged together with the record of them.
#[test]
fn what_was_altered_is_found() {
    let workspace = Workspace::new();
    workspace.write("alpha", &noise(1, 50_000));
    let sparse = fs::File::create(workspace.path("tree/beta")).expect("made");
    sparse.write_all_at(&noise(2, 9000), 1 << 20).expect("written");
    let tree = workspace.published(i64::MAX);
    workspace.export(&tree, false).expect("exported");
    let find = |length: u64| {
        let is = |path: &PathBuf| path.metadata().expect("there").len() == length;
        workspace.objects().into_iter().find(is).expect("an object")
    };
    let (alpha, beta) = (find(50_000), find((1 << 20) + 9000));
    let spoil = |path: &Path, at: u64, what: &str| {
        let before = fs::read(path).expect("read");
        let file = fs::File::options().write(true).open(path).expect("opened");
        file.write_all_at(b"?", at).expect("written");
        let wrong = workspace.check(&tree).wrong;
        assert!(wrong.len() == 1 && wrong[0].starts_with(what), "{wrong:?}");
        fs::write(path, before).expect("written");
    };
    spoil(&alpha, 49_999, "alpha: objects/");
    spoil(&beta, 500_000, "beta: objects/");
    spoil(&beta, (1 << 20) + 10, "beta: objects/");
    let image = workspace.path("image").join(IMAGE);
    let length = image.metadata().expect("there").len();
    for at in [0, 1024, 1024 + 64, 4096 + 40, length - 1] {
        spoil(&image, at, "tree.erofs is not what was signed");
    }
    let content = fs::read(&alpha).expect("read");
    fs::write(&alpha, &content[..49_999]).expect("written");
    assert!(workspace.check(&tree).wrong[0].contains("another size"));
    fs::remove_file(&alpha).expect("removed");
    // A pipe into which nobody writes.
    let node =
        rustix::fs::mknodat(rustix::fs::CWD, &alpha, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0);
    node.expect("made");
    assert!(workspace.check(&tree).wrong[0].contains("is no regular file"));
    fs::remove_file(&alpha).expect("removed");
    assert!(workspace.check(&tree).wrong[0].contains("No such file"));
    // An object in place of another of the same size.
    fs::write(&alpha, noise(9, 50_000)).expect("written");
    assert!(workspace.check(&tree).wrong[0].contains("is not what was signed"));
    fs::write(&alpha, content).expect("written");
    assert_eq!(workspace.check(&tree).wrong, Vec::<String>::new());
}

/// Proves: nothing is written into a directory that has something else in it.
#[test]
fn other_directories_are_left_alone() {
    let workspace = Workspace::new();
    workspace.write("file", b"content");
    fs::create_dir(workspace.path("image")).expect("made");
    fs::write(workspace.path("image/letter"), b"mine").expect("written");
    let error = workspace.export(&workspace.published(i64::MAX), false).expect_err("refused");
    assert!(matches!(error, ImageError::Foreign(_)), "{error}");
}

/// Proves: EROFS's own checker finds no fault, with directories of no, one and thousands of names, names, targets and
/// attributes of all lengths, and inodes at all offsets in a block.
#[test]
fn is_sound_to_erofs_itself() {
    let workspace = Workspace::new();
    let tree = workspace.path("tree");
    fs::create_dir(tree.join("empty")).expect("made");
    for count in [1, 113, 114, 115, 300, 5000] {
        for n in 0..count {
            workspace
                .write(&format!("with {count}/{n:0width$}", width = 1 + n % 250), &noise(n as u64, n % 300));
        }
    }
    for length in (1..4096).step_by(61) {
        std::os::unix::fs::symlink("t".repeat(length), tree.join(format!("link {length}"))).expect("linked");
    }
    let report = workspace.export(&workspace.published(i64::MAX), false).expect("exported");
    assert!(report.names > 5600, "{report:?}");
    let image = workspace.path("image").join(IMAGE);
    let output = Command::new("fsck.erofs").arg("--extract").arg(&image).output();
    let output = output.expect("fsck.erofs runs (Debian's package erofs-utils)");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
