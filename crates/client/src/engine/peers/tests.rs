//! Tests of records as text, and of the addresses that are remembered.

use super::records::Record;
use super::*;

/// Proves: a record that was written can be read and fits into an inode, and no other text is accepted as a
/// record.
#[test]
fn records_as_text() {
    let addresses: Vec<SocketAddr> = vec![
        "192.0.2.7:41234".parse().expect("an address"),
        "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535".parse().expect("an address"),
        "[2001:db8:1234:5678:9abc:def0:1234:5679]:65535".parse().expect("an address"),
    ];
    for is_in in [Some(addresses.clone()), Some(Vec::new()), None] {
        let record = Record { run: u64::MAX, at_s: 1_790_000_000, is_in };
        let text = record.to_text();
        assert!(text.len() <= holdfast_content::INLINE_BYTES_MAX, "{text}");
        assert_eq!(Record::parse(text.as_bytes()), Some(record));
        for cut in 0..text.len() {
            assert_eq!(Record::parse(&text.as_bytes()[..cut]), None, "{cut}");
        }
    }
    let text = "holdfast login 1\nrun 7\nat 1\nin 192.0.2.7:1\n";
    assert!(Record::parse(text.as_bytes()).is_some());
    for bad in [
        text.replace("login 1", "login 2"),
        text.replace("in 192", "on 192"),
        text.replace(":1\n", "\n"),
        format!("{text}more\n"),
        text.replace("run 7", "run x"),
        text.replace("in ", "in 192.0.2.1:1 192.0.2.2:1 192.0.2.3:1 "),
        text.replace("in 192.0.2.7:1", "out 192.0.2.7:1"),
    ] {
        assert_eq!(Record::parse(bad.as_bytes()), None, "{bad}");
    }
}

/// Proves: however many addresses are claimed for a device, only a few are remembered, the newest.
#[test]
fn few_addresses_are_kept() {
    let mut known = PeerState::default();
    let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
    known.recorded = vec![address(1)];
    for port in 1..100 {
        known.note_address(address(port));
        known.note_address(address(port));
    }
    assert_eq!(known.addresses(), [address(99), address(98), address(97), address(1)]);
}
