//! The server in two processes: `front`, a sandboxed component that faces the network, and this one, which holds the
//! data directory and the server's key ([`holdfast_rpc::apart`] says what either believes of the other).
//!
//! The front end holds: the listening sockets, a netlink socket that tells how TCP connections fare, the channel to the desk
//! ([`grammar`]), and a stream for each connection that was introduced. When it ends, however it ends, its connections are
//! lost and nothing else: another is started with the same listeners, whose queues the kernel has kept, clients connect anew,
//! and what was acknowledged was on the disk before.

mod front;
pub mod grammar;
mod words;

pub use front::main as front;

use crate::error::RunError;
use front::{COUNTERS, TCP, UDP};
use grammar::{Ask, BOUNDS, DESK, Orders, Told, WORDS_BYTES_MAX};
use holdfast_components::{
    ChannelPlan, ComponentPlan, End, Permission, Plan, Ports, Profile, Program, Refusal, Reply, Request,
    Restart, Supervisor,
};
use holdfast_crypto::PublicKey;
use holdfast_rpc::apart::{Desk, Reception, lend_counters};
use holdfast_rpc::{Limits, Throttle};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the component, in the plan and in the table of programs.
pub const FRONT: &str = "server-front";

/// What is to run beside a server.
///
/// # Errors
/// The system's, if the listeners cannot be handed out.
pub(crate) fn plan(
    tcp: &TcpListener,
    udp: Option<&UdpSocket>,
    key: PublicKey,
    limits: &Limits,
) -> std::io::Result<Plan> {
    let counters = lend_counters(tcp, udp)?;
    let mut files = vec![(TCP.to_owned(), OwnedFd::from(tcp.try_clone()?))];
    if let Some(udp) = udp {
        files.push((UDP.to_owned(), udp.try_clone()?.into()));
    }
    files.extend(counters.map(|counters| (COUNTERS.to_owned(), counters)));
    // Two descriptors a connection, and a third while it is being introduced.
    let descriptors = u32::try_from(limits.connections_max * 3 + 64).unwrap_or(u32::MAX);
    let profile = Profile {
        memory_bytes_max: 1 << 30,
        files_max: descriptors.min(open_files_max()),
        ..Profile::with_permissions(&[Permission::Network, Permission::Reactor, Permission::Datagrams])
    };
    let component = ComponentPlan {
        configuration: borsh::to_vec(&Orders::new(key.0, limits)).expect("a vector takes everything"),
        files,
        guards: [
            "the server signs handshakes with its own new random bytes and its own key, and nothing else",
            "a connection is a device's if the device's signature covers the handshake that was signed here",
            "what comes over a connection's stream is framed, bounded and decoded here as from any stranger",
        ]
        .map(str::to_owned)
        .into(),
        // Strangers may find a way to crash it; then it must come back each time.
        restart: Restart {
            times_max: u32::MAX,
            window: Duration::from_secs(30),
            wait: Duration::from_millis(5),
        },
        ..ComponentPlan::new(FRONT, profile)
    };
    let channel = ChannelPlan { bounds: BOUNDS, ..ChannelPlan::new(End::of(FRONT, DESK), End::host(DESK)) };
    Ok(Plan { name: "server".to_owned(), components: vec![component], channels: vec![channel] })
}

/// What this process could open; a child cannot be given more.
fn open_files_max() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.maximum.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX)
}

/// Processes and the desk, while a server runs.
pub(crate) struct Apart {
    supervisor: Option<Supervisor>,
    desk: Option<JoinHandle<()>>,
}

impl Apart {
    /// Starts the front end and answers it. When this returns, it is in its sandbox.
    pub(crate) fn start(program: Program, plan: Plan, reception: Reception) -> Result<Apart, RunError> {
        let supervisor = Supervisor::start(program, plan, |_| {}).map_err(RunError::Sandbox)?;
        let ports = supervisor.ports().clone();
        let desk =
            std::thread::Builder::new().name("desk".to_owned()).spawn(move || attend(&ports, &reception))?;
        Ok(Apart { supervisor: Some(supervisor), desk: Some(desk) })
    }

    /// The processes.
    pub(crate) fn supervisor(&self) -> &Supervisor {
        self.supervisor.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.stop();
        }
        if let Some(desk) = self.desk.take() {
            let _ = desk.join();
        }
    }
}

/// Answers front ends until the end.
fn attend(ports: &Arc<Ports>, reception: &Reception) {
    let throttle = Throttle::default();
    if let Err(error) = ports.serve(|request| answer(request, reception, &throttle)) {
        tracing::error!(%error, "the front end is not answered any more");
    }
}

fn answer(mut request: Request, reception: &Reception, throttle: &Throttle) -> Reply {
    let question = match request.question::<Ask>() {
        Ok(question) => question,
        Err(refusal) => return Reply::refuse(refusal),
    };
    let file = request.files.pop();
    let answered = match question {
        _ if file.is_some() && !matches!(question, Ask::Introduce { .. }) => {
            return Reply::refuse(Refusal::Malformed);
        }
        Ask::Nonce => reception.nonce().map(|nonce| Reply::of(&Told::Nonce(nonce))),
        Ask::Sign { transcript } => {
            reception.sign(transcript).map(|signature| Reply::of(&Told::Signature(signature.0)))
        }
        Ask::Introduce { transcript, signature, address } => {
            let introduced = reception.introduce(transcript, signature, address.into(), file);
            introduced.map(|stream| Reply { files: vec![stream.into()], ..Reply::of(&Told::Introduced) })
        }
        Ask::Words { warning, text } => {
            heed(warning, &text, throttle);
            Ok(Reply::of(&Told::Heard))
        }
    };
    answered.unwrap_or_else(|refused| {
        if let Some(suppressed) = throttle.allow() {
            tracing::warn!(why = refused.0, suppressed, "the front end was refused");
        }
        Reply::refuse(Refusal::Failed(refused.0))
    })
}

/// Writes a line down: cut, without control characters, and not too often.
fn heed(warning: bool, text: &str, throttle: &Throttle) {
    if let Some(suppressed) = throttle.allow() {
        let text: String =
            text.chars().take(WORDS_BYTES_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        match warning {
            true => tracing::warn!(suppressed, "front end: {text}"),
            false => tracing::info!(suppressed, "front end: {text}"),
        }
    }
}
