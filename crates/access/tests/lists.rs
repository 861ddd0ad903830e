//! ACLs, scopes and predicates against plain definitions of what they mean.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_crypto::{Digest, decode, encode};
use std::collections::{BTreeMap, BTreeSet};

fn whole(principal: Principal) -> Alias {
    Alias::attested(principal, Scope::EVERYTHING)
}

/// The guard: alias and access must both be on the list, and nobody is on an empty one.
#[test]
fn a_list_permits_whom_it_names_and_nobody_else() {
    let mut acl = Acl::nobody();
    assert!(!acl.permits(&whole(user("alice")), Access::Read, blocks(0, 1)), "empty permits nobody");
    acl.set(user("alice"), Access::ReadWrite).expect("room");
    acl.set(group("staff"), Access::Read).expect("room");
    let table = [
        (user("alice"), true, true),
        (group("staff"), true, false),
        (user("staff"), false, false),
        (group("alice"), false, false),
        (key(1), false, false),
        (process(1), false, false),
        (Principal::Machine, false, false),
    ];
    for (principal, read, write) in table {
        let alias = whole(principal.clone());
        assert_eq!(acl.permits(&alias, Access::Read, blocks(0, 1)), read, "{principal}");
        assert_eq!(acl.permits(&alias, Access::ReadWrite, blocks(0, 1)), write, "{principal}");
    }
    assert!(acl.remove(&user("alice")) && !acl.remove(&user("alice")));
    assert!(!acl.permits(&whole(user("alice")), Access::Read, blocks(0, 1)));
}

/// A restricted alias passes only within its restriction.
#[test]
fn the_guard_honours_restrictions() {
    let acl = Acl::of(user("alice"), Access::ReadWrite).expect("room");
    let reader = Alias::attested(user("alice"), scope(&[Operation::Read], &[blocks(10, 10)]));
    assert!(acl.permits(&reader, Access::Read, blocks(10, 10)));
    assert!(!acl.permits(&reader, Access::ReadWrite, blocks(10, 10)));
    assert!(!acl.permits(&reader, Access::Read, blocks(9, 2)));
    assert!(!acl.permits(&reader, Access::Read, Objects::file(0, 10)), "another kind of object");
    assert!(!acl.permits(&reader, Access::Read, Objects::blocks(1, 10, 1).expect("a range")), "another disk");
    let writer = Alias::attested(user("alice"), scope(&[Operation::Write], &[blocks(10, 10)]));
    assert!(!acl.permits(&writer, Access::ReadWrite, blocks(10, 1)), "read/write takes both");
}

#[test]
fn a_list_holds_no_process_and_is_bounded() {
    for passing in [process(1), Principal::Machine] {
        let refused = Err(AccessError::NotStorable(passing.clone()));
        assert_eq!(Acl::of(passing.clone(), Access::Read), refused);
        let smuggled = encode(&BTreeMap::from([(passing, Access::Read)]));
        assert!(decode::<Acl>(&smuggled).is_err());
    }
    let mut acl = Acl::nobody();
    for number in 0..ENTRIES_MAX {
        acl.set(user(&format!("u{number}")), Access::Read).expect("room");
    }
    assert_eq!(acl.set(user("late"), Access::Read), Err(AccessError::AclFull));
    acl.set(user("u3"), Access::ReadWrite).expect("one that is there can change");
    assert_eq!(decode::<Acl>(&encode(&acl)), Ok(acl.clone()));
    let mut longer: BTreeMap<Principal, Access> = acl.entries().map(|(p, a)| (p.clone(), a)).collect();
    longer.insert(user("late"), Access::Read);
    assert!(decode::<Acl>(&encode(&longer)).is_err());
}

/// Every subset of a row of objects, as ranges.
fn subset(bits: u32) -> Vec<Objects> {
    let mut ranges: Vec<Objects> = Vec::new();
    for object in (0..8).filter(|object| bits & (1 << object) != 0) {
        match ranges.last_mut() {
            Some(last) if last.last + 1 == blocks(object, 1).first => last.last += 1,
            _ => ranges.push(blocks(object, 1)),
        }
    }
    ranges
}

/// Intersection, inclusion and covering are exact: all pairs of subsets of eight objects.
#[test]
fn scopes_are_sets() {
    let read = || operations(&[Operation::Read]);
    let of = |bits: u32| Scope::new(read(), Limit::Only(subset(bits)));
    for one in 0..256u32 {
        for two in (0..256u32).step_by(3) {
            let (Ok(left), Ok(right)) = (of(one), of(two)) else {
                assert!(one == 0 || two == 0, "only the empty set is refused");
                continue;
            };
            assert_eq!(left.intersect(&right), of(one & two), "{one:b} {two:b}");
            assert_eq!(left.contains(&right), two & !one == 0, "{one:b} {two:b}");
        }
        for first in 0..8u64 {
            for count in 1..=8 - first {
                let wanted = ((1u32 << count) - 1) << first;
                let covered = of(one).is_ok_and(|scope| scope.covers(Operation::Read, blocks(first, count)));
                assert_eq!(covered, one & wanted == wanted && one != 0, "{one:b} {first}+{count}");
            }
        }
    }
}

#[test]
fn scopes_are_canonical() {
    let every = || Limit::Every;
    let only = |ranges: &[Objects]| Scope::new(every(), Limit::Only(ranges.to_vec()));
    assert_eq!(only(&[]), Err(AccessError::EmptyScope));
    assert_eq!(Scope::new(operations(&[]), Limit::Every), Err(AccessError::EmptyScope));
    for bad in [
        vec![blocks(5, 1), blocks(1, 1)],
        vec![blocks(1, 5), blocks(3, 5)],
        vec![blocks(1, 5), blocks(6, 1)],
        vec![Objects { first: 3, last: 2 }],
        (0..65).map(|number| blocks(number * 2, 1)).collect(),
    ] {
        assert_eq!(only(&bad), Err(AccessError::BadScope));
        let bytes = encode(&(Limit::<BTreeSet<Operation>>::Every, Limit::Only(bad)));
        assert!(decode::<Scope>(&bytes).is_err());
    }
    let most: Vec<Objects> = (0..64).map(|number| blocks(number * 2, 1)).collect();
    let most = only(&most).expect("64 ranges are allowed");
    assert_eq!(decode::<Scope>(&encode(&most)), Ok(most.clone()));
    assert!(
        !most.covers(Operation::Read, Objects { first: 1, last: 0 }),
        "no objects are not covered objects"
    );
}

/// Ranges that only together are too many refuse the proof; they are never cut short.
#[test]
fn an_intersection_of_too_many_ranges_is_refused() {
    let comb = |teeth: u64, width: u64, period: u64| {
        let ranges = (0..teeth).map(|tooth| blocks(tooth * period, width)).collect();
        Scope::new(Limit::Every, Limit::Only(ranges)).expect("a scope")
    };
    assert_eq!(comb(40, 9, 10).intersect(&comb(64, 5, 6)), Err(AccessError::BadScope));
    comb(20, 9, 10).intersect(&comb(32, 5, 6)).expect("half of it fits");
}

#[test]
fn objects_of_different_kinds_do_not_meet() {
    let digest = Digest([0xAB; 32]);
    let kinds = [
        Objects::blocks(u16::MAX, 0, u64::MAX).expect("a range"),
        Objects::file(u16::MAX, u64::MAX),
        Objects::opaque(digest, 0),
    ];
    for (number, one) in kinds.iter().enumerate() {
        for other in &kinds[number + 1..] {
            assert!(one.last < other.first || other.last < one.first);
        }
    }
    assert_eq!(Objects::blocks(0, 0, 0), None);
    assert_eq!(Objects::blocks(0, u64::MAX, 2), None);
    let (all, some, one) =
        (Objects::opaque(digest, 0), Objects::opaque(digest, 12), Objects::opaque(digest, 200));
    assert!(all.first < some.first && some.last < all.last);
    assert!(some.first < one.first && one.last < some.last && one.first == one.last);
    assert_eq!(some.last - some.first, (1 << 108) - 1);
    assert_eq!(Objects::opaque(digest, 120), one);
    assert_eq!(Objects::opaque(digest, u32::MAX - 8), one);
}

/// The meaning of a predicate, by recursion over a tree: the plain definition.
enum Tree {
    All(Vec<Tree>),
    Any(Vec<Tree>),
    Not(Box<Tree>),
    Leaf(Term, bool),
}

impl Tree {
    fn random(numbers: &mut Numbers, depth: usize) -> Tree {
        let several = |numbers: &mut Numbers| {
            (0..2 + numbers.below(2)).map(|_| Tree::random(numbers, depth - 1)).collect()
        };
        match if depth == 0 { 3 } else { numbers.below(4) } {
            0 => Tree::All(several(numbers)),
            1 => Tree::Any(several(numbers)),
            2 => Tree::Not(Box::new(Tree::random(numbers, depth - 1))),
            _ => {
                let text = |text| Text::new(text).expect("a text");
                let leaves = [
                    (Term::Program(manifest().program()), true),
                    (Term::Program(ProgramHash(Digest([9; 32]))), false),
                    (Term::Executable(Digest([1; 32])), true),
                    (Term::Executable(Digest([2; 32])), false),
                    (Term::Package(package(9, "holdfast")), true),
                    (Term::Package(package(9, "vim")), false),
                    (Term::Component(name("fat")), true),
                    (Term::Component(name("vfs")), false),
                    (Term::Setting(name("partition"), text("2048-4096")), true),
                    (Term::Setting(name("partition"), text("2048-4097")), false),
                    (Term::Setting(name("other"), text("2048-4096")), false),
                    (Term::Uid(1000), true),
                    (Term::Uid(0), false),
                ];
                let (term, value) = numbers.pick(&leaves).clone();
                Tree::Leaf(term, value)
            }
        }
    }

    fn value(&self) -> bool {
        match self {
            Tree::All(parts) => parts.iter().all(Tree::value),
            Tree::Any(parts) => parts.iter().any(Tree::value),
            Tree::Not(part) => !part.value(),
            Tree::Leaf(_, value) => *value,
        }
    }

    fn flatten(&self, terms: &mut Vec<Term>) {
        match self {
            Tree::All(parts) | Tree::Any(parts) => {
                let count = parts.len() as u8;
                terms.push(if matches!(self, Tree::All(_)) { Term::All(count) } else { Term::Any(count) });
                parts.iter().for_each(|part| part.flatten(terms));
            }
            Tree::Not(part) => {
                terms.push(Term::Not);
                part.flatten(terms);
            }
            Tree::Leaf(term, _) => terms.push(term.clone()),
        }
    }
}

/// Predicates mean what their trees mean, and survive encoding and printing.
#[test]
fn predicates_mean_what_they_say() {
    let mut numbers = Numbers(1);
    let (mut kept, mut held) = (0, 0);
    for _ in 0..1_500 {
        let tree = Tree::random(&mut numbers, 4);
        let mut terms = Vec::new();
        tree.flatten(&mut terms);
        if terms.len() > TERMS_MAX {
            assert!(Predicate::new(terms, Conditions::CLEAN).is_err());
            continue;
        }
        let predicate = Predicate::new(terms, Conditions::CLEAN).expect("a tree");
        assert_eq!(predicate.holds(&manifest()), tree.value(), "{predicate}");
        assert_eq!(decode::<Predicate>(&encode(&predicate)), Ok(predicate.clone()));
        assert_eq!(predicate.to_string().parse(), Ok(predicate.clone()), "{predicate}");
        kept += 1;
        held += usize::from(tree.value());
    }
    assert!(kept > 900 && held > 300 && kept - held > 300, "{kept} {held}");
}

#[test]
fn predicates_that_are_no_tree_are_refused() {
    let uid = Term::Uid(1);
    for bad in [
        vec![],
        vec![uid.clone(), uid.clone()],
        vec![Term::Not],
        vec![Term::Not, uid.clone(), uid.clone()],
        vec![Term::All(2), uid.clone()],
        vec![Term::All(2), uid.clone(), uid.clone(), uid.clone()],
        vec![Term::All(0)],
        vec![Term::Any(1), uid.clone()],
        vec![Term::Any(255), uid.clone()],
        [vec![Term::Not; TERMS_MAX], vec![uid.clone()]].concat(),
    ] {
        assert!(matches!(Predicate::new(bad.clone(), Conditions::CLEAN), Err(AccessError::BadPredicate(_))));
        assert!(decode::<Predicate>(&encode(&(bad, Conditions::CLEAN))).is_err());
    }
    assert!(decode::<Conditions>(&[16]).is_err());
    let deepest = [vec![Term::Not; TERMS_MAX - 1], vec![uid]].concat();
    Predicate::new(deepest, Conditions::CLEAN).expect("the deepest allowed");
}

/// The program hash covers code, configuration and conditions, and nothing else.
#[test]
fn a_program_is_its_code_and_configuration() {
    let hash = manifest().program();
    let same = [Manifest { uid: 0, ..manifest() }, Manifest { packages: BTreeSet::new(), ..manifest() }];
    assert!(same.iter().all(|other| other.program() == hash));
    let mut partition = manifest();
    partition.settings.insert(name("partition"), Text::new("0-1").expect("a text"));
    let different = [
        Manifest { executable: Digest([3; 32]), ..manifest() },
        Manifest { code: BTreeSet::new(), ..manifest() },
        Manifest { component: None, ..manifest() },
        Manifest { settings: BTreeMap::new(), ..manifest() },
        Manifest { conditions: Conditions::CLEAN.with(Condition::Traceable), ..manifest() },
        partition,
    ];
    assert!(different.iter().all(|other| other.program() != hash));
}
