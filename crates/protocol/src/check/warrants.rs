//! Memberships under a warrant: which views are accepted by a client that knows the previous membership and
//! by one that knows none, and what each part of the rule prevents.

use super::policy::{AllRules, Policy, Rule};
use super::{check_look, check_with, learn_with, membership_holds, membership_wanted};
use crate::alarm::{Alarm, Blame};
use crate::certificate::{Delta, Path};
use crate::floor::Floor;
use crate::signed::{Signable, Signed};
use crate::structure::{HandleVersion, Structure};
use crate::testing::{A, B, C, Client, Stage, key, membership, table};
use crate::warrant::{Change, verified};
use holdfast_content::{DeviceId, Membership, PrincipalId};
use holdfast_crypto::Digest;

/// All checks except that of warrants.
struct Unasked;

impl Policy for Unasked {
    fn on(&self, rule: Rule) -> bool {
        rule != Rule::Warrants
    }
}

fn in_force(stage: &Stage) -> HandleVersion {
    stage.view.handle(PrincipalId::Members).expect("there is a membership").1
}

/// The membership without C.
fn without_c(before: &Membership) -> Membership {
    let mut next = before.clone();
    next.devices.get_mut(&C).expect("there").removed_at = Some(0);
    before.succeeded_by(next, before.version + 1)
}

/// The membership with another name for the group.
fn renamed(before: &Membership, name: &str) -> Membership {
    let mut next = before.clone();
    next.groups.values_mut().for_each(|group| group.name = name.to_owned());
    before.succeeded_by(next, before.version + 1)
}

fn change(follows: &HandleVersion, next: &Membership) -> Change {
    Change::new(key(DeviceId(0)).public().file_system_id(), follows, next)
}

fn signed(change: &Change, version: u64) -> Membership {
    change.enacted(version, Signed::new(change.clone(), &key(DeviceId(0))).signature)
}

/// `client` makes an operation that brings a membership, whether or not it has a warrant.
fn bring(stage: &mut Stage, client: &mut Client, text: &str) -> Signed<Structure> {
    let certificate = client.declare(Path::Slow, vec![Delta::SetMembers { reference: table(text) }]);
    let forecast = crate::order::forecast(&stage.view, &certificate.value);
    let structure = client.structure(&certificate.value, forecast);
    stage.order(&certificate);
    stage.commit(&structure);
    client.acknowledge(&structure);
    structure
}

/// The floor of a device that has accepted `stage`.
fn knowing(stage: &Stage, members: &Membership, device: DeviceId) -> Floor {
    let floor = Client::new(device).floor;
    check_look(&floor, members, &stage.proven(&floor)).expect("an honest view")
}

fn shown(stage: &Stage, members: &Membership, floor: &Floor, policy: &dyn Policy) -> Result<Floor, Alarm> {
    membership_wanted(floor, &stage.view)?;
    check_with(floor, members, &stage.proven(floor), None, policy).map(|(floor, _)| floor)
}

/// Asserts that clients with and without an earlier membership refuse the view, and only by this rule.
fn unwarranted(stage: &Stage, members: &Membership, floors: &[&Floor], words: &str) {
    for floor in floors {
        let alarm = shown(stage, members, floor, &AllRules).expect_err(words);
        assert!(matches!(alarm, Alarm::Unwarranted { .. }) && alarm.to_string().contains(words), "{alarm}");
        assert_eq!(alarm.blame(), Blame::Device(A));
        assert!(!alarm.explain().is_empty());
        shown(stage, members, floor, &Unasked).expect("nothing else prevents it");
    }
}

#[test]
fn the_superusers_word_is_believed_whoever_brings_it() {
    let start = Stage::new();
    let known = knowing(&start, &membership(), B);
    let next = signed(&change(&in_force(&start), &without_c(&membership())), 2);
    let mut stage = start.clone();
    let mut a = Client::new(A);
    bring(&mut stage, &mut a, "next");
    shown(&stage, &next, &known, &AllRules).expect("it follows");
    shown(&stage, &next, &Client::new(B).floor, &AllRules).expect("to one who knows nothing too");
    membership_holds(&known.superuser, &next, &stage.view).expect("by itself");

    // One after the other. A client that has missed some of them accepts the last.
    let second = signed(&change(&in_force(&stage), &renamed(&next, "others")), 3);
    bring(&mut stage, &mut a, "second");
    shown(&stage, &second, &known, &AllRules).expect("one was missed");
    // A version that was skipped does no harm: the order may give a membership a later one.
    let late = signed(&change(&in_force(&stage), &renamed(&second, "late")), 9);
    assert_eq!(late.version, 9);
    assert!(verified(known.file_system(), &known.superuser, &late).is_some());
}

#[test]
fn a_membership_without_a_fitting_warrant() {
    let start = Stage::new();
    let known = knowing(&start, &membership(), B);
    let fresh = Client::new(B).floor;
    let mut stage = start.clone();
    bring(&mut stage, &mut Client::new(A), "next");
    let good = change(&in_force(&start), &without_c(&membership()));
    let both = [&known, &fresh];
    let not_signed = "has not signed it";

    let bare = Membership { warrant: None, ..signed(&good, 2) };
    unwarranted(&stage, &bare, &both, not_signed);
    // Signed by somebody else, for another file system, or altered afterwards.
    let forged = good.enacted(2, Signed::new(good.clone(), &key(A)).signature);
    unwarranted(&stage, &forged, &both, not_signed);
    let elsewhere = Change { file_system: Digest([7; 32]), ..good.clone() };
    unwarranted(&stage, &signed(&elsewhere, 2), &both, not_signed);
    let mut altered = signed(&good, 2);
    altered.groups.values_mut().for_each(|group| group.members.clear());
    unwarranted(&stage, &altered, &both, not_signed);
    let mut misdated = signed(&good, 2);
    misdated.devices.get_mut(&C).expect("there").removed_at = Some(0);
    unwarranted(&stage, &misdated, &both, not_signed);
    let mut moved = signed(&good, 2);
    moved.warrant.as_mut().expect("there").version = 7;
    unwarranted(&stage, &moved, &both, not_signed);
    // The membership that was in force before, under its new version.
    unwarranted(&stage, &membership(), &both, not_signed);
    // The membership does not say when it came into force.
    unwarranted(&stage, &signed(&good, 1), &both, "dated otherwise");
    let alarm = membership_holds(&known.superuser, &bare, &stage.view).expect_err("by itself too");
    assert!(alarm.to_string().contains(not_signed));
}

/// A revocation came in between, and a warrant that was signed before it would undo it.
#[test]
fn a_warrant_is_for_one_place_in_the_order() {
    let start = Stage::new();
    let early = change(&in_force(&start), &renamed(&membership(), "early"));

    // Device 0 has removed C meanwhile. A has the earlier warrant and brings it nonetheless.
    let mut stage = start.clone();
    let mut root = Client::new(DeviceId(0));
    let (certificate, structure) = crate::testing::founding();
    root.floor.used = certificate.value.number;
    root.floor.append_own(&structure.value.forecast);
    root.acknowledge(&structure);
    bring(&mut stage, &mut root, "without C");
    let now = without_c(&membership());
    let after = knowing(&stage, &now, B);
    let mut lie = stage.clone();
    bring(&mut lie, &mut Client::new(A), "early");
    let replayed = signed(&early, 3);
    let before = knowing(&start, &membership(), B);
    unwarranted(&lie, &replayed, &[&before, &Client::new(B).floor], "came between");
    // If device 0's structure is left out, clients that know it still refuse.
    let mut hidden = lie.clone();
    let slot = hidden.view.slots.get_mut(&DeviceId(0)).expect("there");
    slot.value.handles.remove(&PrincipalId::Members);
    let alarm = shown(&hidden, &replayed, &after, &AllRules).expect_err("it is known");
    assert!(matches!(alarm, Alarm::Unwarranted { .. }), "{alarm}");

    // The same warrant twice: the second time it does not follow what is in force.
    let mut stage = start.clone();
    let mut a = Client::new(A);
    bring(&mut stage, &mut a, "once");
    let once = knowing(&stage, &signed(&early, 2), B);
    bring(&mut stage, &mut a, "twice");
    unwarranted(&stage, &signed(&early, 3), &[&once], "signed to follow version 1");

    // Two warrants that follow the same membership: a client that has accepted one refuses the other.
    let other = change(&in_force(&start), &without_c(&membership()));
    unwarranted(&stage, &signed(&other, 3), &[&once], "signed to follow version 1");
    // A warrant that follows another version 2 than the known one.
    let elsewhere = HandleVersion { reference: table("another"), ..in_force(&stage) };
    let elsewhere = HandleVersion { version: 2, ..elsewhere };
    unwarranted(
        &stage,
        &signed(&change(&elsewhere, &renamed(&membership(), "x")), 3),
        &[&once],
        "or is another",
    );
}

/// A membership cannot be brought in by a wait: it is taken only from a view.
#[test]
fn a_membership_is_not_learned() {
    let start = Stage::new();
    let mut a = Client::new(A);
    let certificate = a.declare(Path::Slow, vec![Delta::SetMembers { reference: table("bare") }]);
    let forecast = crate::order::forecast(&start.view, &certificate.value);
    let structure = a.structure(&certificate.value, forecast);
    let mut stage = start.clone();
    stage.order(&certificate);
    let mut floor = knowing(&stage, &membership(), B);
    let before = floor.clone();
    learn_with(&mut floor, &membership(), structure, &AllRules).expect("no offence");
    assert_eq!(floor, before);
}

/// The signed change contains all that the membership contains except its version, and no two changes have
/// the same signed bytes.
#[test]
fn what_is_signed_is_what_comes_into_force() {
    let start = in_force(&Stage::new());
    let next = without_c(&membership());
    let good = change(&start, &next);
    assert_eq!(good.next.dated(2), next);
    assert_eq!(Change::new(good.file_system, &start, &signed(&good, 7)), good, "whichever version it has");
    let mut others = vec![good.clone(), change(&start, &renamed(&membership(), "x"))];
    others.push(Change { file_system: Digest::ZERO, ..good.clone() });
    others.push(Change { version: 4, ..good.clone() });
    others.push(Change { follows: Digest::ZERO, ..good.clone() });
    let mut digests: Vec<Digest> = others.iter().map(Signable::digest).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), others.len());
}
