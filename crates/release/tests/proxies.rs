//! Mirrors behind the proxies that the environment names.

use holdfast_release::mirror::parse;
use holdfast_sim::mirror::{HostileMirror, Misdeed};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const URL: &str = "HOLDFAST_TEST_URL";

/// A proxy, and the number of connections it has made.
struct Proxy {
    address: SocketAddr,
    made: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy; `greet` learns from the client where to connect to.
    fn start(greet: fn(&mut TcpStream) -> io::Result<SocketAddr>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let made = Arc::new(AtomicU64::new(0));
        let counted = made.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut client = stream.expect("accepted");
                let counted = counted.clone();
                std::thread::spawn(move || -> io::Result<()> {
                    let mut server = TcpStream::connect(greet(&mut client)?)?;
                    counted.fetch_add(1, SeqCst);
                    let (mut back_from, mut back_to) = (server.try_clone()?, client.try_clone()?);
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut back_from, &mut back_to);
                        let _ = back_to.shutdown(Shutdown::Both);
                    });
                    io::copy(&mut client, &mut server)?;
                    server.shutdown(Shutdown::Both)
                });
            }
        });
        Proxy { address, made }
    }
}

fn connect(client: &mut TcpStream) -> io::Result<SocketAddr> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    target.parse().map_err(io::Error::other)
}

fn socks(client: &mut TcpStream) -> io::Result<SocketAddr> {
    let mut methods = [0; 2];
    client.read_exact(&mut methods)?;
    client.read_exact(&mut vec![0; methods[1].into()])?;
    client.write_all(&[5, 0])?;
    let mut request = [0; 10];
    client.read_exact(&mut request)?;
    assert_eq!(request[..4], [5, 1, 0, 1], "to an IPv4 address");
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    let [_, _, _, _, a, b, c, d, high, low] = request;
    Ok(SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low]))))
}

fn said_of(url: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "proxies::proxies", "--nocapture"]).env(URL, url);
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = command.envs(environment.iter().copied()).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Started by itself as a child process, asks a mirror and prints the answer. Otherwise starts that child, with one
/// proxy after the other in its environment.
#[test]
fn proxies() {
    if let Ok(url) = std::env::var(URL) {
        match parse(&url).expect("a mirror").get("root", None, 100) {
            Ok(bytes) => println!("given: {}", String::from_utf8_lossy(&bytes)),
            Err(error) => println!("refused: {error}"),
        }
        return;
    }
    let files = BTreeMap::from([("root".to_owned(), b"the record".to_vec())]);
    let mirror = HostileMirror::start(files, Misdeed::Honest);
    for (scheme, greet) in [("http", connect as fn(&mut _) -> _), ("socks5", socks)] {
        let proxy = Proxy::start(greet);
        let proxy_url = format!("{scheme}://{}", proxy.address);
        let said = said_of(&mirror.url(), &[("ALL_PROXY", &proxy_url)]);
        assert!(said.contains("given: the record"), "{scheme}: {said}");
        assert_eq!(proxy.made.load(SeqCst), 1, "{scheme}");
        let said = said_of(&mirror.url(), &[("ALL_PROXY", &proxy_url), ("NO_PROXY", "127.0.0.1")]);
        assert!(said.contains("given: the record"), "{scheme}: {said}");
        assert_eq!(proxy.made.load(SeqCst), 1, "{scheme}: past it");
    }
    let nobody = format!("127.0.0.1:{}", holdfast_testing::free_port());
    for scheme in ["http", "https", "socks5"] {
        let said = said_of(&mirror.url(), &[("ALL_PROXY", &format!("{scheme}://{nobody}"))]);
        assert!(said.contains("refused") && said.contains("cannot be reached"), "{scheme}: {said}");
    }
}
