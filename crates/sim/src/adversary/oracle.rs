//! What programs may see: a tree of forks, and whether one order explains every result on each of its branches.
//!
//! A *branch* is a copy of the file system that the enemy keeps: it begins where it was copied from another, with
//! everything that happened there until then. On a branch, calls happen in rounds; those of one round overlap, those of
//! a later round begin after those of an earlier one have returned. The oracle accepts a history if
//!
//! 1. on each branch there is one order of all its calls, from the root on, that keeps the order of rounds and in which
//!    every result is what a file system on an honest disk would have returned (linearizability of each branch);
//! 2. whatever a client was told, it is in the past of whatever the same client is told later (fork order): nobody is
//!    brought from one branch to another unnoticed.
//!
//! A copy that the superuser declares to be the file system from now on ([`Tree::declare`]) is a branch like any other, but
//! that a client may be brought there from another, if it says so ([`Tree::take_up`]); it never comes back.
//!
//! A call that failed may have taken effect, at once, later or never, on the branch where it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A call on the files of one directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Call {
    /// All bytes of a file.
    Read(&'static str),
    /// Size and mode of a file.
    Stat(&'static str),
    /// All names.
    List,
    /// Replaces all bytes of a file that is there, and syncs it.
    Write(&'static str, Bytes),
    /// Makes an empty file that was not there, durably.
    Create(&'static str),
    /// Renames, durably; what had the second name is replaced.
    Rename(&'static str, &'static str),
    /// Removes, durably.
    Unlink(&'static str),
    /// Sets the mode, durably.
    Chmod(&'static str, u32),
    /// Gives the file to its user, durably; content and mode stay.
    Chown(&'static str),
    /// Takes a lock of a file that nobody has locked, and gives it up.
    Lock(&'static str),
    /// All bytes of a file in the past state that has a name.
    Past(&'static str),
}

impl Call {
    /// Whether it changes anything.
    pub fn changes(&self) -> bool {
        !matches!(self, Call::Read(_) | Call::Stat(_) | Call::List | Call::Lock(_) | Call::Past(_))
    }
}

/// Content.
pub type Bytes = Arc<Vec<u8>>;

/// The result that a program saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// Bytes.
    Bytes(Bytes),
    /// Size and mode.
    Attributes(u64, u32),
    /// Names, in order.
    Names(Vec<String>),
    /// It was done.
    Done,
    /// There is no such file.
    NotThere,
    /// The name is taken.
    Taken,
}

/// Whether a call returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It returned.
    Returned(Observation),
    /// It failed.
    Failed,
}

/// A call and its outcome.
#[derive(Clone, Debug)]
pub struct Event {
    /// The client that made the call.
    pub who: usize,
    /// The call itself.
    pub call: Call,
    /// The outcome.
    pub outcome: Outcome,
}

/// The files of the directory: content and mode.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Files {
    /// Present ones.
    pub present: BTreeMap<String, (Bytes, u32)>,
    /// The files of the named state.
    pub past: Arc<BTreeMap<String, (Bytes, u32)>>,
}

impl Files {
    /// Applies a call.
    pub fn apply(&mut self, call: &Call) -> Observation {
        let seen_bytes = |found: Option<&(Bytes, u32)>| match found {
            Some((bytes, _)) => Observation::Bytes(bytes.clone()),
            None => Observation::NotThere,
        };
        let done =
            |found: Option<()>| if found.is_some() { Observation::Done } else { Observation::NotThere };
        match call {
            Call::Read(name) => seen_bytes(self.present.get(*name)),
            Call::Past(name) => seen_bytes(self.past.get(*name)),
            Call::Stat(name) => match self.present.get(*name) {
                Some((bytes, mode)) => Observation::Attributes(bytes.len() as u64, *mode),
                None => Observation::NotThere,
            },
            Call::List => Observation::Names(self.present.keys().cloned().collect()),
            Call::Write(name, bytes) => {
                done(self.present.get_mut(*name).map(|(present, _)| *present = bytes.clone()))
            }
            Call::Create(name) if self.present.contains_key(*name) => Observation::Taken,
            Call::Create(name) => {
                self.present.insert((*name).to_owned(), (Bytes::default(), 0o644));
                Observation::Done
            }
            Call::Rename(from, to) => match self.present.remove(*from) {
                Some(file) => {
                    self.present.insert((*to).to_owned(), file);
                    Observation::Done
                }
                None => Observation::NotThere,
            },
            Call::Unlink(name) => done(self.present.remove(*name).map(drop)),
            Call::Chmod(name, mode) => done(self.present.get_mut(*name).map(|(_, present)| *present = *mode)),
            Call::Chown(name) | Call::Lock(name) => done(self.present.get(*name).map(drop)),
        }
    }
}

/// A position in the tree: after so many rounds of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreePosition {
    /// The branch.
    pub branch: usize,
    /// The number of its rounds.
    pub rounds: usize,
}

#[derive(Clone, Debug, Default)]
struct Branch {
    begins: Option<TreePosition>,
    /// Whether the superuser has declared that the file system goes on in this branch.
    is_declared: bool,
    rounds: Vec<Vec<Event>>,
}

/// The tree of forks, with what every client was told.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Files,
    branches: Vec<Branch>,
    /// The position of what each client was told last.
    last_told: BTreeMap<usize, TreePosition>,
}

/// Calls that failed, with their clients.
type Failed = BTreeSet<(usize, Call)>;
/// A state to which an order so far may have led, and failed calls that may still take effect. They can no more once
/// the same client's next call has returned: a client's calls keep their order.
type State = (Files, Failed);

impl Tree {
    /// A tree of one branch, on which nothing has happened yet.
    pub fn new(root: Files) -> Tree {
        Tree { root, branches: vec![Branch::default()], last_told: BTreeMap::new() }
    }

    /// The last position of a branch.
    pub fn end_of(&self, branch: usize) -> TreePosition {
        TreePosition { branch, rounds: self.branches[branch].rounds.len() }
    }

    /// Copies the state at a position, and returns the new branch.
    pub fn fork(&mut self, from: TreePosition) -> usize {
        self.branches.push(Branch { begins: Some(from), ..Branch::default() });
        self.branches.len() - 1
    }

    /// Declares, as the superuser does, that the file system goes on from where this branch begins.
    pub fn declare(&mut self, branch: usize) {
        self.branches[branch].is_declared = true;
    }

    /// The declared branch among this branch and those that it was copied from.
    fn declared(&self, mut branch: usize) -> Option<usize> {
        while !self.branches[branch].is_declared {
            branch = self.branches[branch].begins?.branch;
        }
        Some(branch)
    }

    /// Notes that a client says it goes on in a declared branch, and how many operations that it had seen are lost.
    ///
    /// # Errors
    /// In words: nobody has declared it, or it was told something that is lost and does not say so.
    pub fn take_up(&mut self, who: usize, branch: usize, lost: u64) -> Result<(), String> {
        let Some(declared) = self.declared(branch) else {
            return Err(format!("client {who} takes up a restore on branch {branch}, which is none"));
        };
        let begins = TreePosition { branch: declared, rounds: 0 };
        let before = self.last_told.insert(who, begins);
        if lost == 0 && before.is_some_and(|before| !self.is_past_of(before, begins)) {
            return Err(format!("client {who} takes a restore up, and does not say what is lost"));
        }
        Ok(())
    }

    /// Adds a round of overlapping calls on a branch.
    ///
    /// # Errors
    /// In words: a client was brought over from another branch.
    pub fn round(&mut self, branch: usize, events: Vec<Event>) -> Result<(), String> {
        self.branches[branch].rounds.push(events.clone());
        let now = self.end_of(branch);
        let tells = |event: &&Event| {
            // A named state is the same on every branch.
            event.outcome != Outcome::Failed && !matches!(event.call, Call::Past(_))
        };
        for event in events.iter().filter(tells) {
            if let Some(before) = self.last_told.insert(event.who, now)
                && !self.is_past_of(before, now)
            {
                return Err(format!(
                    "client {} was told something at {before:?} and something else at {now:?}, where that had not \
                     happened: {event:?}",
                    event.who
                ));
            }
        }
        Ok(())
    }

    fn is_past_of(&self, before: TreePosition, mut now: TreePosition) -> bool {
        loop {
            if now.branch == before.branch {
                return before.rounds <= now.rounds;
            }
            match self.branches[now.branch].begins {
                Some(begins) => now = begins,
                None => return false,
            }
        }
    }

    fn rounds_until(&self, position: TreePosition) -> Vec<&[Event]> {
        let mut rounds = match self.branches[position.branch].begins {
            Some(begins) => self.rounds_until(begins),
            None => Vec::new(),
        };
        rounds.extend(self.branches[position.branch].rounds[..position.rounds].iter().map(Vec::as_slice));
        rounds
    }

    /// Checks that every branch has an order that explains what was seen on it.
    ///
    /// # Errors
    /// In words: the first round that nothing explains.
    pub fn check(&self) -> Result<(), String> {
        for branch in 0..self.branches.len() {
            let mut states: Vec<State> = vec![(self.root.clone(), BTreeSet::new())];
            for (number, round) in self.rounds_until(self.end_of(branch)).into_iter().enumerate() {
                let next = explain(&states, round);
                if next.is_empty() {
                    let states = states.iter().map(|(files, maybe)| (files.present.keys(), maybe));
                    let states: Vec<_> = states.collect();
                    return Err(format!(
                        "branch {branch}, round {number}: no order explains {}; before it: {states:?}",
                        words(round)
                    ));
                }
                states = next;
            }
        }
        Ok(())
    }

    /// The present files of a branch if none is uncertain, to predict a program's result.
    pub fn present(&self, branch: usize) -> Option<Files> {
        let mut states: Vec<State> = vec![(self.root.clone(), BTreeSet::new())];
        for round in self.rounds_until(self.end_of(branch)) {
            states = explain(&states, round);
        }
        match &states[..] {
            [(files, maybe)] if maybe.is_empty() => Some(files.clone()),
            _ => None,
        }
    }
}

/// Long contents are printed as their lengths.
fn words(round: &[Event]) -> String {
    let short = |event: &Event| {
        let text = match &event.outcome {
            Outcome::Returned(Observation::Bytes(bytes)) => {
                format!("{} bytes {:?}", bytes.len(), bytes.first_chunk::<4>())
            }
            outcome => format!("{outcome:?}"),
        };
        let call = match &event.call {
            Call::Write(name, bytes) => format!("Write({name}, {} bytes)", bytes.len()),
            call => format!("{call:?}"),
        };
        format!("client {}: {call} -> {text}", event.who)
    };
    round.iter().map(short).collect::<Vec<_>>().join("; ")
}

/// All states to which some order of the round's calls leads.
fn explain(states: &[State], round: &[Event]) -> Vec<State> {
    let (sure, failed): (Vec<&Event>, Vec<&Event>) =
        round.iter().partition(|event| event.outcome != Outcome::Failed);
    let mut next: Vec<State> = Vec::new();
    for (files, maybe) in states {
        let mut maybe = maybe.clone();
        let changes = failed.iter().filter(|event| event.call.changes());
        maybe.extend(changes.map(|event| (event.who, event.call.clone())));
        search(files, &maybe, &sure, &mut next);
    }
    let returned = |who: usize| sure.iter().any(|event| event.who == who && event.call.changes());
    let mut settled: Vec<State> = Vec::new();
    for (files, mut maybe) in next {
        maybe.retain(|(who, _)| !returned(*who));
        if !settled.iter().any(|known| known.0 == files && known.1 == maybe) {
            settled.push((files, maybe));
        }
    }
    settled
}

fn search(files: &Files, maybe: &Failed, left: &[&Event], found: &mut Vec<State>) {
    if left.is_empty() {
        let state = (files.clone(), maybe.clone());
        if !found.contains(&state) {
            found.push(state);
        }
        return;
    }
    for (position, event) in left.iter().enumerate() {
        let mut after = files.clone();
        if Outcome::Returned(after.apply(&event.call)) == event.outcome {
            let mut rest = left.to_vec();
            rest.remove(position);
            search(&after, maybe, &rest, found);
        }
    }
    // A call that failed earlier takes effect first.
    for failed in maybe {
        let (mut after, mut rest) = (files.clone(), maybe.clone());
        after.apply(&failed.1);
        rest.remove(failed);
        search(&after, &rest, left, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &[u8]) -> Bytes {
        Arc::new(content.to_vec())
    }

    fn tree() -> Tree {
        let mut files = Files::default();
        files.present.insert("a".to_owned(), (bytes(b"0"), 0o644));
        Tree::new(files)
    }

    fn saw(who: usize, call: Call, seen: Observation) -> Event {
        Event { who, call, outcome: Outcome::Returned(seen) }
    }

    fn wrote(who: usize, content: &[u8]) -> Event {
        saw(who, Call::Write("a", bytes(content)), Observation::Done)
    }

    fn read(who: usize, content: &[u8]) -> Event {
        saw(who, Call::Read("a"), Observation::Bytes(bytes(content)))
    }

    /// Proves: what an honest server may show is accepted, with overlapping calls in any order; what it may not show is
    /// refused: something old, something that nobody wrote, a write that vanished.
    #[test]
    fn orders_are_found_and_missed() {
        let honest: [Vec<Vec<Event>>; 3] = [
            vec![vec![wrote(0, b"1")], vec![read(1, b"1")]],
            vec![vec![wrote(0, b"1"), read(1, b"0")], vec![read(1, b"1")]],
            vec![vec![wrote(0, b"1"), wrote(1, b"2"), read(2, b"1")], vec![read(0, b"2")]],
        ];
        for rounds in honest {
            let mut tree = tree();
            rounds.into_iter().for_each(|round| tree.round(0, round).unwrap());
            assert_eq!(tree.check(), Ok(()));
        }
        let lies: [Vec<Vec<Event>>; 4] = [
            vec![vec![wrote(0, b"1")], vec![read(1, b"0")]],
            vec![vec![read(1, b"9")]],
            vec![vec![wrote(0, b"1"), read(1, b"1")], vec![read(2, b"0")]],
            vec![
                vec![saw(0, Call::Create("b"), Observation::Done)],
                vec![saw(1, Call::Create("b"), Observation::Done)],
            ],
        ];
        for rounds in lies {
            let mut tree = tree();
            rounds.iter().for_each(|round| tree.round(0, round.clone()).unwrap());
            assert!(tree.check().is_err(), "{rounds:?}");
        }
    }

    /// Proves: a failed call may take effect late or never, and not twice.
    #[test]
    fn failed_calls_may_take_effect_once() {
        let failed = Event { who: 0, call: Call::Write("a", bytes(b"1")), outcome: Outcome::Failed };
        for (reads, is_fine) in [
            (vec![b"0", b"0"], true),
            (vec![b"0", b"1"], true),
            (vec![b"1", b"1"], true),
            (vec![b"1", b"0"], false),
        ] {
            let mut tree = tree();
            tree.round(0, vec![failed.clone()]).unwrap();
            reads.iter().for_each(|content| tree.round(0, vec![read(1, *content)]).unwrap());
            assert_eq!(tree.check().is_ok(), is_fine, "{reads:?}");
        }
    }

    /// Proves: a client may be brought to a declared copy if it says so, and not otherwise; never to another branch,
    /// and never back.
    #[test]
    fn declared_copies_are_taken_up() {
        let mut before = tree();
        before.round(0, vec![wrote(0, b"1")]).unwrap();
        let back = before.fork(TreePosition { branch: 0, rounds: 0 });
        assert!(before.clone().take_up(0, back, 1).is_err(), "nobody declared it");
        before.declare(back);
        assert!(before.clone().round(back, vec![read(0, b"0")]).is_err(), "it was not said");
        assert!(before.clone().take_up(0, back, 0).is_err(), "what is lost was not said");
        before.take_up(0, back, 1).unwrap();
        before.round(back, vec![read(0, b"0")]).unwrap();
        before.round(back, vec![wrote(0, b"2")]).unwrap();
        assert_eq!(before.check(), Ok(()));
        assert!(before.clone().round(0, vec![read(0, b"1")]).is_err(), "back to before");
        let again = before.fork(TreePosition { branch: back, rounds: 0 });
        assert!(before.clone().round(again, vec![read(0, b"0")]).is_err(), "put back twice, declared once");
        before.round(back, vec![read(1, b"1")]).unwrap();
        assert!(before.check().is_err(), "what was lost is shown");
    }

    /// Proves: the sides of a fork may differ, and no client may be brought from one to the other, except when it goes
    /// on in a copy of its own past.
    #[test]
    fn forks_do_not_join() {
        let mut tree = tree();
        tree.round(0, vec![wrote(0, b"1")]).unwrap();
        let other = tree.fork(tree.end_of(0));
        tree.round(0, vec![wrote(0, b"2")]).unwrap();
        tree.round(other, vec![read(1, b"1")]).unwrap();
        assert_eq!(tree.check(), Ok(()));
        let copy = tree.fork(tree.end_of(0));
        tree.round(copy, vec![read(0, b"2")]).unwrap();
        assert_eq!(tree.check(), Ok(()));
        assert!(tree.clone().round(other, vec![read(0, b"1")]).is_err());
        assert!(tree.round(0, vec![read(1, b"2")]).is_err());
        let mut back = self::tree();
        back.round(0, vec![wrote(0, b"1")]).unwrap();
        let before = back.fork(TreePosition { branch: 0, rounds: 0 });
        assert!(back.round(before, vec![read(0, b"0")]).is_err(), "rolled back");
    }
}
