//! Leases: no interleaving of a few operations shows anything outdated, and each rule that this rests on is needed.

use holdfast_model::configurations::{Named, What, all};
use holdfast_model::explore::{Limits, Verdict, explore};
use holdfast_model::leases::{Config, Leases, Shortcut};

fn small() -> impl Iterator<Item = (Named, Config)> {
    all().into_iter().filter(|named| named.small).filter_map(|named| match &named.what {
        What::Leases(config) => Some((named.clone(), config.clone())),
        _ => None,
    })
}

/// Proves: in every small configuration all promises hold.
#[test]
fn nothing_outdated_is_shown() {
    for (named, _) in small() {
        let report = named.run(Limits::NONE);
        println!("{}: {} states, depth {}, {:?}", named.name, report.states, report.depth, report.time);
        assert_eq!(report.verdict, Verdict::Holds, "{}:\n{}", named.name, report.explain());
    }
}

/// Proves: each rule is needed; without it one of these configurations breaks a promise.
#[test]
fn each_rule_is_needed() {
    for shortcut in [
        Shortcut::NoWaiting,
        Shortcut::ReadsIgnored,
        Shortcut::NothingWithheld,
        Shortcut::RepeatGranted,
        Shortcut::Forgetful,
        Shortcut::LateCount,
        Shortcut::HastyFlush,
        Shortcut::MakesMeanwhile,
    ] {
        let broken = small().find_map(|(named, config)| {
            let report = explore(&mut Leases::new(Config { shortcut, ..config }), Limits::NONE, false);
            matches!(report.verdict, Verdict::Broken { .. }).then(|| (named.name, report.explain()))
        });
        let (name, trace) = broken.unwrap_or_else(|| panic!("{shortcut:?} does no harm here"));
        println!("{shortcut:?} in {name}:\n{trace}");
    }
}

/// Proves: with a server that recalls nothing, readers are at most a term behind.
#[test]
fn lying_servers_gain_a_term() {
    for (named, config) in small() {
        let config = Config { shortcut: Shortcut::NeverRecalls, ..config };
        let report = explore(&mut Leases::new(config), Limits::NONE, false);
        assert_eq!(report.verdict, Verdict::Holds, "{}:\n{}", named.name, report.explain());
    }
}
