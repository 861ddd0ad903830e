//! Clients that others wrote: libnbd's and qemu's.

use crate::common;

use common::{serve, spoil, volume};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a program with the words of a line, `{}` standing for the server. (Packages qemu-utils, libnbd-bin,
/// python3-libnbd.)
fn output(home: &Path, line: &str) -> Output {
    let uri = format!("nbd+unix:///?socket={}", home.join("nbd").display());
    let mut words = line.split('|').map(|word| word.trim().replace("{}", &uri));
    let program = words.next().expect("a program");
    holdfast_testing::ended(Command::new(program).args(words).current_dir(home))
}

/// Runs it, and returns what it said.
#[track_caller]
fn run(home: &Path, line: &str) -> String {
    let output = output(home, line);
    let said = holdfast_testing::text(&output);
    assert!(output.status.success(), "{line}: {said}");
    said
}

/// Proves: libnbd sees what is offered, and copies an image in and out over several connections, whole.
#[test]
fn libnbd_looks_and_copies() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let volume = volume(home, 32 << 20, 7);
    let server = serve(home, volume.clone());
    let told = run(home, "nbdinfo | --json | {}");
    for expected in [
        "\"export-size\": 33554432",
        "\"is_read_only\": false",
        "\"can_multi_conn\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"structured\": true",
        "\"description\": \"of a test\"",
    ] {
        assert!(told.contains(expected), "{expected} in {told}");
    }
    assert!(run(home, "nbdinfo | --list | {}").contains("export=\"a volume\""));

    let mut image: Vec<u8> =
        (0..32u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    image[5 << 20..9 << 20].fill(0);
    std::fs::write(home.join("in"), &image).expect("written");
    run(home, "nbdcopy | --flush | --connections=4 | in | {}");
    run(home, "nbdcopy | --connections=4 | {} | out");
    assert!(std::fs::read(home.join("out")).expect("read") == image);
    drop(server);
    volume.close().expect("closed");
    let disk = std::fs::read(home.join("image")).expect("read");
    let is_same = |(there, written): (&u8, &u8)| there == written || *written == 0;
    assert!(disk.iter().zip(&image).all(is_same), "the layout was never changed");
}

/// Proves: qemu's block layer writes, flushes, discards, zeroes and compares on it.
#[test]
fn qemu_works_on_it() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let volume = volume(home, 32 << 20, 7);
    let server = serve(home, volume.clone());
    run(
        home,
        "qemu-io | -f | raw | -c | write -P 1 0 64k | -c | write -f -P 2 1M 3584 | -c | write -z 2M 1M | -c | discard 4M 1M | -c | flush | -c | aio_read -P 1 0 64k | -c | read -P 2 1M 3584 | -c | read -P 7 1052160 512 | -c | read -P 0 2M 1M | -c | read -P 0 4M 1M | -c | read -P 7 8M 8M | {}",
    );
    run(home, "qemu-img | convert | -f | raw | -O | raw | {} | copy");
    assert!(run(home, "qemu-img | compare | -f | raw | -F | raw | {} | copy").contains("identical"));
    drop(server);
    let mut bytes = vec![0; 32 << 20];
    volume.read(0, &mut bytes).expect("read");
    assert!(std::fs::read(home.join("copy")).expect("read") == bytes);
}

/// Proves: a block that was changed on the disk is EIO for whoever reads it, with the place, and only it; over the old
/// kind of reply too; and written anew it is good again.
#[test]
fn a_spoilt_block_is_an_error_with_its_place() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let volume = volume(home, 16 << 20, 7);
    spoil(home, (5 << 20) + 100);
    let server = serve(home, volume.clone());
    let read = output(home, "qemu-io | -f | raw | -c | read 5M 64k | {}");
    assert!(String::from_utf8_lossy(&read.stdout).contains("Input/output error"), "{read:?}");
    let structured = r#"
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
places = []
def seen(data, offset, status, error):
    if status == nbd.READ_ERROR:
        places.append((offset, error.value))
    return 0
try:
    h.pread_structured(1 << 20, (5 << 20) - 65536, seen)
    raise SystemExit("it was read")
except nbd.Error as error:
    assert error.errno == "EIO", error
assert places == [(5 << 20, 5)], places
assert h.pread(4096, (5 << 20) - 4096) == b"\x07" * 4096
h.pwrite(b"\x08" * 4096, 5 << 20)
assert h.pread(8192, 5 << 20) == b"\x08" * 4096 + b"\x07" * 4096
h.shutdown()
"#;
    let simple = r#"
import sys, nbd
h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_uri(sys.argv[1])
assert not h.get_structured_replies_negotiated()
try:
    h.pread(4096, 5 << 20)
    raise SystemExit("it was read")
except nbd.Error as error:
    assert error.errno == "EIO", error
assert h.pread(6 << 20, 6 << 20) == b"\x07" * (6 << 20)
h.shutdown()
"#;
    std::fs::write(home.join("simple.py"), simple).expect("written");
    std::fs::write(home.join("structured.py"), structured).expect("written");
    // The system's own: others do not know of its libraries.
    run(home, "/usr/bin/python3 | simple.py | {}");
    run(home, "/usr/bin/python3 | structured.py | {}");
    drop(server);
}
