//! Tests with many threads: no call waits for another file, and no data is lost.

use super::memory::caller;
use super::model::peek;
use super::*;
use std::thread;

fn create(client: &FileSystem, who: &Caller, name: &[u8]) -> (Ino, FileHandleId) {
    let (made, opened) = client.create(who, Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    (made.ino, opened.handle)
}

/// Proves: while the publication of one file waits for the server, that file can be read, written and
/// examined, and other files can be opened; data written meanwhile is published afterwards; and after a
/// truncation meanwhile, cut bytes do not come back.
#[test]
fn a_publication_that_waits_holds_up_nobody() {
    let world = World::new();
    let client = world.client(1, &[]);
    let who = caller(1);
    let (ino, handle) = create(&client, &who, b"f");
    let (other, other_handle) = create(&client, &who, b"g");
    client.release(other_handle);
    client.write(handle, 0, &[1; 1000], WriteSource::Call).unwrap();
    client.memory.gate.close();
    let files = client.files.clone();
    let flushing = thread::spawn(move || files.flush(handle));
    client.memory.gate.somebody_waits();

    assert_eq!(client.read(handle, 0, 2000).unwrap(), [1; 1000]);
    client.write(handle, 500, &[2; 1000], WriteSource::Call).unwrap();
    let cut = SetAttributes { size: Some(600), ..SetAttributes::default() };
    client.setattr(&who, ino, cut, Some(handle)).unwrap();
    let grow = SetAttributes { size: Some(700), ..SetAttributes::default() };
    client.setattr(&who, ino, grow, Some(handle)).unwrap();
    let expected = [vec![1; 500], vec![2; 100], vec![0; 100]].concat();
    assert_eq!(client.read(handle, 0, 2000).unwrap(), expected);
    assert_eq!(client.getattr(&who, ino, Some(handle)).unwrap().size, 700);
    client.lookup(&who, Ino::ROOT, b"g").unwrap();
    client.release(client.open(&who, other, OpenFlags::READ).unwrap().handle);

    client.memory.gate.open();
    flushing.join().unwrap().unwrap();
    assert_eq!(client.read(handle, 0, 2000).unwrap(), expected);
    client.flush(handle).unwrap();
    client.release(handle);
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), expected);
}

/// Proves: the same if the publication fails.
#[test]
fn a_publication_that_waits_and_fails_loses_nothing() {
    let world = World::new();
    let client = world.client(1, &[]);
    let who = caller(1);
    let (ino, handle) = create(&client, &who, b"f");
    client.write(handle, 0, &[1; 1000], WriteSource::Call).unwrap();
    let mode = SetAttributes { mode: Some(0o751), ..SetAttributes::default() };
    client.setattr(&who, ino, mode, Some(handle)).unwrap();
    client.memory.gate.close();
    let files = client.files.clone();
    let flushing = thread::spawn(move || files.flush(handle));
    client.memory.gate.somebody_waits();
    client.write(handle, 500, &[2; 1000], WriteSource::Call).unwrap();
    assert_eq!(client.getattr(&who, ino, None).unwrap().mode, 0o751);
    *client.memory.fault.lock() = Some(FsError::Unreachable("test".into()));
    client.memory.gate.open();
    assert!(flushing.join().unwrap().is_err());
    *client.memory.fault.lock() = None;
    client.flush(handle).unwrap();
    let expected = [vec![1; 500], vec![2; 1000]].concat();
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), expected);
    assert_eq!(world.client(2, &[]).lookup(&who, Ino::ROOT, b"f").unwrap().mode, 0o751);
}

/// Proves: a file unlinked here while it is being published is no error, and one unlinked elsewhere is.
#[test]
fn unlinked_while_being_published() {
    let world = World::new();
    let client = world.client(1, &[]);
    let theirs = world.client(2, &[]);
    let who = caller(1);
    for (name, remover, is_error) in [(b"f", &client, false), (b"g", &theirs, true)] {
        let (_, handle) = create(&client, &who, name);
        client.write(handle, 0, b"x", WriteSource::Call).unwrap();
        client.memory.gate.close();
        let files = client.files.clone();
        let flushing = thread::spawn(move || files.flush(handle));
        client.memory.gate.somebody_waits();
        let remover_files = remover.files.clone();
        let removing = thread::spawn(move || remover_files.unlink(&caller(2), Ino::ROOT, name));
        if is_error {
            removing.join().unwrap().unwrap();
            client.memory.gate.open();
        } else {
            client.memory.gate.open();
            removing.join().unwrap().unwrap();
        }
        let flushed = flushing.join().unwrap();
        if is_error {
            assert!(matches!(flushed, Err(FsError::Stale)));
        } else {
            flushed.unwrap();
        }
        client.release(handle);
    }
}

/// Proves: threads that write, rewrite, copy, rename, list and flush many files at the same time neither
/// deadlock nor mix up their bytes; and appends through one descriptor all survive.
#[test]
fn many_threads() {
    let world = World::new();
    let client = world.client(1, &[]);
    let main = caller(1000);
    let append = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let (_, log) = client.create(&main, Ino::ROOT, b"log", 0o644, append).unwrap();
    let threads: Vec<_> = (0..8u8)
        .map(|number| {
            let files = client.files.clone();
            thread::spawn(move || {
                let who = caller(u32::from(number) + 1);
                let (name, new_name) = ([b'a', b'0' + number], [b'b', b'0' + number]);
                for round in 0..25u64 {
                    let (ino, handle) = create(&files, &who, &name);
                    for at in 0..10 {
                        files.write(handle, at * 5000, &[number; 5000], WriteSource::Call).unwrap();
                    }
                    files.write(log.handle, 0, &[number; 8], WriteSource::Call).unwrap();
                    if round % 3 == 0 {
                        files.fsync(log.handle).unwrap();
                    }
                    files.flush(handle).unwrap();
                    files.release(handle);
                    files.rename(&who, Ino::ROOT, &name, Ino::ROOT, &new_name, RenameFlags::Replace).unwrap();
                    let found = files.lookup(&who, Ino::ROOT, &new_name).unwrap();
                    assert_eq!(found.ino, ino);
                    let handle = files.open(&who, ino, OpenFlags::READ).unwrap().handle;
                    assert_eq!(files.read(handle, 0, 60_000).unwrap(), vec![number; 50_000]);
                    files.release(handle);
                    files.forget(ino, 2);
                    let directory = files.opendir(&who, Ino::ROOT).unwrap();
                    let mut count = 0;
                    files
                        .readdir(&who, directory, 0, &mut |_| {
                            count += 1;
                            true
                        })
                        .unwrap();
                    assert!(count >= 4);
                    files.releasedir(directory);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    client.flush(log.handle).unwrap();
    client.release(log.handle);
    let bytes = peek(&world.client(2, &[]), &[b"log"]).unwrap();
    assert_eq!(bytes.len(), 8 * 25 * 8);
    for number in 0..8u8 {
        assert_eq!(bytes.chunks(8).filter(|chunk| **chunk == [number; 8]).count(), 25);
    }
}
