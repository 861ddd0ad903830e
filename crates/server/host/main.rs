//! The components that `tests/privsep.rs` starts for a server: its front end, and a compromised one. The
//! latter faces the network as the honest one does, stores whatever its peers and the back end let it see,
//! and misuses it on request.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{
    Asker, ComponentError, Context, Main, Patience, ReceivedReply, Refusal, Reply, Request, run_if_component,
};
use holdfast_crypto::{PublicKey, Signature};
use holdfast_rpc::Listeners;
use holdfast_rpc::privsep::{self, BackEnd, BackEndError};
use holdfast_server::privsep::messages::{BACK_END_PORT, BackEndReply, BackEndRequest, FrontEndSettings};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TABLE: &[(&str, Main)] =
    &[(holdfast_server::privsep::FRONT_END, holdfast_server::privsep::front_end), ("taken-over", taken_over)];

/// What the test asks the compromised front end to do.
#[derive(BorshSerialize, BorshDeserialize)]
enum Misuse {
    /// Returns the last handshake: what was signed, what was introduced, the peer's signature.
    Show,
    /// Keeps the stream of the next introduction instead of serving it.
    KeepNext,
    /// Sends arbitrary bytes to the back end, with a file that is not a connection if `file`. Returns the
    /// body of the reply.
    Say { bytes: Vec<u8>, file: bool },
    /// Writes arbitrary bytes on the stored stream, and reads until there is a reply or the stream is closed.
    Write(Vec<u8>),
    /// Like `Write`, but reads until the stream is closed.
    WriteLast(Vec<u8>),
}

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(100);

/// Encodes bytes unchanged.
struct RawBytes(Vec<u8>);

impl BorshSerialize for RawBytes {
    fn serialize<W: Write>(&self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(&self.0)
    }
}

impl BorshDeserialize for RawBytes {
    fn deserialize_reader<R: Read>(reader: &mut R) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(RawBytes(bytes))
    }
}

#[derive(Default)]
struct LastHandshake {
    signed: Vec<u8>,
    introduced: Vec<u8>,
    signature: Vec<u8>,
    keep_next: bool,
    kept_stream: Option<UnixStream>,
}

struct MisusedFrontEnd {
    back_end: Asker<RawBytes, RawBytes>,
    last: Mutex<LastHandshake>,
}

impl MisusedFrontEnd {
    fn say(&self, bytes: Vec<u8>, files: &[OwnedFd]) -> Result<ReceivedReply<RawBytes>, ComponentError> {
        let patience = Patience::of(PATIENCE);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let ticket = self.back_end.start(0, &RawBytes(bytes), &files, patience)?;
        self.back_end.finish(ticket, patience)
    }

    fn ask(
        &self,
        ask: &BackEndRequest,
        files: &[OwnedFd],
    ) -> Result<(BackEndReply, Vec<OwnedFd>), BackEndError> {
        let bytes = borsh::to_vec(ask).expect("a vector takes everything");
        let reply = self.say(bytes, files).map_err(|error| BackEndError(error.to_string()))?;
        Ok((borsh::from_slice(&reply.body.0).expect("an answer"), reply.files))
    }
}

impl BackEnd for MisusedFrontEnd {
    fn nonce(&self) -> Result<[u8; 32], BackEndError> {
        match self.ask(&BackEndRequest::Nonce, &[])? {
            (BackEndReply::Nonce(nonce), _) => Ok(nonce),
            _ => Err(BackEndError("not a nonce".to_owned())),
        }
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, BackEndError> {
        self.last.lock().expect("not poisoned").signed = transcript.clone();
        match self.ask(&BackEndRequest::Sign { transcript }, &[])? {
            (BackEndReply::Signature(signature), _) => Ok(Signature(signature)),
            _ => Err(BackEndError("not a signature".to_owned())),
        }
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, BackEndError> {
        let mut last = self.last.lock().expect("not poisoned");
        (last.introduced, last.signature) = (transcript.clone(), signature.clone());
        let files: Vec<_> = tcp.into_iter().collect();
        let (_, mut files) =
            self.ask(&BackEndRequest::Introduce { transcript, signature, address: address.into() }, &files)?;
        let stream = UnixStream::from(files.pop().ok_or(BackEndError("no stream".to_owned()))?);
        if std::mem::take(&mut last.keep_next) {
            last.kept_stream = Some(stream);
            return Err(BackEndError("it was kept".to_owned()));
        }
        Ok(stream)
    }
}

fn taken_over(context: Context) -> ExitCode {
    let settings: FrontEndSettings = borsh::from_slice(&context.configuration).expect("orders");
    let back_end = context.ports.asker(BACK_END_PORT).expect("a channel to the back end");
    let bad = Arc::new(MisusedFrontEnd { back_end, last: Mutex::default() });
    let tcp = context.ports.take_file("tcp").expect("a listener");
    privsep::use_diagnosis_socket(None);
    let its = bad.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let tcp = tokio::net::TcpListener::from_std(tcp.into()).expect("a listener");
            let key = PublicKey(settings.key);
            let never = std::future::pending::<()>();
            privsep::run(Listeners { tcp, udp: None }, key, its, settings.limits(), never).await
        })
    });
    let served = context.ports.serve(|request| misuse(&bad, &request));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn misuse(bad: &MisusedFrontEnd, request: &Request) -> Reply {
    let refuse = |words: String| Reply::refuse(Refusal::Failed(words));
    match request.question::<Misuse>() {
        Err(refusal) => Reply::refuse(refusal),
        Ok(Misuse::Show) => {
            let last = bad.last.lock().expect("not poisoned");
            let parts = [&last.signed, &last.introduced, &last.signature].map(Clone::clone);
            Reply::of(&borsh::to_vec(&parts).expect("a vector takes everything"))
        }
        Ok(Misuse::KeepNext) => {
            let mut last = bad.last.lock().expect("not poisoned");
            (last.keep_next, last.kept_stream) = (true, None);
            Reply::of(&Vec::<u8>::new())
        }
        Ok(Misuse::Say { bytes, file }) => {
            let files: Vec<OwnedFd> = match (file, UnixStream::pair()) {
                (true, Ok((one, _other))) => vec![one.into()],
                _ => Vec::new(),
            };
            match bad.say(bytes, &files) {
                Ok(reply) => Reply::of(&reply.body.0),
                Err(error) => refuse(error.to_string()),
            }
        }
        Ok(Misuse::Write(bytes)) => write(bad, &bytes, has_answer),
        Ok(Misuse::WriteLast(bytes)) => write(bad, &bytes, |_| false),
    }
}

/// Writes, and reads until the stream is closed or enough has arrived.
fn write(bad: &MisusedFrontEnd, bytes: &[u8], is_enough: impl Fn(&[u8]) -> bool) -> Reply {
    let refuse = |words: String| Reply::refuse(Refusal::Failed(words));
    let last = bad.last.lock().expect("not poisoned");
    let Some(mut stream) = last.kept_stream.as_ref() else { return refuse("nothing was kept".to_owned()) };
    // The stream does not block, so it is read again and again for a while.
    if let Err(error) = stream.write_all(bytes) {
        return refuse(format!("closed: {error}"));
    }
    let (mut came, mut piece) = (Vec::new(), [0; 4096]);
    let start = Instant::now();
    while !is_enough(&came) && start.elapsed() < PATIENCE {
        match stream.read(&mut piece) {
            Ok(bytes @ 1..) => came.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5))
            }
            _ => {
                came.extend_from_slice(b"CLOSED");
                break;
            }
        }
    }
    Reply::of(&came)
}

/// Whether a complete frame has arrived that is not a note.
fn has_answer(mut came: &[u8]) -> bool {
    while let Some((header, rest)) = came.split_first_chunk::<12>() {
        let (length, id) = header.split_at(4);
        let length = u32::from_le_bytes(length.try_into().expect("four")) as usize - 8;
        match rest.get(length..) {
            None => return false,
            Some(_) if id != [0; 8] => return true,
            Some(next) => came = next,
        }
    }
    false
}

fn main() -> ExitCode {
    run_if_component(TABLE).unwrap_or_else(|| {
        eprintln!("this is started by tests, as components");
        ExitCode::from(2)
    })
}
