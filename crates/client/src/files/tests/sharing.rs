//! Tests of when requests share a view, and when they must not: every test counts fetches.

use super::memory::caller;
use super::*;
use std::time::Duration;

fn fetches(client: &Client, call: impl FnOnce()) -> u64 {
    let before = client.memory.fetch_count();
    call();
    client.memory.fetch_count() - before
}

/// Proves: a LOOKUP and the OPEN, GETATTR, READLINK or OPENDIR that the same thread sends next for the inode
/// found cost one fetch; after that the view is used up.
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

/// Proves: the components of one path cost one fetch; but a LOOKUP in a directory that is open, or that has
/// the name of the thread's working directory, fetches, since it may begin a later system call.
#[test]
fn one_path_one_view() {
    let world = World::new();
    let client = world.client(1, &[]);
    // A real thread, since its working directory is read.
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
    // The number of a thread that does not exist has no working directory that could be read.
    let nobody = caller(u32::MAX - 1);
    let count = fetches(&client, || {
        client.lookup(&nobody, Ino::ROOT, b"a-directory").unwrap();
        client.lookup(&nobody, a, b"b-directory").unwrap();
    });
    assert_eq!(count, 2);
}

/// Proves: between two components of one path, and only there, a thread may be answered from a view that is
/// older than another client's last change.
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

fn list(client: &Client, who: &Caller, directory: Ino) -> Vec<Vec<u8>> {
    let handle = client.opendir(who, directory).unwrap();
    let mut names = Vec::new();
    client
        .readdir(who, handle, 0, &mut |item| {
            names.push(item.name.to_vec());
            true
        })
        .unwrap();
    client.releasedir(handle);
    names.retain(|name| name != b"." && name != b"..");
    names
}

/// A directory of twenty files, and two clients.
fn shared_directory(world: &Arc<World>) -> (Client, Client, Ino) {
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let directory = ours.mkdir(&caller(9), Ino::ROOT, b"d", 0o755).unwrap().ino;
    for number in 0..20 {
        write_file(&ours, directory, format!("{number:02}").as_bytes(), b"first");
    }
    (ours, theirs, directory)
}

fn write_file(client: &Client, directory: Ino, name: &[u8], content: &[u8]) {
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let (_, opened) = client.create(&caller(99), directory, name, 0o644, flags).unwrap();
    client.write(opened.handle, 0, content, WriteSource::Call).unwrap();
    client.flush(opened.handle).unwrap();
    client.release(opened.handle);
}

/// What the kernel does for `open`: it looks up the path once more if it is told that the result is stale.
fn open_as_kernel(client: &Client, who: &Caller, directory: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
    let once = || {
        let found = client.lookup(who, directory, name)?;
        let opened = client.open(who, found.ino, OpenFlags::READ)?;
        let content = client.read(opened.handle, 0, 100);
        client.release(opened.handle);
        content
    };
    match once() {
        Err(FsError::Stale | FsError::LookAgain) => once(),
        other => other,
    }
}

/// Proves: a thread that has listed a directory can look at all its entries without another fetch, attributes
/// included; requests by another thread, in another directory and for names that do not exist get fresh
/// views; and removing all listed files costs no look-ups.
#[test]
fn a_listing_serves_looks_at_what_was_listed() {
    let world = World::new();
    let (ours, _theirs, directory) = shared_directory(&world);
    let who = caller(9);
    let look_at_all = |who: &Caller| {
        for number in 0..20 {
            let name = format!("{number:02}").into_bytes();
            let found = ours.lookup(who, directory, &name).unwrap();
            assert_eq!(found.size, 5);
            assert_eq!(ours.getattr(who, found.ino, None).unwrap().size, 5);
            // As `ls -l` asks for attributes of the same name.
            ours.lookup(who, directory, &name).unwrap();
            assert!(matches!(ours.getxattr(who, found.ino, b"user.none"), Err(FsError::NoData)));
        }
    };
    let count = fetches(&ours, || {
        assert_eq!(list(&ours, &who, directory).len(), 20);
        look_at_all(&who);
    });
    assert_eq!(count, 1, "the listing's own");
    assert!(fetches(&ours, || look_at_all(&caller(10))) >= 20, "another thread has listed nothing");
    let count = fetches(&ours, || {
        assert!(matches!(ours.lookup(&who, directory, b"none"), Err(FsError::NotFound)));
        assert!(matches!(ours.lookup(&who, Ino::ROOT, b"none"), Err(FsError::NotFound)));
    });
    assert_eq!(count, 2, "what is not there, or elsewhere");
    let count = fetches(&ours, || {
        list(&ours, &who, directory);
        for number in 0..20 {
            let name = format!("{number:02}").into_bytes();
            ours.lookup(&who, directory, &name).unwrap();
            ours.unlink(&who, directory, &name).unwrap();
            // As the kernel does, since the operation has changed the directory.
            ours.getattr(&who, directory, None).unwrap();
        }
    });
    assert_eq!(count, 1);
}

/// Proves: changes made by programs on this machine after a listing are seen at once.
#[test]
fn a_listing_hides_nothing_of_this_machine() {
    let world = World::new();
    let (ours, _theirs, directory) = shared_directory(&world);
    let (who, other) = (caller(9), caller(10));
    list(&ours, &who, directory);
    ours.unlink(&other, directory, b"00").unwrap();
    assert!(matches!(ours.lookup(&who, directory, b"00"), Err(FsError::NotFound)));
    write_file(&ours, directory, b"01", b"longer than it was");
    assert_eq!(ours.lookup(&who, directory, b"01").unwrap().size, 18);
    let before = ours.lookup(&who, directory, b"02").unwrap().ino;
    ours.rename(&other, directory, b"03", directory, b"02", RenameFlags::Replace).unwrap();
    assert_ne!(ours.lookup(&who, directory, b"02").unwrap().ino, before);
}

/// Proves: calls that open, list and walk on from a name found through a listing get a fresh view, however
/// the name was replaced on another machine; so does the target of a symbolic link.
#[test]
fn a_listing_serves_nothing_but_looks() {
    let world = World::new();
    let (ours, theirs, directory) = shared_directory(&world);
    let who = caller(9);
    ours.mkdir(&who, directory, b"sub", 0o755).unwrap();
    ours.symlink(&who, directory, b"link", b"old").unwrap();
    let link = ours.lookup(&who, directory, b"link").unwrap().ino;
    let mut checks = 0;
    let mut after_their = |change: &dyn Fn(), look: &dyn Fn()| {
        list(&ours, &who, directory);
        change();
        look();
        checks += 1;
    };
    after_their(&|| write_file(&theirs, directory, b"00", b"second"), &|| {
        assert_eq!(open_as_kernel(&ours, &who, directory, b"00").unwrap(), b"second");
    });
    // Saved as editors do, and by two renames: the inode found first still exists, under another name.
    after_their(
        &|| {
            write_file(&theirs, directory, b"new", b"third");
            theirs.rename(&caller(20), directory, b"new", directory, b"01", RenameFlags::Replace).unwrap();
        },
        &|| assert_eq!(open_as_kernel(&ours, &who, directory, b"01").unwrap(), b"third"),
    );
    after_their(
        &|| {
            theirs.rename(&caller(20), directory, b"02", directory, b"away", RenameFlags::Replace).unwrap();
            write_file(&theirs, directory, b"02", b"fourth");
        },
        &|| assert_eq!(open_as_kernel(&ours, &who, directory, b"02").unwrap(), b"fourth"),
    );
    after_their(&|| theirs.unlink(&caller(20), directory, b"03").unwrap(), &|| {
        assert!(matches!(open_as_kernel(&ours, &who, directory, b"03"), Err(FsError::NotFound)));
    });
    after_their(&|| write_file(&theirs, directory, b"made", b"fifth"), &|| {
        assert_eq!(open_as_kernel(&ours, &who, directory, b"made").unwrap(), b"fifth");
    });
    after_their(
        &|| {
            theirs.rename(&caller(20), directory, b"sub", directory, b"gone", RenameFlags::Replace).unwrap();
            let sub = theirs.mkdir(&caller(20), directory, b"sub", 0o755).unwrap().ino;
            write_file(&theirs, sub, b"inside", b"sixth");
        },
        &|| {
            let stale = ours.lookup(&who, directory, b"sub").unwrap().ino;
            assert!(matches!(ours.lookup(&who, stale, b"inside"), Err(FsError::LookAgain)));
            let sub = ours.lookup(&who, directory, b"sub").unwrap().ino;
            assert_eq!(open_as_kernel(&ours, &who, sub, b"inside").unwrap(), b"sixth");
        },
    );
    after_their(
        &|| {
            theirs.unlink(&caller(20), directory, b"link").unwrap();
            theirs.symlink(&caller(20), directory, b"link", b"new").unwrap();
        },
        &|| {
            assert_eq!(ours.lookup(&who, directory, b"link").unwrap().ino, link);
            assert!(matches!(ours.readlink(&who, link), Err(FsError::LookAgain)));
            let link = ours.lookup(&who, directory, b"link").unwrap().ino;
            assert_eq!(ours.readlink(&who, link).unwrap(), b"new");
        },
    );
    assert_eq!(checks, 7);
}

/// Proves: another client's change is seen at most one second after the listing, and ten times sooner by a
/// program that looks up one name again and again.
#[test]
fn a_listing_serves_for_a_second() {
    let world = World::new();
    let (ours, theirs, directory) = shared_directory(&world);
    let who = caller(9);
    list(&ours, &who, directory);
    write_file(&theirs, directory, b"00", b"longer than it was");
    assert_eq!(ours.lookup(&who, directory, b"00").unwrap().size, 5, "which is what this test is about");
    views::clock::pass(Duration::from_millis(110));
    assert_eq!(ours.lookup(&who, directory, b"00").unwrap().size, 18, "one name again and again");
    list(&ours, &who, directory);
    write_file(&theirs, directory, b"01", b"longer than it was");
    views::clock::pass(views::LISTED_AGE_MAX + Duration::from_millis(1));
    assert_eq!(ours.lookup(&who, directory, b"01").unwrap().size, 18);
}

/// Proves: looking at listed files by whole paths (as `ls -l DIRECTORY` does) needs no fetches either; but a
/// file that is opened or changed by such a path is in the directory that has the path now.
#[test]
fn a_listing_serves_whole_paths() {
    let world = World::new();
    let (ours, theirs, directory) = shared_directory(&world);
    let who = caller(9);
    let list_by_path = || {
        ours.lookup(&who, Ino::ROOT, b"d").unwrap();
        list(&ours, &who, directory);
    };
    let count = fetches(&ours, || {
        list_by_path();
        for number in 0..20 {
            assert_eq!(ours.lookup(&who, Ino::ROOT, b"d").unwrap().ino, directory);
            ours.lookup(&who, directory, format!("{number:02}").as_bytes()).unwrap();
        }
    });
    assert_eq!(count, 1);
    let count = fetches(&ours, || {
        ours.lookup(&who, Ino::ROOT, b"d").unwrap();
        ours.unlink(&who, directory, b"00").unwrap();
        ours.unlink(&who, directory, b"01").unwrap();
    });
    assert_eq!(count, 1, "the way to the directory is checked before the first change by it");

    list_by_path();
    theirs.rename(&caller(20), Ino::ROOT, b"d", Ino::ROOT, b"away", RenameFlags::Replace).unwrap();
    let new = theirs.mkdir(&caller(20), Ino::ROOT, b"d", 0o755).unwrap().ino;
    write_file(&theirs, new, b"02", b"second");
    assert_eq!(
        ours.lookup(&who, Ino::ROOT, b"d").unwrap().ino,
        directory,
        "which is what this test is about"
    );
    assert!(matches!(ours.unlink(&who, directory, b"02"), Err(FsError::LookAgain)));
    assert_eq!(ours.lookup(&who, Ino::ROOT, b"d").unwrap().ino, new);
    ours.lookup(&who, directory, b"02").expect("it is where it was");

    let ours = world.client(3, &[]);
    ours.lookup(&who, Ino::ROOT, b"d").unwrap();
    list(&ours, &who, new);
    theirs.rename(&caller(20), Ino::ROOT, b"d", Ino::ROOT, b"d", RenameFlags::Replace).unwrap();
    theirs.rename(&caller(20), Ino::ROOT, b"d", Ino::ROOT, b"off", RenameFlags::Replace).unwrap();
    theirs.rename(&caller(20), Ino::ROOT, b"away", Ino::ROOT, b"d", RenameFlags::Replace).unwrap();
    ours.lookup(&who, Ino::ROOT, b"d").unwrap();
    let found = ours.lookup(&who, new, b"02").unwrap().ino;
    assert!(matches!(ours.open(&who, found, OpenFlags::READ), Err(FsError::LookAgain)));
    assert_eq!(ours.lookup(&who, Ino::ROOT, b"d").unwrap().ino, directory);
    assert_eq!(open_as_kernel(&ours, &who, directory, b"02").unwrap(), b"first");
}

/// Proves: names that were looked up through a listing do not affect a later change of another file, such as
/// one through a descriptor: the kernel answers `stat` from what the LOOKUP returned, and sends no further
/// request.
#[test]
fn a_look_has_no_bearing_on_another_change() {
    let world = World::new();
    let (ours, theirs, directory) = shared_directory(&world);
    let who = caller(9);
    let other = ours.lookup(&who, directory, b"05").unwrap().ino;
    list(&ours, &who, directory);
    let looked_at = ours.lookup(&who, directory, b"00").unwrap().ino;
    theirs.rename(&caller(20), directory, b"00", directory, b"renamed", RenameFlags::Replace).unwrap();
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    ours.setattr(&who, other, set, None).expect("it is about another file");
    list(&ours, &who, directory);
    ours.lookup(&who, directory, b"renamed").unwrap();
    theirs.rename(&caller(20), directory, b"renamed", directory, b"again", RenameFlags::Replace).unwrap();
    assert!(matches!(ours.setattr(&who, looked_at, set, None), Err(FsError::LookAgain)), "by a path it is");
}
