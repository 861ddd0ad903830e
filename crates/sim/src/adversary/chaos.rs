//! Everything at once, by seed: several members work on a server that forks, rolls back, lies in its answers, loses
//! messages, loses its power, and moves them between its copies.
//!
//! Whatever it does, the oracle must find one order for all that was seen on each branch, nobody may be brought from one
//! branch to another, and whoever was alarmed goes on only when its user says so.

use super::forge;
use super::oracle::{Call, Event, Outcome, TreePosition};
use super::scene::{ALICE, BOB, CAROL, content};
use super::stage::{LieCounter, Stage, about_views, denials};
use super::world::{Image, Liar, Mount, Refusal, Server};
use crate::random::Random;
use holdfast_client::{FsError, StartError};
use holdfast_content::DeviceId;
use holdfast_log::simulated::Crash;
use holdfast_rpc::RpcError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The members who work.
const ACTORS: [usize; 3] = [ALICE, BOB, CAROL];
/// The files they work on.
const FILES: [&str; 5] = ["target", "second", "mine", "fresh", "other"];
/// The most copies that the adversary keeps.
const BRANCHES_MAX: usize = 6;

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Calls made.
    pub calls: u64,
    /// Of these: failed.
    pub failed: u64,
    /// Lies told.
    pub lies: u64,
    /// The number of alarms of all clients.
    pub alarms: u64,
    /// Copies made of the server.
    pub branches: u64,
}

/// Runs one seed.
///
/// # Errors
/// In words: what must never be.
pub fn run(seed: u64, steps: usize) -> Result<Report, String> {
    let mut chaos = Chaos {
        random: Random::new(seed),
        stage: Stage::set(Duration::ZERO),
        alarmed: BTreeSet::new(),
        copies: Vec::new(),
        report: Report::default(),
        written: seed * 1_000_000,
    };
    for _ in 0..steps {
        chaos.step()?;
        if let Some(contradiction) = chaos.stage.contradictions.first() {
            return Err(contradiction.clone());
        }
    }
    chaos.stage.verdict_of_the_oracle()?;
    chaos.report.lies = chaos.stage.lies_told.count();
    chaos.report.branches = chaos.stage.servers.len() as u64 - 1;
    Ok(chaos.report)
}

struct Chaos {
    random: Random,
    stage: Stage,
    /// Clients that have raised an alarm which their users have not acknowledged.
    alarmed: BTreeSet<usize>,
    /// States to roll back to.
    copies: Vec<(TreePosition, Image)>,
    report: Report,
    written: u64,
}

impl Chaos {
    fn step(&mut self) -> Result<(), String> {
        let actor = *self.random.pick(&ACTORS);
        match self.random.below(100) {
            0..70 => return self.round(actor),
            70..78 if self.stage.servers.len() < BRANCHES_MAX => {
                let branch = self.stage.fork(self.stage.lives[actor]);
                self.stage.lead(actor, branch);
            }
            78..82 => {
                let branch = self.random.below(self.stage.servers.len() as u64) as usize;
                self.stage.lead(actor, branch);
            }
            82..86 => {
                let branch = self.stage.lives[actor];
                self.copies.push((self.stage.tree.end_of(branch), self.stage.servers[branch].image()));
            }
            86..90 if self.stage.servers.len() < BRANCHES_MAX && !self.copies.is_empty() => {
                let (position, image) = self.random.pick(&self.copies).clone();
                let branch = self.stage.branch(position, Server::start(&image));
                self.stage.lead(actor, branch);
            }
            90..95 => {
                self.stage.unmount(actor);
                // The client's user has acknowledged the alarm, or has not.
                self.stage.habits[actor].acknowledge = self.random.chance(50);
                if self.stage.habits[actor].acknowledge {
                    self.alarmed.remove(&actor);
                }
            }
            95..98 => self.stage.servers[self.stage.lives[actor]].crash(Crash::PowerLoss),
            _ => self.stage.server().clock.jump(if self.random.chance(50) { 1_000_000 } else { -900_000 }),
        }
        Ok(())
    }

    /// One or two clients of one branch make a call each.
    fn round(&mut self, first: usize) -> Result<(), String> {
        let branch = self.stage.lives[first];
        let together = ACTORS.iter().copied().filter(|who| self.stage.lives[*who] == branch);
        let together: Vec<usize> =
            together.filter(|who| *who == first || self.random.chance(40)).take(2).collect();
        let calls: Vec<(usize, Call)> = together.into_iter().map(|who| (who, self.call())).collect();
        let mut mounted = Vec::new();
        for (who, call) in calls {
            match self.random.chance(30).then(|| self.lie(who)) {
                Some(liar) => self.stage.lie(who, liar),
                None => self.stage.tell_the_truth(who),
            }
            let mount = self.stage.mount(who);
            // An acknowledgement counts for one mount.
            self.stage.habits[who].acknowledge = false;
            match mount {
                Ok(()) => mounted.push((who, call)),
                Err(refusal) => self.failed(who, &refusal)?,
            }
        }
        let results: Vec<_> = std::thread::scope(|scope| {
            let mounts = &self.stage.mounts;
            let threads: Vec<_> = mounted
                .iter()
                .map(|(who, call)| {
                    let mount: &Mount = mounts[*who].as_ref().expect("it is mounted");
                    scope.spawn(move || mount.call(call))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut events = Vec::new();
        for ((who, call), result) in mounted.into_iter().zip(results) {
            self.report.calls += 1;
            let result = result.map_err(|_| format!("client {who} panicked in {call:?}"))?;
            let outcome = match result {
                Ok(seen) if self.alarmed.contains(&who) => {
                    return Err(format!("client {who} forgot its alarm: {call:?} returned {seen:?}"));
                }
                Ok(seen) => Outcome::Returned(seen),
                Err(refusal) => {
                    let was_alarmed = self.alarmed.contains(&who);
                    self.report.failed += 1;
                    self.failed(who, &refusal)?;
                    if was_alarmed {
                        // The call did not reach the server.
                        continue;
                    }
                    Outcome::Failed
                }
            };
            events.push(Event { who, call, outcome });
            self.stage.observe(who);
        }
        self.stage.note(branch, events);
        Ok(())
    }

    fn failed(&mut self, who: usize, refusal: &Refusal) -> Result<(), String> {
        match refusal {
            Refusal::Call(FsError::Frozen(_)) | Refusal::Start(StartError::Frozen(_)) => {
                self.report.alarms += u64::from(self.alarmed.insert(who));
                Ok(())
            }
            Refusal::Start(StartError::StateMissing { .. }) if who == CAROL => Ok(()),
            Refusal::Call(
                FsError::Integrity(_)
                | FsError::Unreachable(_)
                | FsError::Stale
                | FsError::LookAgain
                | FsError::Refused(_),
            )
            | Refusal::Start(StartError::Unreachable(_)) => Ok(()),
            other => Err(format!("client {who} is refused in a way of its own: {other:?}")),
        }
    }

    fn call(&mut self) -> Call {
        let name = *self.random.pick(&FILES);
        let other = *self.random.pick(&FILES);
        match self.random.below(20) {
            0..5 => Call::Read(name),
            5..7 => Call::Stat(name),
            7..9 => Call::List,
            9..14 => {
                self.written += 1;
                Call::Write(name, content(self.written))
            }
            14..16 => Call::Create(name),
            16 => Call::Unlink(name),
            17 if name != other => Call::Rename(name, other),
            17 | 18 => Call::Chmod(name, if self.random.chance(50) { 0o600 } else { 0o644 }),
            _ => Call::Past("target"),
        }
    }

    /// A lie, or a fault that an honest network has too.
    fn lie(&mut self, who: usize) -> Liar {
        let lies_told: &LieCounter = &self.stage.lies_told;
        let other = DeviceId(*self.random.pick(&ACTORS) as u32);
        let elsewhere = self.random.below(self.stage.servers.len() as u64) as usize;
        let turn = self.random.below(4);
        match self.random.below(10) {
            0 => forge::blocks(lies_told, forge::is_data, forge::flip),
            1 => forge::blocks(lies_told, forge::is_metadata, forge::swap),
            2 => forge::blocks(lies_told, forge::is_data, forge::withhold),
            3 => about_views(lies_told, move |reply| drop(reply.view.slots.remove(&other))),
            4 => about_views(lies_told, |reply| reply.view.pending.clear()),
            5 => {
                let shown = self.stage.view(who, elsewhere).view;
                about_views(lies_told, move |reply| {
                    if let Some(slot) = shown.slots.get(&other) {
                        reply.view.slots.insert(other, slot.clone());
                    }
                })
            }
            6 => {
                let shown = self.stage.view(who, elsewhere);
                about_views(lies_told, move |reply| *reply = shown.clone())
            }
            7 => denials(lies_told),
            _ => losses(turn),
        }
    }
}

/// Some requests and some answers get lost.
fn losses(turn: u64) -> Liar {
    let count = Mutex::new(turn);
    Arc::new(move |request, honest| {
        let now = {
            let mut count = count.lock();
            *count += 1;
            *count % 4
        };
        if now == 1 {
            return Err(RpcError::Lost { maybe_sent: true });
        }
        let answer = honest(request);
        if now == 3 { Err(RpcError::Lost { maybe_sent: true }) } else { Ok(answer) }
    })
}
