//! TLS in front of a server that speaks plain TCP.

use super::certificates::certificates;
use super::free_port;
use super::process::Process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "import socket, ssl, sys, threading
port, target, certificate, key = int(sys.argv[1]), sys.argv[2].rsplit(':', 1), sys.argv[3], sys.argv[4]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
def carry(one, other):
    try:
        while True:
            data = one.recv(65536)
            if not data: break
            other.sendall(data)
    except OSError: pass
    for each in (one, other):
        try: each.shutdown(socket.SHUT_RDWR)
        except OSError: pass
def serve(client):
    try:
        client = context.wrap_socket(client, server_side=True)
        server = socket.create_connection((target[0], int(target[1])))
    except OSError: return client.close()
    threading.Thread(target=carry, args=(client, server), daemon=True).start()
    carry(server, client)
listener = socket.create_server(('127.0.0.1', port))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// A process that accepts TLS and forwards to a server.
pub struct TlsFront {
    pub port: u16,
    /// The certificate of the authority that signed the front's.
    pub authority: PathBuf,
    _process: Process,
}

impl TlsFront {
    /// Starts a front for `HOST:PORT`, with its files in a folder that is made.
    pub fn start(folder: &Path, target: &str) -> TlsFront {
        fs::create_dir(folder).expect("a folder");
        certificates(folder, &[("front", "/CN=front")]);
        let port = free_port();
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, &port.to_string(), target]);
        command.arg(folder.join("front.pem")).arg(folder.join("front.key"));
        let mut process = Process::default();
        process.start(&mut command, &folder.join("log"), port);
        TlsFront { port, authority: folder.join("ca.pem"), _process: process }
    }
}
