//! Explains verdicts in words, for readers who know nothing of the case.

use super::branch::{Comparison, Difference, PathDifference};
use super::verify::{Conclusion, DeviceKnowledge, SidesReport, StatementReport, Verdict};
use std::fmt::Write;

/// Most differences listed one by one.
const TOLD_MAX: usize = 40;

impl Verdict {
    /// The whole explanation; `moment` formats times.
    pub fn words(&self, moment: &dyn Fn(i64) -> String) -> String {
        let mut text = format!("{}\n\nFile system {} ({})\n", self.conclusion, self.name, self.file_system);
        for told in &self.statements {
            told.words(&mut text, moment);
        }
        for (number, clash) in self.contradictions.iter().enumerate() {
            let who = if clash.is_proof {
                format!("It proves that {} lied, or lost track of what was signed.", clash.suspects[0])
            } else {
                format!("At least one of these lied: {}.", clash.suspects.join("; "))
            };
            let _ = write!(
                text,
                "\nContradiction {}: {}, and {}: {}.\n  {who}\n",
                number + 1,
                clash.first,
                clash.second,
                clash.why
            );
        }
        if let Some(sides) = &self.sides {
            sides.words(&mut text, moment);
        }
        text.push_str(self.limits());
        text
    }

    /// Explains what the verdict does not prove.
    fn limits(&self) -> &'static str {
        match self.conclusion {
            Conclusion::Fits => {
                "\nThis does not prove that the server is honest: it may show others another history, whose \
                 statements are not here.\n"
            }
            Conclusion::AsTold => {
                "\nTo prove it, get a statement (`holdfast evidence statement`) from somebody who was shown the \
                 other history, and verify both together.\n"
            }
            Conclusion::OneOfSeveralLied => {
                "\nStatements of the devices named, each with the server's receipt for its last operation, may tell \
                 who: verify them together with this.\n"
            }
            Conclusion::KeyUsedTwice => {
                "\nHave the superuser remove the device and enrol each of its machines with a key of its own. It is \
                 not proven that anybody meant harm.\n"
            }
            Conclusion::ServerLied => {
                "\nIt is not proven who controlled the server then, nor that it meant harm: a server restored from a \
                 backup does the same. `holdfast evidence merge` lays the two histories side by side.\n"
            }
        }
    }
}

impl StatementReport {
    fn words(&self, text: &mut String, moment: &dyn Fn(i64) -> String) {
        let receipt = match (self.last_operation, self.has_receipt) {
            (0, _) => "it had made no operation".to_owned(),
            (last, true) => format!("its own last operation is {last}, with the server's receipt"),
            (last, false) => format!("its own last operation is {last}, without a receipt"),
        };
        let _ = write!(
            text,
            "\n{}: {} says what it was shown until {} (its clock). It had accepted a log of {} operations; {receipt}. \
             {} signatures in it are good.\n",
            self.label,
            self.by,
            moment(self.made_ns),
            self.log_size,
            self.signatures,
        );
        if let Some(met) = &self.met {
            let _ = writeln!(
                text,
                "  It met another device directly, and kept what that showed: {met}, with a receipt."
            );
        }
        if let Some(refused) = &self.refused {
            let checked = match self.refused_rightly {
                Some(true) => "The answer kept here does contradict what it had accepted.",
                _ => "That cannot be checked from what is kept here.",
            };
            let _ = writeln!(text, "  It refused an answer of the server's: {refused}. {checked}");
        }
        for remark in &self.remarks {
            let _ = writeln!(text, "  Note: {remark}.");
        }
        if !self.is_whole {
            text.push_str(
                "  Not all names and attributes are in it, so more files may differ than are named.\n",
            );
        }
    }
}

impl SidesReport {
    fn words(&self, text: &mut String, moment: &dyn Fn(i64) -> String) {
        let _ = write!(text, "\nOne side: {}.\nOther side: {}.\n", self.ours, self.theirs);
        let list = |text: &mut String, title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                let _ = writeln!(text, "{title}:");
                for line in lines {
                    let _ = writeln!(text, "  {line}");
                }
            }
        };
        let numbers = |device: &DeviceKnowledge, from: u64, to: u64| match to - from {
            0 => format!("operation {to} of {}", device.device),
            _ => format!("operations {from} to {to} of {}", device.device),
        };
        let both: Vec<String> = (self.devices.iter())
            .filter(|device| device.ours.min(device.theirs) > 0)
            .map(|device| format!("{} up to operation {}", device.device, device.ours.min(device.theirs)))
            .collect();
        let only = |more: &dyn Fn(&DeviceKnowledge) -> (u64, u64)| -> Vec<String> {
            let lines = self.devices.iter().filter_map(|device| {
                let (here, there) = more(device);
                (here > there).then(|| numbers(device, there + 1, here))
            });
            lines.collect()
        };
        list(text, "Both have seen", both);
        list(text, "Only the first side has seen", only(&|device| (device.ours, device.theirs)));
        list(text, "Only the other side has seen", only(&|device| (device.theirs, device.ours)));
        self.files.words(text, moment);
    }
}

impl Comparison {
    /// Appends a description of the files that differ.
    pub fn words(&self, text: &mut String, moment: &dyn Fn(i64) -> String) {
        let _ = writeln!(
            text,
            "Files: {} are the same on both sides, {} differ, {} could not be compared{}.",
            self.identical,
            self.differences.len(),
            self.unread.len(),
            if self.complete { "" } else { " (there are more; this is where counting stopped)" },
        );
        for difference in self.differences.iter().take(TOLD_MAX) {
            let _ = writeln!(text, "  {}", difference.words(moment));
        }
        if self.differences.len() > TOLD_MAX {
            let _ = writeln!(text, "  ... and {} more (--json has them)", self.differences.len() - TOLD_MAX);
        }
        for (path, why) in self.unread.iter().take(5) {
            let name = if path.is_empty() { "(the root directory)" } else { path };
            let _ = writeln!(text, "  not compared: {name}: {why}");
        }
    }
}

impl Difference {
    fn words(&self, moment: &dyn Fn(i64) -> String) -> String {
        let what = match self.what {
            PathDifference::Conflict => "changed on both sides",
            PathDifference::ChangedInOurs => "changed on the first side only",
            PathDifference::ChangedInTheirs => "changed on the other side only",
            PathDifference::OnlyInOurs => "only on the first side",
            PathDifference::OnlyInTheirs => "only on the other side",
            PathDifference::RemovedInOurs => "removed on the first side",
            PathDifference::RemovedInTheirs => "removed on the other side",
        };
        let times: Vec<String> = [("first", &self.ours), ("other", &self.theirs)]
            .into_iter()
            .filter_map(|(side, version)| {
                let version = version.as_ref()?;
                Some(format!("{side}: {} bytes, {}", version.bytes?, moment(version.modified_ns?)))
            })
            .collect();
        format!("{}: {what} ({})", self.path, times.join("; "))
    }
}
