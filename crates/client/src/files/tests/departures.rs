//! Tests of the differences from Unix in `docs/semantics.md`, paragraph by paragraph.

use super::tools::*;
use super::*;
use holdfast_content::{GroupId, PrincipalId, UserId};

const FOREIGN: PrincipalId = PrincipalId::User(UserId(7));

/// A file system with a directory that both clients may write, and files of both in it.
fn two_owners() -> (Client, Client, Ino) {
    let world = World::new();
    let group = PrincipalId::Group(GroupId(1));
    world.plant_directory(b"theirs", FOREIGN);
    world.plant_directory(b"group", group);
    let ours = world.client(1, &[group]);
    let theirs = world.stranger(2, &[group, FOREIGN]);
    let directory = stat(&ours, b"group").unwrap().ino;
    (ours, theirs, directory)
}

/// Proves: new files belong to the principal of their directory, so users in a group directory can work
/// together without further steps; the owner shown tells what a user may write.
#[test]
fn files_belong_to_their_directory() {
    let (ours, theirs, directory) = two_owners();
    let (made, opened) = ours.create(&WHO, directory, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    assert_eq!(handle_of(made.ino).unwrap().principal, PrincipalId::Group(GroupId(1)));
    put(&ours, opened.handle, 0, b"ours");
    ours.flush(opened.handle).unwrap();
    let opened = theirs.open(&WHO, made.ino, OpenFlags::READ_WRITE).unwrap();
    put(&theirs, opened.handle, 4, b" and theirs");
    theirs.flush(opened.handle).unwrap();
    assert_eq!((made.uid, made.gid), (1000, 1000));
    assert_eq!(stat(&ours, b"theirs").unwrap().uid, NOBODY);
    let root = theirs.getattr(&WHO, Ino::ROOT, None).unwrap();
    assert_eq!((root.uid, root.gid), (NOBODY, NOBODY));
}

/// Proves: another principal's file can be read, but neither opened for writing nor changed.
#[test]
fn others_files_are_read_only() {
    let (ours, theirs, _) = two_owners();
    let directory = stat(&theirs, b"theirs").unwrap().ino;
    let (made, opened) = theirs.create(&WHO, directory, b"f", 0o666, OpenFlags::READ_WRITE).unwrap();
    put(&theirs, opened.handle, 0, b"read me");
    theirs.flush(opened.handle).unwrap();
    let reading = ours.open(&WHO, made.ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(ours.read(reading, 0, 10).unwrap(), b"read me");
    let refused =
        |result: Result<(), FsError>| matches!(result, Err(FsError::Access(_) | FsError::NotPermitted(_)));
    assert!(refused(ours.open(&WHO, made.ino, OpenFlags::READ_WRITE).map(drop)));
    assert!(refused(ours.mkdir(&WHO, directory, b"d", 0o755).map(drop)));
    assert!(refused(ours.unlink(&WHO, directory, b"f")));
    assert!(refused(ours.rename(&WHO, directory, b"f", Ino::ROOT, b"f", RenameFlags::Replace)));
    assert!(refused(ours.link(&WHO, made.ino, Ino::ROOT, b"mine").map(drop)));
    let mode = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    assert!(refused(set(&ours, made.ino, mode).map(drop)));
    assert!(refused(set(&ours, made.ino, modified(1)).map(drop)));
    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert!(refused(set(&ours, made.ino, size).map(drop)));
    assert!(refused(ours.setxattr(&WHO, made.ino, b"user.x", b"1", SetXattr::Any)));
    let write = Rights { write: true, ..Rights::default() };
    assert!(refused(ours.access(&WHO, made.ino, write)));
    assert!(ours.access(&WHO, made.ino, Rights { read: true, ..Rights::default() }).is_ok());
}

/// Proves: a user who may write a directory may remove another principal's name from it; the inode remains
/// its owner's. A name whose inode is gone shows as an empty file without permissions or links, and can be
/// removed.
#[test]
fn only_the_name_of_anothers_file_is_removed() {
    let (ours, theirs, group) = two_owners();
    let directory = stat(&theirs, b"theirs").unwrap().ino;
    let (made, _) = theirs.create(&WHO, directory, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    theirs.link(&WHO, made.ino, group, b"f").unwrap();
    ours.unlink(&WHO, group, b"f").unwrap();
    let still = theirs.getattr(&WHO, made.ino, None).unwrap();
    assert_eq!(still.links, 2, "the count is its owner's, hence advisory");

    let (made, _) = theirs.create(&WHO, directory, b"g", 0o644, OpenFlags::READ_WRITE).unwrap();
    theirs.link(&WHO, made.ino, group, b"g").unwrap();
    theirs.link(&WHO, made.ino, group, b"h").unwrap();
    ours.unlink(&WHO, group, b"h").unwrap();
    theirs.unlink(&WHO, directory, b"g").unwrap();
    theirs.unlink(&WHO, group, b"g").unwrap();
    assert_eq!(theirs.getattr(&WHO, made.ino, None).unwrap().links, 1, "one count too many is left behind");
}

/// Proves: a dangling name can be seen and removed, but not opened.
#[test]
fn dangling_names_can_be_removed() {
    let (ours, theirs, group) = two_owners();
    let directory = stat(&theirs, b"theirs").unwrap().ino;
    theirs.mkdir(&WHO, directory, b"d", 0o755).unwrap();
    // The whole directory moves to the group's; its owner removes it there. An old copy of the name is left
    // by hand, as a careless or malicious writer could leave it.
    let (made, opened) = theirs.create(&WHO, directory, b"f", 0o644, OpenFlags::READ_WRITE).unwrap();
    theirs.release(opened.handle);
    let handle = handle_of(made.ino).unwrap();
    let group_handle = handle_of(group).unwrap();
    ours.edit(move |changes| {
        let entry = holdfast_content::Entry { handle, kind: InodeKind::File };
        changes.set_entry(group_handle, b"dangling", Some(entry), 1)
    })
    .unwrap();
    theirs.unlink(&WHO, directory, b"f").unwrap();
    let shown = ours.lookup(&WHO, group, b"dangling").unwrap();
    assert_eq!((shown.links, shown.size, shown.mode), (0, 0, 0));
    assert!(matches!(ours.open(&WHO, shown.ino, OpenFlags::READ), Err(FsError::Stale)));
    ours.unlink(&WHO, group, b"dangling").unwrap();
    assert!(matches!(ours.lookup(&WHO, group, b"dangling"), Err(FsError::NotFound)));
}

/// Proves: a client that looks at a file while it is removed, replaced by another or renamed sees the state
/// before or after that, and never a name that leads nowhere: also if the name was found before the change
/// and the file after it.
#[test]
fn what_goes_meanwhile_is_not_dangling() {
    let (ours, theirs, group) = two_owners();
    let theirs = Arc::new(theirs);
    let make = |name: &[u8]| {
        let (made, opened) = theirs.create(&WHO, group, name, 0o644, OpenFlags::READ_WRITE).unwrap();
        theirs.release(opened.handle);
        made.ino
    };
    let meanwhile = |ino: Ino, act: Box<dyn Fn(&Client) + Send>| {
        let theirs = theirs.clone();
        let act: Box<dyn FnOnce() + Send> = Box::new(move || act(&theirs));
        *ours.memory.meanwhile.lock() = Some((handle_of(ino).unwrap(), act));
    };
    let removed = make(b"removed");
    meanwhile(removed, Box::new(move |theirs| theirs.unlink(&WHO, group, b"removed").unwrap()));
    assert!(matches!(ours.lookup(&WHO, group, b"removed"), Err(FsError::NotFound)));

    let (replaced, other) = (make(b"replaced"), make(b"other"));
    let replace = move |theirs: &Client| {
        theirs.rename(&WHO, group, b"other", group, b"replaced", RenameFlags::Replace).unwrap();
    };
    meanwhile(replaced, Box::new(replace));
    let shown = ours.lookup(&WHO, group, b"replaced").unwrap();
    assert_eq!((shown.ino, shown.mode, shown.links), (other, 0o644, 1));
    assert!(ours.memory.meanwhile.lock().is_none());
}

/// Proves: a directory with entries cannot be removed, whoever owns it, in whatever order two clients act.
#[test]
fn directories_must_be_empty() {
    let (ours, theirs, group) = two_owners();
    let directory = ours.mkdir(&WHO, group, b"d", 0o755).unwrap().ino;
    theirs.mkdir(&WHO, directory, b"inside", 0o755).unwrap();
    assert!(matches!(ours.rmdir(&WHO, group, b"d"), Err(FsError::NotEmpty)));
    assert!(matches!(ours.unlink(&WHO, group, b"d"), Err(FsError::IsDirectory)));
    theirs.rmdir(&WHO, directory, b"inside").unwrap();
    ours.rmdir(&WHO, group, b"d").unwrap();
    assert!(matches!(theirs.mkdir(&WHO, directory, b"late", 0o755), Err(FsError::NotFound)));
}

/// Proves: O_APPEND writes at the end of the file as this client has it, whatever offset the kernel sends;
/// pages of a mapping are written at their own offsets; and the kernel is told when its pages cannot be
/// right.
#[test]
fn appending() {
    let world = World::new();
    let client = world.client(1, &[]);
    let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let tell = told.clone();
    client.on_invalidate(Box::new(move |ino, _| tell.lock().push(ino)));
    let ino = write_file(&client, b"f", b"0123456789");
    let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let handle = client.open(&WHO, ino, flags).unwrap().handle;
    put(&client, handle, 10, b"ab");
    assert!(told.lock().is_empty());
    put(&client, handle, 3, b"cd");
    assert_eq!(*told.lock(), [ino]);
    client.write(handle, 0, b"X", WriteSource::PageCache).unwrap();
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"X123456789abcd");
}

/// Proves: chown to the owner shown changes only the time of change, as on any file system, and for others'
/// files not even that. For a local user that represents no user of the file system it fails, or is ignored
/// if the mount is configured so.
#[test]
fn chown_to_the_owner_shown() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"x");
    let chown = |uid, gid| set(&client, ino, SetAttributes { uid, gid, ..SetAttributes::default() });
    let before = stat(&client, b"f").unwrap();
    let after = chown(Some(1000), Some(1000)).unwrap();
    assert!(after.changed_ns > before.changed_ns);
    assert_eq!(Attributes { changed_ns: before.changed_ns, ..after }, before);
    assert!(chown(None, Some(1000)).is_ok());
    assert!(matches!(chown(Some(0), None), Err(FsError::NotPermitted(_))));
    assert!(matches!(chown(None, Some(5)), Err(FsError::NotPermitted(_))));
    let both = SetAttributes { uid: Some(0), mode: Some(0o600), ..SetAttributes::default() };
    assert!(set(&client, ino, both).is_err());
    assert_eq!(stat(&client, b"f").unwrap().mode, 0o644, "nothing of it was done");
    let (ours, _, _) = two_owners();
    let before = stat(&ours, b"theirs").unwrap();
    let nobody = SetAttributes { uid: Some(NOBODY), gid: Some(NOBODY), ..SetAttributes::default() };
    assert_eq!(set(&ours, before.ino, nobody).unwrap(), before);

    let owners = OwnerMap { unmapped: UnmappedOwner::Ignore, ..OwnerMap::default() };
    let options = MountOptions { owners, ..super::memory::options(client.dir.path()) };
    let lenient = FileSystem::with_engine(client.memory.clone(), options).unwrap();
    let both = SetAttributes { uid: Some(0), gid: Some(5), mode: Some(0o600), ..SetAttributes::default() };
    let after = lenient.setattr(&WHO, ino, both, None).unwrap();
    assert_eq!((after.uid, after.gid, after.mode, after.ino), (1000, 1000, 0o600, ino));
}

/// A client that shows users 0 and 7 as 500 and 507, and group 1 as 601; it may write the group's files too.
fn mapped(client: &Client) -> Arc<FileSystem> {
    let owners = OwnerMap {
        users: [(UserId::SUPERUSER, 500), (UserId(7), 507)].into(),
        groups: [(GroupId(1), 601)].into(),
        unmapped: UnmappedOwner::Refuse,
    };
    let options = MountOptions { owners, ..super::memory::options(&client.dir.path().join("mapped")) };
    FileSystem::with_engine(client.memory.clone(), options).unwrap()
}

/// Proves: a mount shows owners by its map; files of other owners are shown as the mounting user's, or as
/// those of 65534.
#[test]
fn owners_are_shown_by_the_map() {
    let (ours, _, _) = two_owners();
    let files = mapped(&ours);
    let shown = |name: &[u8]| {
        let found = files.lookup(&WHO, Ino::ROOT, name).unwrap();
        (found.uid, found.gid)
    };
    write_file(&ours, b"own", b"x");
    assert_eq!(shown(b"own"), (500, 1000));
    assert_eq!(shown(b"theirs"), (507, NOBODY));
    assert_eq!(shown(b"group"), (1000, 601));
}

/// Proves: chgrp to a mapped group replaces the file by a copy that belongs to the group, without reading or
/// storing a byte; open descriptors continue in the copy; other names keep the earlier file; the change back
/// works likewise. A user cannot give files to owners for whom this user may not write.
#[test]
fn chown_is_a_pointer_copy() {
    let (ours, theirs, _) = two_owners();
    let files = mapped(&ours);
    let group = PrincipalId::Group(GroupId(1));
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    write_file(&ours, b"f", &bytes);
    let chown = |ino, uid, gid| {
        files.setattr(&WHO, ino, SetAttributes { uid, gid, ..SetAttributes::default() }, None)
    };
    let ino = files.lookup(&WHO, Ino::ROOT, b"f").unwrap().ino;
    let open = files.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    files.write(open, 0, b"before", WriteSource::Call).unwrap();
    files.flush(open).unwrap();
    let stored = ours.memory.world.stored_bytes();
    let after = chown(ino, None, Some(601)).unwrap();
    assert_eq!((after.uid, after.gid, after.links, after.size), (1000, 601, 1, bytes.len() as u64));
    assert_eq!(handle_of(after.ino).unwrap().principal, group);
    assert!(ours.memory.world.stored_bytes() - stored < 4096, "no data is copied");
    files.write(open, 0, b"after!", WriteSource::Call).unwrap();
    files.flush(open).unwrap();
    let seen = stat(&theirs, b"f").unwrap();
    assert_eq!((seen.ino, seen.size), (after.ino, bytes.len() as u64));
    assert_eq!(super::model::peek(&theirs, &[b"f"]).unwrap()[..6], *b"after!");
    // The members of the group can write it now; its removal is noticed by programs that have it open under
    // its old number.
    let opened = theirs.open(&WHO, seen.ino, OpenFlags::READ_WRITE).unwrap();
    theirs.release(opened.handle);
    files.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    files.write(open, 0, b"gone", WriteSource::Call).unwrap();
    files.flush(open).expect("a removed file publishes nothing");
    files.release(open);
}

/// Proves: if a file has several names, only the given one gets another owner; the others, and descriptors,
/// stay with the earlier file. Mode and owner set in one call are both set; a file taken back from the group
/// is the user's own again. A user cannot give files to owners for whom this user may not write, and a file
/// without a name keeps its owner.
#[test]
fn chown_affects_one_name() {
    let (ours, theirs, _) = two_owners();
    let files = mapped(&ours);
    let ino = write_file(&ours, b"a", b"before");
    ours.link(&WHO, ino, Ino::ROOT, b"b").unwrap();
    let found = |name: &[u8]| files.lookup(&WHO, Ino::ROOT, name).unwrap();
    let open = files.open(&WHO, found(b"a").ino, OpenFlags::READ_WRITE).unwrap().handle;
    let change = |ino, set| files.setattr(&WHO, ino, set, None);
    let to_group = SetAttributes { gid: Some(601), mode: Some(0o640), ..SetAttributes::default() };
    let shared = change(ino, to_group).unwrap();
    assert_eq!((shared.gid, shared.mode, shared.links), (601, 0o640, 1));
    files.write(open, 0, b"after!", WriteSource::Call).unwrap();
    files.flush(open).unwrap();
    let content = |name: &[u8]| super::model::peek(&theirs, &[name]).unwrap();
    assert_eq!((content(b"a"), content(b"b")), (b"before".to_vec(), b"after!".to_vec()));
    assert_eq!((found(b"b").ino, found(b"b").links, found(b"b").mode), (ino, 1, 0o644));

    let to_other = SetAttributes { uid: Some(507), ..SetAttributes::default() };
    assert!(
        matches!(change(found(b"b").ino, to_other), Err(FsError::NotPermitted(_))),
        "it is not ours to give"
    );
    let back = SetAttributes { gid: Some(1000), ..SetAttributes::default() };
    let mine = change(found(b"a").ino, back).unwrap();
    assert_eq!((mine.uid, mine.gid), (500, 1000));
    files.unlink(&WHO, Ino::ROOT, b"b").unwrap();
    assert!(change(ino, to_group).is_err());
}

/// Proves: a directory gets another owner together with its entries, whose own owners stay; files made in it
/// from then on belong to the new owner.
#[test]
fn directories_change_owners_too() {
    let (ours, theirs, _) = two_owners();
    let files = mapped(&ours);
    let directory = files.mkdir(&WHO, Ino::ROOT, b"d", 0o755).unwrap().ino;
    for number in 0..1000 {
        let name = format!("{number}").into_bytes();
        files.symlink(&WHO, directory, &name, b"target").unwrap();
    }
    let group = SetAttributes { gid: Some(601), ..SetAttributes::default() };
    files.setattr(&WHO, directory, group, None).unwrap();
    let seen = stat(&theirs, b"d").unwrap().ino;
    assert_ne!(seen, directory);
    assert_eq!(super::model::list(&theirs, seen).unwrap().len(), 1000);
    theirs.mkdir(&WHO, seen, b"made by them", 0o755).unwrap();
    let inside = theirs.lookup(&WHO, seen, b"7").unwrap();
    assert_eq!(handle_of(inside.ino).unwrap().principal, super::memory::SHARED);
    // A program whose working directory has the old number is in the same directory.
    files.mkdir(&WHO, directory, b"made here", 0o755).unwrap();
    assert_eq!(super::model::list(&theirs, seen).unwrap().len(), 1002);
}

/// Proves: times and modes are as their writer sets them, and no sticky bit is applied (SUNDR 4).
#[test]
fn attributes_are_their_writers() {
    let (ours, theirs, group) = two_owners();
    let sticky = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
    set(&ours, group, sticky).unwrap();
    let (made, opened) = ours.create(&WHO, group, b"f", 0o6755, OpenFlags::READ_WRITE).unwrap();
    ours.release(opened.handle);
    assert_eq!(set(&theirs, made.ino, modified(i64::MAX)).unwrap().modified_ns, i64::MAX);
    theirs.unlink(&WHO, group, b"f").expect("a sticky bit protects nothing");
    assert_eq!(made.mode, 0o6755);
}

/// Proves: `user.*` attributes only, 64 KiB of them a file, and none of the kernel's own.
#[test]
fn extended_attributes() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"x");
    let set = |name: &[u8], value: &[u8]| client.setxattr(&WHO, ino, name, value, SetXattr::Any);
    set(b"user.a", b"1").unwrap();
    assert!(matches!(set(b"security.capability", b"1"), Err(FsError::Unsupported)));
    assert!(matches!(client.getxattr(&WHO, ino, b"system.posix_acl_access"), Err(FsError::Unsupported)));
    assert!(matches!(set(b"user.", b"1"), Err(FsError::Invalid(_))));
    assert!(matches!(set(&[b"user.", &[b'x'; 251][..]].concat(), b"1"), Err(FsError::Invalid(_))));
    set(b"user.big", &[0; 60_000]).unwrap();
    assert!(matches!(set(b"user.more", &[0; 6_000]), Err(FsError::NoSpace)));
    assert_eq!(client.listxattr(&WHO, ino).unwrap(), [b"user.a".to_vec(), b"user.big".to_vec()]);
    let before = client.memory.fetch_count();
    assert!(client.getxattr(&WHO, ino, b"security.capability").is_err());
    assert_eq!(client.memory.fetch_count(), before, "which the kernel asks for at every write");
}

/// Proves: bad names, kinds and arguments are refused with the error that Unix programs expect.
#[test]
fn refusals() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"x");
    let made = |name: &[u8]| client.mkdir(&WHO, Ino::ROOT, name, 0o755).map(drop);
    assert!(matches!(made(&[b'x'; 256]), Err(FsError::NameTooLong)));
    assert!(matches!(made(b"a/b"), Err(FsError::Invalid(_))));
    assert!(matches!(made(b".."), Err(FsError::Invalid(_))));
    assert!(matches!(made(b""), Err(FsError::Invalid(_))));
    assert!(made(&[0xff; 255]).is_ok(), "names are bytes");
    assert!(matches!(client.lookup(&WHO, ino, b"x"), Err(FsError::NotDirectory)));
    assert!(matches!(client.opendir(&WHO, ino), Err(FsError::NotDirectory)));
    assert!(matches!(client.open(&WHO, Ino::ROOT, OpenFlags::READ), Err(FsError::IsDirectory)));
    assert!(matches!(client.symlink(&WHO, Ino::ROOT, b"l", &[b'x'; 4096]), Err(FsError::NameTooLong)));
    assert!(matches!(client.readlink(&WHO, ino), Err(FsError::Invalid(_))));
    let handle = client.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert!(matches!(client.write(handle, 0, b"x", WriteSource::Call), Err(FsError::Invalid(_))));
    client.release(handle);
    let handle = client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    assert!(matches!(client.write(handle, u64::MAX, b"x", WriteSource::Call), Err(FsError::TooLarge)));
    let huge = SetAttributes { size: Some(1 << 63), ..SetAttributes::default() };
    assert!(matches!(client.setattr(&WHO, ino, huge, Some(handle)), Err(FsError::TooLarge)));
    assert!(matches!(client.read(FileHandleId(99), 0, 1), Err(FsError::Invalid(_))));
}

/// Proves: a mount that may only read changes nothing, and reads.
#[test]
fn read_only_mounts() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"x");
    let options = MountOptions { read_only: true, ..super::memory::options(client.dir.path()) };
    let mount = FileSystem::with_engine(client.memory.clone(), options).unwrap();
    let read_only = |result: Result<(), FsError>| matches!(result, Err(FsError::ReadOnly));
    assert!(read_only(mount.mkdir(&WHO, Ino::ROOT, b"d", 0o755).map(drop)));
    assert!(read_only(mount.unlink(&WHO, Ino::ROOT, b"f")));
    assert!(read_only(mount.open(&WHO, ino, OpenFlags::READ_WRITE).map(drop)));
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    assert!(read_only(mount.setattr(&WHO, ino, mode, None).map(drop)));
    let handle = mount.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(mount.read(handle, 0, 5).unwrap(), b"x");
}
