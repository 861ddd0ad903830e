//! In place of `ublk.rs` in a daemon that was built without the feature `ublk`.

use super::export_report::ExportReport;
use super::served::Served;
use holdfast_failure::{Outcome, built_without};
use holdfast_fuse::mountpoint::UnmountMode;
use std::sync::Arc;

/// A ublk device; there is none.
pub enum Ublk {}

impl Ublk {
    /// Makes none.
    pub fn begin(_: Arc<Served>) -> Outcome<Ublk> {
        Err(built_without("ublk"))
    }

    /// What there is.
    pub fn report(&self) -> ExportReport {
        match *self {}
    }

    /// Takes it away.
    pub fn end(&self, _: UnmountMode) -> Outcome {
        match *self {}
    }
}
