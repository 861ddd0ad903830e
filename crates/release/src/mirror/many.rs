//! Several mirrors as one.
//!
//! The mirror that is expected to be done first is asked first. One that fails is put back for a while, longer each
//! time; one whose content is *bad*, which only the caller can tell, is dropped. It makes no difference to what is
//! believed in the end: every byte is checked, whoever sent it.

use super::speed::Speed;
use super::{AddressError, Mirror, MirrorError, OBJECTS, parse, shown};
use crate::pack::Frame;
use holdfast_crypto::Digest;
use holdfast_protocol::message::AddressedBlock;
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first pause of a mirror that fails; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A mirror that was not asked for so long is asked first once, so that a slow start is not held against it for ever.
const ASKED_AGAIN: Duration = Duration::from_secs(60);
/// One that cannot look up paths is asked for that again after so long: it may have got hints.
const PATHS_ASKED_AGAIN: Duration = Duration::from_secs(600);
/// For requests up to this long: one that comes late does no harm.
const EXPLORING_BYTES_MAX: u64 = 64 << 10;
/// How long an answer is taken to be if the caller does not know.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// How many mirrors are asked at once by [`Mirrors::every`].
const MIRRORS_MAX: usize = 64;

/// Mirrors of one release.
pub struct Mirrors {
    mirrors: Vec<Kept>,
}

/// What a mirror is asked.
type Asking<'a> = dyn Fn(&dyn Mirror) -> Result<Vec<u8>, MirrorError> + 'a;

struct Kept {
    mirror: Arc<dyn Mirror>,
    account: Mutex<Account>,
}

/// What is held for and against a mirror.
#[derive(Default)]
struct Account {
    speed: Speed,
    /// When it was last put back, for how long, and why.
    paused: Option<Paused>,
    /// Why its content was bad.
    dropped: Option<String>,
    /// When it last could not look up paths.
    no_paths: Option<Instant>,
    /// Whether it had none of the blocks that were asked for last, of data at an origin.
    no_objects: bool,
    answers: u64,
    failures: u64,
}

struct Paused {
    since: Instant,
    pause: Duration,
    why: String,
}

impl Account {
    /// What is left of a pause.
    fn pause_left(&self, now: Instant) -> Option<Duration> {
        let paused = self.paused.as_ref()?;
        let left = paused.pause.checked_sub(now.saturating_duration_since(paused.since))?;
        (!left.is_zero()).then_some(left)
    }

    fn pause(&mut self, now: Instant, why: String) {
        self.failures += 1;
        let pause = self.paused.as_ref().map_or(PAUSE_MIN, |before| (before.pause * 2).min(PAUSE_MAX));
        self.paused = Some(Paused { since: now, pause, why });
    }
}

/// What a mirror said to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// That it does not have the file, or something of no use, or nothing.
    Failed(MirrorError),
    /// Something that the caller found to be bad.
    Bad {
        /// The mirror.
        mirror: String,
        /// What is bad about it.
        why: String,
    },
    /// It was not asked, because it failed just before.
    NotAsked {
        /// The mirror.
        mirror: String,
        /// How it failed.
        why: String,
    },
}

impl Answer {
    /// Whose it is.
    pub fn mirror(&self) -> &str {
        match self {
            Answer::Failed(
                MirrorError::Missing { mirror, .. }
                | MirrorError::Wrong { mirror, .. }
                | MirrorError::Unreachable { mirror, .. },
            )
            | Answer::Bad { mirror, .. }
            | Answer::NotAsked { mirror, .. } => mirror,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Failed(error) => error.fmt(f),
            Answer::Bad { mirror, why } => write!(f, "{mirror} gave something false: {why}"),
            Answer::NotAsked { mirror, why } => write!(f, "{mirror} was not asked again yet ({why})"),
        }
    }
}

/// A file that no mirror gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotHad {
    /// The file.
    pub file: String,
    /// What each mirror said, in the order in which they were asked.
    pub said: Vec<Answer>,
    /// The mirrors that were dropped before, and why.
    pub dropped: Vec<(String, String)>,
}

impl NotHad {
    /// Whether every mirror that was asked, and there was one, says that there is no such file. They may all be lying.
    pub fn missing(&self) -> bool {
        !self.said.is_empty()
            && self.said.iter().all(|answer| matches!(answer, Answer::Failed(MirrorError::Missing { .. })))
    }

    /// Whether one says so, whatever is the matter with the others.
    pub fn missing_somewhere(&self) -> bool {
        self.said.iter().any(|answer| matches!(answer, Answer::Failed(MirrorError::Missing { .. })))
    }

    /// Whether somebody has something else than was looked for, and others were asked too: so what told where to look may
    /// be wrong.
    pub fn disputed(&self) -> bool {
        self.said.len() > 1 && self.said.iter().any(|answer| matches!(answer, Answer::Bad { .. }))
    }
}

impl From<NotHad> for MirrorError {
    /// As if all were one mirror: missing only if each says so.
    fn from(error: NotHad) -> MirrorError {
        let file = error.file.clone();
        match error.missing() {
            true => {
                let names = error.said.iter().map(Answer::mirror);
                MirrorError::Missing { mirror: names.collect::<Vec<_>>().join(", "), file }
            }
            false => MirrorError::Unreachable {
                mirror: "a mirror that has it".to_owned(),
                file,
                why: error.to_string(),
            },
        }
    }
}

impl fmt::Display for NotHad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.said.iter().map(Answer::to_string);
        let dropped = self.dropped.iter().map(|(mirror, why)| format!("{mirror} was dropped ({why})"));
        let all: Vec<String> = said.chain(dropped).collect();
        match all.is_empty() {
            true => write!(f, "{} cannot be had: there is no mirror", self.file),
            false => write!(f, "{} cannot be had: {}", self.file, all.join("; ")),
        }
    }
}

/// How a mirror stands, for `status`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// Its URL or directory.
    pub mirror: String,
    /// Whether it is asked.
    pub state: State,
    /// Why it was last put back or dropped.
    pub why: Option<String>,
    /// Milliseconds before it answers, as estimated.
    pub latency_ms: Option<f64>,
    /// Bytes a second that it sends then, as estimated.
    pub bytes_per_s: Option<f64>,
    /// How many good answers it gave.
    pub answers: u64,
    /// How often it failed.
    pub failures: u64,
}

/// Whether a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is.
    Good,
    /// Only after the others, for a while.
    Paused,
    /// Not while another is left: it gave something false.
    Dropped,
}

impl fmt::Display for Mirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.mirrors.iter().map(|kept| kept.mirror.name()).collect();
        f.write_str(&names.join(", "))
    }
}

impl Mirrors {
    /// `mirrors`, preferred in this order until they are measured. There may be at most 64.
    pub fn new(mirrors: Vec<Arc<dyn Mirror>>) -> Mirrors {
        let keep = |mirror| Kept { mirror, account: Mutex::default() };
        Mirrors { mirrors: mirrors.into_iter().take(MIRRORS_MAX).map(keep).collect() }
    }

    /// The mirrors that `addresses` name; see [`parse`].
    ///
    /// # Errors
    /// The first address that names none.
    pub fn parse<A: AsRef<str>>(addresses: &[A]) -> Result<Mirrors, AddressError> {
        let mirrors: Result<_, _> = addresses.iter().map(|address| parse(address.as_ref())).collect();
        Ok(Mirrors::new(mirrors?))
    }

    /// A file (or a part, see [`Mirror::get`]) that passes `check`, from the first mirror that has one; and the name of
    /// that mirror. One whose answer does not pass is dropped: `check` must refuse only what no honest mirror sends.
    ///
    /// # Errors
    /// What each mirror said.
    pub fn get_checked<T>(
        &self,
        file: &str,
        range: Option<Range<u64>>,
        bytes_max: u64,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
    ) -> Result<(T, String), NotHad> {
        let expected = range.as_ref().map_or(UNKNOWN_BYTES, |range| range.end.saturating_sub(range.start));
        let ask = |mirror: &dyn Mirror| mirror.get(file, range.clone(), bytes_max);
        let order = self.order(expected.min(bytes_max), Instant::now());
        self.ask_checked(file, order, &ask, check, Blame::Certain)
    }

    /// The same where `check` goes by what some mirror has named and nobody signed: what does not pass may be that one's
    /// fault. So a mirror is dropped only once another has something that passes, or if there is no other.
    ///
    /// # Errors
    /// What each mirror said.
    pub fn get_fitting<T>(
        &self,
        file: &str,
        range: Range<u64>,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
    ) -> Result<(T, String), NotHad> {
        let bytes_max = range.end.saturating_sub(range.start);
        let ask = |mirror: &dyn Mirror| mirror.get(file, Some(range.clone()), bytes_max);
        let order = self.order(bytes_max, Instant::now());
        let blame = if order.len() == 1 { Blame::Certain } else { Blame::IfOthersFit };
        self.ask_checked(file, order, &ask, check, blame)
    }

    /// Frames of some of these blocks (see [`Mirror::objects`]), at least one and only of these, and the name of the
    /// mirror that gave them. What is in the frames is not checked.
    ///
    /// # Errors
    /// What each mirror said.
    pub fn objects(&self, addresses: &[Digest]) -> Result<(Vec<AddressedBlock>, String), NotHad> {
        let check = |bytes: Vec<u8>| {
            let mut frames = Vec::new();
            let mut rest = &bytes[..];
            while let Some((frame, after)) = Frame::first(rest) {
                let stored = frame.stored().filter(|_| addresses.contains(&frame.address));
                let block = stored.ok_or("it sends a block that was not asked for")?;
                frames.push(AddressedBlock { address: frame.address, block });
                rest = after;
            }
            match rest.is_empty() && !frames.is_empty() {
                true => Ok(frames),
                false => Err("it sends something else than blocks".to_owned()),
            }
        };
        let expected = (addresses.len() as u64) << 16;
        // Most mirrors do not reach an origin, which is no fault of theirs; those that did not are asked last.
        let mut order = self.order(expected, Instant::now());
        order.sort_by_key(|kept| kept.account.lock().no_objects);
        let ask = |mirror: &dyn Mirror| mirror.objects(addresses);
        self.ask_checked(OBJECTS, order, &ask, &check, Blame::Certain)
    }

    fn ask_checked<T>(
        &self,
        file: &str,
        order: Vec<&Kept>,
        ask: &Asking<'_>,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
        blame: Blame,
    ) -> Result<(T, String), NotHad> {
        let mut said = Vec::new();
        let mut lacking = Vec::new();
        let mut suspects: Vec<(&Kept, String)> = Vec::new();
        let are_files = file != OBJECTS;
        for kept in order {
            // Not to wait again for a dead mirror to learn that a file that others lack is not there.
            let paused = {
                let account = kept.account.lock();
                account
                    .pause_left(Instant::now())
                    .and(account.paused.as_ref().map(|paused| paused.why.clone()))
            };
            if let Some(why) = paused
                && are_files
                && !lacking.is_empty()
            {
                said.push(Answer::NotAsked { mirror: kept.name(), why });
                continue;
            }
            match kept.ask(ask) {
                Ok(bytes) => match check(bytes) {
                    Ok(good) => {
                        kept.praise();
                        if !are_files {
                            kept.account.lock().no_objects = false;
                        }
                        for (suspect, why) in suspects {
                            suspect.discard(&why);
                        }
                        for incomplete in lacking {
                            Kept::put_back(
                                incomplete,
                                format!("it does not have {file}, which {} has", kept.name()),
                            );
                        }
                        return Ok((good, kept.name()));
                    }
                    Err(why) => {
                        let known = format!("{file}: {why}");
                        match blame {
                            Blame::Certain => kept.discard(&known),
                            Blame::IfOthersFit => suspects.push((kept, known)),
                        }
                        said.push(Answer::Bad { mirror: kept.name(), why });
                    }
                },
                Err(error) => {
                    match &error {
                        MirrorError::Missing { .. } if are_files => lacking.push(kept),
                        MirrorError::Missing { .. } => kept.account.lock().no_objects = true,
                        other => kept.put_back(other.to_string()),
                    }
                    said.push(Answer::Failed(error));
                }
            }
        }
        Err(NotHad { file: file.to_owned(), said, dropped: self.dropped() })
    }

    /// Frames of blocks that the look-up of `paths` needs (see [`Mirror::paths`]), from the fastest mirror that can tell;
    /// `None` if none can, which costs a request now and then. Nothing of them is checked.
    pub fn paths(&self, paths: &[&[u8]], bytes_max: u64) -> Option<Vec<u8>> {
        let can = |kept: &&Kept| {
            let account = kept.account.lock();
            account.pause_left(Instant::now()).is_none()
                && account.no_paths.is_none_or(|when| when.elapsed() > PATHS_ASKED_AGAIN)
        };
        self.order(bytes_max, Instant::now()).into_iter().filter(can).find_map(|kept| {
            let start = Instant::now();
            match kept.mirror.paths(paths, bytes_max) {
                Ok(frames) => {
                    kept.account.lock().speed.record(Instant::now(), start.elapsed(), frames.len() as u64);
                    kept.praise();
                    return Some(frames);
                }
                Err(error @ MirrorError::Unreachable { .. }) => kept.put_back(error.to_string()),
                Err(_) => kept.account.lock().no_paths = Some(Instant::now()),
            }
            None
        })
    }

    /// What every mirror has under this name, all asked at once: for the few small files that need not be the same
    /// everywhere (`root`, `revoked`), of which the caller takes the best. Nobody is dropped for an old one.
    pub fn every(&self, file: &str, bytes_max: u64) -> Vec<(String, Result<Vec<u8>, MirrorError>)> {
        let asked: Vec<&Kept> =
            self.mirrors.iter().filter(|kept| kept.account.lock().dropped.is_none()).collect();
        let answer = |kept: &Kept| {
            let answer = kept.ask(&|mirror: &dyn Mirror| mirror.get(file, None, bytes_max));
            match &answer {
                Ok(_) => kept.praise(),
                Err(MirrorError::Missing { .. }) => {}
                Err(error) => kept.put_back(error.to_string()),
            }
            (kept.name(), answer)
        };
        std::thread::scope(|scope| {
            let (first, others) = match asked.split_first() {
                Some((first, others)) => (Some(first), others),
                None => (None, &asked[..]),
            };
            let others: Vec<_> = others.iter().map(|kept| scope.spawn(|| answer(kept))).collect();
            let mut answers: Vec<_> = first.map(|kept| answer(kept)).into_iter().collect();
            for other in others {
                answers.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            answers
        })
    }

    /// Drops a mirror whose content is bad, as the caller found out later. It is told once. Whether another mirror is
    /// left to be asked.
    pub fn report_bad(&self, mirror: &str, why: &str) -> bool {
        self.mirrors.iter().filter(|kept| kept.mirror.name() == mirror).for_each(|kept| kept.discard(why));
        self.mirrors.iter().any(|kept| kept.account.lock().dropped.is_none())
    }

    /// The mirrors themselves, for who has to ask one alone; without those that were dropped.
    pub fn each(&self) -> Vec<Arc<dyn Mirror>> {
        let good = |kept: &&Kept| kept.account.lock().dropped.is_none();
        self.mirrors.iter().filter(good).map(|kept| kept.mirror.clone()).collect()
    }

    /// How each mirror stands.
    pub fn standings(&self) -> Vec<Standing> {
        let now = Instant::now();
        self.mirrors.iter().map(|kept| kept.standing(now)).collect()
    }

    /// The mirrors that were dropped, and why.
    pub fn dropped(&self) -> Vec<(String, String)> {
        let why = |kept: &Kept| kept.account.lock().dropped.clone();
        self.mirrors.iter().filter_map(|kept| Some((kept.name(), why(kept)?))).collect()
    }

    /// In which order to ask for `bytes`: mirrors in a pause last.
    fn order(&self, bytes: u64, now: Instant) -> Vec<&Kept> {
        let mut ready = Vec::new();
        let mut paused = Vec::new();
        let mut dropped = Vec::new();
        for kept in &self.mirrors {
            let account = kept.account.lock();
            let left = account.pause_left(now);
            if account.dropped.is_some() {
                if left.is_none() {
                    dropped.push(kept);
                }
                continue;
            }
            if let Some(left) = left {
                paused.push((left, kept));
                continue;
            }
            let forgotten =
                account.speed.asked.is_none_or(|asked| now.saturating_duration_since(asked) > ASKED_AGAIN);
            let explored = forgotten && bytes <= EXPLORING_BYTES_MAX;
            let expected = if explored { 0.0 } else { account.speed.expected_s(bytes).unwrap_or(f64::MAX) };
            ready.push((expected, kept));
        }
        if ready.is_empty() && paused.is_empty() {
            return dropped;
        }
        // Both sorts are stable: of equals, the one that was named first.
        ready.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        paused.sort_by_key(|(left, _)| *left);
        ready.into_iter().map(|(_, kept)| kept).chain(paused.into_iter().map(|(_, kept)| kept)).collect()
    }
}

/// Whose fault it is if an answer does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blame {
    /// The mirror's.
    Certain,
    /// The mirror's if another has one that passes.
    IfOthersFit,
}

impl Kept {
    fn name(&self) -> String {
        self.mirror.name().to_owned()
    }

    /// Asks, and measures.
    fn ask(&self, ask: &Asking<'_>) -> Result<Vec<u8>, MirrorError> {
        // Asked is asked, also while the answer is awaited: others need not explore it meanwhile.
        self.account.lock().speed.asked = Some(Instant::now());
        let start = Instant::now();
        let answer = ask(&*self.mirror);
        if let Ok(bytes) = &answer {
            self.account.lock().speed.record(Instant::now(), start.elapsed(), bytes.len() as u64);
        }
        answer
    }

    fn praise(&self) {
        let mut account = self.account.lock();
        account.answers += 1;
        account.paused = None;
    }

    fn put_back(&self, why: String) {
        let mut account = self.account.lock();
        if account.paused.is_none() {
            tracing::info!(mirror = self.mirror.name(), why, "a mirror fails; others are asked first");
        }
        account.pause(Instant::now(), why);
    }

    fn discard(&self, why: &str) {
        let mut account = self.account.lock();
        let why = shown(why);
        if account.dropped.is_none() {
            tracing::warn!(
                mirror = self.mirror.name(),
                why,
                "a mirror gave something false; others are asked now"
            );
        }
        account.pause(Instant::now(), why.clone());
        account.dropped.get_or_insert(why);
    }

    fn standing(&self, now: Instant) -> Standing {
        let account = self.account.lock();
        let (state, why) = match (&account.dropped, account.pause_left(now)) {
            (Some(why), _) => (State::Dropped, Some(why.clone())),
            (None, left) => (
                if left.is_some() { State::Paused } else { State::Good },
                account.paused.as_ref().map(|paused| paused.why.clone()),
            ),
        };
        Standing {
            mirror: self.name(),
            state,
            why,
            latency_ms: account.speed.latency_s.map(|seconds| seconds * 1000.0),
            bytes_per_s: account.speed.bytes_per_s,
            answers: account.answers,
            failures: account.failures,
        }
    }
}
