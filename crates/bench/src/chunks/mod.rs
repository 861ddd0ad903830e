//! How much files have in common when they are cut into chunks: LBFS's tables 1 and 2 and figure 5. No server and no
//! link, only the chunks.

mod cut;
mod tree;

use anyhow::Context;
use clap::Subcommand;
use cut::{Cutter, sizes};
use holdfast_content::file::ChunkerConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tree::Chunks;

#[derive(clap::Args)]
#[command(
    after_help = "scripts/bench-chunks fetches what docs/benchmarks/links.md shows, and measures the indexes too."
)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What of a file or tree is new to whoever has another one (table 1).
    Overlap {
        /// The file or tree.
        new: PathBuf,
        /// What its receiver has; without it, nothing.
        #[arg(long)]
        given: Option<PathBuf>,
        /// What to call it in the table.
        #[arg(long)]
        name: Option<String>,
    },
    /// How much of a tree is in chunks that occur more than once, for various sizes and windows (table 2).
    Shared {
        /// The tree, or several taken together.
        #[arg(required = true)]
        trees: Vec<PathBuf>,
    },
    /// How long the chunks of a tree are (figure 5).
    Sizes {
        /// The tree, or several taken together.
        #[arg(required = true)]
        trees: Vec<PathBuf>,
        /// Also write the distribution to this file, a line for each way of cutting, for `scripts/bench-plot`.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.command {
        Command::Overlap { new, given, name } => overlap(new, given.as_deref(), name.as_deref()),
        Command::Shared { trees } => shared(trees),
        Command::Sizes { trees, json } => lengths(trees, json.as_deref()),
    }
}

/// The paper's parameters, as nearly as the crate has them: its windows are powers of two.
const PAPER: Cutter = Cutter::Rabin { window_bits: 6, sizes: ChunkerConfig::LBFS };

fn overlap(new: &Path, given: Option<&Path>, name: Option<&str>) -> anyhow::Result<()> {
    let mut row = String::new();
    for cutter in [Cutter::Holdfast, Cutter::FastCdc(ChunkerConfig::LBFS), PAPER] {
        let given = given.map_or(Ok(Chunks::default()), |given| Chunks::of(&[given], &cutter))?;
        let chunks = Chunks::of(&[new], &cutter)?;
        if row.is_empty() {
            let name = name.map_or_else(|| new.display().to_string(), str::to_owned);
            row = format!("| {name} | {} |", size(chunks.bytes));
        }
        let fresh = chunks.new_bytes(&given);
        let overlap = 100.0 * (1.0 - fresh as f64 / chunks.bytes.max(1) as f64);
        row += &format!(" {} | {overlap:.0}% |", size(fresh));
    }
    println!("{row}");
    Ok(())
}

fn size(bytes: u64) -> String {
    match bytes {
        few if few < 1_000_000 => format!("{:.0} KB", few as f64 / 1e3),
        more => format!("{:.1} MB", more as f64 / 1e6),
    }
}

fn shared(trees: &[PathBuf]) -> anyhow::Result<()> {
    println!(
        "| cut by | in shared chunks | saved | chunks | in two files or more | seconds |\n|---|---|---|---|---|---|"
    );
    let mut cutters = vec![Cutter::Holdfast];
    for expected in [1, 2, 4, 8, 16, 32, 64] {
        cutters.push(Cutter::FastCdc(sizes(expected << 10)));
    }
    // Around 8 KiB: what the least and the most do.
    for (least, most) in [(16, 8), (2, 8), (4, 2), (4, 4), (4, 32)] {
        let expected = 8 << 10;
        cutters.push(Cutter::FastCdc(ChunkerConfig {
            bytes_min: expected / least,
            bytes_average: expected,
            bytes_max: expected * most,
        }));
    }
    for expected in [2, 4, 8] {
        cutters
            .extend([4, 5, 6].map(|window_bits| Cutter::Rabin { window_bits, sizes: sizes(expected << 10) }));
    }
    for cutter in cutters {
        let start = Instant::now();
        let chunks = Chunks::of(trees, &cutter)?;
        let in_several = chunks.by_name.values().filter(|chunk| chunk.files > 1).count();
        println!(
            "| {} | {:.2}% | {:.2}% | {} | {:.1}% | {:.1} |",
            cutter.name(),
            100.0 * chunks.shared(),
            100.0 * chunks.saved(),
            chunks.by_name.len(),
            100.0 * in_several as f64 / chunks.by_name.len().max(1) as f64,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Figure 5 has a bin for each eighth of a doubling, so that chunks of 2 KB and of 256 KB fit one picture.
const BINS_A_DOUBLING: f64 = 8.0;

/// The distribution of one way of cutting, as `scripts/bench-plot` reads it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// Always `5`.
    pub figure: String,
    /// How it was cut.
    pub side: String,
    /// Smallest length of each bin, in bytes, and how many chunks are in it; in order, without empty ones.
    pub bins: Vec<(f64, u64)>,
    /// Of all lengths, in bytes.
    pub median: u32,
    /// Of all lengths, in bytes.
    pub mean: f64,
}

impl Distribution {
    fn of(side: String, lengths: &mut [u32]) -> Distribution {
        lengths.sort_unstable();
        let mut bins: BTreeMap<i32, u64> = BTreeMap::new();
        for length in lengths.iter() {
            *bins.entry((f64::from(*length).log2() * BINS_A_DOUBLING).floor() as i32).or_default() += 1;
        }
        let from = |bin: i32| (f64::from(bin) / BINS_A_DOUBLING).exp2();
        Distribution {
            figure: "5".to_owned(),
            side,
            bins: bins.into_iter().map(|(bin, count)| (from(bin), count)).collect(),
            median: lengths.get(lengths.len() / 2).copied().unwrap_or(0),
            mean: lengths.iter().map(|length| f64::from(*length)).sum::<f64>() / lengths.len().max(1) as f64,
        }
    }
}

fn lengths(trees: &[PathBuf], json: Option<&Path>) -> anyhow::Result<()> {
    println!("| cut by | files | data | chunks | median | mean | below the least | at the most |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut lines = String::new();
    for cutter in [Cutter::Holdfast, Cutter::FastCdc(ChunkerConfig::LBFS), PAPER] {
        let mut chunks = Chunks::of(trees, &cutter)?;
        let count = |is: &dyn Fn(usize) -> bool| {
            chunks.lengths.iter().filter(|length| is(**length as usize)).count().to_string()
        };
        let (below, at_most) = match cutter {
            // The sizes with which a chunk was cut depend on its file.
            Cutter::Holdfast => ("-".to_owned(), "-".to_owned()),
            Cutter::FastCdc(sizes) | Cutter::Rabin { sizes, .. } => {
                (count(&|length| length < sizes.bytes_min), count(&|length| length == sizes.bytes_max))
            }
        };
        let distribution = Distribution::of(cutter.name(), &mut chunks.lengths);
        println!(
            "| {} | {} | {:.0} MB | {} | {} | {:.0} | {below} | {at_most} |",
            cutter.name(),
            chunks.files,
            chunks.bytes as f64 / 1e6,
            chunks.lengths.len(),
            distribution.median,
            distribution.mean
        );
        lines += &(serde_json::to_string(&distribution)? + "\n");
    }
    if let Some(path) = json {
        std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: each length is counted once, in the bin it belongs to, and median and mean are those of all.
    #[test]
    fn distributions() {
        let mut lengths = vec![8192, 1, 8193, 2048, 65_536];
        let found = Distribution::of("some".to_owned(), &mut lengths);
        assert_eq!(found.bins, [(1.0, 1), (2048.0, 1), (8192.0, 2), (65_536.0, 1)]);
        assert_eq!((found.median, found.mean), (8192, 83_970.0 / 5.0));
        assert!(Distribution::of("none".to_owned(), &mut []).bins.is_empty());
    }
}
