//! What a device's key may sign, given what it signed before: the policy of the process that has the key.
//!
//! The process that talks to programs and servers is large, and may be taken over by an attacker. So the key
//! is in another process, which asks a [`Mandate`] before each signature. It signs only what *extends* the
//! last signature. An attacker in the client can then waste numbers and write what the user may write, but
//! cannot obtain two signatures that contradict each other: such signatures would convict the device of
//! lying, and different people could be deceived with them.
//!
//! What extends the last signature, as far as signatures alone can say:
//! - A certificate has the next number. It names as its predecessor the last signed structure that is not
//!   given up, or the one before if it gives that one up; this choice is then final.
//! - Its void numbers are exactly those given up, and its ineffective numbers exactly those committed
//!   without effect.
//! - A number has one certificate and at most one structure, which belongs to that certificate.
//! - A structure's version vector is nowhere below what earlier structures saw, nor below committed ones.
//!   It counts up what its certificate advances. Its log is no shorter, and identical if it is as long.
//! - Its tables are new for what the certificate advances, and otherwise those of the structure before.
//! - Names of past states, and their ends, are signed freely: they are in this device's name and order
//!   nothing.
//! - Only the superuser's key changes the membership by itself, lists servers, or signs warrants. No two
//!   lists have one number, and no two warrants follow one membership or an older one. Any key may bring a
//!   membership and nothing else; without a warrant in its block that is worth nothing.
//! - After a declared restore it signs only in the new epoch, from the restored state on
//!   ([`Mandate::enter_epoch`]).
//! - The same content may be signed again.
//!
//! What a mandate cannot know: whether the server really sent the view that a structure is based on, and
//! whether the tables contain what the user wants. For TLS it signs a client's handshake
//! ([`is_tls_handshake`]), where clients meet also a server's ([`is_tls_server_handshake`]), and nothing
//! else.
//!
//! Pure: its caller makes [`Mandate::to_bytes`] durable before a signature leaves.

mod record;
#[cfg(test)]
mod tests;

pub use record::Mandate;

use crate::certificate::Certificate;
use crate::epoch::{Declaration, Epochs, are_declared};
use crate::history::{Snapshot, SnapshotEnd, name_offence};
use crate::message::ServerKeys;
use crate::signed::Signable;
use crate::signer::Signer;
use crate::structure::{LogHead, Outcome, Structure};
use crate::vector::VersionVector;
use crate::warrant::Change;
use holdfast_content::{DeviceId, PrincipalId, Restore};
use holdfast_crypto::{Digest, Domain, PublicKey, SignRequest, decode};
use record::{SignedCertificate, SignedStructure};

/// Why something is not signed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Contradiction {
    /// The key signs nothing of that kind.
    #[error("this key signs no {0}")]
    NotSignable(&'static str),
    /// The content does not decode, or the signature would cover something else.
    #[error("what is to be signed is not what was shown of it")]
    NotShown,
    /// No honest device would declare it.
    #[error("no honest device would sign it: {0}")]
    Offence(&'static str),
    /// The content is for another file system.
    #[error("it is for another file system")]
    OtherFileSystem,
    /// The content is of another epoch than the one this key has adopted.
    #[error("it is of a time before or after a restore that this key has not taken up, or not any more")]
    OtherEpoch,
    /// The content is in another device's name.
    #[error("it is in the name of device {found}, and this key has signed for device {known}")]
    OtherDevice {
        /// The device number in earlier signatures.
        known: u32,
        /// The device number in this one.
        found: u32,
    },
    /// Its number is not the next one.
    #[error("its number is {found}, and after what was signed before it must be {expected}")]
    WrongNumber {
        /// The number that comes next.
        expected: u64,
        /// The number in the request.
        found: u64,
    },
    /// Something else was signed under this number.
    #[error("something else was signed under number {0} before")]
    NumberTaken(u64),
    /// The content does not name its predecessor.
    #[error("it does not follow what was signed last")]
    WrongPrevious,
    /// The numbers that it gives up, or says to be without effect, are not the right ones.
    #[error("the numbers that it gives up, or calls without effect, are not those that are")]
    WrongVoids,
    /// The structure is not of the certificate that was signed before.
    #[error("it does not belong to the certificate that was signed for its number")]
    OtherCertificate,
    /// A version number decreases.
    #[error("it goes back behind version {known} of {principal}, to {found}")]
    VectorBack {
        /// The user or group whose table it is.
        principal: PrincipalId,
        /// The version that is known.
        known: u64,
        /// The version in what is to be signed.
        found: u64,
    },
    /// The log of updates is shorter, or another one.
    #[error("its log of updates has {found} entries and does not go on from the one of {known} known before")]
    LogBack {
        /// The size that is known.
        known: u64,
        /// The size in what is to be signed.
        found: u64,
    },
    /// The content records an operation of this device as pending or dead that cannot be so.
    #[error("it calls an operation of this device pending, or dead, that is not")]
    WrongRecord,
    /// A table is not what it must be.
    #[error("the table of {0} is not what this operation can leave behind")]
    WrongTable(PrincipalId),
    /// Only the superuser's key may sign this.
    #[error("only the superuser's key signs this")]
    NotSuperuser,
    /// Another change was signed to follow this membership, or a later one.
    #[error(
        "another change was signed to follow version {known} of the membership, and this one is to follow version \
         {found}: of two that follow the same one only one can come into force, and whoever carries them would choose \
         which. Submit the first, and prepare this one anew after it"
    )]
    WarrantBack {
        /// The version that was signed.
        known: u64,
        /// The version in the request.
        found: u64,
    },
    /// A list of server keys is older than one signed before, or another of the same number.
    #[error("list {found} of server keys does not follow list {known}, which was signed before")]
    ListBack {
        /// The time that was signed.
        known: u64,
        /// The time in the request.
        found: u64,
    },
}

impl Mandate {
    /// The mandate of a key that has signed nothing.
    pub fn new(file_system: Digest, key: PublicKey) -> Mandate {
        Mandate::empty(file_system, key)
    }

    /// The mandate of a key that was used before there were mandates, from the state of its machine.
    pub fn adopt(signer: &Signer, key: PublicKey) -> Mandate {
        let floor = signer.floor();
        let (certificate, structure) = signer.in_flight();
        let mut mandate = Mandate::empty(floor.file_system(), key);
        mandate.set_epoch(floor.epoch);
        mandate.device = Some(floor.device);
        mandate.number = floor.used;
        if let Some(own) = floor.own() {
            mandate.settled = SignedStructure::of(&own.value);
            mandate.vector = own.value.forecast.vector.clone();
        }
        mandate.log = floor.log();
        // The next certificate says what became of the last number itself.
        mandate.voids = floor.voids.clone();
        mandate.ineffective = floor.ineffective.clone();
        mandate.certificate = certificate.map(SignedCertificate::of);
        mandate.open = structure.map(SignedStructure::of);
        mandate.server_keys =
            floor.server_keys.as_ref().map(|keys| (keys.value.sequence, keys.value.digest()));
        mandate
    }

    /// The highest number signed for; 0 before the first.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Judges all of `asks` in their order; the mandate afterwards if all may be signed.
    ///
    /// # Errors
    /// The first [`Contradiction`].
    pub fn judge(&self, asks: &[SignRequest]) -> Result<Mandate, Contradiction> {
        let mut after = self.clone();
        for ask in asks {
            after.judge_one(ask)?;
        }
        Ok(after)
    }

    fn judge_one(&mut self, ask: &SignRequest) -> Result<(), Contradiction> {
        match ask.domain {
            Domain::Certificate => self.certificate(&shown::<Certificate>(ask)?),
            Domain::Structure => self.structure(&shown::<Structure>(ask)?),
            Domain::ServerKeys => self.server_keys(&shown::<ServerKeys>(ask)?),
            Domain::Warrant => self.warrant(&shown::<Change>(ask)?),
            Domain::Restore => self.restore(&shown::<Declaration>(ask)?),
            Domain::Snapshot => {
                let snapshot = shown::<Snapshot>(ask)?;
                if let Some(offence) = name_offence(&snapshot.name) {
                    return Err(Contradiction::Offence(offence));
                }
                self.check_device(snapshot.device)?;
                self.same(snapshot.file_system)
            }
            Domain::SnapshotEnd => {
                let end = shown::<SnapshotEnd>(ask)?;
                self.check_device(end.device)?;
                self.same(end.file_system)
            }
            Domain::Receipt => Err(Contradiction::NotSignable("receipts of servers")),
            Domain::SignedBlock => Err(Contradiction::NotSignable("blocks")),
            _ => Err(Contradiction::NotSignable("things of this kind")),
        }
    }

    fn is_superuser(&self) -> bool {
        self.key.file_system_id() == self.file_system
    }

    /// Checks the file system of something that belongs to no epoch.
    fn same(&self, file_system: Digest) -> Result<(), Contradiction> {
        if file_system == self.file_system { Ok(()) } else { Err(Contradiction::OtherFileSystem) }
    }

    fn place(&mut self, epoch: Digest, device: DeviceId) -> Result<(), Contradiction> {
        if epoch != self.epoch() {
            return Err(Contradiction::OtherFileSystem);
        }
        self.check_device(device)
    }

    fn check_device(&mut self, device: DeviceId) -> Result<(), Contradiction> {
        match self.device {
            Some(known) if known != device => {
                return Err(Contradiction::OtherDevice { known: known.0, found: device.0 });
            }
            // The superuser's key is device 0's, and no other key is.
            None if (device == DeviceId::SUPERUSER) != self.is_superuser() => {
                return Err(Contradiction::NotSuperuser);
            }
            _ => self.device = Some(device),
        }
        Ok(())
    }

    fn certificate(&mut self, certificate: &Certificate) -> Result<(), Contradiction> {
        self.place(certificate.file_system, certificate.device)?;
        if let Some(offence) = certificate.offence() {
            return Err(Contradiction::Offence(offence));
        }
        let digest = certificate.digest();
        if certificate.number == self.number && self.number > 0 {
            let same = self.certificate.as_ref().is_some_and(|known| known.digest == digest);
            return if same { Ok(()) } else { Err(Contradiction::NumberTaken(self.number)) };
        }
        let expected = self.number + 1;
        if certificate.number != expected {
            return Err(Contradiction::WrongNumber { expected, found: certificate.number });
        }
        // Whether the last number was committed (its structure is the predecessor) or given up (the one
        // before is).
        let committed = match &self.open {
            Some(open) if certificate.previous == open.forecast => Some(open.clone()),
            _ if certificate.previous == self.settled.forecast => None,
            _ => return Err(Contradiction::WrongPrevious),
        };
        let (mut voids, mut ineffective) = (self.voids.clone(), self.ineffective.clone());
        match &committed {
            Some(made) if made.outcome == Outcome::Nothing => ineffective.insert(made.number),
            Some(_) => {}
            None if self.number > self.settled.number => voids.insert(self.number),
            None => {}
        }
        if !certificate.voids.is_well_formed() || !certificate.ineffective.is_well_formed() {
            return Err(Contradiction::WrongVoids);
        }
        if certificate.voids != voids || certificate.ineffective != ineffective {
            return Err(Contradiction::WrongVoids);
        }
        if let Some(made) = committed {
            // The operation is in the order, so no later one may know less.
            self.log = LogHead { size: made.log_size + 1, root: Digest::ZERO };
            self.vector = made.vector.clone();
            self.settled = made;
        }
        self.open = None;
        self.number = certificate.number;
        self.certificate = Some(SignedCertificate::of(certificate));
        (self.voids, self.ineffective) = (voids, ineffective);
        Ok(())
    }

    fn structure(&mut self, structure: &Structure) -> Result<(), Contradiction> {
        let forecast = &structure.forecast;
        self.place(forecast.file_system, forecast.device)?;
        let number = structure.number();
        if number != self.number || number == 0 {
            return Err(Contradiction::WrongNumber { expected: self.number, found: number });
        }
        if let Some(open) = &self.open {
            let same = open.structure == structure.digest();
            return if same { Ok(()) } else { Err(Contradiction::NumberTaken(number)) };
        }
        let announced =
            self.certificate.as_ref().filter(|announced| announced.digest == forecast.certificate);
        let Some(announced) = announced else { return Err(Contradiction::OtherCertificate) };
        if forecast.voids != self.voids || forecast.ineffective != self.ineffective {
            return Err(Contradiction::WrongVoids);
        }
        self.check_progress(structure, &announced.principals)?;
        self.remembers_itself(structure)?;
        self.check_tables(structure, &announced.principals)?;
        let brings_members = announced.principals.contains(&PrincipalId::Members);
        if brings_members && structure.outcome != Outcome::Done && !self.is_superuser() {
            // The table would hold the present membership, for which there is no warrant.
            return Err(Contradiction::WrongTable(PrincipalId::Members));
        }
        let seen = seen_before(structure, &announced.principals);
        self.open = Some(SignedStructure::of(structure));
        self.vector = seen;
        self.log = forecast.log;
        Ok(())
    }

    /// Checks that neither versions nor the log go back.
    fn check_progress(&self, structure: &Structure, advanced: &[PrincipalId]) -> Result<(), Contradiction> {
        let (forecast, own) = (&structure.forecast, PrincipalId::Device(structure.device()));
        for (&principal, &known) in self.vector.versions().iter().filter(|(principal, _)| **principal != own)
        {
            let found = forecast.vector.get(principal);
            if found < known {
                return Err(Contradiction::VectorBack { principal, known, found });
            }
        }
        for &principal in advanced {
            let (known, found) = (self.vector.get(principal), forecast.vector.get(principal));
            if found <= known {
                return Err(Contradiction::VectorBack { principal, known: known.saturating_add(1), found });
            }
        }
        let (known, found) = (self.log, forecast.log);
        // If the log ends with a leaf of this device's own, its root is not known here.
        let other_root = known.root != Digest::ZERO && found.size == known.size && found.root != known.root;
        if found.size < known.size || other_root {
            return Err(Contradiction::LogBack { known: known.size, found: found.size });
        }
        Ok(())
    }

    /// Checks a structure's records of this device: nothing pending, and nothing dead that was not given up.
    fn remembers_itself(&self, structure: &Structure) -> Result<(), Contradiction> {
        let forecast = &structure.forecast;
        let pending = forecast.pending.iter().any(|record| record.device == forecast.device);
        let mut dead = forecast.aborted.iter().filter(|record| record.device == forecast.device);
        if pending || dead.any(|record| !self.voids.contains(record.number)) {
            return Err(Contradiction::WrongRecord);
        }
        Ok(())
    }

    /// The rule for i-handles, as far as this device's own structures allow to check it.
    fn check_tables(&self, structure: &Structure, advanced: &[PrincipalId]) -> Result<(), Contradiction> {
        let own = PrincipalId::Device(structure.device());
        let vector = &structure.forecast.vector;
        for (&principal, handle) in &structure.handles {
            let fits = if principal == own {
                handle.version == structure.number()
            } else if advanced.contains(&principal) {
                handle.version == vector.get(principal)
            } else {
                self.settled.handles.get(&principal) == Some(handle)
                    && handle.version <= vector.get(principal)
            };
            if !fits {
                return Err(Contradiction::WrongTable(principal));
            }
        }
        for &principal in advanced {
            if !structure.handles.contains_key(&principal) {
                return Err(Contradiction::WrongTable(principal));
            }
        }
        for (&principal, before) in &self.settled.handles {
            let superseded = principal != own && vector.get(principal) > before.version;
            if !structure.handles.contains_key(&principal) && !superseded {
                return Err(Contradiction::WrongTable(principal));
            }
        }
        Ok(())
    }

    fn server_keys(&mut self, keys: &ServerKeys) -> Result<(), Contradiction> {
        if keys.file_system != self.file_system {
            return Err(Contradiction::OtherFileSystem);
        }
        if !self.is_superuser() {
            return Err(Contradiction::NotSuperuser);
        }
        let digest = keys.digest();
        match self.server_keys {
            Some((_, known)) if known == digest => return Ok(()),
            Some((known, _)) if keys.sequence <= known => {
                return Err(Contradiction::ListBack { known, found: keys.sequence });
            }
            _ => {}
        }
        self.server_keys = Some((keys.sequence, digest));
        Ok(())
    }
}

impl Mandate {
    /// Signs a restore only of the present epoch, so none is declared twice once the key has adopted the new
    /// epoch.
    fn restore(&mut self, declaration: &Declaration) -> Result<(), Contradiction> {
        self.same(declaration.file_system)?;
        if declaration.epoch != self.epoch() {
            return Err(Contradiction::OtherEpoch);
        }
        if self.is_superuser() { Ok(()) } else { Err(Contradiction::NotSuperuser) }
    }

    /// Adopts the epoch of a restore that the superuser has declared. What may be signed then follows from
    /// what the machine remembers of the restored state. This is final: signatures of an earlier epoch stay.
    /// Until something is signed in the new epoch, the same step may be repeated.
    ///
    /// # Errors
    /// [`Contradiction::OtherEpoch`]: the restores are not declared, or do not follow the epoch that this key
    /// has adopted.
    pub fn enter_epoch(
        &self,
        superuser: &PublicKey,
        restores: &[Restore],
        next: &Mandate,
    ) -> Result<Mandate, Contradiction> {
        let epochs = Epochs::of(self.file_system, restores);
        let is_later = epochs.left_of(&self.epoch()).is_some();
        let is_again = epochs.latest() == self.epoch() && self.certificate.is_none() && self.open.is_none();
        let is_declared = superuser.file_system_id() == self.file_system && are_declared(superuser, restores);
        if !is_declared
            || !(is_later || is_again)
            || !next.belongs_to(&self.file_system, &self.key)
            || next.epoch() != epochs.latest()
            || next.certificate.is_some()
            || next.open.is_some()
        {
            return Err(Contradiction::OtherEpoch);
        }
        if self.device.is_some_and(|known| next.device.is_some_and(|found| found != known)) {
            return Err(Contradiction::NotSuperuser);
        }
        let server_keys = self.server_keys.max(next.server_keys);
        Ok(Mandate { server_keys, warrant: None, ..next.clone() })
    }

    fn warrant(&mut self, change: &Change) -> Result<(), Contradiction> {
        if change.file_system != self.epoch() {
            return Err(Contradiction::OtherFileSystem);
        }
        if !self.is_superuser() {
            return Err(Contradiction::NotSuperuser);
        }
        if change.next.undated() != change.next || change.next.version != 0 {
            return Err(Contradiction::Offence("it says itself at which version it comes into force"));
        }
        let digest = change.digest();
        match self.warrant {
            Some((_, known)) if known == digest => return Ok(()),
            Some((known, _)) if change.version <= known => {
                return Err(Contradiction::WarrantBack { known, found: change.version });
            }
            _ => {}
        }
        self.warrant = Some((change.version, digest));
        Ok(())
    }
}

/// The vector before the operation counted itself up. It stays true if the operation is given up.
fn seen_before(structure: &Structure, advanced: &[PrincipalId]) -> VersionVector {
    let mut seen = structure.forecast.vector.clone();
    for &principal in advanced {
        seen.set(principal, seen.get(principal).saturating_sub(1));
    }
    seen
}

/// Decodes the content of a request, and checks that the signature would cover exactly that.
fn shown<T: Signable + borsh::BorshDeserialize>(ask: &SignRequest) -> Result<T, Contradiction> {
    let value: T = decode(&ask.whole).map_err(|_| Contradiction::NotShown)?;
    if value.signed_bytes() == ask.bytes { Ok(value) } else { Err(Contradiction::NotShown) }
}

/// Whether `message` is what a TLS 1.3 client signs in its handshake (RFC 8446, 4.4.3): 64 spaces, the client's context,
/// a zero, and the digest of the handshake so far, by one of TLS 1.3's hashes.
pub fn is_tls_handshake(message: &[u8]) -> bool {
    is_of_tls(message, b"TLS 1.3, client CertificateVerify\0")
}

/// Whether it is what a TLS 1.3 server signs, with the server's context. A device is one where clients meet.
pub fn is_tls_server_handshake(message: &[u8]) -> bool {
    is_of_tls(message, b"TLS 1.3, server CertificateVerify\0")
}

fn is_of_tls(message: &[u8], context: &[u8]) -> bool {
    let after_spaces =
        message.split_at_checked(64).filter(|(spaces, _)| spaces.iter().all(|&byte| byte == b' '));
    let digest = after_spaces.and_then(|(_, rest)| rest.strip_prefix(context));
    digest.is_some_and(|digest| matches!(digest.len(), 32 | 48))
}
