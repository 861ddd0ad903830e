//! Who may do what: every request by everybody, and each check of a transfer.

use crate::common;

use common::{LARGE, acl, alias, devices, monitor, user};
use holdfast_access::{Access, Alias, Limit, Objects, Scope};
use holdfast_monitor::{BlockId, Direction, MonitorError, PAGE_BYTES, PageId, Reference, Write};

const fn block(number: u64) -> BlockId {
    BlockId { disk: 0, number }
}

/// Speaks for `name`, but on block 1 only.
fn restricted(name: &str) -> Alias {
    let only = Objects::blocks(0, 1, 1).expect("one block");
    let scope = Scope::new(Limit::Every, Limit::Only(vec![only])).expect("a scope");
    Alias::attested(user(name), scope)
}

/// Proves: of all requests, each name may make exactly those that its component needs (the table of
/// `docs/internals/components.md`'s monitor); a name that holds for one block is refused what goes beyond it.
#[test]
fn requests_by_name() {
    type Request = fn(&Alias) -> Result<(), MonitorError>;
    // Every request on a fresh monitor: region 1 is alice's, with blocks 1 (dirty) and 2 (empty); bob may read.
    fn on_fresh(
        by: &Alias,
        what: fn(&holdfast_monitor::Monitor<common::Map>, &Alias) -> Result<(), MonitorError>,
    ) -> Result<(), MonitorError> {
        let devices = devices();
        let (monitor, _) = monitor(&devices, 64);
        let policy = alias("policy");
        let mut list = acl("alice", Access::ReadWrite);
        list.set(user("bob"), Access::Read).expect("room");
        let region = monitor.create_region(&policy, list, 8).expect("made");
        monitor.assign(&policy, region, 0, &[block(1), block(2)]).expect("assigned");
        monitor.write(&alias("alice"), FIRST, 0, &[6; PAGE_BYTES]).expect("hers");
        what(&monitor, by)
    }
    const REGION: holdfast_monitor::RegionId = holdfast_monitor::RegionId(1);
    const FIRST: Reference =
        Reference { page: PageId { region: REGION, index: 0 }, generation: 1, block: block(1) };
    const SECOND: Reference =
        Reference { page: PageId { region: REGION, index: 1 }, generation: 1, block: block(2) };
    let requests: Vec<(&str, Request)> = vec![
        ("make a region", |by| {
            on_fresh(by, |m, by| m.create_region(by, acl("eve", Access::Read), 1).map(|_| ()))
        }),
        ("give it a block", |by| on_fresh(by, |m, by| m.assign(by, REGION, 4, &[block(9)]).map(|_| ()))),
        ("change its ACL", |by| on_fresh(by, |m, by| m.set_acl(by, REGION, acl("eve", Access::Read)))),
        ("free a page", |by| on_fresh(by, |m, by| m.free(by, REGION, 1..2))),
        ("erase a block", |by| on_fresh(by, |m, by| m.erase(by, block(1), 1))),
        ("see where blocks are", |by| on_fresh(by, |m, by| m.places(by, block(0), 9).map(|_| ()))),
        ("fill a page", |by| on_fresh(by, |m, by| m.transfer(by, Direction::Fill, block(2), &[SECOND.page]))),
        ("drain a page", |by| {
            on_fresh(by, |m, by| m.transfer(by, Direction::Drain, block(1), &[FIRST.page]))
        }),
        ("see what a page has", |by| on_fresh(by, |m, by| m.look(by, &[FIRST]).map(|_| ()))),
        ("view it", |by| on_fresh(by, |m, by| m.view(by, REGION).map(|_| ()))),
        ("read a page", |by| on_fresh(by, |m, by| m.read(by, FIRST, &mut [0; PAGE_BYTES]))),
        ("write into a page", |by| on_fresh(by, |m, by| m.write(by, FIRST, 9, &[1]))),
        ("change a page", |by| {
            on_fresh(by, |m, by| m.write_together(by, 0, &[Write { at: FIRST, bytes: vec![1; 4096] }]))
        }),
        ("change another", |by| {
            on_fresh(by, |m, by| m.write_together(by, 0, &[Write { at: SECOND, bytes: vec![1; 4096] }]))
        }),
    ];
    let names = [
        (
            "policy",
            alias("policy"),
            "make a region, give it a block, change its ACL, free a page, erase a block, see where blocks are",
        ),
        ("driver", alias("driver"), "fill a page, drain a page"),
        ("cache", alias("cache"), "see what a page has"),
        (
            "alice",
            alias("alice"),
            "see what a page has, view it, read a page, write into a page, change a page, change another",
        ),
        ("bob", alias("bob"), "see what a page has, view it, read a page"),
        ("eve", alias("eve"), ""),
        (
            "alice's helper",
            restricted("alice"),
            "see what a page has, read a page, write into a page, change a page",
        ),
        ("half a driver", restricted("driver"), ""),
        ("half a policy", restricted("policy"), ""),
    ];
    for (name, by, expected) in names {
        let mut done = Vec::new();
        for (what, request) in &requests {
            match request(&by) {
                Ok(()) => done.push(*what),
                Err(MonitorError::Denied(_)) => {}
                Err(error) => panic!("{name}, {what}: {error}"),
            }
        }
        assert_eq!(done.join(", "), expected, "{name}");
    }
}

/// Proves: the checks of a transfer (paper, section 4.7), each by a request that fails it alone; nothing moved, and the
/// right request still works after.
#[test]
fn checks_of_transfers() {
    let devices = devices();
    let (monitor, _) = monitor(&devices, 64);
    let (policy, driver, alice) = (alias("policy"), alias("driver"), alias("alice"));
    let region = monitor.create_region(&policy, acl("alice", Access::ReadWrite), 8).expect("made");
    let page = |index| PageId { region, index };
    monitor.assign(&policy, region, 0, &[block(1), block(2), block(3)]).expect("assigned");
    let fill = |block, pages: &[PageId]| monitor.transfer(&driver, Direction::Fill, block, pages);
    let drain = |block, pages: &[PageId]| monitor.transfer(&driver, Direction::Drain, block, pages);

    // (i) the page is in some region.
    let nowhere = PageId { region: holdfast_monitor::RegionId(77), index: 0 };
    assert!(matches!(fill(block(1), &[nowhere]), Err(MonitorError::NoRegion(_))));
    assert!(matches!(fill(block(4), &[page(3)]), Err(MonitorError::NoPage(_))));
    assert!(matches!(fill(block(4), &[page(99)]), Err(MonitorError::NoPage(_))));
    // (iii) of its own block; for all of a run.
    assert!(matches!(fill(block(2), &[page(0)]), Err(MonitorError::WrongBlock { .. })));
    assert!(matches!(fill(block(1), &[page(0), page(2)]), Err(MonitorError::WrongBlock { .. })));
    assert!(matches!(fill(block(1), &[page(0), page(0)]), Err(MonitorError::Busy(_))));
    // (iv) the right way.
    assert!(matches!(drain(block(1), &[page(0)]), Err(MonitorError::WrongStatus { .. })), "empty");
    fill(block(1), &[page(0), page(1)]).expect("filled");
    assert!(matches!(fill(block(1), &[page(0)]), Err(MonitorError::WrongStatus { .. })), "filled already");
    assert!(matches!(drain(block(1), &[page(0)]), Err(MonitorError::WrongStatus { .. })), "clean");
    let view = monitor.view(&alice, region).expect("hers");
    let first = Reference { page: page(0), generation: 1, block: block(1) };
    monitor.write(&alice, first, 0, &[7; PAGE_BYTES]).expect("hers");
    assert_eq!(view.block(first), Some([7; PAGE_BYTES]));
    for (skipped, bytes) in [(1, 4096), (4096, 1), (usize::MAX, 1)] {
        let written = monitor.write(&alice, first, skipped, &vec![1; bytes]);
        assert!(matches!(written, Err(MonitorError::WrongLength { .. })), "{skipped}, {bytes}");
    }
    let third = Reference { page: page(2), generation: 1, block: block(3) };
    let part = monitor.write(&alice, third, 0, &[1]);
    assert!(matches!(part, Err(MonitorError::WrongStatus { .. })), "a part of an empty page");
    assert!(matches!(fill(block(1), &[page(0)]), Err(MonitorError::WrongStatus { .. })), "dirty");
    assert!(matches!(monitor.free(&policy, region, 0..1), Err(MonitorError::WrongStatus { .. })), "dirty");
    drain(block(1), &[page(0)]).expect("drained");
    // A block has one page.
    let other = monitor.create_region(&policy, acl("eve", Access::Read), 8).expect("made");
    let again = monitor.assign(&policy, other, 0, &[block(20), block(1)]);
    assert!(matches!(again, Err(MonitorError::Cached { .. })));
    let twice = monitor.assign(&policy, other, 0, &[block(20), block(20)]);
    assert!(matches!(twice, Err(MonitorError::Cached { .. })));
    let taken = monitor.assign(&policy, region, 1, &[block(21)]);
    assert!(matches!(taken, Err(MonitorError::Assigned(_))));
    assert!(matches!(
        monitor.assign(&policy, other, 7, &[block(20), block(21)]),
        Err(MonitorError::TooLong { .. })
    ));
    assert!(matches!(
        monitor.assign(&policy, other, u32::MAX, &[block(20)]),
        Err(MonitorError::TooLong { .. })
    ));
    monitor.assign(&policy, other, 0, &[block(20)]).expect("what failed left nothing behind");
    // Blocks that are on no disk.
    for number in [LARGE + common::SMALL, u64::MAX] {
        assert!(matches!(monitor.assign(&policy, other, 1, &[block(number)]), Err(MonitorError::NoBlock(_))));
        assert!(matches!(monitor.erase(&policy, block(number), 1), Err(MonitorError::NoBlock(_))));
        assert!(matches!(fill(block(number), &[page(0)]), Err(MonitorError::NoBlock(_))));
    }
    assert!(matches!(monitor.erase(&policy, block(1), u64::MAX), Err(MonitorError::NoBlock(_))));
    let elsewhere = BlockId { disk: 1, number: 0 };
    assert!(matches!(monitor.assign(&policy, other, 1, &[elsewhere]), Err(MonitorError::NoBlock(_))));
    assert!(matches!(monitor.flush(1), Err(MonitorError::NoBlock(_))));
    // A run does not go over the edge of a stretch.
    monitor.assign(&policy, other, 1, &[block(LARGE - 1), block(LARGE)]).expect("assigned");
    let pages = [1, 2].map(|index| PageId { region: other, index });
    assert!(matches!(fill(block(LARGE - 1), &pages), Err(MonitorError::TooLong { .. })));
    fill(block(LARGE), &pages[1..]).expect("alone it goes");
    // Memory is bounded.
    let full = monitor.create_region(&policy, acl("eve", Access::Read), 64).expect("made");
    let many: Vec<_> = (0..60).map(|at| block(LARGE + 100 + at)).collect();
    assert!(matches!(monitor.assign(&policy, full, 0, &many), Err(MonitorError::NoMemory { .. })));
    assert!(matches!(
        monitor.create_region(&policy, acl("eve", Access::Read), 100_000),
        Err(MonitorError::TooLong { .. })
    ));
    assert!(matches!(monitor.remove_region(&policy, region), Err(MonitorError::InUse(_))));
    monitor.free(&policy, region, 0..u32::MAX).expect("all are clean");
    monitor.remove_region(&policy, region).expect("empty");
    assert!(view.read(0).is_none(), "a view ends with its region");
}

/// Proves: an ACL that changes takes views away from those who have them, also from those who still may, who get a new
/// one with what was there; the content is not lost, and changes not yet on the disk neither.
#[test]
fn acls_on_live_views() {
    let devices = devices();
    let (monitor, _) = monitor(&devices, 64);
    let (policy, driver) = (alias("policy"), alias("driver"));
    let mut list = acl("alice", Access::ReadWrite);
    list.set(user("bob"), Access::ReadWrite).expect("room");
    let region = monitor.create_region(&policy, list.clone(), 1).expect("made");
    let at = monitor.assign(&policy, region, 0, &[block(5)]).expect("assigned")[0];
    let hers = monitor.view(&alias("alice"), region).expect("hers");
    let his = monitor.view(&alias("bob"), region).expect("his");
    monitor.write(&alias("alice"), at, 0, &[3; PAGE_BYTES]).expect("hers");
    assert_eq!((hers.block(at), his.block(at)), (Some([3; PAGE_BYTES]), Some([3; PAGE_BYTES])));
    list.remove(&user("bob"));
    monitor.set_acl(&policy, region, list).expect("changed");
    assert!(his.read(0).is_none() && hers.read(0).is_none(), "what they had is gone");
    assert!(monitor.view(&alias("bob"), region).is_err());
    assert!(monitor.write(&alias("bob"), at, 0, &[4; PAGE_BYTES]).is_err());
    let again = monitor.view(&alias("alice"), region).expect("hers still");
    assert_eq!(again.block(at), Some([3; PAGE_BYTES]));
    monitor.transfer(&driver, Direction::Drain, block(5), &[at.page]).expect("still dirty");
}

/// Proves: a reference ends when its page is freed or its block erased. Who has an old one neither sees nor changes what
/// the page has next, by a view or by asking.
#[test]
fn old_references() {
    let devices = devices();
    let (monitor, _) = monitor(&devices, 64);
    let (policy, driver, alice) = (alias("policy"), alias("driver"), alias("alice"));
    let region = monitor.create_region(&policy, acl("alice", Access::ReadWrite), 2).expect("made");
    let view = monitor.view(&alice, region).expect("hers");
    let old = monitor.assign(&policy, region, 0, &[block(1)]).expect("assigned")[0];
    assert_eq!(view.block(old), None, "not filled yet");
    monitor.write(&alice, old, 0, &[1; PAGE_BYTES]).expect("hers");
    monitor.transfer(&driver, Direction::Drain, block(1), &[old.page]).expect("drained");
    for erase in [false, true] {
        if erase {
            monitor.erase(&policy, block(2), 1).expect("erased");
        } else {
            monitor.free(&policy, region, 0..1).expect("clean");
        }
        assert_eq!(view.block(old), None);
        assert_eq!(view.read(0), Some([0; PAGE_BYTES]), "nothing is left behind");
        let next = monitor.assign(&policy, region, 0, &[block(2)]).expect("assigned")[0];
        assert_ne!(next, old);
        monitor.write(&alice, next, 0, &[2; PAGE_BYTES]).expect("hers");
        assert_eq!((view.block(old), view.block(next)), (None, Some([2; PAGE_BYTES])));
        let denied = [
            monitor.write(&alice, old, 0, &[9; PAGE_BYTES]),
            monitor.read(&alice, old, &mut [0; PAGE_BYTES]),
            monitor.write_together(&alice, 0, &[Write { at: old, bytes: vec![9; 4096] }]),
        ];
        assert!(denied.iter().all(|denied| matches!(denied, Err(MonitorError::Outdated(_)))), "{denied:?}");
        assert_eq!(view.block(next), Some([2; PAGE_BYTES]));
        if !erase {
            monitor.transfer(&driver, Direction::Drain, block(2), &[next.page]).expect("drained");
        }
    }
}

/// Proves: a reference that somebody else made up, of the right page and the wrong block, reads and changes nothing, also
/// where whoever uses it may read and write both blocks: so whoever hands references on cannot swap them.
#[test]
fn references_cannot_be_swapped() {
    let devices = devices();
    let (monitor, _) = monitor(&devices, 64);
    let (policy, alice) = (alias("policy"), alias("alice"));
    let region = monitor.create_region(&policy, acl("alice", Access::ReadWrite), 8).expect("made");
    let at = monitor.assign(&policy, region, 0, &[block(1), block(2)]).expect("assigned");
    for (at, byte) in at.iter().zip([1, 2]) {
        monitor.write(&alice, *at, 0, &[byte; PAGE_BYTES]).expect("hers");
    }
    let view = monitor.view(&alice, region).expect("hers");
    let swapped = Reference { block: at[1].block, ..at[0] };
    assert_eq!(view.block(swapped), None);
    let outdated = |done: Result<(), MonitorError>| assert!(matches!(done, Err(MonitorError::Outdated(_))));
    outdated(monitor.read(&alice, swapped, &mut [0; PAGE_BYTES]));
    outdated(monitor.write(&alice, swapped, 0, &[9; PAGE_BYTES]));
    outdated(monitor.write_together(&alice, 0, &[Write { at: swapped, bytes: vec![9; PAGE_BYTES] }]));
    assert_eq!(monitor.look(&alice, &[swapped]).expect("she may"), [None]);
    assert_eq!((view.block(at[0]), view.block(at[1])), (Some([1; PAGE_BYTES]), Some([2; PAGE_BYTES])));
}
