//! What is drawn, as `holdfast-bench far` and `holdfast-bench chunks sizes` write it: one JSON object a line.

use crate::chunks::Distribution;
use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One measurement over a link.
#[derive(Clone, Debug, Deserialize)]
pub struct Measured {
    /// 7, 8, 9 or 10; others are not drawn.
    pub figure: String,
    /// What was done.
    pub workload: String,
    /// By what.
    pub side: String,
    /// Bit/s towards the client.
    pub rate_down: Option<f64>,
    /// What the link adds to a round trip.
    pub delay_ms: f64,
    /// Share of packets lost.
    pub loss: f64,
    /// Until programs were done.
    pub seconds: Option<f64>,
    /// Until everything was at the server.
    pub seconds_sent: Option<f64>,
    /// From the client.
    pub bytes_up: u64,
    /// To the client.
    pub bytes_down: u64,
    /// Why it does not count.
    #[serde(default)]
    pub error: Option<String>,
}

/// All that was found.
#[derive(Default, Debug)]
pub struct Data {
    /// Figure 5.
    pub distributions: Vec<Distribution>,
    /// Figures 7 to 10; those that count.
    pub measured: Vec<Measured>,
    /// Those that do not.
    pub failed: Vec<Measured>,
    /// Of protected volumes.
    pub volumes: Vec<crate::volume::Measured>,
}

impl Data {
    /// Reads every file of a directory that ends in `.json` or `.jsonl`, in order of name.
    ///
    /// # Errors
    /// A file cannot be read, or a line of it is nothing known; it says which.
    pub fn load(directory: &Path) -> anyhow::Result<Data> {
        let named = || directory.display().to_string();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(named)? {
            let path = entry.with_context(named)?.path();
            if path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut data = Data::default();
        for path in paths {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                data.line(line).with_context(|| format!("{}, line {}", path.display(), number + 1))?;
            }
        }
        if data.distributions.is_empty() && data.measured.is_empty() && data.volumes.is_empty() {
            bail!("{}: nothing to draw in its .json and .jsonl files", directory.display());
        }
        Ok(data)
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        let value: Value = serde_json::from_str(line).context("no JSON")?;
        match value.get("figure").and_then(Value::as_str) {
            Some("5") => self.distributions.push(serde_json::from_value(value).context("no figure 5")?),
            Some(figure) if figure.starts_with("volume-") => {
                self.volumes.push(serde_json::from_value(value).context("no measurement of a volume")?);
            }
            Some(_) => {
                let measured: Measured = serde_json::from_value(value).context("no measurement")?;
                let counts = measured.error.is_none() && measured.seconds.is_some();
                if counts { &mut self.measured } else { &mut self.failed }.push(measured);
            }
            None => bail!("it says of no figure that it belongs to it"),
        }
        Ok(())
    }

    /// The workloads of a figure, in order of name.
    pub fn workloads(&self, figure: &str) -> Vec<String> {
        let of = self.measured.iter().filter(|measured| measured.figure == figure);
        let mut names: Vec<String> = of.map(|measured| measured.workload.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Of one workload of a figure, for each side in its order: the median of each place `at`, in order of places.
    /// Measurements of which there is no `what` do not count.
    pub fn lines(
        &self,
        figure: &str,
        workload: &str,
        at: impl Fn(&Measured) -> Option<f64>,
        what: impl Fn(&Measured) -> Option<f64>,
    ) -> Vec<(String, Vec<(f64, f64)>)> {
        let mut sides: BTreeMap<(usize, String), BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
        for measured in &self.measured {
            if measured.figure != figure || measured.workload != workload {
                continue;
            }
            let (Some(at), Some(value)) = (at(measured), what(measured)) else { continue };
            let side = sides.entry((rank(&measured.side), measured.side.clone())).or_default();
            // Of numbers that are not negative the bits have their order.
            side.entry(at.max(0.0).to_bits()).or_default().push(value);
        }
        let points = |places: BTreeMap<u64, Vec<f64>>| {
            places
                .into_iter()
                .map(|(at, values)| (f64::from_bits(at), crate::report::median(&values)))
                .collect()
        };
        sides.into_iter().map(|((_, side), places)| (side, points(places))).collect()
    }
}

/// Sides in the order in which they are shown; others come behind.
const SIDES: [&str; 10] =
    ["local", "sshfs", "rclone", "rsync", "plain", "lbfs-empty", "lbfs", "full-empty", "full", "write-back"];

/// The place of a side among all.
pub fn rank(side: &str) -> usize {
    SIDES.iter().position(|known| *known == side).unwrap_or(SIDES.len())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SAMPLE: &str = r#"
{"figure":"5","side":"Holdfast","bins":[[2048.0,100],[8192.0,300],[65536.0,50]],"median":8192,"mean":12000.5}
{"figure":"7","workload":"build","side":"sshfs","round":0,"rate_down":1500000,"rate_up":384000,"delay_ms":30,"loss":0.0,"seconds":100.0,"seconds_sent":100.0,"bytes_up":5000000,"bytes_down":900000,"error":null}
{"figure":"7","workload":"build","side":"full","round":0,"rate_down":1500000,"rate_up":384000,"delay_ms":30,"loss":0.0,"seconds":9.0,"seconds_sent":9.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"7","workload":"build","side":"full","round":1,"rate_down":1500000,"rate_up":384000,"delay_ms":30,"loss":0.0,"seconds":11.0,"seconds_sent":11.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"7","workload":"vim","side":"write-back","round":0,"rate_down":1500000,"rate_up":384000,"delay_ms":30,"loss":0.0,"seconds":1.0,"seconds_sent":4.0,"bytes_up":5000,"bytes_down":900,"error":null}
{"figure":"8","workload":"build","side":"full","round":0,"rate_down":100000,"rate_up":100000,"delay_ms":10,"loss":0.0,"seconds":60.0,"seconds_sent":60.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"8","workload":"build","side":"full","round":0,"rate_down":1000000,"rate_up":1000000,"delay_ms":10,"loss":0.0,"seconds":6.0,"seconds_sent":6.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"8","workload":"build","side":"sshfs","round":0,"rate_down":1000000,"rate_up":1000000,"delay_ms":10,"loss":0.0,"seconds":null,"seconds_sent":null,"bytes_up":0,"bytes_down":0,"error":"did not end in 600 s"}
{"figure":"9","workload":"build","side":"full","round":0,"rate_down":1500000,"rate_up":1500000,"delay_ms":2,"loss":0.0,"seconds":6.0,"seconds_sent":6.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"10","workload":"turn","side":"full","round":0,"rate_down":1500000,"rate_up":1500000,"delay_ms":10,"loss":0.02,"seconds":6.0,"seconds_sent":6.0,"bytes_up":50000,"bytes_down":9000,"error":null}
{"figure":"pairs","workload":"turn","side":"full","round":0,"rate_down":null,"rate_up":null,"delay_ms":0,"loss":0.0,"seconds":6.0,"seconds_sent":6.0,"bytes_up":50000,"bytes_down":9000,"error":null}
"#;

    /// Proves: rounds are joined to their median, places and sides are in order, what failed is not drawn, and a line
    /// that makes no sense is named.
    #[test]
    fn lines_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("written");
        assert!(Data::load(directory.path()).is_err(), "nothing is there");
        write("a.jsonl", SAMPLE);
        write("ignored.txt", "no JSON");
        let data = Data::load(directory.path()).expect("it is read");
        assert_eq!((data.distributions.len(), data.failed.len()), (1, 1));
        assert_eq!(data.workloads("7"), ["build", "vim"]);
        let of =
            |figure| data.lines(figure, "build", |at| at.rate_down.map(|rate| rate / 1e6), |of| of.seconds);
        assert_eq!(
            of("7"),
            [("sshfs".to_owned(), vec![(1.5, 100.0)]), ("full".to_owned(), vec![(1.5, 10.0)])]
        );
        assert_eq!(of("8"), [("full".to_owned(), vec![(0.1, 60.0), (1.0, 6.0)])]);
        write("b.json", "{\"figure\":\"5\"}\n");
        let error = format!("{:#}", Data::load(directory.path()).expect_err("that is no figure"));
        assert!(error.contains("b.json, line 1"), "{error}");
    }
}
