//! `holdfast evidence peers`: the devices that a mount meets directly.

pub mod args;

use crate::output::{Format, clean, table};
use crate::serving::{Process, processes};
use args::{Peers, PeersCommand};
use holdfast_client::{PeerPresence, PeerStatus, PeersStatus, WhenPeerLost};
use holdfast_daemon::mounts::requests::{GiveUpLostPeers, Status};
use holdfast_daemon::mounts::status::MountDaemonStatus;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::path::Path;

/// `holdfast evidence peers`
pub fn run(arguments: &Peers, directories: &Directories, format: Format) -> Outcome {
    match (&arguments.command, &arguments.which) {
        (Some(PeersCommand::GoOn(which)), _) => go_on(&which.which, directories, format),
        (None, Some(which)) => show(which, directories, format),
        (None, None) => Err(Failure::new(Exit::Usage, "which mount is not said")),
    }
}

fn process(which: &Path, directories: &Directories) -> Outcome<Process> {
    Ok(processes(Some(&which.to_string_lossy()), directories)?.remove(0))
}

fn show(which: &Path, directories: &Directories, format: Format) -> Outcome {
    let status = process(which, directories)?.call(&Status)?;
    let peers = of(&status).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{}: this mount does not meet peers", which.display()))
            .hint("mount it with --peers")
    })?;
    format.print(&peers, |peers| clean(&words(peers)))
}

/// Devices that are not waited for any more.
#[derive(Serialize)]
struct GivenUp {
    devices: Vec<u32>,
}

fn go_on(which: &Path, directories: &Directories, format: Format) -> Outcome {
    let done = GivenUp { devices: process(which, directories)?.call(&GiveUpLostPeers)? };
    format.print(&done, |done| match &done.devices[..] {
        [] => "no peer is lost".to_owned(),
        devices => {
            let names: Vec<String> = devices.iter().map(|device| format!("device {device}")).collect();
            format!("going on without {}, until met again", names.join(", "))
        }
    })
}

/// The status of a process's peers; `None` if it meets none.
pub fn of(status: &MountDaemonStatus) -> Option<PeersStatus> {
    serde_json::from_value(status.engine.get("peers")?.clone()).ok()
}

/// One line: `2 met, 1 lost (bob's laptop)`.
pub fn summary(peers: &PeersStatus) -> String {
    let count = |standing| peers.peers.iter().filter(|peer| peer.standing == standing).count();
    let mut parts = vec![format!("{} met", count(PeerPresence::Met))];
    let lost = peers.peers.iter().filter(|peer| peer.standing == PeerPresence::Lost);
    let lost: Vec<String> = lost.map(name).collect();
    if !lost.is_empty() {
        parts.push(format!("{} LOST ({})", lost.len(), lost.join(", ")));
    }
    if count(PeerPresence::LoggedIn) > 0 {
        parts.push(format!("{} logged in and not met", count(PeerPresence::LoggedIn)));
    }
    parts.extend(peers.trouble.clone());
    parts.join(", ")
}

fn name(peer: &PeerStatus) -> String {
    match peer.user == peer.name {
        true => peer.user.clone(),
        false => format!("{}'s {}", peer.user, peer.name),
    }
}

fn words(peers: &PeersStatus) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![["DEVICE", "USER", "STATE", "WHERE", "LAST MET", "AGREED ON"].map(str::to_owned).to_vec()];
    for peer in &peers.peers {
        let time = |at_ns: Option<i64>| at_ns.map_or("never".to_owned(), moment);
        let agreed = match peer.agreed_operations {
            Some(operations) => format!("{operations} operations, {}", time(peer.agreed_ns)),
            None => "nothing yet".to_owned(),
        };
        let standing = match peer.standing {
            PeerPresence::LoggedIn => "logged in",
            PeerPresence::Met => "met",
            PeerPresence::Lost => "LOST",
            PeerPresence::LoggedOut => "logged out",
        };
        rows.push(vec![
            format!("{} ({})", peer.device, peer.name),
            peer.user.clone(),
            standing.to_owned(),
            peer.addresses.join(", "),
            time(peer.heard_ns),
            agreed,
        ]);
    }
    let mut text = match peers.peers.is_empty() {
        true => "no peer is known yet".to_owned(),
        false => table(&rows),
    };
    for peer in &peers.peers {
        if let Some(trouble) = &peer.trouble {
            text.push_str(&format!("\ndevice {}: {trouble}", peer.device));
        }
    }
    let then = match peers.when_lost {
        WhenPeerLost::Warn => "a warning",
        WhenPeerLost::Pause => "everything waits",
    };
    text.push_str(&format!(
        "\n\nlistening at {}; lost after {} s of silence: {then}",
        peers.listens.join(", "),
        peers.timeout_s
    ));
    if let Some(trouble) = &peers.trouble {
        text.push_str(&format!("\n{trouble}"));
    }
    text
}
