use super::*;
use holdfast_content::{DeviceId, GroupId};

const TEAM: PrincipalId = PrincipalId::Group(GroupId(1));
const TOP: Handle = Handle { principal: TEAM, number: 1024 };

fn file(number: u64) -> Handle {
    Handle { principal: TEAM, number }
}

/// One side's state, in memory.
#[derive(Clone, Default)]
struct Fake {
    inodes: BTreeMap<Handle, Inode>,
    names: BTreeMap<Handle, Names>,
    unread: BTreeSet<Handle>,
}

impl Fake {
    /// The root with one directory in it.
    fn new() -> Fake {
        let mut fake = Fake::default();
        fake.names.insert(Handle::ROOT, Names::new());
        fake.directory(Handle::ROOT, "team", TOP);
        fake
    }

    fn directory(&mut self, above: Handle, name: &str, handle: Handle) {
        self.names.entry(handle).or_default();
        self.name(above, name, handle, InodeKind::Directory);
    }

    fn file(&mut self, above: Handle, name: &str, handle: Handle, content: &str) {
        let mut inode = Inode::new(InodeKind::File, 0o600, DeviceId(1), 0);
        inode.size = content.len() as u64;
        inode.content = Content::Inline(content.as_bytes().to_vec());
        self.inodes.insert(handle, inode);
        self.name(above, name, handle, InodeKind::File);
    }

    fn name(&mut self, above: Handle, name: &str, handle: Handle, kind: InodeKind) {
        let entry = Entry { handle, kind };
        self.names.get_mut(&above).expect("a directory").insert(name.as_bytes().to_vec(), entry);
    }

    fn unname(&mut self, above: Handle, name: &str) {
        self.names.get_mut(&above).expect("a directory").remove(name.as_bytes());
    }
}

impl TreeState for Fake {
    fn inode(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unreadable> {
        if self.unread.contains(&file) {
            return Err(Unreadable);
        }
        let inode = match self.names.get(&file) {
            Some(names) => {
                let mut inode = Inode::new(InodeKind::Directory, 0o700, DeviceId(1), 0);
                // The time differs if the names differ.
                let sum =
                    |(name, entry): (&Vec<u8>, &Entry)| entry.handle.number as i64 * 31 + i64::from(name[0]);
                inode.modified_ns = names.iter().map(sum).sum();
                Some(inode)
            }
            None => self.inodes.get(&file).cloned(),
        };
        Ok(inode.map(Arc::new))
    }

    fn names(&self, directory: Handle) -> Result<Names, Unreadable> {
        if self.unread.contains(&directory) {
            return Err(Unreadable);
        }
        self.names.get(&directory).cloned().ok_or(Unreadable)
    }
}

/// Only this device made changes, unless the test says otherwise.
#[derive(Default)]
struct Known {
    changed_since: BTreeSet<Handle>,
    others_were_there: bool,
    may_not_write: bool,
}

impl RestoreFacts for Known {
    fn is_as_restored(&self, file: Handle) -> bool {
        !self.changed_since.contains(&file)
    }

    fn is_ours_alone(&self, _: PrincipalId) -> bool {
        !self.others_were_there
    }

    fn may_write(&self, owner: PrincipalId) -> bool {
        owner == TEAM && !self.may_not_write
    }
}

/// The table that this device itself would have: every file that differs, with its present inode.
fn mine(was: &Fake, is: &Fake) -> BTreeMap<Handle, Option<Arc<Inode>>> {
    let differ = was.inodes.iter().filter(|(handle, inode)| is.inodes.get(handle) != Some(inode));
    differ.map(|(handle, _)| (*handle, is.inodes.get(handle).cloned().map(Arc::new))).collect()
}

fn planned(was: &Fake, is: &Fake, known: &Known) -> ResendPlan {
    plan(was, was, is, &mine(was, is), known, 7)
}

fn only(planned: &ResendPlan) -> &Record {
    assert_eq!(planned.batches.len(), 1, "{planned:?}");
    &planned.batches[0]
}

fn sizes(kept: &Option<JournalInode>) -> Option<u64> {
    kept.as_ref().map(|kept| kept.0.size)
}

/// Proves: an edited file gets its content again where no other device has changed it. Where another device
/// has, the plan says nothing of the earlier content, and the edit gives way. An unchanged name is not
/// touched.
#[test]
fn edited_files() {
    let (mut was, mut is) = (Fake::new(), Fake::new());
    was.file(TOP, "a", file(2000), "longer");
    is.file(TOP, "a", file(2000), "short");
    let plan = planned(&was, &is, &Known::default());
    let [change] = &only(&plan).inodes[..] else { panic!("{plan:?}") };
    assert_eq!((sizes(&change.seen), sizes(&change.new)), (Some(5), Some(6)));
    assert_eq!(change.path, b"team/a");
    assert!(only(&plan).entries.is_empty());
    let known = Known { changed_since: [file(2000)].into(), ..Known::default() };
    let plan = planned(&was, &is, &known);
    assert_eq!(sizes(&only(&plan).inodes[0].seen), None);
    let known = Known { may_not_write: true, ..Known::default() };
    let plan = planned(&was, &is, &known);
    assert_eq!((plan.batches.len(), plan.foreign), (0, vec![b"team/a".to_vec()]));
}

/// Proves: a new file brings the directories above it, whoever made them, each with its name; a name that
/// another device has taken since is not claimed.
#[test]
fn new_files() {
    let (mut was, mut is) = (Fake::new(), Fake::new());
    was.directory(TOP, "d", file(3000));
    was.directory(file(3000), "e", file(3001));
    was.file(file(3001), "new", file(2000), "x");
    was.file(TOP, "taken", file(2001), "x");
    is.file(TOP, "taken", file(2002), "other");
    let known =
        Known { others_were_there: true, changed_since: [file(2002), TOP].into(), ..Known::default() };
    let plan = plan(&was, &was, &is, &[(file(2000), None), (file(2001), None)].into(), &known, 7);
    let made: BTreeSet<Handle> = only(&plan).inodes.iter().map(|change| change.handle).collect();
    assert_eq!(made, [file(2000), file(2001), file(3000), file(3001)].into());
    let named: Vec<(&[u8], Option<Entry>)> =
        only(&plan).entries.iter().map(|change| (&change.name[..], change.seen)).collect();
    assert_eq!(named.len(), 4);
    assert!(named.iter().all(|(_, seen)| seen.is_none()), "{named:?}");
}

/// Proves: what only this device can have removed is removed again, a directory with all its entries. If
/// another device may have removed it, it remains and is reported. What other devices have changed since
/// remains and is not reported.
#[test]
fn removed_names() {
    let (was, mut is) = (Fake::new(), Fake::new());
    is.file(TOP, "a", file(2000), "x");
    is.directory(TOP, "d", file(3000));
    is.file(file(3000), "in", file(2001), "x");
    let plan = planned(&was, &is, &Known::default());
    let gone: BTreeSet<Handle> =
        only(&plan).inodes.iter().filter(|change| change.new.is_none()).map(|change| change.handle).collect();
    assert_eq!(gone, [file(2000), file(2001), file(3000)].into());
    assert_eq!(only(&plan).entries.len(), 3);
    let known = Known { others_were_there: true, ..Known::default() };
    let plan = planned(&was, &is, &known);
    assert_eq!((plan.batches.len(), plan.left_count), (0, 2));
    assert_eq!(plan.left, [b"team/a".to_vec(), b"team/d".to_vec()]);
    let known = Known { changed_since: [file(2000), file(3000)].into(), ..Known::default() };
    assert_eq!(planned(&was, &is, &known), ResendPlan::default());
}

/// Proves: a move is made again with both its names, also where other devices made changes, if the file was
/// written as well. A file that was saved by replacing another takes that place again, in one step with the
/// replaced file.
#[test]
fn moved_and_replaced() {
    let (mut was, mut is) = (Fake::new(), Fake::new());
    was.file(TOP, "new", file(2000), "written");
    is.file(TOP, "old", file(2000), "x");
    let known = Known { others_were_there: true, ..Known::default() };
    let plan = planned(&was, &is, &known);
    let names: BTreeSet<(&[u8], bool)> =
        only(&plan).entries.iter().map(|change| (&change.name[..], change.new.is_some())).collect();
    assert_eq!(names, [(&b"new"[..], true), (&b"old"[..], false)].into());

    let (mut was, mut is) = (Fake::new(), Fake::new());
    was.file(TOP, "a", file(2001), "saved");
    is.file(TOP, "a", file(2000), "x");
    let plan = planned(&was, &is, &known);
    let batch = only(&plan);
    assert_eq!(batch.entries[0].seen.map(|seen| seen.handle), Some(file(2000)));
    assert_eq!(batch.inodes.iter().filter(|change| change.new.is_none()).count(), 1);
    assert_eq!(pieces(batch.clone()).len(), 1);
    // Another device has changed the old file since: it keeps the name.
    let known = Known { changed_since: [file(2000)].into(), ..known };
    let plan = planned(&was, &is, &known);
    assert_eq!(only(&plan).entries[0].seen, None);
    assert_eq!(only(&plan).inodes.len(), 1);
}

/// Proves: a file that other devices have removed since, and that was written here, gets no second name; a
/// file that cannot be read is never taken for removed.
#[test]
fn gone_since_and_unread() {
    let (mut was, is) = (Fake::new(), Fake::new());
    was.file(TOP, "a", file(2000), "written");
    let before = Arc::new(Inode::new(InodeKind::File, 0o600, DeviceId(1), 0));
    let plan = plan(&was, &was, &is, &[(file(2000), Some(before))].into(), &Known::default(), 7);
    assert_eq!((only(&plan).inodes.len(), only(&plan).entries.len()), (1, 0));
    assert_eq!(sizes(&only(&plan).inodes[0].seen), Some(0));

    let (mut was, mut is) = (Fake::new(), Fake::new());
    is.file(TOP, "a", file(2000), "x");
    was.unread.insert(TOP);
    assert_eq!(planned(&was, &is, &Known::default()), ResendPlan::default());
    was.unread = [file(2000)].into();
    let plan = planned(&was, &is, &Known::default());
    assert!(
        plan.batches.iter().flat_map(|batch| &batch.inodes).all(|change| change.new.is_some()),
        "{plan:?}"
    );
}

/// Proves: many changes are split into operations of bounded size, numbered in order, with directories before
/// their entries, and no change is left out or made twice.
#[test]
fn many_changes() {
    let (mut was, mut is) = (Fake::new(), Fake::new());
    for number in 0..40 {
        was.directory(TOP, &format!("d{number}"), file(3000 + number));
        for inner in 0..50 {
            let handle = file(10_000 + number * 50 + inner);
            was.file(file(3000 + number), &format!("f{inner}"), handle, "x");
        }
    }
    is.file(TOP, "gone", file(2000), "x");
    is.unname(TOP, "nothing");
    let plan = planned(&was, &is, &Known::default());
    assert!(plan.batches.len() > 5);
    let (mut made, mut number) = (BTreeSet::from([TOP]), 0);
    for batch in &plan.batches {
        number += 1;
        assert_eq!((batch.number, batch.at_ns), (number, 7));
        assert!(batch.changes() <= BATCH_CHANGES);
        let new = batch.inodes.iter().filter(|change| change.new.is_some());
        for change in new {
            assert!(made.insert(change.handle), "{} is made twice", change.handle);
        }
        assert!(batch.entries.iter().all(|entry| made.contains(&entry.directory)));
    }
    assert_eq!(made.len(), 1 + 40 + 2000);
    let entries: usize = plan.batches.iter().map(|batch| batch.entries.len()).sum();
    assert_eq!(entries, 40 + 2000 + 1);
}

/// Proves: files in a directory whose earlier state cannot be read, but which still exists, are made again in
/// it. Names that only this directory had are reported as missing. The server is asked for what it still has,
/// and a file without a name is not missed.
#[test]
fn unread_directories_on_the_way() {
    let mut was = Fake::new();
    was.directory(TOP, "mine", file(3000));
    was.file(file(3000), "new", file(2000), "x");
    let is = was.clone();
    was.file(file(3000), "new", file(2000), "written");
    was.file(file(3000), "newer", file(2001), "written");
    let known = Known { others_were_there: true, ..Known::default() };
    let mine = mine(&was, &is);
    let mut near = was.clone();
    near.unread.insert(TOP);
    let plan_of = |far: &Fake, mine| plan(&near, far, &is, mine, &known, 7);
    let made = |plan: &ResendPlan| -> BTreeSet<Vec<u8>> {
        plan.batches.iter().flat_map(|batch| &batch.inodes).map(|change| change.path.clone()).collect()
    };
    let all: BTreeSet<Vec<u8>> = [b"team/mine/new".to_vec(), b"team/mine/newer".to_vec()].into();
    let found = plan_of(&near, &mine);
    assert_eq!((all.is_subset(&made(&found)), &found.unnamed[..]), (true, &[][..]), "{found:?}");

    near.unread.insert(file(3000));
    let plan_of = |far: &Fake, mine| plan(&near, far, &is, mine, &known, 7);
    let found = plan_of(&near, &mine);
    assert_eq!((made(&found), found.unnamed), ([b"team/mine/new".to_vec()].into(), vec![file(2001)]));
    let found = plan_of(&was, &mine);
    assert_eq!((all.is_subset(&made(&found)), &found.unnamed[..]), (true, &[][..]), "{found:?}");

    // A file that cannot be read anywhere is reported; the server may have it.
    let mut lost = was.clone();
    lost.unread.insert(file(2001));
    let found = plan(&lost, &lost, &is, &mine, &known, 7);
    assert_eq!(found.unread, [b"team/mine/newer".to_vec()]);
    let found = plan(&lost, &was, &is, &mine, &known, 7);
    assert_eq!((all.is_subset(&made(&found)), &found.unread[..]), (true, &[][..]), "{found:?}");

    near.unname(file(3000), "newer");
    near.inodes.get_mut(&file(2001)).expect("a file").links = 0;
    let plan_of = |far: &Fake, mine| plan(&near, far, &is, mine, &known, 7);
    assert_eq!(plan_of(&near, &mine).unnamed, []);
}
