//! Shared by all configurations: devices with keys, a membership, the founding operation, tables that are
//! folded as clients fold them, and proofs that one log extends another.
//!
//! The register: a *write* maps two files of the group's table to the writer's inode with the operation's
//! number. So each write leaves a value of its own, and half a write can be detected.

use crate::intern::Interner;
use holdfast_content::{
    BlockSink, Change, Device, DeviceId, Group, GroupId, Handle, Membership, MemoryBlocks, PrincipalId,
    Reference, Table, Tag, Target, User, UserId, target_change,
};
use holdfast_crypto::{Digest, DigestKey, SigningKey};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::certificate::{Certificate, Delta};
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::log_tree::{Frontier, consistency_proof};
use holdfast_protocol::message::{Receipt, Request, ServerKeys, ViewReply};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::signer::{Effect, Event, Signer, Tables};
use holdfast_protocol::structure::{Outcome, Structure, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// The group that every user is in.
pub const GROUP: PrincipalId = PrincipalId::Group(GroupId(1));
/// The files that a write sets, together.
pub const FILES: [u64; 2] = [1, 2];

/// An operation.
pub type Operation = (DeviceId, u64);

/// The content of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Reads.
    Fetch,
    /// Writes the register.
    Write,
    /// Replaces a device by another of the same user (superuser): its key is rotated.
    Rotate {
        /// The device that is removed.
        old: DeviceId,
        /// The device that replaces it.
        new: DeviceId,
    },
    /// Submits the superuser's warrant for such a replacement; it was signed to follow the first membership.
    Enact {
        /// The device that is removed.
        old: DeviceId,
        /// The device that replaces it.
        new: DeviceId,
    },
    /// The same in league with the server: whether the warrant still follows is not asked.
    EnactAnyway {
        /// The device that is removed.
        old: DeviceId,
        /// The device that replaces it.
        new: DeviceId,
    },
}

impl Kind {
    /// Whether it changes the membership.
    pub fn changes_members(self) -> bool {
        matches!(self, Kind::Rotate { .. } | Kind::Enact { .. } | Kind::EnactAnyway { .. })
    }
}

/// The key of a device.
pub fn key(device: DeviceId) -> SigningKey {
    SigningKey::from_seed(&[device.0 as u8 + 1; 32])
}

fn server_key() -> SigningKey {
    SigningKey::from_seed(&[0xee; 32])
}

/// Name of a device in traces: A, B, C; S for the superuser's.
pub fn name(device: DeviceId) -> String {
    match device.0 {
        0 => "S".to_owned(),
        id => char::from(b'A' + (id as u8 - 1)).to_string(),
    }
}

/// The fixed part of a configuration.
pub struct World {
    /// Every block ever stored: a growing set that all share, since blocks are named by their digests.
    pub blocks: MemoryBlocks,
    /// The first membership.
    pub membership: Membership,
    /// The founding operation's certificate.
    pub founding_certificate: Signed<Certificate>,
    /// Its structure.
    pub founding: Signed<Structure>,
    /// The superuser's machine after it.
    pub superuser: Signer,
    keys: BTreeMap<DeviceId, SigningKey>,
    server: SigningKey,
    server_keys: Signed<ServerKeys>,
    memberships: HashMap<Digest, Rc<Membership>>,
    receipts: HashMap<Digest, Signed<Receipt>>,
    logs: Interner<Vec<Digest>, Log>,
    /// Devices that submit a warrant without checking that it still follows.
    pub(crate) careless: BTreeSet<DeviceId>,
}

/// A log of updates with all its nodes.
pub struct Log {
    /// Its leaves.
    pub leaves: Vec<Digest>,
    /// Its right edge.
    pub frontier: Frontier,
    nodes: HashMap<(u8, u64), Digest>,
}

impl World {
    /// The superuser, and `users` people with a device each, all in one group.
    pub fn new(users: u32) -> World {
        let root = key(DeviceId(0));
        let mut membership = Membership::founding("model", "root", root.public());
        for id in 1..=users {
            let name = format!("user{id}");
            membership.users.insert(UserId(id), User { name: name.clone(), removed: false });
            let device = Device { user: UserId(id), name, key: key(DeviceId(id)).public(), removed_at: None };
            membership.devices.insert(DeviceId(id), device);
        }
        let group = Group {
            name: "everyone".to_owned(),
            members: (1..=users).map(UserId).collect(),
            former: Default::default(),
            removed: false,
            groups: Default::default(),
        };
        membership.groups.insert(GroupId(1), group);
        let server = server_key();
        let server_keys = ServerKeys {
            file_system: root.public().file_system_id(),
            sequence: 1,
            keys: vec![server.public()],
        };
        let server_keys = Signed::new(server_keys, &root);
        let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        let mut sink = &blocks;
        let reference = sink.put(membership.to_block(&DigestKey::WELL_KNOWN).expect("valid"));
        let mut superuser = Signer::new(Floor::new(root.public(), DeviceId(0)));
        superuser.step(&root, Event::ServerKeys(server_keys.clone())).expect("idle");
        let tables = Tables::from([(PrincipalId::Members, reference)]);
        let deltas = vec![Delta::SetMembers { reference }];
        let effects = superuser.found(&root, deltas, 0, &tables).expect("fresh");
        let Some(Request::Fast { certificate, structure, .. }) = sent(&effects) else {
            panic!("the founding operation is a fast one")
        };
        let receipt = Signed::new(receipt_for(&structure.value), &server);
        superuser.step(&root, Event::Committed(receipt)).expect("in flight");
        World {
            blocks,
            membership,
            founding_certificate: certificate,
            founding: structure,
            superuser,
            keys: (0..=users + 4).map(|id| (DeviceId(id), key(DeviceId(id)))).collect(),
            server,
            server_keys,
            memberships: HashMap::new(),
            receipts: HashMap::new(),
            logs: Interner::default(),
            careless: BTreeSet::new(),
        }
    }

    /// The machine of a device that has done nothing yet.
    pub fn signer(&self, device: DeviceId) -> Signer {
        if device == DeviceId(0) {
            return self.superuser.clone();
        }
        let mut signer = Signer::new(Floor::new(self.key(DeviceId(0)).public(), device));
        signer.step(self.key(device), Event::ServerKeys(self.server_keys.clone())).expect("idle");
        signer
    }

    /// The key of a device.
    pub fn key(&self, device: DeviceId) -> &SigningKey {
        &self.keys[&device]
    }

    /// The server's receipt for a structure.
    pub fn receipt(&mut self, structure: &Structure) -> Signed<Receipt> {
        let server = &self.server;
        let make = || Signed::new(receipt_for(structure), server);
        self.receipts.entry(structure.digest()).or_insert_with(make).clone()
    }

    /// The membership that a view names.
    ///
    /// # Errors
    /// [`Alarm`]: it names none.
    pub fn members(&mut self, floor: &Floor, view: &View) -> Result<Rc<Membership>, Alarm> {
        let reference = membership_wanted(floor, view)?;
        Ok(self.membership_at(&reference))
    }

    /// A membership by its block.
    pub fn membership_at(&mut self, reference: &Reference) -> Rc<Membership> {
        let blocks = &self.blocks;
        let load = || Rc::new(Membership::load(blocks, reference).expect("blocks are kept"));
        self.memberships.entry(reference.address).or_insert_with(load).clone()
    }

    /// The membership that a certificate brings.
    pub fn new_membership(&mut self, certificate: &Certificate) -> Option<Membership> {
        let reference = certificate.deltas.iter().find_map(|delta| match delta {
            Delta::SetMembers { reference } => Some(*reference),
            _ => None,
        })?;
        Some((*self.membership_at(&reference)).clone())
    }

    /// The deltas of the next operation of the device at `floor`.
    pub fn deltas(&mut self, floor: &Floor, kind: Kind) -> Vec<Delta> {
        match kind {
            Kind::Fetch => Vec::new(),
            Kind::Write => {
                let file = |number| Handle { principal: GROUP, number };
                let set = |number| Delta::SetTable { file: file(number), number: Some(floor.used + 1) };
                FILES.map(set).to_vec()
            }
            Kind::Rotate { old, new } => {
                let (_, handle) = floor.view.handle(PrincipalId::Members).expect("there is a membership");
                let before = self.membership_at(&handle.reference);
                let version = last_vector(&floor.view).get(PrincipalId::Members) + 1;
                vec![self.set_members(&self.replaced(&before, old, new, version))]
            }
            Kind::Enact { old, new } | Kind::EnactAnyway { old, new } => {
                vec![self.enact(floor, old, new)]
            }
        }
    }

    /// The membership after `before` in which a device is replaced by another of the same user.
    pub(crate) fn replaced(
        &self,
        before: &Membership,
        old: DeviceId,
        new: DeviceId,
        version: u64,
    ) -> Membership {
        let mut next = before.clone();
        let user = next.devices[&old].user;
        if let Some(device) = next.devices.get_mut(&old) {
            device.removed_at = Some(0);
        }
        let (name, key) = (format!("device {}", new.0), self.key(new).public());
        next.devices.insert(new, Device { user, name, key, removed_at: None });
        before.succeeded_by(next, version)
    }

    /// The change to a membership, which is stored.
    pub(crate) fn set_members(&self, next: &Membership) -> Delta {
        let mut sink = &self.blocks;
        let reference = sink.put(next.to_block(&DigestKey::WELL_KNOWN).expect("valid"));
        Delta::SetMembers { reference }
    }

    /// The number of a log with these leaves.
    pub fn log(&mut self, leaves: Vec<Digest>) -> u32 {
        self.logs.add(leaves.clone(), || {
            let (mut frontier, mut nodes) = (Frontier::default(), HashMap::new());
            for leaf in &leaves {
                nodes.extend(frontier.append(*leaf));
            }
            Log { leaves, frontier, nodes }
        })
    }

    /// The log of that number.
    pub fn log_at(&self, number: u32) -> Rc<Log> {
        self.logs.get(number)
    }

    /// The tables that an operation of `device` leaves behind at its place in the order.
    pub fn fold(&mut self, view: &View, device: DeviceId, deltas: &[Delta], outcome: Outcome) -> Tables {
        let own = PrincipalId::Device(device);
        let mut principals: Vec<_> = deltas.iter().filter_map(Delta::principal).collect();
        principals.push(own);
        principals.sort();
        principals.dedup();
        let mut tables = Tables::new();
        for principal in principals {
            if principal == PrincipalId::Members {
                let declared = deltas.iter().find_map(|delta| match delta {
                    Delta::SetMembers { reference } => Some(*reference),
                    _ => None,
                });
                let former = view.handle(principal).map(|(_, handle)| handle.reference);
                let reference = if outcome == Outcome::Done { declared } else { former };
                tables.insert(principal, reference.expect("there is a membership"));
                continue;
            }
            let mut table = base(&self.blocks, view, principal);
            if outcome == Outcome::Done {
                changes(device, deltas, principal, None)
                    .into_iter()
                    .for_each(|change| table.map.push(change));
            }
            let mut sink = &self.blocks;
            // Whatever may be folded into the root is folded at once.
            table.map =
                table.map.settle_and_compact(&self.blocks, &mut sink, view, 0).expect("blocks are kept");
            tables.insert(principal, table.store(&mut sink).expect("small tables"));
        }
        tables
    }

    /// The value of the register in a view.
    ///
    /// # Errors
    /// In words: its two files are not of one write.
    pub fn register(&self, view: &View) -> Result<Register, String> {
        let table = base(&self.blocks, view, GROUP);
        let [first, second] = FILES
            .map(|file| table.target(&self.blocks, view, file).expect("blocks are kept"))
            .map(|found| (found.value.map(|target: Target| (target.device, target.first)), found.unsettled));
        if first != second {
            return Err(format!("half a write is visible: {first:?} and {second:?}"));
        }
        Ok(Register { value: first.0, is_settled: first.1.is_none() })
    }
}

/// The value of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    /// The write that counts.
    pub value: Option<Operation>,
    /// Whether nothing pending may still change that.
    pub is_settled: bool,
}

impl Log {
    /// A server's reply with `view`, for a client whose log has `known` leaves.
    pub fn reply(&self, mut view: View, known: u64) -> ViewReply {
        view.log = self.frontier.head();
        let mut node = |level, index| self.nodes.get(&(level, index)).copied();
        let consistency = consistency_proof(known, view.log.size, &mut node).unwrap_or_default();
        ViewReply { view, peaks: self.frontier.peaks().to_vec(), consistency, blocks: Vec::new() }
    }
}

/// The server's receipt for a structure.
pub fn receipt_for(structure: &Structure) -> Receipt {
    Receipt {
        file_system: structure.forecast.file_system,
        device: structure.device(),
        number: structure.number(),
        structure: structure.digest(),
    }
}

/// The request among some effects.
pub fn sent(effects: &[Effect]) -> Option<Request> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(request) => Some((**request).clone()),
        _ => None,
    })
}

/// Whether an operation writes the register.
pub fn writes(deltas: &[Delta]) -> bool {
    deltas.iter().any(|delta| delta.principal() == Some(GROUP))
}

fn changes(device: DeviceId, deltas: &[Delta], principal: PrincipalId, tag: Option<Tag>) -> Vec<Change> {
    let change = |delta: &Delta| match delta {
        Delta::SetTable { file, number } if file.principal == principal => {
            let target = number.map(|number| Target::one(device, number));
            Some(target_change(file.number, target.as_ref(), tag).expect("small numbers"))
        }
        _ => None,
    };
    deltas.iter().filter_map(change).collect()
}

/// The table in force with every pending change that it does not hold yet, tagged.
fn base(blocks: &MemoryBlocks, view: &View, principal: PrincipalId) -> Table {
    let (mut table, version) = match view.handle(principal) {
        Some((_, handle)) => {
            (Table::load(blocks, &handle.reference).expect("blocks are kept"), handle.version)
        }
        None => (Table::new(principal), 0),
    };
    for entry in view.pending.iter().filter(|entry| !entry.dead) {
        let certificate = &entry.certificate.value;
        // The version is above that of the table in force: ordered after it, so not folded into it.
        if certificate.principals().contains(&principal) && entry.forecast.vector.get(principal) > version {
            let tag = Tag { device: certificate.device, number: certificate.number };
            for change in changes(certificate.device, &certificate.deltas, principal, Some(tag)) {
                table.map.push(change);
            }
        }
    }
    table
}
