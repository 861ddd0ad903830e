//! Where `docs/semantics.md` says that we depart from Unix, paragraph by paragraph.

use super::tools::*;
use super::*;
use holdfast_content::{GroupId, PrincipalId, UserId};

const FOREIGN: PrincipalId = PrincipalId::User(UserId(7));

/// A world with a directory that both may write and files of the two in it.
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

/// Proves: new files belong to their directory's principal, so people in a group directory just work together;
/// the owner shown tells what one may write.
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

/// Proves: what belongs to another principal can be read, and neither opened for writing nor changed.
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

/// Proves: whoever may write a directory may remove another's name from it; the inode stays its owner's, and
/// a name whose inode is gone shows as an empty file without permissions or links, and can be removed.
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
    // The whole directory moves to the group's; its owner removes it there; an old copy of the name is left
    // by hand, as a careless or malicious writer could.
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

/// Proves: O_APPEND writes at the end as this client has it, whatever offset the kernel believes; pages from
/// a mapping go where they belong; and the kernel is told when its pages cannot be right.
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

/// Proves: chown to the owner shown changes nothing but the time of change, as on any file system, and of others'
/// files not even that; to any other owner it fails.
#[test]
fn owners_cannot_be_changed() {
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
}

/// Proves: times and modes are whatever their writer says, and there is no sticky bit to heed (SUNDR 4).
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
    let mount = FileSystem::with_backend(client.memory.clone(), options).unwrap();
    let read_only = |result: Result<(), FsError>| matches!(result, Err(FsError::ReadOnly));
    assert!(read_only(mount.mkdir(&WHO, Ino::ROOT, b"d", 0o755).map(drop)));
    assert!(read_only(mount.unlink(&WHO, Ino::ROOT, b"f")));
    assert!(read_only(mount.open(&WHO, ino, OpenFlags::READ_WRITE).map(drop)));
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    assert!(read_only(mount.setattr(&WHO, ino, mode, None).map(drop)));
    let handle = mount.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    assert_eq!(mount.read(handle, 0, 5).unwrap(), b"x");
}
