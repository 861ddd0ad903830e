//! Proves the rules of groups within groups against a model of plain sets: which users belong to which
//! groups, and since when no longer. Circles, depth and size are refused; a membership has one form.

use holdfast_content::*;
use holdfast_crypto::{DigestKey, SigningKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const KEY: DigestKey = DigestKey::WELL_KNOWN;
const USERS: u32 = 5;
const GROUPS: u32 = 6;

/// Users 1 to 5, each with the device of the same number, and empty groups 1 to 6.
fn people() -> Membership {
    let key = |seed| SigningKey::from_seed(&[seed; 32]).public();
    let mut members = Membership::founding("team", "root", key(0));
    for id in 1..=USERS {
        members.users.insert(UserId(id), User { name: format!("user{id}"), removed: false });
        let device = Device { user: UserId(id), name: "laptop".into(), key: key(id as u8), removed_at: None };
        members.devices.insert(DeviceId(id), device);
    }
    for id in 1..=GROUPS {
        members.groups.insert(GroupId(id), empty(&format!("group{id}")));
    }
    members
}

fn empty(name: &str) -> Group {
    Group {
        name: name.into(),
        members: BTreeSet::new(),
        former: BTreeMap::new(),
        removed: false,
        groups: BTreeSet::new(),
    }
}

fn group(id: u32) -> Member {
    Member::Group(GroupId(id))
}

fn user(id: u32) -> Member {
    Member::User(UserId(id))
}

fn belong(members: &Membership, id: u32) -> Vec<u32> {
    members.effective_members(GroupId(id)).iter().map(|user| user.0).collect()
}

#[test]
fn inner_groups_bring_their_members() {
    let mut members = people();
    members.admit(GroupId(1), group(2));
    members.admit(GroupId(1), user(1));
    members.admit(GroupId(2), user(2));
    members.admit(GroupId(2), group(3));
    members.admit(GroupId(3), user(3));
    members.validate().unwrap();
    assert_eq!((belong(&members, 1), belong(&members, 2)), (vec![1, 2, 3], vec![2, 3]));
    let writes = |members: &Membership, device, id| {
        members.may_write(DeviceId(device), PrincipalId::Group(GroupId(id)))
    };
    assert!(writes(&members, 3, 1) && writes(&members, 3, 3) && !writes(&members, 1, 2));
    assert!(!writes(&members, 4, 1) && writes(&members, 0, 1));
    assert_eq!(members.member_by_name("@group2"), Some(group(2)));
    assert_eq!(members.member_by_name("user2"), Some(user(2)));
    assert_eq!((members.member_by_name("group2"), members.member_by_name("@user2")), (None, None));

    // The inner group is removed: users who were in the outer one only through it leave it, at that version.
    members.admit(GroupId(1), user(2));
    let mut next = members.clone();
    next.remove_group(GroupId(2));
    assert_eq!(members.leaving_members(GroupId(1), &next), [UserId(3)].into());
    let next = members.succeeded_by(next, 7);
    members.validate_successor(&next).unwrap();
    assert_eq!(
        (belong(&next, 1), next.groups[&GroupId(1)].former.clone()),
        (vec![1, 2], [(UserId(3), 7)].into())
    );
    assert_eq!((belong(&next, 2), next.groups[&GroupId(2)].former.len()), (vec![2, 3], 0));
    let table = PrincipalId::Group(GroupId(1));
    assert!(next.might_write(DeviceId(3), table, 6) && !next.might_write(DeviceId(3), table, 7));
    // A user who was removed from a group does not stay in it through another group; and a removed group does
    // not change when groups within it do.
    let mut later = next.clone();
    later.expel(GroupId(3), user(3));
    let later = next.succeeded_by(later, 8);
    next.validate_successor(&later).unwrap();
    assert_eq!(later.groups[&GroupId(3)].former, [(UserId(3), 8)].into());
    assert_eq!(later.groups[&GroupId(2)].former.len(), 0);
}

#[test]
fn what_breaks_the_rules_is_refused() {
    type Edit = fn(&mut Membership);
    let inner = |members: &mut Membership, outer: u32, inner: u32| {
        members.admit(GroupId(outer), group(inner));
    };
    let chain = |members: &mut Membership, levels: u32| {
        for id in 1..=levels {
            members.groups.entry(GroupId(id)).or_insert_with(|| empty(&format!("group{id}")));
        }
        (1..levels).for_each(|id| inner(members, id, id + 1));
    };
    let mut deep = people();
    chain(&mut deep, GROUP_DEPTH_MAX as u32);
    deep.validate().unwrap();
    chain(&mut deep, GROUP_DEPTH_MAX as u32 + 1);
    assert!(deep.validate().unwrap_err().to_string().contains("too deep"));
    let bad: [(&str, Edit); 6] = [
        ("circle", |m| {
            m.admit(GroupId(1), Member::Group(GroupId(1)));
        }),
        ("circle", |m| {
            for (outer, inner) in [(1, 2), (2, 3), (3, 1)] {
                m.admit(GroupId(outer), Member::Group(GroupId(inner)));
            }
        }),
        ("not there", |m| {
            m.admit(GroupId(1), Member::Group(GroupId(99)));
        }),
        ("is removed", |m| {
            m.admit(GroupId(1), Member::Group(GroupId(2)));
            m.groups.get_mut(&GroupId(2)).unwrap().removed = true;
        }),
        ("a removed group", |m| {
            m.admit(GroupId(1), Member::Group(GroupId(2)));
            m.groups.get_mut(&GroupId(1)).unwrap().removed = true;
        }),
        // Each within the limits of a block, together without end.
        ("too many", |m| {
            m.users
                .extend((100..3_000).map(|id| (UserId(id), User { name: format!("u{id}"), removed: false })));
            let everybody: BTreeSet<UserId> = m.users.keys().copied().collect();
            m.groups.get_mut(&GroupId(1)).unwrap().members = everybody;
            for id in 100..600 {
                m.groups.insert(GroupId(id), empty(&format!("g{id}")));
                m.admit(GroupId(id), Member::Group(GroupId(1)));
            }
        }),
    ];
    let blocks = MemoryBlocks::new(KEY);
    for (words, edit) in bad {
        let mut members = people();
        edit(&mut members);
        let error = members.validate().unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        // Signed by a hostile superuser all the same, it is not read either.
        let body = [&[2][..], &holdfast_crypto::encode(&members)].concat();
        let reference = (&blocks).put(Block::new(&KEY, BlockKind::Membership, vec![], body));
        assert!(matches!(Membership::load(&blocks, &reference), Err(ContentError::Malformed { .. })));
    }
    // A user who left through another group must be recorded.
    let mut before = people();
    before.admit(GroupId(1), group(2));
    before.admit(GroupId(2), user(2));
    let mut forgotten = before.clone();
    forgotten.expel(GroupId(1), group(2));
    forgotten.version = 2;
    assert!(before.validate_successor(&forgotten).unwrap_err().to_string().contains("former members"));
    before.validate_successor(&before.succeeded_by(forgotten, 2)).unwrap();
}

#[test]
fn one_membership_has_one_form() {
    let load = |body: Vec<u8>| Membership::from_block(&Block::new(&KEY, BlockKind::Membership, vec![], body));
    let plain = people();
    let mut nested = plain.clone();
    nested.admit(GroupId(1), group(2));
    let mut limited = plain.clone();
    limited.quotas.insert(UserId(1), 1 << 30);
    let mut both = nested.clone();
    both.quotas = limited.quotas.clone();
    for (members, expected) in [(&plain, 1), (&nested, 2), (&limited, 3), (&both, 3)] {
        let bytes = holdfast_crypto::encode(members);
        assert_eq!(holdfast_crypto::decode::<Membership>(&bytes).unwrap(), *members);
        let format = members.to_block(&KEY).unwrap().body()[0];
        assert_eq!(format, expected);
        for other in [0, 1, 2, 3, 4] {
            let read = load([&[other][..], &bytes].concat());
            assert_eq!(read.is_ok(), other == format, "format {other} of {format}");
        }
        // Cut short or gone on with, it is not read.
        assert!(load([&[format][..], &bytes[..bytes.len() - 1]].concat()).is_err());
        assert!(load([&[format][..], &bytes, &[0]].concat()).is_err());
    }
    // Announced, and empty; with an empty set; of a group that does not exist; with unknown marks.
    let mut announced = holdfast_crypto::encode(&plain);
    announced[7] |= 0x80;
    let with = |tail: &BTreeMap<GroupId, BTreeSet<GroupId>>| {
        load([&[2][..], &announced, &holdfast_crypto::encode(tail)].concat())
    };
    assert!(with(&[(GroupId(1), [GroupId(2)].into())].into()).is_ok());
    assert!(with(&BTreeMap::new()).is_err());
    assert!(with(&[(GroupId(1), BTreeSet::new())].into()).is_err());
    assert!(with(&[(GroupId(99), [GroupId(2)].into())].into()).is_err());
    let mut unknown = holdfast_crypto::encode(&plain);
    unknown[7] |= 0x20;
    assert!((1..=4).all(|format| load([&[format][..], &unknown].concat()).is_err()));
    let mut no_limits = holdfast_crypto::encode(&plain);
    no_limits[7] |= 0x40;
    assert!(load([&[3][..], &no_limits, &[0; 4]].concat()).is_err());
    limited.quotas.insert(UserId(99), 1);
    assert!(limited.validate().is_err());
}

#[derive(Clone, Debug)]
enum Change {
    Admit(u32, Member),
    Expel(u32, Member),
    Remove(u32),
}

fn member() -> impl Strategy<Value = Member> {
    prop_oneof![(1..=USERS).prop_map(user), (1..=GROUPS).prop_map(group)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (1..=GROUPS, member()).prop_map(|(outer, member)| Change::Admit(outer, member)),
        3 => (1..=GROUPS, member()).prop_map(|(outer, member)| Change::Expel(outer, member)),
        1 => (1..=GROUPS).prop_map(Change::Remove),
    ]
}

/// The users of each group, by following edges until nothing is added any more; `None` if that leads into a
/// circle.
#[derive(Clone, Default)]
struct Model {
    edges: BTreeSet<(u32, Member)>,
    removed: BTreeMap<u32, BTreeSet<u32>>,
}

impl Model {
    fn reach(&self, from: u32) -> BTreeSet<Member> {
        let mut found: BTreeSet<Member> = BTreeSet::new();
        loop {
            let inner = |outer: u32| outer == from || found.contains(&group(outer));
            let more: BTreeSet<Member> =
                self.edges.iter().filter(|(outer, _)| inner(*outer)).map(|(_, member)| *member).collect();
            let size = found.len();
            found.extend(more);
            if found.len() == size {
                return found;
            }
        }
    }

    fn users(&self, of: u32) -> BTreeSet<u32> {
        if let Some(users) = self.removed.get(&of) {
            return users.clone();
        }
        let users = self.reach(of).into_iter().filter_map(|member| match member {
            Member::User(user) => Some(user.0),
            Member::Group(_) => None,
        });
        users.collect()
    }

    fn has_circle(&self) -> bool {
        (1..=GROUPS).any(|id| self.reach(id).contains(&group(id)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Proves: whatever changes are made in whatever order, each group has the members of the model, former
    /// members left at the version at which they left in the model, and circles are refused.
    #[test]
    fn as_a_model_of_sets(changes in proptest::collection::vec(change(), 1..40)) {
        let (mut members, mut model) = (people(), Model::default());
        let mut left: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for change in changes {
            let (mut next, mut after) = (members.clone(), model.clone());
            match change {
                Change::Admit(outer, member) => {
                    let gone = |id: u32| model.removed.contains_key(&id);
                    if gone(outer) || matches!(member, Member::Group(inner) if gone(inner.0)) {
                        continue;
                    }
                    prop_assert_eq!(next.admit(GroupId(outer), member), after.edges.insert((outer, member)));
                }
                Change::Expel(outer, member) => {
                    if model.removed.contains_key(&outer) {
                        continue;
                    }
                    prop_assert_eq!(next.expel(GroupId(outer), member), after.edges.remove(&(outer, member)));
                }
                Change::Remove(id) => {
                    if model.removed.contains_key(&id) {
                        continue;
                    }
                    after.removed.insert(id, model.users(id));
                    after.edges.retain(|(outer, member)| *outer != id && *member != group(id));
                    next.remove_group(GroupId(id));
                }
            }
            let version = members.version + 1;
            let next = members.succeeded_by(next, version);
            if after.has_circle() {
                prop_assert!(next.validate().is_err());
                continue;
            }
            prop_assert_eq!(members.validate_successor(&next), Ok(()));
            for id in 1..=GROUPS {
                let (before, now) = (model.users(id), after.users(id));
                left.extend(before.difference(&now).map(|user| ((id, *user), version)));
                let shown: BTreeSet<u32> = belong(&next, id).into_iter().collect();
                prop_assert_eq!(&shown, &now);
                let former: BTreeMap<(u32, u32), u64> = next.groups[&GroupId(id)]
                    .former.iter().map(|(user, at)| ((id, user.0), *at)).collect();
                prop_assert_eq!(former, left.clone().into_iter().filter(|((of, _), _)| *of == id).collect());
                for user in 1..=USERS {
                    let writes = next.may_write(DeviceId(user), PrincipalId::Group(GroupId(id)));
                    prop_assert_eq!(writes, now.contains(&user) && !after.removed.contains_key(&id));
                }
            }
            let block = next.to_block(&KEY).unwrap();
            prop_assert_eq!(&Membership::from_block(&block).unwrap(), &next);
            (members, model) = (next, after);
        }
    }
}
