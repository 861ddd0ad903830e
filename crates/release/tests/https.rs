//! Mirrors over HTTPS: a mirror is used only if an authority of this machine signed its certificate.
//!
//! The host's certificate in `fixtures` is for `localhost` and `127.0.0.1`, signed by `authority.pem`; both last until
//! 2126 (`openssl req -x509`, `openssl x509 -req`).

use holdfast_release::mirror::parse;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const URL: &str = "HOLDFAST_TEST_URL";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Answers each request with a record, until the test ends.
fn serve(host: &str) -> SocketAddr {
    let certificate = CertificateDer::from_pem_file(fixture("host.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(fixture("host.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a configuration");
    let config = Arc::new(config);
    let listener = TcpListener::bind((host, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream.expect("accepted"));
            let mut request = [0; 2048];
            // Clients that refuse the certificate close the connection.
            while stream.read(&mut request).is_ok_and(|read| read > 0) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nthe record");
            }
        }
    });
    address
}

/// What a process answers that asks a mirror, with the authorities of a file.
fn said_of(url: &str, authorities: &Path) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "https::authorities", "--nocapture"])
        .env(URL, url)
        .env("SSL_CERT_FILE", authorities)
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Started by itself as a child process, asks a mirror and prints the answer. Otherwise starts that child, with the
/// right authority and with others.
#[test]
fn authorities() {
    if let Ok(url) = std::env::var(URL) {
        let mirror = parse(&url).expect("a mirror");
        // Twice, the second time over the same connection.
        for _ in 0..2 {
            match mirror.get("root", None, 100) {
                Ok(bytes) => println!("given: {}", String::from_utf8_lossy(&bytes)),
                Err(error) => println!("refused: {error}"),
            }
        }
        return;
    }
    let port = serve("127.0.0.1").port();
    let none = tempfile::NamedTempFile::new().expect("a file");
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{port}/");
        let said = said_of(&url, &fixture("authority.pem"));
        assert_eq!(said.matches("given: the record").count(), 2, "{said}");
        for others in [none.path(), &fixture("host.pem")] {
            let said = said_of(&url, others);
            let refused = format!("refused: {url} cannot be reached: ");
            assert_eq!(said.matches(&refused).count(), 2, "{said}");
            assert!(!said.contains("given") && said.to_lowercase().contains("certificate"), "{said}");
        }
    }
    // Another name of the same host, which the certificate does not have.
    let said = said_of(&format!("https://{}/", serve("127.0.0.2")), &fixture("authority.pem"));
    assert!(said.contains("refused") && said.contains("certificate") && !said.contains("given"), "{said}");
    // A server that speaks plain HTTP.
    let plain = parse(&format!("http://127.0.0.1:{port}/")).expect("a mirror");
    plain.get("root", None, 100).expect_err("not HTTP");
}
