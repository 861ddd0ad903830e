//! Runs commands at both ends of a test link.

use anyhow::{Context, bail};
use holdfast_link::{Conditions, Link, SERVER, Side};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The conditions of a link, and what happens to it.
#[derive(clap::Args)]
pub struct LinkOptions {
    /// Rate towards the client, such as 1.5mbit or 384kbit; without it there is no limit.
    #[arg(long, value_parser = rate)]
    rate: Option<u64>,
    /// Rate towards the server, if it is another.
    #[arg(long, value_parser = rate)]
    up: Option<u64>,
    /// What the link adds to a round trip, half of it each way: 30ms, 2s.
    #[arg(long, value_parser = time, default_value = "0ms")]
    delay: Duration,
    /// Up to this much more each way, at random; packets keep their order.
    #[arg(long, value_parser = time, default_value = "0ms")]
    jitter: Duration,
    /// Share of packets lost at random each way: 2% or 0.02.
    #[arg(long, value_parser = share, default_value = "0")]
    loss: f64,
    /// Bytes that may wait before the link, each way; more are dropped.
    #[arg(long, default_value_t = 64 << 10)]
    buffer: u64,
    /// Seed of the losses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cut the link this long after the command began.
    #[arg(long, value_parser = time, requires = "cut_for")]
    cut_after: Option<Duration>,
    /// Mend it after this long.
    #[arg(long, value_parser = time, requires = "cut_after")]
    cut_for: Option<Duration>,
    /// Change the client's address this long after the command began.
    #[arg(long, value_parser = time)]
    move_after: Option<Duration>,
}

/// The link, and what runs at its ends.
#[derive(clap::Args)]
#[command(after_help = "The server's address is 10.77.0.1, in the environment as HOLDFAST_LINK_SERVER.\n\n\
    Example: holdfast-bench link --rate 1.5mbit --up 384kbit --delay 30ms --loss 2% \\\n         \
    --server 'holdfast server --listen 0.0.0.0:7440 --data /tmp/data' -- sh -c 'sleep 1; ...'")]
pub struct Options {
    #[command(flatten)]
    link: LinkOptions,
    /// A shell command for the server's end, run until the client's has ended.
    #[arg(long)]
    server: Option<String>,
    /// Write what passed to this file too, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The command for the client's end.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn number(text: &str, unit: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// Bytes a second of `1.5mbit`.
fn rate(text: &str) -> Result<u64, String> {
    let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
    let bits = units.iter().find_map(|(unit, bits)| Some(number(text, unit)? * bits));
    match bits {
        Some(bits) if bits >= 8.0 => Ok((bits / 8.0) as u64),
        _ => Err("a rate reads like 1.5mbit, 384kbit or 1gbit".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = number(text, "ms").map(|ms| ms / 1e3).or_else(|| number(text, "s"));
    let known = seconds.filter(|seconds| *seconds < 1e6).map(Duration::from_secs_f64);
    known.ok_or_else(|| "a time reads like 30ms or 2s".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = number(text, "%").map(|percent| percent / 100.0).or_else(|| number(text, ""));
    share.filter(|share| *share <= 1.0).ok_or_else(|| "a share reads like 2% or 0.02".to_owned())
}

/// A started process; dropping it ends it.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl LinkOptions {
    /// Up and down.
    pub fn conditions(&self) -> (Conditions, Conditions) {
        let down = Conditions {
            bytes_per_second: self.rate,
            delay: self.delay / 2,
            jitter: self.jitter,
            loss: self.loss,
            buffer_bytes: self.buffer,
            seed: self.seed,
        };
        let up = Conditions {
            bytes_per_second: self.up.or(self.rate),
            seed: self.seed.wrapping_add(1 << 32),
            ..down
        };
        (up, down)
    }

    /// Waits for the client's end, and changes the link meanwhile as the options say.
    pub fn wait(&self, link: &Link, client: &mut Running) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        let mut steps = Vec::new();
        if let Some((after, duration)) = self.cut_after.zip(self.cut_for) {
            steps.push((after, Step::Cut));
            steps.push((after + duration, Step::Mend));
        }
        steps.extend(self.move_after.map(|after| (after, Step::Move)));
        steps.sort_by_key(|(at, _)| *at);
        let mut steps = steps.into_iter().peekable();
        loop {
            if let Some(status) = client.0.try_wait()? {
                return Ok(status);
            }
            if let Some((_, step)) = steps.next_if(|(at, _)| start.elapsed() >= *at) {
                eprintln!("link: {step:?} at {:.1} s", start.elapsed().as_secs_f64());
                match step {
                    Step::Cut => link.cut(true),
                    Step::Mend => link.cut(false),
                    Step::Move => link.move_client().context("moving the client")?,
                }
                continue;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let (up, down) = options.link.conditions();
    let link = Link::make(up, down).context("making the link")?;
    let _server = match &options.server {
        Some(command) => {
            let mut shell = link.command(Side::Server, "sh");
            // The server is our direct child, so that ending it ends it.
            let running = shell.args(["-c", &format!("exec {command}")]).stdin(Stdio::null()).spawn();
            Some(Running(running.with_context(|| format!("starting {command}"))?))
        }
        None => None,
    };
    let (program, arguments) = options.command.split_first().context("a command for the client's end")?;
    let mut command = link.command(Side::Client, program);
    command.args(arguments).env("HOLDFAST_LINK_SERVER", SERVER);
    let start = Instant::now();
    let mut client = Running(command.spawn().with_context(|| format!("starting {program}"))?);
    let status = options.link.wait(&link, &mut client)?;
    let seconds = start.elapsed().as_secs_f64();
    let (up, down) = link.counts();
    eprintln!("link: {seconds:.2} s; bytes up {}, down {}", up.bytes, down.bytes);
    for (way, counts) in [("up", up), ("down", down)] {
        eprintln!(
            "link: {way}: {} packets, {} lost, {} dropped before the link",
            counts.packets, counts.lost, counts.dropped
        );
    }
    if let Some(path) = &options.json {
        let report = serde_json::json!({
            "seconds": seconds, "bytes_up": up.bytes, "bytes_down": down.bytes,
            "packets_up": up.packets, "packets_down": down.packets,
        });
        std::fs::write(path, report.to_string()).with_context(|| format!("writing {}", path.display()))?;
    }
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    Ok(())
}

#[derive(Debug)]
enum Step {
    Cut,
    Mend,
    Move,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: rates, times and shares are read as they are written, and nonsense is refused.
    #[test]
    fn words_are_read() {
        assert_eq!((rate("1.5mbit"), rate("384kbit")), (Ok(187_500), Ok(48_000)));
        assert_eq!((time("30ms"), time("2s")), (Ok(Duration::from_millis(30)), Ok(Duration::from_secs(2))));
        assert_eq!((share("2%"), share("0.5")), (Ok(0.02), Ok(0.5)));
        for bad in ["", "fast", "-1mbit", "NaNmbit", "0kbit", "mbit"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert!(time("10").is_err() && time("1e9s").is_err() && time("-1s").is_err());
        assert!(share("101%").is_err() && share("2").is_err());
    }
}
