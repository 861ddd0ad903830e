//! An honest server never looks like a liar.

use holdfast_sim::order::honest::{Report, Weather, run};

/// The number of seeds: `HOLDFAST_SEEDS` sets it for a long run.
fn seeds(default: u64) -> u64 {
    holdfast_testing::setting("HOLDFAST_SEEDS", default)
}

fn sum(weather: Weather, count: u64) -> Report {
    let mut total = Report::default();
    for seed in 0..count {
        let report =
            std::panic::catch_unwind(|| run(seed, weather)).unwrap_or_else(|_| panic!("seed {seed}"));
        total.committed += report.committed;
        total.nothing += report.nothing;
        total.failed += report.failed;
        total.log += report.log;
    }
    println!("{count} seeds: {total:?}");
    total
}

/// Without faults, everything is committed except what lost a race.
#[test]
fn calm() {
    let total = sum(Weather::CALM, seeds(12));
    assert!(total.committed > total.failed);
}

/// With loss, repetition, reordering, crashes on both sides and aborts there is no alarm, and nothing acknowledged is
/// lost.
#[test]
fn storm() {
    let total = sum(Weather::STORM, seeds(40));
    assert!(total.committed > 0 && total.failed > 0 && total.nothing > 0);
}
