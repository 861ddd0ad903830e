//! What the kernel has looked up: for each inode number, a name and the directory it is in.

use crate::tree::Tree;
use holdfast_client::FsError;
use holdfast_client::files::Ino;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most components of a path.
const DEPTH_MAX: usize = 2048;

/// The inode numbers that the kernel has, each as a name within another.
#[derive(Default)]
pub struct Names(HashMap<Ino, KnownInode>);

/// Names from the root on.
type PathComponents = Vec<Box<[u8]>>;

/// Where an inode was looked up. It can be found there again, whatever release is current by then.
#[derive(Clone)]
pub struct Lookup {
    /// The tree in which it was looked up.
    pub tree: Arc<Tree>,
    /// A digest of its path in that tree.
    pub path: u64,
}

struct KnownInode {
    parent: Ino,
    name: Box<[u8]>,
    found: Lookup,
    /// Other names by which the kernel has found it, in directories that it may still have.
    others: BTreeSet<(Ino, Box<[u8]>)>,
    lookups: u64,
    /// The number of inodes in this table with this one as parent. The kernel may forget a directory before a
    /// file that was looked up in it; the directory's path is needed until then.
    children: u64,
}

impl Names {
    /// Counts one look-up of `ino`, found as `name` in `parent`.
    pub fn looked_up(&mut self, ino: Ino, parent: Ino, name: &[u8], found: Lookup) {
        let name = Box::from(name);
        let Some(one) = self.0.get_mut(&ino) else {
            let others = BTreeSet::new();
            self.0.insert(ino, KnownInode { parent, name, found, others, lookups: 1, children: 0 });
            self.gain_child(parent);
            return;
        };
        // The newest name is as good as any other, because a number always stands for the same content.
        one.lookups += 1;
        one.found = found;
        if (one.parent, &one.name) == (parent, &name) {
            return;
        }
        let mut others = std::mem::take(&mut one.others);
        others.remove(&(parent, name.clone()));
        let before = std::mem::replace(&mut one.parent, parent);
        others.insert((before, std::mem::replace(&mut one.name, name)));
        if before != parent {
            self.gain_child(parent);
            self.lose_child(before);
        }
        // Cleaned up from time to time, so that entries do not accumulate as releases come and go.
        if others.len().is_power_of_two() {
            others.retain(|(parent, _)| *parent == Ino::ROOT || self.0.contains_key(parent));
        }
        if let Some(one) = self.0.get_mut(&ino) {
            one.others = others;
        }
    }

    /// Takes `count` look-ups back.
    pub fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(one) = self.0.get_mut(&ino) {
            one.lookups = one.lookups.saturating_sub(count);
            self.tidy(ino);
        }
    }

    /// Where `ino` was found last.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the number is not in the table.
    pub fn found(&self, ino: Ino) -> Result<Lookup, FsError> {
        self.0.get(&ino).map(|one| one.found.clone()).ok_or(FsError::Stale)
    }

    /// The names from the root to `ino`, and the tree in which they lead there.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the number is not in the table, or is the root's.
    pub fn path(&self, ino: Ino) -> Result<(PathComponents, Arc<Tree>), FsError> {
        let mut path = Vec::new();
        let mut at = ino;
        loop {
            let one = self.0.get(&at).ok_or(FsError::Stale)?;
            path.push(one.name.clone());
            at = one.parent;
            if at == Ino::ROOT {
                path.reverse();
                return Ok((path, one.found.tree.clone()));
            }
            if path.len() > DEPTH_MAX {
                return Err(FsError::Loop);
            }
        }
    }

    /// The directory that `ino` was found in.
    pub fn parent(&self, ino: Ino) -> Ino {
        self.0.get(&ino).map_or(Ino::ROOT, |known| known.parent)
    }

    /// All names in the table, each with its directory.
    pub fn all(&self) -> impl Iterator<Item = (Ino, &[u8])> {
        self.0.values().flat_map(|known| {
            let others = known.others.iter().map(|(parent, name)| (*parent, &**name));
            others.chain([(known.parent, &*known.name)])
        })
    }

    /// Removes an entry if nothing needs it, and then its parents if nothing needs them any more.
    fn tidy(&mut self, ino: Ino) {
        let mut at = ino;
        while self.0.get(&at).is_some_and(|one| one.lookups == 0 && one.children == 0)
            && let Some(gone) = self.0.remove(&at)
        {
            at = gone.parent;
            if let Some(above) = self.0.get_mut(&at) {
                above.children = above.children.saturating_sub(1);
            }
        }
    }

    /// Counts one more entry with `ino` as parent.
    fn gain_child(&mut self, ino: Ino) {
        if let Some(above) = self.0.get_mut(&ino) {
            above.children += 1;
        }
    }

    /// Counts one entry fewer with `ino` as parent.
    fn lose_child(&mut self, ino: Ino) {
        if let Some(above) = self.0.get_mut(&ino) {
            above.children = above.children.saturating_sub(1);
            self.tidy(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{Algorithm, MemoryBlocks, Reference};
    use holdfast_crypto::{Digest, DigestKey};

    fn found(release: u32) -> Lookup {
        let blocks = Arc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
        let (algorithm, address) = (Algorithm::Blake3, Digest::ZERO);
        let root = Reference { algorithm, address, length: release, key: None };
        Lookup { tree: Arc::new(Tree::new(blocks, root)), path: 0 }
    }

    fn path(names: &Names, ino: Ino) -> Option<(String, u32)> {
        let (path, tree) = names.path(ino).ok()?;
        let path: Vec<_> = path.iter().map(|name| String::from_utf8_lossy(name)).collect();
        Some((path.join("/"), tree.reference().length))
    }

    /// Proves: the path of a file stays in the table while the kernel has the file, whatever it forgets
    /// first, and under whichever name it was found; afterwards the table is empty.
    #[test]
    fn paths_outlive_their_directories() {
        let mut names = Names::default();
        let (a, b, file) = (Ino(10), Ino(20), Ino(30));
        names.looked_up(a, Ino::ROOT, b"a", found(1));
        names.looked_up(b, Ino::ROOT, b"b", found(1));
        names.looked_up(file, a, b"one", found(1));
        names.looked_up(file, b, b"two", found(1));
        let all: BTreeSet<_> = names.all().collect();
        let four: [(Ino, &[u8]); 4] = [(Ino::ROOT, b"a"), (Ino::ROOT, b"b"), (a, b"one"), (b, b"two")];
        assert_eq!(all, BTreeSet::from(four));
        names.forget(b, 1);
        assert_eq!(path(&names, file), Some(("b/two".into(), 1)));
        assert_eq!(names.parent(file), b);
        names.forget(a, 1);
        assert_eq!(names.0.len(), 2, "nothing needs the other directory");
        names.forget(file, 1);
        assert!(path(&names, file).is_some(), "it was looked up twice");
        names.forget(file, 1);
        assert_eq!(path(&names, file), None);
        assert_eq!(names.all().count(), 0);
        names.forget(file, 5);
    }

    /// Proves: a file in a directory of an old release is found in that release; a file that did not change
    /// is found in the release where it was last looked up. A file that stays in use through many releases
    /// does not accumulate names.
    #[test]
    fn releases_come_and_go() {
        let mut names = Names::default();
        let (old, new, same, inside) = (Ino(10), Ino(11), Ino(20), Ino(30));
        names.looked_up(old, Ino::ROOT, b"a", found(1));
        names.looked_up(same, old, b"same", found(1));
        names.looked_up(inside, same, b"inside", found(1));
        assert_eq!(path(&names, inside), Some(("a/same/inside".into(), 1)));
        names.looked_up(new, Ino::ROOT, b"a", found(2));
        names.forget(old, 1);
        assert_eq!(path(&names, inside), Some(("a/same/inside".into(), 1)), "it is needed still");
        names.looked_up(same, new, b"same", found(2));
        assert_eq!(path(&names, inside), Some(("a/same/inside".into(), 2)));
        assert_eq!(path(&names, old), None, "nothing needs it");
        let mut before = new;
        for release in 100..300 {
            let directory = Ino(release);
            names.looked_up(directory, Ino::ROOT, b"a", found(3));
            names.looked_up(same, directory, b"same", found(3));
            names.forget(before, 1);
            before = directory;
        }
        assert_eq!(names.0.len(), 3);
        assert!(names.all().count() < 10, "{}", names.all().count());
    }
}
