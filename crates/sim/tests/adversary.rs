//! Each behaviour of the adversary against each call of a client, and all of them at random.

use holdfast_protocol::judge::{Exhibit, contradictions};
use holdfast_protocol::peers::{Finding, judge};
use holdfast_sim::adversary::behaviour::Behaviour;
use holdfast_sim::adversary::chaos;
use holdfast_sim::adversary::peers::{self, Meeting};
use holdfast_sim::adversary::pushes::{self, Pushed};
use holdfast_sim::adversary::verdict::{VictimCall, rows, table, without_memory};

/// Rows that wait for a term or a bound, which costs no work.
const THREADS: usize = 6;

/// The number of parts into which the rows are divided, each a test of its own.
const PARTS: usize = 6;

/// Runs one of the parts: some of the behaviours, against every call.
fn behaviours_by_every_call(part: usize) {
    let wanted = std::env::var("HOLDFAST_BEHAVIOUR").ok();
    let chosen = |behaviour: &Behaviour| wanted.as_ref().is_none_or(|name| format!("{behaviour:?}") == *name);
    let behaviours = Behaviour::ALL.into_iter().skip(part).step_by(PARTS);
    let behaviours: Vec<Behaviour> = behaviours.filter(chosen).collect();
    let rows = rows(&behaviours, THREADS);
    let table = table(&rows);
    println!("{table}");
    let mut wrong = Vec::new();
    for (behaviour, verdicts) in &rows {
        for (doing, verdict) in VictimCall::ALL.iter().zip(verdicts) {
            match verdict {
                Ok(verdict) if verdict.is_allowed(behaviour.kind(), *doing) => {}
                Ok(verdict) => wrong.push(format!("{behaviour:?} {doing:?}: {verdict}")),
                Err(why) => wrong.push(format!("{behaviour:?} {doing:?}: {why}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md");
    let document = std::fs::read_to_string(path).expect("docs/proof.md");
    let header = table.lines().next().expect("a header");
    let documented = document.lines().skip_while(|line| *line != header).take_while(|line| !line.is_empty());
    let documented: Vec<&str> = documented.collect();
    assert_eq!(documented.len(), 2 + Behaviour::ALL.len(), "docs/proof.md has a line for each behaviour");
    let missing: Vec<&str> = table.lines().filter(|line| !documented.contains(line)).collect();
    assert!(missing.is_empty(), "docs/proof.md should hold:\n{}", missing.join("\n"));
}

/// Proves: whatever the server does, a victim is told the truth, or is refused with words and valid evidence, and stays
/// refused until its user has acknowledged that. Honest failures raise no alarm. The table in `docs/proof.md` is the
/// result.
mod every_behaviour_by_every_call {
    macro_rules! parts {
        ($($name:ident $part:literal)*) => {$(
            #[test]
            fn $name() {
                super::behaviours_by_every_call($part);
            }
        )*
        const _: () = assert!([$($part),*].len() == super::PARTS, "all parts are played");};
    }
    parts! { part_1 0 part_2 1 part_3 2 part_4 3 part_5 4 part_6 5 }
}

/// Proves: what a server pushes to a working client is checked like any view. If it is true, the client goes on from
/// it. If it is older, or something is hidden or altered, everything stops. If it does not follow from anything the
/// client has, it is passed over.
#[test]
fn pushes_are_checked() {
    for pushed in [Pushed::True, Pushed::OtherBase, Pushed::Cut] {
        assert_eq!(pushes::push_falsified(pushed), None, "{pushed:?}");
    }
    for pushed in [Pushed::Yesterday, Pushed::Hidden, Pushed::Altered] {
        assert!(pushes::push_falsified(pushed).is_some(), "{pushed:?} goes through");
    }
}

/// Proves: the rows about restores and warrants can fail. With a client that remembers nothing, and so checks nothing
/// against what it was told before, each of these lies succeeds, and the oracle reports it; and an honest restore that
/// is not declared counts as a roll-back.
#[test]
fn a_client_without_memory_is_found_out() {
    use Behaviour::*;
    for behaviour in [
        RestoreDeclared,
        RestoreHidden,
        RestoreWithheld,
        RestoreUndone,
        RestoreReplayed,
        RestoreOfFork,
        WarrantReordered,
    ] {
        assert!(without_memory(behaviour).is_err(), "{behaviour:?} is not noticed");
    }
    for behaviour in [Honest, WarrantTwice, WarrantLate] {
        assert_eq!(without_memory(behaviour), Ok(()), "{behaviour:?}");
    }
}

/// Proves: two clients that were forked find out as soon as they talk, and can convict the server before anybody. A
/// peer that lies raises no alarm, and hides nothing that another peer tells.
#[test]
fn peers_meet() {
    let (table, wrong) = peers::table();
    println!("{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md");
    let document = std::fs::read_to_string(path).expect("docs/proof.md");
    assert!(document.contains(&table), "docs/proof.md should hold:\n{table}");
}

/// Proves: the rows about peers can fail. A client that takes a peer's word for proof convicts an honest server, and
/// one that never compares agrees across a fork.
#[test]
fn careless_judges_are_found_out() {
    let credulous: peers::Judge = |floor, members, peer, latest| {
        let known = floor.view.slots.get(&peer).map_or(0, |slot| slot.value.number());
        let word = latest.operation.as_ref().expect("it has one").structure.clone();
        let differs = floor.view.slots.get(&peer) != Some(&word);
        match judge(floor, members, peer, latest) {
            Err(_) if differs && word.value.number() >= known => {
                let first = Exhibit { structure: &word, acknowledged: true };
                let mut other = word.clone();
                other.value.forecast.log.size += 1;
                let second = Exhibit { structure: &other, acknowledged: true };
                let clash = contradictions(&[first, second]).remove(0);
                Ok(Finding::Convicted(Box::new(clash)))
            }
            found => found,
        }
    };
    assert!(peers::run(Meeting::Altered, None, credulous).is_err());
    assert!(peers::run(Meeting::FalseReceipt, None, credulous).is_err());
    let trusting: peers::Judge = |_, _, _, _| Ok(Finding::Agrees);
    assert!(peers::run(Meeting::Fork, None, trusting).is_err());
    assert!(peers::run(Meeting::ForkAndOneLiar, None, trusting).is_err());
}

/// Proves: a file that was made is not reported absent because the server denies having accepted the operation. (This
/// seed found that, about every second time.)
#[test]
fn denial_is_no_absence() {
    for _ in 0..8 {
        chaos::run(128, 10).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Proves: behaviours in any combination never make a client see what no order on its branch explains, never bring it
/// from one branch to another, and never make it forget an alarm; and lies are noticed.
#[test]
fn random_combinations() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("HOLDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HOLDFAST_SEEDS").unwrap_or(24),
    };
    let mut total = chaos::Report::default();
    for seed in seeds.clone() {
        let report = std::panic::catch_unwind(|| chaos::run(seed, 40))
            .unwrap_or_else(|_| panic!("seed {seed} panicked"))
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        total.calls += report.calls;
        total.failed += report.failed;
        total.lies += report.lies;
        total.alarms += report.alarms;
        total.branches += report.branches;
    }
    println!("{seeds:?}: {total:?}");
    assert!(seeds.end - seeds.start < 20 || total.alarms > 5, "lies are noticed: {total:?}");
}
