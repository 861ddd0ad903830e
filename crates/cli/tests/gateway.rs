//! `holdfast gateway` as programs meet it: what it answers, and what it refuses. What people see is tested in a browser
//! (`web/verify/test/browser`).

use crate::common;

use common::publisher::Publisher;
use common::{PATIENCE, ended, eventually, eventually_some, exits_saying, text};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

/// A publisher whose tree has a text, a page that would run a script, and a name of all that could go wrong in a header.
fn publisher() -> Publisher {
    let publisher = Publisher::new();
    publisher.write("text", "some text\n");
    publisher.write("inner/page.html", "<script>alert(1)</script>");
    let odd = publisher.path("tree").join(std::ffi::OsStr::from_bytes(b"<i>\"\xff\r\nx: y"));
    fs::write(odd, [0, 1, 2, 3]).expect("written");
    publisher
}

/// Publishes the tree, and returns the release's id.
fn publish(publisher: &Publisher, extra: &[&str]) -> String {
    publisher.publish(extra);
    publisher.id()
}

/// Starts a gateway, and returns its address.
fn start_gateway(publisher: &mut Publisher, arguments: &[&str]) -> String {
    let mut command = publisher.holdfast();
    command.arg("gateway").args(arguments).args(["--listen", "127.0.0.1:0"]);
    let mut gateway = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(gateway.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    publisher.servers.push(gateway);
    line.trim().rsplit_once("http://").expect("an address").1.trim_end_matches('/').to_owned()
}

/// Head and body of the answer to a request with these additional lines.
fn ask(address: &str, line: &str, more: &str) -> (String, Vec<u8>) {
    try_ask(address, line, more).expect("an answer")
}

/// Asks as [`ask`] does; an error if the gateway closes the connection without an answer.
fn try_ask(address: &str, line: &str, more: &str) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let host = if more.to_ascii_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
    stream.write_all(format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{more}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    Ok((String::from_utf8(answer[..end].to_vec()).expect("text"), answer[end + 4..].to_vec()))
}

fn status(address: &str, line: &str, more: &str) -> u16 {
    ask(address, line, more).0[9..12].parse().expect("a status")
}

/// Whether an answer has the headers that every answer with content of the tree must have.
fn is_guarded(head: &str) -> bool {
    ["x-content-type-options: nosniff", "cross-origin-resource-policy: same-origin", "default-src 'none'"]
        .iter()
        .all(|line| head.contains(line))
        && !head.to_ascii_lowercase().contains("access-control")
}

/// Bytes of files: whole, in part, with an entity tag, with a harmless type and name; of a release and of a directory
/// alike.
#[test]
fn bytes() {
    let mut publisher = publisher();
    let id = publish(&publisher, &[]);
    for arguments in [vec!["release", "--id", &id], vec!["tree"]] {
        let at = start_gateway(&mut publisher, &arguments);
        let (head, body) = ask(&at, "GET /raw/text", "");
        assert_eq!(body, b"some text\n");
        assert!(
            is_guarded(&head) && head.contains("sandbox") && head.contains("content-type: text/plain"),
            "{head}"
        );
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").to_owned();
        assert_eq!(status(&at, "GET /raw/text", &format!("If-None-Match: {tag}\r\n")), 304);
        let (head, body) = ask(&at, "GET /raw/text", "Range: bytes=5-100\r\n");
        assert!(head.starts_with("HTTP/1.1 206") && head.contains("content-range: bytes 5-9/10"), "{head}");
        assert_eq!(body, b"text\n");
        let old = "Range: bytes=5-6\r\nIf-Range: \"another\"\r\n";
        assert_eq!(ask(&at, "GET /raw/text", old).1, b"some text\n");
        assert_eq!(status(&at, "GET /raw/text", "Range: bytes=10-\r\n"), 416);
        let (head, body) = ask(&at, "HEAD /raw/text", "");
        assert!(head.contains("content-length: 10") && body.is_empty(), "{head}");
        let (head, body) = ask(&at, "GET /raw/inner/page.html", "");
        assert!(head.contains("content-type: text/plain") && body.starts_with(b"<script>"), "{head}");
        // A file whose name has everything that could go wrong in a header.
        let (head, body) = ask(&at, "GET /raw/%3Ci%3E%22%FF%0D%0Ax%3A%20y", "");
        assert_eq!(body, [0, 1, 2, 3]);
        assert!(head.contains("content-disposition: attachment; filename=\"<i>____x: y\""), "{head}");
        assert!(!head.lines().any(|line| line.starts_with("x:")), "{head}");
        let (head, body) = ask(&at, "GET /at/", "");
        let body = String::from_utf8(body).expect("UTF-8");
        assert!(is_guarded(&head) && body.contains("&lt;i&gt;&quot;\\xff\\x0d\\x0ax: y"), "{body}");
        assert!(!body.contains("<i>") && !body.contains("<script"), "{body}");
    }
}

/// Requests that are malformed, for nothing that exists, or for another host are refused.
#[test]
fn refusals() {
    let mut publisher = publisher();
    let at = start_gateway(&mut publisher, &["tree", "--host", "files.example"]);
    for (line, more, expected) in [
        ("GET /", "", 303),
        ("GET /at/", "Host: 127.0.0.1:8017\r\n", 200),
        ("GET /at/", "Host: [::1]:8017\r\n", 200),
        ("GET /at/", "Host: FILES.example:80\r\n", 200),
        ("GET /at/", "Host: evil.example\r\n", 421),
        ("GET /raw/text", "Host: evil.example\r\n", 421),
        ("GET /verify/", "Host: evil.example\r\n", 421),
        ("GET /at/", "Host:\r\n", 421),
        ("POST /at/", "Content-Length: 0\r\n", 405),
        ("GET /at/../../etc/passwd", "", 404),
        ("GET /at/%2e%2e/%2e%2e/etc/passwd", "", 404),
        ("GET /raw/inner%2Fpage.html", "", 404),
        ("GET /raw/text%00", "", 404),
        ("GET /raw//etc/passwd", "", 404),
        ("GET /attic", "", 404),
        ("GET /raw/inner", "", 303),
        ("GET /at/gone", "", 404),
        ("GET /changes", "", 404),
        ("GET /verify/", "", 200),
        ("GET /style.css", "", 200),
    ] {
        assert_eq!(status(&at, line, more), expected, "{line} {more}");
    }
    let (head, _) = ask(&at, "GET /at/?find=%0D%0Ax%3A+y&how=exact", "");
    assert!(head.contains("location: /at/%0D%0Ax%3A%20y"), "{head}");
    // A head that is too long is refused before it has arrived whole, so sending it may fail, and the answer be lost.
    let mut stream = TcpStream::connect(&at).expect("connected");
    let _ = stream.write_all(format!("GET /at/{} HTTP/1.1\r\n", "a".repeat(20_000)).as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(status(&at, "GET /at/", ""), 200, "it goes on");
}

/// Connections that send no request are closed, others are served meanwhile, and the gateway ends in order at a signal.
#[test]
fn bounds() {
    let mut publisher = publisher();
    let at = start_gateway(&mut publisher, &["tree", "--idle", "1", "--connections-max", "8"]);
    let mut idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&at).expect("connected")).collect();
    for stream in &mut idle {
        stream.write_all(b"GET /at/ HTTP/1.1\r\nHost: loc").expect("sent");
    }
    // On a slow machine this connection may be closed too.
    let (head, _) = eventually_some("others are served", || try_ask(&at, "GET /at/", "").ok());
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for stream in &mut idle {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let end = stream.read_to_end(&mut Vec::new());
        let is_over = end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
        assert!(is_over, "{end:?}");
    }
    let gateway = publisher.servers.last_mut().expect("it runs");
    let pid = rustix::process::Pid::from_child(gateway);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
    assert!(gateway.wait().expect("ended").success());
}

/// A running gateway follows the release: what has expired is shown no more, and what is published is.
#[test]
fn what_counts() {
    let mut publisher = publisher();
    let id = publish(&publisher, &["--note", "First"]);
    let at = start_gateway(&mut publisher, &["release", "--id", &id, "--refresh", "1"]);
    let page = || String::from_utf8(ask(&at, "GET /at/", "").1).expect("UTF-8");
    assert!(page().contains("First"), "{}", page());
    // No file has been read yet.
    assert!(page().contains("verifies every byte of a file before it sends it"), "{}", page());
    assert!(!page().contains("every byte were verified"), "{}", page());
    // A busy gateway may look only when this release has expired.
    eventually("the one that expires is shown", || {
        publish(&publisher, &["--note", "Brief", "--expires", "2s"]);
        std::thread::sleep(std::time::Duration::from_millis(1_200));
        page().contains("Brief")
    });
    eventually("it expires", || status(&at, "GET /raw/text", "") == 503);
    let expired = page();
    assert!(expired.contains("the release expired at") && expired.contains("banner bad"), "{expired}");
    assert!(!expired.contains("banner good") && !expired.contains("/at/text"), "{expired}");
    fs::write(publisher.path("tree/text"), "other text\n").expect("written");
    publish(&publisher, &["--note", "Second"]);
    eventually("the next one is shown", || ask(&at, "GET /raw/text", "").1 == b"other text\n");
    assert!(page().contains("Second"));
    let changes = String::from_utf8(ask(&at, "GET /changes", "").1).expect("UTF-8");
    assert!(changes.contains("1 change.") && changes.contains(">text</a>"), "{changes}");
}

/// Each reason why nothing can be shown has an exit code and says the way out.
#[test]
fn what_cannot_be_shown() {
    let publisher = publisher();
    let id = publish(&publisher, &[]);
    let fails = |code: i32, arguments: &[&str], word: &str| {
        exits_saying(publisher.holdfast().arg("gateway").args(arguments), code, &[word]);
    };
    fails(64, &["release"], "--id");
    fails(64, &["gone"], "gone");
    fails(64, &["tree", "--listen", "nowhere"], "nowhere");
    fs::remove_file(publisher.path("release/root")).expect("removed");
    let output = ended(publisher.holdfast().args(["gateway", "release", "--id", &id]));
    assert!(
        output.status.code().is_some_and(|code| code != 0) && text(&output).contains("root"),
        "{output:?}"
    );
}
