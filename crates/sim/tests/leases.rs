//! Leases: with an honest server every read is of the present state; with a lying one it is at most one term old.

use holdfast_protocol::leases::EXCLUSIVE_MS;
use holdfast_sim::leases::{Fault, Report, TERM_MS, run, run_contended, run_lonely};
use holdfast_testing::setting;

/// The number of seeds: `HOLDFAST_SEEDS` sets it for a long run.
fn seeds(default: u64) -> u64 {
    setting("HOLDFAST_SEEDS", default)
}

fn sum(fault: Fault, count: u64) -> Report {
    let mut total = Report::default();
    for seed in 0..count {
        let report = run(seed, fault, 12_000);
        if fault == Fault::None {
            assert_eq!(report.outdated, 0, "seed {seed}: {report:?}");
        }
        total.operations += report.operations;
        total.leased += report.leased;
        total.outdated += report.outdated;
        total.outdated_ms_max = total.outdated_ms_max.max(report.outdated_ms_max);
        total.recalls += report.recalls;
    }
    println!("{fault:?}: {total:?}");
    total
}

/// Proves: under loss, delay and repetition, with clients that fall silent, sleep past their leases and die, and a
/// server that is killed and started again, a read under a lease returns what the last committed change has left.
#[test]
fn honest_servers_show_the_present() {
    let total = sum(Fault::None, seeds(60));
    assert!(total.leased > 10_000 && total.recalls > 100 && total.operations > 1_000, "{total:?}");
}

/// Proves: each rule on which this rests is needed; without it the simulator finds an outdated read.
#[test]
fn each_rule_is_needed() {
    for fault in [
        Fault::NoWaiting,
        Fault::PendingGranted,
        Fault::RepeatGranted,
        Fault::Forgetful,
        Fault::LateCount,
        Fault::HastyAcknowledgement,
    ] {
        assert!((0..60).any(|seed| run(seed, fault, 12_000).outdated > 0), "{fault:?}");
    }
}

/// Proves: a server that never recalls anything gains one term of outdated reads without a signed operation, and no
/// more.
#[test]
fn lying_servers_gain_a_term() {
    let total = sum(Fault::NeverRecalls, seeds(40));
    assert!(total.outdated > 0 && total.outdated_ms_max <= TERM_MS, "{total:?}");
}

/// Proves: a server that recalls all the time makes things slow, and nothing else.
#[test]
fn recalls_all_the_time_only_slow_down() {
    let total = sum(Fault::AlwaysRecalls, seeds(20));
    assert!(total.outdated == 0 && total.operations > 1_000, "{total:?}");
}

fn add(total: &mut [u64], more: &[u64]) {
    total.iter_mut().zip(more).for_each(|(total, more)| *total += more);
}

/// Proves: when all want to hold files exclusively at once, each does so again and again. Meanwhile no other's
/// operation that reads or changes these files is ordered, reads return the present state with the changes that holders
/// have made by themselves, and who only reads gets in between; under loss, delay, sleep, deaths and restarts of the
/// server.
#[test]
fn exclusive_leases_go_round() {
    let mut total = Report::default();
    for seed in 0..seeds(60) {
        let report = run_contended(seed, Fault::None, 12_000);
        assert_eq!((report.intruded, report.outdated), (0, 0), "seed {seed}: {report:?}");
        assert!(report.waited_ms_max <= EXCLUSIVE_MS + TERM_MS, "seed {seed}: {report:?}");
        add(&mut total.exclusive, &report.exclusive);
        total.operations += report.operations;
        total.leased += report.leased;
        total.fetched += report.fetched;
        total.made_here += report.made_here;
        total.delegated += report.delegated;
        total.waited_ms_max = total.waited_ms_max.max(report.waited_ms_max);
    }
    println!("{total:?}");
    assert!(total.exclusive.iter().all(|steps| *steps > 1_000) && total.leased > 1_000, "{total:?}");
    assert!(total.made_here > 1_000 && total.fetched > 1_000 && total.delegated > 0, "{total:?}");
}

/// Proves: each rule on which this rests is needed; without it the simulator finds an outdated read.
#[test]
fn each_rule_about_exclusive_leases_is_needed() {
    for fault in [
        Fault::NoWaiting,
        Fault::ReadsIgnored,
        Fault::NothingWithheld,
        Fault::HastyFlush,
        Fault::Forgetful,
        Fault::LateCount,
    ] {
        assert!((0..60).any(|seed| run_contended(seed, fault, 12_000).outdated > 0), "{fault:?}");
    }
}

/// Proves: while a client holds a file exclusively, by its own clock, no other's operation about it is ordered,
/// whatever is lost, late or repeated, and whoever sleeps. A holder that dies or sleeps holds readers up for its short
/// term at most. Without waiting for recalls, other operations do get in.
#[test]
fn exclusive_leases_are_for_one_and_short() {
    for (fault, is_honest) in [(Fault::None, true), (Fault::NoWaiting, false)] {
        let mut total = Report::default();
        for seed in 0..seeds(40) {
            let report = run_lonely(seed, fault, 20_000);
            if is_honest {
                assert_eq!((report.intruded, report.outdated), (0, 0), "seed {seed}: {report:?}");
                assert!(report.waited_ms_max <= EXCLUSIVE_MS + 20, "seed {seed}: {report:?}");
            }
            add(&mut total.exclusive, &report.exclusive);
            total.intruded += report.intruded;
            total.waited_ms_max = total.waited_ms_max.max(report.waited_ms_max);
        }
        println!("{fault:?}: {total:?}");
        assert!(total.exclusive.iter().sum::<u64>() > 1_000, "{total:?}");
        assert_eq!(total.intruded == 0, is_honest, "{total:?}");
        assert!(!is_honest || total.waited_ms_max > EXCLUSIVE_MS / 2, "somebody died with it: {total:?}");
    }
}
