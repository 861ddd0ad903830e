//! In place of the arguments of `holdfast server convert` in a program that was built without it. The command is refused
//! before they are looked at (`crate::features`).

use clap::Args;
use std::ffi::OsString;

/// `holdfast server convert`
#[derive(Debug, Args)]
pub struct ServerConvert {
    /// Whatever it is called with.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<OsString>,
}
