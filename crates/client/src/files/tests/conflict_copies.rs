//! Tests of versions that are overwritten by a client that has not seen them.

use super::super::conflict_copies::{CONFLICT_COPIES_MAX, Overwrite, keep_conflict_copy};
use super::model::peek;
use super::tools::*;
use super::*;
use holdfast_content::{DeviceId, PrincipalId};
use proptest::prelude::*;
use std::sync::Arc;

fn open(client: &Client, ino: Ino) -> FileHandleId {
    client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle
}

fn close(client: &Client, handle: FileHandleId) {
    client.flush(handle).unwrap();
    client.release(handle);
}

/// All bytes of a conflict copy, and how many parts were not holes.
fn get(client: &Client, id: &str) -> (Vec<u8>, usize) {
    let (mut bytes, mut parts, mut offset) = (Vec::new(), 0, 0);
    loop {
        let part = client.read_conflict_copy(id, offset).unwrap();
        bytes.resize(part.offset as usize, 0);
        if part.bytes.is_empty() {
            assert_eq!(part.offset, part.size);
            return (bytes, parts);
        }
        parts += 1;
        bytes.extend_from_slice(&part.bytes);
        offset = bytes.len() as u64;
    }
}

/// Two clients that have one file open for writing. The first has published `theirs`, and the second has
/// written `ours` at the beginning of its own version.
fn two_versions(
    before: &[u8],
    theirs: &[u8],
    ours: &[u8],
) -> (Arc<World>, Client, Client, Ino, FileHandleId) {
    let world = World::new();
    let (first, second) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&first, b"f", before);
    let (their, our) = (open(&first, ino), open(&second, ino));
    put(&first, their, 0, theirs);
    close(&first, their);
    put(&second, our, 0, ours);
    (world, first, second, ino, our)
}

/// Proves: the last publication wins. A version that its writer has not seen is kept and listed for all, with
/// file, path, writer, time, size, and when and by which device it was overwritten. It is kept by reference:
/// not copied, and not even read.
#[test]
fn an_overwritten_version_is_kept() {
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at >> 3) as u8).collect();
    for theirs in [b"theirs".to_vec(), vec![7; 90_000], large] {
        let (world, first, second, ino, our) = two_versions(b"before", &theirs, b"ours");
        second.lookup(&WHO, Ino::ROOT, b"f").unwrap();
        let written_ns = stat(&first, b"f").unwrap().modified_ns;
        let (stored, fetched) = (world.stored_bytes(), world.blocks.fetches());
        let edits = second.memory.edits.load(std::sync::atomic::Ordering::SeqCst);
        close(&second, our);
        assert_eq!(world.stored_bytes(), stored, "a small file is in its inode");
        assert_eq!(world.blocks.fetches(), fetched);
        assert_eq!(second.memory.edits.load(std::sync::atomic::Ordering::SeqCst), edits + 1, "one operation");
        assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), b"oursre");
        let listed = first.conflict_copies().unwrap();
        assert_eq!(listed, second.conflict_copies().unwrap());
        let [version] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((version.path.as_str(), version.ino, version.bytes), ("f", ino.0, theirs.len() as u64));
        assert_eq!((version.written_by.as_str(), version.overwritten_by.as_str()), ("device 1", "device 2"));
        assert_eq!(version.modified_ns, written_ns);
        assert!(version.overwritten_ns >= written_ns);
        assert_eq!(version.owner, memory::SHARED.to_string());
        for client in [&first, &second] {
            assert!(get(client, &version.id).0 == theirs);
        }
        first.drop_conflict_copies(std::slice::from_ref(&version.id)).unwrap();
        assert!(second.conflict_copies().unwrap().is_empty());
        assert!(matches!(second.read_conflict_copy(&version.id, 0), Err(FsError::NotFound)));
        assert_eq!(world.pinned(), 0);
    }
}

/// Proves: a client that continues to publish its own version overwrites no unseen version; a client that
/// opens the result has seen it; and each lost version is kept once.
#[test]
fn each_lost_version_is_kept_once() {
    let (_world, first, second, ino, our) = two_versions(b"before", b"theirs", b"ours");
    second.fsync(our).unwrap();
    put(&second, our, 0, b"OURS");
    close(&second, our);
    let our = open(&first, ino);
    put(&first, our, 0, b"seen");
    close(&first, our);
    assert_eq!(first.conflict_copies().unwrap().len(), 1);
}

/// Proves: without a conflict no copy is kept: when a client replaces, cuts, removes or renames over a
/// version it has seen; for equal content, an empty version, another client's change of attributes, an
/// append, and the client's own publication whose answer came late.
#[test]
fn what_is_no_conflict() {
    let world = World::new();
    let (first, second) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&first, b"f", b"before");
    let truncate = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = second.open(&WHO, ino, truncate).unwrap().handle;
    put(&second, handle, 0, b"new");
    first.setattr(&WHO, ino, modified(5), None).unwrap();
    first.setxattr(&WHO, ino, b"user.x", b"1", SetXattr::Any).unwrap();
    close(&second, handle);
    set(&second, ino, SetAttributes { size: Some(1), ..SetAttributes::default() }).unwrap();
    // Both clients write the same bytes.
    let (their, our) = (open(&first, ino), open(&second, ino));
    put(&first, their, 0, b"same");
    put(&second, our, 0, b"same");
    close(&first, their);
    close(&second, our);
    // An empty version.
    let our = open(&second, ino);
    put(&second, our, 0, b"whatever");
    set(&first, ino, SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    close(&second, our);
    // Answers that come late.
    let our = open(&second, ino);
    put(&second, our, 0, b"once");
    *second.memory.late.lock() = Some(FsError::Interrupted);
    assert!(second.flush(our).is_err());
    *second.memory.late.lock() = None;
    put(&second, our, 4, b" and again");
    close(&second, our);
    assert_eq!(peek(&first, &[b"f"]).unwrap(), b"once and again");
    // Appends.
    let append = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let our = second.open(&WHO, ino, append).unwrap().handle;
    put(&second, our, 0, b"!");
    let their = open(&first, ino);
    put(&first, their, 0, b"ONCE");
    close(&first, their);
    close(&second, our);
    assert_eq!(peek(&first, &[b"f"]).unwrap(), b"ONCE and again!");
    write_file(&second, b"g", b"other");
    second.rename(&WHO, Ino::ROOT, b"g", Ino::ROOT, b"f", RenameFlags::Replace).unwrap();
    second.unlink(&WHO, Ino::ROOT, b"f").unwrap();
    assert_eq!(first.conflict_copies().unwrap(), Vec::new());
}

/// Proves: a file that was empty, and is cut to nothing again after a publication whose answer was not
/// awaited, is empty for all clients; and the content of that publication causes no conflict later.
#[test]
fn cutting_what_was_published_unnoticed() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"");
    let ours = open(&client, ino);
    put(&client, ours, 0, b"once");
    let interrupted = |client: &Client| {
        *client.memory.late.lock() = Some(FsError::Interrupted);
        assert!(client.fsync(ours).is_err());
        *client.memory.late.lock() = None;
    };
    interrupted(&client);
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), b"once");
    let nothing = SetAttributes { size: Some(0), ..SetAttributes::default() };
    client.setattr(&WHO, ino, nothing, Some(ours)).unwrap();
    interrupted(&client);
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), b"");
    put(&client, ours, 0, b"twice");
    close(&client, ours);
    assert_eq!(peek(&world.client(2, &[]), &[b"f"]).unwrap(), b"twice");
    assert_eq!(client.conflict_copies().unwrap(), Vec::new());
}

/// Proves: cutting a file to nothing by O_TRUNC is a conflict with what was published after that open.
#[test]
fn cutting_what_one_has_not_seen() {
    let world = World::new();
    let (first, second) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&first, b"f", b"before");
    let truncate = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = second.open(&WHO, ino, truncate).unwrap().handle;
    let their = open(&first, ino);
    put(&first, their, 0, b"theirs");
    close(&first, their);
    close(&second, handle);
    assert_eq!(peek(&first, &[b"f"]).unwrap(), b"");
    let listed = second.conflict_copies().unwrap();
    assert_eq!(get(&second, &listed[0].id).0, b"theirs");
}

/// Proves: a version is read a part at a time, and its holes are skipped.
#[test]
fn conflict_copies_are_read_in_parts() {
    let world = World::new();
    let (first, second) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&first, b"f", b"before");
    let (their, our) = (open(&first, ino), open(&second, ino));
    put(&first, their, 0, &[1; 100_000]);
    put(&first, their, 40 << 20, &[2; 3_000_000]);
    let size = SetAttributes { size: Some(60 << 20), ..SetAttributes::default() };
    first.setattr(&WHO, ino, size, Some(their)).unwrap();
    let expected = first.read(their, 0, 60 << 20).unwrap();
    assert_eq!(expected.len(), 16 << 20, "one read");
    close(&first, their);
    put(&second, our, 0, b"ours");
    close(&second, our);
    let listed = first.conflict_copies().unwrap();
    let (bytes, parts) = get(&first, &listed[0].id);
    assert_eq!((bytes.len(), listed[0].bytes), (60 << 20, 60 << 20));
    assert!(bytes[..100_000] == [1; 100_000] && bytes[40 << 20..(40 << 20) + 3_000_000] == [2; 3_000_000]);
    assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 100_000 + 2 * 3_000_000);
    assert!(parts < 8, "{parts}");
}

/// Proves: the number of copies kept for one owner is limited, the oldest is removed first with its content,
/// and a file that a member has put among them is not removed with its name.
#[test]
fn the_oldest_go_first() {
    let world = World::new();
    let client = world.client(1, &[]);
    let ino = write_file(&client, b"f", b"precious");
    let file = handle_of(ino).unwrap();
    let conflict = |number: usize| {
        let path = number.to_string().into_bytes();
        let how = Overwrite { path, by: DeviceId(1), at_ns: number as i64 + 1 };
        let keep = move |changes: &mut dyn crate::tree::Changes| {
            let present = changes.inode(file)?;
            keep_conflict_copy(changes, file, &present, &how)
        };
        client.edit(keep).unwrap().0.unwrap().to_string()
    };
    let first = conflict(0);
    let directory = holdfast_content::Handle::conflict_copies(file.principal);
    let entry = holdfast_content::Entry { handle: file, kind: InodeKind::File };
    client.edit(move |changes| changes.set_entry(directory, b"0", Some(entry), 1)).unwrap();
    for number in 1..CONFLICT_COPIES_MAX - 1 {
        conflict(number);
    }
    assert_eq!(client.conflict_copies().unwrap().len(), CONFLICT_COPIES_MAX - 1);
    conflict(CONFLICT_COPIES_MAX);
    assert_eq!(client.conflict_copies().unwrap()[0].id, first, "the foreign name went");
    assert_eq!(peek(&client, &[b"f"]).unwrap(), b"precious");
    conflict(CONFLICT_COPIES_MAX + 1);
    let listed = client.conflict_copies().unwrap();
    assert_eq!((listed.len(), listed[0].path.as_str()), (CONFLICT_COPIES_MAX, "1"));
    assert!(matches!(client.read_conflict_copy(&first, 0), Err(FsError::NotFound)));
}

/// Proves: all members see the copies, but only members who may write the owner's files can remove them; a
/// request removes all the copies it lists, or none; and names of other things are refused.
#[test]
fn removing_conflict_copies() {
    let (world, first, second, ino, our) = two_versions(b"before", b"theirs", b"ours");
    close(&second, our);
    let (their, our) = (open(&first, ino), open(&second, ino));
    put(&first, their, 0, b"more");
    put(&second, our, 0, b"most");
    close(&first, their);
    close(&second, our);
    let foreign = PrincipalId::User(holdfast_content::UserId(9));
    world.plant_directory(b"theirs", foreign);
    let stranger = world.stranger(3, &[foreign]);
    let listed = stranger.conflict_copies().unwrap();
    let ids: Vec<String> = listed.iter().map(|version| version.id.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(get(&stranger, &ids[1]).0, b"morere");
    assert!(matches!(stranger.drop_conflict_copies(&ids), Err(FsError::Access(_))));
    let with_unknown = [ids[0].clone(), "u0-fffff".to_owned()];
    assert!(matches!(first.drop_conflict_copies(&with_unknown), Err(FsError::NotFound)));
    assert_eq!(first.conflict_copies().unwrap(), listed);
    for wrong in ["", "u", "x0-1", "u0-xyz", "u0"] {
        assert!(matches!(first.read_conflict_copy(wrong, 0), Err(FsError::Invalid(_))), "{wrong}");
    }
    let file = handle_of(ino).unwrap().number;
    assert!(
        matches!(first.read_conflict_copy(&format!("u0-{file:x}"), 0), Err(FsError::NotFound)),
        "no kept version"
    );
    first.drop_conflict_copies(&ids).unwrap();
    assert!(stranger.conflict_copies().unwrap().is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Open { who: usize, truncate: bool },
    Write { who: usize, slot: usize, length: usize },
    Fsync { who: usize, slot: usize },
    Late { who: usize, slot: usize },
    Close { who: usize, slot: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (who, slot) = (0usize..2, 0usize..3);
    let length = prop_oneof![3 => 4usize..200, 1 => 300usize..30_000];
    prop_oneof![
        4 => (who.clone(), prop::bool::weighted(0.2)).prop_map(|(who, truncate)| Step::Open { who, truncate }),
        6 => (who.clone(), slot.clone(), length).prop_map(|(who, slot, length)| Step::Write { who, slot, length }),
        3 => (who.clone(), slot.clone()).prop_map(|(who, slot)| Step::Fsync { who, slot }),
        1 => (who.clone(), slot.clone()).prop_map(|(who, slot)| Step::Late { who, slot }),
        4 => (who, slot).prop_map(|(who, slot)| Step::Close { who, slot }),
    ]
}

/// The content that one client should have of the file.
#[derive(Default)]
struct TestClient {
    slots: Vec<FileHandleId>,
    /// Contents that the client has seen.
    seen: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    /// Whether there are bytes, or only a time, to publish.
    is_dirty: bool,
    is_written: bool,
    /// Whether some bytes that it has seen were cut off.
    is_cut: bool,
}

impl TestClient {
    fn is_changed(&self) -> bool {
        self.is_written || self.is_cut
    }
}

/// Two clients with one file, and the expected result.
struct ExpectedCopy {
    present: Vec<u8>,
    kept: Vec<Vec<u8>>,
    sides: [TestClient; 2],
}

impl ExpectedCopy {
    fn publish(&mut self, who: usize) {
        let side = &self.sides[who];
        if !side.is_changed() {
            return;
        }
        let present = std::mem::replace(&mut self.present, side.bytes.clone());
        if !present.is_empty() && present != self.present && !side.seen.contains(&present) {
            self.kept.push(present);
        }
    }

    fn published(&mut self, who: usize) {
        if self.sides[who].is_dirty {
            self.publish(who);
            let side = &mut self.sides[who];
            (side.seen, side.bytes) = (vec![self.present.clone()], self.present.clone());
            (side.is_dirty, side.is_written, side.is_cut) = (false, false, false);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: holdfast_testing::setting("HOLDFAST_SEEDS", 96) as u32, ..ProptestConfig::default() })]

    /// Proves: whatever two clients write, cut and publish of one file, also when answers come late: exactly
    /// those versions are kept that were overwritten by a client that had not seen them.
    #[test]
    fn exactly_what_is_overwritten_unseen_is_kept(steps in prop::collection::vec(step(), 1..50)) {
        let world = World::new();
        let clients = [world.client(1, &[]), world.client(2, &[])];
        let ino = write_file(&clients[0], b"f", b"begin");
        let mut expected =
            ExpectedCopy { present: b"begin".to_vec(), kept: Vec::new(), sides: [TestClient::default(), TestClient::default()] };
        for (number, step) in steps.iter().enumerate() {
            let (Step::Open { who, .. }
            | Step::Write { who, .. }
            | Step::Fsync { who, .. }
            | Step::Late { who, .. }
            | Step::Close { who, .. }) = *step;
            let (client, side) = (&clients[who], &mut expected.sides[who]);
            let slot = |slot: usize| side.slots.get(slot % side.slots.len().max(1)).copied();
            match *step {
                Step::Open { truncate, .. } => {
                    if side.slots.is_empty() {
                        (side.seen, side.bytes) = (vec![expected.present.clone()], expected.present.clone());
                    }
                    let flags = OpenFlags { truncate, ..OpenFlags::READ_WRITE };
                    side.slots.push(client.open(&WHO, ino, flags).unwrap().handle);
                    if truncate {
                        // A cut that removes no bytes changes nothing, whatever other clients have published
                        // meanwhile.
                        side.is_cut |= side.seen.iter().any(|seen| !seen.is_empty());
                        (side.bytes, side.is_dirty, side.is_written) = (Vec::new(), true, false);
                    }
                }
                Step::Write { slot: wanted, length, .. } => {
                    let Some(handle) = slot(wanted) else { continue };
                    let mut text = format!("{number}:{who}").into_bytes();
                    text.resize(length, b'.');
                    put(client, handle, 0, &text);
                    let rest = side.bytes.get(length..).unwrap_or_default().to_vec();
                    side.bytes = [text, rest].concat();
                    (side.is_dirty, side.is_written) = (true, true);
                }
                Step::Fsync { slot: wanted, .. } => {
                    let Some(handle) = slot(wanted) else { continue };
                    client.fsync(handle).unwrap();
                    expected.published(who);
                }
                Step::Late { slot: wanted, .. } => {
                    let Some(handle) = slot(wanted) else { continue };
                    *client.memory.late.lock() = Some(FsError::Interrupted);
                    prop_assert_eq!(client.fsync(handle).is_err(), side.is_dirty);
                    *client.memory.late.lock() = None;
                    if side.is_dirty {
                        let base = side.seen[0].clone();
                        expected.publish(who);
                        let side = &mut expected.sides[who];
                        if side.is_changed() {
                            side.seen = vec![base, expected.present.clone()];
                        }
                    }
                }
                Step::Close { slot: wanted, .. } => {
                    let Some(handle) = slot(wanted) else { continue };
                    side.slots.retain(|other| *other != handle);
                    close(client, handle);
                    expected.published(who);
                }
            }
            prop_assert!(peek(&world.client(3, &[]), &[b"f"]).unwrap() == expected.present, "step {}", number);
        }
        let listed = clients[0].conflict_copies().unwrap();
        let mut kept: Vec<Vec<u8>> = listed.iter().map(|version| get(&clients[1], &version.id).0).collect();
        kept.sort();
        expected.kept.sort();
        prop_assert!(kept == expected.kept, "{} kept, {} expected", kept.len(), expected.kept.len());
    }
}
