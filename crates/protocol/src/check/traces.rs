//! The traces that break the tempting shortcuts, as regression tests. Each lie is refused by the checks named
//! for it; each of these checks alone is enough; with all of them off, the lie is accepted.
//!
//! `A1[1,0]` is device A's first structure with the numbers of A and B in its vector. The log of updates
//! would uncover most of these lies too, so it is off throughout: each check is proved by itself.

use super::policy::{Policy, Rule};
use super::{check_with, learn_with};
use crate::alarm::Alarm;
use crate::certificate::{Certificate, Path};
use crate::signed::Signed;
use crate::structure::{Forecast, Structure};
use crate::testing::{A, B, C, Client, Stage, membership};

/// All checks except the log's and those listed.
struct Without(Vec<Rule>);

impl Policy for Without {
    fn on(&self, rule: Rule) -> bool {
        rule != Rule::Log && !self.0.contains(&rule)
    }
}

/// Asserts that each of `catchers` alone refuses `trace` with the alarm named, and that with all of them off
/// it passes.
fn only_caught_by(catchers: &[(Rule, &str)], trace: impl Fn(&dyn Policy) -> Result<(), Alarm>) {
    let rules: Vec<Rule> = catchers.iter().map(|(rule, _)| *rule).collect();
    assert!(trace(&Without(Vec::new())).is_err(), "all checks on");
    for (rule, expected) in catchers {
        let others = rules.iter().copied().filter(|other| other != rule).collect();
        let alarm = trace(&Without(others)).expect_err(&format!("only {rule:?} on"));
        let name = format!("{alarm:?}");
        assert!(name.starts_with(expected), "{rule:?} gave {name}, expected {expected}");
        assert!(!alarm.explain().is_empty());
    }
    assert_eq!(trace(&Without(rules)), Ok(()), "without {catchers:?} the lie is accepted");
}

impl Client {
    /// Checks a view for the declared operation; if it passes, it becomes the floor.
    fn accept(
        &mut self,
        stage: &Stage,
        certificate: &Certificate,
        policy: &dyn Policy,
    ) -> Result<Forecast, Alarm> {
        let reply = stage.reply();
        let (floor, own) = check_with(&self.floor, &membership(), &reply, Some(certificate), policy)?;
        self.floor = floor;
        Ok(own.expect("an operation has a forecast"))
    }

    /// Declares, accepts and commits an operation from the client's point of view, on the state `stage`.
    fn operate(
        &mut self,
        stage: &Stage,
        policy: &dyn Policy,
    ) -> Result<(Signed<Certificate>, Signed<Structure>), Alarm> {
        let certificate = self.declare(Path::Slow, Vec::new());
        let forecast = self.accept(stage, &certificate.value, policy)?;
        let structure = self.structure(&certificate.value, forecast);
        self.acknowledge(&structure);
        Ok((certificate, structure))
    }

    /// Signs a fast operation on the state of `stage`, without checking it.
    fn fast(&mut self, stage: &Stage) -> (Signed<Certificate>, Signed<Structure>) {
        let certificate = self.declare(Path::Fast, Vec::new());
        let forecast = crate::order::forecast(&stage.view, &certificate.value);
        let structure = self.structure(&certificate.value, forecast);
        (certificate, structure)
    }
}

/// T1: a fast number is used twice. B's first signature reached A; B is told that it was refused, and signs
/// another operation 1. Only B could know, so only B can prevent it: it persists before it sends, and gives
/// up what was refused.
#[test]
fn t1_number_reused() {
    let all = Without(Vec::new());
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let start = Stage::new();
    let forgetful = b.clone();
    let (certificate, s1) = b.fast(&start);
    let mut shown_to_a = start.clone();
    shown_to_a.fast(&certificate, &s1);
    let (a_certificate, a1) = a.operate(&shown_to_a, &all).expect("honest so far");

    // A B that has forgotten its signature signs 1 again, and then accepts A1, which contains the other 1.
    let mut reusing = forgetful;
    let (_, other_b1) = reusing.operate(&start, &all).expect("honest so far");
    let mut joined = shown_to_a.clone();
    joined.order(&a_certificate);
    joined.commit(&a1);
    joined.view.slots.insert(B, other_b1);
    let (b_certificate, b2) = reusing.operate(&joined, &all).expect("the trace is reproduced");
    let mut back = joined.clone();
    back.order(&b_certificate);
    back.commit(&b2);
    a.operate(&back, &all).expect("A accepts the B that contradicts what it saw");

    // A B that remembers it refuses A1.
    b.give_up(Path::Fast);
    let mut honest_b = shown_to_a.clone();
    honest_b.order(&a_certificate);
    honest_b.commit(&a1);
    honest_b.view.slots.remove(&B);
    assert!(matches!(b.operate(&honest_b, &all), Err(Alarm::NeverOffered { .. })));
}

/// T2: B gives the number up, but A1[1,1], which contains it, is accepted nonetheless.
#[test]
fn t2_void_number_reflected() {
    let catchers =
        [(Rule::OwnNumbers, "NeverOffered"), (Rule::Void, "VoidReflected"), (Rule::Hidden, "Hidden")];
    only_caught_by(&catchers, |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let (certificate, s1) = b.fast(&start);
        let mut shown_to_a = start.clone();
        shown_to_a.fast(&certificate, &s1);
        let (a_certificate, a1) = a.operate(&shown_to_a, policy)?;
        b.give_up(Path::Fast);
        let mut shown_to_b = shown_to_a.clone();
        shown_to_b.order(&a_certificate);
        shown_to_b.commit(&a1);
        shown_to_b.view.slots.remove(&B);
        b.operate(&shown_to_b, policy).map(drop)
    });
}

/// T3: A1 is acknowledged to A, and B is told that it was aborted. Only B's record of that lets A detect the
/// lie; without the record A accepts.
#[test]
fn t3_abort_recorded() {
    let trace = |policy: &dyn Policy, with_record: bool| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let (a_certificate, a1) = a.operate(&start, policy)?;
        let mut shown_to_b = start.clone();
        shown_to_b.order(&a_certificate);
        shown_to_b.kill(A);
        let b_certificate = b.declare(Path::Slow, Vec::new());
        let mut forecast = b.accept(&shown_to_b, &b_certificate.value, policy)?;
        assert_eq!(forecast.aborted.len(), 1);
        if !with_record {
            forecast.aborted.clear();
        }
        let b1 = b.structure(&b_certificate.value, forecast);
        let mut shown_to_a = shown_to_b.clone();
        shown_to_a.order(&b_certificate);
        shown_to_a.commit(&a1);
        shown_to_a.commit(&b1);
        a.operate(&shown_to_a, policy).map(drop)
    };
    only_caught_by(&[(Rule::AbortedRecords, "AcknowledgedLost")], |policy| trace(policy, true));
    assert_eq!(trace(&Without(Vec::new()), false), Ok(()), "an unrecorded abort goes unnoticed");
}

/// T4: the abort is recorded once and then dropped. B must repeat it until A's slot has passed that
/// operation.
#[test]
fn t4_abort_is_sticky() {
    let catchers = [(Rule::AbortedRecords, "AbortedNotDead"), (Rule::Hidden, "Hidden")];
    only_caught_by(&catchers, |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let (a_certificate, a1) = a.operate(&start, policy)?;
        let mut shown_to_b = start.clone();
        shown_to_b.order(&a_certificate);
        shown_to_b.kill(A);
        let (b_certificate, b1) = b.operate(&shown_to_b, policy)?;
        shown_to_b.order(&b_certificate);
        shown_to_b.commit(&b1);
        shown_to_b.view.pending.clear();
        let (b_certificate, b2) = b.operate(&shown_to_b, policy)?;
        assert!(b2.value.forecast.aborted.is_empty());
        // A gets a view that has only B2, without its own acknowledged write.
        shown_to_b.order(&b_certificate);
        shown_to_b.commit(&b2);
        shown_to_b.commit(&a1);
        a.operate(&shown_to_b, policy).map(drop)
    });
}

/// T5: a pending operation is applied before its structure is there, and then comes with another content. A
/// wait may end only with the structure that was announced.
#[test]
fn t5_no_roll_forward() {
    only_caught_by(&[(Rule::PendingHash, "WrongStructure")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let a_certificate = a.declare(Path::Slow, Vec::new());
        let b_certificate = b.declare(Path::Slow, Vec::new());
        // A's view has B1 pending first; B's view has A1 pending first.
        let mut b_first = start.clone();
        b_first.order(&b_certificate);
        let mut a_first = start.clone();
        a_first.order(&a_certificate);
        let forecast = a.accept(&b_first, &a_certificate.value, policy)?;
        let a1 = a.structure(&a_certificate.value, forecast);
        b.accept(&a_first, &b_certificate.value, policy)?;
        assert_eq!(
            b.floor.view.status_of(A, 1),
            holdfast_content::OperationStatus::Pending,
            "not applied yet"
        );
        learn_with(&mut b.floor, &membership(), a1, policy)
    });
}

/// T6: A1 and A2 are committed. B is told that A1 was aborted, gives its own operation up, and is then given
/// A2. What the void operation saw must be remembered, and A's void numbers must be listed for ever.
#[test]
fn t6_voids_are_cumulative() {
    only_caught_by(&[(Rule::AbortedRecords, "AbortedButCommitted")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let mut truth = Stage::new();
        let (a_certificate, a1) = a.operate(&truth, policy)?;
        let mut shown_to_b = truth.clone();
        shown_to_b.order(&a_certificate);
        shown_to_b.kill(A);
        let b_certificate = b.declare(Path::Slow, Vec::new());
        b.accept(&shown_to_b, &b_certificate.value, policy)?;
        b.give_up(Path::Slow);

        truth.order(&a_certificate);
        truth.commit(&a1);
        let (a_certificate, a2) = a.operate(&truth, policy)?;
        truth.order(&a_certificate);
        truth.commit(&a2);
        b.operate(&truth, policy).map(drop)
    });
}

/// T6, other half: a device that no longer lists a number that it had given up is refused.
#[test]
fn t6_a_forgotten_void_is_refused() {
    let all = Without(Vec::new());
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let mut truth = Stage::new();
    a.declare(Path::Slow, Vec::new());
    a.give_up(Path::Slow);
    let (certificate, a2) = a.operate(&truth, &all).expect("honest");
    truth.order(&certificate);
    truth.commit(&a2);
    let (certificate, b1) = b.operate(&truth, &all).expect("honest");
    truth.order(&certificate);
    truth.commit(&b1);
    a.floor.voids = Default::default();
    let (certificate, a3) = a.operate(&truth, &all).expect("only A itself could know");
    truth.order(&certificate);
    truth.commit(&a3);
    let alarm = b.operate(&truth, &all).expect_err("B remembers");
    assert!(matches!(alarm, Alarm::FateChanged { device: A, .. }), "{alarm:?}");
}

/// T7: A accepts a view with B1 pending, is told that its own operation was aborted, and is then given a view
/// without B1. The floor must outlive the void operation that brought it.
#[test]
fn t7_floor_survives_the_void() {
    only_caught_by(&[(Rule::Floor, "BehindFloor")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let b_certificate = b.declare(Path::Slow, Vec::new());
        let mut shown = start.clone();
        shown.order(&b_certificate);
        let a_certificate = a.declare(Path::Slow, Vec::new());
        a.accept(&shown, &a_certificate.value, policy)?;
        a.give_up(Path::Slow);
        a.operate(&start, policy).map(drop)
    });
}

/// T8: B saw A1 committed; C gets a view with B1 beside a dead A1.
#[test]
fn t8_reflection() {
    only_caught_by(&[(Rule::Reflection, "Unrecorded")], |policy| {
        let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
        let start = Stage::new();
        let (a_certificate, a1) = a.operate(&start, policy)?;
        let mut truth = start.clone();
        truth.order(&a_certificate);
        let mut shown_to_c = truth.clone();
        truth.commit(&a1);
        let (b_certificate, b1) = b.operate(&truth, policy)?;
        shown_to_c.kill(A);
        shown_to_c.order(&b_certificate);
        shown_to_c.commit(&b1);
        c.operate(&shown_to_c, policy).map(drop)
    });
}

/// T9: B waits for A1, reads it, and is then told that it was aborted.
#[test]
fn t9_memory_of_what_was_read() {
    only_caught_by(&[(Rule::Memory, "FateChanged"), (Rule::Tables, "TableWentBack")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let (a_certificate, a1) = a.operate(&start, policy)?;
        let mut truth = start.clone();
        truth.order(&a_certificate);
        let (b_certificate, b1) = b.operate(&truth, policy)?;
        learn_with(&mut b.floor, &membership(), a1, policy)?;
        truth.order(&b_certificate);
        truth.commit(&b1);
        truth.kill(A);
        b.operate(&truth, policy).map(drop)
    });
}

/// T9 the other way round: B has accepted that A gave its operation 1 up. A wait that began before is then
/// answered with the structure that A had signed.
#[test]
fn t9_no_late_structure_of_a_void_operation() {
    only_caught_by(&[(Rule::Memory, "FateChanged")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let mut truth = Stage::new();
        let certificate = a.declare(Path::Slow, Vec::new());
        let forecast = a.accept(&truth, &certificate.value, policy)?;
        let a1 = a.structure(&certificate.value, forecast);
        a.give_up(Path::Slow);
        truth.order(&certificate);
        truth.kill(A);
        let (certificate, a2) = a.operate(&truth, policy)?;
        truth.order(&certificate);
        truth.commit(&a2);
        b.operate(&truth, policy)?;
        learn_with(&mut b.floor, &membership(), a1, policy)
    });
}

/// T10: A reads from a pushed view (or a look) with B1 pending, then signs without B1. A view that was read
/// from must become the floor; a client that looks and forgets would accept.
#[test]
fn t10_a_view_read_from_is_the_floor() {
    let trace = |policy: &dyn Policy, keep: bool| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let mut pushed = start.clone();
        pushed.order(&b.declare(Path::Slow, Vec::new()));
        let (floor, none) = check_with(&a.floor, &membership(), &pushed.reply(), None, policy)?;
        assert!(none.is_none());
        if keep {
            a.floor = floor;
        }
        a.operate(&start, policy).map(drop)
    };
    only_caught_by(&[(Rule::Floor, "BehindFloor")], |policy| trace(policy, true));
    assert_eq!(trace(&Without(Vec::new()), false), Ok(()), "a view that is not kept goes unnoticed");
}

/// The SUNDR paper without hashes of pending entries: A1[1,1] and B1[1,1] each believe that the other came
/// first.
#[test]
fn paper_without_pending_hashes() {
    let catchers = [(Rule::Strict, "Forked"), (Rule::PendingHash, "PendingMismatch")];
    only_caught_by(&catchers, |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let a_certificate = a.declare(Path::Slow, Vec::new());
        let b_certificate = b.declare(Path::Slow, Vec::new());
        let mut b_first = start.clone();
        b_first.order(&b_certificate);
        let mut a_first = start.clone();
        a_first.order(&a_certificate);
        let forecast = a.accept(&b_first, &a_certificate.value, policy)?;
        let a1 = a.structure(&a_certificate.value, forecast);
        a.acknowledge(&a1);
        let forecast = b.accept(&a_first, &b_certificate.value, policy)?;
        let b1 = b.structure(&b_certificate.value, forecast);
        let mut joined = b_first;
        joined.order(&a_certificate);
        joined.commit(&a1);
        joined.commit(&b1);
        a.operate(&joined, policy).map(drop)
    });
}

/// An impossible order: neither of two structures knows of the other.
#[test]
fn a_plain_fork_is_refused() {
    only_caught_by(&[(Rule::Order, "Forked")], |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let start = Stage::new();
        let (a_certificate, a1) = a.operate(&start, policy)?;
        let (b_certificate, b1) = b.operate(&start, policy)?;
        let mut joined = start.clone();
        joined.order(&a_certificate);
        joined.commit(&a1);
        joined.order(&b_certificate);
        joined.commit(&b1);
        a.operate(&joined, policy).map(drop)
    });
}

/// A slot is rolled back while others still contain what came after it.
#[test]
fn a_hidden_operation_is_refused() {
    only_caught_by(&[(Rule::Hidden, "Hidden")], |policy| {
        let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
        let mut truth = Stage::new();
        let (a_certificate, a1) = a.operate(&truth, policy)?;
        truth.order(&a_certificate);
        truth.commit(&a1);
        let (b_certificate, b1) = b.operate(&truth, policy)?;
        truth.order(&b_certificate);
        truth.commit(&b1);
        truth.view.slots.remove(&A);
        c.operate(&truth, policy).map(drop)
    });
}

/// A device's slot is rolled back to an earlier structure, together with everything that came after.
#[test]
fn a_rollback_is_refused() {
    let catchers =
        [(Rule::Floor, "BehindFloor"), (Rule::Memory, "SlotWentBack"), (Rule::Tables, "TableWentBack")];
    only_caught_by(&catchers, |policy| {
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let mut truth = Stage::new();
        let (a_certificate, a1) = a.operate(&truth, policy)?;
        let yesterday = truth.clone();
        truth.order(&a_certificate);
        truth.commit(&a1);
        b.declare(Path::Slow, Vec::new());
        b.give_up(Path::Slow);
        let certificate = b.declare(Path::Slow, Vec::new());
        b.accept(&truth, &certificate.value, policy)?;
        b.give_up(Path::Slow);
        b.operate(&yesterday, policy).map(drop)
    });
}
