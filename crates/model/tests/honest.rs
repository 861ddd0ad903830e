//! An honest server: no interleaving looks like an attack, loses anything, or leaves anybody stuck.

use holdfast_content::DeviceId;
use holdfast_model::explore::{Limits, Verdict, explore};
use holdfast_model::honest::{Config, Honest, Plan};
use holdfast_model::world::Kind;

#[test]
fn first() {
    let plan = |device| Plan { device: DeviceId(device), operations: 2, kinds: vec![Kind::Write], crashes: 1 };
    let config = Config {
        users: 2,
        clients: vec![plan(1), plan(2)],
        fast: true,
        slow: true,
        nothing: false,
        waits: true,
        looks: false,
        aborts: true,
    };
    let report = explore(&mut Honest::new(config), Limits{states: 2_000_000, ..Limits::NONE}, true);
    println!("{} states {} steps {} deep, {} machines, {:?}", report.states, report.steps, report.depth, report.machines, report.time);
    assert_eq!(report.verdict, Verdict::Holds, "{}", report.explain());
}
