//! The paper's own course of events (4.5, 4.8, 4.9), with real proofs: a formatter hands a partition to a driver
//! known by its hash group, the driver gives blocks to a user's process, a restart changes all process names, and a
//! revocation ends it.

use crate::common;

use common::*;
use holdfast_access::prove::Prover;
use holdfast_access::*;
use holdfast_crypto::Digest;
use holdfast_policy::*;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// The driver's program in this configuration.
fn driver(partition: &str) -> Manifest {
    let mut manifest = Manifest::of_executable(Digest([4; 32]), 990);
    manifest.component = Some(name("fat"));
    manifest.settings.insert(name("partition"), Text::new(partition).expect("a text"));
    manifest
}

/// A run of the machine: processes, and the statements made.
struct Run {
    boot: u8,
    revocations: Revocations,
    serial: u64,
}

impl Run {
    fn new(boot: u8) -> Run {
        Run { boot, revocations: Revocations::new(), serial: 0 }
    }

    fn start(&mut self, number: u64) -> (ProcessName, AliasTable) {
        let process = ProcessName { boot: [self.boot; 16], number };
        self.revocations.started(process).expect("room");
        let table = AliasTable::new(process, &self.revocations).expect("it lives");
        (process, table)
    }

    fn says(&mut self, issuer: Principal, statement: Statement) -> VerifiedCredential {
        self.serial += 1;
        let credential =
            Credential { issuer: issuer.clone(), serial: self.serial, expires_s: None, statement };
        VerifiedCredential::spoken(&issuer, credential).expect("it is the speaker's own word")
    }

    /// A process that proves to be a constituent of its program's hash group.
    fn start_program(&mut self, number: u64, manifest: Manifest) -> (AliasTable, u16, Principal) {
        let (process, mut table) = self.start(number);
        let group = Principal::Program(manifest.program());
        let verified = self.says(Principal::Machine, Statement::Runs { process, manifest });
        let mut credentials = Credentials::default();
        let id = credentials.keep(verified).expect("room");
        let mut prover = Prover::new();
        prover.constituent(id, group.clone());
        let proven = check(&prover.proof(), &credentials, &self.revocations, 0).expect("a proof");
        let index = table.add(proven).expect("room");
        (table, index, group)
    }
}

#[test]
fn a_driver_a_user_and_a_restart() {
    let alice = user("alice");
    let mut run = Run::new(1);
    let mut disk = Driven::new(disk(1_000, 8));
    let partition = range(100, 800);

    // The formatter, here the administrator, hands the partition to the driver of this partition.
    let (mut driver_table, as_driver, driver_group) = run.start_program(1, driver("100-900"));
    disk.policy
        .chown_nominate(&alias(&admin()), partition, driver_group.clone())
        .expect("the formatter owns it");
    let (mut other_table, as_other, other_group) = run.start_program(2, driver("900-1000"));
    assert_ne!(driver_group, other_group, "the same code for another partition is another principal");
    let other = other_table.look_up(as_other, &run.revocations, 0).expect("it stands").clone();
    let refused = disk.policy.chown_accept(&other, partition, only(&other_group)).err();
    assert_eq!(refused, Some(Refused::NotNominated));
    let driver_alias = driver_table.look_up(as_driver, &run.revocations, 0).expect("it stands").clone();
    let change = disk.policy.chown_accept(&driver_alias, partition, only(&driver_group)).expect("nominated");
    disk.carry_out(change);

    // Alice's process speaks for her by the machine's statement at login, its VFS by its own statement; so
    // the VFS speaks for Alice.
    let (client, _) = run.start(3);
    let (vfs, mut vfs_table) = run.start(4);
    let speaks = |delegate: ProcessName, principal: Principal| Statement::SpeaksFor {
        delegate: Principal::Process(delegate),
        principal,
        scope: Scope::EVERYTHING,
    };
    let login = run.says(Principal::Machine, speaks(client, alice.clone()));
    let login_serial = login.credential().serial;
    let delegation = run.says(Principal::Process(client), speaks(vfs, Principal::Process(client)));
    let mut credentials = Credentials::default();
    let (login, delegation) =
        (credentials.keep(login).expect("room"), credentials.keep(delegation).expect("room"));
    let mut prover = Prover::new();
    let client_for_alice = prover.namers_word(login, alice.clone());
    let vfs_for_client = prover.own_word(delegation, Principal::Process(client));
    prover.chain(vfs_for_client, client_for_alice);
    let proven = check(&prover.proof(), &credentials, &run.revocations, 0).expect("a proof");
    let as_alice = vfs_table.add(proven).expect("room");

    // A file is created: the driver proposes, Alice's VFS accepts. The driver cannot use its blocks any more.
    let file = range(300, 20);
    disk.policy.chown_nominate(&driver_alias, file, alice.clone()).expect("the driver owns it");
    let alice_alias = vfs_table.look_up(as_alice, &run.revocations, 0).expect("it stands").clone();
    let change = disk.policy.chown_accept(&alice_alias, file, only(&alice)).expect("nominated");
    assert!(change.effects().contains(&Effect::Erase(file)));
    disk.carry_out(change);
    let objects = Objects::blocks(3, file.first(), file.count()).expect("a range");
    let acl = disk.policy.region_policy(&[file]).expect("one label").acl.clone();
    assert!(acl.permits(&alice_alias, Access::ReadWrite, objects));
    assert!(!acl.permits(&driver_alias, Access::Read, objects));
    assert!(!acl.permits(&alias(&admin()), Access::Read, objects));

    // Alice logs out: the machine revokes its statement, and her VFS is refused at the next look-up.
    run.revocations.end(&Principal::Machine, Ending::Serial(login_serial)).expect("room");
    let revoked = AccessError::Revoked { issuer: Principal::Machine, serial: login_serial };
    assert_eq!(vfs_table.look_up(as_alice, &run.revocations, 0), Err(revoked));
    assert!(driver_table.look_up(as_driver, &run.revocations, 0).is_ok(), "the driver goes on");

    // A restart: other process names, the same owners.
    let mut run = Run::new(2);
    disk.policy = disk.reopened();
    let (mut driver_table, as_driver, group) = run.start_program(1, driver("100-900"));
    assert_eq!(group, driver_group);
    let driver_alias = driver_table.look_up(as_driver, &run.revocations, 0).expect("it stands").clone();
    assert_eq!(disk.policy.look(&driver_alias, 100).map(|(extent, _)| extent), Ok(range(100, 200)));
    assert_eq!(disk.policy.look(&driver_alias, 300).err(), Some(Refused::NotOwner));
    assert_eq!(at(&disk.policy, 300).owner, alice);
}
