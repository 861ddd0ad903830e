//! What an attacker achieves who has the credentials of the bucket with the blocks, but no server and no member's key:
//! row by row, with what the server and a member's mount make of it. In no row does a file have other bytes than its
//! writer gave it.

use crate::{common, operator};

use common::object_store::{CREDENTIALS, Engine};
use common::{World, eventually, noise, run};
use holdfast_tiered::simulated::Simulated;
use std::fs;
use std::process::{Command, Stdio};

/// Files, each in a segment of its own.
const FILES: u32 = 3;
const FILE_BYTES: usize = 300_000;

/// The verdict on an attack.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// The server does not start, and says what is wrong in these words.
    Refused(&'static str),
    /// Reading what was attacked fails with EIO, and evidence is kept; at least this many files can be read.
    Eio { readable_min: usize },
    /// All files can be read.
    Unharmed,
}

/// How the server starts on the altered bucket.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    /// An ordinary start, without copies of what is in the bucket.
    Usual,
    /// The server's disk is lost for blocks, and it takes the bucket over.
    TakeOver,
}

struct Site {
    world: World,
    objects: Simulated,
    _engine: Engine,
    truth: Simulated,
}

fn copy(from: &Simulated, to: &Simulated) {
    to.names().iter().filter(|name| from.object(name).is_none()).for_each(|name| to.alter(name, None));
    from.names().iter().for_each(|name| to.alter(name, from.object(name)));
}

fn content(file: u32) -> Vec<u8> {
    noise(u64::from(file) + 1, FILE_BYTES)
}

/// Names of the objects of a kind, oldest first.
fn named(bucket: &Simulated, kind: &str) -> Vec<String> {
    bucket.names().into_iter().filter(|name| name.contains(&format!("/{kind}"))).collect()
}

/// The segment that has a file's data, and the offset in it.
fn segment_of(bucket: &Simulated, file: u32) -> (String, usize) {
    let wanted = &content(file)[1000..1032];
    let found = named(bucket, "segment-").into_iter().find_map(|name| {
        let bytes = bucket.object(&name).expect("it is there");
        Some((name, bytes.windows(wanted.len()).position(|window| window == wanted)?))
    });
    found.expect("its data is in the bucket as it is")
}

fn change(bucket: &Simulated, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = bucket.object(name).expect("it is there");
    change(&mut bytes);
    bucket.alter(name, Some(bytes));
}

impl Site {
    /// A file system with some files, which Bob has seen, and an older copy of the bucket.
    fn new() -> Option<(Site, Simulated)> {
        let engine = Engine::start();
        let Engine::Own { objects, .. } = &engine else { return None };
        let objects = objects.clone();
        let address = engine.address("&durability=object&cache=64M");
        let mut world =
            World::with_server_in(&["alice", "bob"], &CREDENTIALS, |_| vec!["--blocks".to_owned(), address]);
        world.stop_server();
        world.lease = Some("2");
        world.start_server();
        let mut older = None;
        for file in 0..FILES {
            if file + 1 == FILES {
                older = Some(objects.snapshot());
            }
            let mount = world.mount("alice");
            fs::write(mount.join(format!("team/{file}")), content(file)).expect("written");
            world.umount("alice");
            // A start seals what was written before.
            world.stop_server();
            let before = named(&objects, "segment-").len();
            world.start_server();
            eventually("it is sent", || named(&objects, "segment-").len() > before);
        }
        let mount = world.mount("bob");
        assert_eq!(fs::read_dir(mount.join("team")).expect("listed").count(), FILES as usize);
        world.umount("bob");
        world.stop_server();
        let data = world.data();
        for entry in fs::read_dir(data.join("objects")).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let number = name.strip_prefix("segment-").and_then(|rest| rest.strip_suffix(".log"));
            if number.is_some_and(|number| {
                named(&objects, "segment-").iter().any(|name| name.contains(&format!("/segment-{number}-")))
            }) {
                fs::remove_file(path).expect("removed");
            }
        }
        let truth = objects.snapshot();
        for name in ["data", "bob-state"] {
            run(Command::new("cp").arg("-a").arg(world.path(name)).arg(world.path(&format!("{name}-kept"))));
        }
        Some((Site { world, objects, _engine: engine, truth }, older.expect("there are files")))
    }

    fn put_back(&self) {
        copy(&self.truth, &self.objects);
        for name in ["data", "bob-state"] {
            let (original, here) = (self.world.path(&format!("{name}-kept")), self.world.path(name));
            run(Command::new("rm").arg("-rf").arg(&here));
            run(Command::new("cp").arg("-a").arg(original).arg(here));
        }
        let _ = fs::remove_dir_all(self.world.path("bob-cache"));
    }

    /// Whether the server starts; what it prints if not.
    fn starts(&mut self, start: Start) -> Result<(), String> {
        let extra: &[&str] = match start {
            Start::Usual => &[],
            Start::TakeOver => {
                fs::remove_dir_all(self.world.data().join("objects")).expect("removed");
                &["--blocks-anew"]
            }
        };
        // A first attempt, as a server that is refused ends before it says that it serves.
        let printed = self.world.path("first-look.log");
        let output = fs::File::create(&printed).expect("made");
        let mut server = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(["server", "--listen", "127.0.0.1:0", "--data"])
            .arg(self.world.data())
            .args(extra)
            .envs(CREDENTIALS)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("it starts");
        let outcome = || fs::read_to_string(&printed).expect("read");
        eventually("it serves or ends", || {
            outcome().contains("holdfast serves") || server.try_wait().expect("a child").is_some()
        });
        let serves = outcome().contains("holdfast serves");
        if serves {
            run(Command::new("kill").arg(server.id().to_string()));
        }
        eventually("it ends", || server.try_wait().expect("a child").is_some());
        let code = server.wait().expect("it has ended").code();
        if !serves {
            assert_eq!(code, Some(69), "{}", outcome());
            return Err(outcome());
        }
        assert_eq!(code, Some(0), "{}", outcome());
        self.world.start_server();
        Ok(())
    }

    fn row(&mut self, what: &str, start: Start, verdict: Verdict, alter: impl FnOnce(&Simulated)) {
        self.put_back();
        alter(&self.objects);
        if let Err(printed) = self.starts(start) {
            let Verdict::Refused(words) = verdict else { panic!("{what}: {printed}") };
            assert!(printed.contains(words), "{what}: {printed}");
            return;
        }
        let outcome = self.world.mount_or_output("bob", &[]);
        let mut readable = 0;
        if let Ok(mount) = &outcome {
            for file in 0..FILES {
                match fs::read(mount.join(format!("team/{file}"))) {
                    Ok(read) => {
                        assert!(read == content(file), "{what}: file {file} has other bytes");
                        readable += 1;
                    }
                    Err(error) => assert_eq!(error.raw_os_error(), Some(operator::EIO), "{what}: {error}"),
                }
            }
        }
        let found = (readable, operator::evidence(&self.world, "bob").len());
        let printed = format!("{what}: {found:?} {outcome:?}\n{}", self.world.status("bob"));
        match verdict {
            Verdict::Unharmed => assert_eq!(found, (FILES as usize, 0), "{printed}"),
            Verdict::Eio { readable_min } => {
                assert!(readable < FILES as usize && readable >= readable_min && found.1 > 0, "{printed}");
            }
            Verdict::Refused(_) => panic!("it started. {printed}"),
        }
        if outcome.is_ok() {
            self.world.umount("bob");
        }
        self.world.stop_server();
    }
}

/// Proves: objects that are altered, exchanged, cut, replaced or rolled back are noticed by the server, or reading what
/// was in them fails with EIO; no file ever has other bytes. The same holds when a server that lost its disk takes the
/// bucket over.
#[test]
fn what_was_altered_in_the_bucket() {
    let Some((mut site, older)) = Site::new() else { return };
    let truth = site.truth.clone();
    let (first, at) = segment_of(&truth, 0);
    let (last, _) = segment_of(&truth, FILES - 1);
    assert_ne!(first, last);
    let (manifest, head) = (named(&truth, "manifest-").pop(), named(&truth, "head-").pop());
    let (manifest, head) = (manifest.expect("a manifest"), head.expect("a head"));
    let owner = truth.names().into_iter().find(|name| name.ends_with("/owner")).expect("an owner");
    let others = Verdict::Eio { readable_min: FILES as usize - 1 };
    let eio = Verdict::Eio { readable_min: 0 };
    use Start::{TakeOver, Usual};
    use Verdict::{Refused, Unharmed};

    site.row("nothing", Usual, Unharmed, |_| {});
    site.row("nothing", TakeOver, Unharmed, |_| {});
    for start in [Usual, TakeOver] {
        site.row("a bit of a file is flipped", start, others, |bucket| {
            change(bucket, &first, |bytes| bytes[at] ^= 1);
        });
        site.row("two segments are exchanged", start, Refused("segment-"), |bucket| {
            bucket.alter(&first, truth.object(&last));
            bucket.alter(&last, truth.object(&first));
        });
        site.row("the owner's note is rubbish", start, Refused("owner"), |bucket| {
            bucket.alter(&owner, Some(b"rubbish".to_vec()));
        });
    }
    site.row("a segment is cut", Usual, Refused("segment-"), |bucket| {
        change(bucket, &first, |bytes| bytes.truncate(bytes.len() / 2));
    });
    site.row("everything is rolled back", Usual, Refused("--blocks-anew"), |bucket| copy(&older, bucket));
    site.row("everything is rolled back", TakeOver, eio, |bucket| copy(&older, bucket));
    site.row("the newest manifest is altered", TakeOver, Refused("manifest"), |bucket| {
        change(bucket, &manifest, |bytes| bytes[40] ^= 1);
    });
    site.row("the newest manifest is removed", TakeOver, Refused("manifest"), |bucket| {
        bucket.alter(&manifest, None);
    });
    site.row("the newest head is rubbish", TakeOver, Refused("names no manifest"), |bucket| {
        bucket.alter(&head, Some(b"rubbish".to_vec()));
    });
}
