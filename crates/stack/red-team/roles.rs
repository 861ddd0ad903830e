//! The enemies, one for each component.

use crate::attempts::{of_monitor, of_policy, views};
use crate::enemy::*;
use crate::mutate::{Random, mutated};
use crate::{samples, serving, stage};
use holdfast_access::{Access, Acl, Conditions, Predicate, Principal, Term, Text};
use holdfast_components::{Asker, Reply};
use holdfast_monitor::{Direction, Reference};
use holdfast_stack::protocol::*;
use holdfast_stack::{DriverConfiguration, FormatterConfiguration};

/// Sends random messages over each port, under each name that there could be.
fn fuzz(enemy: &Enemy, port: &str, samples: &[Vec<u8>], count: usize) {
    let Some(asker) = enemy.asker::<Raw, Skipped>(port) else { return };
    let mut random = Random(0x9e37_79b9 + enemy.context.run + port.len() as u64 * 77);
    let mut silent = 0;
    for _ in 0..count {
        let alias = ALIASES[random.below(4)];
        let message = Raw(mutated(samples, &mut random));
        silent += usize::from(outcome(&asker.ask(alias, &message, soon())) == Outcome::Nothing);
        if random.below(64) == 0 {
            serving::unasked(enemy, port, &mut random);
        }
    }
    report(&format!("silent-{port}"), silent);
}

/// A reply that is not decoded.
struct Skipped;

impl borsh::BorshDeserialize for Skipped {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Self> {
        std::io::copy(reader, &mut std::io::sink()).map(|_| Skipped)
    }
}

fn fuzz_all(enemy: &Enemy) {
    let victim = enemy.orders.victim;
    fuzz(enemy, "monitor", &samples::ask_monitor(victim), 2000);
    fuzz(enemy, "policy", &samples::ask_policy(victim), 2000);
    fuzz(enemy, "cache", &samples::ask_cache(victim), 500);
    fuzz(enemy, "driver-0", &samples::ask_driver(victim), 500);
    fuzz(enemy, "files", &samples::ask_files(), 1000);
}

/// Reads the victim's block, which is in memory, by its right reference.
fn by_reference(monitor: &Monitor, references: &[Reference]) {
    let mut done = 0;
    for at in references {
        for alias in ALIASES {
            let view = monitor.start(alias, &MonitorRequest::View(at.page.region), &[], soon());
            if let Ok(reply) = view.and_then(|ticket| monitor.finish(ticket, soon())) {
                done += secrets_in(&reply.files);
            }
        }
        let write = MonitorRequest::Write { at: *at, skipped: 0, bytes: b"OVERWRITTEN".to_vec() };
        done += Enemy::under_any(monitor, &write);
        done += Enemy::under_any(monitor, &MonitorRequest::WriteTogether { disk: 0, writes: vec![*at] });
    }
    report("references", references.len());
    report("by-reference", done);
}

fn escape(attack: &str) -> bool {
    match attack {
        "escape-file" => drop(std::fs::File::open("/etc/passwd").map(|_| report("opened", 1))),
        "escape-network" => drop(std::net::TcpStream::connect("127.0.0.1:22").map(|_| report("opened", 1))),
        "escape-process" => {
            drop(std::process::Command::new("/bin/true").status().map(|_| report("opened", 1)))
        }
        _ => return false,
    }
    report("lived", 1);
    true
}

pub fn cache_manager(enemy: Enemy) {
    let monitor: Monitor = enemy.asker("monitor").expect("it has one");
    let policy: Policy = enemy.asker("policy").expect("it has one");
    let driver: Asker<DriverRequest, DriverReply> = enemy.asker("driver-0").expect("it has one");
    let victim = enemy.orders.victim;
    let bring = |blocks: Vec<u64>| -> Vec<Reference> {
        let question = PolicyRequest::Cache { disk: 0, blocks };
        let Ok(PolicyReply::References(at)) = policy.ask(1, &question, soon()) else { return Vec::new() };
        for at in &at {
            let blocks = vec![(at.block.number, at.page)];
            let _ = driver.ask(
                1,
                &DriverRequest::Transfer { direction: Direction::Fill, disk: 0, blocks },
                soon(),
            );
        }
        at
    };
    match &*enemy.orders.attack {
        "messages" => {
            of_monitor(&enemy, &monitor);
            of_policy(&enemy, &policy, true);
            let at = bring((victim..victim + 4).collect());
            by_reference(&monitor, &at);
            // One block into another's page, which is empty.
            let question = PolicyRequest::Evict { disk: 0, blocks: vec![victim] };
            let _ = policy.ask(1, &question, soon());
            let mut done = 0;
            for other in &at[1..] {
                for direction in [Direction::Fill, Direction::Drain] {
                    let blocks = vec![(victim, other.page)];
                    let question = DriverRequest::Transfer { direction, disk: 0, blocks };
                    done += usize::from(outcome(&driver.ask(1, &question, soon())) == Outcome::Done);
                }
            }
            report("wrong-page", done);
            fuzz_all(&enemy);
        }
        // References to pages of other blocks of the same owner, some under the number of the requested block. What was
        // to be written is reported as written.
        "swap" => {
            let mut seen: Vec<Reference> = Vec::new();
            let mut turn = 0;
            serving::serve(&enemy, |request| match request.question() {
                Ok(CacheRequest::Want { blocks, .. }) => {
                    let at = bring(blocks);
                    turn += 1;
                    let swapped = at.iter().map(|at| {
                        let is_other = |other: &&Reference| {
                            other.page.region == at.page.region && other.block != at.block
                        };
                        match (seen.iter().rev().find(is_other), turn % 4) {
                            (Some(other), 0) => Reference { block: at.block, ..*other },
                            (Some(other), 1) => *other,
                            (Some(other), 2) => Reference { page: other.page, ..*at },
                            _ => *at,
                        }
                    });
                    let swapped = swapped.collect();
                    seen.extend(at);
                    let kept = seen.len().saturating_sub(4096);
                    seen.drain(..kept);
                    Reply::of(&CacheReply::References(swapped))
                }
                _ => Reply::of(&CacheReply::Done),
            });
        }
        "hoard" => {
            let mut random = Random(77);
            for _ in 0..400 {
                let blocks: Vec<u64> = (0..64).map(|_| random.draw() % 70_000).collect();
                let _ = policy.ask(1, &PolicyRequest::Cache { disk: 0, blocks: blocks.clone() }, soon());
                if random.below(3) == 0 {
                    let _ = policy.ask(1, &PolicyRequest::Evict { disk: 0, blocks }, soon());
                }
            }
        }
        attack => serve_ill(&enemy, attack, &samples::cache_says(victim)),
    }
}

/// What a component that serves requests can do to those who make them.
fn serve_ill(enemy: &Enemy, attack: &str, samples: &[Vec<u8>]) {
    match attack {
        "silent" => serving::silence(),
        "nonsense" => serving::nonsense(enemy, samples, 0x51ed + enemy.context.run),
        "crash" => {}
        attack => assert!(escape(attack), "there is no attack {attack}"),
    }
}

pub fn disk_driver(enemy: Enemy) {
    let monitor: Monitor = enemy.asker("monitor").expect("it has one");
    match &*enemy.orders.attack {
        "messages" => {
            of_monitor(&enemy, &monitor);
            fuzz_all(&enemy);
        }
        // It reports success, and does nothing.
        "lie" => serving::serve(&enemy, |request| match request.question() {
            Ok(DriverRequest::Transfer { blocks, .. }) => {
                Reply::of(&DriverReply { moved: blocks.len() as u32 })
            }
            Err(refusal) => Reply::refuse(refusal),
        }),
        attack => serve_ill(&enemy, attack, &samples::driver_says()),
    }
}

pub fn fs_driver(enemy: Enemy) {
    let monitor: Monitor = enemy.asker("monitor").expect("it has one");
    let policy: Policy = enemy.asker("policy").expect("it has one");
    let cache: Asker<CacheRequest, CacheReply> = enemy.asker("cache").expect("it has one");
    let victim = enemy.orders.victim;
    let told: DriverConfiguration =
        borsh::from_slice(&enemy.context.configuration).expect("its configuration");
    let own = told.own;
    let gives_back = |to: Principal| {
        let blocks = Blocks { first: victim, count: 4 };
        let acl = Acl::of(own.clone(), Access::ReadWrite).expect("storable");
        let (mut asked, mut has_returned) = (0, false);
        serving::serve(&enemy, |request| match request.question() {
            Ok(FilesRequest::Returning) if !has_returned => {
                asked += 1;
                report("asked", asked);
                let (blocks, to) = (vec![blocks], Some(to.clone()));
                Reply::of(&FilesReply::Return { item: 2, blocks, clusters: 4, to })
            }
            Ok(FilesRequest::Returned { .. }) => {
                has_returned = true;
                report("returned", 1);
                let question = PolicyRequest::Accept { disk: 0, blocks, acl: acl.clone() };
                let _ = policy.ask(1, &question, soon());
                Reply::of(&FilesReply::Done)
            }
            Ok(FilesRequest::Unlink { .. }) => Reply::of(&FilesReply::Done),
            // Every name that is looked up exists, so that it can be removed.
            Ok(FilesRequest::LookUp { .. }) => Reply::of(&FilesReply::File(File {
                id: 77,
                is_directory: false,
                size: 700,
                times: [(1, 0); 3],
                is_read_only: false,
            })),
            _ => Reply::refuse(holdfast_components::Refusal::Code(code::MEDIUM)),
        });
    };
    match &*enemy.orders.attack {
        "messages" => {
            of_all(&enemy, &monitor, &policy, &cache, 1);
            views(&monitor);
            let victim = enemy.orders.victim;
            fuzz(&enemy, "policy", &samples::ask_policy(victim), 2000);
            fuzz(&enemy, "cache", &samples::ask_cache(victim), 500);
        }
        "grow" => {
            report("grown", stage::grow_everything());
        }
        "give-away" => gives_back(user("bob")),
        "lose" => gives_back(own.clone()),
        attack => serve_ill(&enemy, attack, &samples::files_say(victim)),
    }
}

/// Makes a file of bob, and returns its first block.
fn own_file(enemy: &Enemy, name: &str, accepts: bool) -> Option<u64> {
    let files: Asker<FilesRequest, FilesReply> = enemy.asker("files")?;
    let policy: Policy = enemy.asker("policy")?;
    let now = (1, 0);
    let question = FilesRequest::Create { parent: 1, name: name.to_owned(), is_directory: false, now };
    let Ok(FilesReply::File(file)) = files.ask(2, &question, soon()) else { return None };
    let question = FilesRequest::Resize { file: file.id, size: 512, owner: user("bob"), now };
    let Ok(FilesReply::Resized { nominated, .. }) = files.ask(2, &question, soon()) else { return None };
    let blocks = *nominated.first()?;
    if accepts {
        let acl = Acl::of(user("bob"), Access::ReadWrite).expect("storable");
        policy.ask(2, &PolicyRequest::Accept { disk: 0, blocks, acl }, soon()).ok()?;
    }
    Some(blocks.first)
}

/// A name of several thousand bytes that differs from all before.
fn large_name(number: usize) -> Principal {
    let text = |term: usize| Text::new(&format!("{number} {term} {}", "x".repeat(180))).expect("a text");
    let setting = |term: usize| Term::Setting(holdfast_access::Name::new("x").expect("a name"), text(term));
    let terms = std::iter::once(Term::All(31)).chain((0..31).map(setting)).collect();
    Principal::Such(Predicate::new(terms, Conditions::CLEAN).expect("a predicate"))
}

/// Tries the monitor and PolicyMgr, and the references that CacheMgr gives of the victim's blocks under a name.
fn of_all(
    enemy: &Enemy,
    monitor: &Monitor,
    policy: &Policy,
    cache: &Asker<CacheRequest, CacheReply>,
    name: u16,
) {
    of_monitor(enemy, monitor);
    of_policy(enemy, policy, false);
    let victim = enemy.orders.victim;
    let want =
        CacheRequest::Want { disk: 0, blocks: (victim..victim + 4).collect(), fill: true, ahead: vec![] };
    if let Ok(CacheReply::References(at)) = cache.ask(name, &want, soon()) {
        by_reference(monitor, &at);
    }
}

pub fn session(enemy: Enemy) {
    let monitor: Monitor = enemy.asker("monitor").expect("it has one");
    let policy: Policy = enemy.asker("policy").expect("it has one");
    let cache: Asker<CacheRequest, CacheReply> = enemy.asker("cache").expect("it has one");
    let files: Asker<FilesRequest, FilesReply> = enemy.asker("files").expect("it has one");
    match &*enemy.orders.attack {
        "messages" => {
            of_all(&enemy, &monitor, &policy, &cache, 2);
            of_files(&files);
            fuzz_all(&enemy);
        }
        "names" => {
            let block = own_file(&enemy, "names", true).expect("made");
            let blocks = Blocks { first: block, count: 1 };
            for number in 0..6000 {
                let question = PolicyRequest::Nominate { disk: 0, blocks, to: large_name(number) };
                let _ = policy.ask(2, &question, soon());
            }
        }
        "acls" => {
            let mut changed = 0;
            for number in 0..400 {
                let name = format!("acl{number}");
                let Some(block) = own_file(&enemy, &name, true) else { continue };
                let blocks = Blocks { first: block, count: 1 };
                let (principal, access) = (user(&name), Some(Access::Read));
                let question = PolicyRequest::ChangeAcls { disk: 0, blocks, principal, access };
                changed += usize::from(policy.ask(2, &question, soon()).is_ok());
                let want = CacheRequest::Want { disk: 0, blocks: vec![block], fill: true, ahead: vec![] };
                let _ = cache.ask(2, &want, soon());
            }
            report("changed", changed);
        }
        "nominations" => {
            let made =
                (0..600).filter(|number| own_file(&enemy, &format!("n{number}"), false).is_some()).count();
            report("made", made);
        }
        attack => serve_ill(&enemy, attack, &[]),
    }
}

/// Tries to reach alice's file, by its name and by guessed numbers.
fn of_files(files: &Asker<FilesRequest, FilesReply>) {
    let (now, secret) = ((1, 0), "SECRET".to_owned());
    let question = FilesRequest::LookUp { parent: 1, name: secret.clone() };
    let Ok(FilesReply::File(file)) = files.ask(2, &question, soon()) else {
        report("no-file", 1);
        return;
    };
    let id = file.id;
    let mut done = 0;
    for owner in [user("alice"), user("bob")] {
        for size in [0, 1, 4 << 20, u64::MAX] {
            done +=
                Enemy::under_any(files, &FilesRequest::Resize { file: id, size, owner: owner.clone(), now });
        }
        let claim = FilesRequest::Claim { file: id, offset: 0, length: u64::MAX, owner };
        done += Enemy::under_any(files, &claim);
    }
    let other = "bob's".to_owned();
    for question in [
        FilesRequest::Unlink { parent: 1, name: secret.clone(), now },
        FilesRequest::Rename {
            from: 1,
            name: secret.clone(),
            to: 1,
            new_name: "x".to_owned(),
            replace: true,
            now,
        },
        FilesRequest::Rename { from: 1, name: other, to: 1, new_name: secret, replace: true, now },
        FilesRequest::SetTimes { file: id, times: [Some(now); 3], is_read_only: Some(true) },
        FilesRequest::Returned { item: 2, blocks: vec![], clusters: 1, now },
    ] {
        done += Enemy::under_any(files, &question);
    }
    report("files", done);
    // References that others hold.
    for low in 0..64 {
        let _ =
            files.ask(2, &FilesRequest::Forget { file: id & !0xffff_ffff | low, count: u64::MAX }, soon());
    }
}

/// Acts for the administrator: first it does its work, then, once there are files, what it must not.
pub fn formatter(enemy: Enemy) {
    const ADMINISTRATOR: u16 = 2;
    let policy: Policy = enemy.asker("policy").expect("it has one");
    let told: FormatterConfiguration =
        borsh::from_slice(&enemy.context.configuration).expect("its configuration");
    let long = holdfast_components::Patience::of(std::time::Duration::from_secs(100));
    for (disk, blocks, to) in told.partitions {
        let question = PolicyRequest::Nominate { disk, blocks, to };
        policy.ask(ADMINISTRATOR, &question, long).expect("the administrator may");
    }
    if escape(&enemy.orders.attack) {
        return;
    }
    // With so many owners, alice and bob have files.
    let mut labels = 0;
    for _ in 0..2400 {
        if let Ok(PolicyReply::Sizes { labels: now, .. }) =
            policy.ask(ADMINISTRATOR, &PolicyRequest::Sizes { disk: 0 }, soon())
        {
            labels = now;
        }
        if labels >= 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    report("labels", labels);
    of_policy_as_administrator(&policy);
}

/// Tries for each block of the disk to learn its owner and who may use it, to own it, and to have it used.
fn of_policy_as_administrator(policy: &Policy) {
    let (mut done, mut told) = (0, 0);
    let bob = Acl::of(user("bob"), Access::ReadWrite).expect("storable");
    let mut ask = |question: &PolicyRequest| {
        for alias in [0, 1, 2, 3] {
            let answer = policy.ask(alias, question, soon());
            done += usize::from(outcome(&answer) == Outcome::Done);
            let words = words(&answer);
            told += usize::from(words.contains("alice") || words.contains("bob"));
        }
    };
    for block in (0..3000).chain([u64::MAX]) {
        let blocks = Blocks { first: block, count: 1 };
        ask(&PolicyRequest::Look { disk: 0, block });
        if block % 16 == 0 {
            ask(&PolicyRequest::ChangeAcls {
                disk: 0,
                blocks,
                principal: user("bob"),
                access: Some(Access::Read),
            });
            ask(&PolicyRequest::Nominate { disk: 0, blocks, to: user("bob") });
            ask(&PolicyRequest::Accept { disk: 0, blocks, acl: bob.clone() });
            ask(&PolicyRequest::Owns { disk: 0, blocks, owner: user("alice").digest().0 });
            ask(&PolicyRequest::Cache { disk: 0, blocks: vec![block] });
        }
    }
    report("done", done);
    report("told", told);
}
