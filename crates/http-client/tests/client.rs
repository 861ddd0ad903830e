//! The common behaviour of all HTTP clients, against servers on sockets.

use holdfast_http_client::{Authorities, client};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use ureq::Agent;

/// Answers the request of each connection with `answer`. Returns what the first client sent.
fn serve(answer: &'static str) -> (SocketAddr, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let asked = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = vec![0; 4096];
        let read = stream.read(&mut head).unwrap_or(0);
        let _ = stream.write_all(answer.as_bytes());
        String::from_utf8_lossy(&head[..read]).into_owned()
    });
    (address, asked)
}

fn agent(authorities: Authorities) -> Agent {
    client(authorities, None).proxy(None).build().into()
}

/// Proves: a refusal is a reply, with its text; and the request names the client.
#[test]
fn a_status_is_an_answer() {
    let (address, asked) = serve("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno");
    let mut answer = agent(Authorities::None).get(format!("http://{address}/a")).call().expect("an answer");
    assert_eq!(answer.status(), 403);
    assert_eq!(answer.body_mut().read_to_string().expect("text"), "no");
    assert!(asked.join().expect("it was asked").contains("user-agent: holdfast/"));
}

/// Proves: no redirection is followed.
#[test]
fn redirections_are_not_followed() {
    let (address, _asked) =
        serve("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
    let answer = agent(Authorities::None).get(format!("http://{address}/a")).call().expect("an answer");
    assert_eq!(answer.status(), 302);
}

/// Proves: a server without TLS, or with a certificate of an unknown authority, cannot be reached by https.
#[test]
fn https_needs_tls() {
    for authorities in [Authorities::None, Authorities::Given(Vec::new()), Authorities::System] {
        let (address, _asked) = serve("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        assert!(agent(authorities).get(format!("https://{address}/a")).call().is_err());
    }
}

/// Proves: authorities are read where a URL needs them.
#[test]
fn authorities_of_urls() {
    assert!(matches!(Authorities::of_url("https://host/"), Authorities::System));
    let is_proxied = ureq::Proxy::try_from_env().is_some();
    assert!(is_proxied || matches!(Authorities::of_url("http://host/"), Authorities::None));
}
