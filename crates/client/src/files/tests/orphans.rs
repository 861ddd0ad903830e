//! Tests of files made without a name.

use super::model::peek;
use super::tools::*;
use super::*;
use std::sync::atomic::Ordering::SeqCst;

fn make(client: &Client) -> (Ino, FileHandleId) {
    let (made, opened) = client.tmpfile(&WHO, Ino::ROOT, 0o640, OpenFlags::READ_WRITE).unwrap();
    assert_eq!((made.links, made.size, made.mode, made.kind), (0, 0, 0o640, InodeKind::File));
    (made.ino, opened.handle)
}

fn spooled(client: &Client) -> usize {
    std::fs::read_dir(client.dir.path().join("spool")).unwrap().count()
}

fn edits(client: &Client) -> u64 {
    client.memory.edits.load(SeqCst)
}

/// Proves: a file without a name can be written, read, cut, examined and opened once more like any other;
/// nothing of it is sent, neither by fsync nor by close; and it disappears with its last descriptor.
#[test]
fn it_is_local_and_goes_with_its_last_descriptor() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = make(&client);
    let before = (edits(&client), world.blocks.len());
    put(&client, handle, 0, &[7; 500_000]);
    set(&client, ino, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
    set(&client, ino, modified(5)).unwrap();
    client.setxattr(&WHO, ino, b"user.x", b"1", SetXattr::Create).unwrap();
    assert!(matches!(client.setxattr(&WHO, ino, b"user.x", b"2", SetXattr::Create), Err(FsError::Exists)));
    assert_eq!(client.getxattr(&WHO, ino, b"user.x").unwrap(), b"1");
    client.fsync(handle).unwrap();
    let again = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    client.flush(handle).unwrap();
    client.release(handle);
    set(&client, ino, SetAttributes { size: Some(400_000), ..SetAttributes::default() }).unwrap();
    let shown = client.getattr(&WHO, ino, None).unwrap();
    assert_eq!((shown.links, shown.size, shown.mode), (0, 400_000, 0o600));
    assert_eq!(client.read(again, 399_990, 100).unwrap(), [7; 10]);
    assert_eq!((edits(&client), world.blocks.len()), before, "nothing was sent");
    assert!(client.unpublished().is_empty() && client.save_unsaved("test").unwrap().is_none());
    client.flush(again).unwrap();
    client.release(again);
    assert_eq!(spooled(&client), 0);
    client.forget(ino, 1);
    assert!(client.nodes.all().is_empty());
    assert!(matches!(client.open(&WHO, ino, OpenFlags::READ), Err(FsError::Stale)));
    assert_eq!((edits(&client), world.blocks.len()), before);
}

/// Proves: its first name is made together with all its content, in one operation; it keeps its number; later
/// writes are published as usual; and it can have more names.
#[test]
fn the_first_name_publishes_it_whole() {
    for bytes in [Vec::new(), b"small".to_vec(), vec![3; 90_000], vec![4; 3_000_000]] {
        let world = World::new();
        let (client, other) = (world.client(1, &[]), world.client(2, &[]));
        let (ino, handle) = make(&client);
        put(&client, handle, 0, &bytes);
        client.setxattr(&WHO, ino, b"user.x", b"1", SetXattr::Any).unwrap();
        set(&client, ino, modified(77)).unwrap();
        let before = edits(&client);
        let named = client.link(&WHO, ino, Ino::ROOT, b"f").unwrap();
        assert_eq!(edits(&client), before + 1);
        assert_eq!((named.ino, named.links, named.size), (ino, 1, bytes.len() as u64));
        let seen = stat(&other, b"f").unwrap();
        assert_eq!((seen.ino, seen.links, seen.mode, seen.modified_ns), (ino, 1, 0o640, 77));
        assert_eq!(other.getxattr(&WHO, ino, b"user.x").unwrap(), b"1");
        assert!(peek(&other, &[b"f"]).unwrap() == bytes);
        assert_eq!(spooled(&client), 0, "all is published");
        put(&client, handle, 0, b"SMALL");
        client.link(&WHO, ino, Ino::ROOT, b"g").unwrap();
        client.flush(handle).unwrap();
        client.release(handle);
        assert_eq!(peek(&other, &[b"g"]).unwrap()[..5], *b"SMALL");
        assert_eq!(stat(&other, b"f").unwrap().links, 2);
        assert_eq!(world.pinned(), 0);
    }
}

/// Proves: if the name exists, or the link fails otherwise, the file stays as it was and can be linked again.
/// A link whose answer came late is recognised afterwards: later writes are published under the name that it
/// made.
#[test]
fn a_link_that_fails() {
    let world = World::new();
    let (client, other) = (world.client(1, &[]), world.client(2, &[]));
    write_file(&other, b"taken", b"x");
    let (ino, handle) = make(&client);
    put(&client, handle, 0, b"bytes");
    assert!(matches!(client.link(&WHO, ino, Ino::ROOT, b"taken"), Err(FsError::Exists)));
    *client.memory.fault.lock() = Some(FsError::Unreachable("test".into()));
    assert!(matches!(client.link(&WHO, ino, Ino::ROOT, b"f"), Err(FsError::Unreachable(_))));
    *client.memory.fault.lock() = None;
    assert!(stat(&other, b"f").is_err());
    assert_eq!(client.getattr(&WHO, ino, None).unwrap().links, 0);
    put(&client, handle, 5, b" and more");
    *client.memory.late.lock() = Some(FsError::Interrupted);
    assert!(matches!(client.link(&WHO, ino, Ino::ROOT, b"f"), Err(FsError::Interrupted)));
    *client.memory.late.lock() = None;
    assert_eq!(peek(&other, &[b"f"]).unwrap(), b"bytes and more");
    put(&client, handle, 0, b"BYTES");
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(peek(&other, &[b"f"]).unwrap(), b"BYTES and more");
    assert!(other.conflict_copies().unwrap().is_empty(), "one's own version is no conflict");
}

/// Proves: data of a file without a name that a killed process leaves is removed; data of a file that was
/// given a name is offered.
#[test]
fn a_crash_leaves_nothing_of_it() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = make(&client);
    put(&client, handle, 0, b"first");
    put(&client, handle, 10, b"second");
    assert_eq!(spooled(&client), 2);
    let next = FileSystem::with_engine(client.memory.clone(), memory::options(client.dir.path())).unwrap();
    assert!(next.save_unsaved("killed").unwrap().is_none());
    assert_eq!(spooled(&client), 0, "its files were removed");

    let (named, second) = make(&client);
    put(&client, second, 0, b"first");
    client.link(&WHO, named, Ino::ROOT, b"f").unwrap();
    put(&client, second, 5, b" and second");
    let next = FileSystem::with_engine(client.memory.clone(), memory::options(client.dir.path())).unwrap();
    let saved = next.save_unsaved("killed").unwrap().unwrap();
    let bytes = std::fs::read(saved.folder.join(&saved.files[0].saved_as)).unwrap();
    assert_eq!(
        (saved.files.len(), saved.files[0].path.as_str(), bytes.as_slice()),
        (1, "f", &b"first and second"[..])
    );
    assert_eq!(client.getattr(&WHO, ino, None).unwrap().size, 16);
}

/// Proves: it can be made only where files can be made: in a directory that this device may write, and in a
/// mount that may be written.
#[test]
fn where_it_cannot_be_made() {
    let world = World::new();
    let client = world.client(1, &[]);
    let file = write_file(&client, b"f", b"x");
    let make = |client: &FileSystem, ino| client.tmpfile(&WHO, ino, 0o600, OpenFlags::READ_WRITE).map(drop);
    assert!(matches!(make(&client, file), Err(FsError::NotDirectory)));
    assert!(matches!(make(&world.stranger(2, &[]), Ino::ROOT), Err(FsError::Access(_))));
    let options = MountOptions { read_only: true, ..memory::options(client.dir.path()) };
    let mount = FileSystem::with_engine(client.memory.clone(), options).unwrap();
    assert!(matches!(make(&mount, Ino::ROOT), Err(FsError::ReadOnly)));
}
