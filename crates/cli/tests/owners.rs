//! Owners through real mounts: the map of users and groups, chown and chgrp.

use crate::common;

use common::{World, run, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

fn sh(directory: &Path, script: &str) -> Output {
    Command::new("sh").args(["-euc", script]).current_dir(directory).output().expect("it runs")
}

#[track_caller]
fn works(directory: &Path, script: &str) {
    let output = sh(directory, script);
    assert!(output.status.success(), "{script}: {}", text(&output));
}

/// Owners are shown as the mount's map says. chgrp to a mapped group gives a file, or a whole tree, to the people of
/// that group, while programs keep their descriptors of it. chown to others is refused, or ignored if the mount has
/// that option.
#[test]
fn handing_files_to_a_group() {
    if run(Command::new("id").arg("-u")).trim() != "0" {
        return;
    }
    let mut world = World::new(&["anna", "ben"]);
    let map = ["--map-user", "anna=4001:ben=4002", "--map-group", "team=4100"];
    let (anna, ben) = (world.mount_with("anna", &map), world.mount("ben"));
    let owner_of = |path: &str| {
        let metadata = fs::metadata(anna.join(path)).expect("stat");
        (metadata.uid(), metadata.gid())
    };
    assert_eq!((owner_of("anna"), owner_of("team"), owner_of("ben")), ((4001, 0), (0, 4100), (4002, 65534)));

    works(&anna, "mkdir -p anna/tree/deep; echo one > anna/tree/a; echo two > anna/tree/deep/b");
    assert!(!sh(&ben, "echo more >> anna/tree/a").status.success());
    works(&anna, "exec 9>> anna/tree/a; echo before >&9; chgrp -R 4100 anna/tree; echo after >&9");
    works(&ben, r#"test "$(cat anna/tree/a)" = "$(printf 'one\nbefore\nafter')""#);
    works(&ben, "echo more >> anna/tree/deep/b; mkdir anna/tree/mine; echo new > anna/tree/mine/c");
    works(
        &anna,
        r#"test "$(cat anna/tree/deep/b)" = "$(printf 'two\nmore')"; test "$(cat anna/tree/mine/c)" = new"#,
    );
    assert_eq!((owner_of("anna/tree"), owner_of("anna/tree/deep/b")), ((0, 4100), (0, 4100)));
    works(&anna, "chown 4001:0 anna/tree/a");
    assert_eq!(owner_of("anna/tree/a"), (4001, 0));
    assert!(!sh(&ben, "echo no > anna/tree/a").status.success());

    for refused in ["chown 4002 anna/tree/a", "chown 12345 anna/tree/a", "chgrp 12345 anna/tree/a"] {
        let output = sh(&anna, refused);
        assert!(text(&output).contains("Operation not permitted"), "{refused}: {}", text(&output));
    }
    world.umount("anna");
    let printed = world.try_mount("anna", &["--map-user", "bob=5"]);
    assert!(
        text(&printed).contains("no user of that name") && text(&printed).contains("ben"),
        "{}",
        text(&printed)
    );
    let strict = world.mount_with("anna", &["--unmapped-chown", "refuse"]);
    works(&strict, "echo x > anna/file");
    assert!(!sh(&strict, "chown 12345:777 anna/file").status.success());
    world.umount("anna");
    let map = ["--map-group", "team=4100", "--unmapped-chown", "ignore"];
    let lenient = world.mount_with("anna", &map);
    works(&lenient, "chown 12345:777 anna/file; test \"$(stat -c %u:%g anna/file)\" = 0:0");
    works(&lenient, "chown 12345:4100 anna/file; test \"$(stat -c %u:%g anna/file)\" = 0:4100");
}

/// Proves: root can unpack and copy trees of other people onto a mount with the usual tools, and everything but owners
/// is kept.
#[test]
fn root_unpacks_and_copies() {
    if run(Command::new("id").arg("-u")).trim() != "0" {
        return;
    }
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    let from = world.path("from");
    fs::create_dir(&from).expect("made");
    works(
        &from,
        "mkdir -p tree/deep; echo one > tree/a; echo two > tree/deep/b; ln -s a tree/link; chmod 751 tree/deep
         chmod 640 tree/a; touch -d @1000000000 tree/a tree/deep/b; touch -hd @1100000000 tree/link
         chown -hR 12345:777 tree; touch -d @1200000000 tree/deep tree; tar cf tree.tar tree",
    );
    // Python's `tarfile` sets no times of symbolic links, on any file system.
    let look = "find . ! -type l -printf '%P %m %T@\\n' -o -printf '%P %l\\n' | sort";
    let wanted = run(Command::new("sh").args(["-c", look]).current_dir(from.join("tree")));
    let unpack = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall('.')";
    for (name, script) in [
        ("tar", "tar xf \"$from/tree.tar\"; mv tree tar".to_owned()),
        ("tarfile", format!("python3 -W ignore -c \"{unpack}\" \"$from/tree.tar\"; mv tree tarfile")),
        ("cp", "cp -a \"$from/tree\" cp".to_owned()),
        ("rsync", "rsync -a \"$from/tree/\" rsync/".to_owned()),
        ("mv", "cp -a \"$from/tree\" \"$from/again\"; mv \"$from/again\" mv".to_owned()),
    ] {
        works(&team, &format!("from='{}'; {script}", from.display()));
        let is = run(Command::new("sh").args(["-c", look]).current_dir(team.join(name)));
        assert_eq!(is, wanted, "{name}");
    }
}

/// A file whose name somebody else removed is found and removed by its owner, and only by its owner; a file that has a
/// name, or is open, stays.
#[test]
fn files_without_a_name_are_reclaimed() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    works(
        &anna,
        "seq 100000 > anna/big; mv anna/big team/big; echo kept > anna/kept; mkdir anna/d; echo x > anna/d/e",
    );
    works(&ben, "rm team/big");
    let reclaim = |who: &str, more: &[&str]| run(world.holdfast(who).arg("reclaim").args(more));
    assert!(reclaim("ben", &[]).contains(" 0 without a name removed"));
    let printed = reclaim("anna", &["--dry-run"]);
    assert!(printed.contains(" 1 without a name to be removed (588895 bytes)"), "{printed}");
    let printed = reclaim("anna", &[]);
    assert!(printed.contains(" 1 without a name removed"), "{printed}");
    assert!(reclaim("anna", &[]).contains(" 0 without a name removed"));
    works(&ben, "test \"$(cat anna/kept)\" = kept; test \"$(cat anna/d/e)\" = x");
}
