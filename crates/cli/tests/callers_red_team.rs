//! The red team at the guard of programs: who speaks with the helper that identifies callers and means ill, and a
//! helper that means ill, try for what they must not reach. The table of who tried what and what came of it is in
//! `docs/proof.md`. The helper is the real one, and so is the mount that others are after. As root.

use crate::common::PATIENCE;
use crate::program_rules::{Site, plain, reaching_into};

use borsh::BorshSerialize;
use holdfast_crypto::Digest;
use holdfast_program_identity::guard::{Decision, Guard, OpenRequest, Settings};
use holdfast_program_identity::identity::Identity;
use holdfast_program_identity::message::{FromGuard, FromHelper, PACKET_BYTES_MAX, VERSION};
use holdfast_program_identity::process;
use holdfast_program_identity::rules::{Rights, Rule, RuleSet, Subject};
use holdfast_program_identity::seqpacket::{self, Conversation};
use holdfast_sim::random::Random;
use rustix::fs::{Gid, Uid};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MARK: &str =
    "<!-- the guard of programs: HOLDFAST_BLESS=1 scripts/test only cli::callers_red_team:: -->\n";
const DOCUMENT: &str = "../../docs/proof.md";
/// An ordinary user.
const STRANGER: u32 = 1000;
/// More than a stranger may have the helper keep: descriptors and threads, once it is gone.
const LEFT_MAX: usize = 12;

const GOALS: [&str; 5] = [
    "open a file that the rules keep from it",
    "hold up or watch opens that are not its own",
    "use the helper's rights",
    "keep others from being let in",
    "leave something behind",
];

/// What came of an attempt: the goal was not reached; or it was, and this is known and said. Anything else fails the test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    No,
    Known(&'static str),
}

impl Verdict {
    fn words(self) -> String {
        match self {
            Verdict::No => "no".to_owned(),
            Verdict::Known(words) => format!("**{words}**"),
        }
    }
}

#[derive(Default)]
struct Table(Vec<(&'static str, usize, &'static str, Verdict)>);

impl Table {
    /// An attempt that was looked at by assertions: it did not reach its goal.
    fn no(&mut self, enemy: &'static str, goal: usize, attempt: &'static str) {
        self.0.push((enemy, goal, attempt, Verdict::No));
    }

    fn markdown(&self) -> String {
        let mut text = format!("{MARK}| | {} |\n|---|{}\n", GOALS.join(" | "), "---|".repeat(GOALS.len()));
        let mut enemies: Vec<&str> = self.0.iter().map(|line| line.0).collect();
        enemies.dedup();
        for enemy in enemies {
            let cells = (0..GOALS.len()).map(|goal| {
                let lines: Vec<_> = self.0.iter().filter(|line| line.0 == enemy && line.1 == goal).collect();
                let worst = lines.iter().map(|line| line.3).max();
                worst.map_or(String::new(), |worst| format!("{} ({})", worst.words(), lines.len()))
            });
            let _ = writeln!(text, "| {enemy} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        let _ = writeln!(text, "\n| enemy | goal | attempt | reached |\n|---|---|---|---|");
        for (enemy, goal, attempt, verdict) in &self.0 {
            let _ = writeln!(text, "| {enemy} | {} | {attempt} | {} |", GOALS[*goal], verdict.words());
        }
        text
    }
}

/// Bytes as they are.
struct Raw(Vec<u8>);

impl BorshSerialize for Raw {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(&self.0)
    }
}

/// Does something on a thread of an ordinary user's.
fn as_stranger<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let (user, group) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(group, group, group).expect("root may");
        set_thread_res_uid(user, user, user).expect("root may");
        what()
    });
    thread.join().expect("no panic")
}

fn hello(mountpoint: &Path) -> FromGuard {
    FromGuard::Hello { version: VERSION, mountpoint: mountpoint.as_os_str().as_bytes().to_vec() }
}

/// Connects as a stranger who does not wait for ever.
fn connect(socket: &Path) -> Conversation {
    let socket = socket.to_owned();
    as_stranger(move || {
        let conversation = Conversation::connect(&socket).expect("everybody may");
        conversation.set_patience(PATIENCE, Some(PATIENCE)).expect("set");
        conversation
    })
}

/// A mount of the stranger's, whose server is this test.
struct OwnMount {
    at: PathBuf,
    device: File,
}

impl OwnMount {
    fn new(at: PathBuf) -> OwnMount {
        fs::create_dir_all(&at).expect("made");
        chown(&at, Some(STRANGER), Some(STRANGER)).expect("root gives it away");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("FUSE is there");
        let options =
            format!("fd={},rootmode=40000,user_id={STRANGER},group_id={STRANGER}", device.as_raw_fd());
        let options = CString::new(options).expect("no zero");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("stranger", &at, "fuse.stranger", flags, options.as_c_str()).expect("mounted");
        OwnMount { at, device }
    }

    /// Answers what the kernel asks with as little as there can be, until it is unmounted: a root without anything in it.
    fn serve(&self) -> std::thread::JoinHandle<()> {
        let mut device = self.device.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut request = vec![0; 1 << 20];
            loop {
                let length = match device.read(&mut request) {
                    Ok(length) => length,
                    // Whoever asked has gone meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(_) => return,
                };
                let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("four"));
                let (operation, unique) = (number(4), &request[8..16]);
                assert!(length >= 40, "a header");
                // INIT is answered with version 7.31; nothing else is known, and FORGET wants no answer.
                let (error, body) = match operation {
                    26 => {
                        let mut body = [0_u8; 64];
                        body[..4].copy_from_slice(&7_u32.to_le_bytes());
                        body[4..8].copy_from_slice(&31_u32.to_le_bytes());
                        body[20..24].copy_from_slice(&4096_u32.to_le_bytes());
                        (0_i32, body.to_vec())
                    }
                    2 | 42 => continue,
                    _ => (-38, Vec::new()),
                };
                let length = (16 + body.len()) as u32;
                let answer = [&length.to_le_bytes()[..], &error.to_le_bytes(), unique, &body].concat();
                let _ = device.write_all(&answer);
            }
        })
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// Whoever the rules name is let in, and nobody else, whatever goes on beside.
#[track_caller]
fn all_is_well(site: &Site) {
    site.admits(&mut plain(&site.reader, &site.file()));
    site.refuses(&mut plain("/usr/bin/head", &site.file()));
}

/// What the helper has: descriptors and threads.
fn held(site: &Site) -> usize {
    let count = |what: &str| {
        fs::read_dir(format!("/proc/{}/{what}", site.helper_id())).expect("it lives").flatten().count()
    };
    count("fd") + count("task")
}

/// A hostile process of this machine at the helper's socket.
fn stranger(site: &Site, table: &mut Table) {
    const ENEMY: &str = "a process at the helper's socket";
    let (socket, anna) = (site.socket(), site.team.parent().expect("the mount").to_owned());
    let before = held(site);

    let mut random = Random::new(5);
    for round in 0..400 {
        let conversation = connect(&socket);
        let length = match round % 8 {
            0 => PACKET_BYTES_MAX as u64 + 1,
            _ => 1 + random.below(200),
        };
        let mut bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        // Every other one begins as a message does.
        if round % 2 == 1 {
            let known = [hello(&anna), FromGuard::Mark { id: 1, inode: 2, children: true }];
            let message = borsh::to_vec(random.pick(&known)).expect("bytes");
            let length = random.below(message.len() as u64 + 1) as usize;
            bytes.splice(0..length.min(bytes.len()), message[..length].iter().copied());
        }
        let _ = as_stranger(move || {
            let sent = conversation.send(&Raw(bytes));
            drop(conversation);
            sent
        });
    }
    all_is_well(site);
    table.no(ENEMY, 3, "hundreds of packets: none of the grammar, cut off, changed, too long");

    let inode = fs::metadata(site.file()).expect("there").ino();
    for (first, then) in [
        (FromGuard::Mark { id: 1, inode, children: false }, None),
        (FromGuard::TicketReceived { id: 1, goes_on: true }, None),
        (FromGuard::Hello { version: VERSION + 1, mountpoint: anna.as_os_str().as_bytes().to_vec() }, None),
        (hello(&anna), Some(FromGuard::Mark { id: 1, inode, children: false })),
    ] {
        let conversation = connect(&socket);
        conversation.send(&first).expect("sent");
        let answer = conversation.receive::<FromHelper>();
        assert!(!matches!(answer, Ok(FromHelper::Welcome { .. })), "{first:?}: {answer:?}");
        if let Some(then) = then {
            let _ = conversation.send(&then);
            assert!(conversation.receive::<FromHelper>().is_err(), "{then:?}");
        }
    }
    all_is_well(site);
    table.no(ENEMY, 1, "has another user's mount watched, with and without a greeting");

    let own = site.world.path("stranger");
    fs::create_dir_all(&own).expect("made");
    chown(&own, Some(STRANGER), Some(STRANGER)).expect("given away");
    let link = own.join("link");
    symlink(&anna, &link).expect("made");
    let zero = PathBuf::from(std::ffi::OsStr::from_bytes(b"/etc\0/passwd"));
    for place in [
        Path::new("/"),
        Path::new("/etc/shadow"),
        Path::new("relative"),
        Path::new(""),
        &link,
        &own,
        &zero,
        &site.file(),
    ] {
        let conversation = connect(&socket);
        conversation.send(&hello(place)).expect("sent");
        match conversation.receive::<FromHelper>() {
            Ok(FromHelper::Refused(why)) => assert!(!why.contains("root:"), "{why}"),
            Ok(other) => panic!("{}: {other:?}", place.display()),
            Err(_) => {}
        }
    }
    all_is_well(site);
    table.no(
        ENEMY,
        2,
        "names places of all kinds to be looked at by root: files, links, what is no mount of its",
    );

    let silent: Vec<Conversation> = (0..200).map(|_| connect(&socket)).collect();
    all_is_well(site);
    table.no(ENEMY, 3, "two hundred conversations in which nothing is said");
    drop(silent);
    crate::common::eventually("what strangers had is given back", || held(site) <= before + LEFT_MAX);
    table.no(ENEMY, 4, "all of this, and goes");
}

/// A process that serves a mount of an ordinary user, and means ill.
fn mount_process(site: &Site, table: &mut Table) {
    const ENEMY: &str = "the process of another mount";
    let before = held(site);
    let own = OwnMount::new(site.world.path("own"));
    let serving = own.serve();
    let greeted = || {
        let conversation = connect(&site.socket());
        conversation.send(&hello(&own.at)).expect("sent");
        let answer = conversation.receive::<FromHelper>().expect("an answer");
        assert!(matches!(answer, FromHelper::Welcome { .. }), "{answer:?}");
        conversation
    };

    // Numbers of inodes that are others'.
    let conversation = greeted();
    let (file, team) = (fs::metadata(site.file()).expect("there"), fs::metadata(&site.team).expect("there"));
    let numbers =
        [file.ino(), team.ino(), 2, u64::MAX, 1 << 32, fs::metadata("/etc/passwd").expect("there").ino()];
    for (id, inode) in (0..).zip(numbers) {
        for children in [false, true] {
            conversation.send(&FromGuard::Mark { id, inode, children }).expect("sent");
            let answer = conversation.receive::<FromHelper>().expect("an answer");
            assert!(matches!(answer, FromHelper::Marked { done: Err(_), .. }), "{inode}: {answer:?}");
        }
    }
    all_is_well(site);
    table.no(ENEMY, 1, "marks inodes by others' numbers");

    // Another mount at the place that was named.
    let anna = site.team.parent().expect("the mount");
    rustix::mount::mount_bind(anna, &own.at).expect("root binds it over");
    conversation.send(&FromGuard::Mark { id: 90, inode: file.ino(), children: false }).expect("sent");
    let answer = conversation.receive::<FromHelper>().expect("an answer");
    assert!(
        matches!(&answer, FromHelper::Marked { done: Err(why), .. } if why.contains("no FUSE mount")),
        "{answer:?}"
    );
    unmount(&own.at, UnmountFlags::DETACH).expect("the one above");
    all_is_well(site);
    table.no(ENEMY, 1, "has another mount in the place that it named");

    // Answers to what others were asked: theirs are told apart by the conversation.
    for id in 0..5000 {
        conversation.send(&FromGuard::TicketReceived { id, goes_on: true }).expect("sent");
    }
    all_is_well(site);
    table.no(ENEMY, 0, "says of five thousand tickets that they were taken, before and while others open");

    // Does not read what it is told.
    let mut sent = 0_u32;
    while sent < 200_000 {
        let mark = FromGuard::Mark { id: u64::from(sent), inode: 1 << 40, children: false };
        match conversation.send(&mark) {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    assert!(sent < 200_000, "the helper ends it");
    all_is_well(site);
    table.no(ENEMY, 3, "asks as fast as it can, and reads no answer");
    drop(conversation);

    // As many conversations as it gets: the others are told no, and other users are served.
    let many: Vec<Conversation> = (0..20).map(|_| connect(&site.socket())).collect();
    let mut welcome = 0;
    for conversation in &many {
        let _ = conversation.send(&hello(&own.at));
        welcome += u32::from(matches!(conversation.receive::<FromHelper>(), Ok(FromHelper::Welcome { .. })));
    }
    assert!((1..=8).contains(&welcome), "{welcome} were welcome");
    all_is_well(site);
    table.no(ENEMY, 3, "takes all the conversations that a user may have");
    drop(many);
    drop(own);
    serving.join().expect("no panic");

    // A mount that answers nothing holds up those who look at it, and nobody else.
    let dumb = OwnMount::new(site.world.path("dumb"));
    let waiting: Vec<Conversation> = (0..4).map(|_| connect(&site.socket())).collect();
    for conversation in &waiting {
        conversation.send(&hello(&dumb.at)).expect("sent");
    }
    all_is_well(site);
    table.no(ENEMY, 3, "answers nothing that the kernel asks, when the helper looks at its mount");
    drop(waiting);
    drop(dumb);
    crate::common::eventually("what it had is given back", || held(site) <= before + LEFT_MAX);
    table.no(ENEMY, 4, "all of this, and goes");
}

/// A guard with a helper that means ill, whose word counts.
struct Deceived {
    guard: Arc<Guard>,
    helper: Conversation,
    _folder: tempfile::TempDir,
}

const INODE: u64 = 5;

fn rules() -> Vec<u8> {
    let who = Subject::Program(Digest([1; 32]));
    let rule = Rule {
        who,
        rights: Rights::Read,
        interpreter: false,
        generated: false,
        plain: true,
        hint: String::new(),
    };
    RuleSet::new(vec![rule]).expect("rules").encode()
}

fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn open(guard: &Guard, rules: &[u8]) -> Decision {
    guard.open(&OpenRequest {
        inode: INODE,
        thread: thread(),
        wanted: Rights::Read,
        rules,
        path: "/f".into(),
    })
}

impl Deceived {
    fn new() -> Deceived {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listening = seqpacket::listener(&socket).expect("it listens");
        let settings = Settings { socket, helper_uid: 0, mountpoint: "/m".into(), manifests: Vec::new() };
        let guard = Guard::new(settings);
        let theirs = Arc::clone(&guard);
        let asking = std::thread::spawn(move || theirs.check_helper());
        let helper = seqpacket::accept(&listening).expect("it comes");
        helper.set_patience(PATIENCE, Some(PATIENCE)).expect("set");
        assert!(matches!(helper.receive().expect("a word"), FromGuard::Hello { .. }));
        helper.send(&FromHelper::Welcome { thread: 1 }).expect("sent");
        asking.join().expect("no panic").expect("it is there");
        Deceived { guard, helper, _folder: folder }
    }

    fn ticket(&self, id: u64, inode: u64, process: u32, found: Result<Identity, String>) {
        self.helper.send(&FromHelper::Ticket { id, inode, process, found }).expect("sent");
        let answer = self.helper.receive::<FromGuard>().expect("a word");
        assert!(matches!(answer, FromGuard::TicketReceived { .. }), "{answer:?}");
    }
}

/// This process, said to be the program that the rules name.
fn posing() -> Identity {
    let (process, started) = process::of_thread(thread()).expect("it is there");
    Identity { process, started, ..Identity::plain(Digest([1; 32]), "/usr/bin/ssh") }
}

/// What a helper that was taken over can have a mount do.
fn helper(table: &mut Table) {
    const ENEMY: &str = "the helper";
    let rules = rules();
    let mine = posing();
    let is_refused = |answer: &Decision| matches!(answer, Decision::Refused(_));

    // Of another file, of another process, of one with this number that began at another time; used twice; taken back.
    let deceived = Deceived::new();
    let marked = |deceived: &Deceived| {
        // Whoever opens without a ticket has the inode watched.
        let FromGuard::Mark { id, .. } = deceived.helper.receive().expect("a word") else {
            panic!("no mark")
        };
        deceived.helper.send(&FromHelper::Marked { id, done: Ok(()) }).expect("sent");
    };
    deceived.ticket(1, INODE + 1, mine.process, Ok(mine.clone()));
    deceived.ticket(2, INODE, 1, Ok(Identity { process: 1, ..mine.clone() }));
    deceived.ticket(3, INODE, mine.process, Ok(Identity { started: mine.started + 1, ..mine.clone() }));
    deceived.ticket(4, INODE, mine.process, Ok(mine.clone()));
    deceived.helper.send(&FromHelper::Revoked { id: 4 }).expect("sent");
    // What is acknowledged after it says that it was heard.
    deceived.ticket(40, INODE + 1, mine.process, Ok(mine.clone()));
    std::thread::scope(|scope| {
        scope.spawn(|| marked(&deceived));
        assert_eq!(open(&deceived.guard, &rules), Decision::Retry, "no ticket was for it");
    });
    deceived.ticket(50, INODE, mine.process, Ok(mine.clone()));
    assert_eq!(open(&deceived.guard, &rules), Decision::Admitted);
    std::thread::scope(|scope| {
        scope.spawn(|| marked(&deceived));
        assert_eq!(open(&deceived.guard, &rules), Decision::Retry, "it serves once");
    });
    table.no(ENEMY, 0, "tickets of another file, process or beginning, taken back, or used twice");

    // Rules are the mount's own business.
    let writing = OpenRequest {
        inode: INODE,
        thread: thread(),
        wanted: Rights::ReadWrite,
        rules: &rules,
        path: "/f".into(),
    };
    deceived.ticket(60, INODE, mine.process, Ok(mine.clone()));
    assert!(is_refused(&deceived.guard.open(&writing)), "the rule is for reading");
    deceived.ticket(70, INODE, mine.process, Ok(Identity { digest: Digest([2; 32]), ..mine.clone() }));
    assert!(is_refused(&open(&deceived.guard, &rules)), "no rule names that program");
    table.no(
        ENEMY,
        0,
        "a ticket for writing where the rule is for reading, or for a program that no rule names",
    );

    // It says of whoever opens what it likes.
    deceived.ticket(80, INODE, mine.process, Ok(mine.clone()));
    assert_eq!(open(&deceived.guard, &rules), Decision::Admitted);
    let words = Verdict::Known("whom it calls the named program is let in: that is its work");
    table.0.push((ENEMY, 0, "says of a process that opens that it is the named program", words));

    // It says much, or what it may not.
    for id in 100..3000 {
        // None of them is this one's number: there are no such.
        let process = u32::MAX - id as u32;
        let other = Identity { process, ..mine.clone() };
        deceived.ticket(id, INODE, process, Ok(other));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| marked(&deceived));
        assert_eq!(open(&deceived.guard, &rules), Decision::Retry);
    });
    deceived.helper.send(&Raw(vec![9; 40])).expect("sent");
    crate::common::eventually("the guard ends it", || !deceived.helper.is_alive());
    assert!(is_refused(&open(&deceived.guard, &rules)), "without a helper nobody is let in");
    let deceived = Deceived::new();
    deceived.ticket(1, INODE, mine.process, Ok(mine.clone()));
    deceived.helper.send(&FromHelper::Welcome { thread: 2 }).expect("sent");
    crate::common::eventually("the guard ends it", || !deceived.helper.is_alive());
    assert!(is_refused(&open(&deceived.guard, &rules)), "its tickets went with it");
    table.no(ENEMY, 0, "thousands of tickets, then bytes of no grammar, or a second welcome");

    // It says nothing.
    let deceived = Deceived::new();
    let answer = open(&deceived.guard, &rules);
    assert!(matches!(&answer, Decision::Refused(why) if why.contains("does not answer")), "{answer:?}");
    let words = Verdict::Known("nobody is let in to files with rules until it is ended; others are");
    table.0.push((ENEMY, 3, "answers nothing", words));
}

/// What the helper's process has.
/// Another process of the user whose program is let in.
fn of_one_user(site: &Site, table: &mut Table) {
    const ENEMY: &str = "a process of the same user";
    reaching_into(site);
    table.no(ENEMY, 0, "takes a descriptor of a program that was started clean, traces it, reads its memory");
    table.no(ENEMY, 0, "traces it, filters its system calls or has it in a user namespace before it begins");
    table.no(ENEMY, 0, "has a program that was started clean start, or become, the one that is let in");
    let words = Verdict::Known("yes: `+plain` says that this is accepted");
    table.0.push((
        ENEMY,
        0,
        "takes a descriptor of a program that it started itself, by a rule with +plain",
        words,
    ));
}

fn confined(site: &Site, table: &mut Table) {
    const ENEMY: &str = "the helper";
    let status = fs::read_to_string(format!("/proc/{}/status", site.helper_id())).expect("it lives");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel tells");
        line[name.len()..].trim().to_owned()
    };
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, SETGID, SETUID, SYS_PTRACE, SYS_ADMIN.
    let wanted = format!("{:016x}", 1_u64 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 19 | 1 << 21);
    for sets in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(field(sets), wanted, "{sets}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    let words =
        Verdict::Known("it may look into and change every process: whoever runs code in it has the machine");
    table.0.push((ENEMY, 2, "runs code of its own", words));
}

/// Proves: what `docs/proof.md` says of the guard of programs.
#[test]
fn the_guard_of_programs() {
    let Some(site) = Site::new() else { return };
    all_is_well(&site);
    let mut table = Table::default();
    stranger(&site, &mut table);
    mount_process(&site, &mut table);
    helper(&mut table);
    of_one_user(&site, &mut table);
    confined(&site, &mut table);

    let before = fs::read_to_string(DOCUMENT).expect("the document");
    let start = before.find(MARK).expect("the mark of the table");
    let end = before[start..].find("<!-- end -->").expect("its end") + start;
    let after = format!("{}{}", &before[..start], table.markdown()) + &before[end..];
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        fs::write(DOCUMENT, after).expect("written");
    } else {
        assert!(
            before == after,
            "{DOCUMENT} differs; HOLDFAST_BLESS=1 writes it anew:\n{}",
            table.markdown()
        );
    }
}
