//! A relay between mounts and servers, for tests in which an operator leads a client to another server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Forwards connections to a port that can be changed.
pub struct Relay {
    pub port: u16,
    route: Arc<Mutex<Route>>,
}

/// The port that connections lead to, and the connections that are open.
struct Route {
    target: u16,
    open: Vec<TcpStream>,
}

impl Relay {
    pub fn to(target: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let relay = Relay {
            port: listener.local_addr().expect("an address").port(),
            route: Arc::new(Mutex::new(Route { target, open: Vec::new() })),
        };
        let route = relay.route.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // The lock is held until the connection is in the list, so that none leads to a port that the relay has
                // left.
                let mut route = route.lock().expect("a lock");
                let address = SocketAddr::from(([127, 0, 0, 1], route.target));
                let Ok(far) = TcpStream::connect(address) else { continue };
                let both = || Ok::<_, io::Error>((near.try_clone()?, far.try_clone()?));
                let (Ok((a, b)), Ok((c, d))) = (both(), both()) else { continue };
                route.open.extend(both().map(|(near, far)| [near, far]).into_iter().flatten());
                std::thread::spawn(move || carry(a, b));
                std::thread::spawn(move || carry(d, c));
            }
        });
        relay
    }

    pub fn lead_to(&self, target: u16) {
        let mut route = self.route.lock().expect("a lock");
        route.target = target;
        for stream in route.open.drain(..) {
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
