//! `holdfast serve` as a command: starting, serving, ending, and its errors.

use holdfast_testing::eventually;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn serve(directory: &Path, options: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .arg("serve")
        .arg(directory)
        .args(["--listen", "127.0.0.1:0"])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// Serves a directory until SIGTERM or SIGINT, and ends with success, although a client is connected.
#[test]
fn until_a_signal() {
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join("root"), "the record").expect("written");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut child = serve(folder.path(), &["--threads", "2"]);
        let mut printed = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut printed).expect("a line");
        let address =
            printed.trim().rsplit_once("http://").expect("a URL").1.trim_end_matches('/').to_owned();
        let mut stream = TcpStream::connect(&address).expect("connected");
        stream.write_all(b"GET /root HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut answer = [0; 1000];
        let read = stream.read(&mut answer).expect("read");
        assert!(answer[..read].ends_with(b"the record"));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("told");
        eventually("it ends", || child.try_wait().expect("a child").is_some());
        assert!(child.wait().expect("ended").success());
        assert!(TcpStream::connect(&address).is_err());
    }
}

/// A directory that is no release, or an address that is not available, is an error with an exit code of its own.
#[test]
fn what_cannot_be_served() {
    let folder = tempfile::tempdir().expect("a directory");
    let failed = |directory: &Path, options: &[&str]| {
        let output = serve(directory, options).wait_with_output().expect("ended");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, printed) = failed(folder.path(), &[]);
    assert!(code == Some(66) && printed.contains("holds no release"), "{code:?} {printed}");
    let (code, printed) = failed(&folder.path().join("gone"), &[]);
    assert!(code == Some(66) && printed.contains("No such file"), "{code:?} {printed}");
    for options in [["--threads", "0"], ["--connections-max", "0"], ["--idle", "x"]] {
        assert_eq!(failed(folder.path(), &options).0, Some(64), "{options:?}");
    }
}
