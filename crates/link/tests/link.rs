//! Real links: needs root, as all users of links do; skipped with a message otherwise.

use holdfast_link::{CLIENT_MOVED, Conditions, Link, SERVER, Side};
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("left out: making network namespaces takes root");
    }
    root
}

/// Sends so many bytes up and waits until the other side has them all.
const UPLOAD: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 7000)); s.sendall(b'x' * int(sys.argv[2])); s.shutdown(1)
while s.recv(65536): pass
";
const TAKE: &str = "
import socket
l = socket.create_server(('0.0.0.0', 7000)); print('ready', flush=True)
while True:
    s, peer = l.accept(); print(peer[0], flush=True)
    while s.recv(65536): pass
    s.close()
";

fn taker(link: &Link) -> (Child, std::process::ChildStdout) {
    let mut taker =
        link.command(Side::Server, "python3").args(["-c", TAKE]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = taker.stdout.take().unwrap();
    said.read_exact(&mut [0; 6]).unwrap();
    (taker, said)
}

fn upload(link: &Link, bytes: usize) -> Duration {
    let start = Instant::now();
    let mut command = link.command(Side::Client, "python3");
    let status = command.args(["-c", UPLOAD, SERVER, &bytes.to_string()]).status().unwrap();
    assert!(status.success());
    start.elapsed()
}

/// Proves: what a program sends takes at least the time that rate and delay demand, and is counted; a client
/// whose address was changed uses the new one; cut links pass nothing; and everything is removed afterwards.
#[test]
fn a_link_is_slow_and_then_gone() {
    if !is_root() {
        return;
    }
    let up = Conditions {
        bytes_per_second: Some(200_000),
        delay: Duration::from_millis(50),
        ..Conditions::default()
    };
    let down = Conditions { delay: Duration::from_millis(50), ..Conditions::default() };
    let link = Link::make(up, down).unwrap();
    let (mut taker, mut said) = taker(&link);
    // Slower may be the machine's fault, faster would be the link's.
    let took = upload(&link, 100_000);
    assert!(took >= Duration::from_millis(600), "{took:?}");
    let (sent, answered) = link.counts();
    assert!(sent.bytes > 100_000 && sent.bytes < 200_000 && answered.bytes < 50_000, "{sent:?} {answered:?}");

    link.move_client().unwrap();
    upload(&link, 10);
    let mut peers = vec![0; "10.77.0.2\n10.77.0.3\n".len()];
    said.read_exact(&mut peers).unwrap();
    assert!(String::from_utf8(peers).unwrap().ends_with(&format!("{CLIENT_MOVED}\n")));

    link.cut(true);
    let before = link.counts();
    let mut client =
        link.command(Side::Client, "python3").args(["-c", UPLOAD, SERVER, "10"]).spawn().unwrap();
    holdfast_testing::eventually("it tries twice", || link.counts().0.lost >= before.0.lost + 2);
    assert!(client.try_wait().unwrap().is_none(), "nobody has answered it");
    client.kill().unwrap();
    client.wait().unwrap();

    let names = || {
        let output = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
        let ours = format!("hfl{}.", std::process::id());
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.starts_with(&ours)).count()
    };
    assert_eq!(names(), 2);
    drop(link);
    assert_eq!(names(), 0);
    assert!(!taker.wait().unwrap().success(), "what ran in it is ended");
}
