//! A mirror that has the record and not the content: what it costs a reader, and that its repair is noticed.

use crate::publisher;

use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::draft::Draft;
use holdfast_release::mirror::{Http, Mirror, MirrorState, Patience};
use holdfast_release::open::{Options, Release};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::signing::Signed;
use holdfast_release::tree::{Node, PathLookup, Tree};
use holdfast_sim::mirror::{HostileMirror, Misdeed};
use holdfast_testing::{PATIENCE, eventually, eventually_some, noise};
use publisher::{chain, first_set, install, publish};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const FILES: u64 = 24;
const FILE_BYTES: usize = 40_000;

fn content(number: u64) -> Vec<u8> {
    noise(number + 1, FILE_BYTES)
}

/// A folder with a published release.
fn published() -> TempDir {
    let (source, target) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    for number in 0..FILES {
        fs::write(source.path().join(number.to_string()), content(number)).expect("written");
    }
    let first =
        Draft { sets: vec![], keys: Some(Signed::unsigned(first_set())), root: None, statement: None };
    install(&ReleaseDir::new(target.path()), first);
    publish(source.path(), target.path());
    target
}

/// Waits for as long as it takes, except for misdeeds that can end in no other way than a time-out.
fn patience(misdeed: Misdeed) -> Patience {
    let (answer, bytes_per_s_min) = match misdeed {
        Misdeed::Silent | Misdeed::DripsHead | Misdeed::DripsBody => (Duration::from_secs(3), 20_000),
        _ => (PATIENCE, 1),
    };
    Patience { connect: PATIENCE, answer, bytes_per_s_min, total: PATIENCE }
}

fn open(trust: &Path, mirrors: &[(&HostileMirror, Misdeed)]) -> Release {
    let http = |(mirror, misdeed): &(&HostileMirror, Misdeed)| -> Arc<dyn Mirror> {
        Arc::new(Http::with_patience(&mirror.url(), patience(*misdeed)).expect("a URL"))
    };
    let options = || Options {
        id: chain().id(),
        trust: trust.to_owned(),
        revocations: Vec::new(),
        stale: ExpiredPolicy::Refuse,
        cache: None,
        memory_bytes: 64 << 10,
    };
    // On a busy machine an honest mirror may time out, too.
    eventually_some("opened", || Release::open(options(), mirrors.iter().map(http).collect()).ok())
}

/// Every file of the tree, looked up but not read.
fn nodes(tree: &Tree) -> Vec<Node> {
    let find = |number: u64| match tree.resolve(number.to_string().as_bytes(), false) {
        Ok(PathLookup::Node(node)) => Some(node),
        _ => None,
    };
    eventually_some("they are all there", || (0..FILES).map(find).collect())
}

/// The number of files that cannot be read. All others must be as they were published.
fn walk(tree: &Tree, nodes: &[Node]) -> usize {
    let is_refused = |(number, node): (usize, &Node)| match tree.read(node, 0, FILE_BYTES) {
        Ok(bytes) => {
            assert!(bytes == content(number as u64), "other bytes in file {number}");
            false
        }
        Err(_) => true,
    };
    nodes.iter().enumerate().filter(|one| is_refused(*one)).count()
}

/// Proves: whatever a mirror does with packs, reading all files costs a few requests for each where it answers, and a
/// few altogether where it does not. That its record is good changes nothing. Once it is repaired, everything can be
/// read.
#[test]
fn the_only_mirror() {
    let folder = published();
    // With an honest mirror a release is read without trouble.
    let misdeeds = Misdeed::ALL.into_iter().filter(|misdeed| {
        !matches!(misdeed, Misdeed::RedirectsWithin | Misdeed::IgnoresRanges | Misdeed::UnaskedRange)
    });
    std::thread::scope(|scope| {
        for misdeed in misdeeds {
            let folder = folder.path();
            scope.spawn(move || {
                let mirror = HostileMirror::of_folder(folder, misdeed, "packs/");
                mirror.set_honest(true);
                let trust = tempfile::tempdir().expect("made");
                let release = open(trust.path(), &[(&mirror, misdeed)]);
                let tree = release.current().tree.clone();
                let nodes = nodes(&tree);
                let before = mirror.requests();
                mirror.set_honest(false);
                let refused = walk(&tree, &nodes);
                if misdeed == Misdeed::Honest {
                    assert_eq!(refused, 0);
                    return;
                }
                // Some misdeeds leave the beginnings of files right.
                assert!(refused > 0, "{misdeed:?}");
                release.refresh().expect("its record is good");
                walk(&tree, &nodes);
                let asked = mirror.requests() - before;
                let is_away = release.mirrors().statuses()[0].asked_again_s.is_some()
                    && release.mirrors().statuses()[0].state == MirrorState::Paused;
                let most = if is_away { FILES } else { FILES * 8 };
                assert!(asked <= most, "{misdeed:?}: {asked} requests, {:?}", release.mirrors().statuses());
                mirror.set_honest(true);
                eventually("it is found out that it is mended", || walk(&tree, &nodes) == 0);
                let status = &release.mirrors().statuses()[0];
                assert_eq!(status.state, MirrorState::Good, "{misdeed:?}: {status:?}");
            });
        }
    });
}

/// Proves: beside a good mirror a half bad one costs a few requests in all, and no file.
#[test]
fn one_of_two() {
    let folder = published();
    std::thread::scope(|scope| {
        for misdeed in Misdeed::ALL {
            let folder = folder.path();
            scope.spawn(move || {
                let bad = HostileMirror::of_folder(folder, misdeed, "packs/");
                let good = HostileMirror::of_folder(folder, Misdeed::Honest, "packs/");
                let trust = tempfile::tempdir().expect("made");
                let release = open(trust.path(), &[(&bad, misdeed), (&good, Misdeed::Honest)]);
                let tree = release.current().tree.clone();
                let nodes = nodes(&tree);
                assert_eq!(walk(&tree, &nodes), 0, "{misdeed:?}");
                if good.requests() > bad.requests() {
                    return;
                }
                let statuses = release.mirrors().statuses();
                assert!(statuses[0].answers > FILES / 2, "{misdeed:?}: {statuses:?}");
            });
        }
    });
}
