//! Short functions for tests.

use super::*;

pub const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 31 };

pub fn create(client: &Client, name: &[u8]) -> (Ino, FileHandleId) {
    let (made, opened) = client.create(&WHO, Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    (made.ino, opened.handle)
}

pub fn put(client: &Client, handle: FileHandleId, at: u64, bytes: &[u8]) {
    assert_eq!(client.write(handle, at, bytes, WriteSource::Call).unwrap(), bytes.len());
}

pub fn write_file(client: &Client, name: &[u8], bytes: &[u8]) -> Ino {
    let (ino, handle) = create(client, name);
    put(client, handle, 0, bytes);
    client.flush(handle).unwrap();
    client.release(handle);
    ino
}

pub fn stat(client: &Client, name: &[u8]) -> Result<Attributes, FsError> {
    client.lookup(&memory::caller(77), Ino::ROOT, name)
}

pub fn set(client: &Client, ino: Ino, set: SetAttributes) -> Result<Attributes, FsError> {
    client.setattr(&WHO, ino, set, None)
}

pub fn modified(ns: i64) -> SetAttributes {
    SetAttributes { modified: Some(TimeToSet::At(ns)), ..SetAttributes::default() }
}
