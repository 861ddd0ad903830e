//! `holdfast release pull` as its users run it: from a server, again, killed, and with mistakes.

use crate::common;

use common::desk::Desk;
use common::{eventually, noise, run};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A desk with a tree of small files and a large one.
fn desk() -> Desk {
    let desk = Desk::new();
    for number in 0..20 {
        desk.write(&format!("src/{number}"), noise(number, 30_000));
    }
    desk.write("large", noise(100, 20_000_000));
    desk
}

fn pull(desk: &Desk, from: &str) -> Command {
    let mut command = desk.holdfast();
    command.args(["--json", "pull", from, "copy"]);
    command
}

fn pulled(desk: &Desk, from: &str) -> serde_json::Value {
    serde_json::from_str(&run(&mut pull(desk, from))).expect("JSON")
}

/// Proves: pulled over HTTP, also when it is killed again and again, and served on, a release is what was published; a
/// change costs what changed; and other directories are left alone, with a reason.
#[test]
fn a_mirror_of_a_mirror() {
    let mut desk = desk();
    desk.publish(&[]);
    let id = desk.id();
    let url = desk.serve("release");
    let link = format!("hf+release:{id}@{url}");
    for milliseconds in [5, 20, 50, 100] {
        let mut killed =
            pull(&desk, &link).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
    }
    let first = pulled(&desk, &link);
    assert_eq!(first["sequence"], 1);
    let second = pulled(&desk, &link);
    assert_eq!(second["changed"], false);
    assert!(second["bytes_fetched"].as_u64() < Some(5_000), "{second}");

    fs::write(desk.path("tree/src/3"), noise(1003, 30_000)).expect("written");
    desk.publish(&[]);
    let mut changed = second;
    // The server looks again for its record once a second.
    eventually("the server has the release", || {
        changed = pulled(&desk, &link);
        changed["sequence"] == 2
    });
    assert_eq!(changed["releases"], 2);
    assert!(changed["bytes_fetched"].as_u64() < Some(100_000), "{changed}");
    assert!(changed["requests"].as_u64() <= Some(10), "{changed}");

    let mirror = desk.serve("copy");
    run(desk.holdfast().args(["get", &format!("hf+release:{id}@{mirror}"), ".", "got"]));
    let same = Command::new("diff").args(["-r"]).arg(desk.path("tree")).arg(desk.path("got")).status();
    assert!(same.expect("it runs").success());

    let refused = |arguments: &[&str]| {
        let output = desk.holdfast().arg("pull").args(arguments).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = refused(&[&link, "tree"]);
    assert!(code == Some(73) && said.contains("no file of a release"), "{code:?} {said}");
    let (code, said) = refused(&[&url, "copy"]);
    assert!(code == Some(64) && said.contains("--id"), "{code:?} {said}");
    let (code, said) = refused(&[&link, "copy", "--from", "tree"]);
    assert!(code == Some(74) && said.contains("tree/root"), "{code:?} {said}");
    let lock = fs::File::open(desk.path("copy")).expect("opened");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let (code, said) = refused(&[&link, "copy"]);
    assert!(code == Some(74) && said.contains("somebody else"), "{code:?} {said}");
}
