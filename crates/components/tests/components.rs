//! The runtime with real processes: sandboxes, channels, regions, crashes. What a component must not do is tried from
//! inside by components that do it.

#[path = "../host/question.rs"]
mod question;

use holdfast_components::{
    Access, AliasPage, Asker, ChannelPlan, Checked, ComponentError, ComponentPlan, End, Event, Listing,
    Patience, Permission, Plan, ProcessName, Profile, Program, Refusal, Region, RegionGrant, Regions,
    Restart, Supervisor, Verdict, Wall, attempt_names, listings,
};
use holdfast_testing::{PATIENCE, eventually};
use parking_lot::Mutex;
use question::Question;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const HOST: &str = env!("CARGO_BIN_EXE_holdfast-component-host");

fn program() -> Program {
    Program::open(Path::new(HOST)).expect("the host was built")
}

fn soon() -> Patience {
    Patience::of(PATIENCE)
}

fn component(name: &str, program: &str) -> ComponentPlan {
    let permissions: &[Permission] = if program == "threads" { &[Permission::Threads] } else { &[] };
    ComponentPlan {
        program: program.to_owned(),
        ..ComponentPlan::new(name, Profile::with_permissions(permissions))
    }
}

/// One component that the host asks over the port of its name.
fn asked(name: &str, program: &str) -> Plan {
    Plan {
        name: "test".to_owned(),
        components: vec![component(name, program)],
        channels: vec![ChannelPlan::new(End::host(name), End::of(name, "in"))],
    }
}

fn quiet(_: Event) {}

fn start(plan: Plan) -> Supervisor {
    Supervisor::start(program(), plan, quiet).expect("it starts")
}

fn asker(supervisor: &Supervisor, port: &str) -> Asker<Question, Vec<u8>> {
    supervisor.ports().asker(port).expect("a port")
}

/// Starts a plan. The receiver gets each end of a component: its name, the reason, and whether it is
/// restarted.
fn watched(plan: Plan) -> (Supervisor, mpsc::Receiver<(String, String, bool)>) {
    let (sender, ends) = mpsc::channel();
    let told = move |event: Event| {
        if let Event::Ended { component, reason, restarts, .. } = event {
            let _ = sender.send((component.to_owned(), reason.to_owned(), restarts));
        }
    };
    (Supervisor::start(program(), plan, told).expect("it starts"), ends)
}

fn next_end(ends: &mpsc::Receiver<(String, String, bool)>) -> (String, String, bool) {
    ends.recv_timeout(PATIENCE).expect("a component ends")
}

/// The host where everybody may execute it, for tests as another user.
fn public_host(directory: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).expect("open");
    let path = directory.join("host");
    // By another process: a child of a concurrent test must not inherit the file open for writing.
    assert!(Command::new("cp").arg(HOST).arg(&path).status().expect("it runs").success());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("open");
    path
}

fn checked_by(command: &mut Command) -> Checked {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("verdicts")
}

fn assert_holds(verdicts: &[Verdict]) {
    let tried: Vec<_> = verdicts.iter().map(|verdict| verdict.attempt.as_str()).collect();
    assert_eq!(tried, attempt_names());
    let broken: Vec<_> = verdicts.iter().filter(|verdict| !verdict.holds).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Proves, attempt by attempt, what a component cannot do, whichever user runs the tests.
#[test]
fn the_sandbox_holds() {
    assert_holds(&checked_by(Command::new(HOST).arg("selfcheck")).attempts);
}

/// Proves the same for components that an ordinary user starts.
#[test]
fn the_sandbox_of_an_ordinary_user_holds() {
    if !rustix::process::geteuid().is_root() {
        return; // The test above was it.
    }
    let directory = tempfile::tempdir().expect("a directory");
    let host = public_host(directory.path());
    let as_user = ["--reuid", "1000", "--regid", "1000", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(as_user).arg(&host).arg("selfcheck").current_dir("/").env_remove("XDG_RUNTIME_DIR");
    assert_holds(&checked_by(&mut command).attempts);
}

/// The walls that what a host started lacks, or why it started nothing.
fn lacking_of(command: &mut Command) -> Result<Vec<Wall>, String> {
    let output = command.output().expect("it runs");
    match output.status.success() {
        true => {
            let listing: Listing = serde_json::from_slice(&output.stdout).expect("a listing");
            assert_eq!(listing.components[0].state, "running");
            Ok(listing.lacking())
        }
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// If the kernel has no Landlock, or has it switched off, components start and report that, and all other
/// walls hold. If all walls are required nothing starts, and the reason is reported.
#[test]
fn without_landlock_the_other_walls_hold() {
    for error in [libc::ENOSYS, libc::EOPNOTSUPP].map(|error| error.to_string()) {
        let host = |mode: &str| {
            let mut command = Command::new(HOST);
            command.args(["--without-landlock", &error, mode]);
            command
        };
        assert_eq!(lacking_of(&mut host("start-as-usual")), Ok(vec![Wall::Landlock]));
        for mode in ["start", "start-with-all-walls"] {
            let words = lacking_of(&mut host(mode)).expect_err("it started");
            assert!(words.contains("lacks Landlock here") && words.contains("Linux 5.13"), "{words}");
        }
        let checked = checked_by(&mut host("selfcheck"));
        assert_eq!(checked.lacking, [Wall::Landlock]);
        assert_holds(&checked.attempts);
    }
}

/// With a Landlock of any version, components start, use what it has, and report which walls are lacking.
/// (strace fakes the answer to the question for its version; everything after that is the kernel's.)
#[test]
fn an_older_landlock_does_what_it_can() {
    use Wall::{LandlockPorts, LandlockSignals, LandlockTruncation};
    let host = |version: u32, mode: &str| {
        let answer = format!("inject=landlock_create_ruleset:retval={version}:when=1");
        let mut command = Command::new("/usr/bin/strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &answer, HOST, mode]);
        command
    };
    for (version, lacking) in [
        (1, vec![LandlockTruncation, LandlockPorts, LandlockSignals]),
        (2, vec![LandlockTruncation, LandlockPorts, LandlockSignals]),
        (3, vec![LandlockPorts, LandlockSignals]),
        (5, vec![LandlockSignals]),
        (6, vec![]),
    ] {
        let required = lacking_of(&mut host(version, "start-with-all-walls"));
        match lacking.first() {
            None => assert_eq!(required, Ok(vec![])),
            Some(wall) => {
                let words = required.expect_err("it started");
                assert!(words.contains("lacks Landlock here") && words.contains(wall.words()), "{words}");
            }
        }
        assert_eq!(lacking_of(&mut host(version, "start-as-usual")), Ok(lacking), "Landlock {version}");
    }
}

/// If namespaces are unavailable, nothing starts, and the reason is reported. With a profile that accepts
/// that, the component starts, and the wall is listed as lacking.
#[test]
fn a_lacking_wall_is_refused_or_shown() {
    if !rustix::process::geteuid().is_root() {
        return; // An ordinary user cannot take namespaces away.
    }
    let directory = tempfile::tempdir().expect("a directory");
    let host = public_host(directory.path());
    // An ordinary user in a user namespace whose limit of further ones is nothing.
    let mut holder = Command::new("unshare").args(["--user", "sleep", "600"]).spawn().expect("it runs");
    let own = std::fs::read_link("/proc/self/ns/user").expect("a namespace");
    let of_holder = format!("/proc/{}", holder.id());
    eventually("a namespace of its own", || {
        std::fs::read_link(format!("{of_holder}/ns/user")).is_ok_and(|namespace| namespace != own)
    });
    for map in ["uid_map", "gid_map"] {
        std::fs::write(format!("{of_holder}/{map}"), "0 0 2000").expect("mapped");
    }
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --reuid 1000 --regid 1000 --clear-groups \"$0\" \"$1\"";
    let run = |mode: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--setuid", "0", "--setgid", "0", "--target", &of_holder[6..]]);
        command.args(["sh", "-c", script]).arg(&host).arg(mode);
        command.current_dir("/").env_remove("XDG_RUNTIME_DIR").output().expect("it runs")
    };
    let (refused, weaker) = (run("start"), run("start-weaker"));
    holder.kill().expect("killed");
    holder.wait().expect("ended");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("lacks namespaces here"), "{words}");
    let shown = String::from_utf8_lossy(&weaker.stdout).into_owned();
    assert!(weaker.status.success(), "{}", String::from_utf8_lossy(&weaker.stderr));
    assert!(shown.contains(r#""lacking":["namespaces"]"#), "{shown}");
}

/// Root's components have users of their own, no two the same; all are in the listing with what they may do.
#[test]
fn listing_shows_everything() {
    let regions = Regions::create(&program(), 1 << 20).expect("regions");
    let region = Arc::new(regions.region(8192).expect("a region"));
    let mut plan = asked("one", "echo");
    plan.components.push(component("two", "echo"));
    plan.channels.push(ChannelPlan::new(End::of("one", "out"), End::of("two", "in")));
    plan.components[0].guards.push("asks nobody".to_owned());
    plan.components[0].regions.push(RegionGrant {
        name: "region".to_owned(),
        region: Arc::clone(&region),
        access: Access::ReadOnly,
    });
    plan.name = format!("listing-test-{}", std::process::id());
    let name = plan.name.clone();
    let supervisor = start(plan);
    let listing = supervisor.listing();
    // The client waits for the others' answers, but not for long.
    eventually("found over the socket", || listings().expect("readable").contains(&listing));
    let [one, two] = &listing.components[..] else { panic!("two components") };
    assert!(one.pid != two.pid && one.process != two.process && one.state == "running");
    if rustix::process::geteuid().is_root() {
        assert!(one.uid != two.uid);
    }
    for (listed, pid) in [(one, one.pid), (two, two.pid)] {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", pid.expect("running"))).expect("alive");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("Uid:"), vec![listed.uid.expect("running").to_string(); 4]);
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set}");
        }
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1".to_owned()], vec!["2".to_owned()]));
        if rustix::process::geteuid().is_root() {
            assert!(field("Groups:").is_empty());
        }
    }
    assert_eq!((one.regions[0].bytes, one.regions[0].access), (8192, Access::ReadOnly));
    assert_eq!(one.guards, ["asks nobody"]);
    let peers: Vec<_> =
        one.channels.iter().map(|channel| (channel.port.as_str(), channel.peer.as_deref())).collect();
    assert_eq!(peers, [("in", None), ("out", Some("two"))]);
    assert!(one.calls.iter().all(|call| !call.starts_with("open") && !call.starts_with("exec")));
    supervisor.stop();
    assert!(listings().expect("readable").iter().all(|found| found.name != name));
}

/// Requests and answers of all sizes are delivered, and one that is too large is refused before it is sent.
#[test]
fn questions_and_answers() {
    let supervisor = start(asked("echo", "echo"));
    let echo = asker(&supervisor, "echo");
    for bytes in [0, 1, 4096, 65_000] {
        let question = vec![7; bytes];
        assert_eq!(echo.ask(0, &Question::Echo(question.clone()), soon()).expect("an answer"), question);
    }
    let large = echo.ask(0, &Question::Echo(vec![0; 65_536]), soon());
    assert!(matches!(large, Err(ComponentError::TooLarge { .. })), "{large:?}");
    // Fits as a question, and with the answer's length not as an answer.
    let tickets: Vec<_> = (0..20u8)
        .map(|number| echo.start(0, &Question::Echo(vec![number]), &[], soon()).expect("sent"))
        .collect();
    assert_eq!(echo.in_flight(), 20);
    for (number, ticket) in tickets.into_iter().enumerate().rev() {
        assert_eq!(echo.finish(ticket, soon()).expect("an answer").body, [number as u8]);
    }
}

/// Many threads share one channel to a component with many threads; each gets its own answers.
#[test]
fn threads_on_both_sides() {
    let supervisor = start(asked("threads", "threads"));
    let asker = asker(&supervisor, "threads");
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let asker = &asker;
            scope.spawn(move || {
                for round in 0..200u32 {
                    let question = [thread.to_le_bytes(), round.to_le_bytes()].concat();
                    let answer = asker.ask(0, &Question::Echo(question.clone()), soon());
                    assert_eq!(answer.expect("an answer"), question);
                }
            });
        }
    });
    assert_eq!(asker.in_flight(), 0);
}

/// The client's name is what the runtime entered, whatever the client says: an invalid index is refused, a
/// revoked one is refused from then on, and a process cannot write the page of its own names.
#[test]
fn aliases_are_proven_or_refused() {
    let supervisor = start(asked("echo", "echo"));
    let echo = asker(&supervisor, "echo");
    let aliases = supervisor.aliases();
    aliases.set(5, &[9; 32]).expect("set");
    assert_eq!(echo.ask(5, &Question::WhoAmI, soon()).expect("an answer"), [9; 32]);
    let own = echo.ask(0, &Question::WhoAmI, soon()).expect("an answer");
    assert!(own != [9; 32] && own.len() == 32);
    for forged in [1, 4, 6, 63, 64, 1000, u16::MAX] {
        let refused = echo.ask(forged, &Question::WhoAmI, soon());
        assert!(
            matches!(refused, Err(ComponentError::Refused { refusal: Refusal::AliasInvalid, .. })),
            "{forged}: {refused:?}"
        );
    }
    aliases.revoke(5).expect("revoked");
    let refused = echo.ask(5, &Question::WhoAmI, soon());
    assert!(
        matches!(refused, Err(ComponentError::Refused { refusal: Refusal::AliasInvalid, .. })),
        "{refused:?}"
    );
}

/// A component calls another under its own name, which is that of its process.
#[test]
fn components_ask_each_other() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let mut plan = asked("relay", "relay");
    plan.components.push(component("echo", "echo"));
    plan.channels.push(ChannelPlan::new(End::of("relay", "next"), End::of("echo", "in")));
    let told = move |event: Event| {
        if let Event::Starting { component, process, .. } = event {
            seen.lock().push((component.to_owned(), process));
        }
    };
    let supervisor = Supervisor::start(program(), plan, told).expect("it starts");
    let relay: Asker<Question, Vec<u8>> = supervisor.ports().asker("relay").expect("a port");
    let name = relay.ask(0, &Question::WhoAmI, soon()).expect("an answer");
    let relays: ProcessName = names.lock().iter().find(|(name, _)| name == "relay").expect("started").1;
    assert_eq!(name, relays.to_bytes());
}

/// However a component crashes, the client learns that it is unknown whether its request was done, the reason
/// is reported, and the next request finds the component restarted, as a process with another name.
#[test]
fn crashes_and_restarts() {
    let cases = [
        (0, "SIGSEGV"),
        (1, "it panicked; its last words: "),
        (2, "memory allocation of"),
        (3, "it used a forbidden system call, openat"),
        (42, "it ended with code 42"),
    ];
    let mut plan = asked("echo", "echo");
    plan.components[0].profile.memory_bytes_max = 64 << 20;
    plan.components[0].restart.times_max = 100;
    let (supervisor, ends) = watched(plan);
    let echo = asker(&supervisor, "echo");
    let mut processes = vec![supervisor.listing().components[0].process.clone()];
    for (how, words) in cases {
        let before = echo.start(0, &Question::Crash(how), &[], soon()).expect("sent");
        let lost = echo.finish(before, soon());
        assert!(
            matches!(&lost, Err(ComponentError::UnknownWhetherDone { request, .. }) if *request == before.number()),
            "{how}: {lost:?}"
        );
        let (_, reason, restarts) = next_end(&ends);
        assert!(reason.contains(words) && restarts, "{how}: {reason}");
        // Asking again under the same number reaches the new process.
        let again =
            echo.start_again(before.number(), 0, &Question::Echo(vec![how]), &[], soon()).expect("sent");
        assert_eq!(again.number(), before.number());
        assert_eq!(echo.finish(again, soon()).expect("an answer").body, [how]);
        processes.push(supervisor.listing().components[0].process.clone());
    }
    supervisor.kill("echo").expect("it runs");
    assert!(next_end(&ends).1.starts_with("it was killed"));
    assert_eq!(echo.ask(0, &Question::Echo(vec![1]), soon()).expect("an answer"), [1]);
    processes.push(supervisor.listing().components[0].process.clone());
    let distinct: std::collections::BTreeSet<_> = processes.iter().collect();
    assert_eq!(distinct.len(), processes.len());
    assert_eq!(supervisor.listing().components[0].restarts, 6);
}

/// A profile's permissions are sufficient and necessary for using what was passed to a component.
#[test]
fn permissions_open() {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    let run = |name: &str,
               permissions: &[Permission],
               file: Option<std::os::fd::OwnedFd>,
               configuration: Vec<u8>| {
        let mut one = ComponentPlan::new(name, Profile::with_permissions(permissions));
        one.files = file
            .into_iter()
            .map(|file| (if name == "device" { "disk" } else { "listener" }.to_owned(), file))
            .collect();
        one.configuration = configuration;
        one.restart = Restart::NEVER;
        watched(Plan { name: "doors".to_owned(), components: vec![one], channels: Vec::new() })
    };
    let greeting = |mut stream: TcpStream| {
        let mut words = String::new();
        stream.read_to_string(&mut words).expect("read");
        words
    };
    let listen = || TcpListener::bind(("127.0.0.1", 0)).expect("a socket");

    let listener = listen();
    let address = listener.local_addr().expect("an address");
    let (_running, ends) = run("network", &[Permission::Network], Some(listener.into()), Vec::new());
    assert_eq!(greeting(TcpStream::connect(address).expect("it listens")), "hello");
    assert_eq!(next_end(&ends).1, "it is done");
    let (_running, ends) = run("network", &[], Some(listen().into()), Vec::new());
    assert!(next_end(&ends).1.contains("it was stopped"));

    let listener = listen();
    let port = listener.local_addr().expect("an address").port().to_le_bytes().to_vec();
    let (_running, ends) = run("connect", &[Permission::Connect], None, port.clone());
    assert_eq!(greeting(listener.accept().expect("it connects").0), "hello");
    assert_eq!(next_end(&ends).1, "it is done");
    let (_running, ends) = run("connect", &[], None, port);
    assert!(next_end(&ends).1.contains("system call, socket"));

    let disk = || Some(std::os::fd::OwnedFd::from(tempfile::tempfile().expect("a file")));
    let (_running, ends) = run("device", &[Permission::Device], disk(), Vec::new());
    assert_eq!(next_end(&ends).1, "it is done");
    let (_running, ends) = run("device", &[], disk(), Vec::new());
    assert!(next_end(&ends).1.contains("fsync"));
}

/// A component that writes a lot is read in moderation: its last output is stored, of limited length and safe
/// to print.
#[test]
fn last_words_are_few() {
    let (supervisor, ends) = watched(asked("echo", "echo"));
    let echo = asker(&supervisor, "echo");
    assert!(echo.ask(0, &Question::Crash(5), soon()).is_err());
    let (_, reason, _) = next_end(&ends);
    assert!(reason.contains("code 42") && reason.ends_with("the end"), "{reason}");
    assert!(reason.len() < 4096 && !reason.contains(char::is_control));
    assert_eq!(echo.ask(0, &Question::Echo(vec![1]), soon()).expect("an answer"), [1]);
}

/// What a component wrote to a region before it ended is there for its next process.
#[test]
fn regions_outlive_crashes() {
    let regions = Regions::create(&program(), 1 << 20).expect("regions");
    let region = Arc::new(regions.region(4096).expect("a region"));
    let mut plan = asked("echo", "echo");
    plan.components[0].regions.push(RegionGrant {
        name: "region".to_owned(),
        region: Arc::clone(&region),
        access: Access::ReadWrite,
    });
    let supervisor = start(plan);
    let echo = asker(&supervisor, "echo");
    echo.ask(0, &Question::Write { offset: 10, bytes: b"acknowledged".to_vec() }, soon()).expect("written");
    supervisor.kill("echo").expect("it runs");
    let read = loop {
        match echo.ask(0, &Question::Read { offset: 10, length: 12 }, soon()) {
            Err(ComponentError::UnknownWhetherDone { .. } | ComponentError::Disconnected(_)) => {}
            answer => break answer.expect("an answer"),
        }
    };
    assert_eq!(read, b"acknowledged");
}

/// A component that crashes again and again stays down, with a reason; who asks it learns that nobody answers.
#[test]
fn crash_loops_end() {
    let mut plan = asked("bad", "crash");
    plan.components[0].configuration = vec![42];
    plan.components[0].restart =
        Restart { times_max: 3, window: Duration::from_secs(600), wait: Duration::from_millis(1) };
    let (supervisor, ends) = watched(plan);
    let all: Vec<_> = (0..4).map(|_| next_end(&ends)).collect();
    assert_eq!(all.iter().map(|(_, _, restarts)| *restarts).collect::<Vec<_>>(), [true, true, true, false]);
    let listed = &supervisor.listing().components[0];
    assert_eq!((listed.state.as_str(), listed.restarts), ("down", 3));
    assert!(listed.last_end.as_ref().expect("a reason").contains("it crashed 4 times"), "{listed:?}");
    let unanswered =
        asker(&supervisor, "bad").ask(0, &Question::WhoAmI, Patience::of(Duration::from_millis(300)));
    assert!(unanswered.is_err(), "{unanswered:?}");
}

/// A component that ends with success is done, and is not started anew.
#[test]
fn done_is_done() {
    let mut plan = asked("once", "crash");
    plan.components[0].configuration = vec![4];
    plan.components[0].program = "done".to_owned();
    let (supervisor, ends) = watched(plan);
    assert_eq!(next_end(&ends), ("once".to_owned(), "it is done".to_owned(), false));
    assert_eq!(supervisor.listing().components[0].state, "done");
}

/// No component outlives its supervisor, even one that is killed in the middle.
#[test]
fn nothing_outlives_the_supervisor() {
    let mut host = Command::new(HOST)
        .args(["start-and-wait"])
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stdout = host.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let pids: Vec<i32> = serde_json::from_str(&line).expect("numbers of processes");
    assert_eq!(pids.len(), 3);
    let pidfds: Vec<_> = pids
        .iter()
        .map(|pid| {
            let pid = rustix::process::Pid::from_raw(*pid).expect("a number");
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("alive")
        })
        .collect();
    host.kill().expect("killed");
    host.wait().expect("ended");
    for pidfd in &pidfds {
        let mut events = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec::try_from(PATIENCE).expect("a time");
        assert_eq!(rustix::event::poll(&mut events, Some(&limit)), Ok(1), "it ends");
    }
}

/// A read-only view can be read, and nothing that its holder can do here writes to it. A revoked view reads
/// nothing, and a mapping of it ends its process when touched, while the region keeps its content.
#[test]
fn regions_and_their_views() {
    let regions = Regions::create(&program(), 64 << 10).expect("regions");
    let region = Arc::new(regions.region(8192).expect("a region"));
    region.write_at(0, b"first").expect("written");
    region.write_at(8187, b"last!").expect("written");
    assert!(region.write_at(8188, b"last!").is_err() && region.read_at(u64::MAX, &mut [0]).is_err());
    let mut plan = asked("reads", "echo");
    plan.components.push(component("writes", "echo"));
    plan.channels.push(ChannelPlan::new(End::host("writes"), End::of("writes", "in")));
    for component in &mut plan.components {
        component.restart = Restart::NEVER;
    }
    let (supervisor, ends) = watched(plan);
    supervisor.grant("reads", "region", &region, Access::ReadOnly).expect("granted");
    supervisor.grant("writes", "region", &region, Access::ReadWrite).expect("granted");
    let (reads, writes) = (asker(&supervisor, "reads"), asker(&supervisor, "writes"));
    let read = |offset| Question::Read { offset, length: 5 };
    let write = |bytes: &[u8]| Question::Write { offset: 0, bytes: bytes.to_vec() };
    assert_eq!(reads.ask(0, &read(0), soon()).expect("read"), b"first");
    assert!(matches!(reads.ask(0, &write(b"wrong"), soon()), Err(ComponentError::Refused { .. })));
    writes.ask(0, &write(b"again"), soon()).expect("written");
    assert_eq!(reads.ask(0, &read(0), soon()).expect("read"), b"again");
    writes.ask(0, &Question::Map, soon()).expect("mapped");
    assert_eq!(writes.ask(0, &Question::Touch { offset: 1 }, soon()).expect("read"), b"g");

    region.revoke().expect("revoked");
    let mut kept = [0; 5];
    region.read_at(0, &mut kept).expect("kept");
    assert_eq!(&kept, b"again");
    region.read_at(8187, &mut kept).expect("kept");
    assert_eq!(&kept, b"last!");
    assert!(
        matches!(reads.ask(0, &read(0), soon()), Err(ComponentError::Refused { .. })),
        "the old view is empty"
    );
    // Writing through the old view changes nothing for anybody else.
    let _ = writes.ask(0, &write(b"stale"), soon());
    region.read_at(0, &mut kept).expect("kept");
    assert_eq!(&kept, b"again");
    let touched = writes.ask(0, &Question::Touch { offset: 4097 }, soon());
    assert!(matches!(touched, Err(ComponentError::UnknownWhetherDone { .. })), "{touched:?}");
    let (who, reason, _) = next_end(&ends);
    assert!(who == "writes" && reason.contains("a region that was revoked"), "{reason}");
    // A component that may still read is given a new view.
    supervisor.grant("reads", "region", &region, Access::ReadOnly).expect("granted");
    assert_eq!(reads.ask(0, &read(0), soon()).expect("read"), b"again");

    region.punch(0).expect("emptied");
    assert_eq!(reads.ask(0, &read(0), soon()).expect("read"), [0; 5]);
    assert!(region.punch(2).is_err());
}

/// Regions take no more than they may together, and give back what they took.
#[test]
fn regions_are_bounded() {
    let regions = Regions::create(&program(), 64 << 10).expect("regions");
    let some: Vec<Region> = (0..16).map(|_| regions.region(4096).expect("it fits")).collect();
    assert!(matches!(regions.region(1), Err(ComponentError::RegionsFull { .. })));
    assert!(regions.region(u64::MAX).is_err());
    assert_eq!(regions.bytes_used(), 64 << 10);
    drop(some);
    assert_eq!(regions.bytes_used(), 0);
    // A holder that fills a revoked file again does not take the place of others for good.
    for _ in 0..100 {
        let region = regions.region(64 << 10).expect("it fits");
        let view = region.view(Access::ReadWrite).expect("a view");
        region.write_at(0, &vec![1; 64 << 10]).expect("written");
        drop(region);
        assert_eq!(rustix::io::pread(&view, &mut [0; 8], 0), Ok(0));
        let _ = rustix::io::pwrite(&view, &vec![2; 64 << 10], 0);
    }
}

/// What the host itself cannot do to a read-only view, whatever its user: write, resize, empty, map it
/// writable, open it again for writing, or make it executable.
#[test]
fn read_only_views_stay_so() {
    use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, ftruncate, openat};
    use std::os::fd::AsRawFd;
    let regions = Regions::create(&program(), 64 << 10).expect("regions");
    let region = regions.region(4096).expect("a region");
    region.write_at(0, b"as it was").expect("written");
    let view = region.view(Access::ReadOnly).expect("a view");
    assert!(rustix::io::pwrite(&view, b"x", 0).is_err());
    assert!(ftruncate(&view, 0).is_err());
    assert!(fallocate(&view, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).is_err());
    let path = format!("/proc/self/fd/{}", view.as_raw_fd());
    for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDONLY | OFlags::TRUNC] {
        assert!(openat(CWD, &path, flags, Mode::empty()).is_err(), "{flags:?}");
    }
    assert!(std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).is_err());
    let written = holdfast_components::View::new(view, Access::ReadWrite, 4096);
    assert!(written.map().is_err() && written.write_at(0, b"x").is_err());
    let mut now = [0; 9];
    region.read_at(0, &mut now).expect("read");
    assert_eq!(&now, b"as it was");
}

/// Bytes of any kind, sent by the holder of an end, affect nothing but that end: the component continues to
/// answer others.
#[test]
fn nonsense_is_refused() {
    let mut plan = asked("echo", "echo");
    plan.channels.push(ChannelPlan::new(End::host("other"), End::of("echo", "other")));
    let supervisor = start(plan);
    let raw: Asker<Vec<u8>, Vec<u8>> = supervisor.ports().asker("other").expect("a port");
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..500 {
        let bytes: Vec<u8> = (0..random() % 64).map(|_| random() as u8).collect();
        // With its length in front, whose first byte names a request; small lengths are existing requests.
        let outcome = raw.ask(0, &bytes, soon());
        let fine = matches!(
            &outcome,
            Ok(_) | Err(ComponentError::Refused { .. } | ComponentError::PeerMisbehaved { .. })
        );
        let ends = matches!(&outcome, Err(ComponentError::UnknownWhetherDone { .. }));
        assert!(fine || ends, "{outcome:?}");
    }
    let echo = asker(&supervisor, "echo");
    assert_eq!(echo.ask(0, &Question::Echo(vec![1]), soon()).expect("an answer"), [1]);
}

/// One that asks and never reads its answers waits for itself; others are answered meanwhile.
#[test]
fn who_does_not_read_waits_alone() {
    let mut plan = asked("echo", "echo");
    let mut other = ChannelPlan::new(End::host("other"), End::of("echo", "other"));
    other.bounds.in_flight_max = 1000;
    plan.channels.push(other);
    let supervisor = start(plan);
    let greedy = asker(&supervisor, "other");
    let mut sent = Vec::new();
    let stuck = loop {
        match greedy.start(0, &Question::Echo(vec![1; 60_000]), &[], Patience::of(Duration::from_millis(200)))
        {
            Ok(ticket) => sent.push(ticket),
            Err(error) => break error,
        }
        assert!(sent.len() < 900, "queues are bounded");
    };
    assert!(matches!(stuck, ComponentError::PeerDoesNotRead(_)), "{stuck:?}");
    let echo = asker(&supervisor, "echo");
    for number in 0..50u8 {
        assert_eq!(echo.ask(0, &Question::Echo(vec![number]), soon()).expect("an answer"), [number]);
    }
    // And when the peer finally reads, everything is there.
    for ticket in sent {
        assert_eq!(greedy.finish(ticket, soon()).expect("an answer").body.len(), 60_000);
    }
}

/// More in flight than agreed is refused at home.
#[test]
fn requests_in_flight_are_bounded() {
    let mut plan = asked("echo", "echo");
    plan.channels[0].bounds.in_flight_max = 3;
    let supervisor = start(plan);
    let echo = asker(&supervisor, "echo");
    let tickets: Vec<_> =
        (0..3).map(|_| echo.start(0, &Question::WhoAmI, &[], soon()).expect("sent")).collect();
    let refused = echo.start(0, &Question::WhoAmI, &[], soon());
    assert!(matches!(refused, Err(ComponentError::TooManyInFlight(3))), "{refused:?}");
    for ticket in tickets {
        echo.finish(ticket, soon()).expect("an answer");
    }
    // Files were not agreed on.
    let file = std::fs::File::open("/dev/null").expect("open");
    let refused = echo.start(0, &Question::WhoAmI, &[std::os::fd::AsFd::as_fd(&file)], soon());
    assert!(matches!(refused, Err(ComponentError::TooManyFiles { .. })), "{refused:?}");
    assert!(supervisor.ports().asker::<Question, Vec<u8>>("none").is_err());
}

/// A plan with a component that the program does not have starts nothing, and says which.
#[test]
fn unknown_components_are_named() {
    let Err(error) = Supervisor::start(program(), asked("x", "nothing"), quiet) else { panic!("it started") };
    assert!(error.to_string().contains("no component named nothing"), "{error}");
}

/// A page that is not sealed, or whose maker could shrink it, is not accepted as a page of aliases.
#[test]
fn channels_want_sealed_pages() {
    let page = AliasPage::create().expect("a page");
    let reader = page.reader().expect("a reader");
    let other = std::os::fd::OwnedFd::from(tempfile::tempfile().expect("a file"));
    let bounds = holdfast_components::Bounds::default();
    assert!(holdfast_components::Channel::pair("x", bounds, &reader, &reader).is_ok());
    assert!(holdfast_components::Channel::pair("x", bounds, &reader, &other).is_err());
}

/// A client that waits in vain may wait again, and gets the answer then; a request that is given up takes no
/// place.
#[test]
fn deadlines() {
    let mut plan = asked("late", "echo");
    plan.components[0].profile.accept_without = vec![Wall::Landlock];
    let supervisor = start(plan);
    let late = asker(&supervisor, "late");
    assert_eq!(late.ask(0, &Question::Echo(vec![2]), soon()).expect("an answer"), [2]);
    let pid = supervisor.listing().components[0].pid.expect("it runs");
    let process = rustix::process::Pid::from_raw(pid).expect("a number");
    rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stopped");
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    eventually("it stands still", || status().contains("State:\tT"));
    let ticket = late.start(0, &Question::Echo(vec![3]), &[], soon()).expect("sent");
    let early = late.finish(ticket, Patience::of(Duration::from_millis(20)));
    assert!(matches!(early, Err(ComponentError::TimedOut(_))), "{early:?}");
    // Nor do requests in vain, repeated, use up the limit of requests in flight.
    for _ in 0..100 {
        let vain = late.ask(0, &Question::WhoAmI, Patience::of(Duration::from_millis(1)));
        assert!(matches!(vain, Err(ComponentError::TimedOut(_))), "{vain:?}");
    }
    assert_eq!(late.in_flight(), 1);
    rustix::process::kill_process(process, rustix::process::Signal::CONT).expect("it goes on");
    assert_eq!(late.finish(ticket, soon()).expect("an answer").body, [3]);
}

/// The table of trusted lines that the listing shows is that of the sources.
#[test]
fn trusted_lines_are_current() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/trusted-lines");
    let output = Command::new(script).arg("--check").output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = holdfast_components::trusted_lines();
    assert!(lines["runtime"] > 0 && lines["channels"] > 0 && lines["volume"] > 0);
}

/// Whichever end of a channel between two components crashes, the other one continues over a new channel.
#[test]
fn components_find_each_other_again() {
    let mut plan = asked("relay", "relay");
    plan.components.push(component("echo", "threads"));
    plan.channels.push(ChannelPlan::new(End::of("relay", "next"), End::of("echo", "in")));
    for component in &mut plan.components {
        component.restart.times_max = 100;
    }
    let (supervisor, ends) = watched(plan);
    let relay = asker(&supervisor, "relay");
    for victim in ["relay", "echo", "relay", "relay", "echo", "echo"] {
        supervisor.kill(victim).expect("it runs");
        assert_eq!(next_end(&ends).0, victim);
        // A lost request is reported as such, by the channel that was cut or in the relay's error.
        let answer = loop {
            match relay.ask(0, &Question::Echo(victim.as_bytes().to_vec()), soon()) {
                Err(ComponentError::UnknownWhetherDone { .. }) => {}
                Err(ComponentError::Refused { refusal: Refusal::Failed(words), .. }) => {
                    assert!(words.contains("it is unknown whether") || words.contains("refused"), "{words}");
                }
                answer => break answer.expect("an answer"),
            }
        };
        assert_eq!(answer, victim.as_bytes());
    }
}
