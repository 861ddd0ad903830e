//! What an automounter can be asked, and what it replies.

use super::AutomountStatus;
use crate::control::requests;
use serde::{Deserialize, Serialize};

/// Say how things are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status;

/// Unmount all that is mounted by name, and the directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unmount {
    /// Whether programs that use it are left behind.
    pub lazy: bool,
}

requests! {
    /// What an automounter can be asked.
    AutomountRequest {
        Status => AutomountStatus, QUICK;
        Unmount => ();
    }
}
