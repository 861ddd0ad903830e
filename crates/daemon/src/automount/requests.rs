//! The requests to an automounter, and its replies.

use super::AutomountStatus;
use crate::control::requests;
use serde::{Deserialize, Serialize};

/// Report the automounter's status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status;

/// Unmount everything that is mounted by name, and then the directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unmount {
    /// Whether to unmount although programs use it.
    pub lazy: bool,
}

requests! {
    /// What an automounter can be asked.
    AutomountRequest {
        Status => AutomountStatus, QUICK;
        Unmount => ();
    }
}
