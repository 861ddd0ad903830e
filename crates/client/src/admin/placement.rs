//! Creates a file system at whichever of several servers accepts it, and finds the servers that stand in for
//! that one.
//!
//! Servers that stand in for each other have the same key. Servers with different keys, named together, would
//! make an address of which a part leads nowhere; so this is refused before anything is signed.

use super::create::{CreateConfig, CreateError, create_with};
use crate::interrupt;
use crate::processes::Processes;
use crate::remote::Remote;
use holdfast_log::{LocalStorage, Storage};
use holdfast_protocol::message::{Request, Response, SERVERS_TOLD_MAX};
use holdfast_rpc::{Address, Connector, ServerAddress, Transport};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for several servers at a time, so that one that is down does not delay the others.
const GREETING_PATIENCE: Duration = Duration::from_secs(3);
/// How long one of several servers may take before the next is asked. Asking twice does no harm.
const TURN: Duration = Duration::from_secs(15);
/// How long to wait for a server's answer about servers that stand in for it.
const TELLING_PATIENCE: Duration = Duration::from_secs(3);

/// Where a new file system was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFileSystem {
    /// Its address: the named servers, then the discovered ones.
    pub address: Address,
    /// Servers that were not named, and that the server with the file system reported.
    pub discovered: Vec<ServerAddress>,
    /// Named servers that did not answer; it is unknown whether they have the same key.
    pub unreached: Vec<ServerAddress>,
}

/// Creates a file system and returns its address.
///
/// # Errors
/// See [`CreateError`]. If the answer was lost, the same call with the same state folder finishes the work.
pub fn create(config: CreateConfig) -> Result<Address, CreateError> {
    let storage = storage(&config)?;
    let connect = |server: &ServerAddress| -> Result<Box<dyn Remote>, CreateError> {
        let connector = Connector::new(config.superuser.clone(), vec![server.clone()], None);
        let unreachable = |error: std::io::Error| CreateError::Unreachable(error.to_string());
        Ok(Box::new(connector.start().map_err(unreachable)?))
    };
    let servers = named_servers(&config);
    let remotes = servers.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    let remotes: Vec<&dyn Remote> = remotes.iter().map(|remote| &**remote).collect();
    create_at(&config, &servers, &remotes, storage).map(|created| created.address)
}

/// Like [`create`], with a superuser's key that other processes have.
///
/// # Errors
/// See [`CreateError`].
pub fn create_by(config: &CreateConfig, processes: &Arc<Processes>) -> Result<NewFileSystem, CreateError> {
    let storage = storage(config)?;
    let servers = named_servers(config);
    let connect =
        |server: &ServerAddress| processes.connect(vec![server.clone()], None, Transport::default());
    let remotes: Vec<Arc<dyn Remote>> = servers.iter().map(connect).collect();
    let remotes: Vec<&dyn Remote> = remotes.iter().map(|remote| &**remote).collect();
    create_at(config, &servers, &remotes, storage)
}

/// The named servers, each once.
fn named_servers(config: &CreateConfig) -> Vec<ServerAddress> {
    let mut servers = Vec::new();
    for server in std::iter::once(&config.server).chain(&config.others) {
        if !servers.contains(server) {
            servers.push(server.clone());
        }
    }
    servers
}

fn storage(config: &CreateConfig) -> Result<Arc<dyn Storage>, CreateError> {
    let kept = |error: std::io::Error| CreateError::State(config.state_dir.clone(), error.to_string());
    std::fs::create_dir_all(&config.state_dir).map_err(kept)?;
    Ok(Arc::new(LocalStorage::open(&config.state_dir).map_err(kept)?))
}

fn create_at(
    config: &CreateConfig,
    servers: &[ServerAddress],
    remotes: &[&dyn Remote],
    storage: Arc<dyn Storage>,
) -> Result<NewFileSystem, CreateError> {
    let end = Instant::now() + config.deadline;
    let left = || end.saturating_duration_since(Instant::now());
    let is_alone = remotes.len() == 1;
    let mut trouble = CreateError::Unreachable("no server was named".to_owned());
    loop {
        let patience = if is_alone { left() } else { left().min(GREETING_PATIENCE) };
        let greeted = connect_all(remotes, patience);
        check_same_key(servers, remotes)?;
        for (at, greeted) in greeted.into_iter().enumerate() {
            let attempt = greeted.and_then(|()| {
                let key = remotes[at].server_key();
                let key = key
                    .ok_or_else(|| CreateError::Unreachable("the server did not show its key".to_owned()))?;
                let turn = if is_alone { left() } else { left().min(TURN) };
                create_with(config, turn, remotes[at], key, storage.clone())
            });
            match attempt {
                Ok(file_system) => {
                    let told = discover_servers(remotes[at], servers);
                    let silent = |(_, remote): &(_, &&dyn Remote)| remote.server_key().is_none();
                    let unreached = servers.iter().zip(remotes).filter(silent);
                    let unreached = unreached.map(|(server, _)| server.clone()).collect();
                    let others = servers[1..].iter().chain(&told).cloned().collect();
                    let address = Address { server: servers[0].clone(), others, file_system };
                    return Ok(NewFileSystem { address, discovered: told, unreached });
                }
                // The server is down, or a file system was begun on another one.
                Err(error @ CreateError::Unreachable(_)) => trouble = error,
                Err(error) => return Err(error),
            }
        }
        if is_alone || left().is_zero() || interrupt::is_raised() {
            return Err(trouble);
        }
        std::thread::sleep(Duration::from_millis(200).min(left()));
    }
}

/// Waits for connections to all servers at the same time.
fn connect_all(remotes: &[&dyn Remote], patience: Duration) -> Vec<Result<(), CreateError>> {
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for remote in remotes {
            waiting
                .push(scope.spawn(move || remote.wait_until_connected(patience).map_err(CreateError::from)));
        }
        let mut greeted = Vec::new();
        for waiting in waiting {
            greeted.push(waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        greeted
    })
}

/// Fails if the servers reached so far have different keys.
fn check_same_key(servers: &[ServerAddress], remotes: &[&dyn Remote]) -> Result<(), CreateError> {
    let mut shown =
        servers.iter().zip(remotes).filter_map(|(server, remote)| Some((server, remote.server_key()?)));
    let Some((first, key)) = shown.next() else { return Ok(()) };
    match shown.find(|(_, other)| *other != key) {
        Some((other, _)) => Err(CreateError::NotOneGroup(first.to_string(), other.to_string())),
        None => Ok(()),
    }
}

/// The servers that stand in for this one, without the named ones. A missing answer is not an error: older
/// servers do not know the request.
fn discover_servers(remote: &dyn Remote, named: &[ServerAddress]) -> Vec<ServerAddress> {
    let Ok(Response::Servers { own, others }) = remote.call(Request::Servers, TELLING_PATIENCE) else {
        return Vec::new();
    };
    let parse = |text: &String| text.parse::<ServerAddress>().ok();
    let own = own.as_ref().and_then(parse);
    let mut told: Vec<ServerAddress> = Vec::new();
    for server in others.iter().take(SERVERS_TOLD_MAX).filter_map(parse) {
        if !named.contains(&server) && Some(&server) != own.as_ref() && !told.contains(&server) {
            told.push(server);
        }
    }
    told.truncate((SERVERS_TOLD_MAX + 1).saturating_sub(named.len()));
    told
}
