//! Enumerates the states that crashes of a protected volume may leave, and checks each against the oracle.

use clap::Parser;
use holdfast_sim::random::Random;
use holdfast_sim::volume::check::{CheckResult, check};
use holdfast_sim::volume::crash::Moment;
use holdfast_sim::volume::order;
use holdfast_sim::volume::program::{Subject, options};
use std::collections::HashSet;

/// Runs random programs on small protected volumes whose log comes round often, crashes them at every write and flush
/// of either device, and recovers each state.
#[derive(Parser)]
struct Arguments {
    /// Distinct crash states to check at least.
    #[arg(long, default_value_t = 100_000)]
    states: u64,
    /// Where randomness begins; the same seed checks the same programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Programs to run at most.
    #[arg(long, default_value_t = u64::MAX)]
    programs: u64,
    /// States for each write or flush of a program; with none, only the order of writes is checked.
    #[arg(long, default_value_t = 10)]
    each: usize,
}

/// Blocks of a volume.
const BLOCKS: u64 = 300;

fn main() {
    let arguments = Arguments::parse();
    let mut seen = HashSet::new();
    let mut found = CheckResult::default();
    let mut checked = order::Checked::default();
    let (mut programs, mut events) = (0, 0);
    while (seen.len() as u64) < arguments.states && programs < arguments.programs {
        programs += 1;
        let seed = arguments.seed.wrapping_mul(1_000_003).wrapping_add(programs);
        let mut random = Random::new(seed);
        let subject = Subject::new(BLOCKS, options(&mut random), seed);
        match programs % 3 {
            0 => subject.run_threads(&mut random, 3, 40),
            _ => subject.run(&mut random, 60),
        }
        subject.volume.close().expect("closed");
        let trace = subject.devices.trace();
        events += trace.events.len();
        let ordered = order::check(&trace).unwrap_or_else(|error| fail(seed, &error));
        checked.written += ordered.written;
        checked.stable += ordered.stable;
        if ordered.candidates > subject.options.candidates_max {
            fail(seed, &format!("a block has {} candidates", ordered.candidates));
        }
        let mut moment = Moment::first(&trace);
        for event in trace.events.iter().filter(|_| arguments.each > 0) {
            moment.step(event);
            let allowed = subject.oracle.after(moment.events());
            for state in moment.states(&mut random, arguments.each) {
                if !seen.insert((programs, state.name)) {
                    continue;
                }
                let nested = usize::from(random.chance(10)) * 3;
                let done = check(&state, &allowed, &subject.options, nested, &mut random, &mut found);
                if let Err(error) = done {
                    let (events, story) = (moment.events(), &state.story);
                    fail(seed, &format!("after {events} events ({story}): {error}; {:?}", subject.options));
                }
            }
            if seen.len() as u64 >= arguments.states {
                break;
            }
        }
    }
    println!(
        "{programs} programs, {events} events; {} distinct crash states and {} of recoveries that crashed: all as promised",
        seen.len(),
        found.nested
    );
    println!(
        "{} blocks examined, {} written again from the log, {} torn, unacknowledged and refused",
        found.examined, found.replayed, found.refused
    );
    println!(
        "write order: {} blocks written, each announced before; {} called stable, each on the disk",
        checked.written, checked.stable
    );
}

fn fail(seed: u64, error: &str) -> ! {
    println!("the program with seed {seed}: {error}");
    std::process::exit(1);
}
