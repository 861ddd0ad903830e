//! A publication is stopped after each of its steps, as a kill there would: readers have the release before or this one,
//! whole, and publishing again goes on.

use crate::publisher;

use holdfast_crypto::{DigestKey, KeyHolder};
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::draft::Draft;
use holdfast_release::form;
use holdfast_release::keys::ReleaseId;
use holdfast_release::mirror::{Directory, Http, Mirror};
use holdfast_release::open::{Options, now_s};
use holdfast_release::publish::bucket::{BucketTarget, SendingOptions};
use holdfast_release::publish::compose::ReleaseOptions;
use holdfast_release::publish::publication::{
    Publication, PublicationError, PublicationProgress, Published, Step, Walker,
};
use holdfast_release::publish::rules::Rules;
use holdfast_release::pull::{PullOptions, pull};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::send::BucketTrust;
use holdfast_tiered::simulated::Simulated;
use holdfast_tiered::simulated::http::{KEY_ID, SECRET, Server};
use parking_lot::Mutex;
use publisher::{LIFE_S, key};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A publisher's folder: the tree, the release directory, and what is remembered.
struct Workspace {
    folder: tempfile::TempDir,
    signers: Vec<Arc<dyn KeyHolder>>,
}

impl Workspace {
    fn new() -> Workspace {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("tree")).expect("made");
        let signers = [1, 2].map(|seed| Arc::new(key(seed)) as Arc<dyn KeyHolder>).to_vec();
        Workspace { folder, signers }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Publishes a tree of this one file, of which nothing is published after `last`.
    fn publish(
        &self,
        file: &str,
        bucket: Option<&BucketTarget>,
        signers: &[Arc<dyn KeyHolder>],
        last: Option<Step>,
    ) -> (Result<Published, PublicationError>, Vec<Step>) {
        let (source, memory) = (self.at("tree"), self.at("memory"));
        let target = bucket.map_or_else(|| self.at("release"), BucketTarget::copy);
        fs::write(source.join("file"), file).expect("written");
        let options = ReleaseOptions {
            source: &source,
            target: &target,
            now_s: now_s(),
            life_s: LIFE_S,
            note: "",
            keep: 1,
            first_key: DigestKey::WELL_KNOWN,
            rules: &Rules::default(),
            newest: None,
            level: 1,
            threads: 1,
            memory: Some(&memory),
            live: None,
        };
        let sending = SendingOptions { window_s: 0, belief: BucketTrust::Listing, connections: 2 };
        let publication = Publication {
            options,
            signers,
            salt: [7; 16],
            walker: Walker::Inside,
            bucket: bucket.map(|bucket| (bucket, sending)),
        };
        let steps = Mutex::new(Vec::new());
        let published = publication.run(&|progress| match progress {
            PublicationProgress::Reached(step) => {
                steps.lock().push(step);
                Some(step) != last
            }
            _ => true,
        });
        (published, steps.into_inner())
    }

    /// The number of the release that a reader gets, every block of it checked.
    fn read(&self, mirror: Arc<dyn Mirror>, id: ReleaseId) -> u64 {
        let (trust, target) = (self.at("reader"), self.at("mirrored"));
        fs::create_dir_all(&trust).expect("made");
        let stale = ExpiredPolicy::Refuse;
        let options = Options { id, trust, revocations: Vec::new(), stale, cache: None, memory_bytes: 0 };
        let terms = PullOptions { target: &target, keep: 1, from: &[], quick: false, connections: 1 };
        let report = pull(&options, vec![mirror], &terms, &|_| true).expect("a whole release");
        report.sequence
    }

    fn read_directory(&self, id: ReleaseId) -> u64 {
        self.read(Arc::new(Directory::new(&self.at("release"))), id)
    }
}

/// Proves: whichever step is the last, whoever reads the directory has a whole release, the new one from `Installed` on,
/// and the next publication puts the next one there, and removes what no release needs.
#[test]
fn stopped_after_each_step() {
    const STEPS: [Step; 6] =
        [Step::Opened, Step::Composed, Step::Signed, Step::Installed, Step::Remembered, Step::Tidied];
    for (at, last) in STEPS.into_iter().enumerate() {
        let workspace = Workspace::new();
        let signers = &workspace.signers;
        let (begun, steps) = workspace.publish("first", None, signers, None);
        let begun = begun.expect("published");
        assert_eq!((begun.first, begun.report.sequence, &steps[..]), (true, 1, &STEPS[..]));
        assert_eq!(workspace.read_directory(begun.id), 1);

        let (stopped, steps) = workspace.publish("second", None, signers, Some(last));
        assert!(matches!(stopped, Err(PublicationError::Stopped(step)) if step == last), "{last:?}");
        assert_eq!(steps, STEPS[..=at]);
        let is_installed = at >= 3;
        assert_eq!(workspace.read_directory(begun.id), 1 + u64::from(is_installed), "{last:?}");

        let next = workspace.publish("third", None, signers, None).0.expect("published");
        assert_eq!((next.first, next.report.sequence), (false, 2 + u64::from(is_installed)), "{last:?}");
        assert_eq!(workspace.read_directory(begun.id), next.report.sequence);
        let packs = fs::read_dir(workspace.at("release/packs")).expect("packs").count();
        assert!(packs <= 2, "{last:?}: {packs} packs of two releases");
    }
}

/// Proves: a release that begins can be stopped after its keys are there; one with too few signatures waits in a draft,
/// which is whole when it has its name, and nothing of it is in force.
#[test]
fn begun_and_waiting() {
    let workspace = Workspace::new();
    let signers = &workspace.signers;
    let (stopped, _) = workspace.publish("first", None, signers, Some(Step::Opened));
    assert!(matches!(stopped, Err(PublicationError::Stopped(Step::Opened))));
    let chain = ReleaseDir::new(&workspace.at("release")).chain().expect("its keys");

    for last in [Some(Step::Drafted), Some(Step::Remembered), None] {
        let (published, steps) = workspace.publish("second", None, &signers[..1], last);
        assert_eq!(published.is_ok(), last.is_none());
        assert_eq!(steps.last(), Some(&last.unwrap_or(Step::Remembered)));
        let draft = fs::read(workspace.at("release-1.draft")).expect("a draft");
        let draft: Draft = form::read(&draft).expect("a whole draft");
        assert_eq!(draft.id().expect("an ID"), chain.id());
        let root = ReleaseDir::new(&workspace.at("release")).root(&chain).expect("read");
        assert_eq!(root, None, "nothing is in force");
        if let Ok(published) = published {
            let (path, lacking) = published.draft.expect("a draft");
            assert_eq!((path, lacking.len()), (workspace.at("release-1.draft"), 1));
        }
    }
    let whole = workspace.publish("third", None, signers, None).0.expect("published");
    assert_eq!((whole.id, whole.first, whole.report.sequence), (chain.id(), false, 1));
    assert_eq!(workspace.read_directory(chain.id()), 1);

    let other = workspace.at("other");
    fs::create_dir(&other).expect("made");
    fs::write(other.join("letter"), "somebody's").expect("written");
    fs::rename(&other, workspace.at("release")).expect_err("it is not empty");
    fs::remove_dir_all(workspace.at("release")).expect("removed");
    fs::rename(&other, workspace.at("release")).expect("moved");
    let refused = workspace.publish("fourth", None, signers, None).0;
    assert!(matches!(refused, Err(PublicationError::NotEmpty(_))));
}

/// The environment has no credentials, so the test that needs them runs once more, in a process that has.
fn with_credentials(test: &str) -> bool {
    if std::env::var("AWS_ACCESS_KEY_ID").is_ok_and(|id| id == KEY_ID) {
        return true;
    }
    let status = std::process::Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", test, "--nocapture"])
        .envs([("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)])
        .status()
        .expect("it runs");
    assert!(status.success());
    false
}

fn open(address: &str, folder: &Path) -> BucketTarget {
    let (copies, trust) = (folder.join("copies"), folder.join("trust"));
    fs::create_dir_all(&trust).expect("made");
    BucketTarget::open(address, &copies, trust).expect("nobody works on it")
}

/// Proves: whoever reads the bucket has the release before until `Sent`, and the new one from then on; the next
/// publication sends what was left out; and without its copy, this machine goes on from what the bucket has.
#[test]
fn stopped_on_the_way_to_a_bucket() {
    if !with_credentials("publication::stopped_on_the_way_to_a_bucket") {
        return;
    }
    const STEPS: [Step; 8] = [
        Step::Fetched,
        Step::Opened,
        Step::Composed,
        Step::Signed,
        Step::Installed,
        Step::Remembered,
        Step::Tidied,
        Step::Sent,
    ];
    let objects = Simulated::new();
    let server =
        Server::start(&objects, "bucket", "127.0.0.1:0".parse().expect("an address")).expect("it serves");
    // What lies between these is the same as without a bucket.
    for last in [Step::Fetched, Step::Installed, Step::Tidied, Step::Sent] {
        let workspace = Workspace::new();
        let signers = &workspace.signers;
        let address = format!("s3://bucket/{last:?}?endpoint=http://{}", server.address());
        let read = |id| workspace.read(Arc::new(Http::of_bucket(&address).expect("an address")), id);
        let bucket = open(&address, workspace.folder.path());
        let (begun, steps) = workspace.publish("first", Some(&bucket), signers, None);
        let begun = begun.expect("published");
        assert_eq!(steps, STEPS);
        assert_eq!(read(begun.id), 1);

        let (stopped, _) = workspace.publish("second", Some(&bucket), signers, Some(last));
        assert!(matches!(stopped, Err(PublicationError::Stopped(step)) if step == last), "{last:?}");
        assert_eq!(read(begun.id), 1 + u64::from(last == Step::Sent), "{last:?}");

        let next = workspace.publish("third", Some(&bucket), signers, None).0.expect("published");
        assert_eq!(read(begun.id), next.report.sequence, "{last:?}");
        if last != Step::Sent {
            continue;
        }
        fs::remove_dir_all(bucket.copy()).expect("removed");
        let fetched = workspace.publish("fourth", Some(&bucket), signers, None).0.expect("published");
        assert_eq!((fetched.id, fetched.report.sequence), (begun.id, next.report.sequence + 1));
        assert_eq!(read(begun.id), fetched.report.sequence, "{last:?}");
    }
}
