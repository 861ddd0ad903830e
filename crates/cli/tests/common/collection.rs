//! Collecting all garbage, however young: no command offers that.

use super::{World, run};
use holdfast_server::ServerConfig;
use holdfast_server::control::{Outcome, Task, perform};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The variable with the data directory, for the process that collects.
const COLLECTED: &str = "HOLDFAST_COLLECTED";
const REPORT_PREFIX: &str = "blocks collected: ";

/// Collects all garbage while the server is stopped, and returns the number of blocks collected.
///
/// In a process of its own: a command that a test beside this one starts would have the store's lock for a moment, and the
/// server not start.
pub fn collect(world: &mut World) -> u64 {
    world.stop_server();
    let mut alone = Command::new(std::env::current_exe().expect("this program"));
    alone.args(["--exact", "--ignored", "--nocapture", "common::collection::collect_in_this_process"]);
    let printed = run(alone.env(COLLECTED, world.data()));
    world.start_server();
    let count = printed.lines().find_map(|line| line.split_once(REPORT_PREFIX)?.1.parse().ok());
    count.unwrap_or_else(|| panic!("{printed}"))
}

#[test]
#[ignore = "tests that collect run it, and say where"]
fn collect_in_this_process() {
    let data = PathBuf::from(std::env::var_os(COLLECTED).expect("where to collect"));
    let mut config = ServerConfig::new(data, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.gc_window = Duration::ZERO;
    config.keep_deleted = Duration::ZERO;
    config.history = "0".parse().expect("a rule");
    let outcome = perform(&config, Task::Collect, &mut |_, _| {}).expect("collected");
    let Outcome::Collected(reports) = outcome else { panic!("{outcome:?}") };
    let dropped: u64 = reports.into_iter().map(|(_, report)| report.expect("collected").dropped).sum();
    println!("\n{REPORT_PREFIX}{dropped}");
}
