//! What hostile mirrors can achieve: nothing, if there is another mirror. A hostile mirror alone is useless, which is
//! reported in words and in time, within bounded memory.

use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_release::layout;
use holdfast_release::mirror::{
    BadContent, Directory, Http, Mirror, MirrorError, MirrorFailure, MirrorState, Mirrors, Patience,
    Unavailable, parse,
};
use holdfast_sim::mirror::{HostileMirror, Misdeed};
use holdfast_testing::{PATIENCE, eventually, eventually_some, free_port, noise};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PART: Range<u64> = 1000..50_000;
const BYTES_MAX: u64 = 1 << 20;

/// Waits for as long as it takes.
const PATIENT: Patience =
    Patience { connect: PATIENCE, answer: PATIENCE, bytes_per_s_min: 1, total: PATIENCE };

/// A short patience for misdeeds that can only end by a time-out, and a long one for all others.
fn patience(misdeed: Misdeed) -> Patience {
    match misdeed {
        Misdeed::Silent | Misdeed::DripsHead | Misdeed::DripsBody => {
            Patience { answer: Duration::from_secs(1), bytes_per_s_min: 50_000, ..PATIENT }
        }
        _ => PATIENT,
    }
}

struct Release {
    files: BTreeMap<String, Vec<u8>>,
    pack: String,
    digest: Digest,
}

/// A running mirror and its misdeed.
struct Started {
    mirror: HostileMirror,
    misdeed: Misdeed,
}

impl Deref for Started {
    type Target = HostileMirror;

    fn deref(&self) -> &HostileMirror {
        &self.mirror
    }
}

fn digest(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, bytes)
}

fn release(pack_bytes: usize) -> Release {
    let pack = noise(1, pack_bytes);
    let digest = digest(&pack);
    let name = layout::pack(&digest);
    let files = BTreeMap::from([
        (layout::ROOT.to_owned(), b"the record".to_vec()),
        (layout::keys(1), noise(2, 500)),
        (name.clone(), pack),
    ]);
    Release { files, pack: name, digest }
}

impl Release {
    fn start(&self, misdeed: Misdeed) -> Started {
        Started { mirror: HostileMirror::start(self.files.clone(), misdeed), misdeed }
    }

    /// The pack, or a part of it, checked as by a client.
    fn get(&self, mirrors: &Mirrors, part: Option<Range<u64>>) -> Result<Vec<u8>, Unavailable> {
        let wanted = match &part {
            None => self.digest,
            Some(part) => digest(&self.files[&self.pack][part.start as usize..part.end as usize]),
        };
        let check = |bytes: Vec<u8>| match digest(&bytes) == wanted {
            true => Ok(bytes),
            false => Err("its digest is another".into()),
        };
        mirrors.get_checked(&self.pack, part, BYTES_MAX, &check).map(|(bytes, _)| bytes)
    }
}

fn mirrors(of: &[&Started]) -> Mirrors {
    let http = |mirror: &&Started| -> Arc<dyn Mirror> {
        Arc::new(Http::with_patience(&mirror.url(), patience(mirror.misdeed)).expect("a URL"))
    };
    Mirrors::new(of.iter().map(http).collect()).waiting_at_most(Duration::ZERO)
}

/// The outcome of asking one mirror alone, with words that its error must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The bytes that were asked for.
    Given,
    Missing,
    Wrong(&'static str),
    Unreachable(&'static str),
    /// False bytes, as their digest shows.
    Bad,
}

use Verdict::{Bad, Given, Missing, Unreachable, Wrong};

/// The verdicts on each misdeed: for a whole file, and for a part.
fn verdicts(misdeed: Misdeed) -> (Verdict, Verdict) {
    match misdeed {
        Misdeed::Honest => (Given, Given),
        Misdeed::Denies => (Missing, Missing),
        Misdeed::Forbids => (Missing, Missing),
        Misdeed::Breaks => (Unreachable("503"), Unreachable("503")),
        Misdeed::TooMany => (Unreachable("429"), Unreachable("429")),
        Misdeed::Drops => (Unreachable(""), Unreachable("")),
        Misdeed::Resets => (Unreachable(""), Unreachable("")),
        Misdeed::Silent => (Unreachable(""), Unreachable("")),
        Misdeed::DripsHead => (Unreachable(""), Unreachable("")),
        Misdeed::DripsBody => (Unreachable("too slow"), Unreachable("too slow")),
        Misdeed::Truncates => (Unreachable("after "), Unreachable("after ")),
        Misdeed::TruncatesQuietly => (Bad, Bad),
        Misdeed::SaysLess => (Bad, Bad),
        Misdeed::SaysHuge => (Wrong("longer than 1048576 bytes"), Bad),
        Misdeed::Endless => (Wrong("longer than 1048576 bytes"), Bad),
        Misdeed::EndlessHead => (Wrong("head"), Wrong("head")),
        Misdeed::EndlessContinue => (Wrong("head"), Wrong("head")),
        Misdeed::Garbage => (Wrong("not HTTP"), Wrong("not HTTP")),
        Misdeed::RedirectsElsewhere => (Wrong("http://localhost:1/packs"), Wrong("http://localhost:1/packs")),
        Misdeed::RedirectsToFile => (Wrong("file:///etc/passwd"), Wrong("file:///etc/passwd")),
        Misdeed::RedirectsForEver => (Wrong("more than 3 times"), Wrong("more than 3 times")),
        Misdeed::RedirectsWithin => (Given, Given),
        Misdeed::Compresses => (Wrong("gzip"), Wrong("gzip")),
        Misdeed::IgnoresRanges => (Given, Given),
        Misdeed::OtherRange => (Wrong("a part"), Wrong("bytes 999 to 49999, not 1000 to 50000")),
        Misdeed::LiesAboutRange => (Bad, Bad),
        Misdeed::NamelessRange => (Wrong("a part"), Wrong("which part")),
        Misdeed::ShortRange => (Bad, Wrong("49000 bytes")),
        Misdeed::UnaskedRange => (Wrong("a part"), Wrong("not 1000 to 50000")),
        Misdeed::MixesUp => (Bad, Bad),
        Misdeed::FlipsByte => (Bad, Bad),
        Misdeed::Zeroes => (Bad, Bad),
    }
}

/// Tests every misdeed, each on a thread of its own, as many end by a time-out.
fn for_each_misdeed(test: impl Fn(Misdeed) + Sync) {
    std::thread::scope(|scope| {
        for misdeed in Misdeed::ALL {
            let test = &test;
            scope.spawn(move || test(misdeed));
        }
    });
}

/// Tests every misdeed with a request for the whole file and one for a part, and the verdict on each.
fn for_each_request(test: impl Fn(Misdeed, Option<Range<u64>>, Verdict) + Sync) {
    for_each_misdeed(|misdeed| {
        let (of_whole, of_part) = verdicts(misdeed);
        test(misdeed, None, of_whole);
        test(misdeed, Some(PART), of_part);
    });
}

fn judged(answer: &Result<Vec<u8>, Unavailable>) -> (Verdict, String) {
    let error = match answer {
        Ok(_) => return (Given, String::new()),
        Err(error) => error,
    };
    let [failure] = &error.failures[..] else { panic!("one mirror, one answer: {error}") };
    let verdict = match failure {
        MirrorFailure::Failed(MirrorError::Missing { .. }) => Missing,
        MirrorFailure::Failed(MirrorError::Wrong { .. }) => Wrong(""),
        MirrorFailure::Failed(MirrorError::Unreachable { .. }) => Unreachable(""),
        MirrorFailure::Bad { .. } => Bad,
        MirrorFailure::NotAsked { .. } => panic!("the only mirror must be asked"),
    };
    (verdict, error.to_string())
}

/// Each misdeed, by a single mirror, has its verdict from the table, with an error that names mirror and file, in time,
/// and without receiving more than was asked for (except what the system's buffers hold).
#[test]
fn alone() {
    let release = release(100_000);
    for_each_request(|misdeed, part, expected| {
        let mirror = release.start(misdeed);
        let start = Instant::now();
        let answer = release.get(&mirrors(&[&mirror]), part.clone());
        let took = start.elapsed();
        let (verdict, words) = judged(&answer);
        let (fits, needed) = match expected {
            Wrong(needed) => (verdict == Wrong(""), needed),
            Unreachable(needed) => (verdict == Unreachable(""), needed),
            expected => (verdict == expected, ""),
        };
        // On a busy machine the time is up before the body begins.
        let is_late = misdeed == Misdeed::DripsBody && words.contains("in time");
        let is_expected = fits && (is_late || words.contains(needed));
        assert!(is_expected, "{misdeed:?} {part:?}: {verdict:?}: {words}");
        if verdict != Given {
            assert!(words.contains(&mirror.url()) && words.contains(&release.pack), "{words}");
        }
        assert!(took < PATIENCE, "{misdeed:?} {part:?} took {took:?}");
        assert!(mirror.sent() < BYTES_MAX + (16 << 20), "{misdeed:?}: {} bytes", mirror.sent());
    });
}

/// Each misdeed, by the first of two mirrors: everything is fetched from the other. The bad one is named and paused, or
/// dropped if what it sent was false; a dropped mirror is not asked again.
#[test]
fn one_of_two() {
    let release = release(100_000);
    for_each_request(|misdeed, part, expected| {
        let (bad, good) = (release.start(misdeed), release.start(Misdeed::Honest));
        let mirrors = mirrors(&[&bad, &good]);
        release.get(&mirrors, part.clone()).unwrap_or_else(|error| panic!("{misdeed:?}: {error}"));
        let state = match expected {
            Given => MirrorState::Good,
            Bad => MirrorState::Dropped,
            Missing | Wrong(_) | Unreachable(_) => MirrorState::Paused,
        };
        let [status, other] = &mirrors.statuses()[..] else { panic!("two mirrors") };
        // The pause may be over already.
        let over = state == MirrorState::Paused && status.state == MirrorState::Good;
        assert!(status.state == state || over, "{misdeed:?} {part:?}: {status:?}");
        assert_eq!(status.mirror, bad.url());
        assert_eq!(other.state, MirrorState::Good);
        if expected != Given {
            assert!(status.failures > 0 && status.why.is_some(), "{status:?}");
            assert_eq!(other.answers, 1);
        }
        if expected == Bad {
            let asked = bad.requests();
            release.get(&mirrors, part).expect("the other has it");
            assert_eq!(bad.requests(), asked, "{misdeed:?}");
        }
    });
}

/// A server without ranges is accepted for small files only.
#[test]
fn no_ranges_of_long_files() {
    let release = release(8 << 20);
    let mirror = release.start(Misdeed::IgnoresRanges);
    let error =
        release.get(&mirrors(&[&mirror]), Some((6 << 20)..(6 << 20) + 100)).expect_err("too long a way");
    assert!(error.to_string().contains("sends the whole file"), "{error}");
    // The mirror ignores ranges, so the beginning of a file can be read from it.
    release.get(&mirrors(&[&mirror]), Some(0..100)).expect("the beginning");
}

/// Parts at the end of a file and beyond, as [`Mirror::get`] defines them: from an honest web server and from a
/// directory.
#[test]
fn parts() {
    let release = release(1000);
    let server = release.start(Misdeed::Honest);
    let folder = tempfile::tempdir().expect("a directory");
    for (name, bytes) in &release.files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, bytes).expect("written");
    }
    let whole = &release.files[&release.pack];
    let path = folder.path().to_str().expect("text");
    for address in [server.url(), path.to_owned(), format!("file://{path}")] {
        let mirror = parse(&address).expect("a mirror");
        let get = |range: Option<Range<u64>>, bytes_max| mirror.get(&release.pack, range, bytes_max);
        assert_eq!(get(None, 1000).as_ref(), Ok(whole), "{address}");
        assert_eq!(get(Some(0..1000), 1000).as_ref(), Ok(whole));
        assert_eq!(get(Some(10..20), 10).as_deref(), Ok(&whole[10..20]));
        assert_eq!(get(Some(990..2000), 10).as_deref(), Ok(&whole[990..]), "so much as there is");
        assert_eq!(get(Some(1000..2000), 10).as_deref(), Ok(&[][..]));
        assert_eq!(get(Some(5000..6000), 10).as_deref(), Ok(&[][..]));
        assert_eq!(get(Some(10..10), 10).as_deref(), Ok(&[][..]));
        for too_long in [get(None, 999), get(Some(10..21), 10), get(Some(10..u64::MAX), 10)] {
            let error = too_long.expect_err("too long");
            assert!(matches!(&error, MirrorError::Wrong { why, .. } if why.contains("longer")), "{error}");
        }
        let absent = layout::keys(2);
        assert!(
            matches!(mirror.get(&absent, None, 10), Err(MirrorError::Missing { file, .. }) if file == absent)
        );
        for name in ["../secret", "", "keys/../root", "root?", "/etc/passwd"] {
            assert!(matches!(mirror.get(name, None, 10), Err(MirrorError::Wrong { .. })), "{name}");
        }
    }
    let gone = Directory::new(&folder.path().join("gone"));
    assert!(matches!(gone.get(layout::ROOT, None, 10), Err(MirrorError::Unreachable { .. })));
}

/// Successive requests use one connection.
#[test]
fn connections_are_kept() {
    let release = release(300_000);
    let server = release.start(Misdeed::Honest);
    let mirrors = mirrors(&[&server]);
    for start in 0..20 {
        release.get(&mirrors, Some(start * 1000..start * 1000 + 70_000)).expect("a part");
        assert!(
            mirrors
                .get_checked("keys/9", None, 10, &|_| Ok::<_, BadContent>(()))
                .expect_err("none")
                .missing()
        );
    }
    assert_eq!((server.requests(), server.connections()), (40, 1));
}

/// A file that no mirror has is missing, and no mirror is at fault; if one has it, the others are incomplete.
#[test]
fn missing_files() {
    let release = release(100_000);
    let (empty, full) = (release.start(Misdeed::Denies), release.start(Misdeed::Honest));
    let both = mirrors(&[&empty, &full]);
    let error = both.get_checked("keys/2", None, 100, &|_| Ok::<_, BadContent>(())).expect_err("none has it");
    assert!(error.missing() && error.missing_somewhere(), "{error}");
    assert!(error.to_string().contains(&empty.url()) && error.to_string().contains(&full.url()), "{error}");
    assert!(both.statuses().iter().all(|status| status.state == MirrorState::Good && status.failures == 0));
    assert!(matches!(MirrorError::from(error), MirrorError::Missing { .. }));
    let (_, from) =
        both.get_checked(&release.pack, None, BYTES_MAX, &Ok::<_, BadContent>).expect("the other has it");
    assert_eq!(from, full.url());
    assert_eq!(both.statuses()[0].failures, 1);
    // If one mirror cannot be reached, it is unknown whether the file is missing.
    let dead: Arc<dyn Mirror> = parse(&format!("http://127.0.0.1:{}/", free_port())).expect("a mirror");
    let empty: Arc<dyn Mirror> = parse(&empty.url()).expect("a mirror");
    let some = Mirrors::new(vec![dead, empty]).waiting_at_most(Duration::ZERO);
    let error = some.get_checked("keys/2", None, 100, &|_| Ok::<_, BadContent>(())).expect_err("none has it");
    assert!(!error.missing() && error.missing_somewhere(), "{error}");
    assert!(matches!(MirrorError::from(error), MirrorError::Unreachable { .. }));
    let none = Mirrors::new(Vec::new());
    let error = none.get_checked("root", None, 100, &|_| Ok::<_, BadContent>(())).expect_err("there is none");
    assert!(!error.missing() && error.to_string().contains("there is no mirror"), "{error}");
}

/// A mirror with an old record is late and does not lie: the caller gets the records of all mirrors, and takes the
/// best.
#[test]
fn an_old_record() {
    let mut release = release(10);
    let new = release.start(Misdeed::Honest);
    release.files.insert(layout::ROOT.to_owned(), b"an old record".to_vec());
    let (old, mute) = (release.start(Misdeed::Honest), release.start(Misdeed::Drops));
    let mirrors = mirrors(&[&old, &mute, &new]);
    let roots = mirrors.every(layout::ROOT, 100);
    let names: Vec<&str> = roots.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [old.url(), mute.url(), new.url()]);
    assert_eq!(roots[0].1.as_deref(), Ok(&b"an old record"[..]));
    assert!(matches!(roots[1].1, Err(MirrorError::Unreachable { .. })));
    assert_eq!(roots[2].1.as_deref(), Ok(&b"the record"[..]));
    // The pause may be over already.
    let was_paused: Vec<bool> = mirrors.statuses().iter().map(|status| status.why.is_some()).collect();
    assert_eq!(was_paused, [false, true, false]);
}

/// Few mirrors can look up paths. From the others, whatever they answer, nothing is taken and nothing is lost.
#[test]
fn looking_up_paths() {
    let release = release(1000);
    for_each_misdeed(|misdeed| {
        let mirror = release.start(misdeed);
        let mirrors = mirrors(&[&mirror]);
        let start = Instant::now();
        if let Some(frames) = mirrors.paths(&[b"a/b", b"c"], 10_000) {
            // The caller checks what the frames contain.
            assert!(frames.len() <= 10_000, "{misdeed:?}");
        }
        assert!(start.elapsed() < PATIENCE, "{misdeed:?}");
        assert!(mirror.sent() < 16 << 20, "{misdeed:?}: {} bytes", mirror.sent());
        if misdeed == Misdeed::Honest {
            assert_eq!(mirrors.paths(&[b"a"], 10_000), None);
            assert_eq!(mirror.requests(), 1, "once is enough");
            release.get(&mirrors, None).expect("the file is had all the same");
        }
    });
    let folder: Arc<dyn Mirror> = Arc::new(Directory::new(Path::new("/")));
    assert_eq!(Mirrors::new(vec![folder]).paths(&[b"a"], 10), None);
}

/// The faster mirror is asked, although it was named last.
#[test]
fn the_fastest_first() {
    struct Slow(Duration, &'static str);
    impl Mirror for Slow {
        fn name(&self) -> &str {
            self.1
        }
        fn get(&self, _: &str, _: Option<Range<u64>>, _: u64) -> Result<Vec<u8>, MirrorError> {
            std::thread::sleep(self.0);
            Ok(vec![1])
        }
    }
    // On a busy machine the fast one may not be the faster one.
    eventually("the slow one is asked once", || {
        let slow = Arc::new(Slow(Duration::from_millis(50), "slow"));
        let fast = Arc::new(Slow(Duration::from_millis(1), "fast"));
        let mirrors = Mirrors::new(vec![slow, fast]);
        for _ in 0..20 {
            mirrors.get_checked(layout::ROOT, None, 10, &Ok::<_, BadContent>).expect("given");
        }
        let answers: Vec<u64> = mirrors.statuses().iter().map(|status| status.answers).collect();
        answers == [1, 19]
    });
}

/// A mirror whose bytes do not fit what an unsigned index says is dropped if another mirror's do; if no mirror's do,
/// the index is at fault.
#[test]
fn who_is_to_blame() {
    struct Has(u8, &'static str);
    impl Mirror for Has {
        fn name(&self) -> &str {
            self.1
        }
        fn get(&self, _: &str, _: Option<Range<u64>>, _: u64) -> Result<Vec<u8>, MirrorError> {
            // The second mirror is slower, and asked last.
            std::thread::sleep(Duration::from_millis(u64::from(self.0 - 1) * 20));
            Ok(vec![self.0])
        }
    }
    let fits = |wanted: u8| {
        move |bytes: Vec<u8>| if bytes == [wanted] { Ok(()) } else { Err("something else".into()) }
    };
    let block = |number: u8| Digest([number; 32]);
    let mirrors = eventually_some("the second is the slower one", || {
        let mirrors = Mirrors::new(vec![Arc::new(Has(1, "one")), Arc::new(Has(2, "two"))]);
        let error =
            mirrors.get_fitting(layout::ROOT, 0..1, &block(3), &fits(3)).expect_err("nobody has that");
        assert!(error.disputed() && !error.missing_somewhere());
        assert!(mirrors.dropped().is_empty());
        let [one, two] = &mirrors.statuses()[..] else { panic!("two mirrors") };
        (one.latency_ms < two.latency_ms).then_some(mirrors)
    });
    let (_, giver) = mirrors.get_fitting(layout::ROOT, 0..1, &block(2), &fits(2)).expect("the second has it");
    assert_eq!(giver, "two");
    let dropped: Vec<String> = mirrors.dropped().into_iter().map(|(mirror, _)| mirror).collect();
    assert_eq!(dropped, ["one"]);
    let error = mirrors.get_fitting(layout::ROOT, 0..1, &block(4), &fits(4)).expect_err("nobody has that");
    assert_eq!(error.failures.len(), 1, "there is one mirror left, which named the index too");
    assert_eq!(mirrors.dropped().len(), 2);
}

/// When the last mirror was dropped, the error says so, and it is asked again only after a pause.
#[test]
fn all_dropped() {
    let release = release(1000);
    let bad = release.start(Misdeed::FlipsByte);
    let mirrors = mirrors(&[&bad]);
    let get = || {
        let error = release.get(&mirrors, None).expect_err("false");
        assert!(error.to_string().contains("digest") && error.to_string().contains(&bad.url()), "{error}");
    };
    let start = Instant::now();
    get();
    assert_eq!(bad.requests(), 1);
    assert!(!mirrors.report_bad("http://nobody/", "not one of ours"), "none is left");
    assert!(mirrors.each().is_empty());
    eventually("it is asked again", || {
        get();
        bad.requests() == 2
    });
    assert!(start.elapsed() >= Duration::from_millis(500), "after a pause");
}

/// Thousands of randomly damaged answers: none makes a client panic, hang, or accept more than it asked for.
#[test]
fn damaged_answers() {
    let good: &[u8] =
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-14/100\r\nTransfer-Encoding: chunked\r\n\
        Location: /packs/a\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    const ROUNDS: u32 = 3000;
    let server = std::thread::spawn(move || {
        let mut round = 0u32;
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = [0; 2048];
            if stream.read(&mut request).expect("read") == 0 {
                break;
            }
            round = round.wrapping_add(1);
            let mut answer = good.to_vec();
            for change in noise(round.into(), 1 + round as usize % 6).chunks(3) {
                let random =
                    u32::from_le_bytes([change[0], *change.get(1).unwrap_or(&7), 0, 0]).wrapping_mul(round);
                let at = random as usize % answer.len();
                match random >> 8 & 3 {
                    0 => answer[at] = (random >> 16) as u8,
                    1 => drop(answer.remove(at)),
                    2 => answer.truncate(at.max(1)),
                    _ => answer.insert(at, b"\r\n0: 9"[random as usize >> 10 & 5]),
                }
            }
            let _ = stream.write_all(&answer);
        }
    });
    let mirror = Http::with_patience(&format!("http://{address}/"), PATIENT).expect("a URL");
    let (mut given, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        match mirror.get("packs/a", Some(5..15), 10) {
            Ok(bytes) => {
                assert!(bytes.len() <= 10);
                given += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(given > 0 && refused > 0, "{given} given, {refused} refused");
    drop(std::net::TcpStream::connect(address));
    server.join().expect("the server did not panic");
}

/// Texts that name no mirror are refused, and the error quotes them.
#[test]
fn addresses() {
    for good in
        ["https://host/path", "http://127.0.0.1:8080/", "http://[::1]:80/x/", "/srv/release", "file:///srv/a"]
    {
        parse(good).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(parse("https://host/path").expect("a mirror").name(), "https://host/path/");
    for bad in [
        "",
        "release",
        "./release",
        "ftp://host/",
        "hf://host/",
        "https://",
        "http://user:secret@host/",
        "https://host/?a",
        "https://host/#a",
        "http://ho st/",
        "file://host/dir",
        "file:///with%20blank",
        "http://host:99999/",
    ] {
        let error = parse(bad).map(|mirror| mirror.name().to_owned()).expect_err("no mirror");
        assert!(error.to_string().contains(&format!("'{bad}'")), "{error}");
    }
}
