//! A cache of credentials that expire. One thread at a time requests new ones before the present ones expire.
//!
//! While the credentials are valid, no thread waits: one refreshes them, and the others use the present ones.
//! If refreshing fails, they are used until they expire. A failure is remembered for a while, so that not
//! every request tries a service that cannot be reached.

use super::Credentials;
use super::identity::{Identity, IdentityError, TemporaryCredentials};
use parking_lot::Mutex;
use std::time::{Duration, SystemTime};

/// How long before they expire credentials are refreshed.
const BEFORE: Duration = Duration::from_secs(300);
/// Shortest time between two refreshes, unless the credentials expire before.
const PAUSE: Duration = Duration::from_secs(30);
/// How long a service that has failed is not tried again.
const FAILED_PAUSE: Duration = Duration::from_secs(2);
/// How long a service that is absent is not looked for again.
const ABSENT_PAUSE: Duration = Duration::from_secs(300);

/// The last answer of one service.
#[derive(Default)]
pub(super) struct RefreshedCredentials {
    answer: Mutex<Option<Answer>>,
    /// Held by the thread that sends the request.
    asking: Mutex<()>,
}

#[derive(Clone)]
struct Answer {
    outcome: Result<TemporaryCredentials, IdentityError>,
    /// When the request was sent. If the clock was set back since, the answer counts as old.
    asked: SystemTime,
    ask_again: SystemTime,
}

impl Answer {
    /// Whether the answer can be used without a new request.
    fn is_fresh(&self, now: SystemTime) -> bool {
        (self.asked..self.ask_again).contains(&now)
    }

    /// The credentials, if they have not expired.
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
        // Another thread may have refreshed them meanwhile.
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
