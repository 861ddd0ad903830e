//! Fuzzes one target or all by seeds, without coverage, for so many seconds: `holdfast-fuzz [TARGET|all] [SECONDS]`.
//! Bytes that cause a panic are left in the corpus, where `cargo test` tries them.
//!
//! `holdfast-fuzz --keep TARGET DIRECTORY` makes the files there the target's corpus, for `scripts/fuzz`.

use holdfast_fuzz::mutate::{Random, mutated};
use holdfast_fuzz::{Target, corpus};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of samples kept in memory; newer ones replace older ones.
const KEPT_MAX: usize = 4096;

fn fuzz(target: &'static Target, time: Duration) -> bool {
    let (mut samples, panics) = (target.kept(), target.panics());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let seed = since.as_nanos() as u64 | 1;
    let (mut random, started) = (Random(seed), Instant::now());
    let (mut runs, mut values) = (0_u64, 0_u64);
    while started.elapsed() < time {
        let bytes = mutated(&samples, &mut random);
        runs += 1;
        match std::panic::catch_unwind(|| (target.run)(&bytes)) {
            // A value that is not one of the first samples becomes a sample, too.
            Ok(true) => {
                values += 1;
                match samples.len() < KEPT_MAX {
                    true => samples.push(bytes),
                    false => samples[random.below(KEPT_MAX)] = bytes,
                }
            }
            Ok(false) => {}
            Err(_) => {
                let name = panics.join(format!("{seed:016x}-{runs}"));
                std::fs::create_dir_all(&panics).expect("made");
                std::fs::write(&name, &bytes).expect("written");
                println!("{}: a panic; the bytes are in {}", target.name, name.display());
                return false;
            }
        }
    }
    println!("{}: {runs} runs, {values} values, nothing found (seed {seed:016x})", target.name);
    true
}

fn keep(target: &str, directory: &str) -> Result<(), String> {
    let target = holdfast_fuzz::target(target).ok_or_else(|| format!("there is no target {target}"))?;
    let inputs = corpus::files(Path::new(directory)).map_err(|error| format!("{directory}: {error}"))?;
    let file = target.inputs();
    corpus::save(&file, inputs).map_err(|error| format!("{}: {error}", file.display()))
}

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "all".to_owned());
    if name == "--keep" {
        let (target, directory) =
            (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
        return match keep(&target, &directory) {
            Ok(()) => 0.into(),
            Err(why) => {
                eprintln!("holdfast-fuzz: {why}");
                1.into()
            }
        };
    }
    let seconds = arguments.next().map_or(Some(10), |text| text.parse().ok());
    let chosen: Vec<&'static Target> =
        holdfast_fuzz::targets().filter(|target| name == "all" || target.name == name).collect();
    let (Some(seconds), false) = (seconds, chosen.is_empty()) else {
        let names: Vec<&str> = holdfast_fuzz::targets().map(|target| target.name).collect();
        eprintln!("usage: holdfast-fuzz [TARGET|all] [SECONDS]; targets: {}", names.join(", "));
        return 64.into();
    };
    let sound = chosen.iter().filter(|target| fuzz(target, Duration::from_secs(seconds))).count();
    if sound == chosen.len() { 0.into() } else { 1.into() }
}
