//! Verdicts on forks, rollbacks and clones, with and without receipts. The simulator
//! (`crates/sim/tests/order_honest.rs`) tests that honest histories never give contradictions.

use super::*;
use crate::certificate::Path;
use crate::check::check;
use crate::order::forecast;
use crate::structure::Outcome;
use crate::testing::{A, B, C, Client, Stage, founding, key, membership};

/// An operation of `client` on the stage, slow or fast, taken by the server shown by `stage`.
fn operate(client: &mut Client, stage: &mut Stage, path: Path) -> Signed<Structure> {
    let certificate = client.declare(path, Vec::new());
    let accepted = check(&client.floor, &membership(), &stage.proven(&client.floor), &certificate.value)
        .expect("honest");
    client.floor = accepted.floor;
    let structure = client.structure(&certificate.value, accepted.forecast);
    stage.fast(&certificate, &structure);
    client.acknowledge(&structure);
    structure
}

fn judge(exhibits: &[(&Signed<Structure>, bool)]) -> Vec<Contradiction> {
    let exhibits: Vec<Exhibit<'_>> = exhibits
        .iter()
        .map(|(structure, acknowledged)| Exhibit { structure, acknowledged: *acknowledged })
        .collect();
    contradictions(&exhibits)
}

fn suspects<const N: usize>(suspects: [Suspect; N]) -> Suspects {
    Suspects(suspects.into())
}

/// A common past, and then two branches of one server: A's and B's.
fn fork() -> [Signed<Structure>; 4] {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let common_a = operate(&mut a, &mut stage, Path::Slow);
    let common_b = operate(&mut b, &mut stage, Path::Slow);
    let mut branch = stage.clone();
    let only_a = operate(&mut a, &mut stage, Path::Slow);
    let only_b = operate(&mut b, &mut branch, Path::Slow);
    [common_a, common_b, only_a, only_b]
}

/// Proves: two receipts convict the server; with one receipt the server or the other device is suspect; with
/// none the server or either device. One side alone proves nothing.
#[test]
fn a_fork_is_as_clear_as_its_receipts() {
    let [common_a, common_b, only_a, only_b] = fork();
    let past = [(&common_a, true), (&common_b, true)];
    let with = |more: &[(&Signed<Structure>, bool)]| judge(&[&past, more].concat());
    assert_eq!(with(&[(&only_a, true)]), []);
    assert_eq!(with(&[(&only_b, true)]), []);
    let both = with(&[(&only_a, true), (&only_b, true)]);
    assert_eq!(both[0].suspects.convicted(), Some(Suspect::Server), "{both:?}");
    assert!(both.iter().all(|clash| clash.suspects.convicted() == Some(Suspect::Server)), "{both:?}");
    // At one place of one log at most one was committed; without a receipt, the other may have been refused.
    assert_eq!(with(&[(&only_a, true), (&only_b, false)]), []);
    assert_eq!(with(&[(&only_a, false), (&only_b, false)]), []);
}

/// Proves: one more operation on one side makes the two sides comparable, and narrows down the suspects.
#[test]
fn a_longer_branch_leaves_the_shorter_out() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    operate(&mut a, &mut stage, Path::Slow);
    let mut branch = stage.clone();
    let only_a = operate(&mut a, &mut stage, Path::Slow);
    operate(&mut b, &mut branch, Path::Slow);
    let only_b = operate(&mut b, &mut branch, Path::Slow);
    let clash = |acknowledged: [bool; 2]| judge(&[(&only_a, acknowledged[0]), (&only_b, acknowledged[1])]);
    let found = clash([true, true]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].clash, found[0].suspects.convicted()), (Clash::Forgotten, Some(Suspect::Server)));
    assert_eq!(clash([true, false])[0].suspects, suspects([Suspect::Server, Suspect::Device(B)]));
    // No receipt proves that A's structure was accepted: it may have been refused.
    assert_eq!(clash([false, true]), []);

    // A third device that has seen A's side proves it with its signature.
    let mut c = Client::new(C);
    let by_c = operate(&mut c, &mut stage, Path::Slow);
    let found = judge(&[(&only_b, true), (&by_c, false)]);
    assert_eq!(found[0].clash, Clash::Forked, "{found:?}");
    assert_eq!(found[0].suspects, suspects([Suspect::Server, Suspect::Device(C)]));
    let found = judge(&[(&only_b, false), (&by_c, false)]);
    assert_eq!(
        found[0].suspects,
        suspects([Suspect::Server, Suspect::Device(B), Suspect::Device(C)]),
        "{found:?}"
    );
}

/// Proves: a cloned key is distinguished from a lying server. If the server accepted both clones, it is
/// convicted as well.
#[test]
fn a_clone_is_the_devices_doing() {
    let mut stage = Stage::new();
    let mut a = Client::new(A);
    operate(&mut a, &mut stage, Path::Slow);
    let mut clone = a.clone();
    let mut branch = stage.clone();
    let here = operate(&mut a, &mut stage, Path::Slow);
    let there = operate(&mut clone, &mut branch, Path::Fast);
    let found = judge(&[(&here, true), (&there, false)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].clash, found[0].suspects.convicted()),
        (Clash::SignedTwice, Some(Suspect::Device(A)))
    );
    let found = judge(&[(&here, true), (&there, true)]);
    let convicted: BTreeSet<_> = found.iter().filter_map(|clash| clash.suspects.convicted()).collect();
    assert_eq!(convicted, [Suspect::Server, Suspect::Device(A)].into(), "{found:?}");
}

/// Proves: a device that signs on an older view than before is found out, whatever it was shown.
#[test]
fn going_back_is_the_devices_doing() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let old = stage.clone();
    operate(&mut b, &mut stage, Path::Slow);
    let first = operate(&mut a, &mut stage, Path::Slow);
    // The same device, put back before it had seen anything, with the next number.
    let certificate = a.declare(Path::Slow, Vec::new());
    let second = a.structure(&certificate.value, forecast(&old.view, &certificate.value));
    let found = judge(&[(&first, true), (&second, false)]);
    assert!(!found.is_empty());
    for clash in &found {
        assert_eq!((clash.clash, clash.suspects.convicted()), (Clash::WentBack, Some(Suspect::Device(A))));
    }
}

/// Proves: a receipt contradicts a record of an abort, and an announcement contradicts other contents.
#[test]
fn promises_and_announcements() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let certificate = a.declare(Path::Slow, Vec::new());
    let reply = stage.proven(&a.floor);
    let accepted = check(&a.floor, &membership(), &reply, &certificate.value).expect("honest");
    a.floor = accepted.floor;
    let promised = a.structure(&certificate.value, accepted.forecast);
    stage.order(&certificate);
    let mut killed = stage.clone();
    killed.kill(A);
    let told_dead = operate(&mut b, &mut killed, Path::Slow);
    assert_eq!(judge(&[(&promised, false), (&told_dead, true)]), [], "signed and refused proves nothing");
    let found = judge(&[(&promised, true), (&told_dead, true)]);
    assert_eq!((found[0].clash, found[0].suspects.convicted()), (Clash::Aborted, Some(Suspect::Server)));

    // A's structure has another place in the order than was announced to B.
    let mut c = Client::new(C);
    let mut other = Stage::new();
    operate(&mut c, &mut other, Path::Slow);
    let elsewhere = {
        let forecast = forecast(&other.view, &certificate.value);
        Client::new(A).structure(&certificate.value, forecast)
    };
    let mut b = Client::new(B);
    let told_pending = operate(&mut b, &mut stage, Path::Slow);
    let found = judge(&[(&elsewhere, true), (&told_pending, true)]);
    assert!(
        found.iter().any(|clash| clash.clash == Clash::AnnouncedOtherwise
            && clash.suspects.convicted() == Some(Suspect::Server)),
        "{found:?}"
    );
}

/// Proves: however many clashes a file holds, few are reported, and a conviction is among them.
#[test]
fn many_clashes_are_bounded() {
    let [.., only_a, only_b] = fork();
    let mut forged = Vec::new();
    for number in 0..300u64 {
        let mut structure = only_b.value.clone();
        structure.forecast.log.size = 100 + number;
        structure.forecast.vector.set(PrincipalId::Device(A), 300 - number);
        structure.outcome = if number % 2 == 0 { Outcome::Done } else { Outcome::Nothing };
        forged.push(Signed::new(structure, &key(B)));
    }
    let mut exhibits: Vec<_> = forged.iter().map(|structure| (structure, false)).collect();
    exhibits.extend([(&only_a, true), (&only_b, true)]);
    let found = judge(&exhibits);
    assert!(found.len() <= CLASHES_MAX);
    assert!(found.iter().any(|clash| clash.suspects.convicted() == Some(Suspect::Server)));
    let (_, founding) = founding();
    assert_eq!(judge(&[(&founding, true), (&founding, false)]), []);
}
