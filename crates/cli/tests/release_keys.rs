//! `holdfast release`: beginning a release, signing on several machines, renewing, rotating, revoking, and what the
//! command shows of it.

use holdfast_content::{Algorithm, Reference};
use holdfast_crypto::{Digest, DigestKey, KeyHolder, keyfile};
use holdfast_release::accept::{ExpiredPolicy, accept};
use holdfast_release::record::{Location, Record, RootFile};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::signing::Signed;
use holdfast_release::{form, revocation};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    /// A folder with the keys of these people.
    fn new(people: &[&str]) -> Workspace {
        let folder = tempfile::Builder::new().prefix("holdfast-release.").tempdir().expect("a folder");
        let workspace = Workspace { folder };
        for person in people {
            workspace.done(&["keygen", "--out", &format!("{person}.key"), "--comment", person]);
        }
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env("HOLDFAST_STATE_DIR", self.path("state"))
            .env("HOLDFAST_CACHE_DIR", self.path("cache"))
            .env_remove("SSH_AUTH_SOCK")
            .output()
            .expect("it runs")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail with this code, and returns its error message.
    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
        printed
    }

    fn release(&self) -> ReleaseDir {
        ReleaseDir::new(&self.path("site"))
    }

    fn key(&self, person: &str) -> holdfast_crypto::SigningKey {
        let text = std::fs::read_to_string(self.path(&format!("{person}.key"))).expect("a key file");
        keyfile::parse_private(&text, None).expect("a key")
    }

    /// Publishes release `sequence` with a term of one day, signed by these people.
    fn publish(&self, sequence: u64, people: &[&str]) {
        let chain = self.release().chain().expect("key sets");
        let issued_s = now_s() - 60 + sequence;
        let root_dir =
            Reference { algorithm: Algorithm::Blake3, address: Digest([7; 32]), length: 1, key: None };
        let mut record = Signed::unsigned(Record {
            release: chain.id(),
            key_set: chain.current().number,
            sequence,
            issued_s,
            expires_s: issued_s + 86_400,
            digest_key: DigestKey::WELL_KNOWN,
            root_dir,
            previous: None,
            note: "first edition".to_owned(),
        });
        for person in people {
            let key: &dyn KeyHolder = &self.key(person);
            record.sign(key).expect("it signs");
        }
        let index = Location { digest: Digest([1; 32]), bytes: 1 };
        let file = RootFile { record, freshness: None, index, hints: None };
        holdfast_durable::replace(&self.path("site/root"), &form::write(&file), 0o644).expect("written");
    }

    /// The record that a new client accepts from the directory.
    fn sequence_accepted(&self) -> u64 {
        let chain = self.release().chain().expect("key sets");
        let root = self.release().root(&chain).expect("a record").expect("published");
        accept(&chain, &root, None, now_s(), ExpiredPolicy::Refuse).expect("it counts").record.sequence
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

const YEARS_AHEAD: &str = "2999-01-01";

/// One signer: a release begins with its id, which differs each time, even for the same key; it cannot be begun twice.
#[test]
fn a_release_of_one() {
    let workspace = Workspace::new(&["anna"]);
    let printed = workspace.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    let id = printed.lines().next().expect("the id");
    assert_eq!(id, workspace.release().chain().expect("key sets").id().to_string());
    workspace.done(&["release", "keys", "init", "--out", "other", "--key", "anna.key"]);
    assert_ne!(id, ReleaseDir::new(&workspace.path("other")).chain().expect("key sets").id().to_string());
    let again = workspace.refused(73, &["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    assert!(again.contains("is here already") && again.contains("rotate"), "{again}");

    let printed = workspace.done(&["release", "show", "site"]);
    assert!(printed.contains(id) && printed.contains("nothing was published yet"), "{printed}");
    workspace.publish(1, &["anna"]);
    let printed = workspace.done(&["release", "show", "site/root"]);
    assert!(printed.contains("release 1 first edition") && printed.ends_with("\nvalid\n"), "{printed}");
    let json: serde_json::Value =
        serde_json::from_str(&workspace.done(&["release", "show", "site", "--json"])).expect("JSON");
    assert_eq!((&json["valid"], &json["record"]["sequence"]), (&true.into(), &1.into()));
    assert_eq!(json["record"]["signed_by"][0], json["key_sets"][0]["keys"][0]["fingerprint"]);
}

/// Two of three signers on different machines: until two have signed, nothing is in place, and nothing is shown as
/// valid.
#[test]
fn a_release_of_two_of_three() {
    let workspace = Workspace::new(&["anna", "ben", "carla", "dora"]);
    let mut begin =
        vec!["release", "keys", "init", "--out", "site", "--key", "anna.key", "--add", "ben.key.pub"];
    begin.extend(["--add", "carla.key"]);
    let unsaid = workspace.refused(64, &begin);
    assert!(unsaid.contains("--threshold"), "{unsaid}");
    begin.extend(["--threshold", "2"]);
    let printed = workspace.done(&begin);
    assert!(printed.contains("NOT signed by enough people yet"), "{printed}");
    assert!(!workspace.path("site").exists());
    let draft = "site.keys-1.draft";
    let printed = workspace.refused(1, &["release", "show", draft]);
    assert!(printed.contains("NOT VALID") && printed.contains("needs more signatures"), "{printed}");
    workspace.refused(73, &begin);

    let stranger = workspace.refused(77, &["release", "sign", draft, "--key", "dora.key"]);
    assert!(stranger.contains("may sign nothing in this draft"), "{stranger}");
    let early = workspace.refused(1, &["release", "sign", draft, "--to", "site"]);
    assert!(early.contains("needs 1 more of key set 1") && !workspace.path("site").exists(), "{early}");
    workspace.refused(1, &["release", "sign", draft, "--key", "anna.key", "--to", "site"]);

    let printed = workspace.done(&["release", "sign", draft, "--key", "carla.key"]);
    assert!(printed.contains("signed: key set 1") && printed.contains("--to PATH"), "{printed}");
    assert!(!workspace.path("site").exists());
    workspace.done(&["release", "sign", draft, "--to", "site"]);
    assert!(!workspace.path(draft).exists(), "it has done its work");
    assert_eq!(workspace.release().chain().expect("key sets").current().role.threshold, 2);

    workspace.publish(1, &["anna"]);
    let one = workspace.refused(1, &["release", "show", "site/root"]);
    assert!(one.contains("NOT VALID: the record is signed by 1 of the 2 keys needed of key set 1"), "{one}");
    workspace.publish(1, &["anna", "ben"]);
    workspace.done(&["release", "show", "site/root"]);
}

/// Renewals: signed with their own key only, for at most its term; readers then accept the record for longer.
#[test]
fn renewing() {
    let workspace = Workspace::new(&["anna", "timer"]);
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key"];
    begin.extend(["--freshness-key", "timer.key.pub", "--freshness-until", YEARS_AHEAD]);
    workspace.done(&begin);
    let nothing = workspace.refused(66, &["release", "renew", "site", "--key", "timer.key"]);
    assert!(nothing.contains("nothing was published yet"), "{nothing}");
    workspace.publish(1, &["anna"]);
    let renew = ["release", "renew", "site", "--key", "timer.key"];
    let wrong = workspace.refused(77, &["release", "renew", "site", "--key", "anna.key"]);
    assert!(wrong.contains("may not renew"), "{wrong}");
    let long = workspace.refused(77, &[&renew[..], &["--for", "8d"]].concat());
    assert!(long.contains("7 days at most"), "{long}");
    let short = workspace.refused(1, &[&renew[..], &["--for", "1h"]].concat());
    assert!(short.contains("adds nothing"), "{short}");
    let before_s = now_s();
    workspace.done(&renew);
    let printed: serde_json::Value =
        serde_json::from_str(&workspace.done(&["release", "show", "site", "--json"])).expect("JSON");
    let until_s = printed["record"]["valid_until_s"].as_u64().expect("a time");
    let term_s = 7 * 86_400;
    assert!((before_s + term_s..=now_s() + term_s).contains(&until_s), "{printed}");
    let backwards = workspace.refused(73, &[&renew[..], &["--for", "2d"]].concat());
    assert!(backwards.contains("lasts longer is there already"), "{backwards}");
    assert!(workspace.path("site/records/1").is_file());
}

/// A rotation by two old signers and a new one on three machines: the new keys, and the record under them, come into
/// place together. What only the old keys sign is refused from then on.
#[test]
fn rotating() {
    let workspace = Workspace::new(&["anna", "ben", "carla", "timer"]);
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key", "--key", "ben.key"];
    begin.extend(["--threshold", "2"]);
    workspace.done(&begin);
    workspace.publish(1, &["anna", "ben"]);
    let same = workspace.refused(64, &["release", "keys", "rotate", "site", "--key", "anna.key"]);
    assert!(same.contains("would be the same"), "{same}");
    let mut rotate = vec!["release", "keys", "rotate", "site", "--key", "anna.key", "--add", "carla.key.pub"];
    rotate.extend(["--remove", "anna.key.pub", "--freshness-key", "timer.key.pub"]);
    rotate.extend(["--freshness-until", YEARS_AHEAD]);
    workspace.done(&rotate);
    assert_eq!(workspace.sequence_accepted(), 1, "nothing has changed yet");

    let draft = "site.keys-2.draft";
    std::fs::copy(workspace.path(draft), workspace.path("copy.draft")).expect("copied");
    let bens = workspace.done(&["release", "sign", draft, "--key", "ben.key"]);
    assert!(bens.contains("signed: key set 2, record 2"), "{bens}");
    workspace.done(&["release", "sign", "copy.draft", "--key", "carla.key"]);
    workspace.done(&["release", "sign", draft, "--merge", "copy.draft"]);
    std::fs::copy(workspace.path(draft), workspace.path("late.draft")).expect("copied");
    workspace.done(&["release", "sign", draft, "--to", "site"]);

    let chain = workspace.release().chain().expect("key sets");
    assert_eq!(chain.sets().len(), 2);
    assert!(!chain.current().role.keys.contains(&workspace.key("anna").public()));
    assert_eq!(workspace.sequence_accepted(), 2);
    let printed = workspace.done(&["release", "show", "site/keys/2"]);
    assert!(printed.ends_with("\nvalid\n"), "{printed}");
    workspace.done(&["release", "renew", "site", "--key", "timer.key"]);

    workspace.publish(3, &["anna", "ben"]);
    let old = workspace.refused(1, &["release", "show", "site"]);
    assert!(old.contains("NOT VALID") && old.contains("may not sign it"), "{old}");
    workspace.publish(4, &["carla", "ben"]);
    let outdated = workspace.refused(1, &["release", "sign", "late.draft", "--to", "site"]);
    assert!(outdated.contains("people would refuse it, so nothing was changed"), "{outdated}");
    assert_eq!(workspace.sequence_accepted(), 4);
}

/// A revocation certificate is made and shown, never replaced, and has no effect before it is in its place.
#[test]
fn revoking() {
    let workspace = Workspace::new(&["anna"]);
    workspace.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    workspace.publish(1, &["anna"]);
    let successor = "5".repeat(64);
    let mut revoke = vec!["release", "revoke", "site", "--key", "anna.key", "--out", "end"];
    revoke.extend(["--reason", "moved elsewhere", "--successor", &successor]);
    workspace.done(&revoke);
    workspace.refused(73, &revoke);
    workspace.done(&["release", "show", "site"]);
    let printed = workspace.done(&["release", "show", "end"]);
    assert!(printed.contains("moved elsewhere") && printed.contains(&successor), "{printed}");
    let id = workspace.release().chain().expect("key sets").id();
    let bytes = std::fs::read(workspace.path("end")).expect("a certificate");
    revocation::verify(id, &bytes).expect("clients honour it");

    std::fs::copy(workspace.path("end"), workspace.path("site/revoked")).expect("copied");
    let over = workspace.refused(1, &["release", "show", "site"]);
    assert!(over.contains("was revoked for good by its publisher: moved elsewhere"), "{over}");
    let nonsense = workspace
        .refused(64, &["release", "revoke", "site", "--key", "anna.key", "--out", "x", "--reason", "\u{7}"]);
    assert!(nonsense.contains("control characters"), "{nonsense}");
}

/// Altered, foreign and missing files are refused by their name, and nothing is written.
#[test]
fn what_is_no_release() {
    let workspace = Workspace::new(&["anna"]);
    let missing = workspace.refused(66, &["release", "show", "nowhere"]);
    assert!(missing.contains("nowhere"), "{missing}");
    std::fs::create_dir(workspace.path("empty")).expect("a folder");
    let empty = workspace.refused(66, &["release", "renew", "empty", "--key", "anna.key"]);
    assert!(empty.contains("empty/keys/1") && empty.contains("not the directory of a release"), "{empty}");
    let foreign = workspace.refused(66, &["release", "show", "anna.key.pub"]);
    assert!(foreign.contains("no signed file of a release"), "{foreign}");
    let no_draft = workspace.refused(66, &["release", "sign", "anna.key.pub", "--key", "anna.key"]);
    assert!(no_draft.contains("only drafts are signed"), "{no_draft}");

    workspace.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    workspace.publish(1, &["anna"]);
    let mut bytes = std::fs::read(workspace.path("site/root")).expect("a record");
    let note = bytes.windows(5).position(|window| window == b"first").expect("the note");
    bytes[note] = b'F';
    std::fs::write(workspace.path("site/root"), &bytes).expect("altered");
    let altered = workspace.refused(1, &["release", "show", "site"]);
    assert!(altered.contains("altered or forged"), "{altered}");
    std::fs::copy(workspace.path("site/root"), workspace.path("alone")).expect("copied");
    let alone = workspace.refused(1, &["release", "show", "alone"]);
    assert!(alone.contains("nobody can check it"), "{alone}");
}

/// A mirror that shows another record for a sequence number that was seen is named, with the proof, although another
/// mirror is right and is used.
#[test]
fn a_second_record_of_one_number_is_told() {
    let workspace = Workspace::new(&["anna"]);
    std::fs::create_dir(workspace.path("tree")).expect("a folder");
    std::fs::write(workspace.path("tree/hello"), "one").expect("written");
    workspace.done(&["publish", "tree", "--key", "anna.key", "--to", "site"]);
    let id = workspace.release().chain().expect("key sets").id();
    let link = format!("hf+release:{id}@site");
    workspace.done(&["cat", &link, "hello"]);
    std::fs::create_dir_all(workspace.path("other/keys")).expect("a folder");
    std::fs::copy(workspace.path("site/keys/1"), workspace.path("other/keys/1")).expect("copied");
    let honest = std::fs::read(workspace.path("site/root")).expect("a record");
    workspace.publish(1, &["anna"]);
    std::fs::rename(workspace.path("site/root"), workspace.path("other/root")).expect("moved");
    std::fs::write(workspace.path("site/root"), honest).expect("as it was");
    let output = workspace.run(&["cat", &link, "hello", "--mirror", "other"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stdout == b"one", "{printed}");
    assert!(
        printed.contains("two releases 1, both signed") && printed.contains("proof is kept"),
        "{printed}"
    );
}

/// With real trees: a reader of a release goes on across a renewal and a rotation, is told of what the old key
/// publishes afterwards, and refuses the release for good after its revocation.
#[test]
fn a_reader_goes_along() {
    let workspace = Workspace::new(&["anna", "ben", "timer"]);
    std::fs::create_dir(workspace.path("tree")).expect("a folder");
    std::fs::write(workspace.path("tree/hello"), "one").expect("written");
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key"];
    begin.extend(["--freshness-key", "timer.key.pub", "--freshness-until", YEARS_AHEAD]);
    workspace.done(&begin);
    let id = workspace.release().chain().expect("key sets").id();
    let link = format!("hf+release:{id}@site");
    workspace.done(&["publish", "tree", "--key", "anna.key", "--to", "site", "--expires", "3d"]);
    assert_eq!(workspace.done(&["cat", &link, "hello"]), "one");
    workspace.done(&["release", "renew", "site", "--key", "timer.key"]);
    assert_eq!(workspace.done(&["cat", &link, "hello"]), "one");
    let as_published = std::fs::read(workspace.path("site/root")).expect("a record");

    let mut rotate = vec!["release", "keys", "rotate", "site", "--key", "anna.key", "--key", "ben.key"];
    rotate.extend(["--remove", "anna.key"]);
    workspace.done(&rotate);
    assert_eq!(workspace.done(&["cat", &link, "hello"]), "one");
    std::fs::write(workspace.path("tree/hello"), "two").expect("written");
    workspace.done(&["publish", "tree", "--key", "ben.key", "--to", "site"]);
    assert_eq!(workspace.done(&["cat", &link, "hello"]), "two");

    let good = std::fs::read(workspace.path("site/root")).expect("a record");
    std::fs::write(workspace.path("site/root"), as_published).expect("rolled back");
    let back = workspace.run(&["cat", &link, "hello"]);
    assert!(!back.status.success());
    let printed = String::from_utf8_lossy(&back.stderr).into_owned();
    assert!(printed.contains("which key set 2 has replaced"), "{printed}");
    std::fs::write(workspace.path("site/root"), good).expect("as it was");

    workspace.done(&[
        "release",
        "revoke",
        "site",
        "--key",
        "ben.key",
        "--out",
        "end",
        "--reason",
        "it is over",
    ]);
    std::fs::copy(workspace.path("end"), workspace.path("site/revoked")).expect("copied");
    for _ in 0..2 {
        let over = workspace.run(&["cat", &link, "hello"]);
        let printed = String::from_utf8_lossy(&over.stderr).into_owned();
        assert!(!over.status.success() && printed.contains("it is over"), "{printed}");
        let _ = std::fs::remove_file(workspace.path("site/revoked"));
    }
}
