//! A bench for this crate's tests: devices with keys, certificates and structures made by hand, and views put
//! together as a lying server would.

use crate::certificate::{Certificate, Delta, Path};
use crate::floor::{Floor, OwnOperation};
use crate::handles::assemble;
use crate::log_tree::{Frontier, consistency_proof, leaf};
use crate::message::{Receipt, ViewReply};
use crate::order::forecast;
use crate::signed::{Signable, Signed};
use crate::signer::Tables;
use crate::structure::{Forecast, Outcome, PendingEntry, Structure, View};
use holdfast_content::{
    Algorithm, Device, DeviceId, Group, GroupId, Membership, PrincipalId, Reference, User, UserId,
};
use holdfast_crypto::{Digest, DigestKey, Domain, SigningKey};
use std::collections::BTreeMap;

// The observer and the randomness are the simulators'; they know this crate by its public name.
#[path = "../../sim/src/order/ledger.rs"]
#[allow(dead_code)]
pub(crate) mod ledger;
#[path = "../../sim/src/random.rs"]
#[allow(dead_code)]
pub(crate) mod random;

pub(crate) const A: DeviceId = DeviceId(1);
pub(crate) const B: DeviceId = DeviceId(2);
pub(crate) const C: DeviceId = DeviceId(3);
pub(crate) const GROUP: PrincipalId = PrincipalId::Group(GroupId(1));

pub(crate) fn key(device: DeviceId) -> SigningKey {
    SigningKey::from_seed(&[device.0 as u8 + 1; 32])
}

/// The server's key.
pub(crate) fn server() -> SigningKey {
    SigningKey::from_seed(&[0xee; 32])
}

/// The server's receipt for a structure.
pub(crate) fn receipt(structure: &Structure) -> Signed<Receipt> {
    let receipt = Receipt {
        file_system: structure.forecast.file_system,
        device: structure.device(),
        number: structure.number(),
        structure: structure.digest(),
    };
    Signed::new(receipt, &server())
}

/// Users 1, 2, 3 with a device each, all in group 1.
pub(crate) fn membership() -> Membership {
    let mut membership = Membership::founding("test", "root", key(DeviceId(0)).public());
    for id in 1..=3 {
        let name = format!("user{id}");
        membership.users.insert(UserId(id), User { name: name.clone(), removed: false });
        let device = Device { user: UserId(id), name, key: key(DeviceId(id)).public(), removed_at: None };
        membership.devices.insert(DeviceId(id), device);
    }
    let mut group = Group {
        name: "everyone".to_owned(),
        members: Default::default(),
        former: Default::default(),
        removed: false,
        groups: Default::default(),
    };
    group.members.extend((1..=3).map(UserId));
    membership.groups.insert(GroupId(1), group);
    membership
}

/// A table that exists nowhere; tests of the order never look inside.
pub(crate) fn table(text: &str) -> Reference {
    let address = DigestKey::WELL_KNOWN.digest(Domain::Table, text.as_bytes());
    Reference { algorithm: Algorithm::Blake3, address, length: 1, key: None }
}

/// The founding operation, as certificate and structure.
pub(crate) fn founding() -> (Signed<Certificate>, Signed<Structure>) {
    let key = key(DeviceId(0));
    let certificate = Certificate {
        file_system: key.public().file_system_id(),
        device: DeviceId(0),
        number: 1,
        previous: Digest::ZERO,
        path: Path::Fast,
        voids: Default::default(),
        ineffective: Default::default(),
        time_ns: 0,
        deltas: vec![Delta::SetMembers { reference: table("members") }],
    };
    let forecast = forecast(&View::default(), &certificate);
    let tables = Tables::from([
        (PrincipalId::Members, table("members")),
        (PrincipalId::Device(DeviceId(0)), table("device 0")),
    ]);
    let handles = assemble(&forecast, &certificate, None, &View::default(), &tables).expect("fits");
    let structure = Structure { forecast, outcome: Outcome::Done, handles };
    (Signed::new(certificate, &key), Signed::new(structure, &key))
}

/// What a lying server works with: a log, slots and entries of its choice.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) view: View,
    pub(crate) frontier: Frontier,
    nodes: BTreeMap<(u8, u64), Digest>,
}

impl Stage {
    /// Just after the founding.
    pub(crate) fn new() -> Stage {
        let (certificate, structure) = founding();
        let mut stage =
            Stage { view: View::default(), frontier: Frontier::default(), nodes: BTreeMap::new() };
        stage.log(&certificate.value, &structure.value.forecast);
        stage.view.slots.insert(DeviceId(0), structure);
        stage
    }

    fn log(&mut self, certificate: &Certificate, forecast: &Forecast) {
        self.nodes.extend(self.frontier.append(leaf(certificate.digest(), forecast.digest())));
        self.view.log = self.frontier.head();
    }

    /// A server's answer to a client at `floor`, with the log's proof.
    pub(crate) fn proven(&self, floor: &Floor) -> ViewReply {
        let mut node = |level, index| self.nodes.get(&(level, index)).copied();
        let proof = consistency_proof(floor.log().size, self.view.log.size, &mut node);
        ViewReply { consistency: proof.expect("the log only grows"), ..self.reply() }
    }

    /// A server's answer without the log's proof.
    pub(crate) fn reply(&self) -> ViewReply {
        ViewReply {
            view: self.view.clone(),
            peaks: self.frontier.peaks().to_vec(),
            consistency: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Orders an operation, which is pending in the view from then on.
    pub(crate) fn order(&mut self, certificate: &Signed<Certificate>) {
        let forecast = forecast(&self.view, &certificate.value);
        self.log(&certificate.value, &forecast);
        self.view.pending.push(PendingEntry { certificate: certificate.clone(), forecast, dead: false });
    }

    /// Declares a device's pending operations dead.
    pub(crate) fn kill(&mut self, device: DeviceId) {
        for entry in &mut self.view.pending {
            entry.dead |= entry.certificate.value.device == device;
        }
    }

    /// Puts a structure into its slot.
    pub(crate) fn commit(&mut self, structure: &Signed<Structure>) {
        let (device, number) = (structure.value.device(), structure.value.number());
        let passed = |entry: &PendingEntry| {
            let certificate = &entry.certificate.value;
            certificate.device == device && certificate.number <= number
        };
        self.view.pending.retain(|entry| !passed(entry));
        self.view.slots.insert(device, structure.clone());
    }

    /// Orders and commits at once.
    pub(crate) fn fast(&mut self, certificate: &Signed<Certificate>, structure: &Signed<Structure>) {
        self.log(&certificate.value, &structure.value.forecast);
        self.commit(structure);
    }
}

/// A client taken apart: every step of its life can be left out or done wrongly.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) floor: Floor,
    key: SigningKey,
}

impl Client {
    pub(crate) fn new(device: DeviceId) -> Client {
        Client { floor: Floor::new(key(DeviceId(0)).public(), device), key: key(device) }
    }

    /// Signs the next certificate.
    pub(crate) fn declare(&mut self, path: Path, deltas: Vec<Delta>) -> Signed<Certificate> {
        let floor = &mut self.floor;
        let number = floor.begin();
        let certificate = Certificate {
            file_system: floor.epoch,
            device: floor.device,
            number,
            previous: floor.previous(),
            path,
            voids: floor.voids.clone(),
            ineffective: floor.ineffective.clone(),
            time_ns: 0,
            deltas,
        };
        if path == Path::Slow {
            let offered = OwnOperation { certificate: certificate.digest(), forecast: None };
            floor.offered.insert(certificate.number, offered);
        }
        Signed::new(certificate, &self.key)
    }

    /// A structure for `certificate` as `forecast` has it.
    pub(crate) fn structure(&self, certificate: &Certificate, forecast: Forecast) -> Signed<Structure> {
        let text =
            |principal: &PrincipalId| (*principal, table(&format!("{principal} {}", certificate.digest())));
        let mut tables: BTreeMap<_, _> = certificate.principals().iter().map(text).collect();
        tables.extend([text(&PrincipalId::Device(certificate.device))]);
        let former = self.floor.own().map(|own| &own.value);
        let handles = assemble(&forecast, certificate, former, &self.floor.view, &tables).expect("fits");
        Signed::new(Structure { forecast, outcome: Outcome::Done, handles }, &self.key)
    }

    /// Accepts that the client's own structure is committed.
    pub(crate) fn acknowledge(&mut self, structure: &Signed<Structure>) {
        self.floor.commit_own(structure.clone(), None);
    }

    /// Gives the last number up.
    pub(crate) fn give_up(&mut self, path: Path) {
        self.floor.voids.insert(self.floor.used);
        if path == Path::Fast {
            self.floor.never_offered.insert(self.floor.used);
        }
    }
}
