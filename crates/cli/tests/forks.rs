//! After a fork: what two users can prove to a third who has neither server nor key, and how they go on.

use crate::common;

use common::cluster::Second;
use common::{World, exits, run, run_json, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Content that does not fit into an inode.
fn long(seed: u32) -> String {
    (0..4000u32).map(|n| format!("{:08x}", (n ^ seed).wrapping_mul(2_654_435_761))).collect()
}

fn statement(world: &World, who: &str, mount: &Path) -> PathBuf {
    let file = world.path(&format!("{who}.evidence"));
    run(world.holdfast(who).args(["evidence", "statement"]).arg(mount).arg("--to").arg(&file));
    file
}

/// Proves: the statement of each side alone contradicts nothing; together they convict the server, on a machine that
/// has only the two files, and name the operations and files. The merge has the files of both sides, and says what is
/// missing. The evidence of the alarm is a file that others can check, too.
#[test]
fn two_statements_convict_and_are_merged() {
    let mut world = World::new(&["alice", "bob"]);
    let (alice, bob) = (world.mount("alice"), world.mount("bob"));
    fs::write(alice.join("team/common"), long(1)).expect("written");
    fs::write(alice.join("team/both"), "before").expect("written");
    fs::write(bob.join("team/by-bob"), "before").expect("written");
    assert_eq!(fs::read(alice.join("team/by-bob")).expect("read"), b"before");
    assert_eq!(fs::read_to_string(bob.join("team/common")).expect("read"), long(1));
    world.umount("bob");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    world.start_server();
    let copy = Second::started(&world, &world.path("fork"), &[]);
    let fork_url = copy.url(&world);
    let true_url = std::mem::replace(&mut world.url, fork_url);
    let bob = world.mount("bob");
    fs::write(bob.join("team/bobs"), long(2)).expect("written");
    fs::write(bob.join("team/both"), "Bob's").expect("written");
    fs::write(bob.join("team/by-bob"), "after").expect("written");
    common::eventually("Alice's server is back", || fs::write(alice.join("team/alices"), "Alice's").is_ok());
    fs::write(alice.join("team/both"), "Alice's").expect("written");
    fs::remove_file(alice.join("team/common")).expect("removed");

    let hers = statement(&world, "alice", &alice);
    let his = statement(&world, "bob", &bob);
    exits(world.holdfast("alice").args(["evidence", "statement"]).arg(&alice).arg("--to").arg(&hers), 73);
    for file in [&hers, &his] {
        let printed = exits(world.holdfast("judge").args(["evidence", "verify"]).arg(file), 0);
        assert!(printed.contains("no lie is shown") && printed.contains("does not prove"), "{printed}");
    }
    let printed = exits(world.holdfast("judge").args(["evidence", "verify"]).args([&hers, &his]), 80);
    for part in [
        "Proven: whoever has the server's key has promised two things",
        "Only the first side has seen",
        "Only the other side has seen",
        "alice's first (device 1)",
        "team/alices: only on the first side",
        "team/bobs: only on the other side",
        "team/both: changed on both sides",
        "team/by-bob: changed on the other side only",
        "team/common: removed on the first side",
    ] {
        assert!(printed.contains(part), "{part:?} is not said:\n{printed}");
    }
    // The verdict does not depend on the order of the files.
    exits(world.holdfast("judge").args(["evidence", "verify"]).args([&his, &hers]), 80);
    let json = exits(world.holdfast("judge").args(["--json", "evidence", "verify"]).args([&hers, &his]), 80);
    assert!(json.contains("\"conclusion\": \"server-lied\""), "{json}");
    assert!(!world.path("judge-state").exists(), "the judge needs nothing and leaves nothing");

    // A file that is cut off, altered or of another file system gives an error and no verdict.
    let whole = fs::read(&his).expect("read");
    for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("empty", &[][..]), ("noise", &[7; 4000][..])] {
        let bad = world.path(name);
        fs::write(&bad, bytes).expect("written");
        exits(world.holdfast("judge").args(["evidence", "verify"]).args([&hers, &bad]), 65);
    }

    // The two sides compared: Alice's machine with Bob's file, then with his server.
    let merged = world.path("merged");
    let printed = run(world
        .holdfast("alice")
        .args(["evidence", "merge"])
        .args([&alice, &his])
        .arg("--to")
        .arg(&merged));
    let read = |path: &str| fs::read_to_string(merged.join(path));
    assert_eq!(read("ours/team/alices").expect("copied"), "Alice's");
    assert_eq!(read("ours/team/both").expect("copied"), "Alice's");
    assert_eq!(read("theirs/team/both").expect("small files are in the statement"), "Bob's");
    assert_eq!(read("theirs/team/common").expect("Alice had it cached"), long(1));
    assert!(read("theirs/team/bobs").is_err(), "nobody here has it");
    assert!(printed.contains("theirs/team/bobs") && printed.contains("1 are missing"), "{printed}");
    assert_eq!(read("REPORT.txt").expect("a report").trim(), printed.trim());
    let report: serde_json::Value =
        serde_json::from_str(&read("report.json").expect("a report")).expect("JSON");
    assert_eq!(report["comparison"]["complete"], true);
    let merge = ["evidence", "merge"];
    exits(world.holdfast("alice").args(merge).args([&alice, &his]).arg("--to").arg(&merged), 73);
    let again = world.path("again");
    run(world
        .holdfast("bob")
        .args(merge)
        .args([&his, &hers])
        .args(["--all", "--from", &copy.url(&world), "--key"])
        .arg(world.key("bob"))
        .arg("--to")
        .arg(&again));
    assert_eq!(fs::read_to_string(again.join("ours/team/bobs")).expect("fetched"), long(2));
    assert_eq!(fs::read_to_string(again.join("ours/team/common")).expect("fetched"), long(1));
    world.umount("bob");

    // Bob is led to Alice's server. The evidence of his alarm can be exported, and says the same.
    drop(copy);
    world.url = true_url;
    world.mount_refused("bob", 80);
    let list = run_json(world.holdfast("bob").args(["--json", "evidence", "list"]));
    let name =
        list.as_array().and_then(|list| list.last()).expect("evidence")["name"].as_str().expect("a name");
    let exported = world.path("kept.evidence");
    run(world.holdfast("bob").args(["evidence", "export", name, "--to"]).arg(&exported));
    let printed =
        text(&world.holdfast("judge").args(["evidence", "verify"]).arg(&exported).output().expect("runs"));
    assert!(printed.contains("It refused an answer") && printed.contains("does contradict"), "{printed}");
    let printed = exits(world.holdfast("judge").args(["evidence", "verify"]).args([&exported, &hers]), 80);
    assert!(printed.contains("Proven: whoever has the server's key"), "{printed}");
    // The two sides of the exported evidence can be compared as well; what Bob never saw of Alice's side comes from the
    // server.
    let from_alarm = world.path("from-alarm");
    run(world
        .holdfast("bob")
        .args(merge)
        .arg(&exported)
        .args(["--from", &world.url, "--key"])
        .arg(world.key("bob"))
        .arg("--to")
        .arg(&from_alarm));
    assert_eq!(fs::read_to_string(from_alarm.join("theirs/team/both")).expect("the other side"), "Alice's");
    assert!(from_alarm.join("ours/team/bobs").exists(), "what Bob had accepted");
}
