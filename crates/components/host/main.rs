//! The program that the tests start: components, honest and hostile, and a few commands that need a process
//! of their own.

mod question;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{
    ComponentPlan, Context, Ended, Main, Patience, Plan, Profile, Program, Refusal, Reply, Request,
    Supervisor, Wall, require_all_walls, run_if_component, selfcheck,
};
use question::Question;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::Duration;

/// The components of this program.
const TABLE: &[(&str, Main)] = &[
    ("echo", echo),
    ("threads", threads),
    ("crash", crash),
    ("relay", relay),
    ("done", done),
    ("network", network),
    ("connect", connect),
    ("device", device),
];

fn main() -> ExitCode {
    if let Some(code) = run_if_component(TABLE) {
        return code;
    }
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("--without-landlock").is_some() {
        take_landlock_away(arguments.next().and_then(|error| error.parse().ok()).expect("an error's number"));
    }
    match arguments.next().as_deref() {
        Some("selfcheck") => match selfcheck(Program::current) {
            Ok(checked) => {
                println!("{}", serde_json::to_string(&checked).expect("verdicts are JSON"));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Some("start") => show(&[]),
        Some("start-weaker") => show(&[Wall::Namespaces]),
        Some("start-as-usual") => show(&Profile::default().accept_without),
        Some("start-with-all-walls") => {
            require_all_walls();
            show(&Profile::default().accept_without)
        }
        Some("start-and-wait") => {
            let supervisor =
                Supervisor::start(program(), plan(&["a", "b", "c"], &[]), |_| ()).expect("it starts");
            let listing = supervisor.listing();
            let pids: Vec<_> = listing.components.iter().filter_map(|component| component.pid).collect();
            println!("{}", serde_json::to_string(&pids).expect("numbers are JSON"));
            std::thread::sleep(Duration::from_secs(600));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(2),
    }
}

fn program() -> Program {
    Program::current().expect("there is /proc")
}

fn plan(names: &[&str], accept_without: &[Wall]) -> Plan {
    let component = |name: &&str| {
        let profile = Profile { accept_without: accept_without.to_vec(), ..Profile::default() };
        ComponentPlan { program: "echo".to_owned(), ..ComponentPlan::new(name, profile) }
    };
    Plan { name: "host".to_owned(), components: names.iter().map(component).collect(), channels: Vec::new() }
}

/// Starts one component and shows the listing, or says why not.
fn show(accept_without: &[Wall]) -> ExitCode {
    match Supervisor::start(program(), plan(&["a"], accept_without), |_| ()) {
        Ok(supervisor) => {
            println!("{}", serde_json::to_string(&supervisor.listing()).expect("a listing is JSON"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes this process, and its children, see a kernel without Landlock: its system calls return this error.
fn take_landlock_away(error: u32) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};
    let rules = std::iter::once((libc::SYS_landlock_create_ruleset, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into().expect("an architecture that is known");
    let missing = SeccompAction::Errno(error);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, architecture).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("it compiles");
    apply_filter_all_threads(&program).expect("installed");
}

fn crash_by(how: u8) -> ! {
    match how {
        0 => std::process::abort(),
        1 => panic!("as told"),
        2 => loop {
            std::mem::forget(vec![1u8; 1 << 20]);
        },
        3 => {
            let _ = std::fs::File::open("/etc/passwd");
            std::process::exit(9)
        }
        5 => {
            for line in 0..10_000 {
                eprintln!("\x1b[31m{line} {}", "x".repeat(100));
            }
            eprintln!("the end");
            std::process::exit(42)
        }
        code => std::process::exit(code.into()),
    }
}

fn answer(request: &Request, context: &Context, mapped: &mut Option<holdfast_components::Mapped>) -> Reply {
    let failed = |error: holdfast_components::ComponentError| Refusal::Failed(error.to_string());
    let outcome: Result<Vec<u8>, Refusal> = request.question().and_then(|question| match question {
        Question::Echo(bytes) => Ok(bytes),
        Question::WhoAmI => Ok(request.alias.principal.to_vec()),
        Question::Crash(how) => crash_by(how),
        Question::Read { offset, length } => {
            let mut bytes = vec![0; length as usize];
            let view = context.ports.region("region").map_err(failed)?;
            view.read_at(offset, &mut bytes).map_err(failed)?;
            Ok(bytes)
        }
        Question::Write { offset, bytes } => {
            let view = context.ports.region("region").map_err(failed)?;
            view.write_at(offset, &bytes).map_err(failed)?;
            Ok(Vec::new())
        }
        Question::Map => {
            *mapped = Some(context.ports.region("region").and_then(|view| view.map()).map_err(failed)?);
            Ok(Vec::new())
        }
        Question::Touch { offset } => {
            let mut byte = [0];
            let mapped = mapped.as_ref().ok_or(Refusal::NotPermitted)?;
            mapped.read_at(offset, &mut byte).map_err(failed)?;
            Ok(byte.to_vec())
        }
    });
    Reply::from(outcome)
}

/// Answers what it is asked.
fn echo(context: Context) -> ExitCode {
    let mut mapped = None;
    match context.ports.serve(|request| answer(&request, &context, &mut mapped)) {
        Ok(Ended::Stopped) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The same, with four threads.
fn threads(context: Context) -> ExitCode {
    match context.ports.serve_with_threads(4, |request| answer(&request, &context, &mut None)) {
        Ok(Ended::Stopped) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Greets every client that connects to the socket that was passed to it.
fn network(context: Context) -> ExitCode {
    let listener = TcpListener::from(context.ports.take_file("listener").expect("it was handed out"));
    let (mut stream, _) = listener.accept().expect("somebody connects");
    stream.set_nodelay(true).expect("a setting of TCP");
    stream.write_all(b"hello").expect("written");
    ExitCode::SUCCESS
}

/// Greets a port of this machine.
fn connect(context: Context) -> ExitCode {
    let port = u16::from_le_bytes(context.configuration[..2].try_into().expect("a port"));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stream.write_all(b"hello").expect("written");
    ExitCode::SUCCESS
}

/// Writes, flushes, empties and reads a disk that it was handed.
fn device(context: Context) -> ExitCode {
    use rustix::fs::{FallocateFlags, fallocate};
    let disk = File::from(context.ports.take_file("disk").expect("it was handed out"));
    disk.write_all_at(&[7; 8192], 0).expect("written");
    disk.sync_all().expect("flushed");
    let emptied = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&disk, emptied, 0, 4096).expect("emptied");
    let mut bytes = [1; 8192];
    disk.read_exact_at(&mut bytes, 0).expect("read");
    let right = bytes[..4096] == [0; 4096] && bytes[4096..] == [7; 4096];
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Has nothing to do.
fn done(_: Context) -> ExitCode {
    ExitCode::SUCCESS
}

/// Crashes as its configuration says.
fn crash(context: Context) -> ExitCode {
    crash_by(context.configuration[0])
}

/// Hands every question on over its port `next`.
fn relay(context: Context) -> ExitCode {
    let Ok(next) = context.ports.asker::<Raw, Raw>("next") else { return ExitCode::FAILURE };
    let patience = || Patience::of(Duration::from_secs(120));
    let served = context.ports.serve(|request| {
        let asked = next.ask(0, &Raw(request.body.to_vec()), patience());
        Reply::from(asked.map_err(|error| Refusal::Failed(error.to_string())))
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A body that is sent as it is.
struct Raw(Vec<u8>);

impl BorshSerialize for Raw {
    fn serialize<W: std::io::Write>(&self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(&self.0)
    }
}

impl BorshDeserialize for Raw {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Raw> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(Raw(bytes))
    }
}
