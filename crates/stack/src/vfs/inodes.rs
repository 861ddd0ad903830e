//! Maps the kernel's inode numbers to the FSDriver's present numbers. A restarted FSDriver does not have its
//! earlier numbers; files are then looked up again by name, so that open files stay usable.

use std::collections::HashMap;

/// The root directory, for the kernel and for the FSDriver.
pub(super) const ROOT: u64 = 1;

/// A file of which the kernel has an inode.
struct Inode {
    number: u64,
    /// References that the FSDriver counts for it.
    references: u64,
    parent: u64,
    name: String,
    /// References that the kernel has.
    count: u64,
}

/// The inodes that the kernel has.
#[derive(Default)]
pub(super) struct Inodes {
    by_ino: HashMap<u64, Inode>,
    by_number: HashMap<u64, u64>,
    last: u64,
}

impl Inodes {
    /// Notes that the kernel learns of a file by a name. Returns the file's inode number.
    pub(super) fn learn(&mut self, parent: u64, name: &str, number: u64) -> u64 {
        if number == ROOT {
            return ROOT;
        }
        if let Some(ino) = self.by_number.get(&number)
            && let Some(inode) = self.by_ino.get_mut(ino)
        {
            inode.references += 1;
            inode.count += 1;
            (inode.parent, inode.name) = (parent, name.to_owned());
            return *ino;
        }
        self.last = self.last.max(ROOT) + 1;
        let inode = Inode { number, references: 1, parent, name: name.to_owned(), count: 1 };
        self.by_ino.insert(self.last, inode);
        self.by_number.insert(number, self.last);
        self.last
    }

    /// The FSDriver's number of a file.
    pub(super) fn number(&self, ino: u64) -> Option<u64> {
        if ino == ROOT { Some(ROOT) } else { Some(self.by_ino.get(&ino)?.number) }
    }

    /// The inode numbers that the kernel has.
    pub(super) fn all(&self) -> Vec<u64> {
        self.by_ino.keys().copied().collect()
    }

    /// The directory and the name by which a file is found.
    pub(super) fn path(&self, ino: u64) -> Option<(u64, String)> {
        let inode = self.by_ino.get(&ino)?;
        Some((inode.parent, inode.name.clone()))
    }

    /// Notes the new number of a file that was looked up again.
    pub(super) fn found(&mut self, ino: u64, number: u64) {
        if let Some(inode) = self.by_ino.get_mut(&ino) {
            self.by_number.remove(&inode.number);
            (inode.number, inode.references) = (number, 1);
            self.by_number.insert(number, ino);
        }
    }

    /// Notes that a file has another name.
    pub(super) fn renamed(&mut self, from: (u64, &str), to: (u64, &str)) {
        // The file that had the new name has lost it, and must not be looked up by a name that is now another
        // file's.
        let named = |inode: &Inode, (parent, name): (u64, &str)| inode.parent == parent && inode.name == name;
        for inode in self.by_ino.values_mut() {
            if named(inode, to) {
                inode.name.clear();
            } else if named(inode, from) {
                (inode.parent, inode.name) = (to.0, to.1.to_owned());
            }
        }
    }

    /// Notes that a name was removed.
    pub(super) fn removed(&mut self, parent: u64, name: &str) {
        for inode in self.by_ino.values_mut() {
            if inode.parent == parent && inode.name == name {
                inode.name.clear();
            }
        }
    }

    /// Gives up references of the kernel. After the last: the FSDriver's number, and the references to give
    /// up there.
    pub(super) fn forget(&mut self, ino: u64, count: u64) -> Option<(u64, u64)> {
        let inode = self.by_ino.get_mut(&ino)?;
        inode.count = inode.count.saturating_sub(count);
        if inode.count > 0 {
            return None;
        }
        let inode = self.by_ino.remove(&ino)?;
        self.by_number.remove(&inode.number);
        Some((inode.number, inode.references))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a file has one number for the kernel, whatever names it is found by and whatever number the
    /// driver gives it later. The number is dropped with the last reference, and a name that another file
    /// took is not followed.
    #[test]
    fn found_again() {
        let mut inodes = Inodes::default();
        let a = inodes.learn(ROOT, "a", 70);
        assert_eq!(inodes.learn(ROOT, "a", 70), a);
        let b = inodes.learn(ROOT, "b", 71);
        assert_ne!(a, b);
        inodes.found(a, 900);
        assert_eq!(
            (inodes.number(a), inodes.number(b), inodes.number(ROOT)),
            (Some(900), Some(71), Some(ROOT))
        );
        assert_eq!(inodes.learn(ROOT, "a", 900), a);
        inodes.renamed((ROOT, "a"), (ROOT, "b"));
        assert_eq!(inodes.path(a), Some((ROOT, "b".to_owned())));
        assert_eq!(inodes.path(b), Some((ROOT, String::new())), "replaced");
        inodes.removed(ROOT, "b");
        assert_eq!(inodes.path(a), Some((ROOT, String::new())));
        assert_eq!(inodes.forget(a, 2), None);
        assert_eq!(inodes.forget(a, 1), Some((900, 2)), "those since it was found again");
        assert_eq!(inodes.number(a), None);
        assert_eq!(inodes.forget(a, 1), None);
    }
}
