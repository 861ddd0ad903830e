//! What the kernel has looked up: which name of which directory each inode number is.

use holdfast_client::FsError;
use holdfast_client::files::Ino;
use std::collections::HashMap;

/// No path is deeper.
const DEPTH_MAX: usize = 2048;

/// Inode numbers that the kernel knows, as names below others.
#[derive(Default)]
pub struct Names(HashMap<Ino, Known>);

struct Known {
    parent: Ino,
    name: Box<[u8]>,
    lookups: u64,
    /// How many others are known as below it. The kernel may forget a directory before a file in it that has another
    /// name elsewhere; its path is needed for as long.
    children: u64,
}

impl Names {
    /// Counts one look-up of `ino`, found as `name` in `parent`.
    pub fn looked_up(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
        // Of a file with several names, the one found last is as good as any, and surely there.
        let before = match self.0.get_mut(&ino) {
            Some(one) => {
                one.lookups += 1;
                one.name = name.into();
                Some(std::mem::replace(&mut one.parent, parent))
            }
            None => {
                self.0.insert(ino, Known { parent, name: name.into(), lookups: 1, children: 0 });
                None
            }
        };
        if before != Some(parent) {
            if let Some(above) = self.0.get_mut(&parent) {
                above.children += 1;
            }
            if let Some(before) = before {
                self.lose_child(before);
            }
        }
    }

    /// Takes `count` look-ups back.
    pub fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(one) = self.0.get_mut(&ino) {
            one.lookups = one.lookups.saturating_sub(count);
            self.tidy(ino);
        }
    }

    /// The names from the root to `ino`.
    ///
    /// # Errors
    /// [`FsError::Stale`]: it is not known.
    pub fn way(&self, ino: Ino) -> Result<Vec<Box<[u8]>>, FsError> {
        let mut way = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let one = self.0.get(&at).ok_or(FsError::Stale)?;
            way.push(one.name.clone());
            at = one.parent;
            if way.len() > DEPTH_MAX {
                return Err(FsError::Loop);
            }
        }
        way.reverse();
        Ok(way)
    }

    /// The directory that `ino` was found in.
    pub fn parent(&self, ino: Ino) -> Ino {
        self.0.get(&ino).map_or(Ino::ROOT, |known| known.parent)
    }

    /// All that is known: number, directory, name.
    pub fn all(&self) -> impl Iterator<Item = (Ino, Ino, &[u8])> {
        self.0.iter().map(|(ino, known)| (*ino, known.parent, &*known.name))
    }

    /// Forgets what nothing needs, and above it what is needed no more by that.
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

    /// One fewer is known below `ino`.
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

    /// Proves: the path of a file stays known while the kernel knows the file, whatever it forgets first and by
    /// whichever of its names it was found; and afterwards nothing is left.
    #[test]
    fn paths_outlive_their_directories() {
        let mut names = Names::default();
        let (a, b, file) = (Ino(10), Ino(20), Ino(30));
        names.looked_up(a, Ino::ROOT, b"a");
        names.looked_up(b, Ino::ROOT, b"b");
        names.looked_up(file, a, b"one");
        names.looked_up(file, b, b"two");
        let way = |names: &Names| {
            names.way(file).map(|way| way.iter().map(|name| name.to_vec()).collect::<Vec<_>>())
        };
        names.forget(b, 1);
        assert_eq!(way(&names).unwrap(), [b"b".to_vec(), b"two".to_vec()]);
        assert_eq!(names.parent(file), b);
        names.forget(a, 1);
        assert_eq!(names.all().count(), 2, "nothing needs the other directory");
        names.forget(file, 1);
        assert!(way(&names).is_ok(), "it was looked up twice");
        names.forget(file, 1);
        assert!(matches!(way(&names), Err(FsError::Stale)));
        assert_eq!(names.all().count(), 0);
        names.forget(file, 5);
    }
}
