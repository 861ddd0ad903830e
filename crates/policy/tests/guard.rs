//! What each principal may do, and in what order the driver acts.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_policy::*;
use std::collections::BTreeSet;

fn alice() -> Principal {
    user("alice")
}

fn bob() -> Principal {
    user("bob")
}

/// A disk of which alice owns 20 to 29, bob 30 to 39, and the administrator the rest.
fn shared() -> Driven {
    let mut driven = Driven::new(disk(100, 8));
    driven.give(&admin(), range(20, 10), &alice()).expect("both agree");
    driven.give(&admin(), range(30, 10), &bob()).expect("both agree");
    driven
}

/// Every request, by everybody: a table of verdicts.
#[test]
fn only_the_owner_decides() {
    use Refused::*;
    let set = AclChange::Set(user("carol"), Access::Read);
    let program = Principal::Program(ProgramHash::of_executable(holdfast_crypto::Digest([1; 32])));
    let table: [(&str, Principal, BlockRange, Option<Refused>); 12] = [
        ("her own", alice(), range(20, 10), None),
        ("one of her own", alice(), range(25, 1), None),
        ("hers and his", alice(), range(25, 10), Some(MixedOwners(30))),
        ("his", alice(), range(30, 10), Some(NotOwner)),
        ("his and hers", bob(), range(25, 10), Some(NotOwner)),
        ("the administrator on hers", admin(), range(20, 10), Some(NotOwner)),
        ("the administrator on all", admin(), range(18, 82), Some(MixedOwners(20))),
        ("a stranger", user("carol"), range(20, 1), Some(NotOwner)),
        ("a program", program, range(20, 1), Some(NotOwner)),
        ("the machine", Principal::Machine, range(20, 1), Some(NotOwner)),
        ("the table's blocks", admin(), range(17, 2), Some(Reserved)),
        ("beyond the disk", admin(), range(99, 2), Some(BeyondDisk(100))),
    ];
    for (what, who, range, refused) in table {
        let mut driven = shared();
        let before = driven.stored.clone();
        let verdict = driven.change_acls(&who, range, &set).err();
        assert_eq!(verdict, refused, "change_acls: {what}");
        assert_eq!(driven.stored != before, refused.is_none(), "{what}");
        let verdict = shared().policy.chown_nominate(&alias(&who), range, user("carol")).err();
        assert_eq!(verdict, refused, "chown_nominate: {what}");
        let one_block =
            (range.first()..range.end()).map(|block| shared().policy.look(&alias(&who), block).err());
        if let Some(refused) = refused.filter(|why| !matches!(why, MixedOwners(_))) {
            assert!(one_block.into_iter().any(|verdict| verdict == Some(refused.clone())), "look: {what}");
        } else {
            assert_eq!(one_block.into_iter().next(), Some(None), "look: {what}");
        }
    }
}

/// An alias with a restriction passes within it: operation, disk and blocks.
#[test]
fn restrictions_bind() {
    let blocks = |disk, first, count| Objects::blocks(disk, first, count).expect("a range");
    let part = |operation, objects| {
        let operations = Limit::Only(BTreeSet::from([operation]));
        let scope = Scope::new(operations, Limit::Only(vec![objects])).expect("a scope");
        Alias::attested(alice(), scope)
    };
    let set = AclChange::Set(bob(), Access::Read);
    let good = part(Operation::ChangeAcls, blocks(3, 22, 4));
    let others = [
        (part(Operation::ChangeAcls, blocks(3, 22, 4)), range(22, 5)),
        (part(Operation::ChangeAcls, blocks(2, 22, 4)), range(22, 4)),
        (part(Operation::Write, blocks(3, 22, 4)), range(22, 4)),
        (part(Operation::Chown, blocks(3, 22, 4)), range(22, 4)),
    ];
    for (alias, range) in others {
        assert_eq!(shared().policy.change_acls(&alias, range, &set).err(), Some(Refused::NotOwner));
    }
    assert!(shared().policy.change_acls(&good, range(22, 4), &set).is_ok());
    assert_eq!(shared().policy.look(&good, 22).err(), Some(Refused::NotOwner));
    assert_eq!(shared().policy.chown_nominate(&good, range(22, 4), bob()), Err(Refused::NotOwner));
    let look = part(Operation::Look, blocks(3, 22, 4));
    assert!(shared().policy.look(&look, 22).is_ok());
    // Accepting needs a right to that operation as well.
    let mut driven = shared();
    driven.policy.chown_nominate(&alias(&bob()), range(30, 1), alice()).expect("his");
    let elsewhere = part(Operation::Chown, blocks(3, 31, 1));
    let verdict = driven.policy.chown_accept(&elsewhere, range(30, 1), only(&alice())).err();
    assert_eq!(verdict, Some(Refused::NotNominated));
    let here = part(Operation::Chown, blocks(3, 30, 1));
    assert!(driven.policy.chown_accept(&here, range(30, 1), only(&alice())).is_ok());
}

/// The three changes of an ACL.
#[test]
fn acls_change_as_asked() {
    let mut driven = shared();
    let mut wanted = only(&alice());
    wanted.set(bob(), Access::Read).expect("room");
    driven.change_acls(&alice(), range(22, 3), &AclChange::Set(bob(), Access::Read)).expect("hers");
    assert_eq!(at(&driven.policy, 22).acl, wanted);
    assert_eq!(at(&driven.policy, 21).acl, only(&alice()));
    assert_eq!(at(&driven.policy, 25).acl, only(&alice()));
    driven.change_acls(&alice(), range(20, 10), &AclChange::Remove(alice())).expect("hers");
    assert_eq!(at(&driven.policy, 23).acl, Acl::of(bob(), Access::Read).expect("room"));
    assert_eq!(at(&driven.policy, 20).acl, Acl::nobody(), "nobody reads, and she still owns it");
    driven.change_acls(&alice(), range(20, 10), &AclChange::Replace(wanted.clone())).expect("hers");
    assert!((20..30).all(|block| at(&driven.policy, block) == Label { owner: alice(), acl: wanted.clone() }));
    assert_eq!(at(&driven.policy, 30), Label { owner: bob(), acl: only(&bob()) });
    let (extent, label) = driven.policy.look(&alias(&alice()), 24).expect("hers");
    assert_eq!((extent, &label.acl), (range(20, 10), &wanted));
}

/// What cannot be stored is refused, and changes nothing.
#[test]
fn what_cannot_be_stored_is_refused() {
    let process = Principal::Process(ProcessName { boot: [0; 16], number: 1 });
    let mut driven = shared();
    let before = driven.stored.clone();
    for passing in [process, Principal::Machine] {
        let set = AclChange::Set(passing.clone(), Access::Read);
        let not_storable = Err(Refused::NotStorable(passing.clone()));
        assert_eq!(driven.change_acls(&alice(), range(20, 1), &set), not_storable);
        assert_eq!(
            driven.policy.chown_nominate(&alias(&alice()), range(20, 1), passing.clone()),
            not_storable
        );
        assert_eq!(Policy::create(disk(100, 8), passing.clone()).err(), not_storable.err());
        driven.change_acls(&alice(), range(20, 1), &AclChange::Remove(passing)).expect("it is not there");
    }
    assert_eq!(at(&driven.policy, 20).acl, only(&alice()));
    assert_eq!(before.len(), driven.stored.len());
}

/// All or nothing: one list of several would grow too long, so none changes.
#[test]
fn a_change_is_whole_or_not_at_all() {
    let mut driven = shared();
    let mut full = Acl::nobody();
    for number in 0..ENTRIES_MAX {
        full.set(user(&format!("u{number}")), Access::Read).expect("room");
    }
    driven.change_acls(&alice(), range(25, 1), &AclChange::Replace(full)).expect("hers");
    let before = driven.stored.clone();
    let set = AclChange::Set(user("late"), Access::Read);
    assert_eq!(driven.change_acls(&alice(), range(20, 10), &set), Err(Refused::AclTooLong));
    assert_eq!(driven.stored, before);
    assert_eq!(at(&driven.policy, 20).acl, only(&alice()));
    driven.change_acls(&alice(), range(20, 5), &set).expect("these have room");
    // A list with an allowed number of entries that does not fit into a block.
    let mut wide = Acl::nobody();
    for number in 0..ENTRIES_MAX as u32 {
        let terms = [
            vec![Term::All(3)],
            vec![Term::Executable(holdfast_crypto::Digest([1; 32])); 2],
            vec![Term::Uid(number)],
        ];
        let such = Predicate::new(terms.concat(), Conditions::CLEAN).expect("a tree");
        wide.set(Principal::Such(such), Access::Read).expect("room");
    }
    let refused = driven.change_acls(&alice(), range(20, 1), &AclChange::Replace(wide));
    assert_eq!(refused, Err(Refused::AclTooLong));
    assert_eq!(
        driven.reopened().region_policy(&[range(25, 1)]),
        driven.policy.region_policy(&[range(25, 1)])
    );
}

/// Both must agree, on exactly this range; a nomination serves once and is forgotten at a restart.
#[test]
fn an_owner_changes_with_both_consents() {
    let accept = |driven: &mut Driven, who: &Principal, range| {
        let change = driven.policy.chown_accept(&alias(who), range, only(who))?;
        driven.carry_out(change);
        Ok::<(), Refused>(())
    };
    let nominate = |driven: &mut Driven| {
        driven.policy.chown_nominate(&alias(&alice()), range(22, 4), bob()).expect("hers");
    };
    let not_nominated = Err(Refused::NotNominated);

    let mut driven = shared();
    assert_eq!(accept(&mut driven, &bob(), range(22, 4)), not_nominated, "nobody asked him");
    nominate(&mut driven);
    assert_eq!(at(&driven.policy, 22).owner, alice(), "a nomination alone changes nothing");
    for (who, wrong) in [
        (bob(), range(22, 3)),
        (bob(), range(22, 5)),
        (bob(), range(23, 3)),
        (bob(), range(21, 5)),
        (alice(), range(22, 4)),
        (user("carol"), range(22, 4)),
        (admin(), range(22, 4)),
    ] {
        assert_eq!(accept(&mut driven, &who, wrong), not_nominated, "{who} {wrong:?}");
    }
    accept(&mut driven, &bob(), range(22, 4)).expect("both agree");
    assert_eq!(at(&driven.policy, 22), Label { owner: bob(), acl: only(&bob()) }, "her ACL went with her");
    assert_eq!(at(&driven.policy, 21).owner, alice());
    assert_eq!(accept(&mut driven, &bob(), range(22, 4)), not_nominated, "once");

    let mut restarted = shared();
    nominate(&mut restarted);
    restarted.policy = restarted.reopened();
    assert_eq!(accept(&mut restarted, &bob(), range(22, 4)), not_nominated, "forgotten at a restart");

    let mut replaced = shared();
    nominate(&mut replaced);
    replaced.policy.chown_nominate(&alias(&alice()), range(25, 2), user("carol")).expect("hers");
    assert_eq!(accept(&mut replaced, &bob(), range(22, 4)), not_nominated, "she named somebody else since");
    accept(&mut replaced, &user("carol"), range(25, 2)).expect("the later one counts");

    let mut overtaken = shared();
    nominate(&mut overtaken);
    let change = overtaken.policy.format(&alias(&admin())).expect("the administrator");
    overtaken.carry_out(change);
    assert_eq!(accept(&mut overtaken, &bob(), range(22, 4)), not_nominated, "she no longer owns it");
}

/// The order of effects: nobody holds the blocks, then they are erased, then the table says whose they are.
#[test]
fn blocks_are_erased_before_they_change_hands() {
    let mut driven = shared();
    driven.policy.chown_nominate(&alias(&alice()), range(22, 4), bob()).expect("hers");
    let change = driven.policy.chown_accept(&alias(&bob()), range(22, 4), only(&bob())).expect("both agree");
    let withdraw = Effect::Withdraw(range(22, 4), DirtyPages::Drop);
    assert_eq!(change.effects()[..2], [withdraw, Effect::Erase(range(22, 4))]);
    assert!(matches!(change.effects()[2..], [Effect::Store(_)]));
    driven.carry_out(change);
    let set = AclChange::Set(user("carol"), Access::Read);
    let change = driven.policy.change_acls(&alias(&bob()), range(22, 4), &set).expect("his");
    assert_eq!(change.effects()[0], Effect::Withdraw(range(22, 4), DirtyPages::Write));
    assert!(matches!(change.effects()[1..], [Effect::Store(_)]), "an ACL erases nothing");
    driven.carry_out(change);
    let change = driven.policy.format(&alias(&admin())).expect("the administrator");
    let parts = [range(0, 10), range(18, 82)];
    let mut wanted: Vec<Effect> = parts.map(|part| Effect::Withdraw(part, DirtyPages::Drop)).to_vec();
    wanted.extend(parts.map(Effect::Erase));
    assert_eq!(change.effects()[..4], wanted);
    assert!(matches!(change.effects()[4..], [Effect::Store(_)]), "all but the table, then the table");
}

/// While a change is not carried out nothing is decided, not even about other blocks.
#[test]
fn nothing_is_decided_before_a_change_is_carried_out() {
    let mut driven = shared();
    let set = AclChange::Set(user("carol"), Access::Read);
    driven.policy.chown_nominate(&alias(&bob()), range(30, 1), alice()).expect("his");
    let change = driven.policy.change_acls(&alias(&alice()), range(20, 1), &set).expect("hers");
    let (alice, bob, admin) = (alias(&alice()), alias(&bob()), alias(&admin()));
    let policy = &mut driven.policy;
    let unfinished = Some(Refused::Unfinished);
    assert_eq!(policy.change_acls(&bob, range(30, 1), &set).err(), unfinished);
    assert_eq!(policy.chown_nominate(&bob, range(30, 1), user("carol")).err(), unfinished);
    assert_eq!(policy.chown_accept(&alice, range(30, 1), Acl::nobody()).err(), unfinished);
    assert_eq!(policy.look(&bob, 30).err(), unfinished);
    assert_eq!(policy.region_policy(&[range(30, 1)]).err(), unfinished);
    assert_eq!(policy.format(&admin).err(), unfinished);
    driven.carry_out(change);
    assert!(driven.policy.look(&bob, 30).is_ok());
}

/// A driver that mixes up its changes is stopped, not believed.
#[test]
#[should_panic(expected = "a change of another time")]
fn a_change_of_another_policy_is_not_taken() {
    let (mut one, mut other) = (shared(), shared());
    other.give(&admin(), range(60, 1), &alice()).expect("both agree");
    let set = AclChange::Set(user("carol"), Access::Read);
    let _own = one.policy.change_acls(&alias(&alice()), range(20, 1), &set).expect("hers");
    let foreign = other.policy.change_acls(&alias(&alice()), range(20, 1), &set).expect("hers");
    one.policy.carried_out(foreign);
}

/// The administrator formats and sees sizes; restricted or not, nobody else does.
#[test]
fn the_administrator_formats_and_nothing_else() {
    let mut driven = shared();
    assert_eq!(driven.policy.sizes(&alias(&alice())), Err(Refused::NotAdministrator));
    assert_eq!(driven.policy.format(&alias(&alice())).err(), Some(Refused::NotAdministrator));
    let some_blocks = Limit::Only(vec![Objects::blocks(3, 0, 99).expect("a range")]);
    let part = Alias::attested(admin(), Scope::new(Limit::Every, some_blocks).expect("a scope"));
    assert_eq!(driven.policy.format(&part).err(), Some(Refused::NotAdministrator));
    assert_eq!(driven.policy.look(&alias(&admin()), 20).err(), Some(Refused::NotOwner));
    let sizes = driven.policy.sizes(&alias(&admin())).expect("the administrator");
    assert_eq!(sizes, Sizes { disk_blocks: 100, extents: 4, labels: 3, free_pages: 5 });
    let change = driven.policy.format(&alias(&admin())).expect("the administrator");
    driven.carry_out(change);
    for policy in [&driven.policy, &driven.reopened()] {
        assert_eq!(at(policy, 20), Label { owner: admin(), acl: only(&admin()) });
        assert_eq!(policy.sizes(&alias(&admin())).map(|sizes| (sizes.extents, sizes.labels)), Ok((1, 1)));
    }
}

/// One ACL a region, and one owner.
#[test]
fn a_region_has_one_owner_and_one_acl() {
    let mut driven = shared();
    let hers = Label { owner: alice(), acl: only(&alice()) };
    assert_eq!(driven.policy.region_policy(&[range(20, 3), range(27, 3), range(23, 1)]), Ok(&hers));
    assert_eq!(driven.policy.region_policy(&[range(25, 10)]), Err(Refused::MixedAcls(30)));
    assert_eq!(driven.policy.region_policy(&[range(25, 1), range(32, 1)]), Err(Refused::MixedAcls(32)));
    assert_eq!(driven.policy.region_policy(&[]), Err(Refused::MixedAcls(0)));
    assert_eq!(driven.policy.region_policy(&[range(20, 1), range(100, 1)]), Err(Refused::BeyondDisk(100)));
    assert_eq!(driven.policy.region_policy(&[range(10, 1)]), Err(Refused::Reserved));
    driven.change_acls(&alice(), range(24, 1), &AclChange::Set(bob(), Access::Read)).expect("hers");
    assert_eq!(driven.policy.region_policy(&[range(20, 10)]), Err(Refused::MixedAcls(24)));
    // Two owners with the same list are not one region: the owner decides what becomes of it.
    driven.change_acls(&bob(), range(30, 1), &AclChange::Replace(only(&alice()))).expect("his");
    assert_eq!(driven.policy.region_policy(&[range(29, 2)]), Err(Refused::MixedAcls(30)));
}

/// Proves: nominations are limited for each owner and in all; the oldest are dropped; and a user who does not
/// accept nominations prevents nobody else from being nominated and accepting.
#[test]
fn nominations_are_bounded() {
    let mut driven = Driven::new(disk(30_000, 40));
    let nominate = |driven: &mut Driven, who: &Principal, first| {
        driven.policy.chown_nominate(&alias(who), range(first, 1), user("carol")).expect("its owner may");
    };
    let accept = |driven: &mut Driven, first| {
        let acl = only(&user("carol"));
        let change = driven.policy.chown_accept(&alias(&user("carol")), range(first, 1), acl)?;
        driven.policy.carried_out(change);
        Ok::<_, Refused>(())
    };
    let owners: Vec<Principal> = (0..17).map(|number| user(&format!("u{number}"))).collect();
    for (owner, first) in owners.iter().zip((2_000..).step_by(1_100)) {
        driven.give(&admin(), range(first, 1_100), owner).expect("both agree");
    }
    for number in 0..NOMINATIONS_PER_OWNER_MAX as u64 + 2 {
        nominate(&mut driven, &admin(), 100 + number);
    }
    assert_eq!(accept(&mut driven, 100), Err(Refused::NotNominated), "the oldest went");
    assert_eq!(accept(&mut driven, 101), Err(Refused::NotNominated), "and the next");
    accept(&mut driven, 102).expect("all others stayed");
    // All owners together: more than there is room for, by one owner's worth.
    for (owner, first) in owners.iter().zip((2_000..).step_by(1_100)) {
        (first..first + 600).for_each(|block| nominate(&mut driven, owner, block));
        accept(&mut driven, first + 599).expect("the newest is there, whoever else has many");
    }
    let firsts = (2_000..).step_by(1_100).take(17);
    let accepted =
        firsts.flat_map(|first| first..first + 599).filter(|block| accept(&mut driven, *block).is_ok());
    let accepted = accepted.count();
    assert!(accepted <= NOMINATIONS_MAX && accepted > NOMINATIONS_MAX - 600, "{accepted}");
}

#[test]
fn disks_that_cannot_be() {
    assert_eq!(Policy::create(disk(100, 2), admin()).err(), Some(Refused::TableTooSmall));
    assert_eq!(Policy::create(disk(0, 3), admin()).err(), Some(Refused::BeyondDisk(0)));
    let all_table = Disk { table_first: 0, table_blocks: 100, ..disk(100, 0) };
    assert_eq!(Policy::create(all_table, admin()).err(), Some(Refused::BeyondDisk(100)));
    let overflow = Disk { table_first: u64::MAX, ..disk(100, 8) };
    assert_eq!(Policy::create(overflow, admin()).err(), Some(Refused::TableTooSmall));
    assert_eq!(BlockRange::new(5, 0), None);
    assert_eq!(BlockRange::new(u64::MAX, 1), None);
    // If the table is stored elsewhere, the whole disk belongs to its owners.
    let mut elsewhere = Driven::new(Disk { table_first: 1_000, ..disk(100, 8) });
    elsewhere.give(&admin(), range(0, 100), &alice()).expect("both agree");
    assert_eq!(at(&elsewhere.policy, 10).owner, alice());
}
