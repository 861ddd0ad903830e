//! What `tests/apart.rs` starts as components of a server: its front end, and one that was taken over. The latter faces the
//! network as the honest one does, keeps whatever its peers and the desk let it see, and misuses it when told to.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{
    Asker, ComponentError, Context, Main, Patience, ReceivedReply, Refusal, Reply, Request, run_if_component,
};
use holdfast_crypto::{PublicKey, Signature};
use holdfast_rpc::Listeners;
use holdfast_rpc::apart::{self, Desk, Refused};
use holdfast_server::apart::grammar::{Ask, DESK, Orders, Told};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TABLE: &[(&str, Main)] =
    &[(holdfast_server::apart::FRONT, holdfast_server::apart::front), ("taken-over", taken_over)];

/// What the test has it do.
#[derive(BorshSerialize, BorshDeserialize)]
enum Misuse {
    /// What was seen of the last handshake: what was signed, what was introduced, the peer's signature.
    Show,
    /// Keeps the stream of the next introduction instead of carrying it.
    KeepNext,
    /// Says any bytes to the desk; with a file that is no connection, if wanted. The body of the answer.
    Say { bytes: Vec<u8>, file: bool },
    /// Writes any bytes on the stream that was kept, and reads what comes of it until there is an answer or it is closed.
    Write(Vec<u8>),
    /// The same until it is closed.
    WriteLast(Vec<u8>),
}

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(100);

/// Bytes as they are.
struct Raw(Vec<u8>);

impl BorshSerialize for Raw {
    fn serialize<W: Write>(&self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(&self.0)
    }
}

impl BorshDeserialize for Raw {
    fn deserialize_reader<R: Read>(reader: &mut R) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(Raw(bytes))
    }
}

#[derive(Default)]
struct Seen {
    signed: Vec<u8>,
    introduced: Vec<u8>,
    signature: Vec<u8>,
    keep_next: bool,
    kept: Option<UnixStream>,
}

struct Bad {
    desk: Asker<Raw, Raw>,
    seen: Mutex<Seen>,
}

impl Bad {
    fn say(&self, bytes: Vec<u8>, files: &[OwnedFd]) -> Result<ReceivedReply<Raw>, ComponentError> {
        let patience = Patience::of(PATIENCE);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let ticket = self.desk.start(0, &Raw(bytes), &files, patience)?;
        self.desk.finish(ticket, patience)
    }

    fn ask(&self, ask: &Ask, files: &[OwnedFd]) -> Result<(Told, Vec<OwnedFd>), Refused> {
        let bytes = borsh::to_vec(ask).expect("a vector takes everything");
        let reply = self.say(bytes, files).map_err(|error| Refused(error.to_string()))?;
        Ok((borsh::from_slice(&reply.body.0).expect("an answer"), reply.files))
    }
}

impl Desk for Bad {
    fn nonce(&self) -> Result<[u8; 32], Refused> {
        match self.ask(&Ask::Nonce, &[])? {
            (Told::Nonce(nonce), _) => Ok(nonce),
            _ => Err(Refused("not a nonce".to_owned())),
        }
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, Refused> {
        self.seen.lock().expect("not poisoned").signed = transcript.clone();
        match self.ask(&Ask::Sign { transcript }, &[])? {
            (Told::Signature(signature), _) => Ok(Signature(signature)),
            _ => Err(Refused("not a signature".to_owned())),
        }
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, Refused> {
        let mut seen = self.seen.lock().expect("not poisoned");
        (seen.introduced, seen.signature) = (transcript.clone(), signature.clone());
        let files: Vec<_> = tcp.into_iter().collect();
        let (_, mut files) =
            self.ask(&Ask::Introduce { transcript, signature, address: address.into() }, &files)?;
        let stream = UnixStream::from(files.pop().ok_or(Refused("no stream".to_owned()))?);
        if std::mem::take(&mut seen.keep_next) {
            seen.kept = Some(stream);
            return Err(Refused("it was kept".to_owned()));
        }
        Ok(stream)
    }
}

fn taken_over(context: Context) -> ExitCode {
    let orders: Orders = borsh::from_slice(&context.configuration).expect("orders");
    let desk = context.ports.asker(DESK).expect("a desk");
    let bad = Arc::new(Bad { desk, seen: Mutex::default() });
    let tcp = context.ports.take_file("tcp").expect("a listener");
    apart::ask_counters_over(None);
    let its = bad.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let tcp = tokio::net::TcpListener::from_std(tcp.into()).expect("a listener");
            let key = PublicKey(orders.key);
            let never = std::future::pending::<()>();
            apart::run(Listeners { tcp, udp: None }, key, its, orders.limits(), never).await
        })
    });
    let served = context.ports.serve(|request| misuse(&bad, &request));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn misuse(bad: &Bad, request: &Request) -> Reply {
    let refuse = |words: String| Reply::refuse(Refusal::Failed(words));
    match request.question::<Misuse>() {
        Err(refusal) => Reply::refuse(refusal),
        Ok(Misuse::Show) => {
            let seen = bad.seen.lock().expect("not poisoned");
            let parts = [&seen.signed, &seen.introduced, &seen.signature].map(Clone::clone);
            Reply::of(&borsh::to_vec(&parts).expect("a vector takes everything"))
        }
        Ok(Misuse::KeepNext) => {
            let mut seen = bad.seen.lock().expect("not poisoned");
            (seen.keep_next, seen.kept) = (true, None);
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

/// Writes, and reads until it is closed or what came is enough.
fn write(bad: &Bad, bytes: &[u8], is_enough: impl Fn(&[u8]) -> bool) -> Reply {
    let refuse = |words: String| Reply::refuse(Refusal::Failed(words));
    let seen = bad.seen.lock().expect("not poisoned");
    let Some(mut stream) = seen.kept.as_ref() else { return refuse("nothing was kept".to_owned()) };
    // It does not block: what is asked is looked at again and again for a while.
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

/// Whether a whole frame came that is no note.
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
