//! The server: drives the block store and the consistency machine for many file systems.
//!
//! [`Server`] is the process: data directory, sockets, background work. [`ServerCore`] is everything behind
//! the sockets, blocking, with storage and clock as arguments, so that tests run it on a disk that loses
//! power.
//!
//! Clients do not trust the server: they check every byte and every step of the order. The server checks its
//! clients all the same, so that a malicious one cannot make an honest server look dishonest.
#![forbid(unsafe_code)]

mod backup;
mod block_store;
mod blocks;
mod clock;
mod config;
pub mod control;
#[cfg(feature = "convert")]
mod convert;
mod data;
mod error;
mod file_system;
mod history_file;
mod maintenance;
mod moved;
mod notes;
mod order;
mod parcels;
pub mod privsep;
pub mod rebuild;
mod refusal;
mod resources;
mod restored;
mod server;
mod server_core;
mod service;
mod standby;
mod statistics;
mod tree;
mod waiting;
pub mod witnessing;

pub use backup::{BackupError, BackupReport, backup};
pub use block_store::{
    BlockServer, BlockServerConfig, BlockServerError, BlockStore, BlockStoreError, BlockStoreStatus,
    BlocksLocation, BlocksOpenError, BucketAddress, BucketSettings, BucketStatus, Candidate, ElectionError,
    LocalBlocks, LocationError, RemoteBlocks, RemoteBlocksSettings, ServedStoreError, blocks_elsewhere,
    bucket_address,
};
pub use clock::Clock;
pub use config::{CoreSettings, CreatePolicy, ServerConfig};
#[cfg(feature = "convert")]
pub use convert::{
    BlockDestination, ConvertError, ConvertReport, ConvertedFileSystem, Destination, OrderDestination,
    convert,
};
pub use error::{OpenError, OrderLocationError, RunError, UnservedReason, WitnessSettingsError};
pub use file_system::FileSystem;
pub use holdfast_etcd::Access as StateAddress;
pub use parcels::ParcelSettings;
pub use server::{Server, server_key_in, until_signalled};
pub use server_core::{AllowedSuperusers, Caller, GreetingReply, ServerCore};
pub use service::{Driver, SessionState};
pub use tree::TreeError;
