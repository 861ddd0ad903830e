//! The checker against a model of "speaks for": a relation computed as the least fixpoint, without proofs.
//! Whatever is proved must hold in the model (soundness), and whatever holds in it has a proof
//! (completeness).

use crate::common;

use common::*;
use holdfast_access::*;
use std::collections::{BTreeMap, BTreeSet};

/// The points of a scope: two operations and one that no restriction names, times two objects and one that none
/// names. Only an unrestricted scope has the last point.
const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Format];
const OBJECTS: [u64; 3] = [1, 2, 9];
const ALL_POINTS: u16 = 0b1_1111_1111;
const LAST_POINT: u16 = 0b1_0000_0000;

fn points(scope: &Scope) -> u16 {
    let mut points = 0;
    for (row, operation) in OPERATIONS.into_iter().enumerate() {
        for (column, object) in OBJECTS.into_iter().enumerate() {
            if scope.covers(operation, blocks(object, 1)) {
                points |= 1 << (row * 3 + column);
            }
        }
    }
    points
}

fn scopes() -> Vec<Scope> {
    let objects = |list: &[u64]| Limit::Only(list.iter().map(|first| blocks(*first, 1)).collect());
    let new = |operations, objects| Scope::new(operations, objects).expect("a scope");
    vec![
        Scope::EVERYTHING,
        new(operations(&[Operation::Read]), Limit::Every),
        new(Limit::Every, objects(&[1])),
        new(Limit::Every, Limit::Only(vec![blocks(1, 2)])),
        new(operations(&[Operation::Read, Operation::Write]), objects(&[2])),
        new(operations(&[Operation::Write]), Limit::Every),
    ]
}

struct Universe {
    principals: Vec<Principal>,
    credentials: Vec<Credential>,
}

impl Universe {
    fn program() -> Principal {
        Principal::Program(manifest().program())
    }

    /// Principals of every kind, and credentials by anybody about anybody, honest or not.
    fn random(numbers: &mut Numbers) -> Universe {
        let principals = vec![
            Principal::Machine,
            process(1),
            process(2),
            user("a"),
            group("g"),
            key(1),
            named(1, "n"),
            Universe::program(),
        ];
        let speakers = [Principal::Machine, process(1), process(2), key(1)];
        let scopes = scopes();
        let mut credentials = vec![runs(0, 1, manifest())];
        for serial in 1..9 {
            let (issuer, delegate) = (numbers.pick(&speakers).clone(), numbers.pick(&principals).clone());
            let principal = match numbers.below(3) {
                0 => numbers.pick(&principals).clone(),
                1 => issuer.clone(),
                _ => [user("a"), group("g"), named(1, "n")][numbers.below(3)].clone(),
            };
            let scope = if numbers.below(2) == 0 { Scope::EVERYTHING } else { numbers.pick(&scopes).clone() };
            credentials.push(within(issuer, serial, delegate, principal, scope));
        }
        Universe { principals, credentials }
    }

    /// The reference for the search: for each pair (A, B) of principals where A speaks for B, the set of points (a
    /// bit each) at which it does.
    fn model(&self) -> BTreeMap<(Principal, Principal), u16> {
        let mut relation: BTreeMap<(Principal, Principal), u16> = BTreeMap::new();
        for principal in &self.principals {
            relation.insert((principal.clone(), principal.clone()), ALL_POINTS);
        }
        for name in [user("a"), group("g")] {
            relation.insert((Principal::Machine, name), ALL_POINTS);
        }
        relation.insert((key(1), named(1, "n")), ALL_POINTS);
        relation.insert((process(1), Universe::program()), ALL_POINTS);
        loop {
            let before = relation.clone();
            for credential in &self.credentials {
                let Statement::SpeaksFor { delegate, principal, scope } = &credential.statement else {
                    continue;
                };
                let authority = before.get(&(credential.issuer.clone(), principal.clone())).copied();
                if authority.unwrap_or(0) & LAST_POINT != 0 {
                    *relation.entry((delegate.clone(), principal.clone())).or_default() |= points(scope);
                }
            }
            for ((first, middle), one) in &before {
                for ((second, last), two) in &before {
                    if middle == second && one & two != 0 {
                        *relation.entry((first.clone(), last.clone())).or_default() |= one & two;
                    }
                }
            }
            if relation == before {
                return relation;
            }
        }
    }
}

fn holds(model: &BTreeMap<(Principal, Principal), u16>, proven: &Proven) -> bool {
    let relation = model.get(&(proven.delegate().clone(), proven.principal().clone())).copied().unwrap_or(0);
    points(proven.scope()) & !relation == 0
}

fn shifted(step: &Step, by: u8) -> Step {
    match step {
        Step::Handoff(id, authority) => Step::Handoff(*id, authority + by),
        Step::Chain(first, second) => Step::Chain(first + by, second + by),
        Step::Narrow(wide, scope) => Step::Narrow(wide + by, scope.clone()),
        other => other.clone(),
    }
}

fn joined(one: &[Step], two: &[Step]) -> Vec<Step> {
    one.iter().cloned().chain(two.iter().map(|step| shifted(step, one.len() as u8))).collect()
}

/// Everything that can be proved, each judgement with its first proof: all rules applied until nothing is new.
fn provable(universe: &Universe) -> Vec<(Proven, Vec<Step>)> {
    let (credentials, ids) = keep(universe.credentials.clone());
    let revocations = revocations();
    let mut seen = BTreeSet::new();
    let mut found: Vec<(Proven, Vec<Step>)> = Vec::new();
    let mut take = |steps: Vec<Step>, found: &mut Vec<(Proven, Vec<Step>)>| {
        let proof = Proof(steps);
        let Ok(proven) = check(&proof, &credentials, &revocations, 0) else { return };
        if seen.insert((proven.delegate().clone(), proven.principal().clone(), proven.scope().clone())) {
            found.push((proven, proof.0));
        }
    };
    for principal in &universe.principals {
        take(vec![Step::Itself(principal.clone())], &mut found);
        take(vec![Step::Namer(principal.clone())], &mut found);
        for id in &ids {
            take(vec![Step::Constituent(*id, principal.clone())], &mut found);
        }
    }
    let mut done = 0;
    while done < found.len() {
        let (_, newest) = found[done].clone();
        done += 1;
        let last = newest.len() as u8 - 1;
        for id in &ids {
            take([&newest[..], &[Step::Handoff(*id, last)]].concat(), &mut found);
        }
        for older in 0..done {
            let other = found[older].1.clone();
            for (first, second) in [(&newest, &other), (&other, &newest)] {
                let mut steps = joined(first, second);
                steps.push(Step::Chain(first.len() as u8 - 1, steps.len() as u8 - 1));
                take(steps, &mut found);
            }
        }
    }
    found
}

/// Over many small worlds, exactly what holds in the model is provable.
#[test]
fn provable_is_what_holds() {
    let mut interesting = 0;
    for seed in 0..40 {
        let universe = Universe::random(&mut Numbers(seed));
        let model = universe.model();
        let mut proved: BTreeMap<(Principal, Principal), u16> = BTreeMap::new();
        for (proven, steps) in provable(&universe) {
            assert!(holds(&model, &proven), "seed {seed}: {steps:?} proves {proven:?}");
            let pair = (proven.delegate().clone(), proven.principal().clone());
            *proved.entry(pair).or_default() |= points(proven.scope());
        }
        assert_eq!(proved, model, "seed {seed}: the model has more than can be proved");
        interesting += model.len();
    }
    assert!(interesting > 40 * 15, "the worlds are not all trivial: {interesting}");
}

/// Every proof of one to three steps over a small world, sensible or not: none proves a wrong judgement.
#[test]
fn no_short_proof_is_unsound() {
    let read = scopes()[1].clone();
    let universe = Universe {
        principals: vec![Principal::Machine, process(1), user("a"), key(1), Universe::program()],
        credentials: vec![
            runs(0, 1, manifest()),
            within(key(1), 1, process(1), key(1), read.clone()),
            speaks_for(Principal::Machine, 2, key(1), user("a")),
            speaks_for(process(1), 3, process(1), user("a")),
        ],
    };
    let (credentials, ids) = keep(universe.credentials.clone());
    let (model, revocations) = (universe.model(), revocations());
    let mut alphabet = Vec::new();
    for principal in &universe.principals {
        alphabet.push(Step::Itself(principal.clone()));
        alphabet.push(Step::Namer(principal.clone()));
        alphabet.extend(ids.iter().map(|id| Step::Constituent(*id, principal.clone())));
    }
    for earlier in 0..2 {
        alphabet.extend(ids.iter().map(|id| Step::Handoff(*id, earlier)));
        alphabet.extend((0..2).map(|second| Step::Chain(earlier, second)));
        alphabet.extend([Scope::EVERYTHING, read.clone()].map(|scope| Step::Narrow(earlier, scope)));
    }
    let mut accepted = 0;
    let mut judge = |steps: Vec<Step>| {
        if let Ok(proven) = check(&Proof(steps.clone()), &credentials, &revocations, 0) {
            accepted += 1;
            assert!(holds(&model, &proven), "{steps:?} proves {proven:?}");
        }
    };
    for one in &alphabet {
        judge(vec![one.clone()]);
        for two in &alphabet {
            judge(vec![one.clone(), two.clone()]);
            for three in &alphabet {
                judge(vec![one.clone(), two.clone(), three.clone()]);
            }
        }
    }
    assert!(accepted > 500, "the rules apply often enough to be tested: {accepted}");
}

/// Proofs with a step exchanged, dropped, doubled or renumbered: refused, or still true.
#[test]
fn mutated_proofs_prove_nothing_false() {
    for seed in 100..110 {
        let mut numbers = Numbers(seed);
        let universe = Universe::random(&mut numbers);
        let model = universe.model();
        let (credentials, ids) = keep(universe.credentials.clone());
        let revocations = revocations();
        let proofs = provable(&universe);
        for _ in 0..20_000 {
            let mut steps = numbers.pick(&proofs).1.clone();
            let other = numbers.pick(&proofs).1.clone();
            let place = numbers.below(steps.len());
            let number = numbers.below(steps.len() + 1) as u8;
            match numbers.below(6) {
                0 => steps[place] = numbers.pick(&other).clone(),
                1 => drop(steps.remove(place)),
                2 => steps.insert(place, steps[place].clone()),
                3 => steps.push(Step::Handoff(*numbers.pick(&ids), number)),
                4 => steps.push(Step::Chain(number, place as u8)),
                _ => steps[place] = Step::Itself(numbers.pick(&universe.principals).clone()),
            }
            if let Ok(proven) = check(&Proof(steps.clone()), &credentials, &revocations, 0) {
                assert!(holds(&model, &proven), "seed {seed}: {steps:?} proves {proven:?}");
            }
        }
    }
}
