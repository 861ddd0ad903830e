//! Programs that two people run on the same files at the same time, and attributes in quantity.

use crate::common;

use common::{World, run, text};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Two people push to one repository at the same time, to branches of their own and to a shared one, while it is
/// packed: nothing that was pushed is lost, and the repository is whole.
#[test]
fn two_people_push_to_one_repository() {
    let mut world = World::new(&["anna", "ben"]);
    let shared = [world.mount("anna").join("team"), world.mount("ben").join("team")];
    let init = ["init", "--quiet", "--bare", "--shared=group", "--initial-branch=main", "project.git"];
    run(Command::new("git").args(init).current_dir(&shared[0]));
    let script = r#"
        export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL="$PWD/config" GIT_TERMINAL_PROMPT=0
        git config --file config safe.directory '*'
        git config --file config user.name "$who"
        git config --file config user.email "$who@example.org"
        git config --file config pull.rebase true
        # Without --no-local git copies files, which its manual says races with who pushes.
        git clone --quiet --no-local "$origin" work
        cd work
        git checkout --quiet -B main
        for i in $(seq 3); do
            echo "$i" > "$who-$i"
            git add . && git commit --quiet -m "$who $i"
            git push --quiet origin "HEAD:refs/heads/$who-$i"
            # The other may be faster, or hold a lock of git's.
            until git push --quiet origin main; do
                git pull --quiet origin main || git rebase --abort || true
            done
            test "$who $i" != "anna 2" || git -C "$origin" gc --quiet
        done
    "#;
    let working: Vec<Child> = [("anna", 0), ("ben", 1)]
        .iter()
        .map(|(who, at)| {
            let home = world.path(&format!("{who}-home"));
            fs::create_dir(&home).expect("a directory");
            let origin = shared[*at].join("project.git");
            let mut command = Command::new("sh");
            command.args(["-euxc", script]).env("who", who).env("origin", origin).current_dir(home);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs")
        })
        .collect();
    for child in working {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output));
    }
    for place in &shared {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.arg("-C").arg(place.join("project.git")).args(["-c", "safe.directory=*"]).args(arguments);
            run(command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null"))
        };
        git(&["fsck", "--full", "--strict", "--no-progress"]);
        assert_eq!(git(&["log", "--format=%s", "main"]).lines().count(), 6);
        assert_eq!(git(&["ls-tree", "--name-only", "main"]).lines().count(), 6);
        assert_eq!(git(&["for-each-ref", "refs/heads"]).lines().count(), 7);
    }
}

/// rsync copies a tree with many extended attributes to a mount, finds on another mount that nothing is missing, and
/// copies it back the same.
#[test]
fn rsync_with_many_attributes() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let tree = world.path("tree");
    for directory in 0..4 {
        let directory = tree.join(format!("directory {directory}"));
        fs::create_dir_all(&directory).expect("directories");
        for number in 0..15 {
            let file = File::create(directory.join(format!("file {number}"))).expect("made");
            for attribute in 0..number {
                let value = vec![attribute as u8; 1 + attribute * 7];
                set(&file, &format!("user.number {attribute}"), &value);
            }
        }
        set(&File::open(&directory).expect("opened"), "user.of a directory", b"\0binary\xff");
    }
    let rsync = |more: &[&str], from: &Path, to: &Path| {
        let mut command = Command::new("rsync");
        command.args(["--archive", "--xattrs", "--checksum", "--itemize-changes"]).args(more);
        run(command.arg(format!("{}/", from.display())).arg(to))
    };
    let made = rsync(&[], &tree, &anna.join("tree"));
    assert_eq!(made.lines().filter(|line| line.starts_with(['>', 'c']) && line.contains("+++")).count(), 65);
    assert_eq!(rsync(&["--dry-run"], &tree, &ben.join("tree")), "", "nothing is to be done");
    let changed = File::open(ben.join("tree/directory 1/file 14")).expect("opened");
    set(&changed, "user.number 3", b"changed elsewhere");
    drop(changed);
    let back = world.path("back");
    rsync(&[], &anna.join("tree"), &back);
    let changes = rsync(&["--dry-run"], &tree, &back);
    assert!(changes.lines().count() == 1 && changes.contains("directory 1/file 14"), "{changes}");
}

#[track_caller]
fn set(file: &File, name: &str, value: &[u8]) {
    rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty()).expect("an attribute is set");
}
