//! Explores configurations of the protocol and prints a row of a table for each.

use clap::Parser;
use holdfast_model::configurations::{Expected, all};
use holdfast_model::explore::{Limits, Verdict};
use std::process::ExitCode;
use std::time::Duration;

/// Explores every interleaving of configurations of the protocol's machines.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  model-check --list\n  model-check lying-2x2\n  model-check honest --minutes 10"
)]
struct Arguments {
    /// Configurations, or beginnings of their names; all if none is given.
    names: Vec<String>,
    /// Only list the configurations.
    #[arg(long)]
    list: bool,
    /// Longest time for each.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Most states of each configuration, in millions; each state takes about 300 bytes.
    #[arg(long, default_value_t = 20)]
    millions: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = |name: &str| {
        arguments.names.is_empty() || arguments.names.iter().any(|wanted| name.starts_with(wanted.as_str()))
    };
    let limits = Limits {
        states: arguments.millions * 1_000_000,
        time: Duration::from_secs(60 * arguments.minutes),
        ..Limits::NONE
    };
    let chosen: Vec<_> = all().into_iter().filter(|named| wanted(named.name)).collect();
    if chosen.is_empty() {
        eprintln!("no configuration of that name; --list shows them");
        return ExitCode::FAILURE;
    }
    let mut good = true;
    if !arguments.list {
        println!("| name | configuration | machines | states | steps | depth | time | verdict |");
        println!("|---|---|---|---|---|---|---|---|");
    }
    for named in chosen {
        if arguments.list {
            println!("{:24} {}", named.name, named.about);
            continue;
        }
        let report = named.run(limits);
        let verdict = match (&report.verdict, named.expected) {
            (Verdict::Holds, _) => "holds",
            (Verdict::Incomplete, _) => "incomplete, nothing found",
            (Verdict::Broken { .. }, Expected::Breaks) => "broken, as expected",
            (Verdict::Broken { .. }, Expected::Holds) => "BROKEN",
        };
        good &= match named.expected {
            Expected::Holds => !matches!(report.verdict, Verdict::Broken { .. }),
            Expected::Breaks => matches!(report.verdict, Verdict::Broken { .. }),
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} s | {verdict} |",
            named.name,
            named.about,
            report.machines,
            report.states,
            report.steps,
            report.depth,
            report.time.as_secs_f64().ceil(),
        );
        eprint!("{}", report.explain());
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
