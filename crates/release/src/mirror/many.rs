//! Several mirrors as one.
//!
//! The mirror that is expected to answer first is asked first. Failures of a mirror are remembered, so that
//! later requests do not wait for it again:
//!
//! - A mirror that does not answer is *paused*: it is not asked at all for a while, longer each time. Then
//!   one request tries it. A request that no other mirror can serve waits if the mirror began to fail only a
//!   few seconds ago; after that, the request fails at once.
//! - A mirror whose reply was useless (another range, a redirection, a missing file) is asked after the
//!   others for a while, and not for the same bytes.
//! - A mirror whose content was *bad*, which only the caller can find out, is dropped: while others are left,
//!   it is not asked for ten minutes, longer each time. If no other is left, it is asked, but not for the
//!   same bytes.
//!
//! None of this decides what is accepted in the end: every byte is checked, whichever mirror sent it.

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
/// The longest pause, unless the mirror itself asks for a longer one (`Retry-After`).
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest pause that a mirror can ask for.
const PAUSE_ASKED_MAX: Duration = Duration::from_secs(600);
/// How long a request waits for mirrors that have just begun to fail.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A request tries a paused mirror again; other requests check this often whether it has had an answer.
const TRIED_POLL: Duration = Duration::from_millis(50);
/// How long a mirror that sent bad content is not asked; twice as long each further time.
const DROPPED_MIN: Duration = Duration::from_secs(600);
/// The longest exclusion.
const DROPPED_MAX: Duration = Duration::from_secs(24 * 3600);
/// Requests to a mirror that are remembered because the answer was of no use.
const USELESS_KEPT: usize = 1024;
/// A mirror that was not asked for so long is asked first once, so that one slow answer does not count
/// against it for ever.
const ASKED_AGAIN: Duration = Duration::from_secs(60);
/// A mirror that could not look up paths is asked for that again after this time: it may have hints by then.
const PATHS_ASKED_AGAIN: Duration = Duration::from_secs(600);
/// Slow mirrors are tried again only with requests of up to so many bytes, where a late reply does no harm.
const EXPLORING_BYTES_MAX: u64 = 64 << 10;
/// The assumed length of an answer if the caller does not know it, in bytes.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// Most mirrors of one release; [`Mirrors::every`] asks all of them at once.
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

/// What was measured of a mirror: how fast it is, and how it failed.
struct MirrorHealth {
    speed: Speed,
    /// Why the mirror is not asked for a while, or only after the others: it has failed, and has sent nothing
    /// good since.
    paused: Option<Pause>,
    /// Set while the mirror is excluded because its content was bad.
    dropped: Option<Exclusion>,
    /// How often it was dropped.
    drops: u32,
    /// Requests to which its reply was useless; they are not sent to it again for a while.
    useless: LruCache<RequestKey, UselessReply>,
    /// When it last answered that it cannot look up paths.
    no_paths: Option<Instant>,
    /// Whether the mirror had none of the blocks of an origin that it was last asked for.
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
    /// The first bytes of the digest of the block that an unsigned index, which may be wrong, expects there;
    /// 0 if the content does not depend on such an index.
    expected: u64,
}

struct Pause {
    /// When the mirror first failed; no useful reply has come since.
    first: Instant,
    since: Instant,
    pause: Duration,
    why: String,
    /// The mirror failed to answer (no connection, time-out, 429, 5xx), so no request goes to it before the
    /// pause is over. If not, its answers were useless, and it is asked after the others.
    is_away: bool,
    /// The mirror failed to give content: giving a record does not make it good again.
    of_content: bool,
    /// Whether the pause is over and a request is trying the mirror.
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

/// What is left of a time that began at `since` and lasts for `lasts`; `None` if it is over.
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
    /// The shortest pause for this failure: as long as it took to fail, or as the mirror asked for.
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

    /// Remembers that the answer to a request was useless.
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
    /// The mirror lacks the file, sent something useless, or sent nothing.
    Failed(MirrorError),
    /// The mirror sent content that the caller found to be bad.
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

/// The error that no mirror has sent a file.
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
    /// Whether at least one mirror was asked and each one that was asked answered that there is no such file.
    /// They may all be lying.
    pub fn missing(&self) -> bool {
        !self.failures.is_empty()
            && self
                .failures
                .iter()
                .all(|answer| matches!(answer, MirrorFailure::Failed(MirrorError::Missing { .. })))
    }

    /// Whether at least one mirror answered that there is no such file, however the others failed.
    pub fn missing_somewhere(&self) -> bool {
        self.failures
            .iter()
            .any(|answer| matches!(answer, MirrorFailure::Failed(MirrorError::Missing { .. })))
    }

    /// Whether a mirror has other content than expected. The index that named the location may then be wrong.
    pub fn disputed(&self) -> bool {
        let is_other = |answer: &MirrorFailure| {
            matches!(answer, MirrorFailure::Bad { .. } | MirrorFailure::Failed(MirrorError::Wrong { .. }))
        };
        self.failures.iter().any(is_other)
    }
}

impl From<Unavailable> for MirrorError {
    /// Treats all mirrors as one: the file counts as missing only if each of them says so.
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
    /// Why it was last paused or dropped.
    pub why: Option<String>,
    /// Estimated time until the first byte of an answer, in milliseconds.
    pub latency_ms: Option<f64>,
    /// Estimated speed after the first byte, in bytes a second.
    pub bytes_per_s: Option<f64>,
    /// Number of its good answers.
    pub answers: u64,
    /// The number of its failures.
    pub failures: u64,
    /// Seconds until it is asked again, if it is not asked now.
    pub asked_again_s: Option<u64>,
    /// A problem that the mirror's operator should solve.
    pub notice: Option<String>,
}

/// Whether a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MirrorState {
    /// It is asked.
    Good,
    /// It is not asked for a while, as it does not answer; or only after the others, as its replies are
    /// useless.
    Paused,
    /// It is excluded while any other mirror is left, because its content was bad.
    Dropped,
}

impl fmt::Display for Mirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.mirrors.iter().map(|entry| entry.mirror.name()).collect();
        f.write_str(&names.join(", "))
    }
}

impl Mirrors {
    /// Makes one source of `mirrors`, preferred in this order until they are measured. Only the first 64 are
    /// used.
    pub fn new(mirrors: Vec<Arc<dyn Mirror>>) -> Mirrors {
        let keep = |mirror| MirrorEntry { mirror, health: Mutex::default() };
        Mirrors { mirrors: mirrors.into_iter().take(MIRRORS_MAX).map(keep).collect(), wait_max: WAIT_MAX }
    }

    /// Sets how long a request waits for mirrors that have just begun to fail; 5 seconds if not set.
    #[must_use]
    pub fn waiting_at_most(self, wait_max: Duration) -> Mirrors {
        Mirrors { wait_max, ..self }
    }

    /// The mirrors that `addresses` name; see [`parse`].
    ///
    /// # Errors
    /// The error for the first address that does not name a mirror.
    pub fn parse<A: AsRef<str>>(addresses: &[A]) -> Result<Mirrors, AddressError> {
        let mirrors: Result<_, _> = addresses.iter().map(|address| parse(address.as_ref())).collect();
        Ok(Mirrors::new(mirrors?))
    }

    /// A file, or a part of one (see [`Mirror::get`]), that passes `check`, from the first mirror that has
    /// one; and the name of that mirror. A mirror whose answer does not pass is dropped, so `check` must
    /// refuse only what no honest mirror sends.
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

    /// Like [`Mirrors::get_checked`], for a `check` that relies on unsigned data from some mirror. If content
    /// does not pass, that data may be at fault. So a mirror is dropped only when another has content that
    /// passes, or if no other can be asked. `expected` is the digest of the block that should be there.
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

    /// Frames of some of these blocks (see [`Mirror::objects`]) and the name of the mirror that sent them: at
    /// least one frame, and none of another block. The content of the frames is not checked.
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

    /// Asks one mirror after the other. Starts again if a mirror has just begun to fail and may be back soon.
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

    /// The time until the first of the mirrors that have just begun to fail is asked again.
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
            // Most mirrors do not reach an origin. That is no fault; but those without these blocks are asked
            // last.
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

    /// Frames of blocks that the look-up of `paths` needs (see [`Mirror::paths`]), from the fastest mirror
    /// that can look them up. `None` if no mirror can; finding that out costs a request now and then. The
    /// frames are not checked.
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

    /// What each mirror has under this name; all are asked at once. This is for the few small files that need
    /// not be the same everywhere (`root`, `revoked`), of which the caller takes the best. No mirror is
    /// dropped for an old version. Mirrors that are dropped, or paused because they do not answer, are not
    /// asked.
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

    /// Drops a mirror whose content the caller later found to be bad, and logs that once. Returns whether
    /// another mirror is left.
    pub fn report_bad(&self, mirror: &str, why: &str) -> bool {
        self.mirrors
            .iter()
            .filter(|entry| entry.mirror.name() == mirror)
            .for_each(|entry| entry.discard(why));
        let now = Instant::now();
        self.mirrors.iter().any(|entry| !entry.health.lock().is_dropped(now))
    }

    /// The mirrors that are not dropped, for callers that ask one of them alone.
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

    /// The mirrors in the order in which to ask them for `bytes`, and those that are not asked because they
    /// do not answer.
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
        // Both sorts are stable: mirrors that are equal stay in the order in which they were named.
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
    /// The mirror is at fault if another mirror sends content that passes.
    IfOthersFit,
}

impl MirrorEntry {
    fn name(&self) -> String {
        self.mirror.name().to_owned()
    }

    /// Sends a request to the mirror, and measures how long it takes.
    fn ask(&self, ask: &MirrorRequest<'_>) -> Result<Vec<u8>, MirrorError> {
        // The mirror counts as asked while its reply is awaited: other requests need not explore it
        // meanwhile.
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

    /// The failure that the mirror would repeat, in which case it is not asked now: either its last reply to
    /// this request was useless, or it does not answer and its pause is not over, or another request is
    /// trying it.
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

    /// A failure to answer, after waiting since `asked`.
    fn away(error: &MirrorError, asked: Instant, of_content: bool) -> Failure {
        let wanted = match error {
            MirrorError::Unreachable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause_min = asked.elapsed().max(wanted.unwrap_or_default().min(PAUSE_ASKED_MAX));
        Failure { why: error.to_string(), is_away: true, of_content, pause_min }
    }
}
