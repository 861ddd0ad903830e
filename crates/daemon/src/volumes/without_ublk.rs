//! Replaces `ublk.rs` in a build without the feature `ublk`.

use super::export_report::ExportReport;
use super::served::Served;
use holdfast_failure::{Outcome, built_without};
use holdfast_fuse::mountpoint::UnmountMode;
use std::sync::Arc;

/// A ublk device, which does not exist in this build.
pub enum Ublk {}

impl Ublk {
    /// Fails, because the feature is missing.
    pub fn begin(_: Arc<Served>) -> Outcome<Ublk> {
        Err(built_without("ublk"))
    }

    /// A report for people.
    pub fn report(&self) -> ExportReport {
        match *self {}
    }

    /// Removes the device.
    pub fn end(&self, _: UnmountMode) -> Outcome {
        match *self {}
    }
}
