//! Tests of failures: each affects its own file, is reported, and loses no data.

use super::memory::{frozen, options};
use super::model::peek;
use super::*;
use std::path::Path;

const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 41 };

fn create(client: &FileSystem, parent: Ino, name: &[u8]) -> (Ino, FileHandleId) {
    let (made, opened) = client.create(&WHO, parent, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    (made.ino, opened.handle)
}

fn put(client: &FileSystem, handle: FileHandleId, at: u64, bytes: &[u8]) {
    assert_eq!(client.write(handle, at, bytes, WriteSource::Call).unwrap(), bytes.len());
}

fn unreachable() -> FsError {
    FsError::Unreachable("no answer for 60 s".into())
}

/// The folders under `salvage`, each with its list and its files.
fn salvaged(dir: &Path) -> Vec<(serde_json::Value, Vec<Vec<u8>>)> {
    let Ok(folders) = std::fs::read_dir(dir.join("salvage")) else { return Vec::new() };
    let mut found = Vec::new();
    for folder in folders {
        let folder = folder.unwrap().path();
        // The list is written last: a folder without one is still being filled.
        let Ok(list) = std::fs::read(folder.join("INDEX.json")) else { continue };
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let contents = list["files"].as_array().unwrap().iter();
        let contents =
            contents.map(|file| std::fs::read(folder.join(file["saved_as"].as_str().unwrap())).unwrap());
        let contents = contents.collect();
        found.push((list, contents));
    }
    found
}

/// Proves: a publication that fails is reported at flush, and at fsync, each time; the file stays as it was
/// written; and once the server answers, it is published.
#[test]
fn a_failed_publication_is_told_and_tried_again() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, Ino::ROOT, b"f");
    put(&client, handle, 0, b"precious");
    *client.memory.fault.lock() = Some(unreachable());
    assert!(matches!(client.flush(handle), Err(FsError::Unreachable(_))));
    assert!(matches!(client.fsync(handle), Err(FsError::Unreachable(_))));
    put(&client, handle, 8, b" still");
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"precious still");
    *client.memory.fault.lock() = None;
    client.flush(handle).unwrap();
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), b"precious still");
}

/// Proves: data that could not be published before the last close is kept, is not published later unnoticed,
/// and is saved with path and reason; other files continue to work meanwhile.
#[test]
fn what_could_not_be_published_is_kept_for_salvage() {
    let world = World::new();
    let client = world.client(1, &[]);
    let directory = client.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let (ino, handle) = create(&client, directory, b"f");
    put(&client, handle, 0, &[1; 100_000]);
    client.flush(handle).unwrap();
    put(&client, handle, 50_000, b"precious");
    *client.memory.fault.lock() = Some(unreachable());
    assert!(client.flush(handle).is_err());
    client.release(handle);
    *client.memory.fault.lock() = None;
    assert_eq!(peek(&client, &[b"d", b"f"]).unwrap(), [1; 100_000], "the server's version is shown");
    let saved = client.save_unsaved("asked for").unwrap().unwrap();
    assert_eq!(saved.files.len(), 1);
    let file = &saved.files[0];
    assert_eq!((file.path.as_str(), file.ino, file.bytes, file.missing.len()), ("d/f", ino.0, 100_000, 0));
    let expected = [&[1; 50_000][..], b"precious", &[1; 49_992]].concat();
    assert!(std::fs::read(saved.folder.join(&file.saved_as)).unwrap() == expected);
    assert!(client.save_unsaved("again").unwrap().is_none(), "saved once");
}

/// Proves: if content was ordered but its commit failed, close reports that and salvage has the content; once
/// a later commit succeeds, salvage drops it.
#[test]
fn what_may_not_be_committed_is_kept_for_salvage() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, Ino::ROOT, b"f");
    put(&client, handle, 0, &[7; 20_000]);
    *client.memory.commit_fault.lock() = Some(unreachable());
    assert!(client.flush(handle).is_err());
    *client.memory.commit_fault.lock() = None;
    client.fsync(handle).unwrap();
    assert!(client.save_unsaved("test").unwrap().is_none());
    put(&client, handle, 0, b"in doubt");
    *client.memory.commit_fault.lock() = Some(unreachable());
    assert!(client.flush(handle).is_err());
    client.release(handle);
    let saved = client.save_unsaved("test").unwrap().unwrap();
    let content = std::fs::read(saved.folder.join(&saved.files[0].saved_as)).unwrap();
    assert!(content.len() == 20_000 && content.starts_with(b"in doubt"));
    assert!(client.save_unsaved("again").unwrap().is_none());
}

/// Proves: a file removed by another client while it has unpublished changes here is ESTALE at close, and the
/// changes are kept; a file that was opened only for reading can still be read.
#[test]
fn removed_elsewhere() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let (ino, handle) = create(&ours, Ino::ROOT, b"f");
    put(&ours, handle, 0, b"published");
    ours.flush(handle).unwrap();
    let reading = ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    theirs.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    put(&ours, handle, 9, b" and not");
    assert!(matches!(ours.flush(handle), Err(FsError::Stale)));
    assert_eq!(ours.getattr(&WHO, ino, None).unwrap().links, 0);
    ours.release(handle);
    assert_eq!(ours.read(reading, 0, 9).unwrap(), b"published");
    ours.release(reading);
    let saved = ours.save_unsaved("asked for").unwrap().unwrap();
    let content = std::fs::read(saved.folder.join(&saved.files[0].saved_as)).unwrap();
    assert_eq!(content, b"published and not");
    assert!(matches!(ours.getattr(&WHO, ino, None), Err(FsError::Stale)));
}

/// Proves: once the order of operations was found wrong, every call fails with that error, and all
/// unpublished data is saved to a folder without a request.
#[test]
fn freezing_saves_what_is_unpublished() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, Ino::ROOT, b"f");
    put(&client, handle, 0, b"precious");
    let (_, other) = create(&client, Ino::ROOT, b"g");
    put(&client, other, 0, b"too");
    *client.memory.fault.lock() = Some(frozen());
    assert!(matches!(client.flush(handle), Err(FsError::Frozen(_))));
    *client.memory.fault.lock() = None;
    assert!(matches!(client.read(handle, 0, 10), Err(FsError::Frozen(_))));
    assert!(matches!(client.write(handle, 0, b"x", WriteSource::Call), Err(FsError::Frozen(_))));
    assert!(matches!(client.lookup(&WHO, Ino::ROOT, b"f"), Err(FsError::Frozen(_))));
    let found = loop {
        match salvaged(client.dir.path()).pop() {
            Some(found) => break found,
            None => std::thread::yield_now(),
        }
    };
    let mut contents = found.1;
    contents.sort();
    assert_eq!(contents, [b"precious".to_vec(), b"too".to_vec()]);
    assert!(found.0["reason"].as_str().unwrap().contains("rolled back"), "the list says why");
}

/// Proves: after the client was killed, its unpublished data is found by the next one and saved completely,
/// published parts included; a file removed before is not saved.
#[test]
fn a_killed_client_leaves_its_data_to_salvage() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let memory = world.memory(1, &[]);
    let files = FileSystem::with_engine(memory, options(dir.path())).unwrap();
    let (_, handle) = create(&files, Ino::ROOT, b"f");
    put(&files, handle, 0, &[1; 3_000_000]);
    files.fsync(handle).unwrap();
    put(&files, handle, 1_000_000, b"precious");
    files.fallocate(handle, 2_000_000, 500_000, Allocate::PunchHole).unwrap();
    let (_, source) = create(&files, Ino::ROOT, b"source");
    put(&files, source, 0, &[9; 10_000]);
    files.fsync(source).unwrap();
    files.copy_file_range(source, 0, handle, 100, 10_000).unwrap();
    for size in [2_900_000, 2_950_000] {
        let size = SetAttributes { size: Some(size), ..SetAttributes::default() };
        files.setattr(&WHO, Ino::ROOT, size, Some(handle)).unwrap();
    }
    let (_, gone) = create(&files, Ino::ROOT, b"gone");
    put(&files, gone, 0, b"unwanted");
    files.unlink(&WHO, Ino::ROOT, b"gone").unwrap();
    let mut expected = vec![1; 3_000_000];
    expected[1_000_000..1_000_008].copy_from_slice(b"precious");
    expected[2_000_000..2_500_000].fill(0);
    expected[100..10_100].fill(9);
    expected.truncate(2_900_000);
    expected.resize(2_950_000, 0);
    // Killed: no part of it runs any more, not even destructors.
    std::mem::forget(files);

    let next = FileSystem::with_engine(world.memory(2, &[]), options(dir.path())).unwrap();
    let saved = next.save_unsaved("after a crash").unwrap().unwrap();
    let file = saved.files.iter().find(|file| file.path == "f").unwrap();
    assert!(file.from_earlier_run && file.missing.is_empty());
    assert!(saved.files.iter().all(|file| file.path != "gone"), "removed on purpose");
    assert!(std::fs::read(saved.folder.join(&file.saved_as)).unwrap() == expected);
    assert!(next.save_unsaved("again").unwrap().is_none());
    assert_eq!(
        std::fs::read_dir(dir.path().join("spool")).unwrap().count(),
        0,
        "nothing is left in the spool"
    );
}

/// Proves: data that the server no longer sends is listed as missing and left as a hole, and the spool keeps
/// the rest until it can be saved completely; two files with one path do not overwrite each other.
#[test]
fn salvage_says_what_is_missing() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let files = FileSystem::with_engine(world.memory(1, &[]), options(dir.path())).unwrap();
    let (_, handle) = create(&files, Ino::ROOT, b"f");
    put(&files, handle, 0, &[1; 50_000]);
    files.fsync(handle).unwrap();
    put(&files, handle, 49_000, b"precious");
    std::mem::forget(files);
    let lost: Vec<_> = world
        .blocks
        .addresses()
        .into_iter()
        .map(|address| (address, world.blocks.remove(&address).unwrap()))
        .collect();

    let next = FileSystem::with_engine(world.memory(2, &[]), options(dir.path())).unwrap();
    let first = next.save_unsaved("the server is gone").unwrap().unwrap();
    assert_eq!(first.files[0].missing, [(0, 49_000), (49_008, 50_000)]);
    let content = std::fs::read(first.folder.join(&first.files[0].saved_as)).unwrap();
    assert!(content.len() == 50_000 && &content[49_000..49_008] == b"precious");
    for (address, block) in lost {
        world.blocks.replace(address, block);
    }
    let second = next.save_unsaved("the server is back").unwrap().unwrap();
    assert!(second.files[0].missing.is_empty());
    assert_ne!(first.folder, second.folder);
    assert!(next.save_unsaved("again").unwrap().is_none());
}

/// Proves: whatever files are called, they are saved apart from each other and from the list.
#[test]
fn names_of_salvaged_files() {
    let world = World::new();
    let client = world.client(1, &[]);
    let mut expected = Vec::new();
    let names: [&[u8]; 5] = [b"INDEX.json", b"\xff\xfe", b"same", &[b'x'; 255], b"new\nline"];
    for name in names {
        let (_, handle) = create(&client, Ino::ROOT, name);
        put(&client, handle, 0, name);
        expected.push(name.to_vec());
    }
    // Two files last seen under one name: another client has moved the first one meanwhile.
    let directory = client.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    world.client(2, &[]).rename(&WHO, Ino::ROOT, b"same", directory, b"same", RenameFlags::Replace).unwrap();
    let (_, handle) = create(&client, Ino::ROOT, b"same");
    put(&client, handle, 0, b"the second");
    expected.push(b"the second".to_vec());
    let saved = client.save_unsaved("test").unwrap().unwrap();
    let read = |file: &SalvagedFile| std::fs::read(saved.folder.join(&file.saved_as)).unwrap();
    let mut contents: Vec<_> = saved.files.iter().map(read).collect();
    contents.sort();
    expected.sort();
    assert_eq!(contents, expected);
    let (list, from_list) = salvaged(client.dir.path()).pop().unwrap();
    assert_eq!((list["files"].as_array().unwrap().len(), from_list.len()), (6, 6));
}

/// Proves: altered data fails reads of its own file only, with an integrity error, and never reads as zeroes;
/// a change that needs it is refused and kept, and a change that does not need it is published.
#[test]
fn altered_data_fails_its_file_only() {
    let world = World::new();
    let client = world.client(1, &[]);
    let noise = |seed: u32, length: u32| -> Vec<u8> {
        (0..length).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 11) as u8).collect()
    };
    let (bad, handle) = create(&client, Ino::ROOT, b"bad");
    put(&client, handle, 0, &noise(1, 30_000));
    client.flush(handle).unwrap();
    client.release(handle);
    let stored = world.blocks.addresses();
    let (good, handle) = create(&client, Ino::ROOT, b"good");
    put(&client, handle, 0, &noise(2, 30_000));
    client.flush(handle).unwrap();
    client.release(handle);
    for address in stored {
        let mut block = world.blocks.stored(&address).unwrap();
        block.body[0] ^= 1;
        world.blocks.replace(address, block);
    }
    let open = |ino| client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    let (bad, good) = (open(bad), open(good));
    assert!(matches!(client.read(bad, 0, 100), Err(FsError::Integrity(_))));
    assert_eq!(client.read(good, 0, 30_000).unwrap(), noise(2, 30_000));
    put(&client, bad, 10, b"new");
    assert!(matches!(client.flush(bad), Err(FsError::Integrity(_))), "the rest cannot be read");
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    client.setattr(&WHO, client.files.open_file(bad).unwrap().node.ino, cut, Some(bad)).unwrap();
    put(&client, bad, 0, b"written anew");
    client.flush(bad).unwrap();
    assert_eq!(peek(&world.client(2, &[]), &[b"bad"]).unwrap(), b"written anew");
}

/// Proves: when the local disk is full, write reports it and everything else works.
#[test]
fn a_spool_that_cannot_be_written_is_told() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, Ino::ROOT, b"f");
    std::fs::remove_dir_all(client.dir.path().join("spool")).unwrap();
    let failed = client.write(handle, 0, b"x", WriteSource::Call);
    assert!(matches!(failed, Err(FsError::Local { .. } | FsError::NoSpace)));
    client.flush(handle).unwrap();
    std::fs::create_dir(client.dir.path().join("spool")).unwrap();
    put(&client, handle, 0, b"x");
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(peek(&client, &[b"f"]).unwrap(), b"x");
}

/// Proves: a truncation by name that fails leaves nothing behind, here or in salvage.
#[test]
fn a_failed_truncation_by_name_is_forgotten() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (ino, handle) = create(&client, Ino::ROOT, b"f");
    put(&client, handle, 0, b"12345");
    client.flush(handle).unwrap();
    client.release(handle);
    let size = SetAttributes { size: Some(2), ..SetAttributes::default() };
    client.lookup(&WHO, Ino::ROOT, b"f").unwrap();
    *client.memory.fault.lock() = Some(unreachable());
    assert!(client.setattr(&WHO, ino, size, None).is_err());
    *client.memory.fault.lock() = None;
    assert_eq!(peek(&client, &[b"f"]).unwrap(), b"12345");
    assert!(client.save_unsaved("test").unwrap().is_none());
}

/// Proves: unmounting publishes what is open and unpublished, and names what it could not publish.
#[test]
fn unmounting_publishes() {
    let world = World::new();
    let client = world.client(1, &[]);
    let (_, handle) = create(&client, Ino::ROOT, b"f");
    put(&client, handle, 0, b"x");
    *client.memory.fault.lock() = Some(unreachable());
    let failed = client.publish_all();
    assert_eq!(failed[0].0, b"f");
    *client.memory.fault.lock() = None;
    assert!(client.publish_all().is_empty());
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), b"x");
}
