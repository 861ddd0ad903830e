//! Connections over QUIC. Each stream is treated like a connection, so that all rules and limits of TCP
//! connections apply to it. Two things differ: addresses may be forged before the handshake, and a QUIC
//! connection exists before its first stream and after its last.

use super::limiter::{ConnectionSlot, displaced};
use super::peer::Carrier;
use super::{Service, Serving};
use crate::handshake_error::HandshakeError;
use crate::quic;
use holdfast_crypto::{PublicKey, SigningKey};
use quinn::{Connection, Endpoint, Incoming};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a connection without streams may still deliver its last bytes.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(super) fn listen(socket: std::net::UdpSocket, key: &SigningKey) -> std::io::Result<Endpoint> {
    socket.set_nonblocking(true)?;
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new(quinn::EndpointConfig::default(), Some(quic::server_config(key)), socket, runtime)
}

/// Accepts until the server closes; the connections end with it.
pub(super) async fn accept<S: Service>(endpoint: Endpoint, serving: Arc<Serving<S>>) {
    let mut closed = serving.closed.clone();
    let mut connections = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            _ = closed.wait_for(|closed| *closed) => break,
            Some(_) = connections.join_next() => continue,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { break };
        // An honest client returns with the proof at once.
        if !incoming.remote_address_validated() && serving.admission.is_pressed() && incoming.may_retry() {
            let _ = incoming.retry();
            continue;
        }
        let address = incoming.remote_address();
        match serving.admission.enter(address) {
            Some((id, slot)) => {
                let serving = serving.clone();
                connections.spawn(async move { run(incoming, address, id, slot, serving).await });
            }
            None => incoming.refuse(),
        }
    }
    endpoint.set_server_config(None);
    while connections.join_next().await.is_some() {}
}

/// One connection: handshake, then a conversation a stream, and the end with the last of them.
async fn run<S: Service>(
    incoming: Incoming,
    address: SocketAddr,
    id: u64,
    slot: ConnectionSlot,
    serving: Arc<Serving<S>>,
) {
    let mut closed = serving.closed.clone();
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(serving.limits.greeting_patience, handshake(incoming)) => shaken,
        () = displaced(&slot) => return,
        _ = closed.wait_for(|closed| *closed) => return,
    };
    let (connection, peer) = match shaken.unwrap_or(Err(HandshakeError::Slow)) {
        Ok(shaken) => shaken,
        Err(why) => {
            if let Some(suppressed) = serving.drops.allow() {
                tracing::info!(connection = id, %address, %why, suppressed, "dropped before it was greeted");
            }
            return;
        }
    };
    slot.note_proved_key();
    let mut first = Some((id, slot));
    let mut streams = JoinSet::new();
    let end = tokio::time::Instant::now() + serving.limits.greeting_patience;
    loop {
        let stream = tokio::select! {
            Some(_) = streams.join_next() => if streams.is_empty() { break } else { continue },
            _ = closed.wait_for(|closed| *closed) => break,
            () = tokio::time::sleep_until(end), if first.is_some() => break,
            stream = connection.accept_bi() => stream,
        };
        let Ok((send, receive)) = stream else { break };
        // Each stream takes a slot; a stream without one is dropped, which closes it.
        let Some((id, slot)) = first.take().or_else(|| serving.admission.enter(address)) else { continue };
        let (pipe, serving) = (quic::pipe(&connection, send, receive), serving.clone());
        streams.spawn(serving.run(Carrier::Quic(pipe, peer), address, id, slot));
    }
    while streams.join_next().await.is_some() {}
    let _ = tokio::time::timeout(LAST_WORDS, connection.closed()).await;
    connection.close(0u32.into(), b"");
}

async fn handshake(incoming: Incoming) -> Result<(Connection, PublicKey), HandshakeError> {
    let connection = incoming.await?;
    let peer = quic::peer_key(&connection)?;
    Ok((connection, peer))
}
