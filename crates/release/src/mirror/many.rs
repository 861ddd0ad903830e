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
use super::{AddressError, BadContent, Mirror, MirrorError, OBJECTS, parse, printable};
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
/// The longest exclusion.
const DROPPED_MAX: Duration = Duration::from_secs(24 * 3600);
/// Requests to a mirror that are remembered because the answer was of no use.
const USELESS_KEPT: usize = 1024;
/// A mirror that was not asked for so long is asked first once, so that a slow start is not held against it for ever.
const ASKED_AGAIN: Duration = Duration::from_secs(60);
/// How long after it could not look up paths a mirror is asked for that again: it may have got hints.
const PATHS_ASKED_AGAIN: Duration = Duration::from_secs(600);
/// Slow mirrors are tried with requests up to this long: a late reply does no harm.
const EXPLORING_BYTES_MAX: u64 = 64 << 10;
/// How long an answer is taken to be if the caller does not know.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// How many mirrors are asked at once by [`Mirrors::every`].
const MIRRORS_MAX: usize = 64;

/// The mirrors of one release.
pub struct Mirrors {
    mirrors: Vec<MirrorEntry>,
    wait_max: Duration,
}

/// Sends a request to a mirror.
type MirrorRequest<'a> = dyn Fn(&dyn Mirror) -> Result<Vec<u8>, MirrorError> + 'a;

struct MirrorEntry {
    mirror: Arc<dyn Mirror>,
    health: Mutex<MirrorHealth>,
}

/// What is known of a mirror: how fast it is, and how it failed.
struct MirrorHealth {
    speed: Speed,
    /// Why it is not asked, or only after the others, for a while: it failed, and has given nothing good since.
    paused: Option<Pause>,
    /// Set while the mirror is excluded because its content was bad.
    dropped: Option<Exclusion>,
    /// How often it was dropped.
    drops: u32,
    /// Requests to which its answer was of no use: they are not made again for a while.
    useless: LruCache<RequestKey, UselessReply>,
    /// When it last answered that it cannot look up paths.
    no_paths: Option<Instant>,
    /// Whether it had none of the blocks that were asked for last, of data at an origin.
    no_objects: bool,
    answers: u64,
    failures: u64,
}

/// Identifies a request, to recognise it when it comes again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct RequestKey {
    file: String,
    /// The first byte of the range.
    start: u64,
    /// What must be there by an unsigned index, which may be wrong.
    expected: u64,
}

struct Pause {
    /// When it first failed, without a useful reply since.
    first: Instant,
    since: Instant,
    pause: Duration,
    why: String,
    /// The mirror failed to answer (no connection, time-out, 429, 5xx), so no request goes to it before the pause is
    /// over. If not, its answers were useless, and it is asked after the others.
    is_away: bool,
    /// The mirror failed to give content: giving a record does not make it good again.
    of_content: bool,
    /// The pause is over, and somebody is trying it.
    is_tried: bool,
}

struct UselessReply {
    since: Instant,
    lasts: Duration,
    answer: MirrorFailure,
}

struct Exclusion {
    since: Instant,
    lasts: Duration,
    why: String,
}

/// Whether a mirror is asked.
enum Priority {
    /// It is asked with the others.
    Ready,
    /// It is asked after the others.
    Late,
    /// It is asked only if there is no other.
    Last,
    /// It is not asked for this long.
    Away(Duration),
}

impl Default for MirrorHealth {
    fn default() -> MirrorHealth {
        MirrorHealth {
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

/// The rest of a time that began at `since`, unless it is over.
fn left(since: Instant, lasts: Duration, now: Instant) -> Option<Duration> {
    lasts.checked_sub(now.saturating_duration_since(since)).filter(|left| !left.is_zero())
}

impl Pause {
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

impl MirrorHealth {
    fn priority(&self, now: Instant) -> Priority {
        if let Some(paused) = self.paused.as_ref().filter(|paused| paused.is_away) {
            match paused.left(now) {
                Some(left) => return Priority::Away(left),
                None if paused.is_tried => return Priority::Away(TRIED_POLL),
                None => {}
            }
        }
        if self.is_dropped(now) {
            return Priority::Last;
        }
        match self.paused.as_ref().and_then(|paused| paused.left(now)) {
            Some(_) => Priority::Late,
            None => Priority::Ready,
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
        self.paused = Some(Pause { first, since: now, pause, why, is_away, of_content, is_tried: false });
    }

    /// Remembers an answer that was of no use.
    fn remember_useless(&mut self, now: Instant, part: &RequestKey, answer: MirrorFailure) {
        if part.file == OBJECTS {
            return;
        }
        let lasts = self.useless.peek(part).map_or(PAUSE_MIN, |before| (before.lasts * 2).min(PAUSE_MAX));
        self.useless.put(part.clone(), UselessReply { since: now, lasts, answer });
    }
}

impl Exclusion {
    fn left(&self, now: Instant) -> Option<Duration> {
        left(self.since, self.lasts, now)
    }
}

/// Why a mirror did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorFailure {
    /// The mirror lacks the file, or gave something useless, or nothing.
    Failed(MirrorError),
    /// Something that the caller found to be bad.
    Bad {
        /// The mirror.
        mirror: String,
        /// What is bad about the content.
        why: String,
    },
    /// The mirror was not asked, because it failed just before.
    NotAsked {
        /// The mirror.
        mirror: String,
        /// How it failed before.
        why: String,
    },
}

impl MirrorFailure {
    /// The mirror's name.
    pub fn mirror(&self) -> &str {
        match self {
            MirrorFailure::Failed(
                MirrorError::Missing { mirror, .. }
                | MirrorError::Wrong { mirror, .. }
                | MirrorError::Unreachable { mirror, .. },
            )
            | MirrorFailure::Bad { mirror, .. }
            | MirrorFailure::NotAsked { mirror, .. } => mirror,
        }
    }
}

impl fmt::Display for MirrorFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorFailure::Failed(error) => error.fmt(f),
            MirrorFailure::Bad { mirror, why } => write!(f, "{mirror} gave something false: {why}"),
            MirrorFailure::NotAsked { mirror, why } => write!(f, "{mirror} was not asked again yet ({why})"),
        }
    }
}

/// A file that no mirror gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Unavailable {
    /// The file.
    pub file: String,
    /// The failure of each mirror, in the order in which they were asked.
    pub failures: Vec<MirrorFailure>,
    /// The mirrors that were dropped before, and why.
    pub dropped: Vec<(String, String)>,
}

impl Unavailable {
    /// Whether every mirror that was asked, and there was one, says that there is no such file. They may all be lying.
    pub fn missing(&self) -> bool {
        !self.failures.is_empty()
            && self
                .failures
                .iter()
                .all(|answer| matches!(answer, MirrorFailure::Failed(MirrorError::Missing { .. })))
    }

    /// Whether one says so, whatever is the matter with the others.
    pub fn missing_somewhere(&self) -> bool {
        self.failures
            .iter()
            .any(|answer| matches!(answer, MirrorFailure::Failed(MirrorError::Missing { .. })))
    }

    /// Whether a mirror has something else than was looked for: so the index that said where to look may be wrong.
    pub fn disputed(&self) -> bool {
        let is_other = |answer: &MirrorFailure| {
            matches!(answer, MirrorFailure::Bad { .. } | MirrorFailure::Failed(MirrorError::Wrong { .. }))
        };
        self.failures.iter().any(is_other)
    }
}

impl From<Unavailable> for MirrorError {
    /// As if all were one mirror: missing only if each says so.
    fn from(error: Unavailable) -> MirrorError {
        let file = error.file.clone();
        match error.missing() {
            true => {
                let names = error.failures.iter().map(MirrorFailure::mirror);
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

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures = self.failures.iter().map(MirrorFailure::to_string);
        let dropped = self.dropped.iter().map(|(mirror, why)| format!("{mirror} was dropped ({why})"));
        let all: Vec<String> = failures.chain(dropped).collect();
        match all.is_empty() {
            true => write!(f, "{} cannot be had: there is no mirror", self.file),
            false => write!(f, "{} cannot be had: {}", self.file, all.join("; ")),
        }
    }
}

/// The status of a mirror.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorStatus {
    /// Its URL or directory.
    pub mirror: String,
    /// Whether the mirror is asked.
    pub state: MirrorState,
    /// Why it was last put back or dropped.
    pub why: Option<String>,
    /// Milliseconds before it answers, as estimated.
    pub latency_ms: Option<f64>,
    /// Bytes a second that it sends then, as estimated.
    pub bytes_per_s: Option<f64>,
    /// How many good answers it gave.
    pub answers: u64,
    /// The number of its failures.
    pub failures: u64,
    /// Seconds until it is asked again, if it is not asked now.
    pub asked_again_s: Option<u64>,
    /// What its operator should mend.
    pub notice: Option<String>,
}

/// Whether a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MirrorState {
    /// It is asked.
    Good,
    /// It is not asked for a while, as it does not answer; or only after the others, as its replies are useless.
    Paused,
    /// It is excluded as long as there is another: its content was bad.
    Dropped,
}

impl fmt::Display for Mirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.mirrors.iter().map(|entry| entry.mirror.name()).collect();
        f.write_str(&names.join(", "))
    }
}

impl Mirrors {
    /// `mirrors`, preferred in this order until they are measured. There may be at most 64.
    pub fn new(mirrors: Vec<Arc<dyn Mirror>>) -> Mirrors {
        let keep = |mirror| MirrorEntry { mirror, health: Mutex::default() };
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
    /// The failure of each mirror.
    pub fn get_checked<T>(
        &self,
        file: &str,
        range: Option<Range<u64>>,
        bytes_max: u64,
        check: &dyn Fn(Vec<u8>) -> Result<T, BadContent>,
    ) -> Result<(T, String), Unavailable> {
        let expected = range.as_ref().map_or(UNKNOWN_BYTES, |range| range.end.saturating_sub(range.start));
        let start = range.as_ref().map_or(0, |range| range.start);
        let part = RequestKey { file: file.to_owned(), start, expected: 0 };
        let ask = |mirror: &dyn Mirror| mirror.get(file, range.clone(), bytes_max);
        self.ask_checked(&part, expected.min(bytes_max), &ask, check, Blame::Certain)
    }

    /// As [`Mirrors::get_checked`], where `check` goes by what some mirror has named and nobody signed: what does not pass
    /// may be that one's fault. So a mirror is dropped only once another has something that passes, or if there is no other.
    /// `expected` is the block that should be there.
    ///
    /// # Errors
    /// The failure of each mirror.
    pub fn get_fitting<T>(
        &self,
        file: &str,
        range: Range<u64>,
        expected: &Digest,
        check: &dyn Fn(Vec<u8>) -> Result<T, BadContent>,
    ) -> Result<(T, String), Unavailable> {
        let bytes_max = range.end.saturating_sub(range.start);
        let expected = u64::from_le_bytes(*expected.0.first_chunk().expect("32 bytes"));
        let part = RequestKey { file: file.to_owned(), start: range.start, expected };
        let ask = |mirror: &dyn Mirror| mirror.get(file, Some(range.clone()), bytes_max);
        self.ask_checked(&part, bytes_max, &ask, check, Blame::IfOthersFit)
    }

    /// Frames of some of these blocks (see [`Mirror::objects`]), at least one and only of these, and the name of the
    /// mirror that gave them. What is in the frames is not checked.
    ///
    /// # Errors
    /// The failure of each mirror.
    pub fn objects(&self, addresses: &[Digest]) -> Result<(Vec<AddressedBlock>, String), Unavailable> {
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
                false => Err("it sends something else than blocks".into()),
            }
        };
        let expected = (addresses.len() as u64) << 16;
        let ask = |mirror: &dyn Mirror| mirror.objects(addresses);
        let part = RequestKey { file: OBJECTS.to_owned(), start: 0, expected: 0 };
        self.ask_checked(&part, expected, &ask, &check, Blame::Certain)
    }

    /// Asks one mirror after the other, and again if one has just begun to fail and may be back soon.
    fn ask_checked<T>(
        &self,
        part: &RequestKey,
        bytes: u64,
        ask: &MirrorRequest<'_>,
        check: &dyn Fn(Vec<u8>) -> Result<T, BadContent>,
        blame: Blame,
    ) -> Result<(T, String), Unavailable> {
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
        let left = |entry: &MirrorEntry| {
            let health = entry.health.lock();
            let Priority::Away(left) = health.priority(now) else { return None };
            let first = health.paused.as_ref()?.first;
            (now.saturating_duration_since(first) < self.wait_max).then_some(left)
        };
        self.mirrors.iter().filter_map(left).min()
    }

    fn ask_each<T>(
        &self,
        part: &RequestKey,
        bytes: u64,
        ask: &MirrorRequest<'_>,
        check: &dyn Fn(Vec<u8>) -> Result<T, BadContent>,
        blame: Blame,
    ) -> Result<(T, String), Unavailable> {
        let file = &part.file;
        let are_files = file != OBJECTS;
        let (mut order, away) = self.order(bytes, Instant::now());
        let blame = if order.len() == 1 { Blame::Certain } else { blame };
        if !are_files {
            // Most mirrors do not reach an origin, which is no fault of theirs; those that did not are asked last.
            order.sort_by_key(|entry| entry.health.lock().no_objects);
        }
        let mut failures = Vec::new();
        let mut lacking = Vec::new();
        let mut suspects: Vec<(&MirrorEntry, String)> = Vec::new();
        for entry in order {
            if let Some(answer) = entry.known_failure(part) {
                failures.push(answer);
                continue;
            }
            let asked = Instant::now();
            match entry.ask(ask) {
                Ok(bytes) => match check(bytes) {
                    Ok(good) => {
                        entry.note_good(part);
                        for (suspect, why) in suspects {
                            suspect.discard(&why);
                        }
                        for incomplete in lacking {
                            let why = format!("it does not have {file}, which {} has", entry.name());
                            MirrorEntry::put_back(incomplete, Failure::useless(why));
                        }
                        return Ok((good, entry.name()));
                    }
                    Err(bad) => {
                        let why = bad.to_string();
                        let known = format!("{file}: {why}");
                        match blame {
                            Blame::Certain => entry.discard(&known),
                            Blame::IfOthersFit => suspects.push((entry, known)),
                        }
                        let answer = MirrorFailure::Bad { mirror: entry.name(), why };
                        entry.health.lock().remember_useless(Instant::now(), part, answer.clone());
                        failures.push(answer);
                    }
                },
                Err(error) => {
                    match &error {
                        MirrorError::Missing { .. } if are_files => lacking.push(entry),
                        MirrorError::Missing { .. } => entry.health.lock().no_objects = true,
                        MirrorError::Wrong { .. } => {
                            let answer = MirrorFailure::Failed(error.clone());
                            entry.health.lock().remember_useless(Instant::now(), part, answer);
                            entry.put_back(Failure::useless(error.to_string()));
                        }
                        MirrorError::Unreachable { .. } => {
                            entry.put_back(Failure::away(&error, asked, true));
                        }
                    }
                    failures.push(MirrorFailure::Failed(error));
                }
            }
        }
        failures.extend(
            away.into_iter().map(|entry| MirrorFailure::NotAsked { mirror: entry.name(), why: entry.why() }),
        );
        Err(Unavailable { file: file.clone(), failures, dropped: self.dropped() })
    }

    /// Frames of blocks that the look-up of `paths` needs (see [`Mirror::paths`]), from the fastest mirror that can tell;
    /// `None` if none can, which costs a request now and then. Nothing of them is checked.
    pub fn paths(&self, paths: &[&[u8]], bytes_max: u64) -> Option<Vec<u8>> {
        let can = |entry: &&MirrorEntry| {
            let health = entry.health.lock();
            health.paused.is_none() && health.no_paths.is_none_or(|when| when.elapsed() > PATHS_ASKED_AGAIN)
        };
        let (order, _) = self.order(bytes_max, Instant::now());
        order.into_iter().filter(can).find_map(|entry| {
            let start = Instant::now();
            match entry.mirror.paths(paths, bytes_max) {
                Ok(frames) => {
                    let mut health = entry.health.lock();
                    health.speed.record(Instant::now(), start.elapsed(), frames.len() as u64);
                    health.answers += 1;
                    return Some(frames);
                }
                Err(error @ MirrorError::Unreachable { .. }) => {
                    entry.put_back(Failure::away(&error, start, false));
                }
                Err(_) => entry.health.lock().no_paths = Some(Instant::now()),
            }
            None
        })
    }

    /// The content that each mirror has under this name, all asked at once: for the few small files that need not be
    /// the same everywhere (`root`, `revoked`), of which the caller takes the best. Nobody is dropped for an old one.
    /// Those that are dropped, or paused because they do not answer, are not asked.
    pub fn every(&self, file: &str, bytes_max: u64) -> Vec<(String, Result<Vec<u8>, MirrorError>)> {
        let now = Instant::now();
        let is_asked = |entry: &&MirrorEntry| {
            let health = entry.health.lock();
            !health.is_dropped(now) && !matches!(health.priority(now), Priority::Away(_))
        };
        let asked: Vec<&MirrorEntry> = self.mirrors.iter().filter(is_asked).collect();
        let answer = |entry: &MirrorEntry| {
            let start = Instant::now();
            let answer = entry.ask(&|mirror: &dyn Mirror| mirror.get(file, None, bytes_max));
            match &answer {
                Ok(_) => entry.note_good_record(),
                Err(MirrorError::Missing { .. }) => {}
                Err(MirrorError::Wrong { why, .. }) => entry.put_back(Failure::useless(why.clone())),
                Err(error) => entry.put_back(Failure::away(error, start, false)),
            }
            (entry.name(), answer)
        };
        std::thread::scope(|scope| {
            let (first, others) = match asked.split_first() {
                Some((first, others)) => (Some(first), others),
                None => (None, &asked[..]),
            };
            let others: Vec<_> = others.iter().map(|entry| scope.spawn(|| answer(entry))).collect();
            let mut answers: Vec<_> = first.map(|entry| answer(entry)).into_iter().collect();
            for other in others {
                answers.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            answers
        })
    }

    /// Drops a mirror whose content is bad, as the caller found out later. That is logged once. Whether another mirror
    /// is left to be asked.
    pub fn report_bad(&self, mirror: &str, why: &str) -> bool {
        self.mirrors
            .iter()
            .filter(|entry| entry.mirror.name() == mirror)
            .for_each(|entry| entry.discard(why));
        let now = Instant::now();
        self.mirrors.iter().any(|entry| !entry.health.lock().is_dropped(now))
    }

    /// The mirrors themselves, for who has to ask one alone; without those that were dropped.
    pub fn each(&self) -> Vec<Arc<dyn Mirror>> {
        let now = Instant::now();
        let good = |entry: &&MirrorEntry| !entry.health.lock().is_dropped(now);
        self.mirrors.iter().filter(good).map(|entry| entry.mirror.clone()).collect()
    }

    /// The status of each mirror.
    pub fn statuses(&self) -> Vec<MirrorStatus> {
        let now = Instant::now();
        self.mirrors.iter().map(|entry| entry.status(now)).collect()
    }

    /// The mirrors that were dropped, and why.
    pub fn dropped(&self) -> Vec<(String, String)> {
        let why =
            |entry: &MirrorEntry| entry.health.lock().dropped.as_ref().map(|dropped| dropped.why.clone());
        self.mirrors.iter().filter_map(|entry| Some((entry.name(), why(entry)?))).collect()
    }

    /// The order in which to ask for `bytes`, and the mirrors that are not asked because they do not answer.
    fn order(&self, bytes: u64, now: Instant) -> (Vec<&MirrorEntry>, Vec<&MirrorEntry>) {
        let (mut ready, mut late, mut last, mut away) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for entry in &self.mirrors {
            let health = entry.health.lock();
            match health.priority(now) {
                Priority::Ready => {
                    let asked = health.speed.asked;
                    let is_forgotten =
                        asked.is_none_or(|asked| now.saturating_duration_since(asked) > ASKED_AGAIN);
                    let is_explored = is_forgotten && bytes <= EXPLORING_BYTES_MAX;
                    let expected_s = match is_explored {
                        true => 0.0,
                        false => health.speed.expected_s(bytes).unwrap_or(f64::MAX),
                    };
                    ready.push((expected_s, entry));
                }
                Priority::Late => late.push(entry),
                Priority::Last => last.push(entry),
                Priority::Away(left) => away.push((left, entry)),
            }
        }
        if ready.is_empty() && late.is_empty() {
            late = last;
        }
        // Both sorts are stable: of equals, the one that was named first.
        ready.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        away.sort_by_key(|(left, _)| *left);
        let order = ready.into_iter().map(|(_, entry)| entry).chain(late).collect();
        (order, away.into_iter().map(|(_, entry)| entry).collect())
    }
}

/// Who may be at fault if content does not pass its check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blame {
    /// Only the mirror can be at fault.
    Certain,
    /// The mirror's if another has one that passes.
    IfOthersFit,
}

impl MirrorEntry {
    fn name(&self) -> String {
        self.mirror.name().to_owned()
    }

    /// Sends a request to the mirror, and measures how long it takes.
    fn ask(&self, ask: &MirrorRequest<'_>) -> Result<Vec<u8>, MirrorError> {
        // Counts as asked also while the reply is awaited: other requests need not explore the mirror meanwhile.
        self.health.lock().speed.asked = Some(Instant::now());
        let start = Instant::now();
        let answer = ask(&*self.mirror);
        let mut health = self.health.lock();
        if let Ok(bytes) = &answer {
            health.speed.record(Instant::now(), start.elapsed(), bytes.len() as u64);
        }
        if let Some(paused) = health.paused.as_mut() {
            paused.is_tried = false;
        }
        answer
    }

    /// The failure that a mirror would repeat, if it is not asked now: it gave no answer of use to this just before, or
    /// it does not answer, and another request tries it.
    fn known_failure(&self, part: &RequestKey) -> Option<MirrorFailure> {
        let mut health = self.health.lock();
        let now = Instant::now();
        let known = health.useless.get(part).filter(|known| left(known.since, known.lasts, now).is_some());
        if let Some(known) = known {
            return Some(known.answer.clone());
        }
        match health.paused.as_mut().filter(|paused| paused.is_away) {
            Some(paused) if paused.is_tried || paused.left(now).is_some() => {
                Some(MirrorFailure::NotAsked { mirror: self.name(), why: paused.why.clone() })
            }
            Some(paused) => {
                paused.is_tried = true;
                None
            }
            None => None,
        }
    }

    /// Why the mirror is paused.
    fn why(&self) -> String {
        self.health.lock().paused.as_ref().map_or_else(String::new, |paused| paused.why.clone())
    }

    /// Notes that the mirror gave content that passed.
    fn note_good(&self, part: &RequestKey) {
        let mut health = self.health.lock();
        health.answers += 1;
        health.paused = None;
        health.dropped = None;
        health.useless.pop(part);
        if part.file == OBJECTS {
            health.no_objects = false;
        }
    }

    /// Notes that the mirror gave a record.
    fn note_good_record(&self) {
        let mut health = self.health.lock();
        health.answers += 1;
        if health.paused.as_ref().is_some_and(|paused| !paused.of_content) {
            health.paused = None;
        }
    }

    fn put_back(&self, failure: Failure) {
        let mut health = self.health.lock();
        if health.paused.is_none() {
            let why = &failure.why;
            tracing::info!(mirror = self.mirror.name(), why, "a mirror fails; others are asked first");
        }
        health.pause(Instant::now(), failure);
    }

    fn discard(&self, why: &str) {
        let mut health = self.health.lock();
        let why = printable(why);
        health.failures += 1;
        if health.dropped.is_none() {
            tracing::warn!(
                mirror = self.mirror.name(),
                why,
                "a mirror gave something false; others are asked now"
            );
            health.drops += 1;
        }
        let lasts = DROPPED_MIN.saturating_mul(1 << (health.drops - 1).min(16)).min(DROPPED_MAX);
        let why = health.dropped.take().map_or(why, |dropped| dropped.why);
        health.dropped = Some(Exclusion { since: Instant::now(), lasts, why });
    }

    fn status(&self, now: Instant) -> MirrorStatus {
        let health = self.health.lock();
        let paused = health.paused.as_ref();
        let (state, why) = match (&health.dropped, health.priority(now)) {
            (Some(dropped), _) => (MirrorState::Dropped, Some(dropped.why.clone())),
            (None, Priority::Ready) => (MirrorState::Good, paused.map(|paused| paused.why.clone())),
            (None, _) => (MirrorState::Paused, paused.map(|paused| paused.why.clone())),
        };
        let left = match health.priority(now) {
            Priority::Away(left) => Some(left),
            Priority::Last => health.dropped.as_ref().and_then(|dropped| dropped.left(now)),
            Priority::Ready | Priority::Late => None,
        };
        MirrorStatus {
            mirror: self.name(),
            state,
            why,
            latency_ms: health.speed.latency_s.map(|seconds| seconds * 1000.0),
            bytes_per_s: health.speed.bytes_per_s,
            answers: health.answers,
            failures: health.failures,
            asked_again_s: left.map(|left| left.as_secs() + 1),
            notice: self.mirror.notice(),
        }
    }
}

impl Failure {
    /// A failure of a mirror whose reply was useless.
    fn useless(why: String) -> Failure {
        Failure { why, is_away: false, of_content: true, pause_min: Duration::ZERO }
    }

    /// A failure to answer, which took as long as since `asked`.
    fn away(error: &MirrorError, asked: Instant, of_content: bool) -> Failure {
        let wanted = match error {
            MirrorError::Unreachable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause_min = asked.elapsed().max(wanted.unwrap_or_default().min(PAUSE_ASKED_MAX));
        Failure { why: error.to_string(), is_away: true, of_content, pause_min }
    }
}
