//! Protected volumes: figures 5 to 10 of *Unifying File System Protection*, and what protection costs beside what it
//! cost there, as far as the paper says so in words (its figures have no numbers).

use super::draw::{self, Axis, Series};
use super::{bytes, short};
use crate::report::median;
use crate::volume::Measured;

/// What is drawn, with the paper's number, and what it is counted in.
const FILES: [(&str, &str, &str); 4] = [
    ("5", "create", "MB a second"),
    ("6", "write", "MB a second"),
    ("7", "read", "MB a second"),
    ("8", "delete", "files a second"),
];

/// Time with protection over time without, where the paper gives it: reading files of 32 to 96 KB "nearly double",
/// PostMark 7.9% fewer transactions, the build 3.5% longer; the others are called similar, or not distinguishable.
const PAPER: [(&str, Option<f64>); 8] = [
    ("create", Some(1.0)),
    ("write", None),
    ("read", Some(2.0)),
    ("delete", Some(1.0)),
    ("postmark", Some(1.0 / (1.0 - 0.079))),
    ("unpack", Some(1.0)),
    ("configure", Some(1.0)),
    ("build", Some(1.035)),
];

const SIDES: [(&str, usize); 4] = [("bare", 0), ("unhashed", 5), ("protected", 8), ("btrfs", 1)];

fn colour(side: &str) -> usize {
    SIDES.iter().find(|(name, _)| *name == side).map_or(4, |(_, colour)| *colour)
}

/// Everybody who was measured at one of these, in order.
fn sides(found: &[&Measured]) -> Vec<String> {
    let mut sides: Vec<String> = found.iter().map(|it| it.side.clone()).collect();
    sides.sort_by_key(|side| (SIDES.iter().position(|(name, _)| name == side), side.clone()));
    sides.dedup();
    sides
}

fn middle(found: &[&Measured], value: impl Fn(&Measured) -> f64) -> f64 {
    median(&found.iter().map(|it| value(it)).collect::<Vec<f64>>())
}

/// Every picture there is data for, by its file's name.
pub fn pictures(found: &[Measured]) -> anyhow::Result<Vec<(String, String)>> {
    let mut made = Vec::new();
    let is_of = |it: &&Measured, figure: &str, workload: &str| it.figure == figure && it.workload == workload;
    for (figure, workload, unit) in FILES {
        let these: Vec<&Measured> = found.iter().filter(|it| is_of(it, "volume-files", workload)).collect();
        if these.is_empty() {
            continue;
        }
        let mut sizes: Vec<u64> = these.iter().map(|it| it.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let series = sides(&these).into_iter().map(|side| {
            let at = |size: u64| -> Vec<&Measured> {
                these.iter().filter(|it| it.side == side && it.size == size).copied().collect()
            };
            let rate = |it: &Measured| it.amount / it.seconds;
            let points = sizes.iter().map(|size| (*size as f64, middle(&at(*size), rate))).collect();
            Series { colour: colour(&side), name: side, is_faint: false, points }
        });
        let across = Axis { title: "size of files", is_log: true, write: bytes };
        let up = Axis { title: unit, is_log: false, write: short };
        let marks = sizes.iter().map(|size| *size as f64).collect();
        let title = format!("Figure {figure}: {workload}, cold");
        let svg = draw::lines(&title, &across, &up, Some(marks), &series.collect::<Vec<Series>>())?;
        made.push((format!("volumes-{figure}-{workload}.svg"), svg));
    }
    let groups: [(&str, &str, &str, &[&str], &'static str); 2] = [
        ("9", "PostMark", "volume-postmark", &["postmark"], "transactions a second"),
        ("10", "build of OpenSSH", "volume-build", &["unpack", "configure", "build"], "seconds"),
    ];
    for (figure, name, of, workloads, unit) in groups {
        let these: Vec<&Measured> = found.iter().filter(|it| it.figure == of).collect();
        if these.is_empty() {
            continue;
        }
        let series = sides(&these).into_iter().map(|side| {
            let at = |workload: &str| -> Vec<&Measured> {
                these.iter().filter(|it| it.side == side && it.workload == workload).copied().collect()
            };
            let value = |it: &Measured| if unit == "seconds" { it.seconds } else { it.amount / it.seconds };
            let points = workloads.iter().enumerate();
            let points = points.map(|(group, workload)| (group as f64, middle(&at(workload), value)));
            Series { colour: colour(&side), name: side.clone(), is_faint: false, points: points.collect() }
        });
        let up = Axis { title: unit, is_log: false, write: short };
        let names: Vec<String> = workloads.iter().map(|name| (*name).to_owned()).collect();
        let title = format!("Figure {figure}: {name}");
        let svg = draw::bars(&title, &names, &up, &series.collect::<Vec<Series>>())?;
        made.push((format!("volumes-{figure}.svg"), svg));
    }
    made.extend(cost(found)?);
    Ok(made)
}

/// What protection costs, beside the paper.
fn cost(found: &[Measured]) -> anyhow::Result<Option<(String, String)>> {
    let ratio = |workload: &str, other: &str| -> Option<f64> {
        let of = |side: &str| -> Vec<&Measured> {
            let counts = |it: &&Measured| it.figure != "volume-engine";
            found.iter().filter(counts).filter(|it| it.workload == workload && it.side == side).collect()
        };
        let theirs = of(other);
        let pairs = of("protected").into_iter().filter_map(|mine| {
            let other = theirs.iter().find(|it| it.size == mine.size && it.round == mine.round)?;
            Some((mine.seconds / other.seconds).ln())
        });
        let logs: Vec<f64> = pairs.collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let names: Vec<String> = PAPER.iter().map(|(name, _)| (*name).to_owned()).collect();
    let points = |value: &dyn Fn(&str) -> Option<f64>| -> Vec<(f64, f64)> {
        let points = PAPER.iter().enumerate();
        points.filter_map(|(group, (name, _))| Some((group as f64, value(name)?))).collect()
    };
    let of = |name: &str, colour: usize, points: Vec<(f64, f64)>| Series {
        name: name.to_owned(),
        colour,
        is_faint: false,
        points,
    };
    let mine = points(&|name| ratio(name, "unhashed"));
    if mine.is_empty() {
        return Ok(None);
    }
    let paper = points(&|name| PAPER.iter().find(|(known, _)| *known == name)?.1);
    let series = [
        of("paper: PFS / LFFS", 1, paper),
        of("protected / unhashed", 8, mine),
        of("protected / bare", 5, points(&|name| ratio(name, "bare"))),
    ];
    let up = Axis { title: "time, as a multiple", is_log: false, write: short };
    Ok(Some(("volumes-cost.svg".to_owned(), draw::bars("What protection costs", &names, &up, &series)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(figure: &str, workload: &str, size: u64, side: &str, seconds: f64) -> Measured {
        Measured {
            figure: figure.to_owned(),
            workload: workload.to_owned(),
            size,
            side: side.to_owned(),
            round: 0,
            amount: 120.0,
            unit: "MB".to_owned(),
            seconds,
            cpu: 1.0,
            logged: 0,
            written: 0,
        }
    }

    /// Proves: there is a picture for each figure that has data, with the sides' names and rates, and one of the cost with
    /// the paper's beside it.
    #[test]
    fn pictures_of_volumes() {
        let found: Vec<Measured> = [("unhashed", 1.0), ("protected", 1.5)]
            .iter()
            .flat_map(|(side, seconds)| {
                [16 << 10, 1 << 20]
                    .map(|size| measured("volume-files", "read", size, side, *seconds))
                    .into_iter()
                    .chain([
                        measured("volume-postmark", "postmark", 0, side, *seconds),
                        measured("volume-build", "build", 0, side, 3.0 * seconds),
                    ])
            })
            .collect();
        let made = pictures(&found).expect("drawn");
        let names: Vec<&str> = made.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["volumes-7-read.svg", "volumes-9.svg", "volumes-10.svg", "volumes-cost.svg"]);
        assert!(made[0].1.contains("1 MB") && made[0].1.contains("unhashed"));
        assert!(made[1].1.contains("\n120\n") && made[1].1.contains("\n80\n"), "{}", made[1].1);
        assert!(made[3].1.contains("\n1.5\n") && made[3].1.contains("\n1.09\n"), "{}", made[3].1);
        assert!(pictures(&[]).expect("nothing").is_empty());
    }
}
