//! What `scripts/bench-plot` draws of measurements.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn plot(from: &Path, out: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench-plot");
    Command::new(script).arg(from).arg(out).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Proves: every figure is drawn from what is written for it, the same bytes each time, with names, marks and values in it;
/// rounds are joined to their median, and what failed is named and not drawn.
#[test]
fn pictures_of_a_sample() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let home = tempfile::tempdir().expect("a directory");
    let out = home.path().join("out");
    let drawn = plot(&data, &out);
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    assert!(text(&drawn.stdout).contains("not drawn: figure 8, build, sshfs: did not end in 600 s"));
    let expected: &[(&str, &[&str])] = &[
        ("figure-5.svg", &["64 KB", "Holdfast", ">300<"]),
        ("figure-7-time.svg", &["build", "vim", "sshfs", "write-back, until sent", ">10<", ">100<"]),
        ("figure-7-bytes.svg", &["KB, both ways", ">59<", ">5.9<"]),
        ("figure-8-build.svg", &["Mbit/s", "full", ">0.1<"]),
        ("figure-9-build.svg", &["round trip, ms", "full"]),
        ("figure-10-turn.svg", &["packets lost, %", "full"]),
        ("volumes-7-read.svg", &["1 MB", "unhashed"]),
        ("volumes-9.svg", &[">120<", ">80<"]),
        ("volumes-10.svg", &["build", "seconds"]),
        ("volumes-cost.svg", &["paper: PFS / LFFS", ">1.5<", ">1.09<"]),
    ];
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(&out).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    let mut wanted: Vec<PathBuf> = expected.iter().map(|(name, _)| out.join(name)).collect();
    wanted.sort();
    assert_eq!(names, wanted);
    let again = home.path().join("again");
    assert!(plot(&data, &again).status.success());
    for (name, words) in expected {
        let svg = std::fs::read_to_string(out.join(name)).expect("drawn");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{name}");
        for word in *words {
            assert!(svg.contains(word), "{name} has no {word}: {svg}");
        }
        assert_eq!(svg, std::fs::read_to_string(again.join(name)).expect("drawn again"), "{name}");
    }
}

/// Proves: a line that makes no sense is named, and a folder without measurements is refused.
#[test]
fn what_is_no_measurement() {
    let home = tempfile::tempdir().expect("a directory");
    let (from, out) = (home.path().join("from"), home.path().join("out"));
    std::fs::create_dir(&from).expect("a directory");
    let refused = plot(&from, &out);
    assert!(!refused.status.success() && text(&refused.stderr).contains("nothing to draw"));
    for wrong in ["no JSON", "{\"figure\":\"5\"}", "{\"figure\":\"7\"}", "{}", "[1]"] {
        std::fs::write(from.join("b.jsonl"), format!("\n{wrong}\n")).expect("written");
        let refused = plot(&from, &out);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("b.jsonl, line 2"), "{wrong}: {said}");
    }
}
