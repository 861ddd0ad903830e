//! What an attacker achieves who can change the order in etcd, but has no server and no member's key: row by row, with
//! what a member's mount makes of it. In no row does a mount show anything but the truth.
//!
//! The servers trust their etcd not to lie about what was committed, and tell damage; what fits together but is not the
//! present is for clients to find, as on any server that rolls back.

use crate::{common, operator};

use common::cluster::Pair as Servers;
use common::{eventually, run, text};
use holdfast_crypto::{DigestKey, Domain};
use holdfast_etcd::{Access, Gateway, Get, Keys, Kv, Step, Transaction};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const TODAY: &str = "today\n";
/// Bytes of a part's checksum, index and count (`server::order::etcd::head`).
const CHECKSUM_BYTES: usize = 16;
const PART_HEAD_BYTES: usize = CHECKSUM_BYTES + 8;

/// Keys and values of etcd, without the servers' leases.
type Content = BTreeMap<String, Vec<u8>>;

/// What a member's mount makes of an attack.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// The server says in these words that the order is damaged, and serves nothing of it.
    Refused(&'static str),
    /// A client that has seen the present state raises an alarm and keeps evidence.
    Alarmed,
    /// The truth is read.
    Unharmed,
}

struct Site {
    servers: Servers,
    etcd: Gateway,
}

impl Site {
    fn new() -> Site {
        let servers = Servers::new(&["alice", "bob"], 0);
        let access: Access = format!("etcd://{}/test", servers.etcd.members()).parse().expect("an address");
        Site { etcd: Gateway::new(&access, None).expect("a client"), servers }
    }

    fn id(&self) -> String {
        self.servers.world.fsid().to_owned()
    }

    fn content(&self) -> Content {
        let found = self.etcd.get(&Get::all(Keys::below("test/"))).expect("etcd answers");
        let pairs = found.into_iter().map(|pair| (String::from_utf8(pair.key).expect("text"), pair.value));
        pairs
            .filter(|(key, _)| !key.starts_with("test/active/") && !key.starts_with("test/server/"))
            .collect()
    }

    /// Makes etcd have exactly this content, as with `etcdctl`.
    fn put(&self, content: &Content) {
        let gone = self.content().into_keys().filter(|key| !content.contains_key(key));
        let mut steps: Vec<Step> = gone.map(|key| Step::Delete(Keys::One(key.into()))).collect();
        steps.extend(content.iter().map(|(key, value)| Step::Put(key.clone().into(), value.clone(), None)));
        for steps in steps.chunks(32) {
            let transaction = Transaction { steps: steps.to_vec(), ..Transaction::default() };
            self.etcd.transact(&transaction).expect("etcd takes it");
        }
    }

    /// Puts Bob's device back to when he had seen the present state.
    fn put_back_bob(&self) {
        let (state, original) = (self.servers.world.path("bob-state"), self.servers.world.path("bob-kept"));
        let from = if original.exists() { (&original, &state) } else { (&state, &original) };
        run(Command::new("rm").arg("-rf").arg(from.1));
        run(Command::new("cp").arg("-a").arg(from.0).arg(from.1));
    }

    /// Bob mounts and reads: returns the content, or what he is told.
    fn asked_by_bob(&mut self) -> Result<String, String> {
        let world = &mut self.servers.world;
        let mount = world.mount_or_output("bob", &[])?;
        let read = Command::new("cat").arg(mount.join("team/contract")).output().expect("cat runs");
        let printed = format!("{}{}", text(&read), world.status("bob"));
        world.umount("bob");
        match read.status.success() {
            true => Ok(String::from_utf8_lossy(&read.stdout).into_owned()),
            false => Err(printed),
        }
    }

    /// Alters etcd while no server runs, and compares what a server and Bob make of it with the verdict.
    fn row(&mut self, what: &str, verdict: Verdict, truth: &Content, alter: impl FnOnce(&mut Content)) {
        let mut altered = truth.clone();
        alter(&mut altered);
        assert!(altered != *truth, "{what}: something was altered");
        self.put(&altered);
        self.put_back_bob();
        self.servers.world.start_server();
        let outcome = self.asked_by_bob();
        let evidence = operator::evidence(&self.servers.world, "bob");
        if let Ok(read) = &outcome {
            assert_eq!(read, TODAY, "{what}: something else than the truth was read");
        }
        match (verdict, &outcome) {
            (Verdict::Refused(words), Err(printed)) => {
                assert!(printed.contains(words) && evidence.is_empty(), "{what}: {printed}");
            }
            (Verdict::Alarmed, Err(printed)) => {
                assert!(!evidence.is_empty(), "{what}: {printed}");
                let again = self.servers.world.try_mount("bob", &[]);
                assert!(!again.status.success(), "{what}: an alarm is not forgotten by itself");
                assert!(text(&again).contains("--acknowledge-alarm"), "{what}: {}", text(&again));
            }
            (Verdict::Unharmed, Ok(_)) => {}
            _ => panic!("{what}: {verdict:?}, but {outcome:?}\n{}", self.servers.logs()),
        }
        self.servers.world.stop_server();
    }
}

fn keys_of(content: &Content, kind: &str, id: &str) -> Vec<String> {
    let below = format!("test/{kind}/{id}/");
    content.keys().filter(|key| key.starts_with(&below)).cloned().collect()
}

fn flip(content: &mut Content, key: &str) {
    *content.get_mut(key).and_then(|value| value.last_mut()).expect("a value") ^= 1;
}

/// Makes a part's checksum fit, for which no secret is needed.
fn fit(part: &mut [u8]) {
    let sum = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &part[CHECKSUM_BYTES..]);
    part[..CHECKSUM_BYTES].copy_from_slice(&sum.0[..CHECKSUM_BYTES]);
}

/// Every value of a file system under the other one's keys, and the other way round.
fn exchanged(content: &Content, one: &str, other: &str) -> Content {
    let key = |key: &String| match (key.contains(one), key.contains(other)) {
        (true, _) => key.replace(one, other),
        (_, true) => key.replace(other, one),
        _ => key.clone(),
    };
    content.iter().map(|(name, value)| (key(name), value.clone())).collect()
}

fn write(file: &Path, text: &str) {
    let script = "printf %s \"$1\" > \"$2\" && sync \"$2\"";
    run(Command::new("sh").args(["-c", script, "sh", text]).arg(file).stdin(Stdio::null()));
}

/// Proves: the server refuses damage, in words. Content that is consistent but not the present raises an alarm at a
/// client that has seen the present. Notes beside the order do no harm. Once the truth is back in etcd, everything
/// works.
#[test]
fn what_was_altered_while_no_server_ran() {
    let mut site = Site::new();
    site.servers.second.process.kill();
    site.servers.world.stop_server();
    site.servers.world.lease = Some("2");
    site.servers.world.start_server();
    let other = another_file_system(&site);
    let id = site.id();
    let contract = site.servers.world.mount("alice").join("team/contract");
    write(&contract, "yesterday\n");
    // Enough operations for a checkpoint.
    site.servers.world.stop_server();
    let yesterday = site.content();
    site.servers.world.start_server();
    for draft in 0..3 {
        write(&contract, &format!("draft {draft}\n"));
    }
    write(&contract, TODAY);
    assert_eq!(site.asked_by_bob().expect("he reads"), TODAY);
    site.put_back_bob();
    let truth = site.content();
    site.servers.world.umount("alice");
    site.servers.world.stop_server();

    let records = keys_of(&truth, "record", &id);
    let checkpoint = keys_of(&truth, "checkpoint", &id).pop().expect("a checkpoint");
    assert!(records.len() >= 4, "{records:?}");
    let (middle, next) = (&records[records.len() / 2], &records[records.len() / 2 + 1]);
    let (last, head) = (&records[records.len() - 1], format!("test/head/{id}"));
    let exchange = |content: &mut Content, one: &str, other: &str| {
        let (first, second) = (content[one].clone(), content[other].clone());
        content.insert(one.to_owned(), second);
        content.insert(other.to_owned(), first);
    };
    use Verdict::{Alarmed, Refused, Unharmed};
    site.row("a bit of a record is flipped", Refused("damaged"), &truth, |content| flip(content, middle));
    site.row("a bit of the checkpoint is flipped", Refused("damaged"), &truth, |content| {
        flip(content, &checkpoint);
    });
    site.row("a record is removed", Refused("damaged"), &truth, |content| drop(content.remove(middle)));
    site.row("two records are exchanged", Alarmed, &truth, |content| {
        exchange(content, middle, next);
    });
    site.row("a record is there twice", Alarmed, &truth, |content| {
        content.insert(next.clone(), content[middle].clone());
    });
    site.row("a record is altered, and its checksum made to fit", Refused("damaged"), &truth, |content| {
        let part = content.get_mut(middle).expect("a record");
        part[PART_HEAD_BYTES] ^= 1;
        fit(part);
    });
    site.row("the head is rubbish", Refused("damaged"), &truth, |content| {
        content.insert(head.clone(), b"\x01rubbish".to_vec());
    });
    site.row("the head is removed", Refused("file system"), &truth, |content| drop(content.remove(&head)));
    site.row("everything is removed", Refused("file system"), &truth, Content::clear);
    site.row("two file systems' keys are exchanged", Refused("another file system"), &truth, |content| {
        *content = exchanged(content, &id, &other);
    });
    site.row("yesterday's keys are put back", Alarmed, &truth, |content| content.clone_from(&yesterday));
    site.row("the last record is removed, and the head says so", Alarmed, &truth, |content| {
        content.remove(last);
        let head = content.get_mut(&head).expect("a head");
        let number = u64::from_le_bytes(head[1..9].try_into().expect("eight bytes"));
        head[1..9].copy_from_slice(&(number - 1).to_le_bytes());
    });
    site.row("notes are rubbish", Unharmed, &truth, |content| {
        for note in ["epoch", "leases", "locks"] {
            content.insert(format!("test/note/{id}/{note}"), b"rubbish".to_vec());
        }
    });
    site.row("another server is named as the wanted one", Unharmed, &truth, |content| {
        content.insert(format!("test/wanted/{id}"), b"nobody.example.org:1".to_vec());
    });

    site.put(&truth);
    site.put_back_bob();
    site.servers.world.start_server();
    assert_eq!(site.asked_by_bob().expect("he reads"), TODAY);
}

/// Creates another user's file system on the same servers, and returns its ID.
fn another_file_system(site: &Site) -> String {
    let world = &site.servers.world;
    world.keygen("other");
    let mut create = world.holdfast("other");
    create.args(["fs", "create", &site.servers.own_address(), "--superuser"]).arg(world.key("other"));
    let printed = run(&mut create);
    let url = printed.split_whitespace().find(|word| word.starts_with("hf://")).expect("an address");
    url.rsplit('/').next().expect("an ID").to_owned()
}

/// Proves: an attacker who writes itself into etcd as the active server keeps others from serving, and no more: they go
/// on once that is removed. A damaged head stops its own file system only. Putting yesterday's keys back while a server
/// runs is noticed by every client with a mount.
#[test]
fn what_is_altered_while_servers_run() {
    let mut site = Site::new();
    let other = another_file_system(&site);
    let contract = site.servers.world.mount("alice").join("team/contract");
    write(&contract, "yesterday\n");
    let yesterday = site.content();
    write(&contract, TODAY);

    let active = format!("test/active/{}", site.id());
    let forge = Step::Put(active.clone().into(), b"forger.example.org:1 forger".to_vec(), None);
    site.etcd.transact(&Transaction { steps: vec![forge], ..Transaction::default() }).expect("etcd takes it");
    eventually("the servers stand back", || site.servers.logs().contains("not active any more"));
    eventually("who asks is told", || {
        let outcome =
            site.servers.world.mount_or_output("bob", &["--timeout", "3"]).expect_err("nobody serves");
        outcome.contains("another server has the file system now")
    });
    let remove = Step::Delete(Keys::One(active.into()));
    site.etcd
        .transact(&Transaction { steps: vec![remove], ..Transaction::default() })
        .expect("etcd takes it");
    assert_eq!(site.asked_by_bob().expect("he reads"), TODAY);
    write(&contract, TODAY);

    // Servers take file systems in the order of their IDs.
    let mut content = site.content();
    content.insert(format!("test/head/{}", "0".repeat(64)), b"\x01rubbish".to_vec());
    content.insert(format!("test/head/{other}"), b"\x01rubbish".to_vec());
    site.put(&content);
    site.servers.world.kill_server();
    site.servers.second.process.kill();
    site.servers.second.start(&[]);
    assert_eq!(site.asked_by_bob().expect("he reads"), TODAY);
    write(&contract, TODAY);

    site.put(&yesterday);
    // She can read what she has read before; for writing she has to ask the server.
    let _ = fs::write(contract.with_file_name("more"), "by Alice\n");
    assert_eq!(operator::error_of(&contract), Some(operator::EIO), "{}", site.servers.world.status("alice"));
    let status = site.servers.world.status("alice");
    assert!(status.to_lowercase().contains("frozen"), "{status}");
    assert!(!operator::evidence(&site.servers.world, "alice").is_empty());
    site.servers.world.umount("alice");
}
