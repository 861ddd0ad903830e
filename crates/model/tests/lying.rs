//! A lying server: whatever it shows, nobody accepts two things that cannot both be true.

use holdfast_content::DeviceId;
use holdfast_model::explore::{Limits, Verdict, explore};
use holdfast_model::lying::{Config, Durability, Lying, Plan};
use holdfast_model::world::Kind;
use holdfast_protocol::signer::Signer;

#[test]
fn first() {
    let plan = |device| Plan { device: DeviceId(device), operations: 2, kinds: vec![Kind::Write], crashes: 0 };
    let config = Config {
        users: 2,
        clients: vec![plan(1), plan(2)],
        fast: true,
        slow: true,
        nothing: false,
        waits: true,
        looks: false,
        aborts: true,
        pending_max: 3,
        prune: true,
        gaps: 0,
        durability: Durability::Everything,
    };
    let mut model = Lying::<Signer>::new(config);
    let report = explore(&mut model, Limits{states: 2_000_000, time: std::time::Duration::from_secs(120), ..Limits::NONE}, false);
    println!("{} states {} steps {} deep, {} machines, {:?}, {:?} {:?}", report.states, report.steps, report.depth, report.machines, report.time, model.shown, report.verdict);
    assert_eq!(report.verdict, Verdict::Holds, "{}", report.explain());
}
