//! Proves the rules of inodes, directories, i-tables and membership: stored objects are read back, small
//! inodes are in their table, ranges and single entries resolve, and each broken rule is refused.

use crate::with_changes;
use holdfast_content::*;
use holdfast_crypto::{DigestKey, SigningKey};
use std::collections::{BTreeMap, BTreeSet};

const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn tag(number: u64) -> Tag {
    Tag { device: DeviceId(3), number }
}

fn chunk(blocks: &MemoryBlocks, seed: u8) -> Extent {
    let mut sink = blocks;
    Extent::whole(sink.put(Block::new(&KEY, BlockKind::Chunk, vec![], vec![seed; 1000])))
}

fn extents(blocks: &MemoryBlocks, count: u64) -> Content {
    let extents = (0..count).map(|n| (n * 1000, chunk(blocks, n as u8))).collect();
    Content::Extents(ExtentMap { chunker: Chunker::FastCdc64, extents: Extents::Inline(extents) })
}

fn of_kind(kind: InodeKind) -> Inode {
    let mut inode = Inode::new(kind, 0o4755, DeviceId(7), -5);
    if kind == InodeKind::Symlink {
        inode.content = Content::Target(b"../elsewhere".to_vec());
    }
    inode
}

const KINDS: [InodeKind; 7] = [
    InodeKind::File,
    InodeKind::Directory,
    InodeKind::Symlink,
    InodeKind::Fifo,
    InodeKind::Socket,
    InodeKind::CharDevice,
    InodeKind::BlockDevice,
];

#[test]
fn inodes_of_every_kind_come_back() {
    let blocks = MemoryBlocks::new(KEY);
    for kind in KINDS {
        let mut inode = of_kind(kind);
        inode.xattrs = [(b"user.a".to_vec(), vec![1; 3000]), (b"user.b".to_vec(), vec![])].into();
        let (bytes, references) = inode.encode().unwrap();
        assert_eq!(Inode::decode(&bytes, &references).unwrap(), inode);
        let reference = inode.store(&mut &blocks).unwrap();
        assert_eq!(Inode::load(&blocks, &reference).unwrap(), inode);
        assert_eq!(inode.ihash(&KEY).unwrap(), reference.address);
        assert_ne!(inode.ihash(&DigestKey([1; 32])).unwrap(), reference.address);
    }
}

#[test]
fn inodes_that_break_a_rule_are_neither_written_nor_read() {
    let good = of_kind(InodeKind::File);
    let change = |edit: &dyn Fn(&mut Inode)| {
        let mut inode = good.clone();
        edit(&mut inode);
        inode
    };
    let bad = [
        change(&|inode| inode.mode = 0o10000),
        change(&|inode| inode.size = FILE_BYTES_MAX + 1),
        change(&|inode| inode.device_number = 1),
        change(&|inode| inode.kind = InodeKind::Directory),
        change(&|inode| inode.kind = InodeKind::Symlink),
        change(&|inode| inode.content = Content::Directory(LiveMap::EMPTY)),
        change(&|inode| inode.content = Content::Target(b"x".to_vec())),
        change(&|inode| inode.content = Content::Inline(vec![1])), // longer than its size
        change(&|inode| {
            inode.size = 1000;
            inode.content = Content::Inline(vec![1; INLINE_BYTES_MAX + 1]);
        }),
        change(&|inode| drop(inode.xattrs.insert(vec![], vec![]))),
        change(&|inode| drop(inode.xattrs.insert(vec![b'a'; 256], vec![]))),
        change(&|inode| drop(inode.xattrs.insert(b"user.a".to_vec(), vec![0; ATTRIBUTE_BYTES_MAX]))),
        change(&|inode| {
            inode.kind = InodeKind::Symlink;
            inode.content = Content::Target(vec![b'x'; TARGET_BYTES_MAX + 1]);
        }),
        change(&|inode| {
            inode.kind = InodeKind::Symlink;
            inode.content = Content::Target(vec![]);
        }),
        change(&|inode| {
            inode.kind = InodeKind::Symlink;
            inode.content = Content::Target(b"a\0b".to_vec());
        }),
    ];
    for inode in bad {
        assert!(matches!(inode.encode(), Err(ContentError::Misuse(_))), "{inode:?}");
    }
    // By hand: every prefix of the layout.
    let (bytes, _) = good.encode().unwrap();
    for (at, value, what) in [
        (0, 2, "format"),
        (1, 0, "kind"),
        (1, 8, "kind"),
        (1, 2, "content of another kind"),
        (3, 0x10, "mode"),
        (23, 0xff, "the sign of the time, which is allowed"),
        (bytes.len() - 1, 5, "content tag"),
    ] {
        let mut altered = bytes.clone();
        altered[at] = value;
        let read = Inode::decode(&altered, &[]);
        assert_eq!(read.is_ok(), what.contains("allowed"), "{what}");
    }
    assert!(Inode::decode(&[&bytes[..], &[0]].concat(), &[]).is_err());
    assert!(Inode::decode(&bytes, &[holdfast_crypto::Digest::ZERO]).is_err());
    // Attributes out of order are a second encoding of the same inode.
    let attributes = [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
    let (bytes, _) = change(&|inode| inode.xattrs = attributes.clone().into()).encode().unwrap();
    let at = bytes.len() - 1 - 14;
    assert_eq!(&bytes[at..at + 14], b"\x01a\x01\0\0\x001\x01b\x01\0\0\x002");
    let mut swapped = bytes.clone();
    (swapped[at + 1], swapped[at + 8]) = (b'b', b'a');
    assert!(Inode::decode(&swapped, &[]).is_err());
    let mut twice = bytes;
    twice[at + 8] = b'a';
    assert!(Inode::decode(&twice, &[]).is_err());
}

#[test]
fn small_inodes_lie_in_their_table_and_have_the_same_i_hash_there() {
    let blocks = MemoryBlocks::new(KEY);
    let mut small = of_kind(InodeKind::File);
    small.content = extents(&blocks, INLINE_EXTENTS_MAX as u64);
    small.size = 8000;
    let mut large = small.clone();
    large.xattrs.insert(b"user.x".to_vec(), vec![7; 400]);
    let mut table = Table::new(PrincipalId::Device(DeviceId(7)));
    let before = blocks.len();
    table.map.push(inode_change(&mut &blocks, 1, Some(&small), None).unwrap());
    assert_eq!(blocks.len(), before, "an inline inode makes no block");
    table.map.push(inode_change(&mut &blocks, 2, Some(&large), None).unwrap());
    assert_eq!(blocks.len(), before + 1);

    for compacted in [false, true] {
        if compacted {
            table.map = table.map.settle_and_compact(&blocks, &mut &blocks, &AllPending, 0).unwrap();
        }
        let reference = table.store(&mut &blocks).unwrap();
        let loaded = Table::load(&blocks, &reference).unwrap();
        assert_eq!(loaded, table);
        for (number, inode) in [(1, &small), (2, &large)] {
            let slot = loaded.slot(&blocks, &AllPending, number).unwrap().value.unwrap();
            assert_eq!(matches!(slot, InodeSlot::Inline(_)), number == 1);
            assert_eq!(slot.ihash(&KEY).unwrap(), inode.ihash(&KEY).unwrap());
            assert_eq!(&loaded.inode(&blocks, &AllPending, number).unwrap().value.unwrap(), inode);
        }
        assert!(loaded.inode(&blocks, &AllPending, 3).unwrap().value.is_none());
        // The chunks of inline inodes are in the header of the block that holds them: collection sees them.
        let holder = match table.map.root.reference() {
            Some(leaf) => blocks.stored(&leaf.address).unwrap(),
            None => blocks.stored(&reference.address).unwrap(),
        };
        assert!((0..8).all(|n| holder.references.contains(&chunk(&blocks, n).reference.address)));
    }
    let slots = table.slots(&blocks, &AllPending, 1, 10).unwrap();
    assert_eq!(slots.entries.iter().map(|(key, _)| key_number(key).unwrap()).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn an_inline_inode_that_disagrees_with_its_references_is_refused() {
    let blocks = MemoryBlocks::new(KEY);
    let mut inode = of_kind(InodeKind::File);
    inode.content = extents(&blocks, 2);
    inode.size = 2000;
    let good = InodeSlot::value_of(&mut &blocks, &inode).unwrap();
    assert!(InodeSlot::from_value(&good).is_ok());
    let refused = |edit: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        edit(&mut value);
        matches!(InodeSlot::from_value(&value), Err(ContentError::Malformed { .. }))
    };
    assert!(refused(&|value| value.references[0].length += 1));
    assert!(refused(&|value| value.references.truncate(1)));
    assert!(refused(&|value| value.references.push(value.references[0])));
    assert!(refused(&|value| value.bytes[0] = 1));
    assert!(refused(&|value| value.bytes[0] = 2));
    assert!(refused(&|value| value.bytes.clear()));
}

#[test]
fn targets_resolve_singly_and_by_range() {
    let blocks = MemoryBlocks::new(KEY);
    let mut table = Table::new(PrincipalId::Group(GroupId(1)));
    let range = Target { device: DeviceId(4), first: 500, count: 100 };
    let other = Target { device: DeviceId(5), first: 900, count: 50 };
    table.map.push(target_change(1000, Some(&range), None).unwrap());
    table.map.push(target_change(1200, Some(&other), None).unwrap());
    table.map.push(target_change(1007, Some(&Target::one(DeviceId(9), 3)), None).unwrap());
    table.map.push(target_change(5, Some(&Target::one(DeviceId(9), 4)), None).unwrap());
    for compacted in [false, true] {
        if compacted {
            table.map = table.map.settle_and_compact(&blocks, &mut &blocks, &AllPending, 0).unwrap();
        }
        let target = |number| table.target(&blocks, &AllPending, number).unwrap().value;
        assert_eq!(target(5), Some(Target::one(DeviceId(9), 4)));
        assert_eq!(target(1000), Some(Target::one(DeviceId(4), 500)));
        assert_eq!(target(1006), Some(Target::one(DeviceId(4), 506)));
        assert_eq!(target(1007), Some(Target::one(DeviceId(9), 3)), "the single entry wins");
        assert_eq!(target(1099), Some(Target::one(DeviceId(4), 599)));
        assert_eq!(target(1249), Some(Target::one(DeviceId(5), 949)));
        for absent in [1, 4, 6, 999, 1100, 1199, 1250, NUMBER_MAX] {
            assert_eq!(target(absent), None, "{absent}");
        }
    }
    // Removing hides a number that a range covers, and drops one that none covers.
    for (number, gone) in [(1006, false), (1007, false), (5, true)] {
        let change = table.remove(&blocks, &AllPending, number, None).unwrap();
        assert_eq!(change.value.is_none(), gone);
        table.map.push(change);
        assert_eq!(table.target(&blocks, &AllPending, number).unwrap().value, None);
    }
    table.map = table.map.settle_and_compact(&blocks, &mut &blocks, &AllPending, 0).unwrap();
    assert_eq!(table.target(&blocks, &AllPending, 1006).unwrap().value, None);
    assert_eq!(table.target(&blocks, &AllPending, 1008).unwrap().value, Some(Target::one(DeviceId(4), 508)));
    assert_eq!(table.map.root.len(), 4);
}

#[test]
fn pending_ranges_hold_up_only_the_numbers_they_cover() {
    let blocks = MemoryBlocks::new(KEY);
    let mut table = Table::new(PrincipalId::Group(GroupId(1)));
    let range = |first, count| Target { device: DeviceId(4), first, count };
    table.map.push(target_change(100, Some(&range(1, 10)), None).unwrap());
    table.map.push(target_change(200, Some(&range(11, 10)), Some(tag(1))).unwrap());
    table.map.push(target_change(105, Some(&Target::one(DeviceId(6), 1)), Some(tag(2))).unwrap());
    let unsettled = |number| table.target(&blocks, &AllPending, number).unwrap().unsettled;
    assert_eq!(unsettled(104), None);
    assert_eq!(unsettled(105), Some(tag(2)));
    assert_eq!(unsettled(205), Some(tag(1)));
    assert_eq!(unsettled(210), None);
    assert_eq!(unsettled(99), None);
    // A number that a pending range may come to cover is hidden, not dropped.
    assert!(table.remove(&blocks, &AllPending, 205, None).unwrap().value.is_some());
}

#[test]
fn targets_out_of_bounds_are_refused() {
    let one = |first, count| Target { device: DeviceId(1), first, count };
    for (number, target) in [
        (0, one(1, 1)),
        (NUMBER_MAX + 1, one(1, 1)),
        (1, one(0, 1)),
        (1, one(NUMBER_MAX, 2)),
        (NUMBER_MAX, one(1, 2)),
        (1, one(1, 0)),
        (1, one(1, RANGE_COUNT_MAX + 1)),
    ] {
        assert!(matches!(target_change(number, Some(&target), None), Err(ContentError::Misuse(_))));
    }
    let blocks = MemoryBlocks::new(KEY);
    let mut table = Table::new(PrincipalId::User(UserId(1)));
    // By hand: a range where a single entry should be, and nonsense.
    for value in [
        holdfast_crypto::encode(&Some(one(1, 5))),
        holdfast_crypto::encode(&Some(one(0, 1))),
        vec![2],
        vec![],
    ] {
        table.map.changes = vec![Change { key: number_key(1), value: Some(Value::plain(value)), tag: None }];
        assert!(matches!(table.target(&blocks, &AllPending, 1), Err(ContentError::Malformed { .. })));
    }
    // Members have no table.
    let members = Table::new(PrincipalId::Members).store(&mut &blocks).unwrap();
    assert!(Table::load(&blocks, &members).is_err());
}

#[test]
fn directories_list_in_order_and_refuse_bad_names() {
    let blocks = MemoryBlocks::new(KEY);
    let entry = |number| Entry {
        handle: Handle { principal: PrincipalId::User(UserId(1)), number },
        kind: InodeKind::File,
    };
    let mut map = LiveMap::EMPTY;
    let names: BTreeSet<Vec<u8>> = (1..500u64).map(|n| format!("name {n}").into_bytes()).collect();
    for (number, name) in names.iter().enumerate() {
        map.push(directory::change(name, Some(&entry(number as u64 + 1)), None).unwrap());
        map = map.settle_and_compact(&blocks, &mut &blocks, &AllPending, CHANGES_WANTED_MAX).unwrap();
    }
    let mut seen = Vec::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = directory::list(&blocks, &AllPending, &map, after.as_deref(), 37).unwrap();
        seen.extend(page.entries.iter().map(|(name, _)| name.clone()));
        after = seen.last().cloned();
        if page.complete {
            break;
        }
    }
    assert!(seen.iter().eq(&names));
    assert_eq!(directory::lookup(&blocks, &AllPending, &map, b"name 1").unwrap().value, Some(entry(1)));
    let bad: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]];
    for name in bad {
        assert!(matches!(directory::change(name, None, None), Err(Misuse::BadName(_))));
        assert_eq!(directory::lookup(&blocks, &AllPending, &map, name).unwrap().value, None);
    }
    directory::check_name(&[b'x'; 255]).unwrap();
    directory::check_name(b"...").unwrap();
    directory::check_name(b"\xff\xfe not UTF-8").unwrap();

    // A hostile directory: a name that would escape it, and malformed entries.
    let hostile =
        with_changes([Change { key: b"../x".to_vec(), value: Some(entry(1).to_value()), tag: None }]);
    assert!(directory::list(&blocks, &AllPending, &hostile, None, 10).is_err());
    for value in [vec![], vec![0], holdfast_crypto::encode(&(Handle::ROOT, 99u8))] {
        let value = Some(Value::plain(value));
        let hostile = with_changes([Change { key: b"x".to_vec(), value, tag: None }]);
        assert!(directory::lookup(&blocks, &AllPending, &hostile, b"x").is_err());
    }
    for (principal, number) in [(PrincipalId::Members, 1), (PrincipalId::User(UserId(1)), 0)] {
        let entry = Entry { handle: Handle { principal, number }, kind: InodeKind::File };
        assert!(Entry::from_value(&entry.to_value()).is_err());
    }
}

/// Superuser with two devices, two users, a group of one of them, all with their devices.
fn membership() -> Membership {
    let key = |seed| SigningKey::from_seed(&[seed; 32]).public();
    let mut membership = Membership::founding("team", "root", key(0));
    for (id, name) in [(1, "ann"), (2, "bob")] {
        membership.users.insert(UserId(id), User { name: name.into(), removed: false });
    }
    for (id, user, name) in [(1, 1, "laptop"), (2, 1, "desktop"), (3, 2, "laptop"), (4, 0, "spare")] {
        let device = Device { user: UserId(user), name: name.into(), key: key(id), removed_at: None };
        membership.devices.insert(DeviceId(id.into()), device);
    }
    let group = Group {
        name: "staff".into(),
        members: [UserId(1)].into(),
        former: Default::default(),
        removed: false,
        groups: Default::default(),
    };
    membership.groups.insert(GroupId(1), group);
    membership
}

#[test]
fn who_may_write_what() {
    let mut membership = membership();
    membership.validate().unwrap();
    use PrincipalId::{Group as G, Members, User as U};
    let d = |id| PrincipalId::Device(DeviceId(id));
    let (u, g) = (|id| U(UserId(id)), |id| G(GroupId(id)));
    let principals = [Members, d(0), d(1), d(2), d(3), d(4), d(9), u(0), u(1), u(2), u(9), g(1), g(9)];
    let rights = |membership: &Membership, device| -> Vec<PrincipalId> {
        principals.into_iter().filter(|p| membership.may_write(DeviceId(device), *p)).collect()
    };
    let everything = [d(0), d(1), d(2), d(3), d(4), u(0), u(1), u(2), g(1)];
    assert_eq!(rights(&membership, 0), [&[Members][..], &everything].concat());
    assert_eq!(rights(&membership, 4), everything, "membership is device 0's alone");
    assert_eq!(rights(&membership, 1), [d(1), u(1), g(1)]);
    assert_eq!(rights(&membership, 2), [d(2), u(1), g(1)]);
    assert_eq!(rights(&membership, 3), [d(3), u(2)]);
    assert_eq!(rights(&membership, 9), []);
    // Removed: the device, the group, the user.
    membership.version = 2;
    membership.devices.get_mut(&DeviceId(2)).unwrap().removed_at = Some(2);
    assert_eq!(rights(&membership, 2), []);
    assert_eq!(rights(&membership, 1), [d(1), u(1), g(1)]);
    assert!(!membership.may_write(DeviceId(0), d(2)));
    membership.groups.get_mut(&GroupId(1)).unwrap().removed = true;
    assert_eq!(rights(&membership, 1), [d(1), u(1)]);
    membership.users.get_mut(&UserId(1)).unwrap().removed = true;
    assert_eq!(rights(&membership, 1), []);
    assert_eq!(membership.device_by_key(&SigningKey::from_seed(&[2; 32]).public()), Some(DeviceId(2)));
    assert_eq!(membership.user_by_name("ann"), None);
    assert_eq!(membership.user_by_name("bob"), Some(UserId(2)));
    assert_eq!(
        (membership.next_user(), membership.next_group(), membership.next_device()),
        (UserId(3), GroupId(2), DeviceId(5))
    );
}

#[test]
fn membership_comes_back_and_invalid_ones_do_not() {
    let blocks = MemoryBlocks::new(KEY);
    let good = membership();
    let reference = good.store(&mut &blocks).unwrap();
    assert_eq!(Membership::load(&blocks, &reference).unwrap(), good);

    type Edit = fn(&mut Membership);
    let bad: [(&str, Edit); 16] = [
        ("version", |m| m.version = 0),
        ("name", |m| m.name = String::new()),
        ("name", |m| m.name = "x".repeat(65)),
        ("not a valid name", |m| m.name = "a\nb".into()),
        ("not a valid name", |m| m.name = "a/b".into()),
        ("not a valid name", |m| m.name = " a".into()),
        ("superuser", |m| drop(m.devices.remove(&DeviceId(0)))),
        ("superuser", |m| m.devices.get_mut(&DeviceId(0)).unwrap().user = UserId(1)),
        ("superuser", |m| m.devices.get_mut(&DeviceId(0)).unwrap().removed_at = Some(1)),
        ("superuser", |m| m.users.get_mut(&UserId(0)).unwrap().removed = true),
        ("two users", |m| m.users.get_mut(&UserId(1)).unwrap().name = "bob".into()),
        ("no user", |m| m.devices.get_mut(&DeviceId(1)).unwrap().user = UserId(77)),
        ("no user", |m| m.groups.get_mut(&GroupId(1)).unwrap().members.extend([UserId(77)])),
        ("one key", |m| m.devices.get_mut(&DeviceId(1)).unwrap().key = m.devices[&DeviceId(2)].key),
        ("two devices", |m| m.devices.get_mut(&DeviceId(1)).unwrap().name = "desktop".into()),
        ("future", |m| m.devices.get_mut(&DeviceId(1)).unwrap().removed_at = Some(2)),
    ];
    for (words, edit) in bad {
        let mut membership = good.clone();
        edit(&mut membership);
        let error = membership.validate().unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert!(matches!(membership.store(&mut &blocks), Err(ContentError::Misuse(_))));
        // Signed by a hostile superuser all the same, it is not read either.
        let body = [&[1][..], &holdfast_crypto::encode(&membership)].concat();
        let reference = (&blocks).put(Block::new(&KEY, BlockKind::Membership, vec![], body));
        assert!(matches!(Membership::load(&blocks, &reference), Err(ContentError::Malformed { .. })));
    }
    let mut ids = good.clone();
    ids.users.insert(UserId(ID_MAX + 1), User { name: "far".into(), removed: false });
    assert!(ids.validate().is_err());
}

#[test]
fn membership_only_grows() {
    let good = membership();
    let mut next = good.clone();
    next.version = 2;
    good.validate_successor(&next).unwrap();
    // A change that was ordered without effect uses up a version.
    let mut after_abort = next.clone();
    after_abort.version = 3;
    good.validate_successor(&after_abort).unwrap();
    // Versions may be skipped: operations that die use them up.
    good.validate_successor(&good.succeeded_by(good.clone(), 5)).unwrap();
    let mut left = good.clone();
    left.groups.get_mut(&GroupId(1)).unwrap().members.clear();
    let left = good.succeeded_by(left, 2);
    good.validate_successor(&left).unwrap();
    let group = PrincipalId::Group(GroupId(1));
    let device = *good.devices.iter().find(|(_, device)| device.user == UserId(1)).unwrap().0;
    assert!(good.might_write(device, group, 1) && left.might_write(device, group, 1));
    assert!(!left.may_write(device, group) && !left.might_write(device, group, 2));
    // A removed device might have written before its removal, but not later.
    let mut gone = left.clone();
    gone.devices.get_mut(&device).unwrap().removed_at = Some(4);
    gone.version = 9;
    let user = PrincipalId::User(UserId(1));
    assert!(gone.might_write(device, user, 3) && !gone.might_write(device, user, 4));
    let mut removal = next.clone();
    removal.devices.get_mut(&DeviceId(1)).unwrap().removed_at = Some(2);
    removal.users.get_mut(&UserId(2)).unwrap().removed = true;
    removal.groups.get_mut(&GroupId(1)).unwrap().removed = true;
    good.validate_successor(&removal).unwrap();

    type Edit = fn(&mut Membership);
    let bad: [(&str, Edit); 11] = [
        ("version", |m| m.version = 0),
        ("version", |m| m.version = 1),
        ("former members", |m| m.groups.get_mut(&GroupId(1)).unwrap().members.clear()),
        ("user was erased", |m| {
            m.users.remove(&UserId(2));
            m.devices.remove(&DeviceId(3));
        }),
        ("group was erased", |m| drop(m.groups.remove(&GroupId(1)))),
        ("device was erased", |m| drop(m.devices.remove(&DeviceId(1)))),
        ("its user", |m| m.devices.get_mut(&DeviceId(4)).unwrap().user = UserId(2)),
        ("its key", |m| {
            m.devices.get_mut(&DeviceId(1)).unwrap().key = SigningKey::from_seed(&[99; 32]).public()
        }),
        ("another version", |m| m.devices.get_mut(&DeviceId(1)).unwrap().removed_at = Some(1)),
        ("new device", |m| {
            let key = SigningKey::from_seed(&[99; 32]).public();
            let device = Device { user: UserId(1), name: "new".into(), key, removed_at: Some(2) };
            m.devices.insert(DeviceId(9), device);
        }),
        ("name", |m| m.name = String::new()),
    ];
    for (words, edit) in bad {
        let mut membership = next.clone();
        edit(&mut membership);
        let error = good.validate_successor(&membership).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    // Removed entries cannot be restored.
    let back: [Edit; 4] = [
        |m| m.devices.get_mut(&DeviceId(1)).unwrap().removed_at = None,
        |m| m.devices.get_mut(&DeviceId(1)).unwrap().removed_at = Some(3),
        |m| m.users.get_mut(&UserId(2)).unwrap().removed = false,
        |m| m.groups.get_mut(&GroupId(1)).unwrap().removed = false,
    ];
    let mut later = removal.clone();
    later.version = 3;
    removal.validate_successor(&later).unwrap();
    for edit in back {
        let mut membership = later.clone();
        edit(&mut membership);
        assert!(removal.validate_successor(&membership).is_err());
    }
}

#[test]
fn set_roots_depend_on_contents_alone() {
    let entries: BTreeMap<Vec<u8>, Vec<u8>> =
        (0..3000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 8])).collect();
    let root = set_root(&KEY, entries.clone().into_iter());
    assert_eq!(set_root(&KEY, entries.clone().into_iter().rev()), root);
    assert_ne!(set_root(&DigestKey([1; 32]), entries.clone().into_iter()), root);
    let mut seen = BTreeSet::from([root, set_root(&KEY, std::iter::empty())]);
    for n in [0u32, 1500, 2999] {
        let mut less = entries.clone();
        less.remove(&n.to_be_bytes()[..]);
        assert!(seen.insert(set_root(&KEY, less.into_iter())));
        let mut other = entries.clone();
        other.insert(n.to_be_bytes().to_vec(), vec![]);
        assert!(seen.insert(set_root(&KEY, other.into_iter())));
    }
    // Moving bytes from key to value is another set.
    let one = |key: &[u8], value: &[u8]| set_root(&KEY, [(key.to_vec(), value.to_vec())].into_iter());
    assert_ne!(one(b"ab", b"c"), one(b"a", b"bc"));
}

#[test]
fn handles_and_inode_numbers_convert_both_ways() {
    for principal in
        [PrincipalId::User(UserId(0)), PrincipalId::Group(GroupId(ID_MAX)), PrincipalId::Device(DeviceId(5))]
    {
        for number in [1, 77, NUMBER_MAX] {
            let handle = Handle { principal, number };
            let inode_number = handle.inode_number().unwrap();
            assert_eq!(Handle::from_inode_number(inode_number), Some(handle));
        }
        for number in [0, NUMBER_MAX + 1] {
            assert_eq!(Handle { principal, number }.inode_number(), None);
        }
    }
    assert_eq!(Handle::ROOT.inode_number(), Some(1));
    let wide = Handle { principal: PrincipalId::User(UserId(ID_MAX + 1)), number: 1 };
    assert_eq!(wide.inode_number(), None);
    assert_eq!(Handle { principal: PrincipalId::Members, number: 1 }.inode_number(), None);
    for number in [0, 3 << 62, 1 << 62] {
        assert_eq!(Handle::from_inode_number(number), None);
    }
}
