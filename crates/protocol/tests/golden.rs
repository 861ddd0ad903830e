//! The signed formats do not change unnoticed: the examples in `docs/internals/protocol.md` are made here, byte for byte.

use holdfast_content::{
    Algorithm, Device, DeviceId, GroupId, Handle, InodeKind, Membership, PrincipalId, Reference, User, UserId,
};
use holdfast_crypto::{Digest, PublicKey, SigningKey, encode};
use holdfast_protocol::certificate::{Certificate, Delta, Path};
use holdfast_protocol::epoch::Declaration;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::leases::{LeaseGrant, LeaseRequest, Recall, Scope, Withheld};
use holdfast_protocol::log_tree::{Frontier, leaf};
use holdfast_protocol::message::{PROTOCOL_VERSIONS, Receipt, ServerKeys, ViewReply};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::signer::Signer;
use holdfast_protocol::structure::{Forecast, HandleVersion, LogHead, Outcome, Record, Structure, View};
use holdfast_protocol::vector::{VersionVector, VoidSet};
use holdfast_protocol::warrant::Change;
use std::fmt::Write;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("memory");
        text
    })
}

/// Signed bytes in lines of 32, their digest, and the signature by the key with seed 01 01 01...
fn describe<T: Signable + Clone>(value: &T) -> String {
    let mut text = String::new();
    for line in value.signed_bytes().chunks(32) {
        writeln!(text, "signs     {}", hex(line)).expect("memory");
    }
    let signature = Signed::new(value.clone(), &SigningKey::from_seed(&[1; 32])).signature;
    writeln!(text, "digest    {}", value.digest()).expect("memory");
    for line in signature.0.chunks(32) {
        writeln!(text, "signature {}", hex(line)).expect("memory");
    }
    text
}

fn reference(byte: u8) -> Reference {
    Reference { algorithm: Algorithm::Blake3, address: Digest([byte; 32]), length: 100, key: None }
}

fn certificate() -> Certificate {
    let group = PrincipalId::Group(GroupId(2));
    Certificate {
        file_system: Digest([0xf5; 32]),
        device: DeviceId(3),
        number: 7,
        previous: Digest([0x66; 32]),
        path: Path::Slow,
        voids: VoidSet([(2, 3), (6, 6)].into()),
        ineffective: VoidSet([(4, 4)].into()),
        time_ns: 1_700_000_000_000_000_000,
        deltas: vec![
            Delta::SetInode {
                number: 9,
                file: Handle { principal: PrincipalId::User(UserId(1)), number: 5 },
                inode: Some(Digest([0x11; 32])),
            },
            Delta::SetTable { file: Handle { principal: group, number: 4 }, number: Some(8) },
            Delta::Preallocate { principal: group, first: 100, count: 64, device_first: 200 },
            Delta::SetEntry {
                directory: Handle { principal: group, number: 4 },
                name: b"notes".to_vec(),
                entry: Some((Handle { principal: group, number: 100 }, InodeKind::File)),
                time_ns: 1,
            },
            Delta::SetMembers { reference: reference(0x22) },
        ],
    }
}

fn forecast() -> Forecast {
    let versions = [
        (PrincipalId::Members, 2),
        (PrincipalId::Device(DeviceId(0)), 4),
        (PrincipalId::Device(DeviceId(3)), 7),
        (PrincipalId::Group(GroupId(2)), 5),
    ];
    Forecast {
        file_system: Digest([0xf5; 32]),
        device: DeviceId(3),
        vector: VersionVector::from(std::collections::BTreeMap::from(versions)),
        pending: vec![Record { device: DeviceId(4), number: 1, forecast: Digest([0x44; 32]) }],
        aborted: vec![Record { device: DeviceId(3), number: 6, forecast: Digest([0x33; 32]) }],
        voids: VoidSet([(2, 3), (6, 6)].into()),
        ineffective: VoidSet([(4, 4)].into()),
        certificate: certificate().digest(),
        log: LogHead { size: 12, root: Digest([0x55; 32]) },
    }
}

fn structure() -> Structure {
    let handles = [
        (PrincipalId::Device(DeviceId(3)), HandleVersion { version: 7, reference: reference(0x77) }),
        (PrincipalId::Group(GroupId(2)), HandleVersion { version: 5, reference: reference(0x78) }),
    ];
    Structure { forecast: forecast(), outcome: Outcome::Done, handles: handles.into() }
}

fn golden() -> String {
    let structure = structure();
    let receipt = Receipt {
        file_system: Digest([0xf5; 32]),
        device: DeviceId(3),
        number: 7,
        structure: structure.digest(),
    };
    let keys = ServerKeys {
        file_system: Digest([0xf5; 32]),
        sequence: 2,
        keys: vec![PublicKey([0x88; 32]), PublicKey([0x99; 32])],
    };
    let mut next = Membership::founding("team", "root", PublicKey([0x99; 32]));
    next.users.insert(UserId(1), User { name: "ann".to_owned(), removed: false });
    let device = Device {
        user: UserId(1),
        name: "laptop".to_owned(),
        key: PublicKey([0x88; 32]),
        removed_at: Some(1),
    };
    next.devices.insert(DeviceId(1), device);
    let present = HandleVersion { version: 4, reference: reference(0x22) };
    let warrant = Change::new(Digest([0xf5; 32]), &present, &next);
    let restore = Declaration {
        file_system: Digest([0xf5; 32]),
        epoch: Digest([0xe1; 32]),
        size: 12,
        root: Digest([0x33; 32]),
        base: Digest([0xe0; 32]),
        declared_ns: 9,
        nonce: [0x44; 16],
    };
    let mut frontier = Frontier::default();
    for byte in 0..5 {
        frontier.append(leaf(Digest([byte; 32]), Digest([byte + 100; 32])));
    }
    let mut text = String::new();
    writeln!(text, "certificate\n{}", describe(&certificate())).expect("memory");
    writeln!(text, "forecast\ndigest    {}\n", forecast().digest()).expect("memory");
    writeln!(text, "structure\n{}", describe(&structure)).expect("memory");
    writeln!(text, "receipt\n{}", describe(&receipt)).expect("memory");
    writeln!(text, "server keys\n{}", describe(&keys)).expect("memory");
    writeln!(text, "warrant\n{}", describe(&warrant)).expect("memory");
    writeln!(text, "restore\n{}", describe(&restore)).expect("memory");
    writeln!(text, "void set {{2..3, 6}}\nencoded   {}", hex(&encode(&forecast().voids))).expect("memory");
    writeln!(text, "root      {}\n", forecast().voids.root()).expect("memory");
    writeln!(text, "log of five leaves\nroot      {}", frontier.head().root).expect("memory");
    text
}

/// The messages about leases in version 4 of the protocol.
fn leases() -> String {
    let group = PrincipalId::Group(GroupId(2));
    let file = Handle { principal: group, number: 100 };
    let scopes = vec![Scope::Principal(PrincipalId::User(UserId(1))), Scope::File(file)];
    let wish = LeaseRequest {
        run: 7,
        scopes: scopes.clone(),
        reads: vec![Handle { number: 4, ..file }],
        edits: vec![Handle { number: 5, ..file }],
        also: vec![Handle { number: 6, ..file }],
        reads_everything: false,
        exclusive: true,
    };
    let grant = LeaseGrant {
        epoch: 5,
        recalls: 2,
        term_ms: 45_000,
        scopes: scopes.clone(),
        exclusive_ms: 10_000,
        delegation: false,
        exclusive: vec![Scope::File(file)],
        withheld: Withheld { everything: false, ranges: vec![(group, 200, 263)] },
    };
    let recall = Recall {
        epoch: 5,
        number: 3,
        scopes: vec![scopes[0]],
        exclusive: vec![Scope::File(file)],
        everything: false,
        delegation: false,
    };
    let mut text = format!("protocol  {PROTOCOL_VERSIONS:?}\n");
    for (name, bytes) in [("wish", encode(&wish)), ("grant", encode(&grant)), ("recall", encode(&recall))] {
        bytes.chunks(32).for_each(|line| writeln!(text, "{name:<9} {}", hex(line)).expect("memory"));
    }
    text
}

/// Proves: requests and answers about leases are encoded as the documentation says.
#[test]
fn leases_on_the_wire() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/protocol.md");
    let document = std::fs::read_to_string(path).expect("docs/internals/protocol.md");
    let leases = leases();
    assert!(document.contains(&leases), "docs/internals/protocol.md should hold:\n{leases}");
}

/// Proves: a view is shown by its difference as the documentation says.
#[test]
fn a_difference_on_the_wire() {
    let key = SigningKey::from_seed(&[1; 32]);
    let mut other = structure();
    other.forecast.device = DeviceId(4);
    other.forecast.log.size = 11;
    let slots = [(DeviceId(3), structure()), (DeviceId(4), other)];
    let slots = slots.map(|(device, structure)| (device, Signed::new(structure, &key)));
    let log = LogHead { size: 13, root: Digest([0x66; 32]) };
    let view = View { slots: slots.into(), pending: Vec::new(), log };
    let (peaks, consistency) = (vec![Digest([0x67; 32])], vec![Digest([0x68; 32])]);
    let reply = ViewReply { view, peaks, consistency, blocks: Vec::new() };
    let difference = Difference::of(&reply, 12, |device| device == DeviceId(4));
    let lines: String = encode(&difference).chunks(32).map(|line| hex(line) + "\n").collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/protocol.md");
    let document = std::fs::read_to_string(path).expect("docs/internals/protocol.md");
    assert!(document.contains(&lines), "docs/internals/protocol.md should hold:\n{lines}");
}

#[test]
fn the_documented_examples_are_true() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/protocol.md");
    let document = std::fs::read_to_string(path).expect("docs/internals/protocol.md");
    let golden = golden();
    assert!(document.contains(&golden), "docs/internals/protocol.md should hold:\n{golden}");
}

/// The change of a device's state that a number given up makes: the example in `docs/internals/format.md`.
#[test]
fn the_change_of_a_state() {
    let root = SigningKey::from_seed(&[1; 32]).public();
    let before = Signer::new(Floor::new(root, DeviceId(3)));
    let mut after = before.clone();
    after.skip().expect("idle");
    let change = after.change_since(&before);
    assert_eq!(before.changed(&change).expect("its own"), after);
    let mut text = String::new();
    for line in change.chunks(32) {
        writeln!(text, "change  {}", hex(line)).expect("memory");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/format.md");
    let document = std::fs::read_to_string(path).expect("docs/internals/format.md");
    assert!(document.contains(&text), "docs/internals/format.md should hold:\n{text}");
}
