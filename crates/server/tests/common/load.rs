//! Three devices that store and operate without pause while their server is killed, and the checks afterwards.

use super::{Author, block, committed, noise, view};
use holdfast_content::{BlockKind, DeviceId};
use holdfast_crypto::PublicKey;
use holdfast_protocol::message::{Request, Response};
use holdfast_rpc::Connection;
use holdfast_testing::{PATIENCE, eventually};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Repeats a request until there is an answer.
pub fn insist(connection: &Connection, request: &Request) -> Response {
    loop {
        match connection.call_blocking(request.clone(), PATIENCE) {
            Ok(answer) => return answer,
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes one operation as a real client does, on the fast path or else the slow one, and returns its number.
pub fn operate(connection: &Connection, author: &mut Author, server: &PublicKey) -> u64 {
    let shown = view(insist(connection, &Request::Look { log_size: 0 }));
    let request = author.fast(&shown.view);
    let answer = insist(connection, &request);
    if answer != Response::Refused {
        return committed(answer, server);
    }
    author.give_up();
    let shown = view(insist(connection, &Request::Look { log_size: 0 }));
    let (certificate, update) = author.update(&shown.view);
    let ordered = view(insist(connection, &update));
    committed(insist(connection, &author.commit(&ordered.view, &certificate)), server)
}

/// What the server has acknowledged.
pub struct Load {
    /// For each device its last operation, and the number of blocks it stored.
    devices: Vec<(u64, u32)>,
    operations: u64,
}

/// Waits until so many operations are acknowledged.
pub struct Until<'a>(&'a AtomicU64);

impl Until<'_> {
    pub fn operations(&self, count: u64) {
        eventually("so many are acknowledged", || self.0.load(Ordering::SeqCst) >= count);
    }

    pub fn more(&self, count: u64) {
        self.operations(self.0.load(Ordering::SeqCst) + count);
    }
}

/// Ends the clients' work when dropped.
struct EndOfLoad<'a>(&'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Load {
    /// Loads a server as devices 1 to 3 until `disturb` returns.
    pub fn run(
        connect: impl Fn(u8) -> Connection,
        server: PublicKey,
        disturb: impl FnOnce(&Until<'_>),
    ) -> Load {
        let (operations, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let devices = std::thread::scope(|scope| {
            let clients: Vec<_> = (1..=3u8)
                .map(|device| {
                    let connection = connect(device);
                    let (operations, stop) = (&operations, &stop);
                    scope.spawn(move || {
                        let mut author = Author::new(device.into());
                        let (mut last, mut stored) = (0, 0);
                        while !stop.load(Ordering::SeqCst) {
                            let bytes = noise(u64::from(u32::from(device) << 16 | stored), 3000);
                            let chunk = block(BlockKind::Chunk, &bytes).1;
                            assert_eq!(insist(&connection, &Request::Store(vec![chunk])), Response::Done);
                            stored += 1;
                            last = operate(&connection, &mut author, &server);
                            operations.fetch_add(1, Ordering::SeqCst);
                        }
                        (last, stored)
                    })
                })
                .collect();
            // Also if `disturb` panics, as the scope waits for the clients.
            let ends = EndOfLoad(&stop);
            disturb(&Until(&operations));
            drop(ends);
            clients.into_iter().map(|client| client.join().expect("no panic")).collect()
        });
        Load { devices, operations: operations.into_inner() }
    }

    /// Asserts that all that was acknowledged is there, and that each operation was ordered once.
    pub fn check(&self, connection: &Connection) {
        let shown = view(insist(connection, &Request::Look { log_size: 0 })).view;
        for (index, (last, stored)) in self.devices.iter().enumerate() {
            let device = DeviceId(index as u32 + 1);
            assert_eq!(shown.slots[&device].value.number(), *last);
            for number in 0..*stored {
                let (reference, chunk) =
                    block(BlockKind::Chunk, &noise(u64::from(device.0 << 16 | number), 3000));
                let answer = insist(connection, &Request::Retrieve(vec![reference.address]));
                let Response::Blocks(found) = answer else { panic!("{answer:?}") };
                assert_eq!(found[0].as_ref().map(|(_, block)| block), Some(&chunk));
            }
        }
        assert!(shown.pending.is_empty());
        assert_eq!(shown.log.size, 1 + self.operations, "each operation was ordered once");
    }
}
