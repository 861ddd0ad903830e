//! Tests of what `docs/semantics.md` promises, paragraph by paragraph.

use super::memory::caller;
use super::model::{list, peek};
use super::tools::*;
use super::*;

/// Proves: what one client has closed is what another opens next; what it has not closed stays its own; and
/// two descriptors of one client see every write at once.
#[test]
fn close_to_open() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let (ino, handle) = create(&ours, b"f");
    put(&ours, handle, 0, b"first");
    let second = ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(ours.read(second, 0, 10).unwrap(), b"first", "within a client at once");
    assert_eq!(peek(&theirs, &[b"f"]).unwrap(), b"", "elsewhere not before close");
    ours.flush(handle).unwrap();
    assert_eq!(peek(&theirs, &[b"f"]).unwrap(), b"first");
    put(&ours, handle, 5, b" and more");
    ours.fsync(handle).unwrap();
    assert_eq!(peek(&theirs, &[b"f"]).unwrap(), b"first and more", "fsync publishes too");
}

/// Proves: a file that another client has grown is seen grown by the next open and by the next stat, while an
/// older descriptor stays usable.
#[test]
fn a_file_that_grows_elsewhere() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", &[1; 1000]);
    let old = ours.open(&WHO, ino, OpenFlags::READ).unwrap();
    assert_eq!(stat(&ours, b"f").unwrap().size, 1000);
    let handle = theirs.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&theirs, handle, 1000, &[2; 500]);
    assert_eq!(stat(&ours, b"f").unwrap().size, 1000, "not closed yet");
    theirs.flush(handle).unwrap();
    let new = ours.open(&WHO, ino, OpenFlags::READ).unwrap();
    assert_eq!(stat(&ours, b"f").unwrap().size, 1500);
    assert_eq!(ours.read(new.handle, 990, 100).unwrap(), [vec![1; 10], vec![2; 90]].concat());
    assert_eq!(ours.read(old.handle, 0, 3).unwrap(), [1; 3], "the old descriptor goes on");
}

/// Proves: close and fsync return once operations are committed, and not before.
#[test]
fn close_and_fsync_wait_for_commit() {
    let world = World::new();
    let client = world.client(1, &[]);
    let commits = || client.memory.commits.load(std::sync::atomic::Ordering::SeqCst);
    let (_, handle) = create(&client, b"f");
    put(&client, handle, 0, b"x");
    assert_eq!(commits(), 0);
    client.flush(handle).unwrap();
    assert_eq!(commits(), 1);
    client.fsync(handle).unwrap();
    assert_eq!(commits(), 2);
    let flags = OpenFlags { synchronous: true, ..OpenFlags::READ_WRITE };
    let (made, opened) = client.create(&WHO, Ino::ROOT, b"sync", 0o644, flags).unwrap();
    put(&client, opened.handle, 0, b"durable");
    assert_eq!(commits(), 3, "O_SYNC: each write");
    assert_eq!(peek(&world.client(2, &[]), &[b"sync"]).unwrap(), b"durable");
    assert_eq!(client.getattr(&WHO, made.ino, None).unwrap().size, 7);
}

/// Proves: the last publication wins as a whole, and the other content is not mixed in.
#[test]
fn the_last_publisher_wins() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", &[0; 20]);
    let our = ours.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    let their = theirs.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&ours, our, 0, b"aaaaa");
    put(&theirs, their, 10, b"bbbbb");
    ours.flush(our).unwrap();
    theirs.flush(their).unwrap();
    let expected = [vec![0; 10], b"bbbbb".to_vec(), vec![0; 5]].concat();
    assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), expected);
}

/// Proves: while a file is open for writing here, the publications of others neither show in it nor are mixed
/// into what is published from here; afterwards the newest version shows in descriptors that stay open.
#[test]
fn a_writer_keeps_the_version_it_opened() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", &[0; 20]);
    let reading = ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    let change = |client: &Client, at, bytes: &[u8]| {
        let handle = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
        put(client, handle, at, bytes);
        client.flush(handle).unwrap();
        client.release(handle);
    };
    let writing = ours.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    change(&theirs, 0, b"theirs and longer than before");
    assert_eq!(stat(&ours, b"f").unwrap().size, 20);
    assert_eq!(ours.read(reading, 0, 100).unwrap(), [0; 20]);
    ours.release(writing);
    assert_eq!(ours.read(reading, 0, 100).unwrap(), b"theirs and longer than before");

    let writing = ours.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    change(&theirs, 0, b"THEIRS");
    stat(&ours, b"f").unwrap();
    put(&ours, writing, 20, b"OURS");
    ours.flush(writing).unwrap();
    assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), b"theirs and longer thOURSefore");
}

/// Proves: a view that is older than what an open file already shows changes nothing in it.
#[test]
fn open_files_never_go_back() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"old");
    let other_thread = caller(9);
    ours.lookup(&other_thread, Ino::ROOT, b"f").unwrap();
    let handle = theirs.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&theirs, handle, 0, b"new");
    theirs.flush(handle).unwrap();
    let first = ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(ours.read(first, 0, 3).unwrap(), b"new");
    // Served by the view of its LOOKUP, from before.
    let second = ours.open(&other_thread, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(ours.read(second, 0, 3).unwrap(), b"new");
    assert_eq!(ours.read(first, 0, 3).unwrap(), b"new");
}

/// Proves: of two clients that create one name with O_EXCL, one succeeds; without O_EXCL both open one file.
#[test]
fn exclusive_creation_holds_across_clients() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    let (made, _) = ours.create(&WHO, Ino::ROOT, b"lock", 0o600, exclusive).unwrap();
    let refused = theirs.create(&WHO, Ino::ROOT, b"lock", 0o600, exclusive);
    assert!(matches!(refused, Err(FsError::Exists)));
    let (found, _) = theirs.create(&WHO, Ino::ROOT, b"lock", 0o600, OpenFlags::READ_WRITE).unwrap();
    assert_eq!(found.ino, made.ino, "and inode numbers are equal on all clients");
}

/// Proves: the kernel may keep its pages if and only if they are of the opened content: it may after this
/// client's own writes and during them, but not after another's, and not after pages of two contents were
/// mixed.
#[test]
fn pages_are_kept_exactly_when_they_are_of_the_content_opened() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", &[1; 5000]);
    let open = |flags| {
        let opened = ours.open(&WHO, ino, flags).unwrap();
        ours.read(opened.handle, 0, 5000).unwrap();
        ours.release(opened.handle);
        opened.keep_cache
    };
    ours.nodes.looked_up(ino, handle_of(ino).unwrap(), Ino::ROOT, b"f");
    assert!(open(OpenFlags::READ), "what we have written is what the kernel has");
    assert!(open(OpenFlags::READ));
    let change = |at| {
        let handle = theirs.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
        put(&theirs, handle, at, &[9]);
        theirs.flush(handle).unwrap();
        theirs.release(handle);
    };
    change(0);
    assert!(!open(OpenFlags::READ), "another has changed it");
    assert!(open(OpenFlags::READ));
    theirs.setattr(&WHO, ino, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }, None).unwrap();
    assert!(open(OpenFlags::READ), "a change of mode is none of content");

    let writer = ours.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap();
    change(1);
    assert!(open(OpenFlags::READ), "a file open for writing here is not invalidated");
    ours.release(writer.handle);
    assert!(!open(OpenFlags::READ), "but afterwards");

    let old = ours.open(&WHO, ino, OpenFlags::READ).unwrap();
    change(2);
    stat(&ours, b"f").unwrap();
    ours.read(old.handle, 0, 10).unwrap();
    assert!(!open(OpenFlags::READ), "pages of two contents");
    ours.release(old.handle);
    assert!(open(OpenFlags::READ));
}

/// Proves: when a request finds that another client has changed a file that is open here, the kernel is told
/// to drop its pages, since the open descriptors continue in the new version.
#[test]
fn pages_of_an_open_file_are_dropped_when_it_is_seen_changed() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tell = told.clone();
    ours.on_invalidate(Box::new(move |ino, _| tell.lock().push(ino)));
    let ino = write_file(&ours, b"f", b"one");
    let handle = ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(ours.read(handle, 0, 3).unwrap(), b"one");
    stat(&ours, b"f").unwrap();
    assert!(told.lock().is_empty(), "nothing has changed");
    let theirs_handle = theirs.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&theirs, theirs_handle, 0, b"two");
    theirs.flush(theirs_handle).unwrap();
    stat(&ours, b"f").unwrap();
    assert_eq!(*told.lock(), [ino]);
    assert_eq!(ours.read(handle, 0, 3).unwrap(), b"two");
}

/// Proves: a file with very many separate changes is published before they fill the memory.
#[test]
fn very_many_changes_are_published_early() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, b"f");
    let theirs = world.client(2, &[]);
    for at in 0..65_536u64 {
        put(&client, handle, at * 2, &[1]);
    }
    assert_eq!(peek(&theirs, &[b"f"]).unwrap().len(), 0);
    put(&client, handle, 65_536 * 2, &[1]);
    let bytes = peek(&theirs, &[b"f"]).unwrap();
    assert_eq!((bytes.len(), &bytes[..4], bytes[131_072]), (131_073, &[1, 0, 1, 0][..], 1));
    assert!(world.stored_bytes() < 200_000, "neighbours are stored together");
}

/// Proves: every test that `docs/semantics.md` names exists.
#[test]
fn the_document_names_tests_that_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../../docs/semantics.md")).unwrap();
    let files = ["tests/files.rs", "tests/faults.rs", "src/files/write_back/journal.rs"];
    let mut sources = files.map(|file| std::fs::read_to_string(root.join(file)).unwrap()).concat();
    for folder in ["src/files/tests", "../cli/tests"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut named = 0;
    // Tests are named in italics, after each paragraph.
    for references in text.replace(".*`", "`").split('*').skip(1).step_by(2) {
        for name in references.split('`').skip(1).step_by(2).filter(|name| name.contains('_')) {
            assert!(sources.contains(&format!("fn {name}()")), "{name} is no test");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

/// Proves: a time set explicitly after a write survives the flush; a write after it counts again.
#[test]
fn a_time_that_was_set_is_kept_by_flush() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = create(&client, b"f");
    put(&client, handle, 0, b"x");
    client.setattr(&WHO, ino, modified(-12_345), Some(handle)).unwrap();
    assert_eq!(
        client.memory.edits.load(std::sync::atomic::Ordering::SeqCst),
        1,
        "published with the content"
    );
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(stat(&world.client(2, &[]), b"f").unwrap().modified_ns, -12_345);
    let handle = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    client.setattr(&WHO, ino, modified(5), Some(handle)).unwrap();
    assert_eq!(client.getattr(&WHO, ino, None).unwrap().modified_ns, 5);
    put(&client, handle, 0, b"y");
    client.flush(handle).unwrap();
    client.release(handle);
    assert!(stat(&client, b"f").unwrap().modified_ns > 5);
}

/// Proves: making, removing and moving names changes the directory's times, and no other operation does.
#[test]
fn directories_have_times() {
    let world = World::new();
    let client = world.client(1, &[]);
    let times = |ino| {
        let now = client.getattr(&WHO, ino, None).unwrap();
        (now.modified_ns, now.changed_ns)
    };
    let directory = client.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let mut last = times(directory);
    let mut changed = |what: &str| {
        let now = times(directory);
        let later = now.0 > last.0 && now.1 > last.1;
        last = now;
        assert!(later, "{what}");
    };
    let (made, opened) = client.create(&WHO, directory, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    changed("create");
    client.link(&WHO, made.ino, directory, b"g").unwrap();
    changed("link");
    client.rename(&WHO, directory, b"g", Ino::ROOT, b"g", RenameFlags::Replace).unwrap();
    changed("rename away");
    client.unlink(&WHO, directory, b"f").unwrap();
    changed("unlink");
    put(&client, opened.handle, 0, b"x");
    client.flush(opened.handle).unwrap();
    let now = client.getattr(&WHO, directory, None).unwrap();
    assert_eq!((now.modified_ns, now.changed_ns), last);
    assert_eq!(now.links, 1, "a directory shows one link");
}

/// Proves: a file unlinked, or replaced by rename, while open stays readable and writable, shows no links,
/// costs the server nothing, and is gone after release.
#[test]
fn open_unlinked_files_stay_usable() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", &[7; 100_000]);
    let handle = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    client.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    put(&client, handle, 50_000, b"still here");
    assert_eq!(client.read(handle, 49_999, 12).unwrap(), b"\x07still here\x07");
    let shown = client.getattr(&WHO, ino, Some(handle)).unwrap();
    assert_eq!((shown.links, shown.size), (0, 100_000));
    let before = client.memory.edits.load(std::sync::atomic::Ordering::SeqCst);
    client.flush(handle).unwrap();
    client.fsync(handle).unwrap();
    client.release(handle);
    assert_eq!(client.memory.edits.load(std::sync::atomic::Ordering::SeqCst), before);
    client.forget(ino, 1);
    assert!(matches!(client.getattr(&WHO, ino, None), Err(FsError::Stale)));
    assert!(client.save_unsaved("test").unwrap().is_none(), "it was removed on purpose");

    let target = write_file(&client, b"target", b"old");
    write_file(&client, b"new", b"new");
    let handle = client.open(&WHO, target, OpenFlags::READ).unwrap().handle;
    client.rename(&WHO, Ino::ROOT, b"new", Ino::ROOT, b"target", RenameFlags::Replace).unwrap();
    assert_eq!(client.read(handle, 0, 10).unwrap(), b"old");
    client.release(handle);
}

/// Proves: a file with two names loses no data when one of them is removed, whether it is open or not.
#[test]
fn link_counts() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = create(&client, b"f");
    assert_eq!(client.link(&WHO, ino, Ino::ROOT, b"g").unwrap().links, 2);
    put(&client, handle, 0, b"both");
    client.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(stat(&client, b"g").unwrap().links, 1);
    assert_eq!(peek(&world.client(2, &[]), &[b"g"]).unwrap(), b"both");
    let directory = client.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    assert!(matches!(client.link(&WHO, directory, Ino::ROOT, b"e"), Err(FsError::NotPermitted(_))));
}

/// Proves: a directory never becomes its own descendant, even if another client has moved directories since
/// this one looked, so that its view of the tree is wrong in either direction.
#[test]
fn no_directory_moves_into_itself() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let find = |client: &Client, parent, name: &[u8]| client.lookup(&WHO, parent, name).unwrap().ino;
    let a = ours.mkdir(&WHO, Ino::ROOT, b"a", 0o755).unwrap().ino;
    let b = ours.mkdir(&WHO, Ino::ROOT, b"b", 0o755).unwrap().ino;
    let deep = ours.mkdir(&WHO, b, b"deep", 0o755).unwrap().ino;
    let invalid = |result| matches!(result, Err(FsError::Invalid(_)));
    assert!(invalid(ours.rename(&WHO, Ino::ROOT, b"b", deep, b"x", RenameFlags::Replace)));
    assert!(invalid(ours.rename(&WHO, Ino::ROOT, b"b", b, b"x", RenameFlags::Replace)));
    // The other client moves b into a; this client, which saw b in the root, moves a into b's child.
    find(&theirs, Ino::ROOT, b"a");
    theirs.rename(&WHO, Ino::ROOT, b"b", a, b"b", RenameFlags::Replace).unwrap();
    assert!(invalid(ours.rename(&WHO, Ino::ROOT, b"a", deep, b"a", RenameFlags::Replace)));
    // This client believes that c is in d; the other has moved it out, so the move is possible, and is made.
    let d = ours.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let c = ours.mkdir(&WHO, d, b"c", 0o755).unwrap().ino;
    theirs.rename(&WHO, d, b"c", Ino::ROOT, b"c", RenameFlags::Replace).unwrap();
    ours.rename(&WHO, Ino::ROOT, b"d", c, b"d", RenameFlags::Replace).unwrap();
    // An exchange checks both directions.
    let e = ours.mkdir(&WHO, Ino::ROOT, b"e", 0o755).unwrap().ino;
    ours.mkdir(&WHO, e, b"f", 0o755).unwrap();
    assert!(invalid(ours.rename(&WHO, e, b"f", Ino::ROOT, b"e", RenameFlags::Exchange)));
    assert!(invalid(ours.rename(&WHO, Ino::ROOT, b"e", e, b"f", RenameFlags::Exchange)));
}

/// Proves: a listing that began before others change the directory continues without missing or repeating an
/// entry that stays; a return to the beginning shows the present state.
#[test]
fn listings_are_stable() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let directory = ours.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let name = |number: u32| format!("{number:05}").into_bytes();
    let expected: Vec<Vec<u8>> = (0..3000).map(name).collect();
    for name in &expected {
        ours.mknod(&WHO, directory, name, InodeKind::File, 0o644, 0).unwrap();
    }
    let handle = ours.opendir(&WHO, directory).unwrap();
    let read = |from: u64, limit: usize| {
        let mut items: Vec<(Vec<u8>, u64)> = Vec::new();
        ours.readdir(&WHO, handle, from, &mut |item| {
            let room = items.len() < limit;
            if room {
                items.push((item.name.to_vec(), item.next_offset));
            }
            room
        })
        .unwrap();
        items
    };
    let first = read(0, 1502);
    for number in 0..3000 {
        if number % 3 == 0 {
            theirs.unlink(&WHO, directory, &name(number)).unwrap();
        }
    }
    theirs.mknod(&WHO, directory, b"00000new", InodeKind::File, 0o644, 0).unwrap();
    let rest = read(first.last().unwrap().1, usize::MAX);
    let all: Vec<Vec<u8>> = first.iter().chain(&rest).skip(2).map(|(name, _)| name.clone()).collect();
    assert_eq!(all, expected);
    // Seeking back to any offset returned earlier continues there.
    for at in [2, 700, 1500, 100] {
        assert_eq!(read(first[at].1, 2)[0], first[at + 1]);
    }
    assert!(read(1 << 40, 5).is_empty());
    assert_eq!(read(0, usize::MAX).len(), 2 + 2000 + 1, "rewound: the present");
    ours.releasedir(handle);
    assert_eq!(list(&ours, directory).unwrap().len(), 2001);
}

/// Proves: copying a range between files stores no new data, and the copy survives the source.
#[test]
fn copies_are_by_reference() {
    let world = World::new();
    let client = world.client(1, &[]);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let ino = write_file(&client, b"source", &bytes);
    let before = world.stored_bytes();
    let source = client.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    let (_, target) = create(&client, b"target");
    assert_eq!(client.copy_file_range(source, 0, target, 0, u64::MAX).unwrap(), 3_000_000);
    assert_eq!(client.read(target, 1_000_000, 10).unwrap(), bytes[1_000_000..1_000_010]);
    client.unlink(&WHO, Ino::ROOT, b"source").unwrap();
    client.release(source);
    assert!(world.pinned() > 0, "what is copied is kept at the server until it is published");
    client.flush(target).unwrap();
    client.release(target);
    assert!(world.stored_bytes() < before + 10_000, "only extents were stored");
    assert!(peek(&world.client(2, &[]), &[b"target"]).unwrap() == bytes);
    // From an unpublished file, too.
    let (_, dirty) = create(&client, b"dirty");
    put(&client, dirty, 0, &bytes[..100_000]);
    let (_, copy) = create(&client, b"copy");
    assert_eq!(client.copy_file_range(dirty, 50_000, copy, 10, 1_000_000).unwrap(), 50_000);
    client.flush(copy).unwrap();
    assert!(peek(&world.client(3, &[]), &[b"copy"]).unwrap()[10..] == bytes[50_000..100_000]);
}

/// Proves: open files keep their blocks at the server, closed ones do not.
#[test]
fn open_files_pin_their_roots() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", &[5; 100_000]);
    assert_eq!(world.pinned(), 0);
    let handle = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    assert!(world.pinned() > 0);
    put(&client, handle, 0, &[6; 90_000]);
    client.flush(handle).unwrap();
    assert!(world.pinned() > 0, "what was published is pinned in its place");
    client.release(handle);
    assert_eq!(world.pinned(), 0);
}

/// Proves: a truncation by name is published before it returns; one through a descriptor is published with
/// its close.
#[test]
fn truncation() {
    let world = World::new();
    let client = world.client(1, &[]);
    let theirs = world.client(2, &[]);
    let ino = write_file(&client, b"f", &[3; 300_000]);
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    set(&client, ino, size(5)).unwrap();
    assert_eq!(peek(&theirs, &[b"f"]).unwrap(), [3; 5]);
    set(&client, ino, size(400_000)).unwrap();
    let bytes = peek(&theirs, &[b"f"]).unwrap();
    assert!(bytes.len() == 400_000 && bytes[5..].iter().all(|byte| *byte == 0), "no old bytes come back");
    let handle =
        client.open(&WHO, ino, OpenFlags { truncate: true, ..OpenFlags::READ_WRITE }).unwrap().handle;
    assert_eq!(peek(&theirs, &[b"f"]).unwrap().len(), 400_000);
    client.flush(handle).unwrap();
    assert_eq!(peek(&theirs, &[b"f"]).unwrap(), b"");
}

/// Proves: an inode that was removed here and is still open or a working directory (of whatever kind it is)
/// shows its attributes with no links, takes changes of them, lists no entries, and accepts no new ones; and
/// a file can be opened again through its descriptor.
#[test]
fn what_is_held_outlives_its_name() {
    let world = World::new();
    let client = world.client(1, &[]);
    let fifo = client.mknod(&WHO, Ino::ROOT, b"fifo", InodeKind::Fifo, 0o644, 0).unwrap();
    client.unlink(&WHO, Ino::ROOT, b"fifo").unwrap();
    let shown = client.getattr(&WHO, fifo.ino, None).unwrap();
    assert_eq!((shown.links, shown.kind, shown.mode), (0, InodeKind::Fifo, 0o644));
    let mode = SetAttributes { mode: Some(0o600), ..modified(7) };
    let shown = set(&client, fifo.ino, mode).unwrap();
    assert_eq!((shown.links, shown.mode, shown.modified_ns), (0, 0o600, 7));
    client.forget(fifo.ino, 1);
    assert!(matches!(client.getattr(&WHO, fifo.ino, None), Err(FsError::Stale)));

    let directory = client.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap();
    client.rmdir(&WHO, Ino::ROOT, b"d").unwrap();
    assert_eq!(client.getattr(&WHO, directory.ino, None).unwrap().links, 0);
    client.releasedir(client.opendir(&WHO, directory.ino).unwrap());
    assert!(matches!(client.mkdir(&WHO, directory.ino, b"x", 0o755), Err(FsError::NotFound)));
    assert!(matches!(client.lookup(&WHO, directory.ino, b"x"), Err(FsError::NotFound)));

    // A directory removed by another client behaves like one that was removed here.
    let other = world.client(2, &[]);
    let directory = client.mkdir(&WHO, Ino::ROOT, b"theirs", 0o750).unwrap();
    let open = client.opendir(&WHO, directory.ino).unwrap();
    client.mkdir(&WHO, directory.ino, b"sub", 0o755).unwrap();
    let seen = other.lookup(&WHO, Ino::ROOT, b"theirs").unwrap();
    other.rmdir(&WHO, seen.ino, b"sub").unwrap();
    other.rmdir(&WHO, Ino::ROOT, b"theirs").unwrap();
    let shown = client.getattr(&WHO, directory.ino, None).unwrap();
    assert_eq!((shown.links, shown.kind, shown.mode), (0, InodeKind::Directory, 0o750));
    assert!(matches!(client.rmdir(&WHO, directory.ino, b"sub"), Err(FsError::NotFound)));
    assert!(matches!(client.lookup(&WHO, directory.ino, b"sub"), Err(FsError::NotFound)));
    assert!(matches!(client.mkdir(&WHO, directory.ino, b"x", 0o755), Err(FsError::NotFound)));
    let mut names = Vec::new();
    let mut note = |item: DirectoryItem<'_>| {
        names.push(item.name.to_vec());
        true
    };
    client.readdir(&WHO, open, 0, &mut note).unwrap();
    assert_eq!(names, [b".".to_vec(), b"..".to_vec()]);
    client.releasedir(open);

    let (ino, handle) = create(&client, b"f");
    put(&client, handle, 0, b"held");
    client.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    let again = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    put(&client, again, 4, b" twice");
    client.flush(again).unwrap();
    client.release(again);
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"held twice");
    client.release(handle);
    assert!(matches!(client.open(&WHO, ino, OpenFlags::READ), Err(FsError::Stale)));
}

/// Proves: a hole takes no blocks, before and after publication, and written data takes blocks; so programs
/// that use `st_blocks` to look for holes find them, and never where there is data.
#[test]
fn holes_take_no_blocks() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = create(&client, b"f");
    put(&client, handle, 1 << 32, &[7; 4096]);
    let blocks = || client.getattr(&WHO, ino, Some(handle)).unwrap().blocks;
    assert_eq!(blocks(), 8);
    client.flush(handle).unwrap();
    assert_eq!(blocks(), 8);
    put(&client, handle, 0, b"x");
    assert_eq!(blocks(), 9);
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(stat(&client, b"f").unwrap().blocks, 9);
    let ino = write_file(&client, b"small", b"a few bytes");
    assert_eq!(client.getattr(&WHO, ino, None).unwrap().blocks, 1);
    set(&client, ino, SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    set(&client, ino, SetAttributes { size: Some(1 << 40), ..SetAttributes::default() }).unwrap();
    assert_eq!(client.getattr(&WHO, ino, None).unwrap().blocks, 0);
}

/// Proves: the set-group-ID bit of a directory is inherited by directories made in it, and not by files.
#[test]
fn set_group_id_is_handed_down() {
    let world = World::new();
    let client = world.client(1, &[]);
    let above = client.mkdir(&WHO, Ino::ROOT, b"above", 0o2775).unwrap().ino;
    assert_eq!(client.mkdir(&WHO, above, b"d", 0o755).unwrap().mode, 0o2755);
    let (made, opened) = client.create(&WHO, above, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    client.release(opened.handle);
    assert_eq!(made.mode, 0o644);
}
