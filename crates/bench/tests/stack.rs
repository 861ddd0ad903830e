//! The arrangements of the least-privilege file system.

use std::process::Command;

/// Proves: the stack runs in every arrangement that is measured, and shows the same files in each: all 5,461 of a tree,
/// and all of a file of 16 MB, from cold caches and from warm ones. (The benchmark ends with an error otherwise.)
#[test]
fn every_arrangement() {
    let home = tempfile::tempdir().expect("a directory");
    let found = home.path().join("found");
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-bench"));
    command.args(["stack", "files", "--rounds", "1", "--cold", "1", "--times", "20", "--place"]);
    command.arg(home.path()).arg("--json").arg(&found);
    let sides = ["decomposed", "merged", "const-policy", "mapped", "client", "client-mapped"];
    for side in sides {
        command.args(["--side", side]);
    }
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("crashed"), "what is started anew meanwhile is measured with it: {said}");
    let found = std::fs::read_to_string(found).expect("written");
    for side in sides {
        let lines = found.lines().filter(|line| line.contains(&format!("\"side\":\"{side}\"")));
        assert_eq!(lines.count(), 8, "eight workloads for {side}");
    }
}
