//! All integration tests of this crate, linked once: `scripts/test only model::MODULE::`.

mod honest;
mod leases;
mod lying;
mod shortcuts;

use holdfast_model::configurations::{Expected, What, all};
use holdfast_model::explore::{Limits, Verdict};

/// Explores every small configuration of a kind, and compares the verdict with what its list expects.
fn small_configurations_are_as_expected(is_of_kind: impl Fn(&What) -> bool) {
    for named in all().into_iter().filter(|named| named.small && is_of_kind(&named.what)) {
        let report = named.run(Limits::NONE);
        let (states, depth, time, explained) = (report.states, report.depth, report.time, report.explain());
        println!("{}: {states} states, depth {depth}, {time:?}\n{explained}", named.name);
        match named.expected {
            Expected::Holds => assert_eq!(report.verdict, Verdict::Holds, "{}:\n{explained}", named.name),
            Expected::Breaks => assert!(matches!(report.verdict, Verdict::Broken { .. }), "{}", named.name),
        }
    }
}
