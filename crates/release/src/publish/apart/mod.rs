//! Publishing in two processes: the *walker*, a sandboxed component that walks and parses the tree, and the
//! *publisher*, this process, which has the release directory, the memory of the last publishing and the
//! keys.
//!
//! A tree is full of bytes that others wrote, and the walker's task is to process them: to cut, compress and
//! compose. So it holds only a channel, and files of the tree that are opened for it, one by one, for
//! reading. It is not given the directory or a Landlock rule for it: it would then need system calls that
//! open files, and when started by root, it runs as a user who may not read what only root may. Instead the
//! publisher lists directories and opens files on the walker's behalf, with little code that does not look at
//! content ([`super::local`]).
//!
//! What the walker sends is untrusted ([`Session`]). Requests are bounded and decoded canonically. A block is
//! accepted if its bytes have the digest that names it, and everything it refers to is there. The tree is
//! accepted if its root is there and is a directory's inode. So what is signed is whole, whatever the walker
//! does. The walker does determine which *content* is signed: an attacker who takes it over can choose that,
//! and nothing else of a release. Hints, which are not signed, are accepted unchecked; readers do not trust
//! them.

pub mod grammar;
mod session;
mod walker;

use super::local::Local;
use super::walk_io::WalkResult;
use super::{Options, PublishError};
use crate::index::Index;
use grammar::{BOUNDS, PORT, WalkOptions, bytes_of};
use holdfast_components::{
    Channel, ChannelPlan, ComponentError, ComponentPlan, End, Event, Kind, Main, Patience, Permission, Plan,
    Profile, Program, Restart, Supervisor,
};
use parking_lot::{Condvar, Mutex};
use session::{Session, Step};
use std::sync::Arc;
use std::time::Duration;

/// The name of the component, in the plan and in the table of programs.
pub const WALKER: &str = "publish-walker";
/// The entry for the table of components.
pub const COMPONENTS: &[(&str, Main)] = &[(WALKER, walker::main)];
/// Most threads of a walker: one that walks, the others compress.
const THREADS_MAX: usize = 64;
/// How long to wait, after the channel ended, for the reason.
const REASON_PATIENCE: Duration = Duration::from_secs(5);

fn plan() -> Plan {
    let profile = Profile {
        // Used for files with several names, addresses of blocks, and blocks being compressed.
        memory_bytes_max: 8 << 30,
        files_max: 64,
        threads_max: THREADS_MAX as u32 + 1,
        // It makes no region and writes to no file.
        mapped_bytes_max: 1 << 30,
        region_bytes_max: 0,
        ..Profile::with_permissions(&[Permission::Threads])
    };
    let component = ComponentPlan {
        guards: [
            "files are opened for it one by one, for reading, and only below the tree",
            "a block is taken if it has the digest it is named by and all that it refers to is there",
            "the tree is taken if its root is there; release, number, keys and dates are not its to say",
        ]
        .map(str::to_owned)
        .into(),
        restart: Restart::NEVER,
        ..ComponentPlan::new(WALKER, profile)
    };
    let channel = ChannelPlan { bounds: BOUNDS, ..ChannelPlan::new(End::of(WALKER, PORT), End::host(PORT)) };
    Plan { name: "publish".to_owned(), components: vec![component], channels: vec![channel] }
}

/// Why the walker ended, once it has.
#[derive(Default)]
struct Reason {
    text: Mutex<Option<String>>,
    changed: Condvar,
}

impl Reason {
    fn wait(&self) -> String {
        let mut text = self.text.lock();
        if text.is_none() {
            self.changed.wait_for(&mut text, REASON_PATIENCE);
        }
        session::printable(text.as_deref().unwrap_or("it closed its channel"))
    }
}

/// Walks the tree in a sandboxed process, the walker.
///
/// # Errors
/// [`PublishError`].
pub(super) fn walk(
    options: &Options<'_>,
    local: &Local<'_>,
    index: &Index,
    program: Program,
) -> Result<WalkResult, PublishError> {
    let sandbox = |error: ComponentError| PublishError::Sandbox(error.to_string());
    let reason = Arc::new(Reason::default());
    let reported = Arc::clone(&reason);
    let supervisor = Supervisor::start(program, plan(), move |event| {
        if let Event::Ended { reason, .. } = event {
            *reported.text.lock() = Some(reason.to_owned());
            reported.changed.notify_all();
        }
    })
    .map_err(sandbox)?;
    let terms = WalkOptions {
        source: bytes_of(options.source),
        digest_key: options.digest_key.0,
        opaque: options.rules.opaque().to_vec(),
        newest: options.newest,
        level: options.level,
        remembers: local.has_memory(),
        threads: options.threads.min(THREADS_MAX) as u32,
    };
    let channel = supervisor.ports().channel(PORT).map_err(sandbox)?;
    let outcome = converse(&channel, Session::new(terms, local, index), &reason);
    // The walker is not needed any more.
    let _ = supervisor.kill(WALKER);
    outcome
}

fn converse(
    channel: &Channel,
    mut session: Session<'_, '_>,
    reason: &Reason,
) -> Result<WalkResult, PublishError> {
    let mut buffer = channel.buffer();
    loop {
        let packet = match channel.receive(&mut buffer, Patience::Forever) {
            Ok(packet) => packet,
            Err(ComponentError::Disconnected(_)) => return Err(PublishError::Ended(reason.wait())),
            Err(error) => return Err(PublishError::Misbehaved(error.to_string())),
        };
        if packet.kind != Kind::Request || packet.alias.is_none() || !packet.files.is_empty() {
            return Err(PublishError::Misbehaved("it sent a packet that is no question".to_owned()));
        }
        let number = packet.number;
        match session.take(packet.body) {
            Step::Reply(reply, files) => {
                let files: Vec<_> = files.iter().map(std::os::fd::AsFd::as_fd).collect();
                let body = holdfast_crypto::encode(&reply);
                match channel.send(Kind::Reply, number, 0, &body, &files, Patience::of(REASON_PATIENCE)) {
                    Ok(()) => {}
                    Err(ComponentError::Disconnected(_)) => return Err(PublishError::Ended(reason.wait())),
                    Err(error) => return Err(PublishError::Misbehaved(error.to_string())),
                }
            }
            Step::End(outcome) => return outcome,
        }
    }
}
