//! Draws what was measured: LBFS's figures 5 and 7 to 10, and those of protected volumes.

mod data;
mod draw;
mod volumes;

use anyhow::Context;
use data::{Data, Measured};
use draw::{Axis, Series};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Example: holdfast-bench plot --from target/far --out docs/benchmarks/plots")]
pub struct Options {
    /// Directory with what `holdfast-bench far --json` `holdfast-bench chunks sizes --json` and `holdfast-bench
    /// volume --json` wrote.
    #[arg(long)]
    from: PathBuf,
    /// Directory for the pictures; made if needed.
    #[arg(long)]
    out: PathBuf,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let data = Data::load(&options.from)?;
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    for failed in &data.failed {
        let why = failed.error.as_deref().unwrap_or("it did not end");
        println!("not drawn: figure {}, {}, {}: {why}", failed.figure, failed.workload, failed.side);
    }
    for (name, svg) in pictures(&data)? {
        let path = options.out.join(name);
        std::fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

const SECONDS: Axis = Axis { title: "seconds", is_log: true, write: short };

/// Every picture there is data for, by its file's name.
fn pictures(data: &Data) -> anyhow::Result<Vec<(String, String)>> {
    let mut made = Vec::new();
    if !data.distributions.is_empty() {
        made.push(("figure-5.svg".to_owned(), sizes(data)?));
    }
    let workloads = data.workloads("7");
    if !workloads.is_empty() {
        let title = "Figure 7a: time over a cable modem (pale: until all was at the server)";
        let times = grouped(data, &workloads, &|measured| measured.seconds);
        let sent = grouped(data, &workloads, &|measured| measured.seconds_sent);
        let series = with_sent(times, sent);
        made.push(("figure-7-time.svg".to_owned(), draw::bars(title, &workloads, &SECONDS, &series)?));
        let bytes = |measured: &Measured| Some((measured.bytes_up + measured.bytes_down).max(1) as f64 / 1e3);
        let sides = grouped(data, &workloads, &bytes);
        let series: Vec<Series> = sides
            .into_iter()
            .map(|(side, points)| Series::of_side(&side, side.clone(), false, points))
            .collect();
        let up = Axis { title: "KB, both ways", is_log: true, write: short };
        let title = "Figures 6 and 7b: what crossed the cable modem";
        made.push(("figure-7-bytes.svg".to_owned(), draw::bars(title, &workloads, &up, &series)?));
    }
    let rate = Axis { title: "Mbit/s, each way", is_log: true, write: short };
    let delay = Axis { title: "round trip, ms", is_log: false, write: short };
    let loss = Axis { title: "packets lost, %", is_log: false, write: short };
    let swept: [(&str, &str, Axis, At); 3] = [
        ("8", "bandwidth", rate, |measured| measured.rate_down.map(|rate| rate / 1e6)),
        ("9", "round trip", delay, |measured| Some(measured.delay_ms)),
        ("10", "losses", loss, |measured| Some(measured.loss * 100.0)),
    ];
    for (figure, what, across, at) in swept {
        for workload in data.workloads(figure) {
            let times = data.lines(figure, &workload, at, |measured| measured.seconds);
            let sent = data.lines(figure, &workload, at, |measured| measured.seconds_sent);
            let series = with_sent(times, sent);
            let title = format!("Figure {figure}: {workload} against {what}");
            let svg = draw::lines(&title, &across, &SECONDS, None, &series)?;
            made.push((format!("figure-{figure}-{workload}.svg"), svg));
        }
    }
    made.extend(volumes::pictures(&data.volumes)?);
    Ok(made)
}

/// Where a measurement lies on the axis that goes across.
type At = fn(&Measured) -> Option<f64>;

type Sides = Vec<(String, Vec<(f64, f64)>)>;

/// Of figure 7: for each side, groups by their numbers and the median in each.
fn grouped(data: &Data, workloads: &[String], what: &dyn Fn(&Measured) -> Option<f64>) -> Sides {
    let mut sides: Sides = Vec::new();
    for (group, workload) in workloads.iter().enumerate() {
        for (side, points) in data.lines("7", workload, |_| Some(0.0), what) {
            let values = points.into_iter().map(|(_, value)| (group as f64, value));
            match sides.iter_mut().find(|(known, _)| *known == side) {
                Some((_, points)) => points.extend(values),
                None => sides.push((side, values.collect())),
            }
        }
    }
    sides.sort_by_key(|(side, _)| (data::rank(side), side.clone()));
    sides
}

/// A series for each side, and another, faint, for those that had sent all only later.
fn with_sent(times: Sides, sent: Sides) -> Vec<Series> {
    let mut series = Vec::new();
    for (side, points) in times {
        let sent =
            sent.iter().find(|(other, _)| *other == side).map_or(Vec::new(), |(_, points)| points.clone());
        let later: Vec<(f64, f64)> = sent
            .into_iter()
            .filter(|(at, sent)| points.iter().any(|(place, done)| place == at && *sent > done * 1.05))
            .collect();
        series.push(Series::of_side(&side, side.clone(), false, points));
        if !later.is_empty() {
            series.push(Series::of_side(&side, format!("{side}, until sent"), true, later));
        }
    }
    series
}

fn sizes(data: &Data) -> anyhow::Result<String> {
    let colours = [8, 1, 6, 0, 2, 4];
    let series: Vec<Series> = data
        .distributions
        .iter()
        .zip(colours.into_iter().cycle())
        .map(|(distribution, colour)| Series {
            name: distribution.side.replace(", ", ",\u{a0}"),
            colour,
            is_faint: false,
            points: distribution.bins.iter().map(|(from, count)| (*from, *count as f64)).collect(),
        })
        .collect();
    let across = Axis { title: "length of chunks", is_log: true, write: bytes };
    let up = Axis { title: "chunks", is_log: false, write: short };
    let marks = (0..=20).step_by(2).map(|power| f64::from(power).exp2()).collect();
    draw::lines("Figure 5: how long chunks are", &across, &up, Some(marks), &series)
}

/// A number in at most three figures where it has no more that matter.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 9_999.5 => format!("{:.0}k", value / 1e3),
        some if some >= 99.95 => format!("{value:.0}"),
        few if few >= 9.995 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.2}")),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn bytes(value: f64) -> String {
    match value {
        mebi if mebi >= 1_048_576.0 => format!("{} MB", short(mebi / 1_048_576.0)),
        kibi if kibi >= 1024.0 => format!("{} KB", short(kibi / 1024.0)),
        few => format!("{} B", short(few)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: every figure is drawn from what is written for it, the same bytes each time, with names, marks and
    /// values in it.
    #[test]
    fn pictures_of_a_sample() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("sample.jsonl"), data::tests::SAMPLE).expect("written");
        let data = Data::load(directory.path()).expect("it is read");
        let made = pictures(&data).expect("they are drawn");
        let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "figure-5.svg",
                "figure-7-time.svg",
                "figure-7-bytes.svg",
                "figure-8-build.svg",
                "figure-9-build.svg",
                "figure-10-turn.svg"
            ]
        );
        for ((name, svg), words) in made.iter().zip([
            &["64 KB", "Holdfast", "300"][..],
            &["build", "vim", "sshfs", "write-back, until sent", "\n10\n", "\n100\n"],
            &["KB, both ways", "\n59\n", "\n5.9\n"],
            &["Mbit/s", "full", "\n0.1\n"],
            &["round trip, ms", "full"],
            &["packets lost, %", "full"],
        ]) {
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{name}");
            for word in words {
                assert!(svg.contains(word), "{name} has no {word}: {svg}");
            }
        }
        assert_eq!(made, pictures(&data).expect("they are drawn again"));
    }

    /// Proves: numbers are written as people write them.
    #[test]
    fn numbers_are_short() {
        let written: Vec<String> = [0.0, 0.1, 1.25, 10.0, 12.34, 100.0, 1234.5, 98_765.0].map(short).into();
        assert_eq!(written, ["0", "0.1", "1.25", "10", "12.3", "100", "1234", "99k"]);
        assert_eq!([1.0, 4096.0, 1_048_576.0].map(bytes), ["1 B", "4 KB", "1 MB"]);
    }
}
