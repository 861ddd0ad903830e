//! Two machines that overwrite each other's version of a file.

use crate::common;

use common::holder::Holder;
use common::{World, run, text};
use std::fs;

/// Proves: a version that was overwritten unseen is listed, in words and as data, also for the user who lost it, and
/// can be copied out whole and removed. The mount that overwrote it says so in its log. Copies that do not exist, or
/// may not be removed, are refused with the way out.
#[test]
fn an_overwritten_version_is_found_again() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let list = |who: &str| run(world.holdfast(who).arg("conflicts"));
    assert!(list("anna").starts_with("No conflicts"), "{}", list("anna"));

    let long: Vec<u8> = (0..5_000_000u32).flat_map(|number| number.to_le_bytes()).take(3_333_333).collect();
    for (name, bens) in [("plan.txt", b"ben's plan".as_slice()), ("large", &long)] {
        fs::write(anna.join(name), "first").expect("written");
        let (mut our, mut their) = (Holder::open(&anna.join(name)), Holder::open(&ben.join(name)));
        their.write(bens).expect("written");
        our.write(b"anna's plan").expect("written");
        their.sync().expect("published");
        drop(their);
        our.sync().expect("published");
        drop(our);
        assert_eq!(fs::read(ben.join(name)).expect("read"), b"anna's plan");
    }
    // Ben finds the versions that he lost.
    for who in ["ben", "anna"] {
        let printed = list(who);
        for part in ["team/plan.txt", "10 bytes, written by ben", "overwritten by anna, who had not seen it"]
        {
            assert!(printed.contains(part), "{part:?} is not in: {printed}");
        }
        assert!(printed.contains("holdfast conflicts get ID --out FILE"), "{printed}");
    }
    let log = world.mount_log("anna");
    assert!(log.contains("not seen here, was overwritten") && log.contains("team/plan.txt"), "{log}");

    let listed = |which: &[&str]| -> Vec<serde_json::Value> {
        let json = run(world.holdfast("ben").args(["conflicts", "--json"]).args(which));
        serde_json::from_str(&json).expect("a list")
    };
    let versions = listed(&[]);
    assert_eq!(versions.len(), 2);
    assert_eq!(versions[1]["owner"], "team");
    assert_eq!(listed(&[&world.url]), versions);
    let mount_point = world.path("ben-mnt").display().to_string();
    assert_eq!(listed(&[&mount_point]), versions);

    let id = |at: usize| versions[at]["id"].as_str().expect("an id").to_owned();
    let out = world.path("out");
    let get = |who: &str, id: &str| {
        world.holdfast(who).args(["conflicts", "get", id, "--out"]).arg(&out).output().expect("it runs")
    };
    for (at, expected) in [(0, b"ben's plan".as_slice()), (1, &long)] {
        let got = get("ben", &id(at));
        assert!(got.status.success(), "{}", text(&got));
        assert!(fs::read(&out).expect("read") == expected);
        let again = get("ben", &id(at));
        assert_eq!(again.status.code(), Some(73), "{}", text(&again));
        assert!(fs::read(&out).expect("read") == expected, "never overwritten");
        fs::remove_file(&out).expect("removed");
    }
    let unknown = get("ben", "g1-fffff");
    assert_eq!(unknown.status.code(), Some(66), "{}", text(&unknown));
    assert!(!out.exists() && text(&unknown).contains("`holdfast conflicts` lists"), "{}", text(&unknown));

    run(world.holdfast("ben").args(["conflicts", "drop", &id(0), &id(1)]));
    assert!(list("anna").starts_with("No conflicts"), "{}", list("anna"));
    let gone = get("anna", &id(0));
    assert_eq!(gone.status.code(), Some(66));

    let elsewhere = world.holdfast("ben").args(["conflicts", "/tmp"]).output().expect("it runs");
    assert_eq!(elsewhere.status.code(), Some(79), "{}", text(&elsewhere));
    assert!(text(&elsewhere).contains("mount it first"), "{}", text(&elsewhere));
}
