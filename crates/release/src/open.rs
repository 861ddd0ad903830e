//! A release as a client uses it: its mirrors, the accepted record, and the tree that is in force now.

use crate::accept::{Accepted, ExpiredPolicy};
use crate::admit::{AdmitError, Admitted, admit};
use crate::blocks::{IndexName, MirroredBlocks};
use crate::form::{self, Kind};
use crate::keys::ReleaseId;
use crate::layout;
use crate::mirror::{Mirror, Mirrors};
use crate::pack::Frame;
use crate::record::RootFile;
use crate::tree::Tree;
use crate::trust::{Trust, TrustError};
use holdfast_client::evidence::Evidence;
use holdfast_client::remote::Remote;
use holdfast_client::store::{StoreConfig, StoreStatus, TransferConfig, TransferMode, VerifiedStore};
use holdfast_crypto::DigestKey;
use holdfast_protocol::message::AddressedBlock;
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a caller waits for a block. Mirrors that fail are abandoned before that.
const DEADLINE: Duration = Duration::from_secs(60);

/// Most bytes that a mirror may send when it looks up paths.
const LOOK_AHEAD_BYTES_MAX: u64 = 1 << 20;

/// Options for opening a release.
pub struct Options {
    /// The release.
    pub id: ReleaseId,
    /// The directory where this machine remembers releases.
    pub trust: PathBuf,
    /// Folders with revocation certificates.
    pub revocations: Vec<PathBuf>,
    /// Whether an expired release is accepted.
    pub stale: ExpiredPolicy,
    /// Folder and bound in bytes of the persistent cache.
    pub cache: Option<(PathBuf, u64)>,
    /// Bound of the cache in memory, in bytes.
    pub memory_bytes: usize,
}

/// Why a release cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No mirror has a valid release.
    #[error("no mirror has the release {id} as it should be:{}", lines(.why))]
    NoMirror {
        /// The release that is revoked, damaged or missing.
        id: ReleaseId,
        /// The error of each mirror.
        why: Vec<AdmitError>,
    },
    /// An error that no other mirror can solve: the release is revoked, or what this machine remembers is
    /// damaged.
    #[error(transparent)]
    Final(AdmitError),
    /// What this machine remembers of the release cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No mirror has an index to find blocks with.
    #[error("the release is signed and counts, but its blocks cannot be found: {0}")]
    Blocks(String),
}

fn lines(errors: &[AdmitError]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// The release as it is now.
pub struct Current {
    /// The record, and warnings for people.
    pub accepted: Accepted,
    /// Messages for people about mirrors.
    pub notices: Vec<String>,
    /// The tree of the release.
    pub tree: Tree,
}

/// A release, and its mirrors.
pub struct Release {
    options: Options,
    trust: Trust,
    single: Vec<Arc<dyn Mirror>>,
    mirrors: Arc<Mirrors>,
    /// Stores of blocks by digest key, which hardly ever changes for a release.
    stores: Mutex<Option<Store>>,
    current: RwLock<Arc<Current>>,
}

#[derive(Clone)]
struct Store {
    key: DigestKey,
    blocks: Arc<MirroredBlocks>,
    store: VerifiedStore,
}

/// Seconds since 1970 by this machine's clock.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Release {
    /// Opens a release at these mirrors.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options, mirrors: Vec<Arc<dyn Mirror>>) -> Result<Release, OpenError> {
        let trust = Trust::open(&options.trust, options.id)?;
        let all = Arc::new(Mirrors::new(mirrors.clone()));
        let stores = Mutex::new(None);
        let admitted = best(&trust, &mirrors, &options)?;
        let current = believe(&options, &trust, &all, &stores, admitted)?;
        Ok(Release { options, trust, single: mirrors, mirrors: all, stores, current: RwLock::new(current) })
    }

    /// The release at the last refresh.
    pub fn current(&self) -> Arc<Current> {
        self.current.read().clone()
    }

    /// Asks the mirrors for the record in force. Returns whether the tree has changed.
    ///
    /// # Errors
    /// [`OpenError`]; [`Release::current`] is then unchanged, and its dates decide whether it is still in
    /// force.
    pub fn refresh(&self) -> Result<bool, OpenError> {
        let admitted = best(&self.trust, &self.single, &self.options)?;
        let current = believe(&self.options, &self.trust, &self.mirrors, &self.stores, admitted)?;
        let mut known = self.current.write();
        let changed = known.tree.reference() != current.tree.reference();
        *known = current;
        Ok(changed)
    }

    /// The id of the release.
    pub fn id(&self) -> ReleaseId {
        self.options.id
    }

    /// What this machine remembers of the release.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Fetches at once what the look-up of these paths needs, if a mirror has hints. If none has, or the
    /// reply is useless, look-ups fetch it step by step as usual.
    pub fn look_ahead(&self, paths: &[&[u8]]) {
        let Some(store) = self.stores.lock().clone() else { return };
        let Some(frames) = self.mirrors.paths(paths, LOOK_AHEAD_BYTES_MAX) else { return };
        let block =
            |frame: Frame<'_>| Some(AddressedBlock { address: frame.address, block: frame.stored()? });
        store.store.accept_hints(Frame::all(&frames).filter_map(block).collect());
    }

    /// The mirrors of the release.
    pub fn mirrors(&self) -> &Arc<Mirrors> {
        &self.mirrors
    }

    /// Whether an expired release is accepted.
    pub fn stale(&self) -> ExpiredPolicy {
        self.options.stale
    }

    /// The tree of another record of this release, such as an archived one.
    ///
    /// # Errors
    /// [`OpenError::Blocks`].
    pub fn tree_of(&self, file: &RootFile) -> Result<Tree, OpenError> {
        let record = &file.record.value;
        let store = store_of(&self.options, &self.mirrors, &self.stores, record.digest_key);
        use_index(&store, file)?;
        Ok(Tree::new(Arc::new(store.store), record.root_dir))
    }

    /// Statistics of the caches, and the number of bytes received from mirrors.
    pub fn status(&self) -> (StoreStatus, u64) {
        match &*self.stores.lock() {
            Some(store) => (store.store.status(), store.blocks.traffic().1),
            None => (StoreStatus::default(), 0),
        }
    }
}

/// Asks every mirror. Returns the newest record, and of several copies the one with the longest validity.
pub(crate) fn best(
    trust: &Trust,
    mirrors: &[Arc<dyn Mirror>],
    options: &Options,
) -> Result<Admitted, OpenError> {
    let ask = |mirror: &Arc<dyn Mirror>| {
        let admitted = admit(trust, &**mirror, &options.revocations, now_s(), options.stale)?;
        // Nearly all later reads are for a part of a file, so this finds out whether the mirror supports
        // ranges.
        let _ = mirror.get(layout::ROOT, Some(0..1), 1);
        Ok(admitted)
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = mirrors.iter().map(|mirror| scope.spawn(|| ask(mirror))).collect();
        threads
            .into_iter()
            .map(|answer| answer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut best: Option<Admitted> = None;
    let mut why = Vec::new();
    for answer in answers {
        match answer {
            Ok(admitted) => {
                let rank = |one: &Admitted| (one.accepted.record.sequence, one.accepted.valid_until_s);
                if best.as_ref().is_none_or(|best| rank(&admitted) > rank(best)) {
                    best = Some(admitted);
                }
            }
            Err(
                error @ (AdmitError::Revoked { .. }
                | AdmitError::Trust(_)
                | AdmitError::RevocationsUnreadable { .. }),
            ) => return Err(OpenError::Final(error)),
            Err(error) => {
                tracing::debug!(%error, "a mirror's record is of no use");
                why.push(error);
            }
        }
    }
    if let Some(best) = &mut best {
        best.notices.extend(why.iter().filter(|error| error.is_proof()).map(ToString::to_string));
        best.notices.extend(mirrors.iter().filter_map(|mirror| mirror.notice()));
    }
    best.ok_or(OpenError::NoMirror { id: options.id, why })
}

fn believe(
    options: &Options,
    trust: &Trust,
    mirrors: &Arc<Mirrors>,
    stores: &Mutex<Option<Store>>,
    admitted: Admitted,
) -> Result<Arc<Current>, OpenError> {
    // Another process may have accepted a newer record meanwhile; then this one is old already.
    debug_assert_eq!(trust.id(), admitted.accepted.record.release);
    let store = store_of(options, mirrors, stores, admitted.accepted.record.digest_key);
    // The index is a mirror's unsigned statement: if it is unavailable, those that other mirrors name are
    // used.
    if let Err(error) = use_index(&store, &admitted.file)
        && !indexes_at(mirrors).into_iter().any(|name| store.blocks.use_index(name).is_ok())
    {
        return Err(error);
    }
    let tree = Tree::new(Arc::new(store.store), admitted.accepted.record.root_dir);
    Ok(Arc::new(Current { accepted: admitted.accepted, notices: admitted.notices, tree }))
}

/// The indexes that mirrors name at present.
fn indexes_at(mirrors: &Mirrors) -> Vec<IndexName> {
    let answers = mirrors.every(layout::ROOT, RootFile::BYTES_MAX);
    let files = answers.into_iter().filter_map(|(_, answer)| form::read::<RootFile>(&answer.ok()?).ok());
    files.map(|file| IndexName { digest: file.index.digest, bytes: file.index.bytes }).collect()
}

fn use_index(store: &Store, file: &RootFile) -> Result<(), OpenError> {
    let name = IndexName { digest: file.index.digest, bytes: file.index.bytes };
    store.blocks.use_index(name).map_err(|error| OpenError::Blocks(error.to_string()))
}

fn store_of(
    options: &Options,
    mirrors: &Arc<Mirrors>,
    stores: &Mutex<Option<Store>>,
    key: DigestKey,
) -> Store {
    let mut stores = stores.lock();
    if let Some(store) = stores.as_ref().filter(|store| store.key == key) {
        return store.clone();
    }
    let at_mirrors = mirrors.clone();
    let more = move || indexes_at(&at_mirrors);
    let blocks = Arc::new(MirroredBlocks::new(mirrors.clone(), Box::new(more)));
    let folder = options.trust.join(options.id.to_string()).join("evidence");
    let config = StoreConfig {
        key,
        memory_bytes: options.memory_bytes,
        cache: options.cache.clone(),
        evidence: Arc::new(Evidence::new(folder, options.id.0)),
        deadline: DEADLINE,
        // Mirrors have blocks, not parcels.
        transfer: TransferConfig { mode: TransferMode::Plain, link: None },
    };
    let store = VerifiedStore::new(config, blocks.clone());
    blocks.set_beside(&store);
    let store = Store { key, blocks, store };
    *stores = Some(store.clone());
    store
}
