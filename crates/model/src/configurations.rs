//! The configurations by name: small ones for tests, large ones for `scripts/model-check`. The table of
//! `docs/proof.md` has a row for each.

use crate::explore::{Limits, Report, explore};
use crate::honest::{self, Honest, Restores};
use crate::leases::{self, Leases, Shortcut};
use crate::lying::{self, Durability, Lying, Plan};
use crate::world::Kind;
use holdfast_content::DeviceId;
use holdfast_protocol::leases::{EXCLUSIVE_MS, TERM_MS};
use holdfast_protocol::signer::Signer;

/// The model to explore.
#[derive(Clone, Debug)]
pub enum What {
    /// An honest server.
    Honest(honest::Config),
    /// A lying one.
    Lying(lying::Config),
    /// Leases.
    Leases(leases::Config),
}

/// The expected verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Every promise holds.
    Holds,
    /// A promise is broken: a known limit, or a proposal that does not work.
    Breaks,
}

/// A configuration with a name.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// A description for people.
    pub about: &'static str,
    /// Whether tests explore it.
    pub small: bool,
    /// The expected verdict.
    pub expected: Expected,
    /// The model to explore.
    pub what: What,
}

impl Named {
    /// Explores it.
    pub fn run(&self, limits: Limits) -> Report {
        match &self.what {
            What::Honest(config) => explore(&mut Honest::new(config.clone()), limits, true),
            What::Lying(config) => explore(&mut Lying::<Signer>::new(config.clone()), limits, false),
            What::Leases(config) => explore(&mut Leases::new(config.clone()), limits, false),
        }
    }
}

const WRITES: &[Kind] = &[Kind::Write];
const BOTH: &[Kind] = &[Kind::Fetch, Kind::Write];
const FETCHES: &[Kind] = &[Kind::Fetch];
/// The same under a warrant, which any device that has it submits.
const WARRANT: &[Kind] = &[Kind::Enact { old: DeviceId(2), new: DeviceId(3) }];
/// The same, for D.
const WARRANT_FOR_D: &[Kind] = &[Kind::Enact { old: DeviceId(2), new: DeviceId(4) }];
/// User 2's device B is replaced by D, by the superuser itself.
const OTHERWISE: &[Kind] = &[Kind::Rotate { old: DeviceId(2), new: DeviceId(4) }];
/// User 2's device B is replaced by C.
const ROTATION: &[Kind] = &[Kind::Rotate { old: DeviceId(2), new: DeviceId(3) }];

fn honest(users: u32, clients: &[(u32, u64, &[Kind], u32)]) -> honest::Config {
    let plan = |(device, operations, kinds, crashes): &(u32, u64, &[Kind], u32)| Plan {
        device: DeviceId(*device),
        operations: *operations,
        kinds: kinds.to_vec(),
        crashes: *crashes,
    };
    honest::Config {
        users,
        clients: clients.iter().map(plan).collect(),
        fast: true,
        slow: true,
        nothing: false,
        waits: true,
        looks: false,
        aborts: true,
        restores: Restores::Never,
        durability: Durability::Notes,
    }
}

/// Clients of a lying server: device, numbers, kinds.
pub fn lying(users: u32, clients: &[(u32, u64, &[Kind])]) -> lying::Config {
    let plan = |(device, operations, kinds): &(u32, u64, &[Kind])| Plan {
        device: DeviceId(*device),
        operations: *operations,
        kinds: kinds.to_vec(),
        crashes: 0,
    };
    lying::Config {
        users,
        clients: clients.iter().map(plan).collect(),
        fast: false,
        slow: true,
        looks: false,
        waits: false,
        aborts: false,
        nothing: false,
        pending_max: 3,
        prune: true,
        gaps: 0,
        durability: Durability::Everything,
    }
}

/// All of them.
pub fn all() -> Vec<Named> {
    let mut list = honest_ones();
    list.extend(lying_ones());
    list.extend(lease_ones());
    list
}

fn honest_ones() -> Vec<Named> {
    use honest::Config;
    let holds = |name, about, small, config| Named {
        name,
        about,
        small,
        expected: Expected::Holds,
        what: What::Honest(config),
    };
    vec![
        holds(
            "honest-2-1",
            "two clients, 2 and 1 writes; fast and slow, waits, aborts, a crash of one that may lose notes",
            true,
            honest(2, &[(1, 2, WRITES, 1), (2, 1, WRITES, 0)]),
        ),
        holds(
            "honest-nothing",
            "the same on the slow path, without crashes; operations that take no effect",
            true,
            Config { nothing: true, fast: false, ..honest(2, &[(1, 2, WRITES, 0), (2, 1, WRITES, 0)]) },
        ),
        holds(
            "honest-looks",
            "two clients, 2 and 1 writes; fast and slow, looks, no crashes",
            true,
            Config { looks: true, waits: false, ..honest(2, &[(1, 2, WRITES, 0), (2, 1, WRITES, 0)]) },
        ),
        holds(
            "honest-2x2",
            "two clients, 2 writes each; fast and slow, waits, aborts, a crash each that may lose notes",
            false,
            honest(2, &[(1, 2, WRITES, 1), (2, 2, WRITES, 1)]),
        ),
        holds(
            "honest-2x2-all",
            "the same with fetches, and operations that take no effect; no crashes",
            false,
            Config { nothing: true, ..honest(2, &[(1, 2, BOTH, 0), (2, 2, BOTH, 0)]) },
        ),
        holds(
            "honest-2x2-looks",
            "two clients, 2 writes each; fast and slow, waits, looks, aborts",
            false,
            Config { looks: true, ..honest(2, &[(1, 2, WRITES, 0), (2, 2, WRITES, 0)]) },
        ),
        holds(
            "honest-3-2",
            "two clients, 3 and 2 writes; fast and slow, waits, aborts",
            false,
            honest(2, &[(1, 3, WRITES, 0), (2, 2, WRITES, 0)]),
        ),
        holds(
            "honest-2-1-1",
            "three clients, 2, 1 and 1 writes; fast and slow, aborts",
            false,
            Config { waits: false, ..honest(3, &[(1, 2, WRITES, 0), (2, 1, WRITES, 0), (3, 1, WRITES, 0)]) },
        ),
        holds(
            "honest-1x3-waits",
            "three clients, a write each on the slow path; waits, aborts, a crash of one",
            false,
            Config { fast: false, ..honest(3, &[(1, 1, WRITES, 1), (2, 1, WRITES, 0), (3, 1, WRITES, 0)]) },
        ),
        holds(
            "honest-rotation-small",
            "the superuser replaces B by C, who then writes; slow path, aborts",
            true,
            Config {
                fast: false,
                waits: false,
                ..honest(2, &[(0, 1, ROTATION, 0), (2, 1, WRITES, 0), (3, 1, WRITES, 0)])
            },
        ),
        holds(
            "honest-rotation",
            "the superuser replaces B by C, in two attempts; A, B and C write; slow path, aborts",
            false,
            Config {
                fast: false,
                waits: false,
                ..honest(2, &[(0, 2, ROTATION, 0), (1, 1, WRITES, 0), (2, 1, WRITES, 0), (3, 1, WRITES, 0)])
            },
        ),
        holds(
            "honest-restore-small",
            "A and B write once; the server is put back, declared or not; slow, waits, aborts",
            true,
            Config {
                restores: Restores::Declared,
                fast: false,
                ..honest(2, &[(1, 1, WRITES, 0), (2, 1, WRITES, 0)])
            },
        ),
        Named {
            name: "honest-restore-undeclared",
            about: "the same, and nobody says that the server was put back",
            small: true,
            expected: Expected::Breaks,
            what: What::Honest(Config {
                restores: Restores::Undeclared,
                fast: false,
                ..honest(2, &[(1, 1, WRITES, 0), (2, 1, WRITES, 0)])
            }),
        },
        holds(
            "honest-restore",
            "A and B write twice and once; the server is put back as declared; fast and slow, waits, aborts",
            false,
            Config { restores: Restores::Declared, ..honest(2, &[(1, 2, WRITES, 0), (2, 1, WRITES, 0)]) },
        ),
        holds(
            "honest-restore-looks",
            "A and B write once, fast and slow; the server is put back as declared; looks, aborts, a crash of one that loses nothing it noted",
            false,
            Config {
                restores: Restores::Declared,
                looks: true,
                waits: false,
                durability: Durability::Everything,
                ..honest(2, &[(1, 1, WRITES, 1), (2, 1, WRITES, 0)])
            },
        ),
        holds(
            "honest-warrant",
            "A submits the warrant for B's replacement by C, twice; B and C write; slow, aborts",
            true,
            Config {
                fast: false,
                waits: false,
                ..honest(2, &[(1, 2, WARRANT, 0), (2, 1, WRITES, 0), (3, 1, WRITES, 0)])
            },
        ),
        holds(
            "honest-warrant-late",
            "A submits the warrant twice, while the superuser replaces B otherwise; B writes; fast and slow, aborts",
            true,
            Config {
                waits: false,
                ..honest(2, &[(0, 1, OTHERWISE, 0), (1, 2, WARRANT, 0), (2, 1, WRITES, 0)])
            },
        ),
        holds(
            "honest-warrant-twice",
            "A and C submit one warrant for B's replacement by D, who writes; slow, aborts",
            false,
            Config {
                fast: false,
                waits: false,
                ..honest(3, &[(1, 2, WARRANT_FOR_D, 0), (3, 2, WARRANT_FOR_D, 0), (4, 1, WRITES, 0)])
            },
        ),
        Named {
            name: "honest-reserved",
            about: "numbers are reserved instead of persisted one by one; a crash of one",
            small: true,
            expected: Expected::Breaks,
            what: What::Honest(Config {
                durability: Durability::Reserved,
                ..honest(2, &[(1, 2, WRITES, 1), (2, 1, WRITES, 0)])
            }),
        },
    ]
}

fn lying_ones() -> Vec<Named> {
    use lying::Config;
    let entry = |name, about, small, config| Named {
        name,
        about,
        small,
        expected: Expected::Holds,
        what: What::Lying(config),
    };
    let breaks = |name, about, config| Named {
        name,
        about,
        small: true,
        expected: Expected::Breaks,
        what: What::Lying(config),
    };
    let two = |first, second| lying(2, &[(1, first, WRITES), (2, second, WRITES)]);
    let three = |kinds, a, b, c| lying(3, &[(1, a, kinds), (2, b, kinds), (3, c, kinds)]);
    let everything = |config: Config| Config { fast: true, waits: true, aborts: true, ..config };
    vec![
        entry(
            "lying-1-1-looks",
            "two clients, a write each; fast and slow, void, aborts, waits, looks",
            true,
            Config { looks: true, ..everything(two(1, 1)) },
        ),
        entry(
            "lying-2-1-looks",
            "two clients, 2 and 1 writes; fast and slow, void, aborts, waits, looks",
            false,
            Config { looks: true, ..everything(two(2, 1)) },
        ),
        entry(
            "lying-2-1-unpruned",
            "two clients, 2 and 1 writes; fast and slow, void, aborts, waits, without leaving views out before the check sees them",
            true,
            Config { prune: false, ..everything(two(2, 1)) },
        ),
        entry("lying-2-1-pruned", "the same, leaving them out: as many states", true, everything(two(2, 1))),
        entry(
            "lying-2-1-gaps",
            "the same, with places of the log left empty",
            true,
            Config { gaps: 1, ..everything(two(2, 1)) },
        ),
        entry(
            "lying-1x3",
            "three clients, a write each on the slow path; void, aborts, waits",
            false,
            Config { aborts: true, waits: true, ..three(WRITES, 1, 1, 1) },
        ),
        entry(
            "lying-2x2",
            "two clients, 2 writes each; fast and slow, void, aborts, waits",
            false,
            everything(two(2, 2)),
        ),
        entry(
            "lying-2x2-all",
            "the same with looks and operations that take no effect",
            false,
            Config { looks: true, nothing: true, ..everything(two(2, 2)) },
        ),
        entry(
            "lying-2x3-paper",
            "two clients, 3 fetches each; slow, void",
            false,
            lying(2, &[(1, 3, FETCHES), (2, 3, FETCHES)]),
        ),
        entry(
            "lying-3-2",
            "two clients, 3 and 2 writes; fast and slow, void, aborts, waits",
            false,
            everything(two(3, 2)),
        ),
        entry(
            "lying-2x3-aborts",
            "two clients, 3 writes each; slow, void, aborts",
            false,
            Config { aborts: true, ..two(3, 3) },
        ),
        entry(
            "lying-2x3",
            "two clients, 3 writes each; fast and slow, void, aborts, waits",
            false,
            everything(two(3, 3)),
        ),
        entry(
            "lying-2-1-1",
            "three clients, 2, 1 and 1 writes; fast and slow, void, aborts, waits",
            false,
            everything(three(WRITES, 2, 1, 1)),
        ),
        entry(
            "lying-2-2-1",
            "three clients, 2, 2 and 1 writes; slow, void, aborts",
            false,
            Config { aborts: true, ..three(WRITES, 2, 2, 1) },
        ),
        entry("lying-3x2-paper", "three clients, 2 fetches each; slow, void", false, three(FETCHES, 2, 2, 2)),
        entry(
            "lying-3x2",
            "three clients, 2 writes each; slow, void, aborts",
            false,
            Config { aborts: true, ..three(WRITES, 2, 2, 2) },
        ),
        entry(
            "lying-rotation",
            "the superuser replaces B by C, A, B and C write; slow, void, aborts",
            false,
            Config {
                aborts: true,
                ..lying(2, &[(0, 1, ROTATION), (1, 1, WRITES), (2, 1, WRITES), (3, 1, WRITES)])
            },
        ),
        entry(
            "lying-rotation-small",
            "the superuser replaces B by C, B and C write; slow, void, aborts",
            true,
            Config { aborts: true, ..lying(2, &[(0, 1, ROTATION), (2, 1, WRITES), (3, 1, WRITES)]) },
        ),
        entry(
            "lying-warrant-small",
            "A submits the warrant for B's replacement by C, twice, while the superuser replaces B otherwise; B fetches; slow, void",
            true,
            lying(2, &[(0, 1, OTHERWISE), (1, 2, WARRANT), (2, 1, FETCHES)]),
        ),
        entry(
            "lying-warrant-league",
            "the same with A in league with the server: it signs over whatever came between",
            true,
            league(),
        ),
        entry(
            "lying-warrant",
            "the first with aborts",
            false,
            Config { aborts: true, ..lying(2, &[(0, 1, OTHERWISE), (1, 2, WARRANT), (2, 1, FETCHES)]) },
        ),
        breaks(
            "lying-power-loss",
            "a client that loses power and with it what it only noted",
            with_crash(Durability::Notes, everything(two(2, 1))),
        ),
        breaks(
            "lying-reserved",
            "numbers are reserved instead of persisted one by one",
            with_crash(Durability::Reserved, everything(two(2, 1))),
        ),
    ]
}

/// A member that colludes with the server and submits a warrant whatever came in between.
pub fn league() -> lying::Config {
    let anyway = &[Kind::EnactAnyway { old: DeviceId(2), new: DeviceId(3) }];
    lying(2, &[(0, 1, OTHERWISE), (1, 2, anyway), (2, 1, FETCHES)])
}

/// The first client may crash once.
pub fn with_crash(durability: Durability, mut config: lying::Config) -> lying::Config {
    config.clients[0].crashes = 1;
    config.durability = durability;
    config
}

/// Longer than a slice, in milliseconds.
const SLICE: u64 = 120;
/// Longer than anything is held exclusively without an operation, shorter than leases last, in milliseconds.
const EXCLUSIVE: u64 = EXCLUSIVE_MS + 1_000;
/// Longer than leases last, in milliseconds.
const TERM: u64 = TERM_MS + 1_000;

/// Two clients, A and B, of one directory with these operations; `makes`: how often each changes a file
/// without asking.
fn leases(clients: [(&[leases::Kind], bool, u8); 2], times: &[u64]) -> leases::Config {
    let plan = |(operations, exclusive, makes): (&[leases::Kind], bool, u8)| leases::Plan {
        operations: operations.to_vec(),
        exclusive,
        makes,
        deaths: 0,
    };
    leases::Config {
        clients: clients.map(plan).to_vec(),
        times: times.to_vec(),
        restarts: 0,
        repeats: 0,
        false_recalls: 0,
        shortcut: Shortcut::None,
    }
}

fn lease_ones() -> Vec<Named> {
    use leases::Config;
    use leases::Kind::{Change, Edit, Read};
    let entry = |name, about, small, config| Named {
        name,
        about,
        small,
        expected: Expected::Holds,
        what: What::Leases(config),
    };
    vec![
        entry(
            "leases-reader-small",
            "A holds a file exclusively and changes one by itself, B reads under leases; a slice and a term pass",
            true,
            leases([(&[Edit(0)], true, 1), (&[Read(0)], false, 0)], &[SLICE, TERM]),
        ),
        entry(
            "leases-turns-small",
            "A and B hold a file exclusively, and each changes it by itself; a slice passes",
            true,
            leases([(&[Edit(0)], true, 1), (&[Change(0)], true, 1)], &[SLICE]),
        ),
        entry(
            "leases-beside",
            "A holds one file exclusively and changes it by itself, B reads the other, twice each; two slices pass",
            true,
            leases([(&[Edit(0), Edit(0)], true, 1), (&[Read(1), Read(1)], false, 0)], &[SLICE, SLICE]),
        ),
        entry(
            "leases-repeats",
            "B reads a file under leases twice, A changes it, a request of B's comes again",
            true,
            Config { repeats: 1, ..leases([(&[Change(0)], false, 0), (&[Read(0), Read(0)], false, 0)], &[]) },
        ),
        entry(
            "leases-restart-small",
            "A holds a file exclusively, the server restarts, B reads; a slice and an exclusive term pass",
            true,
            Config {
                restarts: 1,
                ..leases([(&[Edit(0)], true, 1), (&[Read(0)], false, 0)], &[SLICE, EXCLUSIVE])
            },
        ),
        entry(
            "leases-crossing",
            "A and B hold a file each exclusively, A changes its by itself and looks at B's; two slices pass",
            true,
            leases([(&[Edit(0), Read(1)], true, 1), (&[Edit(1), Edit(1)], true, 0)], &[SLICE, SLICE]),
        ),
        entry(
            "leases-reader",
            "A holds files exclusively and changes one by itself, B reads two under leases; a slice and a term pass",
            false,
            leases([(&[Edit(0), Change(1)], true, 1), (&[Read(0), Read(1)], false, 0)], &[SLICE, TERM]),
        ),
        entry(
            "leases-turns",
            "A and B hold files exclusively, and each changes one by itself; two slices pass",
            false,
            leases([(&[Edit(0), Change(1)], true, 1), (&[Change(0)], true, 1)], &[SLICE, SLICE]),
        ),
        entry(
            "leases-deaths",
            "A and B hold files exclusively, A dies; a slice and an exclusive term pass",
            false,
            with_death(leases([(&[Edit(0)], true, 1), (&[Change(0)], true, 1)], &[SLICE, EXCLUSIVE])),
        ),
        entry(
            "leases-restart",
            "A and B hold files exclusively, the server restarts; a slice and an exclusive term pass",
            false,
            Config {
                restarts: 1,
                ..leases([(&[Edit(0)], true, 1), (&[Edit(0)], true, 1)], &[SLICE, EXCLUSIVE])
            },
        ),
        entry(
            "leases-false-recalls",
            "A and B hold files exclusively, the server recalls all although nobody needs it; two slices pass",
            false,
            Config {
                false_recalls: 1,
                ..leases([(&[Edit(0)], true, 1), (&[Change(0)], true, 1)], &[SLICE, SLICE])
            },
        ),
        entry(
            "leases-three",
            "A and B hold a file exclusively, and C reads it; a slice passes",
            false,
            three_with_leases(),
        ),
    ]
}

/// The first client may die once.
fn with_death(mut config: leases::Config) -> leases::Config {
    config.clients[0].deaths = 1;
    config
}

fn three_with_leases() -> leases::Config {
    use leases::Kind::{Change, Edit, Read};
    let mut config = leases([(&[Edit(0)], true, 1), (&[Change(0)], true, 0)], &[SLICE]);
    config.clients.push(leases::Plan { operations: vec![Read(0)], exclusive: false, makes: 0, deaths: 0 });
    config
}
