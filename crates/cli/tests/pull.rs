//! `holdfast release pull` as its users run it: from a server, again, killed, and with mistakes.

use crate::common;

use common::publisher::Publisher;
use common::{eventually, noise, run, run_json};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A publisher with a tree of small files and a large one.
fn publisher() -> Publisher {
    let publisher = Publisher::new();
    for number in 0..20 {
        publisher.write(&format!("src/{number}"), noise(number, 30_000));
    }
    publisher.write("large", noise(100, 20_000_000));
    publisher
}

fn pull(publisher: &Publisher, from: &str) -> Command {
    let mut command = publisher.holdfast();
    command.args(["--json", "pull", from, "copy"]);
    command
}

fn pulled(publisher: &Publisher, from: &str) -> serde_json::Value {
    run_json(&mut pull(publisher, from))
}

/// Proves: a release that is pulled over HTTP, also when that is killed again and again, and served on, is what was
/// published. A change costs what changed. Other directories are refused and left alone.
#[test]
fn a_mirror_of_a_mirror() {
    let mut publisher = publisher();
    publisher.publish(&[]);
    let id = publisher.id();
    let url = publisher.serve("release");
    let link = format!("hf+release:{id}@{url}");
    for milliseconds in [5, 20, 50, 100] {
        let mut killed =
            pull(&publisher, &link).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
    }
    let first = pulled(&publisher, &link);
    assert_eq!(first["sequence"], 1);
    let second = pulled(&publisher, &link);
    assert_eq!(second["changed"], false);
    assert!(second["bytes_fetched"].as_u64() < Some(5_000), "{second}");

    fs::write(publisher.path("tree/src/3"), noise(1003, 30_000)).expect("written");
    publisher.publish(&[]);
    let mut changed = second;
    // The server looks for a new record once a second.
    eventually("the server has the release", || {
        changed = pulled(&publisher, &link);
        changed["sequence"] == 2
    });
    assert_eq!(changed["releases"], 2);
    assert!(changed["bytes_fetched"].as_u64() < Some(100_000), "{changed}");
    assert!(changed["requests"].as_u64() <= Some(10), "{changed}");

    let mirror = publisher.serve("copy");
    run(publisher.holdfast().args(["get", &format!("hf+release:{id}@{mirror}"), ".", "got"]));
    let same =
        Command::new("diff").args(["-r"]).arg(publisher.path("tree")).arg(publisher.path("got")).status();
    assert!(same.expect("it runs").success());

    let refused = |arguments: &[&str]| {
        let output = publisher.holdfast().arg("pull").args(arguments).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, printed) = refused(&[&link, "tree"]);
    assert!(code == Some(73) && printed.contains("no file of a release"), "{code:?} {printed}");
    let (code, printed) = refused(&[&url, "copy"]);
    assert!(code == Some(64) && printed.contains("--id"), "{code:?} {printed}");
    let (code, printed) = refused(&[&link, "copy", "--from", "tree"]);
    assert!(code == Some(74) && printed.contains("tree/root"), "{code:?} {printed}");
    let lock = fs::File::open(publisher.path("copy")).expect("opened");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let (code, printed) = refused(&[&link, "copy"]);
    assert!(code == Some(74) && printed.contains("somebody else"), "{code:?} {printed}");
}
