//! A search for lies that pass the checks, made by a server that knows what every client would accept.
//!
//! The server holds every certificate and structure ever signed, and makes views from them at will: any
//! slots, any pending entries in any order, alive or dead, with any forecasts. Before it sends a view, it
//! runs the client's check, which is pure, so it only sends views that pass. The ledger then detects whether
//! anybody accepted two things that cannot both be true.
//!
//! With all checks on, no contradiction is ever found. With single checks off, contradictions are found: so
//! the search can find them, and those checks are needed.

use super::policy::{AllRules, Policy, Rule};
use super::{check_with, learn_with};
use crate::certificate::{Certificate, Delta, Path};
use crate::floor::Floor;
use crate::log_tree::Frontier;
use crate::message::ViewReply;
use crate::order::{forecast, ordered_elements};
use crate::signed::Signed;
use crate::structure::{Forecast, PendingEntry, Structure, View};
use crate::testing::ledger::{Contradiction, Ledger, OperationKnowledge};
use crate::testing::random::Random;
use crate::testing::{Client, GROUP, founding, membership};
use holdfast_content::{DeviceId, Handle, Membership};
use holdfast_crypto::Digest;
use std::collections::BTreeMap;

/// All checks but some. Signatures are not checked, since none is forged here; nor is the log, whose checks
/// would only help.
struct Without(&'static [Rule]);

impl Policy for Without {
    fn on(&self, rule: Rule) -> bool {
        !matches!(rule, Rule::Log | Rule::Signatures) && !self.0.contains(&rule)
    }
}

struct Search {
    random: Random,
    policy: Without,
    members: Membership,
    clients: Vec<Client>,
    ledger: Ledger,
    certificates: Vec<Signed<Certificate>>,
    structures: BTreeMap<DeviceId, Vec<Signed<Structure>>>,
    /// All forecasts that a view has given for an operation.
    forecasts: BTreeMap<(DeviceId, u64), Vec<Forecast>>,
    lies_believed: u64,
}

/// A fetch, or a change of the group's table.
fn deltas(random: &mut Random) -> Vec<Delta> {
    let file = Handle { principal: GROUP, number: 1 };
    if random.chance(40) { vec![Delta::SetTable { file, number: Some(1) }] } else { Vec::new() }
}

/// A log of the given size. Its content does not matter, since the log is not checked here.
fn frontier(size: u64) -> Frontier {
    let mut frontier = Frontier::default();
    (0..size).for_each(|_| drop(frontier.append(Digest::ZERO)));
    frontier
}

impl Search {
    fn new(seed: u64, clients: u32, without: &'static [Rule]) -> Search {
        let (_, structure) = founding();
        Search {
            random: Random::new(seed),
            policy: Without(without),
            members: membership(),
            clients: (1..=clients).map(|id| Client::new(DeviceId(id))).collect(),
            ledger: Ledger::default(),
            certificates: Vec::new(),
            structures: BTreeMap::from([(DeviceId(0), vec![structure])]),
            forecasts: BTreeMap::new(),
            lies_believed: 0,
        }
    }

    fn run(&mut self, steps: u64) -> Result<(), Contradiction> {
        for _ in 0..steps {
            let client = self.random.below(self.clients.len() as u64) as usize;
            match self.random.below(10) {
                0..=5 => self.slow(client)?,
                6 | 7 => self.fast(client)?,
                _ => self.learn(client)?,
            }
        }
        Ok(())
    }

    /// Makes an UPDATE, answers it with a lie that passes if one is found, and then acknowledges, aborts or
    /// loses it.
    fn slow(&mut self, client: usize) -> Result<(), Contradiction> {
        let mut trial = self.clients[client].clone();
        let certificate = trial.declare(Path::Slow, deltas(&mut self.random));
        self.certificates.push(certificate.clone());
        let device = certificate.value.device;
        for _ in 0..60 {
            let view = self.compose(&trial.floor, device);
            let reply = ViewReply {
                peaks: frontier(view.log.size).peaks().to_vec(),
                view,
                consistency: Vec::new(),
                blocks: Vec::new(),
            };
            let checked =
                check_with(&trial.floor, &self.members, &reply, Some(&certificate.value), &self.policy);
            let Ok((floor, Some(own))) = checked else { continue };
            trial.floor = floor;
            self.lies_believed += 1;
            for entry in &reply.view.pending {
                let operation = (entry.forecast.device, entry.forecast.number());
                let known = self.forecasts.entry(operation).or_default();
                if !known.contains(&entry.forecast) {
                    known.push(entry.forecast.clone());
                }
            }
            self.forecasts.entry((device, own.number())).or_default().push(own.clone());
            self.ledger.accept(device, &trial.floor.view)?;
            let structure = trial.structure(&certificate.value, own);
            self.clients[client] = trial;
            return self.answer(client, structure, Path::Slow);
        }
        // No view passed, so the client restarts and gives the number up.
        trial.give_up(Path::Slow);
        self.ledger.settle((device, certificate.value.number), OperationKnowledge::Aborted)?;
        self.clients[client] = trial;
        Ok(())
    }

    fn fast(&mut self, client: usize) -> Result<(), Contradiction> {
        let trial = &mut self.clients[client];
        if !trial.floor.is_settled() || trial.floor.element.is_none() {
            return Ok(());
        }
        let certificate = trial.declare(Path::Fast, deltas(&mut self.random));
        let own = forecast(&trial.floor.view, &certificate.value);
        let structure = trial.structure(&certificate.value, own.clone());
        // The log grows as the client expects.
        self.answer(client, structure, Path::Fast)?;
        let trial = &mut self.clients[client];
        if trial.floor.last() == certificate.value.number {
            trial.floor.view.log = frontier(own.log.size + 1).head();
            trial.floor.frontier = frontier(own.log.size + 1);
        }
        Ok(())
    }

    /// Takes a structure from a client, and tells the client at random that it was committed or not.
    fn answer(
        &mut self,
        client: usize,
        structure: Signed<Structure>,
        path: Path,
    ) -> Result<(), Contradiction> {
        let (device, number) = (structure.value.device(), structure.value.number());
        self.ledger.sign(device, &structure.value);
        self.structures.entry(device).or_default().push(structure.clone());
        let trial = &mut self.clients[client];
        if self.random.chance(60) {
            trial.acknowledge(&structure);
            self.ledger.settle((device, number), OperationKnowledge::Committed)
        } else {
            trial.give_up(path);
            self.ledger.settle((device, number), OperationKnowledge::Aborted)
        }
    }

    /// Answers a wait for another device's operation with any structure that passes.
    fn learn(&mut self, client: usize) -> Result<(), Contradiction> {
        let device = self.clients[client].floor.device;
        let waited: Vec<DeviceId> = self.clients[client]
            .floor
            .view
            .pending
            .iter()
            .filter(|entry| !entry.dead)
            .map(|entry| entry.forecast.device)
            .collect();
        for other in waited {
            for structure in self.structures.get(&other).cloned().unwrap_or_default() {
                let mut floor = self.clients[client].floor.clone();
                if learn_with(&mut floor, &self.members, structure, &self.policy).is_ok() {
                    self.clients[client].floor = floor;
                    self.ledger.accept(device, &self.clients[client].floor.view)?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A random view made of anything ever signed. Plausible ones are more frequent.
    fn compose(&mut self, floor: &Floor, me: DeviceId) -> View {
        let mut view = View::default();
        for (device, structures) in &self.structures {
            let slot = if *device == me {
                floor.own()
            } else if self.random.chance(60) {
                structures.last()
            } else if self.random.chance(70) {
                Some(self.random.pick(structures))
            } else {
                None
            };
            view.slots.extend(slot.map(|slot| (*device, slot.clone())));
        }
        let first = &self.structures[&DeviceId(0)][0];
        view.slots.insert(DeviceId(0), first.clone());
        view.log = frontier(self.size_after(&view)).head();

        let mut candidates = self.certificates.clone();
        for index in (1..candidates.len()).rev() {
            if self.random.chance(30) {
                candidates.swap(index, self.random.below(index as u64 + 1) as usize);
            }
        }
        for certificate in candidates {
            let declared = &certificate.value;
            let slot = view.slots.get(&declared.device).map(|slot| &slot.value);
            let follows = declared.previous == slot.map_or(Digest::ZERO, |slot| slot.forecast.digest())
                && declared.number > slot.map_or(0, Structure::number)
                && (declared.device != me || floor.voids.contains(declared.number));
            if !follows || self.random.chance(40) {
                continue;
            }
            let known = self.forecasts.get(&(declared.device, declared.number));
            let forecast = match known {
                Some(known) if self.random.chance(70) => self.random.pick(known).clone(),
                _ => forecast(&view, declared),
            };
            let dead = declared.device == me || self.random.chance(40);
            view.pending.push(PendingEntry { certificate, forecast, dead });
            view.log = frontier(self.size_after(&view)).head();
        }
        view
    }

    /// A log size, mostly one that orders the next operation last.
    fn size_after(&mut self, view: &View) -> u64 {
        let last = ordered_elements(view).last().map_or(0, |element| element.log.size);
        if self.random.chance(5) { 1 + self.random.below(last + 1) } else { last + 1 + self.random.below(2) }
    }
}

fn seeds(default: u64) -> u64 {
    holdfast_testing::setting("HOLDFAST_SEEDS", default)
}

/// The first contradiction found within `count` seeds, and how many views were believed.
fn hunt(
    without: &'static [Rule],
    count: u64,
    clients: u32,
    steps: u64,
) -> (Option<(u64, Contradiction)>, u64) {
    let mut believed = 0;
    for seed in 0..count {
        let mut search = Search::new(seed, clients, without);
        let found = search.run(steps);
        believed += search.lies_believed;
        if let Err(contradiction) = found {
            return (Some((seed, contradiction)), believed);
        }
    }
    (None, believed)
}

/// Proves: with all checks on (except signatures and log, which would only help), no two lies that pass
/// contradict each other.
#[test]
fn nothing_believed_contradicts_itself() {
    assert!(AllRules.on(Rule::Log) && AllRules.on(Rule::Signatures));
    for (clients, steps) in [(2, 8), (2, 16), (3, 12), (3, 24)] {
        let (found, believed) = hunt(&[], seeds(60), clients, steps);
        println!("{clients} clients, {steps} steps: {believed} views believed");
        assert!(believed > 100, "the search must get somewhere: {believed}");
        if let Some((seed, contradiction)) = found {
            panic!("{clients} clients, {steps} steps, seed {seed}: {contradiction}");
        }
    }
}

/// Proves: with these checks off, a contradiction passes and the search finds it. Where several checks stop
/// the same lies, all of them are off together (the traces prove that each suffices).
#[test]
fn checks_left_out_are_missed() {
    let groups: [&'static [Rule]; 8] = [
        &[Rule::Floor],
        &[Rule::Order],
        &[Rule::PendingRecords],
        &[Rule::PendingHash],
        &[Rule::AbortedRecords],
        &[Rule::Reflection],
        &[Rule::Hidden, Rule::OwnNumbers, Rule::Void],
        &[Rule::Memory],
    ];
    for without in groups {
        let (found, believed) = hunt(without, 1000, 3, 16);
        let Some((seed, contradiction)) = found else {
            panic!("{believed} lies were believed without {without:?}, and none contradicted another");
        };
        println!("without {without:?}: seed {seed}, {contradiction}");
    }
}
