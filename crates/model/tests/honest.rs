//! An honest server: no interleaving looks like an attack, loses anything, or leaves anybody stuck.

use holdfast_model::configurations::{Expected, What, all};
use holdfast_model::explore::{Limits, Verdict};

/// Every small configuration comes to what is expected of it.
#[test]
fn small_configurations() {
    for named in all().into_iter().filter(|named| named.small && matches!(named.what, What::Honest(_))) {
        let report = named.run(Limits::NONE);
        println!(
            "{}: {} states, depth {}, {:?}\n{}",
            named.name,
            report.states,
            report.depth,
            report.time,
            report.explain()
        );
        match named.expected {
            Expected::Holds => {
                assert_eq!(report.verdict, Verdict::Holds, "{}:\n{}", named.name, report.explain())
            }
            Expected::Breaks => assert!(matches!(report.verdict, Verdict::Broken { .. }), "{}", named.name),
        }
    }
}
