//! Creating a file system: the founding operation of device 0 on the empty view.

use crate::remote::{Remote, call_patiently};
use crate::state::{State, StateError, StateLog};
use crate::store::Blocks;
use crate::tree::{Allocator, Base, Changes, TableCache, Transaction};
use holdfast_content::{DeviceId, Handle, Inode, InodeKind, Membership, MemoryBlocks};
use holdfast_crypto::{Digest, DigestKey, KeyHolder, PublicKey};
use holdfast_log::Storage;
use holdfast_protocol::certificate::{Certificate, Path};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{AddressedBlock, Request, Response, ServerError, ServerKeys};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, Misuse, OperationEnd, Signer};
use holdfast_rpc::{RpcError, ServerAddress};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What is needed to create a file system.
pub struct CreateConfig {
    /// The server on which to create it; its address comes first in the file system's.
    pub server: ServerAddress,
    /// Servers that can take its place: the file system is created on the first that accepts it.
    pub others: Vec<ServerAddress>,
    /// The superuser's key, which is device 0's.
    pub superuser: Arc<dyn KeyHolder>,
    /// Name of the file system.
    pub name: String,
    /// Name of its superuser.
    pub superuser_name: String,
    /// Directory for the state of the superuser's key; later mounts use it, too.
    pub state_dir: PathBuf,
    /// The time by this machine's clock, in nanoseconds since 1970.
    pub now_ns: i64,
    /// Longest time to wait for the server.
    pub deadline: Duration,
}

/// Why a file system could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// This key is a superuser's already, here or at the server.
    #[error("a file system of this key exists already; use another superuser key for another file system")]
    Exists,
    /// The server does not let this key create file systems.
    #[error("the server does not allow it: {0}")]
    NotAllowed(String),
    /// A name cannot be used.
    #[error("{0}")]
    BadName(String),
    /// The server cannot be reached.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    /// The holder of the superuser's key does not sign.
    #[error("the superuser's key cannot be used: {0}")]
    Key(String),
    /// The server gave an unexpected answer.
    #[error("the server refused: {0}")]
    Refused(String),
    /// Servers that were named together have different keys.
    #[error(
        "{0} and {1} show different keys, so they do not stand in for each other: clients of a file system on one would be \
         refused by the other. Name servers that have one key (docs/growing.md), or one server"
    )]
    NotOneGroup(String, String),
    /// The state of the superuser's key could not be saved.
    #[error("the state could not be kept in {0}: {1}")]
    State(PathBuf, String),
}

impl From<RpcError> for CreateError {
    fn from(error: RpcError) -> CreateError {
        match error {
            RpcError::Server(ServerError::Exists) => CreateError::Exists,
            RpcError::Server(ServerError::NotAllowed(why)) => CreateError::NotAllowed(why),
            // Another server has it, or the order cannot be reached now: the next server, or a later attempt,
            // may succeed.
            RpcError::Server(ServerError::Elsewhere(_) | ServerError::Busy) => {
                CreateError::Unreachable(error.to_string())
            }
            RpcError::Server(_) | RpcError::Malformed(_) | RpcError::WrongServer { .. } => {
                CreateError::Refused(error.to_string())
            }
            RpcError::Key(why) => CreateError::Key(why.to_string()),
            other => CreateError::Unreachable(other.to_string()),
        }
    }
}

/// Creates a file system within `deadline`, on a server that is reached through `remote` and has
/// `server_key`; returns its id.
///
/// # Errors
/// See [`CreateError`]. If the answer was lost, the same call with the same state finishes the work.
pub fn create_with(
    config: &CreateConfig,
    deadline: Duration,
    remote: &dyn Remote,
    server_key: PublicKey,
    storage: Arc<dyn Storage>,
) -> Result<Digest, CreateError> {
    let kept = |error: StateError| CreateError::State(config.state_dir.clone(), error.to_string());
    let superuser = config.superuser.public();
    let file_system = superuser.file_system_id();
    let (log, found) = StateLog::open(storage, file_system, superuser).map_err(kept)?;
    let blocks = Arc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
    let membership = Membership::founding(&config.name, &config.superuser_name, superuser);
    membership.validate().map_err(|why| CreateError::BadName(why.to_string()))?;
    let key = &*config.superuser;
    let list_of_keys = |sequence| {
        Signed::by(ServerKeys { file_system, sequence, keys: vec![server_key] }, key)
            .map_err(|error| misuse(error.into()))
    };
    let (mut signer, effects, allocator, server_keys) = match found {
        None => {
            let mut signer = Signer::new(Floor::new(superuser, DeviceId::SUPERUSER));
            let server_keys = list_of_keys(1)?;
            signer.step(key, Event::ServerKeys(server_keys.clone())).map_err(misuse)?;
            let (deltas, tables, allocator) = founding_plan(&blocks, membership, config.now_ns)?;
            let effects = signer.found(key, deltas, config.now_ns, &tables).map_err(misuse)?;
            (signer, effects, allocator, server_keys)
        }
        // Only an unfinished founding may be continued: the same bytes are sent, with the same blocks.
        Some(found) => {
            let mut signer = Signer::restore(&found.signer)
                .map_err(|error| CreateError::State(config.state_dir.clone(), error.to_string()))?;
            if signer.floor().last() > 0 {
                return Err(CreateError::Exists);
            }
            let effects = signer.step(key, Event::Restarted).map_err(misuse)?;
            let certificate = founding_certificate(&effects).ok_or(CreateError::Exists)?;
            let (deltas, _, allocator) = founding_plan(&blocks, membership, certificate.time_ns)?;
            if deltas != certificate.deltas {
                return Err(CreateError::BadName(
                    "an earlier attempt with this key was not finished, and it used another name: use that name \
                     again, or another key"
                        .to_owned(),
                ));
            }
            // If the server is another one than the first time, its list of keys replaces the first one's.
            let server_keys = match &signer.floor().server_keys {
                Some(known) if known.value.keys == [server_key] => known.clone(),
                Some(known) => list_of_keys(known.value.sequence + 1)?,
                None => list_of_keys(1)?,
            };
            signer.step(key, Event::ServerKeys(server_keys.clone())).map_err(misuse)?;
            (signer, effects, allocator, server_keys)
        }
    };
    let state = |signer: Vec<u8>| State {
        format: 1,
        file_system,
        key: superuser,
        signer,
        allocator: allocator.clone(),
        frozen: None,
    };
    let mut effects = std::collections::VecDeque::from(effects);
    while let Some(effect) = effects.pop_front() {
        match effect {
            Effect::Persist(now) | Effect::Note(now) => log.save(&state(now.to_bytes())).map_err(kept)?,
            Effect::Send(request) => {
                let Request::Fast { certificate, structure, .. } = *request else {
                    return Err(CreateError::Exists);
                };
                let request = Request::CreateFileSystem {
                    superuser,
                    server_keys: server_keys.clone(),
                    certificate,
                    structure,
                    blocks: addressed(&blocks),
                };
                match call_patiently(remote, &request, deadline)? {
                    Response::Committed(receipt) => {
                        effects.extend(signer.step(key, Event::Committed(receipt)).map_err(misuse)?)
                    }
                    other => return Err(crate::store::unexpected("CreateFileSystem", &other).into()),
                }
            }
            Effect::Finished(OperationEnd::Committed(_)) => {
                return Ok(file_system);
            }
            Effect::Alarm(alarm) => return Err(CreateError::Refused(alarm.explain())),
            _ => {}
        }
    }
    Err(CreateError::Refused("it did not say that the file system was created".to_owned()))
}

fn misuse(error: Misuse) -> CreateError {
    match error {
        Misuse::NotSigned(why) => CreateError::Key(why.to_string()),
        other => CreateError::Refused(other.to_string()),
    }
}

type FoundingPlan =
    (Vec<holdfast_protocol::certificate::Delta>, holdfast_protocol::signer::Tables, Allocator);

/// The certificate that an unfinished founding has signed.
fn founding_certificate(effects: &[Effect]) -> Option<&Certificate> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(request) => match &**request {
            Request::Fast { certificate, .. } => Some(&certificate.value),
            _ => None,
        },
        _ => None,
    })
}

/// The plan of the founding operation: the root directory and the membership.
fn founding_plan(
    blocks: &Arc<MemoryBlocks>,
    membership: Membership,
    now_ns: i64,
) -> Result<FoundingPlan, CreateError> {
    let refused = |error: &dyn std::fmt::Display| CreateError::Refused(error.to_string());
    let base = Base::new(
        Arc::default(),
        Arc::new(membership.clone()),
        DeviceId::SUPERUSER,
        blocks.clone() as Arc<dyn Blocks>,
        Arc::new(TableCache::default()),
    );
    let explain =
        |_: Option<Handle>, error: &crate::tree::ReadError| crate::error::FsError::Invalid(error.to_string());
    let mut transaction = Transaction::new(&base, Allocator::default(), &explain);
    let mut edit = |changes: &mut dyn Changes| {
        let root = Inode::new(InodeKind::Directory, 0o755, DeviceId::SUPERUSER, now_ns);
        changes.set_inode(Handle::ROOT, root)?;
        changes.membership()?.set(membership.clone())
    };
    transaction.run(&mut edit).0.map_err(|error| refused(&error))?;
    let mut plan = transaction.finish(Path::Fast).map_err(|error| refused(&error))?;
    let tables = plan.build(&base).map_err(|error| refused(&error))?;
    Ok((plan.deltas.clone(), tables, plan.allocator.clone().committed()))
}

fn addressed(blocks: &MemoryBlocks) -> Vec<AddressedBlock> {
    let mut all: Vec<AddressedBlock> = blocks
        .addresses()
        .into_iter()
        .filter_map(|address| Some(AddressedBlock { address, block: blocks.stored(&address)? }))
        .collect();
    all.sort_by_key(|block| block.address);
    all
}
