use super::*;
use crate::certificate::Path;
use crate::log_tree::leaf;
use crate::order::forecast;
use crate::sequencer::Sequencer;
use crate::structure::Structure;
use crate::testing::random::Random;
use crate::testing::{A, B, C, Client, Stage, key, membership};
use holdfast_crypto::Digest;

/// A server and three honest clients, and what each of them remembers of the log.
struct World {
    stage: Stage,
    clients: Vec<Client>,
    leaves: Vec<Digest>,
}

impl World {
    fn new() -> World {
        let stage = Stage::new();
        let mut world = World { stage, clients: [A, B, C].map(Client::new).into(), leaves: Vec::new() };
        world.remember();
        world
    }

    /// All operations have their leaves in forecasts or certificates that the view shows when they are made.
    fn remember(&mut self) {
        let size = self.stage.view.log.size as usize;
        if self.leaves.len() < size {
            let slots = self.stage.view.slots.values().map(|slot| &slot.value.forecast);
            let pending = self.stage.view.pending.iter().map(|entry| &entry.forecast);
            let last = slots.chain(pending).find(|forecast| forecast.log.size as usize + 1 == size);
            let last = last.expect("the last operation is shown");
            self.leaves.push(leaf(last.certificate, last.digest()));
        }
    }

    fn look(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let reply = self.stage.proven(&client.floor);
        client.floor = check_look(&client.floor, &membership(), &reply).expect("honest");
    }

    fn fast(&mut self, who: usize) {
        self.look(who);
        let client = &mut self.clients[who];
        let certificate = client.declare(Path::Fast, Vec::new());
        let forecast = forecast(&client.floor.view, &certificate.value);
        let structure = client.structure(&certificate.value, forecast);
        self.stage.fast(&certificate, &structure);
        client.floor.append_own(&structure.value.forecast);
        client.acknowledge(&structure);
        self.remember();
    }

    /// Declares an operation, has it ordered, and signs it. The caller decides whether it is committed, and
    /// whether its author hears of that.
    fn slow(&mut self, who: usize) -> Signed<Structure> {
        let client = &mut self.clients[who];
        let certificate = client.declare(Path::Slow, Vec::new());
        let reply = self.stage.proven(&client.floor);
        let accepted =
            crate::check::check(&client.floor, &membership(), &reply, &certificate.value).expect("honest");
        client.floor = accepted.floor;
        let structure = client.structure(&certificate.value, accepted.forecast);
        self.stage.order(&certificate);
        self.remember();
        structure
    }

    fn known(&self, who: &[usize], leaves: bool) -> KnownNodes {
        let mut known = KnownNodes::default();
        for client in who.iter().map(|who| &self.clients[*who]) {
            known.offer_view(&client.floor.view);
            known.offer_frontier(&client.floor.frontier);
        }
        if leaves {
            (0..).zip(&self.leaves).for_each(|(index, leaf)| known.offer(0, index, *leaf));
        }
        known
    }

    fn combine(&self, who: &[usize]) -> Result<CombinedView, Disagreement> {
        let sources: Vec<Source<'_>> =
            who.iter().map(|who| Source::from(&self.clients[*who].floor)).collect();
        combine(&sources).map(|combined| combined.expect("somebody has seen something"))
    }

    /// Rebuilds from some clients, and demands that these continue.
    fn rebuilt(&self, who: &[usize]) -> CombinedView {
        let combined = self.combine(who).expect("one history");
        combined.check(key(DeviceId(0)).public(), &membership()).expect("an honest view");
        let nodes = self.known(who, true).of_log(&combined.frontier);
        let sources: Vec<Source<'_>> =
            who.iter().map(|who| Source::from(&self.clients[*who].floor)).collect();
        assert_eq!(combined.log_end(&sources, &nodes), LogEnd::Proven);
        for who in who {
            let standing = combined.standing(&self.clients[*who].floor, &membership(), &nodes);
            assert_eq!(standing, SourceOutcome::GoesOn, "client {who}");
        }
        combined
    }
}

/// Proves: from any set of honest clients, whatever is under way between them, comes a view that passes all
/// checks and with which each of them continues, signing included. A client outside of the set continues too
/// if it has seen no more.
#[test]
fn honest_clients_go_on() {
    let seeds = holdfast_testing::setting("HOLDFAST_SEEDS", 300);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut world = World::new();
        for who in 0..3 {
            world.look(who);
        }
        for _ in 0..random.below(14) {
            let who = random.below(3) as usize;
            if !world.stage.view.pending.is_empty() || random.below(2) == 0 {
                let structure = world.slow(who);
                match random.below(4) {
                    // The server was lost, or the author died, before COMMIT came.
                    0 => {
                        world.stage.kill(structure.value.device());
                        world.clients[who].give_up(Path::Slow);
                    }
                    // It was committed and somebody looked, but its author has not heard.
                    1 => {
                        world.stage.commit(&structure);
                        let other = (who + 1 + random.below(2) as usize) % 3;
                        world.look(other);
                        world.clients[who].acknowledge(&structure);
                    }
                    _ => {
                        world.stage.commit(&structure);
                        world.clients[who].acknowledge(&structure);
                    }
                }
            } else {
                world.fast(who);
            }
            if random.below(2) == 0 {
                let who = random.below(3) as usize;
                world.look(who);
            }
        }
        let combined = world.rebuilt(&[0, 1, 2]);
        // Everything that a client was told is committed still is.
        for client in &world.clients {
            let known = client.floor.last();
            let slot = combined.view.slots.get(&client.floor.device);
            assert!(slot.map_or(0, |slot| slot.value.number()) >= known, "seed {seed}");
        }
        // The source with the newest view alone.
        let newest = combined.newest;
        let alone = world.rebuilt(&[newest]);
        let nodes = world.known(&[newest], true).of_log(&alone.frontier);
        for client in &world.clients {
            let same = client.floor.view.slots.iter().all(|(device, slot)| {
                alone.view.slots.get(device).is_some_and(|known| known.value.number() >= slot.value.number())
            });
            let unseen = |entry: &PendingEntry| {
                let (device, number) = (entry.certificate.value.device, entry.certificate.value.number);
                let is = |other: &PendingEntry| other.forecast == entry.forecast;
                alone.view.slots.get(&device).is_none_or(|slot| slot.value.number() < number)
                    && !alone.view.pending.iter().any(is)
            };
            if same && !client.floor.view.pending.iter().any(unseen) {
                let standing = alone.standing(&client.floor, &membership(), &nodes);
                assert_eq!(standing, SourceOutcome::GoesOn, "seed {seed}");
            }
        }
        // The machine made of it orders the next operation of each, and shows what they accept.
        let mut sequencer =
            Sequencer::rebuilt(key(DeviceId(0)).public(), combined.clone(), membership(), 10_000);
        let mut nodes = world.known(&[0, 1, 2], true);
        for who in 0..3 {
            let client = &mut world.clients[who];
            let certificate = client.declare(Path::Slow, Vec::new());
            let verified = certificate.clone().verified(key(client.floor.device).public()).expect("signed");
            let step = sequencer.update(0, client.floor.device, &verified, None).expect("it is ordered");
            let crate::sequencer::UpdateOutcome::View(mut reply) = step.answer else {
                panic!("seed {seed}: not ordered")
            };
            let frontier = Frontier::from_peaks(reply.view.log, reply.peaks.clone()).expect("fits");
            let known = nodes.clone().of_log(&frontier);
            reply.consistency =
                consistency_proof(client.floor.log().size, reply.view.log.size, &mut |level, index| {
                    known.get(level, index)
                })
                .expect("all leaves are known");
            for ((level, index), node) in step.nodes {
                nodes.offer(level, index, node);
            }
            let accepted = crate::check::check(&client.floor, &membership(), &reply, &certificate.value);
            let accepted = accepted.unwrap_or_else(|alarm| panic!("seed {seed}: {alarm:?}"));
            client.floor = accepted.floor;
            let structure = client.structure(&certificate.value, accepted.forecast);
            let verified = structure.clone().verified(key(client.floor.device).public()).expect("signed");
            let committed = sequencer.commit(client.floor.device, &verified).expect("it is committed");
            assert!(matches!(committed.answer, crate::sequencer::CommitOutcome::Committed(_)));
            client.acknowledge(&structure);
        }
    }
}

/// Proves: two branches of a fork are detected whichever is longer, and so is an altered structure. An older
/// client alone gives its own state, which makes a newer one raise an alarm.
#[test]
fn forks_and_inventions_are_found() {
    let mut world = World::new();
    (0..3).for_each(|who| world.look(who));
    world.fast(0);
    (0..3).for_each(|who| world.look(who));
    // The server shows B another history than A.
    let mut other =
        World { stage: world.stage.clone(), clients: world.clients.clone(), leaves: world.leaves.clone() };
    world.fast(0);
    other.fast(1);
    for more in 0..3 {
        let sources = [Source::from(&world.clients[0].floor), Source::from(&other.clients[1].floor)];
        let found = combine(&sources).expect_err("they are of two histories");
        assert!(found.between == (0, 1) || found.between == (1, 0), "{more}: {found:?}");
        world.fast(0);
    }

    let older = world.combine(&[2]).expect("one history");
    let nodes = world.known(&[2], true).of_log(&older.frontier);
    let standing = older.standing(&world.clients[0].floor, &membership(), &nodes);
    assert!(matches!(standing, SourceOutcome::Alarms(_)), "{standing:?}");

    // A bad client makes up how the log ends: longer, or otherwise.
    let source = [Source::from(&world.clients[0].floor)];
    let honest = combine(&source).expect("one history").expect("it has seen something");
    let nodes = world.known(&[0], true).of_log(&honest.frontier);
    assert_eq!(honest.log_end(&source, &nodes), LogEnd::Proven);
    for size in [honest.view.log.size + 1, 1 << 40] {
        let frontier =
            Frontier::of(size, vec![Digest([9; 32]); size.count_ones() as usize]).expect("so many");
        let longer = CombinedView {
            view: View { log: frontier.head(), ..honest.view.clone() },
            frontier,
            ..honest.clone()
        };
        let nodes = world.known(&[0], true).of_log(&longer.frontier);
        assert!(matches!(longer.log_end(&source, &nodes), LogEnd::False(_)), "{size}");
    }
    let size = honest.view.log.size;
    let frontier = Frontier::of(size, vec![Digest([9; 32]); size.count_ones() as usize]).expect("so many");
    let otherwise = CombinedView {
        view: View { log: frontier.head(), ..honest.view.clone() },
        frontier,
        ..honest.clone()
    };
    let with_nodes = otherwise.log_end(&source, &nodes);
    assert!(matches!(with_nodes, LogEnd::False(_)), "{with_nodes:?}");
    assert_ne!(otherwise.log_end(&[], &Nodes::default()), LogEnd::Proven);

    // A bad client alters another device's structure in its own copy, or leaves one out.
    let honest = world.combine(&[0]).expect("one history");
    let mut altered = honest.clone();
    let slot = altered.view.slots.get_mut(&A).expect("A did something");
    slot.value = Structure { outcome: crate::structure::Outcome::Nothing, ..slot.value.clone() };
    altered.check(key(DeviceId(0)).public(), &membership()).expect_err("the signature is not good");
    world.fast(1);
    world.look(0);
    let mut less = world.combine(&[0]).expect("one history");
    less.view.slots.remove(&B);
    let nodes = world.known(&[0], true).of_log(&less.frontier);
    let by_nobody = less.check(key(DeviceId(0)).public(), &membership()).is_err();
    assert!(
        by_nobody || less.standing(&world.clients[1].floor, &membership(), &nodes) != SourceOutcome::GoesOn
    );
}

/// Proves: nodes are found where hashes lead, also if each source has only some leaves and one of them lies.
/// If the leaves in between are missing, there is no proof for an older client, and nothing false in its
/// place.
#[test]
fn nodes_are_found_and_only_true_ones() {
    for size in [1u64, 2, 7, 64, 77] {
        let leaves: Vec<Digest> = (0..size).map(|number| Digest([number as u8 + 1; 32])).collect();
        let mut frontier = Frontier::default();
        let mut all = std::collections::HashMap::new();
        let mut heads = vec![frontier.head()];
        for leaf in &leaves {
            all.extend(frontier.append(*leaf));
            heads.push(frontier.head());
        }
        let mut known = KnownNodes::default();
        known.offer_frontier(&frontier);
        for (index, leaf) in (0..).zip(&leaves) {
            known.offer(0, index, Digest([0xee; 32]));
            known.offer(0, index, *leaf);
            known.offer(0, index, *leaf);
        }
        let nodes = known.of_log(&frontier);
        assert_eq!(nodes.leaves(), size);
        for ((level, index), node) in &all {
            assert_eq!(nodes.get(*level, *index), Some(*node), "{size}");
        }
        // One leaf is lost.
        let lost = size / 2;
        let mut known = KnownNodes::default();
        known.offer_frontier(&frontier);
        let rest = (0..).zip(&leaves).filter(|(index, _)| *index != lost);
        rest.for_each(|(index, leaf)| known.offer(0, index, *leaf));
        let nodes = known.of_log(&frontier);
        for old in 0..size {
            let proof = consistency_proof(old, size, &mut |level, index| nodes.get(level, index));
            if let Some(proof) = proof {
                let (old, new) = (heads[old as usize], heads[size as usize]);
                assert!(crate::log_tree::verify_consistency(old, new, &proof), "{size}");
            }
        }
    }
}
