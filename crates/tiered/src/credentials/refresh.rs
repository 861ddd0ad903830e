//! Credentials that expire are asked for again before they do, by one thread at a time.
//!
//! While they are good nobody waits: one thread refreshes them and the others go on with what there is. If that fails they
//! are used until they expire. A failure is remembered for a while, so that a service that is away is not asked by every
//! request.

use super::Credentials;
use super::identity::{Identity, IdentityError, TemporaryCredentials};
use parking_lot::Mutex;
use std::time::{Duration, SystemTime};

/// How long before they expire credentials are asked for again.
const BEFORE: Duration = Duration::from_secs(300);
/// How long a refresh is not tried again, or not needed, whatever the credentials say.
const PAUSE: Duration = Duration::from_secs(30);
/// How long a service that gives nothing is not asked again.
const FAILED_PAUSE: Duration = Duration::from_secs(2);
/// How long a service that is not there is not looked for.
const ABSENT_PAUSE: Duration = Duration::from_secs(300);

/// What one service has given.
#[derive(Default)]
pub(super) struct RefreshedCredentials {
    answer: Mutex<Option<Answer>>,
    /// Held by whoever asks.
    asking: Mutex<()>,
}

#[derive(Clone)]
struct Answer {
    outcome: Result<TemporaryCredentials, IdentityError>,
    /// When the service was asked. A clock that was put back makes the answer an old one.
    asked: SystemTime,
    ask_again: SystemTime,
}

impl Answer {
    /// Whether it serves without asking again.
    fn is_fresh(&self, now: SystemTime) -> bool {
        (self.asked..self.ask_again).contains(&now)
    }

    /// Its credentials, if they have not expired.
    fn valid(&self, now: SystemTime) -> Option<&TemporaryCredentials> {
        self.outcome.as_ref().ok().filter(|found| now < found.expires)
    }

    fn credentials(self) -> Result<Credentials, IdentityError> {
        self.outcome.map(|found| found.credentials)
    }
}

impl RefreshedCredentials {
    /// The credentials of a service at `now`.
    pub(super) fn get(&self, identity: &dyn Identity, now: SystemTime) -> Result<Credentials, IdentityError> {
        let fresh = || self.answer.lock().clone().filter(|answer| answer.is_fresh(now));
        if let Some(answer) = fresh() {
            return answer.credentials();
        }
        let before = self.answer.lock().as_ref().and_then(|answer| answer.valid(now).cloned());
        let _asking = match (&before, self.asking.try_lock()) {
            (_, Some(asking)) => asking,
            (Some(before), None) => return Ok(before.credentials.clone()),
            (None, None) => self.asking.lock(),
        };
        // Another thread may have asked meanwhile.
        if let Some(answer) = fresh() {
            return answer.credentials();
        }
        let outcome = identity.fetch(now);
        let (outcome, ask_again) = match (outcome, before) {
            (Ok(found), _) => {
                let soon = found.expires.checked_sub(BEFORE).unwrap_or(now).max(now + PAUSE);
                let ask_again = soon.min(found.expires);
                (Ok(found), ask_again)
            }
            (Err(error), Some(before)) => {
                tracing::warn!(
                    ?error,
                    "credentials are not refreshed yet; those there are go on until they expire"
                );
                let ask_again = (now + PAUSE).min(before.expires);
                (Ok(before), ask_again)
            }
            (Err(error @ IdentityError::Absent(_)), None) => (Err(error), now + ABSENT_PAUSE),
            (Err(error), None) => (Err(error), now + FAILED_PAUSE),
        };
        let answer = Answer { outcome, asked: now, ask_again };
        *self.answer.lock() = Some(answer.clone());
        answer.credentials()
    }
}
