//! Pins of a mounted file system: the paths are fetched when they are pinned, and updated while the file
//! system is mounted.

use crate::time;
use holdfast_client::Engine;
use holdfast_client::pinned::{PinPathError, pin_path};
use holdfast_client::store::PinningSource;
use holdfast_client::store::pins::{self, Pin, PinError};
use holdfast_crypto::{DigestKey, Domain};
use holdfast_failure::{Exit, Failure, Outcome};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often pinned paths are updated.
const EVERY: Duration = Duration::from_secs(600);
/// The delay of the first update after mounting, so that it does not compete with the mount's first users.
const FIRST: Duration = Duration::from_secs(20);

/// The state of a pin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinState {
    /// The pinned path, and what was fetched.
    #[serde(flatten)]
    pub pin: Pin,
    /// Whether it is being fetched.
    pub under_way: bool,
    /// Why the last attempt to fetch it failed.
    pub trouble: Option<String>,
}

/// Fetches and updates what is pinned.
pub struct Pinner {
    engine: Weak<Engine>,
    cache_dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Pins that are being fetched, with what was fetched so far.
    under_way: BTreeMap<u64, Pin>,
    /// Pins that were removed while they were fetched.
    ended: HashSet<u64>,
    trouble: BTreeMap<u64, String>,
    /// The last operation in the order at the time when everything was up to date.
    up_to_date_at: u64,
}

/// The number of a path's pin, which depends only on the path.
pub fn number_of(path: &str) -> u64 {
    let digest = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, path.as_bytes());
    u64::from_le_bytes(digest.0[..8].try_into().expect("8 of 32 bytes"))
}

impl Pinner {
    /// Starts a thread that updates what is pinned in `cache_dir`, as long as the engine runs.
    pub fn start(engine: &Arc<Engine>, cache_dir: PathBuf) -> Arc<Pinner> {
        let pinner = Arc::new(Pinner { engine: Arc::downgrade(engine), cache_dir, state: Mutex::default() });
        let weak = Arc::downgrade(&pinner);
        let work = move || {
            std::thread::sleep(FIRST);
            while let Some(pinner) = weak.upgrade() {
                pinner.bring_up_to_date();
                drop(pinner);
                std::thread::sleep(EVERY);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("pins-kept".to_owned()).spawn(work) {
            tracing::warn!(%error, "what is pinned will not be brought up to date");
        }
        pinner
    }

    fn bring_up_to_date(&self) {
        let now = match self.engine.upgrade() {
            Some(engine) => engine.latest().sequence(),
            None => return,
        };
        if self.state.lock().up_to_date_at == now {
            return;
        }
        for pin in pins::list(&self.cache_dir) {
            self.fetch(pin);
        }
        self.state.lock().up_to_date_at = now;
    }

    /// Pins a path, or updates it; returns at once.
    pub fn pin(self: &Arc<Self>, path: String) -> Outcome<PinState> {
        let id = number_of(&path);
        let known = pins::list(&self.cache_dir).into_iter().find(|pin| pin.id == id);
        let new = || Pin { id, path, at_ns: time::now_ns(), files: 0, blocks: 0, bytes: 0, whole: false };
        let pin = known.unwrap_or_else(new);
        let mut state = self.state.lock();
        state.ended.remove(&id);
        if state.under_way.contains_key(&id) {
            return Ok(PinState { pin, under_way: true, trouble: None });
        }
        // The pin is written first: if fetching is interrupted, it is listed, and continued later.
        pins::write(&self.cache_dir, &pin).map_err(local)?;
        let (pinner, work) = (Arc::clone(self), pin.clone());
        std::thread::Builder::new()
            .name("pin".to_owned())
            .spawn(move || pinner.fetch_listed(work))
            .map_err(|error| Failure::new(Exit::System, format!("no thread can be started: {error}")))?;
        // The thread removes the entry at its end; it waits for the lock, which is held here.
        state.under_way.insert(id, pin.clone());
        state.trouble.remove(&id);
        Ok(PinState { pin, under_way: true, trouble: None })
    }

    /// Removes a pin. What was fetched stays in the cache as long as there is room.
    pub fn unpin(&self, path: &str) -> Outcome {
        let id = number_of(path);
        {
            let mut state = self.state.lock();
            if state.under_way.contains_key(&id) {
                state.ended.insert(id);
            }
        }
        if !pins::list(&self.cache_dir).iter().any(|pin| pin.id == id) {
            return Err(Failure::new(Exit::NoInput, format!("/{path}: it is not pinned"))
                .hint("`holdfast cache` lists what is"));
        }
        pins::remove(&self.cache_dir, id).map_err(local)
    }

    /// All pins with their states.
    pub fn list(&self) -> Vec<PinState> {
        let state = self.state.lock();
        let show = |pin: Pin| PinState {
            under_way: state.under_way.contains_key(&pin.id),
            trouble: state.trouble.get(&pin.id).cloned(),
            pin: state.under_way.get(&pin.id).cloned().unwrap_or(pin),
        };
        pins::list(&self.cache_dir).into_iter().map(show).collect()
    }

    fn fetch(&self, pin: Pin) {
        {
            let mut state = self.state.lock();
            if state.ended.contains(&pin.id) || state.under_way.contains_key(&pin.id) {
                return;
            }
            state.under_way.insert(pin.id, pin.clone());
        }
        self.fetch_listed(pin);
    }

    fn fetch_listed(&self, pin: Pin) {
        let (id, path) = (pin.id, pin.path.clone());
        let result = self.fetch_now(pin);
        let mut state = self.state.lock();
        state.under_way.remove(&id);
        // The path was unpinned while it was fetched, so what was fetched since is unpinned too.
        if state.ended.remove(&id) {
            let _ = pins::remove(&self.cache_dir, id);
            return;
        }
        match result {
            Ok(()) => drop(state.trouble.remove(&id)),
            Err(error) => {
                tracing::warn!(%error, %path, "what is pinned could not be fetched");
                state.trouble.insert(id, error.to_string());
            }
        }
    }

    fn fetch_now(&self, mut pin: Pin) -> Result<(), PinPathError> {
        let Some(engine) = self.engine.upgrade() else { return Err(PinPathError::CalledOff) };
        let io = |error: std::io::Error| PinPathError::Cache(PinError::Io(error));
        let pinning = engine.store().begin_pinning(pin.id).map_err(io)?;
        let source = Arc::new(PinningSource::new(engine.store().clone(), pinning));
        let id = pin.id;
        let files = pin_path(&engine, &source, pin.path.as_bytes(), &mut |files| {
            let mut state = self.state.lock();
            if let Some(shown) = state.under_way.get_mut(&id) {
                shown.files = files;
                (shown.blocks, shown.bytes) = source.needed();
            }
            !state.ended.contains(&id)
        })?;
        (pin.blocks, pin.bytes) = source.finish().map_err(io)?;
        (pin.files, pin.whole, pin.at_ns) = (files, true, time::now_ns());
        if !self.state.lock().ended.contains(&id) {
            pins::write(&self.cache_dir, &pin).map_err(io)?;
        }
        Ok(())
    }
}

fn local(error: std::io::Error) -> Failure {
    Failure::new(Exit::Io, format!("the cache folder: {error}"))
}
