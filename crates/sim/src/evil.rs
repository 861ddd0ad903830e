//! A malicious operator's server: the real server behind a layer that answers falsely.
//!
//! It holds the real server key and the real data, so everything it says arrives over an authentic channel. What
//! clients make of each [`Attack`] is the table in `crates/sim/tests/operator.rs`; the demo plays some of them.

use crate::differences::{by_difference, want_whole};
use holdfast_content::{BlockKind, Codec, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{AddressedBlock, Request, Response, ViewReply};
use holdfast_rpc::{Service, Session};
use holdfast_server::{Driver, Server, ServerConfig};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An attack of the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Attack {
    /// Nothing.
    Honest,
    /// One byte of file data is changed.
    FlipByte,
    /// One file's data is served in place of another's.
    SwapBlocks,
    /// File data is served as zeroes.
    ZeroBlocks,
    /// File data is cut short.
    TruncateBlocks,
    /// File data is replaced by a few bytes that expand to a gigabyte.
    Bomb,
    /// File data is said to be missing, though it is referred to.
    LoseBlocks,
    /// Directories and tables have a byte changed.
    FlipMetadata,
    /// The view of the moment the attack began is shown for ever.
    Freeze,
    /// Structures of everybody but the superuser and the asking client are left out.
    HideOthers,
    /// Somebody's structure is shown with another i-handle.
    ForgeStructure,
    /// The list of pending operations is emptied.
    HidePending,
    /// Accepted operations are answered with a refusal.
    RefuseAccepted,
    /// Operations are acknowledged with an old receipt and forgotten.
    ForgetAcknowledged,
    /// The log of updates is shown shorter than it was.
    ShortenLog,
}

/// A lying layer over a real service.
pub struct Evil<S> {
    inner: Arc<S>,
    attack: Mutex<Attack>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    view: Option<ViewReply>,
    chunk: Option<(Digest, StoredBlock)>,
    swapped: BTreeMap<Digest, StoredBlock>,
    receipt: Option<Response>,
    attacked: u64,
}

impl<S: Service> Evil<S> {
    /// Honest until told otherwise.
    pub fn new(inner: Arc<S>) -> Self {
        Evil { inner, attack: Mutex::new(Attack::Honest), memory: Mutex::default() }
    }

    /// Starts an attack or, with [`Attack::Honest`], ends it.
    pub fn begin(&self, attack: Attack) {
        *self.attack.lock() = attack;
        let mut memory = self.memory.lock();
        memory.attacked = 0;
        memory.chunk = None;
        memory.swapped.clear();
        if attack != Attack::Freeze {
            memory.view = None;
        }
    }

    /// How many answers were falsified since the attack began: a test that expects detection makes sure that
    /// there was something to detect.
    pub fn attacked(&self) -> u64 {
        self.memory.lock().attacked
    }

    fn spoil_block(&self, attack: Attack, block: AddressedBlock) -> Option<AddressedBlock> {
        let AddressedBlock { address, block: original } = block;
        let chunk = original.kind == BlockKind::Chunk;
        let metadata = matches!(original.kind, BlockKind::MapLeaf | BlockKind::Inode | BlockKind::Table);
        let mut memory = self.memory.lock();
        let mut block = original.clone();
        match attack {
            Attack::FlipByte if chunk => plain(&mut block, address, |body| flip(body)),
            Attack::FlipMetadata if metadata => plain(&mut block, address, |body| flip(body)),
            Attack::ZeroBlocks if chunk => plain(&mut block, address, |body| body.fill(0)),
            Attack::TruncateBlocks if chunk => {
                plain(&mut block, address, |body| body.truncate(body.len() / 2))
            }
            Attack::Bomb if chunk => {
                block.codec = Codec::Zstd;
                block.body = zstd_of_zeroes(1 << 30);
            }
            Attack::LoseBlocks if chunk => {
                memory.attacked += 1;
                return None;
            }
            Attack::SwapBlocks if chunk => {
                if let Some(other) = memory.swapped.get(&address) {
                    block = other.clone();
                } else if let Some((_, earlier)) =
                    memory.chunk.take_if(|(earlier_address, _)| *earlier_address != address)
                {
                    memory.swapped.insert(address, earlier.clone());
                    block = earlier;
                } else {
                    memory.chunk = Some((address, original.clone()));
                }
            }
            _ => {}
        }
        memory.attacked += u64::from(block != original);
        Some(AddressedBlock { address, block })
    }

    fn spoil_view(&self, attack: Attack, me: Option<holdfast_content::DeviceId>, reply: &mut ViewReply) {
        let original = reply.view.clone();
        let mut memory = self.memory.lock();
        match attack {
            Attack::Freeze => match &memory.view {
                Some(frozen) => *reply = frozen.clone(),
                None => memory.view = Some(reply.clone()),
            },
            Attack::HideOthers => {
                reply.view.slots.retain(|device, _| device.0 == 0 || Some(*device) == me);
            }
            Attack::ForgeStructure => {
                for slot in reply.view.slots.values_mut() {
                    if let Some(handle) = slot.value.handles.values_mut().next_back() {
                        handle.reference.address.0[0] ^= 1;
                    }
                }
            }
            Attack::HidePending => reply.view.pending.clear(),
            Attack::ShortenLog => reply.view.log.size = reply.view.log.size.saturating_sub(1),
            _ => {}
        }
        memory.attacked += u64::from(reply.view != original);
    }
}

fn flip(body: &mut [u8]) {
    if let Some(byte) = body.last_mut() {
        *byte ^= 0x20;
    }
}

pub(crate) fn zstd_of_zeroes(length: usize) -> Vec<u8> {
    // A block of our own making, so that the frame is what the codec makes of a long run of zeroes.
    holdfast_content::Block::new(
        &DigestKey::WELL_KNOWN,
        BlockKind::Chunk,
        Vec::new(),
        vec![0; length.min(holdfast_content::BODY_BYTES_MAX as usize)],
    )
    .to_stored()
    .body
    .repeat(length >> 20)
}

/// Changes the plain body of a block, keeping the claim about its address.
fn plain(block: &mut StoredBlock, address: Digest, change: impl FnOnce(&mut Vec<u8>)) {
    let opened = block.clone().open_any(&DigestKey::WELL_KNOWN, address, holdfast_content::BODY_BYTES_MAX);
    if let Ok(opened) = opened {
        let mut body = opened.body().to_vec();
        change(&mut body);
        block.codec = Codec::Plain;
        block.body = body;
    }
}

impl<S: Service> Service for Evil<S> {
    type State = S::State;

    async fn handle(&self, session: &Arc<Session<Self::State>>, request: Request) -> Response {
        let attack = *self.attack.lock();
        let me = match &request {
            Request::Update { certificate, .. } | Request::Fast { certificate, .. } => {
                Some(certificate.value.device)
            }
            _ => None,
        };
        let operation = matches!(request, Request::Fast { .. } | Request::Commit { .. });
        if attack == Attack::ForgetAcknowledged && operation {
            let mut memory = self.memory.lock();
            if let Some(receipt) = memory.receipt.clone() {
                memory.attacked += 1;
                return receipt;
            }
        }
        let mut request = request;
        let since = want_whole(&mut request);
        let answer = match self.inner.handle(session, request).await {
            Response::Blocks(blocks) => {
                let spoil = |(header, block)| Some((header, self.spoil_block(attack, block)?));
                Response::Blocks(blocks.into_iter().map(|found| found.and_then(spoil)).collect())
            }
            Response::View(mut reply) => {
                self.spoil_view(attack, me, &mut reply);
                // Hints would hide what RETRIEVE is about to lie about.
                reply.blocks.retain(|_| attack == Attack::Honest);
                Response::View(reply)
            }
            Response::LeasedView(mut reply, grant) => {
                self.spoil_view(attack, me, &mut reply);
                reply.blocks.retain(|_| attack == Attack::Honest);
                Response::LeasedView(reply, grant)
            }
            Response::LeasedCommitted(..) if attack == Attack::RefuseAccepted && operation => {
                self.memory.lock().attacked += 1;
                Response::Refused
            }
            Response::LeasedCommitted(receipt, grant) => {
                let committed = Response::Committed(receipt.clone());
                self.memory.lock().receipt.get_or_insert(committed);
                Response::LeasedCommitted(receipt, grant)
            }
            Response::Committed(_) if attack == Attack::RefuseAccepted && operation => {
                self.memory.lock().attacked += 1;
                Response::Refused
            }
            committed @ Response::Committed(_) => {
                self.memory.lock().receipt.get_or_insert_with(|| committed.clone());
                committed
            }
            other => other,
        };
        by_difference(answer, since)
    }

    fn closed(&self, session: &Session<Self::State>) {
        self.inner.closed(session);
    }
}

/// The operator's server, running in the background of this process.
pub struct EvilServer {
    evil: Arc<Evil<Driver>>,
    shutdown: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl EvilServer {
    /// Serves a real data directory, honestly until told otherwise.
    ///
    /// # Errors
    /// Those of [`Server::open`].
    pub fn start(config: ServerConfig) -> anyhow::Result<EvilServer> {
        let server = Server::open(config)?;
        let (shutdown, ended) = tokio::sync::oneshot::channel();
        let (made, making) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let layer = |driver| {
                let evil = Arc::new(Evil::new(driver));
                made.send(evil.clone()).expect("somebody waits for it");
                evil
            };
            let ended = async {
                let _ = ended.await;
            };
            if let Err(error) = server.run_behind(layer, ended) {
                tracing::error!(%error, "the operator's server ended");
            }
        });
        Ok(EvilServer { evil: making.recv()?, shutdown: Some(shutdown), thread: Some(thread) })
    }

    /// See [`Evil::begin`].
    pub fn begin(&self, attack: Attack) {
        self.evil.begin(attack);
    }

    /// See [`Evil::attacked`].
    pub fn attacked(&self) -> u64 {
        self.evil.attacked()
    }
}

impl Drop for EvilServer {
    fn drop(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
