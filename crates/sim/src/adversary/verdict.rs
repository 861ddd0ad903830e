//! A row of the table: one behaviour, one call of the victim, and the outcome; and whether that is the required
//! verdict.

use super::behaviour::{Behaviour, Kind};
use super::oracle::{Call, Event, Outcome};
use super::scene::{ALICE, BOB, CAROL, DAVE, Scene, content};
use super::stage::Stage;
use super::world::{Habits, Refusal};
use holdfast_client::evidence::{self, Proof};
use holdfast_client::statement::{LabeledStatement, Limits, Statement, UnusableStatement, verify};
use holdfast_client::{FrozenReport, FsError, IntegrityReport, StartError};
use holdfast_protocol::leases::TERM_MS;
use holdfast_testing::PATIENCE;
use holdfast_testing::eventually;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A call of the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VictimCall {
    /// Reads a file whose data it has.
    ReadKnown,
    /// Reads a file whose data it does not have.
    Read,
    /// Looks at a file's attributes.
    Stat,
    /// Lists a directory.
    List,
    /// Writes a file and syncs it.
    Write,
    /// Makes a file.
    Create,
    /// Renames a file.
    Rename,
    /// Removes a file.
    Unlink,
    /// Changes a mode.
    Chmod,
    /// Changes a group.
    Chown,
    /// Locks a file.
    Lock,
    /// Mounts for the first time ever.
    FirstMount,
    /// Unmounts and mounts again.
    Restart,
    /// Reads a file as it was yesterday.
    Past,
}

impl VictimCall {
    /// All calls, in the order of the table.
    pub const ALL: [VictimCall; 14] = [
        VictimCall::ReadKnown,
        VictimCall::Read,
        VictimCall::Stat,
        VictimCall::List,
        VictimCall::Write,
        VictimCall::Create,
        VictimCall::Rename,
        VictimCall::Unlink,
        VictimCall::Chmod,
        VictimCall::Chown,
        VictimCall::Lock,
        VictimCall::FirstMount,
        VictimCall::Restart,
        VictimCall::Past,
    ];

    /// The call in words, for the table.
    pub fn words(self) -> &'static str {
        match self {
            VictimCall::ReadKnown => "read again",
            VictimCall::Read => "read",
            VictimCall::Stat => "stat",
            VictimCall::List => "list",
            VictimCall::Write => "write, fsync",
            VictimCall::Create => "create",
            VictimCall::Rename => "rename",
            VictimCall::Unlink => "unlink",
            VictimCall::Chmod => "chmod",
            VictimCall::Chown => "chgrp",
            VictimCall::Lock => "lock",
            VictimCall::FirstMount => "first mount",
            VictimCall::Restart => "restart",
            VictimCall::Past => "past read",
        }
    }

    /// The client that makes the call.
    fn victim(self) -> usize {
        if self == VictimCall::FirstMount { CAROL } else { ALICE }
    }

    /// The call as the oracle knows it.
    fn call(self) -> Call {
        match self {
            VictimCall::ReadKnown => Call::Read("second"),
            VictimCall::Read => Call::Read("target"),
            VictimCall::Stat => Call::Stat("target"),
            VictimCall::List | VictimCall::FirstMount | VictimCall::Restart => Call::List,
            VictimCall::Write => Call::Write("mine", content(300)),
            VictimCall::Create => Call::Create("made"),
            VictimCall::Rename => Call::Rename("from", "to"),
            VictimCall::Unlink => Call::Unlink("gone"),
            VictimCall::Chmod => Call::Chmod("mode", 0o600),
            VictimCall::Chown => Call::Chown("owner"),
            VictimCall::Lock => Call::Lock("second"),
            VictimCall::Past => Call::Past("target"),
        }
    }
}

/// When the victim learned of the lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// By the call itself.
    AtOnce,
    /// By the next calls.
    Next,
    /// When it sees the true state elsewhere.
    Meeting,
}

/// The outcome of one attack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// True answers, although the victim was lied to where that was possible.
    Accepted,
    /// True answers; nothing was asked that the behaviour is about.
    Untouched,
    /// Only that file is refused, with evidence.
    File(When),
    /// The client stopped with this alarm, and evidence.
    Alarm(String, When),
    /// No answer, and a true one as soon as there was one.
    Unanswered,
    /// The file system was not mounted, for this reason; nothing was asked.
    NotMounted(String),
    /// Something older than the present, within the bound; after it a refusal, or the truth.
    Late,
    /// No alarm, as the server was put back: the client goes on, and says what is lost.
    Restored(When),
    /// Nothing, as no witness signs for it.
    Outdated,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = |when: &When| match when {
            When::AtOnce => "",
            When::Next => "next: ",
            When::Meeting => "meeting: ",
        };
        match self {
            Verdict::Accepted => f.write_str("accepted"),
            Verdict::Untouched => f.write_str("true"),
            Verdict::File(noticed) => write!(f, "{}file", when(noticed)),
            Verdict::Alarm(name, noticed) => write!(f, "{}{name}", when(noticed)),
            Verdict::Restored(noticed) => write!(f, "{}restored", when(noticed)),
            Verdict::Unanswered => f.write_str("unanswered"),
            Verdict::NotMounted(why) => write!(f, "refused: {why}"),
            Verdict::Late => f.write_str("late"),
            Verdict::Outdated => f.write_str("outdated"),
        }
    }
}

impl Verdict {
    /// Whether the outcome is the verdict that a behaviour must have.
    pub fn is_allowed(&self, kind: Kind, call: VictimCall) -> bool {
        match (self, kind) {
            (Verdict::Accepted | Verdict::Untouched, Kind::Honest) => true,
            (Verdict::Accepted | Verdict::Untouched | Verdict::File(_), Kind::Data) => true,
            (Verdict::Alarm(..) | Verdict::NotMounted(_), Kind::Order | Kind::Memory) => true,
            (Verdict::Restored(_), Kind::Restored) => true,
            // A client that has never been there has lost nothing, and remembers nothing.
            (Verdict::Accepted, Kind::Restored | Kind::Memory) => call == VictimCall::FirstMount,
            (Verdict::Restored(When::Meeting), Kind::Order | Kind::Memory) => call == VictimCall::FirstMount,
            (Verdict::Unanswered, Kind::Denial) => true,
            (Verdict::Unanswered | Verdict::NotMounted(_), Kind::Greeting) => true,
            (Verdict::Late | Verdict::Outdated | Verdict::Accepted, Kind::Bounded) => true,
            // A past state that is withheld, or is not of this file system.
            (Verdict::File(_), Kind::Order | Kind::Memory) => call == VictimCall::Past,
            // A client that has never been there has no newer list to compare with.
            (Verdict::Accepted, Kind::Greeting) => call == VictimCall::FirstMount,
            // A lie about the order that was never told.
            (Verdict::Untouched, _) => true,
            _ => false,
        }
    }
}

/// Runs a row with a client that has forgotten everything by the time it is lied to, and so cannot check anything:
/// returns what the oracle has against what the client then accepts.
///
/// # Errors
/// In words: what it is, as it should be.
pub fn without_memory(behaviour: Behaviour) -> Result<(), String> {
    let mut stage = Stage::set(Duration::ZERO);
    for call in [Call::List, Call::Read("second"), Call::Stat("target")] {
        stage.does(ALICE, call);
    }
    behaviour.begin(&mut stage, ALICE, BOUND);
    for branch in [stage.lives[ALICE], stage.truth] {
        stage.lead(ALICE, branch);
        super::restored::forget(&mut stage, ALICE, CAROL);
        for call in [Call::Stat("target"), Call::List] {
            let _ = stage.call(ALICE, call);
        }
    }
    stage.verdict_of_the_oracle()
}

/// How long a lie with a bound may last: the term of leases, or the age of a head. Longer where the victim was too slow
/// to call before it ran out; but not for ever.
const BOUND: Duration = Duration::from_secs(2);
const BOUND_MAX: Duration = Duration::from_secs(64);

/// Runs one row.
///
/// # Errors
/// In words: something that must never come of anything.
pub fn run(behaviour: Behaviour, call: VictimCall) -> Result<Verdict, String> {
    let mut bound = BOUND;
    loop {
        let is_in_time = AtomicBool::new(false);
        let played = std::panic::catch_unwind(|| play(behaviour, call, bound, &is_in_time));
        if behaviour.kind() != Kind::Bounded || is_in_time.load(SeqCst) || bound >= BOUND_MAX {
            return played.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Err(format!("it could not be played: {}", text.unwrap_or_default()))
            });
        }
        bound *= 2;
    }
}

/// Runs the row once. `is_in_time`: whether the victim was surely as quick as the bound allows.
fn play(
    behaviour: Behaviour,
    call: VictimCall,
    bound: Duration,
    is_in_time: &AtomicBool,
) -> Result<Verdict, String> {
    let lease_term = match behaviour {
        Behaviour::BreakLease => bound,
        _ if behaviour.is_about_leases() => Duration::from_millis(TERM_MS),
        _ => Duration::ZERO,
    };
    let mut row =
        Row { behaviour, call, victim: call.victim(), stage: Stage::set(lease_term), bound, is_in_time };
    let verdict = row.play()?;
    row.stage.verdict_of_the_oracle()?;
    Ok(verdict)
}

pub(super) struct Row<'a> {
    behaviour: Behaviour,
    call: VictimCall,
    pub(super) victim: usize,
    pub(super) stage: Stage,
    bound: Duration,
    is_in_time: &'a AtomicBool,
}

impl Row<'_> {
    fn play(&mut self) -> Result<Verdict, String> {
        let (behaviour, victim) = (self.behaviour, self.victim);
        let begun = Instant::now();
        behaviour.set_up(&mut self.stage, victim, self.bound);
        // What the witness is to sign is signed by now.
        let vouched = Instant::now();
        if victim == ALICE {
            self.warm();
        }
        match behaviour.patience(victim) {
            Some(patience) if victim == ALICE => self.stage.mount_impatiently(victim, patience),
            patience => self.stage.habits[victim].patience = patience,
        }
        behaviour.begin(&mut self.stage, victim, self.bound);
        let before = (
            self.stage.tree.end_of(self.stage.lives[victim]),
            self.stage.servers[self.stage.lives[victim]].image(),
        );
        if self.call == VictimCall::Restart {
            self.stage.unmount(victim);
        }
        // Heads are signed in whole seconds.
        let (flag, bound) = (self.is_in_time, self.bound);
        let is_in_time = move || flag.store(begun.elapsed() < bound / 2, SeqCst);
        if behaviour == Behaviour::BreakLease {
            return self.late(is_in_time);
        }
        // Mounting waits for a head.
        let mounts = matches!(self.call, VictimCall::FirstMount | VictimCall::Restart);
        if mounts {
            is_in_time();
        }
        let result = self.stage.call(victim, self.call.call());
        if !mounts {
            is_in_time();
        }
        match result {
            Ok(_) => {}
            // The server's own word, which proves nothing: the client goes on.
            Err(Refusal::Call(FsError::Refused(_))) if behaviour.kind().is_about_order() => {}
            Err(refusal) => return self.refused(refusal, When::AtOnce),
        }
        behaviour.go_on(&mut self.stage, victim, before);
        if self.call != VictimCall::FirstMount
            && self.stage.restored.contains(&victim)
            && behaviour.kind() == Kind::Restored
        {
            return self.went_over(When::AtOnce);
        }
        match behaviour.kind() {
            Kind::Bounded => self.outdated(vouched),
            kind if kind.is_about_order() => self.probe(),
            Kind::Honest => self.no_alarm(),
            _ => Ok(self.accepted()),
        }
    }

    fn accepted(&self) -> Verdict {
        if self.stage.lies_told.count() > 0 { Verdict::Accepted } else { Verdict::Untouched }
    }

    /// Lets all other clients go on.
    fn no_alarm(&mut self) -> Result<Verdict, String> {
        for (who, call) in [
            (self.victim, Call::List),
            (DAVE, Call::Read("second")),
            (self.victim, Call::Stat("second")),
            (DAVE, Call::List),
        ] {
            self.stage.call(who, call).map_err(|refusal| format!("a false alarm: {refusal:?}"))?;
        }
        if self.behaviour == Behaviour::RecallFalsely {
            // The victim asks for recalls on a thread of its own, which may have been slower than all these calls.
            eventually("the victim asks for recalls", || self.stage.lies_told.count() > 0);
        }
        Ok(self.accepted())
    }

    /// Has the victim look at the directory and one file.
    fn warm(&mut self) {
        // A lease that is asked for with one operation is granted with the next.
        let turns = if self.behaviour.is_about_leases() { 3 } else { 1 };
        for _ in 0..turns {
            self.stage.does(self.victim, Call::List);
            self.stage.does(self.victim, Call::Read("second"));
            self.stage.does(self.victim, Call::Stat("target"));
        }
    }

    /// The victim's next calls while the lie goes on; and then, where the truth can be seen.
    fn probe(&mut self) -> Result<Verdict, String> {
        let victim = self.victim;
        for _ in 0..2 {
            if let Err(refusal) = self.stage.call(victim, Call::Stat("second")) {
                return self.refused(refusal, When::Next);
            }
        }
        if self.has_gone_over() {
            return self.went_over(When::Next);
        }
        if self.stage.lies_told.count() == 0 {
            return Ok(Verdict::Untouched);
        }
        self.stage.tell_the_truth(victim);
        self.stage.lead(victim, self.stage.truth);
        for call in [Call::Stat("second"), Call::List] {
            if let Err(refusal) = self.stage.call(victim, call) {
                return self.refused(refusal, When::Meeting);
            }
        }
        match self.has_gone_over() {
            true => self.went_over(When::Meeting),
            false => Ok(Verdict::Accepted),
        }
    }

    /// Whether the client was told of a restore, and has lost something by it.
    fn has_gone_over(&self) -> bool {
        let mount = self.stage.mounts[self.victim].as_ref();
        mount.and_then(|mount| mount.engine.restored()).is_some_and(|report| report.lost > 0)
    }

    /// Checks what the victim was told of a refusal.
    pub(super) fn refused(&mut self, refusal: Refusal, when: When) -> Result<Verdict, String> {
        match refusal {
            Refusal::Call(FsError::Integrity(report)) => {
                self.check_file(&report)?;
                Ok(Verdict::File(when))
            }
            Refusal::Call(FsError::Frozen(report)) | Refusal::Start(StartError::Frozen(report)) => {
                let name = self.check_alarm(&report)?;
                match self.behaviour {
                    Behaviour::RestoreWithheld | Behaviour::RestoreOtherState => {
                        self.check_that_it_goes_over()?
                    }
                    _ => self.check_that_it_stays(&report)?,
                }
                Ok(Verdict::Alarm(name, when))
            }
            Refusal::Call(FsError::Unreachable(_)) | Refusal::Start(StartError::Unreachable(_)) => {
                self.check_that_it_goes_on()?;
                Ok(Verdict::Unanswered)
            }
            Refusal::Call(FsError::Stale) if self.call == VictimCall::Past => {
                self.check_that_it_goes_on()?;
                Ok(Verdict::File(when))
            }
            Refusal::Call(FsError::Outdated(_)) if self.behaviour.kind() == Kind::Bounded => {
                Ok(Verdict::Outdated)
            }
            Refusal::Start(
                error @ (StartError::WrongServer(_)
                | StartError::StateMissing { .. }
                | StartError::Version(_)
                | StartError::UnknownDevice { .. }
                | StartError::Removed { .. }),
            ) => Ok(Verdict::NotMounted(name_of(&error))),
            other => Err(format!("refused in a way of its own: {other:?}")),
        }
    }

    /// The refusal of a file names it and keeps evidence; the true bytes are accepted when they come.
    fn check_file(&mut self, report: &IntegrityReport) -> Result<(), String> {
        let words = report.to_string();
        let kept = match (&report.evidence, self.call) {
            (Some(kept), _) => kept,
            // A past state that is withheld convicts nobody, so its evidence need not be kept for ever.
            (None, VictimCall::Past) => return self.check_that_it_goes_on(),
            // The member who signed it is to blame, and the words say so.
            (None, _) if words.contains("whoever wrote it last wrote it so") => {
                return self.check_that_it_stays_signed();
            }
            (None, _) => return Err(format!("no evidence was kept: {words}")),
        };
        evidence::read(kept).map_err(|error| format!("the evidence cannot be read: {error}"))?;
        let names = match report.path.is_some() || report.file.is_some() {
            true => words.contains("Only this file"),
            false => words.contains("in a table or directory"),
        };
        if !names {
            return Err(format!("it is not said what is affected: {words}"));
        }
        self.check_that_it_goes_on()
    }

    /// A member who signed one thing for some and another for others is found out where these meet.
    fn check_that_it_stays_signed(&mut self) -> Result<(), String> {
        let victim = self.victim;
        self.stage.tell_the_truth(victim);
        // So that a view has to be shown.
        self.stage.does(DAVE, Call::Stat("second"));
        for call in [Call::Stat("second"), Call::List] {
            if let Err(Refusal::Call(FsError::Frozen(report)) | Refusal::Start(StartError::Frozen(report))) =
                self.stage.call(victim, call)
            {
                return match self.check_alarm(&report)?.as_str() {
                    "SlotReplaced" => Ok(()),
                    other => Err(format!("the wrong alarm: {other}")),
                };
            }
        }
        Err("two structures of one number are accepted".to_owned())
    }

    /// Once the server is honest, true answers are accepted.
    fn check_that_it_goes_on(&mut self) -> Result<(), String> {
        let victim = self.victim;
        self.stage.tell_the_truth(victim);
        let lives = match self.stage.restored.contains(&victim) {
            true => self.stage.truth,
            false => self.stage.lives[victim],
        };
        self.stage.lead(victim, lives);
        for call in [self.call.call(), Call::List, Call::Read("target")] {
            // Requests made before may still be on their way.
            let end = Instant::now() + PATIENCE;
            while let Err(refusal) = self.stage.call(victim, call.clone()) {
                let is_old =
                    matches!(refusal, Refusal::Call(FsError::Integrity(_) | FsError::Unreachable(_)));
                if !is_old || Instant::now() > end {
                    return Err(format!("the truth is not taken again: {refusal:?}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// An alarm says what happened and what to do, and keeps evidence that others can check.
    fn check_alarm(&self, report: &FrozenReport) -> Result<String, String> {
        let words = report.to_string();
        if !words.contains("salvage") {
            return Err(format!("no way out is named: {words}"));
        }
        let kept = report.evidence.as_deref().ok_or_else(|| format!("no evidence was kept: {words}"))?;
        check_evidence(kept, self.call == VictimCall::Restart)
    }

    /// The client stays stopped, over a restart too, until the user acknowledges the alarm; and then it accepts only
    /// what follows.
    fn check_that_it_stays(&mut self, report: &FrozenReport) -> Result<(), String> {
        let victim = self.victim;
        self.stage.tell_the_truth(victim);
        self.stage.lead(victim, self.stage.truth);
        let what = &report.what;
        for turn in ["at once", "after a restart"] {
            match self.stage.call(victim, Call::Stat("second")) {
                Err(Refusal::Call(FsError::Frozen(again)) | Refusal::Start(StartError::Frozen(again)))
                    if again.what == *what => {}
                other => return Err(format!("the alarm is forgotten {turn}: {other:?}")),
            }
            self.stage.unmount(victim);
        }
        self.stage.habits[victim] = Habits { acknowledge: true, ..Habits::default() };
        match self.stage.call(victim, Call::Stat("second")) {
            Ok(_) | Err(Refusal::Call(FsError::Frozen(_)) | Refusal::Start(StartError::Frozen(_))) => Ok(()),
            other => Err(format!("acknowledged, it neither goes on nor refuses: {other:?}")),
        }
    }

    /// A fork is not noticed until no witness signs for it.
    fn outdated(&mut self, vouched: Instant) -> Result<Verdict, String> {
        std::thread::sleep((vouched + self.bound).saturating_duration_since(Instant::now()));
        // From here on everything that the victim can have is older than the bound, by its own clock too.
        match self.stage.call(self.victim, Call::Stat("second")) {
            Err(Refusal::Call(FsError::Outdated(_))) => Ok(Verdict::Late),
            other => Err(format!("the bound has passed: {other:?}")),
        }
    }

    /// Under a broken lease the victim's call overlaps what was hidden from it, for one term and no longer.
    fn late(&mut self, is_in_time: impl Fn()) -> Result<Verdict, String> {
        let victim = self.victim;
        let begun = Instant::now();
        let hidden = Call::Write("second", content(400));
        let bobs = self.stage.honest(BOB).call(&hidden).map_err(|refusal| format!("bob: {refusal:?}"))?;
        let before = self.stage.tree.clone();
        let call = self.call.call();
        let result = self
            .stage
            .mount(victim)
            .and_then(|()| self.stage.mounts[victim].as_ref().expect("it was just mounted").call(&call));
        is_in_time();
        let seen = result.map_err(|refusal| format!("refused: {refusal:?}"))?;
        let event = |who, call, seen| Event { who, call, outcome: Outcome::Returned(seen) };
        let (bobs, ours) = (event(BOB, hidden, bobs), event(victim, call, seen));
        let mut strict = before;
        strict.round(0, vec![bobs.clone()])?;
        strict.round(0, vec![ours.clone()])?;
        let is_late = strict.check().is_err();
        self.stage.note(0, vec![bobs, ours]);
        std::thread::sleep((begun + self.bound).saturating_duration_since(Instant::now()));
        for call in [Call::Read("second"), Call::List] {
            self.stage.call(victim, call).map_err(|refusal| format!("the term is over: {refusal:?}"))?;
        }
        Ok(if is_late { Verdict::Late } else { self.accepted() })
    }
}

fn name_of(error: &dyn fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

/// Whether others can check the evidence that was kept; returns the name of the alarm. `has_just_started`: the client
/// has read nothing yet.
fn check_evidence(kept: &Path, has_just_started: bool) -> Result<String, String> {
    let file = evidence::read(kept).map_err(|error| format!("the evidence cannot be read: {error}"))?;
    if let Proof::Head { .. } = file.proof {
        return Ok("Head".to_owned());
    }
    let statement = Statement::of_evidence(&file).ok_or("the evidence is not about the order")?;
    let alarm = statement.refused.as_ref().map(|refused| name_of(&refused.alarm));
    let has_view = statement.refused.as_ref().is_some_and(|refused| refused.reply.is_some());
    let accepted_nothing = statement.floor.view.slots.is_empty();
    let unsaid = || "the evidence does not say what was refused".to_owned();
    let testimony =
        LabeledStatement { label: "kept".to_owned(), made_ns: file.noticed_ns, statement, met: None };
    let limits = Limits { paths: 100, differences: 10 };
    let verdict = match verify(&[testimony], limits) {
        Ok(verdict) => verdict,
        // A client that had accepted nothing, and was shown nothing that the superuser signed, has nothing to check by.
        // Neither has one that keeps no cache, has just started, and is shown another membership than it had accepted.
        Err(UnusableStatement::NoMembership { .. }) if accepted_nothing || has_just_started => {
            return alarm.ok_or_else(unsaid);
        }
        Err(why) => return Err(format!("the evidence is refused: {why}")),
    };
    let judged = &verdict.statements[0];
    if has_view && judged.refused_rightly != Some(true) {
        return Err(format!("the evidence does not show what it says: {judged:?}"));
    }
    alarm.ok_or_else(unsaid)
}

/// Each behaviour's outcomes, in the order of the calls of the table.
pub type Rows = Vec<(Behaviour, Vec<Result<Verdict, String>>)>;

/// Runs the rows, several at once.
pub fn rows(behaviours: &[Behaviour], threads: usize) -> Rows {
    Scene::get();
    let cells: Vec<(Behaviour, VictimCall)> =
        behaviours.iter().flat_map(|behaviour| VictimCall::ALL.map(|call| (*behaviour, call))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results = parking_lot::Mutex::new(vec![None; cells.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let Some((behaviour, call)) = cells.get(index).copied() else { break };
                    let result = run(behaviour, call);
                    results.lock()[index] = Some(result);
                }
            });
        }
    });
    let mut results = results.into_inner().into_iter().map(|result| result.expect("each was run"));
    let row = |behaviour: &Behaviour| (*behaviour, results.by_ref().take(VictimCall::ALL.len()).collect());
    behaviours.iter().map(row).collect()
}

/// The table as Markdown: a row for each behaviour, a column for each call.
pub fn table(rows: &Rows) -> String {
    let columns: Vec<&str> = VictimCall::ALL.iter().map(|call| call.words()).collect();
    let mut text =
        format!("| the server... | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for (behaviour, verdicts) in rows {
        let cell = |(call, verdict): (&VictimCall, &Result<Verdict, String>)| match verdict {
            // Without a memory, the contradiction that is met first depends on what happened to overlap.
            Ok(Verdict::Alarm(_, When::AtOnce)) if *call == VictimCall::FirstMount => "alarm".to_owned(),
            Ok(verdict) => verdict.to_string(),
            Err(why) => format!("WRONG: {why}"),
        };
        let cells: Vec<String> = VictimCall::ALL.iter().zip(verdicts).map(cell).collect();
        text.push_str(&format!("| {} | {} |\n", behaviour.words(), cells.join(" | ")));
    }
    text
}
