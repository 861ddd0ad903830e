//! Clients that nobody would want: bytes that are no protocol, sizes that are too large, and such as stop half-way.

use crate::common;

use common::{InMemory, export, patient, serve};
use holdfast_export::{Address, Limits, Server, StartError};
use holdfast_testing::{PATIENCE, eventually};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SIZE: usize = 1 << 20;
const OPTION: &[u8] = b"IHAVEOPT";

fn serve_with(home: &Path, limits: Limits) -> Server {
    Server::start(&Address::Unix(home.join("nbd")), export(InMemory::new(SIZE)), limits).expect("started")
}

/// A client that says just what it is told to.
struct Client(UnixStream);

impl Client {
    fn connect(home: &Path) -> Client {
        let stream = UnixStream::connect(home.join("nbd")).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        Client(stream)
    }

    /// One that is ready to send requests, and gets simple or structured replies.
    fn ready(home: &Path, is_structured: bool) -> Client {
        let mut client = Client::connect(home);
        assert_eq!(client.take(18)[..16], *b"NBDMAGICIHAVEOPT");
        client.say(&3u32.to_be_bytes());
        if is_structured {
            client.say(&option(8, &[]));
            assert_eq!(client.reply(), (1, vec![]));
        }
        client.say(&option(7, &[0; 6]));
        while client.reply().0 != 1 {}
        client
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("received");
        bytes
    }

    /// Kind and data of the reply to an option.
    fn reply(&mut self) -> (u32, Vec<u8>) {
        let header = self.take(20);
        assert_eq!(header[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        (number(12), self.take(number(16) as usize))
    }

    /// The error of a simple reply to `cookie`.
    fn simple(&mut self, cookie: u64) -> u32 {
        let header = self.take(16);
        assert_eq!(header[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(header[8..], cookie.to_be_bytes());
        u32::from_be_bytes(header[4..8].try_into().expect("4 bytes"))
    }

    /// The server hangs up, whatever it still had to say.
    fn sees_the_end(mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [OPTION, &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// Proves: what is out of range, unaligned, too long, unknown or not allowed is refused with the right number, and the
/// connection goes on.
#[test]
fn bad_requests_are_refused_one_by_one() {
    let home = tempfile::tempdir().expect("a directory");
    let disk = InMemory::new(SIZE);
    let _server = serve(home.path(), disk.clone());
    let before = disk.bytes.lock().expect("unbroken").clone();
    let size = SIZE as u64;
    let (read, write, flush, trim, cache, zero, status) = (0, 1, 3, 4, 5, 6, 7);
    let table = [
        (read, 0, size, 512, 22),
        (read, 0, size - 512, 1024, 22),
        (read, 0, u64::MAX - 511, 512, 22),
        (read, 0, 1, 512, 22),
        (read, 0, 0, 511, 22),
        (read, 4, 0, 512, 22),
        (read, 0, 0, u32::MAX - 511, 22),
        (write, 0, size, 512, 28),
        (write, 0, u64::MAX - 511, 512, 28),
        (write, 0, 7, 512, 22),
        (write, 0x8000, 0, 512, 22),
        (flush, 2, 0, 0, 22),
        (trim, 0, size, 512, 28),
        (trim, 0, 0, u32::MAX, 28),
        (zero, 16, 0, 512, 22),
        (zero, 0, 512, u32::MAX - 511, 28),
        (zero, 0, 3, 512, 22),
        (cache, 0, 0, 512, 22),
        (status, 0, 0, 512, 22),
        (77, 0, 0, 0, 22),
    ];
    let mut client = Client::ready(home.path(), false);
    for (cookie, (kind, flags, offset, length, errno)) in table.into_iter().enumerate() {
        client.say(&request(kind, flags, cookie as u64, offset, length));
        if kind == write {
            client.say(&vec![9; length as usize]);
        }
        assert_eq!(client.simple(cookie as u64), errno, "{kind} {flags} {offset} {length}");
    }
    client.say(&request(flush, 0, 99, 0, 0));
    assert_eq!(client.simple(99), 0);
    assert!(*disk.bytes.lock().expect("unbroken") == before, "nothing was changed");
    client.say(&request(2, 0, 0, 0, 0));
    assert!(client.sees_the_end());
}

/// Proves: a write with FUA has been flushed when it is answered, as a flush and FUA of the others.
#[test]
fn durable_means_flushed() {
    let home = tempfile::tempdir().expect("a directory");
    let disk = InMemory::new(SIZE);
    let _server = serve(home.path(), disk.clone());
    let mut client = Client::ready(home.path(), false);
    let mut flushed = 0;
    for (kind, flags, more) in [(1, 0, 0), (1, 1, 1), (4, 1, 1), (6, 1, 1), (6, 2, 0), (3, 0, 1), (3, 1, 1)] {
        client.say(&request(kind, flags, 5, 0, if kind == 3 { 0 } else { 512 }));
        if kind == 1 {
            client.say(&[9; 512]);
        }
        assert_eq!(client.simple(5), 0);
        flushed += more;
        assert_eq!(disk.flushes.load(Ordering::SeqCst), flushed, "{kind} {flags}");
    }
}

/// Proves: options that make no sense are answered, or hung up on where they leave no way on, and cost nothing.
#[test]
fn bad_options() {
    let home = tempfile::tempdir().expect("a directory");
    let _server = serve(home.path(), InMemory::new(SIZE));
    let begin = || {
        let mut client = Client::connect(home.path());
        client.take(18);
        client.say(&3u32.to_be_bytes());
        client
    };
    let error = |number: u32| (1 << 31) | number;
    let mut client = begin();
    let unknown = [&5u32.to_be_bytes()[..], b"other", &[0, 0]].concat();
    for (number, data, answer) in [
        (5, &[][..], error(1)),
        (9, &[0; 8], error(1)),
        (4_000_000_000, &[], error(1)),
        (3, &[1], error(3)),
        (8, &[1], error(3)),
        (6, &[], error(3)),
        (7, &[0, 0, 0], error(3)),
        (7, &[255; 12], error(3)),
        (7, &[0, 0, 0, 0, 0, 1], error(3)),
        (7, &[0, 0, 0, 0, 0, 0, 0], error(3)),
        (7, &unknown, error(6)),
        (6, &unknown, error(6)),
    ] {
        client.say(&option(number, data));
        assert_eq!(client.reply().0, answer, "{number} {data:?}");
    }
    client.say(&option(2, &[]));
    assert_eq!(client.reply().0, 1);
    assert!(client.sees_the_end());

    let mut client = begin();
    client.say(&option(1, b"other"));
    assert!(client.sees_the_end(), "an unknown export");
    let mut client = begin();
    client.say(&[OPTION, &7u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat());
    assert!(client.sees_the_end(), "an option of 4 GiB");
    let mut client = begin();
    for _ in 0..64 {
        client.say(&option(77, &[]));
    }
    assert!(client.sees_the_end(), "no end of options");
    let mut client = Client::connect(home.path());
    client.say(&u32::MAX.to_be_bytes());
    assert!(client.sees_the_end(), "flags that are not known");
    let mut client = Client::ready(home.path(), true);
    client.say(&request(1, 0, 0, 0, u32::MAX));
    assert!(client.sees_the_end(), "a write of 4 GiB");
    let mut client = Client::ready(home.path(), true);
    client.say(&[0; 28]);
    assert!(client.sees_the_end(), "no request");

    let mut client = begin();
    client.say(&option(1, b"a volume"));
    let told = client.take(10);
    assert_eq!(told[..8], (SIZE as u64).to_be_bytes(), "the oldest way to begin");
    client.say(&request(0, 0, 3, 512, 512));
    assert_eq!((client.simple(3), client.take(512)), (0, vec![1; 512]));
}

/// Proves: clients beyond the limit are hung up on, and who leaves makes room; only the owner may connect.
#[test]
fn clients_are_counted() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let server = serve_with(home, Limits { connections_max: 2, ..patient() });
    let mode = std::fs::metadata(home.join("nbd")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may connect");
    let first = Client::ready(home, true);
    let second = Client::connect(home);
    assert!(Client::connect(home).sees_the_end(), "one too many");
    drop(second);
    eventually("who leaves makes room", || server.connections() == 1);
    let second = Client::ready(home, true);
    drop(server);
    assert!(first.sees_the_end() && second.sees_the_end());
    assert!(!home.join("nbd").exists());
}

/// Proves: a client that does not say what it wants is hung up on.
#[test]
fn who_never_says_what_it_wants() {
    let home = tempfile::tempdir().expect("a directory");
    let server = serve_with(home.path(), Limits { handshake: Duration::from_millis(50), ..patient() });
    assert!(Client::connect(home.path()).sees_the_end());
    eventually("it leaves nothing behind", || server.connections() == 0);
}

/// Proves: clients that stop within a request, or do not take their replies, are hung up on; one that is idle is not.
#[test]
fn idle_is_not_stuck() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let server = serve_with(home, Limits { patience: Duration::from_millis(100), ..patient() });
    let mut idle = Client::ready(home, true);
    let mut stuck = Client::ready(home, true);
    stuck.say(&[request(1, 0, 0, 0, 512), vec![1; 511]].concat());
    assert!(stuck.sees_the_end(), "it stopped within a write");
    idle.say(&request(3, 0, 8, 0, 0));
    assert_eq!(idle.take(20)[8..16], 8u64.to_be_bytes(), "idle is not stuck");
    eventually("the one that was stuck is gone", || server.connections() == 1);
    // It never takes its replies.
    let mut deaf = Client::ready(home, true);
    for cookie in 0..20 {
        if deaf.0.write_all(&request(0, 0, cookie, 0, SIZE as u32)).is_err() {
            break;
        }
    }
    eventually("the deaf one is gone", || server.connections() == 1);
}

/// Proves: a socket of a dead process is replaced, that of a living one and what is no socket are not; and addresses
/// that other machines could reach are refused.
#[test]
fn addresses_are_taken_with_care() {
    let home = tempfile::tempdir().expect("a directory");
    let start = |address: &Address| {
        Server::start(address, export(InMemory::new(SIZE)), Limits::default()).map(|_| ())
    };
    let address = Address::Unix(home.path().join("nbd"));
    drop(std::os::unix::net::UnixListener::bind(home.path().join("nbd")).expect("bound"));
    let server = serve(home.path(), InMemory::new(SIZE));
    let refused = start(&address).expect_err("in use");
    assert!(refused.to_string().contains("another program listens there"), "{refused}");
    drop(server);
    std::fs::write(home.path().join("nbd"), "precious").expect("written");
    assert!(matches!(start(&address), Err(StartError::Listen { .. })));
    assert_eq!(std::fs::read(home.path().join("nbd")).expect("there"), b"precious");
    for far in ["0.0.0.0:0", "[::]:0"] {
        assert!(matches!(start(&far.parse().expect("an address")), Err(StartError::NotLocal(_))));
    }
    let near = ":0".parse().expect("an address");
    let server = Server::start(&near, export(InMemory::new(SIZE)), Limits::default()).expect("started");
    assert_ne!(*server.address(), near, "the system chose a port");
}

#[derive(Clone, Debug)]
enum Step {
    Bytes(Vec<u8>),
    Option(u32, Vec<u8>),
    Request { kind: u16, flags: u16, offset: u64, length: u32, data: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let offset = prop_oneof![(0..SIZE as u64 / 512).prop_map(|sector| sector * 512), any::<u64>()];
    let length = prop_oneof![(0..64u32).prop_map(|sectors| sectors * 512), any::<u32>()];
    let request = (0..9u16, 0..3u16, offset, length, 0..70_000usize);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Step::Bytes),
        (0..12u32, prop::collection::vec(any::<u8>(), 0..32))
            .prop_map(|(number, data)| Step::Option(number, data)),
        Just(Step::Option(7, vec![0; 6])),
        request.prop_map(|(kind, flags, offset, length, data)| Step::Request {
            kind,
            flags,
            offset,
            length,
            data
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves: whatever a client says, in whatever order, the server outlives it and serves the next one.
    #[test]
    fn whatever_is_said(is_greeted in any::<bool>(), steps in prop::collection::vec(step(), 0..20)) {
        let home = tempfile::tempdir().expect("a directory");
        let server = serve(home.path(), InMemory::new(SIZE));
        let mut bad = Client::connect(home.path());
        if is_greeted {
            bad = Client::ready(home.path(), true);
        } else {
            bad.say(&3u32.to_be_bytes());
        }
        for step in steps {
            let bytes = match step {
                Step::Bytes(bytes) => bytes,
                Step::Option(number, data) => option(number, &data),
                Step::Request { kind, flags, offset, length, data } => {
                    [request(kind, flags, 1, offset, length), vec![7; data.min(length as usize)]].concat()
                }
            };
            if bad.0.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = bad.0.shutdown(std::net::Shutdown::Write);
        prop_assert!(bad.sees_the_end());
        let mut good = Client::ready(home.path(), false);
        good.say(&request(0, 0, 4, 0, 4096));
        prop_assert_eq!((good.simple(4), good.take(4096).len()), (0, 4096));
        drop(good);
        drop(server);
    }

    /// Proves: what several clients write is what they and the disk have, with simple and structured replies.
    #[test]
    fn it_is_the_disk(operations in prop::collection::vec((0..3usize, 0..4u8, 0..2000u64, 1..60u32, any::<u8>()), 1..60)) {
        let home = tempfile::tempdir().expect("a directory");
        let disk = InMemory::new(SIZE);
        let mut model = disk.bytes.lock().expect("unbroken").clone();
        let server = serve(home.path(), disk.clone());
        let mut clients = [false, true, true].map(|is_structured| (Client::ready(home.path(), is_structured), is_structured));
        for (who, kind, sector, sectors, fill) in operations {
            let (client, is_structured) = &mut clients[who];
            let range = (sector * 512) as usize..((sector + u64::from(sectors)) * 512) as usize;
            if range.end > SIZE { continue; }
            let number = match kind { 0 => 0, 1 => 1, 2 => 4, _ => 6 };
            client.say(&request(number, 0, sector, sector * 512, sectors * 512));
            if number == 1 {
                client.say(&vec![fill; range.len()]);
                model[range.clone()].fill(fill);
            } else if number > 1 {
                model[range.clone()].fill(0);
            }
            let count = if number == 0 { range.len() } else { 0 };
            let got = if *is_structured {
                let header = client.take(20);
                prop_assert_eq!(&header[4..8], if number == 0 { [0, 1, 0, 1] } else { [0, 1, 0, 0] });
                if number == 0 { client.take(8); }
                client.take(count)
            } else {
                prop_assert_eq!(client.simple(sector), 0);
                client.take(count)
            };
            prop_assert!(got == model[range.start..range.start + count]);
        }
        drop(server);
        prop_assert!(*disk.bytes.lock().expect("unbroken") == model);
    }
}
