//! Common parts of the services that give temporary credentials: how requests are sent, and how replies are
//! read.
//!
//! Attacks answered: a reply that is long, slow or absent; a reply with parts that would end a header; and an
//! error message that repeats a secret. (A decoder's error is not passed on, because it may quote what was
//! read.)

use super::Credentials;
use backon::{BlockingRetryable, ExponentialBuilder};
use holdfast_http_client::{Authorities, client};
use serde::Deserialize;
use std::time::{Duration, SystemTime};
use ureq::Agent;
use ureq::http::Request;
use zeroize::Zeroizing;

/// Longest reply, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Pauses between attempts: 0.1 s and 0.4 s.
const PAUSES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(100)).with_factor(4.0).with_max_times(2);

/// The value of a variable of the environment, if it is set.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Temporary credentials that a service has given.
#[derive(Clone)]
pub(super) struct TemporaryCredentials {
    pub(super) credentials: Credentials,
    pub(super) expires: SystemTime,
}

/// Why a service gives no credentials, as text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum IdentityError {
    /// The service does not exist here, or has no credentials for us. The next place is tried.
    Absent(String),
    /// The service cannot reply at the moment.
    Unavailable(String),
    /// Somebody has to change something; the text says what.
    Refused(String),
}

/// A service that gives temporary credentials, as the environment describes it.
pub(super) trait Identity {
    /// Requests credentials.
    fn fetch(&self, now: SystemTime) -> Result<TemporaryCredentials, IdentityError>;
}

/// An HTTP client for such services.
pub(super) struct Service {
    agent: Agent,
}

/// A reply, whatever its status.
pub(super) struct ServiceReply {
    pub(super) status: u16,
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// Why there is no reply.
pub(super) enum CallError {
    /// There is nobody at the address.
    NoConnection(String),
    /// The service can be reached but does not reply, or not in time.
    NoReply(String),
}

impl CallError {
    pub(super) fn why(self) -> String {
        match self {
            CallError::NoConnection(why) | CallError::NoReply(why) => why,
        }
    }
}

impl Service {
    /// A client of a service on this machine or its host. It never uses a proxy, which would learn the
    /// credentials.
    pub(super) fn near(url: &str, within: Duration) -> Service {
        Service::new(url, within, false)
    }

    /// A client of a service anywhere.
    pub(super) fn far(url: &str, within: Duration) -> Service {
        Service::new(url, within, true)
    }

    fn new(url: &str, within: Duration, may_use_proxy: bool) -> Service {
        let mut config = client(Authorities::of_url(url), None).timeout_global(Some(within));
        if !may_use_proxy {
            config = config.proxy(None);
        }
        Service { agent: config.build().into() }
    }

    /// Sends a request. Repeats it if there is no reply or the service is overloaded.
    pub(super) fn ask(&self, request: &Request<Vec<u8>>) -> Result<ServiceReply, CallError> {
        let is_passing = |failure: &AttemptError| match failure {
            AttemptError::Call(CallError::NoConnection(_)) => false,
            AttemptError::Call(CallError::NoReply(_)) | AttemptError::Overloaded(_) => true,
        };
        match (|| self.attempt(request)).retry(PAUSES).when(is_passing).call() {
            Ok(reply) | Err(AttemptError::Overloaded(reply)) => Ok(reply),
            Err(AttemptError::Call(unreached)) => Err(unreached),
        }
    }

    fn attempt(&self, request: &Request<Vec<u8>>) -> Result<ServiceReply, AttemptError> {
        let unreached = |error: ureq::Error| {
            let why = error.to_string();
            AttemptError::Call(match error {
                ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
                | ureq::Error::ConnectionFailed
                | ureq::Error::HostNotFound
                | ureq::Error::Io(_) => CallError::NoConnection(why),
                _ => CallError::NoReply(why),
            })
        };
        let mut response = self.agent.run(request.clone()).map_err(unreached)?;
        let status = response.status().as_u16();
        let read = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = read.map_err(|error| AttemptError::Call(CallError::NoReply(error.to_string())))?;
        let reply = ServiceReply { status, body: Zeroizing::new(body) };
        match status {
            408 | 429 | 500.. => Err(AttemptError::Overloaded(reply)),
            _ => Ok(reply),
        }
    }
}

enum AttemptError {
    Call(CallError),
    Overloaded(ServiceReply),
}

/// How long one reply of a service of the machine or container may take, if the environment says so
/// (`AWS_METADATA_SERVICE_TIMEOUT`, in seconds).
pub(super) fn patience(set: Environment<'_>) -> Option<Duration> {
    set("AWS_METADATA_SERVICE_TIMEOUT")?.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// The JSON in which services of machines and containers give or refuse credentials.
#[derive(Deserialize)]
struct JsonCredentials {
    #[serde(rename = "AccessKeyId")]
    key_id: Option<String>,
    #[serde(rename = "SecretAccessKey")]
    secret: Option<String>,
    #[serde(rename = "Token")]
    token: Option<String>,
    #[serde(rename = "Expiration")]
    expiration: Option<String>,
    #[serde(rename = "Code", alias = "code")]
    code: Option<String>,
    #[serde(rename = "Message", alias = "message")]
    message: Option<String>,
}

/// Credentials from a reply in JSON.
pub(super) fn of_json(
    reply: &ServiceReply,
    from: String,
    now: SystemTime,
) -> Result<TemporaryCredentials, IdentityError> {
    let read: Result<JsonCredentials, _> = serde_json::from_slice(&reply.body);
    let refused = |said: &JsonCredentials| {
        let parts = [said.code.as_deref(), said.message.as_deref()].into_iter().flatten();
        printable(&parts.collect::<Vec<_>>().join(": "))
    };
    match (reply.status, read) {
        (200, Ok(said)) if said.code.as_deref().is_none_or(|code| code == "Success") => {
            match (said.key_id, said.secret, said.token, said.expiration) {
                (Some(key_id), Some(secret), Some(token), Some(expiration)) => {
                    let (secret, token) = (Zeroizing::new(secret), Some(Zeroizing::new(token)));
                    temporary(Credentials { key_id, secret, token, from }, &expiration, now)
                }
                _ => Err(IdentityError::Unavailable(format!("the answer of {from} lacks parts of them"))),
            }
        }
        (200, Ok(said)) => Err(IdentityError::Refused(format!("{from} says {}", refused(&said)))),
        (200, Err(_)) => {
            Err(IdentityError::Unavailable(format!("the answer of {from} cannot be understood")))
        }
        (status, read) => {
            let said = read.as_ref().map(refused).unwrap_or_default();
            Err(refusal(status, &said, &from))
        }
    }
}

/// The error for a status of failure.
pub(super) fn refusal(status: u16, said: &str, from: &str) -> IdentityError {
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let why = format!("{from} answers with status {status}{said}");
    match status {
        408 | 429 | 500.. => IdentityError::Unavailable(why),
        _ => IdentityError::Refused(why),
    }
}

/// Checks that the parts of credentials can be sent, and parses the time when they expire.
pub(super) fn temporary(
    credentials: Credentials,
    expiration: &str,
    now: SystemTime,
) -> Result<TemporaryCredentials, IdentityError> {
    let from = &credentials.from;
    let token = credentials.token.as_ref().map_or("", |token| token.as_str());
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if ![&credentials.key_id, credentials.secret.as_str(), token].into_iter().all(is_word) {
        return Err(IdentityError::Unavailable(format!("what {from} gives are no credentials")));
    }
    let expires = expiration.parse::<jiff::Timestamp>().and_then(SystemTime::try_from);
    let Ok(expires) = expires else {
        let why = format!("{from} does not say when they expire");
        return Err(IdentityError::Unavailable(why));
    };
    if expires <= now {
        let at = printable(expiration);
        let why = format!("those of {from} expired at {at}: is this machine's clock right?");
        return Err(IdentityError::Unavailable(why));
    }
    Ok(TemporaryCredentials { credentials, expires })
}

/// The beginning of a text from outside, without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
