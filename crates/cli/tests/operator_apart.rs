//! The malicious operator of `operator.rs` again, with the order in etcd and the blocks in a bucket behind a block
//! server. The attacks, and the verdicts of clients, are the same.

use crate::{common, operator};

use common::cluster::Pair;
use common::object_store::Engine;
use holdfast_sim::evil::Attack;

/// The pair of a reader and a writer whose mounts an attack on the order freezes.
fn pair_of(attack: Attack) -> (String, String) {
    let name = format!("{attack:?}").to_lowercase();
    (format!("{name}-writer"), format!("{name}-reader"))
}

fn victim_of(attack: Attack) -> String {
    format!("{attack:?}").to_lowercase()
}

/// Proves: every attack has the verdict that it has on a server with everything in its data directory, and clients that
/// were not attacked notice nothing. When an honest server takes over at last, users whose mounts were frozen
/// acknowledge the alarm and go on, and all that was written is there.
#[test]
fn every_attack_with_order_and_blocks_apart() {
    let engine = Engine::start();
    let mut people = vec!["alice".to_owned(), "bob".to_owned(), "carol".to_owned()];
    for attack in operator::ON_THE_ORDER {
        let (writer, reader) = pair_of(attack);
        people.extend([writer, reader]);
    }
    people.extend(operator::ON_OPERATIONS.map(victim_of));
    let people: Vec<&str> = people.iter().map(String::as_str).collect();
    let bucket = engine.address("&durability=object&cache=64M");
    let mut pair = Pair::with_blocks(&people, 0, &["--blocks", &bucket]);
    pair.second.process.stop();
    pair.world.stop_server();
    let server = operator::evil(&pair.world);

    pair.world.mount("alice");
    pair.world.mount("bob");
    for attack in operator::ON_DATA {
        operator::reading(&pair.world, &server, ("alice", "bob"), attack);
    }
    operator::listing(&pair.world, &server, ("alice", "bob"));
    // Later attacks are on other pairs.
    pair.world.umount("bob");
    pair.world.umount("alice");
    for attack in operator::ON_THE_ORDER {
        let (writer, reader) = pair_of(attack);
        pair.world.mount(&writer);
        pair.world.mount(&reader);
        operator::reading(&pair.world, &server, (&writer, &reader), attack);
        pair.world.umount(&reader);
        pair.world.umount(&writer);
    }
    for attack in operator::ON_OPERATIONS {
        let writer = victim_of(attack);
        pair.world.mount(&writer);
        operator::writing(&pair.world, &server, &writer, attack);
        pair.world.umount(&writer);
    }
    drop(server);

    pair.second.start(&[]);
    let carol = pair.world.mount("carol");
    let bob = pair.world.mount("bob");
    for attack in operator::ON_DATA {
        for mount in [&carol, &bob] {
            let found = std::fs::read(mount.join(format!("team/{attack:?}-target"))).expect("read");
            assert!(found == operator::data(attack as u8 * 4 + 1), "{attack:?}");
        }
    }
    for attack in operator::ON_THE_ORDER {
        let (_, reader) = pair_of(attack);
        let refused = pair.world.try_mount(&reader, &[]);
        assert!(!refused.status.success(), "{attack:?}: an alarm is not forgotten by itself");
        let mount = pair.world.mount_with(&reader, &["--acknowledge-alarm"]);
        let found = std::fs::read(mount.join(format!("team/{attack:?}-small"))).expect("read");
        assert_eq!(found, b"inlined", "{attack:?}");
        pair.world.umount(&reader);
    }
    pair.world.umount("bob");
    pair.world.umount("carol");
}
