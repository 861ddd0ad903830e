//! A table's extra bytes, and blocks that are given away with their content.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_policy::*;
use std::collections::BTreeSet;

/// Proves: the extra bytes are there after opening the table again, among changes of owners that split and
/// merge pages. A crash leaves the bytes from before or after. Slots become free again. Bytes that do not fit
/// are refused, and nothing has changed.
#[test]
fn kept_among_changes() {
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let mut driven = Driven::new(disk(2_000, 20));
        let (mut kept, mut owners): (Vec<u8>, Vec<Principal>) = (Vec::new(), vec![admin(); 2_000]);
        let mut refused = 0;
        for step in 0..200 {
            let what = format!("seed {seed} step {step}");
            let before = (driven.stored.clone(), kept.clone());
            if numbers.below(2) == 0 {
                let length = *numbers.pick(&[0, 1, 4_046, 4_047, 4_048, 8_094, 12_345, 80_000]);
                let bytes: Vec<u8> = (0..length).map(|at: u64| (at * 31 + numbers.below(7)) as u8).collect();
                match driven.policy.set_extra(bytes.clone()) {
                    Ok(change) => {
                        assert!(
                            change.effects().iter().all(|effect| matches!(effect, Effect::Store(_))),
                            "{what}: nothing is taken from anybody"
                        );
                        driven.carry_out(change);
                        kept = bytes;
                    }
                    Err(why) => {
                        assert_eq!(why, Refused::Full, "{what}");
                        refused += 1;
                    }
                }
            } else {
                let first = 50 + numbers.below(1_900);
                let to = user(if numbers.below(2) == 0 { "alice" } else { "bob" });
                let from = owners[first as usize].clone();
                if driven.give(&from, range(first, 1), &to).is_ok() {
                    owners[first as usize] = to;
                }
            }
            assert_eq!(driven.policy.extra(), kept, "{what}");
            let reopened = driven.reopened();
            assert_eq!(reopened.extra(), kept, "{what}");
            let block = 50 + numbers.below(1_900);
            assert_eq!(at(&reopened, block).owner, owners[block as usize], "{what}");
            let crashed = open(&driven.disk, &before.0).expect("the blocks before");
            assert_eq!(crashed.extra(), before.1, "{what}");
        }
        assert!(refused > 0, "seed {seed}: it was full at times");
        let change = driven.policy.set_extra(Vec::new()).expect("nothing takes no room");
        driven.carry_out(change);
        assert_eq!(driven.stored[&0][41..43], [1, 0], "the format of tables that keep nothing");
        assert!(driven.reopened().extra().is_empty());
    }
}

/// The stored form of extra bytes; a table without them has its old form.
#[test]
fn stored_so() {
    let mut driven = Driven::new(disk(100, 8));
    assert_eq!(driven.stored[&0][40..43], [0, 1, 0]);
    let change = driven.policy.set_extra(b"ended".to_vec()).expect("room");
    driven.carry_out(change);
    assert_eq!(driven.stored[&0][40..43], [0, 2, 0]);
    let mut expected = vec![3, 0, 0, 0, 0, 5, 0, 0, 0];
    expected.extend(b"ended");
    assert_eq!(driven.stored[&3][40..54], expected);
    // Pieces that are missing, double, or in a table without extra bytes.
    for (block, body) in [
        (3, vec![3, 1, 0, 0, 0, 1, 0, 0, 0, 7]),
        (3, vec![3, 0, 0, 0, 0, 0, 0, 0, 0]),
        (3, vec![2, 0, 0, 0, 0]),
    ] {
        let mut stored = driven.stored.clone();
        stored.insert(block, sealed(&driven.disk, block, &body));
        assert!(matches!(open(&driven.disk, &stored), Err(Damage::Malformed { .. })), "{body:?}");
    }
}

/// Proves: an owner who may also change the ACL can give blocks away with their content, only to a user who
/// accepts. Nothing is erased then, but is if they were only nominated.
#[test]
fn given_away() {
    let mut driven = Driven::new(disk(100, 8));
    driven.give(&admin(), range(20, 10), &user("alice")).expect("both agree");
    let erases = |change: &Change| change.effects().iter().any(|effect| matches!(effect, Effect::Erase(_)));
    let (alice, bob) = (alias(&user("alice")), alias(&user("bob")));
    let limited = |operations: &[Operation]| {
        let operations: BTreeSet<Operation> = operations.iter().copied().collect();
        let scope = Scope::new(Limit::Only(operations), Limit::Every).expect("a scope");
        Alias::attested(user("alice"), scope)
    };
    for alias in [limited(&[Operation::Chown]), limited(&[Operation::ChangeAcls]), bob.clone()] {
        let refused = driven.policy.chown_give(&alias, range(20, 10), user("bob"));
        assert_eq!(refused, Err(Refused::NotOwner));
    }
    let whole = limited(&[Operation::Chown, Operation::ChangeAcls]);
    driven.policy.chown_give(&whole, range(20, 10), user("bob")).expect("hers");
    let other = driven.policy.chown_accept(&alice, range(20, 10), only(&user("alice")));
    assert!(matches!(other, Err(Refused::NotNominated)));
    let change = driven.policy.chown_accept(&bob, range(20, 10), only(&user("bob"))).expect("he accepts");
    assert!(!erases(&change));
    assert!(
        matches!(change.effects()[0], Effect::Withdraw(_, DirtyPages::Write)),
        "and her changes are kept"
    );
    driven.carry_out(change);
    assert_eq!(at(&driven.policy, 25).owner, user("bob"));
    // A nomination that replaces a gift is only a nomination.
    driven.policy.chown_give(&bob, range(20, 10), user("alice")).expect("his");
    driven.policy.chown_nominate(&bob, range(20, 10), user("alice")).expect("his");
    let change = driven.policy.chown_accept(&alice, range(20, 10), only(&user("alice"))).expect("accepted");
    assert!(erases(&change));
    driven.carry_out(change);
}
