//! The ring against a model: several clients whose records interleave, forced and not, over wraps, checkpoints, orderly
//! ends and crashes.

use holdfast_log::ring::{BLOCK_BYTES, ClientId, LogClient, Lsn, Recovered, Ring, RingError, RingKey};
use holdfast_log::simulated_device::{Devices, Unflushed};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

const NAME: [u8; 16] = *b"a ring of models";
const CLIENTS: u8 = 3;

#[derive(Clone, Debug)]
enum Step {
    Append {
        client: u8,
        length: usize,
    },
    /// Up to one of the last records.
    Force {
        back: usize,
    },
    /// A client does without all but its last records.
    Forget {
        client: u8,
        keep: usize,
    },
    Reopen,
    Crash {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..CLIENTS, 0usize..9000).prop_map(|(client, length)| Step::Append { client, length }),
        3 => (0usize..4).prop_map(|back| Step::Force { back }),
        2 => (0..CLIENTS, 0usize..6).prop_map(|(client, keep)| Step::Forget { client, keep }),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A record as its client knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct WrittenRecord {
    start: Lsn,
    end: Lsn,
    body: Vec<u8>,
}

/// A client: all it wrote, and from where on it needs it.
struct Client {
    id: ClientId,
    ring: OnceLock<Ring>,
    made: Mutex<VecDeque<WrittenRecord>>,
    asked: Mutex<u32>,
}

impl Client {
    fn append(&self, body: Vec<u8>, is_reserved: bool) -> Result<(), RingError> {
        let ring = self.ring.get().expect("open");
        let (head, rest) = body.split_at(body.len() / 3);
        let place = match is_reserved {
            true => ring.append_reserved(self.id, 1, &[head, rest])?,
            false => ring.append(self.id, 1, &[head, rest])?,
        };
        self.made.lock().push_back(WrittenRecord { start: place.start, end: place.end, body });
        Ok(())
    }
}

impl LogClient for Client {
    fn checkpoint(&self, wanted: Lsn) -> Result<Lsn, String> {
        *self.asked.lock() += 1;
        self.made.lock().retain(|made| made.start >= wanted);
        self.append(b"a checkpoint".to_vec(), true).map_err(|error| error.to_string())?;
        Ok(self.made.lock().front().expect("the checkpoint").start)
    }
}

fn open(devices: &Devices) -> Recovered {
    let device = devices.device(0);
    let range = 0..device.size_bytes();
    Recovered::open(device, range, RingKey::new(&[5; 32], &NAME), NAME, None).expect("opens")
}

/// The records that a client reads back, from the oldest one that it needs.
fn read(found: &Recovered, client: u8, from: Lsn) -> Vec<(Lsn, Vec<u8>)> {
    let records = found.cursor(ClientId(client)).map(|record| record.expect("readable"));
    records.filter(|record| record.start >= from).map(|record| (record.start, record.body)).collect()
}

fn begin(found: Recovered, made: Vec<VecDeque<WrittenRecord>>, salt: u8) -> (Ring, Vec<Arc<Client>>) {
    let ring = found.resume([salt; 16], 16);
    let client = |(id, made): (u8, VecDeque<WrittenRecord>)| {
        let id = ClientId(id);
        let client =
            Arc::new(Client { id, ring: OnceLock::new(), made: Mutex::new(made), asked: Mutex::default() });
        let _ = client.ring.set(ring.clone());
        ring.register(id, client.clone());
        client
    };
    let clients = (0..).zip(made).map(client).collect();
    (ring, clients)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Proves: each client reads back exactly what it wrote and still needs, whole and in order; after a
    /// crash everything that was forced, and a prefix of the rest.
    #[test]
    fn as_the_model_says(steps in steps()) {
        let mut devices = Devices::new();
        devices.add("log", 80 * BLOCK_BYTES);
        let device = devices.device(0);
        let range = 0..device.size_bytes();
        Ring::format(&*device, range, &RingKey::new(&[5; 32], &NAME), NAME).expect("formatted");
        let mut salt = 1;
        let (mut ring, mut clients) =
            begin(open(&devices), vec![VecDeque::new(); CLIENTS.into()], salt);
        let mut last: Vec<Lsn> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Append { client, length } => {
                    let body = (0..length).map(|at| (at * 7 + number) as u8).collect();
                    clients[usize::from(client)].append(body, false).expect("there is room");
                    last.push(clients[usize::from(client)].made.lock().back().expect("one").end);
                }
                Step::Force { back } => {
                    let Some(lsn) = last.iter().rev().nth(back) else { continue };
                    ring.force(*lsn).expect("forced");
                    prop_assert!(ring.stable() >= *lsn);
                }
                Step::Forget { client, keep } => {
                    let mut made = clients[usize::from(client)].made.lock();
                    let surplus = made.len().saturating_sub(keep);
                    made.drain(..surplus);
                }
                Step::Reopen | Step::Crash { .. } => {
                    let stable = match step {
                        Step::Reopen => {
                            ring.force(ring.end()).expect("forced");
                            ring.end()
                        }
                        _ => ring.stable(),
                    };
                    if let Step::Crash { seed } = step {
                        let unflushed = if seed % 3 == 0 { Unflushed::Lost } else { Unflushed::Torn(seed) };
                        devices = devices.crashed(devices.events(), unflushed);
                    }
                    let found = open(&devices);
                    let mut kept = Vec::new();
                    for (id, client) in (0..).zip(&clients) {
                        let made = client.made.lock().clone();
                        let from = made.front().map_or(ring.end(), |made| made.start);
                        let there = read(&found, id, from);
                        let expected: Vec<_> =
                            made.iter().map(|made| (made.start, made.body.clone())).collect();
                        prop_assert!(expected.starts_with(&there));
                        let forced = made.iter().filter(|made| made.end <= stable).count();
                        prop_assert!(there.len() >= forced);
                        kept.push(made.into_iter().take(there.len()).collect());
                    }
                    salt += 1;
                    last.clear();
                    (ring, clients) = begin(found, kept, salt);
                }
            }
        }
    }
}

/// Proves: the clients of the model are asked for checkpoints, and the ring wraps around, so that the model
/// tests both.
#[test]
fn the_model_comes_round() {
    let devices = Devices::new();
    devices.add("log", 80 * BLOCK_BYTES);
    let device = devices.device(0);
    let range = 0..device.size_bytes();
    Ring::format(&*device, range, &RingKey::new(&[5; 32], &NAME), NAME).expect("formatted");
    let (ring, clients) = begin(open(&devices), vec![VecDeque::new(); CLIENTS.into()], 1);
    for number in 0..300 {
        clients[number % 3].append(vec![number as u8; 4500], false).expect("there is room");
    }
    assert!(clients.iter().all(|client| *client.asked.lock() > 3));
    assert!(ring.head().0 > 80 * BLOCK_BYTES as u64);
}
