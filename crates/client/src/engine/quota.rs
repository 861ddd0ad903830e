//! How much more this user may store. The server refuses what exceeds the limit; this module gives programs
//! that error when they write, before anything is sent and while they still have the data.
//!
//! Whether there is a limit is clear from the membership, or from a refusal; without a limit, the server is
//! not asked. The usage is reported by the server without proof, so this is only a service to honest
//! programs: a dishonest server can refuse to store as well.

use super::Engine;
use crate::error::FsError;
use holdfast_protocol::message::{Request, Response, Usage};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long the server's figure is used; data written since is added to it.
const FRESH: Duration = Duration::from_secs(10);
/// How soon the server is asked again when there seems to be no room.
const AGAIN: Duration = Duration::from_millis(500);
/// How long to wait for the server's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The quota of this device's user, as far as it is known.
#[derive(Default)]
pub(super) struct Quota(Mutex<QuotaRecord>);

#[derive(Default)]
struct QuotaRecord {
    /// Whether the server's operator has set a limit that is not in the membership; learned from a refusal.
    operators: bool,
    told: Option<(Instant, Usage)>,
    /// Bytes written since the server reported the usage.
    since: u64,
}

impl QuotaRecord {
    /// The error if `bytes` more would exceed the limit.
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
    /// The usage charged to this device's user at the server; for the superuser, that of all users.
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

    /// Checks whether a program may write so many more bytes.
    ///
    /// # Errors
    /// [`FsError::Quota`]: not according to the server's last report.
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

    /// The usage and the limit, if there is a limit and the server reports it.
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

    /// Learns from a refusal of the server that there is a limit.
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

    /// Asks the server for the usage. Without an answer, the last one is used.
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
