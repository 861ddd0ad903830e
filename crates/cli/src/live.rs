//! Live file systems as sources of releases: a directory, read through one verified view, and the server,
//! from which mirrors may get the blocks.

use crate::key_user::KeyUser;
use holdfast_client::reader::{self, VerifiedView};
use holdfast_client::remote::Remote;
use holdfast_client::tree::Base;
use holdfast_daemon::keys::{self, Key};
use holdfast_daemon::mounts::requests::FetchView;
use holdfast_daemon::mounts::service::view_of;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::Outcome;
use holdfast_release::origin::Origin;
use holdfast_rpc::Address;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The prefix of a live file system's address.
const SCHEME: &[u8] = b"hf://";
/// How long to wait for the server.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often the command retries while another process starts or stops using the key.
const ATTEMPTS: usize = 50;
/// Most bytes of blocks in memory.
const MEMORY_BYTES: usize = 64 << 20;

/// A directory of a live file system, given by its address.
pub struct LiveDirectory {
    /// The file system.
    pub address: Address,
    /// The path in it, as given.
    pub path: Vec<u8>,
}

/// Parses `hf://HOST:PORT/FSID/PATH`; `None` if the text begins otherwise.
///
/// # Errors
/// The text is not a valid address.
pub fn parse(text: &Path) -> Outcome<Option<LiveDirectory>> {
    let Some(rest) = text.as_os_str().as_bytes().strip_prefix(SCHEME) else { return Ok(None) };
    let mut parts = rest.splitn(3, |byte| *byte == b'/');
    let server = parts.next().unwrap_or_default();
    let id = parts.next().unwrap_or_default();
    let path = parts.next().unwrap_or_default().to_vec();
    let address = [SCHEME, server, b"/", id].concat();
    let address: Address = String::from_utf8_lossy(&address).parse()?;
    Ok(Some(LiveDirectory { address, path }))
}

/// A live directory that was opened for publishing.
pub struct Opened {
    /// The view.
    pub base: Base,
    /// The server.
    pub server: Arc<dyn Remote>,
}

/// Opens a live file system with a device's key. Only one process may sign with it, so if a process does, it
/// is asked.
///
/// # Errors
/// The key is no member's, the server cannot be reached, or its answer is wrong.
pub fn open(address: &Address, key: &Path, directories: &Directories) -> Outcome<Opened> {
    let key = keys::read(key)?;
    let (signing, reading) = match key {
        // A copy is handed to each of the two processes, and this one forgets the key.
        Key::Here(key) => (Key::Here(key.clone()), Key::Here(key)),
        Key::Kept(key) => (Key::Kept(key.clone()), Key::Kept(key)),
        handed @ Key::Handed(_) => return Err(handed.into_holder().map(drop).unwrap_err()),
    };
    let server = connect(address, reading)?;
    let view = view(address, signing, directories)?;
    let folder = directories.cache_of(&address.file_system)?;
    let evidence = directories.state_base()?.join("evidence");
    make_private(&folder)?;
    let cache = Some((folder, holdfast_daemon::cache::size_given(directories)?));
    let store = reader::blocks(address, server.clone(), evidence, cache, MEMORY_BYTES, DEADLINE);
    Ok(Opened { base: view.read_from(&store), server })
}

/// Connects to a live file system's server with a member's key.
///
/// # Errors
/// The key is no member's, or the server cannot be reached.
pub fn connect(address: &Address, key: Key) -> Outcome<Arc<dyn Remote>> {
    let processes = key.into_processes()?;
    processes.begin_reading()?;
    Ok(reader::connect_with(address, &processes, DEADLINE)?)
}

/// The origin of a release, which a server asks for data with any member's key.
///
/// # Errors
/// The address is not valid, the key is no member's, or the server cannot be reached.
pub fn origin(address: &str, key: &Path, cache_bytes_max: usize) -> Outcome<Origin> {
    let address: Address = address.parse()?;
    let server = connect(&address, keys::read(key)?)?;
    Ok(Origin::new(address.to_string(), server, cache_bytes_max))
}

fn view(address: &Address, key: Key, directories: &Directories) -> Outcome<VerifiedView> {
    let state_dir = directories.state_of(&address.file_system, &key.public())?;
    make_private(&state_dir)?;
    let user = KeyUser::find(address, key, &state_dir, ATTEMPTS, |mut config| {
        config.deadline = DEADLINE;
        Ok(config)
    })?;
    match user {
        KeyUser::Process(process) => process.call(&FetchView)?.decode(),
        KeyUser::Engine(engine) => {
            let view = view_of(&engine);
            engine.stop();
            view
        }
    }
}
