//! Measures opening and closing a file: `open_cost FILE...` prints microseconds, median and 95th percentile.

use std::time::Instant;

fn main() -> std::io::Result<()> {
    const ROUNDS: usize = 2000;
    for path in std::env::args_os().skip(1) {
        let mut took = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            drop(std::fs::File::open(&path)?);
            took.push(start.elapsed().as_nanos() / 100);
        }
        took.sort_unstable();
        let tenths = |at: usize| took[at] as f64 / 10.0;
        println!(
            "{}: median {} us, 95% {} us",
            path.display(),
            tenths(ROUNDS / 2),
            tenths(ROUNDS * 95 / 100)
        );
    }
    Ok(())
}
