//! What the tests start: components, honest and hostile, and a few commands that need a process of their own.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{
    Answer, Context, Ended, Main, Patience, Program, Refusal, Request, run_if_component, selfcheck,
};
use std::process::ExitCode;
use std::time::Duration;

/// The components of this program.
const TABLE: &[(&str, Main)] = &[("echo", echo), ("threads", threads), ("crash", crash), ("relay", relay)];

/// What `echo` is asked.
#[derive(BorshSerialize, BorshDeserialize)]
enum Question {
    Echo(Vec<u8>),
    WhoAmI,
    Crash(u8),
    Read { offset: u64, length: u32 },
    Write { offset: u64, bytes: Vec<u8> },
    Map,
    Touch { offset: u64 },
}

fn main() -> ExitCode {
    if let Some(code) = run_if_component(TABLE) {
        return code;
    }
    match std::env::args().nth(1).as_deref() {
        Some("selfcheck") => match selfcheck(Program::current) {
            Ok(verdicts) => {
                println!("{}", serde_json::to_string(&verdicts).expect("verdicts are JSON"));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        _ => ExitCode::from(2),
    }
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
        code => std::process::exit(code.into()),
    }
}

fn answer(request: &Request, context: &Context, mapped: &mut Option<holdfast_components::Mapped>) -> Answer {
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
    Answer::from(outcome)
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

/// Crashes as its configuration says.
fn crash(context: Context) -> ExitCode {
    crash_by(context.configuration[0])
}

/// Hands every question on over its port `next`.
fn relay(context: Context) -> ExitCode {
    let Ok(next) = context.ports.asker::<Raw, Raw>("next") else { return ExitCode::FAILURE };
    let patience = || Patience::of(Duration::from_secs(10));
    let served = context.ports.serve(|request| {
        let asked = next.ask(0, &Raw(request.body.to_vec()), patience());
        Answer::from(asked.map_err(|error| Refusal::Failed(error.to_string())))
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A body that is handed on as it is.
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
