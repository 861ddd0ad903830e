//! When requests share a view, and when they must not: every test counts fetches.

use super::memory::caller;
use super::*;

fn fetches(client: &Client, call: impl FnOnce()) -> u64 {
    let before = client.memory.fetch_count();
    call();
    client.memory.fetch_count() - before
}

/// Proves: a LOOKUP and the OPEN, GETATTR, READLINK or OPENDIR that the same thread sends next for the inode
/// found cost one fetch; the view is spent by that.
#[test]
fn a_lookup_serves_the_next_request_of_its_thread() {
    let world = World::new();
    let client = world.client(1, &[]);
    let who = caller(9);
    let made = client.create(&who, Ino::ROOT, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    client.release(made.1.handle);
    let ino = made.0.ino;
    let lookup = || client.lookup(&who, Ino::ROOT, b"f").unwrap();
    let count = fetches(&client, || {
        lookup();
        client.release(client.open(&who, ino, OpenFlags::READ).unwrap().handle);
    });
    assert_eq!(count, 1, "LOOKUP and OPEN");
    let count = fetches(&client, || {
        lookup();
        client.getattr(&who, ino, None).unwrap();
        client.getattr(&who, ino, None).unwrap();
    });
    assert_eq!(count, 2, "a second GETATTR is of a later system call");
    let count = fetches(&client, || {
        lookup();
        client.getattr(&caller(10), ino, None).unwrap();
    });
    assert_eq!(count, 2, "another thread shares nothing");
    let count = fetches(&client, || {
        lookup();
        client.getattr(&who, Ino::ROOT, None).unwrap();
        client.getattr(&who, ino, None).unwrap();
    });
    assert_eq!(count, 3, "a request on something else spends the view");
    let count = fetches(&client, || {
        lookup();
        client.mkdir(&who, Ino::ROOT, b"d", 0o755).unwrap();
        client.getattr(&who, ino, None).unwrap();
    });
    assert_eq!(count, 2, "so does a change");
    let unknown = Caller { thread: 0, ..who };
    let count = fetches(&client, || {
        client.lookup(&unknown, Ino::ROOT, b"f").unwrap();
        client.getattr(&unknown, ino, None).unwrap();
    });
    assert_eq!(count, 2, "an unknown thread shares nothing");
}

/// Proves: the components of one path cost one fetch; but a LOOKUP in a directory that is open, or that bears
/// the name of the thread's working directory, fetches, since it may begin a later system call.
#[test]
fn one_path_one_view() {
    let world = World::new();
    let client = world.client(1, &[]);
    // A real thread, since its working directory is looked at.
    let who = caller(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let a = client.mkdir(&who, Ino::ROOT, b"a-directory", 0o755).unwrap().ino;
    let b = client.mkdir(&who, a, b"b-directory", 0o755).unwrap().ino;
    client.mkdir(&who, b, b"c-directory", 0o755).unwrap();
    let walk = || {
        client.lookup(&who, Ino::ROOT, b"a-directory").unwrap();
        client.lookup(&who, a, b"b-directory").unwrap();
        client.lookup(&who, b, b"c-directory").unwrap();
    };
    assert_eq!(fetches(&client, walk), 1);
    let two_names = || {
        client.lookup(&who, Ino::ROOT, b"a-directory").unwrap();
        client.lookup(&who, a, b"b-directory").unwrap();
        assert!(client.lookup(&who, a, b"other").is_err());
    };
    assert_eq!(fetches(&client, two_names), 1, "as rename looks up two names");
    let two_in_root = || {
        client.lookup(&who, Ino::ROOT, b"a-directory").unwrap();
        assert!(client.lookup(&who, Ino::ROOT, b"other").is_err());
    };
    assert_eq!(fetches(&client, two_in_root), 2, "which may be two calls");
    let open = client.opendir(&who, a).unwrap();
    assert_eq!(fetches(&client, walk), 2, "the walk may begin in the open directory");
    client.releasedir(open);

    let here = std::env::current_dir().unwrap();
    let here = std::os::unix::ffi::OsStrExt::as_bytes(here.file_name().unwrap()).to_vec();
    let same = client.mkdir(&who, Ino::ROOT, &here, 0o755).unwrap().ino;
    client.mkdir(&who, same, b"inside", 0o755).unwrap();
    let count = fetches(&client, || {
        client.lookup(&who, Ino::ROOT, &here).unwrap();
        client.lookup(&who, same, b"inside").unwrap();
    });
    assert_eq!(count, 2, "the walk may begin in the working directory");
    // A thread that is none has no working directory that could be told.
    let nobody = caller(u32::MAX - 1);
    let count = fetches(&client, || {
        client.lookup(&nobody, Ino::ROOT, b"a-directory").unwrap();
        client.lookup(&nobody, a, b"b-directory").unwrap();
    });
    assert_eq!(count, 2);
}

/// Proves: between two components of one path, and only there, a thread may be answered from a view that is
/// older than what another client has just done.
#[test]
fn a_new_system_call_sees_what_others_did_before_it() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let who = caller(9);
    let directory = ours.mkdir(&who, Ino::ROOT, b"d", 0o755).unwrap().ino;
    ours.lookup(&who, Ino::ROOT, b"d").unwrap();
    theirs.mkdir(&who, directory, b"new", 0o755).unwrap();
    ours.lookup(&who, Ino::ROOT, b"d").unwrap();
    ours.lookup(&who, directory, b"new").expect("the second call's own LOOKUP has fetched");
}

/// Proves: the file's own size and times are shown without a fetch while it is open for writing here, and
/// reading never fetches a view.
#[test]
fn writers_and_readers_need_no_view() {
    let world = World::new();
    let client = world.client(1, &[]);
    let who = caller(9);
    let (made, opened) = client.create(&who, Ino::ROOT, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    let count = fetches(&client, || {
        for at in 0..10 {
            client.write(opened.handle, at * 10, b"0123456789", WriteSource::Call).unwrap();
            assert_eq!(client.getattr(&who, made.ino, Some(opened.handle)).unwrap().size, at * 10 + 10);
            client.read(opened.handle, 0, 100).unwrap();
        }
        client.flush(opened.handle).unwrap();
    });
    assert_eq!(count, 0);
    client.release(opened.handle);
}
