//! Components that are killed at a message: at each message that each component sends in a scripted piece of work,
//! right before and right after it is sent. Needs root, FUSE and dosfstools, as `tests/stack.rs`.

use crate::common::stack;
mod trace;

use stack::{Running, aftermath, content, uncached};
use std::fs;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;
use trace::{Moment, Watch};

const COMPONENTS: [&str; 4] = ["fs-driver", "policy-manager", "cache-manager", "disk-driver"];
/// The number of times within a minute that a component is restarted.
const KILLS_MAX: usize = 5;

/// A piece of work with file names of its own. Returns what it achieved at least, whatever failed later: the file's
/// content if it was synced.
fn work(directory: &Path, round: usize) -> (Result<()>, Option<Vec<u8>>) {
    let at = |name: &str| directory.join(format!("{name} {round}"));
    let mut synced = None;
    let mut all = || -> Result<()> {
        let file =
            fs::File::options().create(true).read(true).write(true).truncate(false).open(at("made"))?;
        let expected = content(round, 3000);
        file.write_all_at(&expected, 0)?;
        file.sync_all()?;
        synced = Some(expected.clone());
        fs::create_dir(at("directory"))?;
        fs::write(at("directory").join("inner"), content(round + 1, 1500))?;
        fs::rename(at("directory").join("inner"), at("moved"))?;
        fs::remove_dir(at("directory"))?;
        let moved = fs::File::options().write(true).open(at("moved"))?;
        moved.set_len(200)?;
        moved.set_len(2000)?;
        moved.sync_all()?;
        drop(moved);
        let mut cut = content(round + 1, 200);
        cut.resize(2000, 0);
        assert!(uncached(&at("moved"))? == cut, "round {round}: a file that was cut and grown");
        fs::remove_file(at("moved"))?;
        assert!(uncached(&at("made"))? == expected, "round {round}: a file that was synced");
        Ok(())
    };
    let done = all();
    (done, synced)
}

fn pid(running: &mut Running, component: &str) -> i32 {
    running.until("its process", |running| running.component(component)["pid"].as_i64().is_some());
    running.component(component)["pid"].as_i64().expect("it runs") as i32
}

/// Kills each component at some of its messages, in as many stacks as that takes: at those that `chosen` picks from
/// their number.
fn kill_at(chosen: impl Fn(u64) -> Vec<u64>) {
    let fresh = || Running::start("mount", stack::copy(), None);
    let mut running = fresh();
    // The number of messages in the second round, when caches are as warm as in the rounds that follow.
    work(&running.alice, 0).0.expect("nobody is killed");
    let mut points: Vec<Vec<(u64, Moment)>> = Vec::new();
    for component in COMPONENTS {
        let watch = Watch::begin(pid(&mut running, component), None);
        work(&running.alice, 1).0.expect("nobody is killed");
        let (messages, _) = watch.end();
        assert!(messages > 0, "{component} takes part");
        let _ = fs::remove_file(running.alice.join("made 1"));
        let both = |number: u64| [(number, Moment::Before), (number, Moment::After)];
        points.push(chosen(messages).into_iter().flat_map(both).collect());
    }
    assert_eq!(aftermath(running), Vec::<String>::new());

    let (mut killed, mut refused, mut round) = (0, 0, 10);
    while points.iter().any(|points| !points.is_empty()) {
        running = fresh();
        let mut kept = Vec::new();
        for (component, points) in COMPONENTS.iter().zip(&mut points) {
            for (number, when) in points.drain(..points.len().min(KILLS_MAX)) {
                round += 2;
                let watch = Watch::begin(pid(&mut running, component), Some((number, when)));
                let (done, synced) = work(&running.alice, round);
                let (_, is_killed) = watch.end();
                killed += usize::from(is_killed);
                if let Err(error) = done {
                    refused += 1;
                    println!("{component} at {number} {when:?}: {error}");
                    // An error that programs know, and not one of a mount that is gone.
                    let code = error.raw_os_error();
                    let is_clear =
                        matches!(code, Some(libc::EIO | libc::ENOENT | libc::EEXIST | libc::EACCES));
                    assert!(is_clear, "{component} at {number} {when:?}: {error}");
                }
                kept.extend(synced.map(|bytes| (round, bytes)));
                // Everything works again in the next round.
                work(&running.alice, round + 100_000).0.unwrap_or_else(|error| {
                    panic!("after {component} at {number} {when:?}: {error}: {}", running.words())
                });
            }
        }
        for (round, bytes) in &kept {
            let found = uncached(&running.alice.join(format!("made {round}"))).expect("it was durable");
            assert!(found == *bytes, "round {round}");
        }
        let (restarts, is_down) = running.others("");
        assert!(!is_down && restarts > 0);
        assert_eq!(aftermath(running), Vec::<String>::new());
    }
    println!("{killed} kills, {refused} pieces of work with an error");
    assert!(killed > 0);
}

/// Proves: whichever component is killed, before or after whichever of its messages, what was acknowledged stays,
/// others go on, an operation in flight succeeds or fails with an error that programs know, and `fsck.fat` finds
/// nothing. Tries some messages of each component.
#[test]
fn killed_at_some_messages() {
    kill_at(|messages| {
        let step = messages.div_ceil(3).max(1);
        (1..=messages).step_by(step as usize).collect()
    });
}

/// [`killed_at_some_messages`] for every message. Takes minutes.
#[test]
#[ignore = "long: scripts/soak disks"]
fn killed_at_every_message() {
    kill_at(|messages| (1..=messages).collect());
}
