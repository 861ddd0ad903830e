//! One contract for every order: in the log, and in an etcd in memory whose network loses, repeats and delays
//! messages.

use super::etcd::{Cluster, Shard, TERM};
use super::{ActiveStatus, Embedded, Notes, Order, OrderError};
use holdfast_crypto::{Digest, decode, encode};
use holdfast_etcd::fake::{Delivery, Fake};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{Storage, SyncSite};
use holdfast_store::{LogStore, StoreConfig};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const ID: Digest = Digest([7; 32]);
const SITE: SyncSite = SyncSite("test");

/// A medium on which an order can be opened again, after everything that was not committed is gone.
trait Medium {
    fn open(&mut self) -> Arc<dyn Order>;
    fn crash(&mut self);
}

struct Disk(PowerLoss);

impl Medium for Disk {
    fn open(&mut self) -> Arc<dyn Order> {
        let storage: Arc<dyn Storage> = self.0.storage();
        let store = LogStore::open(storage.clone(), StoreConfig::default()).expect("it opens");
        Arc::new(Embedded { store, storage, id: ID })
    }

    fn crash(&mut self) {
        self.0.restart(Crash::PowerLoss);
    }
}

struct Servers {
    etcd: Fake,
    number: u32,
}

impl Servers {
    fn new() -> Servers {
        Servers { etcd: Fake::default(), number: 0 }
    }

    /// Opens the order as another server, which takes over once the former one's lease has ended.
    fn take(&mut self, deliveries: impl FnMut() -> Delivery + Send + 'static) -> (Cluster, Shard) {
        self.etcd.pass(TERM + Duration::from_secs(1));
        self.number += 1;
        let address = format!("server{}:1", self.number);
        // The faults during the start are not what this test examines.
        let connection = Arc::new(self.etcd.connection(|| Delivery::Answered));
        let cluster = Cluster::join(Box::new(Shared(connection.clone())), "test", address).expect("it joins");
        let shard = cluster.take(ID).expect("etcd answers").expect("nobody else is active");
        connection.set_deliveries(deliveries);
        (cluster, shard)
    }
}

/// A connection whose faults are controlled from outside.
struct Shared(Arc<Fake>);

impl holdfast_etcd::Kv for Shared {
    fn transact(
        &self,
        transaction: &holdfast_etcd::Transaction,
    ) -> Result<holdfast_etcd::TransactionResult, holdfast_etcd::EtcdError> {
        self.0.transact(transaction)
    }
    fn get(&self, get: &holdfast_etcd::Get) -> Result<Vec<holdfast_etcd::Pair>, holdfast_etcd::EtcdError> {
        self.0.get(get)
    }
    fn grant(&self, term: Duration) -> Result<i64, holdfast_etcd::EtcdError> {
        self.0.grant(term)
    }
    fn keep_alive(&self, lease: i64) -> Result<Option<Duration>, holdfast_etcd::EtcdError> {
        self.0.keep_alive(lease)
    }
    fn revoke(&self, lease: i64) -> Result<(), holdfast_etcd::EtcdError> {
        self.0.revoke(lease)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl Medium for Servers {
    fn open(&mut self) -> Arc<dyn Order> {
        Arc::new(self.take(|| Delivery::Answered).1)
    }

    fn crash(&mut self) {}
}

fn media() -> Vec<Box<dyn Medium>> {
    vec![Box::new(Disk(PowerLoss::new(1))), Box::new(Servers::new())]
}

/// Proves: records come back in order after the last checkpoint, whatever their size. What was not committed
/// is there or gone, but never there without what came before it. Files and renames are as they were synced.
#[test]
fn every_order_keeps_its_contract() {
    for mut medium in media() {
        let order = medium.open();
        assert_eq!(order.recover().unwrap(), (None, Vec::new()));
        let large = vec![3; 900_000];
        for record in [&b"one"[..], b"", &large] {
            order.append(record).unwrap();
        }
        order.commit().unwrap();
        drop(order);
        medium.crash();

        let order = medium.open();
        assert_eq!(order.recover().unwrap(), (None, vec![b"one".to_vec(), Vec::new(), large.clone()]));
        order.checkpoint(&large).unwrap();
        order.append(b"two").unwrap();
        order.commit().unwrap();
        order.append(b"three").unwrap();
        drop(order);
        medium.crash();

        let order = medium.open();
        let (checkpoint, records) = order.recover().unwrap();
        assert_eq!(checkpoint, Some(large));
        assert!(records == [b"two".to_vec()] || records == [b"two".to_vec(), b"three".to_vec()]);
        order.checkpoint(b"second").unwrap();
        order.commit().unwrap();
        assert_eq!(order.recover().unwrap(), (Some(b"second".to_vec()), Vec::new()));

        let files = order.files();
        let file = files.create("a").unwrap();
        let content: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        file.write_at(5, &content).unwrap();
        file.sync(SITE).unwrap();
        files.create("b").unwrap();
        files.rename("a", "b").unwrap();
        files.sync_dir(SITE).unwrap();
        drop((file, files, order));
        medium.crash();
        let files = medium.open().files();
        assert!(files.open("a").is_err());
        let file = files.open("b").unwrap();
        assert_eq!(file.len().unwrap(), 200_005);
        let mut read = vec![1; 300_000];
        assert_eq!(file.read_at(0, &mut read).unwrap(), 200_005);
        assert_eq!((&read[..5], &read[5..200_005]), (&[0; 5][..], &content[..]));
        file.truncate(70_000).unwrap();
        file.write_at(70_000, b"end").unwrap();
        file.sync(SITE).unwrap();
        let file = files.open("b").unwrap();
        assert_eq!((file.len().unwrap(), file.read_at(69_999, &mut read[..9]).unwrap()), (70_003, 4));
        assert_eq!(&read[1..4], b"end");
        files.remove("b").unwrap();
        assert!(files.open("b").is_err());
    }
}

/// Numbers that follow from a seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// All records there ever were: those in the checkpoint, which is a list of records here, and those after it.
fn all(order: &Shard) -> Vec<Vec<u8>> {
    let (checkpoint, records) = order.recover().expect("it can be read");
    let mut all: Vec<Vec<u8>> = checkpoint.map_or_else(Vec::new, |bytes| decode(&bytes).expect("a list"));
    all.extend(records);
    all
}

/// Proves: whatever the network does, and whenever servers are replaced, every acknowledged record is there
/// once, in order; and requests of a replaced server that are still on their way change nothing.
#[test]
fn nothing_acknowledged_is_lost_in_etcd() {
    for seed in 1..=12 {
        let mut servers = Servers::new();
        let mut random = numbers(seed);
        let mut acknowledged: Vec<Vec<u8>> = Vec::new();
        let mut replaced: Option<(Cluster, Shard)> = None;
        let mut count = 0u64;
        for generation in 0..6 {
            let mut fate = numbers(seed * 100 + generation);
            let (cluster, shard) = servers.take(move || match fate(12) {
                0 => Delivery::RequestLost,
                1 => Delivery::AnswerLost,
                2 => Delivery::Late,
                3 => Delivery::Repeated,
                _ => Delivery::Answered,
            });
            let mut known = all(&shard);
            assert_eq!(known[..acknowledged.len()], acknowledged[..], "seed {seed}");
            for step in 0..12 {
                for _ in 0..random(4) {
                    count += 1;
                    known.push(count.to_le_bytes().to_vec());
                    shard.append(known.last().unwrap()).unwrap();
                }
                if random(5) == 0 {
                    shard.checkpoint(&encode(&known)).unwrap();
                }
                if step == 11 {
                    // The server ends while a request is on its way.
                    break;
                }
                shard.commit().expect("nobody has replaced it");
                acknowledged = known.clone();
                if let Some((_, old)) = &replaced {
                    old.append(b"never").unwrap();
                    assert!(matches!(old.commit(), Err(OrderError::Lost)), "seed {seed}");
                }
            }
            replaced = Some((cluster, shard));
        }
        let (_, shard) = servers.take(|| Delivery::Answered);
        let last = all(&shard);
        assert_eq!(last[..acknowledged.len()], acknowledged[..], "seed {seed}");
        assert!(!last.contains(&b"never".to_vec()));
        let mut sorted: Vec<u64> =
            last.iter().map(|one| u64::from_le_bytes(one[..].try_into().unwrap())).collect();
        let in_order = sorted.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, in_order, "seed {seed}: each once");
    }
}

/// Proves: a server whose lease has ended at etcd, but whose own clock has stood still, writes nothing; and a
/// server that can tell reports that it is not active any more.
#[test]
fn a_replaced_server_is_fenced() {
    let mut servers = Servers::new();
    let (first, old) = servers.take(|| Delivery::Answered);
    old.append(b"one").unwrap();
    old.commit().unwrap();
    let (_, new) = servers.take(|| Delivery::Answered);
    assert_eq!(old.active_status(), ActiveStatus::Active, "as far as it knows");
    old.append(b"two").unwrap();
    assert!(matches!(old.commit(), Err(OrderError::Lost)));
    assert_eq!(old.active_status(), ActiveStatus::Lost);
    assert!(old.files().create("file").is_err() && old.put("note", "text").is_err());
    first.keep_alive().unwrap();
    assert!(!old.is_leased());
    assert!(first.take(ID).unwrap().is_none(), "another one is active");
    new.append(b"three").unwrap();
    new.commit().unwrap();
    assert_eq!(new.recover().unwrap().1, [b"one".to_vec(), b"three".to_vec()]);
    new.put("note", "text").unwrap();
    assert_eq!(new.text("note").unwrap().as_deref(), Some("text"));
}

/// Proves: a full etcd refuses and loses nothing; the same server reads the order again and goes on once
/// there is space.
#[test]
fn a_full_etcd_loses_nothing() {
    let mut servers = Servers::new();
    let (_cluster, shard) = servers.take(|| Delivery::Answered);
    shard.append(b"one").unwrap();
    shard.commit().unwrap();
    servers.etcd.set_full(true);
    let start = std::time::Instant::now();
    shard.append(b"two").unwrap();
    assert!(matches!(shard.commit(), Err(OrderError::Full(_))));
    let again = shard.again().unwrap();
    assert_eq!(again.recover().unwrap().1, [b"one".to_vec()]);
    let mut expected = vec![b"one".to_vec()];
    match again.append(b"three") {
        Ok(()) => {
            assert!(start.elapsed() >= Duration::from_secs(2), "not tried at once");
            expected.push(b"three".to_vec());
        }
        Err(error) => assert!(matches!(error, OrderError::Full(_)), "{error}"),
    }
    servers.etcd.set_full(false);
    holdfast_testing::eventually("it is tried again", || again.append(b"four").is_ok());
    expected.push(b"four".to_vec());
    again.commit().unwrap();
    assert!(matches!(shard.commit(), Err(OrderError::Lost)));
    assert_eq!(again.recover().unwrap().1, expected);
}

/// Proves: altered or missing records in etcd are reported as damage, and never skipped.
#[test]
fn damage_in_etcd_is_reported() {
    for what in ["altered", "gone"] {
        let mut servers = Servers::new();
        let (_cluster, shard) = servers.take(|| Delivery::Answered);
        for record in [b"one", b"two"] {
            shard.append(record).unwrap();
            shard.commit().unwrap();
        }
        let key = servers.etcd.keys().into_iter().find(|key| key.contains("/record/")).unwrap();
        servers.etcd.damage(&key, |value| match what {
            "altered" => *value.last_mut().unwrap() ^= 1,
            _ => value.clear(),
        });
        assert!(matches!(shard.recover(), Err(OrderError::Damaged(_))), "{what}");
        let head = servers.etcd.keys().into_iter().find(|key| key.contains("/head/")).unwrap();
        servers.etcd.damage(&head, |value| value.truncate(8));
        assert!(matches!(shard.again(), Err(OrderError::Damaged(_))), "{what}");
    }
}

/// Proves: the mark that all file systems were moved is written only by a server that has been the active one
/// of each since it read them. From then on no server becomes active, neither a new nor an old one.
#[test]
fn what_was_moved_is_active_nowhere() {
    let mut servers = Servers::new();
    let (first, shard) = servers.take(|| Delivery::Answered);
    let read_under = BTreeMap::from([(ID, shard.epoch())]);
    let (second, shard) = servers.take(|| Delivery::Answered);
    assert!(!first.put_moved("elsewhere", &read_under).unwrap() && first.moved().unwrap().is_none());
    second.give_up(ID, shard.epoch()).unwrap();
    assert!(!first.put_moved("elsewhere", &read_under).unwrap(), "another one was active meanwhile");
    let (third, shard) = servers.take(|| Delivery::Answered);
    let read_under = BTreeMap::from([(ID, shard.epoch())]);
    assert!(third.put_moved("elsewhere", &read_under).unwrap());
    assert_eq!(second.moved().unwrap().as_deref(), Some("elsewhere"));
    third.give_up(ID, shard.epoch()).unwrap();
    second.keep_alive().unwrap();
    assert!(second.take(ID).unwrap().is_none() && third.take(ID).unwrap().is_none());
}

/// Proves: a file system goes to the server that an operator named while that one runs, and otherwise to any.
#[test]
fn an_operators_choice_counts() {
    let etcd = Fake::default();
    let join = |address: &str| {
        let kv = Box::new(etcd.connection(|| Delivery::Answered));
        Cluster::join(kv, "test", address.to_owned()).unwrap()
    };
    let (a, b) = (join("a:1"), join("b:1"));
    let shard = a.take(ID).unwrap().unwrap();
    shard.append(b"one").unwrap();
    shard.commit().unwrap();
    let seen = b.look().unwrap();
    assert!(seen.file_systems.contains(&ID) && !b.may_take(&seen, &ID) && !b.is_ours(&seen, &ID));
    assert_eq!(seen.active[&ID].0, "a:1");
    a.want(ID, Some("b:1")).unwrap();
    a.give_up(ID, shard.epoch()).unwrap();
    assert!(!a.may_take(&a.look().unwrap(), &ID) && b.may_take(&b.look().unwrap(), &ID));
    b.leave();
    assert!(a.may_take(&a.look().unwrap(), &ID), "that one is gone");
}

/// The checkpoint of an order, the number of records after it, and the files.
type Contents = (Option<Vec<u8>>, usize, Vec<Option<Vec<u8>>>);

/// The contents that are read from an order.
fn read(order: &dyn Order, names: &[&str]) -> Contents {
    let (checkpoint, records) = order.recover().unwrap();
    let contents = |name: &&str| {
        let file = order.files().open(name).ok()?;
        let mut bytes = vec![0; file.len().unwrap() as usize];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        Some(bytes)
    };
    (checkpoint, records.len(), names.iter().map(contents).collect())
}

/// Proves: a whole order is copied, into etcd and into another log, even over a network that repeats requests
/// and loses replies. Copied again, after the order has grown, the copy is what the order is then. A server
/// that was replaced copies nothing. An order with records after its checkpoint is not copied, because the
/// copy would be valid before all of it is there.
#[test]
fn an_order_is_copied_whole() {
    let (tree, past) = (format!("tree-{ID}"), format!("history-{ID}"));
    let (partial, other) = (format!("history-{ID}.new"), format!("tree-{}", Digest([8; 32])));
    let names = [tree.as_str(), past.as_str(), partial.as_str(), other.as_str()];
    let from = Disk(PowerLoss::new(1)).open();
    let put = |name: &str, bytes: &[u8]| {
        let file = from.files().create(name).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync(SITE).unwrap();
    };
    let copy = |to: &dyn Order| crate::convert::copy_order(&*from, to, ID);
    assert!(copy(&*Servers::new().open()).is_err());
    let large: Vec<u8> = (0..2_500_000u32).map(|at| (at / 7) as u8).collect();
    from.checkpoint(&large).unwrap();
    from.commit().unwrap();
    names.iter().for_each(|name| put(name, &large));
    put("unrelated", b"");

    let mut servers = Servers::new();
    let mut turn = 0;
    let (_cluster, shard) = servers.take(move || {
        turn += 1;
        match turn % 5 {
            1 => Delivery::AnswerLost,
            3 => Delivery::Repeated,
            _ => Delivery::Answered,
        }
    });
    let media: [Arc<dyn Order>; 2] = [Arc::new(shard), Disk(PowerLoss::new(2)).open()];
    for to in &media {
        copy(&**to).unwrap();
        let whole = Some(large.clone());
        assert_eq!(read(&**to, &names), (whole.clone(), 0, vec![whole.clone(), whole, None, None]));
    }
    from.append(b"record").unwrap();
    from.commit().unwrap();
    assert!(copy(&*media[0]).is_err());
    from.checkpoint(b"later").unwrap();
    from.commit().unwrap();
    from.files().open(&tree).unwrap().write_at(large.len() as u64, b"node").unwrap();
    for to in &media {
        copy(&**to).unwrap();
        let (checkpoint, records, files) = read(&**to, &names);
        assert_eq!((checkpoint, records), (Some(b"later".to_vec()), 0));
        assert_eq!(files[0].as_ref().unwrap()[large.len()..], *b"node");
    }
    let (_cluster, next) = servers.take(|| Delivery::Answered);
    assert!(copy(&*media[0]).is_err());
    assert_eq!(next.recover().unwrap().0, Some(b"later".to_vec()));
}
