//! The control socket: how commands reach a daemon, which serves the mounts of a key or a protected volume.
//!
//! Only one process may sign with a key, so other processes that want to use it (for a second mount, or an
//! administrative command) ask that one. The socket is in the daemon's state directory and has mode 0600, and
//! both ends check that the other runs as the same user (or root).
//!
//! A message is its length (u32, little-endian) and JSON: the version of this protocol, with a request, or
//! with a reply or a failure. Every request is a type that names the type of its reply ([`Request`]). Lengths
//! and waiting times are bounded.

use holdfast_failure::{Exit, Failure, Outcome};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Version of this protocol. It does not change when fields are added, but when an older daemon would
/// misunderstand something.
const VERSION: u32 = 2;
/// Name of the socket in the state directory.
const SOCKET: &str = "control";
/// Largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Most connections served at once.
const CONNECTIONS_MAX: usize = 16;
/// How long a daemon waits for a request to arrive.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How long a command waits for a reply: it may take long to publish everything over a slow link.
const REPLY_WAIT: Duration = Duration::from_secs(3600);
/// How long a command waits for a reply that the daemon gives at once.
const QUICK_REPLY_WAIT: Duration = Duration::from_secs(15);

/// One kind of request.
pub trait Request: Clone {
    /// All requests that the same kind of daemon answers.
    type Any: From<Self> + Serialize + DeserializeOwned + Send + 'static;
    /// The type of its reply.
    type Reply: Serialize + DeserializeOwned;
    /// Whether the daemon replies at once.
    const QUICK: bool = false;
}

/// Declares the requests of one kind of daemon: an enum with one variant for each, and the type of each
/// reply.
macro_rules! requests {
    ($(#[$about:meta])* $any:ident { $($request:ident => $reply:ty $(, $quick:ident)?;)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        pub enum $any {
            $(#[allow(missing_docs, reason = "the request's own type is documented")] $request($request),)*
        }
        $(
            impl From<$request> for $any {
                fn from(request: $request) -> $any {
                    $any::$request(request)
                }
            }

            impl $crate::control::Request for $request {
                type Any = $any;
                type Reply = $reply;
                $(const $quick: bool = true;)?
            }
        )*
    };
}
pub(crate) use requests;

/// A reply that is about to be sent. It can only be made from a request and an outcome of the type that this
/// request promises.
#[derive(Debug)]
pub struct Reply<Any>(Outcome<serde_json::Value>, PhantomData<fn() -> Any>);

impl<Any> Reply<Any> {
    /// The reply to `request`.
    pub fn to<R: Request<Any = Any>>(_request: &R, outcome: Outcome<R::Reply>) -> Reply<Any> {
        let value = outcome.and_then(|reply| {
            serde_json::to_value(reply)
                .map_err(|error| Failure::new(Exit::Internal, format!("the reply has no JSON form: {error}")))
        });
        Reply(value, PhantomData)
    }

    /// A refusal, which fits any request.
    pub fn refusal(failure: Failure) -> Reply<Any> {
        Reply(Err(failure), PhantomData)
    }
}

/// Bytes in a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64ct::{Base64, Encoding};
        serializer.serialize_str(&Base64::encode_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        use base64ct::{Base64, Encoding};
        let text = String::deserialize(deserializer)?;
        Base64::decode_vec(&text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

/// A value of the protocol (a view, a floor) in its canonical encoding.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Encoded<T>(Bytes, #[serde(skip)] PhantomData<fn() -> T>);

impl<T: borsh::BorshSerialize + borsh::BorshDeserialize> Encoded<T> {
    /// Encodes a value.
    pub fn of(value: &T) -> Encoded<T> {
        Encoded(Bytes(holdfast_crypto::encode(value)), PhantomData)
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// [`Exit::Protocol`]: the daemon uses another encoding.
    pub fn decode(&self) -> Outcome<T> {
        holdfast_crypto::decode(&self.0.0).map_err(|_| other_version("what it sent is not understood"))
    }
}

fn other_version(why: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Protocol, format!("the process in the background is of another version: {why}"))
        .hint("`holdfast umount` ends it when its last mount is gone, whatever its version; then mount again")
}

/// A message to a daemon.
#[derive(Serialize, Deserialize)]
struct RequestMessage<Any> {
    version: u32,
    request: Any,
}

/// A message from a daemon.
#[derive(Serialize, Deserialize)]
struct ReplyMessage {
    version: u32,
    reply: Outcome<serde_json::Value>,
}

/// A connection to a daemon.
pub struct Client(UnixStream);

impl Client {
    /// Connects to the daemon that uses `state_dir`; `None` if there is none.
    ///
    /// # Errors
    /// The socket belongs to another user, or cannot be used.
    pub fn connect(state_dir: &Path) -> Outcome<Option<Client>> {
        let failed = |error: io::Error| {
            Failure::new(Exit::System, format!("{}: {error}", state_dir.join(SOCKET).display()))
        };
        let stream = match at(state_dir, |path| UnixStream::connect(path)) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        if !is_trusted(&stream) {
            return Err(failed(io::Error::other("the process behind it belongs to another user")));
        }
        Ok(Some(Client(stream)))
    }

    /// The daemon's process id.
    pub fn process(&self) -> Option<u32> {
        let peer = socket_peercred(&self.0).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The failure that the daemon reports; or the daemon ended, or has another version.
    pub fn call<R: Request>(mut self, request: &R) -> Outcome<R::Reply> {
        let gone = |error: io::Error| {
            Failure::new(Exit::Unavailable, format!("the process in the background does not answer: {error}"))
        };
        let wait = if R::QUICK { QUICK_REPLY_WAIT } else { REPLY_WAIT };
        let message = RequestMessage::<R::Any> { version: VERSION, request: request.clone().into() };
        self.0.set_read_timeout(Some(wait)).and_then(|()| send(&mut self.0, &message)).map_err(gone)?;
        let bytes = receive(&mut self.0).map_err(gone)?;
        let message: ReplyMessage = serde_json::from_slice(&bytes).map_err(other_version)?;
        if message.version != VERSION {
            return Err(other_version(format_args!("it speaks version {}", message.version)));
        }
        serde_json::from_value(message.reply?).map_err(other_version)
    }
}

/// Listens for requests in `state_dir`; `handle` answers each of them on a thread of its own, until the
/// process ends. The caller must have locked the state directory: an existing socket then belongs to a dead
/// process.
///
/// # Errors
/// The socket cannot be created.
pub fn listen<Any: DeserializeOwned + Send + 'static>(
    state_dir: &Path,
    handle: impl Fn(Any) -> Reply<Any> + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = at(state_dir, |path| {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    })?;
    let handle = Arc::new(handle);
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if open.load(Ordering::SeqCst) >= CONNECTIONS_MAX || !is_trusted(&stream) {
                continue;
            }
            open.fetch_add(1, Ordering::SeqCst);
            let (handle, done) = (Arc::clone(&handle), Arc::clone(&open));
            let spawned = std::thread::Builder::new().name("request".to_owned()).spawn(move || {
                serve(stream, &*handle);
                done.fetch_sub(1, Ordering::SeqCst);
            });
            if spawned.is_err() {
                open.fetch_sub(1, Ordering::SeqCst);
            }
        }
    })?;
    Ok(())
}

/// Removes the socket, so that no command connects to a process that is ending.
pub fn close(state_dir: &Path) {
    let _ = std::fs::remove_file(state_dir.join(SOCKET));
}

fn serve<Any: DeserializeOwned>(mut stream: UnixStream, handle: &(impl Fn(Any) -> Reply<Any> + ?Sized)) {
    if stream.set_read_timeout(Some(REQUEST_WAIT)).is_err() {
        return;
    }
    let Ok(bytes) = receive(&mut stream) else { return };
    let reply = match understand(&bytes) {
        Ok(request) => handle(request).0,
        Err(why) => Err(why.into()),
    };
    let _ = send(&mut stream, &ReplyMessage { version: VERSION, reply });
}

/// Why a message is not a valid request.
#[derive(Debug)]
enum NotUnderstood {
    /// It has another version.
    Version(u32),
    /// It is malformed.
    Form(serde_json::Error),
}

impl From<NotUnderstood> for Failure {
    fn from(why: NotUnderstood) -> Failure {
        let why = match why {
            NotUnderstood::Version(version) => {
                format!("it is of version {version}, and this process speaks version {VERSION}")
            }
            NotUnderstood::Form(error) => error.to_string(),
        };
        Failure::new(Exit::Protocol, format!("the request is not understood: {why}"))
            .hint("the process in the background is of another version: unmount, and mount again")
    }
}

/// The request in a message. Its version is checked before anything else.
fn understand<Any: DeserializeOwned>(bytes: &[u8]) -> Result<Any, NotUnderstood> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(NotUnderstood::Form)?;
    if version != VERSION {
        return Err(NotUnderstood::Version(version));
    }
    let message: RequestMessage<Any> = serde_json::from_slice(bytes).map_err(NotUnderstood::Form)?;
    Ok(message.request)
}

/// Calls `using` with a short path of the socket in `state_dir`: socket paths have at most 107 bytes, and
/// state directories are longer.
fn at<T>(state_dir: &Path, using: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(state_dir)?;
    using(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())))
}

fn is_trusted(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

fn send<T: Serialize>(stream: &mut UnixStream, message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&bytes)
}

fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0u8; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request for a greeting.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub struct Greet {
        name: String,
    }

    /// A request for bytes.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub struct Fetch;

    requests! {
        /// The requests that this test's daemon answers.
        TestRequest {
            Greet => String, QUICK;
            Fetch => Encoded<Vec<u64>>;
        }
    }

    fn listening() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("a".repeat(64)).join("b".repeat(64));
        std::fs::create_dir_all(&state).expect("a directory");
        assert!(Client::connect(&state).expect("no error").is_none());
        std::fs::write(state.join(SOCKET), b"left over").expect("written");
        listen(&state, |request: TestRequest| match request {
            TestRequest::Greet(request) if request.name.is_empty() => {
                Reply::refusal(Failure::new(Exit::NotAllowed, "nobody"))
            }
            TestRequest::Greet(request) => Reply::to(&request, Ok(format!("hello {}", request.name))),
            TestRequest::Fetch(request) => Reply::to(&request, Ok(Encoded::of(&vec![1, 2, 255]))),
        })
        .expect("it listens");
        (dir, state)
    }

    /// Proves: requests reach the listener through a state directory with a long name, replies of each type
    /// and failures come back, and a dead process's socket is taken over.
    #[test]
    fn requests_and_replies() {
        let (_dir, state) = listening();
        let client = || Client::connect(&state).expect("no error").expect("somebody listens");
        assert_eq!(client().call(&Greet { name: "anna".to_owned() }), Ok("hello anna".to_owned()));
        let bytes = client().call(&Fetch).expect("a reply");
        assert_eq!(bytes.decode(), Ok(vec![1, 2, 255]));
        let refused = client().call(&Greet { name: String::new() });
        assert_eq!(refused.expect_err("refused").code, Exit::NotAllowed);
        close(&state);
        assert!(Client::connect(&state).expect("no error").is_none());
    }

    /// Proves: a daemon refuses a request of another version, or without one, in words and with
    /// [`Exit::Protocol`]; a command reports a daemon whose reply has no version.
    #[test]
    fn other_versions_are_told_so() {
        let (_dir, state) = listening();
        for message in [
            serde_json::json!("Status"),
            serde_json::json!({ "version": VERSION + 1, "request": { "Later": {} } }),
            serde_json::json!({ "version": VERSION, "request": { "Unknown": {} } }),
        ] {
            let mut client = Client::connect(&state).expect("no error").expect("somebody listens");
            send(&mut client.0, &message).expect("sent");
            let reply: ReplyMessage =
                serde_json::from_slice(&receive(&mut client.0).expect("a reply")).expect("a message");
            let failure = reply.reply.expect_err("refused");
            assert_eq!((failure.code, reply.version), (Exit::Protocol, VERSION), "{message}");
            assert!(failure.message.contains("not understood"), "{failure}");
        }
        // A daemon from before versions were introduced.
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let old = std::thread::spawn(move || {
            receive(&mut far).expect("a request");
            send(&mut far, &serde_json::json!({ "Ok": null })).expect("sent");
        });
        let failure = Client(near).call(&Fetch).expect_err("not understood");
        assert_eq!(failure.code, Exit::Protocol);
        assert!(failure.message.contains("another version") && failure.hint.is_some(), "{failure}");
        old.join().expect("it ends");
    }
}
