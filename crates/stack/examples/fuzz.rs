//! Fuzzes one target or all, for so many seconds: `cargo run -p holdfast-stack --example fuzz -- [TARGET]
//! [SECONDS]`, or `scripts/fuzz`. Bytes that ended in a panic are left in `tests/corpus`, where `cargo test` tries them.

#[path = "../tests/common/mutate.rs"]
mod mutate;
#[path = "../tests/common/samples.rs"]
mod samples;
#[path = "../tests/common/targets.rs"]
mod targets;

use mutate::{Random, mutated};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use targets::{TARGETS, Target};

/// Samples that are kept in memory, newest instead of oldest.
const KEPT_MAX: usize = 4096;

fn fuzz(target: &'static Target, time: Duration) -> bool {
    let mut samples = (target.samples)();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target.name);
    for entry in std::fs::read_dir(&corpus).into_iter().flatten().flatten() {
        samples.extend(std::fs::read(entry.path()));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let seed = since.as_nanos() as u64 | 1;
    let (mut random, started) = (Random(seed), Instant::now());
    let (mut runs, mut values) = (0_u64, 0_u64);
    while started.elapsed() < time {
        let bytes = mutated(&samples, &mut random);
        runs += 1;
        match std::panic::catch_unwind(|| (target.run)(&bytes)) {
            // A value that is not one of the first is a sample, too.
            Ok(true) => {
                values += 1;
                match samples.len() < KEPT_MAX {
                    true => samples.push(bytes),
                    false => samples[random.below(KEPT_MAX)] = bytes,
                }
            }
            Ok(false) => {}
            Err(_) => {
                let name = corpus.join(format!("{seed:016x}-{runs}"));
                std::fs::create_dir_all(&corpus).expect("made");
                std::fs::write(&name, &bytes).expect("written");
                println!("{}: a panic; the bytes are in {}", target.name, name.display());
                return false;
            }
        }
    }
    println!("{}: {runs} runs, {values} values, nothing found (seed {seed:016x})", target.name);
    true
}

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "all".to_owned());
    let seconds = arguments.next().map_or(Some(10), |text| text.parse().ok());
    let chosen: Vec<&Target> = TARGETS.iter().filter(|target| name == "all" || target.name == name).collect();
    let (Some(seconds), false) = (seconds, chosen.is_empty()) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("usage: scripts/fuzz [TARGET|all] [SECONDS]; targets: {}", names.join(", "));
        return 64.into();
    };
    let is_sound = |target: &&Target| {
        let target = TARGETS.iter().find(|known| known.name == target.name).expect("it is one");
        fuzz(target, Duration::from_secs(seconds))
    };
    let sound = chosen.iter().filter(|target| is_sound(target)).count();
    if sound == chosen.len() { 0.into() } else { 1.into() }
}
