//! The outcome of each lie about the order, told during each operation.

use holdfast_sim::order::chaos;
use holdfast_sim::order::liar::{Lie, ROWS, Verdict, table, verdict};

/// Proves: every lie is noticed, at once or by a later operation; telling the truth, not answering and forking are not.
#[test]
fn every_lie_has_a_verdict() {
    for (lie, told) in ROWS {
        for doing in *told {
            let verdict = verdict(*lie, *doing);
            println!("{lie:?} {doing:?}: {verdict:?}");
            match lie {
                Lie::None | Lie::Withhold => assert_eq!(verdict, Verdict::Harmless, "{lie:?} {doing:?}"),
                Lie::Fork => assert_eq!(verdict, Verdict::Unnoticed, "{lie:?} {doing:?}"),
                _ => assert!(
                    matches!(verdict, Verdict::AtOnce(..) | Verdict::Next(..)),
                    "{lie:?} {doing:?}: {verdict:?}"
                ),
            }
        }
    }
}

/// Proves that the table in the threat model is the result.
#[test]
fn the_documented_table_is_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md");
    let document = std::fs::read_to_string(path).expect("docs/proof.md");
    let table = table();
    assert!(document.contains(&table), "docs/proof.md should hold:\n{table}");
}

/// A server that lies at random never gets contradictions accepted, and most victims notice.
#[test]
fn random_lies() {
    let seeds = holdfast_testing::setting("HOLDFAST_SEEDS", 60);
    let mut total = chaos::Report::default();
    for seed in 0..seeds {
        let report =
            std::panic::catch_unwind(|| chaos::run(seed, 60)).unwrap_or_else(|_| panic!("seed {seed}"));
        total.tried += report.tried;
        total.lies += report.lies;
        total.alarms += report.alarms;
    }
    println!("{seeds} seeds: {total:?}");
    assert!(total.alarms > seeds, "lies are noticed");
}
