//! The bytes that a small tree becomes. If they change, other versions no longer make the same release of the same
//! tree.

use holdfast_crypto::{DigestKey, Domain};
use holdfast_release::index::Index;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Options, publish};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn at_noon(path: &Path) {
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(path).unwrap().set_modified(noon).unwrap();
}

/// Proves: the tree of `docs/internals/release-format.md` has the digests of root, pack and index that stand there.
#[test]
fn a_small_tree() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| source.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("folder/short"), "kept in its inode").unwrap();
    fs::write(at("folder/long"), "a line\n".repeat(1000)).unwrap();
    fs::hard_link(at("folder/long"), at("again")).unwrap();
    symlink("folder/short", at("link")).unwrap();
    let noon = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: noon, last_modification: noon };
    let no_follow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, at("link"), &times, no_follow).unwrap();
    for name in ["empty", "folder/short", "folder/long"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o644)).unwrap();
        at_noon(&at(name));
    }
    for name in ["folder", ""] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
        at_noon(&at(name));
    }
    let rules = Rules::new(&[], &["folder".into()]).unwrap();
    let options = Options {
        source: source.path(),
        target: target.path(),
        digest_key: DigestKey::WELL_KNOWN,
        rules: &rules,
        newest: None,
        level: 3,
        threads: 1,
        memory: None,
    };
    let published = publish(&options, &Index::default(), &mut |_| true).unwrap();
    let index = published.index.clone().encode();
    let found = format!(
        "root  {} {}\npack  {} {}\nindex {} {}\n",
        published.root.address,
        published.root.length,
        published.index.packs[0].digest,
        published.index.packs[0].bytes,
        DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &index),
        index.len(),
    );
    let document = include_str!("../../../docs/internals/release-format.md");
    let golden = document.split("```golden small-tree\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(golden.expect("the document has it"), found);
}
