//! What every enemy tries at the monitor and at PolicyMgr, whichever component it is.

use crate::enemy::*;
use holdfast_access::{
    Access, Acl, Credential, Ending, Principal, Proof, Scope, Statement, Step, VerifiedCredential,
};
use holdfast_crypto::SigningKey;
use holdfast_monitor::{BlockId, Direction, PageId, Reference, RegionId};
use holdfast_stack::protocol::*;

/// The number of regions that are tried. Their names are small numbers.
const REGIONS: std::ops::RangeInclusive<u64> = 1..=48;

pub fn of_monitor(enemy: &Enemy, monitor: &Monitor) {
    let victim = BlockId { disk: 0, number: enemy.orders.victim };
    let everyone = Acl::of(user("bob"), Access::ReadWrite).expect("storable");
    let mut own = vec![
        ("create-region", MonitorRequest::CreateRegion { acl: everyone.clone(), pages: 8 }),
        ("erase", MonitorRequest::Erase { first: victim, count: 8 }),
        ("erase-all", MonitorRequest::Erase { first: BlockId { disk: 0, number: 0 }, count: u64::MAX }),
        ("places", MonitorRequest::Places { first: BlockId { disk: 0, number: 0 }, count: u64::MAX }),
    ];
    for region in REGIONS.map(RegionId) {
        own.push(("assign", MonitorRequest::Assign { region, first: 250, blocks: vec![victim] }));
        own.push(("set-acl", MonitorRequest::SetAcl { region, acl: everyone.clone() }));
        own.push(("remove", MonitorRequest::RemoveRegion(region)));
        for index in [0, 1, 255, u32::MAX] {
            own.push(("free", MonitorRequest::Free { page: PageId { region, index } }));
        }
    }
    let mut granted: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for (name, question) in &own {
        *granted.entry(name).or_default() += Enemy::under_any(monitor, question);
    }
    granted.into_iter().for_each(|(name, count)| report(name, count));
    views(monitor);
    writes(monitor, victim);
    transfers(monitor, victim);
    impersonate(monitor);
}

/// Tries to see every region under every name.
pub fn views(monitor: &Monitor) {
    let mut secrets = 0;
    for region in REGIONS.map(RegionId) {
        for alias in ALIASES {
            let Ok(ticket) = monitor.start(alias, &MonitorRequest::View(region), &[], soon()) else {
                continue;
            };
            if let Ok(reply) = monitor.finish(ticket, soon()) {
                secrets += secrets_in(&reply.files);
            }
        }
    }
    report("secrets-seen", secrets);
}

/// Tries every page with the block of the victim that could be in it, and with other generations.
fn writes(monitor: &Monitor, victim: BlockId) {
    let mut done = 0;
    for region in REGIONS.map(RegionId) {
        for index in 0..24 {
            for number in [victim.number, victim.number + u64::from(index)] {
                let block = BlockId { number, ..victim };
                for generation in [1, 2] {
                    let at = Reference { page: PageId { region, index }, generation, block };
                    for alias in [1, 2] {
                        let bytes = b"OVERWRITTEN".to_vec();
                        let write = MonitorRequest::Write { at, skipped: 0, bytes };
                        done += usize::from(outcome(&monitor.ask(alias, &write, soon())) == Outcome::Done);
                    }
                }
            }
        }
    }
    report("writes", done);
    let at = |index| Reference { page: PageId { region: RegionId(1), index }, generation: 1, block: victim };
    let together = MonitorRequest::WriteTogether { disk: 0, writes: (0..4).map(at).collect() };
    report("writes-together", Enemy::under_any(monitor, &together));
}

/// Tries to move the victim's block into a page of another block, and back. Only the DiskDriver may do it right.
fn transfers(monitor: &Monitor, victim: BlockId) {
    let mut done = 0;
    for region in REGIONS.map(RegionId) {
        for index in 0..4 {
            for direction in [Direction::Fill, Direction::Drain] {
                for first in [victim, BlockId { disk: 0, number: 1 }, BlockId { disk: 1, number: 0 }] {
                    let pages = vec![PageId { region, index }];
                    let question = MonitorRequest::Transfer { direction, first, pages };
                    done += usize::from(outcome(&monitor.ask(1, &question, soon())) == Outcome::Done);
                }
            }
        }
    }
    report("transfers", done);
}

/// Tries names that were not proven: by aliases that do not exist, by statements of a key that was granted nothing, by
/// proofs that do not follow, and by ending what others stated.
fn impersonate(monitor: &Monitor) {
    let key = SigningKey::from_seed(&[9; 32]);
    let mallory = Principal::Key(key.public());
    let mut names = 0;
    for principal in [user("alice"), user("admin"), Principal::Machine] {
        let statement = Statement::SpeaksFor {
            delegate: mallory.clone(),
            principal: principal.clone(),
            scope: Scope::EVERYTHING,
        };
        let said = Credential { issuer: mallory.clone(), serial: 1, expires_s: None, statement };
        let id = said.id();
        let signed = said.clone().sign(&key);
        names += usize::from(VerifiedCredential::signed(&signed).is_err());
        let _ = monitor.ask(1, &MonitorRequest::Present(signed.clone()), soon());
        // The same statement, as if the machine had made it.
        let mut forged = said;
        forged.issuer = Principal::Machine;
        names += usize::from(
            outcome(&monitor.ask(1, &MonitorRequest::Present(forged.sign(&key)), soon())) == Outcome::Done,
        );
        for steps in [
            vec![Step::Itself(principal.clone())],
            vec![Step::Namer(principal.clone())],
            vec![Step::Namer(principal.clone()), Step::Handoff(id, 0)],
            vec![Step::Itself(mallory.clone()), Step::Handoff(id, 0)],
            vec![Step::Namer(principal.clone()), Step::Itself(mallory.clone()), Step::Chain(1, 0)],
            vec![Step::Chain(0, 0)],
            vec![Step::Chain(255, 255); 64],
            vec![],
        ] {
            names += Enemy::under_any(monitor, &MonitorRequest::AddAlias(Proof(steps)));
        }
    }
    report("names", names);
    let mut endings = 0;
    for seed in 0..300u16 {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&seed.to_le_bytes());
        let key = SigningKey::from_seed(&bytes);
        let issuer = Principal::Key(key.public());
        let statement = Statement::Ends(Ending::Everything);
        let signed = Credential { issuer, serial: 1, expires_s: None, statement }.sign(&key);
        endings +=
            usize::from(outcome(&monitor.ask(0, &MonitorRequest::Present(signed), soon())) == Outcome::Done);
    }
    // It may end its own keys' statements, but not so many that nobody else can.
    report("endings-over", endings.saturating_sub(256));
}

/// Tries owners, ACLs and pages of blocks that are alice's.
pub fn of_policy(enemy: &Enemy, policy: &Policy, is_cache: bool) {
    let first = enemy.orders.victim;
    let all = [Blocks { first, count: 1 }, Blocks { first, count: 8 }, Blocks { first: 0, count: u64::MAX }];
    let everyone = Acl::of(user("bob"), Access::ReadWrite).expect("storable");
    let (mut owners, mut acls, mut looks) = (0, 0, 0);
    for disk in [0, 1, u16::MAX] {
        for blocks in all {
            for to in [user("bob"), Principal::Machine] {
                owners += Enemy::under_any(policy, &PolicyRequest::Nominate { disk, blocks, to });
            }
            owners +=
                Enemy::under_any(policy, &PolicyRequest::Accept { disk, blocks, acl: everyone.clone() });
            for access in [None, Some(Access::Read), Some(Access::ReadWrite)] {
                let principal = user("bob");
                acls +=
                    Enemy::under_any(policy, &PolicyRequest::ChangeAcls { disk, blocks, principal, access });
            }
        }
        for block in [first, first + 1, u64::MAX] {
            looks += Enemy::under_any(policy, &PolicyRequest::Look { disk, block });
        }
    }
    report("owners", owners);
    report("acls", acls);
    report("looks", looks);
    let blocks = Blocks { first, count: 1 };
    let owner = user("alice").digest().0;
    report("owns", Enemy::under_any(policy, &PolicyRequest::Owns { disk: 0, blocks, owner }));
    report("format", Enemy::under_any(policy, &PolicyRequest::Format { disk: 0 }));
    report("sizes", Enemy::under_any(policy, &PolicyRequest::Sizes { disk: 0 }));
    let cache = Enemy::under_any(policy, &PolicyRequest::Cached { disk: 0, from: 0 })
        + Enemy::under_any(policy, &PolicyRequest::Evict { disk: 0, blocks: vec![first] })
        + Enemy::under_any(policy, &PolicyRequest::Cache { disk: 0, blocks: vec![first] });
    if !is_cache {
        report("cache", cache);
    }
}
