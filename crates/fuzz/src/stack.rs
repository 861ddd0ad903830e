//! The least-privilege file system: messages of its components, credentials, policy tables, boot sectors.

use crate::{Target, encode, message, samples, text};
use holdfast_access::{
    Access, Acl, Credential, Manifest, Name, Principal, Proof, Revocations, Scope, Statement,
    VerifiedCredential,
};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_fat::Moment;
use holdfast_fat::format::{FormatOptions, format};
use holdfast_policy::{Block, Disk, Effect, Policy};
use holdfast_stack::protocol::*;
use std::collections::BTreeMap;

const BLOCK: u64 = 1000;

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "ask-monitor", samples: || samples::ask_monitor(BLOCK), run: message::<MonitorRequest> },
    Target { name: "monitor-says", samples: || samples::monitor_says(BLOCK), run: message::<MonitorReply> },
    Target { name: "ask-policy", samples: || samples::ask_policy(BLOCK), run: message::<PolicyRequest> },
    Target { name: "policy-says", samples: || samples::policy_says(BLOCK), run: message::<PolicyReply> },
    Target { name: "ask-cache", samples: || samples::ask_cache(BLOCK), run: message::<CacheRequest> },
    Target { name: "cache-says", samples: || samples::cache_says(BLOCK), run: message::<CacheReply> },
    Target { name: "ask-driver", samples: || samples::ask_driver(BLOCK), run: message::<DriverRequest> },
    Target { name: "driver-says", samples: samples::driver_says, run: message::<DriverReply> },
    Target { name: "ask-files", samples: samples::ask_files, run: message::<FilesRequest> },
    Target { name: "files-say", samples: || samples::files_say(BLOCK), run: message::<FilesReply> },
    Target { name: "refusal", samples: refusals, run: message::<holdfast_components::Refusal> },
    Target {
        name: "credential",
        samples: credentials,
        run: |bytes| VerifiedCredential::signed(bytes).is_ok(),
    },
    Target { name: "proof", samples: proofs, run: message::<Proof> },
    Target { name: "manifest", samples: || vec![encode(&manifest())], run: message::<Manifest> },
    Target { name: "revocations", samples: revocations, run: check_revocations },
    Target { name: "principal-text", samples: principals, run: text::<Principal> },
    Target { name: "acl-text", samples: acls, run: text::<Acl> },
    Target { name: "policy-table", samples: tables, run: table },
    Target { name: "boot-sector", samples: boot_sectors, run: boot_sector },
];

fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

fn refusals() -> Vec<Vec<u8>> {
    use holdfast_components::Refusal;
    let failed = Refusal::Failed("why".to_owned());
    [Refusal::AliasInvalid, Refusal::NotPermitted, Refusal::Malformed, failed, Refusal::Code(5)]
        .iter()
        .map(encode)
        .collect()
}

fn manifest() -> Manifest {
    let mut manifest = Manifest::of_executable(Digest([1; 32]), 0);
    manifest.component = Some(Name::new("vfs").expect("a name"));
    manifest
}

fn credentials() -> Vec<Vec<u8>> {
    let key = SigningKey::from_seed(&[3; 32]);
    let issuer = Principal::Key(key.public());
    let speaks =
        Statement::SpeaksFor { delegate: user("bob"), principal: issuer.clone(), scope: Scope::EVERYTHING };
    [speaks, Statement::Ends(holdfast_access::Ending::Before(7))]
        .map(|statement| {
            Credential { issuer: issuer.clone(), serial: 1, expires_s: Some(9), statement }.sign(&key)
        })
        .to_vec()
}

fn proofs() -> Vec<Vec<u8>> {
    // The last of the requests to the monitor carries one of every step, behind a byte that says so.
    samples::ask_monitor(BLOCK).pop().map(|message| message[1..].to_vec()).into_iter().collect()
}

fn revocations() -> Vec<Vec<u8>> {
    let mut revocations = Revocations::new();
    let key = SigningKey::from_seed(&[4; 32]);
    let issuer = Principal::Key(key.public());
    revocations.end(&issuer, holdfast_access::Ending::Serial(4)).expect("room");
    revocations.end(&issuer, holdfast_access::Ending::Before(2)).expect("room");
    vec![Revocations::new().encode(), revocations.encode()]
}

fn check_revocations(bytes: &[u8]) -> bool {
    let Ok(revocations) = Revocations::decode(bytes) else { return false };
    // Only keys' statements last, so others may be missing; what is there must be read back as it was.
    let lasting = revocations.encode();
    assert!(Revocations::decode(&lasting).is_ok_and(|again| again.encode() == lasting));
    true
}

fn principals() -> Vec<Vec<u8>> {
    ["user:alice", "group:staff", "machine:", "process:000102030405060708090a0b0c0d0e0f/7"]
        .map(|text| text.as_bytes().to_vec())
        .into_iter()
        .chain(
            [Principal::Such(
                holdfast_access::Predicate::new(
                    vec![
                        holdfast_access::Term::All(2),
                        holdfast_access::Term::Uid(7),
                        holdfast_access::Term::Component(Name::new("vfs").expect("a name")),
                    ],
                    holdfast_access::Conditions::CLEAN,
                )
                .expect("one tree"),
            )]
            .map(|principal| principal.to_string().into_bytes()),
        )
        .collect()
}

fn acls() -> Vec<Vec<u8>> {
    let mut acl = Acl::of(user("alice"), Access::ReadWrite).expect("storable");
    acl.set(user("bob"), Access::Read).expect("room");
    vec![acl.to_string().into_bytes(), Acl::nobody().to_string().into_bytes()]
}

/// A disk whose table has three blocks before those in `tables`.
fn disk() -> Disk {
    Disk { number: 0, identity: [7; 16], blocks: 1000, table_first: 1000, table_blocks: 8 }
}

/// A table as it is stored: each block behind its number.
fn tables() -> Vec<Vec<u8>> {
    let (mut policy, change) = Policy::create(disk(), user("admin")).expect("a table");
    let mut stored: BTreeMap<u64, Box<Block>> = BTreeMap::new();
    let mut store = |change: &holdfast_policy::Change| {
        for effect in change.effects() {
            if let Effect::Store(images) = effect {
                for image in images {
                    stored.insert(image.block, image.bytes.clone());
                }
            }
        }
    };
    store(&change);
    policy.carried_out(change);
    let by = |name: &str| holdfast_access::Alias::attested(user(name), Scope::EVERYTHING);
    for first in [10, 300, 700] {
        let range = holdfast_policy::BlockRange::new(first, 5).expect("a range");
        policy.chown_nominate(&by("admin"), range, user("alice")).expect("the administrator's");
        let acl = Acl::of(user("alice"), Access::ReadWrite).expect("storable");
        let change = policy.chown_accept(&by("alice"), range, acl).expect("nominated");
        store(&change);
        policy.carried_out(change);
    }
    let last = *stored.keys().next_back().expect("blocks") + 1;
    let block = |number| stored.get(&number).map_or([0; 4096], |block| **block);
    vec![(0..last).flat_map(block).collect()]
}

fn table(bytes: &[u8]) -> bool {
    let read = |block: u64| {
        let from = usize::try_from(block).ok().and_then(|block| block.checked_mul(4096));
        let block = from.and_then(|from| bytes.get(from..from + 4096)).ok_or("there is no such block")?;
        Ok::<_, String>(Box::new(<[u8; 4096]>::try_from(block).expect("a block")))
    };
    Policy::open(disk(), user("admin"), read).is_ok()
}

const PARTITION: u64 = 40 << 20;

fn boot_sectors() -> Vec<Vec<u8>> {
    let options = FormatOptions {
        sector_bytes: 512,
        cluster_bytes: Some(512),
        label: "TESTED".to_owned(),
        volume_id: 7,
        hidden_sectors: 0,
        now: Moment { seconds: 0, nanoseconds: 0 },
        utc_offset_minutes: 0,
    };
    let made = format(PARTITION, &options).expect("formats");
    let first = made.blocks().next().expect("a boot sector").1;
    vec![first[..512].to_vec()]
}

fn boot_sector(bytes: &[u8]) -> bool {
    use holdfast_fat::Area;
    let Ok(layout) = holdfast_fat::Layout::from_boot_sector(bytes, PARTITION) else { return false };
    let data = layout.area_start(Area::Data);
    let end = data + layout.area_blocks(Area::Data) * u64::from(layout.block_bytes);
    assert!(data <= end && end <= PARTITION, "areas are on the disk");
    true
}
