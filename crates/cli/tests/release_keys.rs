//! `holdfast release`: beginning a release, signing on several machines, renewing, rotating, revoking, and what
//! people are shown of it.

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

struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    /// A folder with keys of these people.
    fn new(people: &[&str]) -> Desk {
        let folder = tempfile::Builder::new().prefix("holdfast-release.").tempdir().expect("a folder");
        let desk = Desk { folder };
        for person in people {
            desk.done(&["keygen", "--out", &format!("{person}.key"), "--comment", person]);
        }
        desk
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

    /// Runs what must fail with this code, and returns what it says.
    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }

    fn release(&self) -> ReleaseDir {
        ReleaseDir::new(&self.path("site"))
    }

    fn key(&self, person: &str) -> holdfast_crypto::SigningKey {
        let text = std::fs::read_to_string(self.path(&format!("{person}.key"))).expect("a key file");
        keyfile::parse_private(&text, None).expect("a key")
    }

    /// Publishes release `sequence` for a day, signed by these people.
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

    /// What a new client makes of the directory.
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

/// One person: a release begins with its id, which differs even for the same key; it is never begun twice.
#[test]
fn a_release_of_one() {
    let desk = Desk::new(&["anna"]);
    let said = desk.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    let id = said.lines().next().expect("the id");
    assert_eq!(id, desk.release().chain().expect("key sets").id().to_string());
    desk.done(&["release", "keys", "init", "--out", "other", "--key", "anna.key"]);
    assert_ne!(id, ReleaseDir::new(&desk.path("other")).chain().expect("key sets").id().to_string());
    let again = desk.refused(73, &["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    assert!(again.contains("is here already") && again.contains("rotate"), "{again}");

    let shown = desk.done(&["release", "show", "site"]);
    assert!(shown.contains(id) && shown.contains("nothing was published yet"), "{shown}");
    desk.publish(1, &["anna"]);
    let shown = desk.done(&["release", "show", "site/root"]);
    assert!(shown.contains("release 1 first edition") && shown.ends_with("\nvalid\n"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&desk.done(&["release", "show", "site", "--json"])).expect("JSON");
    assert_eq!((&json["valid"], &json["record"]["sequence"]), (&true.into(), &1.into()));
    assert_eq!(json["record"]["signed_by"][0], json["key_sets"][0]["keys"][0]["fingerprint"]);
}

/// Two of three on different machines: nothing is in place, and nothing is shown as valid, before two have signed.
#[test]
fn a_release_of_two_of_three() {
    let desk = Desk::new(&["anna", "ben", "carla", "dora"]);
    let mut begin =
        vec!["release", "keys", "init", "--out", "site", "--key", "anna.key", "--add", "ben.key.pub"];
    begin.extend(["--add", "carla.key"]);
    let unsaid = desk.refused(64, &begin);
    assert!(unsaid.contains("--threshold"), "{unsaid}");
    begin.extend(["--threshold", "2"]);
    let said = desk.done(&begin);
    assert!(said.contains("NOT signed by enough people yet"), "{said}");
    assert!(!desk.path("site").exists());
    let draft = "site.keys-1.draft";
    let shown = desk.refused(1, &["release", "show", draft]);
    assert!(shown.contains("NOT VALID") && shown.contains("needs more signatures"), "{shown}");
    desk.refused(73, &begin);

    let stranger = desk.refused(77, &["release", "sign", draft, "--key", "dora.key"]);
    assert!(stranger.contains("may sign nothing in this draft"), "{stranger}");
    let early = desk.refused(1, &["release", "sign", draft, "--to", "site"]);
    assert!(early.contains("needs 1 more of key set 1") && !desk.path("site").exists(), "{early}");
    desk.refused(1, &["release", "sign", draft, "--key", "anna.key", "--to", "site"]);

    let said = desk.done(&["release", "sign", draft, "--key", "carla.key"]);
    assert!(said.contains("signed: key set 1") && said.contains("--to PATH"), "{said}");
    assert!(!desk.path("site").exists());
    desk.done(&["release", "sign", draft, "--to", "site"]);
    assert!(!desk.path(draft).exists(), "it has done its work");
    assert_eq!(desk.release().chain().expect("key sets").current().role.threshold, 2);

    desk.publish(1, &["anna"]);
    let one = desk.refused(1, &["release", "show", "site/root"]);
    assert!(one.contains("NOT VALID: the record is signed by 1 of the 2 keys needed of key set 1"), "{one}");
    desk.publish(1, &["anna", "ben"]);
    desk.done(&["release", "show", "site/root"]);
}

/// Renewals: by their own key only, for their term at most; people then count on the record for longer.
#[test]
fn renewing() {
    let desk = Desk::new(&["anna", "timer"]);
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key"];
    begin.extend(["--freshness-key", "timer.key.pub", "--freshness-until", YEARS_AHEAD]);
    desk.done(&begin);
    let nothing = desk.refused(66, &["release", "renew", "site", "--key", "timer.key"]);
    assert!(nothing.contains("nothing was published yet"), "{nothing}");
    desk.publish(1, &["anna"]);
    let renew = ["release", "renew", "site", "--key", "timer.key"];
    let wrong = desk.refused(77, &["release", "renew", "site", "--key", "anna.key"]);
    assert!(wrong.contains("may not renew"), "{wrong}");
    let long = desk.refused(77, &[&renew[..], &["--for", "8d"]].concat());
    assert!(long.contains("7 days at most"), "{long}");
    let short = desk.refused(1, &[&renew[..], &["--for", "1h"]].concat());
    assert!(short.contains("adds nothing"), "{short}");
    let before_s = now_s();
    desk.done(&renew);
    let shown: serde_json::Value =
        serde_json::from_str(&desk.done(&["release", "show", "site", "--json"])).expect("JSON");
    let until_s = shown["record"]["valid_until_s"].as_u64().expect("a time");
    let term_s = 7 * 86_400;
    assert!((before_s + term_s..=now_s() + term_s).contains(&until_s), "{shown}");
    let backwards = desk.refused(73, &[&renew[..], &["--for", "2d"]].concat());
    assert!(backwards.contains("lasts longer is there already"), "{backwards}");
    assert!(desk.path("site/records/1").is_file());
}

/// A rotation by two old people and a new one on three machines: the new keys, and the record under them, come into
/// place together; what the old keys alone sign is refused from then on.
#[test]
fn rotating() {
    let desk = Desk::new(&["anna", "ben", "carla", "timer"]);
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key", "--key", "ben.key"];
    begin.extend(["--threshold", "2"]);
    desk.done(&begin);
    desk.publish(1, &["anna", "ben"]);
    let same = desk.refused(64, &["release", "keys", "rotate", "site", "--key", "anna.key"]);
    assert!(same.contains("would be the same"), "{same}");
    let mut rotate = vec!["release", "keys", "rotate", "site", "--key", "anna.key", "--add", "carla.key.pub"];
    rotate.extend(["--remove", "anna.key.pub", "--freshness-key", "timer.key.pub"]);
    rotate.extend(["--freshness-until", YEARS_AHEAD]);
    desk.done(&rotate);
    assert_eq!(desk.sequence_accepted(), 1, "nothing has changed yet");

    let draft = "site.keys-2.draft";
    std::fs::copy(desk.path(draft), desk.path("copy.draft")).expect("copied");
    let bens = desk.done(&["release", "sign", draft, "--key", "ben.key"]);
    assert!(bens.contains("signed: key set 2, record 2"), "{bens}");
    desk.done(&["release", "sign", "copy.draft", "--key", "carla.key"]);
    desk.done(&["release", "sign", draft, "--merge", "copy.draft"]);
    std::fs::copy(desk.path(draft), desk.path("late.draft")).expect("copied");
    desk.done(&["release", "sign", draft, "--to", "site"]);

    let chain = desk.release().chain().expect("key sets");
    assert_eq!(chain.sets().len(), 2);
    assert!(!chain.current().role.keys.contains(&desk.key("anna").public()));
    assert_eq!(desk.sequence_accepted(), 2);
    let shown = desk.done(&["release", "show", "site/keys/2"]);
    assert!(shown.ends_with("\nvalid\n"), "{shown}");
    desk.done(&["release", "renew", "site", "--key", "timer.key"]);

    desk.publish(3, &["anna", "ben"]);
    let old = desk.refused(1, &["release", "show", "site"]);
    assert!(old.contains("NOT VALID") && old.contains("may not sign it"), "{old}");
    desk.publish(4, &["carla", "ben"]);
    let outdated = desk.refused(1, &["release", "sign", "late.draft", "--to", "site"]);
    assert!(outdated.contains("people would refuse it, so nothing was changed"), "{outdated}");
    assert_eq!(desk.sequence_accepted(), 4);
}

/// A certificate is made and shown, never replaced, and does nothing before it is in its place.
#[test]
fn revoking() {
    let desk = Desk::new(&["anna"]);
    desk.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    desk.publish(1, &["anna"]);
    let successor = "5".repeat(64);
    let mut revoke = vec!["release", "revoke", "site", "--key", "anna.key", "--out", "end"];
    revoke.extend(["--reason", "moved elsewhere", "--successor", &successor]);
    desk.done(&revoke);
    desk.refused(73, &revoke);
    desk.done(&["release", "show", "site"]);
    let shown = desk.done(&["release", "show", "end"]);
    assert!(shown.contains("moved elsewhere") && shown.contains(&successor), "{shown}");
    let id = desk.release().chain().expect("key sets").id();
    let bytes = std::fs::read(desk.path("end")).expect("a certificate");
    revocation::verify(id, &bytes).expect("clients honour it");

    std::fs::copy(desk.path("end"), desk.path("site/revoked")).expect("copied");
    let over = desk.refused(1, &["release", "show", "site"]);
    assert!(over.contains("was revoked for good by its publisher: moved elsewhere"), "{over}");
    let nonsense = desk
        .refused(64, &["release", "revoke", "site", "--key", "anna.key", "--out", "x", "--reason", "\u{7}"]);
    assert!(nonsense.contains("control characters"), "{nonsense}");
}

/// Altered, foreign and missing files are refused by name, in words, and nothing is written.
#[test]
fn what_is_no_release() {
    let desk = Desk::new(&["anna"]);
    let missing = desk.refused(66, &["release", "show", "nowhere"]);
    assert!(missing.contains("nowhere"), "{missing}");
    std::fs::create_dir(desk.path("empty")).expect("a folder");
    let empty = desk.refused(66, &["release", "renew", "empty", "--key", "anna.key"]);
    assert!(empty.contains("empty/keys/1") && empty.contains("not the directory of a release"), "{empty}");
    let foreign = desk.refused(66, &["release", "show", "anna.key.pub"]);
    assert!(foreign.contains("no signed file of a release"), "{foreign}");
    let no_draft = desk.refused(66, &["release", "sign", "anna.key.pub", "--key", "anna.key"]);
    assert!(no_draft.contains("only drafts are signed"), "{no_draft}");

    desk.done(&["release", "keys", "init", "--out", "site", "--key", "anna.key"]);
    desk.publish(1, &["anna"]);
    let mut bytes = std::fs::read(desk.path("site/root")).expect("a record");
    let note = bytes.windows(5).position(|window| window == b"first").expect("the note");
    bytes[note] = b'F';
    std::fs::write(desk.path("site/root"), &bytes).expect("altered");
    let altered = desk.refused(1, &["release", "show", "site"]);
    assert!(altered.contains("altered or forged"), "{altered}");
    std::fs::copy(desk.path("site/root"), desk.path("alone")).expect("copied");
    let alone = desk.refused(1, &["release", "show", "alone"]);
    assert!(alone.contains("nobody can check it"), "{alone}");
}

/// A mirror that shows another record of a number that was seen is named, with the proof, though another mirror is
/// as it should be and is used.
#[test]
fn a_second_record_of_one_number_is_told() {
    let desk = Desk::new(&["anna"]);
    std::fs::create_dir(desk.path("tree")).expect("a folder");
    std::fs::write(desk.path("tree/hello"), "one").expect("written");
    desk.done(&["publish", "tree", "--key", "anna.key", "--to", "site"]);
    let id = desk.release().chain().expect("key sets").id();
    let link = format!("hf+release:{id}@site");
    desk.done(&["cat", &link, "hello"]);
    std::fs::create_dir_all(desk.path("other/keys")).expect("a folder");
    std::fs::copy(desk.path("site/keys/1"), desk.path("other/keys/1")).expect("copied");
    let honest = std::fs::read(desk.path("site/root")).expect("a record");
    desk.publish(1, &["anna"]);
    std::fs::rename(desk.path("site/root"), desk.path("other/root")).expect("moved");
    std::fs::write(desk.path("site/root"), honest).expect("as it was");
    let output = desk.run(&["cat", &link, "hello", "--mirror", "other"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stdout == b"one", "{said}");
    assert!(said.contains("two releases 1, both signed") && said.contains("proof is kept"), "{said}");
}

/// With real trees: somebody who reads a release goes on across a renewal and a rotation, is told of what the old
/// key publishes afterwards, and of a revocation, for good.
#[test]
fn a_reader_goes_along() {
    let desk = Desk::new(&["anna", "ben", "timer"]);
    std::fs::create_dir(desk.path("tree")).expect("a folder");
    std::fs::write(desk.path("tree/hello"), "one").expect("written");
    let mut begin = vec!["release", "keys", "init", "--out", "site", "--key", "anna.key"];
    begin.extend(["--freshness-key", "timer.key.pub", "--freshness-until", YEARS_AHEAD]);
    desk.done(&begin);
    let id = desk.release().chain().expect("key sets").id();
    let link = format!("hf+release:{id}@site");
    desk.done(&["publish", "tree", "--key", "anna.key", "--to", "site", "--expires", "3d"]);
    assert_eq!(desk.done(&["cat", &link, "hello"]), "one");
    desk.done(&["release", "renew", "site", "--key", "timer.key"]);
    assert_eq!(desk.done(&["cat", &link, "hello"]), "one");
    let as_published = std::fs::read(desk.path("site/root")).expect("a record");

    let mut rotate = vec!["release", "keys", "rotate", "site", "--key", "anna.key", "--key", "ben.key"];
    rotate.extend(["--remove", "anna.key"]);
    desk.done(&rotate);
    assert_eq!(desk.done(&["cat", &link, "hello"]), "one");
    std::fs::write(desk.path("tree/hello"), "two").expect("written");
    desk.done(&["publish", "tree", "--key", "ben.key", "--to", "site"]);
    assert_eq!(desk.done(&["cat", &link, "hello"]), "two");

    let good = std::fs::read(desk.path("site/root")).expect("a record");
    std::fs::write(desk.path("site/root"), as_published).expect("rolled back");
    let back = desk.run(&["cat", &link, "hello"]);
    assert!(!back.status.success());
    let said = String::from_utf8_lossy(&back.stderr).into_owned();
    assert!(said.contains("which key set 2 has replaced"), "{said}");
    std::fs::write(desk.path("site/root"), good).expect("as it was");

    desk.done(&["release", "revoke", "site", "--key", "ben.key", "--out", "end", "--reason", "it is over"]);
    std::fs::copy(desk.path("end"), desk.path("site/revoked")).expect("copied");
    for _ in 0..2 {
        let over = desk.run(&["cat", &link, "hello"]);
        let said = String::from_utf8_lossy(&over.stderr).into_owned();
        assert!(!over.status.success() && said.contains("it is over"), "{said}");
        let _ = std::fs::remove_file(desk.path("site/revoked"));
    }
}
