//! A row of the table: one behaviour, one call of the victim, and what came of it; and whether that may be.

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

/// What the victim does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
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

impl Doing {
    /// All, in the order of the table.
    pub const ALL: [Doing; 14] = [
        Doing::ReadKnown,
        Doing::Read,
        Doing::Stat,
        Doing::List,
        Doing::Write,
        Doing::Create,
        Doing::Rename,
        Doing::Unlink,
        Doing::Chmod,
        Doing::Chown,
        Doing::Lock,
        Doing::FirstMount,
        Doing::Restart,
        Doing::Past,
    ];

    /// In words, for the table.
    pub fn words(self) -> &'static str {
        match self {
            Doing::ReadKnown => "read again",
            Doing::Read => "read",
            Doing::Stat => "stat",
            Doing::List => "list",
            Doing::Write => "write, fsync",
            Doing::Create => "create",
            Doing::Rename => "rename",
            Doing::Unlink => "unlink",
            Doing::Chmod => "chmod",
            Doing::Chown => "chgrp",
            Doing::Lock => "lock",
            Doing::FirstMount => "first mount",
            Doing::Restart => "restart",
            Doing::Past => "past read",
        }
    }

    /// Who does it.
    fn victim(self) -> usize {
        if self == Doing::FirstMount { CAROL } else { ALICE }
    }

    /// The call that is made.
    fn call(self) -> Call {
        match self {
            Doing::ReadKnown => Call::Read("second"),
            Doing::Read => Call::Read("target"),
            Doing::Stat => Call::Stat("target"),
            Doing::List | Doing::FirstMount | Doing::Restart => Call::List,
            Doing::Write => Call::Write("mine", content(300)),
            Doing::Create => Call::Create("made"),
            Doing::Rename => Call::Rename("from", "to"),
            Doing::Unlink => Call::Unlink("gone"),
            Doing::Chmod => Call::Chmod("mode", 0o600),
            Doing::Chown => Call::Chown("owner"),
            Doing::Lock => Call::Lock("second"),
            Doing::Past => Call::Past("target"),
        }
    }
}

/// When the victim was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// By the call itself.
    AtOnce,
    /// By the next calls.
    Next,
    /// When it sees what is true elsewhere.
    Meeting,
}

/// What a run of one attack showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// True answers, although it was lied to where it could be.
    Accepted,
    /// True answers; nothing was asked that the behaviour is about.
    Untouched,
    /// That file only, with evidence.
    File(When),
    /// Everything stopped, with this alarm, and evidence.
    Alarm(String, When),
    /// No answer, and a true one when there was one again.
    Unanswered,
    /// It is not mounted, for this reason; nothing was asked.
    NotMounted(String),
    /// Something older than the present, within the bound; refused, or true, after it.
    Late,
    /// No alarm: the server was put back. It goes on, and says what is lost.
    Restored(When),
    /// Nothing, as no witness vouches for it.
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
            Verdict::File(told) => write!(f, "{}file", when(told)),
            Verdict::Alarm(name, told) => write!(f, "{}{name}", when(told)),
            Verdict::Restored(told) => write!(f, "{}restored", when(told)),
            Verdict::Unanswered => f.write_str("unanswered"),
            Verdict::NotMounted(why) => write!(f, "refused: {why}"),
            Verdict::Late => f.write_str("late"),
            Verdict::Outdated => f.write_str("outdated"),
        }
    }
}

impl Verdict {
    /// Whether it is what must come of a behaviour.
    pub fn is_allowed(&self, kind: Kind, doing: Doing) -> bool {
        match (self, kind) {
            (Verdict::Accepted | Verdict::Untouched, Kind::Honest) => true,
            (Verdict::Accepted | Verdict::Untouched | Verdict::File(_), Kind::Data) => true,
            (Verdict::Alarm(..) | Verdict::NotMounted(_), Kind::Order | Kind::Memory) => true,
            (Verdict::Restored(_), Kind::Restored) => true,
            // Who has never been there has lost nothing, and remembers nothing.
            (Verdict::Accepted, Kind::Restored | Kind::Memory) => doing == Doing::FirstMount,
            (Verdict::Restored(When::Meeting), Kind::Order | Kind::Memory) => doing == Doing::FirstMount,
            (Verdict::Unanswered, Kind::Denial) => true,
            (Verdict::Unanswered | Verdict::NotMounted(_), Kind::Greeting) => true,
            (Verdict::Late | Verdict::Outdated | Verdict::Accepted, Kind::Bounded) => true,
            // A past that is withheld, or not that of this file system.
            (Verdict::File(_), Kind::Order | Kind::Memory) => doing == Doing::Past,
            // Who has never been there has no newer list to compare with.
            (Verdict::Accepted, Kind::Greeting) => doing == Doing::FirstMount,
            // A lie about the order that was never told.
            (Verdict::Untouched, _) => true,
            _ => false,
        }
    }
}

/// A client that has forgotten everything by the time it is lied to, and so has nothing to check by: what the oracle has
/// against what it then believes.
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

/// How long a lie of a bounded kind may last: the term of leases, or the age of a head. Longer where the victim was too slow
/// to call before it ran out; but not for ever.
const BOUND: Duration = Duration::from_secs(2);
const BOUND_MAX: Duration = Duration::from_secs(64);

/// Runs one row.
///
/// # Errors
/// In words: something that must never come of anything.
pub fn run(behaviour: Behaviour, doing: Doing) -> Result<Verdict, String> {
    let mut bound = BOUND;
    loop {
        let is_in_time = AtomicBool::new(false);
        let played = std::panic::catch_unwind(|| play(behaviour, doing, bound, &is_in_time));
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

/// Plays it once. `is_in_time`: that the victim was surely as quick as the bound allows.
fn play(
    behaviour: Behaviour,
    doing: Doing,
    bound: Duration,
    is_in_time: &AtomicBool,
) -> Result<Verdict, String> {
    let lease_term = match behaviour {
        Behaviour::BreakLease => bound,
        _ if behaviour.is_about_leases() => Duration::from_millis(TERM_MS),
        _ => Duration::ZERO,
    };
    let mut row =
        Row { behaviour, doing, victim: doing.victim(), stage: Stage::set(lease_term), bound, is_in_time };
    let verdict = row.play()?;
    row.stage.verdict_of_the_oracle()?;
    Ok(verdict)
}

pub(super) struct Row<'a> {
    behaviour: Behaviour,
    doing: Doing,
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
        // What a witness vouched for has been signed by now.
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
        if self.doing == Doing::Restart {
            self.stage.unmount(victim);
        }
        // Heads are signed in whole seconds.
        let (flag, bound) = (self.is_in_time, self.bound);
        let is_in_time = move || flag.store(begun.elapsed() < bound / 2, SeqCst);
        if behaviour == Behaviour::BreakLease {
            return self.late(is_in_time);
        }
        // Whoever mounts waits for a head.
        let mounts = matches!(self.doing, Doing::FirstMount | Doing::Restart);
        if mounts {
            is_in_time();
        }
        let result = self.stage.call(victim, self.doing.call());
        if !mounts {
            is_in_time();
        }
        match result {
            Ok(_) => {}
            // The server's own word, which proves nothing: it goes on.
            Err(Refusal::Call(FsError::Refused(_))) if behaviour.kind().is_about_order() => {}
            Err(refusal) => return self.refused(refusal, When::AtOnce),
        }
        behaviour.go_on(&mut self.stage, victim, before);
        if self.doing != Doing::FirstMount
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
        if self.stage.told.count() > 0 { Verdict::Accepted } else { Verdict::Untouched }
    }

    /// Everybody goes on.
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
            eventually("the victim asks for recalls", || self.stage.told.count() > 0);
        }
        Ok(self.accepted())
    }

    /// The victim knows the directory and one file.
    fn warm(&mut self) {
        // What was wished for in one turn is leased in the next.
        let turns = if self.behaviour.is_about_leases() { 3 } else { 1 };
        for _ in 0..turns {
            self.stage.does(self.victim, Call::List);
            self.stage.does(self.victim, Call::Read("second"));
            self.stage.does(self.victim, Call::Stat("target"));
        }
    }

    /// What the victim does next, while the lie goes on; and then, where the truth is to be seen.
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
        if self.stage.told.count() == 0 {
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

    /// Whether it was told of a restore, and has lost something by it.
    fn has_gone_over(&self) -> bool {
        let mount = self.stage.mounts[self.victim].as_ref();
        mount.and_then(|mount| mount.engine.restored()).is_some_and(|report| report.lost > 0)
    }

    /// What the victim was told of a refusal, checked.
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
            Refusal::Call(FsError::Stale) if self.doing == Doing::Past => {
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

    /// A file's refusal names it and keeps evidence; the true bytes are taken when they come.
    fn check_file(&mut self, report: &IntegrityReport) -> Result<(), String> {
        let words = report.to_string();
        let kept = match (&report.evidence, self.doing) {
            (Some(kept), _) => kept,
            // What is withheld of the past convicts nobody: it need not be kept for ever.
            (None, Doing::Past) => return self.check_that_it_goes_on(),
            // Whoever signed it is to blame, and the words say so.
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

    /// Who has signed one thing for some and another for others is found out where these meet.
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

    /// Once the server is honest, true answers are taken.
    fn check_that_it_goes_on(&mut self) -> Result<(), String> {
        let victim = self.victim;
        self.stage.tell_the_truth(victim);
        let lives = match self.stage.restored.contains(&victim) {
            true => self.stage.truth,
            false => self.stage.lives[victim],
        };
        self.stage.lead(victim, lives);
        for call in [self.doing.call(), Call::List, Call::Read("target")] {
            // What was asked for before may still be on its way.
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
        check_evidence(kept, self.doing == Doing::Restart)
    }

    /// It stays stopped, over a restart too, until the user says otherwise; and then believes only what follows.
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

    /// A fork is not noticed, until no witness vouches for it.
    fn outdated(&mut self, vouched: Instant) -> Result<Verdict, String> {
        std::thread::sleep((vouched + self.bound).saturating_duration_since(Instant::now()));
        // From here on all that the victim can have is older than the bound, by its own clock too.
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
        let call = self.doing.call();
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

/// Whether others can check what was kept; the name of the alarm. `has_just_started`: and has read nothing yet.
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
        // Who had accepted nothing, and was shown nothing that the superuser had signed, has nothing to check by.
        // Nor has who keeps no cache, has just started, and is shown another membership than it had accepted.
        Err(UnusableStatement::NoMembership { .. }) if accepted_nothing || has_just_started => {
            return alarm.ok_or_else(unsaid);
        }
        Err(why) => return Err(format!("the evidence is refused: {why}")),
    };
    let told = &verdict.statements[0];
    if has_view && told.refused_rightly != Some(true) {
        return Err(format!("the evidence does not show what it says: {told:?}"));
    }
    alarm.ok_or_else(unsaid)
}

/// Each behaviour's verdicts, in the order of [`Doing::ALL`].
pub type Rows = Vec<(Behaviour, Vec<Result<Verdict, String>>)>;

/// Runs the rows, several at once.
pub fn rows(behaviours: &[Behaviour], threads: usize) -> Rows {
    Scene::get();
    let cells: Vec<(Behaviour, Doing)> =
        behaviours.iter().flat_map(|behaviour| Doing::ALL.map(|doing| (*behaviour, doing))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results = parking_lot::Mutex::new(vec![None; cells.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let Some((behaviour, doing)) = cells.get(place).copied() else { break };
                    let result = run(behaviour, doing);
                    results.lock()[place] = Some(result);
                }
            });
        }
    });
    let mut results = results.into_inner().into_iter().map(|result| result.expect("each was run"));
    let row = |behaviour: &Behaviour| (*behaviour, results.by_ref().take(Doing::ALL.len()).collect());
    behaviours.iter().map(row).collect()
}

/// The table as Markdown: a row a behaviour, a column a call.
pub fn table(rows: &Rows) -> String {
    let columns: Vec<&str> = Doing::ALL.iter().map(|doing| doing.words()).collect();
    let mut text =
        format!("| the server... | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for (behaviour, verdicts) in rows {
        let cell = |(doing, verdict): (&Doing, &Result<Verdict, String>)| match verdict {
            // Without a memory, which contradiction is met first depends on what happened to overlap.
            Ok(Verdict::Alarm(_, When::AtOnce)) if *doing == Doing::FirstMount => "alarm".to_owned(),
            Ok(verdict) => verdict.to_string(),
            Err(why) => format!("WRONG: {why}"),
        };
        let cells: Vec<String> = Doing::ALL.iter().zip(verdicts).map(cell).collect();
        text.push_str(&format!("| {} | {} |\n", behaviour.words(), cells.join(" | ")));
    }
    text
}
