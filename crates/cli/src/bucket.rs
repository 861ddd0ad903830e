//! Buckets as targets of releases: their names in arguments, and messages about them.

use crate::reading::args::Sending;
use crate::reading::source::span_of;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::Outcome;
use holdfast_release::publish::bucket::{BucketTarget, SendingOptions};
use holdfast_release::send::{BucketTrust, Progress, Report};
use indicatif::ProgressBar;
use std::path::Path;

/// The prefix of a bucket's address.
const SCHEME: &str = "s3://";

/// The address of a bucket, if one was given in place of a directory.
pub fn address(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.starts_with(SCHEME))
}

/// Opens a prefix of a bucket by its address. No request is sent yet.
///
/// # Errors
/// The text is not an address, or another process of this machine works on the prefix.
pub fn open(address: &str, directories: &Directories) -> Outcome<BucketTarget> {
    let (folder, trust) = (directories.cache_base()?.join("publish"), directories.releases_base()?);
    make_private(&folder)?;
    make_private(&trust)?;
    Ok(BucketTarget::open(address, &folder, trust)?)
}

/// The settings for sending to a bucket over so many connections.
///
/// # Errors
/// A duration is not valid.
pub fn sending(arguments: &Sending, connections: usize) -> Outcome<SendingOptions> {
    let window_s = match arguments.prune_after.as_str() {
        "0" => 0,
        span => span_of("--prune-after", span)?,
    };
    let belief = if arguments.recheck { BucketTrust::Content } else { BucketTrust::Listing };
    Ok(SendingOptions { window_s, belief, connections })
}

/// Displays the progress of sending.
pub fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.bytes.1);
    bar.set_position(progress.bytes.0);
    bar.set_message(if progress.is_away { "the bucket is away; asking again" } else { "sending" });
}

/// What was sent, in words.
pub fn describe(report: &Report) -> String {
    let mut text = String::new();
    for note in &report.notes {
        text += &format!("Note: {note}\n");
    }
    if !report.mended.is_empty() {
        text += &format!(
            "Note: the bucket did not have these as they should be, and has them again: {}\n",
            report.mended.join(", ")
        );
    }
    text + &format!(
        "{} files sent ({} bytes), {} were there; {} removed{}; {} requests.",
        report.files_sent,
        report.bytes_sent,
        report.files_there,
        report.files_removed,
        match report.files_unneeded {
            0 => String::new(),
            count => format!(", {count} stay for a while for those who still read them"),
        },
        report.requests,
    )
}
