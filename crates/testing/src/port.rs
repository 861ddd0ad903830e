//! Ports that no other test uses.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Below the range from which the kernel takes ports for outgoing connections (from 32768 on), so that none of those
/// gets one.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A port of this machine that is free, and that no other test is given until this process ends.
///
/// Each port has a file, locked by the process that was given it. A server may so be
/// stopped and started again on its port, which a port that the kernel chooses does not allow.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<(u16, File)>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = std::path::Path::new("/tmp/holdfast-test-ports");
    std::fs::create_dir_all(folder).expect("a folder for ports");
    let span = PORTS.end - PORTS.start;
    let first = std::process::id().wrapping_mul(7919) as u16 % span;
    for n in 0..span {
        let port = PORTS.start + (first + n) % span;
        if taken.iter().any(|(other, _)| *other == port) {
            continue;
        }
        let file = File::create(folder.join(port.to_string())).expect("a file for a port");
        let is_ours = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_ours && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.push((port, file));
            return port;
        }
    }
    panic!("all ports are taken");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a port is given to one caller only, even while nobody listens on it.
    #[test]
    fn a_port_is_given_once() {
        let ports: std::collections::BTreeSet<u16> = (0..20).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 20);
        let file = File::create(
            std::env::temp_dir().join(format!("holdfast-test-ports/{}", ports.first().unwrap())),
        );
        let other = file.expect("a file");
        assert!(
            flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(),
            "another process is not given it"
        );
    }
}
