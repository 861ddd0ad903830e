//! Privilege separation: the server in two processes. `front_end` is a sandboxed component that faces the
//! network. This process has the data directory and the server's key. ([`holdfast_rpc::privsep`] says what
//! each of the two accepts from the other.)
//!
//! The front end has the listening sockets, a netlink socket that reads the counters of TCP connections, the
//! channel to the back end ([`messages`]), and a stream for each introduced connection. When it ends, for
//! whatever reason, only its connections are lost. Another front end is started with the same listeners,
//! whose queues are in the kernel, and clients connect again. What was acknowledged was on the disk before.

mod back_end_client;
mod front_end;
mod log;
pub mod messages;

pub use front_end::main as front_end;

use crate::error::RunError;
use front_end::{COUNTERS, TCP, UDP};
use holdfast_components::{
    ChannelPlan, ComponentPlan, End, Permission, Plan, Ports, Profile, Program, Refusal, Reply, Request,
    Restart, Supervisor,
};
use holdfast_crypto::PublicKey;
use holdfast_rpc::privsep::{BackEnd, HandshakeService, prepare_listeners};
use holdfast_rpc::{Limits, Throttle};
use messages::{BACK_END_PORT, BOUNDS, BackEndReply, BackEndRequest, FrontEndSettings, LOG_LINE_BYTES_MAX};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the component, in the plan and in the table of programs.
pub const FRONT_END: &str = "server-front";

/// The plan of the front end's process.
///
/// # Errors
/// The system's, if the listeners cannot be handed out.
pub(crate) fn plan(
    tcp: &TcpListener,
    udp: Option<&UdpSocket>,
    key: PublicKey,
    limits: &Limits,
) -> std::io::Result<Plan> {
    let counters = prepare_listeners(tcp, udp)?;
    let mut files = vec![(TCP.to_owned(), OwnedFd::from(tcp.try_clone()?))];
    if let Some(udp) = udp {
        files.push((UDP.to_owned(), udp.try_clone()?.into()));
    }
    files.extend(counters.map(|counters| (COUNTERS.to_owned(), counters)));
    // Each connection needs two descriptors, and a third while it is introduced.
    let descriptors = u32::try_from(limits.connections_max * 3 + 64).unwrap_or(u32::MAX);
    let profile = Profile {
        memory_bytes_max: 1 << 30,
        files_max: descriptors.min(open_files_max()),
        ..Profile::with_permissions(&[Permission::Network, Permission::Reactor, Permission::Datagrams])
    };
    let component = ComponentPlan {
        configuration: borsh::to_vec(&FrontEndSettings::new(key.0, limits))
            .expect("a vector takes everything"),
        files,
        guards: [
            "the server signs handshakes with its own new random bytes and its own key, and nothing else",
            "a connection is a device's if the device's signature covers the handshake that was signed here",
            "what comes over a connection's stream is framed, bounded and decoded here as from any stranger",
        ]
        .map(str::to_owned)
        .into(),
        // Strangers may find a way to crash the front end, so it is restarted each time.
        restart: Restart {
            times_max: u32::MAX,
            window: Duration::from_secs(30),
            wait: Duration::from_millis(5),
        },
        ..ComponentPlan::new(FRONT_END, profile)
    };
    let channel = ChannelPlan {
        bounds: BOUNDS,
        ..ChannelPlan::new(End::of(FRONT_END, BACK_END_PORT), End::host(BACK_END_PORT))
    };
    Ok(Plan { name: "server".to_owned(), components: vec![component], channels: vec![channel] })
}

/// The most files that this process can open. A child process cannot open more.
fn open_files_max() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.maximum.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX)
}

/// The front end's process, and the thread that answers its requests, while a server runs.
pub(crate) struct FrontEndProcess {
    supervisor: Option<Supervisor>,
    back_end: Option<JoinHandle<()>>,
}

impl FrontEndProcess {
    /// Starts the front end, and answers its requests. When this returns, it is in its sandbox.
    pub(crate) fn start(
        program: Program,
        plan: Plan,
        handshakes: HandshakeService,
    ) -> Result<FrontEndProcess, RunError> {
        let supervisor = Supervisor::start(program, plan, |_| {}).map_err(RunError::Sandbox)?;
        let ports = supervisor.ports().clone();
        let back_end = std::thread::Builder::new()
            .name("back-end".to_owned())
            .spawn(move || serve_requests(&ports, &handshakes))?;
        Ok(FrontEndProcess { supervisor: Some(supervisor), back_end: Some(back_end) })
    }

    /// The supervisor of the front end's process.
    pub(crate) fn supervisor(&self) -> &Supervisor {
        self.supervisor.as_ref().expect("there until it is dropped")
    }
}

impl Drop for FrontEndProcess {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.stop();
        }
        if let Some(back_end) = self.back_end.take() {
            let _ = back_end.join();
        }
    }
}

/// Answers the requests of front ends until the supervisor stops.
fn serve_requests(ports: &Arc<Ports>, handshakes: &HandshakeService) {
    let throttle = Throttle::default();
    if let Err(error) = ports.serve(|request| answer(request, handshakes, &throttle)) {
        tracing::error!(%error, "the front end is not answered any more");
    }
}

fn answer(mut request: Request, handshakes: &HandshakeService, throttle: &Throttle) -> Reply {
    let question = match request.question::<BackEndRequest>() {
        Ok(question) => question,
        Err(refusal) => return Reply::refuse(refusal),
    };
    let file = request.files.pop();
    let answered = match question {
        _ if file.is_some() && !matches!(question, BackEndRequest::Introduce { .. }) => {
            return Reply::refuse(Refusal::Malformed);
        }
        BackEndRequest::Nonce => handshakes.nonce().map(|nonce| Reply::of(&BackEndReply::Nonce(nonce))),
        BackEndRequest::Sign { transcript } => {
            handshakes.sign(transcript).map(|signature| Reply::of(&BackEndReply::Signature(signature.0)))
        }
        BackEndRequest::Introduce { transcript, signature, address } => {
            let introduced = handshakes.introduce(transcript, signature, address.into(), file);
            introduced
                .map(|stream| Reply { files: vec![stream.into()], ..Reply::of(&BackEndReply::Introduced) })
        }
        BackEndRequest::Log { warning, text } => {
            log_line(warning, &text, throttle);
            Ok(Reply::of(&BackEndReply::Logged))
        }
    };
    answered.unwrap_or_else(|refused| {
        if let Some(suppressed) = throttle.allow() {
            tracing::warn!(why = refused.0, suppressed, "the front end was refused");
        }
        Reply::refuse(Refusal::Failed(refused.0))
    })
}

/// Logs a line of the front end: cut, without control characters, and not too often.
fn log_line(warning: bool, text: &str, throttle: &Throttle) {
    if let Some(suppressed) = throttle.allow() {
        let text: String =
            text.chars().take(LOG_LINE_BYTES_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        match warning {
            true => tracing::warn!(suppressed, "front end: {text}"),
            false => tracing::info!(suppressed, "front end: {text}"),
        }
    }
}
