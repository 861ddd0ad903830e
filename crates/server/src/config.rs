//! The settings of a server, which its operator chooses.

use holdfast_checkpoint::note::VerifierKey;
use holdfast_protocol::history::Retention;
use holdfast_store::StoreConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A witness: its URL and the key that verifies its cosignatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WitnessAddress {
    /// The submission prefix of its URL.
    pub url: String,
    /// The key that verifies its cosignatures.
    pub key: VerifierKey,
}

/// Who may create file systems on a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CreatePolicy {
    /// Processes on the same machine, and the keys in `DATA/allowed-superusers`.
    #[default]
    Local,
    /// Only the keys in `DATA/allowed-superusers`.
    Listed,
    /// Any client that can connect.
    Anyone,
    /// No client.
    Nobody,
}

/// The settings of a [`crate::ServerCore`].
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Who may create file systems.
    pub create: CreatePolicy,
    /// How long an operation may stay pending.
    pub abort_after: Duration,
    /// Number of ordering records after which a checkpoint is due.
    pub checkpoint_records: u64,
    /// The settings of the log store.
    pub store: StoreConfig,
    /// The limits on parcels.
    pub parcels: crate::ParcelSettings,
    /// File that exists while clients may hold locks; `None`: no such file is written.
    pub locks_note: Option<PathBuf>,
    /// How long leases last; zero means that none are granted.
    pub lease_term: Duration,
    /// File that says which sessions may hold leases; `None`: no such file is written.
    pub leases_note: Option<PathBuf>,
    /// The retention of past states.
    pub history: Retention,
    /// How many bytes each user of each file system may be charged for, whatever the superuser allows.
    pub user_quota: Option<u64>,
    /// Whether the storage was restored from a backup: every file system then waits until its superuser
    /// declares that.
    pub is_restored: bool,
    /// File that lists the file systems that wait; `None`: no such file is written.
    pub restored_note: Option<PathBuf>,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The data directory; created when missing. Only one server at a time can use it.
    pub data: PathBuf,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Whether to listen for QUIC too, on the UDP port of the same number.
    pub quic: bool,
    /// Who may create file systems.
    pub create: CreatePolicy,
    /// For how long after storing a block its owner may take it back (DECREF).
    pub window: Duration,
    /// How long blocks that nothing refers to any more stay readable, and how long new ones are safe from
    /// collection.
    pub gc_window: Duration,
    /// How long deleted blocks are kept as bases for the compression of later ones.
    pub keep_deleted: Duration,
    /// Most bytes of such deleted blocks; `None`: a tenth of all data, but at least 1 GiB.
    pub keep_deleted_bytes: Option<u64>,
    /// Pause between garbage collections; `None` for none in the background.
    pub gc_interval: Option<Duration>,
    /// How long an operation may stay pending before it is aborted.
    pub abort_after: Duration,
    /// How long clients may use what they have read without asking again; zero means not at all.
    pub lease_term: Duration,
    /// Number of ordering records after which a checkpoint is written.
    pub checkpoint_records: u64,
    /// The retention of past states.
    pub history: Retention,
    /// How many bytes each user of each file system may be charged for; `None`: only the superuser's limits
    /// count.
    pub user_quota: Option<u64>,
    /// Whether the data directory was restored from a backup: every file system then waits until its
    /// superuser declares that.
    pub is_restored: bool,
    /// The limits on parcels.
    pub parcels: crate::ParcelSettings,
    /// The witnesses that co-sign heads of the log of updates.
    pub witnesses: Vec<WitnessAddress>,
    /// How often each witness is asked to co-sign.
    pub witness_every: Duration,
    /// The block server or bucket that has the blocks; `None`: the one of the last start, or the data
    /// directory if there was none.
    pub blocks: Option<crate::BlocksLocation>,
    /// Whether to accept the store at the block server or in the bucket as it is, whatever was there before.
    pub blocks_anew: bool,
    /// The etcd that has the order; `None`: as at the last start, or the data directory at the first.
    pub state: Option<holdfast_etcd::Access>,
    /// A file with this server's credentials for etcd.
    pub state_login: Option<PathBuf>,
    /// The address by which clients and other servers reach this server; `None`: the address it listens on.
    pub advertise: Option<String>,
    /// The limits on clients and connections.
    pub limits: holdfast_rpc::Limits,
}

impl ServerConfig {
    /// The usual settings for a data directory and an address.
    pub fn new(data: impl Into<PathBuf>, listen: SocketAddr) -> Self {
        ServerConfig {
            data: data.into(),
            listen,
            quic: true,
            create: CreatePolicy::default(),
            window: Duration::from_secs(60),
            gc_window: Duration::from_secs(24 * 3600),
            keep_deleted: Duration::from_secs(7 * 24 * 3600),
            keep_deleted_bytes: None,
            gc_interval: Some(Duration::from_secs(3600)),
            abort_after: Duration::from_secs(10),
            lease_term: Duration::from_millis(holdfast_protocol::leases::TERM_MS),
            checkpoint_records: 4096,
            history: Retention::default(),
            user_quota: None,
            is_restored: false,
            parcels: crate::ParcelSettings::default(),
            witnesses: Vec::new(),
            witness_every: Duration::from_secs(5),
            blocks: None,
            blocks_anew: false,
            state: None,
            state_login: None,
            advertise: None,
            limits: holdfast_rpc::Limits::default(),
        }
    }
}
