//! What a component costs: a null system call for comparison, a start in a sandbox, a round trip over a channel, and
//! 4 KB questions one at a time, sixteen in flight, and through a region (the paper's 5.1.2). Prints a line of JSON each.
//!
//! `cargo run --release -p holdfast-components --example channel_bench`

use holdfast_components::{
    Access, Answer, Asker, Bounds, ChannelPlan, ComponentPlan, Context, Door, End, Main, Patience, Plan,
    Profile, Program, Regions, Result, Supervisor, run_if_component,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TABLE: &[(&str, Main)] = &[("echo", echo), ("threads", threads)];
const PAGE: usize = 4096;

fn answer(context: &Context, body: &[u8]) -> Answer {
    // A short question is answered with itself; "page" fills a page of the region and answers shortly.
    if body == borsh::to_vec(&b"page".to_vec()).expect("bytes") {
        let written = context.ports.region("region").and_then(|view| view.write_at(0, &[7; PAGE]));
        return Answer::of(&vec![u8::from(written.is_ok())]);
    }
    Answer { alias: 0, outcome: Ok(body.to_vec()), files: Vec::new() }
}

fn echo(context: Context) -> ExitCode {
    let ended = context.ports.serve(|request| answer(&context, request.body));
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn threads(context: Context) -> ExitCode {
    let ended = context.ports.serve_with_threads(2, |request| answer(&context, request.body));
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(component: &str) -> Plan {
    let doors: &[Door] = if component == "threads" { &[Door::Threads] } else { &[] };
    Plan {
        name: "channel-bench".to_owned(),
        components: vec![ComponentPlan::new(component, Profile::with_doors(doors))],
        channels: vec![ChannelPlan {
            asks: End::host("ask"),
            serves: End::of(component, "ask"),
            bounds: Bounds::default(),
        }],
    }
}

/// Runs something many times and prints how long one took.
fn measure(name: &str, bytes: usize, times: u32, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..times / 10 {
        once()?;
    }
    let began = Instant::now();
    for _ in 0..times {
        once()?;
    }
    let each = began.elapsed().as_secs_f64() / f64::from(times);
    let value = serde_json::json!({
        "measure": name, "times": times, "microseconds": each * 1e6, "megabytes_a_second": bytes as f64 / each / 1e6,
    });
    println!("{value}");
    Ok(())
}

fn main() -> ExitCode {
    if let Some(code) = run_if_component(TABLE) {
        return code;
    }
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<()> {
    let patience = || Patience::of(Duration::from_secs(10));
    measure("null system call", 0, 1_000_000, || {
        std::hint::black_box(rustix::process::getppid());
        Ok(())
    })?;
    measure("start and stop of a component", 0, 50, || {
        Supervisor::start(Program::current()?, plan("echo"), |_| ())?.stop();
        Ok(())
    })?;
    let regions = Regions::create(&Program::current()?, 1 << 20)?;
    let region = Arc::new(regions.region(PAGE as u64)?);
    for component in ["echo", "threads"] {
        let supervisor = Supervisor::start(Program::current()?, plan(component), |_| ())?;
        supervisor.grant(component, "region", &region, Access::ReadWrite)?;
        let asker: Asker<Vec<u8>, Vec<u8>> = supervisor.ports().asker("ask")?;
        let name = |what: &str| format!("{what} ({component})");
        let (short, page) = (vec![1u8; 16], vec![1u8; PAGE]);
        measure(&name("round trip, 16 bytes"), 16, 20_000, || asker.ask(0, &short, patience()).map(|_| ()))?;
        measure(&name("round trip, 4 KB"), PAGE, 20_000, || asker.ask(0, &page, patience()).map(|_| ()))?;
        measure(&name("4 KB, sixteen in flight"), 16 * PAGE, 2_000, || {
            let tickets: Result<Vec<_>> = (0..16).map(|_| asker.start(0, &page, &[], patience())).collect();
            tickets?.into_iter().try_for_each(|ticket| asker.finish(ticket, patience()).map(|_| ()))
        })?;
        let mut copy = vec![0; PAGE];
        measure(&name("4 KB through a region"), PAGE, 20_000, || {
            asker.ask(0, &b"page".to_vec(), patience())?;
            region.read_at(0, &mut copy)
        })?;
        supervisor.stop();
    }
    Ok(())
}
