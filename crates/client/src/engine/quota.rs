//! How much more this user may store. The server refuses what is over the limit; here programs get that error when they
//! write, before anything is sent and while they still have the data.
//!
//! That there is a limit is known from the membership, or from a refusal: without one nobody asks the server anything.
//! What is used is the server's word, and so no more than a service to honest programs: a server that lies can refuse to
//! store as well.

use super::Engine;
use crate::error::FsError;
use holdfast_protocol::message::{Request, Response, Usage};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long the server's figure is used, with what was written since counted on top.
const FRESH: Duration = Duration::from_secs(10);
/// How soon it is asked again when there seems to be no room.
const AGAIN: Duration = Duration::from_millis(500);
/// How long to wait for the server's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What this device knows of its user's quota.
#[derive(Default)]
pub(super) struct Quota(Mutex<QuotaRecord>);

#[derive(Default)]
struct QuotaRecord {
    /// A limit that the membership does not have, of the server's operator: known since it refused something.
    operators: bool,
    told: Option<(Instant, Usage)>,
    /// Bytes written since the server told the usage.
    since: u64,
}

impl QuotaRecord {
    /// What would be used with `bytes` more, and the limit, if that is too much.
    fn over(&self, bytes: u64) -> Option<FsError> {
        let (_, usage) = self.told.as_ref()?;
        let (limit, used) = (usage.limit?, usage.bytes.saturating_add(self.since));
        (used.saturating_add(bytes) > limit).then_some(FsError::Quota { used, limit })
    }

    fn is_older_than(&self, age: Duration) -> bool {
        self.told.as_ref().is_none_or(|(at, _)| at.elapsed() >= age)
    }
}

impl Engine {
    /// What this device's user is charged for at the server; the superuser is told what everybody is.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Refused`].
    pub fn usage(&self) -> Result<Vec<Usage>, FsError> {
        self.ask_usage(self.shared.deadline)
    }

    fn ask_usage(&self, patience: Duration) -> Result<Vec<Usage>, FsError> {
        match self.shared.remote.call(Request::Usage, patience) {
            Ok(Response::Usage(usage)) => Ok(usage),
            Ok(Response::Error(error)) => Err(FsError::Refused(error.to_string())),
            Ok(other) => Err(FsError::from(&crate::store::unexpected("Usage", &other))),
            Err(error) => Err(FsError::from(&error)),
        }
    }

    /// Whether a program may write so many bytes more.
    ///
    /// # Errors
    /// [`FsError::Quota`]: not as far as the server has said.
    pub(super) fn room(&self, bytes: u64) -> Result<(), FsError> {
        let mut known = self.quota.0.lock();
        if !self.is_limited(&known) {
            return Ok(());
        }
        if known.is_older_than(FRESH) || known.over(bytes).is_some() && known.is_older_than(AGAIN) {
            self.refresh(&mut known);
        }
        match known.over(bytes) {
            Some(error) => Err(error),
            None => {
                known.since = known.since.saturating_add(bytes);
                Ok(())
            }
        }
    }

    /// The usage and the limit, where there is a limit and the server tells it.
    pub(super) fn quota(&self) -> Option<Usage> {
        let mut known = self.quota.0.lock();
        if !self.is_limited(&known) {
            return None;
        }
        if known.is_older_than(AGAIN) {
            self.refresh(&mut known);
        }
        known.told.as_ref().map(|(_, usage)| *usage).filter(|usage| usage.limit.is_some())
    }

    /// The server has refused something: then there is a limit.
    pub(crate) fn note_quota(&self, error: &FsError) {
        if let FsError::Quota { .. } = error {
            let mut known = self.quota.0.lock();
            known.operators = true;
            known.told = None;
        }
    }

    fn is_limited(&self, known: &QuotaRecord) -> bool {
        known.operators || self.membership().quotas.contains_key(&self.me().1)
    }

    /// Without an answer, what was said before is gone by.
    fn refresh(&self, known: &mut QuotaRecord) {
        if !self.is_connected() {
            return;
        }
        let user = self.me().1;
        let asked = self.ask_usage(PATIENCE);
        match asked.map(|usage| usage.into_iter().find(|usage| usage.user == user)) {
            Ok(Some(usage)) => {
                known.operators &= usage.limit.is_some();
                known.told = Some((Instant::now(), usage));
                known.since = 0;
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the server does not say how much is used"),
        }
    }
}
