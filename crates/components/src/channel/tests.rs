//! Packets that no honest end sends.

use super::packet::{self, Patience};
use super::{Bounds, Channel, Kind, Refusal};
use crate::alias::AliasPage;
use crate::error::ComponentError;
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::time::Duration;

struct Ends {
    page: AliasPage,
    raw: std::os::fd::OwnedFd,
    channel: Channel,
}

/// A channel whose other end is a bare socket, with alias 0 valid.
fn ends(bounds: Bounds) -> Ends {
    let page = AliasPage::create().expect("a page");
    page.set(0, &[1; 32]).expect("set");
    let (raw, socket) = packet::pair().expect("sockets");
    let channel = Channel::new("test", socket, &page.reader().expect("a reader"), bounds).expect("a channel");
    Ends { page, raw, channel }
}

fn send(ends: &Ends, bytes: &[u8]) {
    packet::send(ends.raw.as_fd(), &[bytes], &[], Patience::Never).expect("sent");
}

fn header(kind: u8, alias: u16, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(alias.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(number.to_le_bytes());
    bytes
}

fn is_offence<T>(outcome: Result<T, ComponentError>) -> bool {
    matches!(outcome, Err(ComponentError::PeerMisbehaved { .. }))
}

/// The layout of a header, byte for byte.
#[test]
fn header_layout() {
    let ends = ends(Bounds::default());
    ends.channel
        .send(Kind::Refusal, 0x0102_0304_0506_0708, 0x0a0b, b"body", &[], Patience::Never)
        .expect("sent");
    let mut buffer = [0; 64];
    let (bytes, _) = packet::receive(ends.raw.as_fd(), &mut buffer, 0, Patience::Never).expect("received");
    assert_eq!(&buffer[..bytes], b"\x03\x00\x0b\x0a\x00\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01body");
}

/// Packets that a dead or revoked process left in the queue are on nobody's behalf.
#[test]
fn revoked_while_queued() {
    let ends = ends(Bounds::default());
    let mut buffer = ends.channel.buffer();
    send(&ends, &header(1, 0, 5));
    send(&ends, &header(1, 0, 6));
    let first = ends.channel.receive(&mut buffer, Patience::Never).expect("a packet");
    assert_eq!((first.number, first.alias.map(|alias| alias.principal)), (5, Some([1; 32])));
    ends.page.revoke_all();
    assert!(ends.channel.receive(&mut buffer, Patience::Never).expect("a packet").alias.is_none());
}

/// Short packets, unknown kinds, unused bits, bodies and files beyond the limits: each costs its sender that
/// packet, and the next one is delivered.
#[test]
fn offences() {
    let ends = ends(Bounds { body_bytes_max: 100, ..Bounds::default() });
    let mut buffer = ends.channel.buffer();
    let mut reserved = header(1, 0, 1);
    reserved[5] = 1;
    let mut flagged = header(1, 0, 1);
    flagged[1] = 1;
    let large = [header(1, 0, 1), vec![0; 101]].concat();
    for wrong in
        [vec![1], header(1, 0, 1)[..15].to_vec(), header(0, 0, 1), header(4, 0, 1), reserved, flagged, large]
    {
        send(&ends, &wrong);
        assert!(is_offence(ends.channel.receive(&mut buffer, Patience::Never)), "{wrong:?}");
    }
    packet::send(ends.raw.as_fd(), &[&header(1, 0, 1)], &[ends.raw.as_fd()], Patience::Never).expect("sent");
    assert!(is_offence(ends.channel.receive(&mut buffer, Patience::Never)));
    send(&ends, &[header(1, 0, 9), vec![0; 100]].concat());
    assert_eq!(ends.channel.receive(&mut buffer, Patience::Never).expect("a packet").body.len(), 100);
}

/// Files beyond the limit are not even installed in this process.
#[test]
fn surplus_files_are_not_taken() {
    let ends = ends(Bounds { files_max: 1, ..Bounds::default() });
    let mut buffer = ends.channel.buffer();
    let two = [ends.raw.as_fd(), ends.raw.as_fd()];
    packet::send(ends.raw.as_fd(), &[&header(1, 0, 1)], &two, Patience::Never).expect("sent");
    assert!(is_offence(ends.channel.receive(&mut buffer, Patience::Never)));
    packet::send(ends.raw.as_fd(), &[&header(1, 0, 1)], &two[..1], Patience::Never).expect("sent");
    assert_eq!(ends.channel.receive(&mut buffer, Patience::Never).expect("a packet").files.len(), 1);
}

/// Silence ends with the deadline, a closed end at once.
#[test]
fn silence_and_end() {
    let ends = ends(Bounds::default());
    let mut buffer = ends.channel.buffer();
    for patience in
        [Patience::Never, Patience::of(Duration::from_millis(5)), Patience::of(Duration::from_millis(250))]
    {
        let silent = ends.channel.receive(&mut buffer, patience).map(|packet| packet.number);
        assert!(matches!(silent, Err(ComponentError::TimedOut(_))), "{silent:?}");
    }
    drop(ends.raw);
    let gone = ends.channel.receive(&mut buffer, Patience::Forever).map(|packet| packet.number);
    assert!(matches!(gone, Err(ComponentError::Disconnected(_))), "{gone:?}");
    let gone = ends.channel.send(Kind::Request, 1, 0, b"", &[], Patience::Forever);
    assert!(matches!(gone, Err(ComponentError::Disconnected(_))), "{gone:?}");
}

/// Refusals in a peer's words are bounded, both ways.
#[test]
fn refusals_are_bounded() {
    for refusal in
        [Refusal::AliasInvalid, Refusal::Failed("no".to_owned()), Refusal::Code(7), Refusal::NotPermitted]
    {
        assert_eq!(Refusal::decode(&refusal.encode()), refusal);
    }
    let Refusal::Failed(words) = Refusal::decode(&Refusal::Failed("ä".repeat(5000)).encode()) else {
        panic!()
    };
    assert_eq!(words, "ä".repeat(256));
    let long = borsh::to_vec(&Refusal::Failed("a".repeat(5000))).expect("bytes");
    assert_eq!(Refusal::decode(&long), Refusal::Malformed);
}

proptest! {
    /// Any bytes are a packet as the layout says, or an offence.
    #[test]
    fn any_packet(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        let ends = ends(Bounds { body_bytes_max: 128, ..Bounds::default() });
        let mut buffer = ends.channel.buffer();
        send(&ends, &bytes);
        let fits = bytes.len() >= 16 && bytes.len() <= 144;
        let formed = fits && (1..=3).contains(&bytes[0]) && bytes[1] == 0 && bytes[4..8] == [0; 4];
        match ends.channel.receive(&mut buffer, Patience::Never) {
            Ok(packet) => {
                prop_assert!(formed);
                prop_assert_eq!(packet.kind.byte(), bytes[0]);
                prop_assert_eq!(packet.body, &bytes[16..]);
                prop_assert_eq!(packet.alias.is_some(), bytes[2..4] == [0, 0]);
            }
            outcome => prop_assert!(!formed && is_offence(outcome.map(|_| ()))),
        }
    }

    /// Any bytes are a refusal or refused as one.
    #[test]
    fn any_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let refusal = Refusal::decode(&bytes);
        prop_assert!(refusal == Refusal::Malformed || refusal.encode() == bytes);
    }
}
