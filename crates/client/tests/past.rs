//! Past states that an engine reads: from an honest server, and from one that lies about them.

use crate::common;

use common::*;
use holdfast_client::{Engine, FsError, PastState, PastTree, View};
use holdfast_content::{Content, Handle};
use holdfast_protocol::message::{Request, Response};
use std::sync::Arc;
use std::time::Duration;

/// No operation is given up because the machine is slow: it would be made again after those that came later.
const ABORT_AFTER: Duration = Duration::from_secs(3600);

fn content(tree: &PastTree, directory: Handle, name: &str) -> Option<Vec<u8>> {
    let entry = tree.entry(directory, name.as_bytes()).expect("read")?;
    match &tree.inode(entry.handle).expect("read").content {
        Content::Inline(bytes) => Some(bytes.clone()),
        other => panic!("{other:?}"),
    }
}

fn named(engine: &Engine, name: &str) -> Result<PastState, FsError> {
    let states = engine.past_states()?;
    let wanted = |state: &&PastState| state.name.as_ref().is_some_and(|known| known.value.name == name);
    states.iter().find(wanted).cloned().ok_or(FsError::NotFound)
}

/// A file system with two named past states, "one" and "two", of a file that is deleted by now, and the engines of two users.
fn world() -> (World, Arc<Engine>, Arc<Engine>) {
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (world.start(0), world.start(1));
    modify(&a, create(world.group_dir, "file", b"first")).unwrap();
    a.name_state("one").unwrap();
    modify(&b, write(world.group_dir, "file", b"second, by b")).unwrap();
    b.name_state("two").unwrap();
    commit(&a, unlink(world.group_dir, "file"));
    (world, a, b)
}

/// Proves: a past state that one user named, another finds and reads as it was. A name can be given once only, and is gone
/// when it is removed. States without names can be read as well.
#[test]
fn an_honest_past_is_read() {
    let (world, a, b) = world();
    for engine in [&a, &b] {
        engine.fetch().unwrap();
        let read =
            |name| content(&engine.past(&named(engine, name).unwrap()).unwrap(), world.group_dir, "file");
        assert_eq!(read("one").as_deref(), Some(&b"first"[..]));
        assert_eq!(read("two").as_deref(), Some(&b"second, by b"[..]));
    }
    let states = a.past_states().unwrap();
    let last = states.iter().rfind(|state| state.name.is_none()).unwrap();
    assert_eq!(content(&a.past(last).unwrap(), world.group_dir, "file"), None);
    for state in states.iter() {
        a.past(state).unwrap_or_else(|error| panic!("{state:?}: {error}"));
    }
    assert!(matches!(b.name_state("one"), Err(FsError::Exists)));
    assert!(matches!(b.name_state("1"), Err(FsError::Invalid(_))));
    a.end_name("one").unwrap();
    assert!(matches!(named(&a, "one"), Err(FsError::NotFound)));
    assert!(matches!(a.end_name("one"), Err(FsError::NotFound)));
    assert!(a.notices().is_empty() && b.notices().is_empty(), "no alarm");
}

/// A lie about the past: its name, words of the error that refuses it, and what makes the server's link tell it.
type Lie = (&'static str, &'static str, fn(&Link, &World));

const LIES: &[Lie] = &[
    ("a name nobody gave", "nobody gave this name", |link, _| {
        link.tamper(|answer| {
            if let Response::History { named, .. } = answer {
                named.iter_mut().for_each(|name| name.value.name += "x");
            }
        });
    }),
    ("a name moved to another state", "nobody gave this name", |link, _| {
        link.tamper(|answer| {
            if let Response::History { named, .. } = answer {
                let log = named[0].value.log;
                named[1].value.log = log;
            }
        });
    }),
    ("a list out of order", "out of order", |link, _| {
        link.tamper(|answer| {
            if let Response::History { points, .. } = answer {
                points.reverse();
            }
        });
    }),
    ("other times", "dated", |link, _| {
        link.tamper(|answer| {
            if let Response::History { points, .. } = answer {
                points.iter_mut().for_each(|point| point.time_ns += 1);
            }
        });
    }),
    ("another state", "was asked for", |link, _| {
        link.tamper(|answer| {
            if let Response::Past(Some(reply)) = answer {
                reply.view.log.size += 1;
            }
        });
    }),
    ("an altered table", "never was", |link, _| {
        link.tamper(|answer| {
            if let Response::Past(Some(reply)) = answer {
                let slot = reply.view.slots.values_mut().next_back().expect("a slot");
                slot.value.handles.values_mut().for_each(|handle| handle.reference.length += 1);
            }
        });
    }),
    ("a fork's state", "made up, or of a fork", |link, world| {
        let fork = world.server.fork();
        let peer = world.users[1].key.public();
        link.forge(move |request| match request {
            Request::Past { log_size, .. } => {
                // The proof is for the fork's log, which differs from the one this client knows.
                let answer = fork.handle(peer, Request::Past { log_size: *log_size, known: log_size + 1 });
                Some(answer)
            }
            _ => None,
        });
    }),
    ("blocks withheld", "does not have block", |_, world| {
        world.server.with_blocks(|blocks| blocks.clear());
    }),
    ("something else", "was answered by", |link, _| {
        link.forge(|request| matches!(request, Request::Past { .. }).then_some(Response::Done));
    }),
];

/// Proves: each lie about the past is refused with its reason, never shown as absence, and only reading the past fails: the
/// engine goes on.
#[test]
fn lies_about_the_past_are_refused() {
    for (what, why, tell) in LIES {
        let (world, _a, b) = world();
        b.fetch().unwrap();
        // A new engine: this one keeps in memory what it verified of the past.
        b.stop();
        drop(b);
        let b = world.start(1);
        tell(&world.users[1].link, &world);
        let result = named(&b, "two").and_then(|state| {
            let tree = b.past(&state)?;
            let entry = tree.entry(world.group_dir, b"file")?.ok_or(FsError::NotFound)?;
            tree.inode(entry.handle).map(drop)
        });
        let error = result.expect_err(what);
        assert!(error.to_string().contains(why), "{what}: {error}");
        assert!(!matches!(error, FsError::NotFound | FsError::Frozen(_)), "{what}: {error:?}");
        assert!(b.status().frozen.is_none(), "{what}");
        if matches!(error, FsError::Integrity(_)) {
            assert!(!b.notices().is_empty(), "{what} has a notice");
        }
    }
}

/// Proves: if the server answers with an older state when the present one is named, naming fails.
#[test]
fn the_present_is_what_is_named() {
    let (world, a, _b) = world();
    world.users[0].link.tamper(|answer| {
        if let Response::History { points, more, .. } = answer {
            points.truncate(1);
            *more = false;
        }
    });
    let error = a.name_state("now").expect_err("it is older");
    assert!(error.to_string().contains("older than the one accepted"), "{error}");
    assert!(a.status().frozen.is_none());
}
