//! The traces that break the tempting shortcuts: with the shortcut, the checker finds a path to a broken
//! promise; without it, the same configuration holds. (`lying::apart` explains how each shortcut is taken.)

use holdfast_model::configurations::{league, lying, with_crash};
use holdfast_model::explore::{Limits, Report, Verdict, explore};
use holdfast_model::lying::apart::{Apart, Rules, Shortcut};
use holdfast_model::lying::{Body, Config, Durability, Lying};
use holdfast_model::world::Kind;
use holdfast_protocol::signer::Signer;

const WRITE: &[Kind] = &[Kind::Write];
const FETCH: &[Kind] = &[Kind::Fetch];
const EITHER: &[Kind] = &[Kind::Fetch, Kind::Write];

macro_rules! rules {
    ($($name:ident)*) => {$(
        #[derive(Clone)]
        struct $name;
        impl Rules for $name {
            const SHORTCUT: Shortcut = Shortcut::$name;
        }
    )*};
}

rules! {
    None OwnNumbers AbortUnrecorded AbortOnce RollForward PassedRecords FloorGoes Reflection LearnedGoes LookGoes
    Pushed LearnedLate Warrants
}

fn run<B: Body>(config: &Config) -> Report {
    let mut model = Lying::<B>::new(config.clone());
    explore(&mut model, Limits::NONE, false)
}

/// The clients with the shortcut come to contradict each other as `what` says; those without never do.
fn needed<R: Rules>(config: &Config, what: &str) {
    breaks::<Apart<R>>(config, what);
    let real = run::<Signer>(config);
    println!("without the shortcut: {} states", real.states);
    assert_eq!(real.verdict, Verdict::Holds, "{}", real.explain());
}

fn breaks<B: Body>(config: &Config, what: &str) {
    let report = run::<B>(config);
    println!("{} states\n{}", report.states, report.explain());
    let Verdict::Broken { what: found, .. } = &report.verdict else {
        panic!("the shortcut does no harm here")
    };
    assert!(found.contains(what), "{found}");
}

fn aborts(config: Config) -> Config {
    Config { aborts: true, ..config }
}

fn two(a: u64, b: u64) -> Config {
    lying(2, &[(1, a, FETCH), (2, b, FETCH)])
}

/// T1: what was signed is sent before it is durable, and forgotten in a crash; its number is used again.
#[test]
fn t1_number_reused() {
    let config = lying(2, &[(1, 2, EITHER), (2, 1, FETCH)]);
    breaks::<Signer>(&with_crash(Durability::SendsFirst, config.clone()), "A1 is");
    let careful = run::<Signer>(&with_crash(Durability::Everything, config));
    assert_eq!(careful.verdict, Verdict::Holds, "{}", careful.explain());
}

/// T2: a number is given up, and it is ignored that others know it as committed.
#[test]
fn t2_void_number_reflected() {
    needed::<OwnNumbers>(&Config { fast: true, ..two(1, 2) }, "aborted");
}

/// T3: B sees A1 as dead, and does not record it; A, whose A1 was acknowledged, accepts B1.
#[test]
fn t3_abort_unrecorded() {
    needed::<AbortUnrecorded>(&aborts(two(2, 1)), "A1 is");
}

/// T4: B records the abort once, and then no more; A gets only the later structure.
#[test]
fn t4_abort_recorded_once() {
    // The same configuration as that of T6, in which the machine itself holds.
    breaks::<Apart<AbortOnce>>(&aborts(two(2, 2)), "A1 is");
}

/// T5: a pending operation is applied at once, and then signed for another place.
#[test]
fn t5_roll_forward() {
    needed::<RollForward>(&two(1, 1), "applied at one place and signed for another");
}

/// T6: B's record of A's dead operation is dropped when A is past it, for want of a list of its void numbers.
#[test]
fn t6_void_not_cumulative() {
    needed::<PassedRecords>(&aborts(two(2, 2)), "A1 is");
}

/// T7: what came with a void operation is forgotten with it.
#[test]
fn t7_no_floor() {
    needed::<FloorGoes>(&aborts(two(2, 1)), "committed");
}

/// T8: B has seen A1 committed; C gets B1 beside a dead A1.
#[test]
fn t8_no_reflection() {
    let config = aborts(lying(3, &[(1, 1, FETCH), (2, 1, FETCH), (3, 1, FETCH)]));
    needed::<Reflection>(&config, "committed");
}

/// T9: B waits for A1 and reads it; then it is presented as dead.
#[test]
fn t9_no_memory() {
    needed::<LearnedGoes>(&Config { waits: true, ..aborts(two(1, 2)) }, "A1 is");
}

/// T10: a view is read from and forgotten; the next one lacks what was in it.
#[test]
fn t10_look_not_kept() {
    needed::<LookGoes>(&Config { looks: true, ..two(1, 1) }, "");
}

/// T11: a view that comes while a fast operation is in flight is read from; then the operation, which lacks
/// it, is acknowledged.
#[test]
fn t11_fast_accepted_after_a_push() {
    needed::<Pushed>(&Config { fast: true, looks: true, ..two(1, 1) }, "neither comes after the other");
}

/// T12, found by this checker: B reads A1, which it waited for, while its UPDATE is under way; the answer
/// still has A1 as pending, and B signs that. A is told that A1 is dead, gives it up, and accepts B's
/// structure.
#[test]
fn t12_learned_under_way() {
    needed::<LearnedLate>(&Config { waits: true, ..aborts(two(2, 2)) }, "A1 is");
}

/// An outdated warrant: the superuser has replaced B in another way, and a member that colludes with the
/// server submits what was signed before that.
#[test]
fn an_overtaken_warrant() {
    needed::<Warrants>(&league(), "does not follow what its warrant names");
}

/// The wrapper itself changes nothing.
#[test]
fn without_a_shortcut_it_is_the_machine() {
    let config =
        Config { fast: true, looks: true, waits: true, ..aborts(lying(2, &[(1, 1, WRITE), (2, 1, WRITE)])) };
    let (alone, wrapped) = (run::<Signer>(&config), run::<Apart<None>>(&config));
    assert_eq!((alone.states, alone.steps, alone.depth), (wrapped.states, wrapped.steps, wrapped.depth));
    assert_eq!((alone.verdict, wrapped.verdict), (Verdict::Holds, Verdict::Holds));
}
