//! Tests of write-back: changes made while the server is away, concurrent changes of others, and crashes in
//! between.

use super::memory::{Memory, caller, options};
use super::model::{list, peek};
use super::tools::WHO;
use super::*;
pub use holdfast_testing::{PATIENCE, eventually, noise};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A client that sends in the background.
struct Fixture {
    files: Arc<FileSystem>,
    memory: Arc<Memory>,
    back: Arc<WriteBack>,
}

impl Fixture {
    fn new(world: &Arc<World>, device: u32, dir: &Path) -> Fixture {
        let (files, memory, back) = world.write_back(device, dir);
        Fixture { files, memory, back }
    }

    fn go_away(&self) {
        *self.memory.fault.lock() = Some(FsError::Unreachable("the cable is cut".into()));
    }

    fn come_back(&self) {
        *self.memory.fault.lock() = None;
    }

    fn settle(&self) {
        self.come_back();
        assert!(self.back.settle(PATIENCE).unwrap(), "{:?}", self.back.status());
    }

    fn conflicts(&self) -> Vec<String> {
        let conflicts = self.back.status().conflicts;
        conflicts.into_iter().map(|told| format!("{}: {}", told.path, told.what)).collect()
    }

    fn find(&self, path: &str) -> Result<Ino, FsError> {
        find(&self.files, path)
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        put(&self.files, path, bytes).unwrap();
    }
}

pub fn find(files: &FileSystem, path: &str) -> Result<Ino, FsError> {
    let mut ino = Ino::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = files.lookup(&WHO, ino, name.as_bytes())?.ino;
    }
    Ok(ino)
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Writes a file as a whole, as programs do: opens, cuts, writes and closes it.
pub fn put(files: &FileSystem, path: &str, bytes: &[u8]) -> Result<(), FsError> {
    let (parent, name) = split(path);
    let parent = find(files, parent)?;
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::READ_WRITE };
    let (_, opened) = files.create(&WHO, parent, name.as_bytes(), 0o644, flags)?;
    files.write(opened.handle, 0, bytes, WriteSource::Call)?;
    let flushed = files.flush(opened.handle);
    files.release(opened.handle);
    flushed
}

pub fn mkdir(files: &FileSystem, path: &str) -> Result<(), FsError> {
    let (parent, name) = split(path);
    files.mkdir(&WHO, find(files, parent)?, name.as_bytes(), 0o755).map(drop)
}

pub fn unlink(files: &FileSystem, path: &str) -> Result<(), FsError> {
    let (parent, name) = split(path);
    files.unlink(&WHO, find(files, parent)?, name.as_bytes())
}

pub fn rmdir(files: &FileSystem, path: &str) -> Result<(), FsError> {
    let (parent, name) = split(path);
    files.rmdir(&WHO, find(files, parent)?, name.as_bytes())
}

pub fn rename(files: &FileSystem, from: &str, to: &str) -> Result<(), FsError> {
    let ((from, name), (to, new_name)) = (split(from), split(to));
    let (from, to) = (find(files, from)?, find(files, to)?);
    files.rename(&WHO, from, name.as_bytes(), to, new_name.as_bytes(), RenameFlags::Replace)
}

pub fn get(client: &Client, path: &str) -> Result<Vec<u8>, FsError> {
    let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
    peek(client, &names)
}

pub fn read(files: &FileSystem, path: &str) -> Result<Vec<u8>, FsError> {
    let opened = files.open(&WHO, find(files, path)?, OpenFlags::READ)?;
    let bytes = files.read(opened.handle, 0, 8 << 20);
    files.release(opened.handle);
    bytes
}

pub fn names(files: &FileSystem, path: &str) -> BTreeSet<String> {
    let found = list(files, find(files, path).unwrap()).unwrap();
    found.into_keys().map(|name| String::from_utf8(name).unwrap()).collect()
}

/// A tree that both clients have seen: `both/file`, `both/other` and the directory `both/deep`.
fn shared_tree() -> (Arc<World>, Client, tempfile::TempDir, Fixture) {
    let world = World::new();
    let other = world.client(2, &[]);
    mkdir(&other, "both").unwrap();
    mkdir(&other, "both/deep").unwrap();
    put(&other, "both/file", b"as it was").unwrap();
    put(&other, "both/other", b"another").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mine = Fixture::new(&world, 1, dir.path());
    read(&mine.files, "both/file").unwrap();
    // Numbers for new files are fetched while the server can be reached.
    mine.put("warm", b"");
    mine.settle();
    mine.go_away();
    (world, other, dir, mine)
}

/// Proves: a move changes the moved file, and this change is sent: its time of change does not go back when
/// the server has it.
#[test]
fn a_move_is_a_change_of_what_is_moved() {
    let (_world, _other, _dir, mine) = shared_tree();
    let changed = |path: &str| {
        let ino = mine.find(path).unwrap();
        mine.files.getattr(&WHO, ino, None).unwrap().changed_ns
    };
    for (from, to) in [("both/file", "both/moved"), ("both/deep", "both/deeper")] {
        mine.settle();
        let before = changed(from);
        mine.go_away();
        rename(&mine.files, from, to).unwrap();
        let here = changed(to);
        assert!(here > before, "{to}");
        mine.settle();
        assert_eq!(changed(to), here, "{to}");
    }
}

/// Proves: while the server is away everything works and is seen here at once, and nothing of it is seen
/// elsewhere; when the server is back all changes are there, as they were made.
#[test]
fn works_without_a_server() {
    let (_world, other, _dir, mine) = shared_tree();
    let large = noise(1, 3 << 20);
    mine.put("both/file", b"as it is now");
    mkdir(&mine.files, "made").unwrap();
    mine.put("made/large", &large);
    mine.put("made/.tmp", b"saved by an editor");
    rename(&mine.files, "made/.tmp", "both/other").unwrap();
    rename(&mine.files, "both/deep", "made/deep").unwrap();
    mine.files.symlink(&WHO, find(&mine.files, "made").unwrap(), b"link", b"large").unwrap();
    assert_eq!(read(&mine.files, "made/large").unwrap(), large);
    assert_eq!(read(&mine.files, "both/other").unwrap(), b"saved by an editor");
    assert_eq!(names(&mine.files, "made"), ["deep", "large", "link"].map(String::from).into());
    let status = mine.back.status();
    assert!(status.away && status.edits > 5 && status.paths.contains(&"both/file".to_owned()), "{status:?}");
    assert_eq!(names(&other, ""), ["both", "warm"].map(String::from).into());
    assert_eq!(get(&other, "both/file").unwrap(), b"as it was");
    mine.settle();
    assert_eq!(names(&other, ""), ["both", "made", "warm"].map(String::from).into());
    assert_eq!(names(&other, "both"), ["file", "other"].map(String::from).into());
    assert_eq!(names(&other, "made"), ["deep", "large", "link"].map(String::from).into());
    assert_eq!(get(&other, "made/large").unwrap(), large);
    assert_eq!(get(&other, "both/other").unwrap(), b"saved by an editor");
    assert_eq!(mine.conflicts(), Vec::<String>::new());
    let status = mine.back.status();
    assert!(!status.away && status.edits == 0 && status.oldest_ns.is_none(), "{status:?}");
}

/// Proves: closed files survive the end of the process, with the server away all the time; the next process
/// shows them as before, and sends them.
#[test]
fn survives_its_process() {
    let (world, other, dir, mine) = shared_tree();
    let large = noise(2, 1 << 20);
    mine.put("both/file", b"one");
    mine.put("both/large", &large);
    unlink(&mine.files, "both/other").unwrap();
    drop(mine);
    for round in 0..3 {
        let (memory, mut options) = (world.memory(1, &[]), options(dir.path()));
        *memory.fault.lock() = Some(FsError::Unreachable("still away".into()));
        let back_options = WriteBackOptions {
            directory: dir.path().join("journal"),
            bytes_max: 1 << 30,
            salvage_dir: dir.path().join("salvage"),
            name: "me".into(),
            gather: Duration::ZERO,
            gathers: false,
            patience: PATIENCE,
        };
        let back = WriteBack::start(memory.clone(), back_options).unwrap();
        options.spool_dir = dir.path().join(format!("spool-{round}"));
        let files = FileSystem::with_write_back(back.clone(), options).unwrap();
        assert_eq!(read(&files, "both/file").unwrap(), if round == 0 { b"one" } else { b"two" });
        assert_eq!(read(&files, "both/large").unwrap(), large);
        assert!(matches!(find(&files, "both/other"), Err(FsError::NotFound)));
        put(&files, "both/file", b"two").unwrap();
        put(&files, &format!("both/round-{round}"), b"new").unwrap();
        assert_eq!(get(&other, "both/file").unwrap(), b"as it was");
        if round == 2 {
            *memory.fault.lock() = None;
            assert!(back.settle(PATIENCE).unwrap(), "{:?}", back.status());
            assert_eq!(back.status().conflicts, vec![]);
        }
    }
    assert_eq!(get(&other, "both/file").unwrap(), b"two");
    assert_eq!(get(&other, "both/large").unwrap(), large);
    let expected = ["deep", "file", "large", "round-0", "round-1", "round-2"];
    assert_eq!(names(&other, "both"), expected.map(String::from).into());
}

/// Proves: an operation whose answer is lost is made once, whether the process lives on or not.
#[test]
fn a_late_answer_doubles_nothing() {
    for restarts in [false, true] {
        let (world, other, dir, mut mine) = shared_tree();
        mine.put("both/file", b"mine");
        mine.put("both/new", b"new");
        *mine.memory.late.lock() = Some(FsError::Unreachable("the answer was lost".into()));
        mine.come_back();
        eventually("the operation is made", || get(&other, "both/new").is_ok());
        // Other clients continue from there, and must not find it undone.
        put(&other, "both/file", b"theirs, later").unwrap();
        unlink(&other, "both/new").unwrap();
        assert!(mine.back.status().edits > 0);
        if restarts {
            drop(mine);
            mine = Fixture::new(&world, 1, dir.path());
        }
        *mine.memory.late.lock() = None;
        mine.settle();
        assert_eq!(get(&other, "both/file").unwrap(), b"theirs, later", "restarts: {restarts}");
        assert_eq!(mine.conflicts(), Vec::<String>::new());
        assert_eq!(read(&mine.files, "both/file").unwrap(), b"theirs, later");
    }
}

/// Proves: if both sides wrote a file, this client's version wins, the other is kept, and the user is told.
#[test]
fn both_wrote_a_file() {
    let (_world, other, _dir, mine) = shared_tree();
    mine.put("both/file", b"mine");
    put(&other, "both/file", b"theirs").unwrap();
    mine.settle();
    assert_eq!(get(&other, "both/file").unwrap(), b"mine");
    let kept = other.conflict_copies().unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].path.as_str(), kept[0].bytes), ("both/file", 6));
    assert_eq!(other.read_conflict_copy(&kept[0].id, 0).unwrap().bytes, b"theirs");
    let told = mine.conflicts();
    assert!(told.len() == 1 && told[0].contains("both/file") && told[0].contains(&kept[0].id), "{told:?}");
}

/// Proves: changes of attributes on both sides are both made, and are no conflict.
#[test]
fn both_changed_attributes() {
    let (_world, other, _dir, mine) = shared_tree();
    let ino = mine.find("both/file").unwrap();
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    mine.files.setattr(&WHO, ino, mode, None).unwrap();
    other.setxattr(&WHO, ino, b"user.x", b"theirs", SetXattr::Any).unwrap();
    put(&other, "both/file", b"theirs").unwrap();
    mine.settle();
    assert_eq!(get(&other, "both/file").unwrap(), b"theirs");
    assert_eq!(other.getattr(&caller(9), ino, None).unwrap().mode, 0o600);
    assert_eq!(other.getxattr(&WHO, ino, b"user.x").unwrap(), b"theirs");
    assert_eq!(mine.conflicts(), Vec::<String>::new());
}

/// Proves: if both sides made a file with one name, both files stay, the other side's under the name and this
/// client's beside it. Later changes to this client's file, made before its new name is known, are applied to
/// it.
#[test]
fn both_took_a_name() {
    let (_world, other, _dir, mine) = shared_tree();
    mine.put("both/new.txt", b"mine");
    put(&other, "both/new.txt", b"theirs").unwrap();
    mkdir(&mine.files, "both/folder").unwrap();
    mine.put("both/folder/inside", b"mine too");
    put(&other, "both/folder", b"a file of that name").unwrap();
    mine.settle();
    assert_eq!(get(&other, "both/new.txt").unwrap(), b"theirs");
    let all = names(&other, "both");
    let ours = all.iter().find(|name| name.starts_with("new (changed by device 1, ")).unwrap();
    assert!(ours.ends_with(").txt"), "{ours}");
    assert_eq!(get(&other, &format!("both/{ours}")).unwrap(), b"mine");
    let folder = all.iter().find(|name| name.starts_with("folder (changed by device 1, ")).unwrap();
    assert_eq!(get(&other, &format!("both/{folder}/inside")).unwrap(), b"mine too");
    assert_eq!(mine.conflicts().len(), 2, "{:?}", mine.conflicts());
    assert_eq!(read(&mine.files, "both/new.txt").unwrap(), b"theirs", "seen here as it is there");
}

/// Proves: a file removed by the other side and written here comes back beside its old place; one removed
/// here and written by the other side is kept as an overwritten version; in both cases the user is told.
#[test]
fn one_removed_what_the_other_wrote() {
    let (_world, other, _dir, mine) = shared_tree();
    mine.put("both/file", b"written here");
    unlink(&other, "both/file").unwrap();
    unlink(&mine.files, "both/other").unwrap();
    put(&other, "both/other", b"written there").unwrap();
    mine.settle();
    let all = names(&other, "both");
    let back = all.iter().find(|name| name.starts_with("file (changed by")).expect("it came back");
    assert_eq!(get(&other, &format!("both/{back}")).unwrap(), b"written here");
    assert!(!all.contains("other"));
    let kept = other.conflict_copies().unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(other.read_conflict_copy(&kept[0].id, 0).unwrap().bytes, b"written there");
    assert_eq!(mine.conflicts().len(), 2, "{:?}", mine.conflicts());
}

/// Proves: if a file was written here and replaced by the other side, as programs do when saving, both
/// versions stay, and it is reported as replaced.
#[test]
fn replaced_elsewhere() {
    let (_world, other, _dir, mine) = shared_tree();
    mine.put("both/file", b"written here");
    put(&other, "both/.file.new", b"saved there").unwrap();
    rename(&other, "both/.file.new", "both/file").unwrap();
    mine.settle();
    assert_eq!(get(&other, "both/file").unwrap(), b"saved there");
    let all = names(&other, "both");
    let ours = all.iter().find(|name| name.starts_with("file (changed by")).expect("it stays beside");
    assert_eq!(get(&other, &format!("both/{ours}")).unwrap(), b"written here");
    let told = mine.conflicts();
    assert!(told.len() == 1 && told[0].contains("both/file: it was replaced elsewhere"), "{told:?}");
}

/// Proves: a file that was put into a directory that is gone is put into the nearest one left; a directory
/// removed here stays if others have put a file into it.
#[test]
fn directories_that_went() {
    let (_world, other, _dir, mine) = shared_tree();
    mine.put("both/deep/mine", b"put into it here");
    rmdir(&other, "both/deep").unwrap();
    mkdir(&other, "both/fresh").unwrap();
    mine.settle();
    let all = names(&other, "both");
    let found = all.iter().find(|name| name.starts_with("mine (changed by")).expect("it has a place");
    assert_eq!(get(&other, &format!("both/{found}")).unwrap(), b"put into it here");
    mine.go_away();
    rmdir(&mine.files, "both/fresh").unwrap();
    put(&other, "both/fresh/theirs", b"put into it there").unwrap();
    mine.settle();
    assert_eq!(get(&other, "both/fresh/theirs").unwrap(), b"put into it there");
    assert_eq!(mine.conflicts().len(), 2, "{:?}", mine.conflicts());
}

/// Proves: two moves that are each valid where they were made, but together would make a loop, make none.
#[test]
fn moves_make_no_loop() {
    let world = World::new();
    let other = world.client(2, &[]);
    mkdir(&other, "a").unwrap();
    mkdir(&other, "b").unwrap();
    put(&other, "a/in-a", b"a").unwrap();
    put(&other, "b/in-b", b"b").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mine = Fixture::new(&world, 1, dir.path());
    mine.go_away();
    rename(&mine.files, "a", "b/a").unwrap();
    rename(&other, "b", "a/b").unwrap();
    mine.settle();
    assert_eq!(get(&other, "a/in-a").unwrap(), b"a");
    assert_eq!(get(&other, "a/b/in-b").unwrap(), b"b");
    assert_eq!(names(&other, ""), ["a"].map(String::from).into());
    assert_eq!(mine.conflicts().len(), 1, "{:?}", mine.conflicts());
}

/// Proves: a file that others moved is not destroyed by a file that takes its old name here; a file that
/// others removed gets no new name when it is moved here, and the file it would have replaced stays.
#[test]
fn names_that_others_moved_or_removed() {
    let (_world, other, _dir, mine) = shared_tree();
    put(&other, "both/third", b"the third").unwrap();
    put(&other, "both/fourth", b"the fourth").unwrap();
    mine.settle();
    read(&mine.files, "both/third").unwrap();
    mine.go_away();
    rename(&mine.files, "both/file", "both/other").unwrap();
    rename(&other, "both/other", "moved").unwrap();
    rename(&mine.files, "both/third", "both/fourth").unwrap();
    unlink(&other, "both/third").unwrap();
    mine.settle();
    assert_eq!(get(&other, "moved").unwrap(), b"another");
    assert_eq!(get(&other, "both/other").unwrap(), b"as it was");
    assert_eq!(get(&other, "both/fourth").unwrap(), b"the fourth");
    assert_eq!(names(&other, "both"), ["deep", "fourth", "other"].map(String::from).into());
    let told = mine.conflicts();
    let gone = "both/fourth: it got this name here, but elsewhere it was removed or replaced; it is gone";
    assert!(told.contains(&gone.to_owned()), "{told:?}");
}

/// Proves: a file moved on both sides has both names; a directory moved on both sides, or anything removed
/// here and moved by the other side, is where the other side moved it; all this is reported. A move to the
/// same place on both sides is no conflict.
#[test]
fn moved_on_both_sides() {
    let (_world, other, _dir, mine) = shared_tree();
    mkdir(&other, "both/empty").unwrap();
    put(&other, "both/third", b"the third").unwrap();
    mine.settle();
    names(&mine.files, "both/empty");
    read(&mine.files, "both/third").unwrap();
    mine.go_away();
    rename(&mine.files, "both/file", "both/mine").unwrap();
    rename(&other, "both/file", "both/theirs").unwrap();
    rename(&mine.files, "both/deep", "both/deep-mine").unwrap();
    rename(&other, "both/deep", "both/deep-theirs").unwrap();
    rmdir(&mine.files, "both/empty").unwrap();
    rename(&other, "both/empty", "both/moved").unwrap();
    unlink(&mine.files, "both/other").unwrap();
    rename(&other, "both/other", "both/other-moved").unwrap();
    rename(&mine.files, "both/third", "both/agreed").unwrap();
    rename(&other, "both/third", "both/agreed").unwrap();
    mine.settle();
    assert_eq!(
        names(&other, "both"),
        ["agreed", "deep-theirs", "mine", "moved", "other-moved", "theirs"].map(String::from).into()
    );
    assert_eq!(get(&other, "both/mine").unwrap(), b"as it was");
    assert_eq!(get(&other, "both/other-moved").unwrap(), b"another");
    let ino = find(&other, "both/theirs").unwrap();
    assert_eq!(other.getattr(&caller(9), ino, None).unwrap().links, 2);
    let told: BTreeSet<String> = mine.conflicts().into_iter().collect();
    let expected = [
        "both/deep-mine: it was moved both here and elsewhere; it is where it was moved to elsewhere",
        "both/empty: it was removed here, but moved elsewhere; it stays",
        "both/mine: it was moved both here and elsewhere; it has both names",
        "both/other: it was removed here, but moved elsewhere; it stays where it was moved to",
    ];
    assert_eq!(told, expected.map(String::from).into());
}

/// Proves: data written under a right that is lost before it is sent is saved to a folder and reported.
#[test]
fn the_right_to_write_was_lost() {
    let world = World::new();
    let principal = holdfast_content::PrincipalId::Group(holdfast_content::GroupId(5));
    world.plant_directory(b"group", principal);
    let dir = tempfile::tempdir().unwrap();
    let start = |rights: &[_], round: u32| {
        let memory = world.memory(1, rights);
        let back_options = WriteBackOptions {
            directory: dir.path().join("journal"),
            bytes_max: 1 << 30,
            salvage_dir: dir.path().join("salvage"),
            name: "me".into(),
            gather: Duration::ZERO,
            gathers: false,
            patience: PATIENCE,
        };
        let back = WriteBack::start(memory.clone(), back_options).unwrap();
        let options = MountOptions { spool_dir: dir.path().join(round.to_string()), ..options(dir.path()) };
        let files = FileSystem::with_write_back(back.clone(), options).unwrap();
        Fixture { files, memory, back }
    };
    let mine = start(&[principal], 0);
    mine.put("group/known", b"before");
    mine.put("warm", b"");
    mine.settle();
    mine.go_away();
    mine.put("group/new", b"written in vain");
    mine.put("group/known", b"changed in vain");
    mine.put("beside", b"goes on");
    drop(mine);
    let mine = start(&[], 1);
    mine.settle();
    let other = world.client(2, &[]);
    assert_eq!(get(&other, "group/known").unwrap(), b"before");
    assert_eq!(get(&other, "beside").unwrap(), b"goes on");
    let saved = saved(dir.path());
    for bytes in [b"written in vain".to_vec(), b"changed in vain".to_vec()] {
        assert!(saved.contains(&bytes), "{:?}", mine.conflicts());
    }
    assert!(mine.conflicts().iter().any(|told| told.contains("group/known")), "{:?}", mine.conflicts());
}

/// Proves: link counts match the names, whichever side added or removed them.
#[test]
fn links_are_counted() {
    let (_world, other, _dir, mine) = shared_tree();
    let (ino, both) = (mine.find("both/file").unwrap(), mine.find("both").unwrap());
    mine.files.link(&WHO, ino, both, b"mine").unwrap();
    other.link(&WHO, ino, both, b"theirs").unwrap();
    unlink(&mine.files, "both/file").unwrap();
    mine.settle();
    assert_eq!(names(&other, "both"), ["deep", "mine", "other", "theirs"].map(String::from).into());
    assert_eq!(other.getattr(&caller(9), ino, None).unwrap().links, 2);
    assert_eq!(get(&other, "both/theirs").unwrap(), b"as it was");
}

/// Proves: an edit that the server will never accept is saved to a folder and reported, and does not delay
/// others.
#[test]
fn what_is_refused_for_good_holds_up_nothing() {
    let (_world, other, dir, mine) = shared_tree();
    mine.put("both/never", b"saved elsewhere");
    *mine.memory.fault.lock() = Some(FsError::Refused("not in this life".into()));
    assert!(mine.back.settle(PATIENCE).unwrap(), "{:?}", mine.back.status());
    assert!(mine.conflicts().iter().any(|told| told.contains("both/never")), "{:?}", mine.conflicts());
    *mine.memory.fault.lock() = None;
    mine.put("both/after", b"goes on");
    mine.settle();
    assert_eq!(get(&other, "both/after").unwrap(), b"goes on");
    assert!(get(&other, "both/never").is_err());
    assert!(saved(dir.path()).contains(&b"saved elsewhere".to_vec()));
}

/// Proves: when the order is found wrong, data that is not at the server is saved to a folder, and calls
/// fail.
#[test]
fn a_wrong_order_saves_everything() {
    let (_world, _other, dir, mine) = shared_tree();
    mine.put("both/file", b"not lost");
    *mine.memory.fault.lock() = Some(super::memory::frozen());
    mine.back.settle(PATIENCE).unwrap_err();
    assert!(saved(dir.path()).contains(&b"not lost".to_vec()));
    assert!(matches!(mine.files.mkdir(&WHO, Ino::ROOT, b"x", 0o755), Err(FsError::Frozen(_))));
}

/// All files in the salvage folders.
fn saved(dir: &Path) -> Vec<Vec<u8>> {
    let mut waiting = vec![dir.join("salvage")];
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&path) else { continue };
        for entry in entries.map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => waiting.push(entry.path()),
                false => found.push(std::fs::read(entry.path()).unwrap()),
            }
        }
    }
    found
}

/// Proves: a file made and removed again before it is sent costs the server nothing; if it is still open
/// then, it can still be read; and its space in the journal is freed.
#[test]
fn what_cancels_out_is_never_sent() {
    let (world, _other, dir, mine) = shared_tree();
    let stored = world.stored_bytes();
    let large = noise(3, 4 << 20);
    for round in 0..20 {
        mine.put("both/temporary", &large[round..]);
        unlink(&mine.files, "both/temporary").unwrap();
    }
    mine.put("both/open", &large);
    let opened = mine.files.open(&WHO, mine.find("both/open").unwrap(), OpenFlags::READ).unwrap();
    unlink(&mine.files, "both/open").unwrap();
    mine.settle();
    assert!(world.stored_bytes() < stored + 10_000);
    mine.put("both/next", b"so that the journal is looked through");
    mine.settle();
    assert_eq!(mine.files.read(opened.handle, 0, large.len()).unwrap(), large);
    mine.files.release(opened.handle);
    mine.put("both/next", b"again");
    mine.settle();
    let bytes = mine.back.status().journal_bytes;
    assert!(bytes < 70 << 20, "{bytes} bytes");
    drop(mine);
    let mine = Fixture::new(&world, 1, dir.path());
    let bytes = mine.back.status().journal_bytes;
    assert!(bytes < 100_000, "{bytes} bytes after a restart");
}

/// Proves: if the journal is full, further writes fail, and no accepted change is lost.
#[test]
fn a_full_journal() {
    let world = World::new();
    let other = world.client(2, &[]);
    let dir = tempfile::tempdir().unwrap();
    let memory = world.memory(1, &[]);
    let back_options = WriteBackOptions {
        directory: dir.path().join("journal"),
        bytes_max: 1 << 20,
        salvage_dir: dir.path().join("salvage"),
        name: "me".into(),
        gather: Duration::ZERO,
        gathers: false,
        patience: PATIENCE,
    };
    let back = WriteBack::start(memory.clone(), back_options).unwrap();
    let files = FileSystem::with_write_back(back.clone(), options(dir.path())).unwrap();
    put(&files, "warm", b"").unwrap();
    assert!(back.settle(PATIENCE).unwrap());
    *memory.fault.lock() = Some(FsError::Unreachable("away".into()));
    let mut taken = BTreeMap::new();
    for number in 0..100u64 {
        let bytes = noise(number, 100_000);
        match put(&files, &format!("file-{number}"), &bytes) {
            Ok(()) => drop(taken.insert(format!("file-{number}"), bytes)),
            Err(error) => {
                assert!(matches!(error, FsError::NoSpace), "{error}");
                break;
            }
        }
    }
    assert!((5..30).contains(&taken.len()), "{} files", taken.len());
    // A change that frees space continues, and a change that needs space is refused before it begins.
    assert!(back.status().room_left.unwrap() < 200_000 && files.statfs().unwrap().blocks_free < 50);
    let ino = files.lookup(&WHO, Ino::ROOT, b"warm").unwrap().ino;
    let opened = files.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap();
    let written = files.write(opened.handle, 0, &noise(0, 200_000), WriteSource::Call);
    assert!(matches!(written, Err(FsError::NoSpace)));
    files.release(opened.handle);
    let names: Vec<String> = taken.keys().cloned().collect();
    for name in &names[..2] {
        files.unlink(&WHO, Ino::ROOT, name.as_bytes()).unwrap();
        taken.remove(name);
    }
    let shorter = SetAttributes { size: Some(10), ..SetAttributes::default() };
    let ino = files.lookup(&WHO, Ino::ROOT, names[2].as_bytes()).unwrap().ino;
    files.setattr(&WHO, ino, shorter, None).unwrap();
    taken.get_mut(&names[2]).unwrap().truncate(10);
    files.rename(&WHO, Ino::ROOT, names[3].as_bytes(), Ino::ROOT, b"renamed", RenameFlags::Replace).unwrap();
    let renamed = taken.remove(&names[3]).unwrap();
    taken.insert("renamed".to_owned(), renamed);
    *memory.fault.lock() = None;
    assert!(back.settle(PATIENCE).unwrap(), "{:?}", back.status());
    for (name, bytes) in taken {
        assert_eq!(get(&other, &name).unwrap(), bytes);
    }
}

/// Proves: a program that writes faster than a slow server accepts waits for as long as the server answers,
/// and no write is refused.
#[test]
fn a_full_journal_and_a_slow_server() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let memory = world.memory(1, &[]);
    let back_options = WriteBackOptions {
        directory: dir.path().join("journal"),
        bytes_max: 1 << 20,
        salvage_dir: dir.path().join("salvage"),
        name: "me".into(),
        gather: Duration::ZERO,
        gathers: false,
        patience: PATIENCE,
    };
    let back = WriteBack::start(memory.clone(), back_options).unwrap();
    let files = FileSystem::with_write_back(back.clone(), options(dir.path())).unwrap();
    put(&files, "warm", b"").unwrap();
    assert!(back.settle(PATIENCE).unwrap());
    memory.gate.close();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0..40_u64).try_for_each(|number| put(&files, &format!("file-{number}"), &noise(number, 100_000)))
        });
        // It has asked repeatedly whether the server is there, and waits.
        let full = || back.status().journal_bytes > 1 << 20;
        eventually("the journal is full", || full() || writer.is_finished());
        let looks = memory.fetch_count();
        eventually("it looks", || memory.fetch_count() > looks + 8 || writer.is_finished());
        memory.gate.open();
        writer.join().unwrap().unwrap();
    });
    assert!(back.settle(PATIENCE).unwrap());
    assert_eq!(get(&world.client(2, &[]), "file-39").unwrap(), noise(39, 100_000));
}

mod random {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(usize, usize),
        Unlink(usize, usize),
        Rename(usize, usize, usize),
        Mkdir(usize, usize),
        Rmdir(usize, usize),
        Away(usize),
        Back(usize),
        Restart(usize),
    }

    /// Paths, used for files and directories alike, so that all kinds of conflicts occur.
    const PATHS: [&str; 8] = ["a", "b", "d", "e", "d/a", "d/b", "e/a", "e/d"];

    fn step() -> impl Strategy<Value = Step> {
        let (who, path) = (0usize..2, 0usize..PATHS.len());
        prop_oneof![
            8 => (who.clone(), path.clone()).prop_map(|(who, path)| Step::Put(who, path)),
            3 => (who.clone(), path.clone()).prop_map(|(who, path)| Step::Unlink(who, path)),
            4 => (who.clone(), path.clone(), path.clone()).prop_map(|(who, from, to)| Step::Rename(who, from, to)),
            4 => (who.clone(), path.clone()).prop_map(|(who, path)| Step::Mkdir(who, path)),
            1 => (who.clone(), path).prop_map(|(who, path)| Step::Rmdir(who, path)),
            2 => who.clone().prop_map(Step::Away),
            2 => who.clone().prop_map(Step::Back),
            1 => who.prop_map(Step::Restart),
        ]
    }

    fn collect(files: &FileSystem, ino: Ino, found: &mut BTreeSet<Vec<u8>>) {
        for (name, kind) in list(files, ino).unwrap() {
            let ino = files.lookup(&WHO, ino, &name).unwrap().ino;
            match kind {
                InodeKind::Directory => collect(files, ino, found),
                _ => {
                    let opened = files.open(&WHO, ino, OpenFlags::READ).unwrap();
                    found.insert(files.read(opened.handle, 0, 100).unwrap());
                    files.release(opened.handle);
                }
            }
        }
    }

    fn run(steps: &[Step]) -> Result<(), TestCaseError> {
        let world = World::new();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let start = |who: usize| Fixture::new(&world, who as u32 + 1, folders[who].path());
        let mut clients = [start(0), start(1)];
        for (who, client) in clients.iter().enumerate() {
            client.put(&format!("warm-{who}"), b"");
            client.settle();
        }
        let mut written = BTreeSet::new();
        // Content that a client saw and then overwrote or removed is rightly gone.
        let mut consumed = BTreeSet::new();
        for (number, step) in steps.iter().enumerate() {
            // The inode of a name must not change between a look at it and its removal.
            for client in clients.iter().filter(|client| client.memory.fault.lock().is_none()) {
                client.settle();
            }
            match *step {
                Step::Put(who, path) => {
                    let client = &clients[who];
                    let before = read(&client.files, PATHS[path]);
                    let bytes = format!("content {number}").into_bytes();
                    if put(&client.files, PATHS[path], &bytes).is_ok() {
                        written.insert(bytes);
                        consumed.extend(before);
                    }
                }
                Step::Unlink(who, path) => {
                    let before = read(&clients[who].files, PATHS[path]);
                    if unlink(&clients[who].files, PATHS[path]).is_ok() {
                        consumed.extend(before);
                    }
                }
                Step::Rename(who, from, to) => {
                    let before = read(&clients[who].files, PATHS[to]);
                    let moved = read(&clients[who].files, PATHS[from]);
                    if from != to
                        && rename(&clients[who].files, PATHS[from], PATHS[to]).is_ok()
                        && before.as_ref().ok() != moved.as_ref().ok()
                    {
                        consumed.extend(before);
                    }
                }
                Step::Mkdir(who, path) => drop(mkdir(&clients[who].files, PATHS[path])),
                Step::Rmdir(who, path) => drop(rmdir(&clients[who].files, PATHS[path])),
                Step::Away(who) => clients[who].go_away(),
                Step::Back(who) => clients[who].come_back(),
                Step::Restart(who) => {
                    let away = clients[who].memory.fault.lock().clone();
                    clients[who].back.stop();
                    let mut parts = clients.into_iter().enumerate().collect::<Vec<_>>();
                    parts.retain(|(other, _)| *other != who);
                    let (_, stays) = parts.pop().unwrap();
                    let again = start(who);
                    *again.memory.fault.lock() = away;
                    clients = if who == 0 { [again, stays] } else { [stays, again] };
                }
            }
        }
        clients.iter().for_each(Fixture::settle);
        let fresh = world.client(9, &[]);
        let mut found = BTreeSet::new();
        collect(&fresh, Ino::ROOT, &mut found);
        for kept in fresh.conflict_copies().unwrap() {
            found.insert(fresh.read_conflict_copy(&kept.id, 0).unwrap().bytes);
        }
        for folder in &folders {
            found.extend(saved(folder.path()));
        }
        for bytes in written.difference(&consumed) {
            prop_assert!(
                found.contains(bytes),
                "{:?} is lost; told: {:?}",
                String::from_utf8_lossy(bytes),
                clients.iter().map(Fixture::conflicts).collect::<Vec<_>>()
            );
        }
        for client in &clients {
            let mut seen = BTreeSet::new();
            collect(&client.files, Ino::ROOT, &mut seen);
            let mut all = BTreeSet::new();
            collect(&fresh, Ino::ROOT, &mut all);
            prop_assert_eq!(seen, all, "both show what is there");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: holdfast_testing::setting("HOLDFAST_SEEDS", 16) as u32, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

        /// Proves: whatever two clients do, with or without the server and across restarts, all changes reach
        /// the server in the end, nothing is lost that no client meant to destroy, and both see the same.
        #[test]
        fn two_clients_lose_nothing(steps in prop::collection::vec(step(), 1..60)) {
            run(&steps)?;
        }
    }
}
