//! After an alarm: what `status`, `evidence` and `salvage` say and do, and how a mount goes on.

use crate::common;

use common::holder::Holder;
use common::{World, eventually, exits, run, run_json};
use holdfast_server::ServerConfig;
use holdfast_sim::evil::{Attack, EvilServer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn evil(world: &mut World) -> EvilServer {
    world.stop_server();
    let mut config = ServerConfig::new(world.data(), ([127, 0, 0, 1], world.port).into());
    // Without leases, so that each call asks the server, which can lie to it.
    config.lease_term = std::time::Duration::ZERO;
    EvilServer::start(config).expect("the operator's server starts")
}

/// The mount's status, as the extended attribute of its root directory has it.
fn status_attribute(mount: &Path) -> String {
    let mut room = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(mount, "user.holdfast.status", &mut room[..]).expect("it can be read");
    String::from_utf8_lossy(&room[..length]).into_owned()
}

/// From now on desktop notifications go to the file that is returned.
fn catch_notifications(world: &mut World) -> PathBuf {
    let (tools, caught) = (world.path("tools"), world.path("notifications"));
    fs::create_dir(&tools).expect("a directory");
    let script = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >> '{}'\n", caught.display());
    let program = tools.join("notify-send");
    fs::write(&program, script).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").expect("a path"));
    world.environment.push(("PATH".to_owned(), path));
    world.environment.push(("DBUS_SESSION_BUS_ADDRESS".to_owned(), "unix:path=/nonexistent".to_owned()));
    caught
}

/// Altered data: `status` has an exit code for it; the evidence can be listed, explained and given to others, who see
/// for themselves that the bytes are wrong.
#[test]
fn altered_data() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    let content: String = (0..3000u32).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    fs::write(anna.join("team/file"), content).expect("written");
    world.umount("anna");
    let server = evil(&mut world);
    let notifications = catch_notifications(&mut world);
    let ben = world.mount("ben");
    assert!(status_attribute(&ben).starts_with("working"), "{}", status_attribute(&ben));
    assert_eq!(
        run(world.holdfast("ben").args(["evidence", "list"])).lines().next(),
        Some("No evidence: no server has shown anything wrong.")
    );
    server.begin(Attack::FlipByte);
    assert_eq!(fs::read(ben.join("team/file")).expect_err("altered").raw_os_error(), Some(5));

    let printed = exits(world.holdfast("ben").arg("status"), 80);
    assert!(printed.contains("ALARM") && printed.contains("working"), "{printed}");
    let attribute = status_attribute(&ben);
    assert!(
        attribute.contains("ALARM: integrity failure in team/file") && attribute.contains("Ask the operator"),
        "{attribute}"
    );
    let mut names = vec![0; 4096];
    assert_eq!(rustix::fs::listxattr(&ben, &mut names[..]).expect("listed"), 0, "not to be copied");
    eventually("the desktop is told", || {
        let caught = fs::read_to_string(&notifications).unwrap_or_default();
        caught.contains("wrong data") && caught.contains("team/file")
    });
    let _ = fs::read(ben.join("team/file"));
    let caught = fs::read_to_string(&notifications).expect("it was told");
    assert_eq!(caught.matches("wrong data").count(), 1, "once is enough: {caught}");
    let list = run_json(world.holdfast("ben").args(["evidence", "list", "--json"]));
    let piece = list.as_array().expect("a list").last().expect("there is evidence");
    let name = piece["name"].as_str().expect("a name");
    let printed = run(world.holdfast("ben").args(["evidence", "show", name]));
    assert!(printed.contains("altered data") && printed.contains("are not the block asked for"), "{printed}");
    let copy = world.path("for-others.evidence");
    run(world.holdfast("ben").args(["evidence", "export", name, "--to"]).arg(&copy));
    // A user who has nothing but the evidence file.
    let elsewhere = run(world.holdfast("somebody").args(["evidence", "show"]).arg(&copy));
    assert!(elsewhere.contains("are not the block asked for"), "{elsewhere}");
    exits(world.holdfast("ben").args(["evidence", "export", name, "--to"]).arg(&copy), 73);
    exits(world.holdfast("ben").args(["evidence", "show", "no-such-thing"]), 66);
    let mut bytes = fs::read(&copy).expect("read");
    bytes.truncate(20);
    fs::write(world.path("damaged.evidence"), bytes).expect("written");
    let damaged = world.path("damaged.evidence");
    exits(world.holdfast("somebody").args(["evidence", "show"]).arg(damaged), 65);
}

/// A wrong order freezes the mount. Unsaved bytes are saved to a folder from which `salvage` copies them. Mounting is
/// refused in words until the alarm is acknowledged; then the true data is there.
#[test]
fn wrong_order() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/file"), "true").expect("written");
    let server = evil(&mut world);
    let ben = world.mount("ben");
    let mut open = Holder::open(&ben.join("team/open"));
    open.write(b"not yet saved").expect("written");
    server.begin(Attack::ForgeStructure);
    eventually("the lie is noticed", || {
        let _ = fs::write(anna.join("team/file"), "changed");
        fs::read(ben.join("team/file")).is_err_and(|error| error.raw_os_error() == Some(5))
    });
    eventually("unsaved data is saved to a folder", || {
        run(world.holdfast("ben").arg("salvage")).contains("team/open")
    });
    // Nothing can be published any more, by close or by umount: neither waits, and the bytes are saved.
    drop(open);
    let printed = exits(world.holdfast("ben").arg("status"), 80);
    assert!(printed.contains("FROZEN") && printed.contains("To salvage"), "{printed}");
    let attribute = status_attribute(&ben);
    assert!(
        attribute.contains("ALARM: the server's history is not consistent") && attribute.contains("salvage"),
        "{attribute}"
    );
    let to = world.path("rescued");
    run(world.holdfast("ben").args(["salvage", "--to"]).arg(&to));
    assert!(!run(Command::new("grep").args(["-rlx", "not yet saved"]).arg(&to)).is_empty());
    let list =
        run(world.holdfast("ben").args(["evidence", "list", &world.url, "--key"]).arg(world.key("ben")));
    assert!(list.contains("wrong order"), "{list}");

    server.begin(Attack::Honest);
    world.umount("ben");
    let mut again = world.holdfast("ben");
    again.args(["mount", &world.url]).arg(&ben).arg("--key").arg(world.key("ben"));
    let printed = exits(&mut again, 80);
    assert!(printed.contains("holdfast salvage") && printed.contains("--acknowledge-alarm"), "{printed}");
    let ben = world.mount_with("ben", &["--acknowledge-alarm"]);
    assert!(!fs::read(ben.join("team/file")).expect("the true data").is_empty());
}
