//! A relay between mounts and servers, for tests of operators who lead somebody elsewhere.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// Everything a byte stream needs to be led elsewhere, as a network or an operator can.
pub struct Relay {
    pub port: u16,
    target: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub fn to(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let relay = Relay {
            port: listener.local_addr().expect("an address").port(),
            target: Arc::new(AtomicU16::new(target)),
            open: Arc::default(),
        };
        let (target, open) = (relay.target.clone(), relay.open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let address = SocketAddr::from(([127, 0, 0, 1], target.load(Ordering::SeqCst)));
                let Ok(far) = TcpStream::connect(address) else { continue };
                let both = || Ok::<_, io::Error>((near.try_clone()?, far.try_clone()?));
                let (Ok((a, b)), Ok((c, d))) = (both(), both()) else { continue };
                open.lock()
                    .expect("a lock")
                    .extend(both().map(|(near, far)| [near, far]).into_iter().flatten());
                std::thread::spawn(move || carry(a, b));
                std::thread::spawn(move || carry(d, c));
            }
        });
        relay
    }

    pub fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
        for stream in self.open.lock().expect("a lock").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
