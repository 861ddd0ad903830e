//! Section 5.1.2: a system call, a question over a channel, and how fast 16 MB pass in pieces of 4 KB.
//!
//! Channels are measured to a component with one thread that answers and with two, and to one in this process, where
//! asking is calling ([`Merged`]); regions by reading their files and in memory.

use crate::report::median;
use anyhow::Context as _;
use holdfast_components::{
    Access, Asker, Bounds, ChannelPlan, ComponentPlan, Context, End, Main, Merged, Patience, Permission,
    Plan, Profile, Program, Regions, Reply, Supervisor, View,
};
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What answers.
pub const COMPONENTS: [(&str, Main); 2] = [("echo-1", one), ("echo-2", two)];

const PAGE: usize = 4096;
/// Pieces of 4 KB in 16 MB.
const PIECES: u32 = 4096;

#[derive(clap::Args)]
pub struct Options {
    /// Times that each is measured, in turns.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// System calls and questions in one round.
    #[arg(long, default_value_t = 5000)]
    times: u32,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct MicroResult {
    figure: &'static str,
    workload: String,
    round: usize,
    /// Of one.
    seconds: f64,
    /// Of one.
    bytes: usize,
}

fn one(context: Context) -> ExitCode {
    echo(context, 1)
}

fn two(context: Context) -> ExitCode {
    echo(context, 2)
}

/// Answers with as many bytes as there are in a short question, and with none to a long one.
fn echo(context: Context, threads: usize) -> ExitCode {
    let answer = |body: &[u8]| if body.len() > PAGE { Vec::new() } else { body.to_vec() };
    let served = context.ports.serve_owned(threads, move |request| Reply {
        alias: 0,
        outcome: Ok(answer(request.body)),
        files: Vec::new(),
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(program: &str) -> Plan {
    let profile = Profile::with_permissions(&[Permission::Threads]);
    Plan {
        name: "micro-benchmark".to_owned(),
        components: vec![ComponentPlan {
            program: program.to_owned(),
            ..ComponentPlan::new("echo", profile)
        }],
        channels: vec![ChannelPlan {
            asks: End::host("ask"),
            serves: End::of("echo", "ask"),
            bounds: Bounds::default(),
        }],
    }
}

fn patience() -> Patience {
    Patience::of(Duration::from_secs(10))
}

/// One thing that is measured: what one of it is called, its bytes, and how often it is done in a round.
struct Measure<'a> {
    name: String,
    bytes: usize,
    times: u32,
    once: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
}

fn of_channel<'a>(name: &str, asker: &'a Asker<[u8; 1], [u8; 1]>, times: u32) -> Measure<'a> {
    let once = Box::new(move || Ok(asker.ask(0, &[7], patience()).map(|_| ())?));
    Measure { name: format!("round trip, {name}"), bytes: 0, times, once }
}

/// The paper's throughput over a channel: questions of 4 KB, empty answers.
fn of_pages<'a>(name: &str, asker: &'a Asker<Vec<u8>, ()>, flight: u32) -> Measure<'a> {
    let page = vec![7; PAGE];
    let once = Box::new(move || {
        let tickets = (0..flight).map(|_| asker.start(0, &page, &[], patience()));
        let tickets = tickets.collect::<Result<Vec<_>, _>>()?;
        Ok(tickets.into_iter().try_for_each(|ticket| asker.finish(ticket, patience()).map(|_| ()))?)
    });
    let name = format!("4 KB questions, {flight} in flight, {name}");
    Measure { name, bytes: PAGE * flight as usize, times: PIECES / flight, once }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let program = Program::current()?;
    let regions = Regions::create(&program, 1 << 20)?;
    let region = regions.region(PAGE as u64)?;
    let view = || -> anyhow::Result<View> {
        Ok(View::new(region.view(Access::ReadOnly)?, Access::ReadOnly, region.bytes()))
    };
    let (read, mapped) = (view()?, view()?.map()?);
    let apart = |program: &str| Supervisor::start(Program::current()?, plan(program), |_| ());
    let (single, double) = (apart("echo-1")?, apart("echo-2")?);
    let merged = Merged::start(&COMPONENTS, plan("echo-1"), |_| ())?;
    let ports = [("one thread", single.ports()), ("two threads", double.ports()), ("merged", merged.ports())];
    let mut short = Vec::new();
    let mut long = Vec::new();
    for (name, ports) in ports {
        short.push((name, ports.asker::<[u8; 1], [u8; 1]>("ask")?));
    }
    // A port has one asker at a time, so those for pages have components of their own.
    let (single_2, double_2) = (apart("echo-1")?, apart("echo-2")?);
    let merged_2 = Merged::start(&COMPONENTS, plan("echo-1"), |_| ())?;
    let ports =
        [("one thread", single_2.ports()), ("two threads", double_2.ports()), ("merged", merged_2.ports())];
    for (name, ports) in ports {
        long.push((name, ports.asker::<Vec<u8>, ()>("ask")?));
    }
    let mut zero = File::open("/dev/zero")?;
    let mut buffer = vec![0; PAGE];
    let (mut copy_1, mut copy_2) = (vec![0; PAGE], vec![0; PAGE]);
    let mut pipes = Pipes::start()?;
    let mut measures = vec![
        Measure {
            name: "null system call".to_owned(),
            bytes: 0,
            times: options.times * 10,
            once: Box::new(|| {
                std::hint::black_box(rustix::process::getppid());
                Ok(())
            }),
        },
        Measure {
            name: "4 KB from the kernel (/dev/zero)".to_owned(),
            bytes: PAGE,
            times: PIECES,
            once: Box::new(|| Ok(zero.read_exact(&mut buffer)?)),
        },
        Measure {
            name: "4 KB from a region, read".to_owned(),
            bytes: PAGE,
            times: PIECES,
            once: Box::new(|| Ok(read.read_at(0, &mut copy_1)?)),
        },
        Measure {
            name: "4 KB from a region, mapped".to_owned(),
            bytes: PAGE,
            times: PIECES,
            once: Box::new(|| {
                mapped.read_at(0, &mut copy_2)?;
                std::hint::black_box(&mut copy_2);
                Ok(())
            }),
        },
        Measure {
            name: "round trip, pipes, two processes".to_owned(),
            bytes: 0,
            times: options.times,
            once: Box::new(|| pipes.round_trip()),
        },
    ];
    measures.extend(short.iter().map(|(name, asker)| of_channel(name, asker, options.times)));
    for flight in [1, 16] {
        measures.extend(long.iter().map(|(name, asker)| of_pages(name, asker, flight)));
    }
    let mut found: Vec<MicroResult> = Vec::new();
    for round in 0..options.rounds {
        for measure in &mut measures {
            (0..measure.times / 10).try_for_each(|_| (measure.once)())?;
            let began = Instant::now();
            (0..measure.times).try_for_each(|_| (measure.once)())?;
            let seconds = began.elapsed().as_secs_f64() / f64::from(measure.times);
            let (workload, bytes) = (measure.name.clone(), measure.bytes);
            found.push(MicroResult { figure: "stack-micro", workload, round, seconds, bytes });
        }
    }
    println!("{:<46} {:>10} {:>10} {:>10} {:>10}", "", "low us", "median us", "high us", "MB/s");
    for measure in &measures {
        let mut seconds: Vec<f64> =
            found.iter().filter(|it| it.workload == measure.name).map(|it| it.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let at = |part: f64| seconds[((seconds.len() - 1) as f64 * part).round() as usize] * 1e6;
        let rate = measure.bytes as f64 / median(&seconds) / 1e6;
        let rate = if measure.bytes > 0 { format!("{rate:.0}") } else { String::new() };
        println!(
            "{:<46} {:>10.2} {:>10.2} {:>10.2} {rate:>10}",
            measure.name,
            at(0.1),
            median(&seconds) * 1e6,
            at(0.9)
        );
    }
    if let Some(path) = &options.json {
        let mut file = File::options().create(true).append(true).open(path)?;
        for one in &found {
            writeln!(file, "{}", serde_json::to_string(one)?)?;
        }
    }
    drop(measures);
    Ok(())
}

/// `cat`, which sends back what it gets: the paper's channels on Linux.
struct Pipes(std::process::Child);

impl Pipes {
    fn start() -> anyhow::Result<Pipes> {
        use std::process::{Command, Stdio};
        Ok(Pipes(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cat")?))
    }

    fn round_trip(&mut self) -> anyhow::Result<()> {
        self.0.stdin.as_mut().context("a pipe")?.write_all(&[7])?;
        Ok(self.0.stdout.as_mut().context("a pipe")?.read_exact(&mut [0])?)
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
