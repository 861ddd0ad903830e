//! The server: drives the block store and the consistency machine for many file systems.
//!
//! [`Server`] is the process: data directory, sockets, background work. [`Host`] is everything behind the
//! sockets, blocking, with storage and clock as arguments, so that tests run it on a disk that loses power.
//!
//! A server is trusted with nothing but keeping things: clients check every byte and every step of the order.
//! It polices its clients all the same, so that no malicious one can make an honest server look like a liar.
#![forbid(unsafe_code)]

pub mod apart;
mod backup;
mod block_store;
mod blocks;
mod config;
pub mod control;
mod convert;
mod data;
mod error;
mod file_system;
mod history_file;
mod holds;
mod host;
mod maintenance;
mod order;
mod parcels;
pub mod rebuild;
mod refusal;
mod restored;
mod server;
mod service;
mod standby;
mod statistics;
mod tree;
mod waiting;
pub mod witnessing;

pub use backup::{BackupError, BackupReport, backup};
pub use block_store::{
    BlockServer, BlockServerConfig, BlockServerError, BlockStore, BlockStoreError, BlocksAt, BucketAddress,
    BucketStanding, Candidate, Local, ObjectsSettings, Remote, RemoteSettings, Standing, blocks_elsewhere,
    bucket_address,
};
pub use config::{CreatePolicy, ServerConfig};
pub use convert::{BlocksTo, ConvertError, ConvertReport, Converted, Destination, OrderTo, convert};
pub use error::{OpenError, RunError};
pub use file_system::FileSystem;
pub use holdfast_etcd::Access as StateAddress;
pub use host::{AllowedSuperusers, Caller, Clock, Greeted, Host, HostSettings};
pub use parcels::ParcelSettings;
pub use server::{Server, server_key_in, until_signalled};
pub use service::{Driver, SessionState};
pub use tree::TreeError;
