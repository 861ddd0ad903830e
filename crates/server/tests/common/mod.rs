//! A client just capable enough to exercise a server: it signs operations whose tables are small made-up blocks.

#![allow(missing_docs)]

pub mod core;
pub mod load;

use holdfast_content::{
    Block, BlockKind, Device, DeviceId, Handle, Membership, PrincipalId, Reference, User, UserId,
};
use holdfast_crypto::{Digest, DigestKey, PublicKey, SigningKey};
use holdfast_protocol::certificate::{Certificate, Delta, Path};
use holdfast_protocol::message::{AddressedBlock, Attached, Request, Response, ServerKeys, ViewReply};
use holdfast_protocol::order::forecast;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{HandleVersion, Outcome, Structure, View};
use holdfast_protocol::vector::VoidSet;
pub use holdfast_testing::noise;
use std::collections::BTreeMap;

pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// The superuser's key in these tests.
pub fn superuser() -> SigningKey {
    key(1)
}

pub fn file_system() -> Digest {
    superuser().public().file_system_id()
}

pub fn block(kind: BlockKind, body: &[u8]) -> (Reference, AddressedBlock) {
    let block = Block::new(&DigestKey::WELL_KNOWN, kind, Vec::new(), body.to_vec());
    let reference = block.reference();
    (reference, AddressedBlock { address: reference.address, block: block.to_stored() })
}

/// A table that nobody reads, different for each pair of numbers.
pub fn table(device: DeviceId, number: u64) -> (Reference, AddressedBlock) {
    block(BlockKind::Table, format!("table of device {} at {number}", device.0).as_bytes())
}

/// The superuser and `people` users with one device each, whose keys are `key(10 + id)`.
pub fn membership(version: u64, people: u32) -> Membership {
    let mut membership = Membership::founding("test", "superuser", superuser().public());
    membership.version = version;
    for id in 1..=people {
        let name = format!("user {id}");
        membership.users.insert(UserId(id), User { name: name.clone(), removed: false });
        let key = key(10 + id as u8).public();
        membership.devices.insert(DeviceId(id), Device { user: UserId(id), name, key, removed_at: None });
    }
    membership
}

pub fn sign_structure(
    view: &View,
    certificate: &Certificate,
    key: &SigningKey,
    handles: BTreeMap<PrincipalId, HandleVersion>,
) -> Signed<Structure> {
    let forecast = forecast(view, certificate);
    Signed::new(Structure { forecast, outcome: Outcome::Done, handles }, key)
}

/// The request that creates the file system.
pub fn creation(server: PublicKey, people: u32) -> Request {
    creation_by(superuser(), server, people)
}

/// The request that creates the file system of another superuser.
pub fn creation_by(key: SigningKey, server: PublicKey, people: u32) -> Request {
    let mut membership = membership(1, people);
    membership.devices.get_mut(&DeviceId::SUPERUSER).unwrap().key = key.public();
    creation_of(key, server, &membership)
}

/// The request that creates a file system with this membership.
pub fn creation_of(key: SigningKey, server: PublicKey, membership: &Membership) -> Request {
    let file_system = key.public().file_system_id();
    let block = membership.to_block(&DigestKey::WELL_KNOWN).unwrap();
    let reference = block.reference();
    let keys = ServerKeys { file_system, sequence: 1, keys: vec![server] };
    let certificate = Certificate {
        file_system,
        device: DeviceId::SUPERUSER,
        number: 1,
        previous: Digest::ZERO,
        path: Path::Fast,
        voids: VoidSet::default(),
        ineffective: VoidSet::default(),
        time_ns: 1,
        deltas: vec![Delta::SetMembers { reference }],
    };
    let handles = [(PrincipalId::Members, HandleVersion { version: 1, reference })].into();
    let structure = sign_structure(&View::default(), &certificate, &key, handles);
    Request::CreateFileSystem {
        superuser: key.public(),
        server_keys: Signed::new(keys, &key),
        certificate: Signed::new(certificate, &key),
        structure,
        blocks: vec![AddressedBlock { address: reference.address, block: block.to_stored() }],
    }
}

/// A device's own state.
#[derive(Clone)]
pub struct Author {
    pub device: DeviceId,
    pub key: SigningKey,
    /// The highest number that was used.
    pub last: u64,
    pub voids: VoidSet,
    pub log_size: u64,
}

impl Author {
    pub fn new(device: u32) -> Author {
        Author {
            device: DeviceId(device),
            key: key(10 + device as u8),
            last: 0,
            voids: VoidSet::default(),
            log_size: 0,
        }
    }

    /// The next operation, which changes one inode of the device's user.
    pub fn certificate(&mut self, view: &View, path: Path) -> Certificate {
        self.last += 1;
        let file = Handle { principal: PrincipalId::User(UserId(self.device.0)), number: 1 };
        let inode = Some(Digest([self.last as u8; 32]));
        let previous = view.slots.get(&self.device).map_or(Digest::ZERO, |slot| slot.value.forecast.digest());
        Certificate {
            file_system: file_system(),
            device: self.device,
            number: self.last,
            previous,
            path,
            voids: self.voids.clone(),
            ineffective: VoidSet::default(),
            time_ns: 1,
            deltas: vec![Delta::SetInode { number: 1, file, inode }],
        }
    }

    pub fn structure(&self, view: &View, certificate: &Certificate) -> (Signed<Structure>, AddressedBlock) {
        let (reference, block) = table(self.device, certificate.number);
        let version = HandleVersion { version: certificate.number, reference };
        let handles = [(PrincipalId::Device(self.device), version)].into();
        (sign_structure(view, certificate, &self.key, handles), block)
    }

    pub fn fast(&mut self, view: &View) -> Request {
        let certificate = self.certificate(view, Path::Fast);
        let (structure, block) = self.structure(view, &certificate);
        Request::Fast {
            certificate: Signed::new(certificate, &self.key),
            structure,
            attached: vec![block].into(),
            log_size: self.log_size,
            by_difference: false,
            lease: None,
        }
    }

    pub fn update(&mut self, view: &View) -> (Certificate, Request) {
        let certificate = self.certificate(view, Path::Slow);
        let signed = Signed::new(certificate.clone(), &self.key);
        (
            certificate,
            Request::Update {
                certificate: signed,
                attached: Attached::default(),
                log_size: self.log_size,
                by_difference: false,
                lease: None,
            },
        )
    }

    pub fn commit(&self, view: &View, certificate: &Certificate) -> Request {
        let (structure, block) = self.structure(view, certificate);
        Request::Commit { structure, attached: vec![block].into() }
    }

    pub fn give_up(&mut self) {
        self.voids.insert(self.last);
    }
}

#[track_caller]
pub fn view(response: Response) -> ViewReply {
    match response {
        Response::View(reply) => *reply,
        other => panic!("expected a view, got {other:?}"),
    }
}

/// Checks a receipt, and returns the number of the operation.
#[track_caller]
pub fn committed(response: Response, server: &PublicKey) -> u64 {
    match response {
        Response::Committed(receipt) => {
            assert!(receipt.verify(server));
            receipt.value.number
        }
        other => panic!("expected a receipt, got {other:?}"),
    }
}
