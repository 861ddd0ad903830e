//! Simulators of the order of operations (SUNDR 3.4).

pub mod chaos;
pub mod client;
pub mod honest;
pub mod ledger;
pub mod liar;
pub mod server;
pub mod tables;

use holdfast_content::{
    BlockSink, Device, DeviceId, Group, GroupId, Membership, MemoryBlocks, PrincipalId, User, UserId,
};
use holdfast_crypto::{DigestKey, SigningKey};
use holdfast_protocol::certificate::Delta;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{Request, ServerKeys};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, Signer, Tables};

/// The group that everybody is in.
pub const GROUP: PrincipalId = PrincipalId::Group(GroupId(1));

/// The key of a device.
pub fn device_key(device: DeviceId) -> SigningKey {
    SigningKey::from_seed(&[device.0 as u8 + 1; 32])
}

/// The server's key.
pub fn server_key() -> SigningKey {
    SigningKey::from_seed(&[0xff; 32])
}

/// The superuser and `users` people with a device each, all in one group: the first by themselves, the others by a group
/// within it.
pub fn membership(users: u32) -> Membership {
    let mut membership = Membership::founding("simulated", "root", device_key(DeviceId(0)).public());
    let group = |name: &str, members: &[u32], groups: &[u32]| Group {
        name: name.to_owned(),
        members: members.iter().copied().map(UserId).collect(),
        former: Default::default(),
        removed: false,
        groups: groups.iter().copied().map(GroupId).collect(),
    };
    let people: Vec<u32> = (1..=users).collect();
    let (first, others) = people.split_at(people.len().min(1));
    membership.groups.insert(GroupId(1), group("everyone", first, &[2]));
    membership.groups.insert(GroupId(2), group("others", others, &[]));
    for id in 1..=users {
        let name = format!("user{id}");
        membership.users.insert(UserId(id), User { name: name.clone(), removed: false });
        let key = device_key(DeviceId(id)).public();
        membership.devices.insert(DeviceId(id), Device { user: UserId(id), name, key, removed_at: None });
    }
    membership
}

/// The list of server keys, signed by the superuser.
pub fn server_keys() -> Signed<ServerKeys> {
    let superuser = device_key(DeviceId(0));
    let keys = ServerKeys {
        file_system: superuser.public().file_system_id(),
        sequence: 1,
        keys: vec![server_key().public()],
    };
    Signed::new(keys, &superuser)
}

/// The signer of a device that knows the server's keys and nothing else.
pub fn new_signer(device: DeviceId) -> Signer {
    let mut signer = Signer::new(Floor::new(device_key(DeviceId(0)).public(), device));
    signer.step(&device_key(device), Event::ServerKeys(server_keys())).expect("idle");
    signer
}

/// The superuser's signer with its founding operation sent, and that operation's request.
pub fn found(blocks: &MemoryBlocks, users: u32) -> (Signer, Membership, Request) {
    let membership = membership(users);
    let mut sink = blocks;
    let block = membership.to_block(&DigestKey::WELL_KNOWN).expect("valid");
    let reference = sink.put(block);
    let mut signer = new_signer(DeviceId(0));
    let tables = Tables::from([(PrincipalId::Members, reference)]);
    let effects = signer
        .found(&device_key(DeviceId(0)), vec![Delta::SetMembers { reference }], 0, &tables)
        .expect("a fresh device");
    let request = effects
        .into_iter()
        .find_map(|effect| match effect {
            Effect::Send(request) => Some(*request),
            _ => None,
        })
        .expect("the founding operation is sent");
    (signer, membership, request)
}
