//! Work over a slow, far, lossy link: Holdfast in its ways of transfer beside sshfs, rclone and rsync.
//!
//! Each measurement has a link, a server and a client of its own, begun from nothing. Over a link without limits the
//! server is given what it is to have, and the client sees what it is to know (its cache outlives a new mount). Then
//! the link gets its conditions, the client mounts anew and looks once at every name; from here on everything is
//! counted, on the link itself and the same way for everybody: each IP packet, both ways apart, lost ones as well.
//! At the end the link is without limits again, and what the server has is compared with what the client sees, byte
//! by byte, so that nobody is fast by not having sent it.
//!
//! # What is written
//!
//! With `--json FILE`, one object a line and measurement is appended:
//!
//! ```text
//! figure        the name given by --figure: 7, 8, 9, 10, pairs, ...
//! workload      vim, office, build, build-first, turn, checkout, look: see `--help`
//! side          sshfs, rclone, rsync, plain, lbfs, lbfs-empty, full, full-empty, write-back, local
//! round         counted from 0
//! rate_down     bit/s from server to client; null: no limit
//! rate_up       bit/s from client to server
//! delay_ms      what the link adds to a round trip
//! loss          share of packets lost at random, each way (0.02: 2%)
//! seconds       until the programs were done; null if they did not get so far
//! seconds_sent  until everything was at the server too (the same for sides that wait for it)
//! bytes_up, bytes_down, packets_up, packets_down
//!               what came to the link from the client and from the server, until all was at the server
//! lost          packets lost, or dropped as the link's buffer was full, both ways
//! round_trips   operations and requests for blocks that the client waited for; null but for Holdfast
//! error         null, or why the figures do not count: "did not end in N s", what failed, or what differs
//! ```

mod build;
mod edit;
mod holdfast;
mod place;
mod site;
mod ssh;
mod tree;
mod work;

use crate::link::LinkOptions;
use anyhow::{Context, bail, ensure};
use holdfast_link::{Conditions, Counts};
use place::LinkedHosts;
use serde::Serialize;
use site::{Side, Site};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use work::{Inputs, Work};

/// What is measured, for whom, and over which link.
#[derive(clap::Args)]
#[command(
    after_help = "Root; needs sshfs, sshd, rsync, rclone, vim, python3, gcc and make, each for what uses it.\n\
    `scripts/bench-far` runs all of it.\n\n\
    Example: holdfast-bench far --holdfast target/release/holdfast --rate 1.5mbit --up 384kbit --delay 30ms \\\n         \
    --work turn --old react-dom-18.2.0 --new react-dom-18.3.1 --side sshfs --side lbfs --side full"
)]
pub struct Options {
    #[command(flatten)]
    link: LinkOptions,
    #[command(flatten)]
    inputs: Inputs,
    /// What is done; may be given several times.
    #[arg(long = "work", required = true)]
    works: Vec<Work>,
    /// Who does it; may be given several times.
    #[arg(long = "side", required = true)]
    sides: Vec<Side>,
    /// The holdfast command.
    #[arg(long, default_value = "holdfast")]
    holdfast: PathBuf,
    /// Times that each side does each work, in turns.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Seconds after which a work is given up.
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// What the measurements are for, as `figure` in the JSON.
    #[arg(long, default_value = "far")]
    figure: String,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the directories of sides and their logs, and say where.
    #[arg(long)]
    keep: bool,
}

/// One measurement, as it is written.
#[derive(Serialize)]
struct Measured {
    figure: String,
    workload: &'static str,
    side: &'static str,
    round: usize,
    rate_down: Option<u64>,
    rate_up: Option<u64>,
    delay_ms: u64,
    loss: f64,
    #[serde(flatten)]
    taken: Measurement,
    error: Option<String>,
}

#[derive(Default, Serialize)]
struct Measurement {
    seconds: Option<f64>,
    seconds_sent: Option<f64>,
    bytes_up: u64,
    bytes_down: u64,
    packets_up: u64,
    packets_down: u64,
    lost: u64,
    round_trips: Option<u64>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    for work in &options.works {
        work.check(&options.inputs)?;
    }
    let (up, down) = options.link.conditions();
    let bits = |conditions: Conditions| conditions.bytes_per_second.map(|bytes| bytes * 8);
    for round in 0..options.rounds {
        for work in &options.works {
            for turn in 0..options.sides.len() {
                let side = options.sides[(turn + round) % options.sides.len()];
                if !work.applies(side) {
                    continue;
                }
                let mut taken = Measurement::default();
                let result = measure(options, *work, side, (up, down), &mut taken);
                let measured = Measured {
                    figure: options.figure.clone(),
                    workload: work.name(),
                    side: side.name(),
                    round,
                    rate_down: bits(down),
                    rate_up: bits(up),
                    delay_ms: (up.delay + down.delay).as_millis() as u64,
                    loss: up.loss,
                    taken,
                    error: result.err().map(|error| format!("{error:#}")),
                };
                measured.tell(options)?;
            }
        }
    }
    Ok(())
}

impl Measured {
    fn tell(&self, options: &Options) -> anyhow::Result<()> {
        let seconds = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        println!(
            "{:<12} {:<11} {:>8} s, sent {:>8} s, up {:>9.1} KB, down {:>9.1} KB, {:>6} packets, {} lost{}{}",
            self.workload,
            self.side,
            seconds(self.taken.seconds),
            seconds(self.taken.seconds_sent),
            self.taken.bytes_up as f64 / 1000.0,
            self.taken.bytes_down as f64 / 1000.0,
            self.taken.packets_up + self.taken.packets_down,
            self.taken.lost,
            self.taken.round_trips.map_or(String::new(), |count| format!(", {count} round trips")),
            self.error.as_ref().map_or(String::new(), |error| format!("; FAILED: {error}")),
        );
        if let Some(path) = &options.json {
            let mut line = serde_json::to_vec(self)?;
            line.push(b'\n');
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let file = file.as_mut().map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
            // One call, so that several runs can write to one file.
            file.write_all(&line).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// One side does one work over a link of its own. `taken` has what was counted even if it fails.
fn measure(
    options: &Options,
    work: Work,
    side: Side,
    (up, down): (Conditions, Conditions),
    taken: &mut Measurement,
) -> anyhow::Result<()> {
    let place = LinkedHosts::make(options.keep)?;
    let site = Site::start(&place, side, &options.holdfast).context("starting")?;
    let inputs = &options.inputs;
    site.near(&mut |near| work.prepare(inputs, near)).context("preparing what the server has")?;
    site.mount().context("mounting")?;
    work.warm(inputs, &site, &place.local()).context("what the client is to know")?;
    site.unmount().context("unmounting")?;
    site.near(&mut |near| work.publish(inputs, near)).context("what others do")?;
    if side.forgets() {
        site.forget().context("emptying the client's cache")?;
    }
    place.link.change(up, down);
    site.mount().context("mounting over the link")?;
    work.settle(&site).context("looking at the names")?;

    let rounds = site.round_trips()?;
    let before = place.link.counts();
    let start = Instant::now();
    let limit = Duration::from_secs(options.limit);
    let result = within(limit, &site, || {
        let result = work.run(inputs, &site, &place.local(), limit);
        if result.is_ok() {
            taken.seconds = Some(start.elapsed().as_secs_f64());
            site.wait_sent(limit.saturating_sub(start.elapsed()))?;
            taken.seconds_sent = Some(start.elapsed().as_secs_f64());
        }
        result
    });
    let after = place.link.counts();
    taken.bytes_up = after.0.bytes - before.0.bytes;
    taken.bytes_down = after.1.bytes - before.1.bytes;
    taken.packets_up = after.0.packets - before.0.packets;
    taken.packets_down = after.1.packets - before.1.packets;
    let gone = |counts: Counts| counts.lost + counts.dropped;
    taken.lost = gone(after.0) + gone(after.1) - gone(before.0) - gone(before.1);
    if result.is_err() {
        // The processes that were ended may have failed in some way.
        (taken.seconds, taken.seconds_sent) = (None, None);
    }
    result?;
    taken.round_trips = site.round_trips()?.zip(rounds).map(|(after, before)| after - before);

    place.link.change(Conditions::default(), Conditions::default());
    let seen = work.result(inputs, &site, &place.local()).context("reading what the client sees")?;
    site.unmount().context("unmounting")?;
    let mut differ = Vec::new();
    site.near(&mut |near| {
        differ = tree::differences(&seen, &near.join(work.place()))?;
        Ok(())
    })
    .context("reading what the server has")?;
    ensure!(differ.is_empty(), "the server has something else: {}", differ.join(", "));
    Ok(())
}

/// Does `work`, and ends the client if it takes longer than `limit`: then calls that wait for its mount are refused.
fn within(
    limit: Duration,
    site: &Site<'_>,
    work: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || done.send(work()));
        match ended.recv_timeout(limit) {
            Ok(result) => result,
            Err(_) => {
                site.end_client();
                bail!("did not end in {} s", limit.as_secs())
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::process::{Command, Stdio};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    /// One measurement of a side that turns a tree with one large file into another.
    fn turn(more: &[&str]) -> anyhow::Result<(Measurement, anyhow::Result<()>)> {
        let place = tempfile::tempdir()?;
        let [old, new] = ["old", "new"].map(|name| place.path().join(name));
        for (tree, text) in [(&old, "older"), (&new, "a newer one")] {
            std::fs::create_dir(tree)?;
            let numbers: Vec<u8> = (0..20_000u32)
                .flat_map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[..10].to_vec())
                .collect();
            std::fs::write(tree.join("large"), [text.as_bytes(), &numbers].concat())?;
        }
        let (old, new) = (old.display().to_string(), new.display().to_string());
        let all = [&["far", "--work", "turn", "--old", &old, "--new", &new], more].concat();
        let options = Arguments::try_parse_from(all)?.options;
        let mut taken = Measurement::default();
        let result =
            measure(&options, options.works[0], options.sides[0], options.link.conditions(), &mut taken);
        Ok((taken, result))
    }

    fn can_run() -> bool {
        let root = rustix::process::geteuid().is_root();
        let quiet =
            |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
        let can = root
            && ["sshfs", "rsync"].into_iter().all(quiet)
            && std::path::Path::new("/usr/sbin/sshd").exists();
        if !can {
            eprintln!("left out: it takes root, sshfs, rsync and sshd");
        }
        can
    }

    /// Proves: work is done over the link and compared at both ends, and what crossed the link is counted: all of a
    /// file that sshfs writes anew, and little of one that rsync has before.
    #[test]
    fn work_is_done_and_counted() -> anyhow::Result<()> {
        if !can_run() {
            return Ok(());
        }
        let (sshfs, result) = turn(&["--side", "sshfs"])?;
        result?;
        assert!(sshfs.seconds.is_some() && sshfs.seconds_sent.is_some());
        assert!(sshfs.bytes_up > 200_000, "{}", sshfs.bytes_up);
        let (rsync, result) = turn(&["--side", "rsync"])?;
        result?;
        assert!((1..50_000).contains(&rsync.bytes_up), "{}", rsync.bytes_up);
        Ok(())
    }

    /// Proves: work that does not end in time is ended, and the measurement says so.
    #[test]
    fn work_without_end_is_ended() -> anyhow::Result<()> {
        if !can_run() {
            return Ok(());
        }
        // 200 KB at 8 KB a second.
        let (taken, result) = turn(&["--side", "sshfs", "--limit", "2", "--rate", "64kbit"])?;
        assert_eq!(result.expect_err("it cannot have ended").to_string(), "did not end in 2 s");
        assert!(taken.seconds.is_none() && taken.bytes_up > 0);
        Ok(())
    }
}
