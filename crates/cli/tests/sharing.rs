//! Two machines that change one file at the same time, through mounts and with ordinary programs.

mod common;

use common::{World, eventually};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};

/// A shell that opens, appends to and closes a file for each line.
fn append_lines(file: &Path, name: &str, count: usize) -> Child {
    let script = r#"i=0; while [ $i -lt $3 ]; do echo "$2 $i" >> "$1" || exit 1; i=$((i+1)); done"#;
    Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(file)
        .args([name, &count.to_string()])
        .spawn()
        .expect("a shell")
}

/// Proves: lines that programs on two machines append to one file are all there, whole, and each program's in
/// order: two that open and close for each line, and one that keeps its descriptor and calls fsync.
#[test]
fn appends_of_two_machines_survive() {
    const LINES: usize = 500;
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team/log"), world.mount("ben").join("team/log"));
    fs::write(&anna, "begin\n").expect("written");
    let mut shells = [append_lines(&anna, "anna", LINES), append_lines(&ben, "ben", LINES)];
    let mut keeper = OpenOptions::new().append(true).open(&ben).expect("opened");
    for number in 0..LINES / 5 {
        let line = format!("keeper {number}\n");
        keeper.write_all(line.as_bytes()).expect("written at once");
        keeper.sync_all().expect("synced");
        // What this machine sees has its own lines, once the kernel has dropped pages that were of the file as it
        // was here alone.
        eventually("a line is seen", || fs::read_to_string(&ben).expect("read").contains(&line));
    }
    drop(keeper);
    for shell in &mut shells {
        assert!(shell.wait().expect("it ends").success());
    }
    for file in [&anna, &ben] {
        let text = fs::read_to_string(file).expect("read");
        let mut lines = 1;
        for (name, count) in [("anna", LINES), ("ben", LINES), ("keeper", LINES / 5)] {
            let found: Vec<usize> =
                text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect();
            assert_eq!(found, (0..count).collect::<Vec<_>>(), "{name}");
            lines += count;
        }
        assert_eq!(text.lines().count(), lines, "{text}");
    }
}
