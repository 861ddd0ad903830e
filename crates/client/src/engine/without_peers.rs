//! Replaces `peers` in a client built without the feature `peers`: no peer is met, and asking for it is an
//! error.

use super::Engine;
use super::meeting::{PeerHook, PeersPolicy, PeersStatus};
use super::shared::Shared;
use crate::error::{FsError, StartError};
use crate::processes::Processes;
use holdfast_content::DeviceId;
use holdfast_rpc::ServerAddress;
use std::net::TcpListener;
use std::sync::Arc;

/// Would be the engine's peers; has no value.
pub(super) enum Peers {}

impl Peers {
    /// Whether programs may read or change anything.
    pub fn may_work(&self) -> Result<(), FsError> {
        match *self {}
    }

    /// Whether an operation may be made.
    pub fn may_operate(&self) -> Result<(), FsError> {
        match *self {}
    }

    /// Tells all peers that this run ends in order.
    pub fn leave(&self, _: &Arc<Shared>) {
        match *self {}
    }

    /// Ends all threads and connections.
    pub fn stop(&self) {
        match *self {}
    }

    /// What `holdfast evidence peers` prints.
    pub fn status(&self, _: &Shared) -> PeersStatus {
        match *self {}
    }
}

/// Always fails: this program cannot meet peers.
pub(super) fn listen(_: &PeersPolicy) -> Result<TcpListener, StartError> {
    let what = "meeting other clients, which this program was built without".to_owned();
    Err(StartError::Local { what, source: std::io::ErrorKind::Unsupported.into() })
}

impl Engine {
    /// Does nothing; [`listen`] has failed before.
    pub(super) fn meet_peers(
        self: Arc<Self>,
        policy: PeersPolicy,
        _: &Arc<Processes>,
        _: &ServerAddress,
        _: TcpListener,
    ) -> Result<Arc<Engine>, StartError> {
        listen(&policy).map(|_| self)
    }

    /// Would register a hook for lost peers; it is never called.
    pub fn on_peer(&self, _: PeerHook) {}

    /// Always `None`: no peers are met.
    pub fn peers(&self) -> Option<PeersStatus> {
        None
    }

    /// Whether other clients are met.
    pub fn meets_peers(&self) -> bool {
        false
    }

    /// Always `None`: there are no lost peers.
    pub fn go_on_without_lost(&self) -> Option<Vec<DeviceId>> {
        None
    }
}
