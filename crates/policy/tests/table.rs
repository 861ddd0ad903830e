//! The table against a plain map from blocks to labels, reopened from its stored blocks after every step; and
//! stored tables that are golden, damaged, or full.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_policy::*;
use std::collections::BTreeSet;

/// The plain map.
#[derive(Clone)]
struct Model {
    blocks: Vec<Label>,
}

impl Model {
    fn new(disk: &Disk) -> Model {
        let label = Label { owner: admin(), acl: only(&admin()) };
        Model { blocks: vec![label; disk.blocks as usize] }
    }

    /// The owner's verdict according to the paper.
    fn verdict(&self, disk: &Disk, by: &Principal, range: BlockRange) -> bool {
        let table = disk.table().expect("a table");
        range.end() <= disk.blocks
            && !range.overlaps(&table)
            && self.part(range).iter().all(|label| label.owner == *by)
    }

    fn part(&self, range: BlockRange) -> &[Label] {
        &self.blocks[range.first() as usize..range.end() as usize]
    }

    fn part_mut(&mut self, range: BlockRange) -> &mut [Label] {
        &mut self.blocks[range.first() as usize..range.end() as usize]
    }

    fn agrees(&self, disk: &Disk, policy: &Policy, sample: impl Iterator<Item = u64>, what: &str) {
        let table = disk.table().expect("a table");
        for block in sample.filter(|block| !table.overlaps(&range(*block, 1))) {
            assert_eq!(at(policy, block), self.blocks[block as usize], "{what}: block {block}");
        }
    }
}

fn some_range(numbers: &mut Numbers, blocks: u64, longest: u64) -> BlockRange {
    let count = 1 + numbers.below(longest);
    range(numbers.below(blocks + 3 - count.min(blocks)), count)
}

fn some_change(numbers: &mut Numbers, people: &[Principal]) -> AclChange {
    let access = if numbers.below(2) == 0 { Access::Read } else { Access::ReadWrite };
    let who = numbers.pick(people).clone();
    match numbers.below(3) {
        0 => AclChange::Set(who, access),
        1 => AclChange::Remove(who),
        _ => AclChange::Replace(Acl::of(who, access).expect("room")),
    }
}

fn changed(acl: &Acl, change: &AclChange) -> Acl {
    let mut acl = acl.clone();
    match change {
        AclChange::Set(who, access) => acl.set(who.clone(), *access).expect("room"),
        AclChange::Remove(who) => drop(Some(acl.remove(who))),
        AclChange::Replace(other) => acl = other.clone(),
    }
    acl
}

/// Random requests. After each, both the table and the reopened table equal the model. Before its blocks are
/// stored the reopened table equals the previous model: a crash leaves one or the other.
fn run(seed: u64, disk: Disk, steps: usize, longest: u64, reopen_every: usize) -> (usize, usize) {
    let people = [admin(), user("alice"), user("bob"), Principal::Group(Name::new("staff").expect("a name"))];
    let mut numbers = Numbers(seed);
    let mut driven = Driven::new(disk.clone());
    let mut model = Model::new(&disk);
    let (mut accepted, mut written_max) = (0, 0);
    for step in 0..steps {
        let what = format!("seed {seed} step {step}");
        let (who, other) = (numbers.pick(&people).clone(), numbers.pick(&people).clone());
        let range = some_range(&mut numbers, disk.blocks, longest);
        let before = (step % reopen_every == 0).then(|| (model.clone(), driven.stored.clone()));
        // The owner of the first block asks most of the time, else little would be allowed.
        let owner = model.blocks.get(range.first() as usize).map(|label| label.owner.clone());
        let who = if numbers.below(4) > 0 { owner.unwrap_or(who) } else { who };
        let allowed = model.verdict(&disk, &who, range);
        let change = match numbers.below(40) {
            0 if longest < 100 => {
                model = Model::new(&disk);
                Some(driven.policy.format(&alias(&admin())).expect("the administrator"))
            }
            1..20 => {
                let change = some_change(&mut numbers, &people);
                let verdict = driven.policy.change_acls(&alias(&who), range, &change);
                assert_eq!(verdict.is_ok(), allowed, "{what}: {verdict:?}");
                if allowed {
                    model
                        .part_mut(range)
                        .iter_mut()
                        .for_each(|label| label.acl = changed(&label.acl, &change));
                }
                verdict.ok()
            }
            _ => {
                let verdict = driven.policy.chown_nominate(&alias(&who), range, other.clone());
                assert_eq!(verdict.is_ok(), allowed, "{what}: {verdict:?}");
                let acl = if numbers.below(2) == 0 { only(&other) } else { only(&who) };
                let verdict = driven.policy.chown_accept(&alias(&other), range, acl.clone());
                assert_eq!(verdict.is_ok(), allowed, "{what}: {verdict:?}");
                if allowed {
                    model.part_mut(range).fill(Label { owner: other, acl });
                }
                verdict.ok()
            }
        };
        let Some(change) = change else { continue };
        accepted += 1;
        driven.carry_out(change);
        written_max = written_max.max(driven.written);
        let near = range.first().saturating_sub(3)..(range.end() + 3).min(disk.blocks);
        model.agrees(&disk, &driven.policy, near, &what);
        if let Some((model_before, stored_before)) = before {
            model.agrees(&disk, &driven.policy, 0..disk.blocks, &what);
            model.agrees(&disk, &driven.reopened(), 0..disk.blocks, &what);
            let crashed = open(&disk, &stored_before).expect("the blocks before the change");
            model_before.agrees(&disk, &crashed, 0..disk.blocks, &what);
            driven.policy = driven.reopened();
        }
    }
    model.agrees(&disk, &driven.reopened(), 0..disk.blocks, "at the end");
    (accepted, written_max)
}

#[test]
fn the_table_is_the_map_it_stands_for() {
    for seed in 0..12 {
        let (accepted, _) = run(seed, disk(80, 6), 300, 12, 1);
        assert!(accepted > 80, "seed {seed}: enough is allowed to be tested: {accepted}");
    }
}

/// Many small extents, so that pages split and merge; each change writes few blocks.
#[test]
fn pages_split_and_merge() {
    for seed in 20..23 {
        let (accepted, written_max) = run(seed, disk(6_000, 60), 4_000, 4, 200);
        assert!(accepted > 1_500, "seed {seed}: {accepted}");
        assert!(written_max <= 6, "seed {seed}: {written_max} blocks for one change");
    }
}

/// Extents that become one again give their pages back.
#[test]
fn pages_come_back() {
    let mut driven = Driven::new(disk(5_000, 24));
    let alice = user("alice");
    let sizes = |driven: &Driven| driven.policy.sizes(&alias(&admin())).expect("the administrator");
    let at_first = sizes(&driven);
    for round in 0..3 {
        for number in 0..1_200 {
            driven.give(&admin(), range(100 + number * 3, 1), &alice).expect("room");
        }
        assert_eq!((sizes(&driven).extents, sizes(&driven).labels), (2_401, 2), "round {round}");
        assert!(sizes(&driven).free_pages <= at_first.free_pages - 7);
        for number in 0..1_200 {
            driven.give(&alice, range(100 + number * 3, 1), &admin()).expect("room");
        }
        assert!(sizes(&driven).extents < 10, "round {round}: {:?}", sizes(&driven));
        assert!(sizes(&driven).free_pages > at_first.free_pages - 7, "round {round}: {:?}", sizes(&driven));
    }
    // One large request over many pages.
    for number in 0..1_200 {
        driven.give(&admin(), range(100 + number * 3, 1), &alice).expect("room");
    }
    let change = driven.policy.format(&alias(&admin())).expect("the administrator");
    driven.carry_out(change);
    assert_eq!(driven.written, 3);
    assert_eq!(sizes(&driven), at_first);
    assert_eq!(at(&driven.reopened(), 100).owner, admin());
}

/// A full table refuses what would need more room, changes nothing, and works on.
#[test]
fn a_full_table_refuses_and_works_on() {
    // Pages.
    let mut driven = Driven::new(disk(5_000, 4));
    let alice = user("alice");
    let mut given = 0;
    let refused = (0..1_600).find_map(|number| {
        let verdict = driven.give(&admin(), range(100 + number * 3, 1), &alice).err();
        given += u64::from(verdict.is_none());
        verdict
    });
    assert_eq!(refused, Some(Refused::Full));
    assert!(given > 250, "two pages hold more than {given}");
    let before = driven.stored.clone();
    let change = AclChange::Set(user("bob"), Access::Read);
    assert_eq!(driven.change_acls(&admin(), range(4_990, 1), &change), Err(Refused::Full));
    assert_eq!(driven.stored, before);
    assert_eq!(at(&driven.policy, 4_990).acl, only(&admin()));
    assert_eq!(at(&driven.reopened(), 100 + (given - 1) * 3).owner, alice);
    driven.give(&alice, range(100, 1), &admin()).expect("what needs no more room goes on");
    // Labels: more different ACLs than their block holds.
    let mut driven = Driven::new(disk(5_000, 8));
    let mut labels = 0;
    let refused = (0..1_000).find_map(|number| {
        let acl = Acl::of(user(&format!("somebody-{number}")), Access::Read).expect("room");
        let change = AclChange::Replace(acl);
        let verdict = driven.change_acls(&admin(), range(100 + number, 1), &change).err();
        labels += u64::from(verdict.is_none());
        verdict
    });
    assert_eq!(refused, Some(Refused::Full));
    assert!(labels > 60, "a block holds more than {labels}");
    // There is room for a few again, but not for fifty: labels already added are removed with the rest.
    driven.change_acls(&admin(), range(100, 8), &AclChange::Replace(only(&admin()))).expect("no new list");
    let before = driven.stored.clone();
    let mixed = AclChange::Set(user("bob"), Access::Read);
    assert_eq!(driven.change_acls(&admin(), range(108, 50), &mixed), Err(Refused::Full), "fifty new lists");
    assert_eq!(driven.stored, before);
    let sizes = driven.policy.sizes(&alias(&admin())).expect("the administrator");
    assert_eq!(sizes.labels, labels + 1 - 8, "none is left behind");
    driven.change_acls(&admin(), range(108, 1), &mixed).expect("one has room");
    driven.reopened();
    driven.change_acls(&admin(), range(100, 50), &AclChange::Replace(only(&admin()))).expect("no new list");
    driven.change_acls(&admin(), range(100, 20), &mixed).expect("there is room again");
    assert_eq!(driven.reopened().sizes(&alias(&admin())), driven.policy.sizes(&alias(&admin())));
}

/// A page for each 168 blocks of the disk is enough, whatever owners do: every block an extent, and back in pieces.
#[test]
fn extents_cannot_fill_a_table_of_good_size() {
    let mut driven = Driven::new(disk(10_000, 69));
    let sizes = |driven: &Driven| driven.policy.sizes(&alias(&admin())).expect("the administrator");
    assert_eq!(sizes(&driven).free_pages + 1, 10_000u64.div_ceil(168));
    let mut numbers = Numbers(5);
    let set = AclChange::Set(user("bob"), Access::Read);
    let restore = AclChange::Remove(user("bob"));
    let mut most = 0;
    for round in 0..3 {
        for block in (80..10_000).step_by(2) {
            driven.change_acls(&admin(), range(block, 1), &set).expect("room");
        }
        most = most.max(sizes(&driven).extents);
        for _ in 0..60 * round {
            let range = range(80 + numbers.below(9_000), 1 + numbers.below(800));
            let change = if numbers.below(2) == 0 { &set } else { &restore };
            driven.change_acls(&admin(), range, change).expect("room");
        }
    }
    assert!(most > 9_900, "{most}");
}

/// One change rewrites a bounded number of blocks, however scattered its range is.
#[test]
fn a_scattered_range_is_refused_whole() {
    let mut driven = Driven::new(disk(100_000, 400));
    let alice = user("alice");
    let scattered = PAGES_PER_CHANGE_MAX as u64 * EXTENTS_PER_PAGE_MAX as u64 / 2 + 1;
    for number in 0..scattered {
        driven.give(&admin(), range(500 + number * 2, 1), &alice).expect("room");
        driven
            .change_acls(&alice, range(500 + number * 2, 1), &AclChange::Remove(alice.clone()))
            .expect("hers");
    }
    for number in 0..scattered {
        driven.give(&admin(), range(501 + number * 2, 1), &alice).expect("room");
    }
    let whole = range(500, scattered * 2);
    let before = driven.stored.clone();
    let change = AclChange::Set(user("bob"), Access::Read);
    assert_eq!(driven.change_acls(&alice, whole, &change), Err(Refused::TooScattered));
    assert_eq!(driven.stored, before);
    driven.change_acls(&alice, range(500, scattered), &change).expect("half of it");
    assert!(driven.written <= PAGES_PER_CHANGE_MAX + 3, "{}", driven.written);
    assert_eq!(at(&driven.reopened(), 501).acl.granted_to(&user("bob")), Some(Access::Read));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The stored form, byte for byte (the digests stand for themselves).
#[test]
fn tables_are_stored_so() {
    let mut driven = Driven::new(disk(100, 8));
    driven.give(&admin(), range(20, 10), &user("al")).expect("both agree");
    assert_eq!(driven.stored.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    let label = |number: u32, name: &str| {
        let user = format!("01{:02x}000000{}", name.len(), hex(name.as_bytes()));
        format!("{number:02x}000000{user}01000000{user}01")
    };
    let golden = [
        (
            0,
            "1567c5a369ee",
            "00".to_owned()
                + "0100"
                + &hex(b"disk identity 16")
                + "6400000000000000"
                + "0a00000000000000"
                + "0800000000000000"
                + "0200000000000000"
                + "01000000"
                + "01000000",
        ),
        (1, "df3470fd5485", "0102000000".to_owned() + &label(0, "admin") + &label(1, "al")),
        (
            2,
            "784d63917537",
            "0203000000".to_owned()
                + "000000000000000000000000"
                + "140000000000000001000000"
                + "1e0000000000000000000000",
        ),
    ];
    let mut digests = Vec::new();
    for (block, _, body) in &golden {
        let bytes = &driven.stored[block];
        assert_eq!(&bytes[..8], b"hfpolicy");
        let end = 40 + body.len() / 2;
        assert_eq!(hex(&bytes[40..end]), *body, "block {block}");
        assert!(bytes[end..].iter().all(|byte| *byte == 0), "block {block}");
        digests.push(hex(&bytes[8..14]));
    }
    assert_eq!(digests, golden.map(|(_, digest, _)| digest));
}

/// A table with a few extents, labels and pages.
fn sample() -> Driven {
    let mut driven = Driven::new(disk(5_000, 12));
    for number in 0..400 {
        driven
            .give(&admin(), range(100 + number * 3, 1), &user(["a", "b", "c"][number as usize % 3]))
            .expect("room");
    }
    driven
}

fn damage(disk: &Disk, stored: &Stored) -> Damage {
    open(disk, stored).err().expect("it must be refused")
}

/// Any bit changed anywhere in any block, any block lost, exchanged or of another disk: refused with its place.
#[test]
fn damage_is_refused_with_its_place() {
    let driven = sample();
    assert!(driven.stored.len() >= 5, "several pages");
    let mut numbers = Numbers(7);
    for block in driven.stored.keys() {
        for _ in 0..300 {
            let mut stored = driven.stored.clone();
            let bytes = stored.get_mut(block).expect("it is there");
            bytes[numbers.below(BLOCK_BYTES as u64) as usize] ^= 1 << numbers.below(8);
            match damage(&driven.disk, &stored) {
                Damage::Malformed { block: place, .. } => assert_eq!(place, *block),
                other => panic!("{other}"),
            }
        }
        let mut lost = driven.stored.clone();
        lost.remove(block);
        assert!(
            matches!(damage(&driven.disk, &lost), Damage::Unreadable { block: place, .. } if place == *block)
        );
        let mut zeroed = driven.stored.clone();
        zeroed.insert(*block, Box::new([0; BLOCK_BYTES]));
        assert!(
            matches!(damage(&driven.disk, &zeroed), Damage::Malformed { block: place, .. } if place == *block)
        );
        for other in driven.stored.keys().filter(|other| *other != block) {
            let mut moved = driven.stored.clone();
            moved.insert(*block, driven.stored[other].clone());
            assert!(
                matches!(damage(&driven.disk, &moved), Damage::Malformed { block: place, .. } if place == *block)
            );
        }
    }
    let twin = Disk { identity: *b"another disk,too", ..driven.disk.clone() };
    assert!(matches!(damage(&twin, &driven.stored), Damage::Malformed { block: 0, .. }));
    for other in [
        Disk { blocks: 5_001, ..driven.disk.clone() },
        Disk { table_first: 11, ..driven.disk.clone() },
        Disk { table_blocks: 13, ..driven.disk.clone() },
        Disk { table_blocks: 2, ..driven.disk.clone() },
    ] {
        assert_eq!(damage(&other, &driven.stored), Damage::OtherDisk);
    }
    let renumbered = Disk { number: 4, ..driven.disk.clone() };
    assert!(open(&renumbered, &driven.stored).is_ok(), "the number is this machine's own");
}

/// Forged contents by chance: never a panic, and what opens is a whole table.
#[test]
fn forged_contents_never_panic() {
    let driven = sample();
    let places: Vec<u64> = driven.stored.keys().copied().collect();
    let mut numbers = Numbers(11);
    let (mut opened, mut reasons) = (0, BTreeSet::new());
    for _ in 0..10_000 {
        let mut stored = driven.stored.clone();
        let block = *numbers.pick(&places);
        let mut body = stored[&block][40..].to_vec();
        for _ in 0..1 + numbers.below(3) {
            let reach = *numbers.pick(&[20, 60, 120, 400, 4056]);
            let place = numbers.below(reach) as usize;
            body[place] =
                *numbers.pick(&[0, 1, 2, 3, 100, 255, body[place] ^ 1, body[place].wrapping_add(1)]);
        }
        stored.insert(block, sealed(&driven.disk, block, &body));
        match open(&driven.disk, &stored) {
            Ok(policy) => {
                opened += 1;
                assert!(
                    (22..5_000).step_by(50).all(|block| policy.region_policy(&[range(block, 1)]).is_ok())
                );
            }
            Err(Damage::Malformed { why, .. }) => drop(reasons.insert(why)),
            Err(Damage::Newer(format)) => assert!(!(1..=2).contains(&format)),
            Err(Damage::OtherDisk) => assert_eq!(block, 0),
            Err(Damage::Unreadable { block, .. }) => assert!(block < driven.disk.table_blocks),
        }
    }
    assert!(opened > 100 && reasons.len() > 6, "{opened} {reasons:?}");
}

/// Every reason for which well-made blocks are refused.
#[test]
fn forged_contents_are_refused_for_what_they_are() {
    use holdfast_crypto::encode;
    let disk = disk(5_000, 12);
    let label = |text: &str| Label { owner: user(text), acl: only(&user(text)) };
    let header = |format: u16, labels: u32, pages: u32| encode(&(0u8, (format, &disk, 7u64, labels, pages)));
    let labels = |list: &[(u32, Label)]| encode(&(1u8, list));
    let page = |list: &[(u64, u32)]| encode(&(2u8, list));
    let good_labels = labels(&[(0, label("a")), (5, label("b"))]);
    let good_page = page(&[(0, 0), (100, 5), (200, 0)]);
    let next_page = page(&[(1_000, 5), (2_000, 0)]);
    // Twelve blocks: a header, one for labels, ten for pages.
    let verdict = |blocks: &[Vec<u8>]| {
        let stored = (0..).zip(blocks).map(|(block, body)| (block, sealed(&disk, block, body))).collect();
        open(&disk, &stored).err()
    };
    let with = |header, labels: &Vec<u8>, first: &Vec<u8>, second: &Vec<u8>| {
        verdict(&[header, labels.clone(), first.clone(), second.clone()])
    };
    let fine = || header(1, 1, 2);
    assert_eq!(with(fine(), &good_labels, &good_page, &next_page), None);
    assert_eq!(with(fine(), &good_labels, &good_page, &page(&[])), None, "an empty slot");
    assert_eq!(with(fine(), &good_labels, &next_page, &good_page), None, "slots are in any order");
    assert_eq!(with(header(3, 1, 2), &good_labels, &good_page, &next_page), Some(Damage::Newer(3)));
    let malformed = |block, why| Some(Damage::Malformed { block, why });
    let twice = labels(&[(0, label("a")), (0, label("b"))]);
    let alike = labels(&[(0, label("a")), (5, label("a"))]);
    let unused = labels(&[(0, label("a")), (5, label("b")), (6, label("c"))]);
    let process = Principal::Process(ProcessName { boot: [1; 16], number: 1 });
    let passing = labels(&[(0, Label { owner: process, acl: only(&user("a")) }), (5, label("b"))]);
    for (labels, block, why) in [
        (&twice, 1, "a label is there twice"),
        (&alike, 1, "a label is there twice"),
        (&unused, 0, "a label is used by no extent"),
        (&passing, 1, "an owner is a process or the machine"),
        (&good_page, 1, "it holds no labels"),
        (&[good_labels.clone(), vec![1]].concat(), 1, "bytes follow its contents"),
        (&vec![1, 255, 255, 255, 255], 1, "its contents are not canonical"),
        (&vec![9], 1, "its contents are not canonical"),
    ] {
        assert_eq!(with(fine(), labels, &good_page, &next_page), malformed(block, why));
    }
    for (first, block, why) in [
        (page(&[(0, 0), (100, 0)]), 2, "its extents are out of order"),
        (page(&[(0, 0), (100, 5), (100, 0)]), 2, "its extents are out of order"),
        (page(&[(0, 0), (100, 5), (50, 0)]), 2, "its extents are out of order"),
        (page(&[(0, 0), (100, 1)]), 2, "an extent is beyond the disk, or its label is unknown"),
        (page(&[(0, 0), (5_000, 5)]), 2, "an extent is beyond the disk, or its label is unknown"),
        (page(&[(0, 0), (1_000, 5)]), 2, "it overlaps the next page"),
        (page(&[(0, 0), (1_500, 5)]), 2, "it overlaps the next page"),
        (page(&[(1, 0), (100, 5)]), 0, "no page begins at block 0"),
        (page(&[]), 0, "no page begins at block 0"),
        (next_page.clone(), 3, "two pages begin at the same block"),
        (good_labels.clone(), 2, "it is not a page"),
    ] {
        assert_eq!(with(fine(), &good_labels, &first, &next_page), malformed(block, why));
    }
    for (header, why) in [
        (good_page.clone(), "it is not the header"),
        (header(1, 2, 2), "it counts more blocks than the table has"),
        (header(1, 1, 11), "it counts more blocks than the table has"),
        (header(1, 1, u32::MAX), "it counts more blocks than the table has"),
    ] {
        assert_eq!(with(header, &good_labels, &good_page, &next_page), malformed(0, why));
    }
}
