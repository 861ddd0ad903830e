//! Several mirrors as one.
//!
//! The mirror that is expected to be done first is asked first. What a mirror did wrong is remembered, so that nobody
//! waits for it again:
//!
//! - One that does not answer is *paused*: for a while it is not asked at all, longer each time. Then one request tries.
//!   A request that needs it waits if it has failed for a few seconds only; after that it fails at once.
//! - One whose answer is of no use (another range, a redirection, a file that it lacks) is asked after the others for a
//!   while, and not for the same bytes.
//! - One whose content is *bad*, which only the caller can tell, is dropped: while others are left it is not asked for ten
//!   minutes, longer each time; if none is left it is asked, but not for the same bytes.
//!
//! It makes no difference to what is believed in the end: every byte is checked, whoever sent it.

use super::speed::Speed;
use super::{AddressError, Mirror, MirrorError, OBJECTS, parse, shown};
use crate::pack::Frame;
use holdfast_crypto::Digest;
use holdfast_protocol::message::AddressedBlock;
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first pause of a mirror that fails; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause, but for a mirror that asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest pause that a mirror can ask for.
const PAUSE_ASKED_MAX: Duration = Duration::from_secs(600);
/// How long a request waits for mirrors that have just begun to fail.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it looks whether the one request that tries a mirror again has had an answer.
const TRIED_POLL: Duration = Duration::from_millis(50);
/// How long a mirror is not asked that gave something false; each next time twice as long.
const DROPPED_MIN: Duration = Duration::from_secs(600);
/// The longest such time.
const DROPPED_MAX: Duration = Duration::from_secs(24 * 3600);
/// Requests to a mirror that are remembered because the answer was of no use.
const USELESS_KEPT: usize = 1024;
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
    wait_max: Duration,
}

/// What a mirror is asked.
type Asking<'a> = dyn Fn(&dyn Mirror) -> Result<Vec<u8>, MirrorError> + 'a;

struct Kept {
    mirror: Arc<dyn Mirror>,
    account: Mutex<Account>,
}

/// What is held for and against a mirror.
struct Account {
    speed: Speed,
    /// Why it is not asked, or only after the others, for a while: it failed, and has given nothing good since.
    paused: Option<Paused>,
    /// Its content was bad.
    dropped: Option<Dropped>,
    /// How often it was dropped.
    drops: u32,
    /// Requests to which its answer was of no use: they are not made again for a while.
    useless: LruCache<Part, Useless>,
    /// When it last could not look up paths.
    no_paths: Option<Instant>,
    /// Whether it had none of the blocks that were asked for last, of data at an origin.
    no_objects: bool,
    answers: u64,
    failures: u64,
}

/// What a request asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Part {
    file: String,
    /// Where in it the request begins.
    start: u64,
    /// What has to be there, if that is the word of somebody who may be wrong.
    expected: u64,
}

struct Paused {
    /// When it failed first, without an answer of use since.
    first: Instant,
    since: Instant,
    pause: Duration,
    why: String,
    /// It failed to answer (no connection, time-out, 429, 5xx), so no request goes to it before the pause is over. If not,
    /// its answers were useless, and it is asked after the others.
    is_away: bool,
    /// It failed when it was asked for content: that it has a record does not make it good again.
    of_content: bool,
    /// The pause is over, and somebody is trying it.
    is_tried: bool,
}

struct Useless {
    since: Instant,
    lasts: Duration,
    answer: Answer,
}

struct Dropped {
    since: Instant,
    lasts: Duration,
    why: String,
}

/// Whether a mirror is asked.
enum Turn {
    /// With the others.
    Ready,
    /// After the others.
    Late,
    /// Only if there is no other.
    Last,
    /// Not for so long.
    Away(Duration),
}

impl Default for Account {
    fn default() -> Account {
        Account {
            speed: Speed::default(),
            paused: None,
            dropped: None,
            drops: 0,
            useless: LruCache::new(NonZeroUsize::new(USELESS_KEPT).expect("not zero")),
            no_paths: None,
            no_objects: false,
            answers: 0,
            failures: 0,
        }
    }
}

/// What is left of a time that began at `since`, unless it is over.
fn left(since: Instant, lasts: Duration, now: Instant) -> Option<Duration> {
    lasts.checked_sub(now.saturating_duration_since(since)).filter(|left| !left.is_zero())
}

impl Paused {
    fn left(&self, now: Instant) -> Option<Duration> {
        left(self.since, self.pause, now)
    }
}

/// How a mirror failed.
struct Failure {
    why: String,
    is_away: bool,
    of_content: bool,
    /// A pause is never shorter: as long as it took to fail, or as the mirror asks for.
    pause_min: Duration,
}

impl Account {
    fn turn(&self, now: Instant) -> Turn {
        if let Some(paused) = self.paused.as_ref().filter(|paused| paused.is_away) {
            match paused.left(now) {
                Some(left) => return Turn::Away(left),
                None if paused.is_tried => return Turn::Away(TRIED_POLL),
                None => {}
            }
        }
        if self.is_dropped(now) {
            return Turn::Last;
        }
        match self.paused.as_ref().and_then(|paused| paused.left(now)) {
            Some(_) => Turn::Late,
            None => Turn::Ready,
        }
    }

    fn is_dropped(&self, now: Instant) -> bool {
        self.dropped.as_ref().is_some_and(|dropped| dropped.left(now).is_some())
    }

    fn pause(&mut self, now: Instant, failure: Failure) {
        self.failures += 1;
        let Failure { why, is_away, of_content, pause_min } = failure;
        let before = self.paused.as_ref();
        let pause = before.map_or(PAUSE_MIN, |before| (before.pause * 2).min(PAUSE_MAX)).max(pause_min);
        let first = before.map_or(now, |before| before.first);
        let of_content = of_content || before.is_some_and(|before| before.of_content);
        self.paused = Some(Paused { first, since: now, pause, why, is_away, of_content, is_tried: false });
    }

    /// Remembers an answer that was of no use.
    fn remember_useless(&mut self, now: Instant, part: &Part, answer: Answer) {
        if part.file == OBJECTS {
            return;
        }
        let lasts = self.useless.peek(part).map_or(PAUSE_MIN, |before| (before.lasts * 2).min(PAUSE_MAX));
        self.useless.put(part.clone(), Useless { since: now, lasts, answer });
    }
}

impl Dropped {
    fn left(&self, now: Instant) -> Option<Duration> {
        left(self.since, self.lasts, now)
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

    /// Whether somebody has something else than was looked for: so what told where to look may be wrong.
    pub fn disputed(&self) -> bool {
        let is_other = |answer: &Answer| {
            matches!(answer, Answer::Bad { .. } | Answer::Failed(MirrorError::Wrong { .. }))
        };
        self.said.iter().any(is_other)
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
                retry_after: None,
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
    /// In how many seconds it is asked again, if it is not asked now.
    pub asked_again_s: Option<u64>,
    /// What its operator should mend.
    pub notice: Option<String>,
}

/// Whether a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is.
    Good,
    /// Not for a while, as it does not answer; or only after the others, as its answers are of no use.
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
        Mirrors { mirrors: mirrors.into_iter().take(MIRRORS_MAX).map(keep).collect(), wait_max: WAIT_MAX }
    }

    /// With another bound than 5 seconds on how long a request waits for mirrors that have just begun to fail.
    #[must_use]
    pub fn waiting_at_most(self, wait_max: Duration) -> Mirrors {
        Mirrors { wait_max, ..self }
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
        let start = range.as_ref().map_or(0, |range| range.start);
        let part = Part { file: file.to_owned(), start, expected: 0 };
        let ask = |mirror: &dyn Mirror| mirror.get(file, range.clone(), bytes_max);
        self.ask_checked(&part, expected.min(bytes_max), &ask, check, Blame::Certain)
    }

    /// As [`Mirrors::get_checked`], where `check` goes by what some mirror has named and nobody signed: what does not pass
    /// may be that one's fault. So a mirror is dropped only once another has something that passes, or if there is no other.
    /// `expected` is the block that should be there.
    ///
    /// # Errors
    /// What each mirror said.
    pub fn get_fitting<T>(
        &self,
        file: &str,
        range: Range<u64>,
        expected: &Digest,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
    ) -> Result<(T, String), NotHad> {
        let bytes_max = range.end.saturating_sub(range.start);
        let expected = u64::from_le_bytes(*expected.0.first_chunk().expect("32 bytes"));
        let part = Part { file: file.to_owned(), start: range.start, expected };
        let ask = |mirror: &dyn Mirror| mirror.get(file, Some(range.clone()), bytes_max);
        self.ask_checked(&part, bytes_max, &ask, check, Blame::IfOthersFit)
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
        let ask = |mirror: &dyn Mirror| mirror.objects(addresses);
        let part = Part { file: OBJECTS.to_owned(), start: 0, expected: 0 };
        self.ask_checked(&part, expected, &ask, &check, Blame::Certain)
    }

    /// Asks one mirror after the other, and again if one has just begun to fail and may be back soon.
    fn ask_checked<T>(
        &self,
        part: &Part,
        bytes: u64,
        ask: &Asking<'_>,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
        blame: Blame,
    ) -> Result<(T, String), NotHad> {
        let end = Instant::now() + self.wait_max;
        loop {
            let error = match self.ask_each(part, bytes, ask, check, blame) {
                Ok(had) => return Ok(had),
                Err(error) => error,
            };
            let now = Instant::now();
            match self.back_in(now) {
                Some(pause) if now + pause < end => std::thread::sleep(pause),
                _ => return Err(error),
            }
        }
    }

    /// When the first of those mirrors is asked again that have just begun to fail.
    fn back_in(&self, now: Instant) -> Option<Duration> {
        let left = |kept: &Kept| {
            let account = kept.account.lock();
            let Turn::Away(left) = account.turn(now) else { return None };
            let first = account.paused.as_ref()?.first;
            (now.saturating_duration_since(first) < self.wait_max).then_some(left)
        };
        self.mirrors.iter().filter_map(left).min()
    }

    fn ask_each<T>(
        &self,
        part: &Part,
        bytes: u64,
        ask: &Asking<'_>,
        check: &dyn Fn(Vec<u8>) -> Result<T, String>,
        blame: Blame,
    ) -> Result<(T, String), NotHad> {
        let file = &part.file;
        let are_files = file != OBJECTS;
        let (mut order, away) = self.order(bytes, Instant::now());
        let blame = if order.len() == 1 { Blame::Certain } else { blame };
        if !are_files {
            // Most mirrors do not reach an origin, which is no fault of theirs; those that did not are asked last.
            order.sort_by_key(|kept| kept.account.lock().no_objects);
        }
        let mut said = Vec::new();
        let mut lacking = Vec::new();
        let mut suspects: Vec<(&Kept, String)> = Vec::new();
        for kept in order {
            if let Some(answer) = kept.known_answer(part) {
                said.push(answer);
                continue;
            }
            let asked = Instant::now();
            match kept.ask(ask) {
                Ok(bytes) => match check(bytes) {
                    Ok(good) => {
                        kept.praise(part);
                        for (suspect, why) in suspects {
                            suspect.discard(&why);
                        }
                        for incomplete in lacking {
                            let why = format!("it does not have {file}, which {} has", kept.name());
                            Kept::put_back(incomplete, Failure::useless(why));
                        }
                        return Ok((good, kept.name()));
                    }
                    Err(why) => {
                        let known = format!("{file}: {why}");
                        match blame {
                            Blame::Certain => kept.discard(&known),
                            Blame::IfOthersFit => suspects.push((kept, known)),
                        }
                        let answer = Answer::Bad { mirror: kept.name(), why };
                        kept.account.lock().remember_useless(Instant::now(), part, answer.clone());
                        said.push(answer);
                    }
                },
                Err(error) => {
                    match &error {
                        MirrorError::Missing { .. } if are_files => lacking.push(kept),
                        MirrorError::Missing { .. } => kept.account.lock().no_objects = true,
                        MirrorError::Wrong { .. } => {
                            let answer = Answer::Failed(error.clone());
                            kept.account.lock().remember_useless(Instant::now(), part, answer);
                            kept.put_back(Failure::useless(error.to_string()));
                        }
                        MirrorError::Unreachable { .. } => {
                            kept.put_back(Failure::away(&error, asked, true));
                        }
                    }
                    said.push(Answer::Failed(error));
                }
            }
        }
        said.extend(away.into_iter().map(|kept| Answer::NotAsked { mirror: kept.name(), why: kept.why() }));
        Err(NotHad { file: file.clone(), said, dropped: self.dropped() })
    }

    /// Frames of blocks that the look-up of `paths` needs (see [`Mirror::paths`]), from the fastest mirror that can tell;
    /// `None` if none can, which costs a request now and then. Nothing of them is checked.
    pub fn paths(&self, paths: &[&[u8]], bytes_max: u64) -> Option<Vec<u8>> {
        let can = |kept: &&Kept| {
            let account = kept.account.lock();
            account.paused.is_none() && account.no_paths.is_none_or(|when| when.elapsed() > PATHS_ASKED_AGAIN)
        };
        let (order, _) = self.order(bytes_max, Instant::now());
        order.into_iter().filter(can).find_map(|kept| {
            let start = Instant::now();
            match kept.mirror.paths(paths, bytes_max) {
                Ok(frames) => {
                    let mut account = kept.account.lock();
                    account.speed.record(Instant::now(), start.elapsed(), frames.len() as u64);
                    account.answers += 1;
                    return Some(frames);
                }
                Err(error @ MirrorError::Unreachable { .. }) => {
                    kept.put_back(Failure::away(&error, start, false));
                }
                Err(_) => kept.account.lock().no_paths = Some(Instant::now()),
            }
            None
        })
    }

    /// What every mirror has under this name, all asked at once: for the few small files that need not be the same
    /// everywhere (`root`, `revoked`), of which the caller takes the best. Nobody is dropped for an old one. Those that are
    /// dropped, or paused because they do not answer, are not asked.
    pub fn every(&self, file: &str, bytes_max: u64) -> Vec<(String, Result<Vec<u8>, MirrorError>)> {
        let now = Instant::now();
        let is_asked = |kept: &&Kept| {
            let account = kept.account.lock();
            !account.is_dropped(now) && !matches!(account.turn(now), Turn::Away(_))
        };
        let asked: Vec<&Kept> = self.mirrors.iter().filter(is_asked).collect();
        let answer = |kept: &Kept| {
            let start = Instant::now();
            let answer = kept.ask(&|mirror: &dyn Mirror| mirror.get(file, None, bytes_max));
            match &answer {
                Ok(_) => kept.praise_record(),
                Err(MirrorError::Missing { .. }) => {}
                Err(MirrorError::Wrong { why, .. }) => kept.put_back(Failure::useless(why.clone())),
                Err(error) => kept.put_back(Failure::away(error, start, false)),
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
        let now = Instant::now();
        self.mirrors.iter().any(|kept| !kept.account.lock().is_dropped(now))
    }

    /// The mirrors themselves, for who has to ask one alone; without those that were dropped.
    pub fn each(&self) -> Vec<Arc<dyn Mirror>> {
        let now = Instant::now();
        let good = |kept: &&Kept| !kept.account.lock().is_dropped(now);
        self.mirrors.iter().filter(good).map(|kept| kept.mirror.clone()).collect()
    }

    /// How each mirror stands.
    pub fn standings(&self) -> Vec<Standing> {
        let now = Instant::now();
        self.mirrors.iter().map(|kept| kept.standing(now)).collect()
    }

    /// The mirrors that were dropped, and why.
    pub fn dropped(&self) -> Vec<(String, String)> {
        let why = |kept: &Kept| kept.account.lock().dropped.as_ref().map(|dropped| dropped.why.clone());
        self.mirrors.iter().filter_map(|kept| Some((kept.name(), why(kept)?))).collect()
    }

    /// In which order to ask for `bytes`, and who is not asked because it does not answer.
    fn order(&self, bytes: u64, now: Instant) -> (Vec<&Kept>, Vec<&Kept>) {
        let (mut ready, mut late, mut last, mut away) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for kept in &self.mirrors {
            let account = kept.account.lock();
            match account.turn(now) {
                Turn::Ready => {
                    let asked = account.speed.asked;
                    let is_forgotten =
                        asked.is_none_or(|asked| now.saturating_duration_since(asked) > ASKED_AGAIN);
                    let is_explored = is_forgotten && bytes <= EXPLORING_BYTES_MAX;
                    let expected_s = match is_explored {
                        true => 0.0,
                        false => account.speed.expected_s(bytes).unwrap_or(f64::MAX),
                    };
                    ready.push((expected_s, kept));
                }
                Turn::Late => late.push(kept),
                Turn::Last => last.push(kept),
                Turn::Away(left) => away.push((left, kept)),
            }
        }
        if ready.is_empty() && late.is_empty() {
            late = last;
        }
        // Both sorts are stable: of equals, the one that was named first.
        ready.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        away.sort_by_key(|(left, _)| *left);
        let order = ready.into_iter().map(|(_, kept)| kept).chain(late).collect();
        (order, away.into_iter().map(|(_, kept)| kept).collect())
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
        let mut account = self.account.lock();
        if let Ok(bytes) = &answer {
            account.speed.record(Instant::now(), start.elapsed(), bytes.len() as u64);
        }
        if let Some(paused) = account.paused.as_mut() {
            paused.is_tried = false;
        }
        answer
    }

    /// What it would say, if it is not asked now: it gave no answer of use to this just before, or it does not answer, and
    /// another request tries it.
    fn known_answer(&self, part: &Part) -> Option<Answer> {
        let mut account = self.account.lock();
        let now = Instant::now();
        let known = account.useless.get(part).filter(|known| left(known.since, known.lasts, now).is_some());
        if let Some(known) = known {
            return Some(known.answer.clone());
        }
        match account.paused.as_mut().filter(|paused| paused.is_away) {
            Some(paused) if paused.is_tried || paused.left(now).is_some() => {
                Some(Answer::NotAsked { mirror: self.name(), why: paused.why.clone() })
            }
            Some(paused) => {
                paused.is_tried = true;
                None
            }
            None => None,
        }
    }

    /// Why it is paused.
    fn why(&self) -> String {
        self.account.lock().paused.as_ref().map_or_else(String::new, |paused| paused.why.clone())
    }

    /// It has given content that passed.
    fn praise(&self, part: &Part) {
        let mut account = self.account.lock();
        account.answers += 1;
        account.paused = None;
        account.dropped = None;
        account.useless.pop(part);
        if part.file == OBJECTS {
            account.no_objects = false;
        }
    }

    /// It has given a record.
    fn praise_record(&self) {
        let mut account = self.account.lock();
        account.answers += 1;
        if account.paused.as_ref().is_some_and(|paused| !paused.of_content) {
            account.paused = None;
        }
    }

    fn put_back(&self, failure: Failure) {
        let mut account = self.account.lock();
        if account.paused.is_none() {
            let why = &failure.why;
            tracing::info!(mirror = self.mirror.name(), why, "a mirror fails; others are asked first");
        }
        account.pause(Instant::now(), failure);
    }

    fn discard(&self, why: &str) {
        let mut account = self.account.lock();
        let why = shown(why);
        account.failures += 1;
        if account.dropped.is_none() {
            tracing::warn!(
                mirror = self.mirror.name(),
                why,
                "a mirror gave something false; others are asked now"
            );
            account.drops += 1;
        }
        let lasts = DROPPED_MIN.saturating_mul(1 << (account.drops - 1).min(16)).min(DROPPED_MAX);
        let why = account.dropped.take().map_or(why, |dropped| dropped.why);
        account.dropped = Some(Dropped { since: Instant::now(), lasts, why });
    }

    fn standing(&self, now: Instant) -> Standing {
        let account = self.account.lock();
        let paused = account.paused.as_ref();
        let (state, why) = match (&account.dropped, account.turn(now)) {
            (Some(dropped), _) => (State::Dropped, Some(dropped.why.clone())),
            (None, Turn::Ready) => (State::Good, paused.map(|paused| paused.why.clone())),
            (None, _) => (State::Paused, paused.map(|paused| paused.why.clone())),
        };
        let left = match account.turn(now) {
            Turn::Away(left) => Some(left),
            Turn::Last => account.dropped.as_ref().and_then(|dropped| dropped.left(now)),
            Turn::Ready | Turn::Late => None,
        };
        Standing {
            mirror: self.name(),
            state,
            why,
            latency_ms: account.speed.latency_s.map(|seconds| seconds * 1000.0),
            bytes_per_s: account.speed.bytes_per_s,
            answers: account.answers,
            failures: account.failures,
            asked_again_s: left.map(|left| left.as_secs() + 1),
            notice: self.mirror.notice(),
        }
    }
}

impl Failure {
    /// Its answer was of no use.
    fn useless(why: String) -> Failure {
        Failure { why, is_away: false, of_content: true, pause_min: Duration::ZERO }
    }

    /// It does not answer. That took as long as since `asked`.
    fn away(error: &MirrorError, asked: Instant, of_content: bool) -> Failure {
        let wanted = match error {
            MirrorError::Unreachable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause_min = asked.elapsed().max(wanted.unwrap_or_default().min(PAUSE_ASKED_MAX));
        Failure { why: error.to_string(), is_away: true, of_content, pause_min }
    }
}
